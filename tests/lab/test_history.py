"""The log of a history, and the checker: it finds what is wrong and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import event, given, settings

from pipelines.lab.checker import Bound, Report, Wrong, check
from pipelines.lab.history import (
    ABSENT,
    EVERY_ENTITY,
    EVERY_VIEW,
    NEVER,
    RECORD,
    HistoryWriter,
    Kind,
    load_history,
)

from .simulation import Row, cached_histories, is_right, random_histories, records_of

EXAMPLES = int(os.environ.get("HOTPLATE_ORACLE_EXAMPLES", "25"))
W, R, I, GONE = Kind.WRITE, Kind.READ, Kind.INVALIDATE, Kind.REMOVE  # noqa: E741


def judged(rows: list[Row], bound: int = 10, absent: int | None = None) -> Report:
    bounds = {0: Bound(bound, bound if absent is None else absent)}
    return check(records_of(rows), bounds)


def wrongs(*rows: Row, bound: int = 10, absent: int | None = None) -> set[Wrong]:
    return set(judged(list(rows), bound, absent).wrongs)


# a thread that another test left, of a client that waits to connect again, may use `random`, too
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@given(cached_histories())
@settings(max_examples=6 * EXAMPLES, deadline=None)
def test_a_right_cache_is_never_blamed(history: tuple[list[Row], int]) -> None:
    """Several processes with several threads each, under any schedule."""
    rows, bound = history
    if rows:
        report = judged(rows, bound)
        assert not report.wrongs, report.violations
        event("stale answers" if report.stale else "no stale answers")


@given(random_histories())
@settings(max_examples=10 * EXAMPLES, deadline=None)
def test_it_finds_exactly_what_no_schedule_explains(rows: list[Row]) -> None:
    """Against a search of all instants at which the writes may have taken effect."""
    for bound in (0, 3):
        found = {
            (seen.process, seen.entity, seen.value, seen.begin, seen.end)
            for seen in judged(rows, bound).violations
        }
        reads = [row for row in rows if row[0] == R]
        assert found == {row[1:] for row in reads if not is_right(rows, row, bound)}


@given(cached_histories())
@settings(max_examples=2 * EXAMPLES, deadline=None)
def test_a_stale_answer_among_right_ones_is_found(history: tuple[list[Row], int]) -> None:
    """A value is served once more, later than the bound allows after it was overwritten."""
    rows, bound = history
    old = [row for row in rows if row[0] == W]
    pairs = [(one, two) for one in old for two in old if one[2] == two[2] and one[5] < two[4]]
    for one, two in pairs[:5]:
        late = two[5] + bound
        for process, moment in ((9, late), (9, late + 1), (two[1], two[5] + 1)):
            served = (R, process, one[2], one[3], moment, moment)
            found = judged([*rows, served], bound).violations
            assert [(seen.process, seen.value, seen.begin) for seen in found] == [
                (process, one[3], moment)
            ]


def test_what_is_wrong_is_named() -> None:
    first, second = (W, 1, 7, 100, 0, 2), (W, 1, 7, 101, 10, 12)
    assert wrongs(first, second, (R, 2, 7, 100, 21, 22)) == set()
    assert wrongs(first, second, (R, 2, 7, 100, 22, 22)) == {Wrong.TOO_OLD}
    assert wrongs(first, second, (R, 1, 7, 100, 13, 13)) == {Wrong.OWN_WRITE}
    assert wrongs(first, second, (R, 1, 7, 100, 12, 13)) == set()  # begins as the write ends
    assert wrongs(first, second, (R, 2, 7, 101, 8, 9)) == {Wrong.FUTURE}
    assert wrongs(first, second, (R, 2, 8, 101, 20, 20)) == {Wrong.UNKNOWN}
    forgotten = (I, 2, 7, 0, 14, 15)
    assert wrongs(first, second, forgotten, (R, 2, 7, 100, 16, 16)) == {Wrong.OWN_INVALIDATION}
    assert wrongs(first, second, forgotten, (R, 3, 7, 100, 16, 16)) == set()
    at_once = (I, 2, 7, 0, 12, 13)  # begins when the second write has surely taken effect
    assert wrongs(first, second, at_once, (R, 2, 7, 100, 16, 16)) == {Wrong.OWN_INVALIDATION}
    early = (I, 2, 7, 0, 11, 13)
    assert wrongs(first, second, early, (R, 2, 7, 100, 16, 16)) == set()
    late = judged([first, second, (R, 2, 7, 100, 30, 31)]).violations[0]
    assert (late.entity, late.late_ns) == (7, 8)
    assert judged([first, second, (R, 2, 7, 100, 21, 22), (R, 2, 7, 101, 21, 22)]).stale == 1


def test_absences_are_judged_like_values() -> None:
    write, removal = (W, 1, 7, 100, 10, 12), (GONE, 1, 7, 101, 30, 32)
    assert wrongs((R, 2, 7, ABSENT, 5, 5)) == set()
    assert wrongs(write, (R, 2, 7, ABSENT, 15, 15), absent=4) == set()
    assert wrongs(write, (R, 2, 7, ABSENT, 16, 16), absent=4) == {Wrong.TOO_OLD}
    assert wrongs(write, (R, 1, 7, ABSENT, 13, 13)) == {Wrong.OWN_WRITE}
    assert wrongs(write, removal, (R, 2, 7, ABSENT, 40, 40), absent=4) == set()
    assert wrongs(write, removal, (R, 2, 7, 100, 43, 43)) == {Wrong.TOO_OLD}
    everything = (GONE, 1, EVERY_ENTITY, 102, 30, 32)
    assert wrongs(write, everything, (R, 2, 7, ABSENT, 40, 40), absent=4) == set()


def test_a_write_that_never_returned_may_take_effect_at_any_time() -> None:
    first, lost = (W, 1, 7, 100, 0, 2), (W, 1, 7, 101, 10, NEVER)
    for value in (100, 101):
        assert wrongs(first, lost, (R, 1, 7, value, 500, 501)) == set()
    assert wrongs(first, lost, (R, 1, 7, 101, 8, 9)) == {Wrong.FUTURE}


def test_a_forked_process_owes_what_its_parent_owed() -> None:
    rows = [(W, 1, 7, 100, 0, 2), (W, 1, 7, 101, 10, 12), (I, 1, EVERY_ENTITY, 0, 10, 13)]
    for fork_at, is_wrong in ((20, True), (11, False)):
        fork = (Kind.FORK, 2, 1, 0, fork_at, fork_at)
        grandchild = (Kind.FORK, 3, 2, 0, fork_at + 1, fork_at + 1)
        for process in (2, 3):
            read = (R, process, 7, 100, 21, 22)
            assert bool(wrongs(*rows, fork, grandchild, read, bound=50)) == is_wrong


def test_a_log_is_read_back(tmp_path: Path) -> None:
    """Writes in one record each with the earlier of their two ends; a torn end is left out."""
    now = iter(range(1_000))
    log = HistoryWriter(tmp_path, 3, lambda: next(now))
    one, two, three = log.new_values(3)
    other = HistoryWriter(tmp_path, 4)
    assert len({one, two, three, *other.new_values(3)}) == 6
    other.close()
    done = log.begin_write(0, {7: one, 8: two})
    done()
    log.begin_write(0, {9: three})
    log.read(0, {7: one, 6: ABSENT}, 5, 6)
    log.read_failed(0, [7], 5, 6)
    log.invalidated(0, EVERY_ENTITY, 1)
    log.invalidated(EVERY_VIEW, EVERY_ENTITY, 1)
    log.forked(2)
    log.close()
    path = tmp_path / "process-3.history"
    path.write_bytes(path.read_bytes()[:-1])
    records = load_history(tmp_path)
    assert records["kind"].tolist() == [W, W, W, W, W, R, R, Kind.READ_FAILED, I, I]
    assert records["end"].tolist()[:5] == [NEVER, NEVER, 1, 1, NEVER]
    report = check(records, {0: Bound(10, 10)})
    assert (report.reads, report.absent, report.failed, report.wrongs) == (2, 1, 1, {})
    assert check(load_history(tmp_path / "none"), {}) == Report()


def test_a_value_stands_for_one_write() -> None:
    with pytest.raises(ValueError, match="100"):
        judged([(W, 1, 7, 100, 0, 2), (W, 1, 8, 100, 0, 2)])


def test_millions_of_records_in_seconds() -> None:
    """A million reads of five processes, all but one of them right."""
    count, entities, per_entity = 1_000_000, 2_000, 100
    chance = np.random.default_rng(0)
    writes = np.zeros(entities * per_entity, RECORD)
    number = np.arange(len(writes))
    writes["kind"], writes["process"] = W, number % 5
    writes["entity"], writes["value"] = number % entities, number
    writes["begin"] = number // entities * 1_000
    writes["end"] = writes["begin"] + 10
    reads = np.zeros(count, RECORD)
    reads["kind"], reads["process"] = R, 9
    reads["entity"] = chance.integers(0, entities, count)
    reads["begin"] = chance.integers(100, per_entity * 1_000, count)
    reads["end"] = reads["begin"] + 5
    reads["value"] = reads["begin"] // 1_000 * entities + reads["entity"]
    middle = count // 2
    reads["begin"][middle] = reads["end"][middle] = per_entity * 1_000
    reads["value"][middle] = reads["entity"][middle]
    began = time.perf_counter()
    report = check(np.concatenate([writes, reads]), {0: Bound(500, 500)})
    assert time.perf_counter() - began < 20
    assert report.reads == count
    assert report.wrongs == {Wrong.TOO_OLD: 1}
    assert report.violations[0].entity == reads["entity"][middle]
