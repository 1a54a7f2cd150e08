"""What a loader returned, as rows: checked, converted to the declared types, packed.

A loader is code of the deployment's own, so nothing it returns is taken on trust: a row that was
not asked for, a second row of one entity, a missing column or a value that does not fit its
declared type would become a wrong answer for as long as the row is kept. Each is refused with the
feature view, the column and what to do.
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pandas as pd
from feast.protos.feast.types.Value_pb2 import Value
from feast.type_map import python_values_to_proto_values
from feast.value_type import ValueType

from hotplate.codec import Column, SourceRow, event_us
from hotplate.contracts import LoadRequest
from hotplate.errors import LoaderError
from hotplate.keys import values_of

__all__ = ["Columns", "columns_of", "encode_loaded", "entities_of"]

Columns = Mapping[str, Sequence[Any]]
"""Column name -> one value a row."""

_LIMITS: Final = {"int32_val": 1 << 31, "int64_val": 1 << 63}


def entities_of(request: LoadRequest) -> dict[str, list[Any]]:
    """The entities asked for, as Feast's Python values: join key -> one value an entity."""
    shape = request.view.identity.shape
    columns = zip(*map(values_of, request.keys), strict=True)
    return {
        name: [datetime.fromtimestamp(value, UTC) for value in values]
        if kind == "unix_timestamp_val"
        else list(values)
        for name, kind, values in zip(shape.join_keys, shape.types, columns, strict=True)
    }


def columns_of(view: str, answer: Any) -> Columns:
    """What a function returned, as columns.

    Args:
        view: the feature view's name, for messages.
        answer: a list of dicts (one a row), a dict of columns, or a pandas DataFrame.

    Raises:
        LoaderError: it is none of them, or not regular.
    """
    if isinstance(answer, pd.DataFrame):
        return {str(name): answer[name].tolist() for name in answer.columns}
    if isinstance(answer, Mapping):
        columns = {name: list(values) for name, values in answer.items()}
        if len(set(map(len, columns.values()))) > 1:
            raise LoaderError(
                view=view,
                problem="the columns it returned differ in length",
                fix="Return one value a row in each of them.",
            )
        return columns
    if isinstance(answer, (list, tuple)) and all(isinstance(row, Mapping) for row in answer):
        names = dict.fromkeys(name for row in answer for name in row)
        for name in names:
            if not all(name in row for row in answer):
                raise LoaderError(
                    view=view,
                    problem=f"some of the rows it returned lack {name!r}",
                    fix="Give every row the same names, and None where there is no value.",
                )
        return {name: [row[name] for row in answer] for name in names}
    raise LoaderError(
        view=view,
        problem=f"it returned {_type_name(answer)}",
        fix="Return a list of dicts (one a row), a dict of columns, or a pandas DataFrame.",
    )


def encode_loaded(
    request: LoadRequest, columns: Columns, moment_column: str | None, now_us: int
) -> list[bytes]:
    """Pack what a loader returned, a row a key; one that it did not return is absent.

    Args:
        request: what it was asked for.
        columns: what it returned. Columns that the view does not declare are ignored.
        moment_column: which of them holds event timestamps, if any does.
        now_us: event timestamp of rows without one, microseconds since 1970.

    Raises:
        LoaderError: what it returned cannot be the rows of this view.
    """
    layout = request.view.layout
    absent = layout.encode(SourceRow(None, [None] * len(layout.columns)))
    rows = [absent] * len(request.keys)
    if not columns:
        return rows
    view = request.view.identity.view
    places = _places(view, request, columns)
    values = [
        [None] * len(places)
        if column.value_type is ValueType.UNKNOWN  # asked for and not declared: nobody has it
        else _values(view, column, _column(view, columns, column.name, "feature"))
        for column in layout.columns
    ]
    moments = [now_us] * len(places)
    if moment_column is not None:
        held = _column(view, columns, moment_column, "event timestamp")
        moments = _moments(view, moment_column, held, now_us)
    for index, place in enumerate(places):
        rows[place] = layout.encode(SourceRow(moments[index], [held[index] for held in values]))
    return rows


def _places(view: str, request: LoadRequest, columns: Columns) -> list[int]:
    """For each row that came back, which key it answers."""
    shape = request.view.identity.shape
    held = []
    for name, kind in zip(shape.join_keys, shape.types, strict=True):
        column = _column(view, columns, name, "join key")
        fit = _FIT.get(kind, _as_it_is)
        held.append([_entity_value(fit, value) for value in column])
    asked = {values_of(key): place for place, key in enumerate(request.keys)}
    places: list[int] = []
    for entity in zip(*held, strict=True):
        place = asked.get(entity)
        if place is None:
            names = " and ".join(map(repr, shape.join_keys))
            raise LoaderError(
                view=view,
                problem=f"it returned a row whose {names} was not asked for "
                f"({', '.join(map(_type_name, entity))})",
                fix="Return rows of the entities it was given and of no other, with the join "
                "keys exactly as they were given.",
            )
        places.append(place)
    if len(set(places)) < len(places):
        raise LoaderError(
            view=view,
            problem="it returned more than one row for one entity",
            fix=f"Return one row an entity: GROUP BY {', '.join(shape.join_keys)}, or pick one.",
        )
    return places


