"""The change log: which entities of which views changed when, as this process wrote or heard it.

Beside the traffic log, in files `changes-HOST-PID-NUMBER.parquet` of the same folder. A row is one
entity of one view: `at` (timestamp, microseconds, UTC: when the change was done), `view`, `entity`
(its join keys, with commas) and `key`, as in the traffic log; `key` is null, and `entity` empty,
where every entity of the view may have changed. What writes through Feast is logged by the process
that writes, so let the jobs that materialize log into this folder, too.

References: `hotplate.warming.row_log` for how it is written, `hotplate.advice` for what reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from hotplate.clock import Clock
from hotplate.keys import EntityShape
from hotplate.stats import TrafficStats
from hotplate.warming.row_log import LogFiles, RowLog
from hotplate.warming.traffic import TrafficSettings, key_of

__all__ = ["CHANGES_SCHEMA", "ChangeLog"]

_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
CHANGES_SCHEMA: Final = pa.schema(
    {
        "at": pa.timestamp("us", "UTC"),
        "view": _TEXT,
        "entity": _TEXT,
        "key": pa.string(),
    },
    metadata={"hotplate.changes": "1"},
)
_Entities = Sequence[tuple[EntityShape, tuple[Any, ...]]]


@dataclass(slots=True)
class _Changed:
    view: str
    entities: _Entities | None


class ChangeLog:
    """Logs what changes in one deployment.

    Args:
        settings: of the traffic log beside which it lies; `max_bytes` bounds each of the two.
        project: the Feast project.
        clock: the cache's.
    """

    def __init__(self, settings: TrafficSettings, project: str, clock: Clock) -> None:
        self._settings = settings
        self._project = project
        files = LogFiles(
            "changes",
            CHANGES_SCHEMA,
            settings.folder,
            settings.max_bytes,
            settings.every_ns,
            settings.is_lossless,
        )
        self._log: RowLog[_Changed] = RowLog(files, clock, self._rows_of)

    def note(self, view: str, entities: _Entities | None) -> None:
        """Log a change that is done.

        Args:
            view: the feature view.
            entities: those that changed; None for all there are.
        """
        if entities is None or entities:
            self._log.note(_Changed(view, entities), len(entities or ()))

    def _rows_of(self, at_us: int, number: int, what: _Changed) -> Iterable[tuple[Any, ...]]:
        if what.entities is None:
            yield at_us, what.view, "", None
            return
        for shape, values in dict.fromkeys(what.entities):
            key = key_of(values, self._project, has_ids=self._settings.has_ids)
            yield at_us, what.view, ",".join(shape.join_keys), key

    def flush(self) -> None:
        """Write what was noted so far."""
        self._log.flush()

    def close(self) -> None:
        """Write what was noted, and end the thread; a later change starts another."""
        self._log.close()

    def stats(self) -> TrafficStats:
        """The counts now; `logged` and `lost` are writes, not entities."""
        return self._log.stats()
