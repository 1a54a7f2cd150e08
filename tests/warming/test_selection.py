"""What is worth keeping warm, against a count with dicts; bounded, and honest about it."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotplate.warming.selection import SelectionSpec, TrafficError, select

from .logs import Row, write_log

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
    with pytest.raises(ValueError, match="time zone"):
        SelectionSpec(datetime(2026, 1, 1))
