"""A Redis or Valkey deployment: one server, a cluster, or a primary that sentinels watch.

Connection strings are Feast's (`host:port,host:port,db=0,ssl=true,username=...,password=...`), so
that what a user wrote for Feast's Redis store means the same here. Everything after the hosts goes
to redis-py's connection: TLS, ACL user and password pass through and are never shown.

A `Wire` is one connection without redis-py's retries, pools and callbacks: what uses it must know
when a connection was lost, because what was lost with it decides what may still be served.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hotplate.errors import CommandRefused, ServerError

__all__ = ["KINDS", "Node", "RedisServer", "Topology", "Wire", "close_with"]

KINDS: Final = ("redis", "redis_cluster", "redis_sentinel")
_CONNECT_TIMEOUT_S: Final = 0.5
_RECEIVE_BYTES: Final = 1 << 16
# what only redis-py's cluster client understands
_CLUSTER_ONLY: Final = (
    "cluster_error_retry_attempts",
    "dynamic_startup_nodes",
    "read_from_replicas",
    "reinitialize_steps",
    "require_full_coverage",
    "skip_full_coverage_check",
)


@dataclass(frozen=True, order=True)
class Node:
    """A primary.

    Attributes:
        host: its name or address.
        port: its port.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Topology:
    """The primaries of a deployment at one moment.

    Attributes:
        nodes: every primary, sorted.
        slots: for a cluster (first slot, last slot, primary); empty otherwise.
    """

    nodes: tuple[Node, ...]
    slots: tuple[tuple[int, int, Node], ...] = ()

    def node_of(self, key: bytes) -> Node:
        """The primary that holds a key.

        Raises:
            ServerError: no node of the cluster covers its slot.
        """
        if not self.slots:
            return self.nodes[0]
        from redis.crc import key_slot

        slot = key_slot(key)
        for first, last, node in self.slots:
            if first <= slot <= last:
                return node
        raise ServerError(f"no node of the cluster covers slot {slot}")


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

    def topology(self, timeout_s: float = _CONNECT_TIMEOUT_S) -> Topology:
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

    def wire(self, node: Node, timeout_s: float = _CONNECT_TIMEOUT_S) -> Wire:
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
        from redis import RedisError
        from redis.sentinel import Sentinel

        kind: Any = Sentinel
        timeouts = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        try:
            # as Feast does it: options that begin with `socket` go to the sentinels, too
            sentinel = kind([(host.host, host.port) for host in hosts], **{**options, **timeouts})
            try:
                host, port = sentinel.discover_master(self.sentinel_master)
            finally:
                for client in sentinel.sentinels:
                    client.close()
        except (RedisError, OSError) as error:
            raise ServerError(f"sentinels: {error}") from None
        return Topology((Node(str(host), int(port)),))


def close_with(owner: object, wires: Iterable[list[Wire]]) -> None:
    """Close wires when their owner is collected, before their sockets are.

    Args:
        owner: who has them.
        wires: where they are then; must not refer to the owner.
    """
    weakref.finalize(owner, _close_all, wires).atexit = False


def _close_all(wires: Iterable[list[Wire]]) -> None:
    for some in list(wires):
        while some:
            some.pop().close()


