"""A circuit breaker: what failed is left alone until a probe on the side shows that it is back.

Requests never pay for finding out. While the breaker is open, a thread of its own probes at a
fixed pace, and closes it when the probe succeeds; the thread ends with that.

Reference: Nygard, "Release It!", ch. "Stability Patterns".
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from hotplate.forks import restart_in_children

__all__ = ["Breaker"]

_PROBE_S: Final = 0.1


class Breaker:
    """Closed while things work; opens with the first failure.

    For a cache one failure is enough: doing without it for a moment costs little, while a second
    try would have to connect anew, which a frozen server makes slow.

    Args:
        probe: returns if things work again, raises if they do not. Called on a thread, held
            weakly: a bound method's owner may go meanwhile.
    """

    def __init__(self, probe: Callable[[], None]) -> None:
        self._probe = weakref.WeakMethod(probe)
        self.opened = 0
        self.last_error: str | None = None
        self._reset()
        restart_in_children(self)

    def _reset(self) -> None:
        self.is_closed = True
        self._lock = threading.Lock()
        self._prober: threading.Thread | None = None

    def failed(self, error: Exception) -> None:
        """Something did not work."""
        self.last_error = str(error)
        with self._lock:
            if self.is_closed:
                self.is_closed = False
                self.opened += 1
            self._begin_probing()

    def keep_probing(self) -> None:
        """See to it that somebody probes: a forked child does not have its parent's thread."""
        with self._lock:
            self._begin_probing()

    def _begin_probing(self) -> None:
        if self._prober is not None and self._prober.is_alive():
            return
        prober = threading.Thread(
            target=_probe, args=(weakref.ref(self),), name="hotplate-breaker", daemon=True
        )
        try:
            prober.start()
            self._prober = prober
        except RuntimeError:  # no thread to be had: closed again, the next failure tries again
            self.is_closed = True

    def try_probe(self) -> bool:
        """Probe once; True when it is closed again, or nobody is left to use it."""
        probe = self._probe()
        if probe is None:
            return True
        try:
            probe()
        except Exception as error:  # noqa: BLE001 - it is the answer to the question asked
            self.last_error = str(error)
            return False
        with self._lock:
            self.is_closed = True
            self._prober = None
        return True

    def restart_after_fork(self) -> None:
        """The parent's prober is not there: closed again, the next failure starts one."""
        self._reset()


def _probe(reference: Callable[[], Any]) -> None:
    while True:
        time.sleep(_PROBE_S)
        breaker = reference()
        if breaker is None or breaker.try_probe():
            return
        del breaker
