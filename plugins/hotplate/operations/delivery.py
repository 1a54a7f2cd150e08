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

What is left there: a failover that loses what had been appended, as it may lose what was pushed,
when the stream's server knows it as done already. And a consumer that is frozen after it has asked
which entries are its own, for longer than `claim_after_s`, until after another one has finished the
same entries, and that then goes on: it appends them a second time, and where the first copy has
been folded meanwhile, they count twice. So may two consumers of one name that take up the same
entries. On one server none of that can happen.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from hotplate.keys import EntityShape
from hotplate.operations.stream_entries import Entry, Readout
from hotplate.operations.stream_group import StreamGroup
from hotplate.servers.pool import Command, Pool
from hotplate.servers.topology import beside
from hotplate.serving.coherence import Announcement
from hotplate.serving.runtime import Runtime
from hotplate.serving.windows import Log
from hotplate.windows.redis_state import LogServer, RedisState

__all__ = [
    "DeadLetters",
    "Delivered",
    "Delivery",
    "OneStep",
    "Parcel",
    "Way",
    "as_numbers",
    "log_trials",
]

_STEP: Final = 50  # about 0.5 ms of the server's time, during which nobody else is answered
_FIELDS_MAX: Final = 1_000  # what a script may hand on at once is bounded

# KEYS: the stream, its dead letters, logs. ARGV: group, consumer, how many dead letters are kept,
# how many messages, entries and dead letters follow; then topic and message; ids, those of records
# first, in the order of the logs, and the least and the greatest of them; for each log how many
# records it gets, how long it lives from now on (0: as before), and the records; for each dead
# letter its id, how many fields, and the fields.
# "#!lua" makes the server refuse it as a whole, before anything is done, where it has no memory.
_DELIVER: Final = """#!lua
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local messages, count, letters = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local at = 7 + 2 * messages
local first, last = ARGV[at + count], ARGV[at + count + 1]
local ours = {}
for _, one in ipairs(redis.call('XPENDING', stream, group, first, last, 100000, consumer)) do
  ours[one[1]] = true
end
for i = 7, at - 1, 2 do redis.call('PUBLISH', ARGV[i], ARGV[i + 1]) end
local ids = at - 1
at = at + count + 2
local event, lengths = 0, {}
for k = 3, #KEYS do
  local records = {}
  local life = ARGV[at + 1]
  for i = at + 2, at + 1 + tonumber(ARGV[at]) do
    event = event + 1
    if ours[ARGV[ids + event]] then records[#records + 1] = ARGV[i] end
  end
  at = at + 2 + tonumber(ARGV[at])
  lengths[k - 2] = 0
  if #records > 0 then
    lengths[k - 2] = redis.call('APPEND', KEYS[k], table.concat(records))
    if life ~= '0' then redis.call('PEXPIRE', KEYS[k], life) end
  end
end
for _ = 1, letters do
  local size = tonumber(ARGV[at + 1])
  if ours[ARGV[at]] then
    redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', unpack(ARGV, at + 2, at + 1 + size))
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


@dataclass(frozen=True)
class Parcel:
    """Records for one log.

    Attributes:
        layout: how the log is stored.
        key: the log.
        life_ms: how long it lives from now on; 0 where that need not be said again.
        places: which entry each record is of.
        records: the records.
    """

    layout: Log
    key: bytes
    life_ms: int
    places: list[int]
    records: list[bytes]

    def appended(self, is_taken: Sequence[Any], length: int) -> Appended:
        """What was appended of it, and how long the log is since."""
        taken = [record for record, one in zip(self.records, is_taken, strict=True) if one]
        return Appended(self, b"".join(taken), length)


@dataclass(frozen=True)
class Appended:
    """What was appended to a log.

    Attributes:
        parcel: what was to be.
        data: what was.
        length: how long the log is since; 0 where nothing was.
    """

    parcel: Parcel
    data: bytes
    length: int


@dataclass(frozen=True)
class Appends:
    """What is done in one step with acknowledging.

    Attributes:
        parcels: what is appended.
        messages: what is published.
    """

    parcels: Sequence[Parcel] = ()
    messages: Sequence[Announcement] = ()


NOTHING: Final = Appends()


@dataclass(frozen=True)
class Settled:
    """What the step did.

    Attributes:
        lengths: how long each log is since; 0 where nothing was appended.
        is_taken: for each entry whether it was this consumer's, and is acknowledged.
    """

    lengths: Sequence[int]
    is_taken: Mapping[int, bool]


class Way:
    """What both ways have in common."""

    step = _STEP

    def __init__(
        self, runtime: Runtime, place: LogServer, group: StreamGroup, letters: DeadLetters
    ) -> None:
        self.runtime = runtime
        self.place = place
        self.group = group
        self.letters = letters
        self._newest_ms = 0

    def close(self) -> None:
        """See `Delivery.close`."""
        self.group.close()

    def parcels(self, log: Log, readout: Readout) -> list[Parcel]:
        """What goes into which log, of every layout that is there."""
        if not len(readout.batch.events):
            return []
        parcels: list[Parcel] = []
        for layout, batch in self.runtime.event_logs.layouts_of(log, readout.batch):
            words = layout.records.pack(batch.events)
            state = self.runtime.event_logs.state(layout)
            assert isinstance(state, RedisState)
            keys = [layout.key(*entity) for entity in batch.entities]
            due = set(state.due(keys))
            lives = [state.life_ms if key in due else 0 for key in keys]
            made = [
                Parcel(layout, key, life, [], []) for key, life in zip(keys, lives, strict=True)
            ]
            for at, owner in enumerate(batch.owners.tolist()):
                made[owner].places.append(readout.rows[at])
                made[owner].records.append(words[at].tobytes())
            parcels += made
        return parcels

    def note(self, appended: Iterable[Appended]) -> None:
        """Remember whose life was extended, and fold what has grown.

        Logs are folded as of where the stream has been read to. What is behind is behind the clock,
        too: a duplicate that was added to the stream in time must still find its first copy as a
        record.
        """
        logs = self.runtime.event_logs
        for one in appended:
            parcel, layout = one.parcel, one.parcel.layout
            if not one.length:
                continue
            if parcel.life_ms:
                state = logs.state(layout)
                assert isinstance(state, RedisState)
                state.note_extended([parcel.key])
            logs.note_lengths(layout, [(parcel.key, one.data)], [one.length], self._newest_ms)

    def note_time(self, entries: Sequence[Entry]) -> None:
        """The stream has been read to here."""
        newest_ms = max((entry.added_ms for entry in entries), default=0)
        self._newest_ms = max(self._newest_ms, newest_ms)

    def settle(
        self,
        entries: Sequence[Entry],
        readout: Readout,
        places: Sequence[int],
        appends: Appends = NOTHING,
    ) -> Settled:
        """Run the script.

        Args:
            entries: all of them.
            readout: what they are.
            places: those that are to be acknowledged, if they are this consumer's.
            appends: what to do in the same step.
        """
        parcels, messages = appends.parcels, appends.messages
        order = [place for parcel in parcels for place in parcel.places]
        known = set(order)
        order += [place for place in places if place not in known]
        if not order:
            return Settled([], dict.fromkeys(range(len(entries)), False))
        ids = [entries[place].id for place in order]
        letters = self._written(entries, readout, set(order))
        span = sorted(ids, key=as_numbers)
        argv: list[Any] = [self.group.group, self.group.consumer, self.letters.most]
        argv += [len(messages), len(ids), len(letters)]
        argv += [part for message in messages for part in message]
        argv += [*ids, span[0], span[-1]]
        for parcel in parcels:
            argv += [len(parcel.records), parcel.life_ms, *parcel.records]
        for place, fields in letters.items():
            argv += [entries[place].id, len(fields), *fields]
        keys = [self.group.key, self.letters.key, *(parcel.key for parcel in parcels)]
        lengths, taken = self.group.ask("EVAL", _DELIVER, len(keys), *keys, *argv)
        is_taken = dict.fromkeys(range(len(entries)), False)
        is_taken |= {place: bool(one) for place, one in zip(order, taken, strict=True)}
        return Settled(lengths, is_taken)

    def _written(
        self, entries: Sequence[Entry], readout: Readout, places: Container[int]
    ) -> dict[int, list[bytes]]:
        """Entry -> the fields of its dead letter: its own, and what is wrong with it."""
        reasons = {place: f"unreadable: {why}" for place, why in readout.unreadable.items()}
        if self.letters.has_dropped:
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
            if place in places
        }

    def counted(self, log: Log, readout: Readout, is_taken: Mapping[int, bool]) -> Delivered:
        """Count what this consumer has done, and nothing that another one has."""
        found = Delivered(elsewhere=sum(not taken for taken in is_taken.values()))
        for place, reason in readout.dropped.items():
            if is_taken[place]:
                found.dropped[reason] = found.dropped.get(reason, 0) + 1
        found.unreadable = sum(is_taken[place] for place in readout.unreadable)
        found.letters = found.unreadable
        if self.letters.has_dropped:
            found.letters += sum(found.dropped.values())
        found.gone = sum(is_taken[place] for place in readout.gone)
        taken = [at for at, place in enumerate(readout.rows) if is_taken[place]]
        found.accepted = len(taken)
        events = readout.batch.events.take(taken)
        done = replace(readout.batch, events=events, dropped=found.dropped)
        self.runtime.event_logs.count(log, done, self._newest_ms)
        return found

    def stream_trials(self) -> list[Command]:
        """Commands about the stream for `trials`."""
        key, group = self.group.key, self.group.group
        return [
            (key, ("XPENDING", key, group, "-", "+", 1, self.group.consumer)),
            (key, ("XACK", key, group, "0-0")),
            (key, ("EVAL", "return 1", 2, key, self.letters.key)),
            # no entry can have this id: the server says so after it has looked at the rights
            (key, ("XADD", self.letters.key, "0-0", "hotplate:reason", "trial")),
        ]


def as_numbers(entry_id: bytes) -> tuple[int, int]:
    """An entry's id, to be compared."""
    ms, _, number = entry_id.partition(b"-")
    return int(ms), int(number)


