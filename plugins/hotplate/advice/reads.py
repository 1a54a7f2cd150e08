"""A traffic log as numbers: read in parts, by process, in the order of time.

A part is one row group of one file, so memory does not grow with the log. Files that cannot be read
as a traffic log (another schema, cut short) are left out, and named; one that fails midway is left
out from there on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hotplate.advice.entities import Entities, Ints, Sieve, Slots, numbers_of
from hotplate.advice.errors import AdviceError
from hotplate.warming.row_log import LOST
from hotplate.warming.traffic_files import (
    UNREADABLE,
    TrafficError,
    checked,
    opened,
    reason,
    traffic_files,
)

__all__ = ["Reads", "Survey", "TrafficFiles", "Unit", "process_of", "rows_of"]

_COLUMNS: Final = ("at", "request", "entity", "key", "views", "weight")
_PROCESS: Final = re.compile(r"(?:traffic|changes)-(.+-\d+)-\d+\.parquet")
_MOMENT: Final = pa.timestamp("us", "UTC")


def process_of(path: Path) -> str:
    """The process that wrote a file, by its name; the name itself where it is another one."""
    found = _PROCESS.fullmatch(path.name)
    return found[1] if found else path.name


@dataclass(frozen=True)
class Unit:
    """One row group of a file.

    Attributes:
        path, group: which.
        process: that wrote it.
        begin, end: its first and its last moment, microseconds.
        rows: how many.
    """

    path: Path
    group: int
    process: str
    begin: int
    end: int
    rows: int


@dataclass(frozen=True)
class Reads:
    """Reads in the order of time.

    Attributes:
        at: microseconds since 1970.
        request: a running number of its process.
        kind: of which kind each entity is, as a place in `kinds`.
        entity: its number.
        views: what was read for it, as a place in `view_sets`.
        kinds, view_sets: texts as they stand in the log.
    """

    at: Ints
    request: Ints
    kind: Ints
    entity: Entities
    views: Ints
    kinds: Sequence[str]
    view_sets: Sequence[str]

    def __len__(self) -> int:
        return len(self.at)

    def take(self, places: Any) -> Reads:
        """Some of them."""
        return replace(
            self,
            at=self.at[places],
            request=self.request[places],
            kind=self.kind[places],
            entity=self.entity[places],
            views=self.views[places],
        )


@dataclass(frozen=True)
class Survey:
    """What a log holds.

    Attributes:
        begin, end: the first and the last read, microseconds.
        reads: view -> reads of rows that count.
        requests: how many, of all processes.
        processes: that wrote it.
        lost: requests that these could not log.
        left_out: files that cannot be read, and why.
    """

    begin: int
    end: int
    reads: dict[str, int]
    requests: int
    processes: tuple[str, ...]
    lost: int
    left_out: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """From the first read to the last."""
        return (self.end - self.begin) / 1e6


class TrafficFiles:
    """The files of a traffic log.

    Args:
        folder: in which they lie; or one file.
        project: the Feast project.
        since, until: reads of [since, until) count, microseconds; all of them if None.

    Attributes:
        units: what is read, by its first moment.
        lost: requests that are missing, by what the files say.
        left_out: files that cannot be read, and why.

    Raises:
        AdviceError: there is no log, or it holds a sample of the requests.
    """

    def __init__(
        self, folder: Path, project: str, since: int | None = None, until: int | None = None
    ) -> None:
        self._project = project
        self._since, self._until = since, until
        self.units: list[Unit] = []
        self.lost = 0
        self.left_out: tuple[str, ...] = ()
        self._sizes: dict[Path, int] = {}
        self._open(folder)
        kinds: list[str] = []
        view_sets: list[str] = []
        self._kinds, self._view_sets = kinds, view_sets

    def _open(self, folder: Path) -> None:
        try:
            is_one = os.path.isfile(folder)  # which does not fail where nobody may look
            paths = [folder] if is_one else [one.path for one in traffic_files(folder)]
        except TrafficError as error:
            raise AdviceError(str(error)) from None
        self._folder, self._files = folder, len(paths)
        left_out, readable = [], 0
        for path in paths:
            try:
                self._open_file(path)
                readable += 1
            except AdviceError:
                raise
            except (*UNREADABLE, ValueError) as error:
                left_out.append(f"{path.name}: {reason(error)}")
        self.left_out = tuple(left_out)
        if not readable:
            raise self._unreadable()
        if not self.units:
            raise AdviceError(f"{folder}: nothing was read in that time")
        self.units.sort(key=lambda unit: (unit.begin, unit.path.name, unit.group))

    def _unreadable(self) -> AdviceError:
        return AdviceError(
            f"{self._folder}: none of its {self._files:,} files can be read as a traffic log "
            f"({self.left_out[0]}). Name the folder of online_store.traffic"
        )

    def _open_file(self, path: Path) -> None:
        with opened(path, _COLUMNS) as file:
            metadata = file.schema_arrow.metadata or {}
            found = []
            for group in range(file.num_row_groups):
                table = checked(file.read_row_group(group, ["at", "weight"]))
                at = table["at"].cast(pa.int64())
                if not len(at):
                    continue
                span = pc.min_max(at).as_py()
                if self._is_outside(span["min"], span["max"]):
                    continue
                self._check_weight(path, pc.max(table["weight"]).as_py())
                found.append(Unit(path, group, process_of(path), span["min"], span["max"], len(at)))
        if found:
            self.units += found
            self._sizes[path] = path.stat().st_size
            self.lost += int(metadata.get(LOST, b"0"))

    def _is_outside(self, begin: int, end: int) -> bool:
        return (self._since is not None and end < self._since) or (
            self._until is not None and begin >= self._until
        )

    @staticmethod
    def _check_weight(path: Path, weight: int) -> None:
        if weight <= 1:
            return
        raise AdviceError(
            f"{path.name}: is a sample of the requests (one stands for {weight:,}). When an entity "
            "comes back cannot be seen in it, so no hit rate can be had. Log all requests for a "
            "while, online_store.traffic: {sample: 100%}, and leave out what is older with --since"
        )

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(self._sizes.values())

    @property
    def begin(self) -> int:
        """Its first moment, or `since`, microseconds."""
        begin = self.units[0].begin
        return begin if self._since is None else max(begin, self._since)

    @property
    def processes(self) -> tuple[str, ...]:
        """Those that wrote it."""
        return tuple(sorted({unit.process for unit in self.units}))

    # -- reading ----------------------------------------------------------------------------------

    def _read(self, unit: Unit) -> Reads:
        """The reads of a row group, in its order.

        Raises:
            AdviceError: it cannot be read, though it could be before.
        """
        try:
            return self._reads(unit)
        except (*UNREADABLE, ValueError) as error:
            raise AdviceError(
                f"{unit.path}: cannot be read any more: {reason(error)}. Begin again"
            ) from error

    def _reads(self, unit: Unit) -> Reads:
        with opened(unit.path, _COLUMNS) as file:
            table = checked(file.read_row_group(unit.group, list(_COLUMNS[:-1])))
        at = table["at"].cast(pa.int64()).to_numpy()
        kinds, kind = _coded(table["entity"])
        keys, key = _coded(table["key"])
        view_sets, views = _coded(table["views"])
        numbers = numbers_of(keys, self._project)
        request = table["request"].cast(pa.int64()).to_numpy()
        entity = numbers[key] if len(numbers) else np.zeros(0, np.uint64)
        reads = Reads(
            at,
            request,
            _renumbered(kinds, kind, self._kinds),
            entity,
            _renumbered(view_sets, views, self._view_sets),
            self._kinds,
            self._view_sets,
        )
        inside = np.ones(len(at), np.bool_)
        if self._since is not None:
            inside &= at >= self._since
        if self._until is not None:
            inside &= at < self._until
        return reads if inside.all() else reads.take(inside)

    def survey(self, sieve: Sieve, count_from: int, progress: Callable[[int], None]) -> Survey:
        """Look through the log once: which entities there are, and how much is read.

        What turns out not to be readable is left out from there on; call it before `in_order`.

        Args:
            sieve: is told of the entities.
            count_from: reads before this moment do not count, microseconds.
            progress: told how many bytes were looked through since the last call.

        Raises:
            AdviceError: nothing of it can be read.
        """
        found: dict[str, int] = {}
        requests = 0
        begin, end = (1 << 62), -(1 << 62)
        bad: dict[Path, str] = {}
        good: list[Unit] = []
        for unit in self.units:
            if unit.path in bad:
                continue
            try:
                reads = self._reads(unit)
            except (*UNREADABLE, ValueError) as error:
                bad[unit.path] = reason(error)
                continue
            good.append(unit)
            for number, kind in enumerate(self._kinds):
                of_kind = reads.entity[reads.kind == number]
                if len(of_kind):
                    sieve.add(kind, of_kind)
            if len(reads):
                begin, end = min(begin, int(reads.at.min())), max(end, int(reads.at.max()))
                # requests of a process are numbered as they come
                requests += len(np.unique(reads.request))
                counts = reads.views[reads.at >= count_from]
                for number, count in enumerate(np.bincount(counts).tolist()):
                    for view in self._view_sets[number].split(","):
                        found[view] = found.get(view, 0) + count
            progress(self._share_of_file(unit))
        self._leave_out(bad, good)
        return Survey(begin, end, found, requests, self.processes, self.lost, self.left_out)

    def _leave_out(self, bad: Mapping[Path, str], good: list[Unit]) -> None:
        """Go on with what could be read, and say what could not."""
        for path, why in bad.items():
            rows = sum(unit.rows for unit in self.units if unit.path == path)
            left = rows - sum(unit.rows for unit in good if unit.path == path)
            part = "" if left == rows else f", {left:,} rows of it"
            self.left_out += (f"{path.name}{part}: {why}",)
        self.units = good
        if not good:
            raise self._unreadable()

    def _share_of_file(self, unit: Unit) -> int:
        rows = sum(one.rows for one in self.units if one.path == unit.path)
        return round(self._sizes[unit.path] * unit.rows / max(1, rows))

    def in_order(
        self, process: str | None, progress: Callable[[int], None] = lambda size: None
    ) -> Iterator[Reads]:
        """Reads in the order of time.

        Args:
            process: of this one; of all of them, as if they were one, if None.
            progress: as for `survey`.
        """
        units = [unit for unit in self.units if process is None or unit.process == process]
        held: Reads | None = None
        for place, unit in enumerate(units):
            reads = self._read(unit)
            progress(self._share_of_file(unit))
            held = reads if held is None else _joined(held, reads)
            if place + 1 < len(units):
                # what follows begins no earlier than that
                held = held.take(np.argsort(held.at, kind="stable"))
                ready = int(np.searchsorted(held.at, units[place + 1].begin))
                if not ready:
                    continue
                yield held.take(slice(0, ready))
                held = held.take(slice(ready, None))
        if held is not None and len(held):
            yield held.take(np.argsort(held.at, kind="stable"))


def rows_of(reads: Reads, slots: Slots) -> tuple[Ints, Ints, Ints]:
    """The rows that reads ask for: a read for each view that is replayed.

    Returns:
        When, which slot, and which of the reads, of each.
    """
    own = {view.name: view for view in slots.views}
    # what is read differs by the views that are named and by the kind of the entity
    wanted = [
        [own[name] for name in text.split(",") if name in own and own[name].entity == kind]
        for kind in reads.kinds
        for text in reads.view_sets
    ]
    shape = reads.kind * len(reads.view_sets) + reads.views
    counts = np.array([len(views) for views in wanted], np.int64)[shape]
    source = np.repeat(np.arange(len(reads)), counts)
    turn = np.arange(len(source)) - (np.cumsum(counts) - counts)[source]
    base = np.zeros((len(wanted), max(map(len, wanted), default=1) or 1), np.int64)
    for number, views in enumerate(wanted):
        base[number, : len(views)] = [slots.base(view.name) for view in views]
    places = np.full(len(reads), -1, np.int64)
    for number, kind in enumerate(reads.kinds):
        of_kind = np.flatnonzero(reads.kind == number)
        if len(of_kind):
            places[of_kind] = slots.places(kind, reads.entity[of_kind])
    slot = base[shape[source], turn] + places[source]
    kept = np.flatnonzero(places[source] >= 0)
    return reads.at[source[kept]], slot[kept], source[kept]


def _joined(first: Reads, second: Reads) -> Reads:
    return Reads(
        np.concatenate([first.at, second.at]),
        np.concatenate([first.request, second.request]),
        np.concatenate([first.kind, second.kind]),
        np.concatenate([first.entity, second.entity]),
        np.concatenate([first.views, second.views]),
        second.kinds,
        second.view_sets,
    )


def _coded(column: pa.ChunkedArray) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The distinct texts of a column, and for each row which it has."""
    whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], pa.string())
    if not pa.types.is_dictionary(whole.type):
        whole = whole.cast(pa.string()).dictionary_encode()
    return whole.dictionary.to_pylist(), whole.indices.cast(pa.int64()).to_numpy()


def _renumbered(texts: Iterable[str], codes: Ints, known: list[str]) -> Ints:
    """Codes of texts as places in a list of all that are known, which grows by the new ones."""
    places = []
    for text in texts:
        if text not in known:
            known.append(text)
        places.append(known.index(text))
    return np.array(places, np.int64)[codes] if places else codes
