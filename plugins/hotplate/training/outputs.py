"""Outputs of a windowed view at every event of a table.

What this module holds can be sent to another process: it needs neither a store nor its registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from feast import FeatureView

from hotplate.training.columns import codes_of
from hotplate.training.errors import TrainingError
from hotplate.training.reading import EventSource, EventTable, history_of
from hotplate.windowed import windowed_of
from hotplate.windows.offline import Moments, outputs_at
from hotplate.windows.spec import WindowSpec

__all__ = ["At", "EventOutputs", "as_arrow", "outputs_of"]

At = Literal["event", "after"]
_ROWS_A_TABLE: Final = 1 << 16


@dataclass(frozen=True)
class EventOutputs:
    """The outputs of one windowed view at every event.

    Attributes:
        events: how the events lie in a table.
        spec: the outputs.
        at: `"event"`: as of each event's own timestamp, as a request that scores it sees them;
            `"after"`: 1 ms later.
        timestamp, created: names of the columns that say when.
    """

    events: EventTable
    spec: WindowSpec
    at: At
    timestamp: str
    created: str

    def tables(self, table: pa.Table) -> Iterator[pa.Table]:
        """The outputs at each entity and moment of some entities' events, once.

        Args:
            table: all events of some entities, in any order.

        Yields:
            Tables of a bounded number of rows: join keys, timestamps, outputs.

        Raises:
            TrainingError: a column cannot be what the view declares.
        """
        history = history_of(self.events, table)
        nothing = [column.slice(0, 0) for column in history.keys]
        codes = codes_of(history.keys, nothing, self.events.join_keys).events
        t_ms = history.events.ts + (1 if self.at == "after" else 0)
        first = _first_of_each(codes, t_ms)
        moments = Moments(codes[first], t_ms[first])
        found = outputs_at(self.spec, history.events, codes, moments)
        created = pa.array(moments.t_ms, pa.timestamp("ms", "UTC"))
        keys = [column.take(pa.array(first)) for column in history.keys]
        schema = self.schema([column.type for column in keys])
        for begin in range(0, len(found), _ROWS_A_TABLE):
            some = slice(begin, begin + _ROWS_A_TABLE)
            arrays = [column[some] for column in keys]
            arrays += [created[some], created[some]]
            arrays += [
                as_arrow(found[some, number], kind)
                for number, kind in enumerate(self.spec.output_types.values())
            ]
            arrays = [
                one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for one in arrays
            ]
            yield pa.Table.from_arrays(arrays, schema=schema)

    def schema(self, keys: list[Any]) -> pa.Schema:
        """Columns of the result, for the Arrow types of the join keys."""
        moment = pa.timestamp("ms", "UTC")
        return pa.schema(
            [
                *zip(self.events.join_keys, keys, strict=True),
                (self.timestamp, moment),
                (self.created, moment),
                *(
                    (name, pa.int64() if kind == "int64" else pa.float64())
                    for name, kind in self.spec.output_types.items()
                ),
            ]
        )


def outputs_of(view: FeatureView, event_view: FeatureView, at: At) -> EventOutputs:
    """What a backfill of a windowed view writes.

    Args:
        view: the windowed view.
        event_view: its event view.
        at: see `EventOutputs`.

    Raises:
        TrainingError: they are no such views.
    """
    said = windowed_of(view)
    if said is None or said.events != event_view.name:
        raise TrainingError(
            where=f"feature view {view.name!r}",
            problem=f"is no windowed view over {event_view.name!r}",
            fix="Give the two views of one windowed_view(...).",
        )
    batch = view.batch_source
    has_own = batch is not None and batch != event_view.batch_source
    return EventOutputs(
        EventSource(event_view).table,
        said.spec,
        at,
        (has_own and batch.timestamp_field) or "event_timestamp",
        (has_own and batch.created_timestamp_column) or "created_timestamp",
    )


def _first_of_each(codes: npt.NDArray[np.int64], t_ms: npt.NDArray[np.int64]) -> Any:
    """Of the events of one entity and moment the first; ordered by both."""
    order = np.lexsort((t_ms, codes))
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (np.diff(codes[order]) != 0) | (np.diff(t_ms[order]) != 0)
    return order[is_first]


def as_arrow(values: npt.NDArray[np.float64], kind: str) -> Any:
    """One output as an Arrow array: NaN is null."""
    is_null = np.isnan(values)
    if kind == "int64":
        values = np.where(is_null, 0, values).astype(np.int64)
    return pa.array(values, mask=is_null if is_null.any() else None)
