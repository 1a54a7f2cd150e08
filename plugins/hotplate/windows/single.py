"""The read that is by far the most frequent, in as few steps as possible.

One entity whose log is bare, complete and in order: its events came one after the other, none is
late, a duplicate, null or still to arrive. What such a read costs is the number of calls into
numpy, about a microsecond each, not the hundred events. So this path leaves out every step that
such a log does not need, and keeps to plain integers where there are few; anything else is left to
the general path. Both end in the same `Finalizer` with the same integers.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hotplate.windows.chains import NEVER, Chain
from hotplate.windows.exact import Integers
from hotplate.windows.finalize import Finalizer, Partials
from hotplate.windows.log import MAGIC
from hotplate.windows.records import ARRIVAL, TS, VALUES, RecordFormat, stamp_limit
from hotplate.windows.scaling import NO_VALUE

__all__ = ["SingleReader"]

_SMALL: Final = 1 << 31
_SIMPLE: Final = frozenset({"events", "n", "s", "q", "minimum", "maximum"})


class SingleReader:
    """Reads simple logs of one entity, for specs of one chain without distinct columns.

    Attributes:
        is_fit: whether the spec is such a one; if not, it must not be asked.
    """

    def __init__(self, records: RecordFormat, chains: list[Chain], finalizer: Finalizer) -> None:
        names = [column.name for column in finalizer.spec.event.columns]
        rows = [VALUES + names.index(column.name) for column in finalizer.columns]
        self.is_fit = (
            len(chains) == 1
            and finalizer.needs <= _SIMPLE
            and not finalizer.distinct
            and bool(rows)
            and rows == list(range(rows[0], rows[-1] + 1))
        )
        self._records = records
        self._chain = chains[0]
        self._needs_minimum = "minimum" in finalizer.needs
        self._needs_maximum = "maximum" in finalizer.needs
        self._rows = slice(rows[0], rows[-1] + 1) if rows else slice(0)
        self._columns = len(rows)

    def partials(self, blob: bytes, t: int) -> tuple[Partials, int] | None:
        """The partial results, (W, C), and `valid_until`; None for the general path.

        Args:
            blob: a log, not empty.
            t: the moment.
        """
        if blob.startswith(MAGIC):
            return None
        count, rest = divmod(len(blob), self._records.size)
        if rest or not self._records.is_intact(blob, count):
            return None
        fields = self._records.fields(blob)
        ts = fields[TS]
        stamps = fields[ARRIVAL]
        if b"\0" in (ts[1:] > ts[:-1]).tobytes() or stamps[stamps.argmax()] >= stamp_limit(t):
            return None
        places = ts.searchsorted(self._chain.edges_at(t))
        end = int(places[-1])
        if not end:
            return None
        newest_first = fields[self._rows, end - 1 :: -1]
        running_minimum = np.minimum.accumulate(newest_first, axis=1)
        running_maximum = np.maximum.accumulate(newest_first, axis=1)
        least = min(running_minimum[:, -1].tolist())
        if least == NO_VALUE or count * max(-least, *running_maximum[:, -1].tolist()) >= _SMALL:
            return None
        begin = places[:-1]
        sizes = end - begin
        sums = self._sums(fields[self._rows], count).take(places, axis=1)
        sums = (sums[:, -1:] - sums[:, :-1]).T
        n = sizes[:, None]
        last = sizes - 1  # of an empty window any: its count of 0 makes it null
        partials = Partials(
            sizes,
            n if self._columns == 1 else n.repeat(self._columns, 1),
            sums[:, : self._columns],
            sums[:, self._columns :],
            running_minimum.take(last, axis=1).T if self._needs_minimum else None,
            running_maximum.take(last, axis=1).T if self._needs_maximum else None,
            is_small=True,
        )
        return partials, self._valid_until(ts, begin, end, count)

    def _sums(self, values: Integers, count: int) -> Integers:
        """Prefix sums of the values and of their squares, a 0 before the first."""
        prefix = np.empty((2 * self._columns, count + 1), np.int64)
        prefix[:, 0] = 0
        prefix[: self._columns, 1:] = values
        np.multiply(values, values, out=prefix[self._columns :, 1:])
        return np.add.accumulate(prefix, axis=1, out=prefix)

    def _valid_until(self, ts: Integers, begin: Integers, end: int, count: int) -> int:
        oldest = ts.take(begin, mode="clip").tolist()
        moment = self._chain.first_leaves_at(oldest, begin.tolist(), end)
        if end < count:
            moment = min(moment, self._chain.enters_at(int(ts[end])))
        return min(moment, NEVER)
