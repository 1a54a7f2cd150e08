"""Events straight into their logs, by columns, past Feast's rows of protobuf messages.

`store.push` costs Feast some 20 us a row before a store sees it. Here a frame becomes records as a
whole, and one `APPEND` an entity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import pandas as pd
import pyarrow as pa

from hotplate.serving.entities import declared_shape
from hotplate.serving.events import from_columns
from hotplate.serving.runtime import Runtime
from hotplate.training.reading import EventSource, events_of

__all__ = ["Ingested", "Ingestion", "tables_of"]

_BATCH: Final = 10_000


@dataclass(frozen=True)
class Ingested:
    """What became of events.

    Attributes:
        accepted: those that count.
        dropped: reason -> those that do not; see `hotplate.windows.events.REASONS`.
        unknown: column that the event view does not declare -> events that had it; it is left out.
    """

    accepted: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Ingested) -> Ingested:
        return Ingested(
            self.accepted + other.accepted,
            _sum(self.dropped, other.dropped),
            _sum(self.unknown, other.unknown),
        )


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


_NOTHING: Final = Ingested()


class Ingestion:
    """Writes events of one event view.

    Args:
        runtime: of the cached store.
        view: the event view.
    """

    def __init__(self, runtime: Runtime, view: Any) -> None:
        self._runtime = runtime
        self._source = EventSource(view).table
        self._log = runtime.event_logs.log(view)
        self._shape = declared_shape(view)
        declared = {self._source.named(name) for name in self._source.kinds}
        self._known = declared.union(self._source.columns)

    @property
    def arrival(self) -> str:
        """The column that says when an event arrived."""
        return self._source.named(self._source.arrival)

    def stamp(self, table: pa.Table) -> pa.Table:
        """The table with the time of arrival, now, where it does not have that column."""
        if self.arrival in table.column_names:
            return table
        now_ms = self._runtime.clock.wall_ns() // 1_000_000
        moment = pa.scalar(now_ms, pa.timestamp("ms", tz="UTC"))
        return table.append_column(self.arrival, pa.repeat(moment, table.num_rows))

    def write(
        self,
        table: pa.Table,
        so_far: Ingested = _NOTHING,
        progress: Callable[[Ingested], None] = lambda so_far: None,
    ) -> Ingested:
        """Write a table of events, `_BATCH` rows at a time.

        Args:
            table: under the column names of the batch source, in any order.
            so_far: what became of the tables before.
            progress: told after every batch what became of all events so far.

        Returns:
            What became of this table's events and those before.

        Raises:
            TrainingError: a column is missing, or cannot be what the view declares.
            ServerError: the server does not answer; the batches before are written, of this one
                some events may be. Writing it again changes nothing.
        """
        unknown = [name for name in table.column_names if name not in self._known]
        total = so_far + Ingested(unknown=dict.fromkeys(unknown, table.num_rows))
        for at in range(0, table.num_rows, _BATCH):
            history = events_of(self._source, self.stamp(table.slice(at, _BATCH)))
            keys = dict(zip(self._source.join_keys, history.keys, strict=True))
            batch = from_columns(self._shape, keys, history.events, history.dropped)
            self._runtime.append_batch(self._log, batch)
            total += Ingested(len(history.events), history.dropped)
            progress(total)
        return total


def tables_of(events: Any) -> Iterator[pa.Table]:
    """Events in any of their usual forms as Arrow tables.

    Args:
        events: a pandas frame, an Arrow table or record batch, a list of dicts, or an iterator of
            any of these or of dicts.

    Raises:
        TypeError: it is none of them.
    """
    if isinstance(events, pa.Table):
        yield events
    elif isinstance(events, pa.RecordBatch):
        yield pa.Table.from_batches([events])
    elif isinstance(events, pd.DataFrame):
        yield pa.Table.from_pandas(events, preserve_index=False)
    elif isinstance(events, Sequence) and not isinstance(events, (str, bytes)):
        if all(isinstance(one, Mapping) for one in events):
            yield pa.Table.from_pylist(list(events))
        else:
            for one in events:
                yield from tables_of(one)
    elif isinstance(events, Iterable) and not isinstance(events, (str, bytes, Mapping)):
        yield from _pieces(iter(events))
    else:
        raise TypeError(
            f"events are a {type(events).__name__}: give a DataFrame, an Arrow table, a list of "
            "dicts, or an iterator of them"
        )


def _pieces(events: Iterator[Any]) -> Iterator[pa.Table]:
    """Dicts are gathered into tables; anything else is a table by itself."""
    for first in events:
        if not isinstance(first, Mapping):
            yield from tables_of(first)
            continue
        rows = [first]
        for one in islice(events, _BATCH - 1):
            if not isinstance(one, Mapping):
                yield pa.Table.from_pylist(rows)
                rows = []
                yield from tables_of(one)
                break
            rows.append(one)
        if rows:
            yield pa.Table.from_pylist(rows)
