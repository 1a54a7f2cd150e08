"""Minimum or maximum of any ranges of an array.

A sparse table (Bender, Farach-Colton: "The LCA problem revisited", 2000) answers a range of length
n from two overlapping ranges of the largest power of two up to n. Kept for every power it would
take log2(N) copies of the array; here powers up to 32 are kept for every position, and beyond that
only for blocks of 32. A longer range is its first 32, its last 32 and the whole blocks between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hotplate.windows.exact import Integers

__all__ = ["RangeExtremes", "take_rows"]

_Ufunc: TypeAlias = Callable[..., Integers]
_LEVELS: Final = 5
_BLOCK: Final = 1 << _LEVELS
_LOG2: Final = np.floor(np.log2(np.maximum(np.arange(2 * _BLOCK), 1))).astype(np.intp)


def take_rows(table: Integers, index: npt.NDArray[np.intp]) -> Integers:
    """Rows of a table (N, C): (..., C) for an index (...); a single column is taken faster."""
    if table.shape[1] == 1:
        return table[:, 0].take(index)[..., None]
    return table.take(index, axis=0)


class RangeExtremes:
    """Answers what the smallest or largest value of a range is, column by column.

    Args:
        values: int64 (N, C), N at least 1.
        better: `np.minimum` or `np.maximum`.
    """

    def __init__(self, values: Integers, better: _Ufunc) -> None:
        self._better = better
        self._count, self._width = values.shape
        levels = [values, *_levels(values, better, _LEVELS)]
        self._items = np.concatenate(levels)
        blocks = np.ascontiguousarray(levels[-1][: max(self._count - _BLOCK + 1, 0) : _BLOCK])
        depth = max(len(blocks), 1).bit_length() - 1
        self._blocks = np.concatenate([blocks, *_levels(blocks, better, depth)])
        self._block_count = len(blocks)

    def __call__(self, lo: npt.NDArray[np.intp], hi: npt.NDArray[np.intp]) -> Integers:
        """The extremes of the ranges `[lo, hi)`, int64 (..., C); anything where one is empty."""
        lo = np.minimum(lo, self._count - 1)
        length = np.maximum(hi - lo, 1)
        level = _LOG2.take(np.minimum(length, 2 * _BLOCK - 1))
        left = level * self._count
        right = left + lo + length - (1 << level)
        left += lo
        found = self._better(take_rows(self._items, left), take_rows(self._items, right))
        long = np.flatnonzero(length >= 2 * _BLOCK)
        if long.size:
            first = (lo.ravel()[long] + _BLOCK - 1) >> _LEVELS
            last = hi.ravel()[long] >> _LEVELS
            flat = found.reshape(-1, self._width)
            flat[long] = self._better(flat[long], self._of_blocks(first, last))
        return found

    def _of_blocks(self, first: npt.NDArray[np.intp], last: npt.NDArray[np.intp]) -> Integers:
        _, level = np.frexp((last - first).astype(np.float64))
        level = level.astype(np.intp) - 1
        left = level * self._block_count
        return self._better(
            take_rows(self._blocks, left + first),
            take_rows(self._blocks, left + last - (1 << level)),
        )


def _levels(values: Integers, better: _Ufunc, depth: int) -> list[Integers]:
    """For each power 2**1 to 2**depth the extreme of that many values from each position on.

    Near the end, where there are not as many, the last values are those of fewer: no range that
    lies inside asks for them.
    """
    levels: list[Integers] = []
    previous = values
    for power in range(depth):
        step = 1 << power
        level = previous.copy()
        better(previous[:-step], previous[step:], out=level[:-step])
        levels.append(level)
        previous = level
    return levels
