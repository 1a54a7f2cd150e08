"""Windows at past moments: rows a second, memory, and against rolling windows of pandas.

Every event of a stream is a row: 1.5 million events of 5,000 cards over 90 days, one in a hundred
up to half an hour late. Seven windows from 1 min to 30 d with six aggregates each. Rows a second
are per second of processor time of one process, so that whatever else the machine does at that
moment does not count; the rate by the clock is beside it.

pandas gets the windows without hops, which is all it can do, and so does Hotplate beside it. It
knows no arrivals, and takes sums in floats. A part of the cards is enough to compare rates.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hotplate.windows.events import Events
from hotplate.windows.exact import Integers
from hotplate.windows.offline import Moments, outputs_at
from hotplate.windows.spec import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    Aggregate,
    Column,
    EventSpec,
    Window,
    WindowSpec,
    default_hop_ms,
)
from pipelines.bench.line import Line
from pipelines.bench.measure import Spread

__all__ = ["Stream", "offline_lines"]

_EVENTS = 1_500_000
_CARDS = 5_000
_COMPARED = 40  # of the cards: 12,000 events
_SPANS_MS = (
    *(MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS),
    *(DAY_MS, 7 * DAY_MS, 30 * DAY_MS),
)
_FUNCTIONS = ("count", "sum", "mean", "min", "max", "std")
_ROWS_A_SECOND = 250_000
_MOST_MB = 1_000
_TIMES_FASTER = 5


@dataclass(frozen=True)
class Stream:
    """Events, and whose they are.

    Attributes:
        keys: int64, the card of each.
        events: in the order of time.
    """

    keys: Integers
    events: Events

    @classmethod
    def random(cls, count: int, cards: int, seed: int = 0) -> Stream:
        """Events spread evenly over 90 days."""
        rng = np.random.default_rng(seed)
        ts = np.sort(rng.integers(0, 90 * DAY_MS, count))
        arrivals = ts + rng.integers(0, 500, count)
        late = rng.random(count) < 0.01
        arrivals[late] += rng.integers(0, HOUR_MS // 2, int(late.sum()))
        cents = rng.integers(100, 50_000, (count, 1))
        ids = rng.integers(1, 1 << 62, count)
        return cls(rng.integers(0, cards, count), Events(ts, ids, arrivals, cents))

    def of_cards(self, cards: int) -> Stream:
        """The events of the first so many cards."""
        mine, events = self.keys < cards, self.events
        return Stream(
            self.keys[mine],
            Events(events.ts[mine], events.ids[mine], events.arrivals[mine], events.values[mine]),
        )


def _spec(profile: str) -> WindowSpec:
    return WindowSpec(
        EventSpec("transaction_id", (Column.floats("amount"),)),
        tuple(
            Aggregate(f"{function}_{span}", function, "amount", window)
            for span in _SPANS_MS
            for window in [Window(span, default_hop_ms(span, profile))]
            for function in _FUNCTIONS
        ),
    )


def _compute(stream: Stream, profile: str = "default") -> np.ndarray[Any, Any]:
    rows = Moments(stream.keys, stream.events.ts)
    return outputs_at(_spec(profile), stream.events, stream.keys, rows)


def offline_lines(rounds: int, *, is_short: bool = False) -> list[Line]:
    """Rows a second and core, peak memory, and times faster than pandas."""
    events = _EVENTS // 30 if is_short else _EVENTS
    runs = [_child(events) for _ in range(rounds)]
    rates = Spread.of([run["rows_per_cpu_s"] for run in runs])
    clock = Spread.of([run["rows_per_s"] for run in runs])
    peak = Spread.of([run["peak_mb"] for run in runs])
    ratios = Spread.of(_against_pandas(rounds, _COMPARED // 8 if is_short else _COMPARED))
    width = len(_spec("default").aggregates)
    return [
        Line(
            f"past moments, {width} values a row, {events:,} events",
            f"{rates.median:,.0f} rows/s and core",
            f"{rates.low:,.0f} to {rates.high:,.0f}",
            f">= {_ROWS_A_SECOND:,} rows/s",
            rates.median >= _ROWS_A_SECOND,
            f"by the clock {clock.median:,.0f} rows/s",
        ),
        Line(
            "the same, most memory of the process",
            f"{peak.median:,.0f} MB",
            f"{peak.low:,.0f} to {peak.high:,.0f}",
            f"<= {_MOST_MB:,} MB",
            peak.median <= _MOST_MB,
            f"of which the result {events * width * 8 / 1e6:,.0f} MB",
        ),
        Line(
            "the same values by rolling windows of pandas",
            f"{ratios.median:.1f} x faster",
            f"{ratios.low:.1f} to {ratios.high:.1f}",
            f">= {_TIMES_FASTER} x",
            ratios.median >= _TIMES_FASTER,
            f"{_COMPARED} of {_CARDS:,} cards",
        ),
    ]


def _child(events: int) -> dict[str, float]:
    """Measure in a process of its own, whose peak is of this work alone."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pipelines.bench.windows_offline", str(events)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _against_pandas(rounds: int, cards: int) -> list[float]:
    stream = Stream.random(_EVENTS, _CARDS).of_cards(cards)
    frame = pd.DataFrame({"key": stream.keys, "amount": stream.events.values[:, 0] / 100})
    frame.index = pd.to_datetime(stream.events.ts, unit="ms")
    ratios = []
    for _ in range(rounds):
        began = time.process_time()
        for span in _SPANS_MS:
            rolling = frame.groupby("key").rolling(f"{span}ms", closed="left")["amount"]
            for function in _FUNCTIONS:
                getattr(rolling, function)()
        theirs = time.process_time() - began
        began = time.process_time()
        _compute(stream, "exact")
        ratios.append(theirs / (time.process_time() - began))
    return ratios


def _measure(events: int) -> dict[str, float]:
    stream = Stream.random(events, _CARDS)
    by_clock, by_processor = time.perf_counter(), time.process_time()
    _compute(stream)
    by_clock, by_processor = time.perf_counter() - by_clock, time.process_time() - by_processor
    return {
        "rows_per_s": events / by_clock,
        "rows_per_cpu_s": events / by_processor,
        "peak_mb": _peak_mb(),
    }


def _peak_mb() -> float:
    """The most memory that this process ever held; `ru_maxrss` has its parent's, too, on Linux."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_000_000


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[1]))))
