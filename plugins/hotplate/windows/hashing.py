"""Stable 64-bit hashes of ids and of values whose different ones are counted.

The same value gives the same hash in every process, version and language: it is written into stored
state and computed again offline.

- Whole numbers: the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
  number generators", 2014) of the number modulo 2**64, after adding its increment. It maps 64 bits
  one to one, so different int64 never collide. A float that is a whole number hashes like the
  integer, because a column of integers with a null in it often arrives as floats; other floats by
  their bits.
- Text as UTF-8 and bytes: BLAKE2b (RFC 7693) with an 8-byte digest, read as a little-endian
  integer. Any other object by its `str`.

Hashes are int64 and compared as such; the hash 0 is replaced by 1, so that 0 can stand for null.
None, NaN, NaT and empty text are null.
"""

from __future__ import annotations

from hashlib import blake2b
from numbers import Integral
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hotplate.windows.exact import Integers

__all__ = ["NO_HASH", "hashes_of", "is_null"]

NO_HASH: Final = 0
"""What stands for null."""

_INCREMENT: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_FIRST: Final = np.uint64(0xBF58_476D_1CE4_E5B9)
_SECOND: Final = np.uint64(0x94D0_49BB_1331_11EB)


def is_null(value: object) -> bool:
    """Whether a value stands for nothing: None, NaN, NaT, pandas' NA."""
    if value is None:
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # pandas' NA refuses to be true or false; arrays to be one
        return type(value).__name__ == "NAType"


def hashes_of(values: npt.ArrayLike) -> Integers:
    """Hash every value of a one-dimensional array; null gives `NO_HASH`.

    Args:
        values: integers, floats, booleans, text, bytes, datetimes or objects.

    Returns:
        int64 of the same length.
    """
    array = np.asarray(values)
    kind = array.dtype.kind
    if kind in "iub":
        return _mixed(array.astype(np.int64, copy=False))
    if kind == "f":
        return _of_floats(array.astype(np.float64, copy=False))
    if kind in "mM":
        return np.where(np.isnat(array), NO_HASH, _mixed(array.view(np.int64)))
    objects = array.tolist()
    if set(map(type, objects)) == {str}:
        return _of_texts(objects)
    known: dict[Any, int] = {}  # by type too: 1, 1.0 and True are equal, "1" is not among them
    out = np.empty(len(array), np.int64)
    for index, value in enumerate(objects):
        key = (type(value), value)
        try:
            found = known.get(key)
        except TypeError:  # not hashable by Python
            out[index] = _of_object(value)
            continue
        if found is None:
            found = known[key] = _of_object(value)
        out[index] = found
    return out


def _mixed(numbers: Integers) -> Integers:
    x = numbers.view(np.uint64) + _INCREMENT
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    x ^= x >> np.uint64(31)
    x[x == 0] = 1
    return x.view(np.int64)


def _of_floats(values: npt.NDArray[np.float64]) -> Integers:
    is_whole = (np.abs(values) < 2.0**63) & (np.floor(values) == values)
    as_integers = np.where(is_whole, values, 0).astype(np.int64)
    bits = np.where(is_whole, as_integers, values.view(np.int64))
    return np.where(np.isnan(values), NO_HASH, _mixed(bits))


def _of_object(value: object) -> int:
    if isinstance(value, (str, bytes)):
        raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        return _of_bytes(raw) if raw else NO_HASH
    if is_null(value):
        return NO_HASH
    if isinstance(value, Integral):
        wrapped = (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)
        return int(_mixed(np.array([wrapped]))[0])
    if isinstance(value, (float, np.floating)):
        return int(_of_floats(np.array([float(value)]))[0])
    return _of_bytes(str(value).encode())


def _of_texts(texts: list[str]) -> Integers:
    """The same as `_of_object` of each, in fewer steps: event ids are texts most often."""
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    raws = [text.encode("utf-8", "surrogatepass") for text in places]
    digests = b"".join([blake2b(raw, digest_size=8).digest() for raw in raws])
    hashes = np.frombuffer(digests, "<i8").astype(np.int64)
    hashes[hashes == 0] = 1
    if "" in places:
        hashes[places[""]] = NO_HASH
    if len(places) == len(texts):
        return hashes
    return hashes[[places[text] for text in texts]]


def _of_bytes(raw: bytes) -> int:
    number = int.from_bytes(blake2b(raw, digest_size=8).digest(), "little", signed=True)
    return number or 1
