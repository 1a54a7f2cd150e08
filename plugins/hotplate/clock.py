"""Where the time comes from: one clock for ages, one for comparing with event timestamps.

Ages are measured on a clock that no one can set back and that goes on while a machine is
suspended (`CLOCK_BOOTTIME` on Linux): a laptop that slept, or a virtual machine that was moved
to another host, must not serve an hour-old value as fresh. Event timestamps are wall-clock
times, so enforcing Feast's event-time `ttl` needs the wall clock.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "FakeClock", "SystemClock"]


class Clock(Protocol):
    """The two readings Hotplate takes; tests pass their own."""

    def now_ns(self) -> int:
        """Nanoseconds that never go back, shared by all processes of this machine."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970-01-01 UTC."""


if hasattr(time, "CLOCK_BOOTTIME"):

    def _now_ns() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

else:  # macOS: CLOCK_MONOTONIC already counts the time asleep there
    _now_ns = time.monotonic_ns


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    now_ns = staticmethod(_now_ns)
    wall_ns = staticmethod(time.time_ns)


SYSTEM_CLOCK: Final = SystemClock()


class FakeClock:
    """A clock that moves only when told to: for tests that must not sleep.

    Args:
        now_s: first reading of `now_ns`, in seconds.
        wall_s: first reading of `wall_ns`, in seconds since 1970.
    """

    __slots__ = ("_now_ns", "_wall_ns")

    def __init__(self, now_s: float = 1_000.0, wall_s: float = 1_767_225_600.0) -> None:
        self._now_ns = round(now_s * 1e9)
        self._wall_ns = round(wall_s * 1e9)

    def now_ns(self) -> int:
        return self._now_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def advance(self, seconds: float) -> None:
        """Move both readings on by `seconds`, which may not be negative."""
        if seconds < 0:
            raise ValueError(f"a clock does not go back: {seconds}")
        step_ns = round(seconds * 1e9)
        self._now_ns += step_ns
        self._wall_ns += step_ns

    def __repr__(self) -> str:
        return f"FakeClock(now_s={self._now_ns / 1e9}, wall_s={self._wall_ns / 1e9})"
