"""From rows of an event source to events that are accepted, and what became of the others.

Every event passes through here exactly once, at ingestion, and again offline by the same rule, so
both sides keep the same events with the same bits. A row that cannot be kept is counted under one
reason, the first that applies in the order of `REASONS`; it never fails its batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hotplate.stats import EVENT_REASONS
from hotplate.windows.errors import WindowSpecError
from hotplate.windows.exact import Integers
from hotplate.windows.hashing import NO_HASH, hashes_of
from hotplate.windows.scaling import scaled
from hotplate.windows.spec import EventSpec

__all__ = ["END_OF_TIME_MS", "REASONS", "Accepted", "Events", "accept"]

END_OF_TIME_MS: Final = 1 << 45
"""Timestamps lie from 1970 up to here, the year 3084; what does not is in the wrong unit."""

REASONS: Final = EVENT_REASONS
"""Why a row is dropped.

- `invalid_timestamp`: its timestamp or its arrival is missing or out of range.
- `missing_id`: the event id is null or empty.
- `invalid_value`: what should be a number is none.
- `overflow`: a number is infinite, or beyond 2**53 scaled units.
- `late`: it arrived more than `lateness_ms` after it happened.
- `future`: it is stamped more than `skew_ms` after it arrived.
"""


@dataclass(frozen=True)
class Events:
    """Events as columns, in the order in which they came.

    Attributes:
        ts: int64 (n), ms UTC: when each happened.
        ids: int64 (n), hashes of the event ids.
        arrivals: int64 (n), ms UTC: when each was ingested.
        values: int64 (n, C), by the columns of the `EventSpec`: scaled integers or hashes, with
            `NO_VALUE` and `NO_HASH` for null.
    """

    ts: Integers
    ids: Integers
    arrivals: Integers
    values: Integers

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, places: Sequence[int] | Integers) -> Events:
        """Some of them, in the order of `places`."""
        at = np.array(places, np.int64)
        return Events(self.ts[at], self.ids[at], self.arrivals[at], self.values[at])


@dataclass(frozen=True)
class Accepted:
    """What became of a batch of rows.

    Attributes:
        events: those that were accepted.
        rows: int64, which row of the batch each of them was.
        verdicts: uint8, for every row of the batch: 0 if accepted, else 1 + its reason's index in
            `REASONS`.
    """

    events: Events
    rows: Integers
    verdicts: npt.NDArray[np.uint8]

    @property
    def dropped(self) -> dict[str, int]:
        """Reason -> number of rows, for the reasons that occurred."""
        counts = np.bincount(self.verdicts, minlength=len(REASONS) + 1)[1:].tolist()
        return {reason: count for reason, count in zip(REASONS, counts, strict=True) if count}


def accept(
    spec: EventSpec,
    ts: npt.ArrayLike,
    ids: npt.ArrayLike,
    arrivals: npt.ArrayLike,
    columns: Mapping[str, npt.ArrayLike],
) -> Accepted:
    """Turn rows into events; see `REASONS` for those that are dropped.

    Args:
        spec: what the log holds.
        ts: when each row's event happened: datetime64 of any unit (UTC, rounded down to ms), or
            int64 in ms since 1970.
        ids: the event id column, hashed as `hashing` says.
        arrivals: when each was ingested, likewise. Stamp it once and write it to both sides.
        columns: the raw columns by name, at least those of `spec`; each a one-dimensional array.
            A number must come in the type that its offline column has.

    Raises:
        WindowSpecError: a column is not there, or of another length.
    """
    moments = _milliseconds("ts", ts)
    arrived = _milliseconds("arrivals", arrivals)
    count = len(moments)
    _same_length(count, arrivals=len(arrived))
    hashes = hashes_of(ids)
    _same_length(count, **{spec.event_id: len(hashes)})
    verdicts = np.zeros(count, np.uint8)
    _mark(verdicts, "invalid_timestamp", ~(_in_time(moments) & _in_time(arrived)))
    _mark(verdicts, "missing_id", hashes == NO_HASH)
    values = np.empty((count, len(spec.columns)), np.int64)
    too_large = np.zeros(count, np.bool_)
    for index, column in enumerate(spec.columns):
        raw = np.asarray(_column(columns, column.name))
        _same_length(count, **{column.name: len(raw)})
        if column.is_numeric:
            numbers = scaled(raw, column.scale)
            values[:, index] = numbers.values
            too_large |= numbers.too_large
            _mark(verdicts, "invalid_value", numbers.unreadable)
        else:
            values[:, index] = hashes_of(raw)
    _mark(verdicts, "overflow", too_large)
    # what is out of time has its verdict already, and its difference may have wrapped around
    delay = arrived - moments
    _mark(verdicts, "late", delay > spec.lateness_ms)
    _mark(verdicts, "future", -delay > spec.skew_ms)
    rows = np.flatnonzero(verdicts == 0)
    return Accepted(
        Events(moments[rows], hashes[rows], arrived[rows], values[rows]), rows, verdicts
    )


def _mark(verdicts: npt.NDArray[np.uint8], reason: str, where: npt.NDArray[Any]) -> None:
    verdicts[where & (verdicts == 0)] = 1 + REASONS.index(reason)


def _milliseconds(name: str, moments: npt.ArrayLike) -> Integers:
    array = np.asarray(moments)
    if array.dtype.kind == "M":
        return array.astype("datetime64[ms]").view(np.int64)  # NaT becomes the least int64
    if array.dtype.kind in "iu":
        return array.astype(np.int64, copy=False)
    raise WindowSpecError(
        where=name,
        problem=f"is an array of {array.dtype}",
        fix="Pass datetime64 in UTC, or int64 in milliseconds since 1970.",
    )


def _in_time(moments: Integers) -> npt.NDArray[np.bool_]:
    return (moments >= 0) & (moments < END_OF_TIME_MS)


def _column(columns: Mapping[str, npt.ArrayLike], name: str) -> npt.ArrayLike:
    if name not in columns:
        raise WindowSpecError(
            where=f"column {name!r}",
            problem="is not among the rows",
            fix=f"Pass it; given: {', '.join(map(repr, columns)) or 'none'}.",
        )
    return columns[name]


def _same_length(count: int, **lengths: int) -> None:
    for name, length in lengths.items():
        if length != count:
            raise WindowSpecError(
                where=f"column {name!r}",
                problem=f"has {length:,} rows beside {count:,} timestamps",
                fix="Pass columns of one length.",
            )
