"""Approximate distinct counts: HyperLogLog with 1,024 registers (standard error 3.25 %).

Flajolet, Fusy, Gandouet, Meunier: "HyperLogLog: the analysis of a near-optimal cardinality
estimation algorithm", 2007, with its linear counting for small sets and no correction for large
ones, which 64-bit hashes do not need.

A register is at most 43, so the sum of 2**-register over 1,024 registers needs no more than the 53
bits of a float64: it is exact, whatever the order of addition. The estimate is a whole number.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hotplate.windows.exact import Floats, Integers

__all__ = ["POWERS", "REGISTERS", "estimate", "registers_of"]

_PRECISION: Final = 10
REGISTERS: Final = 1 << _PRECISION
_MAX_RANK: Final = 43
_RAW: Final = 0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS * REGISTERS
_Small: TypeAlias = npt.NDArray[np.uint8]

POWERS: Final = np.ldexp(1.0, -np.arange(_MAX_RANK + 1))
"""2**-register."""

# zeros -> linear count, as whole numbers, so that no platform's logarithm shows
_LINEAR: Final = np.array(
    [0.0] + [float(round(REGISTERS * math.log(REGISTERS / v))) for v in range(1, REGISTERS + 1)]
)


def registers_of(hashes: Integers) -> tuple[Integers, _Small]:
    """Which register each 64-bit hash belongs to, and the value it proposes.

    Args:
        hashes: int64 (n), the bits of a well-mixed hash.

    Returns:
        Register numbers int64 (n) below 1,024, and values uint8 (n) from 1 to 43.
    """
    bits = hashes.view(np.uint64)
    numbers = (bits >> np.uint64(64 - _PRECISION)).astype(np.int64)
    # the position of the first 1 in what follows: of the highest bit of the next 42
    rest = ((bits >> np.uint64(12)) & np.uint64((1 << 42) - 1)).astype(np.float64)
    _, length = np.frexp(rest)  # exact: 42 bits fit a float64
    return numbers, (_MAX_RANK - length).astype(np.uint8)


def estimate(powers: Floats, zeros: Integers) -> Floats:
    """The number of different values, rounded to a whole number.

    Args:
        powers: sum of 2**-register over all registers.
        zeros: how many registers are 0.
    """
    raw = _RAW / powers
    is_small = (raw <= 2.5 * REGISTERS) & (zeros > 0)
    return np.where(is_small, _LINEAR.take(zeros), np.rint(raw))
