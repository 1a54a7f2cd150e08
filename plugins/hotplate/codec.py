"""The packed row: one entity's features of one view as bytes.

The same bytes lie in the memory tier and, later, in the shared one, and a batch of rows becomes a
numpy matrix by joining them. Little-endian but for the stamp::

    offset  size  what
         0     8  stamp: when the read of the source began, ns on the cache's clock, BIG-endian,
                  so that comparing two rows as bytes compares their ages
         8     1  jitter: share of the policy's jitter that this row takes, in 1/255
         9     1  flags
        10     6  zero
        16     8  event timestamp, us since 1970, or NO_EVENT_TIME
        24     .  fixed section: one cell a column (8, 4 or 1 bytes; for a column of variable
                  length the end of its bytes, 4, counted from the start of the variable part)
         .     n  only with the flag STATES: one byte a column (VALUE, NULL, NOT_FOUND)
         .     .  the variable part

A value whose type is not the one that the view declares (an old row after a change of schema)
makes the row GENERIC: every column as Feast's own serialized `Value`. It is slower to read and
never wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from feast.protos.feast.types.Value_pb2 import Value
from feast.type_map import NULL_TIMESTAMP_INT_VALUE, feast_value_type_to_python_type
from feast.value_type import ValueType

__all__ = [
    "ABSENT_ROW",
    "DEFAULTED",
    "EVENT_AT",
    "FLAGS_AT",
    "GENERIC",
    "NOT_FOUND",
    "NO_EVENT_TIME",
    "NULL",
    "PREFIX_BYTES",
    "STATES",
    "VALUE",
    "Column",
    "Layout",
    "SourceRow",
    "event_us",
    "flags_of",
    "heads_of",
    "is_absent",
    "kind_of",
    "stamp_of",
    "varint",
]

PREFIX_BYTES: Final = 9  # stamp and jitter, which the engine puts before what the codec encodes
HEADER_BYTES: Final = 24
FLAGS_AT: Final = 9
EVENT_AT: Final = slice(16, 24)
_HEAD: Final = np.dtype([("stamp", ">i8"), ("jitter", "u1"), ("flags", "u1")])
STATES: Final = 1
GENERIC: Final = 2
ABSENT_ROW: Final = 4
DEFAULTED: Final = 8
"""Beside ABSENT_ROW: the values are those that the group declares for it; never kept."""

VALUE: Final = 0
NULL: Final = 1
NOT_FOUND: Final = 2

NO_EVENT_TIME: Final = -(1 << 63)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# kind of a column -> struct code of its cell; every other kind is of variable length
_FIXED: Final = {
    "double_val": "d",
    "float_val": "f",
    "int64_val": "q",
    "int32_val": "i",
    "bool_val": "?",
    "unix_timestamp_val": "q",
}
_NUMERIC: Final = frozenset({"double_val", "float_val", "int64_val", "int32_val", "bool_val"})
_NUMPY: Final = {"d": "<f8", "f": "<f4", "q": "<i8", "i": "<i4", "?": "?", "I": "<u4"}
_SPECIAL_KINDS: Final = {
    "VALUE_LIST": "list_val",
    "VALUE_SET": "set_val",
    "PDF_BYTES": "bytes_val",
    "IMAGE_BYTES": "bytes_val",
}
# Tags of Feast's Value.proto: (field number << 3) | wire type (0 varint, 2 length-delimited)
_TAGS: Final = {
    "bytes_val": b"\x0a",
    "string_val": b"\x12",
    "int32_val": b"\x18",
    "int64_val": b"\x20",
    "bool_val": b"\x38",
    "unix_timestamp_val": b"\x40",
}
_WIRE_FLOAT: Final = {"double_val": (b"\x29", 9), "float_val": (b"\x35", 5)}


@dataclass(frozen=True)
class Column:
    """One feature: its name and its declared Feast type."""

    name: str
    value_type: ValueType

    @property
    def kind(self) -> str:
        """The field of Feast's `Value` that holds the declared type."""
        return kind_of(self.value_type)


@dataclass(frozen=True)
class SourceRow:
    """What a source said of one entity.

    Attributes:
        event_us: event timestamp in microseconds since 1970, or None.
        values: one item a column: a `Value`, its serialized bytes, or None where the source
            returned no such feature.
    """

    event_us: int | None
    values: Sequence[Value | bytes | None]


