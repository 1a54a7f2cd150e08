"""Rows through SQLAlchemy: tables and queries, SQLite and Postgres, as they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from hotplate.quality import QualityError
from hotplate.quality.kinds import kind_of
from hotplate.quality.sql import of_sql, shown

from .repo import NOW, QualityRepo

COLUMNS = {
    "card_id": sa.BigInteger,
    "amount": sa.Float,
    "kind": sa.String(10),
    "at": sa.DateTime(timezone=True),
    "day": sa.Date,
}
ROWS = [
    {"card_id": 2**60 + 1, "amount": 1.5, "kind": "payment", "at": NOW, "day": NOW.date()},
    {"card_id": None, "amount": None, "kind": None, "at": None, "day": None},
    {"card_id": 7, "amount": 2.0, "kind": "refund", "at": NOW, "day": NOW.date()},
]


def table() -> sa.Table:
    """Of these columns."""
    return sa.Table("rows", sa.MetaData(), *map(sa.Column, COLUMNS, COLUMNS.values()))


def filled(url: Any, many: int = 1) -> None:
    """A table of these rows, `many` times."""
    engine, made = sa.create_engine(url), table()
    with engine.begin() as connection:
        made.metadata.drop_all(connection)
        made.create(connection)
        connection.execute(sa.insert(made), ROWS * many)
    engine.dispose()


def test_a_table_of_sqlite(tmp_path: Path) -> None:
    """Whole numbers stay whole beside nulls, and a time without a zone has none."""
    url = f"sqlite:///{tmp_path / 'd.db'}"
    filled(url)
    found = of_sql(f"{url}#rows")
    assert found.rows == 3
    assert found.read(["card_id"]).column(0).to_pylist() == [2**60 + 1, None, 7]
    kinds = [kind_of(field.type) for field in found.schema]
    assert kinds == ["whole number", "number", "text", "timestamp without a time zone", "date"]


def test_a_query_of_several_pieces(tmp_path: Path) -> None:
    """More rows than are fetched at once are all there; a column of two kinds becomes text."""
    url = f"sqlite:///{tmp_path / 'd.db'}"
    filled(url, 10_000)
    query = "SELECT amount, CASE WHEN rowid > 25000 THEN 'late' ELSE 1 END AS mixed FROM rows"
    found = of_sql(f"{url}#{query}")
    assert found.rows == 30_000
    assert found.schema.field("mixed").type == pa.string()
    assert found.read(["mixed"]).column(0).to_pylist()[::29_999] == ["1", "late"]


def test_an_empty_table_has_its_columns(tmp_path: Path) -> None:
    """No rows, and the columns that are declared."""
    url = f"sqlite:///{tmp_path / 'd.db'}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        sa.Table("rows", sa.MetaData(), *map(sa.Column, COLUMNS, COLUMNS.values())).create(
            connection
        )
    engine.dispose()
    found = of_sql(f"{url}#rows")
    assert found.rows == 0
    assert found.schema.names == list(COLUMNS)


def test_the_environment_keeps_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """`${NAME}` is replaced, and no message shows what by."""
    monkeypatch.setenv("DB_PASSWORD", "pass-word")
    said = "postgresql+psycopg://me:${DB_PASSWORD}@127.0.0.1:1/db#t"
    assert shown(said) == "postgresql+psycopg://me:***@127.0.0.1:1/db#t"
    with pytest.raises(QualityError) as caught:
        of_sql(said)
    assert "pass-word" not in str(caught.value)


@pytest.mark.parametrize("wanted", ["", "#", "#none", "#SELECT 1 FROM none"])
def test_what_is_not_there_is_said(tmp_path: Path, wanted: str) -> None:
    """No table, another table, a query that fails: each is one line."""
    url = f"sqlite:///{tmp_path / 'd.db'}"
    filled(url)
    with pytest.raises(QualityError) as caught:
        of_sql(url + wanted)
    assert "d.db" in str(caught.value)


@pytest.mark.heavy
def test_a_table_of_postgres(postgres: dict[str, Any], repo: QualityRepo) -> None:
    """Zones are kept, a whole view is judged through it, and its faults are named."""
    url = f"postgresql+psycopg://postgres:postgres@127.0.0.1:{postgres['port']}/postgres"
    filled(url)
    found = of_sql(f"{url}#public.rows")
    assert kind_of(found.schema.field("at").type) == "timestamp with a time zone"
    assert found.read(["at"]).column(0).to_pylist()[0] == NOW
    engine = sa.create_engine(url)
    repo.good.to_sql("cards", engine, index=False, if_exists="replace")
    repo.good.assign(amount=-1.0).to_sql("bad_cards", engine, index=False, if_exists="replace")
    engine.dispose()
    arguments = ("run", "cards", "--now", NOW.isoformat(), "--sql")
    done = repo.command(*arguments, f"cards={url}#cards")
    assert done.exit_code == 0, done.output
    done = repo.command(*arguments, f"cards={url}#bad_cards", "--json")
    assert done.exit_code == 1
    assert "postgres:postgres" not in done.output
    assert '"column": "amount"' in done.output
