"""Kinds of columns: what Feast declares against what a table holds."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from feast.value_type import ValueType

__all__ = [
    "BOOL",
    "BYTES",
    "DATE",
    "DECIMAL",
    "LIST",
    "MAP",
    "NAIVE",
    "NOTHING",
    "NUMBER",
    "NUMERIC",
    "TEXT",
    "TIMES",
    "TIMESTAMP",
    "WHOLE",
    "accepted",
    "kind_of",
    "named",
]

BOOL: Final = "true or false"
WHOLE: Final = "whole number"
NUMBER: Final = "number"
DECIMAL: Final = "decimal"
TEXT: Final = "text"
BYTES: Final = "bytes"
DATE: Final = "date"
TIMESTAMP: Final = "timestamp with a time zone"
NAIVE: Final = "timestamp without a time zone"
LIST: Final = "list"
MAP: Final = "map"
NOTHING: Final = "nothing but nulls"
OTHER: Final = "something else"

NUMERIC: Final = frozenset({WHOLE, NUMBER, DECIMAL})
TIMES: Final = frozenset({TIMESTAMP, NAIVE})

_SCALARS: Final = (
    (pa.types.is_boolean, BOOL),
    (pa.types.is_integer, WHOLE),
    (pa.types.is_floating, NUMBER),
    (pa.types.is_decimal, DECIMAL),
    (pa.types.is_date, DATE),
    (pa.types.is_null, NOTHING),
)
_TEXTS: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
)
_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_MAPS: Final = (pa.types.is_struct, pa.types.is_map)

# An Int32 feature in a column of int64 is fine, and whole numbers in a column for floats are, too:
# Feast converts them. A float in a column of whole numbers it refuses, or cuts.
_ACCEPTED: Final = {
    ValueType.BOOL: (BOOL,),
    ValueType.INT32: (WHOLE,),
    ValueType.INT64: (WHOLE,),
    ValueType.FLOAT: (NUMBER, WHOLE, DECIMAL),
    ValueType.DOUBLE: (NUMBER, WHOLE, DECIMAL),
    ValueType.STRING: (TEXT,),
    ValueType.BYTES: (BYTES,),
    ValueType.UNIX_TIMESTAMP: (TIMESTAMP, NAIVE, DATE),
    ValueType.MAP: (MAP, TEXT),
    ValueType.STRUCT: (MAP, TEXT),
}


def kind_of(stored: pa.DataType) -> str:
    """The kind of an Arrow type."""
    if pa.types.is_dictionary(stored):
        return kind_of(stored.value_type)
    if pa.types.is_timestamp(stored):
        return NAIVE if stored.tz is None else TIMESTAMP
    for is_one, kind in _SCALARS:
        if is_one(stored):
            return kind
    for group, kind in ((_TEXTS, TEXT), (_BYTES, BYTES), (_LISTS, LIST), (_MAPS, MAP)):
        if any(is_one(stored) for is_one in group):
            return kind
    return OTHER


def accepted(declared: ValueType) -> tuple[str, ...]:
    """The kinds that may stand for a declared type; empty where any may."""
    if declared.name.endswith("_LIST"):
        return (LIST,)
    return _ACCEPTED.get(declared, ())


_NAMES: Final = {
    "bool": BOOL,
    "int": WHOLE,
    "float": NUMBER,
    "string": TEXT,
    "bytes": BYTES,
    "timestamp": TIMESTAMP,
    "list": LIST,
    "map": MAP,
}


def named(said: Any) -> tuple[str, ...]:
    """The kinds of a type as a declaration says it: Feast's own (`Int64`) or a word (`"int"`).

    Raises:
        ValueError: it is neither.
    """
    if hasattr(said, "to_value_type"):
        return accepted(said.to_value_type())
    kind = _NAMES.get(said) if isinstance(said, str) else None
    if kind is None:
        known = ", ".join(_NAMES)
        raise ValueError(f"{said!r} is no type: write one of Feast's, or one of {known}")
    if kind == NUMBER:
        return (NUMBER, WHOLE, DECIMAL)
    return (TIMESTAMP, NAIVE, DATE) if kind == TIMESTAMP else (kind,)
