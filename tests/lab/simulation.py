"""Histories to test the checker with: those of a right cache, and of none at all.

The model knows what the checker does not: at which instant each operation took effect. Instants
are small whole numbers, so that hypothesis can shrink what it finds.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from pipelines.lab.history import ABSENT, RECORD, Kind, Records

__all__ = ["Row", "cached_histories", "is_right", "random_histories", "records_of"]

_PROCESSES = 3
_THREADS = 2
_STRIDE = 8  # no two instants fall together: threads begin less than that apart

Row = tuple[int, int, int, int, int, int]
"""Kind, process, entity, value, begin, end; of view 0."""


def records_of(rows: list[Row]) -> Records:
    """The rows as records."""
    made = np.zeros(len(rows), RECORD)
    for name, column in zip(
        ("kind", "process", "entity", "value", "begin", "end"),
        zip(*rows, strict=True),
        strict=False,
    ):
        made[name] = column
    return made


@st.composite
def random_histories(draw: st.DrawFn) -> list[Row]:
    """Operations at any time, reads of any value: right or wrong as it happens."""
    moments = st.tuples(st.integers(0, 14), st.integers(0, 4))
    rows: list[Row] = []
    values = [ABSENT]
    for number in range(draw(st.integers(0, 6))):
        begin, length = draw(moments)
        kind = draw(st.sampled_from([Kind.WRITE, Kind.WRITE, Kind.REMOVE]))
        value = 100 + number
        values.append(value)
        process, entity = draw(st.integers(1, 2)), draw(st.integers(0, 1))
        rows.append((kind, process, entity, value, begin, begin + length))
    for _ in range(draw(st.integers(0, 3))):
        begin, length = draw(moments)
        process, entity = draw(st.integers(1, 2)), draw(st.integers(-1, 1))
        rows.append((Kind.INVALIDATE, process, entity, 0, begin, begin + length))
    for _ in range(draw(st.integers(1, 6))):
        begin, length = draw(moments)
        process, entity = draw(st.integers(1, 2)), draw(st.integers(0, 1))
        value = draw(st.sampled_from(values))
        rows.append((Kind.READ, process, entity, value, begin, begin + length))
    return draw(st.permutations(rows))


def is_right(rows: list[Row], read: Row, bound: int) -> bool:
    """Whether some instants at which the writes took effect explain what a read served.

    Tries them all: `took` for the write of the value, `at` for when it was current; any other
    write may take effect outside (took, at] unless all of its time lies inside.
    """
    _, process, entity, value, begin, end = read
    done = [row for row in rows if row[1] == process and row[5] < begin]
    own_writes = [row for row in done if row[0] == Kind.WRITE and row[2] == entity]
    forgotten = [row for row in done if row[0] == Kind.INVALIDATE and row[2] in (entity, -1)]
    writes = [row for row in rows if row[0] in (Kind.WRITE, Kind.REMOVE) and row[2] == entity]
    if value == ABSENT:
        origins = [row for row in writes if row[0] == Kind.REMOVE]
        origins.append((Kind.REMOVE, 0, entity, 0, -99, -99))
    else:
        origins = [row for row in writes if row[0] == Kind.WRITE and row[3] == value]
    return any(
        all(not (took < row[4] and row[5] <= at) for row in writes)
        and all(row is origin or row[4] <= took for row in own_writes)
        and all(row[4] <= at for row in forgotten)
        for origin in origins
        for took in range(origin[4], origin[5] + 1)
        for at in range(max(took, begin - bound), end + 1)
    )


@dataclass
class _Model:
    """A source, and processes with a cache each that several threads of them share."""

    bound: int
    now: int = 0
    last_value: int = 0
    source: dict[int, int] = field(default_factory=dict)
    cached: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    versions: dict[tuple[int, int], int] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def thread(self, process: int, steps: list[tuple[str, int, int]]) -> Iterator[int]:
        """Do one operation after the other; yields how long to wait before the next instant."""
        for what, entity, wait in steps:
            yield wait
            begin, value, key = self.now, 0, (process, entity)
            if what == "read":
                value = yield from self._read(key, wait)
                self.rows.append((Kind.READ, process, entity, value, begin, self.now))
                continue
            if what == "write":
                self.last_value += 1
                value = self.last_value
                yield wait
                self.source[entity] = value
            yield wait
            self.versions[key] = self.versions.get(key, 0) + 1
            self.cached.pop(key, None)
            yield wait
            kind = Kind.WRITE if what == "write" else Kind.INVALIDATE
            self.rows.append((kind, process, entity, value, begin, self.now))

    def _read(self, key: tuple[int, int], wait: int) -> Generator[int, None, int]:
        held = self.cached.get(key)
        if held is not None and self.now - held[1] <= self.bound:
            yield wait
            return held[0]
        version, stamp = self.versions.get(key, 0), self.now
        yield wait
        value = self.source.get(key[1], ABSENT)
        yield wait
        if self.versions.get(key, 0) == version:
            self.cached[key] = value, stamp
        yield wait
        return value


@st.composite
def cached_histories(draw: st.DrawFn) -> tuple[list[Row], int]:
    """What processes with right caches do, and the bound of these caches."""
    step = st.tuples(
        st.sampled_from(["read", "read", "read", "write", "forget"]),
        st.integers(0, 1),
        st.integers(1, 3).map(lambda wait: wait * _STRIDE),
    )
    model = _Model(draw(st.integers(0, 12)) * _STRIDE)
    queue = [
        (number, number, model.thread(number // _THREADS + 1, draw(st.lists(step, max_size=12))))
        for number in range(_PROCESSES * _THREADS)
    ]
    while queue:
        model.now, number, thread = heapq.heappop(queue)
        wait = next(thread, None)
        if wait is not None:
            heapq.heappush(queue, (model.now + wait, number, thread))
    return model.rows, model.bound
