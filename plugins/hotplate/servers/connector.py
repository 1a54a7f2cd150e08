"""Connecting on the side: whoever needs a connection waits for it so long and no longer.

Connecting has no bound that a request could live with. A frozen server takes connections and never
answers, a network that swallows does not even refuse them, a name is looked up for seconds, TLS
takes several round trips. So each attempt has a thread of its own, and whoever waits for one goes
without when its time is up. The attempt goes on, for those who come later. Who finds one under way
for longer than he would wait does not wait at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Final, TypeVar

from hotplate.errors import ServerError

__all__ = ["Connector", "NotConnectedYet"]

_T = TypeVar("_T")
_AT_ONCE: Final = 8
"""Attempts under way for one thing: as many threads as miss at once on a small machine."""


class NotConnectedYet(ServerError):
    """There was no connection in time; nothing is known about the server."""


class _Attempt:
    __slots__ = ("began_s", "error", "is_over")

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.is_over = False
        self.error: Exception | None = None


class Connector:
    """Attempts under way, by what they are for.

    Args:
        on_failure: told of every attempt that failed, on its own thread.

    Attributes:
        lock: guards what attempts bring. Whoever adds to it calls `tell` before it is given up.
    """

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        self.lock = threading.Lock()
        self._news = threading.Condition(self.lock)
        self._on_failure = on_failure
        self._attempts: dict[Hashable, list[_Attempt]] = {}
        self._waiting = 0

    def tell(self) -> None:
        """There is something new to be found; the caller holds the lock."""
        if self._waiting:
            self._news.notify_all()

    def wait_for(
        self,
        purpose: Hashable,
        find: Callable[[], _T | None],
        connect: Callable[[], None],
        wait_s: float,
        at_once: int = _AT_ONCE,
    ) -> _T:
        """What `find` finds, now or as soon as an attempt has brought it.

        Args:
            purpose: what is needed; attempts for the same thing are shared.
            find: called under the lock; None where there is nothing yet.
            connect: an attempt, on a thread of its own; adds what it brings under the lock.
            wait_s: how long to wait for it.
            at_once: how many attempts may be under way for one purpose.

        Raises:
            NotConnectedYet: it took too long.
            ServerError: the attempt failed.
        """
        until_s = time.monotonic() + wait_s
        own: _Attempt | None = None
        while True:
            begun = None
            with self.lock:
                found = find()
                if found is not None:
                    return found
                if own is not None and own.error is not None:
                    raise ServerError(str(own.error))
                running = self._attempts.setdefault(purpose, [])
                began_s = running[0].began_s if running else until_s
                left_s = min(until_s, began_s + wait_s) - time.monotonic()
                if left_s <= 0:
                    raise NotConnectedYet(f"not connected within {wait_s * 1e3:g} ms")
                if own is None or own.is_over:
                    if len(running) < at_once:
                        begun = _Attempt()
                        running.append(begun)
                    own = running[-1]
                if begun is None:
                    self._wait(left_s)
            if begun is not None:
                self._begin(purpose, begun, connect)

    def _wait(self, seconds: float) -> None:
        self._waiting += 1
        try:
            self._news.wait(seconds)
        finally:
            self._waiting -= 1

    def _begin(self, purpose: Hashable, attempt: _Attempt, connect: Callable[[], None]) -> None:
        thread = threading.Thread(
            target=self._try, args=(purpose, attempt, connect), name="hotplate-connect", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            self._end(purpose, attempt, ServerError(f"no thread to connect on: {error}"))

    def _try(self, purpose: Hashable, attempt: _Attempt, connect: Callable[[], None]) -> None:
        try:
            connect()
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits for it
            self._end(purpose, attempt, error)
            self._on_failure(error)
        else:
            self._end(purpose, attempt, None)

    def _end(self, purpose: Hashable, attempt: _Attempt, error: Exception | None) -> None:
        with self.lock:
            attempt.is_over, attempt.error = True, error
            self._attempts[purpose].remove(attempt)
            self._news.notify_all()
