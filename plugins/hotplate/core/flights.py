"""Single flight: one load a key, however many threads and tasks miss on it at once.

A *flight* is one batched load under way. Whoever misses on a key that is in a flight waits for
that flight instead of asking the source again. An invalidation detaches the key: requests that
come later must not join a read that began before it.

A flight that fails shares its error only with waiters that asked for nothing but what it loaded
(they would have got the same error); the others load for themselves. A flight that is abandoned
(its task was cancelled, its thread died) shares nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterable
from concurrent.futures import Future

from hotplate.keys import Key, token_of

__all__ = ["Flight", "Flights"]


class Flight:
    """One batched load under way.

    Attributes:
        keys: what it loads.
        loop: the event loop whose task performs it, or None.
        has_ended: whether it landed or crashed.
    """

    __slots__ = ("_done", "_lock", "error", "has_ended", "keys", "loop", "rows")

    def __init__(self, keys: Iterable[Key]) -> None:
        self.keys = frozenset(keys)
        self.rows: dict[Key, bytes] = {}
        self.error: BaseException | None = None
        self.loop = asyncio._get_running_loop()
        self.has_ended = False
        self._done: Future[None] | None = None  # made by whoever waits first: most have nobody
        self._lock = threading.Lock()

    def land(self, rows: dict[Key, bytes]) -> None:
        """End with rows."""
        self.rows = rows
        self._end()

    def crash(self, error: BaseException | None) -> None:
        """End with the source's error, or with None where the load was abandoned."""
        self.error = error
        self._end()

    def _end(self) -> None:
        with self._lock:
            self.has_ended = True
            done = self._done
        if done is not None:
            done.set_result(None)

    def _ended(self) -> Future[None]:
        """A future that is done when the flight has ended."""
        with self._lock:
            if self._done is None:
                self._done = Future()
                # a waiter that is cancelled must not cancel the flight for the others
                self._done.set_running_or_notify_cancel()
                if self.has_ended:
                    self._done.set_result(None)
            return self._done

    def can_block(self) -> bool:
        """Whether this thread may block until the flight ends.

        It may not where this thread runs an event loop and the flight is performed by a task: the
        task may be this very loop's, or one of a loop that waits for this one in turn.
        """
        return self.loop is None or asyncio._get_running_loop() is None

    def wait(self) -> None:
        """Block this thread until the flight ends."""
        self._ended().result()

    async def wait_async(self) -> None:
        """Wait on the running loop until the flight ends."""
        await asyncio.wrap_future(self._ended())

    def __repr__(self) -> str:
        state = "under way" if not self.has_ended else "crashed" if self.error else "landed"
        return f"Flight({len(self.keys)} keys, {state})"


class Flights:
    """The flights under way, by key.

    Attributes:
        ended: how many have left the board.
    """

    def __init__(self) -> None:
        self.ended = 0
        self._by_key: dict[Key, Flight] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_key)

    def board(
        self, keys: Collection[Key], *, is_async: bool
    ) -> tuple[Flight | None, dict[Flight, list[Key]]]:
        """Split missing keys into those to load and those being loaded.

        Args:
            keys: distinct keys.
            is_async: whether the caller awaits flights instead of blocking its thread.

        Returns:
            A new flight for the keys nobody loads (None if there are none), and the flights to
            wait for with the keys wanted from each. A flight that this thread cannot wait for is
            not waited for: its keys are loaded again.
        """
        own: list[Key] = []
        others: dict[Flight, list[Key]] = {}
        with self._lock:
            if self._by_key.keys().isdisjoint(keys):  # most often
                own.extend(keys)
                keys = ()
            for key in keys:
                flight = self._by_key.get(key)
                if flight is None or not (is_async or flight.can_block()):
                    own.append(key)
                else:
                    others.setdefault(flight, []).append(key)
            flight = None
            if own:
                flight = Flight(own)
                for key in own:
                    self._by_key.setdefault(key, flight)
        return flight, others

    def is_loading(self, key: Key) -> bool:
        """Whether some flight loads this key."""
        return key in self._by_key

    def leave(self, flight: Flight) -> None:
        """Take a flight that ended off the board."""
        with self._lock:
            self.ended += 1
            for key in flight.keys:
                if self._by_key.get(key) is flight:
                    del self._by_key[key]

    def detach(self, keys: Iterable[Key]) -> None:
        """Let no later request join the loads of these keys that are under way."""
        with self._lock:
            for key in keys:
                self._by_key.pop(key, None)

    def detach_tokens(self, tokens: frozenset[int]) -> None:
        """The same for every key that begins with one of these tokens."""
        with self._lock:
            for key in [key for key in self._by_key if token_of(key) in tokens]:
                del self._by_key[key]

    def restart_after_fork(self) -> None:
        """Forget the parent's flights: nobody here will end them."""
        self._lock = threading.Lock()
        self._by_key = {}
