"""Entries of a stream as events: text, or one JSON object, in the types that the view declares.

An entry is read by itself: what cannot be read in one never keeps the others. Every entry comes
out of here as exactly one of four: an event, dropped for a reason of `hotplate.windows.events` (or
`missing_key`), unreadable, or gone from the stream.

Values are brought to the types that `store.push` would have brought them to, so that an event has
the same id and the same scaled numbers on either way. A field that is missing, and empty text where
a number is declared, are null.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from feast.value_type import ValueType

from hotplate.errors import ConfigError
from hotplate.serving.entities import declared_shape
from hotplate.serving.events import Batch, Entity
from hotplate.training.reading import EventSource
from hotplate.windows.events import REASONS, Accepted, accept

__all__ = ["JSON_FIELD", "Entry", "EntryReader", "Readout", "Unreadable"]

JSON_FIELD: Final = "json"
"""An entry may hold this field alone, with an object whose members are the columns."""

_NO_TIME_MS: Final = -1  # before 1970: `accept` drops it as an invalid timestamp
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_EXACT: Final = 1 << 53
_BOOLEANS: Final = {"true": 1, "1": 1, "false": 0, "0": 0}
_FLOATS: Final = frozenset({ValueType.FLOAT, ValueType.DOUBLE})
_KEYS: Final = frozenset({ValueType.INT32, ValueType.INT64, ValueType.STRING, ValueType.BYTES})
_HUGE: Final = 1e308
_NAME_MAX: Final = 60
_DIGITS: Final = re.compile(r"[+-]?[0-9]{1,400}")
_LEAP: Final = re.compile(r"^([0-9W-]+[T ][0-9]{2}:?[0-9]{2}:?)60(?![0-9])")
_RANGES: Final = {ValueType.INT32: 1 << 31, ValueType.INT64: 1 << 63}


@dataclass(frozen=True)
class Entry:
    """An entry of a stream.

    Attributes:
        id: its id, as the server writes it.
        fields: names and values in turn, as they were added; None if it is gone from the stream.
    """

    id: bytes
    fields: Sequence[bytes] | None

    @property
    def added_ms(self) -> int:
        """When the server took it, ms since 1970: the same at every delivery."""
        return int(self.id.partition(b"-")[0])


class Unreadable(ValueError):
    """An entry is no event; the text names the column and holds no value."""


@dataclass(frozen=True)
class Readout:
    """What entries are.

    Attributes:
        batch: the events.
        rows: for each event, which entry it was.
        unreadable: entry -> why.
        dropped: entry -> for which reason.
        gone: entries that are no longer in the stream.
        unknown: column that the view does not know -> entries that have it.
    """

    batch: Batch
    rows: Sequence[int]
    unreadable: Mapping[int, str]
    dropped: Mapping[int, str]
    gone: Sequence[int]
    unknown: Mapping[str, int]


class EntryReader:
    """Reads the entries of a stream as events of one view.

    Args:
        view: the event view.
        refuse_unknown: whether an entry with a column that the view does not know is unreadable.

    Raises:
        ConfigError: a column has a type that no text can be read as.
        TrainingError: the view's tags or its batch source lack what is needed.
    """

    def __init__(self, view: Any, *, refuse_unknown: bool = False) -> None:
        self._source = source = EventSource(view).table
        self._spec = source.spec
        self._shape = declared_shape(view)
        self._refuse_unknown = refuse_unknown
        self._at = source.named(source.timestamp)
        self._arrival = source.named(source.arrival)
        self._keys = [source.named(name) for name in self._shape.join_keys]
        self._kinds = {
            source.named(name): source.kinds[name]
            for name in dict.fromkeys([*source.join_keys, *source.fields])
        }
        numbers = {source.named(column.name) for column in self._spec.numeric} - {*self._keys}
        self._reads: dict[str, Callable[[Any], Any]] = {}
        for name, kind in self._kinds.items():
            read = _reader_of(kind, is_number=name in numbers)
            if read is None or (name in self._keys and kind not in _KEYS):
                raise ConfigError(
                    f"event view {view.name!r}, column {name!r}: a stream's entries cannot be read "
                    f"as {kind.name} there. Declare a number, a Bool, a String or Bytes, and join "
                    "keys as Int32, Int64, String or Bytes."
                )
            self._reads[name] = read
        self._reads[self._at] = self._reads[self._arrival] = _moment

    def read(self, entries: Sequence[Entry]) -> Readout:
        """Read entries; none of them fails the others."""
        readable: list[int] = []
        rows: list[dict[str, Any]] = []
        unreadable: dict[int, str] = {}
        gone: list[int] = []
        unknown: Counter[str] = Counter()
        for place, entry in enumerate(entries):
            if entry.fields is None:
                gone.append(place)
                continue
            try:
                rows.append(self._row(entry, unknown))
                readable.append(place)
            except Unreadable as error:
                unreadable[place] = str(error)
        accepted = self._accept(rows)
        dropped = {
            readable[row]: REASONS[verdict - 1]
            for row, verdict in enumerate(accepted.verdicts.tolist())
            if verdict
        }
        entities: dict[Entity, int] = {}
        owners: list[int] = []
        kept: list[int] = []
        for at, row in enumerate(accepted.rows.tolist()):
            values = tuple(rows[row][name] for name in self._keys)
            if None in values:
                dropped[readable[row]] = "missing_key"
                continue
            kept.append(at)
            owners.append(entities.setdefault((self._shape, values), len(entities)))
        batch = Batch(
            list(entities),
            np.array(owners, np.int64),
            accepted.events.take(kept),
            Counter(dropped.values()),
        )
        event_rows = [readable[row] for row in accepted.rows[kept].tolist()]
        return Readout(batch, event_rows, unreadable, dropped, gone, unknown)

    # -- one entry ------------------------------------------------------------------------------

    def _row(self, entry: Entry, unknown: Counter[str]) -> dict[str, Any]:
        """The values of an entry by column, each in its type; null where it has none."""
        raw = self._raw(entry)
        others = raw.keys() - self._reads.keys()
        if others:
            unknown.update(others)
            if self._refuse_unknown:
                raise Unreadable(f"unknown column {_shown(min(others))}")
        row = {}
        for name, read in self._reads.items():
            value = raw.get(name)
            try:
                row[name] = None if value is None else read(value)
            except (ValueError, TypeError, OverflowError):
                kind = self._kinds.get(name)
                what = "timestamp" if kind is None else kind.name
                raise Unreadable(f"column {name!r} is no {what}") from None
        if row[self._arrival] is None:
            row[self._arrival] = entry.added_ms
        return row

    def _raw(self, entry: Entry) -> dict[str, Any]:
        assert entry.fields is not None
        names, values = entry.fields[::2], entry.fields[1::2]
        if list(names) == [JSON_FIELD.encode()] and JSON_FIELD not in self._reads:
            return _object(values[0])
        pairs = zip(names, values, strict=False)  # an odd one out can only be a damaged reply
        return {name.decode("utf-8", "backslashreplace"): value for name, value in pairs}

    # -- all of them ----------------------------------------------------------------------------

    def _accept(self, rows: Sequence[Mapping[str, Any]]) -> Accepted:
        def moments(name: str) -> list[int]:
            return [_NO_TIME_MS if row[name] is None else row[name] for row in rows]

        values = {}
        for name in dict.fromkeys([self._spec.event_id, *(one.name for one in self._spec.columns)]):
            written = self._source.named(name)
            values[name] = _array([row[written] for row in rows], self._kinds[written])
        return accept(
            self._spec,
            np.array(moments(self._at), np.int64),
            values[self._spec.event_id],
            np.array(moments(self._arrival), np.int64),
            values,
        )


def _array(values: list[Any], kind: ValueType) -> npt.NDArray[Any]:
    """A column as `hotplate.serving.events` makes it of what Feast hands over."""
    if kind in _FLOATS:
        return np.array([np.nan if value is None else value for value in values], np.float64)
    made = np.empty(len(values), object)
    made[:] = values
    return made


def _object(value: bytes) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        raise Unreadable("its json cannot be read") from None
    if not isinstance(found, dict):
        raise Unreadable("its json is no object")
    return found


def _shown(name: str) -> str:
    return repr(name if len(name) <= _NAME_MAX else name[:_NAME_MAX] + "...")


# -- values: bytes of a stream's field, or what JSON has for them ----------------------------------


def _reader_of(kind: ValueType, *, is_number: bool) -> Callable[[Any], Any] | None:
    """What reads a value of a declared type; None where nothing does.

    Args:
        kind: the declared type.
        is_number: whether only its size matters, so that one too large is left to `accept`.
    """
    if kind is ValueType.DOUBLE:
        return _float
    if kind is ValueType.FLOAT:
        return _single
    if kind in _RANGES:
        # one that its own 64 bits do not hold is an overflow, not a mistake of writing
        limit = None if is_number and kind is ValueType.INT64 else _RANGES[kind]
        return partial(_integer, limit=limit)
    return {
        ValueType.BOOL: _boolean,
        ValueType.STRING: _string,
        ValueType.BYTES: _bytes,
    }.get(kind)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode()
    if not isinstance(value, str):
        raise TypeError
    return value.strip()


def _number_text(value: Any) -> str | None:
    """A number as text; None where the text is empty, which is null."""
    text = _text(value)
    if "_" in text:  # Python allows it, nobody else does
        raise ValueError
    return text or None


def _float(value: Any) -> float | None:
    if type(value) in (int, float):
        return float(value) if abs(value) < _HUGE else float("inf")
    text = _number_text(value)
    return None if text is None else float(text)


def _single(value: Any) -> float | None:
    """As a 32-bit number, which Feast would have made of it."""
    found = _float(value)
    if found is None:
        return None
    with np.errstate(over="ignore"):
        return float(np.float32(found))


def _integer(value: Any, limit: int | None) -> int | None:
    if type(value) not in (int, float):
        text = _number_text(value)
        if text is None:
            return None
        value = int(text) if _DIGITS.fullmatch(text) else float(text)
    if type(value) is float:
        if value != value:
            return None
        if not value.is_integer() or abs(value) > _EXACT:
            raise ValueError
        value = int(value)
    if limit is not None and not -limit <= value < limit:
        raise ValueError
    return int(value)


def _boolean(value: Any) -> int | None:
    if type(value) is bool:
        return int(value)
    text = str(value) if type(value) is int else _number_text(value)
    if text is None:
        return None
    found = _BOOLEANS.get(text.lower())
    if found is None:
        raise ValueError
    return found


def _string(value: Any) -> str:
    if type(value) is int:  # an id that JSON has without quotes
        return str(value)
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError
    return value


def _bytes(value: Any) -> bytes:
    """As they are in a field; base64 in JSON."""
    return value if isinstance(value, bytes) else base64.b64decode(value, validate=True)


def _moment(value: Any) -> int | None:
    """Milliseconds since 1970: whole numbers are that already, other text is ISO 8601."""
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        text = _text(value)
        if not text:
            return None
        if not _DIGITS.fullmatch(text):
            before_leap = _LEAP.sub(r"\g<1>59", text, count=1)  # a datetime has no 23:59:60
            moment = datetime.fromisoformat(before_leap)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return (moment - _EPOCH) // _MS + 1_000 * (before_leap != text)
        value = int(text)
    if abs(value) > _EXACT:
        raise ValueError
    return int(value)
