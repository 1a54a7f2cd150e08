"""Promise 2 where a server holds again what was deleted: restarted, replaced, promoted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hotplate
from hotplate import Tier
from hotplate.embedded import EmbeddedServer
from pipelines.lab.cluster import cluster
from pipelines.lab.proxy import Proxy
from pipelines.lab.servers import SERVERS, SNAPSHOTS, client_of, replica_of
from pipelines.lab.waiting import wait_until

from .test_shared import TTL, Fleet, read

KEY = "hotplate:row:shop:v:user_id:int64_val:1"


@pytest.fixture(params=list(SERVERS))
def own_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """Redis, then Valkey, that come back from a restart with what they last saved."""
    with SERVERS[request.param](extra_args=SNAPSHOTS) as server:
        yield server


def fleet_at(folder: Path, at: str, **more: Any) -> Fleet:
    """Caches over SQLite that meet at a server; the value of user 1 is 10."""
    fleet = Fleet(folder, {"connection_string": at, "timeout": "2s", **more}, TTL)
    fleet.write(10)
    return fleet


@contextmanager
def process(fleet: Fleet, **changes: Any) -> Iterator[Any]:
    """A cache that connects to nothing any more after the block, as a process that ended."""
    store = fleet.join(**changes)
    yield store
    hotplate.of(store).runtime.close()


def shares(fleet: Fleet, **changes: Any) -> None:
    """What one process loads is there for the next one."""
    with process(fleet, **changes) as store:
        assert read(store)[0] == 11
    with process(fleet, **changes) as store:
        assert read(store) == (11, Tier.SHARED)


def test_a_process_that_starts_after_a_restart_believes_no_snapshot(
    tmp_path: Path, own_server: EmbeddedServer
) -> None:
    """Nobody who knew the server before is there to tell it; entries of before are in it."""
    fleet = fleet_at(tmp_path, own_server.connection_string)
    with process(fleet) as store, client_of(own_server) as admin:
        read(store)
        admin.save()
        fleet.write(11, through=store)
        assert not admin.exists(KEY)
    own_server.restart()
    with client_of(own_server) as admin:
        assert admin.exists(KEY)
    with process(fleet) as store:
        assert read(store) == (11, Tier.SOURCE)
    shares(fleet)


def test_a_restart_that_nobody_noticed_yet(tmp_path: Path, own_server: EmbeddedServer) -> None:
    """A process that has no connection just then takes nothing from the server that came back."""
    fleet = fleet_at(tmp_path, own_server.connection_string)
    with process(fleet) as store, client_of(own_server) as admin:
        read(store)
        admin.save()
        fleet.write(11, through=store)
        pool = hotplate.of(store).runtime.shared()._pool
        (wire,) = pool._idle[pool._topology.nodes[0]]
        pool._idle.clear()  # a request on another thread has it
        own_server.restart()
        assert read(store) == (11, Tier.SOURCE)
        wire.close()


def test_a_replica_that_had_not_heard_of_it(tmp_path: Path, own_server: EmbeddedServer) -> None:
    """It takes over: to those who come it is another server, whatever its name."""
    with (
        Proxy((own_server.host, own_server.port)) as link,
        replica_of(own_server, link) as replica,
        client_of(replica) as admin,
    ):
        fleet = fleet_at(tmp_path, own_server.connection_string)
        with process(fleet) as store:
            read(store)
            wait_until(lambda: admin.exists(KEY))
            link.blackhole()
            fleet.write(11, through=store)
        admin.replicaof("no", "one")
        at = {"connection_string": replica.connection_string, "timeout": "2s"}
        with process(fleet, shared=at) as store:
            assert admin.exists(KEY)
            assert read(store) == (11, Tier.SOURCE)
        shares(fleet, shared=at)


@pytest.mark.heavy
def test_a_primary_that_was_a_replica_in_between(
    tmp_path: Path, own_server: EmbeddedServer
) -> None:
    """The same process of the server with the data of another one: what it was told is lost."""
    with (
        Proxy((own_server.host, own_server.port)) as link,
        replica_of(own_server, link) as replica,
        client_of(own_server) as first,
        client_of(replica) as second,
    ):
        fleet = fleet_at(tmp_path, own_server.connection_string)
        with process(fleet) as store:
            read(store)
            wait_until(lambda: second.exists(KEY))
            link.blackhole()
            fleet.write(11, through=store)
        second.replicaof("no", "one")
        first.replicaof(replica.host, replica.port)
        wait_until(lambda: first.info("replication")["master_link_status"] == "up")
        first.replicaof("no", "one")
        assert first.exists(KEY)
        with process(fleet) as store:
            assert read(store) == (11, Tier.SOURCE)
        shares(fleet)


def test_a_replica_that_joins_costs_no_more_than_a_miss(
    tmp_path: Path, own_server: EmbeddedServer
) -> None:
    """The primary then gives its history another name; who is connected goes on."""
    fleet = fleet_at(tmp_path, own_server.connection_string)
    with process(fleet) as store:
        read(store)
        with replica_of(own_server):
            fleet.write(11, through=store)
            shares(fleet)
            hotplate.of(store).runtime.domain.invalidate_all("shop")
            assert read(store) == (11, Tier.SHARED)
        shares(fleet)


def test_one_node_of_a_cluster_restarts(tmp_path: Path) -> None:
    """Not the one that holds the generations, which has noticed nothing."""
    with cluster(node_timeout_ms=30_000, has_snapshots=True) as group:
        settings = {name: value for name, value in group.settings.items() if name != "type"}
        at = settings.pop("connection_string")
        fleet = fleet_at(tmp_path, at, **settings)
        client = group.clients[0]
        home = group.owner(client.cluster("keyslot", "hotplate:generations:shop"))
        keys = {user: f"hotplate:row:shop:v:user_id:int64_val:{user}" for user in range(50)}
        owners = {user: group.owner(client.cluster("keyslot", key)) for user, key in keys.items()}
        user = next(user for user, owner in owners.items() if owner != home)
        node = owners[user]
        fleet.write(10, user=user)
        with process(fleet) as store:
            assert read(store, user) == (10, Tier.SOURCE)
            group.clients[node].save()
            fleet.write(11, user=user, through=store)
        group.nodes[node].restart()
        wait_until(group.is_whole, "the cluster is whole again")
        assert group.clients[node].exists(keys[user])
        with process(fleet) as store:
            assert read(store, user) == (11, Tier.SOURCE)
        with process(fleet) as store:
            assert read(store, user) == (11, Tier.SHARED)


def test_a_server_that_does_not_say_who_it_is(tmp_path: Path, own_server: EmbeddedServer) -> None:
    """As some proxies: it is not used, and the reason is told."""
    with client_of(own_server) as admin:
        admin.acl_setuser("default", enabled=True, nopass=True, commands=["-info"])
    fleet = fleet_at(tmp_path, own_server.connection_string)
    with process(fleet) as store:
        assert read(store) == (10, Tier.SOURCE)
        assert "info" in (hotplate.of(store).stats().shared.last_error or "")
    with process(fleet) as store:
        assert read(store) == (10, Tier.SOURCE)
