"""The demo's data, small: a feature repo of its own over it, last week's reference, decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pandas as pd
from feast import FeatureStore

from hotplate.quality.reference import Reference
from hotplate.quality.run import Given, Quality
from pipelines.fraud.ledger import open_ledger
from pipelines.fraud.simulate import SimulationSpec, radius_for, simulate
from pipelines.fraud.stores import FeatureRepo, online_source, quiet_feast
from pipelines.fraud.tables import moved_to_now, tables_of
from pipelines.reads.prepare import prepare

__all__ = ["Stage", "staged"]

_WEEK: Final = timedelta(weeks=1)
_REVIEW, _DECLINE = 0.5, 0.8


@dataclass(frozen=True)
class Stage:
    """Everything that is judged.

    Attributes:
        work: the folder of it.
        repo: the feature repo's folder, where `quality.py` is.
        store: Feast's, with all views applied and nothing materialized.
        tables: the repo's tables by name, good ones.
        transactions: the simulator's own file.
        now: when it was made.
        reference: how data was a week ago.
        database: of decisions, `sqlite:///...#decisions`.
    """

    work: Path
    repo: Path
    store: FeatureStore
    tables: Mapping[str, pd.DataFrame]
    transactions: Path
    now: datetime
    reference: Reference
    database: str

    def quality(
        self, files: Mapping[str, Path] | None = None, sql: Mapping[str, str] | None = None
    ) -> Quality:
        """Judges this stage, some of its data put in the place of its own."""
        given = Given(
            {"transactions": self.transactions, **(files or {})},
            {"decisions": self.database, **(sql or {})},
        )
        return Quality(self.store, self.repo, given, self.reference)


@contextmanager
def staged(repo: Path, work: Path, customers: int, gate: str = "block") -> Iterator[Stage]:
    """Simulate payments, write the repo's tables, and measure those of a week ago.

    Args:
        repo: the feature repo.
        work: a folder to keep all of it.
        customers: that are simulated.
        gate: `online_store.quality.materialize`.
    """
    now = datetime.now(UTC)
    terminals = 2 * customers
    spec = SimulationSpec(customers, terminals, 91, radius=radius_for(terminals), seed=1)
    transactions = moved_to_now(simulate(spec), now)
    file = work / "transactions.parquet"
    transactions.to_parquet(file, index=False)
    tables = _tables(transactions, now)
    quality = {"materialize": gate, "reference": str(work / "quality.json")}
    with online_source("sqlite", work) as source, quiet_feast():
        made = FeatureRepo(repo, work, source, root=work)
        store = made.open_cached({"windows": {"in_process": True}, "quality": quality})
        made.apply(store)
        before = transactions[transactions["TX_DATETIME"] < _naive(now) - _WEEK]
        made.write_tables(_tables(before, now - _WEEK))
        views = [name for name in Quality(store, repo).chosen(()) if name != "decisions"]
        reference = Quality(store, repo).profile(views, now - _WEEK)
        reference.write(work / "quality.json")
        made.write_tables(tables)
        database = _decisions(work, transactions.tail(2_000), now)
        yield Stage(work, repo, store, tables, file, now, reference, database)


def _naive(moment: datetime) -> pd.Timestamp:
    return pd.Timestamp(moment).tz_localize(None)


def _tables(transactions: pd.DataFrame, now: datetime) -> dict[str, pd.DataFrame]:
    """The tables of both services, as their pipelines write them."""
    world = prepare(transactions, now=now)
    plain = {name: world.tables[name] for name in ("customer_spending", "terminal_risk")}
    return {**plain, **tables_of(transactions, now)}


def _decisions(work: Path, transactions: pd.DataFrame, now: datetime) -> str:
    """Decisions in a ledger's database; a score that grows with the amount stands for a model."""
    url = f"sqlite:///{work / 'decisions.db'}"
    with open_ledger(url) as ledger:
        ledger.record("file:transactions", None, list(_decided(transactions, now)))
    return f"{url}#decisions"


def _decided(transactions: pd.DataFrame, now: datetime) -> Iterator[dict[str, Any]]:
    now_ms = round(now.timestamp() * 1_000)
    for row in transactions.itertuples():
        amount = float(row.TX_AMOUNT)
        score = amount / (amount + 400.0)
        decision = "decline" if score >= _DECLINE else "review" if score >= _REVIEW else "approve"
        yield {
            "transaction_id": str(row.TRANSACTION_ID),
            "customer_id": int(row.CUSTOMER_ID),
            "terminal_id": int(row.TERMINAL_ID),
            "kind": "payment",
            "amount": amount,
            "at_ms": round(row.TX_DATETIME.timestamp() * 1_000),
            "decided_ms": now_ms,
            "score": score,
            "decision": decision,
            "reason": "",
            "model_version": "stage",
            "layer": "model",
            "inputs": "{}",
            "ages_s": "{}",
        }
