"""Outputs of a windowed view at every event, written as its batch source.

The result is an ordinary table: the entity's columns, a timestamp, a created timestamp and the
outputs. Whatever reads Feast's offline store without Hotplate can use it, and it joins point in
time like any other.

1. The events are divided by entity into parts that fit in memory (`spill`), unless all fit.
2. Each part's outputs are computed and written to a file of its own.
3. The files become the target.

What is done is on disk under its final name, and nothing else is, so a run that was killed goes on
where it was: it repeats one part at most. A manifest says what the files were made from; a run
with other events or another declaration does not mix with them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from feast import FeatureStore, FeatureView
from feast.infra.offline_stores.offline_utils import get_offline_store_from_config
from pydantic import BaseModel, ConfigDict, Field

from hotplate.training.errors import TrainingError
from hotplate.training.outputs import At, outputs_of
from hotplate.training.reading import EventSource
from hotplate.training.spill import Chunk, chunks_of, part_rows, read_part, spill
from hotplate.training.tables import events_table, is_spark, target_of
from hotplate.windowed import windowed_of

__all__ = ["Backfill", "BackfillResult", "BackfillSettings", "Progress", "backfill_view"]

_VERSION: Final = 1


class BackfillSettings(BaseModel):
    """How a backfill goes about its work.

    Attributes:
        at: `"event"`: outputs as of each event's own timestamp, as a request that scores it sees
            them: the event itself is not among them. `"after"`: 1 ms later, with it, if it had
            arrived by then.
        max_rows: events that are held in memory at a time, from 1,000; one entity that has more is
            held alone. A million take some 150 MB, and 8 bytes for each output beside that.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: At = "event"
    max_rows: int = Field(default=500_000, ge=1_000)


@dataclass(frozen=True)
class Progress:
    """How far a backfill is.

    Attributes:
        step: `"divide"`, `"compute"` or `"assemble"`.
        done, total: events of that step.
    """

    step: str
    done: int
    total: int


@dataclass(frozen=True)
class BackfillResult:
    """What a backfill has written.

    Attributes:
        target: the file or folder, or a table of Spark's.
        events: rows that were read.
        rows: rows that were written: one for each entity and moment.
    """

    target: Path | str
    events: int
    rows: int


