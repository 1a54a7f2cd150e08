"""The small statistics behind the checks: intervals, distances, and how large chance makes them.

A distance between two samples is never 0, and in small ones it is large by chance alone. So each of
them comes with a bound: what two samples of these sizes from one and the same distribution exceed
with a stated probability (`level`) at the most.

- Wilson's interval for a share (Wilson 1927).
- PSI and Jensen-Shannon divergence of counts; both behave like a chi-square of (bins - 1) degrees
  times (1/n + 1/m) where nothing differs. Few and uneven counts do not quite: the chi-square is
  scaled so that its 99 % point is that of samples which are drawn from the pooled counts without
  replacement, as a permutation test does.
- The Kolmogorov-Smirnov distance with Stephens' correction for small samples (Stephens 1970).
- Fisher's exact test of two shares.
- Rows that belong together (the payments of one card) say less than as many rows that do not: the
  design effect says how much less (Rao and Scott 1981, the first-order correction).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hotplate.intervals import wilson_interval

__all__ = [
    "Interval",
    "chi_square_like_bound",
    "chi_square_quantile",
    "design_effect",
    "fisher_bound",
    "js_bits",
    "ks_bound",
    "ks_distance",
    "psi",
    "wilson",
]

_Counts: TypeAlias = npt.NDArray[np.int64]
_Floats: TypeAlias = npt.NDArray[np.float64]
_SMOOTHING: Final = 0.5
"""Added to each count, so that an empty bin has a logarithm (Jeffreys' prior)."""
_DRAWS: Final = 2_000
_CALIBRATED_AT: Final = 0.01


@dataclass(frozen=True)
class Interval:
    """From `low` to `high`, both included."""

    low: float
    high: float


def wilson(count: int, rows: int, confidence: float = 0.95) -> Interval:
    """Wilson's interval of a share; [0, 1] of no rows.

    Args:
        count: rows that have it, of `rows`.
        rows: how many there are.
        confidence: of the interval, within (0, 1).
    """
    return Interval(*wilson_interval(count, rows, confidence))


def psi(reference: _Counts | _Floats, current: _Counts | _Floats) -> Any:
    """Population stability index of counts (..., bins); one number a row of counts."""
    p, q = _shares(reference), _shares(current)
    return ((q - p) * np.log(q / p)).sum(axis=-1)


def js_bits(reference: _Counts | _Floats, current: _Counts | _Floats) -> Any:
    """Jensen-Shannon divergence of counts (..., bins), in bits: 0 is the same, 1 disjoint."""
    p, q = _plain_shares(reference), _plain_shares(current)
    middle = (p + q) / 2
    return (_entropy_bits(middle) - (_entropy_bits(p) + _entropy_bits(q)) / 2).clip(min=0)


def _entropy_bits(shares: _Floats) -> Any:
    logs = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
    return -(shares * logs).sum(axis=-1)


def _shares(counts: _Counts | _Floats) -> _Floats:
    return _plain_shares(np.asarray(counts, np.float64) + _SMOOTHING)


def _plain_shares(counts: _Counts | _Floats) -> _Floats:
    made = np.asarray(counts, np.float64)
    return np.asarray(made / np.maximum(made.sum(axis=-1, keepdims=True), 1e-300), np.float64)


def chi_square_quantile(degrees: int, level: float) -> float:
    """The value that a chi-square of 1 to 1,000 degrees exceeds with probability `level`."""
    if degrees < 1:
        return 0.0
    low, high = 0.0, 10.0 + degrees
    while _chi_square_beyond(degrees, high) > level:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        is_low = _chi_square_beyond(degrees, middle) > level
        low, high = (middle, high) if is_low else (low, middle)
    return high


def _chi_square_beyond(degrees: int, value: float) -> float:
    """The probability of more than `value`: a finite sum, as degrees are whole."""
    half = value / 2
    is_odd = degrees % 2
    total = math.erfc(math.sqrt(half)) if is_odd else 0.0
    for step in range(degrees // 2):
        power = step + is_odd / 2
        if half > 0 or power == 0:
            log = power * math.log(half) if half > 0 else 0.0
            total += math.exp(log - half - math.lgamma(power + 1))
    return total


def chi_square_like_bound(
    distance: Callable[[_Counts, _Counts], Any],
    pooled: _Counts,
    sizes: tuple[int, int],
    level: float,
    rng: np.random.Generator,
) -> float:
    """What `distance` exceeds with probability `level` where both samples are of one distribution.

    Args:
        distance: of counts (draws, bins) and (draws, bins): floats (draws,).
        pooled: int64 (bins,), counts of both samples together; their sum is that of `sizes`.
        sizes: rows of the two samples.
        level: within (0, 1).
        rng: of the draws that set the scale.
    """
    bins = int((pooled > 0).sum())
    if bins < 2 or min(sizes) == 0:
        return 0.0
    drawn = rng.multivariate_hypergeometric(pooled, sizes[1], size=_DRAWS, method="marginals")
    found = distance(pooled - drawn, drawn)
    at = max(_CALIBRATED_AT, level)
    scale = float(np.quantile(found, 1 - at)) / chi_square_quantile(bins - 1, at)
    return scale * chi_square_quantile(bins - 1, level)


def ks_distance(reference: _Floats, current: _Floats) -> float:
    """The greatest distance between the two distribution functions; 0 where one has no values."""
    if not len(reference) or not len(current):
        return 0.0
    left, right = np.sort(reference), np.sort(current)
    places = np.concatenate([left, right])
    of_left = np.searchsorted(left, places, "right") / len(left)
    of_right = np.searchsorted(right, places, "right") / len(right)
    return float(np.abs(of_left - of_right).max())


def ks_bound(rows: float, others: float, level: float) -> float:
    """What the distance of two samples of one distribution exceeds with probability `level`.

    Exact in the limit for continuous values, and on the safe side for values that repeat.
    """
    if rows <= 0 or others <= 0:
        return 1.0
    root = math.sqrt(rows * others / (rows + others))
    return min(1.0, math.sqrt(-math.log(level / 2) / 2) / (root + 0.12 + 0.11 / root))


def fisher_bound(hits: int, rows: int, others: int, level: float) -> float:
    """The greatest difference of two shares that Fisher's exact test does not exclude.

    Args:
        hits: how many of both samples together have it.
        rows, others: of the two samples.
        level: two-sided, half of it in each tail.
    """
    low, high = max(0, hits - others), min(hits, rows)
    values = np.arange(low, high + 1)
    logs = _log_choose(hits, values) + _log_choose(rows + others - hits, rows - values)
    chances = np.exp(logs - logs.max())
    chances /= chances.sum()
    at_most, at_least = np.cumsum(chances), np.cumsum(chances[::-1])[::-1]
    is_left = np.minimum(at_most, at_least) > level / 2
    kept = values[is_left]
    return float(np.abs(kept / rows - (hits - kept) / others).max()) if len(kept) else 0.0


def _log_choose(of: int, some: _Counts) -> _Floats:
    gamma = np.vectorize(math.lgamma, otypes=[np.float64])
    return np.asarray(math.lgamma(of + 1) - gamma(some + 1) - gamma(of - some + 1), np.float64)


def design_effect(bins: _Counts, owners: _Counts, count: int) -> float:
    """By what factor rows that belong together widen the chance of the shares of bins; 1 or more.

    Args:
        bins: int64 (rows,), the bin of each row.
        owners: int64 (rows,), codes from 0 of whom each row belongs to.
        count: of the bins.
    """
    rows = len(bins)
    if rows < 2 or count < 2:
        return 1.0
    of_owner = np.bincount(owners).astype(np.float64)
    if of_owner.max() <= 1:
        return 1.0
    held = np.bincount(owners * count + bins, minlength=len(of_owner) * count)
    held = held.reshape(-1, count)
    shares = held.sum(axis=0) / rows
    owned = int((of_owner > 0).sum())
    residuals = held - of_owner[:, None] * shares
    variance = (residuals**2).sum(axis=0) * (owned / max(1, owned - 1))
    used = shares > 0
    # the mean of the bins' effects, each weighed by (1 - share), as the chi-square adds them up
    effects = variance[used] / (rows * shares[used])
    return max(1.0, float(effects.sum() / max(1, int(used.sum()) - 1)))
