"""The verdicts on values, against a naive oracle; and columns of every form."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from feast.value_type import ValueType
from hypothesis import given
from hypothesis import strategies as st

from hotplate.skew import REASONS, SkewError
from hotplate.skew.compare import Candidates, compared, summed
from hotplate.skew.values import instants_of, same, same_rounded, values_of

NAMES = list(REASONS)
FEATURES = ("a", "b", "c")
NUMBERS = st.sampled_from([0.0, 1.0, 2.0, 0.1, float(np.float32(0.1)), math.nan])
ROW = st.tuples(NUMBERS, NUMBERS, NUMBERS)
EXPLAINING = st.sampled_from(["cached", "read later", "not yet online", "written later"])


def _is_same(left: float, right: float) -> bool:
    return (math.isnan(left) and math.isnan(right)) or np.float32(left) == np.float32(right)


def _verdicts(
    served: tuple[float, ...],
    training: tuple[float, ...],
    candidates: list[tuple[str, tuple[float, ...]]],
) -> list[str]:
    """One row, thought through: the instant that gives most of what was served explains it."""
    own = sum(map(_is_same, served, training))
    best: tuple[str, tuple[float, ...]] | None = None
    for reason, values in candidates:
        score = sum(map(_is_same, served, values))
        if score <= own:
            continue
        mark = (-score, NAMES.index(reason))
        if best is None or mark < (-sum(map(_is_same, served, best[1])), NAMES.index(best[0])):
            best = reason, values
    found = []
    for place, (one, other) in enumerate(zip(served, training, strict=True)):
        if _is_same(one, other):
            is_equal = one == other
            found.append("both null" if math.isnan(one) else "equal" if is_equal else "rounded")
        elif best is not None and _is_same(one, best[1][place]):
            found.append(best[0])
        else:
            found.append("unexplained")
    return found


@given(st.lists(st.tuples(ROW, ROW, st.lists(st.tuples(EXPLAINING, ROW), max_size=4)), max_size=6))
def test_verdicts_are_those_of_the_oracle(rows: list[Any]) -> None:
    """Rows in any number, with candidates in any order, that tie and that contradict each other."""
    flat = [
        (number, reason, values)
        for number, (_, _, candidates) in enumerate(rows)
        for reason, values in candidates
    ]
    served, training, given_ = (
        {
            name: np.array([row[place] for row in table], np.float64)
            for place, name in enumerate(FEATURES)
        }
        for table in ([r[0] for r in rows], [r[1] for r in rows], [one[2] for one in flat])
    )
    candidates = Candidates(
        np.array([one[0] for one in flat], np.int64),
        np.array([NAMES.index(one[1]) for one in flat], np.int8),
        given_,
    )
    found = compared(served, training, candidates)
    for number, (given_served, given_training, of_row) in enumerate(rows):
        expected = _verdicts(given_served, given_training, of_row)
        codes = [NAMES[found[name].codes[number]] for name in FEATURES]
        assert codes == expected


def test_one_instant_must_explain_a_row() -> None:
    """Two features, each right as of another instant: a row that never was."""
    served = {"a": np.array([1.0]), "b": np.array([2.0])}
    training = {"a": np.array([1.0]), "b": np.array([1.0])}
    other = Candidates(
        np.array([0]),
        np.array([NAMES.index("cached")], np.int8),
        {"a": np.array([2.0]), "b": np.array([2.0])},
    )
    found = compared(served, training, other)
    assert NAMES[found["b"].codes[0]] == "unexplained"
    both = Candidates(other.rows, other.reasons, {"a": np.array([1.0]), "b": np.array([2.0])})
    assert NAMES[compared(served, training, both)["b"].codes[0]] == "cached"


def test_a_feature_is_summed_up() -> None:
    served = {"a": np.array([1.0, 5.0, math.nan, 3.0])}
    training = {"a": np.array([1.0, 2.0, math.nan, math.nan])}
    one = summed("view", "a", compared(served, training)["a"], places=np.array([7, 8, 9, 10]))
    assert (one.rows, one.same, one.explained, one.unexplained) == (4, 2, 0, 2)
    assert one.unexplained_share == 0.5
    assert one.greatest == 3
    assert list(one.examples) == [
        {"row": 8, "served": 5.0, "training": 2.0},
        {"row": 10, "served": 3.0, "training": None},
    ]


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        ([1, None, 3], ValueType.INT64, [1.0, math.nan, 3.0]),
        ([True, False, None], ValueType.BOOL, [1.0, 0.0, math.nan]),
        ([Decimal("1.5"), None], ValueType.DOUBLE, [1.5, math.nan]),
        (["1.5", None], ValueType.DOUBLE, [1.5, math.nan]),
        (pd.Series([1, None], dtype="Int64"), ValueType.INT64, [1.0, math.nan]),
        (["a", None, math.nan], ValueType.STRING, ["a", None, None]),
        ([[1, 2], np.array([3])], ValueType.INT64_LIST, [(1, 2), (3,)]),
        ([2**60 + 1, None], ValueType.INT64, [2**60 + 1, None]),
        ([pd.Timestamp(1_000_000, unit="ms"), pd.NaT], ValueType.UNIX_TIMESTAMP, [1_000_000, None]),
    ],
)
def test_columns_of_every_form_become_one(column: Any, kind: ValueType, expected: Any) -> None:
    found = values_of(column, kind, "here")
    made = np.array(expected, np.float64) if found.dtype != object else np.empty(0, object)
    if found.dtype == object:
        made = np.empty(len(expected), object)
        made[:] = expected
    assert same(found, made).all()


def test_whole_numbers_that_a_float_would_round_are_told_apart() -> None:
    left = values_of([2**60, 2**60 + 1], ValueType.INT64, "here")
    right = values_of([2**60, 2**60 + 2], ValueType.INT64, "here")
    assert same(left, right).tolist() == [True, False]
    assert same_rounded(left, right).tolist() == [True, False]


def test_what_is_no_number_is_named_by_its_row() -> None:
    with pytest.raises(SkewError, match="here: row 2 is no number, and the feature is DOUBLE"):
        values_of([1.0, "much"], ValueType.DOUBLE, "here")


@given(st.floats(allow_nan=False, allow_infinity=False, width=64))
def test_a_float32_is_the_value_that_it_was_made_of(value: float) -> None:
    with np.errstate(over="ignore"):
        made = np.array([float(np.float32(value))])
    assert same_rounded(np.array([value]), made).all()


@pytest.mark.parametrize(
    "column",
    [
        [1_772_409_600_123],
        ["2026-03-02T00:00:00.123Z"],
        ["2026-03-02T00:00:00.123"],
        ["2026-03-02T01:00:00.123+01:00"],
        pd.to_datetime(["2026-03-02T00:00:00.123"]),
        pd.to_datetime(["2026-03-02T01:00:00.123+01:00"]),
        [pd.Timestamp("2026-03-02T00:00:00.123", tz="UTC")],
    ],
)
def test_instants_are_read_in_every_form(column: Any) -> None:
    assert instants_of(column, "here").tolist() == [1_772_409_600_123]
