"""The rows of a feature view, from its own batch source."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
from feast import FileSource
from feast.data_format import ParquetFormat
from feast.infra.offline_stores.file_source import FileSource as StoredFileSource

from hotplate.quality.errors import QualityError
from hotplate.quality.frames import Frames, Span, Stored, Table, as_utc, of_file, unreadable
from hotplate.quality.subject import Subject

__all__ = ["place_of", "rows_of"]

_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PARQUET: Final = (ParquetFormat, type(None))
_NO_ZONE: Final = frozenset(
    {"timestamp without time zone", "datetime", "timestamp_ntz", "timestampntz"}
)
_AHEAD: Final = timedelta(days=36_500)


def place_of(subject: Subject, config: Any) -> str:
    """Where a view's rows are, in words."""
    source = subject.source
    if isinstance(source, FileSource):
        return str(StoredFileSource.get_uri_for_file_path(config.repo_path, source.path))
    return f"{type(source).__name__} {source.name}"


def rows_of(subject: Subject, config: Any, offline_store: Any, span: Span | None = None) -> Frames:
    """Where a view's rows are read from.

    A file is read as it is stored. Any other source is asked through Feast's own offline store,
    which answers with all of the rows at once.

    Args:
        subject: a feature view.
        config: Feast's.
        offline_store: Feast's.
        span: the rows that count; all if left out.

    Raises:
        QualityError: they cannot be read.
    """
    source = subject.source
    if isinstance(source, FileSource) and isinstance(source.file_format, _PARQUET):
        return _of_file_source(source, subject.renamed, config, span)
    try:
        return _asked(subject, config, offline_store, span)
    except QualityError:
        raise
    except Exception as error:
        where = f"{subject.name}, {place_of(subject, config)}"
        raise unreadable(where, error) from error


def _of_file_source(
    source: Any, renamed: Mapping[str, str], config: Any, span: Span | None
) -> Frames:
    place = StoredFileSource.get_uri_for_file_path(config.repo_path, source.path)
    if "://" not in place:
        return of_file(Path(place), renamed, span)
    try:
        filesystem, path = StoredFileSource.create_filesystem_and_path(
            place, source.s3_endpoint_override, source.resolve_credentials()
        )
        if filesystem is None:
            filesystem, path = pa.fs.FileSystem.from_uri(place)
        dataset = ds.dataset(path, filesystem=filesystem, format="parquet", partitioning="hive")
    except (OSError, ValueError, pa.ArrowException) as error:
        raise unreadable(place, error) from None
    return Stored(place, dataset, renamed, span)


def _asked(subject: Subject, config: Any, offline_store: Any, span: Span | None) -> Table:
    source, given = subject.source, {name: stored for stored, name in subject.renamed.items()}
    there = dict(source.get_table_column_names_and_types(config))
    moment, created = source.timestamp_field, source.created_timestamp_column
    if moment not in there:
        raise QualityError(
            where=f"{subject.name}, {source.name}",
            problem=f"has no column {moment}, its timestamp_field",
            fix="Correct the source's definition, or the table.",
        )
    names = [given.get(one.name, one.name) for one in subject.columns]
    names = [name for name in names if name in there and name not in (moment, created)]
    keys = [name for name in names if subject.renamed.get(name, name) in subject.keys]
    job: Any = offline_store.pull_all_from_table_or_query(
        config=config,
        data_source=source,
        join_key_columns=keys,
        feature_name_columns=[name for name in names if name not in keys],
        timestamp_field=moment,
        created_timestamp_column=created if created in there else None,
        start_date=_BEGIN if span is None else span.start,
        end_date=datetime.now(UTC) + _AHEAD if span is None else span.end,
    )
    rows = job.to_arrow()
    # a store may answer without the zone that its table has: what the table says counts
    for place, name in enumerate(rows.column_names):
        is_moment = pa.types.is_timestamp(rows.schema.field(place).type)
        if not is_moment or there.get(name, "").lower() in _NO_ZONE:
            continue
        rows = rows.set_column(place, name, as_utc(rows.select([name])).column(0))
    return Table(rows, subject.renamed)
