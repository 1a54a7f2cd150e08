"""One connection through a proxy: two sockets and what is on its way between them."""

from __future__ import annotations

import errno
import selectors
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass

__all__ = ["Flow", "Link", "Rules"]

_HELD_AT_MOST = 1 << 20
_LIMITED_FOR_S = 0.02  # what a limited connection passes at once
_FLIP = bytes(255 - byte for byte in range(256))


@dataclass(slots=True)
class Rules:
    """What happens to bytes that go one way."""

    is_dropped: bool = False
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    flip_every: int = 0

    def clear(self) -> None:
        """Let everything pass."""
        self.is_dropped = False
        self.delay_s = self.bytes_per_s = 0.0
        self.flip_every = 0


class Flow:
    """Bytes that go one way, read but not passed on; an empty chunk is the end.

    Attributes:
        is_ended: whether the sending side has ended.
        is_told: whether the receiving side has been told so.
        is_blocked: whether the receiving side takes no more at present.
    """

    __slots__ = (
        "chunks", "dropped", "free_at", "held", "is_blocked", "is_ended", "is_told", "passed",
        "rules", "until_flip",
    )  # fmt: skip

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.chunks: deque[tuple[float, bytes]] = deque()
        self.held = self.passed = self.dropped = self.until_flip = 0
        self.free_at = 0.0
        self.is_ended = self.is_told = self.is_blocked = False

    def take(self, data: bytes) -> None:
        """Take what was read; nothing is the end."""
        rules = self.rules
        self.is_ended = not data
        if rules.is_dropped and data:
            self.dropped += len(data)
            return
        data = self._flipped(data)
        self.held += len(data)
        due = time.monotonic()
        if not rules.bytes_per_s or not data:
            self.chunks.append((max(due, self.free_at) + rules.delay_s, data))
            return
        size = max(1, int(rules.bytes_per_s * _LIMITED_FOR_S))
        self.free_at = max(due, self.free_at)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            self.free_at += len(piece) / rules.bytes_per_s
            self.chunks.append((self.free_at + rules.delay_s, piece))

    def _flipped(self, data: bytes) -> bytes:
        every = self.rules.flip_every
        if not every:
            self.until_flip = 0
            return data
        made = bytearray(data)
        first = self.until_flip or every
        for index in range(first - 1, len(made), every):
            made[index] = _FLIP[made[index]]
        self.until_flip = every - (len(made) - first) % every
        return bytes(made)

    def pass_on(self, sink: socket.socket, now: float) -> None:
        """Send what is due.

        Raises:
            OSError: the receiving side is gone.
        """
        self.is_blocked = False
        while self.chunks and self.chunks[0][0] <= now and not self.rules.is_dropped:
            due, data = self.chunks.popleft()
            if not data:
                self.is_told = True
                sink.shutdown(socket.SHUT_WR)
                return
            try:
                sent = sink.send(data)
            except BlockingIOError:
                sent = 0
            self.held -= sent
            self.passed += sent
            if sent < len(data):
                self.chunks.appendleft((due, data[sent:]))
                self.is_blocked = True
                return

    def hurry(self) -> None:
        """Let everything be due now."""
        self.chunks = deque((0.0, data) for _, data in self.chunks)
        self.free_at = 0.0

    def drop_held(self) -> None:
        """Lose what is on its way; not its end, which `pass_on` holds back while it drops."""
        self.dropped += self.held
        self.held = 0
        self.chunks = deque(chunk for chunk in self.chunks if not chunk[1])

    def wants_more(self) -> bool:
        return not self.is_ended and self.held < _HELD_AT_MOST


class Link:
    """A client's connection and the one to the server that belongs to it.

    Attributes:
        flows: to the server, to the client.
        watched: the events that a selector waits for, of the client and of the server.
        timer_at: when the proxy will look at it without being asked.
    """

    __slots__ = (
        "client", "flows", "is_closed", "is_connected", "is_refused", "server", "timer_at",
        "watched",
    )  # fmt: skip

    def __init__(self, client: socket.socket, rules: tuple[Rules, Rules]) -> None:
        self.client = _prepared(client)
        self.server: socket.socket | None = None
        self.flows = (Flow(rules[0]), Flow(rules[1]))
        self.is_connected = self.is_refused = self.is_closed = False
        self.watched = [0, 0]
        self.timer_at: float | None = None

    def connect(self, target: tuple[str, int]) -> None:
        """Begin to connect to the server."""
        self.server = _prepared(socket.socket())
        self.is_refused = self.server.connect_ex(target) not in (0, errno.EINPROGRESS)

    def check_connection(self) -> bool:
        """See whether the server has answered; False if it cannot be reached."""
        if self.server is None or self.is_connected:
            return True
        if self.is_refused or self.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return False
        try:
            self.server.getpeername()
        except OSError:  # still on its way
            return True
        self.is_connected = True
        return True

    def read(self, end: socket.socket, at_most: int) -> bool:
        """Read from one end; False if the connection was reset."""
        flow = self.flows[0] if end is self.client else self.flows[1]
        if not flow.wants_more():
            return True
        try:
            flow.take(end.recv(at_most))
        except BlockingIOError:
            return True
        except OSError:
            if not flow.rules.is_dropped:
                return False
            flow.take(b"")
        return True

    def pass_on(self, now: float) -> bool:
        """Send what is due both ways; False if an end is gone."""
        if self.server is None or not self.is_connected:
            return True
        try:
            self.flows[0].pass_on(self.server, now)
            self.flows[1].pass_on(self.client, now)
        except OSError:
            return False
        return True

    def is_over(self) -> bool:
        """Whether both ends know that the other has ended, or nobody ever heard of the client."""
        if self.server is None:
            return self.flows[0].is_ended
        return all(flow.is_told for flow in self.flows)

    def next_due(self) -> float | None:
        """When the next chunk may go on."""
        waiting = [
            flow.chunks[0][0]
            for flow in self.flows
            if flow.chunks and not flow.is_blocked and not flow.rules.is_dropped
        ]
        return min(waiting) if waiting and self.is_connected else None

    def client_events(self) -> int:
        return _events(self.flows[0], self.flows[1])

    def server_events(self) -> int:
        if not self.is_connected:
            return selectors.EVENT_WRITE
        return _events(self.flows[1], self.flows[0])

    def dropped(self) -> int:
        return sum(flow.dropped for flow in self.flows)

    def close(self, is_reset: bool) -> None:
        """Close both ends, abruptly or not."""
        self.is_closed = True
        for end in (self.client, self.server):
            if end is None:
                continue
            if is_reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()


def _events(out_of: Flow, into: Flow) -> int:
    reads = selectors.EVENT_READ if out_of.wants_more() else 0
    return reads | (selectors.EVENT_WRITE if into.is_blocked else 0)


def _prepared(end: socket.socket) -> socket.socket:
    end.setblocking(False)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return end
