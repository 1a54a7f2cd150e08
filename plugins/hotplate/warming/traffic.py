"""The traffic log: which entities of which views were read when, a sample of it, in Parquet files.

A read only puts what it asked for into a bounded queue, see `hotplate.warming.row_log`.

A row is one entity of one request: `at` (timestamp, microseconds, UTC), `request` (a running number
of this process), `entity` (its join keys, with commas), `key` (its values as a JSON list, or a
hash of that, unless the deployment allows ids), `views` (read for it, with commas) and
`weight` (how many requests this one stands for; their sum is the number of requests).

Files are `traffic-HOST-PID-NUMBER.parquet`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa

from hotplate.clock import Clock
from hotplate.core.request import Want
from hotplate.forks import restart_in_children
from hotplate.keys import values_of
from hotplate.sampling import Share
from hotplate.stats import TrafficStats
from hotplate.warming.row_log import LogFiles, RowLog

__all__ = ["SCHEMA", "TrafficLog", "TrafficSettings", "hash_of", "key_of"]

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
_HASH_BYTES: Final = 12


@dataclass(frozen=True)
class TrafficSettings:
    """What is logged, and where.

    Attributes:
        folder: of the files.
        share: of the requests that are logged; 1 for all of them.
        has_ids: whether entity ids are written as they are.
        max_bytes: of all files together.
        every_ns: how often a file is written.
        has_changes: whether changes are logged beside the reads.
        is_lossless: whether requests wait before anything is left out.
    """

    folder: Path
    share: float = 0.01
    has_ids: bool = False
    max_bytes: int = 1_000_000_000
    every_ns: int = 60_000_000_000
    has_changes: bool = False
    is_lossless: bool = False


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
    return plain if has_ids else hash_of(plain, project)


def hash_of(plain: str, project: str) -> str:
    """The hash of an entity that stands in a log as it is: what `key_of` writes without ids."""
    said = plain.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(said, digest_size=_HASH_BYTES, key=project.encode()[:64]).hexdigest()


_Logged: TypeAlias = tuple[Sequence[Want], int]
"""What a request asked for, and how many it stands for."""


class TrafficLog:
    """Logs a sample of the reads of one deployment.

    Args:
        settings: what, and where.
        project: the Feast project.
        clock: the cache's.
        beside: called when a file is written.
    """

    def __init__(
        self,
        settings: TrafficSettings,
        project: str,
        clock: Clock,
        beside: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self._project = project
        files = LogFiles(
            "traffic",
            SCHEMA,
            settings.folder,
            settings.max_bytes,
            settings.every_ns,
            settings.is_lossless,
        )
        self._log: RowLog[_Logged] = RowLog(files, clock, self._rows_of, beside)
        self.restart_after_fork()
        restart_in_children(self)

    def restart_after_fork(self) -> None:
        """Begin a gap of its own."""
        self._share = Share(self.settings.share)

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
        self._log.note((wants, weight), sum(len(want.keys) for want in wants))

    def note_some(self, wants: Sequence[Want]) -> None:
        """Log one of so many requests; of the others nothing."""
        if weight := self._share.take():
            self.note(wants, weight)

    # -- on the thread ----------------------------------------------------------------------------

    def _rows_of(self, at_us: int, number: int, what: _Logged) -> Iterable[tuple[Any, ...]]:
        wants, weight = what
        for entity, key, views in self._entities(wants):
            yield at_us, number, entity, key, views, weight

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

    # -- life -------------------------------------------------------------------------------------

    def flush(self, timeout_s: float = -1) -> None:
        """Write what was noted so far.

        Args:
            timeout_s: how long to wait for a file that is being written; for ever if left out.
        """
        self._log.flush(timeout_s)

    def close(self) -> None:
        """Write what was noted, and end the thread; a later read starts another.

        A disk that does not answer is waited for a few seconds, and no longer.
        """
        self._log.close()

    def stats(self) -> TrafficStats:
        """The counts now."""
        return self._log.stats()
