"""A whole table or query of a database, for commands that look at what an application wrote."""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import create_engine, select, table, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from hotplate.errors import ConfigError

__all__ = ["read_table"]


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
        engine = create_engine(parsed)
    except (ArgumentError, ImportError, SQLAlchemyError) as error:
        raise ConfigError(
            f"the database's URL cannot be used: {_line(error)}. Write it as SQLAlchemy does: "
            "sqlite:///decisions.db, postgresql+psycopg://user:password@host/database"
        ) from error
    shown = parsed.render_as_string(hide_password=True)
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
