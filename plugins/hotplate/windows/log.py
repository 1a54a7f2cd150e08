"""The log of one entity: a string of bytes to which records are appended, now and then rewritten.

    bare log        record*
    compacted log   header, tiles, sparse registers, record*

The header is 64 bytes: magic, version, length of what precedes the records, the plan's digest, a
nonce, the horizon, how many tiles and registers there are, and a check that makes the sum of all
int64 words up to the records 0. The first append creates the key, so a log begins bare.

*Nonce*: 16 fresh random bytes in every rewritten log, so that two logs that happen to hold the same
records are still told apart. *Horizon*: the moment up to which a compactor's clock, less the slack,
has come; a read of an earlier moment is refused, because tiles may hold what was not visible then.

A tile holds per column exactly what `finalize` needs, and its first and last value with their
place in the order of (ts, id). Sparse registers are those of HyperLogLog that are not 0, two bytes
each (register << 6 | value), by tile and distinct column.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hotplate.windows.errors import WindowStateError
from hotplate.windows.plan import LogPlan
from hotplate.windows.records import RecordFormat

__all__ = ["HEADER_SIZE", "MAGIC", "Head", "LogFormat", "Tiles", "tile_type"]

MAGIC: Final = b"HPLOG\r\n\xf1"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sHHI8s16sqIIQ")
HEADER_SIZE: Final = _HEADER.size
NONCE_SIZE: Final = 16

Tiles = npt.NDArray[Any]
"""Structured array of `tile_type`, sorted by (start, span)."""


def tile_type(plan: LogPlan) -> np.dtype[Any]:
    """The layout of a tile.

    `start` and `span` in ms; `events` in it; per column `n` non-null values; per numeric column
    the sum `s`, the sum of squares `q` (high and low 64 bits), `minimum`, `maximum`, and `first`
    and `last` with `*_id` and `*_at`, in ms from the start; per distinct column how many
    `registers`.
    """
    columns, numeric = len(plan.event.columns), len(plan.event.numeric)
    distinct = len(plan.event.distinct)
    fields: list[tuple[str, str, tuple[int, ...]]] = [
        ("start", "<i8", ()),
        ("span", "<u4", ()),
        ("events", "<u4", ()),
        *((name, "<i8", (numeric,)) for name in ("s", "minimum", "maximum")),
        ("q", "<i8", (numeric, 2)),
        *((name, "<i8", (numeric,)) for name in ("first", "last", "first_id", "last_id")),
        *((name, "<u4", (numeric,)) for name in ("first_at", "last_at")),
        ("n", "<u4", (columns,)),
        ("registers", "<u4", (distinct,)),
    ]
    if (columns + distinct) % 2:
        fields.append(("padding", "<u4", ()))
    return np.dtype(fields)


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the records of a compacted log.

    Attributes:
        horizon_ms: no earlier moment can be read.
        tiles: structured array of `tile_type`.
        registers: uint16, the sparse registers of all tiles.
        size: bytes before the records.
    """

    horizon_ms: int
    tiles: Tiles
    registers: npt.NDArray[np.uint16]
    size: int


class LogFormat:
    """Reads and writes the logs of one plan.

    Attributes:
        plan: the plan.
        records: how its records are read and written.
        tile: the layout of its tiles.
    """

    def __init__(self, plan: LogPlan) -> None:
        self.plan = plan
        self.records = RecordFormat(plan)
        self.tile = tile_type(plan)

    def head(self, blob: bytes) -> Head | None:
        """What stands before the records, checked; None where there is nothing: a bare log.

        Raises:
            WindowStateError: the header is damaged, or of another version or plan.
        """
        if not blob.startswith(MAGIC):
            return None
        if len(blob) < HEADER_SIZE:
            raise WindowStateError(f"it ends inside its header, after {len(blob)} bytes")
        (_, version, _, size, digest, _, horizon, tiles, registers, _) = _HEADER.unpack_from(blob)
        if version != _VERSION:
            raise WindowStateError(f"it is of version {version}, this reads version {_VERSION}")
        if digest != self.plan.digest:
            raise WindowStateError(
                f"it is stored by the plan {digest.hex()}, this is {self.plan.fingerprint}"
            )
        section = tiles * self.tile.itemsize
        if size % 8 or not HEADER_SIZE + section + 2 * registers <= size <= len(blob):
            raise WindowStateError("its header contradicts its length: it is truncated")
        if int(np.add.reduce(np.frombuffer(blob, "<i8", size // 8))):
            raise WindowStateError("its tiles are damaged")
        return Head(
            horizon,
            np.frombuffer(blob, self.tile, tiles, HEADER_SIZE),
            np.frombuffer(blob, "<u2", registers, HEADER_SIZE + section),
            size,
        )

    def write_head(
        self, nonce: bytes, horizon_ms: int, tiles: Tiles, registers: npt.NDArray[np.uint16]
    ) -> bytes:
        """The bytes before the records of a compacted log."""
        body = tiles.tobytes() + registers.tobytes()
        body += bytes(-len(body) % 8)
        size = HEADER_SIZE + len(body)
        counts = (len(tiles), len(registers))
        start = (MAGIC, _VERSION, 0, size, self.plan.digest, nonce, horizon_ms, *counts)
        unchecked = _HEADER.pack(*start, 0) + body
        total = int(np.add.reduce(np.frombuffer(unchecked, "<i8")))
        return _HEADER.pack(*start, -total % (1 << 64)) + body
