"""Which entities are worth keeping warm: the hottest of a traffic log, and how much they cover.

Each day of the last so many is a day by itself: an entity counts as much as on the day on which it
counted most, so that what is hot on Mondays alone is not lost among the rest of the week. Reads of
the hours of day that lie ahead count in full, those of other hours a tenth.

A log of any size is read in bounded memory. Counts of a day are kept for at most `most_counted`
entities: when there are more, as much is taken from all of them as leaves that many (Misra and
Gries, 1982), so that no count is too low by more than what was taken, which is known and reported.
Every entity of more than that is found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hotplate.warming.traffic_files import (
    UNREADABLE,
    TrafficError,
    checked,
    opened,
    reason,
    traffic_files,
)

__all__ = ["Chosen", "SelectionSpec", "TrafficError", "select"]

_COLUMNS: Final = ("at", "entity", "key", "views", "weight")
_ELSEWHERE: Final = 0.1  # what a read of another hour of the day counts
_BATCH_ROWS: Final = 1_000_000
_log = logging.getLogger("hotplate.warming")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SelectionSpec:
    """What of a log counts.

    Attributes:
        now: when the warming begins; of a time zone.
        days: how many days before it count.
        hours: how many hours of day after it count in full.
        most_counted: entities that are counted of a day.
    """

    now: datetime
    days: int = 7
    hours: int = 3
    most_counted: int = 1_000_000

    def __post_init__(self) -> None:
        if self.now.tzinfo is None:
            raise ValueError("now: of no time zone; write datetime.now(UTC)")
        if self.days < 1 or not 1 <= self.hours <= 24 or self.most_counted < 1:
            raise ValueError("days and most_counted: 1 at the least; hours: 1 to 24")


@dataclass(frozen=True)
class Chosen:
    """The entities of one kind, the hottest first.

    Attributes:
        entity: their join keys, with commas.
        keys: as they stand in the log.
        weights: float64 (entities,), how much each counted.
        reads: float64 (entities,), of how many reads it was, of all days and hours.
        total: reads of this kind in all, those of entities that are not there included.
        views: view -> reads.
        uncounted: reads that any entity may lack, or that may be missing from here: 0 where all
            could be counted.
    """

    entity: str
    keys: Sequence[str]
    weights: Floats = field(repr=False)
    reads: Floats = field(repr=False)
    total: float
    views: Mapping[str, float]
    uncounted: float

    def coverage(self) -> Floats:
        """Share of the reads that the first 1, 2, ... entities make: float64 (entities,)."""
        return np.cumsum(self.reads) / self.total if self.total else np.zeros(len(self.keys))

    def first(self, *, most: int | None = None, share: float | None = None) -> int:
        """How many to take: so many, or as many as make a share of the reads; the fewer of both."""
        count = len(self.keys)
        if share is not None:
            # a rounding error must not ask for one more
            count = min(count, int(np.searchsorted(self.coverage(), share - 1e-12)) + 1)
        return count if most is None else min(count, most)


class _Day:
    """Counts of the entities of one kind on one day."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[pa.Table] = []
        self._waiting = 0
        self.taken = 0.0

    def add(self, counted: pa.Table) -> None:
        """Add counts: columns `key`, `weight`, `reads`."""
        self._parts.append(counted)
        self._waiting += len(counted)
        if self._waiting > 2 * self._most:
            self._merge()

    def _merge(self) -> None:
        merged = (
            pa.concat_tables(self._parts)
            .group_by("key")
            .aggregate([("weight", "sum"), ("reads", "sum")])
        )
        merged = merged.rename_columns(["key", "weight", "reads"])
        if len(merged) > self._most:
            reads = merged["reads"].to_numpy()
            least = float(np.partition(reads, len(reads) - self._most - 1)[-self._most - 1])
            self.taken += least
            kept = merged.filter(pc.greater(merged["reads"], least))
            left = kept["reads"].to_numpy() - least
            weight = kept["weight"].to_numpy() * (left / kept["reads"].to_numpy())
            merged = pa.table({"key": kept["key"], "weight": weight, "reads": left})
        self._parts, self._waiting = [merged], len(merged)

    def counted(self) -> pa.Table:
        """All counts."""
        if self._parts:
            self._merge()
            return self._parts[0]
        return pa.table(
            {
                "key": pa.array([], pa.string()),
                "weight": pa.array([], pa.float64()),
                "reads": pa.array([], pa.float64()),
            }
        )


