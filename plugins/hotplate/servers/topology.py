"""Which primaries a deployment has, and which of them holds a key."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

from hotplate.errors import ServerError

__all__ = ["Node", "Topology", "beside", "is_beside"]


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


def beside(key: bytes, name: bytes) -> bytes:
    """The name of another key that a cluster keeps in the same slot.

    Args:
        key: the key.
        name: what the other one's name begins with; holds no braces.
    """
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1) if begin >= 0 else -1
    if end > begin + 1:
        tag = key[begin + 1 : end]
    elif b"}" not in key:
        tag = key
    else:
        tag = _tag_of_slot(key)
    return b"%b:{%b}:%b" % (name, tag, key)


@lru_cache(maxsize=10_000)
def _tag_of_slot(key: bytes) -> bytes:
    """Text in the slot of a key that cannot be put between braces itself; 16,384 tries or so."""
    from redis.crc import key_slot

    slot = key_slot(key)
    tags = (b"%d" % number for number in itertools.count())
    return next(tag for tag in tags if key_slot(tag) == slot)


def is_beside(key: bytes, other: bytes) -> bool:
    """Whether a cluster keeps two keys in the same slot."""
    from redis.crc import key_slot

    return bool(key_slot(key) == key_slot(other))
