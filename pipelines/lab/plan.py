"""What the workers of a fleet are to do, and the feature repo they do it in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from feast import Entity, FeatureStore, FeatureView, Field, FileSource
from feast.types import Int64, String
from feast.value_type import ValueType

__all__ = ["WEIGHTS", "Plan", "write_repo"]

_CACHED = "hotplate.online_store.CachedOnlineStore"
_USER = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
WEIGHTS = {"read": 100.0, "write": 3.0, "invalidate": 1.0, "invalidate_view": 1.0}


@dataclass(frozen=True)
class Plan:
    """What every worker does until it is told to pause.

    Attributes:
        repo: folder of the feature repo; see `write_repo`.
        histories: folder that the histories go into.
        views: feature views; a history names them by their places in this list.
        entities: how many entities there are.
        rows: how many entities an operation names at most.
        threads: how many threads of each worker do operations.
        seed: of everything that is random.
        weights: how often each operation is done, against the others.
        think_s: how long a thread waits between two operations.
    """

    repo: str
    histories: str
    views: Sequence[str] = ("v0", "v1")
    entities: int = 20
    rows: int = 4
    threads: int = 1
    seed: int = 0
    weights: Mapping[str, float] = field(default_factory=lambda: dict(WEIGHTS))
    think_s: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        return cls(**json.loads(text))


def write_repo(
    folder: Path,
    online: Mapping[str, Any],
    ttl_map: Mapping[str, Any],
    views: Sequence[str] = ("v0", "v1"),
    **settings: Any,
) -> Path:
    """A feature repo with a cached store, its views applied.

    Each row holds a value and the same as text, so that a row put together from two is noticed.

    Args:
        folder: made if need be.
        online: settings of the wrapped store.
        ttl_map: how fresh is fresh enough.
        views: names of the feature views.
        settings: more settings of Hotplate.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cached = {"type": _CACHED, "store": dict(online), "ttl_map": dict(ttl_map), **settings}
    config = {
        "project": folder.name,
        "provider": "local",
        "registry": str(folder / "registry.db"),
        "online_store": cached,
        "offline_store": {"type": "file"},
        "entity_key_serialization_version": 3,
    }
    # JSON is YAML
    (folder / "feature_store.yaml").write_text(json.dumps(config))
    source = FileSource(
        name="rows", path=str(folder / "rows.parquet"), timestamp_field="event_time"
    )
    schema = [Field(name="value", dtype=Int64), Field(name="copy", dtype=String)]
    made = [
        FeatureView(name=name, entities=[_USER], schema=schema, source=source) for name in views
    ]
    FeatureStore(repo_path=str(folder)).apply([_USER, *made])
    return folder