def _entity_value(fit: Callable[[Any], Any], value: Any) -> Any:
    if _is_null(value):
        return None
    try:
        made = fit(value)
    except (ValueError, TypeError, ArithmeticError):
        return value  # equal to no entity that was asked for
    return event_us(made) // 1_000_000 if isinstance(made, datetime) else made  # type: ignore[operator]


def _column(view: str, columns: Columns, name: str, role: str) -> Sequence[Any]:
    found = columns.get(name)
    if found is not None:
        return found
    near = {column.lower(): column for column in columns}.get(name.lower())
    if near is not None:
        fix = f'It returned {near!r}: databases fold names that are not quoted. Write AS "{name}".'
    else:
        like = difflib.get_close_matches(name, columns, n=1)
        fix = f"Return a column of that name (it returned {', '.join(columns)})."
        if like:
            fix = f"Did you mean to call {like[0]!r} so? " + fix
    raise LoaderError(view=view, problem=f"it returned no column {name!r} ({role})", fix=fix)


# -- values ---------------------------------------------------------------------------------------


def _values(view: str, column: Column, given: Sequence[Any]) -> list[Value]:
    """The values of one feature as Feast's `Value`s; a null is an unset one."""
    fit = _FIT.get(column.kind, _as_it_is)
    limit = _LIMITS.get(column.kind)
    fitting: list[Any] = []
    value: Any = None
    try:
        for value in given:
            fitting.append(None if _is_null(value) else fit(value))
            if limit is not None and fitting[-1] is not None:
                _check_range(fitting[-1], limit)
        value = None
        made: list[Value] = python_values_to_proto_values(fitting, column.value_type)
    except Exception as error:  # noqa: BLE001 - Feast's converters raise whatever they meet
        odd = _first_odd(column, fitting) if value is None else value
        # the error's own text may hold the value
        why = f" ({error})" if type(error) is _Misfit else ""
        raise LoaderError(
            view=view,
            problem=f"column {column.name!r} holds a value of type {_type_name(odd)}, which does "
            f"not fit the declared type {column.value_type.name}{why}",
            fix="Convert it in the loader, as with CAST in SQL, or declare another type.",
        ) from None
    return made


def _first_odd(column: Column, values: Sequence[Any]) -> Any:
    """The first value that Feast cannot convert by itself."""
    for value in values:
        try:
            python_values_to_proto_values([value], column.value_type)
        except Exception:  # noqa: BLE001 - that is the one
            return value
    return values[0] if values else None


def _moments(view: str, name: str, given: Sequence[Any], now_us: int) -> list[int]:
    moments = []
    for value in given:
        try:
            moment = None if _is_null(value) else event_us(_as_moment(value))
        except (ValueError, TypeError, ArithmeticError):
            raise LoaderError(
                view=view,
                problem=f"event_timestamp_column {name!r} holds a value of type "
                f"{_type_name(value)} that is no moment",
                fix="Return a timestamp, or text such as '2026-01-31T12:00:00+00:00'.",
            ) from None
        moments.append(now_us if moment is None else moment)
    return moments


class _Misfit(ValueError):
    """Why a value does not fit, in words that do not hold the value."""


def _is_null(value: Any) -> bool:
    if value is None or value is pd.NA or value is pd.NaT:
        return True
    if isinstance(value, (float, np.floating, Decimal)):
        return bool(value != value)  # NaN, which Feast takes for null as well
    return isinstance(value, np.datetime64) and bool(np.isnat(value))


def _check_range(value: int, limit: int) -> None:
    if not -limit <= value < limit:
        raise _Misfit("it is out of range")


def _as_int(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise _Misfit("a boolean is no number")
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating, Decimal)):
        whole = int(value)
        if whole == value:
            return whole
        raise _Misfit("it is no whole number")
    raise _Misfit("it is no number")


def _as_float(value: Any) -> float:
    if isinstance(value, (int, float, np.integer, np.floating, Decimal)) and not isinstance(
        value, bool
    ):
        return float(value)
    raise _Misfit("it is no number")


def _as_bool(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)) and value in (0, 1):  # SQLite has no booleans
        return bool(value)
    raise _Misfit("it is neither true nor false")


def _as_text(value: Any) -> str:
    if isinstance(value, (str, uuid.UUID)):
        return str(value)
    raise _Misfit("it is no text")


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise _Misfit("it is no bytes")


def _as_moment(value: Any) -> datetime:
    if isinstance(value, np.datetime64):
        value = pd.Timestamp(value)
    if isinstance(value, pd.Timestamp):
        value = value.to_pydatetime(warn=False)
    if isinstance(value, str):  # SQLite has no timestamps
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime):
        raise _Misfit("it is no moment")
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _as_it_is(value: Any) -> Any:
    return value


_FIT: Final[dict[str, Callable[[Any], Any]]] = {
    "int32_val": _as_int,
    "int64_val": _as_int,
    "float_val": _as_float,
    "double_val": _as_float,
    "bool_val": _as_bool,
    "string_val": _as_text,
    "bytes_val": _as_bytes,
    "unix_timestamp_val": _as_moment,
}


def _type_name(value: object) -> str:
    return type(value).__name__
