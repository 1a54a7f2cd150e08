"""Which reads of a log find their row still in a bounded memory, whatever its age.

The memory tier pushes out what was used least recently, and a read marks a row as used whether it
is fresh or has to be loaded again. So what is in memory depends on the order of reads, on changes
that drop rows and on the bound, and not on any ttl: one pass over the log serves all of them.

Within one request the tier marks hits before it fills what was missing; here every read counts in
the order of the log. Rows known to be absent, which have a small share of the bound for themselves,
are taken for rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hotplate.advice.entities import Ints, Slots

__all__ = ["LeastRecent", "Room", "flags", "merged"]


@dataclass(frozen=True)
class Room:
    """How large the memory of a process may grow.

    Attributes:
        max_bytes: keys and bookkeeping included.
        max_entries: rows.
    """

    max_bytes: int
    max_entries: int

    def holds(self, slots: Slots) -> bool:
        """Whether nothing is ever pushed out."""
        fits = int(slots.sizes.sum()) <= self.max_bytes * slots.share
        return fits and slots.count <= self.max_entries * slots.share


class LeastRecent:
    """The rows in one process's memory, by their slots.

    Args:
        room: its bound; where only a share of the entities is replayed, they get that share of it.
        slots: their sizes.
    """

    def __init__(self, room: Room, slots: Slots) -> None:
        self._most_bytes = room.max_bytes * slots.share
        self._most_entries = room.max_entries * slots.share
        self._sizes: list[int] = slots.sizes.tolist()
        self._rows: OrderedDict[int, None] = OrderedDict()
        self._bytes = 0

    def run(self, steps: Sequence[int]) -> list[int]:
        """Read and drop rows, one after the other.

        Args:
            steps: a slot that is read, or `~slot` of a row that is dropped.

        Returns:
            Places of the reads that found no row.
        """
        rows, sizes, size = self._rows, self._sizes, self._bytes
        most_bytes, most_entries = self._most_bytes, self._most_entries
        touch, pop_oldest = rows.move_to_end, rows.popitem
        absent: list[int] = []
        for place, slot in enumerate(steps):
            if slot < 0:
                if ~slot in rows:
                    del rows[~slot]
                    size -= sizes[~slot]
                continue
            try:
                touch(slot)
                continue
            except KeyError:
                absent.append(place)
            rows[slot] = None
            size += sizes[slot]
            while len(rows) > most_entries or size > most_bytes:
                if not rows:
                    break
                size -= sizes[pop_oldest(last=False)[0]]
        self._bytes = size
        return absent

    def held(self) -> Ints:
        """The slots of the rows in it now."""
        return np.fromiter(self._rows, np.int64, len(self._rows))


def merged(at: Ints, slot: Ints, changed_at: Ints, changed: Ints) -> tuple[Ints, Ints]:
    """Reads and the drops between them in the order of time; a drop goes before a read of its time.

    Args:
        at, slot: of reads, in the order of time.
        changed_at, changed: of drops.

    Returns:
        Steps as `LeastRecent.run` takes them, and for each the place of its read; -1 for a drop.
    """
    order = np.argsort(np.concatenate([changed_at, at]), kind="stable")
    steps = np.concatenate([~changed, slot])[order]
    places = np.concatenate([np.full(len(changed), -1), np.arange(len(slot))])[order]
    return steps, places.astype(np.int64)


def flags(places: Ints | Sequence[int], count: int) -> npt.NDArray[np.bool_]:
    """True at places."""
    found = np.zeros(count, np.bool_)
    found[np.asarray(places, np.int64)] = True
    return found
