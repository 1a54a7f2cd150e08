"""From entries of a stream into event logs, once: on one server in one step, elsewhere in four.

**Why it is not enough to acknowledge afterwards.** A consumer that dies between the append and the
acknowledgement is followed by one that appends again. A log forgives that for as long as it holds
the records one by one; once they have been folded into a tile, nothing tells a second copy of an
event from another event. So a consumer that is away for longer than lateness and slack would count
twice what it had in hand when it went.

**On one server** (`OneStep`): the stream, the logs and the topic on which processes meet are on the
same server, and it is no cluster. Then one script asks the group which of the entries are still
this consumer's, appends those, publishes what other processes have to forget, adds the dead
letters, and acknowledges. A server carries a script out as a whole, writes it to its replicas and
to its append-only file as a whole, so an entry is either pending and not in any log, or
acknowledged and in its log, however long anybody was away. That the group is asked, and not only
told, is what a transaction (MULTI) could not do: a consumer that was frozen, and whose entries
another one has taken over, finds that they are not its own any more. Steps are small, because
nobody else is answered meanwhile.

**On a cluster, or on several servers** (`FourSteps`), no step covers both. The log and a hash
beside it, in the same slot, are written in one script: it appends the records of those entries
whose ids are not in the hash, and puts their ids there. Then other processes are told, the entries
are acknowledged, and the ids are taken out of the hash again. Whoever is handed an entry a second
time finds its id, appends nothing, and acknowledges. The hash lives as long as the log would: when
both have expired, the event is in no window any more.

What is left: a consumer that is frozen after it has asked which entries are its own, for longer
than `claim_after_s`, until after another one has finished the same entries, and that then goes on,
appends them a second time. Where they have been folded meanwhile, they count twice. On one server
that cannot happen.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from hotplate.errors import CommandRefused, ConfigError
from hotplate.keys import EntityShape
from hotplate.operations.stream_entries import Entry, Readout
from hotplate.operations.stream_group import StreamGroup, checked
from hotplate.servers.pool import Command, Pool
from hotplate.servers.topology import beside
from hotplate.serving.runtime import Runtime
from hotplate.serving.windows import Log
from hotplate.windows.redis_state import LogServer, RedisState

__all__ = ["DeadLetters", "Delivered", "Delivery", "delivery_of"]

_STEP: Final = 50  # about 0.3 ms of the server's time, during which nobody else is answered
_STEP_APART: Final = 500
_FIELDS_MAX: Final = 1_000  # what a script may hand on at once is bounded
_ANNOUNCED_S: Final = 5.0
_POLL_S: Final = 0.01

# KEYS: the stream, its dead letters, logs. ARGV: group, consumer, how long a log lives, how many
# dead letters are kept, how many messages, entries and dead letters follow; then topic and message;
# ids, those of events first, in the order of the logs; for each log how many records it gets, and
# whether its life is extended, and the records; for each dead letter its id, how many fields, and
# the fields.
# "#!lua" makes the server refuse it as a whole, before anything is done, where it has no memory.
_DELIVER: Final = """#!lua
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local messages, count, letters = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local at = 8 + 2 * messages
local first, last = ARGV[at + count], ARGV[at + count + 1]
local ours = {}
for _, one in ipairs(redis.call('XPENDING', stream, group, first, last, 100000, consumer)) do
  ours[one[1]] = true
