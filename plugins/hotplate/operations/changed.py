"""When rows changed, from wherever that is written down: change logs, files, the views' own tables.

What is read becomes entities as numbers and moments, a bounded number of rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from feast.infra.offline_stores.file_source import FileSource
from feast.infra.offline_stores.offline_utils import get_offline_store_from_config

from hotplate.advice.changes import Changes
from hotplate.advice.entities import Entities, Ints, numbers_of
from hotplate.advice.errors import AdviceError
from hotplate.advice.reads import process_of
from hotplate.errors import EntityError
from hotplate.operations.entities import EntityReader
from hotplate.training.errors import TrainingError
from hotplate.training.files import between, opened
from hotplate.warming.files import dated
from hotplate.warming.row_log import LOST
from hotplate.warming.traffic import key_of

__all__ = ["ChangeSource", "LogFolder", "NamedFile", "OwnTables", "change_files"]

_COLUMNS: Final = ("at", "view", "entity", "key")
_ROWS: Final = 500_000
_EARLIER: Final = timedelta(days=7)
_MOMENT: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class ChangeSource:
    """Where changes are looked up: the views that are replayed, and how their entities are typed.

    Attributes:
        project: the Feast project.
        tables: feature view -> Feast's object.
        readers: feature view -> what reads its entities, where they can be written down.
        join_keys: of these -> the names of their join keys, sorted.
    """

    project: str
    tables: Mapping[str, Any]
    readers: Mapping[str, EntityReader]
    join_keys: Mapping[str, tuple[str, ...]]

    def numbers(self, view: str, columns: Sequence[pa.ChunkedArray], where: str) -> Entities:
        """Entities of a view as numbers.

        Args:
            view: the feature view.
            columns: of its join keys, sorted by their names.
            where: they are from, for the error.

        Raises:
            AdviceError: a value is not of its join key's type.
        """
        coded = [column.combine_chunks().dictionary_encode() for column in columns]
        coded = [
            pa.concat_arrays(one.chunks) if isinstance(one, pa.ChunkedArray) else one
            for one in coded
        ]
        if any(one.null_count for one in coded):
            raise AdviceError(f"{where}: a row lacks a join key of {view}")
        codes = np.stack([one.indices.cast(pa.int64()).to_numpy() for one in coded], axis=1)
        distinct, place = np.unique(codes, axis=0, return_inverse=True)
        texts = [one.dictionary.to_pylist() for one in coded]
        reader, keys = self.readers[view], []
        for row in distinct.tolist():
            raw = [values[at] for values, at in zip(texts, row, strict=True)]
            try:
                values = tuple(reader.entity(raw, where).values())
            except EntityError as error:
                raise AdviceError(str(error)) from None
            keys.append(key_of(values, self.project, has_ids=False))
        numbers = numbers_of(keys, self.project)
        return numbers[np.asarray(place).ravel()] if len(numbers) else numbers


def change_files(folder: Path) -> list[Path]:
    """The files of a change log."""
    return [one.path for one in dated(folder, "changes-*.parquet")]


class LogFolder:
    """What processes logged; see `hotplate.warming.changes`.

    Args:
        folder: with their files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def collect(self, source: ChangeSource, into: Changes, begin: int, end: int) -> list[str]:
        """Note the changes between two moments, microseconds.

        Returns:
            What is to be said of it: files that were left out, writes that were not logged.

        Raises:
            AdviceError: there is no such log.
        """
        files = change_files(self.folder)
        if not files:
            raise AdviceError(
                f"{self.folder}: holds no change log. Write online_store.traffic: "
                "{changes: true} where rows are written, or name a file of changes"
            )
        said, lost = [], 0
        for path in files:
            try:
                with pq.ParquetFile(path, read_dictionary=["view", "entity", "key"]) as file:
                    missing = [n for n in _COLUMNS if n not in file.schema_arrow.names]
                    if missing:
                        raise ValueError(f"has no column {missing[0]!r}: it is no change log")
                    for batch in file.iter_batches(_ROWS, columns=list(_COLUMNS)):
                        self._note(source, into, pa.table(batch), process_of(path), begin, end)
                    lost += int((file.schema_arrow.metadata or {}).get(LOST, b"0"))
            except (pa.ArrowException, OSError, ValueError) as error:
                said.append(f"left out {path.name}: {' '.join(str(error).split())[:200]}")
        if lost:
            said.append(f"{lost:,} writes could not be logged: more is stale than said here")
        return said

    @staticmethod
    def _note(
        source: ChangeSource, into: Changes, table: pa.Table, process: str, begin: int, end: int
    ) -> None:
        table = _inside(table, "at", begin, end)
        at = table["at"].cast(_MOMENT).cast(pa.int64()).to_numpy()
        views = table["view"].cast(pa.string())
        known = {view.name: view for view in into.slots.views}
        for view in set(pc.unique(views).to_pylist()) & set(known):
            own = pc.equal(views, view).to_numpy()
            keys = table["key"].cast(pa.string()).filter(pa.array(own))
            is_whole = pc.is_null(keys).to_numpy()
            if is_whole.any():
                into.add_whole(view, at[own][is_whole], process)
            kinds = table["entity"].cast(pa.string()).filter(pa.array(own))
            is_own = ~is_whole & pc.equal(kinds, known[view].entity).to_numpy()
            if is_own.any():
                coded = keys.filter(pa.array(is_own)).combine_chunks().dictionary_encode()
                numbers = numbers_of(coded.dictionary.to_pylist(), source.project)
                entities = numbers[coded.indices.cast(pa.int64()).to_numpy()]
                into.add(view, entities, at[own][is_own], process)


