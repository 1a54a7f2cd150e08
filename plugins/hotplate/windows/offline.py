"""Windows at past moments: many (entity, t) rows over all events, the same bits as online.

What an event is, whether it is accepted, and how integers become floats are the same functions as
online (`events.accept`, `finalize.Finalizer`). What differs is how the integers are found:

1. Entities are cut into partitions of so many events, so that all that follows stays in a bounded
   memory and mostly in the processor's cache.
2. Events are sorted by (entity, ts, id, arrival); of those with one (entity, ts, id) the first
   arrival stays, as online.
3. The edges of a window are two binary searches for (entity, moment). What lies between them is
   answered from prefix sums and from tables of range minima, in the same time for any length.
4. At t only events with `arrival <= t` are visible. A running maximum of the arrivals says up to
   which event all are; only the few from there to t are looked at one by one.

Sums are integers modulo 2**64 where the greatest possible result fits 64 bits, whatever the prefix
sums run up to, and limbs as in `exact` where it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hotplate.windows.errors import WindowSpecError
from hotplate.windows.events import Events
from hotplate.windows.exact import Floats, Integers
from hotplate.windows.finalize import Finalizer, Partials
from hotplate.windows.range_distinct import Additions
from hotplate.windows.range_statistics import Ranges, RangeStatistics
from hotplate.windows.spec import WindowSpec

__all__ = ["MAX_EVENTS", "Moments", "outputs_at"]

_Index: TypeAlias = npt.NDArray[np.intp]

MAX_EVENTS: Final = 1 << 16
"""Events of a partition, whose tables are then a few MB a column; an entity with more is alone."""
_MAX_COMPOSITE: Final = 1 << 61
_MAX_MOMENT_MS: Final = 1 << 50
_CELLS: Final = 1 << 16  # numbers of one kind that are worked on at a time: 512 kB


@dataclass(frozen=True)
class Moments:
    """For which entity each row wants the outputs, and as of when.

    Attributes:
        keys: int64 (n), codes of entities from 0.
        t_ms: int64 (n), ms UTC.
    """

    keys: Integers
    t_ms: Integers

    def __len__(self) -> int:
        return len(self.keys)


def outputs_at(
    spec: WindowSpec,
    events: Events,
    keys: Integers,
    moments: Moments,
    *,
    max_events: int = MAX_EVENTS,
    progress: Callable[[int], None] | None = None,
) -> Floats:
    """What a read of each entity at each moment would have answered.

    Args:
        spec: the outputs.
        events: accepted events (`events.accept`) in the order in which they came, with all columns
            of `spec.event`. Duplicates and any order are allowed.
        keys: int64 (n), the entity of each event: dense codes from 0, the same as in `moments`.
        moments: the rows; entities without events are allowed.
        max_events: of a partition. Memory beside the arguments and the result is some 200 bytes
            per column and event of the largest partition, or of the largest entity if it has more.
        progress: called with the number of rows done since the last call.

    Returns:
        float64 (rows, outputs), in the order of `spec.aggregates`; null is NaN.

    Raises:
        WindowSpecError: the arrays do not fit each other, or a number is out of range.
    """
    _check(spec, events, keys, moments, max_events)
    finalize = Finalizer(spec)
    out = np.empty((len(moments), len(spec.aggregates)))
    for part in _partitions(events, keys, moments, max_events):
        history = _History(part, events, finalize)
        for rows, partials in history.answers(part, moments):
            out[rows] = finalize(partials)
        if progress is not None:
            progress(len(part.rows))
    return out


def _check(
    spec: WindowSpec, events: Events, keys: Integers, moments: Moments, max_events: int
) -> None:
    def refuse(where: str, problem: str, fix: str) -> None:
        raise WindowSpecError(where=where, problem=problem, fix=fix)

    if not len(keys) == len(events) == len(events.values):
        refuse("events", f"{len(events):,} events have {len(keys):,} keys", "Give each a key.")
    if events.values.shape[1] != len(spec.event.columns):
        problem = f"have {events.values.shape[1]} columns, not {len(spec.event.columns)}"
        refuse("events", problem, "Make them by accept(spec.event, ...).")
    if len(moments.keys) != len(moments.t_ms):
        problem = f"{len(moments.keys):,} keys have {len(moments.t_ms):,} moments"
        refuse("moments", problem, "Give each row a key and a moment.")
    for name, codes in (("events", keys), ("moments", moments.keys)):
        if codes.dtype.kind not in "iu" or (len(codes) and codes.min() < 0):
            refuse(name, "keys are not all whole numbers from 0", "Use numpy.unique's codes.")
    t_ms = moments.t_ms
    if t_ms.dtype.kind not in "iu" or (len(t_ms) and np.abs(t_ms).max() > _MAX_MOMENT_MS):
        refuse("moments", "t_ms is not in whole milliseconds since 1970", "Convert the unit.")
    if max_events < 1:
        refuse("max_events", f"is {max_events!r}", "Write a whole number from 1.")


# -- partitions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """Consecutive entities, counted from 0, with their events and their rows.

    Attributes:
        events, rows: positions among all events and all rows.
        entities, row_entities: the entity of each.
    """

    events: _Index
    entities: Integers
    rows: _Index
    row_entities: Integers


def _partitions(
    events: Events, keys: Integers, moments: Moments, max_events: int
) -> Iterator[_Part]:
    """Partitions that have rows; at most `max_events` events each, or one entity."""
    if not len(moments):
        return
    by_key = _by_key(keys)
    rows_by_key = _by_key(moments.keys)
    count = 1 + int(max(keys.max(initial=0), moments.keys.max()))
    event_ends = np.cumsum(np.bincount(keys, minlength=count))
    row_ends = np.cumsum(np.bincount(moments.keys, minlength=count))
    # (entity, moment) must fit one number; one entity always does
    span = 4 + max(_extent(events.ts), _extent(events.arrivals))
    max_keys = min(max(_MAX_COMPOSITE // span, 1), max_events)
    begin = event_begin = row_begin = 0
    while begin < count:
        end = int(np.searchsorted(event_ends, event_begin + max_events, side="right"))
        end = min(max(end, begin + 1), begin + max_keys, count)
        event_end, row_end = int(event_ends[end - 1]), int(row_ends[end - 1])
        if row_end > row_begin:
            chosen, rows = by_key[event_begin:event_end], rows_by_key[row_begin:row_end]
            yield _Part(chosen, keys[chosen] - begin, rows, moments.keys[rows] - begin)
        begin, event_begin, row_begin = end, event_end, row_end


def _by_key(keys: Integers) -> _Index:
    """A stable order of the keys; numpy sorts 16 bits at a time several times faster than 64."""
    highest = int(keys.max(initial=0))
    order = np.argsort((keys & 0xFFFF).astype(np.uint16), kind="stable")
    for shift in range(16, highest.bit_length(), 16):
        digits = (keys[order] >> shift & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    return order


def _extent(moments: Integers) -> int:
    return int(moments.max()) - int(moments.min()) if len(moments) else 0


class _Timeline:
    """(entity, moment) as one number that sorts like the pair.

    Moments before the first and after the last one given are as good as those next to them.
    """

    def __init__(self, moments: Integers) -> None:
        self._before = int(moments.min()) - 1 if len(moments) else 0
        self._after = int(moments.max()) + 1 if len(moments) else 0

    def place(self, entities: Integers, moments: Integers) -> Integers:
        """int64 (n)."""
        placed = np.clip(moments, self._before, self._after)
        placed -= self._before
        placed += entities * (self._after - self._before + 1)
        return placed


# -- events and rows of a partition ---------------------------------------------------------------


class _History:
    """The events of a partition, sorted, without duplicates, and ready to be asked."""

    def __init__(self, part: _Part, events: Events, finalize: Finalizer) -> None:
        self._windows = finalize.windows
        self._timeline = _Timeline(events.ts[part.events])
        places = self._timeline.place(part.entities, events.ts[part.events])
        order = _first_arrivals(places, part.events, events)
        index, entities = part.events[order], part.entities[order]
        self._places = places[order]
        self._arrivals = events.arrivals[index]
        self._arrival_line = _Timeline(self._arrivals)
        self._all_arrived = np.maximum.accumulate(
            self._arrival_line.place(entities, self._arrivals)
        )
        self._statistics = RangeStatistics(finalize, events.values[index], entities)

    def answers(self, part: _Part, moments: Moments) -> Iterator[tuple[_Index, Partials]]:
        """Some of the partition's rows at a time, and what is in their windows."""
        t_ms = moments.t_ms[part.rows].astype(np.int64, copy=False)
        # neighbours in time look up neighbours in memory
        order = np.argsort(self._timeline.place(part.row_entities, t_ms), kind="stable")
        rows, entities, t_ms = part.rows[order], part.row_entities[order], t_ms[order]
        ends = np.searchsorted(self._places, self._timeline.place(entities, t_ms))
        arrived = np.searchsorted(
            self._all_arrived, self._arrival_line.place(entities, t_ms), side="right"
        )
        work = np.cumsum(1 + np.maximum(ends - arrived, 0))
        at_once = max(_CELLS // (len(self._windows) * self._statistics.width), 1)
        begin = 0
        while begin < len(rows):
            done = int(work[begin - 1]) if begin else 0
            end = max(int(np.searchsorted(work, done + at_once, side="right")), begin + 1)
            some = slice(begin, end)
            ranges = self._ranges(entities[some], t_ms[some], ends[some], arrived[some])
            yield rows[some], self._statistics.partials(ranges)
            begin = end

    def _ranges(self, entities: Integers, t_ms: Integers, ends: _Index, arrived: _Index) -> Ranges:
        shape = (len(t_ms), len(self._windows))
        lo, hi = np.empty(shape, np.intp), np.empty(shape, np.intp)
        known: dict[tuple[int, int], _Index] = {}
        for number, window in enumerate(self._windows):
            lo[:, number] = self._search(entities, t_ms - window.reach_ms, window.hop_ms)
            if not window.delay_ms:
                hi[:, number] = ends
                continue
            key = (window.delay_ms, window.hop_ms)
            if key not in known:
                known[key] = self._search(entities, t_ms - window.delay_ms, window.hop_ms)
            hi[:, number] = known[key]
        additions = self._additions(t_ms, lo, hi, arrived)
        np.minimum(hi, arrived[:, None], out=hi)
        np.maximum(hi, lo, out=hi)
        return Ranges(lo, hi, additions)

    def _search(self, entities: Integers, moments: Integers, hop_ms: int) -> _Index:
        """Position of the first event of each entity at or after a moment, floored to the hop."""
        if hop_ms > 1:
            moments = moments // hop_ms * hop_ms
        return np.searchsorted(self._places, self._timeline.place(entities, moments))

    def _additions(
        self, t_ms: Integers, lo: _Index, hi: _Index, arrived: _Index
    ) -> Additions | None:
        """Visible events behind one that is not visible yet, cell by cell."""
        counts = np.maximum(hi.max(axis=1) - arrived, 0)
        rows = np.flatnonzero(counts)
        if not rows.size:
            return None
        counts = counts[rows]
        row = np.repeat(rows, counts)
        index = np.arange(len(row)) + np.repeat(arrived[rows] - np.cumsum(counts) + counts, counts)
        is_visible = self._arrivals[index] <= t_ms[row]
        row, index = row[is_visible], index[is_visible]
        pair, window = np.nonzero((index[:, None] >= lo[row]) & (index[:, None] < hi[row]))
        if not pair.size:
            return None
        cell = row[pair] * lo.shape[1] + window
        order = np.argsort(cell, kind="stable")
        cells, begins = np.unique(cell[order], return_index=True)
        return Additions(cells, begins, index[pair[order]])


def _first_arrivals(places: Integers, index: _Index, events: Events) -> _Index:
    """Order the events of `index` by (place, id), and of each keep the first arrival.

    Of equal arrivals the one with the smaller values stays, as in `records.first_arrivals`.
    """
    order = np.argsort(places, kind="stable")
    sorted_places = places[order]
    is_tied = np.zeros(len(order), np.bool_)
    np.equal(sorted_places[1:], sorted_places[:-1], out=is_tied[1:])
    if not is_tied.any():
        return order
    is_tied[:-1] |= is_tied[1:]
    tied = order[is_tied]
    among = index[tied]
    values = events.values[among].T
    ranks = (*values[::-1], events.arrivals[among], events.ids[among], places[tied])
    order[is_tied] = tied[np.lexsort(ranks)]
    ids = events.ids[index[order]]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (sorted_places[1:] != sorted_places[:-1]) | (ids[1:] != ids[:-1])
    return order[is_first]
