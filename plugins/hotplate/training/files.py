"""Parquet files behind a file source, read by column and by time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from feast.infra.offline_stores.file_source import FileSource

from hotplate.training.errors import TrainingError

__all__ = ["between", "opened"]


def opened(source: FileSource, config: Any) -> ds.Dataset:
    """The files of a source, wherever they are, as one dataset.

    Raises:
        TrainingError: there are none, or they are no Parquet.
    """
    options = source.file_options
    uri = FileSource.get_uri_for_file_path(repo_path=config.repo_path, uri=options.uri)
    try:
        filesystem, place = FileSource.create_filesystem_and_path(
            str(uri),
            options.s3_endpoint_override,
            resolved_credentials=source.resolve_credentials(),
        )
        return ds.dataset(place, format="parquet", filesystem=filesystem, partitioning="hive")
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise TrainingError(
            where=f"file source {source.name!r}",
            problem=f"is not to be read: {error}",
            fix="Its path must lead to a Parquet file, or to a folder of them.",
        ) from error


def between(dataset: ds.Dataset, column: str, start_ms: int, end_ms: int) -> Any:
    """The condition that a timestamp lies in `[start_ms, end_ms]`; None where it holds none."""
    if column not in dataset.schema.names:
        return None
    kind = dataset.schema.field(column).type
    if not pa.types.is_timestamp(kind):
        return None
    try:
        # seconds are floored, and what is read in vain is in no window
        bounds = pa.array([start_ms, end_ms], pa.timestamp("ms", kind.tz)).cast(kind, safe=False)
    except pa.ArrowInvalid:
        return None
    field = pc.field(column)
    return (field >= bounds[0]) & (field <= bounds[1])
