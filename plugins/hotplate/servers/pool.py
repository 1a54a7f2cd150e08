"""Connections kept for reuse, and commands to a whole deployment in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from hotplate.errors import CommandRefused, ServerError
from hotplate.forks import leave_behind, restart_in_children
from hotplate.servers.connector import Connector
from hotplate.servers.redis import CONNECT_TIMEOUT_S, RedisServer
from hotplate.servers.topology import Node, Topology
from hotplate.servers.wire import PrimaryId, Wire, bulk, close_with, packed

__all__ = ["CONNECT_TIMEOUT_S", "Command", "Packed", "Pool", "Primaries"]

Command = tuple[bytes, tuple[Any, ...]]
"""The key that decides which primary is asked, and the command."""


class Packed:
    """Commands for the primary that holds a key, as they are sent again and again.

    Attributes:
        key: the key.
        parts: the commands.
        whole: all of them as they go over a wire.
    """

    __slots__ = ("key", "parts", "whole")

    def __init__(self, key: bytes, *parts: tuple[bytes, ...]) -> None:
        self.key = key
        self.parts = parts
        self.whole = b"".join(packed(*part) for part in parts)


_IDLE_MAX: Final = 64


class Primaries:
    """The primaries of a deployment when it was met: who they are, and a wire to each.

    Attributes:
        topology: where they are.
        ids: who they are.
        have_changed: whether others were met before; some of what those were told may be lost.
    """

    def __init__(self, topology: Topology, before: frozenset[PrimaryId] | None) -> None:
        self.topology = topology
        self.wires: dict[Node, Wire] = {}
        self.ids: frozenset[PrimaryId] = frozenset()
        self._before = before

    @property
    def have_changed(self) -> bool:
        if self._before is None:
            return False
        return {one.run for one in self.ids} != {one.run for one in self._before}

    def ask(self, key: bytes, *command: Any) -> Any:
        """Send a command to the primary that holds a key, before anybody else does."""
        return self.wires[self.topology.node_of(key)].ask(*command)

    def close(self) -> None:
        for wire in self.wires.values():
            wire.close()


def _ignore(_: object) -> None:
    """For pools that need not be told."""


class Pool:
    """Wires to the primaries of a deployment.

    Args:
        server: the deployment.
        timeout_s: how long a reply may take, and how long a wire is waited for.
        admit: told which primaries were met before any of them is asked anything; raises where
            they must not be.
        on_failure: told of attempts to connect that failed, on threads of their own.
    """

    def __init__(
        self,
        server: RedisServer,
        timeout_s: float,
        admit: Callable[[Primaries], None] = _ignore,
        on_failure: Callable[[Exception], None] = _ignore,
    ) -> None:
        self.server = server
        self.timeout_s = timeout_s
        self._admit = admit
        self._on_failure = on_failure
        self._ids: frozenset[PrimaryId] | None = None
        self._term = 0
        self._reset()
        restart_in_children(self)

    def _reset(self) -> None:
        self._idle: dict[Node, list[Wire]] = {}
        close_with(self, self._idle.values())
        self._topology: Topology | None = None
        self._connector = Connector(self._on_failure)

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, commands: Sequence[Command], wait_s: float | None = None) -> list[Any]:
        """Send commands to the primaries that hold their keys, all before the first reply is read.

        Args:
            commands: what to send.
            wait_s: how long to wait for a wire where there is none; `timeout_s` if left out.

        Returns:
            A reply a command, in order; an error reply as a `CommandRefused`, not raised.

        Raises:
            ServerError: a primary did not answer in time, or the deployment was rearranged. Some
                of the commands may have been carried out.
        """
        if not commands:
            return []
        topology, term = self._find(wait_s), self._term
        if topology.slots:
            return self._ask_cluster(topology, commands, wait_s)
        node = topology.nodes[0]
        wire = self._take(node, wait_s)
        try:
            replies = wire.exchange([command for _, command in commands])
        except BaseException:
            wire.close()
            self._topology = None
            raise
        self._give(node, wire, term)
        return replies

    def must(self, commands: Sequence[Command], wait_s: float | None = None) -> list[Any]:
        """As `ask`, and a refusal of any of it is raised, too."""
        return _none_refused(self.ask(commands, wait_s))

    def ask_keys(self, commands: Packed, keys: Sequence[bytes]) -> list[Any]:
        """Send commands to the primary that holds their key, and read the values of other keys.

        Returns:
            A reply a command, then a value a key; None where the key holds none, or no string.

        Raises:
            ServerError: as `ask`; a refusal of any of it, too.
        """
        topology, term = self._topology or self._find(), self._term
        if topology.slots:
            asked = [(commands.key, command) for command in commands.parts]
            replies = self.ask([*asked, *((key, ("GET", key)) for key in keys)])
            head, values = replies[: len(asked)], replies[len(asked) :]
            values = [None if _is_wrong_type(value) else value for value in values]
        else:
            node = topology.nodes[0]
            wire = self._take(node, None)
            whole = b"%b*%d\r\n$4\r\nMGET\r\n%b" % (
                commands.whole,
                len(keys) + 1,
                b"".join(map(bulk, keys)),
            )
            try:
                *head, values = wire.exchange_packed(whole, len(commands.parts) + 1)
            except BaseException:
                wire.close()
                self._topology = None
                raise
            self._give(node, wire, term)
            if isinstance(values, CommandRefused):
                raise values
            return [*_none_refused(head), *values]  # a value of MGET is none
        return _none_refused([*head, *values])

    def unlink(self, keys: Sequence[bytes], wait_s: float | None = None) -> int:
        """Delete keys; returns how many there were.

        Args:
            keys: of any of the primaries.
            wait_s: as `ask`.

        Raises:
            ServerError: as `ask`; a refusal of any of it, too.
        """
        if not keys:
            return 0
        # one command where it can be one: a command a key costs several times as much on both sides
        if self._find(wait_s).slots:
            return sum(map(int, self.must([(key, ("UNLINK", key)) for key in keys], wait_s)))
        return sum(map(int, self.must([(keys[0], ("UNLINK", *keys))], wait_s)))

    def _ask_cluster(
        self, topology: Topology, commands: Sequence[Command], wait_s: float | None
    ) -> list[Any]:
        by_node: dict[Node, list[int]] = {}
        for index, (key, _) in enumerate(commands):
            by_node.setdefault(topology.node_of(key), []).append(index)
        wires: dict[Node, Wire] = {}
        term = self._term
        replies: list[Any] = [None] * len(commands)
        try:
            for node, indexes in by_node.items():
                wires[node] = self._take(node, wait_s)
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
            self._give(node, wire, term)
        if any(isinstance(reply, CommandRefused) and _is_moved(reply) for reply in replies):
            self._topology = None
            raise ServerError("the cluster was rearranged")
        return replies

    # -- meeting --------------------------------------------------------------------------------

    def _find(self, wait_s: float | None = None) -> Topology:
        """The primaries, once they have been admitted."""
        topology = self._topology
        if topology is None:
            wait_s = self.timeout_s if wait_s is None else wait_s
            topology = self._connector.wait_for(
                "primaries", lambda: self._topology, self._meet, wait_s, at_once=1
            )
        return topology

    def renew(self) -> None:
        """Connect anew, on this thread, to whoever the primaries are now.

        Raises:
            ServerError: they cannot be reached, or are not admitted.
        """
        self.drop()
        self._meet()

    def _meet(self) -> None:
        term = self._term
        met = Primaries(self.server.topology(CONNECT_TIMEOUT_S), self._ids)
        try:
            for node in met.topology.nodes:
                met.wires[node] = self.server.wire(node, CONNECT_TIMEOUT_S)
            met.ids = frozenset(wire.primary_id() for wire in met.wires.values())
            self._admit(met)
            for wire in met.wires.values():
                wire.answer_within(self.timeout_s)
        except BaseException:
            met.close()
            raise
        with self._connector.lock:
            if term == self._term:
                self._ids, self._topology = met.ids, met.topology
        for node, wire in met.wires.items():
            self._give(node, wire, term)

    # -- wires ----------------------------------------------------------------------------------

    def _take(self, node: Node, wait_s: float | None) -> Wire:
        connector = self._connector
        with connector.lock:
            idle = self._idle.get(node)
            if idle:
                return idle.pop()
        return connector.wait_for(
            node,
            partial(self._pop, node),
            partial(self._connect, node),
            self.timeout_s if wait_s is None else wait_s,
        )

    def _pop(self, node: Node) -> Wire | None:
        idle = self._idle.get(node)
        return idle.pop() if idle else None

    def _connect(self, node: Node) -> None:
        term = self._term  # now: who waits may have several attempts made
        wire = self.server.wire(node, CONNECT_TIMEOUT_S)
        try:
            is_known = wire.primary_id() in (self._ids or ())
            wire.answer_within(self.timeout_s)
        except BaseException:
            wire.close()
            raise
        if is_known or term != self._term:
            self._give(node, wire, term)
        else:  # restarted or replaced: with it may have come back what was deleted
            wire.close()
            raise ServerError(f"{node}: another server answers than before")

    def _give(self, node: Node, wire: Wire, term: int) -> None:
        """Keep a wire for the next one, unless it was taken, or begun, before `drop`."""
        connector = self._connector
        with connector.lock:
            idle = self._idle.get(node)
            if idle is None:
                idle = self._idle[node] = []
            if term == self._term and len(idle) < _IDLE_MAX:
                idle.append(wire)
                connector.tell()
                return
        wire.close()

    def drop(self) -> None:
        """Close what is idle and ask anew who the primaries are."""
        with self._connector.lock:
            self._term += 1
            idle = [wire for wires in self._idle.values() for wire in wires]
            self._idle.clear()
            self._topology = None
        for wire in idle:
            wire.close()

    def restart_after_fork(self) -> None:
        """The connections are the parent's; the child makes its own when it first needs them."""
        leave_behind(*self._idle.values())
        self._idle.clear()
        self._reset()


def _none_refused(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, CommandRefused):
            raise reply
    return replies


def _is_wrong_type(value: Any) -> bool:
    return isinstance(value, CommandRefused) and value.code == "WRONGTYPE"


def _is_moved(refusal: CommandRefused) -> bool:
    return refusal.code in ("MOVED", "ASK", "CLUSTERDOWN", "TRYAGAIN")
