"""The read that is by far the most frequent, in as few steps as possible.

One entity whose records are complete and in order: its events came one after the other, none is
late, a duplicate, null or still to arrive in a window. What such a read costs is the number of
calls into numpy, about a microsecond each, not the hundred events. So this path leaves out every
step that such a log does not need, and keeps to plain integers where there are few; anything else
is left to the general path. Both end in the same `Finalizer` with the same integers.

Tiles and records of a compacted log become one table of items in the order of time, so that what
follows is done once and not for either.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hotplate.windows.chains import Chain
from hotplate.windows.errors import WindowStateError
from hotplate.windows.exact import Integers
from hotplate.windows.finalize import Finalizer, Partials
from hotplate.windows.log import HEADER_SIZE, MAGIC, Head, LogFormat
from hotplate.windows.records import ARRIVAL, ID, TS, VALUES, arrivals_of, stamp_limit
from hotplate.windows.scaling import NO_VALUE

__all__ = ["SingleReader"]

_SMALL: Final = 1 << 31
_FITS: Final = 1 << 62
_SIMPLE: Final = frozenset({"events", "n", "s", "q", "minimum", "maximum"})


class SingleReader:
    """Reads simple logs of one entity, for specs of one chain without distinct columns.

    Attributes:
        is_fit: whether the spec is such a one; if not, it must not be asked.
    """

    def __init__(self, form: LogFormat, chains: list[Chain], finalizer: Finalizer) -> None:
        event = finalizer.spec.event
        names = [column.name for column in event.columns]
        places = [names.index(column.name) for column in finalizer.columns]
        self.is_fit = (
            len(chains) == 1
            and finalizer.needs <= _SIMPLE
            and not finalizer.distinct
            and bool(places)
            and places == list(range(places[0], places[-1] + 1))
        )
        self._form = form
        self._chain = chains[0]
        self._needs_minimum = "minimum" in finalizer.needs
        self._needs_maximum = "maximum" in finalizer.needs
        first, width = (places[0], len(places)) if places else (0, 0)
        self._rows = slice(VALUES + first, VALUES + first + width)
        self._columns = width
        # tiles are read as words, which numpy takes many times faster than named fields
        self._reads_tiles = not event.distinct
        self._words = form.tile.itemsize // 8
        fields = form.tile.fields
        assert fields is not None
        at = {name: fields[name][1] // 8 + first for name in ("s", "minimum", "maximum")}
        squares = fields["q"][1] // 8 + 2 * first + 1  # the lower half of each
        self._tile_rows = np.array(
            [
                *range(at["s"], at["s"] + width),
                *range(squares, squares + 2 * width, 2),
                *range(at["minimum"], at["minimum"] + width),
                *range(at["maximum"], at["maximum"] + width),
            ]
        )

    def partials(self, blob: bytes, t: int) -> tuple[Partials, int] | None:
        """The partial results, (W, C), and `valid_until`; None for the general path.

        Args:
            blob: a log, not empty.
            t: the moment.
        """
        if not blob.startswith(MAGIC):
            fields = self._records(blob, t)
            return None if fields is None else self._of_records(fields, t)
        try:
            head = self._form.head(blob)
        except WindowStateError:
            return None  # the general path says where
        assert head is not None
        fields = None if t < head.horizon_ms else self._records(memoryview(blob)[head.size :], t)
        if fields is None:
            return None
        if not len(head.tiles):
            return self._of_records(fields, t)
        if not self._reads_tiles or not (head.tiles["events"] == head.tiles["n"].T).all():
            return None
        return self._of_both(blob, head, fields, t)

    def _records(self, raw: bytes | memoryview, t: int) -> Integers | None:
        """The fields of records that all count as they stand; None for the general path."""
        records = self._form.records
        count, rest = divmod(len(raw), records.size)
        if rest or not records.is_intact(raw, count):
            return None
        fields = records.fields(raw)
        ts, stamps = fields[TS], fields[ARRIVAL]
        if b"\0" in (ts[1:] > ts[:-1]).tobytes() and not _are_apart(ts, fields[ID]):
            return None
        if (
            count
            and stamps[stamps.argmax()] >= stamp_limit(t)
            and self._are_hidden_inside(fields, t)
        ):
            return None
        return fields

    def _are_hidden_inside(self, fields: Integers, t: int) -> bool:
        """Whether an event that has not arrived yet changes what is read, or how long it holds.

        One that is in no window yet, and arrives before it enters one, does not.
        """
        hidden = fields[:, fields[ARRIVAL] >= stamp_limit(t)]
        ts = hidden[TS]
        is_behind = (ts >= self._chain.edges_at(t)[-1]) & (
            arrivals_of(hidden) <= self._chain.enters_at(ts)
        )
        return not is_behind.all()

    def _of_records(self, fields: Integers, t: int) -> tuple[Partials, int] | None:
        ts, values = fields[TS], fields[self._rows]
        count, width = len(ts), self._columns
        places = ts.searchsorted(self._chain.edges_at(t))
        end = int(places[-1])
        if not end:
            return None
        prefix = np.empty((2 * width, count + 1), np.int64)
        prefix[:, 0] = 0
        prefix[:width, 1:] = values
        np.multiply(values, values, out=prefix[width:, 1:])
        np.add.accumulate(prefix, axis=1, out=prefix)
        sizes = end - places[:-1]
        return self._finish(ts, places, prefix, (values, values), (sizes, count))

    def _of_both(
        self, blob: bytes, head: Head, fields: Integers, t: int
    ) -> tuple[Partials, int] | None:
        tiles, width = len(head.tiles), self._columns
        words = np.frombuffer(blob, "<i8", tiles * self._words, HEADER_SIZE)
        words = words.reshape(tiles, self._words).T
        values = fields[self._rows]
        key = np.concatenate((words[0], fields[TS]))
        # tiles come first, unless an event was late
        is_sorted = len(key) == tiles or key[tiles - 1] <= key[tiles]
        order = None if is_sorted else key.argsort(kind="stable")
        if order is not None:
            key = key.take(order)
        places = key.searchsorted(self._chain.edges_at(t))
        end = int(places[-1])
        if not end:
            return None
        # by item: events, sums, sums of squares, smallest, largest
        table = np.empty((1 + 4 * width, len(key)), np.int64)
        table[0, :tiles] = head.tiles["events"]
        table[0, tiles:] = 1
        table[1:, :tiles] = words.take(self._tile_rows, axis=0)
        own = table[1:, tiles:].reshape(4, width, -1)
        own[:] = values
        np.multiply(values, values, out=own[1])
        if order is not None:
            table = table.take(order, axis=1)
        prefix = np.empty((1 + 2 * width, len(key) + 1), np.int64)
        prefix[:, 0] = 0
        np.add.accumulate(table[: 1 + 2 * width], axis=1, out=prefix[:, 1:])
        events = prefix[0].take(places)
        sizes = events[-1] - events[:-1]
        edges = table[1 + 2 * width : 1 + 3 * width], table[1 + 3 * width :]
        return self._finish(key, places, prefix[1:], edges, (sizes, int(prefix[0, -1])))

    def _finish(
        self,
        key: Integers,
        places: Integers,
        prefix: Integers,
        edges: tuple[Integers, Integers],
        counted: tuple[Integers, int],
    ) -> tuple[Partials, int] | None:
        """From items in order to the partial results, where sums fit.

        Args:
            key: when each is.
            places: the first item of each window, and the end.
            prefix: sums of values, then of squares, up to each.
            edges: the smallest and the largest value of each.
            counted: events in each window, and in the log.
        """
        width, end = self._columns, int(places[-1])
        running_minimum = np.minimum.accumulate(edges[0][:, end - 1 :: -1], axis=1)
        running_maximum = np.maximum.accumulate(edges[1][:, end - 1 :: -1], axis=1)
        least = min(running_minimum[:, -1].tolist())
        largest = max(-least, *running_maximum[:, -1].tolist())
        events, count = counted
        if least == NO_VALUE or count * largest**2 >= _FITS:
            return None
        sums = prefix.take(places, axis=1)
        sums = (sums[:, -1:] - sums[:, :-1]).T
        n = events[:, None]
        last = end - 1 - places[:-1]  # of an empty window any: its count of 0 makes it null
        partials = Partials(
            events,
            n if width == 1 else n.repeat(width, 1),
            sums[:, :width],
            sums[:, width:],
            running_minimum.take(last, axis=1).T if self._needs_minimum else None,
            running_maximum.take(last, axis=1).T if self._needs_maximum else None,
            is_small=count * largest < _SMALL,
        )
        return partials, self._chain.changes_at(key, places[:-1], end)


def _are_apart(ts: Integers, ids: Integers) -> bool:
    """Whether records are in the order of time, and no two of one millisecond have one id."""
    steps = ts[1:] - ts[:-1]
    if (steps < 0).any():
        return False
    tied = np.flatnonzero(steps == 0)
    if (tied[1:] - tied[:-1] > 1).all():  # never more than two: most often
        return bool((ids.take(tied) != ids.take(tied + 1)).all())
    places = sorted({*tied.tolist(), *(tied + 1).tolist()})
    events = zip(ts.take(places).tolist(), ids.take(places).tolist(), strict=True)
    return len(set(events)) == len(places)
