"""The features of a view, row by row: is what was served what training has for the same instant?

Pure: it is given the served values, the training values as of each row's own instant, and
*candidates*, which are training values of the same rows as of other instants that serving may
rightly have answered with. A difference is explained by a candidate that is equal to what was
served, and by nothing else.

The features of a view are read as one row, so one instant must explain all of them: that which
gives most of what was served. A value that only another instant would give stays unexplained.
Where it is no better than the row's own instant, it explains nothing.

A float32 copy of a value is that value: models read float32. It is counted apart all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hotplate.skew.statistics import Interval, wilson
from hotplate.skew.values import Values, is_null, same, same_rounded

__all__ = ["REASONS", "Candidates", "FeatureSkew", "Verdicts", "compared", "summed"]

EQUAL, BOTH_NULL, ROUNDED = "equal", "both null", "rounded"
CACHED, READ_LATER, NOT_YET_ONLINE = "cached", "read later", "not yet online"
WRITTEN_LATER, UNEXPLAINED = "written later", "unexplained"

REASONS: Final[Mapping[str, str]] = {
    EQUAL: "the same value",
    BOTH_NULL: "null on both sides",
    ROUNDED: "the same float32, or within the tolerance",
    CACHED: "the training value of an earlier instant, no older than the age that was served",
    READ_LATER: "the training value of a later instant, up to that at which features were read",
    NOT_YET_ONLINE: "the training value of an earlier instant, no longer ago than rows and events "
    "may take to come online",
    WRITTEN_LATER: "the row that training reads was written after the decision: what serving could "
    "know by then is what it served",
    UNEXPLAINED: "none of these",
}
"""Verdict of a value -> what it means. The first three say that nothing differs."""
SAME: Final = (EQUAL, BOTH_NULL, ROUNDED)
EXPLAINED: Final = (CACHED, READ_LATER, NOT_YET_ONLINE, WRITTEN_LATER)
_CODES: Final = {name: code for code, name in enumerate(REASONS)}
_EXAMPLES: Final = 5


@dataclass(frozen=True)
class Candidates:
    """Training values of some rows as of other instants.

    Attributes:
        rows: int64 (n,), which row each is of.
        reasons: int8 (n,), codes of `REASONS` by place: what it would be if it were equal.
        values: feature -> (n,).
    """

    rows: npt.NDArray[np.int64]
    reasons: npt.NDArray[np.int8]
    values: Mapping[str, Values]


@dataclass(frozen=True)
class Verdicts:
    """What was found of one feature.

    Attributes:
        codes: int8 (rows,), the verdict of each row, by its place in `REASONS`.
        served, training: (rows,), what was compared.
    """

    codes: npt.NDArray[np.int8]
    served: Values
    training: Values

    def where(self, reason: str) -> npt.NDArray[np.int64]:
        """The rows of a verdict."""
        return np.flatnonzero(self.codes == _CODES[reason])


@dataclass(frozen=True)
class FeatureSkew:
    """A feature in numbers.

    Attributes:
        view, name: which.
        counts: verdict -> rows, all of `REASONS`.
        interval: of the unexplained share, at 95 %.
        greatest: greatest absolute difference of two numbers that are not the same; None where
            there is none.
        hints: what is true of most of the unexplained values, for whoever looks for the cause.
        examples: of unexplained values: the row's place in the log, served and training value.
    """

    view: str
    name: str
    counts: Mapping[str, int]
    interval: Interval
    greatest: float | None
    hints: Sequence[str] = ()
    examples: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def rows(self) -> int:
        """How many were compared."""
        return sum(self.counts.values())

    @property
    def same(self) -> int:
        """How many are the same."""
        return sum(self.counts[name] for name in SAME)

    @property
    def explained(self) -> int:
        """How many differ and are explained."""
        return sum(self.counts[name] for name in EXPLAINED)

    @property
    def unexplained(self) -> int:
        """How many nothing explains."""
        return self.counts[UNEXPLAINED]

    @property
    def unexplained_share(self) -> float:
        """Of all that were compared; 0 of none."""
        return self.unexplained / self.rows if self.rows else 0.0


def code_of(reason: str) -> int:
    """The code of a verdict."""
    return _CODES[reason]


def differing(served: Values, training: Values, tolerance: float = 0.0) -> npt.NDArray[np.int64]:
    """The rows that candidates are needed for."""
    return np.flatnonzero(~same_rounded(served, training, tolerance))


def compared(
    served: Mapping[str, Values],
    training: Mapping[str, Values],
    candidates: Candidates | None = None,
    tolerance: float = 0.0,
) -> dict[str, Verdicts]:
    """Judge each row of the features of a view.

    Args:
        served, training: feature -> (rows,), as `values_of` makes them.
        candidates: what may explain differences; of two that do as well the first reason in the
            order of `REASONS` counts.
        tolerance: a difference up to this share of the greater number is a rounding.
    """
    codes = {name: _own(of, training[name], tolerance) for name, of in served.items()}
    if candidates is not None and len(candidates.rows):
        _explain(codes, served, candidates, tolerance)
    return {name: Verdicts(codes[name], of, training[name]) for name, of in served.items()}


def _own(served: Values, training: Values, tolerance: float) -> npt.NDArray[np.int8]:
    """The verdicts by the rows' own instants alone."""
    codes = np.full(len(served), _CODES[UNEXPLAINED], np.int8)
    codes[same_rounded(served, training, tolerance)] = _CODES[ROUNDED]
    is_same = same(served, training)
    codes[is_same] = _CODES[EQUAL]
    codes[is_same & is_null(served)] = _CODES[BOTH_NULL]
    return codes


