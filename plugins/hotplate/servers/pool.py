"""Connections kept for reuse, and commands to a whole deployment in one round trip."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, Final

from hotplate.errors import CommandRefused, ServerError
from hotplate.forks import leave_behind
from hotplate.servers.redis import RedisServer
from hotplate.servers.topology import Node, Topology
from hotplate.servers.wire import Wire, close_with

__all__ = ["Command", "Pool"]

Command = tuple[bytes, tuple[Any, ...]]
"""The key that decides which primary is asked, and the command."""

_IDLE_MAX: Final = 64
_CONNECT_TIMEOUT_S: Final = 0.5


class Pool:
    """Wires to the primaries of a deployment.

    Args:
        server: the deployment.
        timeout_s: how long a reply may take.
    """

    def __init__(self, server: RedisServer, timeout_s: float) -> None:
        self.server = server
        self.timeout_s = timeout_s
        self._runs: frozenset[bytes] | None = None
        self._reset()

    def _reset(self) -> None:
        self._idle: dict[Node, list[Wire]] = {}
        close_with(self, self._idle.values())
        self._topology: Topology | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands to the primaries that hold their keys, all before the first reply is read.

        Returns:
            A reply a command, in order; an error reply as a `CommandRefused`, not raised.

        Raises:
            ServerError: a primary did not answer in time, or the deployment was rearranged. Some
                of the commands may have been carried out.
        """
        topology = self._find()
        if topology.slots:
            return self._ask_cluster(topology, commands)
        node = topology.nodes[0]
        wire = self._take(node)
        try:
            replies = wire.exchange([command for _, command in commands])
        except BaseException:
            wire.close()
            self._topology = None
            raise
        self._give(node, wire)
        return replies

    def ask_keys(
        self, commands: Sequence[tuple[Any, ...]], home: bytes, keys: Sequence[bytes]
    ) -> list[Any]:
        """Read the values of keys, and send commands to the primary that holds `home`, as `ask`.

        Returns:
            A reply a command, then a value a key; None where the key holds none, or no string.

        Raises:
            ServerError: as `ask`; a refusal of any of it, too.
        """
        if self._find().slots:
            asked = [(home, command) for command in commands]
            replies = self.ask([*asked, *((key, ("GET", key)) for key in keys)])
            head, values = replies[: len(commands)], replies[len(commands) :]
            values = [None if _is_wrong_type(value) else value for value in values]
        else:
            *head, values = self.ask(
                [*((home, command) for command in commands), (home, (b"MGET", *keys))]
            )
            if isinstance(values, CommandRefused):
                raise values
        for reply in (*head, *values):
            if isinstance(reply, CommandRefused):
                raise reply
        return [*head, *values]

    def _ask_cluster(self, topology: Topology, commands: Sequence[Command]) -> list[Any]:
        by_node: dict[Node, list[int]] = {}
        for index, (key, _) in enumerate(commands):
            by_node.setdefault(topology.node_of(key), []).append(index)
        wires: dict[Node, Wire] = {}
        replies: list[Any] = [None] * len(commands)
        try:
            for node, indexes in by_node.items():
                wires[node] = self._take(node)
                wires[node].send(*[commands[index][1] for index in indexes])
            for node, indexes in by_node.items():
                for index in indexes:
                    replies[index] = wires[node].read_or_refusal()
        except BaseException:
            for wire in wires.values():
                wire.close()
            self._topology = None
            raise
        for node, wire in wires.items():
            self._give(node, wire)
        if any(isinstance(reply, CommandRefused) and _is_moved(reply) for reply in replies):
            self._topology = None
            raise ServerError("the cluster was rearranged")
        return replies

    def _find(self) -> Topology:
        """The primaries, which are the very processes that were first found.

        Raises:
            ServerError: they are not: one was restarted or replaced, and with it may have come
                back what was deleted. `renew` accepts them.
        """
        self._notice_fork()
        topology = self._topology
        if topology is None:
            topology, runs = self._meet()
            if self._runs is None:
                self._runs = runs
            elif runs != self._runs:
                raise ServerError("another server answers than before")
            self._topology = topology
        return topology

    def _meet(self) -> tuple[Topology, frozenset[bytes]]:
        topology = self.server.topology(_CONNECT_TIMEOUT_S)
        runs = set()
        for node in topology.nodes:
            wire = self._connect(node)
            try:
                runs.add(wire.run_id())
            except BaseException:
                wire.close()
                raise
            self._give(node, wire)
        return topology, frozenset(runs)

    def renew(self) -> bool:
        """Connect anew to whoever the primaries are now; whether others answer than before."""
        self.drop()
        topology, runs = self._meet()
        are_others = self._runs is not None and runs != self._runs
        self._runs, self._topology = runs, topology
        return are_others

    def _take(self, node: Node) -> Wire:
        with self._lock:
            idle = self._idle.get(node)
            if idle:
                return idle.pop()
        return self._connect(node)

    def _connect(self, node: Node) -> Wire:
        wire = self.server.wire(node, _CONNECT_TIMEOUT_S)
        wire.answer_within(self.timeout_s)
        return wire

    def _give(self, node: Node, wire: Wire) -> None:
        with self._lock:
            idle = self._idle.setdefault(node, [])
            if len(idle) < _IDLE_MAX:
                idle.append(wire)
                return
        wire.close()

    def drop(self) -> None:
        """Close what is idle and ask anew who the primaries are."""
        with self._lock:
            idle = [wire for wires in self._idle.values() for wire in wires]
            self._idle.clear()
            self._topology = None
        for wire in idle:
            wire.close()

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            leave_behind(*self._idle.values())
            self._idle.clear()
            self._reset()


def _is_wrong_type(value: Any) -> bool:
    return isinstance(value, CommandRefused) and value.code == "WRONGTYPE"


def _is_moved(refusal: CommandRefused) -> bool:
    return refusal.code in ("MOVED", "ASK", "CLUSTERDOWN", "TRYAGAIN")
