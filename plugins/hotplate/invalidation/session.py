"""One uninterrupted time of listening: a pair of connections to each primary, probes, a lease.

On the first connection of a pair, a subscription; the second sends a *probe* every 100 ms, a
message to ourselves through the first. See `channel`.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from hotplate.clock import Clock
from hotplate.contracts import NOTHING_UNHEARD
from hotplate.errors import CommandRefused, ServerError
from hotplate.servers import rights
from hotplate.servers.redis import RedisServer
from hotplate.servers.topology import Topology
from hotplate.servers.wire import Wire

__all__ = ["CHANGED_KEYS", "LEASE_NS", "Session"]

PROBE_S: Final = 0.1
LEASE_NS: Final = 350_000_000
CHANGED_KEYS: Final = b"__redis__:invalidate"
_SILENT_S: Final = 1.0
_CHECK_S: Final = 0.5
_RECEIVE_BYTES: Final = 1 << 12  # what is heard before a reader who waits for it goes on


class Owner(Protocol):
    """Whom a session tells what it hears: the channel."""

    @property
    def is_watching(self) -> bool:
        """Whether sentinels say which server is the primary."""

    def is_current(self, session: Session, /) -> bool:
        """Whether a session still listens for all there is."""

    def renew(self, session: Session, until_ns: int, /) -> None:
        """A probe came back from every primary."""

    def note_lag(self, sent_ns: int, /) -> None:
        """A probe that was sent then came back now."""

    def tell(self, channel: bytes, body: Any, /) -> None:
        """A message came that is no probe."""

    def end(self, session: Session, /) -> None:
        """A session is over: nothing is known until the next."""


class Session:
    """The connections of one uninterrupted time of listening.

    Each primary has a thread that does nothing but wait for messages: one that also watched the
    time would need the interpreter twice for each, and wait for it twice where other threads keep
    it busy. The channel's own thread sends the probes and watches the time.
    """

    def __init__(
        self,
        channel: Owner,
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
        self._ears: list[Ear] = []
        self._is_over = threading.Event()
        self.failure: Exception | None = None

    def connect(self) -> None:
        """Open everything and listen."""
        is_cluster = bool(self._topology.slots)
        home = self._topology.node_of(self._topic)
        for node in self._topology.nodes:
            ear = Ear(self._server.wire(node))
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

    def _hear(self, ear: Ear) -> None:
        try:
            for channel, body in ear.messages():
                if self._is_over.is_set():
                    return
                if channel == ear.name:
                    sent_ns = int(body)
                    ear.heard(sent_ns)
                    self._channel.renew(self, min(one.until_ns for one in self._ears))
                    self._channel.note_lag(sent_ns)
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


class Ear:
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
            commands: list[tuple[Any, ...]] = [("SUBSCRIBE", CHANGED_KEYS, self.name)]
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
