"""How entries of the shared tier are named and marked, for what reads them and what removes them.

A key names its entity and nothing that could be taken for another one::

    hotplate:row:PROJECT:VERSION:JOIN,KEYS:TYPES:ENTITY

Every part but the last is percent-quoted, so that a ':' of its own cannot move the borders: what
begins with `hotplate:row:a:` belongs to project `a`, never to `data` or `a:v`. VERSION is the
store's versioned name of the feature view. ENTITY is an integer's digits, or each value with its
length before it.

A value begins with a head, or is a lease (see `hotplate.tiers.shared`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from hotplate.keys import EntityShape, ViewIdentity

__all__ = [
    "BODY_AT",
    "EVERY_VIEW",
    "HEAD",
    "LEASE",
    "PRIMARY",
    "REST",
    "VERSION",
    "EntryName",
    "entity_of",
    "fingerprint_of",
    "generations_of",
    "is_whole",
    "prefix_of",
    "project_prefix",
    "read_name",
]

VERSION: Final = 1
"""Of the format: the first byte of an entry."""

LEASE: Final = b"\0"
"""The first byte of a lease."""

HEAD: Final = struct.Struct(">BI")
REST: Final = struct.Struct(">8s32sQQ")
BODY_AT: Final = HEAD.size + REST.size

EVERY_VIEW: Final = b"*"
"""The generation that every view of a project has in common; no view has such a name."""

PRIMARY: Final = b"*primary:"
"""Before the identity of a primary whose generations are its own; no view has such a name."""

_INTEGERS: Final = frozenset({"int64_val", "int32_val", "unix_timestamp_val"})
_READ: Final[dict[str, Callable[[bytes], Any]]] = {
    **dict.fromkeys(_INTEGERS, int),
    "string_val": lambda raw: raw.decode("utf-8", "surrogatepass"),
    "bytes_val": bytes,
    "": lambda raw: None,
}


class EntryName(NamedTuple):
    """What a key of the shared tier says.

    Attributes:
        version: the store's versioned name of the feature view.
        shape: the entity's.
        values: the entity's, in the shape's order.
    """

    version: str
    shape: EntityShape
    values: tuple[Any, ...]


def project_prefix(project: str) -> bytes:
    """What the keys of a project begin with, and no other key does."""
    return f"hotplate:row:{_quoted(project)}:".encode()


def generations_of(project: str) -> bytes:
    """The key of the hash that holds the generations of a project's views."""
    return f"hotplate:generations:{_quoted(project)}".encode()


def prefix_of(project: str, version: str, shape: EntityShape | None = None) -> bytes:
    """What the keys of one version of a view begin with, or those of one entity shape of it."""
    parts = [version]
    if shape is not None:
        parts += [",".join(shape.join_keys), ",".join(shape.types)]
    return project_prefix(project) + "".join(quote(part, safe=",") + ":" for part in parts).encode()


def entity_of(values: tuple[Any, ...]) -> bytes:
    """An entity's values as bytes: a number as its digits, the rest with its length before it."""
    if len(values) == 1 and type(values[0]) is int:
        return b"%d" % values[0]
    parts = []
    for value in values:
        raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        parts.append(b"%d:%b" % (len(raw), raw))
    return b"".join(parts)


def read_name(key: bytes, prefix: bytes) -> EntryName | None:
    """What a key says, or None if it is none of ours.

    Args:
        key: as it stands on the server.
        prefix: `project_prefix` of the project it must belong to.
    """
    if not key.startswith(prefix):
        return None
    parts = key[len(prefix) :].split(b":", 3)
    if len(parts) != 4:
        return None
    try:
        version, shape = _read_place(parts[0], parts[1], parts[2])
        values = _read_entity(shape, parts[3])
    except (ValueError, KeyError):
        return None
    return EntryName(version, shape, values)


@lru_cache(maxsize=1_024)  # of a million keys in a row, all but the last part are few
def _read_place(*parts: bytes) -> tuple[str, EntityShape]:
    version, names, kinds = (unquote_to_bytes(part).decode() for part in parts)
    return version, EntityShape(tuple(names.split(",")), tuple(kinds.split(",")))


def _read_entity(shape: EntityShape, raw: bytes) -> tuple[Any, ...]:
    if len(shape.types) == 1 and shape.types[0] in _INTEGERS:
        return (int(raw),)
    values = []
    for kind in shape.types:
        length, _, rest = raw.partition(b":")
        size = int(length)
        if not 0 <= size <= len(rest):
            raise ValueError("a value is cut short")
        values.append(_READ[kind](rest[:size]))
        raw = rest[size:]
    if raw or len(shape.join_keys) != len(shape.types):
        raise ValueError("something follows the last value")
    return tuple(values)


def fingerprint_of(identity: ViewIdentity) -> bytes:
    """Eight bytes that tell the schema, the version and the key types of a view from others."""
    text = repr((identity.view, identity.version, identity.columns, identity.shape))
    return blake2b(text.encode(), digest_size=8).digest()


def is_whole(key: bytes, entry: bytes) -> bool:
    """Whether an entry is one of this format, belongs under its key, and is as it was written."""
    return (
        len(entry) > BODY_AT
        and entry[0] == VERSION
        and zlib.crc32(entry[HEAD.size :], zlib.crc32(key)).to_bytes(4, "big") == entry[1:5]
    )


def _quoted(part: str) -> str:
    return quote(part, safe="")
