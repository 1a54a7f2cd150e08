"""Entities as people write them down: on a command line, in CSV, Parquet or JSON lines.

Values are brought to the declared type of their join key, never guessed: "007" of a STRING stays
what it is. Files are read in chunks, whatever their size. No message holds a value: they are
entity ids, and messages end up in logs.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from feast.value_type import ValueType

from hotplate.errors import EntityError

__all__ = ["CHUNK", "Entities", "EntityReader"]

CHUNK: Final = 2_000
"""Entities held at once."""

_LIMITS: Final = {ValueType.INT64: 1 << 63, ValueType.INT32: 1 << 31}
Row = Sequence[Any]
Entities = Callable[[], Iterable[Sequence[Mapping[str, Any]]]]
"""Makes the chunks of entities, anew each time it is called."""


class EntityReader:
    """Reads entities of a group.

    Args:
        declared: join key -> declared type, of all views that are meant.
    """

    def __init__(self, declared: Mapping[str, ValueType]) -> None:
        self._names = sorted(declared)
        self._parsers = [_parser_of(name, declared[name]) for name in self._names]
        either = "|".join(map(re.escape, self._names))
        self._split = re.compile(rf"(?:^|,)({either})=") if self._names else re.compile(r"(?!)")

    def from_text(self, text: str) -> dict[str, Any]:
        """One entity, written `key=value,key=value`; a value may hold commas.

        Raises:
            EntityError: a join key is missing, unknown or said twice, or a value is of another
                type.
        """
        before, *parts = self._split.split(text)
        names = parts[0::2]
        if before or sorted(names) != self._names:
            raise EntityError(f"an entity is written {self._form()}, each join key once")
        said = dict(zip(names, parts[1::2], strict=True))
        return self.entity([said[name] for name in self._names], "--entity")

    def from_file(self, path: Path) -> Iterator[list[dict[str, Any]]]:
        """Chunks of entities: a column a join key, other columns are left alone.

        Raises:
            EntityError: the file is of another kind, lacks a column, or a value is of another type;
                the message names the row, never the value.
        """
        kind = path.suffix.lower()
        read = _READERS.get(kind)
        if read is None:
            raise EntityError(
                f"{path.name}: write {', '.join(_READERS)}, not {kind or 'no suffix'}"
            )
        chunk: list[dict[str, Any]] = []
        number = 0
        try:
            for number, row in enumerate(read(path, self._names), 1):
                chunk.append(self.entity(row, f"{path.name}, row {number}"))
                if len(chunk) >= CHUNK:
                    yield chunk
                    chunk = []
        except (OSError, UnicodeDecodeError, csv.Error, _Unreadable) as error:
            what = error if isinstance(error, _Unreadable) else type(error).__name__
            raise EntityError(f"{path.name} cannot be read after row {number}: {what}") from None
        if chunk:
            yield chunk

    def chunks(self, texts: Sequence[str], files: Sequence[Path]) -> Entities:
        """What is named by texts and by files, one after the other."""

        def make() -> Iterator[list[dict[str, Any]]]:
            if texts:
                yield [self.from_text(text) for text in texts]
            for file in files:
                yield from self.from_file(file)

        return make

    def entity(self, row: Row, where: str) -> dict[str, Any]:
        """One entity from the values of its join keys, in their sorted order.

        Args:
            row: as they stand in a file.
            where: that is, for the error.

        Raises:
            EntityError: a value is of another type.
        """
        entity = {}
        for name, parse, value in zip(self._names, self._parsers, row, strict=True):
            try:
                entity[name] = parse(value)
            except (TypeError, ValueError, OverflowError):
                raise EntityError(f"{where}: the value of {name} {parse.__doc__}") from None
        return entity

    def _form(self) -> str:
        return ",".join(f"{name}=VALUE" for name in self._names)


class _Unreadable(Exception):
    """A file is not what its name says; the message holds none of its values."""


def _rows_of_csv(path: Path, names: Sequence[str]) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.reader(lines)
        places = _places(next(reader, []), names)
        for row in reader:
            if row:
                if len(row) <= max(places):
                    raise _Unreadable("the next row is cut short")
                yield [row[place] for place in places]


def _rows_of_json(path: Path, names: Sequence[str]) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                yield [row[name] for name in names]
            except json.JSONDecodeError:
                raise _Unreadable("the next row is no JSON object") from None
            except (KeyError, TypeError):
                raise _Unreadable(f"the next row lacks one of {', '.join(names)}") from None


def _rows_of_parquet(path: Path, names: Sequence[str]) -> Iterator[Row]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            _places(file.schema_arrow.names, names)
            for batch in file.iter_batches(batch_size=CHUNK, columns=list(names)):
                yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    except ArrowException as error:
        raise _Unreadable(type(error).__name__) from None


def _places(header: Sequence[str], names: Sequence[str]) -> list[int]:
    missing = [name for name in names if name not in header]
    if missing:
        raise _Unreadable(f"there is no column {', '.join(missing)}")
    return [header.index(name) for name in names]


_READERS: Final[Mapping[str, Callable[[Path, Sequence[str]], Iterable[Row]]]] = {
    ".csv": _rows_of_csv,
    ".parquet": _rows_of_parquet,
    ".jsonl": _rows_of_json,
    ".ndjson": _rows_of_json,
}


def _parser_of(name: str, declared: ValueType) -> Callable[[Any], Any]:
    limit = _LIMITS.get(declared)

    def integer(value: Any) -> int:
        """is no whole number of its type"""
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise TypeError
        number = int(value)
        if limit is not None and not -limit <= number < limit:
            raise OverflowError
        return number

    def text(value: Any) -> str:
        """is no text"""
        if not isinstance(value, str):
            raise TypeError
        return value

    def binary(value: Any) -> bytes:
        """is neither bytes nor hexadecimal text"""
        return value if isinstance(value, bytes) else bytes.fromhex(value)

    def moment(value: Any) -> int:
        """is neither a time (2026-01-31T12:00:00Z) nor whole seconds since 1970"""
        if isinstance(value, bool):
            raise TypeError
        if isinstance(value, str) and not re.fullmatch(r"-?\d+", value):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            return int(aware.timestamp())
        return int(value)

    known: dict[ValueType, Callable[[Any], Any]] = {
        ValueType.INT64: integer,
        ValueType.INT32: integer,
        ValueType.STRING: text,
        ValueType.BYTES: binary,
        ValueType.UNIX_TIMESTAMP: moment,
    }
    parse = known.get(declared)
    if parse is None:
        raise EntityError(f"join key {name} is {declared.name}: Feast stores no such key")
    return parse
