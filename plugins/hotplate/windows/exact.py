"""Exact integers wider than 64 bits, in numpy.

A wide integer is three int64 *limbs* on the last axis: `x0 + x1 * 2**36 + x2 * 2**72`. A limb may
hold any int64, so wide integers are added, subtracted and summed up along an axis limb by limb with
numpy's own operations: with values up to 2**53 and their squares each limb of one value is below
2**36, and 2**27 of them can be added before a limb overflows. Carries are settled once, at the end.

Conversions to float64 are correctly rounded (half to even), like Python's own `float(int)`.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "Floats",
    "Integers",
    "as_limbs",
    "limbs_from_pair",
    "pair_from_limbs",
    "spread_numerator",
    "spread_numerators",
    "squares",
    "to_float",
    "to_python",
]

Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
_Words: TypeAlias = npt.NDArray[np.uint64]

_BITS: Final = 36
_MASK: Final = (1 << _BITS) - 1
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFF_FFFF)


def as_limbs(values: Integers) -> Integers:
    """int64 (...) -> limbs (..., 3)."""
    out = np.zeros((*values.shape, 3), np.int64)
    np.bitwise_and(values, _MASK, out=out[..., 0])
    np.right_shift(values, _BITS, out=out[..., 1])
    return out


def squares(values: Integers) -> Integers:
    """int64 (...) of magnitude up to 2**53 -> limbs (..., 3) of their squares."""
    high = np.abs(values)
    low = high & ((1 << 27) - 1)
    high >>= 27
    middle = 2 * high * low
    # value**2 = high**2 * 2**54 + middle * 2**27 + low**2, each below 2**54
    low = low * low + ((middle & ((1 << 27) - 1)) << 27)
    top = high * high + (middle >> 27) + (low >> 54)
    low &= (1 << 54) - 1
    out = np.empty((*values.shape, 3), np.int64)
    out[..., 0] = low & _MASK
    out[..., 1] = (low >> _BITS) | ((top & ((1 << 18) - 1)) << 18)
    out[..., 2] = top >> 18
    return out


def _settled(limbs: Integers) -> tuple[Integers, Integers]:
    """Limbs -> (high, low) halves of 64 bits in two's complement, both as int64."""
    carry = limbs[..., 0] >> _BITS
    x0 = limbs[..., 0] & _MASK
    x1 = limbs[..., 1] + carry
    x2 = limbs[..., 2] + (x1 >> _BITS)
    x1 = x1 & _MASK
    return (x2 << 8) | (x1 >> 28), x0 | (x1 << _BITS)


def pair_from_limbs(limbs: Integers) -> Integers:
    """Limbs (..., 3) -> (..., 2): high and low 64 bits of the two's complement.

    Values must lie within 128 bits.
    """
    return np.stack(_settled(limbs), axis=-1)


def limbs_from_pair(pair: Integers) -> Integers:
    """The inverse of `pair_from_limbs`."""
    high, low = pair[..., 0], pair[..., 1]
    out = np.empty((*high.shape, 3), np.int64)
    out[..., 0] = low & _MASK
    out[..., 1] = ((low >> _BITS) & ((1 << 28) - 1)) | ((high & 0xFF) << 28)
    out[..., 2] = high >> 8
    return out


def to_python(limbs: Integers) -> list[int]:
    """Limbs (n, 3) -> Python integers."""
    return [x0 + (x1 << _BITS) + (x2 << 2 * _BITS) for x0, x1, x2 in limbs.tolist()]


def to_float(limbs: Integers) -> Floats:
    """Limbs (..., 3) of values within 127 bits -> float64 (...), correctly rounded."""
    high, low = _settled(limbs)
    sign = np.where(high < 0, -1.0, 1.0)
    # two's complement negation of a pair: invert, then add one with its carry
    minus_low = -low
    minus_high = ~high + (low == 0)
    is_negative = high < 0
    return sign * _round(
        np.where(is_negative, minus_high, high).view(np.uint64),
        np.where(is_negative, minus_low, low).view(np.uint64),
    )


def _round(high: _Words, low: _Words) -> Floats:
    """The float64 nearest to `high * 2**64 + low`, where high is below 2**63."""
    # The top 63 or 64 bits are kept; whether anything below them is set goes into the last bit,
    # which is far below the 53 bits of a float64, so the rounding of `astype` is the right one.
    _, bits = np.frexp(high.astype(np.float64))  # at least the length of high, at most one more
    bits = np.minimum(bits, 63).astype(np.uint64)
    left = np.uint64(64) - bits
    is_wide = bits > 0
    safe = np.where(is_wide, left, np.uint64(1))  # a shift by 64 is undefined
    top = np.where(is_wide, (high << safe) | (low >> bits), low)
    lost = np.where(is_wide, low << safe, np.uint64(0)) != 0
    rounded: Floats = np.ldexp((top | lost).astype(np.float64), bits.astype(np.int32))
    return rounded


def _product(a: _Words, b: _Words) -> tuple[_Words, _Words]:
    """64 x 64 bits -> (high, low)."""
    a1, a0 = a >> _HALF, a & _LOW
    b1, b0 = b >> _HALF, b & _LOW
    low = a0 * b0
    first = a1 * b0 + (low >> _HALF)
    second = a0 * b1 + (first & _LOW)
    return a1 * b1 + (first >> _HALF) + (second >> _HALF), a * b


def spread_numerator(n: Integers, s: Integers, q: Integers) -> Floats:
    """`n * q - s * s`, correctly rounded to float64, for n below 2**32.

    Args:
        n: int64 (...).
        s, q: limbs (..., 3) of a sum and of the sum of the squares.
    """
    s_high, s_low = _settled(s)
    q_high, q_low = _settled(q)
    # s*s <= n*q, so the product of n and q decides alone whether 127 bits are enough
    is_short = (s_high == s_low >> 63) & (
        n.astype(np.float64) * (q_high.astype(np.float64) + 1) < 2.0**62
    )
    count = n.astype(np.uint64)
    high, low = _product(q_low.view(np.uint64), count)
    high = high + q_high.view(np.uint64) * count
    magnitude = np.abs(s_low).view(np.uint64)
    s_top, s_bottom = _product(magnitude, magnitude)
    borrow = low < s_bottom
    high = np.where(is_short, high - s_top - borrow, np.uint64(0))
    out = _round(high, low - s_bottom)
    if not is_short.all():
        _correct(out, ~is_short, n, s, q)
    return out


def spread_numerators(n: list[int], s: list[int], q: list[int]) -> list[float]:
    """The same of Python's integers, however large."""
    return [
        float(count * square - total * total) for count, total, square in zip(n, s, q, strict=True)
    ]


def _correct(out: Floats, where: npt.NDArray[Any], n: Integers, s: Integers, q: Integers) -> None:
    """Recompute the few that need more than 127 bits, with Python's integers."""
    out[where] = spread_numerators(n[where].tolist(), to_python(s[where]), to_python(q[where]))
