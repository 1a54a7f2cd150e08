"""The feature repo's stores for one run, with a registry of its own.

The repo's feature_store.yaml is read as it is; only the registry's path is replaced, and, where a
run brings a server of its own, `online_store.store`. So a run needs no Redis and leaves none
behind, and a registry that somebody keeps in the repo does not learn of features that were
materialized elsewhere.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from feast import Entity, FeatureService, FeatureStore, FeatureView, RepoConfig

from hotplate.embedded import EmbeddedServer, EmbeddedServerError
from hotplate.windowed import windowed_of

__all__ = ["FeatureRepo", "OnlineSource", "online_source", "quiet_feast"]


@contextmanager
def quiet_feast() -> Iterator[None]:
    """Keep Feast's deprecation warnings, log lines and progress bars off the screen."""
    logger = logging.getLogger("feast")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@dataclass(frozen=True)
class OnlineSource:
    """The online store that both runs read.

    Attributes:
        name: what it is, for people.
        settings: `online_store` of a feature_store.yaml.
        note: why it is not what was asked for first, or "".
    """

    name: str
    settings: Mapping[str, Any]
    note: str = ""


@contextmanager
def online_source(kind: str, folder: Path) -> Iterator[OnlineSource]:
    """An empty online store that is gone after the block.

    Args:
        kind: "valkey", "sqlite", or "auto" for SQLite where the server cannot start.
        folder: for what it keeps on disk.

    Raises:
        EmbeddedServerError: "valkey" was asked for and cannot start.
    """
    sqlite = {"type": "sqlite", "path": str(folder / "online.db")}
    if kind == "sqlite":
        yield OnlineSource("SQLite", sqlite)
        return
    try:
        server = EmbeddedServer.start()
    except EmbeddedServerError as error:
        if kind != "auto":
            raise
        yield OnlineSource("SQLite", sqlite, note=str(error).splitlines()[0])
        return
    with server:
        settings = {"type": "redis", "connection_string": server.connection_string}
        yield OnlineSource(f"{_version_of(server.binary)} on 127.0.0.1", settings)


def _version_of(binary: Path) -> str:
    """The server's name and version, from a line such as "Valkey server v=9.1.2 sha=..."."""
    said = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=False)
    words = said.stdout.split()
    version = next((word.removeprefix("v=") for word in words if word.startswith("v=")), "")
    return f"{words[0] if words else binary.name} {version}".strip()


class FeatureRepo:
    """A feature repo, opened over another online store and another registry.

    Args:
        folder: holds feature_store.yaml and features.py.
        work: for the registry.
        source: in the place of `online_store.store`; None leaves that as it is.
        root: the folder with `data/`, which the paths of file sources begin at; `folder` if left
            out.

    Raises:
        ValueError: the folder is no feature repo with Hotplate's online store.
    """

    def __init__(
        self, folder: Path, work: Path, source: OnlineSource | None, root: Path | None = None
    ) -> None:
        self.folder = folder.resolve()
        self.root = (root or folder).resolve()
        self._raw = _settings_of(self.folder / "feature_store.yaml")
        self._raw["registry"] = {**_registry_of(self._raw), "path": str(work / "registry.db")}
        # unless the repo names other places: what processes count, for `hotplate stats --folder`,
        # and which rows they hold, for those after them
        self._raw["online_store"] = {
            "metrics": {"folder": str((work / "metrics").resolve())},
            "preload": {"folder": str((work / "preload").resolve())},
            **self._raw["online_store"],
        }
        self._source = self._raw["online_store"]["store"] if source is None else source.settings

    def open_cached(self, changed: Mapping[str, Any] | None = None) -> FeatureStore:
        """Feast over Hotplate over the source, as the repo says it.

        Args:
            changed: settings of `online_store` in the place of the repo's own.
        """
        return self._open(
            {**self._raw["online_store"], **(changed or {}), "store": dict(self._source)}
        )

    def open_bare(self) -> FeatureStore:
        """Feast over the source."""
        return self._open(dict(self._source))

    def client(self) -> Any:
        """A client of redis-py for the server that the wrapped store is, or its cluster.

        Raises:
            ValueError: the wrapped store is no Redis.
        """
        from feast.infra.online_stores.redis import RedisOnlineStore, RedisOnlineStoreConfig

        if self._source.get("type") != "redis":
            raise ValueError(
                f"the online store is {self._source.get('type')}, and streams are Redis': wrap a "
                "Redis or Valkey in feature_store.yaml, or name one with --redis HOST:PORT"
            )
        return RedisOnlineStore()._get_client(RedisOnlineStoreConfig(**self._source))

    @property
    def wrapped(self) -> Mapping[str, Any]:
        """The settings of the wrapped store."""
        return dict(self._source)

    @property
    def shown_store(self) -> str:
        """The wrapped store, in words, without what is behind its address."""
        kind = self._source.get("type", "?")
        address = str(self._source.get("connection_string", "")).split(",")[0]
        return f"{kind} {address}".strip()

    @property
    def online(self) -> Mapping[str, Any]:
        """What the repo says of its online store."""
        return dict(self._raw["online_store"])

    def _open(self, online: Mapping[str, Any]) -> FeatureStore:
        config = RepoConfig(**{**self._raw, "online_store": dict(online)})
        config.repo_path = self.root
        return FeatureStore(config=config)

    def write_tables(self, tables: Mapping[str, pd.DataFrame]) -> None:
        """Write the Parquet files that the repo's file sources name."""
        data = self.root / "data"
        data.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            # Spark reads no nanoseconds
            table.to_parquet(data / f"{name}.parquet", index=False, coerce_timestamps="us")

    def apply(self, store: FeatureStore, service: str = "") -> list[str]:
        """Apply what features.py declares, or of it what a feature service needs.

        Returns:
            The names of the feature views of the service, or of all.

        Raises:
            ValueError: there is no such service.
        """
        objects = _declared(self.folder / "features.py")
        wanted = [one for one in objects if isinstance(one, FeatureService)]
        if service:
            known = ", ".join(one.name for one in wanted)
            wanted = [one for one in wanted if one.name == service]
            if not wanted:
                raise ValueError(f"features.py declares no service {service!r}; there are: {known}")
        views = {view.name for one in wanted for view in one.feature_view_projections}
        windowed = [log for one in objects if one.name in views and (log := windowed_of(one))]
        needed = views | {log.events for log in windowed}
        rest = [one for one in objects if isinstance(one, Entity) or one.name in needed]
        store.apply([*rest, *wanted])
        return sorted(views)

    def materialize(self, store: FeatureStore, view: str) -> None:
        """Bring one feature view in the online store up to now."""
        store.materialize_incremental(datetime.now(UTC), feature_views=[view])


def _settings_of(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path}: no such file; name the folder of a feature repo")
    try:
        raw = yaml.safe_load(os.path.expandvars(path.read_text("utf-8")))  # as Feast reads it
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {error}") from error
    online = raw.get("online_store") if isinstance(raw, dict) else None
    if not isinstance(online, dict) or "store" not in online:
        raise ValueError(f"{path}: online_store is not Hotplate's; it must wrap a store")
    return dict(raw)


def _registry_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    registry = raw.get("registry")
    return dict(registry) if isinstance(registry, dict) else {}


def _declared(path: Path) -> list[Any]:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = {
        id(one): one
        for one in vars(module).values()
        if isinstance(one, Entity | FeatureView | FeatureService)
    }
    return list(found.values())  # each once, also where it is bound to two names
