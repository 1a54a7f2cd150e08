"""Walks the keys of a deployment a small page at a time, node by node; never KEYS.

SCAN answers after looking at about `COUNT` places of the server's table, whether or not anything
there matches: the server is never held up for longer, however many keys it has. Every key that is
there from the first page to the last is seen at least once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hotplate.errors import CommandRefused
from hotplate.servers.redis import RedisServer
from hotplate.servers.topology import Node
from hotplate.servers.wire import Wire

__all__ = ["COUNT", "Page", "connect", "count_keys", "pages", "size_of"]

COUNT: Final = 16  # about 20 us of the server's time, during which nobody else is answered
_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True)
class Page:
    """A part of a node's keys.

    Attributes:
        keys: those that match.
        cursor: where the next page begins; 0 after the last.
    """

    keys: tuple[bytes, ...]
    cursor: int


def pages(wire: Wire, prefix: bytes, cursor: int = 0) -> Iterator[Page]:
    """The strings of one node whose keys begin with a prefix, from a cursor on.

    Args:
        wire: to the node.
        prefix: what names of the shared tier begin with; holds nothing that is a pattern.
        cursor: of an earlier page, or 0.

    Raises:
        ServerError: the node does not answer, or refuses.
    """
    while True:
        command = ("SCAN", cursor, "MATCH", prefix + b"*", "COUNT", COUNT, "TYPE", "string")
        after, keys = wire.ask(*command)
        cursor = int(after)
        yield Page(tuple(keys), cursor)
        if cursor == 0:
            return


def size_of(wire: Wire) -> int | None:
    """How many keys a node holds; None where it does not say."""
    try:
        return int(wire.ask("DBSIZE"))
    except CommandRefused:
        return None


def connect(server: RedisServer, node: Node) -> Wire:
    """A wire on which a page may take its time."""
    wire = server.wire(node)
    wire.answer_within(_TIMEOUT_S)
    return wire


def count_keys(server: RedisServer, prefixes: list[bytes], pages_max: int) -> tuple[int, bool]:
    """How many keys begin with one of some prefixes, and whether all have been counted.

    Args:
        server: the deployment.
        prefixes: distinct.
        pages_max: give up after so many pages.

    Raises:
        ServerError: a node does not answer, or refuses.
    """
    count = seen = 0
    for node in server.topology().nodes:
        wire = connect(server, node)
        try:
            for prefix in prefixes:
                for page in pages(wire, prefix):
                    count += len(page.keys)
                    seen += 1
                    if seen >= pages_max and page.cursor:
                        return count, False
        finally:
            wire.close()
    return count, True
