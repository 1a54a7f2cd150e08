"""Which reads of a log find their row still in a bounded memory, whatever its age.

The memory tier pushes out what was used least recently, and a read marks a row as used whether it
is fresh or has to be loaded again. So what is in memory depends on the order of reads, on changes
that drop rows and on the bound, and not on any ttl: one pass over the log serves all of them.

Within one request the tier marks what it finds as used before it fills what was missing, and so it
is here, but for rows that had expired: these it marks once more, with what was missing. Rows known
to be absent, which have a small share of the bound for themselves, are taken for rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hotplate.advice.entities import Ints, Slots

__all__ = ["LeastRecent", "Room", "flags", "merged", "telling"]


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
        fits = float(slots.sizes.sum()) <= self.max_bytes
        return fits and float(slots.weights.sum()) <= self.max_entries


def telling(rooms: Sequence[Room], slots: Slots) -> list[Room]:
    """The first of some bounds, those that push something out, and the smallest that does not.

    What holds everything answers alike, however large it is.
    """
    whole = [room for room in rooms if room.holds(slots)]
    smallest = min(whole, key=lambda room: room.max_bytes, default=None)
    return [
        room
        for place, room in enumerate(rooms)
        if not place or room not in whole or room == smallest
    ]


class LeastRecent:
    """The rows in one process's memory, by their slots.

    Args:
        room: its bound.
        slots: their sizes; one that stands for several takes the room of all of them.
    """

    def __init__(self, room: Room, slots: Slots) -> None:
        self._room = room
        self._sizes: list[float] = slots.sizes.tolist()
        self._weights: list[float] = slots.weights.tolist()
        self._rows: OrderedDict[int, None] = OrderedDict()
        self._bytes = self._entries = 0.0

    def run(self, steps: Sequence[int], ends: Sequence[bool]) -> list[int]:
        """Read and drop rows, one after the other.

        Args:
            steps: a slot that is read, or `~slot` of a row that is dropped.
            ends: whether a request ends with this step.

        Returns:
            Places of the reads that found no row.
        """
        rows, sizes, weights = self._rows, self._sizes, self._weights
        touch = rows.move_to_end
        absent: list[int] = []
        missing: list[int] = []
        for place, (slot, is_end) in enumerate(zip(steps, ends, strict=True)):
            if slot < 0:
                if ~slot in rows:
                    del rows[~slot]
                    self._bytes -= sizes[~slot]
                    self._entries -= weights[~slot]
            else:
                try:
                    touch(slot)
                except KeyError:
                    absent.append(place)
                    missing.append(slot)
            if is_end and missing:
                self._fill(missing)
                missing.clear()
        return absent

    def _fill(self, missing: Sequence[int]) -> None:
        rows, sizes, weights, room = self._rows, self._sizes, self._weights, self._room
        size, entries = self._bytes, self._entries
        for slot in missing:
            rows[slot] = None
            size += sizes[slot]
            entries += weights[slot]
            while rows and (entries > room.max_entries or size > room.max_bytes):
                oldest = rows.popitem(last=False)[0]
                size -= sizes[oldest]
                entries -= weights[oldest]
        self._bytes, self._entries = size, entries

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
