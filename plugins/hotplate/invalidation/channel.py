"""The event channel: what others change is forgotten here within milliseconds.

There are two connections to each primary. On the first, a subscription: to the server's own
broadcast of changed keys (`CLIENT TRACKING ... BCAST`, which sees every writer, whether or not it
knows Hotplate), and to a topic where processes announce what they wrote into a store that
broadcasts nothing. The second sends a *probe* every 100 ms, a message to ourselves through the
first. A server answers in order, so a probe that comes back proves that everything changed before
it was sent has been heard: it renews the *lease* under which event-coherent rows are served from
memory. Lost messages, a frozen server, a network that swallows: the lease ends, and such rows are
read from the source until the channel is whole again.

Whatever was missed while there was no channel is unknown, so every session begins by forgetting
all event-coherent rows. A connection that dies is never mended silently.

Hearing needs the interpreter, which a thread that never waits gives up every 5 ms only. So messages
are received into a buffer that the kernel fills without it, and a read that finds something there
lets the listening thread go first (`Lease.unheard`).

In a cluster a session has such a pair for each primary, and ends when the cluster's configuration
changes: a slot that moved is broadcast by a node that may not be listened to yet.

References: Redis, "Client-side caching in Redis" (broadcasting mode, redirection under RESP2);
Gray and Cheriton, "Leases" (SOSP 1989).
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from random import SystemRandom
from typing import Any, Final, Protocol

from hotplate.clock import Clock
from hotplate.contracts import NOTHING_UNHEARD, Lease
from hotplate.forks import leave_behind, restart_in_children
from hotplate.histogram import WAITS_S, Histogram
from hotplate.invalidation.messages import Change, decode
from hotplate.invalidation.session import CHANGED_KEYS, LEASE_NS, Session
from hotplate.seldom import Seldom
from hotplate.servers.redis import RedisServer

__all__ = ["LEASE_NS", "Channel", "Hearer"]

_JOIN_S: Final = 2.0
_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 0.5
_chance = SystemRandom()  # an application may have seeded the one that all share
_log = logging.getLogger("hotplate.channel")

ORIGIN: str = uuid.uuid4().hex
"""This process, to others; a forked child gets its own."""


class Hearer(Protocol):
    """What is told of changes."""

    def hear_keys(self, keys: Sequence[bytes]) -> None:
        """These keys of the server were written, expired or deleted by somebody."""

    def hear_change(self, change: Change) -> None:
        """Another process announced a change."""

    def hear_gap(self) -> None:
        """Anything may have changed."""


class _Outdated(Exception):
    """While a session was opened, the channel was closed or told to listen for something else."""


class Channel:
    """Listens for changes and announces ours.

    Nothing is opened before `start`, which whoever misses the lease calls.

    Args:
        server: where processes meet.
        topic: the name under which they do.
        hearer: what is told of changes; the channel ends with it.
        clock: the cache's.
    """

    def __init__(self, server: RedisServer, topic: str, hearer: Hearer, clock: Clock) -> None:
        self.lease = Lease(-1, self.start)
        self._server = server
        self._topic = topic.encode()
        self._hearer = weakref.ref(hearer)
        self._clock = clock
        self._prefixes: frozenset[bytes] = frozenset()
        self._term = 0
        self._reset()
        self.sessions = self.gaps = self.keys_heard = self.changes_heard = 0
        self.lags = Histogram(WAITS_S)
        self.last_error: str | None = None
        self._seldom = Seldom()
        restart_in_children(self)

    def _reset(self) -> None:
        self._end_lease()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._session: Session | None = None

    def _end_lease(self) -> None:
        self.lease.until_ns, self.lease.unheard = -1, NOTHING_UNHEARD

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen, unless it does already."""
        if self._thread is not None and self._thread.is_alive():
            return
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self._thread = threading.Thread(
                target=_listen,
                args=(weakref.ref(self), self._term),
                name="hotplate-channel",
                daemon=True,
            )
            try:
                self._thread.start()
            except RuntimeError as error:  # no thread to be had: rows are read from the source
                self._thread = None
                self.note(error)

    def close(self) -> None:
        """Stop listening, until the lease is missed again."""
        with self._lock:
            self._term += 1
            self._session = None
            self._end_lease()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)

    def is_over(self, term: int) -> bool:
        """Whether a thread that began in some term has nothing left to do."""
        return term != self._term or self._hearer() is None

    def track(self, prefixes: Iterable[bytes]) -> None:
        """Listen for keys that begin with these, too; no row is served before that is so."""
        with self._lock:
            wanted = self._prefixes | frozenset(prefixes)
            if wanted != self._prefixes:
                self._prefixes = wanted
                self._session = None
                self._end_lease()
        self.start()

    @property
    def is_watching(self) -> bool:
        """Whether sentinels say which server is the primary; it is watched while there is one."""
        return self._server.kind == "redis_sentinel"

    @property
    def is_started(self) -> bool:
        """Whether anything is listened for; not by a process that only announces."""
        return self._thread is not None

    @property
    def is_whole(self) -> bool:
        """Whether everything changed until a moment ago has been heard."""
        return self._clock.now_ns() <= self.lease.until_ns

    def note(self, error: Exception) -> None:
        """Remember why there is no channel, and log it once a minute."""
        self.last_error = str(error)
        if self._seldom.is_time():
            _log.warning(
                "the event channel is down, event-coherent groups are read from the source: %s",
                error,
            )

    # -- one session ----------------------------------------------------------------------------

    def begin(self, term: int) -> Session:
        """Connect to every primary, listen, forget what may have been missed, start probing.

        Raises:
            ServerError: a primary cannot be reached or lacks a right.
        """
        with self._lock:
            prefixes = self._prefixes
        topology = self._server.topology()
        session = Session(self, self._server, topology, self._topic, sorted(prefixes))
        try:
            session.connect()
            with self._lock:
                if prefixes != self._prefixes or term != self._term:
                    raise _Outdated
                self._session = session
                self.lease.unheard = session.unheard
            self.sessions += 1
            self.tell_gap()
        except BaseException:
            session.close()
            raise
        return session

    def is_current(self, session: Session) -> bool:
        """Whether a session still listens for all there is."""
        return self._session is session and self._hearer() is not None

    def renew(self, session: Session, until_ns: int) -> None:
        """A probe came back from every primary.

        After a lapse it proves that everything has been heard that the server was told. Others may
        have been unable to tell it, too: what they announce, and what they delete in the shared
        tier, may be on its way. Keys that the server itself broadcasts are not.
        """
        has_lapsed = 0 <= self.lease.until_ns < self._clock.now_ns()
        if has_lapsed and not self._prefixes and self._session is session:
            self.tell_gap()
        with self._lock:
            if self._session is session:
                self.lease.until_ns = until_ns

    def note_lag(self, sent_ns: int) -> None:
        """Count how long a probe was under way."""
        self.lags.add((self._clock.now_ns() - sent_ns) / 1e9)

    def end(self, session: Session | None) -> None:
        """A session is over: nothing is known until the next."""
        with self._lock:
            if self._session is session:
                self._session = None
            if self._session is None:
                self._end_lease()

    def tell_gap(self) -> None:
        """Something may have been missed."""
        self.gaps += 1
        hearer = self._hearer()
        if hearer is not None:
            hearer.hear_gap()

    def tell(self, channel: bytes, body: Any) -> None:
        """Pass on a message that is no probe."""
        hearer = self._hearer()
        if hearer is None:
            return
        if channel == CHANGED_KEYS:
            if body is None:  # the whole server was flushed
                self.tell_gap()
                return
            keys = body if isinstance(body, list) else [body]
            self.keys_heard += len(keys)
            hearer.hear_keys(keys)
            return
        try:
            origin, change = decode(body)
        except ValueError as error:  # what it meant to say is unknown
            self.last_error = f"{self._topic.decode()}: {error}"
            self.tell_gap()
            return
        if origin != ORIGIN:
            self.changes_heard += 1
            hearer.hear_change(change)

    def restart_after_fork(self) -> None:
        """The listening thread is the parent's; the child starts its own when it first needs it."""
        leave_behind(self._session)
        self._reset()

    def __repr__(self) -> str:
        state = "whole" if self.is_whole else "not whole"
        return f"Channel({self._topic.decode()}, {state})"


def _listen(reference: Callable[[], Channel | None], term: int) -> None:
    """Hold session after session, for as long as anybody needs the channel."""
    pause_s = _PAUSE_S
    while True:
        channel = reference()
        if channel is None or channel.is_over(term):
            return
        session = None
        try:
            session = channel.begin(term)
            pause_s = _PAUSE_S
            session.run(channel._clock)
            if session.failure is not None:
                channel.note(session.failure)
        except _Outdated:
            continue
        except Exception as error:  # noqa: BLE001 - tried again; until then the source is read
            channel.note(error)
        finally:
            channel.end(session)
            if session is not None:
                session.close()
        if session is None or session.failure is not None:
            del channel
            time.sleep(pause_s * _chance.uniform(0.8, 1.2))
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)


def _be_another_process() -> None:
    global ORIGIN
    ORIGIN = uuid.uuid4().hex


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_be_another_process)
