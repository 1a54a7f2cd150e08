"""Events as Spark reads them, divided by entity into parts that a task holds one at a time.

The kernel on Spark is the one of this process (`windows.offline`), and so are the bits of what it
computes. Spark brings all events of an entity together in one task. Nothing of Feast's registry
goes to the executors; they need Hotplate installed.

Instants are instants, whatever the session's time zone: columns of `TIMESTAMP` are compared and
handed over in UTC, and `TIMESTAMP_NTZ` is taken as UTC, as timestamps without a zone are everywhere
in Hotplate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from feast.infra.offline_stores.contrib.spark_offline_store.spark import (
    get_spark_session_or_start_new_with_repoconfig,
)
from feast.infra.offline_stores.contrib.spark_offline_store.spark_source import SparkSource
from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DoubleType,
    LongType,
    StructField,
    TimestampNTZType,
    TimestampType,
)

from hotplate.training.errors import TrainingError
from hotplate.training.reading import EventSource, utc

__all__ = [
    "MAX_ROWS_SETTING",
    "PART",
    "columns_of",
    "divided",
    "event_parts",
    "events_frame",
    "field_of",
    "for_spark",
    "millis",
    "parts_for",
    "session_of",
]

MAX_ROWS_SETTING: Final = "spark.hotplate.maxRows"
"""Of the Spark session: about how many rows and events a task holds at a time."""

PART: Final = "hotplate__part"
"""The column that says which part a row belongs to."""

_MAX_ROWS: Final = 500_000
_PARTS_A_CORE: Final = 2  # at least, since entities differ in size


def session_of(config: Any) -> SparkSession:
    """The active Spark session, or one that Feast starts as `offline_store.spark_conf` says."""
    session: SparkSession = get_spark_session_or_start_new_with_repoconfig(config.offline_store)
    return session


# -- reading --------------------------------------------------------------------------------------


def events_frame(
    source: EventSource, config: Any, between_ms: tuple[int, int] | None = None
) -> DataFrame:
    """The events of a view, under their names in the table.

    Args:
        source: the view's events, a `SparkSource`.
        config: of the repo.
        between_ms: only those that happened between two moments, both included.

    Raises:
        TrainingError: the source is none of Spark's, cannot be read, or lacks a column.
    """
    batch, table = source.source, source.table
    where = f"event view {table.view!r}"
    if not isinstance(batch, SparkSource):
        raise TrainingError(
            where=where,
            problem=f"its batch source is a {type(batch).__name__}, and the offline store is Spark",
            fix="Declare a SparkSource.",
        )
    try:
        frame = session_of(config).sql(f"SELECT * FROM {batch.get_table_query_string()}")
    except AnalysisException as error:
        raise TrainingError(
            where=where,
            problem=f"its batch source {batch.name!r} cannot be read: {error.getMessage()}",
            fix="Check its table, query or path in the Spark session that Feast uses.",
        ) from error
    table.check(frame.columns)
    if between_ms is not None:
        start_ms, end_ms = max(between_ms[0], 0), max(between_ms[1], 0) + 1
        if batch.date_partition_column:
            layout = batch.date_partition_column_format or "%Y-%m-%d"
            days = (utc(moment).strftime(layout) for moment in (start_ms, end_ms))
            frame = frame.where(frame[batch.date_partition_column].between(*days))
        stamp = table.named(table.timestamp)
        literal = _literal_of(frame.schema[stamp].dataType)
        if literal is not None:
            bounds = (F.expr(literal.format(utc(moment))) for moment in (start_ms, end_ms))
            frame = frame.where(frame[stamp].between(*bounds))
    return frame.select(*columns_of(frame, table.columns))


def _literal_of(kind: Any) -> str | None:
    """How an instant is written beside a column; None where it cannot be compared."""
    if isinstance(kind, TimestampType):
        return "TIMESTAMP'{:%Y-%m-%d %H:%M:%S.%f}+00:00'"
    if isinstance(kind, TimestampNTZType):
        return "TIMESTAMP_NTZ'{:%Y-%m-%d %H:%M:%S.%f}'"
    return None


def millis(frame: DataFrame, name: str) -> Column:
    """A column of timestamps in ms since 1970, UTC."""
    column = frame[name]
    if isinstance(frame.schema[name].dataType, TimestampNTZType):
        epoch = F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'")
        return F.timestamp_diff("MILLISECOND", epoch, column)
    return F.unix_millis(column.cast("timestamp"))


# -- dividing by entity ---------------------------------------------------------------------------


def columns_of(frame: DataFrame, names: Sequence[str]) -> list[Column]:
    """Columns by name."""
    return [frame[name] for name in names]


def divided(frame: DataFrame, keys: Sequence[Column], parts: int) -> DataFrame:
    """The frame with the column `PART`: all rows of an entity in one of so many parts."""
    return frame.withColumn(PART, F.pmod(F.xxhash64(*keys), F.lit(parts)))


def parts_for(session: SparkSession, rows: int, max_rows: int | None = None) -> int:
    """How many parts so many rows are divided into.

    Args:
        session: where they are computed.
        rows: how many there are.
        max_rows: about how many a part has; as the session is set where left out.

    Raises:
        TrainingError: the session's setting is no number.
    """
    if max_rows is None:
        said = str(session.conf.get(MAX_ROWS_SETTING, str(_MAX_ROWS)))
        if not said.isdigit() or int(said) < 1:
            raise TrainingError(
                where=f"Spark setting {MAX_ROWS_SETTING}",
                problem=f"is {said!r}",
                fix="Give a number of rows, such as 500000.",
            )
        max_rows = int(said)
    return max(-(-rows // max_rows), _PARTS_A_CORE * session.sparkContext.defaultParallelism)


def event_parts(source: EventSource, config: Any, max_rows: int) -> tuple[int, Iterator[pa.Table]]:
    """All events of a view, brought here in parts that hold all events of their entities.

    Args:
        source: the view's events, a `SparkSource`.
        config: of the repo.
        max_rows: about how many events there are in a part.

    Returns:
        How many events there are, and the parts.

    Raises:
        TrainingError: the source is none of Spark's, cannot be read, or lacks a column.
    """
    frame = events_frame(source, config)
    total = frame.count()
    parts = max(-(-total // max_rows), 1)
    return total, _collected(
        divided(frame, columns_of(frame, source.table.key_columns), parts), parts
    )


def _collected(frame: DataFrame, parts: int) -> Iterator[pa.Table]:
    kept = frame.repartition(PART).persist(StorageLevel.DISK_ONLY)
    try:
        for number in range(parts):
            part = kept.where(kept[PART] == number).drop(PART).toArrow()
            if part.num_rows:
                yield part
    finally:
        kept.unpersist()


# -- tables to and from tasks ---------------------------------------------------------------------


def for_spark(table: pa.Table) -> pa.Table:
    """The same instants as Spark keeps them: in microseconds, and in UTC where they have a zone."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            kind = pa.timestamp("us", "UTC" if field.type.tz else None)
            if kind != field.type:
                instants = table.column(place).cast(kind, safe=False)
                table = table.set_column(place, field.name, instants)
    return table


def field_of(name: str, kind: str) -> StructField:
    """The column of an output: `"int64"` or `"float64"`."""
    return StructField(name, LongType() if kind == "int64" else DoubleType())
