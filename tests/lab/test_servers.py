"""Each way in which a server of the laboratory fails."""

from __future__ import annotations

import ssl
import time
from typing import Any

import pytest
import redis as redis_client
from redis.backoff import NoBackoff
from redis.retry import Retry

from hotplate.embedded import EmbeddedServer
from pipelines.lab.cluster import Cluster
from pipelines.lab.proxy import Proxy
from pipelines.lab.sentinel import NAME, SentinelGroup
from pipelines.lab.servers import (
    GARBAGE,
    TlsServer,
    acl_user,
    client_of,
    frozen,
    out_of_memory,
    put_garbage,
    replica_of,
)
from pipelines.lab.waiting import wait_until

AT_ONCE = Retry(NoBackoff(), 0)


def test_a_frozen_server(own_server: EmbeddedServer) -> None:
    with client_of(own_server, socket_timeout=0.2, retry=AT_ONCE) as client:
        client.set("k", "v")
        with frozen(own_server), pytest.raises(redis_client.TimeoutError):
            client.get("k")
        assert client.get("k") == b"v"


def test_a_server_that_comes_back_empty(own_server: EmbeddedServer) -> None:
    port = own_server.port
    with client_of(own_server) as client:
        client.set("k", "v")
        own_server.restart()
        assert own_server.port == port
        assert client.get("k") is None


def test_users_with_few_rights(own_server: EmbeddedServer) -> None:
    with acl_user(own_server, "~mine:*", "+get", "+ping") as user:
        with client_of(own_server, username=user.username, password=user.password) as client:
            assert client.get("mine:k") is None
            for command in (("get", "k"), ("set", "mine:k", 1), ("client", "tracking", "on")):
                with pytest.raises(redis_client.exceptions.NoPermissionError):
                    client.execute_command(*command)
        with (
            client_of(
                own_server, username=user.username, password="wrong", retry=AT_ONCE
            ) as stranger,
            pytest.raises(redis_client.AuthenticationError),
        ):
            stranger.ping()
    with client_of(own_server) as admin:
        assert user.username not in admin.acl_users()


def test_out_of_memory(own_server: EmbeddedServer) -> None:
    with client_of(own_server) as client:
        client.set("k", "v")
        with out_of_memory(own_server):
            with pytest.raises(redis_client.exceptions.OutOfMemoryError):
                client.set("k", "w")
            assert client.get("k") == b"v"
        client.set("k", "w")


def test_a_read_only_replica(own_server: EmbeddedServer) -> None:
    """It follows through a proxy, and falls behind when that drops what the primary says."""
    with (
        Proxy((own_server.host, own_server.port)) as proxy,
        replica_of(own_server, proxy) as replica,
        client_of(own_server) as writer,
        client_of(replica) as reader,
    ):
        writer.set("k", "v")
        wait_until(lambda: reader.get("k") == b"v")
        with pytest.raises(redis_client.exceptions.ReadOnlyError):
            reader.set("k", "w")
        proxy.blackhole()
        writer.set("k", "w")
        wait_until(lambda: proxy.counts().dropped)
        assert reader.get("k") == b"v"


def test_garbage(own_server: EmbeddedServer) -> None:
    with client_of(own_server) as client:
        keys: list[bytes | str] = [f"k{number}" for number in range(2 * len(GARBAGE))]
        for key in keys[: len(GARBAGE)]:
            client.set(key, bytes(range(64)))
        for key in keys[len(GARBAGE) :]:
            client.hset(key, mapping={"a": bytes(range(64)), "b": b"x"})
        placed = put_garbage(client, keys)
        assert list(placed) == keys
        for key, kind in placed.items():
            if kind in ("list", "hash"):
                assert client.type(key).decode() == kind
            elif client.type(key) == b"hash":
                assert client.hget(key, "a") != bytes(range(64))
            else:
                assert client.get(key) != bytes(range(64))


def test_tls(redis_tls: TlsServer) -> None:
    """Only who trusts its authority talks to it, through a proxy as well."""
    with redis_client.Redis(**redis_tls.settings) as client:
        assert client.ping()
    with Proxy((redis_tls.host, redis_tls.port)) as proxy:
        through = {**redis_tls.settings, "port": proxy.port, "retry": AT_ONCE}
        with redis_client.Redis(**through) as client:
            assert client.ping()
        for changes in ({"ssl_ca_certs": None}, {"ssl": False, "socket_timeout": 1}):
            settings = {**through, **changes}
            if not settings["ssl"]:
                settings = {"host": proxy.host, "port": proxy.port, "retry": AT_ONCE}
            with (
                redis_client.Redis(**settings) as client,
                pytest.raises((redis_client.ConnectionError, ssl.SSLError)),
            ):
                client.ping()


def test_a_cluster_behind_proxies(own_cluster: Cluster) -> None:
    """Slots move, with ASK on the way; a node that fails is replaced by its replica."""
    host, port = own_cluster.connection_string.split(",")[0].split(":")
    with redis_client.RedisCluster(host=host, port=int(port)) as client:
        keys = [f"k{number}" for number in range(50)]
        for key in keys:
            client.set(key, key)
        ports = {proxy.port for proxy in own_cluster.proxies}
        assert {node.port for node in client.get_nodes()} == ports
        slot = client.keyslot("k1")
        source = own_cluster.owner(slot)
        target = (source + 1) % 3
        with own_cluster.moving(slot, target):
            own_cluster.clients[source].migrate(
                own_cluster.nodes[target].host, own_cluster.nodes[target].port, ["k1"], 0, 1_000
            )
            with pytest.raises(redis_client.exceptions.AskError):
                own_cluster.clients[source].get("k1")
            assert client.get("k1") == b"k1"
        assert own_cluster.owner(slot) == target
        assert client.get("k1") == b"k1"
        served = [proxy.counts().to_client for proxy in own_cluster.proxies]
        assert all(served[:3])
        own_cluster.fail(0)
        assert own_cluster.owner(0) == 3
        wait_until(lambda: all(_got(client, key) == key.encode() for key in keys))


def _got(client: redis_client.RedisCluster, key: str) -> object:
    try:
        return client.get(key)
    except redis_client.RedisError:
        return None


def test_a_failover_by_sentinels(own_sentinels: SentinelGroup) -> None:
    """Clients that ask the sentinels find the new primary, at its proxy's address."""
    group = own_sentinels
    addresses = [(each.host, each.port) for each in group.sentinels]
    finder: Any = redis_client.Sentinel(addresses)  # type: ignore[no-untyped-call]
    with finder.master_for(NAME, retry=AT_ONCE) as client:
        client.set("k", "v")
        assert finder.discover_master(NAME)[1] == group.proxies[0].port
        began = time.monotonic()
        assert group.failover() == 1
        assert time.monotonic() - began < 15
        assert finder.discover_master(NAME)[1] == group.proxies[1].port
        wait_until(lambda: _set(client))
        assert group.clients[1].get("k") == b"w"
        assert group.fail_primary() == 0
        wait_until(lambda: _set(client))
        assert group.clients[0].get("k") == b"w"
    for watcher in finder.sentinels:
        watcher.close()


def _set(client: redis_client.Redis) -> bool:
    try:
        return bool(client.set("k", "w"))
    except redis_client.RedisError:
        return False
