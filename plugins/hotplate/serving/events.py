"""Events on their way into their logs: from what Feast hands over, or from a frame, to records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from feast.protos.feast.types.EntityKey_pb2 import EntityKey

from hotplate.codec import event_us, kind_of
from hotplate.keys import EntityShape, shape_and_values
from hotplate.windows.events import Events, accept
from hotplate.windows.records import RecordFormat
from hotplate.windows.spec import EventSpec

__all__ = ["Batch", "Entity", "from_columns", "from_feast", "records_of"]

Entity = tuple[EntityShape, tuple[Any, ...]]
_Row = tuple[EntityKey, Mapping[str, Any], datetime, datetime | None]

_ARROW: Final = {
    "int64_val": pa.int64(),
    "int32_val": pa.int32(),
    "string_val": pa.large_string(),
    "bytes_val": pa.large_binary(),
}
_NO_TIME_MS: Final = -1  # before 1970: `accept` drops it as an invalid timestamp


@dataclass(frozen=True)
class Batch:
    """Events of one event view.

    Attributes:
        entities: those that have events, each once.
        owners: int64 (n), whose each event is, as a place among the entities.
        events: those that count.
        dropped: reason -> rows that do not.
    """

    entities: Sequence[Entity]
    owners: npt.NDArray[np.int64]
    events: Events
    dropped: Mapping[str, int]


def from_feast(table: Any, spec: EventSpec, rows: Sequence[_Row], now_ms: int) -> Batch:
    """Read rows as Feast writes them.

    Args:
        table: the event view.
        spec: what its log holds.
        rows: entity key, values by name, when it happened, when it was created.
        now_ms: arrival of rows that do not say.
    """
    kinds = {field.name: kind_of(field.dtype.to_value_type()) for field in table.features}
    names = [spec.event_id, *(column.name for column in spec.columns)]
    read = {
        name: _column([row[1].get(name) for row in rows], kinds[name])
        for name in dict.fromkeys(names)
    }
    happened = np.array([_as_ms(row[2], _NO_TIME_MS) for row in rows], np.int64)
    arrived = np.array([_as_ms(row[3], now_ms) for row in rows], np.int64)
    accepted = accept(spec, happened, read[spec.event_id], arrived, read)
    places: dict[Entity, int] = {}
    owners = [
        places.setdefault(shape_and_values(rows[row][0]), len(places))
        for row in accepted.rows.tolist()
    ]
    return Batch(list(places), np.array(owners, np.int64), accepted.events, accepted.dropped)


def from_columns(
    shape: EntityShape, keys: Mapping[str, Any], events: Events, dropped: Mapping[str, int]
) -> Batch:
    """The events of columns.

    Args:
        shape: the entity's.
        keys: for each join key an Arrow array, one value an event.
        events: the events.
        dropped: reason -> rows that are none.
    """
    columns = [
        keys[name].cast(_ARROW[kind]).to_pylist()
        for name, kind in zip(shape.join_keys, shape.types, strict=True)
    ]
    places: dict[tuple[Any, ...], int] = {}
    owners = [places.setdefault(values, len(places)) for values in zip(*columns, strict=True)]
    entities = [(shape, values) for values in places]
    return Batch(entities, np.array(owners, np.int64), events, dropped)


def records_of(form: RecordFormat, batch: Batch) -> list[bytes]:
    """For each entity of a batch the records of its events, in the order in which they came."""
    order = np.argsort(batch.owners, kind="stable")
    raw = form.pack(batch.events)[order].tobytes()
    ends = np.cumsum(np.bincount(batch.owners, minlength=len(batch.entities))) * form.size
    starts = [0, *ends[:-1].tolist()]
    return [raw[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]


def _as_ms(moment: datetime | None, otherwise: int) -> int:
    micros = event_us(moment)
    return otherwise if micros is None else micros // 1_000


def _column(protos: Sequence[Any], kind: str) -> npt.NDArray[Any]:
    """One column of Feast's values, typed as the declaration says; a null is NaN or None."""
    values = [
        getattr(proto, kind) if proto is not None and proto.WhichOneof("val") == kind else None
        for proto in protos
    ]
    if kind in ("double_val", "float_val"):
        return np.array([np.nan if value is None else value for value in values], np.float64)
    made = np.empty(len(values), object)
    made[:] = values
    if kind in ("int64_val", "int32_val", "bool_val") and None not in values:
        return made.astype(np.int64)
    return made
