"""The stores that the benchmarks compare: Feast on a Redis, Hotplate around the same Redis."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Bool, Float32, Float64, Int64, String
from feast.value_type import ValueType

import hotplate
from hotplate.embedded import EmbeddedServer

__all__ = ["VIEWS", "Shop", "open_shop"]

VIEWS = 4
COLUMNS = 10
_FLOATS = (Float64,) * COLUMNS
_MIXED = (Float64, Float32, Int64, String, Bool) * 2


@dataclass(frozen=True)
class Shop:
    """Four views of ten features each, keyed by one int64.

    Attributes:
        bare: Feast over Redis.
        hot: Feast over Hotplate over the same Redis.
        features: the 40 float features.
        mixed: 40 features of 5 types, of four more views.
        entities: ids 0 up to this are written.
    """

    bare: FeatureStore
    hot: FeatureStore
    features: list[str]
    mixed: list[str]
    entities: int

    @property
    def cache(self) -> hotplate.Hotplate:
        return hotplate.of(self.hot)


@contextmanager
def open_shop(
    entities: int, memory: Mapping[str, Any] | None = None, **more: Any
) -> Iterator[Shop]:
    """Start a server, apply, fill, and take it all down again; `more` are settings of the cache."""
    with EmbeddedServer.start() as server, TemporaryDirectory(prefix="hotplate-bench-") as folder:
        redis = {"type": "redis", "connection_string": server.connection_string}
        cached = {
            "type": "hotplate.online_store.CachedOnlineStore",
            "store": redis,
            "ttl_map": {"default": {"ttl": "1h", "jitter": 0}},
            "memory": dict(memory or {"max_entries": 4_000_000, "max_bytes": "4GB"}),
            **more,
        }
        bare, hot = (_store(Path(folder), online) for online in (redis, cached))
        user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
        views = [_view(Path(folder), user, f"v{i}", _FLOATS) for i in range(VIEWS)]
        views += [_view(Path(folder), user, f"m{i}", _MIXED) for i in range(VIEWS)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hot.apply([user, *views])
            bare.refresh_registry()
        for view in views:
            _fill(bare, view, entities if view.name.startswith("v") else min(entities, 1_000))
        names = [f"{view.name}:{field.name}" for view in views for field in view.features]
        half = VIEWS * COLUMNS
        yield Shop(bare, hot, names[:half], names[half:], entities)


def _store(folder: Path, online: Mapping[str, Any]) -> FeatureStore:
    return FeatureStore(
        config=RepoConfig(
            project="bench",
            provider="local",
            registry={"path": str(folder / "registry.db"), "cache_ttl_seconds": 0},
            online_store=dict(online),
            offline_store={"type": "file"},
            entity_key_serialization_version=3,
        )
    )


def _view(folder: Path, user: Entity, name: str, types: tuple[Any, ...]) -> FeatureView:
    source = FileSource(
        name=f"{name}_source", path=str(folder / f"{name}.parquet"), timestamp_field="event_time"
    )
    fields = [Field(name=f"{name}_f{i}", dtype=dtype) for i, dtype in enumerate(types)]
    return FeatureView(name=name, entities=[user], schema=fields, source=source)


def _fill(store: FeatureStore, view: FeatureView, entities: int) -> None:
    table = store.get_feature_view(view.name)
    rng = np.random.default_rng(7)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    provider = store._get_provider()
    for start in range(0, entities, 2_000):
        ids = range(start, min(start + 2_000, entities))
        rows = [
            (
                EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=user)]),
                {
                    field.name: _value(field.dtype, number)
                    for field, number in zip(view.features, draw, strict=True)
                },
                moment,
                None,
            )
            for user, draw in zip(
                ids, rng.normal(size=(len(ids), len(view.features))).tolist(), strict=True
            )
        ]
        provider.online_write_batch(store.config, table, rows, None)


def _value(dtype: Any, number: float) -> Value:
    made = {
        Float64: lambda: Value(double_val=number),
        Float32: lambda: Value(float_val=number),
        Int64: lambda: Value(int64_val=int(number * 1e6)),
        String: lambda: Value(string_val=f"s{int(number * 1e3)}"),
        Bool: lambda: Value(bool_val=number > 0),
    }
    return made[dtype]()
