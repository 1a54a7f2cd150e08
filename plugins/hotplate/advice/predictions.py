"""What a replay foretells of a deployment, group by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hotplate.advice.changes import Changes
from hotplate.advice.entities import Sieve, Slots, ViewSpec
from hotplate.advice.errors import AdviceError
from hotplate.advice.lifetimes import Lifetime
from hotplate.advice.lru import Room, telling
from hotplate.advice.reads import Reads, Survey, TrafficFiles, rows_of
from hotplate.advice.replay import EVENT, TTL, Candidate, Memory, Tallies, Trial
from hotplate.advice.tallies import Tally
from hotplate.resolved import ResolvedPolicy

__all__ = ["GroupForecast", "Prediction", "ReplaySpec", "Replayed", "replay"]

_READS_AT_ONCE: Final = 500_000
_SPREAD: Final = np.uint64(0x9E37_79B9_7F4A_7C15)


@dataclass(frozen=True)
class ReplaySpec:
    """What is tried on a log.

    Attributes:
        views: that are kept in memory.
        groups: that are looked at; the others only take their room.
        policies: group -> its policy now, of those that are looked at.
        ttls_ns: that are tried for every group, besides its own and none at all.
        rooms: bounds of memory that are tried; the first one is that of the deployment.
        workers: so many processes instead of those of the log, each request to one of them by
            chance; None for those of the log.
        entities: that are replayed at the most; where there are more, a random part of them.
        skip_us: the first part of the log fills memory and does not count.
        seed: of all that is by chance.
    """

    views: Sequence[ViewSpec]
    groups: frozenset[str]
    policies: Mapping[str, ResolvedPolicy]
    ttls_ns: Sequence[int]
    rooms: Sequence[Room]
    workers: int | None = None
    entities: int = 200_000
    skip_us: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Prediction:
    """What one policy and one bound of memory would make of the log.

    Attributes:
        ttl_ns: of the group.
        coherence: `"ttl"` or `"event"`.
        room: the bound.
        hit_rate: share of the reads that memory answers.
        error: by how much that may be off, either way, because not all entities were replayed: two
            standard errors; 0 where all were.
        source_reads_s: rows read from the source a second, by all processes.
        stale_share: share of the reads that were answered with what had changed by then; None where
            it is not known when rows changed.
        stale_p50_s, stale_p99_s, stale_longest_s: how long ago that was, for those that were stale.
    """

    ttl_ns: int
    coherence: str
    room: Room
    hit_rate: float
    error: float
    source_reads_s: float
    stale_share: float | None
    stale_p50_s: float = 0.0
    stale_p99_s: float = 0.0
    stale_longest_s: float = 0.0


@dataclass(frozen=True)
class GroupForecast:
    """What is foretold of a group.

    Attributes:
        name: of the group.
        policy: its policy now.
        reads: of rows in the log that count.
        changes: of its rows that are known; None where it is not known when they change.
        predictions: of all that was tried.
        entries, size_bytes: rows in memory at the end of the log, and what they take, by the bound,
            in that process which has the most; no ttl changes that.
    """

    name: str
    policy: ResolvedPolicy
    reads: int
    changes: int | None
    predictions: tuple[Prediction, ...]
    entries: Mapping[Room, int] = field(default_factory=dict)
    size_bytes: Mapping[Room, int] = field(default_factory=dict)

    def of(self, room: Room, coherence: str) -> list[Prediction]:
        """Predictions of one bound and coherence, the shortest ttl first."""
        found = [one for one in self.predictions if one.room == room and one.coherence == coherence]
        return sorted(found, key=lambda one: one.ttl_ns)

    def now(self, room: Room) -> Prediction:
        """What the present policy makes of the log, with this bound."""
        wanted = EVENT if self.policy.is_event else TTL
        found = self.of(room, wanted) or self.of(room, TTL)
        return next(one for one in found if one.ttl_ns == self.policy.ttl_ns)


@dataclass(frozen=True)
class Replayed:
    """A log that was replayed.

    Attributes:
        survey: what it holds.
        groups: that were read in it, by name.
        share: of the entities that are not among the hottest, those that were replayed.
        rooms: the bounds that were tried.
        processes: how many memories there were.
        seconds: of the log that count.
        steps: reads of rows that were replayed, once for each policy tried on them.
    """

    survey: Survey
    groups: Mapping[str, GroupForecast]
    share: float
    rooms: Sequence[Room]
    processes: int
    seconds: float
    steps: int


def replay(
    files: TrafficFiles,
    spec: ReplaySpec,
    changes_of: Callable[[Slots, int, int], Changes] | None = None,
    progress: Callable[[int], None] = lambda size: None,
) -> Replayed:
    """Replay a log under every policy.

    Args:
        files: the log.
        spec: what is tried.
        changes_of: collects the changes of slots between two moments, microseconds; None where
            nothing is known of changes.
        progress: told how many bytes were done since the last call; the log is read twice.

    Raises:
        AdviceError: the log cannot be replayed.
    """
    sieve, survey, count_from = _surveyed(files, spec, progress)
    wanted = [view for view in spec.views if survey.reads.get(view.name)]
    if not any(view.group in spec.groups for view in wanted):
        _refuse(survey, spec)
    slots = Slots(wanted, sieve.chosen(), sieve.share)
    changes = Changes(slots) if changes_of is None else changes_of(slots, survey.begin, survey.end)
    changed = frozenset(changes.groups)
    trial = Trial(
        slots,
        telling(spec.rooms, slots),
        {group: _lifetimes(spec, group) for group in slots.spans},
        (TTL, EVENT) if changed else (TTL,),
        changes.times(survey.begin, survey.end),
        changed,
        count_from,
        spec.seed,
    )
    runs = _Runs(files, spec, trial, changes, survey)
    runs.run(progress)
    seconds = max(1e-6, (survey.end - count_from) / 1e6)
    return Replayed(
        survey,
        {group: runs.forecast(group, seconds) for group in slots.spans if group in spec.groups},
        slots.share,
        trial.rooms,
        spec.workers or len(survey.processes),
        seconds,
        sum(tally.reads for tally in runs.tallies.values()),
    )


def _surveyed(
    files: TrafficFiles, spec: ReplaySpec, progress: Callable[[int], None]
) -> tuple[Sieve, Survey, int]:
    """Which entities there are, what is read, and from which moment reads count."""
    while True:
        sieve = Sieve(spec.entities)
        count_from = files.begin + spec.skip_us
        survey = files.survey(sieve, count_from, progress)
        if files.begin + spec.skip_us == count_from:  # else what came first cannot be read
            return sieve, survey, count_from


def _refuse(survey: Survey, spec: ReplaySpec) -> None:
    read = ", ".join(sorted(survey.reads)) or "nothing"
    known = ", ".join(sorted(view.name for view in spec.views if view.group in spec.groups))
    raise AdviceError(
        f"the log holds no read of these feature views: {known}; what was read in that time: {read}"
    )


def _lifetimes(spec: ReplaySpec, group: str) -> list[Lifetime]:
    if group not in spec.groups:
        return []
    policy = spec.policies[group]
    ttls = sorted({0, policy.ttl_ns, *spec.ttls_ns})
    return [Lifetime.of(policy, ttl_ns) for ttl_ns in ttls]


class _Runs:
    """The processes of a log, one after the other, or as many workers at once."""

    def __init__(
        self,
        files: TrafficFiles,
        spec: ReplaySpec,
        trial: Trial,
        changes: Changes,
        survey: Survey,
    ) -> None:
        self._files, self._spec, self._trial = files, spec, trial
        self._changes, self._survey = changes, survey
        self.tallies: Tallies = {}
        self._entries: dict[tuple[str, str, int], int] = {}
        self._bytes: dict[tuple[str, str, int], int] = {}

    def run(self, progress: Callable[[int], None]) -> None:
        """Replay all of the log."""
        if self._spec.workers is not None:
            self._run_workers(self._spec.workers, progress)
            return
        for process in self._survey.processes:
            own = self._changes.times(self._survey.begin, self._survey.end, process)
            memory = Memory(self._trial, self.tallies, own)
            for reads in _bits(self._files.in_order(process, progress)):
                at, slot, source = rows_of(reads, self._trial.slots)
                memory.feed(at, slot, reads.request[source])
            self._note_held(memory)

    def _run_workers(self, workers: int, progress: Callable[[int], None]) -> None:
        memories = [Memory(self._trial, self.tallies) for _ in range(workers)]
        for reads in _bits(self._files.in_order(None, progress)):
            at, slot, source = rows_of(reads, self._trial.slots)
            request = reads.request[source]
            mixed = (request.astype(np.uint64) + np.uint64(1)) * _SPREAD
            worker = (mixed >> np.uint64(33)) % np.uint64(workers)
            for number, memory in enumerate(memories):
                own = np.flatnonzero(worker == number)
                memory.feed(at[own], slot[own], request[own])
        for memory in memories:
            self._note_held(memory)

    def _note_held(self, memory: Memory) -> None:
        slots = self._trial.slots
        for coherence in self._trial.coherences:
            for room in range(len(self._trial.rooms)):
                for group, held in memory.held(coherence, room).items():
                    key = (group, coherence, room)
                    size = round(float(slots.sizes[held].sum()))
                    if size >= self._bytes.get(key, -1):
                        self._bytes[key] = size
                        self._entries[key] = round(float(slots.weights[held].sum()))

    def forecast(self, group: str, seconds: float) -> GroupForecast:
        """What was counted of a group."""
        views = [view for view in self._trial.slots.views if view.group == group]
        reads = sum(self._survey.reads[view.name] for view in views)
        predictions = [
            self._prediction(candidate, tally, reads, seconds)
            for candidate, tally in self.tallies.items()
            if candidate.group == group
        ]
        coherence = EVENT if self._is_event(group) else TTL
        rooms = self._trial.rooms
        changes = None
        if group in self._trial.changed:
            span = self._trial.slots.spans[group]
            per_slot = self._trial.changes.of_slots(self._trial.slots.count)[span]
            changes = round(float((per_slot * self._trial.slots.weights[span]).sum()))
        return GroupForecast(
            group,
            self._spec.policies[group],
            reads,
            changes,
            tuple(predictions),
            {one: self._entries.get((group, coherence, at), 0) for at, one in enumerate(rooms)},
            {one: self._bytes.get((group, coherence, at), 0) for at, one in enumerate(rooms)},
        )

    def _is_event(self, group: str) -> bool:
        return self._spec.policies[group].is_event and EVENT in self._trial.coherences

    def _prediction(
        self, candidate: Candidate, tally: Tally, reads: int, seconds: float
    ) -> Prediction:
        share = self._trial.slots.share
        if not candidate.lifetime.ttl_ns:  # that needs no replay
            tally = Tally(tally.reads, reads, reads)
        misses = min(reads, tally.misses)
        error = 0.0
        if share < 1:
            deviation = float(np.sqrt(len(tally.by_bucket) * tally.by_bucket.var(ddof=1)))
            error = 2 * deviation * float(np.sqrt(1 - share)) / max(1, reads)
        stale: float | None = None
        if candidate.coherence == EVENT:
            stale = 0.0
        elif candidate.group in self._trial.changed:
            stale = min(1.0, tally.ages.count / max(1, reads))
        ages = tally.ages
        return Prediction(
            candidate.lifetime.ttl_ns,
            candidate.coherence,
            self._trial.rooms[candidate.room],
            1 - misses / max(1, reads),
            error,
            tally.loads / seconds,
            stale,
            ages.quantile_us(0.5) / 1e6,
            ages.quantile_us(0.99) / 1e6,
            ages.longest_us / 1e6,
        )


def _bits(parts: Iterable[Reads]) -> Iterable[Reads]:
    for reads in parts:
        for begin in range(0, len(reads), _READS_AT_ONCE):
            yield reads.take(slice(begin, begin + _READS_AT_ONCE))
