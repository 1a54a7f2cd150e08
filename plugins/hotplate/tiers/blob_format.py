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

import math
import os
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from mmap import mmap
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from hotplate.clock import Clock
from hotplate.durations import NO_LIMIT_NS
from hotplate.errors import PayloadError

__all__ = ["BlobRejected", "Head", "Kind", "Payload", "Times", "crc_of", "payload_of", "reader_of"]

_MAGIC: Final = b"HPblob\r\n"
_VERSION: Final = 1
_ALIGNED: Final = 64  # as Arrow wants its buffers, and no dtype asks for more
_FIXED: Final = struct.Struct("<8sIHBBIIHxxQqqqq16sI")
_CRC_AT: Final = len(_MAGIC)
_CRC_END: Final = _CRC_AT + 4
_FIRST_READ: Final = 4_096  # most heads: one read
_PIECE: Final = 1 << 20  # written and summed while it is still in the processor's cache

_DTYPE: Final = re.compile(
    r"[<>|](?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[SU][1-9]\d{0,8}"
    r"|[mM]8(?:\[(?:[1-9]\d{0,8})?(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)"
)


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
        expires_ns = min(NO_LIMIT_NS, now_ns + ttl_ns)
        if deadline_ns is not None:
            # one of long ago is as good as one of just now, and fits into its field
            expires_ns = min(expires_ns, max(deadline_ns, now_ns))
        left_ns = expires_ns - now_ns
        is_endless = expires_ns == NO_LIMIT_NS
        expires_wall_ns = NO_LIMIT_NS if is_endless else min(NO_LIMIT_NS, wall_ns + left_ns)
        return cls(now_ns, expires_ns, wall_ns, expires_wall_ns, _boot())

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the machine has not been started anew since."""
        return self.boot == _boot()

    def has_expired(self, now_ns: int, wall_ns: int) -> bool:
        """Whether the time is over."""
        if wall_ns >= self.expires_wall_ns:
            return True
        return self.is_of_this_boot and now_ns >= self.expires_ns

    def is_ahead(self, now_ns: int, wall_ns: int) -> bool:
        """Whether it was created in what is the future now: a clock was set back."""
        if wall_ns < self.created_wall_ns:
            return True
        return self.is_of_this_boot and now_ns < self.created_ns


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


# -- from a payload to bytes ----------------------------------------------------------------------


class Payload(Protocol):
    """Something that can be kept.

    Attributes:
        kind, dtype, shape: as in `Head`.
        size: bytes that `write` will write.
    """

    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    size: int

    def write(self, sink: Callable[[memoryview], None]) -> None:
        """Hand all bytes to `sink`, in pieces and in order."""


class _Plain:
    """Bytes that lie in memory as they are kept: arrays, and bytes themselves."""

    def __init__(self, view: memoryview, kind: Kind, dtype: str, shape: tuple[int, ...]) -> None:
        self._view = view
        self.kind, self.dtype, self.shape, self.size = kind, dtype, shape, len(view)

    def write(self, sink: Callable[[memoryview], None]) -> None:
        for at in range(0, self.size, _PIECE):
            sink(self._view[at : at + _PIECE])


class _Arrow:
    """A table in Arrow's IPC file format, not compressed, so that it can be read where it lies."""

    def __init__(self, table: Any) -> None:
        import pyarrow as pa

        self._table = table
        self.kind, self.dtype = Kind.ARROW, ""
        self.shape: tuple[int, ...] = ()
        counted = pa.MockOutputStream()
        self._write(counted)
        self.size: int = counted.size()

    def _write(self, sink: Any) -> None:
        import pyarrow as pa

        # chunks whose dictionaries differ cannot be told apart in a file
        options = pa.ipc.IpcWriteOptions(unify_dictionaries=True)
        with pa.ipc.new_file(sink, self._table.schema, options=options) as file:
            file.write_table(self._table)

    def write(self, sink: Callable[[memoryview], None]) -> None:
        import pyarrow as pa

        with pa.PythonFile(_Sink(sink), mode="w") as file:
            self._write(file)


class _Sink:
    """As much of a file as Arrow asks for."""

    def __init__(self, sink: Callable[[memoryview], None]) -> None:
        self._sink = sink
        self._written = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for at in range(0, len(view), _PIECE):
            self._sink(view[at : at + _PIECE])
        self._written += len(view)
        return len(view)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """All is handed on already."""

    def close(self) -> None:
        self.closed = True


def payload_of(value: object) -> Payload:
    """What to keep of an array, of something bytes-like or of an Arrow table.

    Raises:
        PayloadError: it is none of these, or its dtype has no bytes of its own.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return _array(value)
    try:
        view = memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        return _table(value)
    if "O" in (view.format or ""):
        raise PayloadError("blob tier: a view of objects cannot be kept: they have no bytes")
    if not view.nbytes or not view.c_contiguous:
        return _Plain(memoryview(view.tobytes()), Kind.BYTES, "", ())
    return _Plain(np.frombuffer(view, np.uint8).data, Kind.BYTES, "", ())


def _array(value: Any) -> Payload:
    if isinstance(value, np.ma.MaskedArray):
        raise PayloadError(
            "blob tier: a masked array would lose its mask. Pass value.filled(...), or the data "
            "and the mask under a key each"
        )
    dtype = value.dtype
    if _dtype_of(dtype.str) is None:
        raise PayloadError(
            f"blob tier: an array of dtype {dtype} cannot be kept: its elements are no plain "
            "numbers, times or texts of fixed width. Convert it with .astype(...), view it as "
            "numbers, or pass a pyarrow Table"
        )
    array = np.asarray(value, order="C")  # not `ascontiguousarray`: it gives scalars a dimension
    raw = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
    return _Plain(raw, Kind.ARRAY, dtype.str, array.shape)


def _table(value: object) -> Payload:
    import pyarrow as pa  # only whoever keeps tables waits for it

    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    if not isinstance(value, pa.Table):
        raise PayloadError(
            f"blob tier: {type(value).__name__} cannot be kept. Pass a numpy array (of a tensor: "
            "tensor.numpy()), bytes, or a pyarrow Table or RecordBatch"
        )
    return _Arrow(value)


def _dtype_of(text: str) -> np.dtype[Any] | None:
    return np.dtype(text) if _DTYPE.fullmatch(text) else None


# -- and back -------------------------------------------------------------------------------------


def reader_of(head: Head, data: mmap) -> Callable[[], Any]:
    """What makes the value anew at each call, without a copy; it keeps the map alive.

    A new one at each call, because whoever was given an array may change its shape, and whoever
    was given a view may release it.

    Raises:
        BlobRejected: the bytes cannot be what the head says they are.
    """
    if head.kind is Kind.ARRAY:
        dtype = _dtype_of(head.dtype)
        if dtype is None or math.prod(head.shape) * dtype.itemsize != head.size:
            raise BlobRejected("dtype or shape of a blob do not fit its length")
        shape, data_at = head.shape, head.data_at
        return lambda: np.ndarray(shape, dtype, data, data_at)
    view = memoryview(data)[head.data_at : head.data_at + head.size]
    if head.kind is Kind.BYTES:
        return lambda: view[:]
    return _table_reader(view)


def _table_reader(view: memoryview) -> Callable[[], Any]:
    import pyarrow as pa

    try:
        table = pa.ipc.open_file(pa.py_buffer(view)).read_all()
    except (pa.ArrowException, OSError) as error:
        raise BlobRejected("a blob holds no table that Arrow can read") from error
    return lambda: table