def _explain(
    codes: Mapping[str, npt.NDArray[np.int8]],
    served: Mapping[str, Values],
    candidates: Candidates,
    tolerance: float,
) -> None:
    """Let the best candidate of each row explain what it can."""
    rows, reasons = candidates.rows, candidates.reasons
    given = {
        name: same_rounded(of[rows], candidates.values[name], tolerance)
        for name, of in served.items()
    }
    score = np.sum(list(given.values()), axis=0)
    own = np.sum([one <= _CODES[ROUNDED] for one in codes.values()], axis=0)
    order = np.lexsort((reasons, -score, rows))
    best = order[np.unique(rows[order], return_index=True)[1]]
    best = best[score[best] > own[rows[best]]]
    for name, is_given in given.items():
        explained = best[is_given[best] & (codes[name][rows[best]] == _CODES[UNEXPLAINED])]
        codes[name][rows[explained]] = reasons[explained]


def summed(
    view: str,
    name: str,
    verdicts: Verdicts,
    hints: Sequence[str] = (),
    places: npt.NDArray[np.int64] | None = None,
) -> FeatureSkew:
    """A feature in numbers, with examples.

    Args:
        view, name: which.
        verdicts: of its rows.
        hints: for whoever looks for the cause.
        places: (rows,), where each row stands in the log; its own number if left out.
    """
    held = np.bincount(verdicts.codes, minlength=len(REASONS)).tolist()
    counts = dict(zip(REASONS, held, strict=True))
    rows = verdicts.where(UNEXPLAINED)
    examples = [
        {
            "row": int(row if places is None else places[row]),
            "served": _shown(verdicts.served[row]),
            "training": _shown(verdicts.training[row]),
        }
        for row in rows[:_EXAMPLES].tolist()
    ]
    return FeatureSkew(
        view,
        name,
        counts,
        wilson(counts[UNEXPLAINED], len(verdicts.codes)),
        _greatest(verdicts),
        tuple(hints),
        tuple(examples),
    )


def _greatest(verdicts: Verdicts) -> float | None:
    served, training = verdicts.served, verdicts.training
    if object in (served.dtype, training.dtype):
        return None
    is_apart = verdicts.codes > _CODES[ROUNDED]
    gaps = np.abs(served[is_apart] - training[is_apart])
    gaps = gaps[np.isfinite(gaps)]
    return float(gaps.max()) if len(gaps) else None


def _shown(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return None if np.isnan(value) else float(value)
    return value if value is None or isinstance(value, int | str | bool) else str(value)
