"""Which primaries a deployment has, and which of them holds a key."""

from __future__ import annotations

from dataclasses import dataclass

from hotplate.errors import ServerError

__all__ = ["Node", "Topology"]


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