class _Kind:
    """Counts of the entities of one kind."""

    def __init__(self, spec: SelectionSpec) -> None:
        self._spec = spec
        self.days: dict[int, _Day] = {}
        self.total = 0.0
        self.views: dict[str, float] = {}

    def day(self, number: int) -> _Day:
        """The counts of a day."""
        return self.days.setdefault(number, _Day(self._spec.most_counted))

    def chosen(self, entity: str) -> Chosen:
        """All days together."""
        counted = pa.concat_tables([day.counted() for day in self.days.values()])
        joined = counted.group_by("key").aggregate([("weight", "max"), ("reads", "sum")])
        joined = joined.rename_columns(["key", "weight", "reads"]).sort_by(
            [("weight", "descending"), ("reads", "descending"), ("key", "ascending")]
        )
        joined = joined.slice(0, self._spec.most_counted)
        return Chosen(
            entity,
            joined["key"].to_pylist(),
            joined["weight"].to_numpy(),
            joined["reads"].to_numpy(),
            self.total,
            dict(sorted(self.views.items(), key=lambda item: -item[1])),
            sum(day.taken for day in self.days.values()),
        )


def select(
    folder: Path,
    spec: SelectionSpec,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Chosen]:
    """The hottest entities of a traffic log.

    Files that cannot be read as a log are left out, and so is the rest of one that fails midway,
    with a line in the log of this program.

    Args:
        folder: with the log's Parquet files.
        spec: what of it counts.
        progress: told how many bytes of how many were read.

    Returns:
        Join keys, with commas -> what was chosen of them.

    Raises:
        TrafficError: there is no such folder, or no readable file in it.
    """
    files = traffic_files(folder)
    done, of, readable = 0, sum(one.size for one in files), 0
    kinds: dict[str, _Kind] = {}
    for _, size, path in files:
        readable += _read(kinds, path, spec)
        done += size
        progress(done, of)
    if not readable:
        raise TrafficError(
            f"{folder}: none of its {len(files):,} files can be read as a traffic log. Name the "
            "folder of online_store.traffic"
        )
    return {entity: kind.chosen(entity) for entity, kind in sorted(kinds.items())}


def _read(kinds: dict[str, _Kind], path: Path, spec: SelectionSpec) -> bool:
    """Count a file, as far as it can be read; False where nothing of it can be."""
    rows = of = 0
    try:
        with opened(path, _COLUMNS) as file:
            of = file.metadata.num_rows
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(_BATCH_ROWS, [group], list(_COLUMNS)):
                    _count(kinds, checked(pa.table(batch)), spec)
                    rows += len(batch)
    except UNREADABLE as error:
        since = f" from row {rows + 1:,} of {of:,} on" if rows else ""
        _log.warning("%s is left out%s: %s", path, since, reason(error))
        return rows > 0
    return True


def _count(kinds: dict[str, _Kind], rows: pa.Table, spec: SelectionSpec) -> None:
    begins = spec.now - timedelta(days=spec.days)
    at = rows["at"].cast(pa.timestamp("us", "UTC"))
    rows = rows.set_column(0, "at", at)
    inside = pc.and_(pc.greater_equal(at, _scalar(begins)), pc.less(at, _scalar(spec.now)))
    rows = rows.filter(inside)
    if not len(rows):
        return
    at_us = rows["at"].cast(pa.int64()).to_numpy()
    now_us = int(spec.now.timestamp() * 1e6)
    day = (now_us - at_us) // _DAY_US
    ahead_us = (at_us - now_us) % _DAY_US  # of the time of day, counted from now
    reads = rows["weight"].cast(pa.float64()).to_numpy()
    weight = reads * np.where(ahead_us < spec.hours * _HOUR_US, 1.0, _ELSEWHERE)
    # a dictionary array has one dictionary a chunk; strings are told apart by Arrow either way
    table = pa.table(
        {
            "entity": rows["entity"],
            "key": rows["key"],
            "views": rows["views"],
            "day": day,
            "weight": weight,
            "reads": reads,
        }
    ).unify_dictionaries()
    grouped = table.group_by(["entity", "day", "key"]).aggregate(
        [("weight", "sum"), ("reads", "sum")]
    )
    by_views = table.group_by(["entity", "views"]).aggregate([("reads", "sum")])
    entities = grouped["entity"].combine_chunks()
    if pa.types.is_dictionary(entities.type):
        entities = entities.cast(pa.string())
    days = grouped["day"].to_numpy()
    for entity in pc.unique(entities).to_pylist():
        kind = kinds.setdefault(entity, _Kind(spec))
        is_entity = pc.equal(entities, entity).to_numpy(zero_copy_only=False)
        for number in np.unique(days[is_entity]).tolist():
            some = grouped.filter(pa.array(is_entity & (days == number)))
            counted = pa.table(
                {
                    "key": some["key"].cast(pa.string()),
                    "weight": some["weight_sum"],
                    "reads": some["reads_sum"],
                }
            )
            kind.total += pc.sum(counted["reads"]).as_py()
            kind.day(number).add(counted)
    for row in by_views.to_pylist():
        views = kinds[row["entity"]].views
        for view in row["views"].split(","):
            views[view] = views.get(view, 0.0) + row["reads_sum"]


def _scalar(moment: datetime) -> Any:
    return pa.scalar(moment, pa.timestamp("us", "UTC"))


_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
