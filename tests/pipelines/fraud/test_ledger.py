"""Decisions are written once, with what belongs to them, or not at all."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pipelines.fraud.ledger import DECISIONS, Ledger, LedgerError, open_ledger
from pipelines.fraud.payments import DeadLetter


def row(transaction_id: str, **changed: Any) -> dict[str, Any]:
    return {
        "transaction_id": transaction_id,
        "customer_id": 2**62,
        "terminal_id": -5,
        "kind": "payment",
        "amount": 12.5,
        "at_ms": 1_790_000_000_000,
        "decided_ms": 1_790_000_000_500,
        "score": 0.25,
        "decision": "approve",
        "reason": "score below 0.5",
        "model_version": "1",
        "layer": "miss",
        "inputs": "[12.5,null]",
        "ages_s": '{"card":0.25}',
        **changed,
    }


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'd.db'}"
        return
    said = request.getfixturevalue("postgres")
    at = f"{said['host']}:{said['port']}/{said['database']}"
    found = f"postgresql+psycopg://{said['user']}@{at}"
    engine = sa.create_engine(found)
    DECISIONS.metadata.drop_all(engine)
    engine.dispose()
    yield found


def test_a_decision_is_written_once(url: str) -> None:
    with open_ledger(url) as ledger:
        ledger.record("s", "1", [row("a"), row("b")], [DeadLetter("0", "amount is missing", "{}")])
        ledger.record("s", "2", [row("b", score=0.9), row("c")])
        ledger.record("s", None, [], [DeadLetter("0", "again", "{}")])
        assert {one["transaction_id"]: one["score"] for one in ledger.rows()} == {
            "a": 0.25,
            "b": 0.25,
            "c": 0.25,
        }
        assert ledger.known(["a", "x"])["a"]["decision"] == "approve"
        assert list(ledger.known(["a", "x"])) == ["a"]
        assert [one["reason"] for one in ledger.dead_letters()] == ["amount is missing"]
        assert (ledger.position("s"), ledger.position("other")) == ("2", None)
        assert dict(next(iter(ledger.rows()))) == {**row("a"), "source": "s"}
    with open_ledger(url) as ledger:  # another process finds them
        assert len(ledger.known(["a", "b", "c"])) == 3


def test_all_of_a_batch_or_nothing(url: str) -> None:
    with open_ledger(url) as ledger:
        with pytest.raises(LedgerError):
            ledger.record("s", "1", [row("a"), row("b", decision=None)])
        assert (list(ledger.rows()), ledger.position("s")) == ([], None)


def test_the_latest_are_those_of_the_last_moments(url: str) -> None:
    with open_ledger(url) as ledger:
        ledger.record("s", "1", [row(f"t{n}", decided_ms=1_000 * n) for n in range(10)])
        ledger.record("other", "1", [row("later", decided_ms=10**9)])
        assert {one["transaction_id"] for one in ledger.latest("s", 2_500)} == {"t7", "t8", "t9"}
        assert len(ledger.latest("s", 10**9)) == 10


def test_a_database_that_is_locked_delays_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "d.db"
    said: list[str] = []
    with open_ledger(f"sqlite:///{path}", say=said.append) as ledger:
        blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        blocker.execute("PRAGMA journal_mode=WAL")
        blocker.execute("BEGIN IMMEDIATE")
        writer = threading.Thread(target=ledger.record, args=("s", "1", [row("a")]))
        writer.start()
        writer.join(1)
        assert writer.is_alive()
        blocker.execute("COMMIT")
        writer.join(60)
        assert not writer.is_alive()
        blocker.close()
        assert len(list(ledger.rows())) == 1


def test_a_database_that_stays_away_is_said(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"is down for longer than 0\.5 s"):
        Ledger(f"sqlite:///{tmp_path / 'nowhere' / 'd.db'}", wait_s=0.5)


@pytest.mark.parametrize("wrong", ["", "nonsense", "oracle9://x", "sqlite:/"])
def test_an_url_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(LedgerError):
        Ledger(wrong, wait_s=0.5)


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    with pytest.raises(LedgerError) as error:
        Ledger("postgresql+psycopg://u:secret@127.0.0.1:1/x", wait_s=0.1)
    assert "secret" not in str(error.value)
