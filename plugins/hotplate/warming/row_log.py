"""A log that is written beside the work it is about: into Parquet files, off everybody's way.

Who has something to log only puts it into a bounded queue; a thread makes rows of it and writes a
file now and then. Where that cannot keep up, or cannot write (a full disk, no right), what does not
fit is left out and counted: nobody waits for it or fails. In a lossless log who finds the queue
full does the thread's work for a while; what cannot be written is lost there, too.

Files appear whole, by renaming; `NAME-HOST-PID-NUMBER.parquet`. The oldest go when all of one name
together exceed their bound. What was lost since the file before stands in a file's metadata, under
`hotplate.lost`.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from hotplate.clock import Clock
from hotplate.forks import restart_in_children
from hotplate.seldom import Seldom
from hotplate.stats import TrafficStats
from hotplate.warming.files import dated, private, table_of

__all__ = ["LOST", "LogFiles", "RowLog"]

LOST: Final = b"hotplate.lost"
"""Under this name a file's metadata says how many things were lost since the file before."""

_WAITING_MOST: Final = 20_000  # things that wait to be made rows of
_KEYS_MOST: Final = 2_000_000
_CLOSE_S: Final = 5.0
_ROWS_MOST: Final = 500_000  # in one file
_WAKES_S: Final = 0.5
_log = logging.getLogger("hotplate.traffic")
_T = TypeVar("_T")


@dataclass(frozen=True)
class LogFiles:
    """Where files go, and when.

    Attributes:
        name: what they begin with.
        schema: of their rows.
        folder: in which they lie.
        max_bytes: of all files of that name together.
        every_ns: how often a file is written.
        is_lossless: whether who logs waits before anything is left out.
    """

    name: str
    schema: pa.Schema
    folder: Path
    max_bytes: int
    every_ns: int
    is_lossless: bool = False


