"""Which of the values that processes were served were wrong.

A write took effect at the source at one instant between its begin and its end, nobody knows which.
So the value of a write W may have been current from `W.begin` on, until it was surely overwritten:
at the first end of a write that began after `W.end`. A served value is right if

- it may have been current at some instant in [read.begin - bound, read.end];
- it may have been so after each invalidation that the same process had done before the read;
- it was not surely older (its end before the other's begin) than any write that the same process
  had done before the read.

Each condition is exact for a single read: there is an order of the writes that explains the value
if and only if they hold. Entities that nobody has written yet are absent; absence is judged like
a value. Processes forked from another one owe what their parent owed at the time of the fork.

The work is sorting and binary search, in numpy, entity by entity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from .history import ABSENT, EVERY_ENTITY, EVERY_VIEW, NEVER, Kind, Records

__all__ = ["Bound", "Report", "Violation", "Wrong", "check"]

_SHOWN = 100


class Wrong(Enum):
    """What is wrong with a served value."""

    UNKNOWN = "nobody has written it for this entity"
    FUTURE = "it was written only after the read"
    TOO_OLD = "it was overwritten too long ago"
    OWN_WRITE = "the process itself had written a newer one"
    OWN_INVALIDATION = "the process itself had invalidated it"


@dataclass(frozen=True)
class Bound:
    """How old what a view's reads serve may be, in nanoseconds; `NEVER` is no bound."""

    ttl_ns: int
    absent_ns: int


@dataclass(frozen=True)
class Violation:
    """A wrong read; `late_ns` is by how much a value that is too old misses the bound."""

    process: int
    view: int
    entity: int
    value: int
    begin: int
    end: int
    wrongs: tuple[Wrong, ...]
    late_ns: int


@dataclass
class Report:
    """What a check found.

    Attributes:
        reads: values served, absences included.
        absent: absences among them.
        failed: reads that raised an error.
        stale: rightly served values that had surely been overwritten before the read began; where
            there are none, nothing was put to the test.
        worst_ns: by view, for how long at most a served value had surely been overwritten when
            the read began.
        wrongs: how many reads were wrong, by what was wrong with them.
        violations: the first of them.
    """

    reads: int = 0
    absent: int = 0
    failed: int = 0
    stale: int = 0
    worst_ns: dict[int, int] = field(default_factory=dict)
    wrongs: Counter[Wrong] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)


def check(records: Records, bounds: Mapping[int, Bound]) -> Report:
    """Judge every read of a history.

    Args:
        records: of all processes.
        bounds: by view.

    Raises:
        ValueError: one value stands for two writes.
    """
    reads = records[records["kind"] == Kind.READ]
    failed = int(np.count_nonzero(records["kind"] == Kind.READ_FAILED))
    report = Report(len(reads), int(np.count_nonzero(reads["value"] == ABSENT)), failed)
    writes = _ByEntity(_merged_writes(records))
    duties = _Duties(records)
    every_read = _ByEntity(reads)
    for view, entity in every_read.slices:
        of_entity = every_read.get(view, entity)
        removed = [writes.get(each, EVERY_ENTITY) for each in (view, EVERY_VIEW)]
        source = _Source(np.concatenate([writes.get(view, entity), *removed]))
        _judge(of_entity, source, duties, bounds[view], report)
    return report


def _merged_writes(records: Records) -> Records:
    """One record a write: the note of its end where there is one."""
    writes = records[np.isin(records["kind"], (Kind.WRITE, Kind.REMOVE))]
    writes = writes[np.lexsort((writes["end"], writes["value"]))]
    is_first = np.ones(len(writes), bool)
    is_first[1:] = writes["value"][1:] != writes["value"][:-1]
    first = writes[is_first][np.cumsum(is_first) - 1] if len(writes) else writes
    for name in ("kind", "view", "entity", "begin"):
        differs = first[name] != writes[name]
        if differs.any():
            raise ValueError(f"value {writes[differs]['value'][0]} stands for two writes")
    return writes[is_first]


class _ByEntity:
    """Records sorted by view, entity and process, and where those of each entity lie."""

    def __init__(self, records: Records) -> None:
        order = np.lexsort((records["process"], records["entity"], records["view"]))
        self._records = records[order]
        self.slices = _slices(self._records, "view", "entity")

    def get(self, view: int, entity: int) -> Records:
        return self._records[self.slices.get((view, entity), slice(0, 0))]


def _slices(records: Records, *names: str) -> dict[tuple[int, ...], slice]:
    """Where each combination of values lies in records that are sorted by them."""
    if not len(records):
        return {}
    changes = np.zeros(len(records) - 1, bool)
    for name in names:
        changes |= records[name][1:] != records[name][:-1]
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1]).tolist()
    ends = [*starts[1:], len(records)]
    keys = zip(*(records[name][starts].tolist() for name in names), strict=True)
    return {key: slice(*part) for key, *part in zip(keys, starts, ends, strict=True)}


