"""Entities as callers of our own API name them: columns, rows, a frame, or a single one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pandas as pd
from feast.feature_view import DUMMY_ENTITY_ID, DUMMY_ENTITY_VAL
from feast.type_map import python_values_to_proto_values
from feast.value_type import ValueType

from hotplate.codec import kind_of
from hotplate.keys import EntityShape
from hotplate.serving.plan import EntityColumn, entity_column

__all__ = ["Target", "as_columns", "declared_shape"]

_SCALARS: Final = frozenset({int, str})
_FORMS: Final = (
    "write {'card_id': 7} for one entity, {'card_id': [7, 8]} or a DataFrame for columns of them, "
    "or [{'card_id': 7}, {'card_id': 8}]"
)


def as_columns(entities: Any) -> tuple[dict[str, list[Any]], int]:
    """Join key -> values, and how many entities there are.

    Raises:
        TypeError: it is none of the forms that entities come in.
        ValueError: columns are of different length, or rows have different keys.
    """
    if isinstance(entities, Mapping):
        return _from_mapping(entities)
    if isinstance(entities, pd.DataFrame):
        return {str(name): entities[name].tolist() for name in entities.columns}, len(entities)
    if isinstance(entities, str | bytes) or not isinstance(entities, Iterable):
        raise TypeError(f"entities are a {type(entities).__name__}: {_FORMS}")
    return _from_rows(list(entities))


def _from_mapping(entities: Mapping[str, Any]) -> tuple[dict[str, list[Any]], int]:
    columns: dict[str, list[Any]] = {}
    scalars = 0
    for name, values in entities.items():
        if type(values) not in _SCALARS:
            if hasattr(values, "tolist"):
                values = values.tolist()
            if isinstance(values, (list, tuple, range)):
                columns[name] = list(values)
                continue
        columns[name] = [values]
        scalars += 1
    lengths = {name: len(values) for name, values in columns.items()}
    if not columns or scalars not in (0, len(columns)):
        raise ValueError(f"entities mix single values and columns, or name no join key: {_FORMS}")
    if len(set(lengths.values())) > 1:
        raise ValueError(f"entity columns are of different length: {lengths}")
    return columns, next(iter(lengths.values()))


def _from_rows(rows: list[Any]) -> tuple[dict[str, list[Any]], int]:
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"an entity is a {type(row).__name__}: {_FORMS}")
        if row.keys() != rows[0].keys():
            raise ValueError(f"entities have different join keys: {list(rows[0])}, {list(row)}")
    names = list(rows[0]) if rows else []
    return {name: [row[name] for row in rows] for name in names}, len(rows)


class Target:
    """A feature view whose entities are to be forgotten.

    Attributes:
        view: its name.
        table: Feast's feature view.
        is_heard: whether other processes listen for its changes.
    """

    def __init__(self, table: Any, *, is_heard: bool) -> None:
        self.view: str = table.name
        self.table = table
        self.is_heard = is_heard
        declared = {field.name: field.dtype.to_value_type() for field in table.entity_columns}
        self._is_entityless = set(declared) == {DUMMY_ENTITY_ID}
        self._columns = [entity_column(name, declared[name]) for name in sorted(declared)]
        names = tuple(column.name for column in self._columns)
        self._shape = EntityShape(names, tuple(column.kind for column in self._columns))

    @property
    def declared(self) -> Mapping[str, ValueType]:
        """Join key -> declared type; empty for a view without entities."""
        if self._is_entityless:
            return {}
        return {column.name: column.value_type for column in self._columns}

    def read(
        self, wanted: Mapping[str, Sequence[Any]]
    ) -> list[tuple[EntityShape, tuple[Any, ...]]]:
        """The entities, their values brought to the declared types as Feast does it.

        Args:
            wanted: join key -> values; columns of other views of the group may be among them.

        Raises:
            KeyError: a join key is missing.
            ValueError: a value is null or cannot be of its declared type.
        """
        if self._is_entityless:  # Feast keys such a view by one made-up entity
            wanted = {DUMMY_ENTITY_ID: [DUMMY_ENTITY_VAL]}
        columns: list[Sequence[Any]] = []
        for column in self._columns:
            values = wanted.get(column.name)
            if values is None:
                raise KeyError(
                    f"feature view {self.view!r} is keyed by {', '.join(self._shape.join_keys)}; "
                    f"an entity lacks {column.name!r}"
                )
            columns.append(values if column.takes(values) else self._coerced(column, values))
        return [(self._shape, row) for row in zip(*columns, strict=True)]

    def _coerced(self, column: EntityColumn, values: Sequence[Any]) -> list[Any]:
        refusal = (
            f"feature view {self.view!r}: a value of {column.name!r} is null or cannot be "
            f"{column.value_type.name}"
        )
        try:
            made = python_values_to_proto_values(list(values), column.value_type)
        except Exception as error:  # Feast raises as many kinds as there are types
            raise ValueError(refusal) from error
        if any(one.WhichOneof("val") != column.kind for one in made):
            raise ValueError(refusal)
        return [getattr(value, column.kind) for value in made]


def declared_shape(table: Any) -> EntityShape:
    """The shape of the keys that a feature view declares."""
    declared = {field.name: field.dtype.to_value_type() for field in table.entity_columns}
    names = sorted(declared)
    return EntityShape(tuple(names), tuple(kind_of(declared[name]) for name in names))
