"""Whether a process can do its work now: what it needs is asked, and not waited for.

Checks run on a thread of their own, one round at a time, so that a server that hangs holds up
neither the probe that asked nor the next one. A round is as good as new for half a second.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final

__all__ = ["Readiness"]

_AS_NEW_S: Final = 0.5


class Readiness:
    """Asks for all that is needed.

    Args:
        checks: name -> raises where it cannot be used.
        wait_s: how long a round may take.
        clock: seconds.
    """

    def __init__(
        self,
        checks: Mapping[str, Callable[[], object]],
        wait_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checks, self._wait_s, self._clock = dict(checks), wait_s, clock
        self._round: Future[None] = Future()
        self._round.set_result(None)
        self._ended_s = float("-inf")
        self._found: dict[str, str] = {}

    async def faults(self) -> dict[str, str]:
        """What cannot be used, and why; empty where the process is ready."""
        if self._round.done() and self._clock() - self._ended_s > _AS_NEW_S:
            self._round, self._found = Future(), {}
            threading.Thread(
                target=self._ask, args=(self._round, self._found), name="readiness", daemon=True
            ).start()
        waited = asyncio.shield(asyncio.wrap_future(self._round))
        try:
            await asyncio.wait_for(waited, self._wait_s)
        except TimeoutError:
            silent = f"no answer within {self._wait_s:g} s"
            return {name: silent for name in self._checks if self._found.get(name, "?")}
        return {name: fault for name, fault in self._found.items() if fault}

    def _ask(self, done: Future[None], found: dict[str, str]) -> None:
        for name, check in self._checks.items():
            try:
                check()
                found[name] = ""
            except Exception as error:  # noqa: BLE001 - what is wrong is the answer
                # its kind: a text may hold an address, and probes are answered to anybody
                found[name] = type(error).__name__
        self._ended_s = self._clock()
        done.set_result(None)
