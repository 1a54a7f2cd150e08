"""What repeats itself is said once a minute: a fault must not fill the log it is looked for in."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["Seldom"]

_EVERY_S: Final = 60.0


class Seldom:
    """Says when it may be said again. Two threads at once may both be told that it is time."""

    __slots__ = ("_said_s",)

    def __init__(self) -> None:
        self._said_s = float("-inf")

    def is_time(self, now_s: float | None = None) -> bool:
        """Whether to say it now, which then counts as said.

        Args:
            now_s: seconds on any clock that does not go back; the process's own if left out.
        """
        if now_s is None:
            now_s = time.monotonic()
        if now_s - self._said_s < _EVERY_S:
            return False
        self._said_s = now_s
        return True