def kind_of(value_type: ValueType) -> str:
    """The field of Feast's `Value` that holds a declared type: `DOUBLE` -> `"double_val"`."""
    return _SPECIAL_KINDS.get(value_type.name, f"{value_type.name.lower()}_val")


def event_us(moment: datetime | None) -> int | None:
    """Microseconds since 1970 of a source's timestamp; a naive one is UTC, as Feast takes it."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def stamp_of(row: bytes) -> int:
    """When the read of the source that gave this row began, ns on the cache's clock."""
    return int.from_bytes(row[:8], "big")


def flags_of(row: bytes) -> int:
    """The row's flags: STATES, GENERIC, ABSENT_ROW, DEFAULTED."""
    return row[FLAGS_AT]


def heads_of(rows: Sequence[bytes]) -> npt.NDArray[np.void]:
    """What stands at the head of each of some rows: fields `stamp`, `jitter` and `flags`."""
    return np.frombuffer(b"".join([row[: FLAGS_AT + 1] for row in rows]), _HEAD)


def is_absent(row: bytes) -> bool:
    """Whether the row says that the source knows nothing of the entity."""
    return bool(row[FLAGS_AT] & ABSENT_ROW)


class Layout:
    """How the rows of one schema are packed.

    Args:
        columns: the view's features in order.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self.kinds = tuple(column.kind for column in self.columns)
        self.positions = {column.name: index for index, column in enumerate(self.columns)}
        codes = [_FIXED.get(kind, "I") for kind in self.kinds]
        self._cells = struct.Struct("<" + "".join(codes))
        self.fixed_end = HEADER_BYTES + self._cells.size
        self._variable = [i for i, kind in enumerate(self.kinds) if kind not in _FIXED]
        self._times = [i for i, kind in enumerate(self.kinds) if kind == "unix_timestamp_val"]
        self.offsets = [
            HEADER_BYTES + struct.calcsize("<" + "".join(codes[:i])) for i in range(len(codes))
        ]
        self.widths = [struct.calcsize(code) for code in codes]
        self._unpack: Callable[[bytes], tuple[Any, ...]] = struct.Struct(
            f"<{HEADER_BYTES}x" + "".join(codes)
        ).unpack_from
        self.is_plain = not self._variable and not self._times
        """Whether every column is a number or a boolean, so that one `unpack` decodes a row."""
        self.decode_plain = self._unpack if self.is_plain else self._decode_mixed
        # a row of 64-bit and 32-bit floats is its serialized values without their tags
        self._wire = (
            [_WIRE_FLOAT[kind] for kind in self.kinds]
            if self.kinds and all(kind in _WIRE_FLOAT for kind in self.kinds)
            else None
        )

        # all of these at once, without the lock that a lazy property takes (a forked child could
        # find it held)
        self.wire = self._find_wire()
        """(tag, width) where a plain row's cells are its serialized values without their tag."""
        self.numpy_fields = self._find_numpy_fields()
        """Column -> (numpy type, offset in the row), for reading joined rows as an array."""
        self._block = self._find_block()
        """(numpy type, count) where all cells are of one type, so that rows form one matrix."""

    def __repr__(self) -> str:
        return f"Layout({', '.join(f'{c.name}:{c.value_type.name}' for c in self.columns)})"

    # -- encode ---------------------------------------------------------------------------------

    def encode(self, row: SourceRow) -> bytes:
        """Pack what a source said of one entity; the engine prepends stamp and jitter.

        Raises:
            ValueError: the row has not one value a column.
        """
        if len(row.values) != len(self.columns):
            raise ValueError(
                f"{len(row.values)} values for the {len(self.columns)} columns of {self!r}"
            )
        if self._wire is not None:
            packed = self._encode_wire(row)
            if packed is not None:
                return packed
        return self._encode_values(row)

    def _encode_wire(self, row: SourceRow) -> bytes | None:
        cells = []
        for value, (tag, size) in zip(row.values, self._wire or (), strict=True):
            if type(value) is not bytes or len(value) != size or value[:1] != tag:
                return None
            cells.append(value[1:])
        return _header(0, row.event_us) + b"".join(cells)

    def _encode_values(self, row: SourceRow) -> bytes:
        values = [Value.FromString(v) if isinstance(v, bytes) else v for v in row.values]
        states = bytearray(len(values))
        cells: list[Any] = []
        tail: list[bytes] = []
        end = 0
        for index, (value, declared) in enumerate(zip(values, self.kinds, strict=True)):
            kind = None if value is None else value.WhichOneof("val")
            is_fixed = declared in _FIXED
            if value is None or kind is None:
                states[index] = NOT_FOUND if value is None else NULL
                cells.append(0 if is_fixed else end)
            elif kind != declared:
                return self._encode_generic(row)
            elif is_fixed:
                cells.append(getattr(value, kind))
            else:
                tail.append(_variable_bytes(value, kind))
                end += len(tail[-1])
                cells.append(end)
        flags = 0
        if any(states):
            flags = STATES
            tail.insert(0, bytes(states))
            if _says_absent(states, row.event_us):
                flags |= ABSENT_ROW
        return _header(flags, row.event_us) + self._cells.pack(*cells) + b"".join(tail)

    def _encode_generic(self, row: SourceRow) -> bytes:
        parts = []
        for value in row.values:
            if value is None:
                parts.append(struct.pack("<BI", NOT_FOUND, 0))
                continue
            raw = value if isinstance(value, bytes) else value.SerializeToString()
            parts.append(struct.pack("<BI", VALUE, len(raw)) + raw)
        return _header(GENERIC, row.event_us) + bytes(self._cells.size) + b"".join(parts)

    def encode_numbers(self, values: npt.NDArray[np.float64], event_us: int) -> list[bytes]:
        """Pack rows of numbers that were computed, all as of one moment.

        Args:
            values: (rows, columns), every column of this layout a 64-bit float or integer; NaN is
                null. Integers must be exact in float64.
            event_us: event timestamp of all rows, microseconds since 1970.

        Raises:
            TypeError: a column is of another type.
        """
        if any(kind not in ("double_val", "int64_val") for kind in self.kinds):
            raise TypeError(f"not all columns are 64-bit numbers: {self!r}")
        nulls = np.isnan(values)
        cells = np.where(nulls, 0.0, values).astype("<f8")
        whole = [index for index, kind in enumerate(self.kinds) if kind == "int64_val"]
        if whole:
            numbers = cells[:, whole].astype("<i8")
            cells[:, whole] = numbers.view("<f8")
        packed, size = cells.tobytes(), self._cells.size
        plain, nulled = _header(0, event_us), _header(STATES, event_us)
        states = (nulls * np.uint8(NULL)).tobytes()
        count = len(self.columns)
        return [
            nulled + packed[at * size : (at + 1) * size] + states[at * count : (at + 1) * count]
            if has_null
            else plain + packed[at * size : (at + 1) * size]
            for at, has_null in enumerate(np.any(nulls, axis=1).tolist())
        ]

    # -- decode ---------------------------------------------------------------------------------

    def decode(self, row: bytes) -> Sequence[Any]:
        """A row as Python values, one a column, as Feast's `to_dict` gives them; null is None."""
        if not row[FLAGS_AT]:
            return self.decode_plain(row)
        if row[FLAGS_AT] & GENERIC:
            return [
                None if value is None else feast_value_type_to_python_type(value, column.value_type)
                for value, column in zip(self.values(row), self.columns, strict=True)
            ]
        decoded = self._decode_mixed(row)
        states = self.states(row)
        return [None if state else value for state, value in zip(states, decoded, strict=True)]

    def decode_at(self, row: bytes, positions: Sequence[int]) -> list[Any]:
        """Some columns of a row, one by one: slower, and blind to the columns not named."""
        items = self.serialized(row)
        return [
            feast_value_type_to_python_type(Value.FromString(raw), self.columns[at].value_type)
            if (raw := items[at])
            else None
            for at in positions
        ]

    def _decode_mixed(self, row: bytes) -> list[Any]:
        cells = list(self._unpack(row))
        for index in self._times:
            cells[index] = _as_moment(cells[index])
        start, at = 0, self._tail_start(row)
        for index in self._variable:
            end = cells[index]
            cells[index] = _variable_value(self.kinds[index], row[at + start : at + end])
            start = end
        return cells

    def _tail_start(self, row: bytes) -> int:
        return self.fixed_end + (len(self.columns) if row[FLAGS_AT] & STATES else 0)

    def states(self, row: bytes) -> bytes:
        """One state a column: VALUE, NULL or NOT_FOUND."""
        flags = row[FLAGS_AT]
        if flags & GENERIC:
            return bytes(
                NOT_FOUND if value is None else NULL if value.WhichOneof("val") is None else VALUE
                for value in self.values(row)
            )
        if flags & STATES:
            return row[self.fixed_end : self.fixed_end + len(self.columns)]
        return bytes(len(self.columns))

    def values(self, row: bytes) -> list[Value | None]:
        """A row as Feast's `Value`s, one a column; None where the source had no such feature."""
        return [None if raw is None else Value.FromString(raw) for raw in self.serialized(row)]

    def serialized(self, row: bytes) -> list[bytes | None]:
        """A row as serialized `Value`s; empty for a null, None where there is no such feature."""
        if row[FLAGS_AT] & GENERIC:
            return self._generic_items(row)
        cells = self._unpack(row)
        states = self.states(row)
        start, at = 0, self._tail_start(row)
        items: list[bytes | None] = []
        for index, (kind, cell, state) in enumerate(zip(self.kinds, cells, states, strict=True)):
            is_fixed = kind in _FIXED
            if state:
                items.append(None if state == NOT_FOUND else b"")
            elif kind in _WIRE_FLOAT:
                offset = self.offsets[index]
                items.append(_WIRE_FLOAT[kind][0] + row[offset : offset + self.widths[index]])
            elif is_fixed:
                items.append(_TAGS[kind] + varint(cell))
            else:
                items.append(_variable_serialized(kind, row[at + start : at + cell]))
            start = start if is_fixed else cell
        return items

    def _generic_items(self, row: bytes) -> list[bytes | None]:
        items: list[bytes | None] = []
        at = self.fixed_end
        for _ in self.columns:
            state, size = struct.unpack_from("<BI", row, at)
            at += 5
            items.append(None if state == NOT_FOUND else row[at : at + size])
            at += size
        return items

    def event_us(self, row: bytes) -> int | None:
        """The row's event timestamp, microseconds since 1970, or None."""
        moment = int.from_bytes(row[EVENT_AT], "little", signed=True)
        return None if moment == NO_EVENT_TIME else moment

    def _find_wire(self) -> tuple[bytes, int] | None:
        if self._wire is None or len(set(self._wire)) != 1:
            return None
        tag, size = self._wire[0]
        return tag, size - len(tag)

    # -- numpy ----------------------------------------------------------------------------------

    def is_numeric(self, name: str) -> bool:
        """Whether a feature is a number or a boolean, so that a matrix can hold it."""
        return self.kinds[self.positions[name]] in _NUMERIC

    def _find_numpy_fields(self) -> dict[str, tuple[str, int]]:
        return {
            column.name: (_NUMPY[_FIXED.get(kind, "I")], offset)
            for column, kind, offset in zip(self.columns, self.kinds, self.offsets, strict=True)
        }

    def _find_block(self) -> tuple[str, int] | None:
        codes = {_FIXED.get(kind) for kind in self.kinds}
        code = codes.pop() if len(codes) == 1 else None
        return None if code is None else (_NUMPY[code], len(self.kinds))

    def columns_of(self, rows: Sequence[bytes], positions: Sequence[int]) -> list[list[Any]] | None:
        """Columns of a batch as Python values, column by column; None where a row has flags."""
        if any(row[FLAGS_AT] for row in rows):
            return None
        if self._block is None:
            return self._mixed_columns(rows, positions)
        end = self.fixed_end
        joined = b"".join(rows)
        cell_type, count = self._block
        strides = (np.dtype(cell_type).itemsize, end)
        cells = np.ndarray((count, len(rows)), cell_type, joined, HEADER_BYTES, strides)
        columns: list[list[Any]] = cells[positions].tolist()
        return columns

    def _mixed_columns(self, rows: Sequence[bytes], positions: Sequence[int]) -> list[list[Any]]:
        cells = list(zip(*map(self._unpack, rows), strict=True))
        before: Sequence[int] = [0] * len(rows)
        starts = {}
        for index in self._variable:  # a value begins where the one before it ends
            starts[index] = before
            before = cells[index]
        columns: list[list[Any]] = []
        for position in positions:
            kind = self.kinds[position]
            if position in starts:
                columns.append(self._variable_column(rows, kind, starts[position], cells[position]))
            elif kind == "unix_timestamp_val":
                columns.append([_as_moment(seconds) for seconds in cells[position]])
            else:
                columns.append(list(cells[position]))
        return columns

    def _variable_column(
        self, rows: Sequence[bytes], kind: str, starts: Sequence[int], ends: Sequence[int]
    ) -> list[Any]:
        at = self.fixed_end
        spans = zip(rows, starts, ends, strict=True)
        if kind == "string_val":
            return [row[at + start : at + end].decode() for row, start, end in spans]
        return [_variable_value(kind, row[at + start : at + end]) for row, start, end in spans]

    def fill_matrix(
        self,
        rows: Sequence[bytes],
        positions: Sequence[int],
        out: npt.NDArray[np.float32],
        into: Sequence[int],
    ) -> None:
        """Write columns `positions` of `rows` into columns `into` of `out`; null becomes NaN.

        Args:
            rows: packed rows of this layout, one a row of `out`.
            positions: which of this layout's columns.
            out: float32, shape (len(rows), features).
            into: which columns of `out`, as many as `positions`.
        """
        end = self.fixed_end
        joined = b"".join(rows)
        # no row is shorter than its fixed section, so the sum tells whether any is longer
        is_even = len(joined) == end * len(rows)
        if not is_even:
            joined = b"".join([row[:end] for row in rows])
        if self._block is not None and len(rows) > 0:
            cell_type, count = self._block
            strides = (end, np.dtype(cell_type).itemsize)
            cells = np.ndarray((len(rows), count), cell_type, joined, HEADER_BYTES, strides)
            out[:, into] = cells[:, positions]
        else:
            for position, column in zip(positions, into, strict=True):
                cell_type, offset = self.numpy_fields[self.columns[position].name]
                out[:, column] = np.ndarray((len(rows),), cell_type, joined, offset, (end,))
        if not is_even:
            flags = np.ndarray((len(rows),), np.uint8, joined, FLAGS_AT, (end,))
            self._fill_nulls(rows, np.flatnonzero(flags & STATES), positions, out, into)
            for index in np.flatnonzero(flags & GENERIC).tolist():
                self._patch(rows[index], positions, out[index], into)

    def _fill_nulls(
        self,
        rows: Sequence[bytes],
        places: npt.NDArray[np.intp],
        positions: Sequence[int],
        out: npt.NDArray[np.float32],
        into: Sequence[int],
    ) -> None:
        """Put NaN where rows have no value; their cells there are zeros."""
        if not len(places):
            return
        begins, ends = self.fixed_end, self.fixed_end + len(self.columns)
        joined = b"".join([rows[place][begins:ends] for place in places.tolist()])
        states = np.frombuffer(joined, np.uint8).reshape(len(places), len(self.columns))
        found, columns = np.nonzero(states[:, positions])
        out[places[found], np.asarray(into)[columns]] = np.nan

    def _patch(
        self,
        row: bytes,
        positions: Sequence[int],
        out: npt.NDArray[np.float32],
        into: Sequence[int],
    ) -> None:
        for value, column in zip(self.decode_at(row, positions), into, strict=True):
            out[column] = np.nan if value is None else value


