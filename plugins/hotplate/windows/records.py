"""Records: how one event is written, recognised and ordered.

A record is 3 + C little-endian int64 words: `ts`, the id's hash, `arrival << 16 | check`, and the
columns in the order of `EventSpec.columns`. The check makes the sum of a record's 16-bit parts a
number that belongs to the plan, modulo 2**16. So the sum over any run of records is known without
looking at one of them, and a read verifies a whole log with one pass of additions, at 1 to 2 us.
A timestamp is below 2**45, so the two highest bytes of a record's first word are 0, which no
header's are.

In memory, records are fields: an int64 array (3 + C, n).
"""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from hotplate.windows.errors import WindowStateError
from hotplate.windows.events import Events
from hotplate.windows.exact import Integers
from hotplate.windows.plan import LogPlan

__all__ = [
    "ARRIVAL",
    "ID",
    "TS",
    "VALUES",
    "RecordFormat",
    "arrivals_of",
    "first_arrivals",
    "stamp_limit",
]

TS: Final = 0
ID: Final = 1
ARRIVAL: Final = 2
VALUES: Final = 3
_CHECK_BITS: Final = 16
_WORD: Final = np.dtype("<i8")
_PART: Final = np.dtype("<u2")
_Moments = TypeVar("_Moments", int, Integers)


def stamp_limit(t_ms: _Moments) -> _Moments:
    """The least third word of records that arrive after t: all below it have arrived."""
    return (t_ms + 1) << _CHECK_BITS


def arrivals_of(fields: Integers) -> Integers:
    """When each record arrived, ms UTC: int64 (3 + C, n) -> (n)."""
    arrivals: Integers = fields[ARRIVAL] >> _CHECK_BITS
    return arrivals


class RecordFormat:
    """Reads and writes the records of one plan.

    Attributes:
        width: words in a record.
        size: bytes in a record.
    """

    __slots__ = ("_mark", "size", "width")

    def __init__(self, plan: LogPlan) -> None:
        self.width = VALUES + len(plan.event.columns)
        self.size = self.width * _WORD.itemsize
        # odd, so that one record more or less always shows
        self._mark = int.from_bytes(plan.digest[:2], "little") | 1

    def pack(self, events: Events) -> npt.NDArray[np.int64]:
        """Events -> int64 (n, 3 + C); the bytes of a row are what is appended."""
        words = np.empty((len(events), self.width), _WORD)
        words[:, TS] = events.ts
        words[:, ID] = events.ids
        words[:, ARRIVAL] = events.arrivals << _CHECK_BITS
        words[:, VALUES:] = events.values
        self._seal(words)
        return words

    def restore(self, fields: Integers) -> bytes:
        """The bytes of records that were read."""
        return np.ascontiguousarray(fields.T, _WORD).tobytes()

    def _seal(self, words: Integers) -> None:
        parts = words.view(_PART)
        found = np.add.reduce(parts, axis=1, dtype=np.uint16)
        words[:, ARRIVAL] |= (self._mark - found.astype(np.int64)) & 0xFFFF

    def is_intact(self, raw: bytes | memoryview, count: int) -> bool:
        """Whether `raw`, of `count` records, is what was written, by the sum over all of them."""
        total = np.add.reduce(np.frombuffer(raw, _PART), dtype=np.uint16)
        return int(total) == (count * self._mark) & 0xFFFF

    def check(self, raw: bytes | memoryview) -> None:
        """Look at each record of a log.

        Raises:
            WindowStateError: they are truncated, or one is damaged or of another plan.
        """
        rest = len(raw) % self.size
        if rest:
            raise WindowStateError(
                f"{rest} bytes are left over behind records of {self.size} bytes: it is truncated, "
                "or not an event log"
            )
        parts = np.frombuffer(raw, _PART).reshape(-1, self.size // _PART.itemsize)
        sums = np.add.reduce(parts, axis=1, dtype=np.uint16)
        damaged = np.flatnonzero(sums != self._mark)
        if damaged.size:
            raise WindowStateError(
                f"{damaged.size:,} of {len(parts):,} records are damaged or of another log, "
                f"the first is number {int(damaged[0]):,}"
            )

    def fields(self, raw: bytes | memoryview) -> Integers:
        """Records -> int64 (3 + C, n), contiguous; not checked."""
        words = np.frombuffer(raw, _WORD).reshape(-1, self.width)
        return np.ascontiguousarray(words.T)


def first_arrivals(fields: Integers, owner: Integers | None = None) -> tuple[Integers, Integers]:
    """Sort by (owner, ts, id) and keep of duplicates the one that arrived first.

    Duplicates are records of one owner, ts and id. Of two that arrived in the same millisecond the
    one with the smaller values is kept, compared column by column, so that the order in which they
    were stored decides nothing.

    Args:
        fields: int64 (3 + C, n).
        owner: int64 (n), whose log each belongs to; None where all are of one.

    Returns:
        The fields that are kept, and which of the given ones they are.
    """
    keys = [*fields[: VALUES - 1 : -1], arrivals_of(fields), fields[ID], fields[TS]]
    if owner is not None:
        keys.append(owner)
    order = np.lexsort(keys)
    ordered = fields.take(order, axis=1)
    same = (ordered[:2, 1:] == ordered[:2, :-1]).all(axis=0)
    if owner is not None:
        owners = owner.take(order)
        same &= owners[1:] == owners[:-1]
    if same.any():
        keep = np.concatenate(([True], ~same))
        return ordered[:, keep], order[keep]
    return ordered, order
