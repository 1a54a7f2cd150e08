"""Windowed views: event logs in, packed rows out; and events on their way in.

A windowed view has no row anywhere: its outputs are computed from the event log of the entity
whenever they are read. So it is a source like the wrapped store, read through the same engine. Two
things set it apart: time alone changes its rows (`TimedRows`), and what is written is another
view, the event view, whose writes go into the logs instead of the wrapped store.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from hotplate.cache_policy import EVENTS_TAG, WINDOWS_TAG
from hotplate.clock import Clock
from hotplate.contracts import LoadRequest, TimedRows
from hotplate.core.refresh import Refresher
from hotplate.errors import ConfigError
from hotplate.forks import restart_in_children
from hotplate.keys import EntityShape, values_of
from hotplate.seldom import Seldom
from hotplate.serving.events import Batch, Entity, records_of
from hotplate.serving.layouts import Layouts
from hotplate.stats import EventCounters, EventStats
from hotplate.tiers.entries import entity_of
from hotplate.windowed import EventLog, WindowedView, read_event_log, windowed_of
from hotplate.windows.compaction import Compactor
from hotplate.windows.errors import WindowSpecError, WindowStateError
from hotplate.windows.kernel import Answer, Reader
from hotplate.windows.plan import LogPlan
from hotplate.windows.records import RecordFormat
from hotplate.windows.redis_state import LogServer, RedisState
from hotplate.windows.spec import Aggregate, WindowSpec
from hotplate.windows.state import LocalState, State

__all__ = [
    "EventLogs",
    "Log",
    "is_computed",
    "is_event_view",
    "is_windowed",
    "mark_of",
    "no_place",
]

_NS_A_MS: Final = 1_000_000
_FOLD_BYTES: Final = 4_096
_JOINT_MOST: Final = 64  # another declaration makes others
# logs of this process's own, by name: of every store of the process, not of one object
_own_states: Final[dict[str, State]] = {}
_log = logging.getLogger("hotplate.windows")


def is_windowed(table: Any) -> bool:
    """Whether a feature view's rows are computed from an event log."""
    return WINDOWS_TAG in (getattr(table, "tags", None) or ())


def is_event_view(table: Any) -> bool:
    """Whether what is written to a feature view are events of a log."""
    return EVENTS_TAG in (getattr(table, "tags", None) or ())


def is_computed(table: Any) -> bool:
    """Whether the wrapped store has nothing of a feature view: it is windowed, or holds events."""
    return is_windowed(table) or is_event_view(table)


def mark_of(table: Any, ttl_ns: int) -> str:
    """What tells a windowed view's rows from those of another declaration or another ttl."""
    said = hashlib.blake2b(table.tags[WINDOWS_TAG].encode(), digest_size=8).hexdigest()
    return f"#{said}:{ttl_ns}"


class Log:
    """An event log: what is declared of it, and where it is kept.

    Args:
        said: what the event view's tag says.
        tag: that tag.
        project: the Feast project.
        counters: of what becomes of its events.

    Attributes:
        plan: how it is stored.
        records: how its records are written.
        compactor: folds it.
    """

    def __init__(self, said: EventLog, tag: str, project: str, counters: EventCounters) -> None:
        self.said = said
        self.tag = tag
        self.counters = counters
        every = [Aggregate(f"n{i}", "count", "", one) for i, one in enumerate(said.windows)]
        self.plan = LogPlan.of([WindowSpec(said.spec, tuple(every))])
        self.records = RecordFormat(self.plan)
        self.compactor = Compactor(self.plan)
        parts = (project, said.view, self.plan.fingerprint)
        self.name = "hotplate:window:" + "".join(quote(part, safe="") + ":" for part in parts)
        self._prefixes: dict[EntityShape, bytes] = {}

    def adapt(self, batch: Batch, log: Log) -> Batch | None:
        """A batch of another layout's, for this one; None where it lacks a column of this one.

        What the other layout's lateness and skew let in is let in: they are not asked again.
        """
        held = [(one.name, one.kind, one.scale) for one in log.said.spec.columns]
        own = [(one.name, one.kind, one.scale) for one in self.said.spec.columns]
        if not set(own) <= set(held) or self.said.spec.event_id != log.said.spec.event_id:
            return None
        values = batch.events.values[:, [held.index(one) for one in own]]
        return replace(batch, events=replace(batch.events, values=values))

    def key(self, shape: EntityShape, values: tuple[Any, ...]) -> bytes:
        """The key of an entity's log."""
        return self._prefix(shape) + entity_of(values)

    def keys(self, entities: Sequence[Entity]) -> list[bytes]:
        """The keys of the logs of entities, most of them of one shape."""
        keys = []
        last, prefix = None, b""
        for shape, values in entities:
            if shape is not last:  # to hash it takes longer than the rest
                last, prefix = shape, self._prefix(shape)
            keys.append(prefix + entity_of(values))
        return keys

    def _prefix(self, shape: EntityShape) -> bytes:
        prefix = self._prefixes.get(shape)
        if prefix is None:
            entity = f"{','.join(shape.join_keys)}:{','.join(shape.types)}:"
            prefix = self._prefixes[shape] = (self.name + entity).encode()
        return prefix