class NamedFile:
    """A file of changes: a column a join key, and when they changed.

    Args:
        path: CSV or Parquet.
        name: a group or a feature view whose rows they are; if empty, all views that have just
            these join keys.
        moment: the column that says when; the only one of timestamps if empty.
    """

    def __init__(self, path: Path, name: str = "", moment: str = "") -> None:
        self.path, self._name, self._moment = path, name, moment

    def collect(self, source: ChangeSource, into: Changes, begin: int, end: int) -> list[str]:
        """Note the changes between two moments, microseconds.

        Raises:
            AdviceError: the file cannot be read so.
        """
        try:
            with self._opened(source) as (names, batches):
                views = self._views(source, into, names)
                moment = ""
                for batch in batches:
                    table = pa.table(batch)
                    moment = moment or self._moment_of(table)
                    self._note(source, into, views, table, moment, begin, end)
        except (pa.ArrowException, OSError) as error:
            said = " ".join(str(error).split())[:200]
            raise AdviceError(f"{self.path}: cannot be read: {said}") from error
        return []

    def _opened(self, source: ChangeSource) -> _Opened:
        if self.path.suffix.lower() == ".csv":
            # "007" of a text stays what it is
            texts = {key: pa.string() for keys in source.join_keys.values() for key in keys}
            options = pcsv.ConvertOptions(column_types=texts)
            return _Opened(pcsv.open_csv(self.path, convert_options=options), None)
        return _Opened(None, pq.ParquetFile(self.path))

    def _views(self, source: ChangeSource, into: Changes, names: Sequence[str]) -> list[str]:
        found = [
            view.name
            for view in into.slots.views
            if self._name in ("", view.name, view.group)
            and source.join_keys.get(view.name)
            and all(key in names for key in source.join_keys[view.name])
        ]
        if not found:
            wanted = self._name or "the views that were read"
            raise AdviceError(
                f"{self.path}: has not the join keys of {wanted}; its columns are "
                f"{', '.join(names)}. Name the view: --changes VIEW={self.path}"
            )
        return found

    def _moment_of(self, table: pa.Table) -> str:
        if self._moment:
            if self._moment not in table.column_names:
                raise AdviceError(f"{self.path}: has no column {self._moment!r}")
            return self._moment
        found = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
        if len(found) != 1:
            what = f"{len(found)} columns of timestamps" if found else "no column of timestamps"
            raise AdviceError(
                f"{self.path}: has {what}; say which column says when with --changed-at COLUMN"
            )
        return str(found[0])

    def _note(
        self,
        source: ChangeSource,
        into: Changes,
        views: Sequence[str],
        table: pa.Table,
        moment: str,
        begin: int,
        end: int,
    ) -> None:
        try:
            table = _inside(table, moment, begin, end)
        except pa.ArrowException:
            raise AdviceError(f"{self.path}: column {moment!r} holds no timestamps") from None
        at = table[moment].to_numpy()
        for view in views:
            columns = [table[key] for key in source.join_keys[view]]
            into.add(view, source.numbers(view, columns, self.path.name), at)


