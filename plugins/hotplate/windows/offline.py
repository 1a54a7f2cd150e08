"""Windows at past moments: many (entity, t) rows over all events, the same bits as online.

What an event is, whether it is accepted, and how integers become floats are the same functions as
online (`events.accept`, `finalize.Finalizer`). What differs is how the integers are found:

1. Entities are cut into partitions of so many events, so that all that follows stays in a bounded
   memory and mostly in the processor's cache.
2. Events are sorted by (entity, ts, id, arrival); of those with one (entity, ts, id) the first
   arrival stays, as online.
3. The edges of a window are two binary searches for (entity, moment). What lies between them is
   answered from prefix sums and from tables of range minima, in the same time for any length.
4. At t only events with `arrival <= t` are visible. Each event is hidden from the rows between its
   ts and its arrival, which follow one another where rows are sorted by (entity, t). So the hidden
   events of each row are listed without looking at any other, and taken out of its ranges.

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
from hotplate.windows.pieces import Holes
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
        max_events: of a partition. Memory beside the arguments and the result is some 200 bytes for
            each numeric column and event of the largest partition, 1.3 kB for each column whose
            different values are counted; or of the largest entity, if it has more events.
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
    span = 4 + max(_extent(events.ts), _extent(moments.t_ms))
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
        index, self._entities = part.events[order], part.entities[order]
        self._places = places[order]
        self._ts, self._arrivals = events.ts[index], events.arrivals[index]
        self._statistics = RangeStatistics(finalize, events.values[index], self._entities)

    def answers(self, part: _Part, moments: Moments) -> Iterator[tuple[_Index, Partials]]:
        """Some of the partition's rows at a time, and what is in their windows."""
        t_ms = moments.t_ms[part.rows].astype(np.int64, copy=False)
        timeline = _Timeline(t_ms)
        places = timeline.place(part.row_entities, t_ms)
        # neighbours in time look up neighbours in memory
        order = np.argsort(places, kind="stable")
        rows, entities, t_ms = part.rows[order], part.row_entities[order], t_ms[order]
        places = places[order]
        hidden = _Hidden(
            np.searchsorted(places, timeline.place(self._entities, self._ts), side="right"),
            np.searchsorted(places, timeline.place(self._entities, self._arrivals)),
        )
        work = np.cumsum(1 + hidden.counts(len(rows)))
        at_once = max(_CELLS // (len(self._windows) * self._statistics.width), 1)
        begin = 0
        while begin < len(rows):
            done = int(work[begin - 1]) if begin else 0
            end = max(int(np.searchsorted(work, done + at_once, side="right")), begin + 1)
            ranges = self._ranges(entities[begin:end], t_ms[begin:end])
            holes = hidden.holes(begin, end, ranges)
            yield rows[begin:end], self._statistics.partials(Ranges(ranges.lo, ranges.hi, holes))
            begin = end

    def _ranges(self, entities: Integers, t_ms: Integers) -> Ranges:
        """What lies between the edges of each window, visible or not."""
        shape = (len(t_ms), len(self._windows))
        lo, hi = np.empty(shape, np.intp), np.empty(shape, np.intp)
        known: dict[tuple[int, int], _Index] = {}
        for number, window in enumerate(self._windows):
            lo[:, number] = self._search(entities, t_ms - window.reach_ms, window.hop_ms)
            end = (window.delay_ms, window.hop_ms if window.delay_ms else 1)
            if end not in known:
                known[end] = self._search(entities, t_ms - end[0], end[1])
            hi[:, number] = known[end]
        return Ranges(lo, hi)

    def _search(self, entities: Integers, moments: Integers, hop_ms: int) -> _Index:
        """Position of the first event of each entity at or after a moment, floored to the hop."""
        if hop_ms > 1:
            moments = moments // hop_ms * hop_ms
        return np.searchsorted(self._places, self._timeline.place(entities, moments))


class _Hidden:
    """Which events are not visible to which rows, though they have happened.

    Args:
        begins, ends: for each event the rows `[begins, ends)` that are after it and before its
            arrival; empty where `ends <= begins`. `begins` ascends.
    """

    def __init__(self, begins: _Index, ends: _Index) -> None:
        self._events = np.flatnonzero(ends > begins)
        self._begins, self._ends = begins[self._events], ends[self._events]
        self._furthest = np.maximum.accumulate(self._ends)

    def counts(self, rows: int) -> _Index:
        """How many each row does not see."""
        steps = np.bincount(self._begins, minlength=rows + 1)
        steps -= np.bincount(self._ends, minlength=rows + 1)
        return np.cumsum(steps)[:rows]

    def holes(self, begin: int, end: int, ranges: Ranges) -> Holes | None:
        """Those that lie in the ranges of the rows `[begin, end)`."""
        first = np.searchsorted(self._furthest, begin, side="right")
        some = slice(first, np.searchsorted(self._begins, end))
        begins = np.maximum(self._begins[some], begin)
        counts = np.maximum(np.minimum(self._ends[some], end) - begins, 0)
        if not counts.any():
            return None
        event = np.repeat(self._events[some], counts)
        row = np.arange(len(event)) + np.repeat(begins - begin - np.cumsum(counts) + counts, counts)
        lo, hi = ranges.lo[row], ranges.hi[row]
        pair, window = np.nonzero((event[:, None] >= lo) & (event[:, None] < hi))
        if not pair.size:
            return None
        cell = row[pair] * ranges.lo.shape[1] + window
        order = np.argsort(cell, kind="stable")  # events ascend, and stay so within a cell
        cells, first_of = np.unique(cell[order], return_index=True)
        return Holes(cells, first_of, event[pair[order]])


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
