"""A Redis or Valkey deployment: one server, a cluster, or a primary that sentinels watch.

Connection strings are Feast's (`host:port,host:port,db=0,ssl=true,username=...,password=...`), so
that what a user wrote for Feast's Redis store means the same here. Everything after the hosts goes
to redis-py's connection: TLS, ACL user and password pass through and are never shown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hotplate.errors import ServerError
from hotplate.servers.topology import Node, Topology
from hotplate.servers.wire import Wire

__all__ = ["CONNECT_TIMEOUT_S", "KINDS", "RedisServer"]

KINDS: Final = ("redis", "redis_cluster", "redis_sentinel")
CONNECT_TIMEOUT_S: Final = 0.5
"""For each step of connecting. Pools do it on the side; who cannot do without waits this long."""

# what only redis-py's cluster client understands
_CLUSTER_ONLY: Final = (
    "cluster_error_retry_attempts",
    "dynamic_startup_nodes",
    "read_from_replicas",
    "reinitialize_steps",
    "require_full_coverage",
    "skip_full_coverage_check",
)


@dataclass(frozen=True)
class RedisServer:
    """How a deployment is reached; holds no connection.

    Attributes:
        connection_string: Feast's form of it.
        kind: `redis`, `redis_cluster` or `redis_sentinel`.
        sentinel_master: the name by which sentinels know the primary.
    """

    connection_string: str = field(repr=False)
    kind: str = "redis"
    sentinel_master: str = "mymaster"

    def hosts(self) -> list[Node]:
        """The hosts that the connection string names.

        Raises:
            ServerError: it names none.
        """
        return self._parsed()[0]

    def topology(self, timeout_s: float = CONNECT_TIMEOUT_S) -> Topology:
        """Ask who the primaries are.

        Raises:
            ServerError: nobody answers.
        """
        hosts, options = self._parsed()
        if self.kind == "redis_sentinel":
            return self._ask_sentinels(hosts, options, timeout_s)
        if self.kind == "redis_cluster":
            return self._ask_cluster(hosts, timeout_s)
        return Topology((hosts[0],))

    def wire(self, node: Node, timeout_s: float = CONNECT_TIMEOUT_S) -> Wire:
        """Connect to one primary.

        Args:
            node: which.
            timeout_s: for connecting, and for each reply afterwards.

        Raises:
            ServerError: it cannot be reached, or refuses the user.
        """
        from redis import Redis, RedisError
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        _, options = self._parsed()
        options.update(
            host=node.host,
            port=node.port,
            protocol=2,
            decode_responses=False,
            health_check_interval=0,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        connection: Any = None
        try:
            connection = Redis(**options).connection_pool.make_connection()
            connection.connect()
        except (RedisError, OSError, TypeError) as error:
            if connection is not None:
                connection.disconnect()
            raise ServerError(f"{node}: {error}") from None
        return Wire(node, connection)

    def _parsed(self) -> tuple[list[Node], dict[str, Any]]:
        from feast.infra.online_stores.redis import RedisOnlineStore

        hosts, options = RedisOnlineStore._parse_connection_string(self.connection_string)
        for name in _CLUSTER_ONLY:
            options.pop(name, None)
        if self.kind == "redis_cluster":
            options.pop("db", None)
        try:
            nodes = [Node(host["host"], int(host.get("port", 6379))) for host in hosts]
        except ValueError:
            nodes = []
        if not nodes:
            raise ServerError("the connection string names no host:port")
        return nodes, options

    def _ask_cluster(self, hosts: Sequence[Node], timeout_s: float) -> Topology:
        problems = []
        for host in hosts:
            try:
                wire = self.wire(host, timeout_s)
            except ServerError as error:
                problems.append(str(error))
                continue
            try:
                slots = sorted(
                    (int(first), int(last), _node_of(primary, host))
                    for first, last, primary, *_ in wire.ask("CLUSTER", "SLOTS")
                )
            except (ServerError, TypeError, ValueError) as error:  # the latter: a garbled answer
                problems.append(str(error))
                continue
            finally:
                wire.close()
            if slots:
                return Topology(tuple(sorted({node for _, _, node in slots})), tuple(slots))
            problems.append(f"{host}: the cluster has no slots")
        raise ServerError("; ".join(problems))

    def _ask_sentinels(
        self, hosts: Sequence[Node], options: dict[str, Any], timeout_s: float
    ) -> Topology:
        """The primary that the newest configuration names which any sentinel knows.

        One that was cut off from the others, perhaps together with an old primary, goes on naming
        it. Sentinels themselves go by the number of the configuration, so all of them are asked, at
        the same time, since one that is silent must not hold up what the others know.
        """
        named: dict[Node, tuple[int, Node]] = {}
        problems: dict[Node, str] = {}

        def ask(sentinel: Node) -> None:
            try:
                named[sentinel] = self._named_by(sentinel, options, timeout_s)
            except ServerError as error:
                problems[sentinel] = str(error)

        _at_once(ask, hosts)
        if not named:
            raise ServerError(f"sentinels: {'; '.join(problems.values())}")
        return Topology((max(named.values())[1],))

    def _named_by(
        self, sentinel: Node, options: dict[str, Any], timeout_s: float
    ) -> tuple[int, Node]:
        """The number of a sentinel's configuration, and the primary in it."""
        from redis import Redis, RedisError
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        # as Feast does it: options that begin with `socket` go to the sentinels, too
        own = {name: value for name, value in options.items() if name.startswith("socket_")}
        own |= {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        own["retry"] = Retry(NoBackoff(), 0)
        name = self.sentinel_master
        try:
            with (
                Redis(host=sentinel.host, port=sentinel.port, **own) as client,
                client.pipeline(transaction=False) as pipe,
            ):
                # the state names the old primary for as long as a failover is under way
                pipe.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
                pipe.execute_command("SENTINEL", "MASTER", name)
                (host, port), state = pipe.execute()
            return int(state[state.index(b"config-epoch") + 1]), Node(host.decode(), int(port))
        except (RedisError, OSError, TypeError, ValueError) as error:
            raise ServerError(f"{sentinel}: {error}") from None


def _at_once(action: Callable[[Node], None], hosts: Sequence[Node]) -> None:
    """Do something with every host, each on a thread of its own, and wait for all."""
    threads = []
    for host in hosts:
        thread = threading.Thread(target=action, args=(host,), name="hotplate-connect", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread to be had: one after the other
            action(host)
        else:
            threads.append(thread)
    for thread in threads:
        thread.join()


def _node_of(primary: Sequence[Any], asked: Node) -> Node:
    host, port = primary[0], primary[1]
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    return Node(name or asked.host, int(port))  # an empty name is "the one you asked"
