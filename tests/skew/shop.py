"""A shop whose features are served by a model of a deployment, and a log of what it served.

What is served is computed here without Hotplate's comparison and without Feast's retrieval: windows
by the online kernel over a log of events, profiles as the latest row that had been written. Each
read is as late as its decision takes, and a profile is as old as a cache makes it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from feast import (
    Entity,
    FeatureService,
    FeatureStore,
    FeatureView,
    Field,
    FileSource,
    PushSource,
    RepoConfig,
)
from feast.aggregation import Aggregation
from feast.types import Float64, Int64, String
from feast.value_type import ValueType

from hotplate.skew import ServedLog
from hotplate.windowed import WindowedViews, windowed_view

from ..training.repo import served as served_by_log

CARD = Entity(name="card", join_keys=["card_id"], value_type=ValueType.INT64)
START = pd.Timestamp("2026-03-01", tz="UTC")
CARDS = 8
AGE_S = 600


@dataclass
class Shop:
    """A store over files, and what it served.

    Attributes:
        folder: holds the tables and the registry.
        seed: of all that is drawn.
        decisions: how many.
        cache: of the windows.
    """

    folder: Path
    seed: int = 0
    decisions: int = 300
    cache: str = "exact"
    store: FeatureStore = field(init=False)
    log: pd.DataFrame = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.events, self.profiles = _events(rng), _profiles(rng)
        self.rates = pd.DataFrame(
            {"at": pd.date_range(START, periods=96, freq="1h"), "usual": range(96)}
        )
        self.events.to_parquet(self.folder / "payments.parquet", coerce_timestamps="us")
        self.rates.to_parquet(self.folder / "rates.parquet", coerce_timestamps="us")
        self.profiles.to_parquet(self.folder / "profiles.parquet", coerce_timestamps="us")
        self.windows = self._windows()
        profile = FeatureView(
            name="profile",
            entities=[CARD],
            ttl=timedelta(days=365),
            schema=[Field(name="score", dtype=Float64), Field(name="segment", dtype=String)],
            source=self._source("profiles", "written"),
        )
        rate = FeatureView(
            name="rate",
            entities=[],
            ttl=timedelta(days=365),
            schema=[Field(name="usual", dtype=Int64)],
            source=self._source("rates", ""),
        )
        service = FeatureService(name="model", features=[self.windows.windowed, profile])
        beside = FeatureService(
            name="beside", features=[rate, profile.with_name("other"), profile[["score"]]]
        )
        self.store = FeatureStore(
            config=RepoConfig(
                project="shop",
                provider="hotplate.provider.HotplateProvider",
                registry=str(self.folder / "registry.db"),
                online_store={"type": "sqlite", "path": str(self.folder / "online.db")},
                offline_store={"type": "file"},
                entity_key_serialization_version=3,
            )
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.store.apply([CARD, *self.windows, profile, rate, service, beside])
        self.log = self._serve(rng)

    def _source(self, name: str, created: str) -> FileSource:
        return FileSource(
            name=name,
            path=str(self.folder / f"{name}.parquet"),
            timestamp_field="at",
            created_timestamp_column=created,
        )

    def _windows(self) -> WindowedViews:
        hour = timedelta(hours=1)
        return windowed_view(
            name="activity",
            entities=[CARD],
            source=PushSource(name="pushes", batch_source=self._source("payments", "arrived")),
            event_id="payment_id",
            schema=[Field(name="payment_id", dtype=String), Field(name="amount", dtype=Float64)],
            aggregations=[
                Aggregation(function="count", time_window=hour, name="n_1h"),
                Aggregation(function="count", time_window=24 * hour, name="n_24h"),
                Aggregation(column="amount", function="sum", time_window=hour, name="sum_1h"),
                Aggregation(column="amount", function="mean", time_window=24 * hour, name="mean"),
            ],
            profile="exact",
            cache=self.cache,
        )

    def _serve(self, rng: np.random.Generator) -> pd.DataFrame:
        rows = []
        for _ in range(self.decisions):
            card = int(rng.integers(0, CARDS + 1))  # of the last one nothing is known
            at = START + pd.Timedelta(int(rng.integers(30 * 3_600_000, 90 * 3_600_000)), "ms")
            read_at = at + pd.Timedelta(int(rng.integers(0, 20_000)), "ms")
            age_s = float(rng.integers(0, AGE_S * 1_000)) / 1_000
            windows = self.windows_at(card, read_at)
            profile = self.profile_at(card, read_at - pd.Timedelta(age_s, "s"))
            rows.append(
                {
                    "card_id": card,
                    "at": at,
                    "decided": read_at + pd.Timedelta(int(rng.integers(0, 5)), "ms"),
                    "age_s": age_s,
                    "layer": "hit" if age_s > AGE_S / 2 else "miss",
                    **dict(zip(_NAMES, windows, strict=True)),
                    **profile,
                }
            )
        return pd.DataFrame(rows)

    def windows_at(self, card: int, moment: pd.Timestamp) -> list[float]:
        """The windows of a card at a moment, as a model reads them."""
        found: list[float] = np.float32(
            served_by_log(self.windows, self.events, card, moment)
        ).tolist()
        return found

    def profile_at(self, card: int, moment: pd.Timestamp) -> dict[str, Any]:
        """The latest row of a card that had been written by a moment."""
        known = self.profiles[
            (self.profiles.card_id == card)
            & (self.profiles["at"] <= moment)
            & (self.profiles.written <= moment)
        ].sort_values(["at", "written"])
        if not len(known):
            return {"score": None, "segment": None}
        last = known.iloc[-1]
        return {"score": float(np.float32(last.score)), "segment": last.segment}

    def served(self, frame: pd.DataFrame | None = None, **changed: Any) -> ServedLog:
        """The log, or another one, with the names of its columns."""
        named = {"at": "at", "read_at": "decided", "ages": {"profile": "age_s"}, "layer": "layer"}
        return ServedLog(self.log if frame is None else frame, **(named | changed))


_NAMES = ("n_1h", "n_24h", "sum_1h", "mean")


def _events(rng: np.random.Generator) -> pd.DataFrame:
    count = 4_000
    at = START + pd.to_timedelta(np.sort(rng.integers(0, 96 * 3_600_000, count)), "ms")
    late_ms = np.where(rng.random(count) < 0.2, rng.integers(0, 1_800_000, count), 30)
    return pd.DataFrame(
        {
            "payment_id": [f"p{number}" for number in range(count)],
            "card_id": rng.integers(0, CARDS, count),
            "amount": rng.integers(1, 50_000, count) / 100,
            "at": at.tz_localize(None),
            "arrived": (at + pd.to_timedelta(late_ms, "ms")).tz_localize(None),
        }
    )


def _profiles(rng: np.random.Generator) -> pd.DataFrame:
    """A row a card and half an hour, written within a second; one in ten rewritten hours later."""
    moments = pd.date_range(START, periods=192, freq="30min")
    made = pd.DataFrame(
        [
            {"card_id": card, "at": at, "score": float(rng.normal()), "segment": segment}
            for card in range(CARDS)
            for at, segment in zip(moments, rng.choice(list("abc"), len(moments)), strict=True)
        ]
    )
    made["written"] = made["at"] + pd.to_timedelta(rng.integers(0, 1_000, len(made)), "ms")
    again = made.sample(frac=0.1, random_state=1)
    again = again.assign(score=again.score + 1, written=again.written + pd.Timedelta("7h"))
    return pd.concat([made, again], ignore_index=True)
