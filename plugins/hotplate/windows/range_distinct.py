"""HyperLogLog of any ranges of a sequence of hashes, without visiting the events of each range.

In a range each register shows its greatest rank. Let an event *represent* its register in a range
`[lo, hi)` if it has that rank and is the last one that does. With `a` the last earlier event of the
same entity and register with a greater rank, and `b` the next one with a rank at least as great,
event i represents exactly the ranges with

    a < lo <= i < hi <= b

so what a range shows is the sum of what its representatives weigh, over those i. As `a < i < b`,

    [a < lo <= i < hi <= b]  =  [i < hi][a < lo] - [b < hi][a < lo] - [i < lo] + [i < lo][b < hi]

which are sums over points that lie below and to the left of a corner. A wavelet matrix (Claude,
Navarro, Ordonez: "The wavelet matrix", 2015) with prefix sums answers each in log2(N) steps,
however long the range.

A weight holds both sums that an estimate needs in one 64-bit word: 1 in the upper 11 bits, which
counts registers that are not 0, and below it `2**43 * (1 - 2**-rank)`. Over at most 1,024 registers
neither overflows into the other, and the arithmetic is exact modulo 2**64.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hotplate.windows.exact import Floats, Integers
from hotplate.windows.hashing import NO_HASH
from hotplate.windows.hyperloglog import REGISTERS, registers_of
from hotplate.windows.pieces import Holes, pieces_of
from hotplate.windows.range_extremes import RangeExtremes

__all__ = ["DistinctRanges"]

_Words: TypeAlias = npt.NDArray[np.uint64]
_Index: TypeAlias = npt.NDArray[np.intp]

_RANKS: Final = 43
_COUNT_BIT: Final = 53
_FRACTION: Final = np.uint64((1 << _COUNT_BIT) - 1)
_WEIGHTS: Final[_Words] = np.array(
    [0, *((1 << _COUNT_BIT) + (1 << _RANKS) - (1 << (_RANKS - r)) for r in range(1, _RANKS + 1))],
    np.uint64,
)


class DistinctRanges:
    """Answers what HyperLogLog's registers hold after the events of a range.

    Args:
        hashes: int64 (N), `NO_HASH` for null.
        entities: int64 (N), ascending from 0: whose event each is; no range covers two.
    """

    def __init__(self, hashes: Integers, entities: Integers) -> None:
        self._count = count = len(hashes)
        self._registers = np.zeros(count, np.int64)
        self._ranks = np.zeros(count, np.int64)
        events = np.flatnonzero(hashes != NO_HASH)
        self._registers[events], self._ranks[events] = registers_of(hashes[events])
        self._groups = entities * REGISTERS + self._registers
        ordered = events[np.argsort(self._groups[events], kind="stable")]
        # rows are (group, position): one search finds the range of a register within a range
        self._places = self._groups[ordered] * (count + 1) + ordered
        self._ordered_ranks = self._ranks[ordered]
        self._tops: RangeExtremes | None = None
        self._build(ordered, events)

    def _build(self, ordered: _Index, events: _Index) -> None:
        before, after = _neighbours(self._groups[ordered], self._ordered_ranks)
        count = self._count
        a = np.full(count, -1)
        b = np.full(count, count)
        a[ordered] = np.where(before >= 0, ordered.take(before, mode="clip"), -1)
        b[ordered] = np.where(after >= 0, ordered.take(after, mode="clip"), count)
        a, b, weights = a[events], b[events], _WEIGHTS[self._ranks[events]]
        self._sums = np.zeros(count + 1, np.uint64)
        np.cumsum(_WEIGHTS[self._ranks], out=self._sums[1:])
        self._left = _Corners(events, b, weights, count)
        self._both = _Corners(
            np.concatenate([events, b]),
            np.concatenate([a, a]) + 1,
            np.concatenate([weights, -weights]),
            count,
        )

    def __call__(self, lo: _Index, hi: _Index, holes: Holes | None) -> tuple[Floats, Integers]:
        """What `Partials` calls powers and zeros, each in the shape of `lo` and `hi`.

        Args:
            lo, hi: the ranges `[lo, hi)`.
            holes: events in them that do not belong to them.
        """
        shape = lo.shape
        lo, hi = lo.ravel(), hi.ravel()
        words = self._both(hi, lo + 1) - self._sums.take(lo) + self._left(lo, hi)
        if holes is not None:
            self._take_out(words, lo, hi, holes)
        zeros = REGISTERS - (words >> np.uint64(_COUNT_BIT)).astype(np.int64)
        missing = (words & _FRACTION).astype(np.int64)
        powers = np.ldexp(((REGISTERS << _RANKS) - missing).astype(np.float64), -_RANKS)
        return powers.reshape(shape), zeros.reshape(shape)

    def _take_out(self, words: _Words, lo: _Index, hi: _Index, holes: Holes) -> None:
        """Let the registers of the holes show what the other events of their ranges give them."""
        index, cells = holes.index, np.repeat(holes.cells, holes.counts)
        is_known = self._ranks[index] > 0
        index, cells = index[is_known], cells[is_known]
        if not index.size:
            return
        # the holes of each register of each cell together, in order
        both = cells * REGISTERS + self._registers[index]
        order = np.argsort(both, kind="stable")
        index, cells = index[order], cells[order]
        _, begins = np.unique(both[order], return_index=True)
        first = self._groups[index] * (self._count + 1)
        cuts = np.searchsorted(self._places, first + index)
        first, cells = first[begins], cells[begins]
        begin = np.searchsorted(self._places, first + lo[cells])
        end = np.searchsorted(self._places, first + hi[cells])
        if self._tops is None:
            self._tops = RangeExtremes(self._ordered_ranks[:, None], np.maximum)
        pieces = pieces_of(begin, end, begins, cuts)
        held = self._tops(pieces.lo, pieces.hi)[:, 0]
        held[pieces.hi == pieces.lo] = 0
        left = np.maximum.reduceat(held, pieces.begins)
        shown = self._tops(begin, end)[:, 0]
        np.add.at(words, cells, _WEIGHTS[left] - _WEIGHTS[shown])


def _neighbours(groups: Integers, ranks: Integers) -> tuple[_Index, _Index]:
    """The last earlier one with a greater rank, the next with one at least as great; -1 if none.

    Both within a group; groups lie together.
    """
    before = np.full(len(ranks), -1)
    after = np.full(len(ranks), -1)
    left = np.arange(len(ranks))  # those of at least the rank at hand: half as many with each
    for rank in range(1, _RANKS + 1):
        if not left.size:
            break
        is_greater = ranks[left] > rank
        greater = left[is_greater]
        here = np.flatnonzero(~is_greater)
        at = left[here]
        following = left.take(here + 1, mode="clip")
        is_same = (groups[following] == groups[at]) & (following > at)
        after[at[is_same]] = following[is_same]
        if greater.size:
            place = np.cumsum(is_greater)[here] - 1
            preceding = greater.take(place, mode="clip")
            is_same = (place >= 0) & (groups[preceding] == groups[at])
            before[at[is_same]] = preceding[is_same]
        left = greater
    return before, after


class _Corners:
    """Sums of the weights of all points with x < X and y < Y.

    Args:
        x, y: coordinates from 0 to `count`.
        weights: of each point.
        count: the greatest coordinate.
    """

    def __init__(self, x: _Index, y: _Index, weights: _Words, count: int) -> None:
        order = np.argsort(x, kind="stable")
        y, weights = y[order], weights[order]
        self._prefix = np.zeros(count + 2, np.intp)  # how many points have a smaller x
        np.cumsum(np.bincount(x, minlength=count + 1), out=self._prefix[1:])
        self._bits = (count + 1).bit_length()
        self._zeros: list[_Index] = []
        self._sums: list[_Words] = []
        for bit in reversed(range(self._bits)):
            is_one = (y >> bit & 1).astype(np.bool_)
            zeros = np.zeros(len(y) + 1, np.intp)
            np.cumsum(~is_one, out=zeros[1:])
            sums = np.zeros(len(y) + 1, np.uint64)
            np.cumsum(np.where(is_one, np.uint64(0), weights), out=sums[1:])
            self._zeros.append(zeros)
            self._sums.append(sums)
            order = np.concatenate([np.flatnonzero(~is_one), np.flatnonzero(is_one)])
            y, weights = y[order], weights[order]

    def __call__(self, x: _Index, y: _Index) -> _Words:
        """Sums for the corners (X, Y); X up to `count`, Y up to `count + 1`."""
        right = self._prefix.take(x)
        left = np.zeros_like(right)
        found = np.zeros(len(x), np.uint64)
        for level, bit in enumerate(reversed(range(self._bits))):
            zeros, sums = self._zeros[level], self._sums[level]
            is_one = (y >> bit & 1).astype(np.bool_)
            found += np.where(is_one, sums.take(right) - sums.take(left), np.uint64(0))
            left_zeros, right_zeros = zeros.take(left), zeros.take(right)
            left = np.where(is_one, zeros[-1] + left - left_zeros, left_zeros)
            right = np.where(is_one, zeros[-1] + right - right_zeros, right_zeros)
        return found
