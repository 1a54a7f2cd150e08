"""A log as numbers: all of it, once, in the order of time, whatever its files look like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotplate.advice.changes import FAR, NEVER, ChangeTimes, Whole
from hotplate.advice.entities import Sieve, Slots, ViewSpec, numbers_of
from hotplate.advice.errors import AdviceError
from hotplate.advice.lru import Room
from hotplate.advice.predictions import Prediction, Replayed, ReplaySpec, replay
from hotplate.advice.reads import TrafficFiles, rows_of
from hotplate.durations import parse_duration
from hotplate.policy import PolicyLayers, TTLMap
from hotplate.warming.row_log import LOST
from hotplate.warming.traffic import SCHEMA, key_of

from ..warming.logs import damaged, odd_tables

BEGIN = datetime(2026, 11, 30, 9, tzinfo=UTC)
BEGIN_US = round(BEGIN.timestamp() * 1e6)
VIEWS = [
    ViewSpec("a", "ga", "user_id", 100),
    ViewSpec("b", "gb", "user_id", 100),
    ViewSpec("c", "ga", "shop_id", 100),
]
Row = tuple[int, int, str, str, str]
"""When, microseconds after the beginning, request, join keys, key, views."""


def write(path: Path, rows: Sequence[Row], group: int = 1 << 20, lost: int = 0) -> None:
    at, request, entity, key, views = zip(*rows, strict=True)
    arrays = [
        pa.array([BEGIN_US + one for one in at], pa.timestamp("us", "UTC")),
        pa.array(request, pa.uint64()),
        pa.array(entity, pa.string()).dictionary_encode(),
        pa.array(key, pa.string()),
        pa.array(views, pa.string()).dictionary_encode(),
        pa.array([1] * len(rows), pa.uint32()),
    ]
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    metadata = {**SCHEMA.metadata, LOST: str(lost).encode()}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=group)


def row(at: int, request: int, kind: str, number: int, views: str, *, plain: bool) -> Row:
    return at, request, kind, key_of((number,), "p", has_ids=plain), views


ROWS = st.builds(
    row,
    st.integers(0, 10_000),
    st.integers(0, 50),
    st.sampled_from(["user_id", "shop_id"]),
    st.integers(0, 20),
    st.sampled_from(["a", "b", "a,b", "a,b,c", "gone", "c,gone"]),
    plain=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(
    files=st.lists(
        st.tuples(st.sampled_from(["h-1", "h-2"]), st.lists(ROWS, min_size=1, max_size=30)),
        min_size=1,
        max_size=4,
    ),
    group=st.integers(1, 20),
    since=st.none() | st.integers(0, 5_000),
    until=st.none() | st.integers(5_001, 10_001),
)
def test_every_row_is_read_once_in_the_order_of_time(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[str, list[Row]]],
    group: int,
    since: int | None,
    until: int | None,
) -> None:
    """Of files that overlap, row groups of any size, ids plain and hashed, views that are gone."""
    folder = tmp_path_factory.mktemp("log")
    expected: Counter[tuple[str, int, str, str]] = Counter()
    for number, (process, rows) in enumerate(files):
        write(folder / f"traffic-{process}-{number}.parquet", rows, group, lost=number)
        for at, _, kind, key, views in rows:
            if (since is None or at >= since) and (until is None or at < until):
                # the same entity, whether it stands there as it is or hashed
                entity = key if key[0] != "[" else key_of((int(key[1:-1]),), "p", has_ids=False)
                for view in views.split(","):
                    if any(one.name == view and one.entity == kind for one in VIEWS):
                        expected[process, at + BEGIN_US, view, entity] += 1

    def moment(at: int | None) -> int | None:
        return None if at is None else BEGIN_US + at

    bounds = moment(since), moment(until)
    if not any(
        (since is None or row[0] >= since) and (until is None or row[0] < until)
        for _, rows in files
        for row in rows
    ):
        with suppress(AdviceError):  # where all files are outside; else nothing of them is inside
            assert not list(TrafficFiles(folder, "p", *bounds).in_order(None))
        return
    log = TrafficFiles(folder, "p", *bounds)
    sieve = Sieve(1_000)
    survey = log.survey(sieve, 0, lambda size: None)
    slots = Slots(VIEWS, sieve.chosen())
    names = {
        slots.base(view.name) + place: (view.name, f"{entity:016x}")
        for view in VIEWS
        for place, entity in enumerate(slots.entities(view).tolist())
    }
    found: Counter[tuple[str, int, str, str]] = Counter()
    for process in log.processes:
        last = 0
        for reads in log.in_order(process):
            at, slot, _ = rows_of(reads, slots)
            assert np.all(np.diff(np.append(last, at)) >= 0)
            last = int(at[-1]) if len(at) else last
            for one, which in zip(at.tolist(), slot.tolist(), strict=True):
                found[process, one, *names[which]] += 1
    short = Counter[tuple[str, int, str, str]]()
    for (process, at_us, view, entity), count in expected.items():
        short[process, at_us, view, entity[:16]] += count
    assert found == short
    merged = [at for reads in log.in_order(None) for at in rows_of(reads, slots)[0].tolist()]
    assert merged == sorted(at for _, at, _, _ in short.elements())
    if since is None and until is None:
        assert survey.lost == sum(range(len(files)))


@given(
    changes=st.lists(st.tuples(st.integers(0, 5), st.integers(-5, 45))),
    wholes=st.lists(st.integers(-5, 45)),
    asked=st.lists(st.tuples(st.integers(0, 5), st.integers(-10, 50)), min_size=1),
)
def test_changes_are_found_as_by_looking_at_each(
    changes: list[tuple[int, int]], wholes: list[int], asked: list[tuple[int, int]]
) -> None:
    """The first after a moment, and whether there was one in between; slots 2 to 4 also change as a
    whole; what is outside of the log is no change."""
    begin, end = 0, 40
    slot, at = np.array(changes, np.int64).reshape(-1, 2).T
    times = ChangeTimes(
        slot, at, begin, end, (Whole(slice(2, 5), np.sort(np.array(wholes, np.int64))),)
    )
    every = changes + [(which, when) for when in wholes for which in (2, 3, 4)]
    every = [(which, when) for which, when in every if begin <= when <= end]
    which, when = np.array(asked, np.int64).T
    after = times.after(which, when).tolist()
    until, none = times.until(which, when), times.until(which, np.full(len(which), NEVER))
    for place, (one, moment) in enumerate(asked):
        later = [at for slot, at in every if slot == one and at > moment]
        assert after[place] == min(later, default=FAR)
        earlier = [at for slot, at in every if slot == one and at <= moment]
        assert until[place] - none[place] == len(earlier)
    between = times.between(3, 30)
    assert Counter(zip(*(part.tolist() for part in between), strict=True)) == Counter(
        pair for pair in every if 3 < pair[1] <= 30
    )
    assert times.of_slots(6).tolist() == [sum(s == one for s, _ in every) for one in range(6)]


def test_plain_and_hashed_keys_are_one_entity() -> None:
    values: list[tuple[Any, ...]] = [(1,), ("a", 2), ("ü\ud800",)]
    for said in values:
        both = numbers_of([key_of(said, "p", has_ids=one) for one in (True, False)], "p")
        assert both[0] == both[1]
    with pytest.raises(ValueError, match="neither"):
        numbers_of(["nonsense"], "p")
    with pytest.raises(ValueError, match="neither"):
        numbers_of(["x" * 24], "p")


def log_of(folder: Path, seed: int = 0, reads: int = 60_000, entities: int = 20_000) -> None:
    """An hour of reads of users, a few of them hot, by two processes."""
    random = np.random.default_rng(seed)
    ids = random.zipf(1.2, reads) % entities
    at = np.sort(random.integers(0, 3_600_000_000, reads))
    process = random.integers(0, 2, reads)
    for number in range(2):
        own = np.flatnonzero(process == number)
        rows = [row(int(at[i]), int(i), "user_id", int(ids[i]), "a,b", plain=True) for i in own]
        write(folder / f"traffic-h-{number}-0.parquet", rows, 10_000)


def foretold(folder: Path, rooms: Sequence[Room], **said: Any) -> Replayed:
    policies = {
        group: PolicyLayers(TTLMap({group: {"ttl": "1m", "jitter": 0}})).resolve(group)
        for group in ("ga", "gb")
    }
    spec = ReplaySpec(
        VIEWS,
        frozenset(policies),
        policies,
        [parse_duration(ttl) for ttl in ("10s", "10m", "none")],
        rooms,
        **said,
    )
    return replay(TrafficFiles(folder, "p"), spec)


def every(found: Replayed) -> dict[tuple[str, int, int], Prediction]:
    return {
        (name, one.ttl_ns, one.room.max_bytes): one
        for name, group in found.groups.items()
        for one in group.predictions
    }


def test_a_part_of_the_entities_foretells_the_rest_within_what_is_said(tmp_path: Path) -> None:
    """The hottest and about an eighth of the others, with and without a bound of memory."""
    log_of(tmp_path)
    rooms = [Room(1 << 40, 1 << 40), Room(200_000, 1 << 40)]
    whole, part = every(foretold(tmp_path, rooms)), foretold(tmp_path, rooms, entities=3_000)
    assert 0.05 < part.share < 0.2
    for name, one in every(part).items():
        assert whole[name].error == 0
        assert 0 <= one.error < 0.03
        assert bool(one.error) == bool(name[1]), "only what is never kept is certain"
        assert one.hit_rate == pytest.approx(whole[name].hit_rate, abs=2 * one.error)
        assert one.hit_rate == pytest.approx(whole[name].hit_rate, abs=0.02)
        reads_s = whole[name].source_reads_s
        assert one.source_reads_s == pytest.approx(reads_s, rel=0.15)


def test_workers_are_as_many_memories(tmp_path: Path) -> None:
    """One has what both processes had together; two of another choice are as good as these."""
    log_of(tmp_path, reads=20_000)
    room = [Room(1 << 40, 1 << 40)]
    own, one = every(foretold(tmp_path, room)), every(foretold(tmp_path, room, workers=1))
    two = every(foretold(tmp_path, room, workers=2))
    joined = tmp_path / "joined"
    tables = [pq.read_table(path) for path in sorted(tmp_path.glob("*.parquet"))]
    joined.mkdir()
    whole = pa.concat_tables(tables).combine_chunks().sort_by("at")
    pq.write_table(whole, joined / "traffic-h-9-0.parquet")
    together = every(foretold(joined, room))
    for name, said in together.items():
        assert one[name].hit_rate == pytest.approx(said.hit_rate, abs=1e-9)
        assert own[name].hit_rate < said.hit_rate or not name[1]
        assert two[name].hit_rate == pytest.approx(own[name].hit_rate, abs=0.02)


def test_what_fills_memory_first_does_not_count(tmp_path: Path) -> None:
    """The second half of a log after the first: the misses of a cold start are gone."""
    log_of(tmp_path, reads=20_000)
    room = [Room(1 << 40, 1 << 40)]
    cold, warm = foretold(tmp_path, room), foretold(tmp_path, room, skip_us=1_800_000_000)
    name = ("ga", parse_duration("none"), 1 << 40)
    assert warm.groups["ga"].reads == pytest.approx(cold.groups["ga"].reads / 2, rel=0.05)
    assert every(warm)[name].hit_rate > every(cold)[name].hit_rate + 0.02
    assert warm.seconds == pytest.approx(1_800, rel=0.01)


def test_an_odd_file_is_left_out_and_counts_nothing(tmp_path: Path) -> None:
    """The right columns, with other types in them and values that are missing, in a file that is
    older than all others: what is foretold is what the good file alone foretells."""
    rows = [row(n * 1_000_000, n, "user_id", n % 3, "a,b", plain=True) for n in range(600)]
    write(tmp_path / "traffic-h-1-0.parquet", rows)
    room = [Room(1 << 40, 1 << 40)]
    alone = foretold(tmp_path, room)
    odd = tmp_path / "traffic-h-2-0.parquet"
    older = [(at - 9_000_000_000, *rest) for at, *rest in rows]
    write(odd, older)  # type: ignore[arg-type]
    good = pq.read_table(odd)
    strange = good.set_column(3, "key", pa.array(["nonsense"] * len(good)))
    no_number = good.set_column(1, "request", pa.nulls(len(good), pa.uint64()))
    for table, said in (
        *odd_tables(good),
        (strange, "a key is neither a JSON list nor a hash of one"),
        (no_number, "column 'request' lacks"),
    ):
        pq.write_table(table, odd)
        found = foretold(tmp_path, room)
        assert every(found) == every(alone), said
        assert (found.seconds, found.processes) == (alone.seconds, 1), said
        (line,) = found.survey.left_out
        assert line.startswith(f"{odd.name}: ")
        assert said in line
    (tmp_path / "traffic-h-1-0.parquet").unlink()
    with pytest.raises(AdviceError, match="none of its 1 files can be read as a traffic log"):
        foretold(tmp_path, room)


def test_a_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """Of a file whose second row group is damaged the first one counts, and it is said."""
    rows = [row(n * 1_000_000, n, "user_id", n % 3, "a,b", plain=True) for n in range(600)]
    path, whole = tmp_path / "log" / "traffic-h-1-0.parquet", tmp_path / "whole"
    write(whole / path.name, rows[:200])
    write(path, rows, 200)
    damaged(path, 1)
    room = [Room(1 << 40, 1 << 40)]
    found = foretold(path.parent, room)
    assert every(found) == every(foretold(whole, room))
    (line,) = found.survey.left_out
    assert line.startswith(f"{path.name}, 400 rows of it: ")
    files = TrafficFiles(path.parent, "p")
    with pytest.raises(AdviceError, match="cannot be read any more"):
        list(files.in_order(None))
