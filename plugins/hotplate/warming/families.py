"""The family log: how often each input family of a model's output cache was asked for.

Beside the traffic log, in files `families-HOST-PID-NUMBER.parquet` of the same folder, written when
that writes. A row is one family of one version of a model: `at` (timestamp, microseconds, UTC),
`model`, `version`, `family`, and since the row before it of this process `rows` (asked for, and
forbidden by no rule), `hits` (answered from memory) and `computed` (by the model).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from hotplate.clock import Clock
from hotplate.forks import restart_in_children
from hotplate.warming.row_log import LogFiles, RowLog
from hotplate.warming.traffic import TrafficSettings

__all__ = ["FAMILIES_SCHEMA", "Counted", "FamilyLog"]

_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
FAMILIES_SCHEMA: Final = pa.schema(
    {
        "at": pa.timestamp("us", "UTC"),
        "model": _TEXT,
        "version": _TEXT,
        "family": _TEXT,
        "rows": pa.int64(),
        "hits": pa.int64(),
        "computed": pa.int64(),
    },
    metadata={"hotplate.families": "1"},
)
_Row = tuple[str, str, str, int, int, int]


class Counted(Protocol):
    """What was counted of a family since the start."""

    @property
    def name(self) -> str: ...

    @property
    def rows(self) -> int: ...

    @property
    def hits(self) -> int: ...

    @property
    def computed(self) -> int: ...


class FamilyLog:
    """Logs the families of one deployment.

    Args:
        settings: of the traffic log beside which it lies; `max_bytes` bounds each of the two.
        clock: the cache's.
        families: (model, version, counts) of each family now.
    """

    def __init__(
        self,
        settings: TrafficSettings,
        clock: Clock,
        families: Callable[[], Iterable[tuple[str, str, Counted]]],
    ) -> None:
        self._families = families
        files = LogFiles(
            "families", FAMILIES_SCHEMA, settings.folder, settings.max_bytes, settings.every_ns
        )
        self._log: RowLog[Sequence[_Row]] = RowLog(files, clock, _rows_of)
        self.restart_after_fork()
        restart_in_children(self)

    def restart_after_fork(self) -> None:
        """What the parent counted so far, the parent logs."""
        self._before: dict[tuple[str, str, str], tuple[int, int, int]] = {
            (model, version, one.name): (one.rows, one.hits, one.computed)
            for model, version, one in self._families()
        }

    def note(self) -> None:
        """Log what was counted since the last time."""
        rows: list[_Row] = []
        for model, version, one in self._families():
            key = (model, version, one.name)
            now = (one.rows, one.hits, one.computed)
            before = self._before.get(key, (0, 0, 0))
            if now[0] < before[0]:  # another cache of the same model
                before = (0, 0, 0)
            self._before[key] = now
            if now != before:
                counts = [count - earlier for count, earlier in zip(now, before, strict=True)]
                rows.append((*key, counts[0], counts[1], counts[2]))
        if rows:
            self._log.note(rows, len(rows))

    def close(self) -> None:
        """Write what was counted, and end the thread; something counted later starts another."""
        self.note()
        self._log.close()


def _rows_of(at_us: int, number: int, rows: Sequence[_Row]) -> Iterable[tuple[Any, ...]]:
    for row in rows:
        yield at_us, *row
