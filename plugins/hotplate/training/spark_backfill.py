"""Outputs of a windowed view at every event, computed and written by Spark."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from feast import FeatureView
from feast.infra.offline_stores.contrib.spark_offline_store.spark_source import SparkSource
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from hotplate.training.backfill import BackfillResult, BackfillSettings, Progress
from hotplate.training.errors import TrainingError
from hotplate.training.outputs import EventOutputs, outputs_of
from hotplate.training.reading import EventSource
from hotplate.training.spark_frames import (
    PART,
    columns_of,
    divided,
    events_frame,
    field_of,
    for_spark,
    parts_for,
    session_of,
)

__all__ = ["backfill_on_spark"]

_LOOK_AGAIN_S: Final = 0.2


def backfill_on_spark(
    view: FeatureView,
    event_view: FeatureView,
    config: Any,
    *,
    events: Path | str | None = None,
    target: Path | str | None = None,
    settings: BackfillSettings | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> BackfillResult:
    """Compute and write all outputs of a windowed view.

    Spark repeats a task whose executor died. A run whose driver died is begun anew; what was there
    before it is untouched until all is computed.

    Args:
        view: the windowed view.
        event_view: its event view.
        config: of the repo.
        events: a path of Parquet files, as Spark names it; the event view's batch source if left
            out.
        target: a folder that becomes one of Parquet files; the view's own `SparkSource` if left
            out. What is there is replaced.
        settings: how.
        progress: called now and then with the share of Spark's tasks that is done, in events.

    Raises:
        TrainingError: they are no such views, or there is nothing to read or nowhere to write.
    """
    settings = settings or BackfillSettings()
    outputs = outputs_of(view, event_view, settings.at)
    place = str(target) if target else _source_of(view, event_view)
    session = session_of(config)
    if events is None:
        frame = events_frame(EventSource(event_view), config)
    else:
        frame = session.read.parquet(str(events))
        outputs.events.check(frame.columns)
    total = frame.count()
    written = Observation()
    made = _outputs(outputs, frame, parts_for(session, total, settings.max_rows))
    made = made.observe(written, F.count(F.lit(1)).alias("rows"))
    tell = progress or (lambda _: None)
    _watched(session, lambda: _write(made, place), total, tell)
    tell(Progress("compute", total, total))
    shown = place if isinstance(place, str) else place.table or place.path
    return BackfillResult(shown, total, int(written.get["rows"]))


def _source_of(view: FeatureView, event_view: FeatureView) -> SparkSource:
    batch = view.batch_source
    if isinstance(batch, SparkSource) and batch != event_view.batch_source:
        if batch.table or batch.path:
            return batch
        raise TrainingError(
            where=f"Spark source {batch.name!r}",
            problem="is a query, and outputs cannot be written to one",
            fix="Name a target, or declare the source with a path or a table.",
        )
    raise TrainingError(
        where=f"windowed view {view.name!r}",
        problem="declares no table of Spark's that its outputs are kept in",
        fix="Name a target, or declare backfilled=SparkSource(...) in windowed_view(...).",
    )


def _outputs(outputs: EventOutputs, frame: DataFrame, parts: int) -> DataFrame:
    events = outputs.events
    keys = [(name, frame.schema[events.named(name)].dataType) for name in events.join_keys]
    schema = StructType(
        [
            *(StructField(name, kind) for name, kind in keys),
            StructField(outputs.timestamp, TimestampType()),
            StructField(outputs.created, TimestampType()),
            *(field_of(name, kind) for name, kind in outputs.spec.output_types.items()),
        ]
    )

    def compute(table: pa.Table) -> pa.Table:
        made = list(outputs.tables(table))
        if made:
            return for_spark(pa.concat_tables(made))
        types = [table.schema.field(name).type for name in events.key_columns]
        return for_spark(outputs.schema(types).empty_table())

    frame = frame.select(*columns_of(frame, events.columns))
    frame = divided(frame, columns_of(frame, events.key_columns), parts)
    return frame.groupBy(PART).applyInArrow(compute, schema)


# -- writing --------------------------------------------------------------------------------------


def _write(frame: DataFrame, target: SparkSource | str) -> None:
    """Write outputs, and put them in the target's place when all are computed."""
    if isinstance(target, str):
        _replace_folder(frame, target, "parquet")
    elif target.table:
        writer = frame.write.mode("overwrite")
        if target.file_format:
            writer = writer.format(target.file_format)
        writer.saveAsTable(target.table)
    elif target.table_format is None:
        _replace_folder(frame, target.path, target.file_format)
    else:  # such formats replace a table in one step
        kind = target.table_format.format_type.value
        options = target.table_format.properties
        frame.write.format(kind).options(**options).mode("overwrite").save(target.path)


def _replace_folder(frame: DataFrame, path: str, file_format: str) -> None:
    making = f"{path.rstrip('/')}.making"
    frame.write.format(file_format).mode("overwrite").save(making)
    context = frame.sparkSession.sparkContext
    jvm: Any = context._jvm
    new, old = (jvm.org.apache.hadoop.fs.Path(one) for one in (making, path))
    files = old.getFileSystem(context._jsc.hadoopConfiguration())
    files.delete(old, True)
    if not files.rename(new, old):
        raise TrainingError(
            where=path,
            problem=f"what was computed lies in {making}, which could not be renamed",
            fix="Rename it.",
        )


def _watched(
    session: SparkSession,
    work: Callable[[], None],
    total: int,
    tell: Callable[[Progress], None],
) -> None:
    """Do some work of Spark's, and tell how far it is; Ctrl-C cancels it."""
    context = session.sparkContext
    group = f"hotplate-{uuid.uuid4()}"

    def run() -> None:
        context.setJobGroup(group, "hotplate windows backfill", interruptOnCancel=True)
        work()

    most = 0.0
    with ThreadPoolExecutor(1, "hotplate-spark") as threads:
        future = threads.submit(run)
        try:
            while not future.done():
                time.sleep(_LOOK_AGAIN_S)
                most = max(most, _share_done(context, group))
                tell(Progress("compute", int(most * total), total))
        except BaseException:
            context.cancelJobGroup(group)
            raise
        future.result()


def _share_done(context: Any, group: str) -> float:
    """Of all tasks that Spark has planned so far."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = {stage for job in jobs if job is not None for stage in job.stageIds}
    known = [info for stage in stages if (info := tracker.getStageInfo(stage)) is not None]
    tasks = sum(info.numTasks for info in known)
    return sum(info.numCompletedTasks for info in known) / tasks if tasks else 0.0
