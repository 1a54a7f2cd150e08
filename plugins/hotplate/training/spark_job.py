"""Feast's Spark job over rows that get windowed columns, computed on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
from feast.infra.offline_stores.contrib.spark_offline_store.spark import SparkRetrievalJob
from feast.infra.offline_stores.offline_store import RetrievalMetadata
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from hotplate.training.errors import TrainingError
from hotplate.training.job import Asked, EntityRows, timestamp_among
from hotplate.training.retrieval import WantedOfEvents, WindowedColumns
from hotplate.training.spark_frames import (
    PART,
    columns_of,
    divided,
    events_frame,
    field_of,
    for_spark,
    millis,
    parts_for,
    session_of,
)

__all__ = ["SparkWindowedJob"]


class SparkWindowedJob(SparkRetrievalJob):  # type: ignore[misc]
    """Rows of Feast's Spark store, or as given, with their windowed columns.

    Nothing is computed before a result is asked for. Rows come in no particular order, as from
    Feast's own job.

    Args:
        entity_df: the rows: a pandas frame, a query or a Spark frame.
        inner: Feast's own job for the ordinary views; None if there are none.
        windowed: the columns to add.
        asked: what was asked for.
        config: of the repo.

    Raises:
        TrainingError: a join key is missing, or a name is taken.
    """

    def __init__(
        self,
        entity_df: Any,
        inner: SparkRetrievalJob | None,
        windowed: WindowedColumns,
        asked: Asked,
        config: Any,
    ) -> None:
        session = session_of(config)
        metadata = inner.metadata if inner is not None else None
        self._is_local = isinstance(entity_df, pd.DataFrame)
        if self._is_local:
            rows = EntityRows(entity_df)
            metadata = rows.metadata(asked.features)
            self._given = session.createDataFrame(for_spark(rows.table))
            self._timestamp = rows.timestamp
        else:
            self._given = session.sql(entity_df) if isinstance(entity_df, str) else entity_df
            if not isinstance(self._given, DataFrame):
                raise TrainingError(
                    where="entity_df",
                    problem=f"is a {type(entity_df).__name__}",
                    fix="Give a pandas frame, a query or a Spark frame.",
                )
            stamps = [
                field.name
                for field in self._given.schema.fields
                if isinstance(field.dataType, (TimestampType, TimestampNTZType))
            ]
            self._timestamp = timestamp_among(self._given.columns, stamps)
        windowed.check(self._given.columns)
        if metadata is not None:
            metadata = RetrievalMetadata(
                asked.features,
                metadata.keys,
                metadata.min_event_timestamp,
                metadata.max_event_timestamp,
            )
        names = asked.full_feature_names
        super().__init__(session, "", names, config, list(asked.on_demand), metadata)
        self._inner, self._windowed, self._repo = inner, windowed, config

    def to_spark_df(self) -> DataFrame:
        """The rows with all columns but those of on-demand views.

        Raises:
            TrainingError: rows or events are not as they must be.
        """
        stamp = self._timestamp
        moment = millis(self._given, stamp)
        count, empty, first_ms, last_ms = self._given.agg(
            F.count(F.lit(1)), F.count_if(moment.isNull()), F.min(moment), F.max(moment)
        ).collect()[0]
        if empty:
            raise TrainingError(
                where=f"entity rows, column {stamp!r}",
                problem=f"{empty:,} rows have no timestamp",
                fix="Say as of when each row is meant, or leave such rows out.",
            )
        rows = self._given if self._inner is None else self._inner.to_spark_df()
        for source, of_events in self._windowed.by_source:
            between = ((first_ms or 0) - of_events.reach_ms, last_ms or 0)
            events = events_frame(source, self._repo, between)
            # one way of naming the entity after the other: each brings other rows together
            for keys in dict.fromkeys(one.join_keys for one in of_events.wanted):
                same = tuple(one for one in of_events.wanted if one.join_keys == keys)
                rows = self._added(rows, count, events, replace(of_events, wanted=same))
        return rows

    def _added(
        self, rows: DataFrame, count: int, events: DataFrame, asked: WantedOfEvents
    ) -> DataFrame:
        """The rows with columns that name their entity in one way."""
        keys = asked.wanted[0].join_keys
        event_keys = asked.events.key_columns
        if self._is_local:  # then there are not many, and events of other entities may stay away
            few = self._given.select(
                *(
                    column.alias(name)
                    for column, name in zip(
                        _as_events_have(self._given, keys, events, event_keys),
                        event_keys,
                        strict=True,
                    )
                )
            )
            events = events.join(F.broadcast(few.distinct()), event_keys, "left_semi")
        parts = parts_for(self.spark_session, events.count() + count)
        names, stamp = rows.columns, self._timestamp
        columns = [column for one in asked.wanted for column in one.kinds.items()]
        schema = StructType([*rows.schema.fields, *(field_of(*column) for column in columns)])

        def add(some_rows: pa.Table, their_events: pa.Table) -> pa.Table:
            table = some_rows.select(names)
            if table.num_rows:
                table = asked.add(table, stamp, their_events)
            else:
                for one in asked.wanted:
                    table = one.empty(table)
            return for_spark(table)

        left = divided(rows, _as_events_have(rows, keys, events, event_keys), parts)
        right = divided(events, columns_of(events, event_keys), parts)
        return left.groupBy(PART).cogroup(right.groupBy(PART)).applyInArrow(add, schema)

    def _to_arrow_internal(self, timeout: int | None = None) -> pa.Table:
        """Past pandas, which makes floats of whole numbers beside a null."""
        if self._should_use_staging_for_arrow():
            return self._to_arrow_via_staging()
        return self.to_spark_df().toArrow()


def _as_events_have(
    rows: DataFrame, keys: Sequence[str], events: DataFrame, names: Sequence[str]
) -> list[Column]:
    """The keys of rows in the types of those of events, so that equal ones are equal to Spark."""
    return [
        rows[key].try_cast(events.schema[name].dataType)
        for key, name in zip(keys, names, strict=True)
    ]
