"""An online store as a third party might write it, with every liberty that Feast lets it take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

from feast import Entity, FeatureView, RepoConfig
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.infra.online_stores.online_store import OnlineStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import FeastConfigBaseModel

__all__ = ["OddOnlineStore", "OddOnlineStoreConfig"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_Row = tuple[datetime | None, dict[str, Value] | None]

# database -> (project, feature view, entity) -> row: shared by every store object of the process
_databases: Final[dict[str, dict[tuple[str, str, bytes], _Row]]] = {}


class OddOnlineStoreConfig(FeastConfigBaseModel):
    """Settings of the store."""

    type: Literal["tests.online_store.odd_store.OddOnlineStore"] = (
        "tests.online_store.odd_store.OddOnlineStore"
    )
    database: str
    """Name of the dictionary that holds the rows."""

    unknown: Literal["nothing", "unset", "empty", "time_only"] = "nothing"
    """What an unknown entity looks like."""

    is_epoch: bool = False
    """Say 1970 for every row."""

    rows: Literal["right", "one_less", "one_more"] = "right"
    """How many rows come back."""


class OddOnlineStore(OnlineStore):
    """Answers with naive times and columns nobody asked for, and edits the caller's list."""

    def online_write_batch(
        self,
        config: RepoConfig,
        table: FeatureView,
        data: list[tuple[EntityKey, dict[str, Value], datetime, datetime | None]],
        progress: Callable[[int], Any] | None,
    ) -> None:
        """Keep the last row written."""
        database = _databases.setdefault(config.online_store.database, {})
        for key, values, moment, _ in data:
            database[self._place(config, table, key)] = (moment, dict(values))
            if progress:
                progress(1)

    def online_read(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKey],
        requested_features: list[str] | None = None,
    ) -> list[_Row]:
        """Rows in order, or a row too few or too many where the settings say so."""
        settings = config.online_store
        if requested_features is not None:
            requested_features.append(f"_ts:{table.name}")
        names = [field.name for field in table.features]
        database = _databases.get(settings.database, {})
        answer = [
            _known(settings, *found)
            if (found := database.get(self._place(config, table, key))) is not None
            else _unknown(settings, names)
            for key in entity_keys
        ]
        if settings.rows == "one_less":
            return answer[:-1]
        return answer if settings.rows == "right" else [*answer, (None, None)]

    def update(
        self,
        config: RepoConfig,
        tables_to_delete: Sequence[FeatureView],
        tables_to_keep: Sequence[FeatureView],
        entities_to_delete: Sequence[Entity],
        entities_to_keep: Sequence[Entity],
        partial: bool,
    ) -> None:
        """Drop the rows of views that are gone."""
        gone = {table.name for table in tables_to_delete}
        self._drop(config, lambda view: view in gone)

    def teardown(
        self, config: RepoConfig, tables: Sequence[FeatureView], entities: Sequence[Entity]
    ) -> None:
        """Drop every row of the project."""
        self._drop(config, lambda view: True)

    def _drop(self, config: RepoConfig, is_gone: Callable[[str], bool]) -> None:
        database = _databases.setdefault(config.online_store.database, {})
        for place in [p for p in database if p[0] == config.project and is_gone(p[1])]:
            del database[place]

    @staticmethod
    def _place(config: RepoConfig, table: FeatureView, key: EntityKey) -> tuple[str, str, bytes]:
        return config.project, table.name, serialize_entity_key(key, 3)


def _known(settings: OddOnlineStoreConfig, moment: Any, values: Any) -> _Row:
    naive = moment.astimezone(UTC).replace(tzinfo=None)
    shown = _EPOCH if settings.is_epoch else naive
    return shown, {**values, "nobody_asked": Value(string_val="for this"), "nor_this": Value()}


def _unknown(settings: OddOnlineStoreConfig, names: Sequence[str]) -> _Row:
    if settings.unknown == "unset":
        return _EPOCH, {name: Value() for name in names}
    if settings.unknown == "time_only":
        return datetime(2026, 1, 1), None
    return (None, {}) if settings.unknown == "empty" else (None, None)
