"""What the file of a blob holds: a head, then the payload as it lies in memory.

The head says what the payload is (kind, dtype, shape, length), whose it is (the whole key), how
long it may be served, and carries two checksums: its own, and the payload's. Nothing in a file is
ever evaluated or unpickled: a dtype is looked up in a closed grammar, an Arrow table is read by
Arrow.

Times are kept on two clocks. Wall-clock times hold wherever the file is read. Within one boot of
the machine those of the clock that no one can set hold as well, so that a wall clock which was set
back does not make an old payload young again. What either clock calls too old, or not yet created,
is not served.

Checksums are CRC-32 of zlib: 2.2 GB/s here (14 MB: 7 ms), and it finds every burst of up to 32
bits, swapped and missing blocks. A numpy sum is three times as fast and blind to swapped words;
BLAKE2 takes four times as long to resist forgers, who cannot write into the folder.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from hotplate.clock import Clock
from hotplate.durations import NO_LIMIT_NS

__all__ = ["BlobRejected", "Head", "Kind", "Times", "crc_of"]

_MAGIC: Final = b"HPblob\r\n"
_VERSION: Final = 1
_ALIGNED: Final = 64  # as Arrow wants its buffers, and no dtype asks for more
_FIXED: Final = struct.Struct("<8sIHBBIIHxxQqqqq16sI")
_CRC_AT: Final = len(_MAGIC)
_CRC_END: Final = _CRC_AT + 4
_NEVER: Final = (1 << 63) - 1  # the largest that fits; in ns since 1970 the year 2262
_FIRST_READ: Final = 4_096  # most heads: one read
_PIECE: Final = 1 << 20  # summed while it is still in the processor's cache


class BlobRejected(Exception):
    """A file is not what its name says, or is damaged; the text holds no key.

    Attributes:
        is_damaged: whether nobody can use it, so that it may be removed.
    """

    def __init__(self, problem: str, *, is_damaged: bool = True) -> None:
        self.is_damaged = is_damaged
        super().__init__(problem)


class Kind(IntEnum):
    """What a payload is."""

    ARRAY = 1
    BYTES = 2
    ARROW = 3


@lru_cache(maxsize=1)
def _boot() -> bytes:
    """16 bytes that tell this boot of the machine from others; zeros where the system has none,
    which only makes the judgement of ages stricter."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
        return bytes.fromhex(text.strip().replace("-", "")).ljust(16, b"\0")[:16]
    except (OSError, ValueError):
        return bytes(16)


@dataclass(frozen=True, slots=True)
class Times:
    """When a payload was kept, and until when it may be served, in nanoseconds.

    Attributes:
        created_ns, expires_ns: on the clock that no one can set; of the boot `boot`.
        created_wall_ns, expires_wall_ns: since 1970.
        boot: which boot of the machine.
    """

    created_ns: int
    expires_ns: int
    created_wall_ns: int
    expires_wall_ns: int
    boot: bytes

    @classmethod
    def starting_now(cls, clock: Clock, ttl_ns: int, deadline_ns: int | None) -> Times:
        """From now for `ttl_ns`, but not beyond `deadline_ns` of `clock.now_ns()`."""
        now_ns, wall_ns = clock.now_ns(), clock.wall_ns()
        expires_ns = _NEVER if ttl_ns >= NO_LIMIT_NS else now_ns + ttl_ns
        if deadline_ns is not None:
            # one of long ago is as good as one of just now, and fits into its field
            expires_ns = min(expires_ns, max(deadline_ns, now_ns))
        # an endless one is beyond what fits
        expires_wall_ns = min(_NEVER, wall_ns + expires_ns - now_ns)
        return cls(now_ns, expires_ns, wall_ns, expires_wall_ns, _boot())

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the machine has not been started anew since."""
        return self.boot == _boot()

    def here(self) -> Times:
        """As this boot of the machine sees them: of another boot only the wall clock's hold."""
        if self.is_of_this_boot:
            return self
        return Times(0, _NEVER, self.created_wall_ns, self.expires_wall_ns, self.boot)

    def has_expired(self, now_ns: int, wall_ns: int) -> bool:
        """Whether the time is over; ask what `here` returned."""
        return now_ns >= self.expires_ns or wall_ns >= self.expires_wall_ns

    def is_ahead(self, now_ns: int, wall_ns: int) -> bool:
        """Whether it was created in what is the future now, because a clock was set back; ask what
        `here` returned."""
        return now_ns < self.created_ns or wall_ns < self.created_wall_ns


