"""Where the events of a view are kept, and where its outputs go, as tables on disk."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from feast import FeatureView
from feast.infra.offline_stores.file_source import FileSource

from hotplate.training.errors import TrainingError
from hotplate.training.files import opened
from hotplate.training.reading import EventSource

__all__ = ["events_table", "is_spark", "target_of"]

_SPARK: Final = "feast.infra.offline_stores.contrib.spark_offline_store.spark"


def is_spark(offline_store: Any) -> bool:
    """Whether it is Feast's Spark store, told without importing Spark."""
    spark = sys.modules.get(_SPARK)
    return spark is not None and isinstance(offline_store, spark.SparkOfflineStore)


def events_table(
    source: EventSource, path: Path | None, offline_store: Any, config: Any
) -> ds.Dataset | pa.Table:
    """All events of a view: a dataset that is read bit by bit, or a table.

    Args:
        source: the view's events.
        path: a Parquet file or a folder of them, by the column names of the batch source; None for
            the batch source itself. Where that is no file it is read through the offline store, as
            a whole.
        offline_store, config: where the batch source is.

    Raises:
        TrainingError: there is no such file.
    """
    if path is None and not isinstance(source.source, FileSource):
        return source.pull(offline_store, config, 0, int(time.time() * 1_000))
    if path is None:
        return opened(source.source, config)
    try:
        return ds.dataset(path, format="parquet", partitioning="hive")
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise TrainingError(
            where=f"events for {source.view.name!r}",
            problem=f"are not to be read: {error}",
            fix="Name a Parquet file, or a folder of them.",
        ) from error


def target_of(view: FeatureView, event_view: FeatureView, config: Any) -> Path:
    """The file that is the windowed view's own batch source.

    Raises:
        TrainingError: it has none, or none on this machine.
    """
    batch = view.batch_source
    if isinstance(batch, FileSource) and batch != event_view.batch_source:
        place = Path(batch.path)
        if "://" not in batch.path:
            return place if place.is_absolute() else Path(config.repo_path or ".") / place
    raise TrainingError(
        where=f"windowed view {view.name!r}",
        problem="declares no file that its outputs are kept in",
        fix="Name a target, or declare backfilled=FileSource(...) in windowed_view(...).",
    )