class _Source:
    """What the source may have held of one entity, and when.

    Attributes:
        begins, ends: of the writes, by their begins.
        values: of the writes; ABSENT for a removal, and for what was before all writes.
    """

    def __init__(self, writes: Records) -> None:
        order = np.argsort(writes["begin"], kind="stable")
        self.begins = np.concatenate([[-NEVER], writes["begin"][order]])
        self.ends = np.concatenate([[-NEVER], writes["end"][order]])
        is_removal = writes["kind"][order] == Kind.REMOVE
        values = np.where(is_removal, ABSENT, writes["value"][order])
        self.values = np.concatenate([[ABSENT], values])
        self._first_end_from = np.minimum.accumulate(self.ends[::-1])[::-1]
        self._first_end_from = np.append(self._first_end_from, NEVER)
        is_absence = self.values == ABSENT
        self._absent_begins = self.begins[is_absence]
        self._absent_ends = np.maximum.accumulate(self.ends[is_absence])
        by_value = np.argsort(self.values, kind="stable")
        self._by_value, self._sorted = by_value, self.values[by_value]

    def origin(self, values: Any, until: Any) -> tuple[Any, Any]:
        """Begin and end of the write of each value; a begin of NEVER where there is none.

        An absence is taken to be the last one that can have been meant.
        """
        at = np.minimum(np.searchsorted(self._sorted, values), len(self._sorted) - 1)
        index = self._by_value[at]
        begins = np.where(self._sorted[at] == values, self.begins[index], NEVER)
        last = np.searchsorted(self._absent_begins, until, "right") - 1
        is_absent = values == ABSENT
        return (
            np.where(is_absent, self._absent_begins[last], begins),
            np.where(is_absent, self._absent_ends[last], self.ends[index]),
        )

    def overwritten(self, ends: Any) -> Any:
        """From when on a value whose write had that end was surely overwritten."""
        return self._first_end_from[np.searchsorted(self.begins, ends, "right")]


class _Floor:
    """The latest begin among operations that had ended before a given moment."""

    def __init__(self, operations: Records) -> None:
        operations = operations[np.argsort(operations["end"], kind="stable")]
        self._ends = operations["end"]
        self._begins = np.maximum.accumulate(np.append(-NEVER, operations["begin"]))

    def before(self, moments: Any) -> Any:
        return self._begins[np.searchsorted(self._ends, moments, "left")]


class _Duties:
    """What each process did itself, and so must not serve older values than."""

    def __init__(self, records: Records) -> None:
        done = np.isin(records["kind"], (Kind.WRITE, Kind.INVALIDATE)) & (records["end"] < NEVER)
        operations = records[done]
        forks = records[records["kind"] == Kind.FORK]
        for fork in forks[np.argsort(forks["begin"], kind="stable")]:
            before = operations["end"] <= fork["begin"]
            inherited = operations[before & (operations["process"] == fork["entity"])].copy()
            inherited["process"] = fork["process"]
            operations = np.concatenate([operations, inherited])
        names = ("kind", "view", "entity", "process")
        order = np.lexsort([operations[name] for name in names])
        self._operations = operations[order]
        self._slices = _slices(self._operations, *reversed(names))
        self._floors: dict[tuple[int, ...], _Floor] = {}

    def floor(self, kind: Kind, process: int, view: int, entity: int) -> _Floor:
        key = (process, entity, view, int(kind))
        if key not in self._floors:
            self._floors[key] = _Floor(self._operations[self._slices.get(key, slice(0, 0))])
        return self._floors[key]


def _judge(reads: Records, source: _Source, duties: _Duties, bound: Bound, report: Report) -> None:
    """Judge the reads of one entity, which are sorted by process."""
    begins, values = reads["begin"], reads["value"]
    write_begins, write_ends = source.origin(values, reads["end"])
    overwritten = source.overwritten(write_ends)
    oldest = begins - np.where(values == ABSENT, bound.absent_ns, bound.ttl_ns)
    own_write, own_invalidation = np.full((2, len(reads)), -NEVER)
    view, entity = int(reads["view"][0]), int(reads["entity"][0])
    for (process,), part in _slices(reads, "process").items():
        own_write[part] = duties.floor(Kind.WRITE, process, view, entity).before(begins[part])
        own_invalidation[part] = np.maximum.reduce(
            [
                duties.floor(Kind.INVALIDATE, process, *what).before(begins[part])
                for what in ((view, entity), (view, EVERY_ENTITY), (EVERY_VIEW, EVERY_ENTITY))
            ]
        )
    is_unknown = write_begins == NEVER
    wrongs = {
        Wrong.UNKNOWN: is_unknown,
        Wrong.FUTURE: ~is_unknown & (write_begins > reads["end"]),
        Wrong.TOO_OLD: ~is_unknown & (overwritten <= oldest),
        Wrong.OWN_WRITE: ~is_unknown & (write_ends < own_write),
        Wrong.OWN_INVALIDATION: ~is_unknown & (overwritten <= own_invalidation),
    }
    is_wrong = np.logical_or.reduce(list(wrongs.values()))
    report.stale += int(np.count_nonzero(~is_wrong & (overwritten < begins)))
    stale_ns = (begins - overwritten)[~is_unknown]
    if len(stale_ns):
        report.worst_ns[view] = max(report.worst_ns.get(view, 0), int(stale_ns.max()))
    report.wrongs.update(
        {wrong: int(found.sum()) for wrong, found in wrongs.items() if found.any()}
    )
    for index in np.flatnonzero(is_wrong)[: _SHOWN - len(report.violations)]:
        read = {name: int(reads[name][index]) for name in ("process", "value", "begin", "end")}
        found = tuple(wrong for wrong, places in wrongs.items() if places[index])
        late = int(oldest[index] - overwritten[index]) if Wrong.TOO_OLD in found else 0
        report.violations.append(
            Violation(view=view, entity=entity, wrongs=found, late_ns=late, **read)
        )
