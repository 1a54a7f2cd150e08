"""Servers shared by the whole run, and repos of a test's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotplate.embedded import EmbeddedServer

from .guarded import Guarded
from .stores import Repo, cluster_servers, postgres_server, redis_server, valkey_server

_numbers = itertools.count()


@pytest.fixture(scope="session")
def redis() -> Iterator[EmbeddedServer]:
    """Redis proper."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def valkey() -> Iterator[EmbeddedServer]:
    """Valkey."""
    with valkey_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[dict[str, Any]]:
    """PostgreSQL, as settings of Feast's Postgres store."""
    with postgres_server() as settings:
        yield settings


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[dict[str, Any]]:
    """A cluster of three, as settings of Feast's Redis store."""
    with cluster_servers() as servers:
        yield {
            "type": "redis",
            "redis_type": "redis_cluster",
            "connection_string": ",".join(server.connection_string for server in servers),
        }


@pytest.fixture(params=["sqlite", "redis"])
def online(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of each store that every correctness test runs on."""
    return settings_of(request, request.param)


@pytest.fixture(params=["sqlite", "redis", "valkey", "postgres"])
def every_online(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of every store that can be had here."""
    return settings_of(request, request.param)


def settings_of(request: pytest.FixtureRequest, kind: str) -> dict[str, Any]:
    """Settings of one kind of store, its server started if it needs one."""
    if kind == "sqlite":
        return {"type": "sqlite"}
    if kind == "postgres":
        return dict(request.getfixturevalue("postgres"))
    server = request.getfixturevalue(kind)
    return {"type": "redis", "connection_string": server.connection_string}


@pytest.fixture
def make_repo(tmp_path: Path, online: dict[str, Any]) -> Callable[..., Repo]:
    """Makes repos over the parametrized store, each with a project of its own."""

    def make(**kwargs: Any) -> Repo:
        number = next(_numbers)
        return Repo(tmp_path / f"repo{number}", dict(online), project=f"shop{number}", **kwargs)

    return make


@pytest.fixture(params=["redis", "valkey", "redis_cluster"])
def guarded(request: pytest.FixtureRequest) -> Iterator[Guarded]:
    """A server of each kind whose user may do what is documented."""
    server = request.getfixturevalue(request.param)
    if request.param == "redis_cluster":
        made = Guarded(server["connection_string"], "redis_cluster")
    else:
        made = Guarded(server.connection_string)
    yield made
    made.close()
