"""Background refresh: one thread that reloads what is about to expire.

The thread starts with the first refresh, never at import or construction, and is a daemon: a
process may exit while a slow source is being asked. Work waits in a bounded queue; what does not
fit is dropped, and the entry then expires and is loaded by whoever reads it next.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from hotplate.seldom import Seldom

__all__ = ["Refresher"]

_WAITING_MAX: Final = 256
_IDLE_S: Final = 5.0
_log = logging.getLogger("hotplate.refresh")


class Refresher:
    """Runs reloads one after the other on a thread of its own.

    Args:
        reload: called with what was submitted; its errors are logged once a minute.
    """

    def __init__(self, reload: Callable[[Mapping[Any, Any]], None]) -> None:
        self._reload = reload
        self._start_clean()

    def _start_clean(self) -> None:
        self._waiting: queue.Queue[Mapping[Any, Any]] = queue.Queue(_WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._queued: set[Any] = set()
        self._seldom = Seldom()

    def submit(self, due: Mapping[Any, Any]) -> bool:
        """Queue keys for a reload; those already queued are left out.

        Returns:
            False where the queue is full.
        """
        with self._lock:
            fresh = {key: value for key, value in due.items() if key not in self._queued}
            if not fresh:
                return True
            if not self._has_worker():
                return False
            try:
                self._waiting.put_nowait(fresh)
            except queue.Full:
                return False
            self._queued.update(fresh)
        return True

    def _has_worker(self) -> bool:
        if self._thread is None or not self._thread.is_alive():
            worker = threading.Thread(target=self._work, name="hotplate-refresh", daemon=True)
            try:
                worker.start()
            except RuntimeError:  # no thread to be had: then nothing is refreshed ahead
                return False
            self._thread = worker
        return True

    def _work(self) -> None:
        while True:
            try:
                due = self._waiting.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:  # an idle thread would keep a cache alive that nobody uses
                    if self._waiting.empty():
                        self._thread = None
                        return
                continue
            try:
                self._reload(due)
            except Exception as error:  # noqa: BLE001 - the border: a failed refresh is only a later miss
                self._log_once_an_interval(error)
            finally:
                with self._lock:
                    self._queued.difference_update(due)
                self._waiting.task_done()

    def _log_once_an_interval(self, error: Exception) -> None:
        if self._seldom.is_time():
            _log.warning("a background refresh failed: %s", type(error).__name__)

    def drain(self) -> None:
        """Wait until everything submitted has been reloaded; for tests and shutdown."""
        self._waiting.join()

    def restart_after_fork(self) -> None:
        """Forget the parent's queue and thread."""
        self._start_clean()
