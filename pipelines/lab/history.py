"""What processes did and were served, written down while they run.

Each process appends records of a fixed size to a file of its own, so that one that is killed
loses nothing but the end of what it has read. Times are of the clock that Hotplate takes ages
from, which all processes of a machine share. Every value written is unlike any other, so that a
value that was served says which write it came from.

A write is noted twice: before it begins, as one that may take effect at any later time, and when
it has returned. Of one that failed, or was in progress at a kill, only the first note is there.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hotplate.clock import SYSTEM_CLOCK

__all__ = [
    "ABSENT",
    "EVERY_ENTITY",
    "EVERY_VIEW",
    "GARBLED",
    "NEVER",
    "RECORD",
    "HistoryWriter",
    "Kind",
    "Records",
    "load_history",
]

ABSENT: Final = -1
"""The value of a read that found no row."""

GARBLED: Final = -2
"""The value of a read that found what nobody can have written."""

EVERY_ENTITY: Final = -1
EVERY_VIEW: Final = 0xFFFF
NEVER: Final = 1 << 62
"""The end of a write that has not returned."""

RECORD: Final = np.dtype(
    [
        ("kind", "u1"),
        ("unused", "u1"),
        ("view", "<u2"),
        ("process", "<u4"),
        ("entity", "<i8"),
        ("value", "<i8"),
        ("begin", "<i8"),
        ("end", "<i8"),
    ]
)
Records = npt.NDArray[Any]
"""An array of `RECORD`."""

_pack: Final = struct.Struct("<BxHIqqqq").pack
_FLUSHED_AT = 1 << 16


class Kind(IntEnum):
    """What a record tells of.

    WRITE: a value of an entity; REMOVE: its removal at the source, `value` a number of its own;
    INVALIDATE: the process told its cache to forget; READ: a value was served; READ_FAILED: none
    was, an error was raised; FORK: the process was forked from the one in `entity`, whose memory
    it has.
    """

    WRITE = 1
    REMOVE = 2
    INVALIDATE = 3
    READ = 4
    READ_FAILED = 5
    FORK = 6


class HistoryWriter:
    """Appends records to a file; may be used by several threads.

    Args:
        folder: of all files of one history.
        process: number of the process in this history.
        clock: nanoseconds that never go back.
    """

    def __init__(
        self, folder: Path, process: int, clock: Callable[[], int] = SYSTEM_CLOCK.now_ns
    ) -> None:
        self.process = process
        self.now_ns = clock
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(folder / f"process-{process}.history", flags, 0o600)
        self._last_value = process << 40
        self._pending = bytearray()
        self._lock = threading.Lock()

    def new_values(self, count: int) -> list[int]:
        """Numbers that no process has had before."""
        with self._lock:
            first = self._last_value + 1
            self._last_value += count
        return list(range(first, first + count))

    def begin_write(
        self, view: int, values: Mapping[int, int], kind: Kind = Kind.WRITE
    ) -> Callable[[], None]:
        """Note that values, by entity, are about to be written; call what it returns afterwards."""
        begin = self.now_ns()

        def note(end: int) -> None:
            rows = values.items()
            self._add([(kind, view, entity, value, begin, end) for entity, value in rows], True)

        note(NEVER)
        return lambda: note(self.now_ns())

    def invalidated(self, view: int, entity: int, begin: int) -> None:
        """Note that an invalidation that began then has returned."""
        self._add([(Kind.INVALIDATE, view, entity, 0, begin, self.now_ns())])

    def read(self, view: int, served: Mapping[int, int], begin: int, end: int) -> None:
        """Note the values that one read served, by entity."""
        self._add(
            [(Kind.READ, view, entity, value, begin, end) for entity, value in served.items()]
        )

    def read_failed(self, view: int, entities: Sequence[int], begin: int, end: int) -> None:
        """Note that a read raised an error."""
        self._add([(Kind.READ_FAILED, view, entity, ABSENT, begin, end) for entity in entities])

    def forked(self, parent: int) -> None:
        """Note that this process has just been forked from another one."""
        now = self.now_ns()
        self._add([(Kind.FORK, EVERY_VIEW, parent, 0, now, now)], True)

    def _add(
        self, rows: Sequence[tuple[int, int, int, int, int, int]], is_urgent: bool = False
    ) -> None:
        made = b"".join(_pack(kind, view, self.process, *numbers) for kind, view, *numbers in rows)
        with self._lock:
            self._pending += made
            if is_urgent or len(self._pending) > _FLUSHED_AT:
                self._flush()

    def _flush(self) -> None:
        while self._pending:
            del self._pending[: os.write(self._file, self._pending)]

    def flush(self) -> None:
        """Write out what is buffered."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        self.flush()
        os.close(self._file)


def load_history(folder: Path) -> Records:
    """All records of a folder; the torn end of a process that was killed is left out."""
    parts = [np.empty(0, RECORD)]
    for path in sorted(folder.glob("*.history")):
        raw = path.read_bytes()
        parts.append(np.frombuffer(raw, RECORD, count=len(raw) // RECORD.itemsize))
    return np.concatenate(parts)
