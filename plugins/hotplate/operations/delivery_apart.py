"""From a stream into event logs that are elsewhere; see `hotplate.operations.delivery`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hotplate.errors import CommandRefused
from hotplate.operations.delivery import (
    DeadLetters,
    Delivered,
    Parcel,
    Way,
    as_numbers,
    log_trials,
)
from hotplate.operations.stream_entries import Entry, Readout
from hotplate.operations.stream_group import StreamGroup, checked
from hotplate.servers.pool import Command, Pool
from hotplate.servers.topology import beside
from hotplate.serving.runtime import Runtime
from hotplate.serving.windows import Log
from hotplate.windows.redis_state import LogServer

__all__ = ["FourSteps"]

_STEP: Final = 500
_ANNOUNCED_S: Final = 5.0
_POLL_S: Final = 0.01

# KEYS: a log, and the hash beside it. ARGV: how long the log lives from now on (0: as before), how
# long the hash does, how many; then ids; then records.
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
  if ARGV[1] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {length, taken}
"""


class FourSteps(Way):
    """Logs on a cluster, or elsewhere than the stream or the place where processes meet."""

    step = _STEP

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
        self.note_time(entries)
        ours = self._ours(entries)
        parcels = [
            _only(parcel, entries, ours)
            for parcel in self.parcels(log, readout)
            if any(entries[place].id in ours for place in parcel.places)
        ]
        touched = readout.batch.entities
        try:
            accepted = self._apply(log, parcels, entries)
        finally:  # also after an error: part of it may have been written
            self.runtime.forget_computed(log, touched)
        self._await_announced()
        # only those: what has become its own since then has not been appended
        places = [place for place, entry in enumerate(entries) if entry.id in ours]
        is_taken = self.settle(entries, readout, places).is_taken
        self._forget_marks(parcels, entries, is_taken)
        found = self.counted(log, readout, is_taken)
        found.elsewhere += max(0, found.accepted - accepted)  # in their logs since the last time
        found.accepted = accepted
        return found

    def _ours(self, entries: Sequence[Entry]) -> set[bytes]:
        """Which entries this consumer still has: others may have been taken over meanwhile."""
        span = sorted((entry.id for entry in entries), key=as_numbers)
        group = self.group
        command = ("XPENDING", group.key, group.group, span[0], span[-1], 100_000, group.consumer)
        return {bytes(one[0]) for one in group.ask(*command)}

    def _apply(self, log: Log, parcels: Sequence[Parcel], entries: Sequence[Entry]) -> int:
        """Append what is not in the logs yet; how many events that were."""
        commands: list[Command] = []
        for parcel in parcels:
            ids = [entries[place].id for place in parcel.places]
            keys = (parcel.key, beside(parcel.key, self._mark))
            head = (parcel.life_ms, self._life_ms(parcel), len(ids))
            commands.append((parcel.key, ("EVAL", _APPLY, 2, *keys, *head, *ids, *parcel.records)))
        replies = self._ask_logs(commands)
        pairs = list(zip(parcels, replies, strict=True))
        self.note(parcel.appended(taken, length) for parcel, (length, taken) in pairs)
        return sum(sum(taken) for parcel, (_, taken) in pairs if parcel.layout is log)

    @staticmethod
    def _life_ms(parcel: Parcel) -> int:
        """A mark outlives what it speaks of: no event is in any window for longer."""
        return 2 * parcel.layout.plan.ttl_ms

    def _ask_logs(self, commands: Sequence[Command]) -> list[Any]:
        try:
            return self.place.ask(commands)
        except CommandRefused as refusal:
            return [checked(refusal, self.group.stream)]

    def _await_announced(self) -> None:
        """Wait until other processes have been told, but not for a server that is not there.

        Who does not hear it from that server serves nothing from memory, and forgets all when it
        hears again.
        """
        coherence = self.runtime.coherence
        until_s = time.monotonic() + _ANNOUNCED_S
        while coherence.unsent and time.monotonic() < until_s:
            time.sleep(_POLL_S)

    def _forget_marks(
        self, parcels: Sequence[Parcel], entries: Sequence[Entry], is_taken: Mapping[int, bool]
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
        pool = self.place.pool
        return [
            *((self.group.pool, command) for command in self.stream_trials()),
            *((pool, command) for command in log_trials(log, self._mark)),
        ]


def _only(parcel: Parcel, entries: Sequence[Entry], ours: set[bytes]) -> Parcel:
    pairs = [
        (place, record)
        for place, record in zip(parcel.places, parcel.records, strict=True)
        if entries[place].id in ours
    ]
    places, records = [place for place, _ in pairs], [record for _, record in pairs]
    return replace(parcel, places=places, records=records)
