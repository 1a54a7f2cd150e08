"""Adding up a sorted run of items over many windows at once.

Sums come from prefix sums, so their cost does not depend on how many windows there are. Smallest
and largest come from one running pass over the pieces between neighbouring starts, which needs the
windows of a `Stretch` to lie in each other and to share their end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from hotplate.windows.exact import Integers
from hotplate.windows.hyperloglog import REGISTERS

__all__ = ["LARGEST", "SMALLEST", "Stretch", "extremes", "fill_registers", "sums"]

SMALLEST: Final = -(1 << 63)
LARGEST: Final = (1 << 63) - 1


class Stretch:
    """Which items lie in each window of a chain, of each of m owners.

    Attributes:
        begin: int64 (m, w), the first item of each window, the shortest window first.
        end: int64 (m, 1), the first item after it.
        count: int64 (m, w), how many items.
    """

    __slots__ = ("_bounds", "begin", "count", "end")

    def __init__(self, begin: Integers, end: Integers) -> None:
        self.begin = begin
        self.end = end
        self.count: Integers = end - begin
        self._bounds: Integers | None = None

    @property
    def bounds(self) -> Integers:
        """int64 (m, w + 1): the places that separate the windows, in ascending order."""
        if self._bounds is None:
            self._bounds = np.concatenate((self.begin[:, ::-1], self.end), axis=1)
        return self._bounds


def sums(rows: Sequence[Integers], stretch: Stretch) -> Integers:
    """Add up rows of integers over each window, modulo 2**64.

    Args:
        rows: arrays int64 (r, n); their rows are taken together.
        stretch: the windows.

    Returns:
        int64 (R, m, w).
    """
    prefix = np.empty((sum(map(len, rows)), rows[0].shape[1] + 1), np.int64)
    prefix[:, 0] = 0
    at = 0
    for block in rows:
        prefix[at : at + len(block), 1:] = block
        at += len(block)
    np.add.accumulate(prefix, axis=1, out=prefix)
    return prefix.take(stretch.end, axis=1) - prefix.take(stretch.begin, axis=1)


def extremes(ufunc: np.ufunc, values: Integers, stretch: Stretch, empty: int) -> Integers:
    """The smallest or largest of rows over each window.

    Args:
        ufunc: `np.minimum` or `np.maximum`.
        values: int64 (r, n).
        stretch: the windows.
        empty: what an empty window gives.

    Returns:
        int64 (r, m, w).
    """
    found: Integers
    if len(stretch.begin) == 1:
        last = int(stretch.end[0, 0])
        if not last:
            return np.full((len(values), *stretch.begin.shape), empty)
        running = ufunc.accumulate(values[:, last - 1 :: -1], axis=1)
        found = running.take(stretch.count - 1, axis=1)
        found[:, stretch.begin == last] = empty
        return found
    bounds = stretch.bounds
    padded = np.empty((len(values), values.shape[1] + 1), np.int64)
    padded[:, :-1] = values
    padded[:, -1] = empty
    pieces = ufunc.reduceat(padded, bounds.ravel(), axis=1)
    pieces = pieces.reshape(len(values), *bounds.shape)[:, :, :-1]
    # reduceat gives an empty piece the item at its place instead of nothing
    pieces[:, bounds[:, :-1] == bounds[:, 1:]] = empty
    found = ufunc.accumulate(pieces[:, :, ::-1], axis=2)
    return found


def fill_registers(
    registers: npt.NDArray[np.uint8],
    stretch: Stretch,
    items: Integers,
    numbers: Integers,
    values: npt.NDArray[np.uint8],
) -> None:
    """Put what items propose into the registers of the piece of time they lie in.

    Args:
        registers: uint8 (m * (w + 1) + 1, 1024), changed: `i * (w + 1) + 1` is the oldest of the w
            pieces of owner i; those in between are of what lies in no window.
        stretch: the windows.
        items: how many proposals each item makes, int64 (n).
        numbers, values: the proposals, by item.
    """
    lengths = np.diff(stretch.bounds.ravel(), prepend=0, append=len(items))
    pieces = np.repeat(np.repeat(np.arange(len(registers)), lengths), items)
    np.maximum.at(registers.reshape(-1), pieces * REGISTERS + numbers, values)
