"""A view whose rows are in no file: read through Feast's own offline store, and gated."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa
from feast import FeatureStore, FeatureView, Field, RepoConfig
from feast.infra.offline_stores.contrib.postgres_offline_store.postgres_source import (
    PostgreSQLSource,
)
from feast.types import Float64, Int64

from hotplate.quality import QualityFailed
from hotplate.quality.outcome import Checked
from hotplate.quality.run import Quality

from .repo import AT, CARD, CREATED, bad, table

NOW = datetime.now(UTC).replace(microsecond=0)


class Database:
    """A table of Postgres, and a store over it."""

    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        url = "postgresql+psycopg://{user}:{password}@{host}:{port}/{database}"
        self.engine = sa.create_engine(url.format(**settings))
        self.folder = folder
        self.good = table(end=NOW)[["card_id", "amount", "count", AT, CREATED]]
        self.write(self.good)
        source = PostgreSQLSource(
            name="cards_table",
            query="SELECT * FROM quality_cards",
            timestamp_field=AT,
            created_timestamp_column=CREATED,
        )
        view = FeatureView(
            name="cards",
            entities=[CARD],
            ttl=timedelta(days=365),
            schema=[
                Field(name="card_id", dtype=Int64),
                Field(name="amount", dtype=Float64),
                Field(name="count", dtype=Int64),
            ],
            source=source,
        )
        online = {
            "type": "hotplate.online_store.CachedOnlineStore",
            "store": {"type": "sqlite", "path": str(folder / "online.db")},
            "quality": {"materialize": "block", "reference": str(folder / "quality.json")},
        }
        config = RepoConfig(
            project="pg",
            provider="hotplate.provider.HotplateProvider",
            registry=str(folder / "registry.db"),
            online_store=online,
            offline_store=settings,
            entity_key_serialization_version=3,
        )
        config.repo_path = folder
        self.store = FeatureStore(config=config)
        self.store.apply([CARD, view])
        self.reference = Quality(self.store, folder).profile(["cards"], NOW)
        self.reference.write(folder / "quality.json")

    def write(self, frame: pd.DataFrame) -> None:
        """Put other rows there."""
        frame.to_sql("quality_cards", self.engine, if_exists="replace", index=False)

    def check(self) -> Checked:
        """Judge the view."""
        quality = Quality(self.store, self.folder, None, self.reference)
        (checked,) = quality.check(["cards"], NOW).checked
        return checked


@pytest.fixture
def database(postgres: dict[str, Any], tmp_path: Path) -> Iterator[Database]:
    """With good rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Database(postgres, tmp_path)
        yield made
        made.engine.dispose()


@pytest.mark.heavy
def test_faults_in_a_database_are_named(database: Database) -> None:
    """Good rows pass; nulls, a renamed column, and times without a zone are named."""
    assert not bad(database.check())
    assert database.check().rows == len(database.good)
    frame = database.good.copy()
    frame.loc[frame.index[::5], "amount"] = None
    database.write(frame)
    assert set(bad(database.check())) == {("nulls", "amount")}
    database.write(database.good.rename(columns={"count": "counts"}))
    assert set(bad(database.check())) == {("exists", "count")}
    database.write(database.good.assign(**{AT: database.good[AT].dt.tz_localize(None)}))
    assert ("zone", AT) in bad(database.check())
    database.write(database.good.drop(columns=AT))
    assert AT in database.check().problem


@pytest.mark.heavy
def test_the_gate_asks_the_offline_store(database: Database) -> None:
    """Bad rows of a database are refused before any is written; good ones go through."""
    start = NOW - timedelta(days=60)
    database.write(database.good.assign(amount=-1.0))
    with pytest.raises(QualityFailed, match=r"cards\.amount"):
        database.store.materialize(start, NOW)
    entity = {"card_id": int(database.good["card_id"].iloc[-1])}
    read = database.store.get_online_features
    assert read(["cards:amount"], [entity]).to_dict()["amount"] == [None]
    database.write(database.good)
    database.store.materialize(start, NOW)
    assert read(["cards:amount"], [entity]).to_dict()["amount"] != [None]
