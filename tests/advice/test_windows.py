"""Advice on rows that are computed from windows: their events are their changes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import hotplate
from hotplate.operations.advise import Advising, AdvisingSpec

from ..windows.bank import bank, frame_of

_numbers = itertools.count()


def test_events_are_changes_of_the_rows_computed_from_them(tmp_path: Path) -> None:
    """From the change log and from the table of events alike; a hit rate is at most what is said,
    because rows also end when time alone changes them."""
    traffic = {"folder": str(tmp_path / "traffic"), "sample": 1.0, "changes": True}
    settings = {"windows": {"in_process": True}, "traffic": traffic}
    made = bank(tmp_path, {"type": "sqlite"}, f"advised{next(_numbers)}", settings=settings)
    clock = made.repo.clock
    for turn in range(300):
        clock.advance(0.7)
        if turn % 25 == 10:
            made.pay(turn % 3)
        else:
            made.read(turn % 5)
    hot = hotplate.of(made.repo.hot)
    hot.runtime.close()
    counts = hot.stats().groups["activity"]
    advising = Advising(made.repo.hot, hot.runtime)
    logged = advising.run(AdvisingSpec(groups=("activity",)))
    frame_of(made.pushed).to_parquet(tmp_path / "payments.parquet")
    tables = AdvisingSpec(groups=("activity",), changes=[advising.own_tables()])
    for advice in (logged, advising.run(tables)):
        forecast = advice.replayed.groups["activity"]
        assert forecast.reads == counts.reads
        assert forecast.changes == len(made.pushed) == 12
        event = next(
            one for one in forecast.of(advice.room, "event") if one.ttl_ns == forecast.policy.ttl_ns
        )
        assert counts.hit_rate <= event.hit_rate
        assert event.hit_rate == pytest.approx(counts.hit_rate, abs=0.1)
        assert any("computed from windows" in note for note in advice.notes)
