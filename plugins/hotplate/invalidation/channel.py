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
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import SystemRandom
from typing import Any, Final, Protocol

from hotplate.clock import Clock
from hotplate.contracts import NOTHING_UNHEARD, Lease
from hotplate.errors import CommandRefused, ServerError
from hotplate.forks import leave_behind, restart_in_children
from hotplate.invalidation.messages import Change, decode
from hotplate.seldom import Seldom
from hotplate.servers import rights
from hotplate.servers.redis import RedisServer
from hotplate.servers.topology import Topology
from hotplate.servers.wire import Wire

__all__ = ["LEASE_NS", "Channel", "Hearer"]

PROBE_S: Final = 0.1
LEASE_NS: Final = 350_000_000
_SILENT_S: Final = 1.0
_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 0.5
_CHECK_S: Final = 0.5
_RECEIVE_BYTES: Final = 1 << 12  # what is heard before a reader who waits for it goes on
_CHANGED_KEYS: Final = b"__redis__:invalidate"
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
        self.last_error: str | None = None
        self._seldom = Seldom()
        restart_in_children(self)

    def _reset(self) -> None:
        self._end_lease()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._session: _Session | None = None

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
            thread.join(2 * _SILENT_S)

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

    def begin(self, term: int) -> _Session:
        """Connect to every primary, listen, forget what may have been missed, start probing.

        Raises:
            ServerError: a primary cannot be reached or lacks a right.
        """
        with self._lock:
            prefixes = self._prefixes
        topology = self._server.topology()
        session = _Session(self, self._server, topology, self._topic, sorted(prefixes))
        try:
            session.connect()
            with self._lock:
                if prefixes != self._prefixes or term != self._term:
                    raise ServerError("there is something else to listen for")
                self._session = session
                self.lease.unheard = session.unheard
            self.sessions += 1
            self.tell_gap()
        except BaseException:
            session.close()
            raise
        return session

    def is_current(self, session: _Session) -> bool:
        """Whether a session still listens for all there is."""
        return self._session is session and self._hearer() is not None

    def renew(self, session: _Session, until_ns: int) -> None:
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

    def end(self, session: _Session | None) -> None:
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
        if channel == _CHANGED_KEYS:
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


class _Session:
    """The connections of one uninterrupted time of listening.

    Each primary has a thread that does nothing but wait for messages: one that also watched the
    time would need the interpreter twice for each, and wait for it twice where other threads keep
    it busy. The channel's own thread sends the probes and watches the time.
    """

    def __init__(
        self,
        channel: Channel,
        server: RedisServer,
        topology: Topology,
        topic: bytes,
        prefixes: Sequence[bytes],
    ) -> None:
        self._channel = channel
        self._server = server
        self._topology = topology
        self._topic = topic
        self._prefixes = prefixes
        self._ears: list[_Ear] = []
        self._is_over = threading.Event()
        self.failure: Exception | None = None

    def connect(self) -> None:
        """Open everything and listen."""
        is_cluster = bool(self._topology.slots)
        home = self._topology.node_of(self._topic)
        for node in self._topology.nodes:
            ear = _Ear(self._server.wire(node))
            self._ears.append(ear)  # from here on `close` closes what is open
            talker = self._server.wire(node)
            topic = self._topic if node == home else None
            ear.listen(talker, topic, self._prefixes, is_cluster=is_cluster)

    @property
    def unheard(self) -> bytes | bytearray:
        """Where messages arrive; see `Lease`. In a cluster they do so in several places."""
        return self._ears[0].unheard if len(self._ears) == 1 else NOTHING_UNHEARD

    def run(self, clock: Clock) -> None:
        """Listen until something ends the session."""
        jobs: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
            (self._hear, (ear,)) for ear in self._ears
        ]
        if self._channel.is_watching:
            jobs.append((self._watch_sentinels, ()))
        threads = [
            threading.Thread(target=job, args=given, name="hotplate-channel", daemon=True)
            for job, given in jobs
        ]
        try:
            for thread in threads:
                thread.start()
            while self._channel.is_current(self) and not self._is_over.is_set():
                now_ns = clock.now_ns()
                for ear in self._ears:
                    ear.probe(now_ns)
                self._is_over.wait(PROBE_S)
        except Exception as error:  # noqa: BLE001 - whatever it was, nothing is known any more
            self._end(error)
        self._end(None)
        self.close()  # wakes the threads that wait for messages
        for thread in threads:
            if thread.ident is not None:
                thread.join()

    def _hear(self, ear: _Ear) -> None:
        try:
            for channel, body in ear.messages():
                if self._is_over.is_set():
                    return
                if channel == ear.name:
                    ear.heard(int(body))
                    self._channel.renew(self, min(one.until_ns for one in self._ears))
                else:
                    self._channel.tell(channel, body)
        except Exception as error:  # noqa: BLE001 - as above
            self._end(error)

    def _watch_sentinels(self) -> None:
        """A primary that was replaced may go on answering: ask those who know."""
        while not self._is_over.wait(_CHECK_S):
            try:
                nodes = self._server.topology().nodes
            except ServerError:  # they are away, which says nothing about the primary
                continue
            if nodes != self._topology.nodes:
                self._end(ServerError(f"sentinels name another primary: {nodes[0]}"))

    def _end(self, error: Exception | None) -> None:
        if not self._is_over.is_set():
            self.failure = error
            self._is_over.set()
            self._channel.end(self)

    def close(self) -> None:
        for ear in self._ears:
            ear.close()


