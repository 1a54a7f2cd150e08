"""Great Expectations' verdicts against a count by hand, and frames that do not mix."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hotplate
from hotplate.quality import ViewQuality
from hotplate.quality.check import Asking, check
from hotplate.quality.derive import PART, WHOLE
from hotplate.quality.frames import Span, Table, of_file, of_frame
from hotplate.quality.gx import Judge, gxe
from hotplate.quality.kinds import accepted, kind_of
from hotplate.quality.outcome import Checked, percent
from hotplate.quality.profiling import disorder_of, profile
from hotplate.quality.subject import Column, Subject

from ..test_architecture import imports
from .repo import AT, CREATED, NOW

SUBJECT = Subject(
    "cards",
    (
        Column("card", "key", ("whole number",)),
        Column("amount", "feature", ("number", "whole number")),
        Column(AT, "timestamp", ("timestamp with a time zone",)),
        Column(CREATED, "created", ("timestamp with a time zone",)),
    ),
    unique=("card", AT, CREATED),
)
ROW = st.tuples(
    st.integers(0, 3),
    st.one_of(st.none(), st.floats(-10, 10), st.just(np.inf)),
    st.integers(0, 5),
    st.integers(-1, 6),
)


def frame_of(rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    """Rows of (card, amount, minute of the event, minute of its creation)."""
    moments = [
        pd.Timestamp(NOW - timedelta(hours=1)) + pd.Timedelta(minutes=m) for m in range(-1, 7)
    ]
    return pd.DataFrame(
        {
            "card": pd.Series([row[0] for row in rows], dtype="int64"),
            "amount": pd.Series([row[1] for row in rows], dtype="float64"),
            AT: pd.Series([moments[row[2] + 1] for row in rows], dtype="datetime64[us, UTC]"),
            CREATED: pd.Series([moments[row[3] + 1] for row in rows], dtype="datetime64[us, UTC]"),
        }
    )


def judged(frame: pd.DataFrame, scope: str = WHOLE, **more: Any) -> Checked:
    """What comes of a frame, by a reference of amounts between -5 and 5."""
    good = frame_of([(0, -5.0, 0, 0), (1, 5.0, 1, 1)])
    known = profile(SUBJECT, of_frame(good), NOW)
    return check(Asking(SUBJECT, NOW, "", known, scope=scope, **more), of_frame(frame), Judge())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ROW, min_size=1, max_size=30))
def test_counts_are_those_of_a_count_by_hand(rows: list[tuple[Any, ...]]) -> None:
    """Nulls, range, uniqueness, creation and order, each row by row."""
    found = {one.check: one for one in judged(frame_of(rows)).outcomes if one.column != "card"}
    amounts = [row[1] for row in rows]
    assert _failing(judged(frame_of(rows)), "nulls", "amount") == sum(a is None for a in amounts)
    present = [a for a in amounts if a is not None]
    if present:
        assert found["range"].failing == sum(not -10 <= a <= 10 for a in present)
    keys = [(row[0], row[2], row[3]) for row in rows]
    assert found["unique"].failing == sum(keys.count(key) > 1 for key in keys)
    assert found["created"].failing == sum(row[3] < row[2] for row in rows)
    late = 0
    for card, _, at, made in rows:
        before = [row for row in rows if row[0] == card and (row[3], row[2]) < (made, at)]
        late += any(row[2] > at for row in before)
    assert found["order"].failing == late


def _failing(checked: Checked, name: str, column: str) -> int | None:
    (one,) = [o for o in checked.outcomes if (o.check, o.column) == (name, column)]
    return one.failing


def test_a_second_frame_is_not_answered_with_the_first(tmp_path: Path) -> None:
    """Great Expectations keeps what it computed by name: equal names must not mix."""
    judge = Judge()
    one = gxe.ExpectColumnValuesToBeBetween(column="a", max_value=5)
    shares = [
        judge(pd.DataFrame({"a": values}), [one])[0].share
        for values in ([1, 2], [9, 9], [1, 9], [1, 2])
    ]
    assert shares == [0, 1, 0.5, 0]
    for number in range(60):  # past the point where an engine is given up
        (verdict,) = judge(pd.DataFrame({"a": [number]}), [one])
        assert verdict.is_good == (number <= 5)


def test_expectations_are_not_changed_by_being_judged() -> None:
    """One declaration may be run on many batches."""
    one = gxe.ExpectColumnValuesToNotBeNull(column="a", meta={"mine": 1})
    before = one.configuration.to_json_dict()
    Judge()(pd.DataFrame({"a": [1.0, None]}), [one, one])
    assert one.configuration.to_json_dict() == before


def test_importing_leaves_warnings_alone() -> None:
    """Great Expectations sends all warnings of the process to a log; here that is undone."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("heard", stacklevel=1)
    assert [str(one.message) for one in seen] == ["heard"]


