"""Compaction: folding what is old enough into tiles. It changes storage, never results.

**What is folded.** A record is a candidate when no event of its time can still be accepted, and so
no duplicate of it either: it is older than lateness and slack, and it has arrived before the slack.
Of the tile sizes that the plan allows at its age the largest is taken. Records and smaller tiles
that lie in one tile become that tile if together they hold three or more events; below that a tile
takes more bytes than its records. What is past retention is dropped, and of duplicates only the
first arrival is kept.

**What is left alone.** A tile that this compactor's own rules would not make is copied unchanged:
its clock may be behind that of the compactor that made it. A record inside such a tile stays a
record, so tiles never overlap. A tile whose sums would not fit its fields is not made.

**How it is written back.** Many clients may fold the same log at once, without locks, while others
append. `Fold` names what the log must still begin with; the store compares, and puts the new log in
place of the first `consumed` bytes, in one step:

    if the value at key begins with `expected`:
        value = `blob` + value[consumed:]          (and the time to live stays as it is)

A compacted log begins with its header, and its nonce is fresh random bytes, so a log that begins
with the header that was read has only been appended to since. Comparing records instead is not
enough: a log that was rewritten meanwhile can begin with the same record and hold other tiles. A
bare log has never been rewritten, and all that was read of it is compared: if the key was deleted
and made anew, its records differ; if they are equal byte by byte, the fold of them is right.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hotplate.windows.exact import Integers, pair_from_limbs
from hotplate.windows.log import HEADER_SIZE, NONCE_SIZE, LogFormat, Tiles
from hotplate.windows.plan import LogPlan
from hotplate.windows.records import TS, arrivals_of, first_arrivals
from hotplate.windows.sources import Edge, Selection, Source, of_records, of_tiles, wide
from hotplate.windows.sums import LARGEST, SMALLEST

__all__ = ["Compactor", "Fold"]

_LEAST_EVENTS: Final = 3
_MOST_EVENTS: Final = 1 << 32
_MOST_SQUARES: Final = 2.0**126
_LIMBS: Final = np.array([1.0, 2.0**36, 2.0**72])
_Flags = npt.NDArray[np.bool_]
_ENTRY: Final = np.dtype([("tile", "<i8"), ("column", "<i8"), ("packed", "<i8")])
"""A register that is not 0: which tile and distinct column it is of, and what is stored of it."""
_ALL: Final = ("n", "s", "q", "minimum", "maximum", "first", "last", "powers")


@dataclass(frozen=True, slots=True)
class Fold:
    """A log rewritten, and the condition under which it may take the place of the old one.

    Attributes:
        expected: what the stored value must begin with.
        consumed: how many bytes of the stored value `blob` stands for.
        blob: what to put in their place.
    """

    expected: bytes
    consumed: int
    blob: bytes


class Compactor:
    """Folds the logs of one plan. Thread-safe.

    Args:
        plan: of the logs.
    """

    def __init__(self, plan: LogPlan) -> None:
        self.plan = plan
        self._format = LogFormat(plan)
        self._selection = Selection(plan.event, plan.event.columns, _ALL)

    def fold(self, blob: bytes, now_ms: int) -> Fold | None:
        """Rewrite a log; None where there is nothing to gain.

        Args:
            blob: the log as stored.
            now_ms: this compactor's clock.

        Raises:
            WindowStateError: the log is truncated, damaged or foreign. Nothing is folded then.
        """
        head = self._format.head(blob)
        raw = memoryview(blob)[head.size if head else 0 :]
        self._format.records.check(raw)
        stored = self._format.records.fields(raw)
        fields, _ = first_arrivals(stored)
        tiles = head.tiles if head else np.zeros(0, self._format.tile)
        registers = head.registers if head else np.zeros(0, np.uint16)
        items = _Items(tiles, fields)
        items.drop_until(now_ms - self.plan.retention_ms)
        horizon = now_ms - self.plan.event.slack_ms
        items.group(self.plan, horizon)
        is_single = fields.shape[1] == stored.shape[1]  # no duplicates
        if is_single and not items.is_gone.any():
            return None
        made = self._make(items, tiles, registers, fields)
        if is_single and not items.is_gone.any():  # what did not fit has been released again
            return None
        keep_tiles, keep_records = ~items.is_gone[: len(tiles)], ~items.is_gone[len(tiles) :]
        kept = _Made(tiles[keep_tiles], _stored_entries(tiles, registers, keep_tiles))
        new = self._format.write_head(
            os.urandom(NONCE_SIZE),
            max(horizon, head.horizon_ms if head else 0),
            *_in_order(kept, made),
        )
        new += self._format.records.restore(fields[:, keep_records])
        return Fold(blob[:HEADER_SIZE] if head else blob, len(blob), new)

    def _make(
        self,
        items: _Items,
        tiles: Tiles,
        registers: npt.NDArray[np.uint16],
        fields: Integers,
    ) -> _Made:
        """The new tiles; what they do not fit is taken out of `items` again."""
        made = np.zeros(len(items.cells), self._format.tile)
        made["start"], made["span"] = items.cells, items.sizes
        selection = self._selection
        sources = [
            of_tiles(tiles, registers, tiles["start"], selection),
            of_records(fields, fields[TS], selection),
        ]
        groups = [items.group_of[: len(tiles)], items.group_of[len(tiles) :]]
        fits = _add_up(made, list(zip(sources, groups, strict=True)), selection)
        items.release(~fits)
        entries = _new_entries(sources, groups, selection.stored_distinct)
        entries = entries[fits[entries["tile"]]]
        entries["tile"] = (np.cumsum(fits) - 1)[entries["tile"]]
        return _Made(made[fits], entries)


class _Items:
    """Tiles, then records: which of them stay, and into which new tile the others go.

    Attributes:
        is_gone: bool, dropped or folded.
        group_of: int64, the new tile of each; -1 for none.
        cells, sizes: int64, start and span of the new tiles.
    """

    def __init__(self, tiles: Tiles, fields: Integers) -> None:
        self._tiles = len(tiles)
        self._starts = np.concatenate((tiles["start"], fields[TS]))
        records = fields.shape[1]
        self._spans = np.concatenate((tiles["span"].astype(np.int64), np.ones(records, np.int64)))
        self._events = np.concatenate((tiles["events"].astype(np.int64), self._spans[len(tiles) :]))
        self._arrivals = np.concatenate((np.zeros(len(tiles), np.int64), arrivals_of(fields)))
        self.is_gone = np.zeros(len(self._starts), np.bool_)
        self.group_of = np.full(len(self._starts), -1)
        self.cells = self.sizes = np.zeros(0, np.int64)

    def drop_until(self, moment: int) -> None:
        """Drop what ends at or before a moment."""
        self.is_gone |= self._starts + self._spans <= moment

    def group(self, plan: LogPlan, horizon: int) -> None:
        """Find what goes together into a new tile."""
        sizes = np.zeros(len(self._starts), np.int64)
        can_fold = (self._arrivals <= horizon) & ~self.is_gone
        for rule in plan.rules:  # the largest that is allowed is the last
            cell_end = self._starts // rule.size_ms * rule.size_ms + rule.size_ms
            is_allowed = can_fold & (cell_end <= horizon - rule.age_ms)
            sizes[is_allowed & (self._spans <= rule.size_ms)] = rule.size_ms
        self._keep_out_of_larger_tiles(sizes)
        candidates = np.flatnonzero(sizes)
        cells = self._starts[candidates] // sizes[candidates] * sizes[candidates]
        pairs = np.stack((cells, sizes[candidates]), axis=1)
        found, group = np.unique(pairs, axis=0, return_inverse=True)
        group = group.reshape(-1)
        events = np.bincount(group, self._events[candidates], len(found))
        is_worth = (events >= _LEAST_EVENTS) & (events < _MOST_EVENTS)
        is_worth &= np.bincount(group, minlength=len(found)) > 1
        number = np.where(is_worth, np.cumsum(is_worth) - 1, -1)
        self.group_of[candidates] = number[group]
        self.cells, self.sizes = found[is_worth, 0], found[is_worth, 1]
        self.is_gone |= self.group_of >= 0

    def _keep_out_of_larger_tiles(self, sizes: Integers) -> None:
        if not self._tiles:
            return
        starts, spans = self._starts[: self._tiles], self._spans[: self._tiles]
        records = self._starts[self._tiles :]
        place = starts.searchsorted(records, side="right") - 1
        is_inside = (place >= 0) & (records < starts[place] + spans[place])
        sizes[self._tiles :][is_inside & (spans[place] > sizes[self._tiles :])] = 0

    def release(self, groups: _Flags) -> None:
        """Leave the members of some groups as they are."""
        is_released = (self.group_of >= 0) & np.append(groups, False)[self.group_of]
        self.is_gone &= ~is_released


@dataclass(frozen=True, slots=True)
class _Made:
    """Tiles and their registers.

    Attributes:
        tiles: the tiles.
        entries: structured array of `_ENTRY`, the registers of these tiles that are not 0.
    """

    tiles: Tiles
    entries: npt.NDArray[Any]


def _add_up(made: Tiles, sources: list[tuple[Source, Integers]], selection: Selection) -> _Flags:
    """Fill in the new tiles from the items of each; False where a sum does not fit."""
    count, numeric = len(made), len(selection.numeric)
    totals = {name: np.zeros((numeric, count, 3), np.int64) for name in ("s", "q")}
    n = np.zeros((len(selection.columns), count), np.int64)
    minimum = np.full((numeric, count), LARGEST)
    maximum = np.full((numeric, count), SMALLEST)
    events = np.zeros(count, np.int64)
    for source, groups in sources:
        of = groups >= 0
        into = groups[of]
        ones = np.ones((1, len(groups)), np.int64)
        _each_row(np.add, [events], into, (ones if source.events is None else source.events)[:, of])
        counted = ones.repeat(len(n), axis=0) if source.n is None else source.n
        _each_row(np.add, n, into, counted[:, of])
        for name, total in totals.items():
            _each_row(np.add, total, into, wide(source, name)[:, of])
        _each_row(np.minimum, minimum, into, source.minimum[:, of])
        _each_row(np.maximum, maximum, into, source.maximum[:, of])
    s, q = pair_from_limbs(totals["s"]), pair_from_limbs(totals["q"])
    made["events"], made["n"] = events, n.T
    made["minimum"], made["maximum"] = minimum.T, maximum.T
    made["s"], made["q"] = s[..., 1].T, q.transpose(1, 0, 2)
    for name in ("first", "last"):
        _find_edges(made, name, sources)
    is_too_large = (s[..., 0] != s[..., 1] >> 63) | (totals["q"] @ _LIMBS > _MOST_SQUARES)
    fits: _Flags = ~is_too_large.any(axis=0)
    return fits


def _each_row(ufunc: np.ufunc, out: Iterable[Integers], into: Integers, values: Integers) -> None:
    for row, own in zip(out, values, strict=True):
        ufunc.at(row, into, own)


def _find_edges(made: Tiles, name: str, sources: list[tuple[Source, Integers]]) -> None:
    """Fill in the first (last) value of each column of the new tiles, by (ts, id)."""
    for column in range(made[name].shape[1]):
        parts = []
        for source, groups in sources:
            edge: Edge | None = getattr(source, name)
            assert edge is not None
            of = (groups >= 0) & edge.is_there[column]
            values = (edge.ts[column, of], edge.ids[column, of], edge.values[column, of])
            parts.append(np.stack((groups[of], *values)))
        group, ts, ids, values = np.concatenate(parts, axis=1)
        order = np.lexsort((ids, ts, group))
        sign = 1 if name == "first" else -1
        tiles, places = np.unique(group[order][::sign], return_index=True)
        best = order[::sign][places]
        made[name][tiles, column] = values[best]
        made[f"{name}_id"][tiles, column] = ids[best]
        made[f"{name}_at"][tiles, column] = ts[best] - made["start"][tiles]


def _entries(tile: Integers, column: int | Integers, packed: Integers) -> npt.NDArray[Any]:
    out = np.empty(len(tile), _ENTRY)
    out["tile"], out["column"], out["packed"] = tile, column, packed
    return out


def _new_entries(sources: list[Source], groups: list[Integers], columns: int) -> npt.NDArray[Any]:
    """The largest proposal for each register of each new tile."""
    parts = [np.empty(0, _ENTRY)]
    for column in range(columns):
        for source, into in zip(sources, groups, strict=True):
            one = source.proposals[column]
            tile = np.repeat(into, one.items)
            packed = (one.numbers << 6) | one.values
            parts.append(_entries(tile, column, packed)[tile >= 0])
    # sorted, the largest value of a register is the last of its run
    entries = np.sort(np.concatenate(parts), order=("tile", "column", "packed"))
    register = (entries["tile"], entries["column"], entries["packed"] >> 6)
    is_last = np.ones(len(entries), np.bool_)
    if len(entries):
        is_last[:-1] = np.any([one[1:] != one[:-1] for one in register], axis=0)
    return entries[is_last]


def _stored_entries(
    tiles: Tiles, registers: npt.NDArray[np.uint16], keep: _Flags
) -> npt.NDArray[Any]:
    counts = tiles["registers"].astype(np.int64)
    owner = np.repeat(np.arange(counts.size), counts.ravel())
    tile, column = np.divmod(owner, max(counts.shape[1], 1))
    entries = _entries(tile, column, registers.astype(np.int64))[keep[tile]]
    entries["tile"] = (np.cumsum(keep) - 1)[entries["tile"]]
    return entries


def _in_order(kept: _Made, made: _Made) -> tuple[Tiles, npt.NDArray[np.uint16]]:
    """All tiles by start, and their registers in the same order."""
    tiles = np.concatenate((kept.tiles, made.tiles))
    shifted = made.entries.copy()
    shifted["tile"] += len(kept.tiles)
    entries = np.concatenate((kept.entries, shifted))
    order = np.argsort(tiles["start"], kind="stable")
    rank = np.empty(len(tiles), np.int64)
    rank[order] = np.arange(len(tiles))
    entries["tile"] = rank[entries["tile"]]
    entries.sort(order=("tile", "column", "packed"))
    columns = tiles["registers"].shape[1]
    place = entries["tile"] * columns + entries["column"]
    counts = np.bincount(place, minlength=len(tiles) * columns)
    tiles = tiles[order]
    tiles["registers"] = counts.reshape(len(tiles), columns)
    return tiles, entries["packed"].astype("<u2")
