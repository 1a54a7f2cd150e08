"""Replays reads of one process under many policies at once.

Design note. What has to be known of a read is whether the row is in memory, how old it is there,
and whether it has changed since it was loaded.

*In memory*: see `hotplate.advice.lru`; one pass for each bound, whatever the ttl. A read that finds
no row, or that follows a change which dropped it, is *forced* to load.

*Age*: reads are sorted by slot, and by time within one. A row that a read loads at t is loaded
again by the first forced read after it, or by the first read after t plus its lifetime, which a
binary search finds. That gives every read its successor, should it load; the loads are those that
are reached from the first one of each slot. Following them is a step of the interpreter a load, all
else a few of numpy's a read, so a policy costs some tenths of a microsecond a read.

*Changed*: the first change of the slot after a load makes all reads until the next load stale.

Between two parts of a log only the time of the last load and its jitter are kept, for each slot
and policy. Ages count from before the source was read, as they do in the cache; how long the read
took is not in the log, and taken for nothing.

A naive simulation with a dict and a clock, and the cache itself, stand beside it in
`tests/advice`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hotplate.advice.changes import FAR, NEVER, ChangeTimes
from hotplate.advice.entities import Ints, Slots
from hotplate.advice.lifetimes import Bytes, Lifetime
from hotplate.advice.lru import LeastRecent, Room, flags, merged
from hotplate.advice.tallies import Tally

__all__ = ["EVENT", "TTL", "Candidate", "Memory", "Tallies", "Trial"]

Flags = npt.NDArray[np.bool_]

TTL = "ttl"
EVENT = "event"
"""What of changes: seen when the ttl ends, or at once."""


@dataclass(frozen=True)
class Candidate:
    """A policy that is tried for a group.

    Attributes:
        group: whose.
        coherence: `TTL` or `EVENT`.
        room: which of the bounds of memory, as a place among them.
        lifetime: of its rows.
    """

    group: str
    coherence: str
    room: int
    lifetime: Lifetime


@dataclass(frozen=True)
class Trial:
    """What is tried.

    Attributes:
        slots: all state there is.
        rooms: bounds of memory.
        lifetimes: group -> those that are tried for it.
        coherences: of `TTL` and `EVENT` those that are tried.
        changes: when rows changed; empty where nothing is known of it.
        changed: groups of which it is known.
        count_from: reads before this moment fill memory and do not count, microseconds.
        seed: from which jitter comes.
    """

    slots: Slots
    rooms: Sequence[Room]
    lifetimes: Mapping[str, Sequence[Lifetime]]
    coherences: Sequence[str]
    changes: ChangeTimes
    changed: frozenset[str] = frozenset()
    count_from: int = NEVER
    seed: int = 0


Tallies = dict[Candidate, Tally]


@dataclass(frozen=True)
class _Part:
    """Reads of one group within a part of the log, by slot, and by time within a slot.

    Attributes:
        at, slot: of each read.
        rank: which of the slots that are read here, from 0 on.
        starts: where each rank begins.
        moment: one number a read that grows with the rank and the time.
        first_us: from which the time in it counts.
        width: of a rank in it.
        counts: which reads count.
        chance: the jitter of each, should it load.
    """

    at: Ints
    slot: Ints
    rank: Ints
    starts: Ints
    moment: Ints
    first_us: int
    width: int
    counts: Flags
    chance: Bytes

    @classmethod
    def of(cls, at: Ints, slot: Ints, count_from: int, chance: Bytes) -> _Part:
        is_first = np.empty(len(slot), np.bool_)
        is_first[0] = True
        np.not_equal(slot[1:], slot[:-1], out=is_first[1:])
        rank = np.cumsum(is_first) - 1
        first_us = int(at.min())
        width = int(at.max()) - first_us + 2
        return cls(
            at,
            slot,
            rank,
            np.flatnonzero(is_first),
            rank * width + (at - first_us),
            first_us,
            width,
            at >= count_from,
            chance,
        )

    def successors(self, after_us: Ints) -> Ints:
        """For each read the first of its slot whose age would be more; the next slot's first read
        if there is none."""
        longest = np.minimum(self.at - self.first_us + np.minimum(after_us, FAR), self.width - 1)
        found = np.searchsorted(self.moment, self.rank * self.width + longest, "right")
        # jitter may leave less of a row's life than the part in which it is loaded again
        return np.maximum(found, np.arange(1, len(found) + 1))

    def first_after(self, moment_us: Ints) -> Ints:
        """For each rank its first read after a moment; the next slot's first read if there is
        none."""
        offset = np.clip(moment_us - self.first_us, -1, self.width - 1)
        return np.searchsorted(
            self.moment, np.arange(len(self.starts)) * self.width + offset, "right"
        )


class _Kept:
    """The last load of every slot of a group, under one candidate.

    Attributes:
        base: the group's first slot.
        at, chance: when it was, and its jitter.
    """

    def __init__(self, span: slice) -> None:
        self.base = span.start
        self.at = np.full(span.stop - span.start, NEVER, np.int64)
        self.chance = np.zeros(span.stop - span.start, np.uint8)


class Memory:
    """One process's memory, under every candidate.

    Args:
        trial: what is tried.
        tallies: where it is counted.
        own: changes that this process made itself, which it forgets at once; None if none.
    """

    def __init__(self, trial: Trial, tallies: Tallies, own: ChangeTimes | None = None) -> None:
        self._trial = trial
        self._tallies = tallies
        drops = {TTL: own, EVENT: trial.changes}
        self._drops = {
            name: one
            for name in trial.coherences
            if (one := drops[name]) is not None and not one.is_empty
        }
        self._chance = np.random.default_rng(trial.seed)
        self._lru = {
            (coherence, number): LeastRecent(room, trial.slots)
            for coherence in trial.coherences
            for number, room in enumerate(trial.rooms)
            if not room.holds(trial.slots)
        }
        self._kept: dict[Candidate, _Kept] = {}
        self._buckets = trial.slots.buckets() if trial.slots.share < 1 else None
        self._has_changed = trial.changes.of_slots(trial.slots.count) > 0
        self._read_at = np.full(trial.slots.count, NEVER, np.int64)
        self._until = NEVER

    def feed(self, at: Ints, slot: Ints, request: Ints | None = None) -> None:
        """Replay more reads.

        Args:
            at: when, microseconds, in the order of time, none before those of the last call.
            slot: what is read, once in a request.
            request: those of one request follow each other and have the same number; if None, each
                is one of its own.
        """
        if not len(at):
            return
        trial = self._trial
        order = np.argsort(slot, kind="stable")
        at_sorted, slot_sorted = at[order], slot[order]
        chance = self._chance.integers(0, 256, len(at), np.uint8)
        ends = np.ones(len(at), np.bool_)
        if request is not None:
            ends[:-1] = request[1:] != request[:-1]
        lost = {key: self._lost(key, at, slot, ends)[order] for key in self._lru}
        for group, span in trial.slots.spans.items():
            begin, end = np.searchsorted(slot_sorted, (span.start, span.stop))
            if begin == end:
                continue
            own = slice(int(begin), int(end))
            part = _Part.of(at_sorted[own], slot_sorted[own], trial.count_from, chance[own])
            for coherence in trial.coherences:
                if coherence == EVENT and group not in trial.changed:
                    continue  # it would look as if nothing of it ever changed
                dropped = self._dropped(coherence, part)
                for room in range(len(trial.rooms)):
                    forced = dropped
                    if (coherence, room) in lost:
                        forced = dropped | lost[coherence, room][own]
                    self._try(group, coherence, room, part, forced)
            self._read_at[part.slot] = part.at
        self._until = int(at[-1])

    def _lost(self, key: tuple[str, int], at: Ints, slot: Ints, ends: Flags) -> Flags:
        """Which reads find no row, because there was no room for it or it never came."""
        drops = self._drops.get(key[0])
        if drops is None:
            return flags(self._lru[key].run(slot.tolist(), ends.tolist()), len(slot))
        changed, changed_at = drops.between(self._until, int(at[-1]))
        steps, places = merged(at, slot, changed_at, changed)
        is_end = np.where(places >= 0, ends[places], False)
        return flags(places[self._lru[key].run(steps.tolist(), is_end.tolist())], len(slot))

    def _dropped(self, coherence: str, part: _Part) -> Flags:
        """Which reads follow a change that made memory forget the row."""
        drops = self._drops.get(coherence)
        if drops is None:
            return np.zeros(len(part.at), np.bool_)
        now = drops.until(part.slot, part.at)
        before = np.empty_like(now)
        before[1:] = now[:-1]
        slots = part.slot[part.starts]
        before[part.starts] = drops.until(slots, self._read_at[slots])
        return np.not_equal(now, before)

    # -- one group, all of its candidates ---------------------------------------------------------

    def _try(self, group: str, coherence: str, room: int, part: _Part, forced: Flags) -> None:
        count = len(part.at)
        # the first forced read at or after each read
        places = np.where(forced, np.arange(count), count)
        next_forced = np.append(np.minimum.accumulate(places[::-1])[::-1], count)
        is_judged = coherence == TTL and group in self._trial.changed
        for lifetime in self._trial.lifetimes[group]:
            candidate = Candidate(group, coherence, room, lifetime)
            tally = self._tallies.setdefault(candidate, Tally())
            counted = int(np.count_nonzero(part.counts))
            tally.reads += counted
            if not lifetime.ttl_ns:
                slots = part.slot[part.counts]
                tally.loads += self._weight(slots)
                self._note_misses(tally, slots)
                continue
            kept = self._kept.get(candidate)
            if kept is None:
                kept = self._kept[candidate] = _Kept(self._trial.slots.spans[group])
            self._run(tally, kept, part, forced, next_forced, lifetime, is_judged=is_judged)

    def _run(
        self,
        tally: Tally,
        kept: _Kept,
        part: _Part,
        forced: Flags,
        next_forced: Ints,
        lifetime: Lifetime,
        *,
        is_judged: bool,
    ) -> None:
        own = part.slot[part.starts] - kept.base
        kept_at, kept_chance = kept.at[own], kept.chance[own]
        loads = _loads(part, lifetime, next_forced, kept_at, kept_chance)
        if len(loads):
            ranks = part.rank[loads]
            is_first = np.append(True, ranks[1:] != ranks[:-1])
            # what each load replaces
            at_before = np.append(NEVER, part.at[loads[:-1]])
            chance_before = np.append(np.uint8(0), part.chance[loads[:-1]])
            at_before[is_first] = kept_at[ranks[is_first]]
            chance_before[is_first] = kept_chance[ranks[is_first]]
            is_miss = np.ones(len(loads), np.bool_)
            if lifetime.revalidate_ns:
                age = part.at[loads] - np.maximum(at_before, part.first_us - FAR // 2)
                is_miss = forced[loads] | (age > lifetime.expiry_us(chance_before))
            counts = part.counts[loads]
            tally.loads += self._weight(part.slot[loads[counts]])
            self._note_misses(tally, part.slot[loads[counts & is_miss]])
            is_last = np.append(ranks[1:] != ranks[:-1], True)
            last = loads[is_last]
            kept.at[part.slot[last] - kept.base] = part.at[last]
            kept.chance[part.slot[last] - kept.base] = part.chance[last]
        else:
            is_miss = np.zeros(0, np.bool_)
        if is_judged:
            self._judge(tally, part, loads, is_miss, kept_at)

    def _weight(self, slots: Ints) -> float:
        """For how many rows these stand."""
        if self._buckets is None:
            return float(len(slots))
        return float(self._trial.slots.weights[slots].sum())

    def _note_misses(self, tally: Tally, slots: Ints) -> None:
        tally.misses += self._weight(slots)
        if self._buckets is not None:
            # what is not left to chance cannot be off
            weights = self._trial.slots.weights[slots]
            chance = weights > 1
            tally.by_bucket += np.bincount(
                self._buckets[slots[chance]], weights[chance], len(tally.by_bucket)
            )

    def _judge(self, tally: Tally, part: _Part, loads: Ints, is_miss: Flags, kept_at: Ints) -> None:
        """Count the stale answers among reads whose slot changed at some time."""
        reads = np.flatnonzero(self._has_changed[part.slot] & part.counts)
        if not len(reads):
            return
        # the load that each of them was answered by: a miss by itself, a hit by one before it
        is_load = np.zeros(len(part.at), np.int64)
        is_load[loads] = 1
        place = np.cumsum(is_load)[reads] - 1
        is_renewal = np.zeros(len(part.at), np.bool_)
        is_renewal[loads[~is_miss]] = True
        place -= is_renewal[reads]
        load = loads[np.maximum(place, 0)] if len(loads) else np.zeros(len(reads), np.int64)
        ranks = part.rank[reads]
        is_here = (place >= 0) & (part.rank[load] == ranks)
        loaded_at = np.where(is_here, part.at[load], kept_at[ranks])
        at = part.at[reads]
        missed = self._trial.changes.after(part.slot[reads], loaded_at)
        is_stale = at >= missed
        tally.ages.add(
            (at - missed)[is_stale], self._trial.slots.weights[part.slot[reads[is_stale]]]
        )

    def held(self, coherence: str, room: int) -> dict[str, Ints]:
        """Group -> the slots of its rows that are in memory now, fresh or not."""
        slots = self._trial.slots
        lru = self._lru.get((coherence, room))
        held = np.flatnonzero(self._read_at > NEVER) if lru is None else np.sort(lru.held())
        return {
            group: held[(held >= span.start) & (held < span.stop)]
            for group, span in slots.spans.items()
        }


def _loads(
    part: _Part, lifetime: Lifetime, next_forced: Ints, kept_at: Ints, kept_chance: Bytes
) -> Ints:
    """The reads that load, in the background or not."""
    count = len(part.at)
    ends = np.append(part.starts[1:], count)
    # the first load of each slot: of a row that is not there, or that is too old by then
    renewed_us = kept_at + np.where(kept_at > NEVER, lifetime.renewal_us(kept_chance), 0)
    first = np.minimum(part.first_after(renewed_us), next_forced[part.starts])
    # where a slot has none, the first of the next slot that has one
    ranks = np.arange(len(first))
    has_one = np.where(first < ends, ranks, len(ranks))
    has_one = np.append(np.minimum.accumulate(has_one[::-1])[::-1], len(ranks))
    entry = np.append(first, count)[has_one]
    following = np.minimum(part.successors(lifetime.renewal_us(part.chance)), next_forced[1:])
    own_end = ends[part.rank]
    following = np.where(following < own_end, following, entry[part.rank + 1])
    steps: list[int] = following.tolist()
    found: list[int] = []
    place = int(entry[0])
    while place < count:
        found.append(place)
        place = steps[place]
    return np.array(found, np.int64)
