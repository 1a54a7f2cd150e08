"""The folder in which the pipeline keeps what it makes, and the store that it opens over it.

transactions.parquet   what was simulated or loaded
data/                  the tables of the feature repo's sources
registry.db            Feast's registry
models/                a folder a version, and which is current
decisions.db           the decisions, where no other database is named
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from feast import FeatureStore

import hotplate
from hotplate.operations.seed import Seeded
from hotplate.windowed import windowed_of
from pipelines.fraud.bundle import Bundle, Models
from pipelines.fraud.decide import Layers
from pipelines.fraud.stores import FeatureRepo, OnlineSource, quiet_feast
from pipelines.fraud.tables import tables_of

__all__ = ["SERVICE", "Work"]

SERVICE = "fraud_v2"


class Work:
    """A run's folder.

    Args:
        folder: made where it is not there.
        repo: the feature repo.
        source: the online store; None for the repo's own.

    Raises:
        ValueError: the repo is none with Hotplate's online store.
    """

    def __init__(self, folder: Path, repo: Path, source: OnlineSource | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.given = folder, repo, source
        self.folder = folder
        self.repo = FeatureRepo(repo, folder, source, root=folder)
        self.models = Models(folder / "models")

    @property
    def transactions_file(self) -> Path:
        """What was simulated or loaded."""
        return self.folder / "transactions.parquet"

    @property
    def database(self) -> str:
        """The database of decisions, where no other is named."""
        return f"sqlite:///{(self.folder / 'decisions.db').resolve()}"

    def transactions(self) -> pd.DataFrame:
        """The transactions.

        Raises:
            ValueError: there are none yet.
        """
        if not self.transactions_file.is_file():
            raise ValueError(
                f"{self.transactions_file} is not there: run `python -m pipelines.fraud simulate`, "
                "or `load FILE`"
            )
        return pd.read_parquet(self.transactions_file)

    def save(self, transactions: pd.DataFrame) -> None:
        """Keep transactions."""
        transactions.to_parquet(self.transactions_file, index=False)

    # -- features -------------------------------------------------------------------------------

    def write_tables(self, transactions: pd.DataFrame) -> dict[str, int]:
        """Write the tables that the repo's sources name; returns their rows."""
        tables = tables_of(transactions)
        self.repo.write_tables(tables)
        return {name: len(table) for name, table in tables.items()}

    def apply(self) -> FeatureStore:
        """Apply the repo to the registry here."""
        store = self.repo.open_cached()
        self.repo.apply(store)
        return store

    def views(self, store: FeatureStore, *, windowed: bool) -> list[str]:
        """The views of the service that are windows, or those that are none."""
        projections = store.get_feature_service(SERVICE).feature_view_projections
        names = [projection.name for projection in projections]
        return [
            name
            for name in names
            if (windowed_of(store.get_feature_view(name)) is not None) == windowed
        ]

    def events(self, store: FeatureStore) -> list[str]:
        """The event views behind the windows of the service."""
        found = (
            windowed_of(store.get_feature_view(name)) for name in self.views(store, windowed=True)
        )
        return list(dict.fromkeys(log.events for log in found if log is not None))

    def materialize(self, store: FeatureStore, view: str) -> None:
        """Bring a view in the online store up to now, whatever was there before."""
        start = pd.read_parquet(
            self.folder / "data" / f"{view}.parquet", columns=["event_timestamp"]
        )["event_timestamp"].min()
        store.materialize(start.to_pydatetime(), datetime.now(UTC), feature_views=[view])

    def seed(self, store: FeatureStore, events: str) -> Iterator[Seeded]:
        """Fill the windows from the table of events."""
        return hotplate.of(store).seed(events)

    def fill(self) -> FeatureStore:
        """Apply, materialize and seed, from the tables as they are; returns the store."""
        with quiet_feast():
            store = self.apply()
            for view in self.views(store, windowed=False):
                self.materialize(store, view)
        for events in self.events(store):
            for _ in self.seed(store, events):
                pass
        return store

    def labelled(self) -> pd.DataFrame:
        """The payments with their labels, in time order, as training takes them.

        Raises:
            ValueError: there are no payments, or no labels.
        """
        data = self.folder / "data"
        if not (data / "payments.parquet").is_file():
            raise ValueError(f"{data} has no payments: run `python -m pipelines.fraud features`")
        payments = pd.read_parquet(data / "payments.parquet")
        labels = pd.read_parquet(data / "labels.parquet", columns=["transaction_id", "is_fraud"])
        if not len(labels):
            raise ValueError("the transactions have no column TX_FRAUD: a model cannot be trained")
        return payments.merge(labels, on="transaction_id", how="inner")

    # -- serving --------------------------------------------------------------------------------

    def open(self, layers: Layers | None = None) -> FeatureStore:
        """The store, with some layers off."""
        store = self.repo.open_cached()
        if layers is None or (layers.features and layers.windows and layers.warming):
            return store
        windowed = self.views(store, windowed=True)
        return self.repo.open_cached(layers.settings(self.repo.online, windowed))

    def recent(self, most: int = 20_000) -> tuple[list[int], list[int]]:
        """The cards and the terminals of the latest payments, those of the latest first."""
        path = self.folder / "data" / "payments.parquet"
        if not path.is_file():
            return [], []
        rows = pd.read_parquet(path, columns=["customer_id", "terminal_id"]).tail(most).iloc[::-1]
        return rows["customer_id"].unique().tolist(), rows["terminal_id"].unique().tolist()

    def model(self, store: FeatureStore, version: str | None = None) -> Bundle:
        """A version of the model, the current one if left out, checked against the store.

        Raises:
            ModelRefused: it is not there, or cannot be used with this store.
        """
        bundle = self.models.load(version)
        bundle.check(store)
        return bundle
