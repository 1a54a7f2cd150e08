"""Good data passes, honest data of another day too; every planted fault is named, and no other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from hotplate.quality.outcome import SKIPPED

from .repo import AT, CREATED, NOW, QualityRepo, bad, table

Frame = pd.DataFrame
EVERY_TENTH = slice(None, None, 10)


def _with(column: str, value: Any, rows: slice = EVERY_TENTH) -> Callable[[Frame], Frame]:
    def plant(frame: Frame) -> Frame:
        values = frame[column].astype(object if value is None else frame[column].dtype)
        values.iloc[rows] = value(values.iloc[rows]) if callable(value) else value
        return frame.assign(**{column: values.infer_objects()})

    return plant


def _moved(column: str, by: timedelta, rows: slice = EVERY_TENTH) -> Callable[[Frame], Frame]:
    return _with(column, lambda was: was + by, rows)


def _both_moved(by: timedelta, rows: slice) -> Callable[[Frame], Frame]:
    return lambda frame: _moved(CREATED, by, rows)(_moved(AT, by, rows)(frame))


FAULTS: dict[str, tuple[Callable[[Frame], Frame | pa.Table], set[tuple[str, str]]]] = {
    "nulls": (_with("amount", None), {("nulls", "amount")}),
    "more nulls than before": (
        lambda frame: frame.assign(balance=frame["balance"].where(frame.index % 4 > 0)),
        {("nulls", "balance")},
    ),
    "a null key": (
        lambda frame: frame.assign(
            card_id=frame["card_id"].astype("Int64").where(frame.index % 100 > 0)
        ),
        {("nulls", "card_id")},
    ),
    "a null timestamp": (
        lambda frame: frame.assign(**{AT: frame[AT].where(frame.index % 100 > 0)}),
        {("nulls", AT)},
    ),
    "duplicates": (
        lambda frame: pd.concat([frame, frame.iloc[:40]], ignore_index=True),
        {("unique", f"card_id, {AT}, {CREATED}")},
    ),
    "out of range": (
        _with("amount", lambda was: was + 1e5, slice(None, None, 100)),
        {("range", "amount")},
    ),
    "negative": (_with("count", -1, slice(None, None, 100)), {("range", "count")}),
    "infinite": (_with("balance", np.inf, slice(None, None, 100)), {("range", "balance")}),
    "a share above 1": (
        _with("share", lambda was: was + 1, slice(None, None, 100)),
        {("range", "share")},
    ),
    "in cents": (
        lambda frame: frame.assign(amount=frame["amount"] * 100),
        {("range", "amount"), ("median", "amount")},
    ),
    "numbers as text": (
        lambda frame: frame.assign(amount=frame["amount"].astype(str)),
        {("type", "amount")},
    ),
    "text as numbers": (lambda frame: frame.assign(kind=7), {("type", "kind")}),
    "fractions": (lambda frame: frame.assign(count=frame["count"] + 0.5), {("type", "count")}),
    "an unknown text": (_with("kind", "gift"), {("values", "kind")}),
    "naive timestamps": (
        lambda frame: frame.assign(**{AT: frame[AT].dt.tz_localize(None)}),
        {("zone", AT)},
    ),
    "stale": (_both_moved(-timedelta(days=20), slice(None)), {("fresh", AT)}),
    "the future": (
        _both_moved(timedelta(days=40), slice(-60, None)),
        {("future", AT), ("order", f"card_id, {AT}, {CREATED}")},
    ),
    "the year 1970": (
        lambda frame: frame.assign(
            **{AT: frame[AT].where(frame.index % 100 > 0, pd.Timestamp(0, tz="UTC"))}
        ),
        {("oldest", AT), ("order", f"card_id, {AT}, {CREATED}")},
    ),
    "known before it happened": (
        _moved(CREATED, -timedelta(minutes=1)),
        {("created", f"{CREATED}, {AT}")},
    ),
    "out of order": (
        _moved(CREATED, timedelta(days=20)),
        {("order", f"card_id, {AT}, {CREATED}")},
    ),
    "a renamed column": (
        lambda frame: frame.rename(columns={"amount": "amounts"}),
        {("exists", "amount")},
    ),
    "a lost timestamp": (lambda frame: frame.drop(columns=AT), {("exists", AT)}),
    "most rows lost": (lambda frame: frame.tail(1_200), {("rows", "")}),
}
# what follows from a fault by itself: rows of the future are also not in order, for instance
FOLLOWS = {"the future": 1, "the year 1970": 1}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> QualityRepo:
    """One repo for all faults."""
    made = QualityRepo(tmp_path_factory.mktemp("faults") / "repo")
    made.measure()
    return made


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_and_nothing_else(measured: QualityRepo, name: str) -> None:
    """Each fault is named by view, column and check, with a share and examples where it has any."""
    plant, expected = FAULTS[name]
    measured.write(plant(measured.good.copy()))
    found = bad(measured.check())
    if name in FOLLOWS:
        assert next(iter(expected)) in found or expected & set(found)
        assert set(found) <= expected
    else:
        assert set(found) == expected
    for one in found.values():
        assert one.view == "cards"
        assert one.share is None or 0 < one.share <= 1


def test_good_data_passes(repo: QualityRepo) -> None:
    """The data that the reference is made of is as expected, and all of it is judged."""
    checked = repo.check()
    assert checked.is_good, bad(checked)
    assert not checked.count(SKIPPED)
    assert len(checked.outcomes) > 30


@pytest.mark.parametrize("seed", range(1, 9))
def test_honest_data_of_another_day_passes(repo: QualityRepo, seed: int) -> None:
    """Margins are wide enough for data drawn anew, of other sizes, a day or two later."""
    rows = int(np.random.default_rng(seed).integers(2_000, 9_000))
    repo.write(table(rows, seed, NOW - timedelta(hours=12 * (seed % 4))))
    assert not bad(repo.check())


def test_a_missing_column_leaves_the_others_judged(repo: QualityRepo) -> None:
    """What cannot be judged without a column is skipped and says why; the rest is judged."""
    repo.write(repo.good.drop(columns="amount").assign(count=-5))
    checked = repo.check()
    assert set(bad(checked)) == {("exists", "amount"), ("range", "count"), ("median", "count")}
    skipped = [one for one in checked.outcomes if one.status == SKIPPED]
    assert {one.column for one in skipped} == {"amount"}
    assert all("no column amount" in one.observed for one in skipped)


def test_a_renamed_column_is_guessed(repo: QualityRepo) -> None:
    """The hint names the column that it may be now."""
    repo.write(repo.good.rename(columns={"balance": "balances"}))
    assert "balances: was it renamed" in bad(repo.check())["exists", "balance"].hint


def test_ids_are_masked_and_equal_ids_look_alike(repo: QualityRepo) -> None:
    """Examples of keys are marks, the same for the same id, never the id."""
    repo.write(pd.concat([repo.good, repo.good.iloc[:3]], ignore_index=True))
    (one,) = bad(repo.check()).values()
    assert one.examples
    for card in repo.good["card_id"].iloc[:3]:
        assert str(card) not in " ".join(one.examples)
    assert all("card_id=#" in example for example in one.examples)


def test_whole_numbers_as_floats_are_whole(repo: QualityRepo) -> None:
    """What pandas makes of whole numbers with nulls passes for whole numbers."""
    counts = repo.good["count"].astype("float64").where(repo.good.index % 300 > 0)
    repo.write(repo.good.assign(count=counts))
    assert not bad(repo.check())


def test_without_a_reference_the_definition_still_judges(tmp_path: Path) -> None:
    """Types, keys, uniqueness and time need no reference; ranges do, and nothing pretends."""
    made = QualityRepo(tmp_path / "repo")
    made.write(made.good.assign(amount=1e12, kind="gift"))
    checked = made.check()
    assert not bad(checked)
    assert not checked.has_reference
    assert not {"range", "values", "median", "rows"} & {one.check for one in checked.outcomes}
    made.write(pd.concat([made.good, made.good.iloc[:1]]).assign(amount="x"))
    assert {check for check, _ in bad(made.check())} == {"unique", "type"}


def test_large_ids_with_nulls_are_told_apart(repo: QualityRepo) -> None:
    """Ids beyond 2^53 do not fall together, as they would in a column of floats."""
    near = pd.array([2**60, 2**60 + 1, None], dtype="Int64")
    frame = repo.good.iloc[[0, 0, 0]].assign(card_id=near).reset_index(drop=True)
    repo.write(frame)
    found = bad(repo.check())
    assert ("unique", f"card_id, {AT}, {CREATED}") not in found
    assert ("nulls", "card_id") in found


def test_an_unreadable_file_is_named(repo: QualityRepo) -> None:
    """Whatever is wrong with a file is one line that names it."""
    path = repo.folder / "cards.parquet"
    path.write_bytes(b"no parquet")
    assert str(path) in repo.check().problem
    path.unlink()
    assert "no such file" in repo.check().problem
