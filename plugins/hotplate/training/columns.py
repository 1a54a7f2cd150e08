"""Columns of Arrow tables as arrays, typed as serving types the same values.

Serving sees a value after Feast has put it into the type that the event view declares. A column of
an offline table may hold another: integers become floats where pandas meets a null, databases send
decimals. So each column is brought into the declared type first; then hashes and scaled integers
are the same on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from feast.value_type import ValueType

from hotplate.training.errors import TrainingError

__all__ = ["Codes", "codes_of", "moments_of", "values_of"]

_Array: TypeAlias = npt.NDArray[Any]

_EXACT: Final = 1 << 53
_INTEGERS: Final = frozenset({ValueType.INT32, ValueType.INT64, ValueType.BOOL})


def values_of(column: Any, kind: ValueType, where: str) -> _Array:
    """A column of values in the declared type; null is NaN or None.

    Args:
        column: an Arrow array.
        kind: the type that the event view declares.
        where: what to name in an error.

    Raises:
        TrainingError: its values have no such type, or lost digits on the way here.
    """
    column = _plain(column)
    if pa.types.is_decimal(column.type) and kind in (ValueType.FLOAT, ValueType.DOUBLE):
        # Arrow's own cast is off by a bit now and then
        numbers = [None if one is None else float(one) for one in column.to_pylist()]
        column = pa.array(numbers, pa.float64())
    try:
        if kind == ValueType.FLOAT:
            return _numpy(column.cast(pa.float32())).astype(np.float64)
        if kind == ValueType.DOUBLE:
            return _numpy(column.cast(pa.float64(), safe=False))
        if kind in _INTEGERS:
            return _integers(column, where)
        target = pa.large_binary() if kind == ValueType.BYTES else pa.large_string()
        return _numpy(column.cast(target))
    except pa.ArrowException as error:
        raise TrainingError(
            where=where,
            problem=f"its values of type {column.type} are no {kind.name} ({error})",
            fix="Declare the field in the type that the table holds.",
        ) from error


def _integers(column: Any, where: str) -> _Array:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if pa.types.is_floating(column.type):  # pandas' way of integers with a null among them
        floats = _numpy(column.cast(pa.float64()))
        if (np.abs(floats) >= _EXACT).any():
            raise TrainingError(
                where=where,
                problem="whole numbers above 2**53 came as floats, which have lost digits",
                fix="Leave no null in that column, or declare it as a String and write it as one.",
            )
        return floats
    column = column.cast(pa.int64())
    if not column.null_count:
        return _numpy(column)
    least, most = pc.min_max(column).as_py().values()
    if least is None or max(-least, most) <= _EXACT:
        return _numpy(column.cast(pa.float64(), safe=False))
    made = np.empty(len(column), object)
    made[:] = column.to_pylist()
    return made


def moments_of(column: Any, where: str) -> _Array:
    """A column of timestamps as datetime64 in UTC; naive ones are taken as UTC, null is NaT.

    Raises:
        TrainingError: it holds no timestamps.
    """
    column = _plain(column)
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    if not pa.types.is_timestamp(column.type):
        raise TrainingError(
            where=where,
            problem=f"is of type {column.type}, not timestamps",
            fix="Store dates and times as timestamps, in UTC where they have no zone.",
        )
    # with a zone the stored numbers are UTC, too
    return _numpy(column.cast(pa.timestamp(column.type.unit)))


class Codes:
    """Entities as whole numbers from 0, the same for events and for rows.

    Attributes:
        events: int64, for each event; -1 where a part of its key is null.
        rows: int64, for each row, likewise.
    """

    def __init__(self, events: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> None:
        self.events = events
        self.rows = rows


def codes_of(events: Sequence[Any], rows: Sequence[Any], names: Sequence[str]) -> Codes:
    """Number the entities of events and rows.

    Args:
        events, rows: one Arrow array for each part of the key.
        names: of the parts, for errors.

    Raises:
        TrainingError: a part of the key has types that cannot be compared.
    """
    count = len(events[0])
    total = np.zeros(count + len(rows[0]), np.int64)
    is_null = np.zeros(len(total), np.bool_)
    for of_events, of_rows, name in zip(events, rows, names, strict=True):
        codes = _coded(_plain(of_events), _plain(of_rows), name)
        is_null |= codes < 0
        total = total * (int(codes.max(initial=0)) + 1) + np.maximum(codes, 0)
        if len(events) > 1:
            total = np.unique(total, return_inverse=True)[1]
    total = np.where(is_null, -1, total)
    return Codes(total[:count], total[count:])


def _coded(events: Any, rows: Any, name: str) -> npt.NDArray[np.int64]:
    try:
        if pa.types.is_string(events.type):
            events = events.cast(pa.large_string())
        rows = rows.cast(events.type)
    except pa.ArrowException as error:
        raise TrainingError(
            where=f"entity column {name!r}",
            problem=f"is {rows.type} in the entity rows and {events.type} in the events",
            fix="Give both in the type that the entity declares.",
        ) from error
    encoded = pc.dictionary_encode(pa.concat_arrays([events, rows]))
    codes: npt.NDArray[np.int64] = (
        encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return codes


def _plain(column: Any) -> Any:
    """One array, without a dictionary."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # more than one array can hold
        raise TrainingError(
            where="a column",
            problem="holds more text than one Arrow array can",
            fix="Store it as large_string.",
        )
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column


def _numpy(column: Any) -> _Array:
    array: _Array = column.to_numpy(zero_copy_only=False)
    return array