class RowLog(Generic[_T]):
    """Logs things of one kind.

    The thread starts with the first of them, and ends when the log is closed or let go.

    Args:
        files: where they go.
        clock: the cache's.
        rows_of: makes rows of (microseconds since 1970, a running number, the thing).
        beside: called when a file is written.
    """

    def __init__(
        self,
        files: LogFiles,
        clock: Clock,
        rows_of: Callable[[int, int, _T], Iterable[tuple[Any, ...]]],
        beside: Callable[[], None] = lambda: None,
    ) -> None:
        self._beside = beside
        self._files = files
        self._clock = clock
        self._rows_of = rows_of
        self._seldom = Seldom()
        self._start_clean()
        restart_in_children(self)

    def _start_clean(self) -> None:
        # a plain tuple: made on the way of a request, in a quarter of the time of an object
        self._waiting: deque[tuple[int, int, _T]] = deque()
        self._keys = 0  # of what waits; a count that threads may get a little wrong
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._ends = threading.Event()
        self._named = 0
        self._number = self._logged = self._lost = self._said_lost = self._written = 0
        self._problem = ""
        self._rows: list[tuple[Any, ...]] = []
        self._in_rows = 0
        self._since_ns = self._clock.now_ns()

    def restart_after_fork(self) -> None:
        """Leave what the parent has noted to the parent."""
        self._start_clean()

    def note(self, what: _T, keys: int) -> None:
        """Log something.

        Args:
            what: the thing, which must not change any more.
            keys: how many entities it holds.
        """
        if len(self._waiting) >= _WAITING_MOST or self._keys + keys > _KEYS_MOST:
            if not self._files.is_lossless:
                self._lost += 1
                return
            self._make_way()
        self._keys += keys
        self._waiting.append((self._clock.wall_ns(), keys, what))
        if self._thread is None:
            self._start()

    def _make_way(self) -> None:
        """Do the thread's work: what cannot be written is lost, and counted, there as well."""
        with self._writing:
            self._make_rows()
            if len(self._rows) >= _ROWS_MOST:
                self._write()

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._ends.is_set():
                return
            name = f"hotplate-{self._files.name}"
            thread = threading.Thread(target=_work, args=(weakref.ref(self), self._ends), name=name)
            thread.daemon = True
            try:
                thread.start()
            except RuntimeError:  # no thread to be had: then nothing is logged
                self._lost += len(self._waiting)
                self._waiting.clear()
                return
            self._thread = thread
            atexit.register(_close, weakref.ref(self))

    # -- on the thread ----------------------------------------------------------------------------

    def step(self) -> None:
        """Make rows of what waits, and a file where it is time."""
        with self._writing:
            self._make_rows()
            age_ns = self._clock.now_ns() - self._since_ns
            if len(self._rows) >= _ROWS_MOST or (self._rows and age_ns >= self._files.every_ns):
                self._write()

    def complain(self, error: Exception) -> None:
        """Log, once a minute, that the thread failed."""
        if self._seldom.is_time():
            _log.warning("%s is not logged: %s", self._files.name, type(error).__name__)

    def _make_rows(self) -> None:
        for _ in range(len(self._waiting)):
            if len(self._rows) >= _ROWS_MOST:
                break
            wall_ns, keys, what = self._waiting.popleft()
            self._keys -= keys
            self._number += 1
            self._in_rows += 1
            self._rows.extend(self._rows_of(wall_ns // 1_000, self._number, what))

    def _write(self) -> None:
        try:
            self._beside()
        except Exception as error:  # noqa: BLE001 - these rows are written all the same
            self.complain(error)
        rows, self._rows = self._rows, []
        count, self._in_rows = self._in_rows, 0
        self._since_ns = self._clock.now_ns()
        files = self._files
        # a name of its own, also where the clock stands still or was set back
        self._named = max(self._named + 1, self._clock.wall_ns() // 1_000)
        path = files.folder / (
            f"{files.name}-{socket.gethostname()}-{os.getpid()}-{self._named}.parquet"
        )
        lost = self._lost
        metadata = {**(files.schema.metadata or {}), LOST: str(lost - self._said_lost).encode()}
        try:
            files.folder.mkdir(parents=True, exist_ok=True)
            table = table_of(zip(*rows, strict=True), files.schema)
            with private(path) as file:
                pq.write_table(table.replace_schema_metadata(metadata), file, compression="zstd")
        except Exception as error:  # noqa: BLE001 - whatever a disk may say, nobody waits for it
            self._lost += count
            self._problem = f"{type(error).__name__}: {error}"
            if self._seldom.is_time():
                _log.warning("%s is not logged in %s: %s", files.name, files.folder, self._problem)
            return
        self._said_lost = lost
        self._written += 1
        self._logged += count
        self._problem = ""
        self._make_room()

    def _make_room(self) -> None:
        """Remove the oldest files while there are too many bytes of them."""
        size = 0
        for place, one in enumerate(dated(self._files.folder, f"{self._files.name}-*.parquet")):
            size += one.size
            if size > self._files.max_bytes and place:
                with suppress(OSError):
                    one.path.unlink()

    # -- life -------------------------------------------------------------------------------------

    def flush(self, timeout_s: float = -1) -> None:
        """Write what was noted so far.

        Args:
            timeout_s: how long to wait for a file that is being written; for ever if left out.
        """
        if not self._writing.acquire(timeout=timeout_s):
            return
        try:
            while self._waiting or self._rows:
                self._make_rows()
                if self._rows:
                    self._write()
        finally:
            self._writing.release()

    def close(self) -> None:
        """Write what was noted, and end the thread; something noted later starts another.

        A disk that does not answer is waited for a few seconds, and no longer.
        """
        self._ends.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=_CLOSE_S)
        self.flush(_CLOSE_S)
        self._thread, self._ends = None, threading.Event()

    def stats(self) -> TrafficStats:
        """The counts now."""
        return TrafficStats(self._logged, self._lost, self._written, self._problem)


def _work(log: weakref.ref[RowLog[Any]], ends: threading.Event) -> None:
    while not ends.wait(_WAKES_S):
        found = log()
        if found is None:
            return
        try:
            found.step()
        except Exception as error:  # noqa: BLE001 - the border of the thread
            found.complain(error)
        del found


def _close(log: weakref.ref[RowLog[Any]]) -> None:
    found = log()
    if found is not None:
        found.close()
