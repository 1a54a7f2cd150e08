"""Events read from where the offline store keeps them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
from feast import FeatureView
from feast.infra.offline_stores.dask import DaskOfflineStore
from feast.infra.offline_stores.file_source import FileSource
from feast.value_type import ValueType

from hotplate.training.columns import moments_of, values_of
from hotplate.training.errors import TrainingError
from hotplate.training.files import between, opened
from hotplate.windowed import event_log_of
from hotplate.windows.events import Events, accept
from hotplate.windows.spec import EventSpec

__all__ = ["EventSource", "EventTable", "History", "events_of", "history_of", "utc"]

_log = logging.getLogger("hotplate")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BY_RULE: Final = frozenset({"late", "future"})


@dataclass(frozen=True)
class History:
    """Accepted events and whose they are.

    Attributes:
        keys: for each join key an Arrow array, one value an event; none is null.
        events: the events.
        dropped: reason -> rows that are no events, as in `hotplate.windows.events`, and
            `missing_key`.
    """

    keys: tuple[Any, ...]
    events: Events
    dropped: Mapping[str, int]


@dataclass(frozen=True)
class EventTable:
    """How the events of a view lie in a table: all that reading them takes.

    Attributes:
        view: name of the event view.
        spec: what its log holds.
        join_keys: names of the columns of its entities.
        kinds: join keys and fields -> their declared types.
        names: names in the view -> those in the table, where they differ.
        timestamp, arrival: the columns that say when an event happened and when it arrived.
    """

    view: str
    spec: EventSpec
    join_keys: tuple[str, ...]
    kinds: Mapping[str, ValueType]
    names: Mapping[str, str]
    timestamp: str
    arrival: str

    def named(self, name: str) -> str:
        """A column's name in the table."""
        return str(self.names.get(name, name))

    @property
    def key_columns(self) -> list[str]:
        """Names in the table of the join keys."""
        return [self.named(name) for name in self.join_keys]

    @property
    def fields(self) -> list[str]:
        """The fields of the log, by name in the view, without those that are join keys."""
        names = [self.spec.event_id, *(column.name for column in self.spec.columns)]
        return [name for name in dict.fromkeys(names) if name not in self.join_keys]

    @property
    def columns(self) -> list[str]:
        """All columns that are read, by name in the table."""
        names = [*self.join_keys, *self.fields, self.timestamp, self.arrival]
        return list(dict.fromkeys(self.named(name) for name in names))

    def check(self, columns: Sequence[str]) -> None:
        """Make sure that a table has all columns that are read.

        Raises:
            TrainingError: one is missing.
        """
        missing = [name for name in self.columns if name not in columns]
        if missing:
            raise TrainingError(
                where=f"events for {self.view!r}",
                problem=f"have no column {missing[0]!r}",
                fix=f"Columns there: {', '.join(columns)}.",
            )


class EventSource:
    """The table behind an event view.

    Attributes:
        view: the event view.
        source: its batch source.
        table: how its events lie there.
    """

    def __init__(self, view: FeatureView) -> None:
        where = f"event view {view.name!r}"
        log = event_log_of(view)
        if log is None:
            raise TrainingError(
                where=where,
                problem="has no event log in its tags",
                fix="Declare it with windowed_view(...) and run `feast apply`.",
            )
        source = view.batch_source
        if source is None or not source.created_timestamp_column:
            raise TrainingError(
                where=where,
                problem="its batch source names no created_timestamp_column",
                fix="Name the column that says when an event arrived: training sees only what had "
                "arrived.",
            )
        self.view, self.source = view, source
        self.table = EventTable(
            view.name,
            log.spec,
            tuple(column.name for column in view.entity_columns),
            {field.name: field.dtype.to_value_type() for field in view.schema},
            {new: old for old, new in (source.field_mapping or {}).items()},
            source.timestamp_field,
            str(source.created_timestamp_column),
        )

    def pull(self, offline_store: Any, config: Any, start_ms: int, end_ms: int) -> pa.Table:
        """Read the events of `[start_ms, end_ms]` through the configured offline store.

        Files of Feast's file store are read here: it converts timestamps without a zone one row
        after another, which takes twice as long as all else together, and makes floats of whole
        numbers where there is a null among them.
        """
        start_ms, end_ms = max(start_ms, 0), max(end_ms, 0) + 1
        table = self.table
        if type(offline_store) is DaskOfflineStore and isinstance(self.source, FileSource):
            files = opened(self.source, config)
            table.check(files.schema.names)
            wanted = between(files, table.named(table.timestamp), start_ms, end_ms)
            return files.to_table(columns=table.columns, filter=wanted)
        job = offline_store.pull_all_from_table_or_query(
            config=config,
            data_source=self.source,
            join_key_columns=table.key_columns,
            feature_name_columns=[table.named(name) for name in table.fields],
            timestamp_field=table.named(table.timestamp),
            created_timestamp_column=table.named(table.arrival),
            start_date=utc(start_ms),
            end_date=utc(end_ms),
        )
        return job.to_arrow()


def utc(moment_ms: int) -> datetime:
    """Milliseconds since 1970 as a datetime."""
    return _EPOCH + timedelta(milliseconds=moment_ms)


def history_of(source: EventTable, table: pa.Table) -> History:
    """Turn rows of the batch source into events; what ingestion drops is dropped.

    Raises:
        TrainingError: a column is missing, or cannot be what the view declares.
    """
    history = events_of(source, table)
    _tell(f"batch source of event view {source.view!r}", history.dropped)
    return history


def events_of(source: EventTable, table: pa.Table) -> History:
    """The same for rows that come from elsewhere, under the names of the batch source."""
    where = f"events of {source.view!r}"
    source.check(table.column_names)

    def column(name: str) -> Any:
        return table.column(source.named(name))

    spec = source.spec
    values = {
        name: values_of(column(name), source.kinds[name], f"{where}, column {name!r}")
        for name in [spec.event_id, *(one.name for one in spec.columns)]
    }
    accepted = accept(
        spec,
        moments_of(column(source.timestamp), where),
        values[spec.event_id],
        moments_of(column(source.arrival), f"{where}, column {source.arrival!r}"),
        values,
    )
    rows, events, dropped = accepted.rows, accepted.events, accepted.dropped
    has_key = np.ones(table.num_rows, np.bool_)
    for name in source.join_keys:
        has_key &= column(name).is_valid().to_numpy()
    is_owned = has_key[rows]
    if not is_owned.all():
        dropped["missing_key"] = int((~is_owned).sum())
        rows, events = rows[is_owned], events.take(np.flatnonzero(is_owned))
    keys = tuple(column(name).take(pa.array(rows)) for name in source.join_keys)
    return History(keys, events, dropped)


def _tell(where: str, dropped: Mapping[str, int]) -> None:
    """Rows that are late or from the future are left out by rule; others should not be there."""
    wrong = {reason: count for reason, count in dropped.items() if reason not in _BY_RULE}
    if wrong:
        said = ", ".join(f"{count:,} {reason}" for reason, count in wrong.items())
        _log.warning("%s: rows left out, as serving leaves them out: %s", where, said)
