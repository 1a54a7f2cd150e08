"""The short way through a log of one entity gives the bits of the long one."""

from __future__ import annotations

import numpy as np
import pytest

from hotplate.windows.compaction import Compactor
from hotplate.windows.events import Events
from hotplate.windows.kernel import Reader
from hotplate.windows.log import LogFormat
from hotplate.windows.plan import LogPlan
from hotplate.windows.scaling import NO_VALUE
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

NOW = 1_767_225_600_000
SPANS = (MINUTE_MS, HOUR_MS, DAY_MS, 7 * DAY_MS)
COLUMNS = tuple(Column.floats(name) for name in ("amount", "fee", "tax", "tip"))
USED = ("fee", "tax")
EVENT = EventSpec("id", COLUMNS)
SPEC = WindowSpec(
    EVENT,
    tuple(
        Aggregate(f"{function}_{column}_{span}", function, column, window)
        for span in SPANS
        for window in [Window(span, default_hop_ms(span, "default"))]
        for column in USED
        for function in ("count", "sum", "mean", "min", "max", "std")
    ),
)
PLAN = LogPlan.of([SPEC])


def log_of(seed: int, most: int, share_of_null: float = 0.0) -> bytes:
    """Some hundred events over eight days, in order, several of them in one millisecond."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 400))
    ts = np.sort(NOW - rng.integers(-20, 8 * DAY_MS, count))
    if seed % 2:
        ts[rng.random(count) < 0.05] = ts[count // 2]
        ts.sort()
    else:  # never more than two
        ts[1::9] = ts[::9][: len(ts[1::9])]
    values = rng.integers(-most, most, (count, len(COLUMNS)))
    values[rng.random(values.shape) < share_of_null] = NO_VALUE
    ids = rng.integers(1, 1 << 62, count)
    if seed % 5 == 0:  # each of two is the same event
        ids[1::9] = ids[::9][: len(ids[1::9])]
    events = Events(ts, ids, ts + 20, values)
    return LogFormat(PLAN).records.pack(events).tobytes()


@pytest.mark.parametrize("most", [100_000, 1 << 26, 1 << 50], ids=["small", "medium", "large"])
@pytest.mark.parametrize("share_of_null", [0.0, 0.02], ids=["full", "with nulls"])
def test_both_ways_give_the_same_bits(most: int, share_of_null: float) -> None:
    """Bare and compacted logs, at several moments, in values and in how long they hold."""
    short, long = Reader(SPEC, PLAN), Reader(SPEC, PLAN)
    long._single.is_fit = False
    assert short._single.is_fit
    taken = 0
    for seed in range(60):
        bare = log_of(seed, most, share_of_null)
        fold = Compactor(PLAN).fold(bare, NOW)
        for blob in (bare, fold.blob if fold else bare):
            for t in (NOW, NOW + 7, NOW + 3 * HOUR_MS, NOW + 6 * DAY_MS):
                one, other = short.read([blob], t), long.read([blob], t)
                assert one.values.tobytes() == other.values.tobytes()
                assert one.valid_until.tolist() == other.valid_until.tolist()
                taken += blob is not bare and short._single.partials(blob, t) is not None
    if most < 1 << 50 and not share_of_null:
        assert taken > 100, "the short way was not taken through compacted logs"


def test_labels_that_are_known_later_need_no_long_way() -> None:
    """Windows that end a week ago, over labels that arrive a week late, or somewhat before or after
    their turn: the same bits, and mostly the short way."""
    spec = WindowSpec(
        EVENT,
        tuple(
            Aggregate(f"{function}_{span}", function, "fee", Window(span, HOUR_MS, 7 * DAY_MS))
            for span in SPANS[1:]
            for function in ("count", "mean")
        ),
    )
    plan = LogPlan.of([spec])
    short, long = Reader(spec, plan), Reader(spec, plan)
    long._single.is_fit = False
    taken = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(1, 60))
        ts = np.sort(NOW - rng.integers(0, 16 * DAY_MS, count))
        delay = rng.choice([0, 7 * DAY_MS, 7 * DAY_MS + HOUR_MS, 8 * DAY_MS], count)
        if seed % 2:
            delay[:] = 7 * DAY_MS
        values = rng.integers(0, 2, (count, len(COLUMNS)))
        ids = rng.integers(1, 1 << 62, count)
        events = Events(ts, ids, ts + delay, values)
        blob = LogFormat(plan).records.pack(events).tobytes()
        for t in (NOW, NOW + 7, NOW + 3 * HOUR_MS, NOW + 6 * DAY_MS):
            one, other = short.read([blob], t), long.read([blob], t)
            assert one.values.tobytes() == other.values.tobytes()
            assert one.valid_until.tolist() == other.valid_until.tolist()
            taken += short._single.partials(blob, t) is not None
    assert taken > 400
