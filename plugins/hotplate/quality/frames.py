"""Where rows come from: Parquet on a disk or in a bucket, CSV, a batch in memory.

Rows are read a few columns at a time, so that a table of a million rows and forty columns is never
in memory as a whole. A table is seen as it is stored: what Feast converts on the way in (a
timestamp without a time zone, say) must not be hidden from who looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset as ds

from hotplate.quality.errors import QualityError

__all__ = ["Frames", "Span", "Stored", "Table", "of_file", "of_frame"]

_CSV: Final = frozenset({".csv", ".txt"})


@dataclass(frozen=True)
class Span:
    """The rows of some time: from `start` up to `end`, both included, as `materialize` reads them.

    Attributes:
        column: the timestamp's.
        start, end: with time zones.
    """

    column: str
    start: datetime
    end: datetime


class Frames(Protocol):
    """A table, read by column."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns, as they are stored."""

    @property
    def rows(self) -> int:
        """How many rows."""

    def read(self, names: Sequence[str]) -> pa.Table:
        """Some of its columns.

        Raises:
            QualityError: they cannot be read.
        """


class Table:
    """A table in memory.

    Args:
        table: of Arrow.
        renamed: column -> name under which it is read.
    """

    def __init__(self, table: pa.Table, renamed: Mapping[str, str] | None = None) -> None:
        names = [(renamed or {}).get(name, name) for name in table.column_names]
        self._table = table.rename_columns(names)

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    @property
    def rows(self) -> int:
        return int(self._table.num_rows)

    def read(self, names: Sequence[str]) -> pa.Table:
        return self._table.select(list(names))


class Stored:
    """Parquet files.

    Args:
        where: the file or folder, for messages.
        dataset: of Arrow.
        renamed: column -> name under which it is read.
        span: the rows that count; all if left out.
    """

    def __init__(
        self,
        where: str,
        dataset: ds.Dataset,
        renamed: Mapping[str, str] | None = None,
        span: Span | None = None,
    ) -> None:
        self._where = where
        self._dataset = dataset
        renamed = {} if renamed is None else renamed
        self._stored = {renamed.get(name, name): name for name in dataset.schema.names}
        self._filter = None if span is None else self._of(span)
        self._rows: int | None = None

    @property
    def schema(self) -> pa.Schema:
        fields = (self._dataset.schema.field(name) for name in self._stored.values())
        return pa.schema(
            [one.with_name(name) for name, one in zip(self._stored, fields, strict=True)]
        )

    @property
    def rows(self) -> int:
        if self._rows is None:
            self._rows = int(self._asked(lambda: self._dataset.count_rows(filter=self._filter)))
        return self._rows

    def read(self, names: Sequence[str]) -> pa.Table:
        stored = [self._stored[name] for name in names]
        found = self._asked(lambda: self._dataset.to_table(columns=stored, filter=self._filter))
        return found.rename_columns(list(names))

    def _asked(self, ask: Any) -> Any:
        try:
            return ask()
        except (OSError, pa.ArrowException) as error:
            raise unreadable(self._where, error) from None

    def _of(self, span: Span) -> Any:
        name = self._stored.get(span.column)
        stored = None if name is None else self._dataset.schema.field(name).type
        if stored is None or not pa.types.is_timestamp(stored):
            return None  # without moments all rows count; that there are none is said elsewhere
        start, end = (
            pa.scalar(at.astimezone(UTC), pa.timestamp("us", "UTC"))
            for at in (span.start, span.end)
        )
        if stored.tz is None:
            start, end = (at.cast(pa.timestamp("us")) for at in (start, end))
        column = ds.field(name)
        return (column >= start) & (column <= end)


def of_file(
    path: Path, renamed: Mapping[str, str] | None = None, span: Span | None = None
) -> Frames:
    """A Parquet file or folder, or a CSV file.

    Raises:
        QualityError: it is not there, or is neither.
    """
    if not path.exists():
        raise QualityError(
            where=str(path), problem="no such file", fix="Name a Parquet or CSV file or folder."
        )
    try:
        if not path.is_dir() and path.suffix.lower() in _CSV:
            return Table(pyarrow.csv.read_csv(path), renamed)
        return Stored(
            str(path), ds.dataset(str(path), format="parquet", partitioning="hive"), renamed, span
        )
    except (OSError, pa.ArrowException) as error:
        raise unreadable(str(path), error) from None


def of_frame(frame: pd.DataFrame, renamed: Mapping[str, str] | None = None) -> Table:
    """A pandas frame, such as is pushed.

    A column of objects of several kinds, which Arrow has no type for, becomes one of texts: it is
    of the wrong type for whatever is declared but text.
    """
    columns = {str(name): _array(frame[name]) for name in frame.columns}
    return Table(pa.table(columns), renamed)


def _array(series: Any) -> Any:
    try:
        return pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        texts = [None if _is_null(one) else str(one) for one in series]
        return pa.array(texts, pa.string())


def _is_null(value: object) -> bool:
    found = pd.isna(value) if pd.api.types.is_scalar(value) else False
    return bool(found)


def unreadable(where: str, error: Exception) -> QualityError:
    """What cannot be read, in one line."""
    if isinstance(error, PermissionError):
        problem = "may not be read by this user"
    else:
        problem = f"cannot be read: {' '.join(str(error).split())[:300]}"
    return QualityError(where=where, problem=problem, fix="Check the file, or name another one.")


def as_utc(table: pa.Table) -> pa.Table:
    """A table whose timestamps say UTC, which Feast takes those without a time zone for."""
    for place, one in enumerate(table.schema):
        if pa.types.is_date(one.type):
            cast = table.column(place).cast(pa.timestamp("us", "UTC"), safe=False)
            table = table.set_column(place, one.name, cast)
        elif pa.types.is_timestamp(one.type) and one.type.tz is None:
            cast = pc.assume_timezone(table.column(place), "UTC")
            table = table.set_column(place, one.name, cast)
    return table
