"""A TCP proxy that spoils the connection to a server, switched while it runs.

One thread and one selector serve all connections of a proxy. A switch is thrown by that thread,
and the call that throws it returns afterwards: once `pause()` is back, no byte passes any more.

What passes between two ends is never reordered. While bytes are dropped, the end of a connection
is dropped too (nobody learns that the other side is gone) and is made up for by `heal()`. Bytes
that were dropped are lost for good, so a connection that lived through it is out of step, as a
client must expect of a connection that timed out.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from hotplate.embedded import _free_port

from .link import Link, Rules

__all__ = ["Counts", "Proxy"]

_HOST = "127.0.0.1"
_CHUNK = 65_536
_SWITCH_TIMEOUT_S = 10.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class Counts:
    """What a proxy has seen.

    Attributes:
        accepted: connections since the start.
        open: connections now.
        unreachable: connections that the server did not take.
        to_server: bytes passed on.
        to_client: the same in the other direction.
        dropped: bytes thrown away.
    """

    accepted: int = 0
    open: int = 0
    unreachable: int = 0
    to_server: int = 0
    to_client: int = 0
    dropped: int = 0


class Proxy:
    """A proxy on a port of its own; a context manager that is closed at the end of the block.

    Args:
        target: host and port of the server.
        port: the proxy's own; a free one is found if it is left out.
    """

    def __init__(self, target: tuple[str, int], port: int | None = None) -> None:
        self.host, self.port = _HOST, port or _free_port()
        self._target = target
        self._rules = (Rules(), Rules())  # to the server, to the client
        self._is_paused = self._is_closing = False
        self._links: set[Link] = set()
        self._timers: list[tuple[float, int, Link]] = []
        self._numbers = itertools.count()
        self._accepted = self._unreachable = 0
        self._gone = [0, 0, 0]  # bytes passed and dropped by connections that are closed
        self._selector = selectors.DefaultSelector()
        self._switches: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._listener = self._bind()
        self._listen()
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Proxy {self.connection_string} of {self._target[0]}:{self._target[1]}>"

    @property
    def connection_string(self) -> str:
        """The address in the form of Feast's Redis online store."""
        return f"{self.host}:{self.port}"

    # -- switches -------------------------------------------------------------------------------

    def heal(self) -> None:
        """Pass everything again: all switches off, what was held or delayed goes on at once."""
        self._switch(self._heal)

    def pause(self) -> None:
        """Be a frozen server: connections are accepted, everything is held until `heal()`."""
        self._switch(lambda: setattr(self, "_is_paused", True))

    def blackhole(self) -> None:
        """Accept connections, read and drop everything, of established connections too."""
        self._switch(lambda: self._drop(0, 1))

    def drop_replies(self) -> None:
        """Drop what the server says; what clients say arrives."""
        self._switch(lambda: self._drop(1))

    def delay(self, *, to_server: float = 0.0, to_client: float = 0.0) -> None:
        """Let every chunk arrive so many seconds late."""
        self._change("delay_s", to_server, to_client)

    def limit(self, *, to_server: float = 0.0, to_client: float = 0.0) -> None:
        """Pass so many bytes a second for each connection; 0 is no limit."""
        self._change("bytes_per_s", to_server, to_client)

    def corrupt(self, *, to_server: int = 0, to_client: int = 0) -> None:
        """Flip the bits of every so many-th byte that comes from now on; 0 flips none."""
        self._change("flip_every", to_server, to_client)

    def reset(self) -> int:
        """Reset (RST) all established connections, on both sides; return how many."""

        def reset() -> int:
            links = list(self._links)
            for link in links:
                self._close(link, is_reset=True)
            return len(links)

        return self._switch(reset)

    def refuse(self) -> None:
        """Refuse new connections until `heal()`; established ones go on."""

        def refuse() -> None:
            if self._listener in self._selector.get_map():
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = self._bind()  # keeps the port without listening on it

        self._switch(refuse)

    def retarget(self, target: tuple[str, int]) -> None:
        """Send new connections to another server."""
        self._switch(lambda: setattr(self, "_target", target))

    def counts(self) -> Counts:
        """What it has seen so far."""

        def count() -> Counts:
            passed = [sum(link.flows[way].passed for link in self._links) for way in (0, 1)]
            dropped = sum(flow.dropped for link in self._links for flow in link.flows)
            sums = [here + gone for here, gone in zip([*passed, dropped], self._gone, strict=True)]
            return Counts(self._accepted, len(self._links), self._unreachable, *sums)

        return self._switch(count)

    def close(self) -> None:
        """Close every connection and end the thread; harmless when done before."""
        if not self._thread.is_alive():
            return
        self._switch(lambda: setattr(self, "_is_closing", True))
        self._thread.join()

    def _switch(self, action: Callable[[], _T]) -> _T:
        done: Future[_T] = Future()
        self._switches.append((action, done))
        self._wake.send(b"x")
        return done.result(_SWITCH_TIMEOUT_S)

    def _change(self, name: str, *values: float) -> None:
        def change() -> None:
            for rules, value in zip(self._rules, values, strict=True):
                setattr(rules, name, value)

        self._switch(change)

    def _heal(self) -> None:
        self._is_paused = False
        for rules in self._rules:
            rules.clear()
        for link in self._links:
            for flow in link.flows:
                flow.hurry()
        if self._listener not in self._selector.get_map():
            self._listen()

    def _drop(self, *ways: int) -> None:
        for way in ways:
            self._rules[way].is_dropped = True
            for link in self._links:
                link.flows[way].drop_held()

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing:
                for key, events in self._selector.select(self._until_due()):
                    if isinstance(key.data, Link):
                        self._serve(key.data, key.fileobj, events)
                    elif key.fileobj is self._woken:
                        self._obey()
                    else:
                        self._accept()
                self._pass_due()
        finally:
            self._shut_down()

    def _obey(self) -> None:
        self._woken.recv(_CHUNK)
        while self._switches:
            action, done = self._switches.popleft()
            try:
                result = action()
                for link in list(self._links):
                    self._settle(link)
                done.set_result(result)
            except Exception as error:  # noqa: BLE001 - for whoever threw the switch
                done.set_exception(error)

    def _until_due(self) -> float | None:
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - time.monotonic())

    def _pass_due(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            link = heapq.heappop(self._timers)[2]
            link.timer_at = None
            self._settle(link)

    def _bind(self) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, self.port))
        listener.setblocking(False)
        return listener

    def _listen(self) -> None:
        self._listener.listen(1024)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # it has gone away meanwhile
            return
        self._accepted += 1
        link = Link(client, self._rules)
        self._links.add(link)
        self._settle(link)

    def _serve(self, link: Link, end: Any, events: int) -> None:
        if link.is_closed:  # by another event of the same round
            return
        if events & selectors.EVENT_READ and not link.read(end, _CHUNK):
            self._close(link, is_reset=True)
            return
        self._settle(link)

    def _settle(self, link: Link) -> None:
        """Pass on what may pass now, and say what to wait for next."""
        if link.is_closed:
            return
        if self._is_paused:
            self._watch(link, 0, 0)
            return
        if link.server is None and not self._rules[0].is_dropped:
            link.connect(self._target)
        if not link.check_connection():
            self._unreachable += 1
            self._close(link, is_reset=True)
        elif not link.pass_on(time.monotonic()):
            self._close(link, is_reset=True)
        elif link.is_over():
            self._close(link, is_reset=False)
        else:
            self._watch(link, link.client_events(), link.server_events())
            due = link.next_due()
            if due is not None and (link.timer_at is None or due < link.timer_at):
                link.timer_at = due
                heapq.heappush(self._timers, (due, next(self._numbers), link))

    def _watch(self, link: Link, *events: int) -> None:
        ends = (link.client, link.server)
        for index, (end, wanted) in enumerate(zip(ends, events, strict=True)):
            watched = link.watched[index]
            if end is None or wanted == watched:
                continue
            if not watched:
                self._selector.register(end, wanted, link)
            elif not wanted:
                self._selector.unregister(end)
            else:
                self._selector.modify(end, wanted, link)
            link.watched[index] = wanted

    def _close(self, link: Link, *, is_reset: bool) -> None:
        self._watch(link, 0, 0)
        link.close(is_reset)
        self._links.discard(link)
        to_server, to_client = link.flows
        for index, count in enumerate((to_server.passed, to_client.passed, link.dropped())):
            self._gone[index] += count

    def _shut_down(self) -> None:
        for link in list(self._links):
            self._close(link, is_reset=False)
        self._selector.close()
        for opened in (self._listener, self._wake, self._woken):
            opened.close()
        while self._switches:
            self._switches.popleft()[1].cancel()
