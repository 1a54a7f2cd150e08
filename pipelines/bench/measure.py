"""Timing two things against each other on a machine that others use too.

Both sides run in alternating blocks; each round gives one ratio of medians and one of 99th
percentiles, and the median over the rounds is what is reported, with the smallest and the largest
beside it. A busy machine slows both sides of a round alike.

Blocks, not single calls, alternate: Feast keeps one process-wide cache of resolved requests that
is dropped whenever another registry object is used, so alternating calls would slow Feast down.
The first calls of each block are not counted for the same reason.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Pair", "Spread", "compare", "percentile", "time_calls"]

_WARM_UP = 3


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@dataclass(frozen=True)
class Spread:
    """A number over the rounds: its median, smallest and largest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Pair:
    """How much faster the second is than the first.

    Attributes:
        p50, p99: ratios first / second of the rounds.
        first_us, second_us: median microseconds a call, over the rounds.
    """

    p50: Spread
    p99: Spread
    first_us: float
    second_us: float


def time_calls(
    call: Callable[[], object], count: int, before: Callable[[], object] | None = None
) -> list[float]:
    """Seconds of each of `count` calls; `before` runs untimed before each."""
    for _ in range(_WARM_UP):
        if before is not None:
            before()
        call()
    seconds = []
    for _ in range(count):
        if before is not None:
            before()
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return seconds


def compare(
    first: Callable[[], object],
    second: Callable[[], object],
    counts: tuple[int, int],
    rounds: int,
    before_second: Callable[[], object] | None = None,
) -> Pair:
    """Time two calls in alternating blocks."""
    p50, p99, first_us, second_us = [], [], [], []
    for _ in range(rounds):
        a = time_calls(first, counts[0])
        b = time_calls(second, counts[1], before_second)
        p50.append(percentile(a, 0.5) / percentile(b, 0.5))
        p99.append(percentile(a, 0.99) / percentile(b, 0.99))
        first_us.append(percentile(a, 0.5) * 1e6)
        second_us.append(percentile(b, 0.5) * 1e6)
    return Pair(
        Spread.of(p50), Spread.of(p99), statistics.median(first_us), statistics.median(second_us)
    )
