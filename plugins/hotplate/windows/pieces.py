"""Ranges of events with single ones taken out of them.

At a past moment an event that came late is not visible yet, while those after it may be. So a range
has holes; few, but there is no bound on how far apart. What can be subtracted is: counts and sums.
What cannot is put together from the pieces between the holes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Holes", "Pieces", "pieces_of"]

_Index: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Holes:
    """Events that lie in some of the ranges and do not belong to them.

    Attributes:
        cells: positions of those ranges among all, ascending, each once.
        begins: where in `index` the events of each begin.
        index: positions of the events in the sequence, ascending within a cell.
    """

    cells: _Index
    begins: _Index
    index: _Index

    @property
    def counts(self) -> _Index:
        """How many each of the cells has."""
        return np.diff(self.begins, append=len(self.index))

    def pieces(self, lo: _Index, hi: _Index) -> Pieces:
        """What is left of the ranges with holes, of all ranges `[lo, hi)`."""
        lo, hi = lo.reshape(-1)[self.cells], hi.reshape(-1)[self.cells]
        return pieces_of(lo, hi, self.begins, self.index)


@dataclass(frozen=True)
class Pieces:
    """Ranges `[lo, hi)`, some of them empty, that together make others.

    Attributes:
        begins: where the pieces of each of those begin.
    """

    lo: _Index
    hi: _Index
    begins: _Index


def pieces_of(lo: _Index, hi: _Index, begins: _Index, cuts: _Index) -> Pieces:
    """Cut ranges `[lo, hi)` at holes that lie inside them.

    Args:
        lo, hi: the ranges.
        begins: where in `cuts` the holes of each begin; each has at least one.
        cuts: the holes, ascending within a range.
    """
    count, total = len(lo), len(lo) + len(cuts)
    firsts = begins + np.arange(count)
    owners = np.repeat(np.arange(count), np.diff(begins, append=len(cuts)))
    before = np.arange(len(cuts)) + owners  # the piece that ends at each cut
    piece_lo, piece_hi = np.empty(total, np.intp), np.empty(total, np.intp)
    piece_lo[firsts], piece_lo[before + 1] = lo, cuts + 1
    piece_hi[before], piece_hi[np.append(firsts[1:], total) - 1] = cuts, hi
    return Pieces(piece_lo, piece_hi, firsts)
