"""Writes down what a process counts, once a second, for whoever adds the processes up.

Requests do not know of it: a thread takes the counts that are there anyway. A process that is
killed may lose the last second of its own. What cannot be written is said once a minute, and no
request waits for it or fails.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from hotplate.forks import leave_behind, restart_in_children
from hotplate.seldom import Seldom
from hotplate.telemetry.catalogue import Sample
from hotplate.telemetry.files import ProcessFiles, clean, counted

__all__ = ["Publisher"]

_CLOSE_S: Final = 5.0
_numbers = itertools.count()
_publishers: Final[weakref.WeakSet[Publisher]] = weakref.WeakSet()
_log = logging.getLogger("hotplate.telemetry")


class Publisher:
    """Writes the counts of one cache into a folder.

    The thread starts with `start`, and ends when the publisher is closed or let go. A forked child
    goes on by itself, from nothing: what its parent had counted is the parent's.

    Args:
        folder: of the processes of this host.
        every_s: how often.
        samples: what is counted by now; let go with its owner.
    """

    def __init__(
        self, folder: Path, every_s: float, samples: Callable[[], Iterable[Sample]]
    ) -> None:
        self.folder = folder
        self._every_s = every_s
        self._samples = weakref.WeakMethod(samples)
        self._baseline: dict[str, float] = {}
        self._seldom = Seldom()
        self._start_clean()
        restart_in_children(self)
        _publishers.add(self)

    def _start_clean(self) -> None:
        self._number = next(_numbers)
        self._files: dict[Path, ProcessFiles] = {}
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a thread that writes."""
        return self._thread is not None

    def start(self, *, at_once: bool = True) -> None:
        """Begin to write, unless it does already.

        Args:
            at_once: whether the first time is now; else the next.
        """
        if self.is_running:
            return
        with self._lock:
            if self._thread is not None:
                return
            thread = threading.Thread(
                target=_work,
                args=(weakref.ref(self), self._ends, self._every_s, at_once),
                name="hotplate-metrics",
                daemon=True,
            )
            try:
                thread.start()
            except RuntimeError:  # no thread to be had, as when the interpreter ends
                return
            self._thread = thread
            atexit.register(_close, weakref.ref(self))

    def write(self) -> None:
        """Write what is counted by now."""
        samples = self._samples()
        if samples is None or not self._lock.acquire(timeout=_CLOSE_S):
            return
        try:
            found = list(samples())
            for folder in self._folders():
                self._files_in(folder).write(found, self._baseline)
        except Exception as error:  # noqa: BLE001 - whatever a disk may say, nobody waits for it
            if self._seldom.is_time():
                _log.warning("metrics are not written into %s: %s", self.folder, error)
        finally:
            self._lock.release()

    def _folders(self) -> list[Path]:
        """Ours and, where Feast's own metrics server runs, the one that it reads."""
        feast = sys.modules.get("feast.metrics")
        is_served = feast is not None and getattr(feast._config, "enabled", False)
        theirs = os.environ.get("PROMETHEUS_MULTIPROC_DIR") if is_served else None
        return list(dict.fromkeys([self.folder, *([Path(theirs)] if theirs else [])]))

    def _files_in(self, folder: Path) -> ProcessFiles:
        files = self._files.get(folder)
        if files is None:
            files = ProcessFiles(folder, self._number)
            clean(folder)
            self._files[folder] = files
        return files

    def close(self) -> None:
        """Write for the last time, and take the gauges away, until `start` is called again."""
        with self._lock:
            thread, ends = self._thread, self._ends
            self._thread, self._ends = None, threading.Event()
        if thread is None:
            return
        ends.set()
        if thread is not threading.current_thread():
            thread.join(_CLOSE_S)
        self.write()
        if self._lock.acquire(timeout=_CLOSE_S):
            try:
                for files in self._files.values():
                    files.close()
                self._files = {}
            finally:
                self._lock.release()

    # -- forks -------------------------------------------------------------------------------------

    def note_fork(self) -> None:
        """In the parent, before a fork: remember what the child must not count again."""
        samples = self._samples()
        if samples is None:
            return
        try:
            self._at_fork = counted(samples())
        except Exception:  # noqa: BLE001 - a fork is not the place to fail
            self._at_fork = {}

    def restart_after_fork(self) -> None:
        """Go on in the child, which has none of the parent's threads."""
        was_running = self._thread is not None
        for files in self._files.values():
            leave_behind(*files.forsake())
        self._baseline = self.__dict__.pop("_at_fork", self._baseline)
        self._start_clean()
        if was_running:
            self.start(at_once=False)  # it may be about to become another program


def _work(
    publisher: weakref.ref[Publisher], ends: threading.Event, every_s: float, at_once: bool
) -> None:
    if not at_once and ends.wait(every_s):
        return
    while True:
        found = publisher()
        if found is None:
            return
        found.write()
        del found
        if ends.wait(every_s):
            return


def _close(publisher: weakref.ref[Publisher]) -> None:
    found = publisher()
    if found is not None:
        found.close()


def _before_fork() -> None:
    for publisher in list(_publishers):
        publisher.note_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
