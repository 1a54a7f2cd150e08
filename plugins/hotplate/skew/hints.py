"""What is true of most unexplained values of a feature: where to look for the cause.

Hints explain nothing away. They are tried on some of the unexplained rows, and said where they hold
for nearly all of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hotplate.durations import format_duration
from hotplate.skew.compare import UNEXPLAINED, Verdicts
from hotplate.skew.values import Values, is_null, same_rounded

__all__ = ["SHIFTS_MS", "called", "hints_of"]

_Rows: TypeAlias = npt.NDArray[np.int64]
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
SHIFTS_MS: Final = tuple(
    sign * step
    for step in (_MINUTE_MS, 10 * _MINUTE_MS, _HOUR_MS, 2 * _HOUR_MS, _DAY_MS, 7 * _DAY_MS)
    for sign in (-1, 1)
)
"""Earlier and later instants that are tried: what is stale, and what a time zone does."""
_MOST: Final = 0.8  # of the rows for which a hint holds
_FEWEST: Final = 5
_TRIED: Final = 200
_CLOSE: Final = 1e-5
_DISTINCT: Final = 0.3  # values a row


def hints_of(
    name: str,
    verdicts: Mapping[str, Verdicts],
    shifted: Callable[[_Rows], Mapping[str, Values]],
) -> list[str]:
    """What is true of most unexplained values of a feature.

    Args:
        name: of the feature.
        verdicts: of the features of its view.
        shifted: training values of some rows as of other instants: (rows,) -> what to call it ->
            (rows,).
    """
    own = verdicts[name]
    rows = own.where(UNEXPLAINED)
    if len(rows) < _FEWEST:
        return []
    if len(rows) > _TRIED:
        rows = rows[np.linspace(0, len(rows) - 1, _TRIED).astype(np.int64)]
    said = [*_nulls(own, rows), *_units(own, rows), *_others(name, verdicts, rows)]
    return [*said, *_shifts(own, rows, shifted), *_order(own)]


def _nulls(own: Verdicts, rows: _Rows) -> list[str]:
    served, training = is_null(own.served[rows]), is_null(own.training[rows])
    found = []
    if (share := float((served & ~training).mean())) >= _MOST:
        found.append(f"served is null and training is not in {share:.0%} of them")
    if (share := float((training & ~served).mean())) >= _MOST:
        found.append(
            f"training is null and served is not in {share:.0%} of them: is the row older than the "
            "feature view's ttl, or not in the batch source?"
        )
    return found


def _units(own: Verdicts, rows: _Rows) -> list[str]:
    if object in (own.served.dtype, own.training.dtype):
        return []
    served, training = own.served[rows], own.training[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = served / training
    usable = ratios[np.isfinite(ratios) & (ratios != 0)]
    if len(usable) < _FEWEST or len(usable) < _MOST * np.isfinite(served + training).sum():
        return []
    middle = float(np.median(usable))
    share = float((np.abs(usable / middle - 1) < _CLOSE).mean())
    if share < _MOST or abs(middle - 1) < _CLOSE:
        return []
    return [f"served is {middle:.6g} times the training value in {share:.0%} of them: a unit?"]


def _others(name: str, verdicts: Mapping[str, Verdicts], rows: _Rows) -> list[str]:
    """Which other feature it is, of those that differ from it at all."""
    served = verdicts[name].served[rows]
    found = []
    for other, one in verdicts.items():
        if other == name or one.training.dtype != served.dtype:
            continue
        share = float(same_rounded(served, one.training[rows]).mean())
        if share >= _MOST:
            found.append(f"served is the training value of {other} in {share:.0%} of them")
    return found


def _shifts(
    own: Verdicts, rows: _Rows, shifted: Callable[[_Rows], Mapping[str, Values]]
) -> list[str]:
    best, at = 0.0, ""
    for when, values in shifted(rows).items():
        share = float(same_rounded(own.served[rows], values).mean())
        if share > best:
            best, at = share, when
    return [f"served is the training value of {at} in {best:.0%} of them"] if best >= _MOST else []


def called(shift_ms: int) -> str:
    """What a shift is called."""
    when = format_duration(abs(shift_ms) * 1_000_000)
    return f"{when} {'earlier' if shift_ms < 0 else 'later'}"


def _order(own: Verdicts) -> list[str]:
    """Whether the column holds what it should, in other rows."""
    served, training = own.served, own.training
    if object in (served.dtype, training.dtype) or len(served) < 2 * _FEWEST:
        return []
    both = [one.astype(np.float32) for one in (served, training)]
    every, codes = np.unique(np.concatenate(both), return_inverse=True)
    left, right = (np.bincount(one, minlength=len(every)) for one in np.split(codes, [len(served)]))
    in_common = float(np.minimum(left, right).sum()) / len(served)
    is_apart = ~same_rounded(served, training)
    # counts and other values that repeat are much the same in any order
    if len(every) < _DISTINCT * len(served) or in_common < 1 - 0.1 * float(is_apart.mean()):
        return []
    return ["the column holds the right values in other rows: was it joined by another order?"]
