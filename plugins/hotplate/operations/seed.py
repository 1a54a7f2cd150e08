"""Event logs filled from history, so that windows are right from their first minute.

The table of all events is divided by entity into parts that fit in memory. Each entity's log is
made anew from its part of the table and from the single records that are in the log by then, so an
event that is in both counts once. The new log takes the place of the old one in one step, which
also keeps what is appended meanwhile. So seeding may run beside writers and readers, and running
it again, or once more after it was killed, changes nothing.

The table must have every event that is older than lateness and slack: what a log had folded
together of these is replaced. A log that knows of more events than the table is left as it is, and
counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pyarrow as pa
from feast import FeatureStore
from feast.infra.offline_stores.offline_utils import get_offline_store_from_config

from hotplate.serving.entities import declared_shape
from hotplate.serving.events import from_columns, records_of
from hotplate.serving.runtime import Runtime
from hotplate.serving.windows import Log
from hotplate.training.reading import EventSource, history_of
from hotplate.training.spill import Chunk, chunks_of, read_part, spill
from hotplate.training.tables import events_table, is_spark
from hotplate.windows.compaction import Fold
from hotplate.windows.errors import WindowStateError
from hotplate.windows.log import HEADER_SIZE, Head, LogFormat
from hotplate.windows.state import State

__all__ = ["Seed", "Seeded"]

_MAX_ROWS: Final = 500_000
_LOGS_AT_ONCE: Final = 500
_TRIES: Final = 20


@dataclass(frozen=True)
class Seeded:
    """How far a seeding is.

    Attributes:
        done, total: rows of the table.
        logs: that were made anew.
        kept: logs that were left as they are, because they know of more events than the table.
        events: that lie in the logs made anew.
    """

    done: int = 0
    total: int = 0
    logs: int = 0
    kept: int = 0
    events: int = 0

    def __add__(self, other: Seeded) -> Seeded:
        return Seeded(
            self.done + other.done,
            self.total + other.total,
            self.logs + other.logs,
            self.kept + other.kept,
            self.events + other.events,
        )


class Seed:
    """Fills the logs of an event view.

    Args:
        store: the store, whose registry knows the view.
        runtime: of its cache.
        event_view: the event view.
        max_rows: events that are held in memory at a time; an entity that has more is held alone.

    Raises:
        TrainingError: its batch source cannot be read so.
    """

    def __init__(
        self, store: FeatureStore, runtime: Runtime, event_view: Any, max_rows: int = _MAX_ROWS
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._max_rows = max_rows
        self._source = EventSource(event_view)
        self._shape = declared_shape(event_view)
        self._log: Log = runtime.event_logs.log(event_view)
        self._format = LogFormat(self._log.plan)

    def run(self, events: Path | None = None) -> Iterator[Seeded]:
        """Fill the logs.

        Args:
            events: a Parquet file or folder of all events, by the column names of the batch source;
                the batch source itself if left out.

        Yields:
            How far it is, after every few hundred logs; the last one says that all is done.

        Raises:
            TrainingError: a column is missing, or cannot be what the view declares.
            ServerError: the server does not answer; the logs before are filled.
        """
        with TemporaryDirectory(prefix="hotplate-seed-") as folder:
            total, parts = self._read(events, Path(folder))
            state = Seeded(total=total)
            self._runtime.event_logs.check_place()
            self._runtime.event_logs.admit(self._log, is_new=False)
            for part in parts:
                for more in self._fill(part):
                    state = state + more
                    yield state
                state = state + Seeded(done=part.num_rows)
                yield state
        view = self._log.said.view
        self._runtime.event_logs.layouts.complete(view, self._log.plan.fingerprint)
        self._runtime.forget_computed(self._log, None)
        yield state

    def _read(self, events: Path | None, folder: Path) -> tuple[int, Iterator[pa.Table]]:
        """How many events there are, and all of them by entity, a bounded number at a time."""
        config = self._store.config
        offline_store = get_offline_store_from_config(config.offline_store)
        if events is None and is_spark(offline_store):
            from hotplate.training.spark_frames import event_parts

            return event_parts(self._source, config, self._max_rows)
        table = events_table(self._source, events, offline_store, config)
        self._source.table.check(table.schema.names)
        chunks = chunks_of(table, self._max_rows)
        total = sum(chunk.rows for chunk in chunks)
        return total, self._parts(chunks, total, folder)

    def _parts(self, chunks: list[Chunk], total: int, folder: Path) -> Iterator[pa.Table]:
        columns = self._source.table.columns
        parts = max(-(-total // self._max_rows), 1)
        if parts == 1:
            batches = [batch for chunk in chunks for batch in chunk.batches(columns)]
            if batches:
                yield pa.Table.from_batches(batches)
            return
        for chunk in chunks:
            spill(chunk, folder, columns, self._source.table.key_columns, parts)
        for number in range(parts):
            part = read_part(folder, number)
            if part is not None:
                yield part

    def _fill(self, table: pa.Table) -> Iterator[Seeded]:
        """Fill the logs of a part; yields what was done, bit by bit."""
        history = history_of(self._source.table, table)
        keys = dict(zip(self._source.table.join_keys, history.keys, strict=True))
        batch = from_columns(self._shape, keys, history.events, {})
        now_ms = self._runtime.clock.wall_ns() // 1_000_000
        # those that a window may still look at
        at_all = np.flatnonzero(history.events.ts > now_ms - self._log.plan.retention_ms)
        events = history.events.take(at_all)
        kept_batch = replace(batch, owners=batch.owners[at_all], events=events)
        records = records_of(self._format.records, kept_batch)
        for at in range(0, len(batch.entities), _LOGS_AT_ONCE):
            some = range(at, min(at + _LOGS_AT_ONCE, len(batch.entities)))
            logs = kept = count = 0
            names = [self._log.key(*batch.entities[index]) for index in some]
            state = self._runtime.event_logs.state(self._log)
            held = state.get_many(names)
            for index, key, blob in zip(some, names, held, strict=True):
                if blob is None and not records[index]:
                    continue  # nothing there, and nothing to put there
                if self._replace(state, key, blob, records[index]):
                    logs += 1
                    count += len(records[index]) // self._format.records.size
                else:
                    kept += 1
            yield Seeded(logs=logs, kept=kept, events=count)

    def _replace(self, state: State, key: bytes, held: bytes | None, records: bytes) -> bool:
        """Make a log anew; False where it is better left as it is."""
        for _ in range(_TRIES):
            if held is None:
                state.append(key, b"")  # so that there is something to take the place of
                held = b""
            head = self._format.head(held)
            if head is not None and self._knows_more(head, records):
                return False
            bare = records + held[head.size if head else 0 :]
            now_ms = self._runtime.clock.wall_ns() // 1_000_000
            fold = self._log.compactor.fold(bare, now_ms) if bare else None
            blob = bare if fold is None else fold.blob
            if state.swap(key, Fold(held[:HEADER_SIZE] if head else held, len(held), blob)):
                return True
            held = state.get(key)
        raise WindowStateError(
            f"a log of event view {self._log.said.view!r} changes faster than it can be seeded",
            fix="Seed at a quieter time.",
        )

    def _knows_more(self, head: Head, records: bytes) -> bool:
        """Whether the tiles of a log hold events that the table lacks."""
        tiles = head.tiles
        if not len(tiles):
            return False
        ts = np.unique(self._format.records.fields(records)[:2], axis=1)[0]
        starts = tiles["start"]
        place = starts.searchsorted(ts, side="right") - 1
        is_inside = (place >= 0) & (ts < starts[place] + tiles["span"][place])
        return int(is_inside.sum()) < int(tiles["events"].astype(np.int64).sum())
