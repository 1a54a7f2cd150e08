"""Says to other processes what this one changed; never in the way of a write for long.

A message that cannot be sent in time is kept and sent later by a thread that lives as long as
there is something to send. The queue is bounded: past its bound, what it says of a view becomes
"all of it", which is true of every part.

A primary that was replaced may have gone on taking messages that nobody hears. What was said in
the last seconds is said again to its successor.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Final

from hotplate.errors import CommandRefused, ServerError
from hotplate.forks import leave_behind, restart_in_children
from hotplate.invalidation.messages import decode, encode
from hotplate.servers.redis import RedisServer
from hotplate.servers.topology import Node
from hotplate.servers.wire import Wire, close_with

__all__ = ["Announcer"]

_TIMEOUT_S: Final = 0.25
_BATCH: Final = 64
_QUEUE_MAX: Final = 1_024
_RETRY_S: Final = 0.25
_REMEMBERED_S: Final = 5.0
_SETTLE_S: Final = 1.0
_POLL_S: Final = 0.01
_log = logging.getLogger("hotplate.channel")


class Announcer:
    """Publishes messages on a topic; connects when it first has something to say.

    Args:
        server: where processes meet.
        topic: the name under which they do.

    Attributes:
        sent: messages sent.
        errors: attempts that failed.
        heard_by: how many caches listened to the last message.
    """

    def __init__(self, server: RedisServer, topic: str) -> None:
        self._server = server
        self._topic = topic.encode()
        self._settles = False
        self.sent = self.errors = self.heard_by = 0
        self._reset()
        restart_in_children(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._queue: list[bytes] = []
        self._said: deque[tuple[float, bytes]] = deque(maxlen=_QUEUE_MAX)
        self._node: Node | None = None
        self._wires: list[Wire] = []  # one, or none yet
        close_with(self, [self._wires])
        self._verb = "PUBLISH"
        self._retrying: threading.Thread | None = None

    @property
    def pending(self) -> int:
        """Messages that still wait to be sent."""
        return len(self._queue)

    def announce(self, messages: Iterable[bytes]) -> None:
        """Send messages, or keep them for later where the server does not take them in time."""
        with self._lock:
            for message in messages:
                self._queue.append(message)
                if len(self._queue) >= _BATCH and self._retrying is None:
                    self._flush()
            if len(self._queue) > _QUEUE_MAX:
                self._shorten()
            if self._retrying is None:
                self._flush()

    def _flush(self) -> None:
        """Send what is queued; the caller holds the lock.

        A connection that was closed while nobody used it is made anew at once.
        """
        was_idle, began_s = bool(self._wires), time.monotonic()
        try:
            try:
                self._send()
            except CommandRefused:
                raise
            except ServerError:
                if not was_idle or time.monotonic() - began_s > _TIMEOUT_S / 2:
                    raise
                self._disconnect()
                self._send()
        except ServerError as error:
            self.errors += 1
            self._disconnect()
            self._retry_later(error)

    def _send(self) -> None:
        while self._queue:
            wire = self._connected()
            batch = self._queue[:_BATCH]
            wire.send(*((self._verb, self._topic, message) for message in batch))
            for _ in batch:
                self.heard_by = int(wire.read())
            del self._queue[: len(batch)]
            self.sent += len(batch)
            now_s = time.monotonic()
            self._said.extend((now_s, message) for message in batch)

    def _connected(self) -> Wire:
        if not self._wires:
            topology = self._server.topology(_TIMEOUT_S)
            self._verb = "SPUBLISH" if topology.slots else "PUBLISH"
            node = topology.node_of(self._topic)
            self._wires.append(self._server.wire(node, _TIMEOUT_S))
            if self._node not in (None, node):
                self._say_again()
            self._node = node
        return self._wires[0]

    def _say_again(self) -> None:
        """Queue what was said of late; what was deleted in the shared tier may be there again."""
        since_s = time.monotonic() - _REMEMBERED_S
        views: dict[tuple[str, str | None], None] = {}
        for said_s, message in self._said:
            if said_s >= since_s:
                origin, change = decode(message)
                views[origin, change.view] = None
        self._said.clear()
        self._queue += [
            message
            for origin, view in views
            for message in encode(origin, view, None, is_owed=True)
        ]

    def reconnect(self) -> None:
        """Another primary may have taken over: find it."""
        with self._lock:
            if self._node is None:
                return  # it has never said anything
            self._disconnect()
            try:
                self._connected()
            except ServerError as error:
                self.errors += 1
                self._retry_later(error)
                return
            if self._retrying is None:
                self._flush()

    def _disconnect(self) -> None:
        while self._wires:
            self._wires.pop().close()

    def _retry_later(self, error: ServerError) -> None:
        if self._retrying is not None:
            return
        kind = "refuses" if isinstance(error, CommandRefused) else "does not take"
        _log.warning(
            "the server %s what this process announces; other processes hear of it later, at the "
            "latest when a ttl ends: %s",
            kind,
            error,
        )
        thread = threading.Thread(
            target=_retry, args=(weakref.ref(self),), name="hotplate-announcer", daemon=True
        )
        if not self._settles:  # a process that ends must not leave it to nobody
            self._settles = True
            atexit.register(_settle, weakref.ref(self))
        try:
            thread.start()
            self._retrying = thread
        except RuntimeError:  # no thread to be had: the next announcement tries again
            pass

    def retry(self) -> bool:
        """Try once more; True when there is nothing left to send."""
        with self._lock:
            self._flush()
            if not self._queue:
                self._retrying = None
                return True
            return False

    def _shorten(self) -> None:
        """Say less by saying more: whole views instead of their entities."""
        said = [decode(message) for message in self._queue]
        views = dict.fromkeys((origin, change.view, change.is_owed) for origin, change in said)
        self._queue = [
            message
            for origin, view, is_owed in views
            for message in encode(origin, view, None, is_owed=is_owed)
        ]

    def settle(self) -> None:
        """Wait until the server has taken everything, for a second at the most."""
        until_s = time.monotonic() + _SETTLE_S
        while self._queue and self._retrying is not None and time.monotonic() < until_s:
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Give up the connection, once all is said that can be."""
        self.settle()
        with self._lock:
            self._disconnect()

    def restart_after_fork(self) -> None:
        """What the parent has to say, the parent says."""
        leave_behind(*self._wires)
        self._wires.clear()
        self._reset()


def _settle(reference: weakref.ref[Announcer]) -> None:
    announcer = reference()
    if announcer is not None:
        announcer.settle()


def _retry(reference: weakref.ref[Announcer]) -> None:
    while True:
        time.sleep(_RETRY_S)
        announcer = reference()
        if announcer is None or announcer.retry():
            return
        del announcer
