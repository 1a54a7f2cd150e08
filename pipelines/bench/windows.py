"""What the engine of time windows takes by itself, without a server: time and bytes.

Seven windows (1 min, 5 min, 10 min, 1 h, 24 h, 7 d, 30 d) with six aggregates each, over events
with two columns of amounts, spread evenly over 30 days.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hotplate.windows.compaction import Compactor
from hotplate.windows.events import Events
from hotplate.windows.kernel import Reader
from hotplate.windows.log import LogFormat
from hotplate.windows.plan import LogPlan
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
from pipelines.bench.measure import Spread, compare, time_calls

__all__ = ["EngineCase", "kernel_lines"]

_SPANS_MS = (
    *(MINUTE_MS, 5 * MINUTE_MS, 10 * MINUTE_MS),
    *(HOUR_MS, DAY_MS, 7 * DAY_MS, 30 * DAY_MS),
)
_FUNCTIONS = ("count", "sum", "mean", "min", "max", "std")
_NOW_MS = 1_767_225_600_000


@dataclass(frozen=True)
class EngineCase:
    """A spec of 42 outputs, its reader, and logs for it.

    Attributes:
        reader: of the spec.
        compactor: of its logs.
        form: how they are written.
        now_ms: the moment of reads.
    """

    reader: Reader
    compactor: Compactor
    form: LogFormat
    now_ms: int = _NOW_MS

    @classmethod
    def of(cls, profile: str = "default") -> EngineCase:
        """A case with the hops of a profile, and a lateness that fits it."""
        lateness_ms = MINUTE_MS if profile == "hot" else HOUR_MS
        columns = (Column.floats("amount"), Column.floats("fee"))
        event = EventSpec("transaction_id", columns, lateness_ms=lateness_ms)
        aggregates = tuple(
            Aggregate(f"{function}_{span}", function, "amount" if index else "", window)
            for span in _SPANS_MS
            for window in [Window(span, default_hop_ms(span, profile))]
            for index, function in enumerate(_FUNCTIONS)
        )
        spec = WindowSpec(event, aggregates)
        plan = LogPlan.of([spec])
        return cls(Reader(spec, plan), Compactor(plan), LogFormat(plan))

    def log(self, count: int, seed: int, span_ms: int = 30 * DAY_MS) -> bytes:
        """A log of `count` events, in order, over the last `span_ms`; not compacted."""
        rng = np.random.default_rng(seed)
        ts = np.sort(self.now_ms - rng.integers(100, span_ms, count))
        ids = rng.integers(1, 1 << 62, count)
        amounts = rng.integers(100, 100_000, (count, 2))
        return self.form.records.pack(Events(ts, ids, ts + 20, amounts)).tobytes()

    def compacted(self, blob: bytes) -> bytes:
        """The log as a compactor leaves it now."""
        fold = self.compactor.fold(blob, self.now_ms)
        return blob if fold is None else fold.blob

    def read(self, blobs: list[bytes | None]) -> Callable[[], object]:
        """A read of these logs, to be timed."""
        return lambda: self.reader.read(blobs, self.now_ms)


def kernel_lines(rounds: int) -> list[Line]:
    """Reads of one log, of 50, and of a busy merchant's; bytes an entity."""
    case, hot = EngineCase.of(), EngineCase.of("hot")
    one: list[bytes | None] = [case.log(100, 1)]
    fifty: list[bytes | None] = [case.log(100, seed) for seed in range(50)]
    merchant = hot.compacted(hot.log(72_000, 1, 2 * HOUR_MS))
    lines = [
        _time("read, one entity of 100 events, 42 values", case.read(one), 2_000, rounds, 60),
        _time("read, 50 entities of 100 events", case.read(fifty), 100, rounds, 1_600),
        _time("read, a merchant with 10 events/s", hot.read([merchant]), 500, rounds, 500),
    ]
    pair = compare(
        lambda: [case.reader.read([blob], case.now_ms) for blob in fifty],
        case.read(fifty),
        (20, 100),
        rounds,
    )
    shown = f"{pair.p50.low:.1f} to {pair.p50.high:.1f}"
    what = "50 entities in one read against one by one"
    lines.append(Line(what, f"{pair.p50.median:.1f} x faster", shown, ">= 2 x", None, ""))
    lines.append(_size("100 events, not compacted", len(one[0] or b""), 6_000))
    lines.append(_size("100 events, compacted", len(case.compacted(one[0] or b"")), 6_000))
    large = case.compacted(case.log(10_000, 1))
    lines.append(_size("10,000 events over 30 days, compacted", len(large), 45_000))
    return lines


def _time(
    what: str, call: Callable[[], object], count: int, rounds: int, at_most_us: float
) -> Line:
    medians = [statistics.median(time_calls(call, count)) * 1e6 for _ in range(rounds)]
    spread = Spread.of(medians)
    return Line(
        what,
        f"{spread.median:,.0f} us",
        f"{spread.low:,.0f} to {spread.high:,.0f}",
        f"<= {at_most_us:,.0f} us",
        spread.median <= at_most_us,
        "",
    )


def _size(what: str, size: int, at_most: int) -> Line:
    is_met = size <= at_most
    return Line(f"state, {what}", f"{size:,} bytes", "", f"<= {at_most:,} bytes", is_met, "")
