"""From values as they come to scaled integers, `round_half_even(value * 10**scale)`.

A float stands for the shortest decimal that reads back as it, which is what Python prints and what
its source most likely wrote. So the float 2.675 at two decimals is a tie, goes to the even 2.68,
and agrees with `Decimal("2.675")`, although the float itself lies a little below; 0.125 goes to
0.12 in either. `round(x * 100)` would get the first right by luck and 1.015 wrong.

Up to 1e14 scaled units that is decided in numpy: only where the float product comes close to a tie
can rounding go wrong, and there the decimal tie has at most 15 digits. Decimals of up to 15 digits
and the floats nearest to them belong to each other one to one, so comparing the value with the
float nearest to the tie says on which side its decimal lies. Beyond that, `decimal` decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from numbers import Integral
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hotplate.windows.exact import Integers
from hotplate.windows.hashing import is_null
from hotplate.windows.spec import MAX_VALUE

__all__ = ["NO_VALUE", "Scaled", "scaled"]

NO_VALUE: Final = -(1 << 63)
"""What stands for null among scaled integers; below every one that is allowed."""

_SURE: Final = 1e14
_CLOSE: Final = 0.05  # the product of a value up to _SURE is off by 0.02 at most
_CONTEXT: Final = Context(prec=400, rounding=ROUND_HALF_EVEN)  # holds every float64 and Decimal
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Scaled:
    """A column in scaled integers.

    Attributes:
        values: int64 (n); `NO_VALUE` where null, anything where refused.
        too_large: bool (n), infinite or beyond 2**53 scaled units.
        unreadable: bool (n), no number at all.
    """

    values: Integers
    too_large: _Flags
    unreadable: _Flags


def scaled(values: npt.ArrayLike, scale: int) -> Scaled:
    """Scale a one-dimensional array of integers, floats, booleans, Decimals or None.

    Args:
        values: the column. Null is None, NaN or pandas' NA.
        scale: decimals to keep.
    """
    array = np.asarray(values)
    if array.dtype.kind == "f":
        return _of_floats(array.astype(np.float64, copy=False), scale)
    nothing = np.zeros(len(array), np.bool_)
    if array.dtype.kind in "iub":
        unit, most = 10**scale, MAX_VALUE // 10**scale
        too_large = array > most
        if array.dtype.kind == "i":
            too_large |= array < -most
        return Scaled(np.where(too_large, 0, array).astype(np.int64) * unit, too_large, nothing)
    if array.dtype.kind != "O":
        return Scaled(np.zeros(len(array), np.int64), nothing, ~nothing)
    return _each(array.tolist(), lambda value: _scale_one(value, scale))


def _of_floats(values: npt.NDArray[np.float64], scale: int) -> Scaled:
    unit = 10.0**scale
    is_nan = np.isnan(values)
    with np.errstate(over="ignore"):
        product = values * unit
    size = np.abs(product)
    is_sure = size < (_SURE if scale else MAX_VALUE)
    product = np.where(is_sure, product, 0.0)
    whole = np.rint(product)
    if scale:
        below = np.floor(product)
        close = np.flatnonzero(np.abs(product - below - 0.5) < _CLOSE)
        if close.size:
            whole[close] = _settle(values[close], below[close], unit)
    out = whole.astype(np.int64)
    out[is_nan] = NO_VALUE
    too_large = ~is_nan & ~(size <= 2.0 * MAX_VALUE)
    for index in np.flatnonzero(~is_sure & ~is_nan & ~too_large).tolist():
        found = _scale_one(float(values[index]), scale)
        too_large[index] = abs(found) > MAX_VALUE
        out[index] = found
    return Scaled(out, too_large, np.zeros(len(values), np.bool_))


def _settle(
    values: npt.NDArray[np.float64], below: npt.NDArray[np.float64], unit: float
) -> npt.NDArray[np.float64]:
    """Round values close to the middle between `below` and the next whole number of units."""
    middle = (2 * below + 1) / (2 * unit)  # correctly rounded: both sides are exact
    is_up = np.where(values == middle, below % 2 == 1, values > middle)
    rounded: npt.NDArray[np.float64] = below + is_up
    return rounded


def _scale_one(value: Any, scale: int) -> int:
    """Scale one value.

    Raises:
        OverflowError: it is infinite.
        TypeError: it is no number.
    """
    if isinstance(value, Integral):
        return int(int(value) * 10**scale)
    if isinstance(value, float):
        value = Decimal(float.__repr__(value))
    elif isinstance(value, np.floating):
        value = Decimal(float.__repr__(float(value)))
    if not isinstance(value, Decimal):
        raise TypeError(f"a {type(value).__name__} is no number")
    if not value.is_finite():
        raise OverflowError("infinite")
    if value.adjusted() > 30:  # far too large, and not worth writing out
        return MAX_VALUE + 1
    if value.adjusted() < -30:
        return 0
    return int(value.scaleb(scale, _CONTEXT).to_integral_value(context=_CONTEXT))


def _each(values: list[Any], scale_one: Callable[[Any], int]) -> Scaled:
    out = np.zeros(len(values), np.int64)
    too_large = np.zeros(len(values), np.bool_)
    unreadable = np.zeros(len(values), np.bool_)
    for index, value in enumerate(values):
        if is_null(value):
            out[index] = NO_VALUE
            continue
        try:
            found = scale_one(value)
        except OverflowError:
            too_large[index] = True
        except TypeError:
            unreadable[index] = True
        else:
            too_large[index] = abs(found) > MAX_VALUE
            out[index] = 0 if too_large[index] else found
    return Scaled(out, too_large, unreadable)