class _Ear:
    """The pair of connections to one primary.

    Attributes:
        name: of the channel on which its probes come back.
        until_ns: until when everything changed on this primary is known to have been heard.
        unheard: where messages arrive; see `Lease`.
    """

    def __init__(self, listener: Wire) -> None:
        self._listener = listener
        self._talker = listener  # until it has one of its own
        self._replies = 0
        self._epoch: bytes | None = None
        self._is_cluster = False
        self._heard_s = time.monotonic()
        self.until_ns = -1
        self.unheard = bytearray(_RECEIVE_BYTES)
        self.name = f"hotplate:probe:{uuid.uuid4().hex}".encode()

    def listen(
        self, talker: Wire, topic: bytes | None, prefixes: Sequence[bytes], *, is_cluster: bool
    ) -> None:
        """Subscribe and have changed keys sent here."""
        listener = self._listener
        self._talker = talker
        self._is_cluster = is_cluster
        try:
            me = listener.ask("CLIENT", "ID")
            commands: list[tuple[Any, ...]] = [("SUBSCRIBE", _CHANGED_KEYS, self.name)]
            if topic is not None:
                commands.append(("SSUBSCRIBE" if is_cluster else "SUBSCRIBE", topic))
            listener.send(*commands)
            for _ in range(2 + (topic is not None)):
                listener.read()
            if prefixes:
                given = [part for prefix in prefixes for part in ("PREFIX", prefix)]
                talker.ask("CLIENT", "TRACKING", "ON", "REDIRECT", me, "BCAST", *given)
        except CommandRefused as error:
            raise ServerError(
                f"{error}. The event channel needs {rights.shown(rights.CHANNEL)}, in a cluster "
                f"also {rights.shown(rights.CLUSTER_CHANNEL)}, and the channels "
                f"{' and '.join(rights.CHANNELS)}"
            ) from None
        listener.wait_forever()

    def probe(self, now_ns: int) -> None:
        """Send a message to ourselves, and see how the last one was answered."""
        talker = self._talker
        while self._replies:
            self._replies -= 1
            answer = talker.read()
            if isinstance(answer, bytes):
                self._note_epoch(answer)
        if time.monotonic() - self._heard_s > _SILENT_S:
            raise ServerError(f"{talker.node}: nothing heard for {_SILENT_S:g} s")
        commands: list[tuple[Any, ...]] = [("PUBLISH", self.name, now_ns)]
        if self._is_cluster:
            commands.append(("CLUSTER", "INFO"))
        talker.send(*commands)
        self._replies = len(commands)

    def heard(self, sent_ns: int) -> None:
        """A probe came back."""
        self._heard_s = time.monotonic()
        self.until_ns = sent_ns + LEASE_NS

    def _note_epoch(self, info: bytes) -> None:
        epoch = next(
            (line for line in info.split(b"\r\n") if line.startswith(b"cluster_current_epoch")), b""
        )
        if self._epoch is not None and epoch != self._epoch:
            raise ServerError(f"{self._talker.node}: the cluster was rearranged")
        self._epoch = epoch

    def messages(self) -> Iterator[tuple[bytes, Any]]:
        """What is heard, without end."""
        for kind, channel, body in self._listener.hear(self.unheard):
            if kind not in (b"message", b"smessage"):
                raise ServerError(f"{self._listener.node}: the subscription ended")
            yield channel, body

    def close(self) -> None:
        self._listener.close()
        self._talker.close()


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
