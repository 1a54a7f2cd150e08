"""The feature repo's stores for one run: a server of its own, a registry of its own.

The repo's feature_store.yaml is read as it is; only `online_store.store` and the registry's path
are replaced. So the demo needs no Redis and leaves none behind, and a registry that somebody keeps
in the repo does not learn of features that were materialized elsewhere.
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
        source: in the place of `online_store.store`.

    Raises:
        ValueError: the folder is no feature repo with Hotplate's online store.
    """

    def __init__(self, folder: Path, work: Path, source: OnlineSource) -> None:
        self.folder = folder.resolve()
        self._raw = _settings_of(self.folder / "feature_store.yaml")
        self._raw["registry"] = {**_registry_of(self._raw), "path": str(work / "registry.db")}
        self._source = source

    def open_cached(self) -> FeatureStore:
        """Feast over Hotplate over the source, as the repo says it."""
        online = {**self._raw["online_store"], "store": dict(self._source.settings)}
        return self._open(online)

    def open_bare(self) -> FeatureStore:
        """Feast over the source."""
        return self._open(dict(self._source.settings))

    def _open(self, online: Mapping[str, Any]) -> FeatureStore:
        config = RepoConfig(**{**self._raw, "online_store": dict(online)})
        config.repo_path = self.folder
        return FeatureStore(config=config)

    def write_tables(self, tables: Mapping[str, pd.DataFrame]) -> None:
        """Write the Parquet files that the repo's file sources name."""
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        for name, table in tables.items():
            table.to_parquet(data / f"{name}.parquet", index=False)

    def apply(self, store: FeatureStore) -> list[str]:
        """Apply what features.py declares; returns the names of its feature views."""
        objects = _declared(self.folder / "features.py")
        store.apply(objects)
        return [found.name for found in objects if isinstance(found, FeatureView)]

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
    return [
        found
        for found in vars(module).values()
        if isinstance(found, Entity | FeatureView | FeatureService)
    ]
