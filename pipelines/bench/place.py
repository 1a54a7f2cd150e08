"""A server and small feature repos around it, for benchmarks of several processes."""

from __future__ import annotations

import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from feast import Entity, FeatureStore, FeatureView, Field, FileSource
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Float64
from feast.value_type import ValueType

import hotplate
from hotplate.embedded import EmbeddedServer

__all__ = ["COLUMNS", "T0", "VIEWS", "Place", "await_channel", "features_of", "rows_of", "write"]

VIEWS = 4
T0 = datetime(2026, 1, 1, tzinfo=UTC)
_CACHED = "hotplate.online_store.CachedOnlineStore"
COLUMNS = 10


class Place:
    """A server and repos around it.

    Attributes:
        server: on which processes meet.
        folder: of everything.
        address: settings of a store or a shared tier on that server.
    """

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.address = {"connection_string": server.connection_string}

    def open(
        self, name: str, store: dict[str, Any], cached: dict[str, Any] | None, views: int = VIEWS
    ) -> FeatureStore:
        """A repo in a folder of its own, applied; another store of one that is there."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        online = store if cached is None else {"type": _CACHED, "store": store, **cached}
        settings = {
            "project": name.split("-")[0],
            "provider": "local",
            "registry": {
                "path": str(self.folder / f"{name.split('-')[0]}.db"),
                "cache_ttl_seconds": 0,
            },
            "entity_key_serialization_version": 3,
            "offline_store": {"type": "file"},
            "online_store": online,
        }
        (folder / "feature_store.yaml").write_text(yaml.safe_dump(settings))
        made = FeatureStore(repo_path=str(folder))
        user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
        source = FileSource(name="source", path=str(folder / "x.parquet"), timestamp_field="t")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.apply(
                [
                    user,
                    *(
                        FeatureView(
                            name=f"v{view}",
                            entities=[user],
                            source=source,
                            schema=[
                                Field(name=f"v{view}_f{column}", dtype=Float64)
                                for column in range(COLUMNS)
                            ],
                        )
                        for view in range(views)
                    ),
                ]
            )
        return made


def features_of(views: int = VIEWS) -> list[str]:
    """Every feature of the first views."""
    return [f"v{view}:v{view}_f{column}" for view in range(views) for column in range(COLUMNS)]


def rows_of(view: int, users: range, value: float, moment: datetime = T0) -> list[Any]:
    """Rows of a view as Feast hands them to a store, all of one value and event time."""
    return [
        (
            EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=user)]),
            {f"v{view}_f{column}": Value(double_val=value) for column in range(COLUMNS)},
            moment,
            None,
        )
        for user in users
    ]


def write(store: FeatureStore, view: int, rows: list[Any]) -> None:
    """Write rows as `materialize` and `push` do."""
    table = store.get_feature_view(f"v{view}")
    store._get_provider().online_write_batch(store.config, table, rows, None)


def await_channel(store: FeatureStore) -> None:
    """Read until the event channel is whole."""
    while not (channel := hotplate.of(store).stats().channel) or not channel.is_whole:
        store.get_online_features(features_of(1), [{"user_id": 0}])
        time.sleep(0.01)
