"""From a payload to the bytes of a blob, and back without a copy.

Arrays and bytes are kept as they lie in memory, Arrow tables in Arrow's own file format. Nothing
is ever evaluated or unpickled: a dtype is looked up in a closed grammar.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from mmap import mmap
from typing import Any, Final, Protocol

import numpy as np

from hotplate.errors import PayloadError
from hotplate.tiers.blob_format import BlobRejected, Head, Kind

__all__ = ["Payload", "payload_of", "reader_of"]

_PIECE: Final = 1 << 20  # written and summed while it is still in the processor's cache

_DTYPE: Final = re.compile(
    r"[<>|](?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[SU][1-9]\d{0,8}"
    r"|[mM]8(?:\[(?:[1-9]\d{0,8})?(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)"
)


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
