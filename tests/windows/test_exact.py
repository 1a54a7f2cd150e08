"""Wide integers and the finalizer against Python's own integers and floats."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.windows.exact import (
    as_limbs,
    limbs_from_pair,
    pair_from_limbs,
    spread_numerator,
    squares,
    to_float,
    to_python,
)
from hotplate.windows.finalize import Finalizer, Partials
from hotplate.windows.hyperloglog import POWERS, REGISTERS, estimate, registers_of
from hotplate.windows.spec import Aggregate, Column, EventSpec, Window, WindowSpec

from . import oracle

MASK = 2**36 - 1
near_powers = st.builds(
    lambda k, low, d, sign: sign * (2**k + low * 2 ** max(k - 54, 0) + d),
    st.integers(0, 125),
    st.integers(0, 7),
    st.integers(-1, 1),
    st.sampled_from([-1, 1]),
)
wide = st.one_of(st.integers(-(2**126), 2**126), near_powers)
value = st.one_of(st.integers(-(2**53), 2**53), st.integers(-1000, 1000))


def limbs(numbers: list[int]) -> np.ndarray:
    rows = [[one & MASK, (one >> 36) & MASK, one >> 72] for one in numbers]
    return np.array(rows, np.int64).reshape(-1, 3)


@given(st.lists(wide, min_size=1, max_size=50))
def test_conversion_is_correctly_rounded(numbers: list[int]) -> None:
    """Like Python's own, with ties and next to powers of two."""
    assert to_float(limbs(numbers)).tolist() == [float(one) for one in numbers]
    pairs = pair_from_limbs(limbs(numbers))
    assert to_python(limbs_from_pair(pairs)) == numbers


@given(st.lists(value, min_size=1, max_size=50))
def test_squares_and_sums(values: list[int]) -> None:
    """Limb by limb, settled once at the end."""
    array = np.array(values)
    assert to_python(as_limbs(array)) == values
    assert to_python(squares(array)) == [one * one for one in values]
    total = squares(array).sum(axis=0) - as_limbs(array).sum(axis=0)
    assert to_python(total[None]) == [sum(one * one - one for one in values)]


@given(st.lists(value, min_size=1, max_size=30), st.sampled_from([1, 7, 10**4, 10**7]))
def test_spread(values: list[int], times: int) -> None:
    """n*Q - S*S, beyond 127 bits too."""
    n, s = len(values) * times, sum(values) * times
    q = sum(one * one for one in values) * times
    if q < 2**126:
        found = spread_numerator(np.array([n]), limbs([s]), limbs([q]))
        assert found.tolist() == [float(n * q - s * s)]


EVENT = EventSpec("id", (Column.floats("a"),))
WINDOW = Window(1000)
SPEC = WindowSpec(
    EVENT, tuple(Aggregate(name, name, "a", WINDOW) for name in ("count", "sum", "mean", "std"))
)


@given(st.lists(value, max_size=20))
def test_narrow_and_wide_partials_give_the_same_bits(values: list[int]) -> None:
    """Whatever form the caller keeps its sums in."""
    finalize = Finalizer(SPEC)
    n = np.array([[len(values)]])
    s, q = sum(values), sum(one * one for one in values)
    in_limbs = Partials(n[0], n, limbs([s])[None], limbs([q])[None])
    found = finalize(in_limbs)
    mean = float(s) / (len(values) * 100.0) if values else math.nan
    std = math.nan
    if len(values) > 1:
        pairs = len(values) * (len(values) - 1)
        std = math.sqrt(float(len(values) * q - s * s) / float(pairs)) / 100.0
    expected = np.array([float(len(values)), float(s) / 100.0, mean, std])
    assert np.array_equal(found, expected, equal_nan=True)
    if q < 2**63:
        narrow = Partials(n[0], n, np.array([[s]]), np.array([[q]]))
        assert np.array_equal(finalize(narrow), found, equal_nan=True)


def test_any_number_of_leading_axes() -> None:
    """Rows, entities and rows, or none."""
    finalize = Finalizer(SPEC)
    rng = np.random.default_rng(1)
    n = rng.integers(0, 5, (3, 4, 1, 1))
    s, q = rng.integers(-9, 9, n.shape) * n, rng.integers(100, 200, n.shape) * n
    found = finalize(Partials(n[..., 0], n, s, q))
    assert found.shape == (3, 4, 4)
    one = finalize(Partials(n[1, 2, :, 0], n[1, 2], s[1, 2], q[1, 2]))
    assert np.array_equal(found[1, 2], one, equal_nan=True)


def test_a_missing_part_is_named_as_such() -> None:
    """`needs` says which fields."""
    finalize = Finalizer(SPEC)
    assert finalize.needs == {"events", "n", "s", "q"}
    one = np.array([[1]])
    with pytest.raises(TypeError, match=r"Finalizer\.needs"):
        finalize(Partials(one[0], one, one))


@pytest.mark.parametrize("count", [0, 1, 2, 50, 1_000, 2_600, 20_000])
def test_distinct_counts(count: int) -> None:
    """As the oracle counts, and within four standard errors."""
    hashes = np.random.default_rng(count).integers(-(2**63), 2**63 - 1, count)
    registers = np.zeros(REGISTERS, np.uint8)
    np.maximum.at(registers, *registers_of(hashes))
    powers, zeros = POWERS[registers].sum(), (registers == 0).sum()
    found = float(estimate(np.array([powers]), np.array([zeros]))[0])
    assert found == oracle.distinct(hashes.tolist())
    assert abs(found - count) <= 4 * 0.0325 * count + 1
