"""Rows through SQLAlchemy: a table or a query of any database that it speaks to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from hotplate.quality.errors import QualityError
from hotplate.quality.frames import Table

__all__ = ["of_sql", "shown"]

_AT_ONCE: Final = 20_000
_PATIENCE_S: Final = 5
_HOW: Final = "Write URL#TABLE or 'URL#SELECT ...', as in sqlite:///decisions.db#decisions."
_QUERIES: Final = ("select", "with", "values")
# what a database declares, where it may hold something else: SQLite keeps any value in any column
_DECLARED: Final[tuple[tuple[type[Any], Any], ...]] = (
    (sa.Boolean, pa.bool_()),
    (sa.Integer, pa.int64()),
    (sa.Float, pa.float64()),
    (sa.String, pa.string()),
    (sa.LargeBinary, pa.binary()),
)


def of_sql(said: str, renamed: Mapping[str, str] | None = None) -> Table:
    """The rows of a table or a query, read in pieces into memory.

    Args:
        said: `URL#TABLE`, `URL#SCHEMA.TABLE` or `URL#SELECT ...`; `${NAME}` in it is replaced by
            that environment variable, which keeps passwords out of commands and logs.
        renamed: column -> name under which it is read.

    Raises:
        QualityError: it cannot be read; the message holds no password.
    """
    url, _, wanted = os.path.expandvars(said).partition("#")
    wanted = wanted.strip()
    parsed = _url(url, wanted)
    where = f"{parsed.render_as_string(hide_password=True)}#{wanted}"
    with _told(where, parsed), _engine(parsed) as engine:
        statement, kinds = _statement(engine, wanted)
        return Table(_read(engine, statement, kinds), renamed)


def shown(said: str) -> str:
    """What is read, without its password."""
    url, _, wanted = os.path.expandvars(said).partition("#")
    try:
        return f"{make_url(url).render_as_string(hide_password=True)}#{wanted.strip()}"
    except sa.exc.ArgumentError:
        return "a database"


def _url(url: str, wanted: str) -> URL:
    try:
        parsed = make_url(url)
    except sa.exc.ArgumentError:
        raise QualityError(where="--sql", problem="names no database", fix=_HOW) from None
    where = parsed.render_as_string(hide_password=True)
    if not wanted:
        raise QualityError(where=where, problem="names no table", fix=_HOW)
    path = parsed.database or ""
    if parsed.get_backend_name() == "sqlite" and path != ":memory:" and not Path(path).is_file():
        # to connect would make an empty one
        raise QualityError(where=where, problem="no such file", fix="Name one that is there.")
    return parsed


@contextmanager
def _engine(parsed: URL) -> Iterator[sa.Engine]:
    settings: dict[str, Any] = {}
    if parsed.get_backend_name() == "postgresql":
        settings = {"connect_timeout": _PATIENCE_S}
    try:
        engine = sa.create_engine(parsed, connect_args=settings)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ImportError) as error:
        raise QualityError(
            where=parsed.render_as_string(hide_password=True),
            problem=f"no driver for it: {_line(error, parsed)}",
            fix="Install one, such as pip install 'feast-hotplate[postgres]'.",
        ) from None
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def _told(where: str, parsed: URL) -> Iterator[None]:
    try:
        yield
    except sa.exc.NoSuchTableError as error:
        raise QualityError(where=where, problem=f"no such table: {error}", fix=_HOW) from None
    except SQLAlchemyError as error:
        raise QualityError(
            where=where,
            problem=f"cannot be read: {_line(getattr(error, 'orig', None) or error, parsed)}",
            fix="Check that the server answers, and that the table is there.",
        ) from None


def _line(error: BaseException, parsed: URL) -> str:
    text = " ".join(str(error).split())[:300]
    return text.replace(str(parsed.password), "***") if parsed.password else text


def _statement(engine: sa.Engine, wanted: str) -> tuple[Any, Mapping[str, pa.DataType]]:
    if wanted.split(maxsplit=1)[0].lower() in _QUERIES and " " in wanted:
        return sa.text(wanted), {}
    schema, _, name = wanted.rpartition(".")
    table = sa.Table(name, sa.MetaData(), schema=schema or None, autoload_with=engine)
    kinds = {}
    for column in table.columns:
        for declared, stored in _DECLARED:
            if isinstance(column.type, declared) and not isinstance(column.type, sa.Enum):
                kinds[column.name] = stored
                break
    return sa.select(table), kinds


def _read(engine: sa.Engine, statement: Any, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    parts: list[pa.Table] = []
    with engine.connect() as connection:
        rows = connection.execution_options(stream_results=True).execute(statement)
        names = list(rows.keys())
        for some in rows.partitions(_AT_ONCE):
            columns = zip(*some, strict=True)
            arrays = [
                _array(values, kinds.get(name)) for name, values in zip(names, columns, strict=True)
            ]
            parts.append(pa.table(arrays, names=names))
    if not parts:
        return pa.table({name: pa.array([], kinds.get(name, pa.null())) for name in names})
    return _joined(parts)


def _array(values: Sequence[Any], declared: pa.DataType | None) -> pa.Array:
    """As declared where all values are; else as they are, or as text where of many kinds."""
    for stored in (declared, None):
        try:
            return pa.array(values, stored)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
    return pa.array([None if one is None else str(one) for one in values], pa.string())


def _joined(parts: list[pa.Table]) -> pa.Table:
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException:  # a column is of one kind here and of another there
        columns = {}
        for name in parts[0].column_names:
            chunks = [part.column(name) for part in parts]
            kinds = {chunk.type for chunk in chunks if not pa.types.is_null(chunk.type)}
            target = kinds.pop() if len(kinds) == 1 else pa.string()
            columns[name] = pa.chunked_array(
                [piece for chunk in chunks for piece in chunk.cast(target).chunks], target
            )
        return pa.table(columns)
