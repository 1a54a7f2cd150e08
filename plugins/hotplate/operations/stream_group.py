"""A consumer group of a Redis stream: what it hands out, says of itself, and refuses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from hotplate.errors import CommandRefused, ConfigError, ServerError
from hotplate.operations.stream_entries import Entry
from hotplate.servers.pool import Command, Pool
from hotplate.servers.redis import RedisServer

__all__ = ["Claimed", "GroupMissing", "Lag", "StreamGroup", "checked", "is_start", "lacking"]

_RIGHT: Final = re.compile(r"permissions? to run the '([^']+)'")
_NO_RIGHT: Final = re.compile(
    r"NOPERM|ACL failure|no permissions?\b|user executing the script can't", re.IGNORECASE
)
_START: Final = re.compile(r"\d+(-\d+)?|\$")
# answers of a server that is on its way to working again
_PASSING: Final = frozenset(
    {"LOADING", "MISCONF", "OOM", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS"}
    | {"TRYAGAIN", "MOVED", "ASK", "BUSY", "UNBLOCKED"}
)


class GroupMissing(ServerError):
    """The stream or its group is not there."""


@dataclass(frozen=True)
class Claimed:
    """Entries taken over from consumers that are gone.

    Attributes:
        entries: what they are.
        gone: how many more there were that are no longer in the stream.
        next: where to go on; `b"0-0"` at the end.
    """

    entries: Sequence[Entry]
    gone: int
    next: bytes


@dataclass(frozen=True)
class Lag:
    """How far a group is behind its stream.

    Attributes:
        waiting: entries that nobody was handed yet; None where the server cannot tell.
        pending: entries that were handed out and are not done.
        removed: entries, at least, that were taken out of the stream before the group had read
            them.
    """

    waiting: int | None
    pending: int
    removed: int


class StreamGroup:
    """One consumer of a group.

    Every method raises `ServerError` where the server does not answer, `GroupMissing` where there
    is no such group, `ConfigError` where the user lacks a right or the key holds no stream.

    Args:
        server: where the stream is.
        stream: its key.
        group: the group's name.
        consumer: the consumer's name.
        timeout_s: how long one exchange may take, waiting for entries included.
    """

    def __init__(
        self, server: RedisServer, stream: str, group: str, consumer: str, timeout_s: float
    ) -> None:
        self.server = server
        self.stream = stream
        self.key, self.group, self.consumer = stream.encode(), group.encode(), consumer.encode()
        self.pool = Pool(server, timeout_s)
        self._sees_lag = True

    def ask(self, *command: Any) -> Any:
        """Send one command about the stream."""
        return checked(self.pool.ask([(self.key, command)])[0], self.stream)

    def create(self, start: bytes) -> bool:
        """Make the group, and the stream if there is none; False where the group is there.

        Args:
            start: the id after which it begins; 0 for the first entry, `$` for what is yet to come.
        """
        command = ("XGROUP", "CREATE", self.key, self.group, start, "MKSTREAM")
        try:
            self.ask(*command)
        except CommandRefused as refusal:
            if refusal.code != "BUSYGROUP":
                raise
            return False
        return True

    def newest(self) -> bytes:
        """The id of the newest entry that the stream ever had; `0-0` where there is no stream."""
        try:
            said = _named(self.ask("XINFO", "STREAM", self.key))
        except CommandRefused:  # no such key
            return b"0-0"
        return bytes(said[b"last-generated-id"])

    # -- entries --------------------------------------------------------------------------------

    def own(self, count: int) -> list[Entry]:
        """Entries that this consumer was handed before and that are not done."""
        return self._read(b"0", "COUNT", count)

    def fresh(self, count: int, block_s: float | None) -> list[Entry]:
        """Entries that nobody was handed yet.

        Args:
            count: how many at most.
            block_s: how long to wait for the first; None not to wait.
        """
        wait = () if block_s is None else ("BLOCK", max(1, round(block_s * 1_000)))
        return self._read(b">", "COUNT", count, *wait)

    def _read(self, after: bytes, *options: Any) -> list[Entry]:
        command = ("XREADGROUP", "GROUP", self.group, self.consumer, *options)
        reply = self.ask(*command, "STREAMS", self.key, after)
        return [] if not reply else _entries(reply[0][1])

    def claim(self, idle_s: float, after: bytes, count: int) -> Claimed:
        """Take over entries that were handed to anybody some time ago and are not done.

        Args:
            idle_s: how long ago at least.
            after: where to begin: `0-0`, or `next` of the last time.
            count: how many at most.
        """
        idle_ms = round(idle_s * 1_000)
        command = ("XAUTOCLAIM", self.key, self.group, self.consumer, idle_ms, after)
        following, entries, *more = self.ask(*command, "COUNT", count)
        return Claimed(_entries(entries), len(more[0]) if more else 0, bytes(following))

    def leave(self) -> None:
        """Take this consumer out of the group, unless it has entries that are not done."""
        waiting = self.ask("XPENDING", self.key, self.group, "-", "+", 1, self.consumer)
        if not waiting:
            self.ask("XGROUP", "DELCONSUMER", self.key, self.group, self.consumer)

    # -- looking --------------------------------------------------------------------------------

    def lag(self) -> Lag | None:
        """How far the group is behind; None where the user may not see it."""
        if not self._sees_lag:
            return None
        asked: list[Command] = [
            (self.key, ("XINFO", "GROUPS", self.key)),
            (self.key, ("XINFO", "STREAM", self.key)),
        ]
        groups, stream = self.pool.ask(asked)
        if any(isinstance(reply, CommandRefused) for reply in (groups, stream)):
            self._sees_lag = not any(map(_is_no_right, (groups, stream)))
            return None
        said = next((one for one in map(_named, groups) if one[b"name"] == self.group), None)
        if said is None:
            return None
        whole = _named(stream)
        lag, read = said.get(b"lag"), said.get(b"entries-read")
        removed = 0
        if read is not None and b"entries-added" in whole:
            # of those that are no longer there the group can have read this many at most
            removed = max(0, whole[b"entries-added"] - whole[b"length"] - read)
        waiting = None if lag is None else max(0, int(lag) - removed)
        return Lag(waiting, int(said[b"pending"]), removed)

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        self.pool.drop()


def checked(reply: Any, stream: str) -> Any:
    """A reply, if it is no error.

    Raises:
        GroupMissing: there is no such stream or group.
        ConfigError: a right is missing, or the key holds no stream.
        ServerError: a passing trouble of the server.
        CommandRefused: any other error.
    """
    if not isinstance(reply, CommandRefused):
        return reply
    if reply.code == "NOGROUP" or "NOGROUP" in str(reply):
        raise GroupMissing(f"stream {stream!r} has no such group")
    if reply.code in _PASSING:
        raise ServerError(str(reply))
    if (right := lacking(reply)) is not None:
        raise ConfigError(f"stream {stream!r}: the user lacks a right: {right}")
    if reply.code == "WRONGTYPE":
        raise ConfigError(f"stream {stream!r}, or a key beside it, holds something else: {reply}")
    raise reply


def lacking(refusal: CommandRefused) -> str | None:
    """Which right the server misses, as an ACL rule has it where it says so; None if none."""
    if not _is_no_right(refusal):
        return None
    found = _RIGHT.search(str(refusal))
    return f"+{found[1]}" if found else str(refusal)


def is_start(text: str) -> bool:
    """Whether a group can be made to begin there."""
    return bool(_START.fullmatch(text))


def _is_no_right(reply: Any) -> bool:
    return isinstance(reply, CommandRefused) and bool(_NO_RIGHT.search(f"{reply.code} {reply}"))


def _entries(reply: Sequence[Any]) -> list[Entry]:
    # a nil stands for an entry that is gone, in servers before 7.0 also in XAUTOCLAIM's answer
    return [Entry(bytes(one[0]), one[1]) for one in reply if one is not None]


def _named(reply: Sequence[Any]) -> dict[bytes, Any]:
    return dict(zip(reply[::2], reply[1::2], strict=True))
