"""What is in ranges of a sorted sequence of events, as exact integers.

Prefix sums answer sums and counts, `RangeExtremes` minima and maxima, running positions of the
non-null values the last and the first, `DistinctRanges` the rest. Each is made when it is first
needed, and only for what the outputs ask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hotplate.windows.exact import Floats, Integers, as_limbs, squares
from hotplate.windows.finalize import Finalizer, Partials
from hotplate.windows.hashing import NO_HASH
from hotplate.windows.pieces import Holes
from hotplate.windows.range_distinct import DistinctRanges
from hotplate.windows.range_extremes import RangeExtremes, take_rows
from hotplate.windows.scaling import NO_VALUE

__all__ = ["RangeStatistics", "Ranges"]

_Index: TypeAlias = npt.NDArray[np.intp]

_HIGHEST: Final = np.iinfo(np.int64).max
_SMALL: Final = 1 << 62


@dataclass(frozen=True)
class Ranges:
    """Which events are in each cell (row, window).

    Attributes:
        lo, hi: positions (rows, W): those of `[lo, hi)`; `lo <= hi`.
        holes: except these.
    """

    lo: _Index
    hi: _Index
    holes: Holes | None = None


class RangeStatistics:
    """Answers `Partials` for ranges of a sequence of events.

    Args:
        finalize: says what is needed, and which columns are which.
        values: int64 (N, C), by the columns of `finalize.spec.event`.
        entities: int64 (N), ascending from 0: whose event each is; no range covers two.
    """

    def __init__(self, finalize: Finalizer, values: Integers, entities: Integers) -> None:
        self._needs = finalize.needs
        # places among the columns that some output uses
        self._numeric = [i for i, one in enumerate(finalize.columns) if one.is_numeric]
        self._distinct = [i for i, one in enumerate(finalize.columns) if not one.is_numeric]
        self._entities = entities
        columns = finalize.spec.event.columns
        self._hashes = values[:, [columns.index(one) for one in finalize.distinct]]
        numbers = values[:, [columns.index(one) for one in finalize.numeric]]
        self._is_known = numbers != NO_VALUE
        self._has_nulls = not self._is_known.all()
        self._is_hash = self._hashes != NO_HASH
        self._lacks_hashes = not self._is_hash.all()
        # one more at the end, where the range of an entity without events begins and ends
        self._numbers = np.zeros((len(values) + 1, len(self._numeric)), np.int64)
        self._numbers[:-1] = np.where(self._is_known, numbers, 0)
        self._largest = int(np.abs(self._numbers).max(initial=0))

    @property
    def width(self) -> int:
        """How many numbers a cell takes, for the widest of its statistics."""
        return max(len(self._numeric), len(self._distinct), 1)

    def partials(self, ranges: Ranges) -> Partials:
        """What is in the cells; shapes begin with that of `ranges.lo`."""
        needs, holes = self._needs, ranges.holes
        events = ranges.hi - ranges.lo
        most = int(events.max(initial=0))
        if holes is not None:
            events.reshape(-1)[holes.cells] -= holes.counts
        is_short = (
            most * self._largest**2 < _SMALL if "q" in needs else most * self._largest < _SMALL
        )
        powers, zeros = self._registers(ranges) if "powers" in needs else (None, None)
        return Partials(
            events=events,
            n=self._counts(ranges, events) if "n" in needs else None,
            s=self._sums(ranges, is_short) if "s" in needs else None,
            q=self._squares(ranges, is_short) if "q" in needs else None,
            minimum=self._extremes(ranges, self._minima, np.minimum)
            if "minimum" in needs
            else None,
            maximum=self._extremes(ranges, self._maxima, np.maximum)
            if "maximum" in needs
            else None,
            last=self._last(ranges) if "last" in needs else None,
            first=self._first(ranges) if "first" in needs else None,
            powers=powers,
            zeros=zeros,
            is_small=most * most * self._largest**2 < _SMALL,
        )

    # -- counts and sums --------------------------------------------------------------------------

    def _counts(self, ranges: Ranges, events: Integers) -> Integers:
        out = np.empty((*events.shape, len(self._numeric) + len(self._distinct)), np.int64)
        out[...] = events[..., None]
        if self._has_nulls and self._numeric:
            counts = _between(self._known_sums, self._is_known, ranges, _as_integers)
            out[..., self._numeric] = counts
        if self._lacks_hashes and self._distinct:
            counts = _between(self._hash_sums, self._is_hash, ranges, _as_integers)
            out[..., self._distinct] = counts
        return out

    def _sums(self, ranges: Ranges, is_short: bool) -> Integers:
        if is_short:
            return _between(self._number_sums, self._numbers, ranges)
        return _between_limbs(self._limb_sums, self._numbers, ranges, as_limbs)

    def _squares(self, ranges: Ranges, is_short: bool) -> Integers:
        if is_short:
            return _between(self._square_sums, self._numbers, ranges, np.square)
        return _between_limbs(self._square_limb_sums, self._numbers, ranges, squares)

    @cached_property
    def _known_sums(self) -> Integers:
        return _prefix_sums(_as_integers(self._is_known))

    @cached_property
    def _hash_sums(self) -> Integers:
        return _prefix_sums(_as_integers(self._is_hash))

    @cached_property
    def _number_sums(self) -> Integers:
        return _prefix_sums(self._numbers[:-1])

    @cached_property
    def _square_sums(self) -> Integers:
        return _prefix_sums(np.square(self._numbers[:-1]))

    @cached_property
    def _limb_sums(self) -> Integers:
        return _prefix_sums(as_limbs(self._numbers[:-1]))

    @cached_property
    def _square_limb_sums(self) -> Integers:
        return _prefix_sums(squares(self._numbers[:-1]))

    # -- single values ----------------------------------------------------------------------------

    @cached_property
    def _minima(self) -> RangeExtremes:
        return RangeExtremes(self._without_nulls(_HIGHEST), np.minimum)

    @cached_property
    def _maxima(self) -> RangeExtremes:
        return RangeExtremes(self._without_nulls(-_HIGHEST), np.maximum)

    def _without_nulls(self, instead: int) -> Integers:
        if not self._has_nulls:
            return self._numbers
        values = self._numbers.copy()
        values[:-1][~self._is_known] = instead
        return values

    def _extremes(self, ranges: Ranges, extremes: RangeExtremes, better: np.ufunc) -> Integers:
        found = extremes(ranges.lo, ranges.hi)
        holes = ranges.holes
        if holes is not None:
            pieces = holes.pieces(ranges.lo, ranges.hi)
            each = extremes(pieces.lo, pieces.hi)
            each[pieces.hi == pieces.lo] = _HIGHEST if better is np.minimum else -_HIGHEST
            left = better.reduceat(each, pieces.begins, axis=0)
            found.reshape(-1, found.shape[-1])[holes.cells] = left
        return found

    @cached_property
    def _known_before(self) -> Integers:
        """Position of the last value at or before each event, -1 if none: (N + 1, C)."""
        place = np.where(self._is_known, np.arange(len(self._is_known))[:, None], -1)
        return _with_end(np.maximum.accumulate(place, axis=0), -1)

    @cached_property
    def _known_after(self) -> Integers:
        """Position of the first value at or after each event, N if none: (N + 1, C)."""
        count = len(self._is_known)
        place = np.where(self._is_known, np.arange(count)[:, None], count)
        return _with_end(np.minimum.accumulate(place[::-1], axis=0)[::-1], count)

    def _last(self, ranges: Ranges) -> Integers:
        return self._at(np.maximum(_best(ranges, self._last_places, np.maximum), 0))

    def _last_places(self, lo: _Index, hi: _Index) -> Integers:
        """Where in each range the last value is, -1 if there is none."""
        found = take_rows(self._known_before, np.maximum(hi - 1, 0))
        found[(found < lo[..., None]) | (hi == lo)[..., None]] = -1
        return found

    def _first(self, ranges: Ranges) -> Integers:
        return self._at(_best(ranges, self._first_places, np.minimum))

    def _first_places(self, lo: _Index, hi: _Index) -> Integers:
        """Where in each range the first value is, N if there is none."""
        found = take_rows(self._known_after, lo)
        found[found >= hi[..., None]] = len(self._is_known)
        return found

    def _at(self, places: Integers) -> Integers:
        """The value at a place of its column."""
        return np.take_along_axis(
            self._numbers, places.reshape(-1, places.shape[-1]), axis=0
        ).reshape(places.shape)

    # -- distinct ---------------------------------------------------------------------------------

    @cached_property
    def _distinct_ranges(self) -> list[DistinctRanges]:
        return [DistinctRanges(column, self._entities) for column in self._hashes.T]

    def _registers(self, ranges: Ranges) -> tuple[Floats, Integers]:
        shape = (*ranges.lo.shape, len(self._distinct))
        powers, zeros = np.empty(shape), np.empty(shape, np.int64)
        for number, column in enumerate(self._distinct_ranges):
            powers[..., number], zeros[..., number] = column(ranges.lo, ranges.hi, ranges.holes)
        return powers, zeros


def _best(
    ranges: Ranges, places: Callable[[_Index, _Index], Integers], better: np.ufunc
) -> Integers:
    """Places in all ranges; in those with holes the best of their pieces."""
    found = places(ranges.lo, ranges.hi)
    holes = ranges.holes
    if holes is not None:
        pieces = holes.pieces(ranges.lo, ranges.hi)
        left = better.reduceat(places(pieces.lo, pieces.hi), pieces.begins, axis=0)
        found.reshape(-1, found.shape[-1])[holes.cells] = left
    return found


def _as_integers(flags: npt.NDArray[np.bool_]) -> Integers:
    return flags.astype(np.int64)


def _prefix_sums(values: Integers) -> Integers:
    """Sums of all before each position: (N + 1, ...); modulo 2**64, as are their differences."""
    out = np.zeros((len(values) + 1, *values.shape[1:]), np.int64)
    np.cumsum(values, axis=0, out=out[1:])
    return out


def _with_end(table: Integers, value: int) -> Integers:
    return np.concatenate([table, np.full((1, table.shape[1]), value)])


def _between(
    sums: Integers,
    values: npt.NDArray[Any],
    ranges: Ranges,
    function: Callable[[Any], Integers] | None = None,
) -> Integers:
    """Sums over ranges (rows, W, C) of `function` of the values."""
    out = take_rows(sums, ranges.hi)
    out -= take_rows(sums, ranges.lo)
    holes = ranges.holes
    if holes is not None:
        taken = values[holes.index]
        taken = np.add.reduceat(
            taken if function is None else function(taken), holes.begins, axis=0
        )
        out.reshape(-1, out.shape[-1])[holes.cells] -= taken
    return out


def _between_limbs(
    sums: Integers,
    values: Integers,
    ranges: Ranges,
    function: Callable[[Integers], Integers],
) -> Integers:
    """Sums over ranges as limbs, (rows, W, C, 3)."""
    flat = sums.reshape(len(sums), -1)
    out = take_rows(flat, ranges.hi)
    out -= take_rows(flat, ranges.lo)
    holes = ranges.holes
    if holes is not None:
        taken = np.add.reduceat(function(values[holes.index]), holes.begins, axis=0)
        out.reshape(-1, out.shape[-1])[holes.cells] -= taken.reshape(len(taken), -1)
    return out.reshape(*ranges.lo.shape, *sums.shape[1:])
