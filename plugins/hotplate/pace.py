"""At most so many of something in any second."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

__all__ = ["Pace", "giving_way"]

_SECOND: Final = 1.0
_STEPS: Final = 10
_NICER: Final = 10
_LATE_S: Final = 0.005


@contextmanager
def giving_way() -> Iterator[None]:
    """Let other programs of this machine have its processors first, the server among them."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, min(19, before + _NICER))
    try:
        yield
    finally:
        with suppress(PermissionError):  # only a privileged user may take it back
            os.setpriority(os.PRIO_PROCESS, 0, before)


class Pace:
    """Spreads what it lets through evenly, and never lets more through than the limit.

    The bound holds for every window of a second, wherever it begins, so a pause is not made up
    for by a burst; that a sleep took a little longer than it should have is.

    Args:
        limit: how many a second; at least 1.
        clock: seconds that only go forward.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        limit: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.limit = limit
        self._clock = clock
        self._sleep = sleep
        self._taken: deque[tuple[float, int]] = deque()
        self._sum = 0
        self._next_s = clock()

    @property
    def step(self) -> int:
        """How many to take at once, so that a second is filled in several steps."""
        return max(1, self.limit // _STEPS)

    def take(self, count: int) -> None:
        """Wait until so many more may pass; at most `limit` of them."""
        while (wait_s := self._wait_s(count)) > 0:
            self._sleep(wait_s)
        now_s = self._clock()
        self._taken.append((now_s, count))
        self._sum += count
        self._next_s = max(now_s - _LATE_S, self._next_s) + count / self.limit

    def _wait_s(self, count: int) -> float:
        now_s = self._clock()
        while self._taken and self._taken[0][0] <= now_s - _SECOND:
            self._sum -= self._taken.popleft()[1]
        if self._sum + count > self.limit:
            return self._taken[0][0] + _SECOND - now_s + 1e-6
        return self._next_s - now_s
