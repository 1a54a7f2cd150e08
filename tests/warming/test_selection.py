"""What is worth keeping warm, against a count with dicts; bounded, and honest about it."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotplate.advice.reads import TrafficFiles
from hotplate.errors import HotplateError
from hotplate.warming.changes import CHANGES_SCHEMA
from hotplate.warming.families import FAMILIES_SCHEMA
from hotplate.warming.selection import SelectionSpec, TrafficError, select

from ..children import heed_permissions, in_child
from .logs import Row, damaged, odd_tables, table_of, write_log

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


def exact(rows: list[Row], spec: SelectionSpec) -> dict[str, dict[str, tuple[float, float]]]:
    """Entity -> key -> (weight of its best day, reads), one row after the other."""
    by_day: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    reads: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for at, entity, key, _, weight in rows:
        age = spec.now - at
        if not timedelta(0) < age <= timedelta(days=spec.days):
            continue
        day = age // timedelta(days=1)
        ahead = (at - spec.now) % timedelta(days=1)
        counts = weight * (1.0 if ahead < timedelta(hours=spec.hours) else 0.1)
        of_key = by_day[entity][key]
        of_key[day] = of_key.get(day, 0.0) + counts
        reads[entity][key] += weight
    return {
        entity: {key: (max(days.values()), reads[entity][key]) for key, days in keys.items()}
        for entity, keys in by_day.items()
    }


ROWS = st.lists(
    st.tuples(
        st.integers(-3 * 86_400, 9 * 86_400).map(lambda s: NOW - timedelta(seconds=s)),
        st.sampled_from(["user_id", "merchant_id", "a,b"]),
        st.integers(0, 8).map(lambda number: f"[{number}]"),
        st.sampled_from(["profile", "counts,profile"]),
        st.integers(1, 9),
    ),
    max_size=120,
)


@settings(max_examples=60)
@given(ROWS, st.integers(1, 8), st.integers(1, 24), st.integers(1, 4))
def test_it_finds_what_a_count_by_hand_finds(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], days: int, hours: int, files: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    for number in range(files):
        write_log(folder / f"traffic-{number}.parquet", rows[number::files])
    spec = SelectionSpec(NOW, days, hours)
    expected = exact(rows, spec)
    found = select(folder, spec)
    assert set(found) == set(expected)
    for entity, chosen in found.items():
        assert chosen.uncounted == 0
        wanted = expected[entity]
        got = {
            key: (weight, reads)
            for key, weight, reads in zip(
                chosen.keys, chosen.weights.tolist(), chosen.reads.tolist(), strict=True
            )
        }
        assert set(got) == set(wanted)
        for key, pair in got.items():
            assert pair == pytest.approx(wanted[key])
        assert (np.diff(chosen.weights) <= 1e-9).all(), "the hottest first"
        assert chosen.total == pytest.approx(sum(reads for _, reads in wanted.values()))
        coverage = chosen.coverage()
        assert coverage[-1] == pytest.approx(1)
        for share in (0.3, 0.5, 0.9, 1.0):
            count = chosen.first(share=share)
            assert coverage[count - 1] >= share - 1e-9
            assert count == 1 or coverage[count - 2] < share
        assert chosen.first(most=2, share=1.0) == min(2, len(chosen.keys))


def test_more_entities_than_it_may_count_are_bounded_and_said(tmp_path: Path) -> None:
    """Nothing is off by more than it says, and nothing larger than that is missing."""
    chance = random.Random(0)
    rows: list[Row] = []
    for number in range(40_000):
        rank = int(chance.paretovariate(0.7)) % 20_000
        at = NOW - timedelta(hours=1 + number % 160)
        rows.append((at, "user_id", f"[{rank}]", "profile", 1))
    for part in range(8):
        write_log(tmp_path / f"traffic-{part}.parquet", rows[part::8])
    spec = SelectionSpec(NOW, most_counted=100)
    true = {key: reads for key, (_, reads) in exact(rows, spec)["user_id"].items()}
    chosen = select(tmp_path, spec)["user_id"]
    assert len(chosen.keys) <= 100
    assert 0 < chosen.uncounted < 3_000
    found = dict(zip(chosen.keys, chosen.reads.tolist(), strict=True))
    for key, reads in found.items():
        assert true[key] - chosen.uncounted - 1e-6 <= reads <= true[key] + 1e-6
    assert chosen.total == len(rows)
    top = sorted(true, key=lambda key: -true[key])[:10]
    assert set(top) <= set(chosen.keys)


def test_mondays_are_not_lost_among_the_week(tmp_path: Path) -> None:
    """What was hot on one day a week ago comes before what was lukewarm on all of them."""
    rows: list[Row] = []
    for day in range(7):
        moment = NOW - timedelta(days=day, hours=-1) - timedelta(days=1)
        rows += [(moment, "user_id", '["always"]', "profile", 1)] * 10
        if day == 6:
            rows += [(moment, "user_id", '["monday"]', "profile", 1)] * 40
        night = moment + timedelta(hours=10)
        rows += [(night - timedelta(days=1), "user_id", '["night"]', "profile", 1)] * 50
    write_log(tmp_path / "traffic-1.parquet", rows)
    chosen = select(tmp_path, SelectionSpec(NOW))["user_id"]
    assert chosen.keys == ['["monday"]', '["always"]', '["night"]']
    assert chosen.views == {"profile": 7 * 10 + 40 + 6 * 50}


def test_what_is_no_log_is_left_out_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a file, another table, an empty one; a folder of these alone is refused."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    write_log(good / "traffic-1.parquet", [(NOW - timedelta(hours=1), "user_id", "[1]", "p", 2)])
    bad.mkdir()
    whole = (good / "traffic-1.parquet").read_bytes()
    (bad / "traffic-half.parquet").write_bytes(whole[: len(whole) // 2])
    pq.write_table(pa.table({"at": [1]}), bad / "traffic-other.parquet")
    (bad / "traffic-empty.parquet").write_bytes(b"")
    with pytest.raises(TrafficError, match="none of its 3 files"):
        select(bad, SelectionSpec(NOW))
    (bad / "traffic-1.parquet").write_bytes(whole)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "hotplate.warming"):
        assert select(bad, SelectionSpec(NOW))["user_id"].keys == ["[1]"]
    assert len(caplog.records) == 3
    assert "no column 'entity'" in caplog.text
    with pytest.raises(TrafficError, match="no such folder"):
        select(tmp_path / "nowhere", SelectionSpec(NOW))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrafficError, match="has no Parquet files"):
        select(tmp_path / "empty", SelectionSpec(NOW))
    (tmp_path / "file").write_bytes(whole)
    with pytest.raises(TrafficError, match="is a file; name the folder"):
        select(tmp_path / "file", SelectionSpec(NOW))
    with pytest.raises(ValueError, match="time zone"):
        SelectionSpec(datetime(2026, 1, 1))


def test_an_odd_file_is_left_out_and_counts_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The right columns, with other types in them, values that are missing, weights that are none:
    a line each, and the file beside it counts as if it lay there alone."""
    rows: list[Row] = [(NOW - timedelta(hours=1), "user_id", f"[{n}]", "p,q", 3) for n in range(4)]
    write_log(tmp_path / "traffic-1.parquet", rows)
    alone = select(tmp_path, SelectionSpec(NOW))["user_id"]
    odd = tmp_path / "traffic-2.parquet"
    for table, said in odd_tables(table_of(rows)):
        pq.write_table(table, odd)
        caplog.clear()
        found = select(tmp_path, SelectionSpec(NOW))
        assert list(found) == ["user_id"], said
        assert found["user_id"].views == alone.views == {"p": 12, "q": 12}, said
        assert (found["user_id"].total, found["user_id"].keys) == (12, alone.keys), said
        (line,) = caplog.messages
        assert line.startswith(f"{odd} is left out: ")
        assert said in line
    large = table_of(rows)
    large = large.set_column(3, "key", large["key"].cast(pa.large_string()))
    pq.write_table(large, odd)  # how a text is kept makes no difference
    assert select(tmp_path, SelectionSpec(NOW))["user_id"].total == 24


