"""An operational database: shops' tables, filled and changed as applications do it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, text

_schemas = itertools.count()

TABLES = """
CREATE TABLE {s}categories (id integer PRIMARY KEY, risk double precision NOT NULL);
CREATE TABLE {s}merchants (merchant_id varchar(20) PRIMARY KEY, category integer NOT NULL);
CREATE TABLE {s}cards (card_id bigint PRIMARY KEY, is_prepaid integer NOT NULL);
CREATE TABLE {s}payments (
  card bigint NOT NULL, merchant varchar(20) NOT NULL, amount double precision, paid_at varchar(40)
);
"""

# three joins and an aggregation
MERCHANT_RISK = """
SELECT m.merchant_id, count(*) AS n, avg(p.amount) AS mean, max(c.risk) AS risk,
       sum(k.is_prepaid) AS prepaid
FROM {s}merchants m
JOIN {s}categories c ON c.id = m.category
JOIN {s}payments p ON p.merchant = m.merchant_id
JOIN {s}cards k ON k.card_id = p.card
WHERE m.merchant_id IN :merchant_id
GROUP BY m.merchant_id
"""

PAIR = """
SELECT p.card AS user_id, p.merchant AS merchant_id, count(*) AS n
FROM {s}payments p WHERE (p.merchant, p.card) IN :merchant_id__user_id
GROUP BY p.card, p.merchant
"""


@dataclass
class Database:
    """One database, and an engine of the test's own beside the loader's.

    Attributes:
        url: what a loader is given.
        prefix: what names of tables begin with.
        statements: what every engine ran on it since `watch`, in order.
    """

    url: str
    prefix: str = ""
    statements: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine: Engine = create_engine(self.url)
        for statement in TABLES.split(";"):
            if statement.strip():
                self.run(statement)

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith("postgresql")

    def sql(self, template: str) -> str:
        """A statement on this database's tables."""
        return template.replace("{s}", self.prefix)

    def run(self, statement: str, **values: Any) -> None:
        """Change something, as another process would."""
        with self.engine.begin() as connection:
            connection.execute(text(self.sql(statement)), values)

    def pay(self, card: int, merchant: str, amount: float | None) -> None:
        """One more payment."""
        self.run(
            "INSERT INTO {s}payments (card, merchant, amount) VALUES (:card, :merchant, :amount)",
            card=card,
            merchant=merchant,
            amount=amount,
        )

    def fill(self) -> None:
        """Three merchants, two cards, and payments at two of the merchants."""
        for number, risk in ((1, 0.1), (2, 0.9)):
            self.run("INSERT INTO {s}categories VALUES (:id, :risk)", id=number, risk=risk)
        for merchant, category in (("a", 1), ("b", 2), ("idle", 2)):
            self.run("INSERT INTO {s}merchants VALUES (:m, :c)", m=merchant, c=category)
        for card, prepaid in ((1, 0), (2, 1)):
            self.run("INSERT INTO {s}cards VALUES (:c, :p)", c=card, p=prepaid)
        for card, merchant, amount in ((1, "a", 10.0), (2, "a", 20.0), (2, "b", 5.0)):
            self.pay(card, merchant, amount)

    @contextmanager
    def watch(self) -> Iterator[list[str]]:
        """Every SELECT that any engine runs on the tables of a database, as it begins."""
        seen: list[str] = []

        def note(
            connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
        ) -> None:
            if statement.lstrip().upper().startswith("SELECT"):
                seen.append(statement)

        event.listen(Engine, "before_cursor_execute", note)
        try:
            yield seen
        finally:
            event.remove(Engine, "before_cursor_execute", note)


def sqlite_database(folder: Path) -> Database:
    """A database in a file."""
    return Database(f"sqlite:///{folder / 'operational.db'}")


def postgres_database(settings: dict[str, Any], password: str = "postgres") -> Database:
    """A schema of its own on a PostgreSQL."""
    url = f"postgresql+psycopg://postgres:{password}@127.0.0.1:{settings['port']}/postgres"
    schema = f"shop{next(_schemas)}"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    engine.dispose()
    return Database(url, f"{schema}.")