# redis-py makes classes of its own of some answers and drops their first word
_CODES: Final = {
    "AskError": "ASK",
    "ClusterDownError": "CLUSTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "NoScriptError": "NOSCRIPT",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}


def _code_of(error: Exception) -> str:
    known = _CODES.get(type(error).__name__)
    return known if known is not None else str(error).split(" ", 1)[0]


def _node_of(primary: Sequence[Any], asked: Node) -> Node:
    host, port = primary[0], primary[1]
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    return Node(name or asked.host, int(port))  # an empty name is "the one you asked"


class Wire:
    """One connection to one primary: commands out, replies in, no retries.

    Used by one thread at a time. Any error but `CommandRefused` leaves it closed.
    """

    __slots__ = ("_connection", "_is_open", "node")

    def __init__(self, node: Node, connection: Any) -> None:
        self.node = node
        self._connection = connection
        self._is_open = True

    def send(self, *commands: Sequence[Any]) -> None:
        """Send commands without waiting for their replies."""
        from redis import RedisError

        connection = self._connection
        if not self._is_open:  # redis-py would connect again, and nobody would know
            raise ServerError(f"{self.node}: the connection was closed")
        try:
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        except (RedisError, OSError) as error:
            raise self._lost(error) from None

    def read(self) -> Any:
        """The next reply.

        Raises:
            CommandRefused: the server answered with an error; the connection is still good.
            ServerError: the connection is lost, or nothing came in time.
        """
        from redis import RedisError, ResponseError

        try:
            return self._connection.read_response(disable_decoding=True)
        except ResponseError as error:
            raise CommandRefused(f"{self.node}: {error}", _code_of(error)) from None
        except (RedisError, OSError, AttributeError, ValueError) as error:
            # the latter two where another thread closed it meanwhile
            raise self._lost(error) from None

    def exchange(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands and read a reply each; an error reply as a `CommandRefused`, not raised.

        Raises:
            ServerError: the connection is lost, or a reply did not come in time.
        """
        from redis import RedisError, ResponseError
        from redis._parsers.hiredis import NOT_ENOUGH_DATA as not_enough

        connection = self._connection
        if not self._is_open:
            raise ServerError(f"{self.node}: the connection was closed")
        replies: list[Any] = []
        try:
            reader = getattr(connection._parser, "_reader", None)
            if reader is None or not hasattr(reader, "gets"):  # redis-py without hiredis
                self.send(*commands)
                return [self.read_or_refusal() for _ in commands]
            pack = connection._command_packer.pack
            sock = connection._sock
            sock.sendall(b"".join([part for command in commands for part in pack(*command)]))
            timeout_s, began_s = sock.gettimeout(), time.monotonic()
            while len(replies) < len(commands):
                reply = reader.gets(False)
                if reply is not_enough:
                    # a reply that trickles in never lets the socket's own timeout pass
                    if timeout_s is not None and time.monotonic() - began_s > timeout_s:
                        raise TimeoutError("timed out")
                    received = sock.recv(_RECEIVE_BYTES)
                    if not received:
                        raise ConnectionError("the server closed the connection")
                    reader.feed(received)
                elif isinstance(reply, ResponseError):
                    replies.append(CommandRefused(f"{self.node}: {reply}", _code_of(reply)))
                elif isinstance(reply, Exception):
                    raise reply
                else:
                    replies.append(reply)
        except (RedisError, OSError, AttributeError, ValueError) as error:
            raise self._lost(error) from None
        return replies

    def hear(self, into: bytearray) -> Iterator[Any]:
        """Replies as they come, without end.

        The kernel writes what arrives while another thread may have the interpreter; whoever looks
        at the first byte there knows that something waits to be heard.

        Args:
            into: what is received. Its first byte is not 0 from the moment that something arrives
                until all of it has been taken. (Where a reply is longer than this is, its rest
                may begin with a 0, which hides it.)

        Raises:
            CommandRefused, ServerError: as `read`.
        """
        from redis import RedisError, ResponseError
        from redis._parsers.hiredis import NOT_ENOUGH_DATA as not_enough

        reader = getattr(self._connection._parser, "_reader", None)
        if reader is None or not hasattr(reader, "gets"):  # redis-py without hiredis
            while True:
                yield self.read()
        sock = self._connection._sock
        try:
            while True:
                reply = reader.gets(False)
                if reply is not_enough:
                    into[0] = 0
                    size = sock.recv_into(into)
                    if not size:
                        raise ConnectionError("the server closed the connection")
                    reader.feed(into, 0, size)
                elif isinstance(reply, ResponseError):
                    raise CommandRefused(f"{self.node}: {reply}", _code_of(reply))
                elif isinstance(reply, Exception):
                    raise reply
                else:
                    yield reply
        except (RedisError, OSError, AttributeError, ValueError) as error:
            raise self._lost(error) from None

    def read_or_refusal(self) -> Any:
        """The next reply; an error reply as a `CommandRefused`, not raised."""
        try:
            return self.read()
        except CommandRefused as refusal:
            return refusal

    def run_id(self) -> bytes:
        """What tells this run of the server from every other one, and from other servers."""
        info = self.ask("INFO", "server")
        lines = info.split(b"\r\n") if isinstance(info, bytes) else []
        found = next((line for line in lines if line.startswith(b"run_id:")), None)
        if found is None:
            raise self._lost(ValueError("it does not say who it is"))
        return bytes(found)

    def answer_within(self, timeout_s: float) -> None:
        """From now on a reply may take this long."""
        self._connection._sock.settimeout(timeout_s)

    def wait_forever(self) -> None:
        """Let `read` wait without a bound, until another thread closes the wire."""
        self._connection._sock.settimeout(None)

    def ask(self, *command: Any) -> Any:
        """Send one command and return its reply."""
        self.send(command)
        return self.read()

    def close(self) -> None:
        """Close it; calling it again does nothing."""
        self._is_open = False
        self._connection.disconnect()

    def _lost(self, error: Exception) -> ServerError:
        self.close()
        return ServerError(f"{self.node}: {error or type(error).__name__}")

    def __repr__(self) -> str:
        return f"Wire({self.node})"
