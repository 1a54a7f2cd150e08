"""A cluster of three nodes whose slots move and whose nodes fail, behind proxies if wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from hotplate.embedded import EmbeddedServer

from .proxy import Proxy
from .servers import SERVERS, SNAPSHOTS, client_of
from .waiting import wait_until

__all__ = ["Cluster", "cluster"]

_SLOTS = 16_384
_PRIMARIES = 3


@dataclass
class Cluster:
    """Nodes that share the slots; the first three own them at the start.

    Attributes:
        nodes: the servers; a fourth one, if there is one, is a replica of the first.
        proxies: in front of each node, which announces the proxy's address, or none.
        clients: one for each node, past its proxy.
    """

    nodes: list[EmbeddedServer]
    proxies: list[Proxy]
    clients: list[Any]
    ids: list[str] = field(default_factory=list)

    @property
    def connection_string(self) -> str:
        """Every node, as Feast's Redis store wants them."""
        return ",".join(front.connection_string for front in self.proxies or self.nodes)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of Feast's Redis store."""
        return {
            "type": "redis",
            "redis_type": "redis_cluster",
            "connection_string": self.connection_string,
        }

    def owner(self, slot: int) -> int:
        """Which node owns a slot, as a node that is running sees it."""
        return self._owner_as_seen_by(self._running()[0], slot)

    def _owner_as_seen_by(self, client: Any, slot: int) -> int:
        for first, last, primary, *_ in client.cluster("slots"):
            if first <= slot <= last:
                return self.ids.index(_text(primary[2]))
        raise LookupError(f"nobody owns slot {slot}")

    def move_slot(self, slot: int, to: int) -> None:
        """Give a slot and its keys to another node."""
        with self.moving(slot, to):
            pass

    @contextmanager
    def moving(self, slot: int, to: int) -> Iterator[None]:
        """The same; for the length of the block the slot is on its way, its keys still here.

        Meanwhile the old owner answers for keys that it has and with ASK for others.
        """
        source = self.owner(slot)
        here, there = self.clients[source], self.clients[to]
        _set_slot(there, slot, "IMPORTING", self.ids[source])
        _set_slot(here, slot, "MIGRATING", self.ids[to])
        yield
        node = self.nodes[to]
        while keys := here.cluster("getkeysinslot", slot, 100):
            here.migrate(node.host, node.port, keys, 0, 5_000)
        for client in (there, here):
            _set_slot(client, slot, "NODE", self.ids[to])
        running = self._running()
        wait_until(lambda: all(self._owner_as_seen_by(each, slot) == to for each in running))

    def fail(self, index: int) -> None:
        """End a node, and wait until the others know it; its replica, if any, has taken over then.

        Without a replica the cluster answers CLUSTERDOWN from then on.
        """
        has_replica = index == 0 and len(self.nodes) > _PRIMARIES
        self.nodes[index].stop()
        state = "ok" if has_replica else "fail"
        wait_until(
            lambda: all(self._has_failed(client, index, state) for client in self._running()),
            f"node {index} has failed",
        )

    def _has_failed(self, client: Any, index: int, state: str) -> bool:
        """Whether a node knows that another one has failed, and how the cluster is for it."""
        nodes = {node["node_id"]: node for node in client.cluster("nodes").values()}
        is_known = "fail" in nodes[self.ids[index]]["flags"].split(",")
        return is_known and client.cluster("info")["cluster_state"] == state

    def _running(self) -> list[Any]:
        pairs = zip(self.nodes, self.clients, strict=True)
        return [client for node, client in pairs if node.is_running]

    def names_replica(self) -> bool:
        """Whether every node names the replica to clients that ask where slots are."""
        return all(
            any(len(owners) > 1 for _, _, *owners in client.cluster("slots"))
            for client in self.clients
        )

    def is_whole(self) -> bool:
        """Whether every node knows all of them and every slot."""
        infos = [client.cluster("info") for client in self.clients]
        count = str(len(self.nodes))
        return all(
            info["cluster_state"] == "ok" and info["cluster_known_nodes"] == count for info in infos
        )


def _set_slot(client: Any, slot: int, *what: str) -> None:
    client.execute_command("CLUSTER", "SETSLOT", slot, *what)


@contextmanager
def cluster(
    kind: str = "valkey",
    *,
    is_proxied: bool = False,
    has_replica: bool = False,
    node_timeout_ms: int = 5_000,
    has_snapshots: bool = False,
) -> Iterator[Cluster]:
    """Three nodes that share the slots evenly, and if wanted a replica of the first.

    Args:
        kind: `redis` or `valkey`.
        is_proxied: put a proxy before each node; nodes talk to each other past them.
        has_replica: start a fourth node that replicates the first.
        node_timeout_ms: after how long a silent node counts as failed.
        has_snapshots: a node that is restarted comes back with what it last saved, not empty.
    """
    with ExitStack() as stack:
        made = Cluster([], [], [])
        arguments = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"]
        arguments += ["--cluster-node-timeout", str(node_timeout_ms)]
        arguments += ["--repl-diskless-sync-delay", "0"]
        arguments += SNAPSHOTS if has_snapshots else []
        for _ in range(_PRIMARIES + has_replica):
            own = list(arguments)
            if is_proxied:
                made.proxies.append(stack.enter_context(Proxy(("127.0.0.1", 0))))
                own += ["--cluster-announce-ip", "127.0.0.1"]
                own += ["--cluster-announce-port", str(made.proxies[-1].port)]
            node = stack.enter_context(SERVERS[kind](extra_args=own))
            if is_proxied:
                made.proxies[-1].retarget((node.host, node.port))
            made.nodes.append(node)
            made.clients.append(stack.enter_context(client_of(node)))
        made.ids = [_text(client.execute_command("CLUSTER", "MYID")) for client in made.clients]
        for number, client in enumerate(made.clients[:_PRIMARIES]):
            first, end = (_SLOTS * part // _PRIMARIES for part in (number, number + 1))
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in made.nodes[1:]:
            made.clients[0].execute_command("CLUSTER", "MEET", node.host, node.port)
        wait_until(made.is_whole, "the cluster is whole")
        if has_replica:
            replica = made.clients[-1]
            replica.execute_command("CLUSTER", "REPLICATE", made.ids[0])
            wait_until(lambda: replica.info("replication").get("master_link_status") == "up")
            wait_until(made.names_replica, "every node names the replica")
        yield made


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
