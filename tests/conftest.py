"""Servers shared by the whole run, and repos of a test's own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client
from hypothesis import settings

from hotplate.embedded import EmbeddedServer
from pipelines.lab.cluster import Cluster, cluster
from pipelines.lab.fleet import Nursery
from pipelines.lab.programs import ProgramMissing, redis_server, valkey_server
from pipelines.lab.sentinel import SentinelGroup, sentinel_group
from pipelines.lab.servers import SERVERS, TlsServer, tls_server

from .guarded import Guarded
from .stores import Repo, missing, postgres_server

_numbers = itertools.count()

if not os.environ.get("CI"):  # where there is one, Hypothesis has a profile of its own
    settings.register_profile("hotplate", deadline=None)  # how long it takes says nothing here
    settings.load_profile("hotplate")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Any:
    """What needs a program that is not here is skipped on a laptop and fails in CI."""
    try:
        return (yield)
    except ProgramMissing as error:
        missing(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Any:
    """The same where a test itself starts the program."""
    try:
        return (yield)
    except ProgramMissing as error:
        missing(str(error))


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


@pytest.fixture(scope="module", params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A server of a module's own, one of each kind after the other."""
    with (redis_server if request.param == "redis" else valkey_server)() as server:
        yield server


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[Any]:
    """A client of the emptied server."""
    with redis_client.Redis(port=server.port) as client:
        client.flushall()
        yield client


@pytest.fixture(scope="session")
def postgres() -> Iterator[dict[str, Any]]:
    """PostgreSQL, as settings of Feast's Postgres store."""
    with postgres_server() as settings:
        yield settings


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[Cluster]:
    """Three servers that share the slots of a cluster, for tests that break none of them."""
    with cluster() as made:
        yield made


@pytest.fixture(scope="session")
def redis_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    """Redis with a certificate."""
    with tls_server(tmp_path_factory.mktemp("tls")) as server:
        yield server


@pytest.fixture(params=list(SERVERS))
def own_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """Redis, then Valkey, for one test alone: it may freeze it, restart it or change its users."""
    with SERVERS[request.param]() as server:
        yield server


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster behind proxies for one test alone; its first node has a replica."""
    with cluster(is_proxied=True, has_replica=True, node_timeout_ms=1_000) as made:
        yield made


@pytest.fixture
def own_sentinels() -> Iterator[SentinelGroup]:
    """A primary and a replica behind proxies and under three sentinels, for one test alone."""
    with sentinel_group(is_proxied=True) as made:
        yield made


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where the workers of a fleet are forked from: a program that has imported Feast."""
    made = Nursery()
    yield made
    made.close()


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
        made = Guarded(server.settings["connection_string"], "redis_cluster")
    else:
        made = Guarded(server.connection_string)
    yield made
    made.close()