def _header(flags: int, moment_us: int | None) -> bytes:
    return _HEADER.pack(flags, NO_EVENT_TIME if moment_us is None else moment_us)


_HEADER: Final = struct.Struct("<B6xq")


def _says_absent(states: bytearray, moment_us: int | None) -> bool:
    """Whether a source's answer means that it knows no such entity.

    SQLite and Postgres return no row; Redis returns every feature null with a 1970 timestamp.
    """
    if all(state == NOT_FOUND for state in states):
        return moment_us is None
    return not moment_us and all(states)


def varint(number: int) -> bytes:
    """Protobuf's variable-length form of an integer; negative ones take ten bytes."""
    number &= 0xFFFF_FFFF_FFFF_FFFF
    if number < 128:
        return bytes((number,))
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _as_moment(seconds: int) -> datetime | None:
    if seconds == NULL_TIMESTAMP_INT_VALUE:
        return None
    return datetime.fromtimestamp(seconds, tz=UTC)


def _variable_bytes(value: Value, kind: str) -> bytes:
    if kind == "string_val":
        text: str = value.string_val
        return text.encode()
    raw: bytes = value.bytes_val if kind == "bytes_val" else value.SerializeToString()
    return raw


def _variable_value(kind: str, raw: bytes) -> Any:
    if kind == "string_val":
        return raw.decode()
    if kind == "bytes_val":
        return raw
    return feast_value_type_to_python_type(Value.FromString(raw)) if raw else None


def _variable_serialized(kind: str, raw: bytes) -> bytes:
    return _TAGS[kind] + varint(len(raw)) + raw if kind in _TAGS else raw
