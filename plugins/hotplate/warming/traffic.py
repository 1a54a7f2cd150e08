"""The traffic log: which entities of which views were read when, a sample of it, in Parquet files.

A read only puts what it asked for into a bounded queue; a thread makes rows of it and writes a file
now and then. Where that cannot keep up, or cannot write (a full disk, no right), what does not fit
is left out and counted: no read waits for it or fails.

A row is one entity of one request: `at` (timestamp, microseconds, UTC), `request` (a running number
of this process), `entity` (its join keys, with commas), `key` (its values as a JSON list, or a
hash of that, unless the deployment allows ids), `views` (read for it, with commas) and
`weight` (how many requests this one stands for; their sum is the number of requests).

Files appear whole, by renaming; `traffic-HOST-PID-NUMBER.parquet`. The oldest go when all of them
together exceed `max_bytes`.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from hotplate.clock import Clock
from hotplate.core.request import Want
from hotplate.forks import restart_in_children
from hotplate.keys import values_of
from hotplate.sampling import Share
from hotplate.seldom import Seldom
from hotplate.stats import TrafficStats
from hotplate.warming.files import dated, private, table_of

__all__ = ["SCHEMA", "TrafficLog", "TrafficSettings", "key_of"]

_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
SCHEMA: Final = pa.schema(
    {
        "at": pa.timestamp("us", "UTC"),
        "request": pa.uint64(),
        "entity": _TEXT,
        "key": pa.string(),
        "views": _TEXT,
        "weight": pa.uint32(),
    },
    metadata={"hotplate.traffic": "1"},
)
_WAITING_MOST: Final = 20_000  # requests that wait to be made rows of
_KEYS_MOST: Final = 2_000_000
_CLOSE_S: Final = 5.0
_ROWS_MOST: Final = 500_000  # in one file
_WAKES_S: Final = 0.5
_HASH_BYTES: Final = 12
_log = logging.getLogger("hotplate.traffic")


@dataclass(frozen=True)
class TrafficSettings:
    """What is logged, and where.

    Attributes:
        folder: of the files.
        share: of the requests that are logged; 1 for all of them.
        has_ids: whether entity ids are written as they are.
        max_bytes: of all files together.
        every_ns: how often a file is written.
    """

    folder: Path
    share: float = 0.01
    has_ids: bool = False
    max_bytes: int = 1_000_000_000
    every_ns: int = 60_000_000_000


@dataclass(slots=True)
class _Noted:
    wall_ns: int
    weight: int
    wants: Sequence[Want]


def key_of(values: Sequence[Any], project: str, *, has_ids: bool) -> str:
    """An entity as it stands in the log.

    Args:
        values: of its join keys, in their sorted order.
        project: whose entity; the same id in another project has another hash.
        has_ids: whether it stands there as it is.
    """
    plain = json.dumps(
        [value.hex() if isinstance(value, bytes) else value for value in values],
        ensure_ascii=False,
        separators=(",", ":"),
    )
    if has_ids:
        return plain
    said = plain.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(said, digest_size=_HASH_BYTES, key=project.encode()[:64]).hexdigest()


class TrafficLog:
    """Logs a sample of the reads of one deployment.

    The thread starts with the first read that is logged, and ends when the log is closed or let go.

    Args:
        settings: what, and where.
        project: the Feast project.
        clock: the cache's.
    """

    def __init__(self, settings: TrafficSettings, project: str, clock: Clock) -> None:
        self.settings = settings
        self._project = project
        self._clock = clock
        self._seldom = Seldom()
        self._start_clean()
        restart_in_children(self)

    def _start_clean(self) -> None:
        self._waiting: deque[_Noted] = deque()
        self._keys = 0  # of what waits; a count that threads may get a little wrong
        self._share = Share(self.settings.share)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._ends = threading.Event()
        self._requests = self._logged = self._lost = self._files = 0
        self._problem = ""
        self._rows: list[tuple[int, int, str, str, str, int]] = []
        self._in_rows = 0
        self._since_ns = self._clock.now_ns()

    def restart_after_fork(self) -> None:
        """Leave what the parent has noted to the parent."""
        self._start_clean()

    # -- on the way of a request ------------------------------------------------------------------

    def gap(self) -> int:
        """As `Share.gap`."""
        return self._share.gap()

    def note(self, wants: Sequence[Want], weight: int) -> None:
        """Log a request.

        Args:
            wants: what it asked for.
            weight: how many requests it stands for.
        """
        keys = sum(len(want.keys) for want in wants)
        if len(self._waiting) >= _WAITING_MOST or self._keys + keys > _KEYS_MOST:
            self._lost += 1
            return
        self._keys += keys
        self._waiting.append(_Noted(self._clock.wall_ns(), weight, wants))
        if self._thread is None:
            self._start()

    def note_some(self, wants: Sequence[Want]) -> None:
        """Log one of so many requests; of the others nothing."""
        if weight := self._share.take():
            self.note(wants, weight)

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._ends.is_set():
                return
            thread = threading.Thread(
                target=_work, args=(weakref.ref(self), self._ends), name="hotplate-traffic"
            )
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

    def _step(self) -> None:
        """Make rows of what waits, and a file where it is time."""
        with self._writing:
            self._make_rows()
            age_ns = self._clock.now_ns() - self._since_ns
            if len(self._rows) >= _ROWS_MOST or (self._rows and age_ns >= self.settings.every_ns):
                self._write()

    def _make_rows(self) -> None:
        for _ in range(len(self._waiting)):
            if len(self._rows) >= _ROWS_MOST:
                break
            noted = self._waiting.popleft()
            self._keys -= sum(len(want.keys) for want in noted.wants)
            self._requests += 1
            self._in_rows += 1
            at_us = noted.wall_ns // 1_000
            for entity, key, views in self._entities(noted.wants):
                self._rows.append((at_us, self._requests, entity, key, views, noted.weight))

    def _entities(self, wants: Sequence[Want]) -> Iterable[tuple[str, str, str]]:
        """Each entity of a request, with the views that were read for it."""
        views: dict[tuple[tuple[str, ...], tuple[Any, ...]], dict[str, None]] = {}
        for want in wants:
            identity = want.view.identity
            for key in want.keys:
                entity = identity.shape.join_keys, values_of(key)
                views.setdefault(entity, {})[identity.view] = None
        for (join_keys, values), read in views.items():
            key_text = key_of(values, self._project, has_ids=self.settings.has_ids)
            yield ",".join(join_keys), key_text, ",".join(sorted(read))

    def _write(self) -> None:
        rows, self._rows = self._rows, []
        requests, self._in_rows = self._in_rows, 0
        self._since_ns = self._clock.now_ns()
        folder = self.settings.folder
        path = folder / (
            f"traffic-{socket.gethostname()}-{os.getpid()}-{self._clock.wall_ns() // 1_000}.parquet"
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            table = table_of(zip(*rows, strict=True), SCHEMA)
            with private(path) as file:
                pq.write_table(table, file, compression="zstd")
        except Exception as error:  # noqa: BLE001 - whatever a disk may say, nobody waits for it
            self._lost += requests
            self._problem = f"{type(error).__name__}: {error}"
            if self._seldom.is_time():
                _log.warning("reads are not logged in %s: %s", folder, self._problem)
            return
        self._files += 1
        self._logged += requests
        self._problem = ""
        self._make_room()

    def _make_room(self) -> None:
        """Remove the oldest files while there are too many bytes of them."""
        size = 0
        for place, one in enumerate(dated(self.settings.folder, "traffic-*.parquet")):
            size += one.size
            if size > self.settings.max_bytes and place:
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
        """Write what was noted, and end the thread; a later read starts another.

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
        return TrafficStats(self._logged, self._lost, self._files, self._problem)


def _work(log: weakref.ref[TrafficLog], ends: threading.Event) -> None:
    while not ends.wait(_WAKES_S):
        found = log()
        if found is None:
            return
        try:
            found._step()
        except Exception as error:  # noqa: BLE001 - the border of the thread
            if found._seldom.is_time():
                _log.warning("reads are not logged: %s", type(error).__name__)
        del found


def _close(log: weakref.ref[TrafficLog]) -> None:
    found = log()
    if found is not None:
        found.close()