class _Opened:
    """A CSV or a Parquet file, batch by batch."""

    def __init__(self, csv: Any, parquet: Any) -> None:
        self._csv, self._parquet = csv, parquet

    def __enter__(self) -> tuple[list[str], Iterable[pa.RecordBatch]]:
        if self._csv is not None:
            return self._csv.schema.names, self._csv
        return self._parquet.schema_arrow.names, self._parquet.iter_batches(_ROWS)

    def __exit__(self, *error: object) -> None:
        (self._csv or self._parquet).close()


class OwnTables:
    """The views' own offline tables: each row is a change of its entity.

    It came into the world when it was created, or, where the table does not say that, at its event
    timestamp. An online store shows it when it is materialized or pushed, which may be later.

    Args:
        config: Feast's configuration.
        events: windowed view -> Feast's object of its event view, whose events are its changes.
    """

    def __init__(self, config: Any, events: Mapping[str, Any]) -> None:
        self._config, self._events = config, events

    def collect(self, source: ChangeSource, into: Changes, begin: int, end: int) -> list[str]:
        """Note the changes between two moments, microseconds.

        Returns:
            What is to be said of it: views without a table.

        Raises:
            AdviceError: a table cannot be read.
        """
        said = []
        for view in into.slots.views:
            table = self._events.get(view.name, source.tables[view.name])
            batch_source = getattr(table, "batch_source", None)
            if batch_source is None or not source.join_keys.get(view.name):
                said.append(f"{view.name} has no table of its own that says when it changed")
                continue
            named = {new: old for old, new in (batch_source.field_mapping or {}).items()}
            keys = [named.get(key, key) for key in source.join_keys[view.name]]
            created = batch_source.created_timestamp_column
            moment = created or batch_source.timestamp_field
            into.groups.add(view.group)
            for part in self._parts(view.name, batch_source, keys, moment, begin, end):
                rows = _inside(part, moment, begin, end)
                if len(rows):
                    columns = [rows[key] for key in keys]
                    numbers = source.numbers(view.name, columns, f"table of {view.name}")
                    into.add(view.name, numbers, rows[moment].to_numpy())
        return said

    def _parts(
        self, view: str, source: Any, keys: Sequence[str], moment: str, begin: int, end: int
    ) -> Iterator[pa.Table]:
        columns = list(dict.fromkeys([*keys, moment]))
        try:
            if isinstance(source, FileSource):
                files = opened(source, self._config)
                wanted = between(files, moment, begin // 1_000, end // 1_000 + 1)
                for batch in files.to_batches(columns, filter=wanted, batch_size=_ROWS):
                    yield pa.table(batch)
                return
            yield self._pulled(source, keys, begin, end)
        except (TrainingError, pa.ArrowException, OSError, ValueError, KeyError) as error:
            said = " ".join(str(error).split())[:300]
            raise AdviceError(f"the table of feature view {view!r}: {said}") from error

    def _pulled(self, source: Any, keys: Sequence[str], begin: int, end: int) -> pa.Table:
        """Through the offline store; what was created then happened at most a week before."""
        store = get_offline_store_from_config(self._config.offline_store)
        first = _utc(begin) - (_EARLIER if source.created_timestamp_column else timedelta())
        job = store.pull_all_from_table_or_query(
            config=self._config,
            data_source=source,
            join_key_columns=list(keys),
            feature_name_columns=[],
            timestamp_field=source.timestamp_field,
            created_timestamp_column=source.created_timestamp_column or None,
            start_date=first,
            end_date=_utc(end),
        )
        return job.to_arrow()


def _utc(moment_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment_us)


def _inside(table: pa.Table, moment: str, begin: int, end: int) -> pa.Table:
    """Rows of [begin, end], with the moment as whole microseconds since 1970."""
    column = table[moment]
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    if not pa.types.is_timestamp(column.type):
        column = column.cast(pa.string()).cast(_MOMENT)
    at: Ints = column.cast(_MOMENT, safe=False).cast(pa.int64())
    place = table.column_names.index(moment)
    table = table.set_column(place, moment, at)
    return table.filter(pc.and_(pc.greater_equal(at, begin), pc.less_equal(at, end)))
