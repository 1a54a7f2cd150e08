"""Where logs are kept: what a store of them must do, and one in the process's own memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from hotplate.clock import SYSTEM_CLOCK, Clock
from hotplate.forks import restart_in_children
from hotplate.windows.compaction import Fold

__all__ = ["LocalState", "State"]


class State(Protocol):
    """Keeps logs by key."""

    def append(self, key: bytes, data: bytes) -> None:
        """Add records to the end of a log, which is created if there is none.

        The log lives for the plan's `ttl_ms` from here on.
        """

    def append_many(self, entries: Sequence[tuple[bytes, bytes]]) -> list[int]:
        """Append to several logs.

        Args:
            entries: keys and records.

        Returns:
            How long each log then is, in bytes.
        """

    def get(self, key: bytes) -> bytes | None:
        """A whole log, or None."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Logs, in the order of the keys."""

    def swap(self, key: bytes, fold: Fold) -> bool:
        """Put a fold in the place of what it was made from; False if that is not there any more.

        In one step: if the log begins with `fold.expected`, its first `fold.consumed` bytes are
        replaced by `fold.blob`. Where nothing is expected, nothing may be there but an empty log.
        When the log expires is left as it is.
        """


class LocalState:
    """Logs in a dict: for tests, and for one process that needs no server. Thread-safe.

    Args:
        ttl_ms: how long a log lives after the last append, as `LogPlan.ttl_ms` says.
        clock: where the time comes from.
    """

    def __init__(self, ttl_ms: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._ttl_ns = ttl_ms * 1_000_000
        self._clock = clock
        self._lock = threading.Lock()
        self._logs: dict[bytes, bytearray] = {}
        # key -> when it expires, in the order in which it was set: the soonest first
        self._expires: dict[bytes, int] = {}
        restart_in_children(self)

    def restart_after_fork(self) -> None:
        """Another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def append(self, key: bytes, data: bytes) -> None:
        """See `State.append`."""
        self.append_many([(key, data)])

    def append_many(self, entries: Sequence[tuple[bytes, bytes]]) -> list[int]:
        """See `State.append_many`."""
        now = self._clock.now_ns()
        lengths = []
        with self._lock:
            self._expire(now)
            for key, data in entries:
                log = self._logs.setdefault(key, bytearray())
                log.extend(data)
                lengths.append(len(log))
                self._expires.pop(key, None)
                self._expires[key] = now + self._ttl_ns
        return lengths

    def get(self, key: bytes) -> bytes | None:
        """See `State.get`."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `State.get_many`."""
        now = self._clock.now_ns()
        with self._lock:
            self._expire(now)
            logs = [self._logs.get(key) for key in keys]
            return [None if log is None else bytes(log) for log in logs]

    def swap(self, key: bytes, fold: Fold) -> bool:
        """See `State.swap`."""
        now = self._clock.now_ns()
        with self._lock:
            self._expire(now)
            log = self._logs.get(key)
            if log is None or len(log) < fold.consumed or not log.startswith(fold.expected):
                return False
            if log and not fold.expected:
                return False
            log[: fold.consumed] = fold.blob
            return True

    def _expire(self, now: int) -> None:
        while self._expires:
            key, moment = next(iter(self._expires.items()))
            if moment > now:
                return
            del self._expires[key]
            self._logs.pop(key, None)  # a fork may have come between the two

    def __len__(self) -> int:
        return len(self._logs)

    def __repr__(self) -> str:
        return f"LocalState({len(self)} logs)"
