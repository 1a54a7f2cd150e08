"""The shared tier: rows on a Redis or Valkey server, for all processes of a deployment.

An entry is the same packed row as in memory. What is added makes it safe to believe::

    offset  size  what
         0     1  version of this format; 0 marks a lease instead
         1     4  CRC-32 of the key and of everything behind this field
         5     8  fingerprint of the view's identity: schema, version, key types
        13    32  generation of the project and of the view, 16 bytes each: another one was
                  invalidated as a whole
        45     8  the server's clock when the read of the source was about to begin, us
        53     8  the wall clock of the process that read, at the same moment, us
        61     .  the row without its stamp: jitter, then what the codec encodes

*Age.* No two hosts share a monotonic clock. The age of an entry is the greater one of two: by the
server's clock, which is asked in the same round trip, and by the wall clocks of writer and reader.
A clock that was stepped on one host, whichever, makes entries look older, never younger.

*Lease.* A miss puts a lease in the place of the entry (`SET key lease NX GET`), which appoints the
one process that loads. Others find the lease and wait. A fill replaces exactly the lease it was
given; an invalidation deletes whatever is there, so a load that began before it is never kept
(promise 3).

*Restarts and failovers.* A server that is restarted from a snapshot, or a replica that takes over
before it has heard of everything, holds again what had been deleted. So generations count only for
the primary that they were given on, in one run of its process (`run_id`) and one term of its being
the primary (`master_replid`, new with every promotion): each primary that is known has a field of
its own among them. Whoever connects to one that has none gives it one and gives the project another
generation, in one command, before anything is read there: every entry that came along with the data
is one of earlier times, for all processes. Whoever was connected to another run before does so in
any case: what he deleted last he may have told a server that no longer counted. A demoted primary
that goes on answering keeps nothing from anybody for longer than the event channel needs to leave
it (`hotplate.invalidation.channel`). A proxy that spreads connections over several servers shows
another one each time, and the tier then finds nothing; one that does not say who it is is not used.

*Never in the way.* Every exchange has a deadline, connecting included, which happens on the side.
With the first failure a breaker opens, and the tier is left alone until a probe on the side
succeeds. An invalidation that could not be carried out keeps the tier from being read until it has
been: this process never reads what it failed to delete.

Reference: leases after Nishtala et al., "Scaling Memcache at Facebook" (NSDI 2013).
"""

from __future__ import annotations

import atexit
import logging
import os
import struct
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from hotplate.clock import Clock
from hotplate.codec import PREFIX_BYTES
from hotplate.contracts import Found, View
from hotplate.errors import CommandRefused, ServerError
from hotplate.keys import ENTITY_BITS, EntityShape, Key, integer_of
from hotplate.seldom import Seldom
from hotplate.servers import rights
from hotplate.servers.breaker import Breaker
from hotplate.servers.connector import NotConnectedYet
from hotplate.servers.pool import CONNECT_TIMEOUT_S, Command, Packed, Pool, Primaries
from hotplate.servers.redis import RedisServer
from hotplate.stats import SharedStats
from hotplate.tiers.debts import Debts
from hotplate.tiers.entries import (
    BODY_AT,
    EVERY_VIEW,
    HEAD,
    LEASE,
    PRIMARY,
    VERSION,
    entity_of,
    fingerprint_of,
    generations_of,
    is_whole,
    prefix_of,
)
from hotplate.tiers.scripts import FILL, RELEASE, USED_IN_SCRIPTS, script, whole
from hotplate.tiers.slots import Moment, Place, Slot

__all__ = ["SharedBounds", "SharedTier", "tie_of"]

_CLOCKS: Final = struct.Struct(">QQ")
_CLOCKS_AT: Final = BODY_AT - _CLOCKS.size
_IDENTITY_BYTES: Final = _CLOCKS_AT - HEAD.size
_STAMP_BYTES: Final = 8
_LONGEST_MS: Final = 24 * 3_600_000
_BATCH: Final = 500
_PATIENT_S: Final = 1.0
_REACH_S: Final = 0.05
_SETTLE_S: Final = 1.0
_HEADS_MAX: Final = 1_024
_ROW_PREFIX_LEN: Final = len(b"hotplate:row:")
_VERSION_BYTE: Final = bytes([VERSION])
_BUSY: Final = Found(is_busy=True)
_FULL: Final = ("OOM", "MISCONF")
_log = logging.getLogger("hotplate.shared")


@dataclass(frozen=True)
class SharedBounds:
    """How far the shared tier may go.

    Attributes:
        timeout_s: for one exchange with the server.
        lease_s: how long a process that loads may take until another one does.
        max_bytes: of one row.
    """

    timeout_s: float
    lease_s: float
    max_bytes: int