class _Compiled:
    """A windowed view, ready to be read."""

    def __init__(self, said: WindowedView, log: Log) -> None:
        if said.spec.event != log.said.spec:
            raise WindowSpecError(
                where=f"windowed view {said.view!r}",
                problem=f"it was declared over other events than {said.events!r} holds now",
                fix="Run `feast apply` with both views.",
            )
        self.said = said
        self.log = log
        self.reader = Reader(said.spec, log.plan)
        self._places = {one.name: index for index, one in enumerate(said.spec.aggregates)}

    def pack(self, request: LoadRequest, answer: Answer, wall_ns: int) -> list[bytes]:
        """Rows of a request, of what was read as of now."""
        layout, values = request.view.layout, answer.values
        order = [self._places.get(column.name, -1) for column in layout.columns]
        if order != list(range(len(self._places))):
            padded = np.concatenate((values, np.full((len(values), 1), np.nan)), axis=1)
            values = padded[:, order]
        rows = layout.encode_numbers(values, wall_ns // _NS_A_MS * 1_000)
        if self.said.cache != "exact":
            return rows
        ends = answer.valid_until.tolist()
        # a row may be served at the very age of its bound, when it no longer holds
        return TimedRows(rows, [end_ms * _NS_A_MS - wall_ns - 1 for end_ms in ends])


class _Joint:
    """Several windowed views over one log, which are read in one go.

    Their answers hold until the first of them may change: one that ends sooner than it had to is
    computed once more than it had to be.
    """

    def __init__(self, views: Sequence[_Compiled]) -> None:
        self.log = views[0].log
        aggregates = [
            replace(one, name=f"v{number}_{one.name}")
            for number, view in enumerate(views)
            for one in view.said.spec.aggregates
        ]
        self._reader = Reader(WindowSpec(self.log.said.spec, tuple(aggregates)), self.log.plan)
        ends = list(accumulate(len(view.said.spec.aggregates) for view in views))
        self._places = [slice(*pair) for pair in pairwise([0, *ends])]

    def read(self, blobs: Sequence[bytes | None], t_ms: int) -> list[Answer]:
        """The answer of each view."""
        found = self._reader.read(blobs, t_ms)
        return [Answer(found.values[:, of_view], found.valid_until) for of_view in self._places]


@dataclass(slots=True)
class _Part:
    """One view's share of a load."""

    index: int
    compiled: _Compiled
    request: LoadRequest
    keys: list[bytes]


class EventLogs:
    """The event logs of one deployment, and the windowed views over them.

    Args:
        project: the Feast project.
        place: the server that keeps the logs; None to keep them in this process; raises
            `ConfigError` where the deployment names neither.
        find_views: looks the registry's feature views up, for reads that come without it.
        clock: the cache's.
    """

    def __init__(
        self,
        project: str,
        place: Callable[[], LogServer | None],
        find_views: Callable[[], Iterable[Any]],
        clock: Clock,
    ) -> None:
        self._project = project
        self._find_place = place
        self._find_views = find_views
        self._clock = clock
        self._events: dict[str, Any] = {}
        self._logs: dict[tuple[str, str], Log] = {}
        self._compiled: dict[tuple[str, str], _Compiled] = {}
        self._joint: dict[tuple[_Compiled, ...], _Joint] = {}
        self._states: dict[str, State] = {}
        self._places: dict[str, LogServer | None] = {}
        self._layouts: dict[str, Layouts] = {}
        self._counters: dict[str, EventCounters] = {}
        self._seldom = Seldom()
        self._seldom_damaged = Seldom()
        self.compaction = Refresher(self._compact)
        restart_in_children(self)

    # -- what there is --------------------------------------------------------------------------

    def note_views(self, views: Iterable[Any]) -> None:
        """The feature views of the registry, as they are now."""
        self._events = {view.name: view for view in views if is_event_view(view)}

    @property
    def is_in_process(self) -> bool:
        """Whether the logs are this process's own.

        Raises:
            ConfigError: the deployment does not say where they are kept.
        """
        return self.place is None

    @property
    def place(self) -> LogServer | None:
        """The server that keeps the logs; None where they are this process's own.

        Raises:
            ConfigError: the deployment does not say where they are kept.
        """
        if "made" not in self._places:  # one for all threads, without a lock
            self._places.setdefault("made", self._find_place())
        return self._places["made"]

    def log(self, table: Any) -> Log:
        """The log of an event view."""
        return self._log(table.name, table.tags[EVENTS_TAG])

    def _log(self, view: str, tag: str) -> Log:
        found = self._logs.get((view, tag))
        if found is None:
            counters = self._counters.setdefault(view, EventCounters())
            made = Log(read_event_log(view, tag), tag, self._project, counters)
            found = self._logs.setdefault((view, tag), made)
        return found

    @property
    def layouts(self) -> Layouts:
        """Which layouts of logs there are."""
        if "made" not in self._layouts:
            self._layouts.setdefault("made", Layouts(self._project, self.place))
        return self._layouts["made"]

    def compiled(self, table: Any) -> _Compiled:
        """A windowed view, ready to be read.

        Raises:
            WindowSpecError: its events are not in the registry, or not those it was declared over.
        """
        said = table.tags[WINDOWS_TAG]
        known = self._compiled.get((table.name, said))
        events = self._events.get(known.said.events) if known else None
        if known and events is not None and self.log(events) is known.log:
            return known
        windowed = windowed_of(table)
        assert windowed is not None
        events = self._events.get(windowed.events)
        if events is None:
            self.note_views(self._find_views())
            events = self._events.get(windowed.events)
        if events is None:
            raise WindowSpecError(
                where=f"windowed view {table.name!r}",
                problem=f"its event view {windowed.events!r} is not in the registry",
                fix="Bind both results of windowed_view(...) to names of the module, and run "
                "`feast apply`.",
            )
        made = _Compiled(windowed, self.log(events))
        self._compiled[table.name, said] = made
        return made

    def state(self, log: Log) -> State:
        """Where a log is kept."""
        place, ttl_ms = self.place, log.plan.ttl_ms
        states = _own_states if place is None else self._states
        found = states.get(log.name)
        if found is None:
            made: State = (
                LocalState(ttl_ms, self._clock) if place is None else RedisState(place, ttl_ms)
            )
            found = states.setdefault(log.name, made)
        return found

    def check_place(self) -> None:
        """Make sure that logs are kept where nothing is evicted.

        Raises:
            ConfigError: the server evicts.
            ServerError: it does not answer.
        """
        place = self.place
        if place is not None:
            place.check()

    def admit(self, log: Log, *, is_new: bool) -> None:
        """Enter the layout of a log; see `Layouts.admit`.

        Raises:
            ServerError: the server does not answer.
        """
        self.layouts.admit(log.said.view, log.plan.fingerprint, log.tag, is_new=is_new)

    # -- in -------------------------------------------------------------------------------------

    def append(self, log: Log, batch: Batch) -> None:
        """Write the events of a batch."""
        self.count(log, batch)
        if not len(batch.events):
            return
        for layout, adapted in self.layouts_of(log, batch):
            self._write(layout, adapted)

    def layouts_of(self, log: Log, batch: Batch) -> Iterator[tuple[Log, Batch]]:
        """A batch for its log, and for the other layouts that are there; see `Layouts`."""
        yield log, batch
        for tag in self.layouts.others(log.said.view, log.plan.fingerprint):
            other = self._log(log.said.view, tag)
            adapted = other.adapt(batch, log)
            if adapted is not None:
                yield other, adapted

    def _write(self, log: Log, batch: Batch) -> None:
        entries = self.entries(log, batch)
        lengths = self.state(log).append_many(entries)
        self.note_lengths(log, entries, lengths)

    def count(self, log: Log, batch: Batch, as_of_ms: int | None = None) -> None:
        """Count what becomes of a batch.

        Args:
            log: whose events they are.
            batch: the events.
            as_of_ms: as for `note_lengths`.
        """
        events, counters = batch.events, log.counters
        counters.add(len(events), batch.dropped)
        if batch.dropped and self._seldom.is_time():
            _log.warning("%s: events were dropped: %s", log.said.view, _shown(batch.dropped))
        now_ms = self._clock.wall_ns() // _NS_A_MS if as_of_ms is None else as_of_ms
        oldest_ms = now_ms - log.plan.event.lateness_ms - log.plan.event.slack_ms
        counters.delayed += int((events.ts < oldest_ms).sum())

    def entries(self, log: Log, batch: Batch) -> list[tuple[bytes, bytes]]:
        """What a batch appends: for each of its entities the log's key, and the records."""
        records = records_of(log.records, batch)
        return list(zip(log.keys(batch.entities), records, strict=True))

    def note_lengths(
        self,
        log: Log,
        entries: Sequence[tuple[bytes, bytes]],
        lengths: Sequence[int],
        as_of_ms: int | None = None,
    ) -> None:
        """Have logs folded that have grown by another few kilobytes.

        Args:
            log: how they are stored.
            entries: what was appended to which.
            lengths: how long each is since.
            as_of_ms: how far whoever appends has come in what it reads, if it may be behind the
                clock: what it has yet to read may be a duplicate of what is not so old by then.
        """
        grown = {
            key: (log, as_of_ms)
            for (key, data), length in zip(entries, lengths, strict=True)
            if (length - len(data)) // _FOLD_BYTES != length // _FOLD_BYTES
        }
        if grown:
            self.compaction.submit(grown)

    def fold(self, log: Log, keys: Iterable[bytes]) -> bool:
        """Have logs folded as of now, on the side; False where too many are waiting."""
        return self.compaction.submit(dict.fromkeys(keys, (log, None)))

    def _compact(self, due: Mapping[bytes, tuple[Log, int | None]]) -> None:
        for key, (log, as_of_ms) in due.items():
            now_ms = self._clock.wall_ns() // _NS_A_MS
            try:
                self._fold_one(log, key, now_ms if as_of_ms is None else min(now_ms, as_of_ms))
            except WindowStateError as error:  # the others can be folded all the same
                if self._seldom_damaged.is_time():
                    _log.error("%s: a log cannot be folded: %s", log.said.view, error)

    def _fold_one(self, log: Log, key: bytes, now_ms: int) -> None:
        state = self.state(log)
        blob = state.get(key)
        fold = log.compactor.fold(blob, now_ms) if blob else None
        if fold is not None:
            log.counters.folds += state.swap(key, fold)

    # -- out ------------------------------------------------------------------------------------

    def load(self, requests: Sequence[LoadRequest]) -> list[list[bytes] | Exception]:
        """Rows of windowed views as of now; all logs are read in one round trip.

        An error of one view is its answer; the others are there all the same.
        """
        answers: list[list[bytes] | Exception] = []
        parts: list[_Part] = []
        for index, request in enumerate(requests):
            try:
                compiled = self.compiled(request.table)
                self._ensure_complete(compiled.log)
                shape = request.view.identity.shape
                keys = [compiled.log.key(shape, values_of(key)) for key in request.keys]
                parts.append(_Part(index, compiled, request, keys))
                answers.append([])
            except Exception as error:  # noqa: BLE001 - handed on as the answer of its part
                answers.append(error)
        wall_ns = self._clock.wall_ns()  # before the logs are read: what comes later is not visible
        blobs = self._read(parts)
        for some, of_log in zip(_alike(parts), blobs, strict=True):
            try:
                self._ensure_complete(some[0].compiled.log)  # it may have come back empty
                found = self._compute([part.compiled for part in some], of_log, wall_ns)
                for part, answer in zip(some, found, strict=True):
                    answers[part.index] = part.compiled.pack(part.request, answer, wall_ns)
            except Exception as error:  # noqa: BLE001 - as above
                if len(some) == 1:
                    answers[some[0].index] = error
                    continue
                for part in some:  # each by itself: an error of one is not that of the others
                    answers[part.index] = self._alone(part, of_log, wall_ns)
        return answers

    def _alone(
        self, part: _Part, blobs: Sequence[bytes | None], wall_ns: int
    ) -> list[bytes] | Exception:
        try:
            (answer,) = self._compute([part.compiled], blobs, wall_ns)
            return part.compiled.pack(part.request, answer, wall_ns)
        except Exception as error:  # noqa: BLE001 - handed on as the answer of its part
            return error

    def _compute(
        self, views: Sequence[_Compiled], blobs: Sequence[bytes | None], wall_ns: int
    ) -> list[Answer]:
        """The answers of views over one log."""
        t_ms = wall_ns // _NS_A_MS
        if len(views) == 1:
            return [views[0].reader.read(blobs, t_ms)]
        joint = self._joint.get(tuple(views))
        if joint is None:
            if len(self._joint) >= _JOINT_MOST:
                self._joint.clear()
            joint = self._joint[tuple(views)] = _Joint(views)
        return joint.read(blobs, t_ms)

    def _ensure_complete(self, log: Log) -> None:
        self.layouts.ensure_complete(log.said.view, log.plan.fingerprint)

    def _read(self, parts: Sequence[_Part]) -> list[list[bytes | None]]:
        """The logs of each of `_alike(parts)`."""
        groups = [some[0] for some in _alike(parts)]
        place = self.place
        if place is None:
            return [self.state(part.compiled.log).get_many(part.keys) for part in groups]
        wanted = [key for part in groups for key in part.keys]
        distinct = list(dict.fromkeys(wanted))  # for other entities views may read one log, too
        found = dict(zip(distinct, place.get_many(distinct), strict=True))
        return [[found[key] for key in part.keys] for part in groups]

    # -- life -----------------------------------------------------------------------------------

    def stats(self) -> dict[str, EventStats]:
        """Counts by event view."""
        return {name: one.snapshot() for name, one in sorted(self._counters.items())}

    def close(self) -> None:
        """Close connections; a later call opens new ones."""
        place = self._places.get("made")
        if place is not None:
            place.close()

    def restart_after_fork(self) -> None:
        """Leave the parent's compaction to the parent."""
        self.compaction.restart_after_fork()


def _shown(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.items())


def no_place() -> ConfigError:
    """The error of a deployment that does not say where event logs are kept."""
    return ConfigError(
        "online_store.windows: windowed views need a place for their event logs, and the wrapped "
        "store is no Redis. Name a Redis or Valkey server as in windows: {connection_string: "
        "'localhost:6379'}, or, where one process alone both writes and reads, windows: "
        "{in_process: true}."
    )


def _alike(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Parts by log and entities."""
    if len(parts) == 1:
        return [[parts[0]]]
    found: list[list[_Part]] = []
    for part in parts:
        for some in found:
            if some[0].compiled.log is part.compiled.log and some[0].keys == part.keys:
                some.append(part)
                break
        else:
            found.append([part])
    return found