class OneStep(Way):
    """Everything on one server."""

    def deliver(self, log: Log, entries: Sequence[Entry], readout: Readout) -> Delivered:
        """See `Delivery.deliver`."""
        self.note_time(entries)
        parcels = self.parcels(log, readout)
        touched = readout.batch.entities
        messages = self.runtime.announcements(log, touched) if touched else []
        try:
            settled = self.settle(entries, readout, range(len(entries)), Appends(parcels, messages))
        finally:  # also after an error: it may have been carried out
            self.runtime.forget_computed(log, touched, is_announced=True)
        is_taken = settled.is_taken
        self.note(
            parcel.appended([is_taken[place] for place in parcel.places], length)
            for parcel, length in zip(parcels, settled.lengths, strict=True)
        )
        return self.counted(log, readout, is_taken)

    def trials(self, log: Log) -> list[tuple[Pool, Command]]:
        """See `Delivery.trials`."""
        commands = [*self.stream_trials(), *log_trials(log)]
        nobody = [(EntityShape((), ()), ())]
        said = self.runtime.announcements(log, nobody)[:1]
        commands += [(one.topic, ("PUBLISH", one.topic, one.message)) for one in said]
        return [(self.group.pool, command) for command in commands]


def log_trials(log: Log, mark: bytes | None = None) -> list[Command]:
    """Commands about logs, and about marks beside them, for `trials`."""
    key = log.name.encode() + b"trial"
    commands: list[tuple[Any, ...]] = [
        ("EVAL", "return 1", 1, key),
        ("APPEND", key, ""),
        ("PEXPIRE", key, 1),
        ("GET", key),
        ("HGETALL", key),
    ]
    if mark is not None:
        marks = beside(key, mark)
        commands += [("HMGET", marks, "trial"), ("HDEL", marks, "trial")]
        commands += [("HSET", marks, "trial", ""), ("PEXPIRE", marks, 1)]
    return [(key, command) for command in commands]
