"""From rows to events: rounding, hashes, what is dropped and that nothing is dropped silently."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.windows.errors import WindowSpecError
from hotplate.windows.events import REASONS, accept
from hotplate.windows.hashing import NO_HASH, hashes_of
from hotplate.windows.scaling import NO_VALUE, scaled
from hotplate.windows.spec import Column, EventSpec

from .streams import mixed

EVENT = EventSpec("id", (Column.floats("amount"), Column.distinct("shop")))


def exactly(value: Decimal, scale: int) -> int:
    with localcontext() as context:
        context.prec = 1_000
        return int((value * 10**scale).to_integral_value(ROUND_HALF_EVEN))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.125, 12),
        (0.375, 38),
        (2.675, 268),  # the float lies below the tie, the decimal on it
        (1.005, 100),
        (1.015, 102),  # the float product is 101.49999999999999
        (0.285, 28),
        (-0.125, -12),
        (-1.015, -102),
        (1e13 + 0.125, 1_000_000_000_000_012),
    ],
)
def test_ties_go_to_even_as_the_decimal_does(value: float, expected: int) -> None:
    """Floats, Decimals and objects agree."""
    decimal = Decimal(repr(value))
    for column in (np.array([value]), np.array([decimal], object), np.array([value], object)):
        assert scaled(column, 2).values.tolist() == [expected]


@given(
    st.lists(
        st.one_of(
            st.floats(allow_nan=False, allow_infinity=False),
            st.integers(-(10**9), 10**9).map(lambda n: n / 1000),
            st.integers(-(10**17), 10**17).map(lambda n: n / 200),
            st.decimals(-(10**12), 10**12, places=5).map(float),
        ),
        max_size=30,
    ),
    st.integers(0, 6),
)
def test_floats_are_rounded_like_the_decimals_they_print_as(
    values: list[float], scale: int
) -> None:
    """All magnitudes, close to ties and far from them."""
    found = scaled(np.array(values, np.float64), scale)
    as_objects = scaled(np.array([Decimal(repr(one)) for one in values], object), scale)
    for index, value in enumerate(values):
        expected = exactly(Decimal(repr(value)), scale)
        assert found.too_large[index] == as_objects.too_large[index] == (abs(expected) > 2**53)
        if abs(expected) <= 2**53:
            assert found.values[index] == as_objects.values[index] == expected


@given(st.lists(st.integers(-(2**70), 2**70), max_size=20), st.integers(0, 4))
def test_integers_are_scaled_exactly_or_refused(values: list[int], scale: int) -> None:
    """Of any width."""
    found = scaled(np.array(values, object), scale)
    expected = [value * 10**scale for value in values]
    assert found.too_large.tolist() == [abs(one) > 2**53 for one in expected]
    narrow = [value for value in values if abs(value) < 2**63]
    numbers = scaled(np.array(narrow, np.int64), scale)
    for index, value in enumerate(narrow):
        is_large = abs(value * 10**scale) > 2**53
        assert numbers.too_large[index] == is_large
        assert is_large or numbers.values[index] == value * 10**scale


def test_null_infinite_and_what_is_no_number() -> None:
    """Each in its own way, and only that row."""
    rows: list[Any] = [1.5, None, float("nan"), float("inf"), "x", Decimal("NaN"), True, 10**30]
    found = scaled(np.array(rows, object), 1)
    assert found.values[[0, 1, 2, 5, 6]].tolist() == [15, NO_VALUE, NO_VALUE, NO_VALUE, 10]
    assert np.flatnonzero(found.too_large).tolist() == [3, 7]
    assert np.flatnonzero(found.unreadable).tolist() == [4]
    floats = scaled(np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324, 1e300]), 2)
    assert floats.too_large.tolist() == [False, True, True, False, False, True]
    assert floats.values[[0, 3, 4]].tolist() == [NO_VALUE, 0, 0]
    assert scaled(np.array([2**64 - 1, 3], np.uint64), 0).too_large.tolist() == [True, False]
    assert scaled(np.array(["1"]), 0).unreadable.all()


def test_hashes_are_what_they_were() -> None:
    """They are written into stored state: these numbers must never change."""
    assert hashes_of(np.array([0, 1, -1, 2**63 - 1])).tolist() == [
        mixed(0),
        mixed(1),
        mixed(2**64 - 1),
        mixed(2**63 - 1),
    ]
    assert hashes_of(np.array([0])).tolist() == [-2152535657050944081]
    assert hashes_of(["abc"]).tolist() == hashes_of([b"abc"]).tolist() == [6455300059550759896]


def test_one_value_has_one_hash_whatever_array_it_comes_in() -> None:
    """A column of integers with a null in it often comes as floats."""
    columns = (
        np.array([7], np.int64),
        np.array([7], np.uint8),
        np.array([7.0]),
        np.array([7], object),
        np.array([7.0], object),
        np.array([np.int32(7)], object),
    )
    assert {hashes_of(column)[0] for column in columns} == {mixed(7)}
    texts = (np.array(["é"]), np.array(["é"], object), np.array(["é".encode()], object))
    assert len({hashes_of(column)[0] for column in texts}) == 1
    assert hashes_of(np.array(["7"], object))[0] != mixed(7)
    assert len(set(hashes_of(np.array([1.5, 2.5, 1, 2])).tolist())) == 4


@given(st.lists(st.text(st.characters(), max_size=3), min_size=1))
def test_texts_hash_alike_by_themselves_and_among_others(texts: list[str]) -> None:
    """A column of texts alone takes a shorter way."""
    others = np.array([*texts, 7], object)
    assert hashes_of(np.array(texts, object)).tolist() == hashes_of(others)[:-1].tolist()


def test_nothing_hashes_to_null() -> None:
    """Only null does."""
    nulls = [None, float("nan"), "", b"", np.datetime64("NaT")]
    assert hashes_of(np.array(nulls, object)).tolist() == [NO_HASH] * 5
    assert hashes_of(np.array([np.nan, 1.0]))[0] == NO_HASH
    assert hashes_of(np.array(["NaT", "2025-01-01"], "datetime64[s]"))[0] == NO_HASH
    zero = 2**64 - 0x9E3779B97F4A7C15  # the one integer that SplitMix64 maps to 0
    assert hashes_of(np.array([zero], np.uint64)).tolist() == [1]


def test_each_dropped_row_is_counted_under_its_first_reason() -> None:
    """And the others are kept, whatever is beside them."""
    now, hour = 1_000_000_000, 3_600_000
    rows: list[tuple[Any, Any, Any, Any, str]] = [
        (now, "a", now, 1.0, ""),
        (now, "b", now + hour, 1.0, ""),
        (now, "c", now + hour + 1, 1.0, "late"),
        (now, "d", now - 5_000, 1.0, ""),
        (now, "e", now - 5_001, 1.0, "future"),
        (-1, "f", now, 1.0, "invalid_timestamp"),
        (now * 1_000_000, "g", now, 1.0, "invalid_timestamp"),
        (now, "h", -(2**63), 1.0, "invalid_timestamp"),
        (now, None, now, 1.0, "missing_id"),
        (now, "", now, float("inf"), "missing_id"),
        (now, "i", now, float("inf"), "overflow"),
        (now, "j", now, 1e15, "overflow"),
        (now, "k", now + 2 * hour, "x", "invalid_value"),
        (now, "l", now, None, ""),
    ]
    ts, ids, arrivals, amounts, reasons = zip(*rows, strict=True)
    found = accept(
        EVENT,
        np.array(ts),
        np.array(ids, object),
        np.array(arrivals),
        {"amount": np.array(amounts, object), "shop": np.array(["s"] * len(rows)), "more": ids},
    )
    names = ["", *REASONS]
    assert [names[verdict] for verdict in found.verdicts.tolist()] == list(reasons)
    assert found.rows.tolist() == [i for i, reason in enumerate(reasons) if not reason]
    assert sum(found.dropped.values()) + len(found.events) == len(rows)
    assert found.events.values[:, 0].tolist() == [100, 100, 100, NO_VALUE]


def test_datetimes_of_any_unit_are_rounded_down() -> None:
    """And NaT is no timestamp."""
    texts = ["1970-01-02T00:00:00.001999", "NaT"]
    for unit in ("us", "ns"):
        ts = np.array(texts, f"datetime64[{unit}]")
        columns = {"amount": [1, 2], "shop": ["a", "b"]}
        found = accept(EVENT, ts, [1, 2], ts, columns)
        assert found.events.ts.tolist() == [86_400_001]
        assert found.dropped == {"invalid_timestamp": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ts": np.array([1.0])}, "is an array of float64"),
        ({"arrivals": np.array([1, 2])}, "has 2 rows beside 1"),
        ({"ids": np.array([1, 2])}, "'id': has 2 rows"),
        ({"columns": {"amount": [1]}}, "'shop': is not among the rows"),
        ({"columns": {"amount": [1, 2], "shop": [1]}}, "'amount': has 2 rows"),
    ],
)
def test_what_is_wrong_with_a_whole_batch_is_an_error(change: dict[str, Any], message: str) -> None:
    """Not a count of dropped rows."""
    one = np.array([1])
    batch = {"ts": one, "ids": one, "arrivals": one, "columns": {"amount": one, "shop": one}}
    with pytest.raises(WindowSpecError, match=message):
        accept(EVENT, **{**batch, **change})
