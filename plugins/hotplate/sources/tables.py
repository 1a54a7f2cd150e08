"""A whole table or query of a database, for commands that look at what an application wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from sqlalchemy import create_engine, select, table, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from hotplate.errors import ConfigError

__all__ = ["read_table"]

_CONNECT_S: Final = 10
_WAITING: Final = frozenset({"postgresql", "postgresql+psycopg", "postgresql+psycopg2"})
"""Drivers that would wait for a host that is gone as long as the kernel does."""


def read_table(url: str, name: str = "", query: str = "") -> dict[str, list[Any]]:
    """All rows of a table or of a query, as columns; nothing is written.

    Args:
        url: of SQLAlchemy; `${NAME}` is replaced by the environment variable of that name.
        name: of a table, or `schema.table`.
        query: a SELECT, in the place of a table.

    Raises:
        ConfigError: it cannot be read; the message holds no password.
    """
    try:
        parsed = make_url(os.path.expandvars(url))
        settings = {"connect_timeout": _CONNECT_S} if parsed.drivername in _WAITING else {}
        engine = create_engine(parsed, connect_args=settings)
    except (ArgumentError, ImportError, SQLAlchemyError) as error:
        raise ConfigError(
            f"the database's URL cannot be used: {_line(error)}. Write it as SQLAlchemy does: "
            "sqlite:///decisions.db, postgresql+psycopg://user:password@host/database"
        ) from error
    shown = parsed.render_as_string(hide_password=True)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        raise ConfigError(f"{shown}: there is no such file")  # SQLite would make one
    schema, _, short = name.rpartition(".")
    wanted: Any = text(query) if query else None
    if wanted is None:
        wanted = select(text("*")).select_from(table(short, schema=schema or None))
    try:
        with engine.connect() as connection:
            found = connection.execute(wanted)
            names = list(found.keys())
            rows = found.fetchall()
    except SQLAlchemyError as error:
        raise ConfigError(f"{shown} cannot be read: {_line(error)}") from error
    finally:
        engine.dispose()
    if len(set(names)) < len(names):
        raise ConfigError(f"{shown}: the query returns two columns of one name; name them with AS")
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


def _line(error: BaseException) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())[:300]
