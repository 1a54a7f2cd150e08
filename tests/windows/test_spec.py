"""Declarations: what is refused, JSON and back, and what the fingerprint of a plan says."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.windows.errors import WindowSpecError
from hotplate.windows.plan import LogPlan, TileRule
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

from .streams import make_spec

EVENT = EventSpec("id", (Column.floats("amount"), Column.integers("k"), Column.distinct("shop")))
MINUTE = Window(MINUTE_MS)


def over(*spans_ms: int, profile: str = "default") -> WindowSpec:
    """The number of events over windows with their default hops."""
    windows = [Window(span, default_hop_ms(span, profile)) for span in spans_ms]
    return WindowSpec(EVENT, tuple(Aggregate(str(w), "count", "", w) for w in windows))


USUAL = over(MINUTE_MS, 5 * MINUTE_MS, HOUR_MS, DAY_MS, 7 * DAY_MS, 30 * DAY_MS)


def spec_of(*aggregates: Aggregate) -> WindowSpec:
    return WindowSpec(EVENT, aggregates)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: Column("a", "text"), "kind 'text' is unknown"),
    (lambda: Column("a", scale=13), "scale is 13"),
    (lambda: Column("a", scale=True), "scale is True"),
    (lambda: Column(" "), "is no name"),
    (lambda: Column("a", "distinct", 2), "scale is 2"),
    (lambda: EventSpec("", ()), "is no name"),
    (lambda: EventSpec("id", (Column("a"), Column.distinct("a"))), "'a': is declared twice"),
    (lambda: EventSpec("id", lateness_ms=-1), "lateness_ms is -1"),
    (lambda: EventSpec("id", lateness_ms=1, skew_ms=100, slack_ms=1), "skew_ms .100. is longer"),
    (lambda: Window(0), "span_ms is 0"),
    (lambda: Window(10, 11), "hop_ms is 11"),
    (lambda: Window(10, 1, -1), "delay_ms is -1"),
    (lambda: Window(1.5), "span_ms is 1.5"),  # type: ignore[arg-type]
    (lambda: Aggregate("x", "median", "a", MINUTE), "Known functions: count, sum"),
    (lambda: Aggregate("x", "sum", "", MINUTE), "sum needs a column"),
    (lambda: Aggregate("", "count", "", MINUTE), "is no name"),
    (lambda: Aggregate("x", "last", "a", MINUTE, Window(HOUR_MS)), "last has no ratio"),
    (lambda: Aggregate("x", "count", "", MINUTE, MINUTE), "is not longer"),
    (lambda: Aggregate("x", "count", "", MINUTE, Window(HOUR_MS, 1, 5)), "another delay"),
    (lambda: spec_of(), "no aggregate"),
    (lambda: spec_of(Aggregate("x", "sum", "b", MINUTE)), "Known: 'amount', 'k', 'shop'"),
    (lambda: spec_of(Aggregate("x", "sum", "shop", MINUTE)), "only hashes are kept"),
    (lambda: spec_of(Aggregate("x", "approx_count_distinct", "k", MINUTE)), "is numeric"),
    (lambda: spec_of(*[Aggregate("x", "count", "", MINUTE)] * 2), "'x': is declared twice"),
    (lambda: default_hop_ms(1, "fast"), "'default', 'exact', 'hot'"),
    (lambda: WindowSpec.from_json("[]"), "is no declaration"),
    (lambda: WindowSpec.from_json('{"version": 2}'), "is of version 2"),
    (lambda: WindowSpec.from_json('{"version": 1, "event": {}}'), "lacks a part"),
    (lambda: LogPlan.of([]), "has no windows"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_work_is_refused(make: Callable[[], object], message: str) -> None:
    """With what is wrong and what to write instead."""
    with pytest.raises(WindowSpecError, match=message):
        make()


def test_json_is_canonical_and_reads_back() -> None:
    """Equal declarations give equal text, in whatever order columns were declared."""
    spec = make_spec([Window(100, 10), Window(1_000, 10)], over=Window(1_000, 10))
    assert WindowSpec.from_json(spec.to_json()) == spec
    assert json.loads(spec.to_json())["version"] == 1
    turned = EventSpec("id", tuple(reversed(EVENT.columns)))
    aggregates = (Aggregate("n", "count", "", MINUTE),)
    assert WindowSpec(turned, aggregates).to_json() == WindowSpec(EVENT, aggregates).to_json()


def test_output_types() -> None:
    """Counts are int64, the last of a whole number too, all else is float64."""
    hour = Window(HOUR_MS)
    spec = spec_of(
        Aggregate("n", "count", "", MINUTE),
        Aggregate("d", "approx_count_distinct", "shop", MINUTE),
        Aggregate("k", "last", "k", MINUTE),
        Aggregate("a", "first", "amount", MINUTE),
        Aggregate("s", "sum", "k", MINUTE),
        Aggregate("r", "count", "", MINUTE, hour),
    )
    types = ["int64", "int64", "int64", "float64", "float64", "float64"]
    assert list(spec.output_types.values()) == types
    assert spec.windows == (MINUTE, hour)


def test_default_hops() -> None:
    """Those of the documentation."""
    hops = {HOUR_MS: 1, DAY_MS: 20 * MINUTE_MS, 7 * DAY_MS: 2 * HOUR_MS, 30 * DAY_MS: 12 * HOUR_MS}
    assert {span: default_hop_ms(span) for span in hops} == hops
    assert {default_hop_ms(span, "exact") for span in hops} == {1}
    seconds = {60: 1, 300: 5, 600: 10, 3_600: 60, 86_400: 1_200, 604_800: 7_200, 2_592_000: 43_200}
    assert {s: default_hop_ms(s * 1000, "hot") // 1000 for s in seconds} == seconds


def test_the_usual_tiles() -> None:
    """Records for an hour, then tiles of 20 minutes, 2 hours and 12 hours."""
    plan = LogPlan.of([USUAL])
    assert plan.rules == (
        TileRule(HOUR_MS, 20 * MINUTE_MS),
        TileRule(DAY_MS + 20 * MINUTE_MS - 1, 2 * HOUR_MS),
        TileRule(7 * DAY_MS + 2 * HOUR_MS - 1, 12 * HOUR_MS),
    )
    assert plan.retention_ms == 30 * DAY_MS + 12 * HOUR_MS + HOUR_MS + MINUTE_MS


def test_exact_windows_allow_no_tile() -> None:
    """Their edges may fall anywhere."""
    assert LogPlan.of([over(DAY_MS, 30 * DAY_MS, profile="exact")]).rules == ()


def test_windows_that_stored_state_answers_keep_the_fingerprint() -> None:
    """Shorter ones, and longer ones whose hops the tiles divide; nothing else does."""
    plan = LogPlan.of([USUAL])
    for added in (over(30 * MINUTE_MS), over(12 * HOUR_MS), over(3 * DAY_MS), over(14 * DAY_MS)):
        assert LogPlan.of([USUAL, added]).fingerprint == plan.fingerprint
        plan.check(added)
    for added in (over(2 * HOUR_MS), over(60 * DAY_MS), over(3 * DAY_MS, profile="exact")):
        assert LogPlan.of([USUAL, added]).fingerprint != plan.fingerprint
        with pytest.raises(WindowSpecError, match=r"LogPlan\.of"):
            plan.check(added)


@pytest.mark.parametrize(
    "changes",
    [
        {"event_id": "other"},
        {"columns": (*EVENT.columns, Column("new"))},
        {"columns": (Column.floats("amount", 3), *EVENT.columns[1:])},
        {"lateness_ms": 1},
        {"skew_ms": 1},
        {"slack_ms": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_changes_the_record_changes_the_fingerprint(changes: dict[str, object]) -> None:
    """And two specs that disagree about it cannot share a log."""
    event = EventSpec(**{"event_id": "id", "columns": EVENT.columns, **changes})  # type: ignore[arg-type]
    other = WindowSpec(event, USUAL.aggregates)
    assert LogPlan.of([other]).fingerprint != LogPlan.of([USUAL]).fingerprint
    with pytest.raises(WindowSpecError, match="is declared in two ways"):
        LogPlan.of([USUAL, other])
    with pytest.raises(WindowSpecError, match="another event log"):
        LogPlan.of([USUAL]).check(other)


@given(
    st.lists(
        st.tuples(st.integers(1, 400), st.integers(1, 40), st.sampled_from([0, 0, 7, 30])),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 60),
)
def test_no_future_edge_cuts_a_tile(numbers: list[tuple[int, int, int]], lateness: int) -> None:
    """For all t from when a rule allows a tile on: no start and no end lies strictly inside."""
    windows = [Window(span, min(hop, span), delay) for span, hop, delay in numbers]
    event = EventSpec("id", lateness_ms=lateness, skew_ms=0, slack_ms=0)
    names = [Aggregate(str(i), "count", "", window) for i, window in enumerate(windows)]
    for rule in LogPlan.of([WindowSpec(event, tuple(names))]).rules:
        start = 10_000 // rule.size_ms * rule.size_ms
        end = start + rule.size_ms
        assert rule.age_ms >= lateness
        for t in range(end + rule.age_ms, end + rule.age_ms + 600):
            for window in windows:
                edges = (window.start(t), window.end(t))
                assert not any(start < edge < end for edge in edges)


@given(st.integers(0, 10_000), st.integers(1, 500), st.integers(1, 60), st.integers(0, 90))
def test_when_events_enter_and_leave(ts: int, span: int, hop: int, delay: int) -> None:
    """The first moment at which the edge has passed, by trying."""
    window = Window(span, min(hop, span), delay)
    around = range(ts, ts + span + delay + hop + 2)
    enters = next(t for t in around if window.end(t) > ts)
    leaves = next(t for t in around if window.start(t) > ts)
    assert (window.enters_at(ts), window.leaves_at(ts)) == (enters, leaves)


def test_frozen_and_hashable() -> None:
    """So that plans and readers can be kept by spec."""
    again = make_spec([MINUTE])
    assert {make_spec([MINUTE]): 1}[again] == 1
    assert math.isfinite(float(np.float64(again.event.lateness_ms)))
