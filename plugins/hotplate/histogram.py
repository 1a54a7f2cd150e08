"""A histogram with fixed bounds, which any thread may add to.

As with the other counts, one addition is one step under the interpreter's lock. A snapshot that is
taken between two steps of one addition may lack a part of it, until the next one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

__all__ = ["AGES_S", "WAITS_S", "Histogram", "HistogramStats"]

AGES_S: Final = (
    0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_600.0,
    10_800.0, 86_400.0,
)  # fmt: skip
"""Upper bounds for ages, in seconds: a millisecond to a day, about a factor of 3 apart."""

WAITS_S: Final = (
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
)  # fmt: skip
"""Upper bounds for what a server is waited for, in seconds."""


@dataclass(frozen=True)
class HistogramStats:
    """A histogram as it was.

    Attributes:
        bounds: upper bounds, each of which counts as below itself; one more, without end, follows.
        counts: values within each bound and above the one before it.
        total: of all values.
        greatest: of all values; 0 where there is none.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    greatest: float

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound, and how many values lie within it; the last one is without end."""
        return zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True)

    @property
    def count(self) -> int:
        """How many values."""
        return sum(self.counts)


class Histogram:
    """Values, counted by size.

    Args:
        bounds: rising upper bounds.
    """

    __slots__ = ("_bounds", "_counts", "_greatest", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0
        self._greatest = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value
        if value > self._greatest:
            self._greatest = value

    def snapshot(self) -> HistogramStats:
        """The counts now."""
        return HistogramStats(self._bounds, tuple(self._counts), self._total, self._greatest)