def test_many_rows_are_judged_as_few_are() -> None:
    """Above 20,000 rows columns go in batches of their own: the verdicts are the same."""
    rng = np.random.default_rng(3)
    rows = [
        (int(card), None if null else float(amount), int(at), int(at + more))
        for card, null, amount, at, more in zip(
            rng.integers(0, 4, 25_000),
            rng.random(25_000) < 0.1,
            rng.normal(0, 5, 25_000),
            rng.integers(0, 3, 25_000),
            rng.integers(0, 3, 25_000),
            strict=True,
        )
    ]
    frame = frame_of(rows)
    large = judged(frame)
    parts = [judged(frame.iloc[at : at + 12_500]) for at in (0, 12_500)]
    for name, column in (("nulls", "amount"), ("range", "amount"), ("created", f"{CREATED}, {AT}")):
        assert _failing(large, name, column) == sum(
            _failing(part, name, column) or 0 for part in parts
        )
    keys = ["card", AT, CREATED]
    assert _failing(large, "unique", ", ".join(keys)) == int(frame.duplicated(keys, False).sum())


def test_disorder_is_by_entity() -> None:
    """A late row of one entity says nothing of another."""
    at = pd.to_datetime([3, 1, 2, 5], unit="s", utc=True)
    made = pd.to_datetime([1, 2, 3, 4], unit="s", utc=True)
    frame = pd.DataFrame({"card": [1, 2, 1, 1], AT: at, CREATED: made})
    assert disorder_of(frame).tolist() == [False, False, True, False]


# -- kinds and frames -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (pa.int8(), "whole number"),
        (pa.uint64(), "whole number"),
        (pa.float32(), "number"),
        (pa.decimal128(9, 2), "decimal"),
        (pa.large_string(), "text"),
        (pa.dictionary(pa.int32(), pa.string()), "text"),
        (pa.bool_(), "true or false"),
        (pa.timestamp("ns"), "timestamp without a time zone"),
        (pa.timestamp("s", "Europe/Berlin"), "timestamp with a time zone"),
        (pa.list_(pa.float32(), 4), "list"),
        (pa.struct({"a": pa.int64()}), "map"),
        (pa.null(), "nothing but nulls"),
    ],
)
def test_kinds_of_arrow_types(stored: pa.DataType, kind: str) -> None:
    """Each stored type is of the kind that people call it."""
    assert kind_of(stored) == kind


def test_every_feast_type_accepts_something_sensible() -> None:
    """A list type accepts lists, and no scalar type accepts them."""
    from feast.value_type import ValueType

    for declared in ValueType:
        kinds = accepted(declared)
        assert ("list" in kinds) == declared.name.endswith("_LIST")


@pytest.mark.parametrize("zone", ["UTC", None, "Europe/Berlin"])
def test_a_span_is_the_rows_that_feast_would_read(tmp_path: Path, zone: str | None) -> None:
    """Both ends belong to it, whatever zone the file says."""
    frame = frame_of([(0, 1.0, minute, minute) for minute in range(6)])
    moments = frame[AT].dt.tz_convert(zone) if zone else frame[AT].dt.tz_localize(None)
    path = tmp_path / "rows.parquet"
    frame.assign(**{AT: moments}).to_parquet(path)
    start, end = (frame[AT].iloc[at].to_pydatetime() for at in (1, 3))
    found = of_file(path, span=Span(AT, start, end))
    assert found.rows == 3
    assert found.read(["card"]).num_rows == 3


def test_a_folder_and_renamed_columns_are_read(tmp_path: Path) -> None:
    """A folder of Parquet files is one table; columns have the view's names."""
    for number in range(2):
        frame_of([(number, 1.0, 0, 0)]).to_parquet(tmp_path / f"{number}.parquet")
    found = of_file(tmp_path, {"amount": "spent"})
    assert found.rows == 2
    assert found.schema.names == ["card", "spent", AT, CREATED]
    assert found.read(["spent"]).column("spent").to_pylist() == [1.0, 1.0]


