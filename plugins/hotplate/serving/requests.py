"""Reading a caller's entity rows, fast where they are regular.

Feast takes a list of dicts or a mapping of columns, coerces every value to the declared type, and
raises in its own ways. What is regular (same keys in every row, values of exactly the Python type
that Feast takes over unchanged) is read here; everything else is coerced by Feast's own function,
or left to Feast's own path, so that results and exceptions stay Feast's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feast.protos.feast.types.Value_pb2 import Value
from feast.type_map import feast_value_type_to_python_type, python_values_to_proto_values

from hotplate.serving.plan import EntityColumn, Plan

__all__ = ["EntityValues", "coerce", "columns_of"]


@dataclass(slots=True)
class EntityValues:
    """The entity columns of one request.

    Attributes:
        keys: values as keys hold them, one list a column.
        shown: values as `to_dict` shows them.
        protos: column -> Feast's values, where they had to be coerced.
    """

    keys: list[list[Any]]
    shown: list[list[Any]]
    protos: dict[int, Sequence[Value]] | None


def columns_of(entity_rows: Any) -> tuple[tuple[str, ...], list[list[Any]], int] | None:
    """Names, columns and number of rows; None where the rows are irregular or empty."""
    if type(entity_rows) is list:
        return _from_rows(entity_rows)
    if not isinstance(entity_rows, Mapping) or not entity_rows:
        return None
    columns = []
    for values in entity_rows.values():
        if type(values) is not list and type(values) is not tuple:
            return None
        columns.append(list(values))
    count = len(columns[0])
    if not count or any(len(column) != count for column in columns):
        return None
    return tuple(entity_rows), columns, count


def _from_rows(rows: list[Any]) -> tuple[tuple[str, ...], list[list[Any]], int] | None:
    if not rows:
        return None
    first = rows[0]
    if type(first) is not dict or not first:
        return None
    names = tuple(first)
    if len(rows) == 1:
        return names, [[value] for value in first.values()], 1
    width = len(names)
    try:
        if any(len(row) != width for row in rows):
            return None
        return names, [[row[name] for row in rows] for name in names], len(rows)
    except (KeyError, TypeError):
        return None


def coerce(plan: Plan, columns: list[list[Any]]) -> EntityValues | None:
    """Bring values to the declared types as Feast does; None where Feast must refuse them itself.

    Raises:
        Exception: what Feast's coercion raises.
    """
    protos: dict[int, Sequence[Value]] = {}
    keys = list(columns)
    shown = list(columns)
    for index, (column, values) in enumerate(zip(plan.entities, columns, strict=True)):
        if column.takes(values):
            continue
        made = python_values_to_proto_values(values, column.value_type)
        if not _is_as_declared(column, made):
            return None
        protos[index] = made
        keys[index] = [getattr(value, column.kind) for value in made]
        declared = plan.feature_types.get(column.name)
        shown[index] = [feast_value_type_to_python_type(value, declared) for value in made]
    return EntityValues(keys, shown, protos or None)


def _is_as_declared(column: EntityColumn, values: Sequence[Value]) -> bool:
    return all(value.WhichOneof("val") == column.kind for value in values)
