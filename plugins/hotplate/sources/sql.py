"""A loader that is one SQL statement, run by SQLAlchemy.

The entities of a batch are bound, never written into the text: `WHERE merchant_id IN
:merchant_id`. Where an entity has several join keys, one parameter binds them together; its name
says their order: `WHERE (card_id, merchant_id) IN :card_id__merchant_id`.

On Postgres a query runs in a read-only transaction with a statement timeout of its own; `SET
LOCAL`, because a setting of the session would leak to others through a connection pooler. SQLite
is interrupted from inside. Both end a little before the caller gives up, so that a query that is
too slow has left the database by the time the next one for the same entity may begin.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from feast.feature_view import DUMMY_ENTITY_ID
from sqlalchemy import Connection, Engine, TextClause, bindparam, create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import QueuePool

from hotplate.errors import LoaderError, LoaderTimeoutError
from hotplate.forks import leave_behind
from hotplate.loaders import LoaderSettings
from hotplate.sources.loaded import Columns

__all__ = ["SqlQuery", "entity_parameter"]

_PARAMETERS_MAX: Final = 30_000  # SQLite takes 32,766, Postgres 65,535
_SHARE_OF_TIME: Final = 0.9
_PROGRESS_EVERY: Final = 1_000  # SQLite's instructions between two looks at the clock
_CANCELED: Final = "57014"
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
_LIBPQ: Final = frozenset({"psycopg", "psycopg2"})


class SqlQuery:
    """Runs a loader's statement. Nothing is opened before the first call.

    Args:
        settings: of the loader.
    """

    def __init__(self, settings: LoaderSettings) -> None:
        self._settings = settings
        self._statements: dict[tuple[str, ...], tuple[TextClause, str]] = {}
        self._engines: dict[int, Engine] = {}

    def __repr__(self) -> str:
        return f"SqlQuery({self._settings.name!r})"

    def batch_size(self, join_keys: Sequence[str]) -> int:
        """How many entities one statement asks for at most."""
        return min(self._settings.max_batch, _PARAMETERS_MAX // max(1, len(join_keys)))

    def prepare(self, view: str, join_keys: Sequence[str]) -> None:
        """Compile the statement and make the engine; connects to nothing.

        Raises:
            LoaderError: the statement or the url cannot be used.
        """
        self._statement(view, tuple(join_keys))
        self._engine(view)

    def __call__(self, view: str, entities: Mapping[str, list[Any]], deadline_s: float) -> Columns:
        """Read the rows of a batch of entities.

        Args:
            view: the feature view's name, for messages.
            entities: join key -> one value an entity.
            deadline_s: when the caller gives up, on `time.monotonic`.
        """
        statement, parameter = self._statement(view, tuple(entities))
        bound = list(zip(*entities.values(), strict=True))
        if len(entities) == 1:
            bound = [value for (value,) in bound]
        count = len(bound)
        for attempt in itertools.count():
            try:
                return self._ask(view, statement, {parameter: bound}, count, deadline_s)
            except DBAPIError as error:
                # the server closed a connection while it lay in the pool: a read may be repeated
                if not error.connection_invalidated or attempt or time.monotonic() > deadline_s:
                    raise
        raise AssertionError("not reached")

    def _ask(
        self,
        view: str,
        statement: TextClause,
        parameters: dict[str, Any],
        count: int,
        deadline_s: float,
    ) -> Columns:
        with self._engine(view).connect() as connection:
            try:
                with _limited(connection, deadline_s):
                    result = connection.execute(statement, parameters)
                    names = list(result.keys())
                    rows = result.fetchmany(count + 1)  # more cannot be right
            except DBAPIError as error:
                if _is_timeout(error):
                    raise LoaderTimeoutError(
                        view=view,
                        problem="the database ended its query, which took longer than the timeout "
                        f"of {self._settings.timeout_s:g} s allows",
                        fix="Speed up the query (an index on the entity?), or raise the timeout.",
                    ) from error
                raise
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise LoaderError(
                view=view,
                problem=f"its SQL returns two columns called {twice[0]!r}",
                fix="Name the columns one by one instead of with *, or rename one with AS.",
            )
        held = zip(*rows, strict=True) if rows else itertools.repeat(())
        return dict(zip(names, map(list, held), strict=False))

    def _statement(self, view: str, join_keys: tuple[str, ...]) -> tuple[TextClause, str]:
        known = self._statements.get(join_keys)
        if known is None:
            sql = self._settings.sql or ""
            parameter = entity_parameter(view, sql, join_keys)
            statement = text(sql).bindparams(bindparam(parameter, expanding=True))
            known = self._statements[join_keys] = (statement, parameter)
        return known

    def _engine(self, view: str) -> Engine:
        pid = os.getpid()
        engine = self._engines.get(pid)
        if engine is None:
            leave_behind(*self._engines.values())
            # one step for all threads, without a lock that a forked child could find held;
            # an engine that comes second was never connected
            made = self._make_engine(view)
            engine = self._engines.setdefault(pid, made)
            if engine is made:
                self._engines = {pid: engine}
                weakref.finalize(self, _dispose, engine, pid).atexit = False
        return engine

    def _engine_of(self, url: URL) -> Engine:
        settings = self._settings
        more: dict[str, Any] = {}
        more_of_engine: dict[str, Any] = {}
        if url.get_driver_name() in _LIBPQ and "connect_timeout" not in url.query:
            more["connect_timeout"] = max(2, math.ceil(settings.timeout_s))
        if url.get_backend_name() == "postgresql":
            more_of_engine["isolation_level"] = "AUTOCOMMIT"  # `_limited` begins and ends
        return create_engine(
            url,
            poolclass=QueuePool,
            pool_size=settings.max_concurrent,
            max_overflow=0,
            hide_parameters=True,
            connect_args=more,
            **more_of_engine,
        )

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        engine = self._engines.pop(os.getpid(), None)
        if engine is not None:
            engine.dispose()

    def _make_engine(self, view: str) -> Engine:
        problem = "its url is none that SQLAlchemy can read"
        try:
            url = make_url(_with_variables(view, self._settings.url or ""))
        except (ArgumentError, ValueError):  # their texts may hold a piece of the password
            url = None
        if url is not None:
            try:
                refused = _problem_of(url)
                if refused is None:
                    return self._engine_of(url)
                problem = refused
            except (ArgumentError, ImportError) as error:
                name = getattr(error, "name", None) or url.drivername
                problem = f"its database driver cannot be loaded ({name})"
        raise LoaderError(
            view=view,
            problem=problem,
            fix="Write a url such as 'postgresql+psycopg://user:password@host/database' or "
            "'sqlite:////path/to/file.db', and install its driver.",
        )


def _dispose(engine: Engine, pid: int) -> None:
    if pid == os.getpid():  # in a forked child they are the parent's
        engine.dispose()


def entity_parameter(view: str, sql: str, join_keys: Sequence[str]) -> str:
    """The parameter of a statement that the entities are bound to.

    Raises:
        LoaderError: there is none, or another one beside it.
    """
    if list(join_keys) == [DUMMY_ENTITY_ID]:
        raise LoaderError(
            view=view,
            problem="the feature view has no entity, so there is nothing to load by",
            fix="Give the view an entity, or leave its values to the online store.",
        )
    bound: set[str] = set(text(sql).compile().params)
    names = ["__".join(order) for order in itertools.permutations(join_keys)]
    found = bound.intersection(names)
    if len(found) == 1 and len(bound) == 1:
        return found.pop()
    columns = ", ".join(join_keys)
    where = f"({columns})" if len(join_keys) > 1 else columns
    shown = ", ".join(f":{name}" for name in sorted(bound)) or "no parameter"
    raise LoaderError(
        view=view,
        problem=f"its SQL binds {shown}, and must bind its entities and nothing else",
        fix=f"Write WHERE {where} IN :{names[0]}"
        + (", the parameter's name in the order of the columns" if len(join_keys) > 1 else "")
        + "; a colon that begins no parameter is written \\:.",
    )


def _with_variables(view: str, url: str) -> str:
    """A url with environment variables filled in, as Feast does in a file."""

    def value_of(match: re.Match[str]) -> str:
        value = os.environ.get(match[1])
        if value is None:
            raise LoaderError(
                view=view,
                problem=f"its url names the environment variable {match[1]}, which is not set",
                fix="Set it where the features are served.",
            )
        return value

    return _VARIABLE.sub(value_of, url)


def _problem_of(url: URL) -> str | None:
    if "@" in (url.host or ""):
        return "its url holds an @ in the password; it must be written %40"
    if url.get_dialect().is_async:
        return (
            f"its driver {url.drivername} is asynchronous; queries run on threads of their own, "
            "for async requests as well"
        )
    return None


@contextmanager
def _limited(connection: Connection, deadline_s: float) -> Iterator[None]:
    """Let the database itself end what runs on this connection before the deadline."""
    left_s = max(0.001, (deadline_s - time.monotonic()) * _SHARE_OF_TIME)
    if connection.dialect.name == "postgresql":
        steps = ["BEGIN READ ONLY", f"SET LOCAL statement_timeout = {max(1, int(left_s * 1_000))}"]
        if connection.dialect.driver in _LIBPQ:
            steps = ["; ".join(steps)]  # one round trip
        for step in steps:
            connection.exec_driver_sql(step)
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql("ROLLBACK")
    elif connection.dialect.name == "sqlite":
        ends_s = time.monotonic() + left_s
        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(lambda: time.monotonic() > ends_s, _PROGRESS_EVERY)
        try:
            yield
        finally:
            driver.set_progress_handler(None, 0)
    else:
        yield


def _is_timeout(error: DBAPIError) -> bool:
    cause: Any = error.orig
    code = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return code == _CANCELED or getattr(cause, "sqlite_errorname", "") == "SQLITE_INTERRUPT"
