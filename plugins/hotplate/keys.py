"""The identity of an entry: which view of which schema, and which entity.

A key in the memory tier is a token and the entity's values, in the order of the sorted join keys.
The token is an integer that stands for one `ViewIdentity`: project, view, version, schema and the
*types* of the entity's join keys. So two projects, two versions of a view, two schemas and two key
types (the int32 1 and the int64 1) never share an entry, and composite keys do not depend on the
order in which a caller names them.

A key is a tuple `(token, value, ...)`; where the entity is one integer, as most are, it is the
integer `(token << 64) + value`, which is made, hashed and compared in a third of the time, and does
not occupy the garbage collector.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value, ValueType

__all__ = [
    "ENTITY_BITS",
    "EntityShape",
    "Key",
    "ViewIdentity",
    "entity_key",
    "has_integer_keys",
    "integer_of",
    "key_base",
    "make_key",
    "parse_stored_key",
    "shape_and_values",
    "shapes_and_values",
    "token_of",
    "values_of",
]

Key: TypeAlias = int | tuple[Any, ...]

_INTEGERS: Final = frozenset({("int64_val",), ("int32_val",)})
# Feast's type tag in a stored key -> the field of `Value`, and how its bytes are read
_STORED: Final[dict[int, tuple[str, str | None]]] = {
    ValueType.INT64: ("int64_val", "<q"),
    ValueType.INT32: ("int32_val", "<i"),
    ValueType.UNIX_TIMESTAMP: ("unix_timestamp_val", "<q"),
    ValueType.STRING: ("string_val", None),
    ValueType.BYTES: ("bytes_val", None),
}
_TWO: Final = struct.Struct("<II")
_SHIFT: Final = 64
_HALF: Final = 1 << 63
ENTITY_BITS: Final = (1 << _SHIFT) - 1
"""Of an integer key: those that say which entity it is."""


def has_integer_keys(shape: EntityShape) -> bool:
    """Whether the keys of an entity of this shape are integers."""
    return shape.types in _INTEGERS


def make_key(token: int, values: tuple[Any, ...], *, is_integer: bool) -> Key:
    """The key of an entity."""
    return (token << _SHIFT) + values[0] if is_integer else (token, *values)


def key_base(token: int) -> int:
    """What is added to the value of an integer key."""
    return token << _SHIFT


def token_of(key: Key) -> int:
    """The token that a key begins with."""
    if isinstance(key, int):
        return (key + _HALF) >> _SHIFT
    token: int = key[0]
    return token


def integer_of(key: int) -> int:
    """The value that an integer key holds."""
    return ((key + _HALF) & ENTITY_BITS) - _HALF


def values_of(key: Key) -> tuple[Any, ...]:
    """The entity's values that a key holds."""
    if isinstance(key, int):
        return (integer_of(key),)
    return key[1:]


class EntityShape(NamedTuple):
    """The join keys of an entity, sorted, and the value type of each.

    A tuple, because it is hashed for every row of a large write.

    Attributes:
        join_keys: names, sorted.
        types: for each the field of Feast's `Value` it is held in, such as `"int64_val"`; an
            unset value has the empty type.
    """

    join_keys: tuple[str, ...]
    types: tuple[str, ...]


@dataclass(frozen=True)
class ViewIdentity:
    """Everything that separates the entries of one view from all others.

    Attributes:
        project: the Feast project.
        view: the feature view's name.
        version: the store's versioned name of it, which differs only where versioning is on.
        columns: (name, kind) of each feature, in the view's order: its schema.
        shape: the entity's.
    """

    project: str
    view: str
    version: str
    columns: tuple[tuple[str, str], ...]
    shape: EntityShape


def shape_and_values(key: EntityKey) -> tuple[EntityShape, tuple[Any, ...]]:
    """Split Feast's entity key into its shape and its values, both in sorted join-key order."""
    pairs = sorted(zip(key.join_keys, key.entity_values, strict=True), key=lambda pair: pair[0])
    types = tuple(value.WhichOneof("val") or "" for _, value in pairs)
    values = tuple(
        getattr(value, kind) if kind else None
        for (_, value), kind in zip(pairs, types, strict=True)
    )
    return EntityShape(tuple(name for name, _ in pairs), types), values


def shapes_and_values(keys: Iterable[EntityKey]) -> list[tuple[EntityShape, tuple[Any, ...]]]:
    """The same for many keys, in a third of the time where they have one join key, as most have."""
    shapes: dict[tuple[str, str | None], EntityShape] = {}
    found: list[tuple[EntityShape, tuple[Any, ...]]] = []
    for key in keys:
        names, held = key.join_keys, key.entity_values
        if len(names) != 1 or len(held) != 1:
            found.append(shape_and_values(key))
            continue
        (name,), (value,) = names, held
        kind = value.WhichOneof("val")
        shape = shapes.get((name, kind))
        if shape is None:
            shape = shapes[name, kind] = EntityShape((name,), (kind or "",))
        found.append((shape, (getattr(value, kind) if kind else None,)))
    return found


def entity_key(shape: EntityShape, values: Iterable[Any]) -> EntityKey:
    """Build Feast's entity key from a shape and values in the shape's order."""
    return EntityKey(
        join_keys=shape.join_keys,
        entity_values=[
            Value(**{kind: value}) if kind else Value()
            for kind, value in zip(shape.types, values, strict=True)
        ],
    )


def parse_stored_key(raw: bytes, suffix: bytes) -> tuple[EntityShape, tuple[Any, ...]] | None:
    """Read a key as Feast's Redis store writes it (serialization version 3), or None if it is not.

    Args:
        raw: the key.
        suffix: what must follow the entity, to the last byte: the project. A project whose name
            merely ends alike is another one.
    """
    try:
        count = int.from_bytes(raw[:4], "little")
        at, names = 4, []
        for _ in range(count):
            tag, size = _TWO.unpack_from(raw, at)
            if tag != ValueType.STRING:
                return None
            names.append(raw[at + 8 : at + 8 + size].decode())
            at += 8 + size
        kinds, values = [], []
        for _ in range(count):
            tag, size = _TWO.unpack_from(raw, at)
            kind, form = _STORED[tag]
            held = raw[at + 8 : at + 8 + size]
            if form is not None:
                values.append(struct.unpack(form, held)[0])
            else:
                values.append(held.decode() if kind == "string_val" else held)
            kinds.append(kind)
            at += 8 + size
    except (struct.error, KeyError, UnicodeDecodeError):
        return None
    if raw[at:] != suffix or len(raw) < at:
        return None
    return EntityShape(tuple(names), tuple(kinds)), tuple(values)
