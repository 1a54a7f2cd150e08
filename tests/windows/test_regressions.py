"""Faults that were found once, each named after its symptom."""

from __future__ import annotations

import numpy as np

from hotplate.clock import FakeClock
from hotplate.windows.compaction import Compactor
from hotplate.windows.kernel import Reader
from hotplate.windows.log import HEADER_SIZE, LogFormat
from hotplate.windows.plan import LogPlan
from hotplate.windows.spec import Aggregate, Column, EventSpec, Window, WindowSpec
from hotplate.windows.state import LocalState

from .oracle import Event
from .streams import records

SPEC = WindowSpec(
    EventSpec("id", (Column.integers("x"),), lateness_ms=50, skew_ms=10, slack_ms=20),
    (
        Aggregate("n_short", "count", "", Window(100, 10)),
        Aggregate("n_long", "count", "", Window(10_000, 1_000)),
        Aggregate("x_long", "sum", "x", Window(10_000, 1_000)),
    ),
)
PLAN = LogPlan.of([SPEC])
KEY = b"card"


def run(first_ts: int, count: int, step: int = 1) -> list[bytes]:
    """Records of events that arrive at once."""
    ts = range(first_ts, first_ts + count * step, step)
    return records(PLAN, [Event(one, number, one, (1,)) for number, one in enumerate(ts, 1)])


def counts(blob: bytes | None, t: int) -> list[float]:
    return Reader(SPEC, PLAN).read([blob], t).values[0].tolist()


def test_a_log_rewritten_meanwhile_with_the_same_records_in_front_loses_no_event() -> None:
    """Comparing bytes of records took a rewritten log for the one that was read (ABA)."""
    state, compactor = LocalState(PLAN.ttl_ms, FakeClock()), Compactor(PLAN)
    recent = run(20_000, 3)
    state.append(KEY, b"".join(run(12_000, 50) + recent))
    first = compactor.fold(state.get(KEY) or b"", 13_500)
    assert first is not None
    assert state.swap(KEY, first)
    slow = compactor.fold(state.get(KEY) or b"", 20_040)
    # events go on, and another compactor folds them; the records in front look as they did before
    state.append(KEY, b"".join(run(14_000, 500)))
    quick = compactor.fold(state.get(KEY) or b"", 20_060)
    assert quick is not None
    assert state.swap(KEY, quick)
    if slow is not None:
        assert not state.swap(KEY, slow)
    again = compactor.fold(state.get(KEY) or b"", 20_060)
    assert again is None
    assert counts(state.get(KEY), 20_100)[1] == 553


def test_two_folds_of_one_log_differ_in_their_nonce() -> None:
    """The second of two compactors that read the same log must find that it was rewritten."""
    state, compactor = LocalState(PLAN.ttl_ms, FakeClock()), Compactor(PLAN)
    state.append(KEY, b"".join(run(10_000, 50)))
    bare = state.get(KEY) or b""
    one, other = compactor.fold(bare, 11_500), compactor.fold(bare, 11_500)
    assert one is not None
    assert other is not None
    assert one.blob[:HEADER_SIZE] != other.blob[:HEADER_SIZE]
    assert state.swap(KEY, one)
    state.append(KEY, run(11_000, 1)[0])
    assert not state.swap(KEY, other)
    assert counts(state.get(KEY), 11_600)[1] == 51


def test_a_key_deleted_and_made_anew_while_it_was_folded_keeps_its_new_events() -> None:
    """A bare log has no nonce: all that was read of it is compared."""
    clock = FakeClock()
    state, compactor = LocalState(PLAN.ttl_ms, clock), Compactor(PLAN)
    state.append(KEY, b"".join(run(10_000, 50)))
    fold = compactor.fold(state.get(KEY) or b"", 11_500)
    assert fold is not None
    clock.advance(PLAN.ttl_ms / 1000 + 1)
    assert state.get(KEY) is None
    assert not state.swap(KEY, fold)
    # the first two records are the same again, byte by byte
    state.append(KEY, b"".join(run(10_000, 2) + run(10_500, 60)))
    assert not state.swap(KEY, fold)
    assert counts(state.get(KEY), 12_000)[1] == 62


def test_a_compactor_with_an_older_clock_keeps_the_tiles_it_would_not_make() -> None:
    """It dropped tiles that no rule of its own covered."""
    compactor = Compactor(PLAN)
    blob = b"".join(run(10_000, 40))
    ahead = compactor.fold(blob, 12_500)
    assert ahead is not None
    head = LogFormat(PLAN).head(ahead.blob)
    assert head is not None
    assert head.tiles["span"].tolist() == [1_000]
    # late records inside that tile, and others that the older clock may fold by its smaller rule
    late = b"".join(run(10_500, 5) + run(11_000, 8))
    behind = compactor.fold(ahead.blob + late, 11_120)
    assert behind is not None
    after = LogFormat(PLAN).head(behind.blob)
    assert after is not None
    assert after.tiles[0] == head.tiles[0]
    assert after.tiles["span"].tolist() == [1_000, 10]
    assert after.horizon_ms == head.horizon_ms
    assert counts(behind.blob, 12_600)[1] == 53


def test_a_duplicate_of_an_event_beside_its_tile_is_not_counted_twice() -> None:
    """Until no duplicate can be accepted any more an event is not folded."""
    compactor = Compactor(PLAN)
    events = [Event(1_000 + i, i + 1, 1_000 + i, (1,)) for i in range(5)]
    twins = [Event(one.ts, one.event_id, one.ts + 50, (7,)) for one in events]
    blob = b"".join(records(PLAN, events))
    for now in range(1_005, 1_075):
        fold = compactor.fold(blob, now)
        blob = fold.blob if fold else blob
    blob += b"".join(records(PLAN, twins))
    for now in (1_080, 1_200, 3_000):
        fold = compactor.fold(blob, now)
        blob = fold.blob if fold else blob
        assert counts(blob, now)[1:] == [5, 5]


def test_an_empty_piece_between_two_starts_takes_no_value_from_its_neighbour() -> None:
    """numpy's reduceat gives an empty piece the next item instead of nothing."""
    event = EventSpec("id", (Column.integers("x"),), lateness_ms=50, skew_ms=10, slack_ms=20)
    windows = [Window(10), Window(20), Window(30), Window(1_000)]
    spec = WindowSpec(
        event, tuple(Aggregate(f"max_{one.span_ms}", "max", "x", one) for one in windows)
    )
    plan = LogPlan.of([spec])
    logs = [records(plan, [Event(ts, 1, ts, (ts,))])[0] for ts in (500, 975, 995)]
    found = Reader(spec, plan).read(logs, 1_000).values
    nan = np.nan
    expected = [[nan, nan, nan, 500], [nan, nan, 975, 975], [995, 995, 995, 995]]
    assert np.array_equal(found, np.array(expected), equal_nan=True)
