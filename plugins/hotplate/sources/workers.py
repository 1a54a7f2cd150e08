"""Where loaders run: a bounded number of threads, or one event loop for those that are coroutines.

A call that hangs cannot be stopped from outside, so it does not run on the thread of the one who
waits: that one can then give up in time. Threads are daemons, a process may exit while a database
hangs; they start with the first call and end when idle. A forked child starts clean.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from hotplate.forks import leave_behind, restart_in_children

__all__ = ["Workers", "run_on_loop"]

_IDLE_S: Final = 5.0
_T = TypeVar("_T")


class Workers:
    """Runs calls on at most `limit` threads at once; the others wait in line.

    Args:
        limit: how many at once.
        name: of the threads.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self.restart_after_fork()
        restart_in_children(self)

    def restart_after_fork(self) -> None:
        """Start clean in a forked child: the parent's threads are not here."""
        self._line: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unfinished = 0

    @property
    def unfinished(self) -> int:
        """How many calls run or wait."""
        return self._unfinished

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        """Run `call` when its turn comes, with this thread's context variables.

        Raises:
            RuntimeError: the system gives no thread.
        """
        future: Future[_T] = Future()
        context = contextvars.copy_context()
        with self._lock:
            if self._threads < min(self._limit, self._unfinished + 1):
                self._start_thread()
            self._unfinished += 1
            self._line.put((future, lambda: context.run(call)))
        return future

    def _start_thread(self) -> None:
        worker = threading.Thread(target=self._work, name=self._name, daemon=True)
        try:
            worker.start()
        except RuntimeError:
            if not self._threads:  # else those that run already will come to it
                raise
            return
        self._threads += 1

    def _work(self) -> None:
        while True:
            try:
                future, call = self._line.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._line.empty():
                        self._threads -= 1
                        return
                continue
            try:
                _fulfil(future, call)
            finally:
                with self._lock:
                    self._unfinished -= 1
            del future, call  # while idle, keep nothing alive that was asked before


def _fulfil(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - handed to the one who waits
        future.set_exception(error)


_loop: asyncio.AbstractEventLoop | None = None
_loop_lock = threading.Lock()


def run_on_loop(call: Coroutine[Any, Any, _T]) -> Future[_T]:
    """Run a coroutine on the one event loop on which all loaders of this process run.

    One loop for good, whoever asks: clients of databases and of HTTP belong to the loop that made
    them, so a function that keeps one must always run on the same.
    """
    return asyncio.run_coroutine_threadsafe(call, _running_loop())


def _running_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _loop_lock:
        if _loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(
                target=_run, args=(loop,), name="hotplate-loaders", daemon=True
            )
            thread.start()
            atexit.register(_stop, loop, thread)
            _loop = loop
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if thread.is_alive():  # not so in a forked child
        loop.call_soon_threadsafe(loop.stop)
        thread.join(1.0)


def _restart_after_fork() -> None:
    global _loop, _loop_lock
    if _loop is not None:
        leave_behind(_loop)  # closing it would take its descriptors off the parent's epoll set
    _loop = None
    _loop_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_after_fork)
