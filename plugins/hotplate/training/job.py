"""Feast's retrieval job over rows that get windowed columns."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from feast import OnDemandFeatureView
from feast.errors import SavedDatasetLocationAlreadyExists
from feast.infra.offline_stores.file_source import FileSource, SavedDatasetFileStorage
from feast.infra.offline_stores.offline_store import RetrievalJob, RetrievalMetadata
from feast.infra.offline_stores.offline_utils import infer_event_timestamp_from_entity_df

from hotplate.training.errors import TrainingError
from hotplate.training.retrieval import WindowedColumns

__all__ = ["Asked", "EntityRows", "WindowedJob", "timestamp_among"]

_log = logging.getLogger("hotplate.training")
_TIMESTAMP = "event_timestamp"


class EntityRows:
    """The rows that were given, in their order, with timestamps in UTC.

    Attributes:
        table: the rows.
        timestamp: the column that says when each is.
    """

    def __init__(self, frame: Any) -> None:
        if hasattr(frame, "compute"):  # a dask frame
            frame = frame.compute()
        if not isinstance(frame, pd.DataFrame):
            raise TrainingError(
                where="entity_df",
                problem=f"is a {type(frame).__name__}",
                fix="Give a pandas frame. A query works where an ordinary feature view is asked "
                "for as well: the offline store answers it.",
            )
        types = dict(zip(frame.columns, frame.dtypes, strict=True))
        self.timestamp = str(infer_event_timestamp_from_entity_df(types))
        moments = pd.to_datetime(frame[self.timestamp], utc=True)
        self.table = pa.Table.from_pandas(
            frame.assign(**{self.timestamp: moments}), preserve_index=False
        )

    def metadata(self, features: Sequence[str]) -> RetrievalMetadata:
        """What Feast keeps beside a saved dataset."""
        moments = self.table.column(self.timestamp).to_pandas()
        keys = [name for name in self.table.column_names if name != self.timestamp]
        if not len(moments):
            return RetrievalMetadata(list(features), keys)
        return RetrievalMetadata(
            list(features), keys, moments.min().to_pydatetime(), moments.max().to_pydatetime()
        )


@dataclass(frozen=True)
class Asked:
    """What the caller of the store asked for.

    Attributes:
        features: all references, those of on-demand views too.
        full_feature_names: whether columns are named after their view, too.
        on_demand: the views that are computed from the columns.
        repo_path: what relative paths start from.
    """

    features: list[str]
    full_feature_names: bool
    on_demand: list[OnDemandFeatureView]
    repo_path: Any


class WindowedJob(RetrievalJob):  # type: ignore[misc]
    """Rows of the offline store, or as given, with their windowed columns.

    On-demand views run on top, as Feast runs them over any job.

    Args:
        rows: the rows as given; None where they are a query.
        inner: what the offline store answers for the ordinary views; None if there are none.
        windowed: the columns to add.
        asked: what was asked for.
    """

    def __init__(
        self,
        rows: EntityRows | None,
        inner: RetrievalJob | None,
        windowed: WindowedColumns,
        asked: Asked,
    ) -> None:
        self._rows, self._inner, self._windowed, self._asked = rows, inner, windowed, asked

    @property
    def full_feature_names(self) -> bool:
        """Whether columns are named after their view, too."""
        return self._asked.full_feature_names

    @property
    def on_demand_feature_views(self) -> list[OnDemandFeatureView]:
        """Those that are computed from the columns."""
        return self._asked.on_demand

    @property
    def metadata(self) -> RetrievalMetadata | None:
        """Of the whole retrieval."""
        if self._rows is not None:
            return self._rows.metadata(self._asked.features)
        inner = self._inner.metadata if self._inner is not None else None
        if inner is None:
            return None
        return RetrievalMetadata(
            self._asked.features, inner.keys, inner.min_event_timestamp, inner.max_event_timestamp
        )

    def _to_arrow_internal(self, timeout: int | None = None) -> pa.Table:
        if self._inner is None:
            assert self._rows is not None
            return self._windowed.add(self._rows.table, self._rows.timestamp)
        table = self._inner.to_arrow(timeout=timeout)
        if self._rows is not None and table.num_rows < self._rows.table.num_rows:
            _log.warning(
                "the offline store answered %s of %s entity rows; no windowed features are "
                "computed for the others",
                f"{table.num_rows:,}",
                f"{self._rows.table.num_rows:,}",
            )
        if self._rows is not None:
            timestamp = self._rows.timestamp
        else:
            stamps = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
            timestamp = timestamp_among(table.column_names, stamps)
        return self._windowed.add(table, timestamp)

    def _to_df_internal(self, timeout: int | None = None) -> pd.DataFrame:
        return self._to_arrow_internal(timeout).to_pandas().reset_index(drop=True)

    def persist(
        self, storage: Any, allow_overwrite: bool | None = False, timeout: int | None = None
    ) -> None:
        """Write the result to Parquet.

        Raises:
            TrainingError: the storage is no file: the columns are computed here, not there.
        """
        if not isinstance(storage, SavedDatasetFileStorage):
            raise TrainingError(
                where="saved dataset",
                problem=f"windowed features cannot be persisted to {type(storage).__name__}",
                fix="Use SavedDatasetFileStorage, or write what to_arrow() returns.",
            )
        options = storage.file_options
        if not allow_overwrite and os.path.exists(options.uri):
            raise SavedDatasetLocationAlreadyExists(location=options.uri)
        uri = FileSource.get_uri_for_file_path(repo_path=self._asked.repo_path, uri=options.uri)
        filesystem, path = FileSource.create_filesystem_and_path(
            str(uri), options.s3_endpoint_override
        )
        table = self.to_arrow(timeout=timeout)
        if path.endswith(".parquet"):
            pq.write_table(table, where=path, filesystem=filesystem)
        else:
            pq.write_to_dataset(table, root_path=path, filesystem=filesystem)

    def supports_remote_storage_export(self) -> bool:
        """The result is computed here."""
        return False

    def to_sql(self) -> str:
        """There is no query that gives the windowed columns.

        Raises:
            TrainingError: always.
        """
        raise TrainingError(
            where="to_sql",
            problem="windowed features are computed by Hotplate, not by a query",
            fix="Use to_df() or to_arrow().",
        )


def timestamp_among(columns: Sequence[str], stamps: Sequence[str]) -> str:
    """The column of a query's answer that says when each row is.

    Args:
        columns: all of them.
        stamps: those of timestamps.

    Raises:
        TrainingError: none is named so, and there is not just one of timestamps.
    """
    if _TIMESTAMP in columns:
        return _TIMESTAMP
    if len(stamps) == 1:
        return str(stamps[0])
    raise TrainingError(
        where="entity_df",
        problem=f"its query answers no column {_TIMESTAMP!r}",
        fix=f"Name the column that says when each row is {_TIMESTAMP!r}.",
    )
