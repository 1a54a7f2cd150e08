"""Stores with windowed views, and plain views of as many features over the same server."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, PushSource, RepoConfig
from feast.aggregation import Aggregation
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Float64, Int64, String
from feast.value_type import ValueType

import hotplate
from hotplate import CachePolicy, windowed_view
from hotplate.embedded import EmbeddedServer
from hotplate.serving.entities import declared_shape
from hotplate.windowed import WindowedViews

__all__ = [
    "CARD",
    "DAY_MS",
    "WindowedShop",
    "aggregations",
    "declare",
    "frame_of",
    "open_store",
    "open_windowed_shop",
]

CARD = Entity(name="card", join_keys=["card_id"], value_type=ValueType.INT64)
DAY_MS = 86_400_000
_SPANS = (
    *(timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=10), timedelta(hours=1)),
    *(timedelta(days=1), timedelta(days=7), timedelta(days=30)),
)
_FUNCTIONS = ("count", "sum", "mean", "min", "max", "std")
_ARRIVES_AFTER_MS = 20
_CACHED = "hotplate.online_store.CachedOnlineStore"


def aggregations() -> list[Aggregation]:
    """Seven windows with six aggregates each."""
    return [
        Aggregation(
            column="" if function == "count" else "amount", function=function, time_window=span
        )
        for span in _SPANS
        for function in _FUNCTIONS
    ]


def declare(name: str, folder: Path, **settings: Any) -> WindowedViews:
    """A windowed view of cards over a push source of its own."""
    batch = FileSource(
        name=f"{name}_table",
        path=str(folder / f"{name}.parquet"),
        timestamp_field="at",
        created_timestamp_column="arrived",
    )
    return windowed_view(
        name=name,
        entities=[CARD],
        source=PushSource(name=f"{name}_push", batch_source=batch),
        event_id="payment_id",
        schema=[Field(name="payment_id", dtype=String), Field(name="amount", dtype=Float64)],
        aggregations=aggregations(),
        **settings,
    )


def frame_of(cards: Sequence[int] | np.ndarray[Any, Any], ts_ms: Any, seed: int) -> pd.DataFrame:
    """Events of cards at moments, as they are pushed."""
    rng = np.random.default_rng(seed)
    ts = np.asarray(ts_ms, np.int64)
    return pd.DataFrame(
        {
            "card_id": np.asarray(cards, np.int64),
            "payment_id": [f"{seed}-{number}" for number in range(len(ts))],
            "amount": rng.integers(100, 100_000, len(ts)) / 100,
            "at": pd.to_datetime(ts, unit="ms", utc=True),
            "arrived": pd.to_datetime(ts + _ARRIVES_AFTER_MS, unit="ms", utc=True),
        }
    )


@dataclass(frozen=True)
class WindowedShop:
    """Cards with windows, and with plain rows.

    Attributes:
        bare: Feast over Redis.
        hot: Feast over Hotplate over the same Redis.
        server: that Redis.
        windowed: the 42 features of `activity`, which is never cached.
        merchant: those of `merchant`, in the hot profile.
        plain: 42 features of a plain view, which Hotplate never caches either.
    """

    bare: FeatureStore
    hot: FeatureStore
    server: EmbeddedServer
    windowed: list[str]
    merchant: list[str]
    plain: list[str]

    @property
    def cache(self) -> hotplate.Hotplate:
        return hotplate.of(self.hot)

    def fill(self, view: str, card: int, count: int, span_ms: int = 30 * DAY_MS) -> None:
        """Events of one card, spread evenly over the time until now."""
        now_ms = time.time_ns() // 1_000_000
        moments = np.sort(now_ms - np.random.default_rng(card).integers(100, span_ms, count))
        self.cache.ingest(f"{view}_events", frame_of([card] * count, moments, card))
        self.cache.runtime.event_logs.compaction.drain()

    def key(self, view: str, card: int) -> bytes:
        """Where the log of a card is kept."""
        events = self.hot.get_feature_view(f"{view}_events")
        log = self.cache.runtime.event_logs.log(events)
        return log.key(declared_shape(events), (card,))

    def fold(self, view: str, card: int) -> None:
        """Have the log of a card compacted."""
        logs = self.cache.runtime.event_logs
        log = logs.log(self.hot.get_feature_view(f"{view}_events"))
        logs.fold(log, [self.key(view, card)])
        logs.compaction.drain()

    def write_plain(self, cards: range) -> None:
        """Plain rows of cards."""
        view = self.bare.get_feature_view("plain")
        draw = np.random.default_rng(3).normal(size=(len(cards), len(view.features)))
        rows = [
            (
                EntityKey(join_keys=["card_id"], entity_values=[Value(int64_val=card)]),
                {field.name: _value(field, x) for field, x in zip(view.features, row, strict=True)},
                datetime(2026, 1, 1, tzinfo=UTC),
                None,
            )
            for card, row in zip(cards, draw.tolist(), strict=True)
        ]
        self.bare._get_provider().online_write_batch(self.bare.config, view, rows, None)


def _value(field: Field, number: float) -> Value:
    if field.dtype == Int64:
        return Value(int64_val=int(number * 1_000))
    return Value(double_val=number)


@contextmanager
def open_windowed_shop() -> Iterator[WindowedShop]:
    """Start a server, apply, and take it all down again."""
    with EmbeddedServer.start() as server, TemporaryDirectory(prefix="hotplate-bench-") as name:
        folder = Path(name)
        redis = {"type": "redis", "connection_string": server.connection_string}
        hot, bare = open_store(folder, {"type": _CACHED, "store": redis}), open_store(folder, redis)
        activity = declare("activity", folder, cache="never")
        merchant = declare("merchant", folder, cache="never", profile="hot")
        fields = [field for field in activity.windowed.schema if field.name != "card_id"]
        table = FileSource(name="t", path=str(folder / "t.parquet"), timestamp_field="at")
        plain = FeatureView(
            name="plain",
            entities=[CARD],
            schema=[Field(name=f"p_{field.name}", dtype=field.dtype) for field in fields],
            source=table,
            tags=CachePolicy(cache="never").tags(),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hot.apply([CARD, *activity, *merchant, plain])
            bare.refresh_registry()
        shop = WindowedShop(
            bare,
            hot,
            server,
            *(
                [f"{view.name}:{field.name}" for field in view.features]
                for view in (activity.windowed, merchant.windowed, plain)
            ),
        )
        yield shop
        shop.cache.runtime.event_logs.compaction.drain()  # or it finds the server gone


def open_store(folder: Path, online: dict[str, Any]) -> FeatureStore:
    """A store over a registry that several share."""
    return FeatureStore(
        config=RepoConfig(
            project="windows",
            provider="hotplate.provider.HotplateProvider",
            registry={"path": str(folder / "registry.db"), "cache_ttl_seconds": 0},
            online_store=online,
            offline_store={"type": "file"},
            entity_key_serialization_version=3,
        )
    )
