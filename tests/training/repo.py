"""A feature repo with windowed views over card transactions, and the events behind it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from feast import (
    Entity,
    FeatureStore,
    FeatureView,
    Field,
    FileSource,
    PushSource,
    RepoConfig,
    RequestSource,
)
from feast.aggregation import Aggregation
from feast.on_demand_feature_view import on_demand_feature_view
from feast.types import Float64, Int64, String
from feast.value_type import ValueType

from hotplate.windowed import WindowedViews, windowed_of, windowed_view
from hotplate.windows.compaction import Compactor
from hotplate.windows.events import accept
from hotplate.windows.kernel import Reader
from hotplate.windows.log import LogFormat
from hotplate.windows.plan import LogPlan

__all__ = ["CARD", "HOUR", "MERCHANT", "TrainingRepo", "served", "transactions"]

PROVIDER = "hotplate.provider.HotplateProvider"
CARD = Entity(name="card", join_keys=["card_id"], value_type=ValueType.INT64)
MERCHANT = Entity(name="merchant", join_keys=["merchant_id"], value_type=ValueType.STRING)
HOUR = timedelta(hours=1)
START = np.datetime64("2026-03-01T00:00:00", "ms")


def transactions(count: int = 600, seed: int = 0) -> pd.DataFrame:
    """Late, repeated, null and tied transactions of four cards at three merchants over a day."""
    rng = np.random.default_rng(seed)
    at = START + rng.integers(0, 86_400, count).astype("timedelta64[s]")
    delay = np.where(rng.random(count) < 0.2, rng.integers(0, 5_400_000, count), 40)
    frame = pd.DataFrame(
        {
            "transaction_id": [f"t{number}" for number in rng.integers(0, count, count)],
            "card_id": rng.integers(1, 5, count),
            "merchant_id": rng.choice(["m1", "m2", "m3"], count),
            "amount": rng.integers(1, 100_000, count) / 100,
            "items": rng.integers(1, 9, count),
            "at": at,
            "arrived": at + delay.astype("timedelta64[ms]"),
        }
    )
    frame.loc[rng.random(count) < 0.1, "amount"] = np.nan
    again = frame.sample(count // 10, random_state=seed)
    again = again.assign(amount=1.0, arrived=again.arrived + pd.Timedelta("3s"))
    return pd.concat([frame, again], ignore_index=True)


@dataclass
class TrainingRepo:
    """Views, a profile of ordinary features, and a store over files."""

    folder: Path
    events: pd.DataFrame
    offline_store: Any = None
    backfilled: Any = None
    batch_engine: Any = "local"

    def __post_init__(self) -> None:
        self.path = self.folder / "transactions.parquet"
        self.events.to_parquet(self.path, coerce_timestamps="us")
        self.cards = windowed_view(
            name="card_activity",
            entities=[CARD],
            source=self.push_source("card_pushes"),
            event_id="transaction_id",
            schema=_SCHEMA,
            backfilled=self.backfilled,
            aggregations=[
                Aggregation(column="amount", function="sum", time_window=HOUR),
                Aggregation(column="amount", function="mean", time_window=HOUR * 24),
                Aggregation(column="amount", function="std", time_window=HOUR * 24),
                Aggregation(column="items", function="last", time_window=HOUR),
                Aggregation(function="count", time_window=HOUR, name="n"),
                Aggregation(
                    column="merchant_id", function="approx_count_distinct", time_window=HOUR * 24
                ),
                Aggregation(column="amount", function="sum / 24h", time_window=HOUR),
            ],
        )
        self.merchants = windowed_view(
            name="merchant_activity",
            entities=[MERCHANT],
            source=self.push_source("merchant_pushes"),
            event_id="transaction_id",
            schema=_SCHEMA[:3],
            aggregations=[
                Aggregation(function="count", time_window=HOUR * 24, name="merchant_n"),
                Aggregation(column="amount", function="max", time_window=HOUR * 24),
            ],
            delay=HOUR,
        )
        self.profile = self._profile()
        self.store = FeatureStore(config=self.config())
        self.apply(CARD, MERCHANT, *self.cards, *self.merchants, self.profile)

    def config(self, provider: str = PROVIDER) -> RepoConfig:
        return RepoConfig(
            project="shop",
            provider=provider,
            registry=str(self.folder / "registry.db"),
            online_store=self.online_store(),
            offline_store=self.offline_store or {"type": "file"},
            batch_engine=self.batch_engine,
            entity_key_serialization_version=3,
        )

    def online_store(self) -> dict[str, Any]:
        return {"type": "sqlite", "path": str(self.folder / "online.db")}

    def push_source(self, name: str) -> PushSource:
        return PushSource(
            name=name,
            batch_source=self.source(
                name=f"{name}_batch",
                path=str(self.path),
                timestamp_field="at",
                created_timestamp_column="arrived",
            ),
        )

    def source(self, **kwargs: Any) -> Any:
        """A source over a Parquet file that the offline store reads."""
        return FileSource(**kwargs)

    def _profile(self) -> FeatureView:
        path = self.folder / "profiles.parquet"
        pd.DataFrame(
            {
                "card_id": [1, 2, 3, 4],
                "limit": [100.0, 200.0, 300.0, 400.0],
                "at": pd.Timestamp("2026-02-01", tz="UTC"),
            }
        ).to_parquet(path, coerce_timestamps="us")
        return FeatureView(
            name="profile",
            entities=[CARD],
            schema=[Field(name="limit", dtype=Float64)],
            source=self.source(name="profiles", path=str(path), timestamp_field="at"),
            ttl=timedelta(days=365),
        )

    def apply(self, *objects: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.store.apply(list(objects))

    def history(self, rows: pd.DataFrame, features: Any, **kwargs: Any) -> pd.DataFrame:
        """What Feast answers, in the order of the rows."""
        given = rows.assign(row=range(len(rows)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self.store.get_historical_features(given, features, **kwargs).to_df()
        return found.sort_values("row", ignore_index=True)


_SCHEMA = [
    Field(name="transaction_id", dtype=String),
    Field(name="amount", dtype=Float64),
    Field(name="items", dtype=Int64),
    Field(name="merchant_id", dtype=String),
]


def use_of_limit(repo: TrainingRepo) -> Any:
    """An on-demand view over a windowed feature, an ordinary one and the request."""
    request = RequestSource(name="request", schema=[Field(name="asked", dtype=Float64)])

    @on_demand_feature_view(
        sources=[repo.cards.windowed, repo.profile, request],
        schema=[Field(name="share", dtype=Float64)],
    )
    def use_of_limit(inputs: pd.DataFrame) -> pd.DataFrame:
        made = pd.DataFrame()
        made["share"] = (inputs["sum_amount_3600s"] + inputs["asked"]) / inputs["limit"]
        return made

    return use_of_limit


def served(views: WindowedViews, events: pd.DataFrame, key: Any, t: pd.Timestamp) -> list[float]:
    """What a read of the log answers at t, if all that has arrived by then was pushed.

    The log is compacted on the way, as it is in the life of a deployment.
    """
    said = windowed_of(views.windowed)
    assert said is not None
    plan = LogPlan.of([said.spec])
    (join_key,) = (column.name for column in views.events.entity_columns)
    mine = events[(events[join_key] == key) & (events.arrived <= t.tz_localize(None))]
    mine = mine.sort_values("arrived", kind="stable")
    names = [column.name for column in said.spec.event.columns]
    accepted = accept(
        said.spec.event,
        mine["at"].to_numpy(),
        mine[said.spec.event.event_id].to_numpy(object),
        mine["arrived"].to_numpy(),
        {name: mine[name].to_numpy() for name in names},
    )
    log = LogFormat(plan).records.pack(accepted.events).tobytes()
    t_ms = int(t.value // 1_000_000)
    fold = Compactor(plan).fold(log, t_ms) if log else None
    return list(Reader(said.spec, plan).read([fold.blob if fold else log], t_ms).values[0])


def columns(views: WindowedViews) -> Sequence[str]:
    """The outputs, in order."""
    said = windowed_of(views.windowed)
    assert said is not None
    return list(said.spec.output_types)