end
for i = 8, at - 1, 2 do redis.call('PUBLISH', ARGV[i], ARGV[i + 1]) end
local ids = at - 1
at = at + count + 2
local event, lengths = 0, {}
for k = 3, #KEYS do
  local records = {}
  local extends = ARGV[at + 1] == '1'
  for i = at + 2, at + 1 + tonumber(ARGV[at]) do
    event = event + 1
    if ours[ARGV[ids + event]] then records[#records + 1] = ARGV[i] end
  end
  at = at + 2 + tonumber(ARGV[at])
  lengths[k - 2] = 0
  if #records > 0 then
    lengths[k - 2] = redis.call('APPEND', KEYS[k], table.concat(records))
    if extends then redis.call('PEXPIRE', KEYS[k], ARGV[3]) end
  end
end
for _ = 1, letters do
  local size = tonumber(ARGV[at + 1])
  if ours[ARGV[at]] then
    redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', unpack(ARGV, at + 2, at + 1 + size))
  end
  at = at + 2 + size
end
local done, taken = {}, {}
for i = 1, count do
  local id = ARGV[ids + i]
  taken[i] = 0
  if ours[id] then
    taken[i] = 1
    done[#done + 1] = id
  end
end
if #done > 0 then redis.call('XACK', stream, group, unpack(done)) end
return {lengths, taken}
"""

# KEYS: a log, and the hash beside it. ARGV: how long both live, whether the log's life is
# extended, how many; then ids; then records.
_APPLY: Final = """#!lua
local count = tonumber(ARGV[3])
local known = redis.call('HMGET', KEYS[2], unpack(ARGV, 4, 3 + count))
local records, marks, taken = {}, {}, {}
for i = 1, count do
  taken[i] = 0
  if not known[i] then
    taken[i] = 1
    records[#records + 1] = ARGV[3 + count + i]
    marks[#marks + 1] = ARGV[3 + i]
    marks[#marks + 1] = ''
  end
end
local length = 0
if #records > 0 then
  length = redis.call('APPEND', KEYS[1], table.concat(records))
  redis.call('HSET', KEYS[2], unpack(marks))
  if ARGV[2] == '1' then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
end
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return {length, taken}
"""


@dataclass(frozen=True)
class DeadLetters:
    """What becomes of entries that are no events.

    Attributes:
        key: the stream that takes them.
        most: about how many it keeps.
        has_dropped: whether it takes those that are dropped for a reason, too.
    """

    key: bytes
    most: int
    has_dropped: bool = False


@dataclass
class Delivered:
    """What became of entries.

    Attributes:
        accepted: events that were appended.
        dropped: reason -> entries that do not count.
        unreadable: entries that are no events.
        letters: dead letters that were added.
        gone: entries that are no longer in the stream: what they held is lost.
        elsewhere: entries that were done by the time, here before or by another consumer.
    """

    accepted: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    unreadable: int = 0
    letters: int = 0
    gone: int = 0
    elsewhere: int = 0

    def add(self, other: Delivered) -> None:
        """Add what became of others."""
        self.accepted += other.accepted
        self.unreadable += other.unreadable
        self.letters += other.letters
        self.gone += other.gone
        self.elsewhere += other.elsewhere
        for reason, count in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count


class Delivery(Protocol):
    """Brings entries into logs and acknowledges them.

    Attributes:
        step: how many entries at once.
    """

    step: int

    def deliver(self, log: Log, entries: Sequence[Entry], readout: Readout) -> Delivered:
        """Bring entries in.

        Raises:
            ServerError: a server does not answer. Some of it may have been done; what was not, is
                still pending.
        """

    def trials(self, log: Log) -> list[tuple[Pool, Command]]:
        """Commands that need the same rights and do nothing."""

    def close(self) -> None:
        """Close connections; a later call opens new ones."""


def delivery_of(runtime: Runtime, group: StreamGroup, letters: DeadLetters) -> Delivery:
    """The way of delivery that the deployment allows.

    Raises:
        ConfigError: the event logs are in this process alone.
    """
    place = runtime.event_logs.place
    if place is None:
        raise ConfigError(
            "online_store.windows.in_process: the event logs are in this process alone and end "
            "with it, so nothing that is acknowledged would be safe. Name a Redis or Valkey server."
        )
    meeting, _ = runtime.meeting_place()
    is_one = place.server == group.server == meeting and group.server.kind != "redis_cluster"
    return (OneStep if is_one else FourSteps)(runtime, place, group, letters)


@dataclass(frozen=True)
class _Parcel:
    """Records for one log.

    Attributes:
        key: the log.
        places: which entry each record is of.
        records: the records.
    """

    key: bytes
    places: list[int]
    records: list[bytes]

    def appended(self, is_taken: Sequence[Any]) -> tuple[bytes, bytes]:
        """The key, and those records that were appended."""
        taken = [record for record, one in zip(self.records, is_taken, strict=True) if one]
        return self.key, b"".join(taken)


class _Way:
    """What both ways have in common."""

    step = _STEP

    def __init__(
        self, runtime: Runtime, place: LogServer, group: StreamGroup, letters: DeadLetters
    ) -> None:
        self._runtime = runtime
        self._place = place
        self._group = group
        self._letters = letters
        self._newest_ms = 0

    def close(self) -> None:
        """See `Delivery.close`."""
        self._group.close()

    def _parcels(self, log: Log, readout: Readout) -> list[_Parcel]:
        batch = readout.batch
        # older layouts, while there are any, get theirs at least once: duplicates are left out
        self._runtime.event_logs.append_to_others(log, batch)
        words = log.records.pack(batch.events)
        parcels = [_Parcel(log.key(*entity), [], []) for entity in batch.entities]
        for at, owner in enumerate(batch.owners.tolist()):
            parcels[owner].places.append(readout.rows[at])
            parcels[owner].records.append(words[at].tobytes())
        return parcels

    def _state(self, log: Log) -> RedisState:
        state = self._runtime.event_logs.state(log)
        assert isinstance(state, RedisState)
        return state

    def _note(self, log: Log, grown: Iterable[tuple[bytes, bytes]], lengths: Sequence[int]) -> None:
        """Fold what has grown, as of where the stream has been read to.

        What is behind is behind the clock, too: a duplicate that was added to the stream in time
        must still find its first copy as a record.
        """
        entries = list(grown)
        self._runtime.event_logs.note_lengths(log, entries, lengths, self._newest_ms)

    def _note_time(self, entries: Sequence[Entry]) -> None:
        newest_ms = max((entry.added_ms for entry in entries), default=0)
        self._newest_ms = max(self._newest_ms, newest_ms)

    def _settle(
        self,
        parcels: Sequence[_Parcel],
        entries: Sequence[Entry],
        readout: Readout,
        messages: Sequence[tuple[bytes, bytes]],
        is_due: Sequence[bool],
        life_ms: int,
    ) -> tuple[list[int], dict[int, bool]]:
        """Run the script; the lengths of the logs, and which entries were this consumer's."""
        order = [place for parcel in parcels for place in parcel.places]
        known = set(order)
        order += [place for place in range(len(entries)) if place not in known]
        ids = [entries[place].id for place in order]
        letters = self._written(entries, readout)
        span = sorted(ids, key=_as_numbers)
        argv: list[Any] = [self._group.group, self._group.consumer, life_ms, self._letters.most]
        argv += [len(messages), len(ids), len(letters)]
        argv += [part for message in messages for part in message]
        argv += [*ids, span[0], span[-1]]
        for parcel, due in zip(parcels, is_due, strict=True):
            argv += [len(parcel.records), int(due), *parcel.records]
        for place, fields in letters.items():
            argv += [entries[place].id, len(fields), *fields]
        keys = [self._group.key, self._letters.key, *(parcel.key for parcel in parcels)]
        lengths, taken = self._group.ask("EVAL", _DELIVER, len(keys), *keys, *argv)
        return lengths, {place: bool(one) for place, one in zip(order, taken, strict=True)}

    def _written(self, entries: Sequence[Entry], readout: Readout) -> dict[int, list[bytes]]:
        """Entry -> the fields of its dead letter: its own, and what is wrong with it."""
        reasons = {place: f"unreadable: {why}" for place, why in readout.unreadable.items()}
        if self._letters.has_dropped:
            reasons |= readout.dropped
        return {
            place: [
                *(entries[place].fields or ())[:_FIELDS_MAX],
                b"hotplate:entry",
                entries[place].id,
                b"hotplate:reason",
                reason.encode("utf-8", "backslashreplace"),
            ]
            for place, reason in reasons.items()
        }

    def _counted(self, log: Log, readout: Readout, is_taken: dict[int, bool]) -> Delivered:
        """Count what this consumer has done, and nothing that another one has."""
        found = Delivered(elsewhere=sum(not taken for taken in is_taken.values()))
        for place, reason in readout.dropped.items():
            if is_taken[place]:
                found.dropped[reason] = found.dropped.get(reason, 0) + 1
        found.unreadable = sum(is_taken[place] for place in readout.unreadable)
        found.letters = found.unreadable
        if self._letters.has_dropped:
            found.letters += sum(found.dropped.values())
        found.gone = sum(is_taken[place] for place in readout.gone)
        found.accepted = sum(is_taken[place] for place in readout.rows)
        self._runtime.event_logs.count(log, readout.batch, self._newest_ms)
        return found

    def _stream_trials(self) -> list[Command]:
        key, group = self._group.key, self._group.group
        return [
            (key, ("XPENDING", key, group, "-", "+", 1, self._group.consumer)),
            (key, ("XACK", key, group, "0-0")),
            (key, ("EVAL", "return 1", 2, key, self._letters.key)),
            # no entry can have this id: the server says so after it has looked at the rights
            (key, ("XADD", self._letters.key, "0-0", "hotplate:reason", "trial")),
        ]


def _as_numbers(entry_id: bytes) -> tuple[int, int]:
    ms, _, number = entry_id.partition(b"-")
    return int(ms), int(number)


class OneStep(_Way):
    """Everything on one server."""

    def deliver(self, log: Log, entries: Sequence[Entry], readout: Readout) -> Delivered:
        """See `Delivery.deliver`."""
        self._note_time(entries)
        parcels = self._parcels(log, readout)
        state, keys = self._state(log), [parcel.key for parcel in parcels]
        due = set(state.due(keys))
        touched = readout.batch.entities
        messages = self._runtime.announcements(log, touched) if touched else []
        try:
            lengths, is_taken = self._settle(
                parcels, entries, readout, messages, [key in due for key in keys], state.life_ms
            )
        finally:
            self._runtime.forget_computed(log, touched, is_announced=True)
        state.note_extended(
            key for key, length in zip(keys, lengths, strict=True) if length and key in due
        )
        grown = [
            parcel.appended([is_taken[place] for place in parcel.places]) for parcel in parcels
        ]
        self._note(log, grown, lengths)
        return self._counted(log, readout, is_taken)

    def trials(self, log: Log) -> list[tuple[Pool, Command]]:
        """See `Delivery.trials`."""
        commands = [*self._stream_trials(), *_log_trials(log)]
        nobody = [(EntityShape((), ()), ())]
        said = self._runtime.announcements(log, nobody)[:1]
        commands += [(one.topic, ("PUBLISH", one.topic, one.message)) for one in said]
        return [(self._group.pool, command) for command in commands]


class FourSteps(_Way):
    """Logs on a cluster, or elsewhere than the stream or the place where processes meet."""

    step = _STEP_APART

    def __init__(
        self, runtime: Runtime, place: LogServer, group: StreamGroup, letters: DeadLetters
    ) -> None:
        super().__init__(runtime, place, group, letters)
        said = b"%d:%b%b" % (len(group.key), group.key, group.group)
        self._mark = (
            b"hotplate:applied:" + hashlib.blake2b(said, digest_size=6).hexdigest().encode()
        )

    def deliver(self, log: Log, entries: Sequence[Entry], readout: Readout) -> Delivered:
        """See `Delivery.deliver`."""
        self._note_time(entries)
        ours = self._ours(entries)
        parcels = [
            _only(parcel, entries, ours)
            for parcel in self._parcels(log, readout)
            if any(entries[place].id in ours for place in parcel.places)
        ]
        touched = readout.batch.entities
        try:
            accepted = self._apply(log, parcels, entries)
        finally:  # also after an error: part of it may have been written
            self._runtime.forget_computed(log, touched)
        self._await_announced()
        _, is_taken = self._settle([], entries, readout, [], [], 0)
        self._forget_marks(parcels, entries, is_taken)
        found = self._counted(log, readout, is_taken)
        found.elsewhere += max(0, found.accepted - accepted)  # in their logs since the last time
        found.accepted = accepted
        return found

    def _ours(self, entries: Sequence[Entry]) -> set[bytes]:
        """Which entries this consumer still has: others may have been taken over meanwhile."""
        span = sorted((entry.id for entry in entries), key=_as_numbers)
        group = self._group
        command = ("XPENDING", group.key, group.group, span[0], span[-1], 100_000, group.consumer)
        return {bytes(one[0]) for one in group.ask(*command)}

    def _apply(self, log: Log, parcels: Sequence[_Parcel], entries: Sequence[Entry]) -> int:
        """Append what is not in the logs yet; how many events that were."""
        state = self._state(log)
        due = set(state.due([parcel.key for parcel in parcels]))
        commands: list[Command] = []
        for parcel in parcels:
            ids = [entries[place].id for place in parcel.places]
            keys = (parcel.key, beside(parcel.key, self._mark))
            head = (state.life_ms, int(parcel.key in due), len(ids))
            commands.append((parcel.key, ("EVAL", _APPLY, 2, *keys, *head, *ids, *parcel.records)))
        replies = self._ask_logs(commands)
        state.note_extended(
            parcel.key
            for parcel, (length, _) in zip(parcels, replies, strict=True)
            if length and parcel.key in due
        )
        pairs = list(zip(parcels, replies, strict=True))
        grown = [parcel.appended(taken) for parcel, (_, taken) in pairs]
        self._note(log, grown, [length for _, (length, _) in pairs])
        return sum(sum(taken) for _, (_, taken) in pairs)

    def _ask_logs(self, commands: Sequence[Command]) -> list[Any]:
        try:
            return self._place.ask(commands)
        except CommandRefused as refusal:
            return [checked(refusal, self._group.stream)]

    def _await_announced(self) -> None:
        """Wait until other processes have been told, but not for a server that is not there.

        Who does not hear it from that server serves nothing from memory, and forgets all when it
        hears again.
        """
        coherence = self._runtime.coherence
        until_s = time.monotonic() + _ANNOUNCED_S
        while coherence.unsent and time.monotonic() < until_s:
            time.sleep(_POLL_S)

    def _forget_marks(
        self, parcels: Sequence[_Parcel], entries: Sequence[Entry], is_taken: dict[int, bool]
    ) -> None:
        commands: list[Command] = []
        for parcel in parcels:
            ids = [entries[place].id for place in parcel.places if is_taken[place]]
            if ids:
                marks = beside(parcel.key, self._mark)
                commands.append((parcel.key, ("HDEL", marks, *ids)))
        self._ask_logs(commands)

    def trials(self, log: Log) -> list[tuple[Pool, Command]]:
        """See `Delivery.trials`."""
        pool = self._place.pool
        return [
            *((self._group.pool, command) for command in self._stream_trials()),
            *((pool, command) for command in _log_trials(log, self._mark)),
        ]


def _only(parcel: _Parcel, entries: Sequence[Entry], ours: set[bytes]) -> _Parcel:
    pairs = [
        (place, record)
        for place, record in zip(parcel.places, parcel.records, strict=True)
        if entries[place].id in ours
    ]
    return _Parcel(parcel.key, [place for place, _ in pairs], [record for _, record in pairs])


def _log_trials(log: Log, mark: bytes | None = None) -> list[Command]:
    key = log.name.encode() + b"trial"
    commands: list[tuple[Any, ...]] = [
        ("EVAL", "return 1", 1, key),
        ("APPEND", key, ""),
        ("PEXPIRE", key, 1),
        ("GET", key),
    ]
    if mark is not None:
        marks = beside(key, mark)
        commands += [("HMGET", marks, "trial"), ("HDEL", marks, "trial"), ("PEXPIRE", marks, 1)]
        commands += [("HSET", marks, "trial", ""), ("PEXPIRE", marks, 1)]
    return [(key, command) for command in commands]
