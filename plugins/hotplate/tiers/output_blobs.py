"""Model outputs of more than 1 MB a row, in the blob tier.

What makes an output valid stays where that of small ones is kept: ties, deadline and nonces in the
entry of the memory tier, or of the shared tier. Only the bytes lie elsewhere. In their place an
entry holds a *reference*::

    offset  size  what
         0     5  "blob" and a version
         5    32  SHA-256 of form and bytes: the key of the file
        37     4  CRC-32 of the bytes, which the file's own head must name, too

Dtype and shape, and so the length, stand in the entry. A file is named by what is in it. So it is
right or not there, whoever wrote it and when: two processes that compute the same output write the
same file, a reference never meets the output of another input, and a file by itself makes nothing
valid. It needs no deadline: it is pushed out once nobody has read it for the longest time, and a
reference to it is a miss from then on.
"""

from __future__ import annotations

import math
import zlib
from hashlib import sha256
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hotplate.tiers.blobs import BlobTier

__all__ = ["OutputBlobs", "is_large", "is_reference"]

_Array = npt.NDArray[Any]

_LARGE_BYTES: Final = 1_000_000
_MARK: Final = b"blob\x01"
_DIGEST_BYTES: Final = 32
_CRC_BYTES: Final = 4
_REFERENCE_BYTES: Final = len(_MARK) + _DIGEST_BYTES + _CRC_BYTES
_KEY: Final = b"hotplate:output:"


def is_large(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Whether an output of this form is for the blob tier."""
    return dtype.itemsize * math.prod(shape) > _LARGE_BYTES


def is_reference(value: bytes) -> bool:
    """Whether an entry holds a reference; ask it of one whose form `is_large`."""
    return len(value) == _REFERENCE_BYTES and value.startswith(_MARK)


class OutputBlobs:
    """Large outputs in a folder that the processes of a host share.

    No method raises for a fault of the disk: what cannot be read is a miss, and counted by `tier`.

    Args:
        tier: where they lie.
    """

    def __init__(self, tier: BlobTier) -> None:
        self._tier = tier

    def keep(self, row: _Array) -> bytes | None:
        """Write an output, unless it is there already.

        Args:
            row: (1, *shape), in C order.

        Returns:
            The reference to it; None where it could not be written.
        """
        raw = row.reshape(-1).view(np.uint8).data
        digest = sha256(f"{row.dtype.str}:{row.shape}:".encode())
        digest.update(raw)
        key, crc = _KEY + digest.digest(), zlib.crc32(raw)
        is_there = _is_of(self._tier.peek(key, crc=crc), row.dtype, row.shape)
        if is_there or self._tier.put(key, row):
            return _MARK + digest.digest() + crc.to_bytes(_CRC_BYTES, "little")
        return None

    def find(self, reference: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> _Array | None:
        """What a reference stands for, over the map of its file: (1, *shape), read-only."""
        key, crc = reference[len(_MARK) : -_CRC_BYTES], reference[-_CRC_BYTES:]
        found = self._tier.get(_KEY + key, crc=int.from_bytes(crc, "little"))
        return found if _is_of(found, dtype, (1, *shape)) else None


def _is_of(found: object, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Whether a payload is the array that it was put as."""
    return isinstance(found, np.ndarray) and (found.dtype, found.shape) == (dtype, shape)
