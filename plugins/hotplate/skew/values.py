"""Columns of served and of training values, brought into one form so that they can be compared.

Logs are written as JSON, CSV or database columns, and training comes as pandas has it: a whole
number with a null beside it is a float there, a boolean may be 0 and 1 here. What a feature's own
declared type says decides: numbers become float64 with NaN for null, all else objects with None.
Whole numbers beyond 2**53, which a float64 would round, are compared as objects.
"""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from feast.value_type import ValueType

from hotplate.skew.errors import SkewError

__all__ = ["Values", "instants_of", "is_null", "objects_of", "same", "same_rounded", "values_of"]

Values: TypeAlias = npt.NDArray[Any]
"""float64, or object; one item a row."""
_Mask: TypeAlias = npt.NDArray[np.bool_]
_NUMBERS: Final = frozenset(
    {ValueType.INT32, ValueType.INT64, ValueType.FLOAT, ValueType.DOUBLE, ValueType.BOOL}
)
_WHOLE: Final = frozenset({ValueType.INT32, ValueType.INT64})
_EXACT: Final = 1 << 53
_EARLIEST_MS: Final = 946_684_800_000  # 2000
_LATEST_MS: Final = 4_102_444_800_000  # 2100


def values_of(column: Any, kind: ValueType, where: str) -> Values:
    """A column in the form in which it is compared.

    Args:
        column: anything that pandas makes a series of.
        kind: the feature's declared type.
        where: what to name in an error.

    Raises:
        SkewError: a value is no number, and the feature is one.
    """
    series = pd.Series(column).reset_index(drop=True)
    if kind not in _NUMBERS:
        return objects_of(series)
    if kind in _WHOLE and _is_large(series):
        return objects_of(series.map(lambda one: None if pd.isna(one) else int(one), None))
    nulls = series.isna().to_numpy(np.bool_)
    try:
        made = pd.to_numeric(series.map(_number) if series.dtype == object else series)
        return np.asarray(made.to_numpy(np.float64, na_value=np.nan), np.float64)
    except (ValueError, TypeError) as error:
        at = next((row for row in np.flatnonzero(~nulls) if not _is_number(series[row])), 0)
        raise SkewError(
            where=where,
            problem=f"row {at + 1:,} is no number, and the feature is {kind.name}",
            fix="Log the value that the model read, null where it was missing.",
        ) from error


def _is_large(series: pd.Series) -> bool:
    if series.dtype == object:
        wholes = [one for one in series if isinstance(one, int)]
        return any(abs(one) > _EXACT for one in wholes)
    if series.dtype.kind in "iu" or isinstance(series.dtype, pd.Int64Dtype):
        found = series.dropna().to_numpy(np.int64)
        return bool(len(found) and max(-int(found.min()), int(found.max())) > _EXACT)
    return False


def _number(value: Any) -> Any:
    if isinstance(value, Decimal | bool | np.bool_):
        return float(value)
    return np.nan if value is None or value is pd.NA else value


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def objects_of(series: pd.Series) -> Values:
    """A column of things that are equal or not: null is None, arrays are tuples, times are ms."""
    made = np.empty(len(series), object)
    made[:] = [_plain(value) for value in series.tolist()]
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | list | tuple):
        return tuple(_plain(one) for one in value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, datetime | date):
        stamp = pd.Timestamp(value)
        stamp = stamp.tz_localize("UTC") if stamp.tzinfo is None else stamp
        return int(stamp.value // 1_000_000)
    if isinstance(value, dict):
        return tuple(sorted((name, _plain(one)) for name, one in value.items()))
    return value


def is_null(values: Values) -> _Mask:
    """Where there is nothing."""
    if values.dtype == object:
        return np.fromiter((one is None for one in values), np.bool_, len(values))
    return np.isnan(values)


def same(left: Values, right: Values) -> _Mask:
    """Where two columns hold the same; null is the same as null."""
    if object in (left.dtype, right.dtype):
        left, right = _as_objects(left), _as_objects(right)
        pairs = zip(left.tolist(), right.tolist(), strict=True)
        return np.fromiter((one == other for one, other in pairs), np.bool_, len(left))
    return np.asarray((left == right) | (np.isnan(left) & np.isnan(right)))


def _as_objects(values: Values) -> Values:
    return values if values.dtype == object else objects_of(pd.Series(values))


def same_rounded(left: Values, right: Values, tolerance: float = 0.0) -> _Mask:
    """Where two columns hold the same float32, or differ by no more than a share of the greater."""
    if object in (left.dtype, right.dtype):
        return same(left, right)
    with np.errstate(over="ignore", invalid="ignore"):
        found = left.astype(np.float32) == right.astype(np.float32)
        if tolerance:
            most = np.maximum(np.abs(left), np.abs(right))
            found |= np.abs(left - right) <= tolerance * most
    return np.asarray(found | (np.isnan(left) & np.isnan(right)))


def instants_of(column: Any, where: str) -> npt.NDArray[np.int64]:
    """A column of instants as ms since 1970; without a zone they are UTC.

    Takes timestamps, ISO 8601, and whole ms since 1970.

    Raises:
        SkewError: it holds something else, a null, or a time before 2000 or after 2100.
    """
    series = pd.Series(column).reset_index(drop=True)
    if series.isna().any():
        row = int(series.isna().to_numpy().argmax()) + 1
        raise SkewError(
            where=where, problem=f"row {row:,} has no instant", fix="Leave such rows out."
        )
    if series.dtype.kind in "iuf":
        made = series.to_numpy(np.float64)
        found = np.asarray(series.to_numpy(), np.int64)
        is_whole = bool((made == found).all())
    else:
        try:
            moments = pd.to_datetime(
                series, utc=True, format="ISO8601" if _is_text(series) else None
            )
        except (ValueError, TypeError) as error:
            raise SkewError(
                where=where,
                problem="holds what is no time",
                fix="Write timestamps, ISO 8601, or whole milliseconds since 1970.",
            ) from error
        found, is_whole = moments.dt.as_unit("ms").astype("int64").to_numpy(), True
    if len(found) and not (is_whole and _EARLIEST_MS <= found.min() <= found.max() < _LATEST_MS):
        raise SkewError(
            where=where,
            problem="holds times before 2000 or after 2100, or parts of milliseconds",
            fix="Numbers are taken as whole milliseconds since 1970: multiply seconds by 1000.",
        )
    return np.asarray(found, np.int64)


def _is_text(series: pd.Series) -> bool:
    return bool(pd.api.types.infer_dtype(series, skipna=True) == "string")