@dataclass(frozen=True)
class Head:
    """What a file says before its payload.

    Attributes:
        kind: of the payload.
        dtype: of an array, as numpy writes it (`<f4`); "" for other kinds.
        shape: of an array.
        key: whose payload.
        times: how long it may be served.
        size: bytes of the payload.
        payload_crc: their CRC-32.
        crc: the head's own, as read; 0 in one that has not been packed.
    """

    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    key: bytes
    times: Times
    size: int
    payload_crc: int = 0
    crc: int = 0

    @property
    def data_at(self) -> int:
        """Where the payload begins."""
        return _data_at(len(self.key), len(self.dtype), len(self.shape))

    def pack(self, payload_crc: int) -> bytes:
        """The bytes before the payload, `data_at` of them."""
        times, dtype = self.times, self.dtype.encode()
        numbers = (self.kind, len(self.shape), self.data_at, len(self.key), len(dtype), self.size)
        spans = (times.created_ns, times.expires_ns, times.created_wall_ns, times.expires_wall_ns)
        raw = bytearray(
            _FIXED.pack(_MAGIC, 0, _VERSION, *numbers, *spans, times.boot, payload_crc)
            + self.key
            + dtype
            + struct.pack(f"<{len(self.shape)}Q", *self.shape)
        )
        raw += bytes(self.data_at - len(raw))
        raw[_CRC_AT:_CRC_END] = zlib.crc32(raw[_CRC_END:]).to_bytes(4, "little")
        return bytes(raw)

    @classmethod
    def read(cls, fd: int, file_bytes: int) -> Head:
        """The head of an open file of so many bytes.

        Raises:
            BlobRejected: it is none, it is damaged, or the file is longer or shorter than it says.
            OSError: it cannot be read.
        """
        raw = os.pread(fd, _FIRST_READ, 0)
        if len(raw) < _FIXED.size or not raw.startswith(_MAGIC):
            raise BlobRejected("a file does not begin as a blob does")
        fields: tuple[Any, ...] = _FIXED.unpack_from(raw)
        crc, version, kind, dims, data_at, key_len, dtype_len, size = fields[1:9]
        times, payload_crc = Times(*fields[9:14]), fields[14]
        if version != _VERSION:
            raise BlobRejected(
                f"a blob is of format {version}, this Hotplate reads {_VERSION}: let all processes "
                "of a folder be of one release",
                is_damaged=False,
            )
        if data_at != _data_at(key_len, dtype_len, dims) or file_bytes != data_at + size:
            raise BlobRejected("a blob is cut short, or its head is damaged")
        if len(raw) < data_at:
            raw = os.pread(fd, data_at, 0)
        if len(raw) < data_at or zlib.crc32(raw[_CRC_END:data_at]) != crc:
            raise BlobRejected("the head of a blob is damaged")
        key_end = _FIXED.size + key_len
        dtype_end = key_end + dtype_len
        try:
            return cls(
                Kind(kind),
                raw[key_end:dtype_end].decode("ascii"),
                struct.unpack_from(f"<{dims}Q", raw, dtype_end),
                raw[_FIXED.size : key_end],
                times,
                size,
                payload_crc,
                crc,
            )
        except ValueError as error:
            raise BlobRejected("a blob is of an unknown kind") from error


def _data_at(key_len: int, dtype_len: int, dims: int) -> int:
    return -(-(_FIXED.size + key_len + dtype_len + 8 * dims) // _ALIGNED) * _ALIGNED


def crc_of(fd: int, head: Head) -> int:
    """CRC-32 of the payload in an open file.

    It is read, not mapped: a bad sector is an error of `read`, but kills whoever touches a map.

    Raises:
        OSError: it cannot be read.
    """
    piece = memoryview(bytearray(min(_PIECE, head.size)))
    crc, at, end = 0, head.data_at, head.data_at + head.size
    while at < end:
        got = os.preadv(fd, [piece[: end - at]], at)
        if not got:
            break  # cut short meanwhile: the sum will differ
        crc = zlib.crc32(piece[:got], crc)
        at += got
    return crc
