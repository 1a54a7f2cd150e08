"""Where the events of a view are kept, and where its outputs go, as tables on disk."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from feast import FeatureView
from feast.infra.offline_stores.file_source import FileSource

from hotplate.training.errors import TrainingError
from hotplate.training.reading import EventSource

__all__ = ["events_table", "target_of"]


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
    try:
        if path is not None:
            return ds.dataset(path, format="parquet")
        options = source.source.file_options
        uri = FileSource.get_uri_for_file_path(repo_path=config.repo_path, uri=options.uri)
        filesystem, place = FileSource.create_filesystem_and_path(
            str(uri), options.s3_endpoint_override
        )
        return ds.dataset(place, format="parquet", filesystem=filesystem)
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
