"""Events and rows in PostgreSQL: read through Feast's own offline store for it."""

from __future__ import annotations

import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from feast import FeatureStore, FeatureView, Field, PushSource, RepoConfig
from feast.aggregation import Aggregation
from feast.infra.offline_stores.contrib.postgres_offline_store.postgres_source import (
    PostgreSQLSource,
)
from feast.types import Float64, String
from sqlalchemy import create_engine

from hotplate.training.errors import TrainingError
from hotplate.windowed import windowed_view

from .repo import CARD, HOUR, PROVIDER, columns, served, transactions

ROWS = """
SELECT (ARRAY[1, 2, 3, 4])[1 + n % 4]::bigint AS card_id,
       timestamptz '2026-03-01 06:00+00' + n * interval '21 minutes' AS event_timestamp
FROM generate_series(0, 39) AS n
"""


@pytest.fixture(scope="module")
def bank(postgres: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store whose offline store is PostgreSQL, its windowed views and the events."""
    folder: Path = tmp_path_factory.mktemp("postgres")
    events = transactions(500)
    url = "postgresql+psycopg://{user}:{password}@{host}:{port}/{database}".format(**postgres)
    engine = create_engine(url)
    limits = pd.DataFrame({"card_id": [1, 2, 3, 4], "limit": [1.0, 2.0, 3.0, 4.0]})
    for name, frame in {
        "training_events": events,
        "training_limits": limits.assign(at=pd.Timestamp("2026-02-01", tz="UTC")),
    }.items():
        frame.to_sql(name, engine, if_exists="replace", index=False)
    engine.dispose()
    source = PostgreSQLSource(
        name="events_table",
        query="SELECT * FROM training_events",
        timestamp_field="at",
        created_timestamp_column="arrived",
    )
    views = windowed_view(
        name="activity",
        entities=[CARD],
        source=PushSource(name="pushes", batch_source=source),
        event_id="transaction_id",
        schema=[
            Field(name="transaction_id", dtype=String),
            Field(name="amount", dtype=Float64),
            Field(name="merchant_id", dtype=String),
        ],
        aggregations=[
            Aggregation(column="amount", function="sum", time_window=HOUR),
            Aggregation(column="amount", function="std", time_window=HOUR * 24),
            Aggregation(
                column="merchant_id", function="approx_count_distinct", time_window=HOUR * 24
            ),
        ],
    )
    limit = FeatureView(
        name="limits",
        entities=[CARD],
        schema=[Field(name="limit", dtype=Float64)],
        source=PostgreSQLSource(
            name="limits_table", query="SELECT * FROM training_limits", timestamp_field="at"
        ),
        ttl=timedelta(days=365),
    )
    store = FeatureStore(
        config=RepoConfig(
            project="pg",
            provider=PROVIDER,
            registry=str(folder / "registry.db"),
            online_store={"type": "sqlite", "path": str(folder / "online.db")},
            offline_store=postgres,
            entity_key_serialization_version=3,
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.apply([CARD, limit, *views])
    return store, views, events


@pytest.mark.filterwarnings("ignore")
def test_rows_may_be_a_query_beside_an_ordinary_view(bank: Any) -> None:
    """The offline store answers the query; windows are added to its rows."""
    store, views, events = bank
    features = ["limits:limit", *(f"activity:{name}" for name in columns(views))]
    job = store.get_historical_features(ROWS, features)
    found = job.to_df()
    assert len(found) == 40
    assert (found.limit == found.card_id).all()
    expected = [
        served(views, events, card, t)
        for card, t in zip(found.card_id, found.event_timestamp, strict=True)
    ]
    np.testing.assert_array_equal(found[columns(views)].to_numpy(float), np.array(expected))
    assert job.metadata.features == features


@pytest.mark.filterwarnings("ignore")
def test_rows_may_be_a_frame(bank: Any) -> None:
    """Without an ordinary view only the events are read from the database."""
    store, views, events = bank
    rows = pd.DataFrame(
        {"card_id": [1, 2, 3], "event_timestamp": pd.Timestamp("2026-03-01T17:00", tz="UTC")}
    )
    found = store.get_historical_features(rows, ["activity:sum_amount_3600s"]).to_df()
    expected = [served(views, events, card, rows.event_timestamp[0])[0] for card in (1, 2, 3)]
    assert list(found.sum_amount_3600s) == expected


def test_a_query_alone_is_refused(bank: Any) -> None:
    """Nobody answers it where only windowed features are asked for."""
    store, _, _ = bank
    with pytest.raises(TrainingError, match=r"is a str.*A query works where an ordinary"):
        store.get_historical_features(ROWS, ["activity:sum_amount_3600s"])
