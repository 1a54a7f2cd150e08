"""The read-through engine.

Design note. A read of many keys is an algorithm without I/O: a generator that yields what has to
be waited for (`LoadStep`: ask the source; `WaitStep`: another request is asking it already) and
is driven by a thread (`run`) or a task (`run_async`). Sync and async answers come from the same
code.

What holds, and where:

- age (promise 1): a row's stamp is taken before the read of the source begins; its bound is
  computed when it is read, from the policy of that moment. Jitter only shortens. A request that
  had to wait looks at its rows again before it answers: what expired meanwhile is loaded too,
  unless its load began within this request, as fresh as the uncached store would have answered.
- invalidation, no resurrection (2, 3): the version of a key is taken before its load and checked
  when the row is kept, under the lock that invalidations take. A key that is invalidated leaves
  the board of flights, so that a later request does not join an earlier load.
- errors (4): nothing is kept from a load that failed.
- one load (9): whoever boards a flight looks into memory once more, because the flight before it
  may have landed in between.

References: singleflight of Go's x/sync; leases in Nishtala et al., "Scaling Memcache at Facebook"
(NSDI 2013); early refresh after Vattani et al., "Optimal Probabilistic Cache Stampede Prevention"
(VLDB 2015), here at a fixed age, since jitter already spreads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from hotplate.clock import Clock
from hotplate.codec import is_absent, stamp_of
from hotplate.contracts import (
    Lease,
    LoadRequest,
    SharedRows,
    Source,
    Tier,
    TimedRows,
    View,
)
from hotplate.core.flights import Flight, Flights
from hotplate.core.last_good import LastGood
from hotplate.core.refresh import Refresher
from hotplate.core.request import Answer, Bound, Reading, Want, aged
from hotplate.core.sharing import Sharing
from hotplate.core.steps import LoadStep, PauseStep, Steps, WaitStep, run, run_async
from hotplate.histogram import WAITS_S, Histogram
from hotplate.invalidation.local import Domain
from hotplate.keys import Key
from hotplate.stats import AGE_SAMPLE, GroupCounters
from hotplate.tiers.memory import EvictionCause, MemoryBounds, MemoryTier

__all__ = ["Answer", "Bound", "Engine", "Want"]


_NEVER: Final = b"\xff" * 8
# Waiting for a message to be heard: up to about a millisecond in steps that the system makes 60 us
# long. In a flood of messages a reader goes on after that, as if they had not arrived yet.
_HEARING_S: Final = 0.00001
_HEARING_STEPS: Final = 16


class Rewarm(Protocol):
    """What reads again what had to be forgotten; see `hotplate.serving.rewarm`."""

    def note_loaded(self, wants: Mapping[Key, Want]) -> None:
        """A request loads rows."""

    def note_forgotten(self, keys: Sequence[Key]) -> None:
        """Rows were in memory, and had to go."""


class Engine:
    """Answers reads from the memory tier and, for what is missing, from the source.

    Args:
        source: where the truth is read.
        domain: the caches that forget together.
        bounds: of the memory tier.
        clock: where ages come from.
        shared: the shared tier, or None where there is none.
        on_read: told of what is asked for where memory alone does not answer.
    """

    def __init__(
        self,
        source: Source,
        domain: Domain,
        bounds: MemoryBounds,
        clock: Clock,
        shared: Callable[[], SharedRows | None] = lambda: None,
        on_read: Callable[[Sequence[Want]], None] | None = None,
    ) -> None:
        self._on_read = on_read
        self.rewarm: Rewarm | None = None
        self._rehearsed = GroupCounters("")
        self.source = source
        self._shared = shared
        self.domain = domain
        self.clock = clock
        self.memory = MemoryTier(bounds, self._count_added, self._count_removed)
        self.flights = Flights()
        self.source_batches = self._reads = 0
        self.source_seconds = Histogram(WAITS_S)
        self.refresher = Refresher(self._refresh)
        self._last_good = LastGood(self.memory, clock)
        self._sharing = Sharing(self.memory, domain, clock, self._ask_source)
        self._counters: dict[str, GroupCounters] = {}
        self._counters_of: dict[View, GroupCounters] = {}
        self._counters_of_token: dict[int, GroupCounters] = {}
        domain.join(self)

    # -- counting -------------------------------------------------------------------------------

    def counters(self, group: str, view: View) -> GroupCounters:
        """The counters of a group; from now on the view counts as the group's."""
        found = self._counters.setdefault(group, GroupCounters(group))
        if self._counters_of.get(view) is not found:
            self._counters_of[view] = found
            self._counters_of_token.clear()
        return found

    def group_counters(self) -> Mapping[str, GroupCounters]:
        """Every group's counters, by name."""
        return dict(self._counters)

    @property
    def rehearsed(self) -> int:
        """Reads that nobody asked for."""
        return self._rehearsed.snapshot().reads

    def views_of(self, group: str) -> list[View]:
        """The views that were read and count as a group's."""
        held = list(self._counters_of.items())
        return [view for view, counters in held if counters.name == group]

    def _count_added(self, token: int, entries: int, size: int) -> None:
        counters = self._counters_of_token.get(token) or self._counters_by_token(token)
        if counters is not None:
            counters.bytes += size
            counters.entries += entries

    def _count_removed(self, token: int, freed: int, cause: EvictionCause | None) -> None:
        counters = self._counters_by_token(token)
        if counters is None:
            return
        counters.bytes -= freed
        counters.entries -= 1
        if cause is None:
            counters.invalidated += 1
        else:
            name = f"evicted_{cause.value}"
            setattr(counters, name, getattr(counters, name) + 1)

    def _counters_by_token(self, token: int) -> GroupCounters | None:
        counters = self._counters_of_token.get(token)
        if counters is None:
            view = self.domain.view_of(token)
            counters = None if view is None else self._counters_of.get(view)
            if counters is not None:
                self._counters_of_token[token] = counters
        return counters

    # -- reading --------------------------------------------------------------------------------

    def read(self, wants: Sequence[Want], now_ns: int, *, is_rehearsed: bool = False) -> Answer:
        """Answer a request on this thread.

        Args:
            wants: what it asks for.
            now_ns: when it came.
            is_rehearsed: whether nobody asked, and it is done for what it leaves behind.

        Raises:
            Exception: whatever the source raised, unless the policy lets the last value stand in.
        """
        if self._on_read is not None and not is_rehearsed:
            self._on_read(wants)
        steps = self._read(wants, now_ns, is_async=False, is_rehearsed=is_rehearsed)
        return run(steps, self.source)

    async def read_async(self, wants: Sequence[Want], now_ns: int) -> Answer:
        """The same on the running event loop."""
        if self._on_read is not None:
            self._on_read(wants)
        return await run_async(self._read(wants, now_ns, is_async=True), self.source)

    def _read(
        self, wants: Sequence[Want], now_ns: int, *, is_async: bool, is_rehearsed: bool = False
    ) -> Steps[Answer]:
        reading = Reading(wants, now_ns, is_async=is_async, is_rehearsed=is_rehearsed)
        reading.flights_ended = self.flights.ended
        # all groups of a cache have one channel, and so one lease
        lease = next((one.bound.lease for one in wants if one.bound.lease.unheard[0]), None)
        if lease is not None:
            yield from self._let_hear(reading, lease)
        for want in wants:
            self._look(reading, want)
        if reading.missing and (shared := self._shared()) is not None:
            yield from self._take_shared(reading, shared)
        while reading.missing:
            missing, reading.missing = reading.missing, {}
            if self.rewarm is not None and not is_rehearsed:
                self.rewarm.note_loaded(missing)
            if self._last_good.asked_again_ns:
                self._last_good.stand_in(reading, missing)
            yield from self._load_missing(reading, missing)
            if not reading.missing:
                self._look_again(reading)
        if reading.refresh:
            self._submit_refresh(reading.refresh)
        self._reads += 1
        if self._reads % AGE_SAMPLE == 1 and not is_rehearsed:
            self._record_ages(reading)
        return reading.answer()

    def _record_ages(self, reading: Reading) -> None:
        """Of one read of so many, how old the oldest row of each group was that a tier answered."""
        for want in reading.wants:
            policy, oldest_ns = want.bound.policy, -1
            for key in want.keys:
                row = reading.answer_of[key]
                tier = reading.origins.get(key, Tier.MEMORY)
                if tier not in (Tier.MEMORY, Tier.SHARED) or not want.bound.is_cached:
                    continue
                age_ns = reading.now_ns - stamp_of(row)
                oldest_ns = max(oldest_ns, age_ns)
                most_ns = policy.negative_ttl_ns if is_absent(row) else policy.ttl_ns
                if age_ns > most_ns and stamp_of(row) < reading.began_ns:
                    want.counters.served_late += 1
            if oldest_ns >= 0:
                want.counters.ages.add(oldest_ns / 1e9)

    def _let_hear(self, reading: Reading, lease: Lease) -> Steps[None]:
        """A message has arrived: let the thread that waits for it have the interpreter.

        A thread that never waits for anything would keep it for another 5 ms
        (`sys.getswitchinterval`), and serve meanwhile what it is about to be told to forget.
        """
        for _ in range(_HEARING_STEPS):
            yield PauseStep(_HEARING_S)
            if not lease.unheard[0]:
                break
        reading.now_ns = self.clock.now_ns()

    def _look(self, reading: Reading, want: Want) -> None:
        """Find a want's keys in memory; note what is missing and what is due for a refresh."""
        bound, found = want.bound, reading.answer_of
        # a hit rate is that of who asks
        counters = self._rehearsed if reading.is_rehearsed else want.counters
        if not bound.is_cached:
            for key in want.keys:
                counters.misses_never += 1
                reading.missing[key] = want
            return
        if not bound.lease.is_valid(reading.now_ns):
            for key in want.keys:
                counters.misses_channel += 1
                reading.missing[key] = want
            return
        get, get_absent, missing = self.memory.get, self.memory.get_absent, reading.missing
        fresh = bound.threshold(reading.now_ns)
        for key in want.keys:
            if key in missing:
                counters.misses_cold += 1
                continue
            row = get(key)
            if row is not None and row > fresh and not is_absent(row):
                counters.hits_memory += 1
                found[key] = row
                continue
            if row is None:
                row = get_absent(key)
                if row is None:
                    counters.misses_cold += 1
                    missing[key] = want
                    continue
            age_ns = reading.now_ns - stamp_of(row)
            if age_ns > bound.expiry_ns(row):
                counters.misses_expired += 1
                missing[key] = want
                continue
            if is_absent(row):
                counters.hits_absent += 1
            else:
                counters.hits_memory += 1
            found[key] = row
            if bound.is_refresh_due(row, age_ns):
                reading.refresh[key] = want

    def _take_shared(self, reading: Reading, shared: SharedRows) -> Steps[None]:
        """Take what the shared tier has, unless it is being loaded, with no more ado than that.

        Threads that miss at the same time all look there: for the source there is one load.
        """
        if self.rewarm is not None and not reading.is_rehearsed:
            self.rewarm.note_loaded(reading.missing)
        is_loading = self.flights.is_loading
        if len(self.flights) and any(map(is_loading, reading.missing)):
            return
        is_judged = yield from self._sharing.take(shared, reading)
        if not reading.missing and not is_judged:
            self._look_again(reading)

    def _look_again(self, reading: Reading) -> None:
        """After a wait: what was found in memory, or came by another's load, may have expired."""
        reading.flights_ended = self.flights.ended
        reading.now_ns = self.clock.now_ns()
        found, origins = reading.answer_of, reading.origins
        began = reading.began_ns.to_bytes(8, "big")  # rows compare by their stamps
        for want in reading.wants:
            fresh = want.bound.threshold(reading.now_ns)
            if not want.bound.lease.is_valid(reading.now_ns):
                fresh = _NEVER
            for key in want.keys:
                row = found[key]
                if (row > fresh and not is_absent(row)) or row >= began or key in reading.loaded:
                    continue
                if origins.get(key) is Tier.LAST_GOOD:
                    limit_ns = want.bound.policy.last_good_ns or 0
                    is_good = reading.now_ns - stamp_of(row) <= limit_ns
                else:
                    is_good = self._is_good(row, want.bound, reading)
                if not is_good and key not in reading.missing:
                    want.counters.misses_expired += 1
                    reading.missing[key] = want

    @staticmethod
    def _is_good(row: bytes, bound: Bound, reading: Reading) -> bool:
        """Whether a row is fresh, or was read from the source since the request came."""
        stamp_ns = stamp_of(row)
        return stamp_ns >= reading.began_ns or (
            reading.now_ns - stamp_ns <= bound.expiry_ns(row)
            and bound.lease.is_valid(reading.now_ns)
        )

    def _fresh(self, key: Key, bound: Bound, now_ns: int) -> bytes | None:
        if not bound.lease.is_valid(now_ns):
            return None
        row = self.memory.get(key)
        if row is None:
            row = self.memory.get_absent(key)
        if row is None or now_ns - stamp_of(row) > bound.expiry_ns(row):
            return None
        return row

    # -- loading --------------------------------------------------------------------------------

    def _load_missing(self, reading: Reading, missing: dict[Key, Want]) -> Steps[None]:
        shared = [key for key, want in missing.items() if want.bound.is_cached]
        own, others = self.flights.board(shared, is_async=reading.is_async)
        try:
            to_load = missing
            if own is None or len(own.keys) < len(missing):
                known = set(shared)
                to_load = {key: want for key, want in missing.items() if key not in known}
                if own is not None:
                    to_load |= {key: missing[key] for key in own.keys}
            if own is not None and reading.flights_ended != self.flights.ended:
                # the flight before this one may have landed between our look and our boarding
                to_load = self._not_landed(reading, own, to_load)
            if own is not None or to_load:
                yield from self._load_own(reading, own, to_load)
            for flight, keys in others.items():
                yield WaitStep(flight)
                self._take_landed(reading, flight, {key: missing[key] for key in keys}, missing)
        finally:  # whatever interrupts: nobody may wait for a flight that will not end
            if own is not None and not own.has_ended:
                self.flights.leave(own)
                own.crash(None)

    def _not_landed(
        self, reading: Reading, own: Flight, to_load: Mapping[Key, Want]
    ) -> dict[Key, Want]:
        """What is not in memory by now."""
        left = dict(to_load)
        for key in own.keys:
            row = self._fresh(key, left[key].bound, reading.now_ns)
            if row is not None:
                reading.answer_of[key] = own.rows[key] = row
                del left[key]
        return left

    def _load_own(
        self, reading: Reading, flight: Flight | None, to_load: dict[Key, Want]
    ) -> Steps[None]:
        rows: dict[Key, bytes] = dict(flight.rows) if flight is not None else {}
        tiers: dict[Key, Tier] = {}
        try:
            if to_load:
                shared = self._shared()
                if shared is None or not shared.is_usable:
                    yield from self._ask_source(to_load, rows)
                else:
                    yield from self._sharing.ask(shared, reading, to_load, rows, tiers)
        except BaseException as error:
            is_sources = isinstance(error, Exception)
            if flight is not None:
                self.flights.leave(flight)
                flight.rows = rows
                flight.crash(error if is_sources else None)
            lost = {key: want for key, want in to_load.items() if key not in rows}
            if not is_sources or not self._last_good.take(reading, lost, error):
                raise
            to_load = {key: want for key, want in to_load.items() if key in rows}
            flight = None
        if flight is not None:
            self.flights.leave(flight)
            flight.land(rows)
        for key in to_load:
            reading.answer_of[key] = rows[key]
            tier = reading.origins[key] = tiers.get(key, Tier.SOURCE)
            if tier is Tier.SOURCE:
                reading.loaded.add(key)

    def _ask_source(
        self, to_load: dict[Key, Want], rows: dict[Key, bytes]
    ) -> Generator[LoadStep, Any, None]:
        """Load keys in one batch, stamp them into `rows`, keep those that may be kept.

        Where a part of the source failed, the rest is there when its error is raised.
        """
        by_view: dict[View, tuple[Want, list[Key]]] = {}
        for key, want in to_load.items():
            by_view.setdefault(want.view, (want, []))[1].append(key)
        batches = list(by_view.values())
        requests = [LoadRequest(want.view, want.table, keys) for want, keys in batches]
        versions = {key: self.memory.version(key) for key in to_load}
        began_ns = self.clock.now_ns()
        self.source_batches += 1
        try:
            loaded = yield LoadStep(requests)
        except BaseException:
            for want, keys in batches:
                want.counters.load_errors += len(keys)
            raise
        finally:
            self.source_seconds.add((self.clock.now_ns() - began_ns) / 1e9)
        stamp = began_ns.to_bytes(8, "big")
        failed: list[Exception] = []
        for (want, keys), bodies in zip(batches, loaded, strict=True):
            if isinstance(bodies, Exception):
                want.counters.load_errors += len(keys)
                failed.append(bodies)
                continue
            if len(bodies) != len(keys):
                raise RuntimeError(
                    f"the source returned {len(bodies)} rows of feature view "
                    f"{want.view.identity.view!r} for {len(keys)} entities"
                )
            want.counters.loads += len(keys)
            self._last_good.asked_again_ns.pop(want.view, None)
            jitter = os.urandom(len(keys))
            fresh = {
                key: stamp + jitter[index : index + 1] + body
                for index, (key, body) in enumerate(zip(keys, bodies, strict=True))
            }
            if type(bodies) is TimedRows:
                fresh = aged(fresh, bodies.lives_ns, want.bound, began_ns)
            rows |= fresh
            if want.bound.is_cached:
                items = [(key, row, versions[key]) for key, row in fresh.items()]
                want.counters.fills_refused += self.memory.fill(items, self.domain.is_current)
        if failed:
            raise failed[0]

    def _take_landed(
        self, reading: Reading, flight: Flight, wanted: dict[Key, Want], asked: Iterable[Key]
    ) -> None:
        """Use what another request's flight brought, or ask again."""
        if flight.error is not None and flight.keys <= set(asked):
            lost = {key: want for key, want in wanted.items() if key not in flight.rows}
            if not self._last_good.take(reading, lost, flight.error):
                raise flight.error
            wanted = {key: want for key, want in wanted.items() if key in flight.rows}
        reading.now_ns = self.clock.now_ns()
        for key, want in wanted.items():
            row = flight.rows.get(key)
            if row is None or not self._is_good(row, want.bound, reading):
                reading.missing[key] = want
            else:
                want.counters.coalesced += 1
                reading.answer_of[key] = row
                reading.origins[key] = Tier.SOURCE

    # -- refreshing -----------------------------------------------------------------------------

    def _submit_refresh(self, due: Mapping[Key, Want]) -> None:
        keys = {key: want for key, want in due.items() if not self.flights.is_loading(key)}
        if keys and not self.refresher.submit(keys):
            for want in keys.values():
                want.counters.refreshes_dropped += 1

    def _refresh(self, due: Mapping[Key, Want]) -> None:
        """Reload keys before they expire; runs on the refresher's thread."""
        flight, _ = self.flights.board(due, is_async=False)
        if flight is None:
            return
        to_load = {key: due[key] for key in flight.keys}
        now_ns = self.clock.now_ns()
        for key in flight.keys:  # a load may have landed since the refresh was asked for
            row = self.memory.peek(key)
            if row is not None and not due[key].bound.is_refresh_due(row, now_ns - stamp_of(row)):
                flight.rows[key] = row
                del to_load[key]
        for want in to_load.values():
            want.counters.refreshes += 1
        try:
            run(self._load_own(Reading((), now_ns, is_refresh=True), flight, to_load), self.source)
        except Exception:
            for want in to_load.values():
                want.counters.refresh_errors += 1
            raise

    # -- forgetting -----------------------------------------------------------------------------

    def forget_keys(self, keys: Sequence[Key]) -> int:
        """Never again serve what was read before for these keys; returns the rows dropped."""
        # in this order: a flight boarded in between finds no row in memory that it could hand on
        gone: list[Key] | None = None if self.rewarm is None else []
        dropped = self.memory.forget(keys, gone)
        self.flights.detach(keys)
        if gone and self.rewarm is not None:
            self.rewarm.note_forgotten(gone)
        return dropped

    def forget_tokens(self, tokens: frozenset[int]) -> int:
        """Drop every entry under these tokens; returns the rows dropped."""
        gone: list[Key] | None = None if self.rewarm is None else []
        dropped = self.memory.forget_tokens(tokens, gone)
        self._counters_of_token.clear()
        self.flights.detach_tokens(tokens)
        if gone and self.rewarm is not None:
            self.rewarm.note_forgotten(gone)
        return dropped

    def restart_after_fork(self) -> None:
        """Start clean in a forked child; rows stay, with the ages they have."""
        self.flights.restart_after_fork()
        self.memory.restart_after_fork()
        self.refresher.restart_after_fork()
