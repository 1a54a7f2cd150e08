"""Real Feast stores for tests: a bare one and a cached one over the same data."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, PushSource, RepoConfig
from feast.value_type import ValueType

import hotplate
from hotplate.clock import FakeClock
from hotplate.testing import use_clock

CACHED = "hotplate.online_store.CachedOnlineStore"
IS_CI = bool(os.environ.get("CI"))


def missing(what: str) -> None:
    """A service that is missing skips its tests on a laptop and fails them in CI."""
    if IS_CI:
        pytest.fail(f"{what}; CI must have it")
    pytest.skip(what)


def await_(is_so: Callable[[], Any], seconds: float = 30) -> None:
    """Poll until something is so, up to a deadline."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.02)


def _postgres_tool(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


@contextmanager
def postgres_server() -> Iterator[dict[str, Any]]:
    """A PostgreSQL of our own on a free port; yields the settings of Feast's Postgres store."""
    initdb, server = _postgres_tool("initdb"), _postgres_tool("postgres")
    if initdb is None or server is None:
        missing("PostgreSQL is not here")
    with tempfile.TemporaryDirectory(prefix="hotplate-pg-") as folder:
        run_as = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if run_as:
            shutil.chown(folder, "postgres")
            os.chmod(folder, 0o700)
        data = f"{folder}/data"
        subprocess.run(
            [*run_as, str(initdb), "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"],
            check=True,
            capture_output=True,
        )
        port = _free_port()
        process = subprocess.Popen(
            [*run_as, str(server), "-D", data, "-p", str(port), "-k", folder, *_PG_SETTINGS],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _await_postgres(port, process)
            yield {
                "type": "postgres",
                "host": "127.0.0.1",
                "port": port,
                "database": "postgres",
                "db_schema": "public",
                "user": "postgres",
                "password": "postgres",
                "sslmode": "disable",
            }
        finally:
            process.terminate()
            process.wait(timeout=30)


_PG_SETTINGS = ("-c", "listen_addresses=127.0.0.1", "-c", "fsync=off")


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_postgres(port: int, process: subprocess.Popen[bytes]) -> None:
    import psycopg

    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(
                host="127.0.0.1", port=port, user="postgres", dbname="postgres", connect_timeout=2
            ).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline or process.poll() is not None:
                raise
            time.sleep(0.05)


USER = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
MERCHANT = Entity(name="merchant", join_keys=["merchant_id"], value_type=ValueType.STRING)


@dataclass
class Repo:
    """A feature repo in a folder of its own, with a bare and a cached store over the same data.

    Attributes:
        online: settings of the wrapped store.
        bare: Feast over `online`.
        hot: Feast over Hotplate over `online`.
        clock: what the cached store takes its time from.
    """

    folder: Path
    online: dict[str, Any]
    project: str = "shop"
    ttl_map: Mapping[str, Any] = field(default_factory=lambda: {"default": "30s"})
    settings: Mapping[str, Any] = field(default_factory=dict)
    registry: Mapping[str, Any] = field(default_factory=dict)
    provider: str = "local"
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.online["type"] == "sqlite":
            self.online = {"path": str(self.folder / "online.db"), **self.online}
        self.bare = FeatureStore(config=self._config(self.online))
        self.hot = self.open_hot()

    def _config(self, online: Mapping[str, Any]) -> RepoConfig:
        return RepoConfig(
            project=self.project,
            provider=self.provider,
            registry={"path": str(self.folder / "registry.db"), **self.registry},
            online_store=dict(online),
            offline_store={"type": "file"},
            entity_key_serialization_version=3,
        )

    def open_hot(self, **changes: Any) -> FeatureStore:
        """Another cached store over the same data, as another process would open it."""
        settings = {"ttl_map": dict(self.ttl_map), **self.settings, **changes}
        store = FeatureStore(
            config=self._config({"type": CACHED, "store": dict(self.online), **settings})
        )
        use_clock(store, self.clock)
        return store

    def open_bare(self) -> FeatureStore:
        """Another bare store over the same data."""
        return FeatureStore(config=self._config(self.online))

    @property
    def cache(self) -> hotplate.Hotplate:
        return hotplate.of(self.hot)

    def apply(self, *objects: Any) -> None:
        """Apply through the cached store, then let the bare one see it."""
        self.hot.apply(list(objects))
        self.bare.refresh_registry()

    def source(self, name: str, **kwargs: Any) -> PushSource:
        """A push source of that name."""
        batch = FileSource(
            name=f"{name}_batch",
            path=str(self.folder / f"{name}.parquet"),
            timestamp_field="event_time",
            **kwargs,
        )
        return PushSource(name=f"{name}_push", batch_source=batch)

    def view(
        self, name: str, schema: Mapping[str, Any], entities: Sequence[Entity] = (USER,), **kw: Any
    ) -> FeatureView:
        """A feature view with a push source."""
        fields = [Field(name=column, dtype=dtype) for column, dtype in schema.items()]
        source_args = {key: kw.pop(key) for key in ("created_timestamp_column",) if key in kw}
        return FeatureView(
            name=name,
            entities=list(entities),
            schema=fields,
            source=self.source(name, **source_args),
            **kw,
        )

    def write(self, view: str, through: FeatureStore | None = None, /, **columns: Any) -> None:
        """Write rows into a view; through the bare store unless told otherwise."""
        store = self.bare if through is None else through
        frame = frame_of(**columns)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            store.write_to_online_store(view, frame)


def frame_of(**columns: Any) -> pd.DataFrame:
    """A frame with an event time, now if none is given."""
    frame = pd.DataFrame(columns)
    if "event_time" not in frame:
        frame["event_time"] = datetime(2026, 1, 1, tzinfo=UTC)
    return frame


def answers(store: FeatureStore, features: Any, entities: Any, **kwargs: Any) -> Any:
    """Everything a response says, or the error's type and text, asked for in two ways.

    A response is lazy: an error that only one of `to_dict` and `.proto` raises must not hide what
    the other one says.
    """

    def ask(read: Callable[[Any], Any]) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return read(store.get_online_features(features, entities, **kwargs))
        except Exception as error:  # noqa: BLE001 - the error is the answer
            return type(error), str(error)

    as_dict = ask(lambda response: response.to_dict())
    if isinstance(as_dict, tuple):
        return as_dict if ask(message_of) == as_dict else ("only to_dict raises", as_dict)
    with_times = ask(lambda response: response.to_dict(include_event_timestamps=True))
    return as_dict, with_times, list(as_dict), ask(message_of)


def message_of(response: Any) -> Any:
    """The protobuf response, the order of its columns included."""
    return response.proto.SerializeToString(deterministic=True)


def assert_same(repo: Repo, features: Any, entities: Any, **kwargs: Any) -> Any:
    """The cached store answers as the bare one, on a first and on a second read."""
    expected = answers(repo.bare, features, entities, **kwargs)
    for _ in range(2):
        got = answers(repo.hot, features, entities, **kwargs)
        assert got == expected, f"{got}\n!=\n{expected}"
    return expected