def test_our_own_other_logs_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of changes and of families, which lie beside it; files of any other name are looked at."""
    for name, schema in (("changes", CHANGES_SCHEMA), ("families", FAMILIES_SCHEMA)):
        pq.write_table(schema.empty_table(), tmp_path / f"{name}-h-1-1.parquet")
    with pytest.raises(TrafficError, match="has no Parquet files of reads"):
        select(tmp_path, SelectionSpec(NOW))
    write_log(tmp_path / "by-hand.parquet", [(NOW - timedelta(hours=1), "user_id", "[1]", "p", 2)])
    assert select(tmp_path, SelectionSpec(NOW))["user_id"].total == 2
    assert caplog.messages == []


def test_a_file_is_read_as_far_as_it_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A row group that is damaged, and one that lacks values: from there on it is left out."""
    rows: list[Row] = [(NOW - timedelta(hours=1), "user_id", f"[{n}]", "p", 1) for n in range(300)]
    path = tmp_path / "traffic-1.parquet"
    lacking = table_of(rows)
    keys = [None if place == 250 else key for place, (_, _, key, *_) in enumerate(rows)]
    lacking = lacking.set_column(3, "key", pa.array(keys))
    pq.write_table(lacking, path, row_group_size=100)
    found = select(tmp_path, SelectionSpec(NOW))["user_id"]
    assert (found.total, found.views, len(found.keys)) == (200, {"p": 200}, 200)
    said = f"{path} is left out from row 201 of 300 on: column 'key' lacks 1 of its 100 values"
    assert caplog.messages == [said]
    caplog.clear()
    pq.write_table(table_of(rows), path, row_group_size=100)
    damaged(path, 1)
    found = select(tmp_path, SelectionSpec(NOW))["user_id"]
    assert (found.total, found.views, len(found.keys)) == (100, {"p": 100}, 100)
    (line,) = caplog.messages
    assert line.startswith(f"{path} is left out from row 101 of 300 on: ")


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o100])
@pytest.mark.parametrize("reader", [select, TrafficFiles])
def test_a_folder_that_may_not_be_read_is_said_to_be_one(
    tmp_path: Path, reader: Callable[[Path, Any], Any], mode: int
) -> None:
    """Neither listed nor entered, only the one, only the other; and below such a folder."""
    folder = tmp_path / "shut" / "log"
    write_log(folder / "traffic-1.parquet", [(NOW - timedelta(hours=1), "user_id", "[1]", "p", 1)])

    def said() -> str:
        heed_permissions()
        with pytest.raises(HotplateError) as caught:
            reader(folder, SelectionSpec(NOW) if reader is select else "p")
        return str(caught.value)

    for shut in (folder, folder.parent) if mode != 0o100 else (folder,):
        shut.chmod(mode)
        found = in_child(said)
        shut.chmod(0o700)
        assert found.startswith(f"{folder}: cannot be read (Permission denied); run this as the")
