"""Records and tiles as what they have in common: sorted items whose parts can be added up.

A record is the tile of one event. Both become a `Source`, and the partial results of a log are
those of its records and those of its tiles, put together. Sums of what fits are taken in int64,
modulo 2**64, which is exact where no result needs more; whether one may is decided beforehand from
the largest value and the number of events.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hotplate.windows.exact import Floats, Integers, as_limbs, limbs_from_pair, squares
from hotplate.windows.finalize import Partials, as_slice
from hotplate.windows.hashing import NO_HASH
from hotplate.windows.hyperloglog import POWERS, REGISTERS, registers_of
from hotplate.windows.log import Tiles
from hotplate.windows.records import ID, TS, VALUES
from hotplate.windows.scaling import NO_VALUE
from hotplate.windows.spec import Column, EventSpec
from hotplate.windows.sums import LARGEST, SMALLEST, Stretch, extremes, fill_registers, sums

__all__ = [
    "Edge",
    "Proposals",
    "Selection",
    "Source",
    "of_records",
    "of_tiles",
    "partials_of",
    "wide",
]

_SMALL: Final = 1 << 62


class Selection:
    """Which columns a reader takes from records and tiles, and what it needs to know of them."""

    def __init__(
        self, event: EventSpec, columns: Collection[Column], needs: Collection[str]
    ) -> None:
        """Args: the log, the columns of it to take, and fields of `Partials` to compute."""
        names = [column.name for column in event.columns]
        numeric = [column.name for column in columns if column.is_numeric]
        distinct = [column.name for column in columns if not column.is_numeric]
        stored_numeric = [column.name for column in event.numeric]
        stored_distinct = [column.name for column in event.distinct]
        self.needs = frozenset(needs)
        self.columns = [names.index(column.name) for column in columns]
        self.is_numeric = np.array([column.is_numeric for column in columns], np.bool_)
        self.numeric = [stored_numeric.index(name) for name in numeric]
        self.distinct = [stored_distinct.index(name) for name in distinct]
        self.stored_distinct = len(stored_distinct)
        self.numeric_rows = as_slice([VALUES + names.index(name) for name in numeric])
        self.distinct_rows = as_slice([VALUES + names.index(name) for name in distinct])
        self.needs_values = bool(
            {"s", "q", "minimum", "maximum", "first", "last"} & self.needs and self.numeric
        )
        self.needs_places = bool({"first", "last"} & self.needs)
        self.needs_registers = "powers" in self.needs


@dataclass(frozen=True, slots=True)
class Edge:
    """The first or last non-null value of each item or window, and its place in (ts, id).

    Attributes:
        ts, ids, values: int64 (N, ...).
        is_there: bool (N, ...), whether there is one.
    """

    ts: Integers
    ids: Integers
    values: Integers
    is_there: npt.NDArray[np.bool_]

    def take(self, places: Integers, is_inside: npt.NDArray[np.bool_]) -> Edge:
        """Those at `places` (N, m, w), where inside."""
        safe = np.where(is_inside, places, 0)
        rows = np.arange(len(self.ts))[:, None, None]
        return Edge(self.ts[rows, safe], self.ids[rows, safe], self.values[rows, safe], is_inside)

    def later(self, other: Edge, *, is_last: bool) -> Edge:
        """For each window the later (or, for firsts, the earlier) of the two."""
        is_after = (other.ts > self.ts) | ((other.ts == self.ts) & (other.ids > self.ids))
        is_better = is_after if is_last else ~is_after
        use_other = other.is_there & (~self.is_there | is_better)
        return Edge(
            np.where(use_other, other.ts, self.ts),
            np.where(use_other, other.ids, self.ids),
            np.where(use_other, other.values, self.values),
            self.is_there | other.is_there,
        )


@dataclass(frozen=True, slots=True)
class Proposals:
    """What items propose for the registers of one distinct column.

    Attributes:
        items: int64 (n), how many proposals each item makes.
        numbers: int64, the registers, by item.
        values: uint8, likewise.
    """

    items: Integers
    numbers: Integers
    values: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Source:
    """A sorted run of n items. C, N: the columns that a reader uses, the numeric ones among them.

    Attributes:
        key: int64 (n), `owner << 46 | ts`; of a tile its start.
        count: how many events there are, at most.
        largest: the largest magnitude of any value.
        events: int64 (1, n), or None where each item is one event.
        n: non-null values, int64 (C, n), or None where there is no null.
        s: int64 (N, n).
        q: int64 (N, n, 2) as high and low 64 bits, or None: the squares of `s`.
        minimum, maximum: int64 (N, n), with what never wins where there is no value.
        first, last: where they are needed.
        proposals: for each distinct column, where they are needed.
    """

    key: Integers
    count: int
    largest: int
    events: Integers | None
    n: Integers | None
    s: Integers
    q: Integers | None
    minimum: Integers
    maximum: Integers
    first: Edge | None = None
    last: Edge | None = None
    proposals: tuple[Proposals, ...] = ()


def of_records(fields: Integers, key: Integers, selection: Selection) -> Source:
    """A source of records: int64 (3 + C, n), sorted by key and id, without duplicates."""
    size = fields.shape[1]
    values = fields[selection.numeric_rows]
    low = high = values
    least = most = 0
    valid = None
    if selection.needs_values and size:
        least, most = int(np.minimum.reduce(values, None)), int(np.maximum.reduce(values, None))
    has_null = least == NO_VALUE or (
        "n" in selection.needs
        and bool(selection.distinct)
        and NO_HASH in fields[selection.distinct_rows]
    )
    if has_null or ("n" in selection.needs and not selection.needs_values):
        nulls = np.where(selection.is_numeric, NO_VALUE, NO_HASH)[:, None]
        valid = fields[[VALUES + index for index in selection.columns]] != nulls
        is_value = valid[selection.is_numeric]
        low = np.where(is_value, values, LARGEST)
        values = np.where(is_value, values, 0)
        if least == NO_VALUE:
            least = int(values.min())
    source = Source(
        key,
        size,
        max(most, -least),
        None,
        None if valid is None else valid.astype(np.int64),
        values,
        None,
        low,
        high,
    )
    if selection.needs_places:
        is_there = values == values if valid is None else valid[selection.is_numeric]
        shape = values.shape
        edge = Edge(
            np.broadcast_to(fields[TS], shape),
            np.broadcast_to(fields[ID], shape),
            values,
            is_there,
        )
        source = replace(source, first=edge, last=edge)
    if selection.needs_registers:
        source = replace(source, proposals=tuple(map(_proposals, fields[selection.distinct_rows])))
    return source


def _proposals(hashes: Integers) -> Proposals:
    is_value = hashes != NO_HASH
    numbers, values = registers_of(hashes[is_value])
    return Proposals(is_value.astype(np.int64), numbers, values)


def of_tiles(
    tiles: Tiles, registers: npt.NDArray[np.uint16], key: Integers, selection: Selection
) -> Source:
    """A source of tiles, sorted by key; none overlaps another of its owner."""
    numeric = selection.numeric
    n = tiles["n"].T[selection.columns].astype(np.int64)
    minimum, maximum = tiles["minimum"].T[numeric], tiles["maximum"].T[numeric]
    largest = 0
    if minimum.size and (least := int(minimum.min())) != LARGEST:
        # what stands where there is no value never wins; beside a value it is left out
        largest = max(int(maximum.max()), -least)
    source = Source(
        key,
        int(tiles["events"].sum(dtype=np.int64)),
        largest,
        tiles["events"].astype(np.int64)[None],
        n,
        tiles["s"].T[numeric],
        tiles["q"].transpose(1, 0, 2)[numeric],
        minimum,
        maximum,
    )
    if selection.needs_places:
        source = replace(
            source,
            first=_edge_of_tiles(tiles, "first", n, selection),
            last=_edge_of_tiles(tiles, "last", n, selection),
        )
    if selection.needs_registers:
        source = replace(source, proposals=_stored_proposals(tiles, registers, selection))
    return source


def _edge_of_tiles(tiles: Tiles, name: str, n: Integers, selection: Selection) -> Edge:
    at = tiles["start"] + tiles[f"{name}_at"].T[selection.numeric].astype(np.int64)
    ids, values = (tiles[field].T[selection.numeric] for field in (f"{name}_id", name))
    return Edge(at, ids, values, n[selection.is_numeric] > 0)


def _stored_proposals(
    tiles: Tiles, registers: npt.NDArray[np.uint16], selection: Selection
) -> tuple[Proposals, ...]:
    counts = tiles["registers"].astype(np.int64)  # (n, D), and so they lie in `registers`
    column = np.repeat(np.tile(np.arange(selection.stored_distinct), len(tiles)), counts.ravel())
    found = []
    for index in selection.distinct:
        own = registers[column == index]
        numbers, values = (own >> 6).astype(np.int64), (own & 63).astype(np.uint8)
        found.append(Proposals(counts[:, index], numbers, values))
    return tuple(found)


def _bounds(sources: list[Source]) -> tuple[int, int]:
    """The most that a sum of squares, and `n` times one, can be over all events together."""
    count = sum(source.count for source in sources)
    largest = max((source.largest for source in sources), default=0)
    return count * largest**2, (count * largest) ** 2


def partials_of(sources: list[Source], stretches: list[Stretch], selection: Selection) -> Partials:
    """The partial results of one chain over all sources.

    Args:
        sources: records, tiles, or both.
        stretches: for each of them which items lie in which window.
        selection: what is needed.
    """
    needs = selection.needs
    most_squares, most_product = _bounds(sources)
    added = [
        _added(source, stretch, selection, is_narrow=most_squares < _SMALL)
        for source, stretch in zip(sources, stretches, strict=True)
    ]
    events, n, s, q = (_total(parts) for parts in zip(*added, strict=True))
    assert events is not None
    pairs = list(zip(sources, stretches, strict=True))
    minimum = maximum = first = last = None
    if "minimum" in needs:
        found = [extremes(np.minimum, one.minimum, where, LARGEST) for one, where in pairs]
        minimum = _by_window(found[0] if len(found) == 1 else np.minimum(*found))
    if "maximum" in needs:
        found = [extremes(np.maximum, one.maximum, where, SMALLEST) for one, where in pairs]
        maximum = _by_window(found[0] if len(found) == 1 else np.maximum(*found))
    if "first" in needs:
        first = _by_window(_edge_values(pairs, is_last=False))
    if "last" in needs:
        last = _by_window(_edge_values(pairs, is_last=True))
    powers, zeros = _powers(pairs, selection) if selection.needs_registers else (None, None)
    is_small = most_product < _SMALL
    extreme = (minimum, maximum, last, first)
    return Partials(events, n, s, q, *extreme, powers, zeros, is_small=is_small)


def _by_window(rows: Integers) -> Integers:
    """(r, m, w) -> (m, w, r)."""
    return rows.transpose(1, 2, 0)


def _total(parts: tuple[Integers | None, ...]) -> Integers | None:
    total, *others = parts
    for other in others:
        total = None if total is None or other is None else total + other
    return total


_Sums = tuple[Any, Any, Any, Any]


def _added(source: Source, stretch: Stretch, selection: Selection, *, is_narrow: bool) -> _Sums:
    """Events (m, w), n (m, w, C), s and q (m, w, N) or limbs (m, w, N, 3)."""
    needs = selection.needs
    rows: list[Integers] = []
    if source.events is not None:
        rows.append(source.events)
    if "n" in needs and source.n is not None:
        rows.append(source.n)
    size = len(source.key)
    for name in ("s", "q"):
        if name not in needs:
            continue
        if is_narrow:
            rows.append(_narrow(source, name))
        else:
            rows.append(wide(source, name).transpose(0, 2, 1).reshape(-1, size))
    found = sums(rows, stretch) if rows else None
    at = 0

    def following(count: int) -> Integers:
        nonlocal at
        assert found is not None
        at += count
        return found[at - count : at].transpose(1, 2, 0)

    events = stretch.count if source.events is None else following(1)[..., 0]
    n = s = q = None
    if "n" in needs:
        columns = len(selection.columns)
        if source.n is None:
            n = events[..., None]
            if columns > 1:
                n = np.repeat(n, columns, axis=-1)
        else:
            n = following(columns)
    width = len(selection.numeric)
    shape = (*events.shape, width) if is_narrow else (*events.shape, width, 3)
    if "s" in needs:
        s = following(width if is_narrow else 3 * width).reshape(shape)
    if "q" in needs:
        q = following(width if is_narrow else 3 * width).reshape(shape)
    return events, n, s, q


def _narrow(source: Source, name: str) -> Integers:
    if name == "s":
        return source.s
    return source.s * source.s if source.q is None else source.q[..., 1]


def wide(source: Source, name: str) -> Integers:
    """The parts `s` or `q` of the items of a source as limbs, int64 (N, n, 3)."""
    if name == "s":
        return as_limbs(source.s)
    return squares(source.s) if source.q is None else limbs_from_pair(source.q)


def _edge_values(pairs: list[tuple[Source, Stretch]], *, is_last: bool) -> Integers:
    found = [_edge(source, stretch, is_last=is_last) for source, stretch in pairs]
    best = found[0]
    for other in found[1:]:
        best = best.later(other, is_last=is_last)
    return best.values


def _edge(source: Source, stretch: Stretch, *, is_last: bool) -> Edge:
    """The last (first) value of each window: (N, m, w)."""
    edge = source.last if is_last else source.first
    assert edge is not None
    size = len(source.key)
    if not size:
        nothing = np.zeros((len(edge.ts), *stretch.begin.shape), np.int64)
        return Edge(nothing, nothing, nothing, nothing > 0)
    places = np.arange(size)
    if is_last:  # the nearest item with a value at or before each place
        nearest = np.maximum.accumulate(np.where(edge.is_there, places, -1), axis=1)
        end = np.broadcast_to(stretch.end, stretch.begin.shape)
        found = nearest.take(end - 1, axis=1)
    else:
        reversed_places = np.where(edge.is_there, places, size)[:, ::-1]
        nearest = np.minimum.accumulate(reversed_places, axis=1)[:, ::-1]
        found = nearest.take(stretch.begin, axis=1, mode="clip")
    is_inside = (found >= stretch.begin) & (found < stretch.end) & (stretch.count > 0)
    return edge.take(found, is_inside)


def _powers(pairs: list[tuple[Source, Stretch]], selection: Selection) -> tuple[Floats, Integers]:
    """Sums of powers and numbers of zeros: (m, w, D) each."""
    owners, windows = pairs[0][1].begin.shape
    powers, zeros = [], []
    for index in range(len(selection.distinct)):
        registers = np.zeros((owners * (windows + 1) + 1, REGISTERS), np.uint8)
        for source, stretch in pairs:
            if len(source.key):
                one = source.proposals[index]
                fill_registers(registers, stretch, one.items, one.numbers, one.values)
        pieces = registers[1:].reshape(owners, windows + 1, REGISTERS)[:, :windows]
        # from the newest piece on, each window is its own piece and all newer ones
        nested = np.maximum.accumulate(pieces[:, ::-1], axis=1)
        powers.append(POWERS.take(nested).sum(axis=-1))
        zeros.append((nested == 0).sum(axis=-1))
    return np.stack(powers, axis=-1), np.stack(zeros, axis=-1)
