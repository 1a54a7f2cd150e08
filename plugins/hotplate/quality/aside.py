"""Work on the side: one thread, a few things waiting, none of them waited for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Final

from hotplate.forks import leave_behind, restart_in_children

__all__ = ["Aside"]

_WAITING: Final = 4


class Aside:
    """Does things one after the other in a thread of its own, which the first of them starts.

    Args:
        work: done with each; what it raises ends the thread, so it must not.
    """

    def __init__(self, work: Callable[[Any], None]) -> None:
        self._work = work
        self._thread: threading.Thread | None = None
        self._begin()
        restart_in_children(self)

    def put(self, one: Any) -> bool:
        """Have something done later.

        Returns:
            False where too much waits, and it will not be done.
        """
        if self._is_closed:
            return False
        try:
            self._waiting.put_nowait(one)
        except queue.Full:
            return False
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, args=(self._waiting,), name="hotplate-quality", daemon=True
                )
                self._thread.start()
        return True

    def close(self) -> None:
        """Do what waits, then end; nothing more is taken."""
        self._is_closed = True
        with self._starting:
            thread = self._thread
        if thread is not None:
            self._waiting.put(None)
            thread.join()

    def restart_after_fork(self) -> None:
        """The child has none of the thread, and what waited is the parent's."""
        leave_behind(self._waiting, self._starting)
        self._begin()

    def _begin(self) -> None:
        self._waiting: queue.Queue[Any] = queue.Queue(_WAITING)
        self._starting = threading.Lock()
        self._thread = None
        self._is_closed = False

    def _run(self, waiting: queue.Queue[Any]) -> None:
        while (one := waiting.get()) is not None:
            self._work(one)
