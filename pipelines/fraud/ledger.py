"""Decisions in a database: each once, whatever dies in between.

Decisions, dead letters and how far a source has been read are written in one transaction. A job
that is killed begins again behind the last one that was committed; what it had computed beyond that
nobody has seen. A payment that comes a second time, from whichever source, is answered with the
decision that it has, and none is written again.

SQLite by default; any database of SQLAlchemy by its URL, Postgres as `postgresql+psycopg://...`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from pipelines.fraud.payments import CHECK, OF_REQUEST, DeadLetter

__all__ = ["ANSWER", "DECISIONS", "Ledger", "LedgerError", "open_ledger"]

_META: Final = sa.MetaData()
_BIG: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DECISIONS: Final = sa.Table(
    "decisions",
    _META,
    sa.Column("transaction_id", sa.String(128), primary_key=True),
    sa.Column("source", sa.String(512), nullable=False),
    sa.Column("customer_id", _BIG, nullable=False),
    sa.Column("terminal_id", _BIG, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("amount", sa.Float(53), nullable=False),
    sa.Column("at_ms", _BIG, nullable=False),
    sa.Column("decided_ms", _BIG, nullable=False),
    sa.Column("score", sa.Float(53), nullable=False),
    sa.Column("decision", sa.String(16), nullable=False),
    sa.Column("reason", sa.String(128), nullable=False),
    sa.Column("model_version", sa.String(64), nullable=False),
    sa.Column("layer", sa.String(160), nullable=False),
    sa.Column("inputs", sa.Text, nullable=False),
    sa.Column("ages_s", sa.Text, nullable=False),
    sa.Index("decisions_by_time", "source", "decided_ms"),
)
DEAD_LETTERS: Final = sa.Table(
    "dead_letters",
    _META,
    sa.Column("source", sa.String(128), primary_key=True),
    sa.Column("place", sa.String(128), primary_key=True),
    sa.Column("reason", sa.String(256), nullable=False),
    sa.Column("raw", sa.Text, nullable=False),
)
POSITIONS: Final = sa.Table(
    "positions",
    _META,
    sa.Column("source", sa.String(128), primary_key=True),
    sa.Column("position", sa.String(128), nullable=False),
)
ANSWER: Final = ("transaction_id", "score", "decision", "reason", "model_version", "layer")
"""What whoever asked for a decision is told."""
_T = TypeVar("_T")
_ASKED_AT_ONCE: Final = 500
_FIRST_WAIT_S: Final = 0.2
_LONGEST_WAIT_S: Final = 5.0


class LedgerError(Exception):
    """The database cannot be used; the message says what to do."""


@dataclass
class Ledger:
    """A database of decisions.

    Args:
        url: of SQLAlchemy.
        wait_s: how long to go on trying where the database is down; `inf` for ever.
        say: told when it is down, and when it is back.
    """

    url: str
    wait_s: float = float("inf")
    say: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        try:
            parsed = sa.make_url(self.url)
            is_sqlite = parsed.get_backend_name() == "sqlite"
            # a server that is gone must not be waited for by the kernel's patience
            settings: dict[str, Any] = {"timeout": 30} if is_sqlite else {"connect_timeout": 5}
            self._engine = sa.create_engine(parsed, pool_pre_ping=True, connect_args=settings)
        except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ImportError) as error:
            raise LedgerError(f"the database's URL cannot be used: {error}") from error
        self.shown = parsed.render_as_string(hide_password=True)
        if is_sqlite:
            sa.event.listen(self._engine, "connect", _be_quick)
        self._try(_META.create_all)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def position(self, source: str) -> str | None:
        """How far a source has been read; None where it has not been begun."""
        wanted = sa.select(POSITIONS.c.position).where(POSITIONS.c.source == source)
        found = self._try(lambda connection: connection.execute(wanted).scalar())
        return None if found is None else str(found)

    def known(self, transaction_ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """The decisions that payments have already, by transaction id."""
        return self._try(lambda connection: _known(connection, transaction_ids))

    def record(
        self,
        source: str,
        position: str | None,
        decisions: Sequence[Mapping[str, Any]],
        dead: Sequence[DeadLetter] = (),
        refuse: Callable[[Mapping[str, Mapping[str, Any]]], Sequence[DeadLetter]] = lambda _: (),
    ) -> dict[str, Mapping[str, Any]]:
        """Write everything of a micro-batch, or nothing of it; waits while the database is down.

        Args:
            source: where the payments came from.
            position: how far it has been read with them; None leaves that as it is.
            decisions: rows of `DECISIONS`; what has a decision keeps it.
            dead: records that are no payments.
            refuse: told of what is returned before anything is committed; what it makes of that
                goes to the dead letters.

        Returns:
            The decisions, by transaction id, that stand in place of given ones, because another
            process was faster: as `known`.

        Raises:
            LedgerError: the database refuses, or is down for longer than `wait_s`.
        """

        def letter_of(one: DeadLetter) -> dict[str, str]:
            return {"source": source, **one._asdict(), "reason": one.reason[:256]}

        letters = list(map(letter_of, dead))

        def write(connection: sa.Connection) -> dict[str, Mapping[str, Any]]:
            insert, standing = _insert_of(connection), {}
            if decisions:
                rows = [{**row, "source": source} for row in decisions]
                new = insert(DECISIONS).on_conflict_do_nothing()
                if _write_many(connection, new, rows) != len(rows):
                    standing = _standing(connection, rows)
            refused = [*letters, *map(letter_of, refuse(standing) if standing else ())]
            if refused:
                connection.execute(insert(DEAD_LETTERS).on_conflict_do_nothing(), refused)
            if position is not None:
                placed = insert(POSITIONS).values(source=source, position=position)
                moved = placed.on_conflict_do_update(
                    index_elements=["source"], set_={"position": position}
                )
                connection.execute(moved)
            return standing

        return self._try(write)

    def latest(self, source: str, within_ms: int) -> list[Mapping[str, Any]]:
        """The payments of a source decided within some time before the last one of it."""
        names = ("transaction_id", "customer_id", "kind", "amount", "at_ms")
        is_own = DECISIONS.c.source == source
        last = sa.select(sa.func.max(DECISIONS.c.decided_ms)).where(is_own).scalar_subquery()
        wanted = sa.select(*(DECISIONS.c[name] for name in names)).where(
            is_own, DECISIONS.c.decided_ms >= last - within_ms
        )
        return self._try(_all_of(wanted))

    def recent(self, most: int) -> list[Mapping[str, Any]]:
        """The payments decided last, the latest first; asked for once, and not waited for.

        Raises:
            LedgerError: the database does not answer.
        """
        wanted = sa.select(*(DECISIONS.c[name] for name in ("transaction_id", *OF_REQUEST)))
        return self._once(_all_of(wanted.order_by(DECISIONS.c.decided_ms.desc()).limit(most)))

    def decided_by(self, version: str, most: int) -> list[Mapping[str, Any]]:
        """The decisions of a version of the model, the latest of them, in the order of time."""
        wanted = sa.select(DECISIONS).where(DECISIONS.c.model_version == version)
        found = self._try(_all_of(wanted.order_by(DECISIONS.c.decided_ms.desc()).limit(most)))
        return found[::-1]

    def recorded(self) -> list[Mapping[str, Any]]:
        """All payments that count in windows, whoever decided them, and when that was."""
        names = ("transaction_id", "customer_id", "terminal_id", "amount", "at_ms", "decided_ms")
        wanted = sa.select(*(DECISIONS.c[name] for name in names))
        return self._try(_all_of(wanted.where(DECISIONS.c.kind != CHECK)))

    def ping(self) -> None:
        """Make sure that the database answers now.

        Raises:
            LedgerError: it does not.
        """
        self._once(lambda connection: connection.execute(sa.select(1)).scalar())

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """All decisions, in the order of their time."""
        with self._engine.connect() as connection:
            for row in connection.execute(sa.select(DECISIONS).order_by(DECISIONS.c.decided_ms)):
                yield dict(row._mapping)

    def dead_letters(self) -> list[Mapping[str, Any]]:
        """All records that were no payments."""
        with self._engine.connect() as connection:
            return _all_of(sa.select(DEAD_LETTERS))(connection)

    def _once(self, work: Callable[[sa.Connection], _T]) -> _T:
        try:
            with self._engine.begin() as connection:
                return work(connection)
        except DBAPIError as error:
            raise LedgerError(f"{self.shown}: {_line(error)}") from error

    def _try(self, work: Callable[[sa.Connection], _T]) -> _T:
        until_s = time.monotonic() + self.wait_s
        pause_s, is_down = _FIRST_WAIT_S, False
        while True:
            try:
                with self._engine.begin() as connection:
                    found = work(connection)
                if is_down:
                    self.say("the database is back")
                return found
            except DBAPIError as error:
                if not _may_pass(error):
                    raise LedgerError(f"{self.shown}: {_line(error)}") from error
                if time.monotonic() + pause_s > until_s:
                    raise LedgerError(
                        f"{self.shown} is down for longer than {self.wait_s:g} s: {_line(error)}"
                    ) from error
                if not is_down:
                    self.say(f"the database does not answer, decisions wait: {_line(error)}")
                is_down = True
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_WAIT_S)


def _known(
    connection: sa.Connection, transaction_ids: Sequence[str]
) -> dict[str, Mapping[str, Any]]:
    columns = [DECISIONS.c[name] for name in (*ANSWER, *OF_REQUEST, "at_ms")]
    found: dict[str, Mapping[str, Any]] = {}
    for at in range(0, len(transaction_ids), _ASKED_AT_ONCE):
        some = transaction_ids[at : at + _ASKED_AT_ONCE]
        wanted = sa.select(*columns).where(DECISIONS.c.transaction_id.in_(some))
        found |= {row.transaction_id: dict(row._mapping) for row in connection.execute(wanted)}
    return found


def _standing(
    connection: sa.Connection, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """The decisions that are not those of the rows; the answer to a first attempt may be lost."""
    known = _known(connection, [row["transaction_id"] for row in rows])
    given = {row["transaction_id"]: row for row in rows}
    return {
        transaction_id: found
        for transaction_id, found in known.items()
        if any(given[transaction_id][name] != value for name, value in found.items())
    }


def _all_of(wanted: Any) -> Callable[[sa.Connection], list[Mapping[str, Any]]]:
    """What reads all rows of a query."""
    return lambda connection: [dict(row._mapping) for row in connection.execute(wanted)]


def _may_pass(error: DBAPIError) -> bool:
    """Whether a fault is one of the connection or of a lock, and not of what was asked."""
    return error.connection_invalidated or isinstance(error, OperationalError)


def _line(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())[:200]


def _insert_of(connection: sa.Connection) -> Any:
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert

        return insert
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as insert_postgresql

        return insert_postgresql
    raise LedgerError(
        f"{connection.dialect.name}: decisions are kept in SQLite or Postgres, which can be told "
        "to leave alone what is there"
    )


def _write_many(
    connection: sa.Connection, statement: Any, rows: Sequence[Mapping[str, Any]]
) -> int:
    """As `connection.execute`, which looks at each row for as long as the database keeps it.

    Returns:
        How many rows were written.
    """
    compiled = statement.compile(dialect=connection.dialect)
    order = compiled.positiontup
    given = [tuple(row[name] for name in order) for row in rows] if order else list(rows)
    return connection.exec_driver_sql(str(compiled), given).rowcount


def _be_quick(connection: Any, _: Any) -> None:
    """Readers do not wait for the writer; a commit survives the process, and a power cut, too."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


@contextmanager
def open_ledger(
    url: str, wait_s: float = float("inf"), say: Callable[[str], None] = lambda line: None
) -> Iterator[Ledger]:
    """A ledger that is closed after the block."""
    ledger = Ledger(url, wait_s, say)
    try:
        yield ledger
    finally:
        ledger.close()
