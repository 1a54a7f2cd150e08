"""What a model reads, and the key of each input: its fields, normalised, in the model's order.

A key is the input itself: eight bytes a number, sixteen a text, nothing left out and nothing added
up, so two inputs share a key if and only if they are the same after the declared rounding. (A text
stands as its BLAKE2b hash of 128 bits.)

Numbers: a float is rounded to `decimals` places, half to even, where a double can tell the places
apart, and is taken as it is above that; -0.0 is 0.0. An integer is exact; `5`, `5.0` and `"5"` are
the same. None, NaN, NaT, `pandas.NA` and, where rows are mappings, a name that is not there are all
the same: missing. Text is compared by its code points: a model that encodes them tells composed
and decomposed forms apart, and so does the key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from hotplate.outputs.batch import Batch
from hotplate.outputs.errors import OutputError

__all__ = ["MISSING", "InputField", "InputSchema", "Kind"]

Kind: TypeAlias = Literal["float", "int", "bool", "text", "bytes", "time", "list"]
_Codes: TypeAlias = npt.NDArray[np.int64]
_Array: TypeAlias = npt.NDArray[Any]

MISSING: Final = -(1 << 63)
"""The code of what is missing: the bits of -0.0, which no value has."""

_EXACT: Final = float(1 << 53)
# Of a large matrix so much is rounded in one go: 512 kB, which stays in the processor's cache and
# comes from memory that the process has already, where larger pieces are asked of the system anew.
_CELLS_AT_ONCE: Final = 64_000
_WHOLE: Final = np.dtype(np.int64)
_LIMIT: Final = float(1 << 63)
_WIDE: Final = frozenset({"text", "bytes", "list"})
_NOTHING: Final = b"0"
_DIGEST_BYTES: Final = 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True)
class InputField:
    """One thing that the model reads.

    Attributes:
        name: as the batch calls it.
        kind: `"float"`, `"int"`, `"bool"`, `"text"`, `"bytes"`, `"time"` (to the microsecond, UTC
            where it names no zone) or `"list"` (of numbers or of texts, an embedding for instance).
        decimals: for floats, and floats in lists: how many places count, from -6 to 15; None for
            every bit.
    """

    name: str
    kind: Kind = "float"
    decimals: int | None = 4

    def __post_init__(self) -> None:
        where = f"input {self.name!r}"
        if self.kind not in _CODERS:
            raise OutputError(
                where=where,
                problem=f"has no such kind: {self.kind!r}",
                fix=f"Write one of {', '.join(_CODERS)}.",
            )
        if self.decimals is not None and not -6 <= self.decimals <= 15:
            raise OutputError(
                where=where,
                problem=f"is to be rounded to {self.decimals} places",
                fix="Write -6 to 15, or None for every bit.",
            )

    @property
    def width(self) -> int:
        """How many int64 its code takes."""
        return 2 if self.kind in _WIDE else 1

    def codes(self, values: Any, count: int) -> _Codes:
        """The code of each value: int64 (count, width).

        Raises:
            OutputError: a value is not of the field's kind.
        """
        if values is None:
            values = np.full(count, np.nan)
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, pa.Array):
            values = _from_arrow(values)
        try:
            codes: _Codes = _CODERS[self.kind](self, values).reshape(-1, self.width)
        except OutputError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise self.wrong(f"holds a value that is no {self.kind}") from error
        if len(codes) != count:
            raise self.wrong(f"has {len(codes):,} values for {count:,} rows")
        return codes

    def wrong(self, problem: str) -> OutputError:
        """An error that names the field."""
        fix = f"Give {self.kind} values, or declare the field in the kind that they have."
        return OutputError(where=f"input {self.name!r}", problem=problem, fix=fix)


@dataclass(frozen=True)
class InputSchema:
    """All that a model reads, in its order.

    Attributes:
        fields: the fields.
    """

    fields: tuple[InputField, ...]

    def __post_init__(self) -> None:
        names = self.names
        if not names or len(set(names)) < len(names):
            raise OutputError(
                where="inputs",
                problem="none are declared" if not names else "a name is declared twice",
                fix="Name each of the model's inputs once, in the model's order.",
            )

    @classmethod
    def of(cls, *fields: InputField | str, decimals: int | None = 4) -> InputSchema:
        """Fields, or names of floats that are rounded alike."""
        return cls(
            tuple(
                InputField(one, "float", decimals) if isinstance(one, str) else one
                for one in fields
            )
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Of the fields, in order."""
        return tuple(field.name for field in self.fields)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Name -> place."""
        return {name: place for place, name in enumerate(self.names)}

    @property
    def lists(self) -> tuple[str, ...]:
        """Of those whose values are lists."""
        return tuple(field.name for field in self.fields if field.kind == "list")

    @cached_property
    def fingerprint(self) -> str:
        """Changes with anything that is declared."""
        text = json.dumps([asdict(field) for field in self.fields], sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    @cached_property
    def coarser(self) -> InputSchema:
        """The same, with floats rounded to two places fewer."""
        return InputSchema(
            tuple(
                replace(one, decimals=max(-6, (4 if one.decimals is None else one.decimals) - 2))
                for one in self.fields
            )
        )

    def keys(self, batch: Batch) -> list[bytes]:
        """The key of each row.

        Raises:
            OutputError: a column is missing from the batch, or a value is not of its kind.
        """
        matrix = batch.matrix
        if matrix is None or matrix.dtype.kind != "f" or self._alike is None:
            return _as_keys(self._of_columns(batch))
        keys: list[bytes] = []
        step = max(1, _CELLS_AT_ONCE // matrix.shape[1])
        for at in range(0, len(matrix), step):
            numbers = matrix[at : at + step].astype(np.float64, copy=False)
            keys += _as_keys(_rounded(numbers, *self._alike))
        return keys

    def key_of_row(self, row: _Array, cells: Sequence[float]) -> bytes | None:
        """The key of a matrix of one row; None where it takes more than rounding.

        Args:
            row: (1, inputs).
            cells: the same as Python's own numbers.
        """
        if self._alike is None or row.shape != self._one_row:
            return None
        kind = row.dtype.char
        if kind not in "dfe":
            return None
        numbers: _Array = row[0] if kind == "d" else row[0].astype(np.float64)
        # their length bounds all of them, and is no number where one of them is none
        if not math.hypot(*cells) < self._small:
            return _rounded(numbers, *self._alike).tobytes()
        scaled: _Array = np.multiply(numbers, self._scale)
        return np.rint(scaled, scaled).astype(_WHOLE).tobytes()

    @cached_property
    def _one_row(self) -> tuple[int, int]:
        return 1, len(self.fields)

    @cached_property
    def _small(self) -> float:
        """Below it a number, rounded, is far below 2**53; 0 where nothing is rounded."""
        (decimals,) = self._alike or (None,)
        return 0.0 if decimals is None else _EXACT / 2 / 10.0**decimals

    @cached_property
    def _scale(self) -> _Array:
        """What floats are multiplied with; as an array, which numpy need not make of a number."""
        (decimals,) = self._alike or (None,)
        return np.array(10.0 ** (decimals or 0))

    @cached_property
    def _alike(self) -> tuple[int | None] | None:
        """To how many places all fields are rounded, if they are floats and rounded alike."""
        kinds = {(field.kind, field.decimals) for field in self.fields}
        if len(kinds) > 1 or self.fields[0].kind != "float":
            return None
        return (self.fields[0].decimals,)

    def _of_columns(self, batch: Batch) -> _Codes:
        codes = np.empty((batch.count, sum(field.width for field in self.fields)), np.int64)
        at = 0
        for field in self.fields:
            values = batch.required(field.name)
            codes[:, at : at + field.width] = field.codes(values, batch.count)
            at += field.width
        return codes


def _as_keys(codes: _Codes) -> list[bytes]:
    row = np.dtype((np.void, codes.shape[1] * 8))
    keys: list[Any] = np.ascontiguousarray(codes).view(row).ravel().tolist()
    return keys


# -- codes ----------------------------------------------------------------------------------------


def _rounded(values: npt.NDArray[np.float64], decimals: int | None) -> _Codes:
    """Floats as whole numbers of their last place, or as their own bits where they are too large.

    The two cannot meet: the first are below 2**53, and the bits of the others above.
    """
    if decimals is None:
        codes = (values + 0.0).view(np.int64)  # -0.0 becomes 0.0
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = values * 10.0**decimals
            np.rint(scaled, out=scaled)
            if scaled.size and scaled.max() < _EXACT and scaled.min() > -_EXACT:
                return scaled.astype(np.int64)  # nothing is missing, and nothing is large
            is_small = np.abs(scaled) < _EXACT
            codes = np.where(is_small, scaled, 0.0).astype(np.int64)
        codes = np.where(is_small, codes, (values + 0.0).view(np.int64))
    missing = np.isnan(values)
    if missing.any():
        codes = np.where(missing, MISSING, codes)
    return codes


def _float_codes(field: InputField, values: Any) -> _Codes:
    return _rounded(_numbers(values), field.decimals)


def _numbers(values: Any) -> npt.NDArray[np.float64]:
    array = _array(values)
    if array.dtype.kind in "fiub":
        return array.astype(np.float64)
    return np.array([_number(value) for value in array.tolist()], np.float64)


def _number(value: Any) -> float:
    if _is_missing(value):
        return float("nan")
    if isinstance(value, (bool, int, float, Decimal, np.number, np.bool_, str)):
        return float(value)
    raise TypeError(type(value).__name__)


def _int_codes(field: InputField, values: Any) -> _Codes:
    array = _array(values)
    if array.dtype.kind in "ib":
        codes = array.astype(np.int64)
        if (codes == MISSING).any():
            raise field.wrong("holds -2**63, which stands for what is missing")
        return codes
    if array.dtype.kind == "f":
        floats = array.astype(np.float64)
        missing = np.isnan(floats)
        whole = np.where(missing, 0.0, floats)
        if (np.abs(whole) >= _LIMIT).any() or (whole != np.rint(whole)).any():
            raise field.wrong("holds a number that is not whole, or not of 64 bits")
        return np.where(missing, MISSING, whole.astype(np.int64))
    return np.array([_whole(field, value) for value in array.tolist()], np.int64)


def _whole(field: InputField, value: Any) -> int:
    if _is_missing(value):
        return MISSING
    if isinstance(value, str):
        value = Decimal(value)
    if not isinstance(value, (bool, int, float, Decimal, np.number, np.bool_)):
        raise TypeError(type(value).__name__)
    found = int(value)
    if found != value or not MISSING < found < -MISSING:
        raise field.wrong("holds a number that is not whole, or not of 64 bits")
    return found


def _bool_codes(field: InputField, values: Any) -> _Codes:
    codes = _int_codes(field, values)
    if not np.isin(codes, (0, 1, MISSING)).all():
        raise field.wrong("holds a value that is neither true nor false")
    return codes


def _time_codes(field: InputField, values: Any) -> _Codes:
    array = _array(values)
    if array.dtype.kind == "M":
        # NaT has the code of what is missing
        return array.astype("datetime64[us]").view(np.int64)
    return np.array([_moment(value) for value in array.tolist()], np.int64)


def _moment(value: Any) -> int:
    if _is_missing(value):
        return MISSING
    if isinstance(value, np.datetime64):
        return int(value.astype("datetime64[us]").view(np.int64))
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime):
        raise TypeError(type(value).__name__)
    if isinstance(value, pd.Timestamp):
        value = value.to_pydatetime(warn=False)
    moment: datetime = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MICROSECOND


def _text_codes(field: InputField, values: Any) -> _Codes:
    return _hashed(values, lambda value: _checked_text(field, value))


def _checked_text(field: InputField, value: Any) -> bytes:
    if not isinstance(value, str):
        raise field.wrong(f"holds a {type(value).__name__}")
    return b"1" + value.encode("utf-8", "surrogatepass")


def _bytes_codes(field: InputField, values: Any) -> _Codes:
    def checked(value: Any) -> bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise field.wrong(f"holds a {type(value).__name__}")
        return b"2" + bytes(value)

    return _hashed(values, checked)


def _list_codes(field: InputField, values: Any) -> _Codes:
    def checked(value: Any) -> bytes:
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__len__"):
            raise field.wrong(f"holds a {type(value).__name__}")
        items = value if isinstance(value, np.ndarray) else list(value)
        if any(isinstance(item, str) for item in items):
            return b"3" + _text_codes(field, items).tobytes()
        return b"4" + _rounded(_numbers(items), field.decimals).tobytes()

    made = [_NOTHING if _is_missing(value) else checked(value) for value in _rows_of(values)]
    return _digests(made)


def _rows_of(values: Any) -> list[Any]:
    return list(values) if not isinstance(values, pd.Series) else values.tolist()


def _hashed(values: Any, encode: Any) -> _Codes:
    """Codes of texts: each distinct one is hashed once."""
    places: dict[Any, int] = {}
    order = []
    for value in _rows_of(values):
        if _is_missing(value):
            value = None
        elif isinstance(value, (bytearray, memoryview)):
            value = bytes(value)
        order.append(places.setdefault((type(value), value), len(places)))
    made = [_NOTHING if value is None else encode(value) for _, value in places]
    return _digests(made)[order] if order else np.empty((0, 2), np.int64)


def _digests(texts: Sequence[bytes]) -> _Codes:
    joined = b"".join([blake2b(text, digest_size=_DIGEST_BYTES).digest() for text in texts])
    return np.frombuffer(joined, np.int64).reshape(-1, 2)


def _array(values: Any) -> _Array:
    """Values as an array; of objects where numpy would make something else of them."""
    if isinstance(values, pd.Series):
        if isinstance(values.dtype, (pd.CategoricalDtype, pd.DatetimeTZDtype)):
            if isinstance(values.dtype, pd.DatetimeTZDtype):
                values = values.dt.tz_convert(UTC).dt.tz_localize(None)
                return np.asarray(values)
            values = values.astype(object)
        elif pd.api.types.is_extension_array_dtype(values.dtype):
            values = values.astype(object)
        return np.asarray(values)
    if isinstance(values, np.ndarray):
        return values
    kinds = set(map(type, values))
    if kinds <= {float} or kinds <= {int} or kinds <= {bool}:
        try:
            return np.array(values)
        except OverflowError:
            pass
    made = np.empty(len(values), object)
    made[:] = list(values)
    return made


def _from_arrow(values: pa.Array) -> Any:
    """As numpy where that keeps every digit, else as Python objects."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = values.type
    is_plain = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    if pa.types.is_floating(kind) or (is_plain and not values.null_count):
        return values.to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(kind):
        return values.cast(pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False)
    return values.to_pylist()


def _is_missing(value: Any) -> bool:
    if value is None or value is pd.NA or value is pd.NaT:
        return True
    if isinstance(value, (float, np.floating)):
        return bool(value != value)
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    return isinstance(value, Decimal) and value.is_nan()


_CODERS: Final[dict[str, Any]] = {
    "float": _float_codes,
    "int": _int_codes,
    "bool": _bool_codes,
    "text": _text_codes,
    "bytes": _bytes_codes,
    "time": _time_codes,
    "list": _list_codes,
}