class Backfill:
    """Computes the outputs of one windowed view at every event.

    Args:
        view: the windowed view.
        event_view: its event view.
        settings: see there.

    Raises:
        TrainingError: they are no such views.
    """

    def __init__(
        self, view: FeatureView, event_view: FeatureView, settings: BackfillSettings | None = None
    ) -> None:
        self.settings = settings or BackfillSettings()
        self.outputs = outputs_of(view, event_view, self.settings.at)
        self.events = self.outputs.events

    def run(
        self,
        events: ds.Dataset | pa.Table,
        target: Path,
        progress: Callable[[Progress], None] | None = None,
    ) -> BackfillResult:
        """Compute and write all outputs, or what is left of them after a run that was killed.

        Args:
            events: all events of the view, by the column names of its batch source.
            target: a Parquet file if it is named so, else a folder of Parquet files. What is there
                is replaced, when all is done. Beside it a folder `<target>.backfill` holds what is
                done so far.
            progress: called now and then.

        Raises:
            TrainingError: a column is missing, or the folder beside the target is of other events.
        """
        chunks = chunks_of(events, self.settings.max_rows)
        total = sum(chunk.rows for chunk in chunks)
        work = target.with_name(f"{target.name}.backfill")
        tell = progress or (lambda _: None)
        self.events.check(events.schema.names)
        self._claim(work, events, total)
        parts = max(-(-total // self.settings.max_rows), 1)
        self._divide(chunks, work, parts, total, tell)
        done = 0
        for number in range(parts):
            done += self._compute(chunks, work, number, parts)
            tell(Progress("compute", done, total))
        rows = _assemble([_outputs(work, number) for number in range(parts)], target)
        tell(Progress("assemble", total, total))
        shutil.rmtree(work)
        return BackfillResult(target, total, rows)

    # -- steps ------------------------------------------------------------------------------------

    def _claim(self, work: Path, events: ds.Dataset | pa.Table, total: int) -> None:
        """Begin a folder for what is done so far, or go on with one that was begun alike."""
        files = [] if isinstance(events, pa.Table) else sorted(events.files)
        content = {
            "version": _VERSION,
            "spec": self.outputs.spec.to_json(),
            "columns": self.events.columns,
            "names": [self.outputs.timestamp, self.outputs.created],
            "settings": self.settings.model_dump(),
            "rows": total,
            "files": [[name, *_stamp(name)] for name in files],
        }
        text = json.dumps(content, sort_keys=True, indent=1)
        manifest = work / "manifest.json"
        if manifest.exists():
            if manifest.read_text() != text:
                raise TrainingError(
                    where=str(work),
                    problem="holds what is done of a backfill of other events, of another "
                    "declaration or with other settings",
                    fix="Delete that folder to begin anew, or name another target.",
                )
            return
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        _write_text(manifest, text)

    def _divide(
        self,
        chunks: list[Chunk],
        work: Path,
        parts: int,
        total: int,
        tell: Callable[[Progress], None],
    ) -> None:
        if parts == 1:
            return
        done = 0
        for chunk in chunks:
            spill(chunk, work, self.events.columns, self.events.key_columns, parts)
            done += chunk.rows
            tell(Progress("divide", done, total))

    def _compute(self, chunks: list[Chunk], work: Path, number: int, parts: int) -> int:
        """Write the outputs of a part; how many events it has."""
        path = _outputs(work, number)
        if path.exists():
            return sum(chunk.rows for chunk in chunks) if parts == 1 else part_rows(work, number)
        if parts == 1:
            batches = [batch for chunk in chunks for batch in chunk.batches(self.events.columns)]
            table = pa.Table.from_batches(batches) if batches else None
        else:
            table = read_part(work, number)
        if table is None:
            return 0
        making = path.with_suffix(".making")
        self._write(table, making)
        os.replace(making, path)
        return int(table.num_rows)

    def _write(self, table: pa.Table, path: Path) -> None:
        """Compute the outputs of one part and write them a bounded number of rows at a time."""
        tables = self.outputs.tables(table)
        first = next(tables, None)
        if first is None:  # no row of it is an event
            keys = [table.schema.field(name).type for name in self.events.key_columns]
            first = self.outputs.schema(keys).empty_table()
        with pq.ParquetWriter(path, first.schema) as writer:
            writer.write_table(first)
            for some in tables:
                writer.write_table(some)


def backfill_view(
    store: FeatureStore,
    name: str,
    *,
    events: Path | None = None,
    target: Path | None = None,
    settings: BackfillSettings | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> BackfillResult:
    """Compute and write the outputs of a windowed view of a store.

    Args:
        store: the store, whose registry knows the view.
        name: of the windowed view.
        events: a Parquet file or folder; the event view's batch source if left out.
        target: where the outputs go, see `Backfill.run`; the view's own batch source if left out.
            Where the offline store is Spark, it computes and writes them.
        settings, progress: see there.

    Raises:
        TrainingError: the view is not windowed, or there is nothing to read or nowhere to write.
    """
    view = store.get_feature_view(name)
    said = windowed_of(view)
    if said is None:
        raise TrainingError(
            where=f"feature view {name!r}",
            problem="is no windowed view",
            fix="Name one that windowed_view(...) made, not its event view.",
        )
    event_view = store.get_feature_view(said.events)
    offline_store = get_offline_store_from_config(store.config.offline_store)
    if is_spark(offline_store):
        from hotplate.training.spark_backfill import backfill_on_spark

        return backfill_on_spark(
            view,
            event_view,
            store.config,
            events=events,
            target=target,
            settings=settings,
            progress=progress,
        )
    backfill = Backfill(view, event_view, settings)
    place = target or target_of(view, event_view, store.config)
    table = events_table(EventSource(event_view), events, offline_store, store.config)
    return backfill.run(table, place, progress)


def _outputs(work: Path, number: int) -> Path:
    return work / f"outputs-{number:05}.parquet"


def _assemble(paths: list[Path], target: Path) -> int:
    """Make one file or one folder of the parts, and put it in the target's place."""
    paths = [path for path in paths if path.exists()]
    rows = sum(int(pq.read_metadata(path).num_rows) for path in paths)
    making = target.with_name(f"{target.name}.making")
    if target.suffix in (".parquet", ".pq"):
        if not paths:
            raise TrainingError(
                where=str(target),
                problem="there is not one event to compute outputs at",
                fix="Check the path of the events.",
            )
        with pq.ParquetWriter(making, pq.read_schema(paths[0])) as writer:
            for path in paths:
                part = pq.ParquetFile(path)
                for group in range(part.num_row_groups):
                    writer.write_table(part.read_row_group(group))
        os.replace(making, target)
        return rows
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    for path in paths:
        shutil.copyfile(path, making / path.name)
    old = target.with_name(f"{target.name}.old-{datetime.now(UTC):%Y%m%d%H%M%S%f}")
    if target.exists():
        os.replace(target, old)
    os.replace(making, target)
    shutil.rmtree(old, ignore_errors=True)
    return rows


def _stamp(path: str) -> list[Any]:
    """What changes when a file does; nothing for a file that is not on this machine."""
    try:
        found = os.stat(path)
    except OSError:
        return [hashlib.blake2b(path.encode(), digest_size=8).hexdigest()]
    return [found.st_size, found.st_mtime_ns]


def _write_text(path: Path, text: str) -> None:
    making = path.with_suffix(".making")
    making.write_text(text)
    os.replace(making, path)
