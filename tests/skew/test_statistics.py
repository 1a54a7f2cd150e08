"""The small statistics against SciPy, and against what samples of one distribution do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import jensenshannon

from hotplate.skew.statistics import (
    chi_square_like_bound,
    chi_square_quantile,
    design_effect,
    fisher_bound,
    js_bits,
    ks_bound,
    ks_distance,
    psi,
    wilson,
)

COUNTS = st.lists(st.integers(0, 500), min_size=2, max_size=12).filter(sum)


@given(st.integers(0, 400), st.integers(0, 400), st.sampled_from([0.8, 0.95, 0.999]))
def test_the_interval_is_wilsons(count: int, more: int, confidence: float) -> None:
    rows = count + more
    found = wilson(count, rows, confidence)
    if rows:
        expected = stats.binomtest(count, rows).proportion_ci(confidence, method="wilson")
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
        assert found.low <= count / rows <= found.high
    else:
        assert (found.low, found.high) == (0, 1)


@given(COUNTS, st.integers(0, 2**32))
def test_the_divergence_is_that_of_jensen_and_shannon(counts: list[int], seed: int) -> None:
    left = np.array(counts)
    right = np.random.default_rng(seed).permutation(left)
    expected = jensenshannon(left, right, base=2) ** 2
    assert js_bits(left, right) == pytest.approx(0 if np.isnan(expected) else expected, abs=1e-9)


def test_a_psi_is_what_it_is_defined_as() -> None:
    """By hand, where half a count for each bin changes little; many at once are each of them."""
    left, right = np.array([5_000, 3_000, 2_000]), np.array([4_000, 3_000, 3_000])
    by_hand = -0.1 * np.log(0.8) + 0.1 * np.log(1.5)
    assert psi(left, right) == pytest.approx(by_hand, rel=1e-3)
    assert np.isfinite(psi(np.array([0, 10]), np.array([10, 0])))
    both = psi(np.stack([left, right]), np.stack([right, right]))
    assert both.tolist() == pytest.approx([psi(left, right), 0])


@given(
    st.lists(st.integers(-20, 20), min_size=4, max_size=60),
    st.lists(st.floats(-20, 20), min_size=4, max_size=60),
)
def test_the_distance_is_that_of_kolmogorov_and_smirnov(
    left: list[float], right: list[float]
) -> None:
    one, other = np.array(left, np.float64), np.array(right, np.float64)
    expected = stats.ks_2samp(one, other, method="asymp").statistic
    assert ks_distance(one, other) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("rows", [(30, 40), (200, 1_000), (5_000, 5_000)])
@pytest.mark.parametrize("level", [0.05, 1e-3, 1e-5])
def test_the_bound_of_the_distance_has_its_level(rows: tuple[int, int], level: float) -> None:
    """The exact p of a distance at the bound: the level, and rather less."""
    p = float(stats.kstwo.sf(ks_bound(*rows, level), round(rows[0] * rows[1] / sum(rows))))
    assert 0.3 * level < p < 1.25 * level


@pytest.mark.parametrize("degrees", range(1, 60))
@pytest.mark.parametrize("level", [0.05, 0.01, 1e-4, 1e-6])
def test_the_quantile_is_that_of_chi_square(degrees: int, level: float) -> None:
    expected = float(stats.chi2.isf(level, degrees))
    assert chi_square_quantile(degrees, level) == pytest.approx(expected, rel=1e-9)


@given(st.integers(1, 300), st.integers(1, 300), st.data())
def test_the_bound_of_shares_is_where_fishers_test_excludes(
    rows: int, others: int, data: st.DataObject
) -> None:
    """Every table that is beyond the bound has a p below the level, by SciPy's one-sided tests."""
    hits = data.draw(st.integers(0, rows + others))
    level = 0.01
    bound = fisher_bound(hits, rows, others, level)
    for count in {max(0, hits - others), min(hits, rows), data.draw(st.integers(0, hits))}:
        rest = hits - count
        if not (0 <= count <= rows and 0 <= rest <= others):
            continue
        table = [[count, rows - count], [rest, others - rest]]
        if abs(count / rows - rest / others) > bound + 1e-12:
            tails = (
                stats.fisher_exact(table, alternative=side).pvalue for side in ("less", "greater")
            )
            assert min(tails) <= level / 2 + 1e-9


@pytest.mark.parametrize("sizes", [(50, 50), (300, 40), (2_000, 700)])
@pytest.mark.parametrize("shares", [[0.1] * 10, [0.9, 0.06, 0.03, 0.01], [0.5, 0.5]])
def test_chance_exceeds_the_bound_as_seldom_as_said(
    sizes: tuple[int, int], shares: list[float]
) -> None:
    """800 pairs of samples of one distribution, at a level of 2 %: in 16, give or take 4."""
    rng = np.random.default_rng(1)
    beyond = 0
    for _ in range(800):
        left, right = rng.multinomial(sizes[0], shares), rng.multinomial(sizes[1], shares)
        used = left + right > 0
        bound = chi_square_like_bound(psi, (left + right)[used], sizes, 0.02, rng)
        beyond += bool(psi(left[used], right[used]) > bound)
    assert beyond < 32


def test_rows_that_belong_together_say_less() -> None:
    """Owners whose rows are all alike are worth one row each; owners of one row, that row."""
    rng = np.random.default_rng(2)
    own = rng.integers(0, 4, 300)
    together = np.repeat(own, 10)
    owners = np.repeat(np.arange(300), 10)
    assert design_effect(together, owners, 4) == pytest.approx(10, rel=0.02)
    assert design_effect(own, np.arange(300), 4) == 1
    mixed = rng.integers(0, 4, 3_000)
    assert design_effect(mixed, owners, 4) == pytest.approx(1, abs=0.15)
