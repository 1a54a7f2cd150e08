"""A cache as a dict and a clock: what the replay must count, one read after the other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Read = tuple[int, int]
"""When, microseconds, and which slot."""


@dataclass
class Counted:
    """What one group was answered."""

    reads: int = 0
    misses: int = 0
    loads: int = 0
    stale_us: list[int] = field(default_factory=list)


@dataclass
class Naive:
    """One process.

    Attributes:
        group_of: slot -> its group.
        ttl_ns, jitter, revalidate_ns: of all groups.
        max_bytes, max_entries: of memory.
        sizes: of rows, by slot.
        changes: (when, slot).
        drops: those of them that memory hears of at once.
    """

    group_of: Sequence[str]
    ttl_ns: int
    jitter: float
    revalidate_ns: int
    max_bytes: float
    max_entries: float
    sizes: Sequence[int]
    changes: Sequence[tuple[int, int]] = ()
    drops: Sequence[tuple[int, int]] = ()
    count_from: int = 0
    rows: OrderedDict[int, tuple[int, int]] = field(default_factory=OrderedDict)
    dropped: int = 0
    counted: dict[str, Counted] = field(default_factory=dict)

    def run(
        self, requests: Sequence[Sequence[Read]], chances: Sequence[int]
    ) -> Mapping[str, Counted]:
        """Answer requests; `chances` are the jitter of each read, should it load."""
        drops = sorted(self.drops)
        chance = iter(chances)
        for request in requests:
            at = request[0][0]
            while self.dropped < len(drops) and drops[self.dropped][0] <= at:
                self.rows.pop(drops[self.dropped][1], None)
                self.dropped += 1
            missing: list[tuple[int, tuple[int, int]]] = []
            for _, slot in request:
                self._read(at, slot, next(chance), missing)
            for slot, row in missing:
                self.rows[slot] = row
                while self.rows and (
                    len(self.rows) > self.max_entries
                    or sum(self.sizes[one] for one in self.rows) > self.max_bytes
                ):
                    self.rows.popitem(last=False)
        return self.counted

    def _expiry_ns(self, chance: int) -> int:
        return self.ttl_ns - int(self.ttl_ns * self.jitter) * chance // 255

    def _read(
        self, at: int, slot: int, chance: int, missing: list[tuple[int, tuple[int, int]]]
    ) -> None:
        counts = at >= self.count_from
        found = self.counted.setdefault(self.group_of[slot], Counted())
        found.reads += counts
        row = self.rows.get(slot)
        is_there = row is not None
        if is_there:
            self.rows.move_to_end(slot)
        if not self.ttl_ns:
            row = None
        is_hit = row is not None and (at - row[0]) * 1_000 <= self._expiry_ns(row[1])
        if is_hit and row is not None:
            missed = [when for when, which in self.changes if which == slot and when > row[0]]
            if missed and min(missed) <= at and counts:
                found.stale_us.append(at - min(missed))
            if not self.revalidate_ns:
                return
            due_ns = self._expiry_ns(row[1]) - self.revalidate_ns
            if (at - row[0]) * 1_000 <= due_ns:
                return
        else:
            found.misses += counts
        found.loads += counts
        if is_there:
            self.rows[slot] = (at, chance)
        else:
            missing.append((slot, (at, chance)))


def chances_of(seed: int, parts: Sequence[Sequence[Read]]) -> list[list[int]]:
    """The jitter that a replay of these parts draws for each read."""
    random = np.random.default_rng(seed)
    found = []
    for part in parts:
        if not part:
            found.append([])
            continue
        order = np.argsort([slot for _, slot in part], kind="stable")
        drawn = np.empty(len(part), np.uint8)
        drawn[order] = random.integers(0, 256, len(part), np.uint8)
        found.append(drawn.tolist())
    return found
