"""Whether features are distributed as they were: a current table against a reference.

Per feature: the share of nulls; for numbers PSI over bins of the reference's quantiles and the
Kolmogorov-Smirnov distance; for all else the Jensen-Shannon divergence of the categories. A feature
counts as moved only where a measure is beyond two things at once:

- what *matters*: a threshold of the practice, such as a PSI of 0.1;
- what *chance* does at these numbers of rows: see `statistics`. The level is divided by all
  measures of all features, so that in one run out of `1 / level` anything at all is called moved
  where nothing is.

Where chance alone reaches the threshold of a drift, the verdict is that there are too few rows, and
no other, unless the measure is beyond even that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from hotplate.skew.errors import SkewError
from hotplate.skew.statistics import (
    chi_square_like_bound,
    design_effect,
    fisher_bound,
    js_bits,
    ks_bound,
    ks_distance,
    psi,
)
from hotplate.skew.values import objects_of

__all__ = ["DriftReport", "DriftSpec", "FeatureDrift", "Measure", "check_drift"]

STEADY, SHIFTED, DRIFTED = "steady", "shifted", "drifted"
TOO_FEW, MISSING = "too few rows", "missing"
_Floats: TypeAlias = npt.NDArray[np.float64]
_Whole: TypeAlias = npt.NDArray[np.int64]
_CATEGORIES: Final = 50
_OTHERS: Final = "(others)"


@dataclass(frozen=True)
class DriftSpec:
    """What counts as moved.

    Attributes:
        level: probability that anything is called moved where nothing is, over the whole run.
        psi_shifted, psi_drifted: of numbers; 0.1 and 0.25 are the practice of credit scoring.
        ks_shifted, ks_drifted: distances of the distribution functions.
        js_shifted, js_drifted: bits, of categories; what a PSI of 0.1 and 0.25 is for small moves.
        nulls_shifted, nulls_drifted: change of the share of nulls.
        bins: of numbers.
        owners: feature -> column of whom a row belongs to, such as the card of a payment; "*" for
            all other features. Rows of one owner count for less than as many of several.
        seed: of the draws.
    """

    level: float = 0.01
    psi_shifted: float = 0.1
    psi_drifted: float = 0.25
    ks_shifted: float = 0.1
    ks_drifted: float = 0.2
    js_shifted: float = 0.018
    js_drifted: float = 0.045
    nulls_shifted: float = 0.05
    nulls_drifted: float = 0.2
    bins: int = 10
    owners: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class Measure:
    """One measure of a feature.

    Attributes:
        name: `"psi"`, `"ks"`, `"js"` or `"nulls"`.
        value: what was found.
        chance: what chance alone exceeds with the run's level, divided by all measures.
        shifted, drifted: from where on it matters.
        verdict: `"steady"`, `"shifted"`, `"drifted"` or `"too few rows"`.
    """

    name: str
    value: float
    chance: float
    shifted: float
    drifted: float
    verdict: str

    @classmethod
    def judged(
        cls, name: str, value: float, chance: float, shifted: float, drifted: float
    ) -> Measure:
        """With its verdict."""
        if value > max(chance, drifted):
            verdict = DRIFTED
        elif chance >= drifted:
            verdict = TOO_FEW
        elif value > max(chance, shifted):
            verdict = SHIFTED
        else:
            verdict = STEADY
        return cls(name, value, chance, shifted, drifted, verdict)


@dataclass(frozen=True)
class Bins:
    """How both samples fall into bins.

    Attributes:
        labels: of the bins.
        reference, current: shares.
    """

    labels: Sequence[str]
    reference: Sequence[float]
    current: Sequence[float]


@dataclass(frozen=True)
class FeatureDrift:
    """A feature in numbers.

    Attributes:
        name: which.
        rows: of the reference and of the current table.
        nulls: shares of nulls, likewise.
        measures: what was measured.
        verdict: the worst of them, or `"missing"` where the current table has no such column.
        outside: share of the current values beyond the reference's range, or of categories that it
            does not have.
        effective: rows of both tables, as many as are worth it that belong to nobody together.
        bins: for plots.
    """

    name: str
    rows: tuple[int, int]
    nulls: tuple[float, float] = (0.0, 0.0)
    measures: Sequence[Measure] = ()
    verdict: str = STEADY
    outside: float = 0.0
    effective: tuple[int, int] = (0, 0)
    bins: Bins | None = field(default=None, repr=False)

    def measure(self, name: str) -> Measure | None:
        """One of them."""
        return next((one for one in self.measures if one.name == name), None)


@dataclass(frozen=True)
class DriftReport:
    """What was found.

    Attributes:
        features: one each, in the order of the reference.
        rows: of the reference and of the current table.
        spec: what counts as moved.
        added: columns that only the current table has.
    """

    features: Sequence[FeatureDrift]
    rows: tuple[int, int]
    spec: DriftSpec
    added: Sequence[str] = ()

    def of(self, *verdicts: str) -> list[FeatureDrift]:
        """The features of some verdicts."""
        return [one for one in self.features if one.verdict in verdicts]

    @property
    def is_fine(self) -> bool:
        """Whether nothing has drifted or is missing."""
        return not self.of(DRIFTED, MISSING)

    def numbers(self) -> dict[str, Any]:
        """For machines."""
        return {
            "is_fine": self.is_fine,
            "rows": list(self.rows),
            "level": self.spec.level,
            "features": [
                {
                    "feature": one.name,
                    "verdict": one.verdict,
                    "rows": list(one.rows),
                    "effective_rows": list(one.effective),
                    "nulls": list(one.nulls),
                    "outside": one.outside,
                    "measures": {
                        found.name: {
                            "value": found.value,
                            "chance": found.chance,
                            "shifted": found.shifted,
                            "drifted": found.drifted,
                            "verdict": found.verdict,
                        }
                        for found in one.measures
                    },
                }
                for one in self.features
            ],
            "added": list(self.added),
        }


def check_drift(
    reference: pd.DataFrame,
    current: pd.DataFrame,
    features: Sequence[str] | None = None,
    spec: DriftSpec | None = None,
) -> DriftReport:
    """Compare the distribution of each feature.

    Args:
        reference: what the model was trained on; a column a feature, a row an observation.
        current: what it is given now.
        features: columns of the reference; all that name no owner if left out.
        spec: what counts as moved.

    Raises:
        SkewError: a table is empty, or a column is not there.
    """
    spec = spec or DriftSpec()
    owners = set(spec.owners.values())
    for name, table in (("reference", reference), ("current", current)):
        if not len(table):
            raise SkewError(where=f"the {name} table", problem="has no rows", fix="Give some.")
        for owner in sorted(owners - set(table.columns)):
            raise SkewError(
                where=f"the {name} table",
                problem=f"has no column {owner!r}, which says whom a row belongs to",
                fix=f"Its columns: {', '.join(map(str, table.columns))}.",
            )
    names = [name for name in reference.columns if name not in owners]
    if features is not None:
        unknown = [name for name in features if name not in reference.columns]
        if unknown:
            raise SkewError(
                where="the reference table",
                problem=f"has no column {unknown[0]!r}",
                fix=f"Its columns: {', '.join(map(str, reference.columns))}.",
            )
        names = list(features)
    tests = sum(3 if _is_numeric(reference[name]) else 2 for name in names)
    level = spec.level / max(1, tests)
    rng = np.random.default_rng(spec.seed)
    found = [_feature(name, reference, current, spec, level, rng) for name in names]
    added = [str(name) for name in current.columns if name not in reference.columns]
    return DriftReport(found, (len(reference), len(current)), spec, added)


def _is_numeric(column: pd.Series) -> bool:
    return column.dtype.kind in "iuf" or isinstance(column.dtype, pd.Int64Dtype | pd.Float64Dtype)


def _feature(
    name: str,
    reference: pd.DataFrame,
    current: pd.DataFrame,
    spec: DriftSpec,
    level: float,
    rng: np.random.Generator,
) -> FeatureDrift:
    rows = len(reference), len(current)
    if name not in current.columns:
        return FeatureDrift(name, rows, verdict=MISSING)
    owner = spec.owners.get(name, spec.owners.get("*", ""))
    left, right = (_Sample.of(table, name, owner) for table in (reference, current))
    nulls = left.nulls, right.nulls
    is_numeric = _is_numeric(reference[name])
    if is_numeric and not _is_numeric(current[name]) and current[name].notna().any():
        raise SkewError(
            where=f"column {name!r} of the current table",
            problem=f"is {current[name].dtype}, and the reference has numbers",
            fix="Write numbers, null where they are missing.",
        )
    measures = [_nulls_of(left, right, spec, level)]
    bins, outside, effective = None, 0.0, (0, 0)
    if len(left.values) and len(right.values):
        compare = _numbers if is_numeric else _categories
        more, bins, outside, effective = compare(left, right, spec, level, rng)
        measures = [*more, *measures]
    return FeatureDrift(name, rows, nulls, measures, _worst(measures), outside, effective, bins)


def _worst(measures: Sequence[Measure]) -> str:
    found = {one.verdict for one in measures}
    return next(one for one in (DRIFTED, SHIFTED, TOO_FEW, STEADY) if one in found or one == STEADY)


@dataclass(frozen=True)
class _Sample:
    """A column without its nulls.

    Attributes:
        values: what is there.
        owners: int64 codes of whom each belongs to; each its own where nobody was named.
        is_null: bool, of all rows.
        row_owners: as `owners`, of all rows.
    """

    values: Any
    owners: _Whole
    is_null: npt.NDArray[np.bool_]
    row_owners: _Whole

    @classmethod
    def of(cls, table: pd.DataFrame, name: str, owner: str) -> _Sample:
        column = table[name]
        is_null = column.isna().to_numpy(np.bool_)
        codes = np.arange(len(column))
        if owner:
            codes = np.asarray(pd.factorize(table[owner], use_na_sentinel=False)[0], np.int64)
        if _is_numeric(column):
            values: Any = column.to_numpy(np.float64, na_value=np.nan)[~is_null]
        else:
            values = objects_of(column[~is_null])
        kept = np.unique(codes[~is_null], return_inverse=True)[1]
        return cls(values, kept, is_null, codes)

    @property
    def nulls(self) -> float:
        return float(self.is_null.mean())


def _nulls_of(left: _Sample, right: _Sample, spec: DriftSpec, level: float) -> Measure:
    """The change of the share of nulls."""
    sizes, hits = [], 0
    for one in (left, right):
        effect = design_effect(one.is_null.astype(np.int64), one.row_owners, 2)
        sizes.append(max(1, round(len(one.is_null) / effect)))
        hits += round(sizes[-1] * one.nulls)
    value = abs(right.nulls - left.nulls)
    chance = fisher_bound(hits, sizes[0], sizes[1], level)
    return Measure.judged("nulls", value, chance, spec.nulls_shifted, spec.nulls_drifted)


def _numbers(
    left: _Sample, right: _Sample, spec: DriftSpec, level: float, rng: np.random.Generator
) -> tuple[list[Measure], Bins, float, tuple[int, int]]:
    edges = _edges(left.values, spec.bins)
    placed = [np.searchsorted(edges, one.values, "left") for one in (left, right)]
    count = len(edges) + 1
    scaled, effective = _scaled(placed, (left, right), count)
    held = np.stack([np.bincount(one, minlength=count) for one in placed])
    # a bin that nothing is in says nothing, and would be given something
    used = held.sum(axis=0) > 0
    value = float(psi(*held[:, used]))
    chance = chi_square_like_bound(psi, scaled[:, used].sum(axis=0), effective, level, rng)
    distance = ks_distance(left.values, right.values)
    measures = [
        Measure.judged("psi", value, chance, spec.psi_shifted, spec.psi_drifted),
        Measure.judged(
            "ks", distance, ks_bound(*effective, level), spec.ks_shifted, spec.ks_drifted
        ),
    ]
    is_outside = (right.values < left.values.min()) | (right.values > left.values.max())
    shares = held / held.sum(axis=1, keepdims=True)
    bins = Bins(_labels(edges), shares[0].tolist(), shares[1].tolist())
    return measures, bins, float(is_outside.mean()), effective


def _edges(values: _Floats, bins: int) -> _Floats:
    """The upper edges of all bins but the last, each included in its bin.

    A bin a value where there are few, and one on each side for what was never seen; else the
    reference's quantiles, of which those that repeat count once.
    """
    seen = np.unique(values)
    if len(seen) <= bins:
        return np.concatenate([[np.nextafter(seen[0], -np.inf)], seen])
    cuts = np.quantile(values, np.arange(1, bins) / bins, method="inverted_cdf")
    return np.unique(cuts)


def _labels(edges: _Floats) -> list[str]:
    inner = [f"up to {edge:.4g}" for edge in edges]
    return [*inner, f"above {edges[-1]:.4g}"]


def _categories(
    left: _Sample, right: _Sample, spec: DriftSpec, level: float, rng: np.random.Generator
) -> tuple[list[Measure], Bins, float, tuple[int, int]]:
    counted = pd.Series(list(map(str, left.values))).value_counts()
    # what only the current table has is a category, too: it is what is new
    more = pd.Series(list(map(str, right.values))).value_counts()
    ranked = counted.add(more, fill_value=0).sort_values(ascending=False, kind="stable")
    labels = [*map(str, ranked.index[:_CATEGORIES]), _OTHERS]
    places = {label: place for place, label in enumerate(labels)}
    placed = [
        np.array([places.get(str(value), len(labels) - 1) for value in one.values], np.int64)
        for one in (left, right)
    ]
    count = len(labels)
    scaled, effective = _scaled(placed, (left, right), count)
    held = [np.bincount(one, minlength=count) for one in placed]
    chance = chi_square_like_bound(js_bits, scaled.sum(axis=0), effective, level, rng)
    measure = Measure.judged("js", float(js_bits(*held)), chance, spec.js_shifted, spec.js_drifted)
    known = set(counted.index)
    outside = float(np.mean([str(value) not in known for value in right.values]))
    shares = [(one / one.sum()).tolist() for one in held]
    return [measure], Bins(labels, shares[0], shares[1]), outside, effective


def _scaled(
    placed: Sequence[_Whole], samples: Sequence[_Sample], count: int
) -> tuple[_Whole, tuple[int, int]]:
    """Counts (2, bins) of as many rows as the samples are worth, and how many these are."""
    scaled = []
    for bins, sample in zip(placed, samples, strict=True):
        held = np.bincount(bins, minlength=count)
        effect = design_effect(bins, sample.owners, count)
        scaled.append(np.rint(held / effect).astype(np.int64))
        if not scaled[-1].sum():
            scaled[-1][int(held.argmax())] = 1
    made = np.stack(scaled)
    first, second = made.sum(axis=1).tolist()
    return made, (first, second)