class SharedTier:
    """Rows that one process loaded, for the others.

    No method raises for a fault of the server: what cannot be had is a miss.

    Args:
        server: where.
        project: the Feast project; its entries are its own.
        bounds: how far it may go.
        clock: the cache's.
    """

    def __init__(
        self, server: RedisServer, project: str, bounds: SharedBounds, clock: Clock
    ) -> None:
        self.bounds = bounds
        self._clock = clock
        self._breaker = Breaker(self._recover)
        self._pool = Pool(server, bounds.timeout_s, self._admit, self._breaker.failed)
        self.project = project
        self.has_ties = False
        """Whether model outputs hang on the rows: what forgets a row forgets its tie, too."""
        self._generations_at = generations_of(project)
        self._places: dict[View, Place] = {}
        self._heads: dict[tuple[bytes, ...], Packed] = {}
        self._debts = Debts(EVERY_VIEW)
        self._settles = False
        self.rejected = self.too_large = self.refused = self.errors = 0
        self._lease_ms = max(1, int(bounds.lease_s * 1000))
        self._seldom: dict[str, Seldom] = {}

    @property
    def lease_s(self) -> float:
        """How long to wait for a load of another process."""
        return self.bounds.lease_s

    @property
    def is_usable(self) -> bool:
        """Whether it may be asked: it answers, and nothing is owed to it."""
        if self._breaker.is_closed and not self._debts:
            return True
        self._breaker.keep_probing()
        return False

    @property
    def owed(self) -> int:
        """Invalidations that could not be carried out yet."""
        return len(self._debts)

    @property
    def failures(self) -> int:
        """How often something went wrong so far."""
        return self.errors + self._breaker.opened

    def reach(self, wait_s: float) -> None:
        """Wait until it may be asked: for who has the time, and nothing to do without it.

        From then on it may take a second to answer, or as long as its settings say, if longer.

        Raises:
            ServerError: it cannot be reached in that time.
        """
        self._pool.timeout_s = max(self._pool.timeout_s, _PATIENT_S)
        until_s = time.monotonic() + wait_s
        home = self._generations_at
        while True:
            try:
                self._pool.must([(home, ("HMGET", home, EVERY_VIEW))], CONNECT_TIMEOUT_S)
                problem: ServerError | None = None
            except ServerError as error:
                problem = error
            if problem is None and self.is_usable:
                return
            if time.monotonic() > until_s:
                raise problem or ServerError("the shared tier is left alone: invalidations wait")
            time.sleep(_REACH_S)

    # -- keys -----------------------------------------------------------------------------------

    def _place(self, view: View) -> Place:
        place = self._places.get(view)
        if place is None:
            identity = view.identity
            place = self._places[view] = Place(
                prefix_of(self.project, identity.version, identity.shape),
                identity.view.encode(),
                fingerprint_of(identity),
            )
        return place

    def field_of(self, view: View) -> bytes:
        """The field of a view among the generations."""
        return self._place(view).field

    def row_at(self, view: View, key: Key) -> bytes:
        """The key that a row lies under."""
        return self._place(view).prefix + _entity(key)

    def is_same_row(self, view: View, entry: Any, generation: bytes, row: bytes) -> bool:
        """Whether an entry of this generation says of an entity what a row in memory says."""
        return (
            isinstance(entry, bytes)
            and entry[:1] == _VERSION_BYTE
            and entry.startswith(self._place(view).fingerprint + generation, HEAD.size)
            and entry[BODY_AT - _STAMP_BYTES + PREFIX_BYTES :] == row[PREFIX_BYTES:]
        )

    # -- reading --------------------------------------------------------------------------------

    def look(self, asked: Sequence[tuple[View, Key]]) -> list[Found]:
        """Find rows, in one round trip.

        Args:
            asked: distinct keys with their views.

        Returns:
            One a key: a row with the slot it lies in, an empty slot, word that another process
            loads it, or nothing where the tier cannot be used.
        """
        try:
            if self.is_usable:  # it may have failed while this one waited for its turn
                return self._look(asked)
            return [Found()] * len(asked)
        except (ServerError, TypeError, ValueError) as error:  # the latter: a garbled answer
            self.failed(error)
            return [Found()] * len(asked)

    def _look(self, asked: Sequence[tuple[View, Key]]) -> list[Found]:
        # once for every key of every request that memory does not answer: hence the plain loops
        keys = []
        places: dict[View, Place] = {}
        entity, text = -1, b""  # groups of one request mostly have their entities in common
        for view, key in asked:
            place = places.get(view)
            if place is None:
                place = places[view] = self._place(view)
            if not isinstance(key, int):
                keys.append(place.prefix + entity_of(key[1:]))
                continue
            if key & ENTITY_BITS != entity:
                entity, text = key & ENTITY_BITS, _entity(key)
            keys.append(place.prefix + text)
        fields = tuple([place.field for place in places.values()])
        (server_us, wall_us, now_ns, generations), entries = self.read(fields, keys)
        clocks, unpack_clocks = _CLOCKS.pack(server_us, wall_us), _CLOCKS.unpack_from
        origins = {
            view: (identity := place.fingerprint + generation, identity + clocks)
            for (view, place), generation in zip(places.items(), generations, strict=True)
        }
        found: list[Found] = []
        add, head_bytes, stamp_bytes = found.append, HEAD.size, _STAMP_BYTES
        for (view, _), at, entry in zip(asked, keys, entries, strict=True):
            identity, origin = origins[view]
            row = None
            if entry is not None:
                if entry.startswith(identity, head_bytes) and is_whole(at, entry):
                    read_server_us, read_wall_us = unpack_clocks(entry, _CLOCKS_AT)
                    age_us = server_us - read_server_us
                    if age_us < 0:
                        self.rejected += 1  # the server's clock went back
                    by_wall_us = wall_us - read_wall_us
                    stamp_ns = now_ns - (age_us if age_us > by_wall_us else by_wall_us) * 1_000
                    if age_us >= 0 and stamp_ns > 0:  # with the stamp that it would have here
                        row = stamp_ns.to_bytes(stamp_bytes, "big") + entry[BODY_AT:]
                elif entry[:1] == LEASE:
                    add(_BUSY)
                    continue
                else:
                    self._reject(at, entry, origin)
            add(_found((row, (at, entry, origin), False)))
        return found

    def read(
        self, fields: tuple[bytes, ...], keys: Sequence[bytes]
    ) -> tuple[Moment, list[bytes | None]]:
        """The values of keys, with the time and the generations of fields, in one round trip.

        Raises:
            ServerError: the server does not answer.
        """
        now_ns, wall_us = self._clock.now_ns(), self._clock.wall_ns() // 1_000
        (seconds, micros), known, *values = self._pool.ask_keys(self._head(fields), keys)
        if None in known:
            known = self._begin([EVERY_VIEW, *fields])
        server_us = int(seconds) * 1_000_000 + int(micros)
        every = known[0]
        return Moment(server_us, wall_us, now_ns, [every + one for one in known[1:]]), values

    def _head(self, fields: tuple[bytes, ...]) -> Packed:
        """What is asked before values: the time, and generations."""
        head = self._heads.get(fields)
        if head is None:
            home = self._generations_at
            head = Packed(home, (b"TIME",), (b"HMGET", home, EVERY_VIEW, *fields))
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            self._heads[fields] = head
        return head

    def claim(self, slots: Sequence[Any]) -> list[Found]:
        """Take the leases to load what belongs into slots, unless others are faster.

        Returns:
            One a slot: the slot to fill, word that another process loads it, or nothing.
        """
        token = LEASE + os.urandom(16)
        places = [Slot._make(slot) for slot in slots]
        try:
            replies = self.run(
                [
                    script(FILL, slot.key, slot.seen, token, self._lease_ms)
                    if slot.seen is not None
                    else (slot.key, ("SET", slot.key, token, "NX", "GET", "PX", self._lease_ms))
                    for slot in places
                ]
            )
            return [
                self._claimed(slot, token, reply)
                for slot, reply in zip(places, replies, strict=True)
            ]
        except ServerError as error:
            self.failed_to_write(error)
            return [Found()] * len(slots)

    def _claimed(self, slot: Slot, token: bytes, reply: Any) -> Found:
        if isinstance(reply, CommandRefused):  # something that is no string lies there
            self.rejected += 1
            self._pool.must([(slot.key, ("UNLINK", slot.key))])
            return Found()
        is_ours = reply is None if slot.seen is None else reply == 1
        return Found(None, Slot(slot.key, token, slot.origin)) if is_ours else _BUSY

    def _reject(self, key: bytes, entry: bytes, origin: bytes) -> None:
        """Count an entry that does not verify; one of another generation is no fault of it."""
        if not (is_whole(key, entry) and entry.startswith(origin[:8], HEAD.size)):
            self.rejected += 1

    def _admit(self, met: Primaries) -> None:
        """Believe nothing that came along with the data of a primary that nobody knows yet."""
        home = self._generations_at
        fields = [PRIMARY + b"%b %b" % one for one in sorted(met.ids)]
        try:
            is_known = None not in met.ask(home, "HMGET", home, *fields)
        except CommandRefused as refusal:
            if refusal.code != "WRONGTYPE":
                raise
            # somebody else's: whatever is put in its place makes every entry one of earlier times
            met.ask(home, "UNLINK", home)
            is_known = False
        if met.have_changed or not is_known:
            marks = [part for field in fields for part in (field, b"1")]
            met.ask(home, "HSET", home, EVERY_VIEW, os.urandom(16), *marks)

    def _begin(self, fields: Sequence[bytes]) -> list[bytes]:
        """Give a generation to each field that has none yet."""
        home = self._generations_at
        made = [(home, ("HSETNX", home, field, os.urandom(16))) for field in fields]
        known = self._pool.must([*made, (home, ("HMGET", home, *fields))])[-1]
        return list(known)

    # -- writing --------------------------------------------------------------------------------

    def fill(self, items: Iterable[tuple[Any, bytes, int]]) -> None:
        """Keep rows that were loaded under a lease, or instead of what was seen there.

        Args:
            items: (slot as `look` returned it, row with its stamp, how long it may live in ns).
        """
        commands: list[Command] = []
        for place, row, life_ns in items:
            slot = Slot._make(place)
            body = row[_STAMP_BYTES:]
            if len(body) > self.bounds.max_bytes:
                self.too_large += 1
                self._say("too large", "a row of %d bytes stays out of the shared tier", len(body))
                commands.append(script(RELEASE, slot.key, slot.seen))
                continue
            rest = slot.origin + body
            head = HEAD.pack(VERSION, zlib.crc32(rest, zlib.crc32(slot.key)))
            life_ms = min(_LONGEST_MS, max(1, life_ns // 1_000_000))
            commands.append(script(FILL, slot.key, slot.seen, head + rest, life_ms))
        self.send(commands)

    def release(self, slots: Iterable[Any]) -> None:
        """Give leases back: the load failed, let another process try."""
        self.send([script(RELEASE, slot.key, slot.seen) for slot in map(Slot._make, slots)])

    def send(self, commands: Sequence[Command]) -> None:
        """Run commands whose failure is no more than a miss later."""
        if not commands or not self.is_usable:
            return
        try:
            replies = self.run(commands)
        except ServerError as error:
            self.failed(error)
            return
        self.refused += sum(reply == 0 for reply in replies)

    def run(self, commands: Sequence[Command], wait_s: float | None = None) -> list[Any]:
        """Run commands; scripts that the server does not know yet are sent whole.

        Returns:
            A reply each; a `CommandRefused` where something of another type lies there.

        Raises:
            ServerError: the server does not answer, or refuses otherwise.
        """
        replies = self._pool.ask(commands, wait_s)
        for index, reply in enumerate(replies):
            if isinstance(reply, CommandRefused):
                key, command = commands[index]
                if reply.code == "NOSCRIPT":
                    (replies[index],) = self._pool.ask([(key, whole(command))])
                answer = replies[index]
                if isinstance(answer, CommandRefused) and answer.code != "WRONGTYPE":
                    if "script" in str(answer):  # a server does not say what was refused in it
                        raise ServerError(f"{answer} It needs {rights.shown(USED_IN_SCRIPTS)}.")
                    raise answer
        return replies

    # -- forgetting -----------------------------------------------------------------------------

    def forget_entities(
        self, version: str, shaped: Iterable[tuple[EntityShape, tuple[Any, ...]]]
    ) -> None:
        """Delete entities of one version of a view, and the leases to load them."""
        self._forget(self._names(version, shaped), ())

    def count_entities(
        self, version: str, shaped: Iterable[tuple[EntityShape, tuple[Any, ...]]]
    ) -> int:
        """How many of these entities of one version of a view are here now.

        Raises:
            ServerError: the server does not say; unlike elsewhere, because nothing could be
                answered instead.
        """
        keys = self._names(version, shaped)
        count = 0
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            replies = self.run([(key, ("EXISTS", key)) for key in batch], CONNECT_TIMEOUT_S)
            count += sum(map(int, replies))
        return count

    def _names(
        self, version: str, shaped: Iterable[tuple[EntityShape, tuple[Any, ...]]]
    ) -> list[bytes]:
        prefixes: dict[EntityShape, bytes] = {}
        keys = []
        for shape, values in shaped:
            prefix = prefixes.get(shape)
            if prefix is None:
                prefix = prefixes[shape] = prefix_of(self.project, version, shape)
            keys.append(prefix + entity_of(values))
        return keys

    def forget_views(self, names: Iterable[str]) -> None:
        """Make every entry of these views one of an earlier generation."""
        self._forget((), [name.encode() for name in names])

    def forget_all(self) -> None:
        """The same for every view of the project."""
        self._forget((), [EVERY_VIEW])

    def forget_fields(self, fields: Sequence[bytes]) -> None:
        """The same for fields among the generations that are no views'."""
        self._forget((), fields)

    def _forget(self, keys: Sequence[bytes], fields: Sequence[bytes]) -> None:
        if self._owe_if_open(keys, fields):
            return
        try:
            self._carry_out(keys, fields)
        except ServerError as error:
            self.errors += 1
            self._owe(keys, fields)
            self._breaker.failed(error)
            self._say("forget", "the shared tier is left alone, invalidations wait: %s", error)

    def _owe(self, keys: Sequence[bytes], fields: Sequence[bytes]) -> None:
        self._debts.add(keys, fields)
        if not self._settles:  # a process that ends must not leave it to nobody
            self._settles = True
            atexit.register(_settle, weakref.ref(self))

    def _carry_out(self, keys: Sequence[bytes], fields: Sequence[bytes]) -> None:
        if fields:
            home = self._generations_at
            made = [(home, ("HSET", home, field, os.urandom(16))) for field in fields]
            self._pool.must(made, CONNECT_TIMEOUT_S)
        for start in range(0, len(keys), _BATCH):
            part = keys[start : start + _BATCH]
            self._pool.unlink([*part, *self.ties_of(part)], CONNECT_TIMEOUT_S)

    def ties_of(self, rows: Sequence[bytes]) -> list[bytes]:
        """The keys that outputs hang on which rows went into, by the keys of these."""
        return [tie_of(key) for key in rows] if self.has_ties else []

    def _owe_if_open(self, keys: Sequence[bytes], fields: Sequence[bytes]) -> bool:
        if self.is_usable:
            return False
        self._owe(keys, fields)
        self._breaker.keep_probing()  # one that is just ending may not have seen it
        return True

    # -- faults ---------------------------------------------------------------------------------

    def failed(self, error: Exception) -> None:
        """Note a fault of the server, and leave it alone for a while."""
        self.errors += 1
        if not isinstance(error, NotConnectedYet):  # it may just be far away
            self._breaker.failed(error)
        self._say("failed", "the shared tier does not answer, the source is read: %s", error)

    def failed_to_write(self, error: Exception) -> None:
        """The same, but where the server is only full: what is there can still be read."""
        if not (isinstance(error, CommandRefused) and error.code in _FULL):
            self.failed(error)

    def _recover(self) -> None:
        """Whether the server is back; the invalidations it missed come first."""
        self._pool.renew()
        self._debts.pay(self._carry_out)

    def reconnect(self) -> None:
        """Another primary may have taken over: leave the tier alone until it was asked."""
        self._breaker.failed(ServerError("the primary may have been replaced"))

    def _say(self, what: str, message: str, detail: object) -> None:
        if self._seldom.setdefault(what, Seldom()).is_time():
            _log.warning(message, detail)

    def stats(self) -> SharedStats:
        """The counts now."""
        return SharedStats(
            is_usable=self.is_usable,
            opened=self._breaker.opened,
            errors=self.errors,
            rejected=self.rejected,
            too_large=self.too_large,
            fills_refused=self.refused,
            owed=self.owed,
            last_error=self._breaker.last_error,
        )

    def settle(self) -> None:
        """Wait until nothing is owed to the server, for a second at the most."""
        until_s = time.monotonic() + _SETTLE_S
        while self._debts and time.monotonic() < until_s:
            self._breaker.keep_probing()
            time.sleep(_REACH_S)

    def close(self) -> None:
        """Close what is idle, once nothing is owed."""
        self.settle()
        self._pool.drop()


def _settle(reference: weakref.ref[SharedTier]) -> None:
    tier = reference()
    if tier is not None:
        tier.settle()


def tie_of(row: bytes) -> bytes:
    """The key that outputs hang on which a row goes into, by the key of the row."""
    return b"hotplate:tie:" + row[_ROW_PREFIX_LEN:]


def _entity(key: Key) -> bytes:
    return b"%d" % integer_of(key) if isinstance(key, int) else entity_of(key[1:])


# without the arguments' names: a request makes one for each of its keys
_found: Final[Callable[[tuple[Any, ...]], Found]] = partial(tuple.__new__, Found)