def test_a_pushed_frame_of_many_kinds_is_read() -> None:
    """What Arrow has no type for becomes text, and is of the wrong kind for numbers."""
    frame = pd.DataFrame({"a": [1.0, "x"], "b": [None, {"c": 1}], "d": [[1], [2, 3]]})
    found = of_frame(frame)
    assert found.schema.field("a").type == pa.string()
    assert found.read(["a"]).column("a").to_pylist() == ["1.0", "x"]
    assert kind_of(found.schema.field("d").type) == "list"


def test_lists_and_maps_are_judged_for_nulls() -> None:
    """A feature that is a list is there or null, however long it is."""
    subject = Subject(
        "v", (Column("k", "key", ("whole number",)), Column("e", "feature", ("list",)))
    )
    rows = pa.table({"k": [1, 2, 3, 4], "e": pa.array([[1.0], [], None, [2.0, 3.0]])})
    good = Table(rows.filter(pa.array([True, True, False, True])))
    known = profile(subject, good, NOW)
    checked = check(Asking(subject, NOW, "", known), Table(rows), Judge())
    (one,) = [one for one in checked.outcomes if (one.check, one.column) == ("nulls", "e")]
    assert (one.failing, one.status) == (1, "failed")


def test_a_part_counts_age_from_its_end() -> None:
    """What is materialized of last year is as old as last year's end."""
    rows = frame_of([(0, 1.0, minute, minute) for minute in range(6)])
    later = datetime(2027, 1, 1, tzinfo=UTC)
    known = profile(SUBJECT, of_frame(rows), NOW)
    asking = Asking(SUBJECT, later, "", known, scope=PART, as_of=NOW)
    assert check(asking, of_frame(rows), Judge()).is_good
    asking = Asking(SUBJECT, later, "", known, scope=PART)
    assert {one.check for one in check(asking, of_frame(rows), Judge()).bad} == {"fresh"}


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.0, "0%"), (1.0, "100%"), (0.5, "50.0%"), (0.0123, "1.23%"), (1e-7, "under 0.01%")],
)
def test_shares_are_never_rounded_away(share: float, shown: str) -> None:
    """A share that is not nothing is not shown as nothing."""
    assert percent(share) == shown


@pytest.mark.parametrize(("package", "file"), [("great_expectations", "gx"), ("sqlalchemy", "sql")])
def test_one_file_knows_a_third_party(package: str, file: str) -> None:
    """Great Expectations and SQLAlchemy are imported in one file of the room each."""
    room = Path(hotplate.__file__).parent / "quality"
    found = [
        path.stem
        for path in room.glob("*.py")
        if any(name.split(".")[0] == package for name in imports(path))
    ]
    assert found == [file]


def test_a_folder_of_partitions_has_their_columns(tmp_path: Path) -> None:
    """`day=2026-03-01/` is a column, as it is to Feast's own file store."""
    for number in range(2):
        part = tmp_path / f"card={number}"
        part.mkdir()
        frame_of([(number, 1.0, 0, 0)]).drop(columns="card").to_parquet(part / "0.parquet")
    found = of_file(tmp_path)
    assert sorted(found.read(["card"]).column(0).to_pylist()) == [0, 1]


def test_an_error_that_may_hold_an_id_is_not_shown() -> None:
    """What an expectation over keys raises is shown with the ids alone."""
    said = ViewQuality("cards", [gxe.ExpectColumnValuesToMatchRegex(column="card", regex="(")])
    frame = frame_of([(123_456, 1.0, 0, 0)])
    for shows_ids in (False, True):
        asking = Asking(SUBJECT, NOW, "", None, said, shows_ids=shows_ids)
        (one,) = check(asking, of_frame(frame), Judge()).bad
        assert one.status == "error"
        assert ("not shown" in one.observed) is not shows_ids


def test_a_share_is_of_the_rows_that_have_a_value() -> None:
    """Nulls are no part of what lies out of range; of nulls all rows count."""
    frame = pd.DataFrame({"a": [1.0, 9.0, None, None]})
    between = gxe.ExpectColumnValuesToBeBetween(column="a", max_value=5)
    there = gxe.ExpectColumnValuesToNotBeNull(column="a")
    ranged, nulls = Judge()(frame, [between, there])
    assert (ranged.failing, ranged.of, ranged.share) == (1, 2, 0.5)
    assert (nulls.failing, nulls.of, nulls.share) == (2, 4, 0.5)
