"""One connection to one primary, without redis-py's retries, pools and callbacks.

What uses it must know when a connection was lost, because what was lost with it decides what may
still be served.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from hotplate.errors import CommandRefused, ServerError
from hotplate.servers.topology import Node

__all__ = ["PrimaryId", "Wire", "bulk", "close_with", "packed"]

_RECEIVE_BYTES: Final = 1 << 16


class PrimaryId(NamedTuple):
    """A primary, in one run of its process and one term of its being the primary.

    Attributes:
        run: changes with every start of the process.
        history: changes with every promotion of a replica, also back to what it was before.
    """

    run: bytes
    history: bytes


class Wire:
    """One connection to one primary: commands out, replies in, no retries.

    Used by one thread at a time. Any error but `CommandRefused` leaves it closed.
    """

    __slots__ = ("_connection", "_is_open", "_not_enough", "_pack_command", "_reader", "node")

    def __init__(self, node: Node, connection: Any) -> None:
        from redis._parsers.hiredis import NOT_ENOUGH_DATA

        self.node = node
        self._connection = connection
        self._is_open = True
        reader = getattr(connection._parser, "_reader", None)
        self._reader: Any = reader if hasattr(reader, "gets") else None  # without hiredis
        self._not_enough = NOT_ENOUGH_DATA
        if self._reader is not None:
            from hiredis import pack_command  # what redis-py's packer calls in the end

            self._pack_command = pack_command

    def send(self, *commands: Sequence[Any]) -> None:
        """Send commands without waiting for their replies."""
        connection = self._connection
        if not self._is_open:  # redis-py would connect again, and nobody would know
            raise ServerError(f"{self.node}: the connection was closed")
        try:
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        except _faults() as error:
            raise self._lost(error) from None

    def read(self) -> Any:
        """The next reply.

        Raises:
            CommandRefused: the server answered with an error; the connection is still good.
            ServerError: the connection is lost, or nothing came in time.
        """
        from redis import ResponseError

        try:
            return self._connection.read_response(disable_decoding=True)
        except ResponseError as error:
            raise CommandRefused(f"{self.node}: {error}", _code_of(error)) from None
        except _faults() as error:
            raise self._lost(error) from None

    def exchange(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands and read a reply each; an error reply as a `CommandRefused`, not raised.

        Raises:
            ServerError: the connection is lost, or the replies did not come in time.
        """
        if self._reader is None:
            pack = self._connection._command_packer.pack
            parts = [part for command in commands for part in pack(*command)]
        else:
            pack_command = self._pack_command
            parts = [pack_command(tuple(command)) for command in commands]
        return self.exchange_packed(b"".join(parts), len(commands))

    def exchange_packed(self, whole: bytes, count: int) -> list[Any]:
        """As `exchange`, for commands that are bytes already.

        Args:
            whole: the commands as `packed` makes them.
            count: how many they are.
        """
        if not self._is_open:  # redis-py would connect again, and nobody would know
            raise ServerError(f"{self.node}: the connection was closed")
        reader = self._reader
        replies: list[Any] = []
        try:
            if reader is None:
                self._connection.send_packed_command((whole,), check_health=False)
                return [self.read_or_refusal() for _ in range(count)]
            sock = self._connection._sock
            began_s = time.monotonic()
            sock.sendall(whole)
            received = sock.recv(_RECEIVE_BYTES)
            while len(replies) < count:
                if received is not None:
                    if not received:
                        raise ConnectionError("the server closed the connection")
                    reader.feed(received)
                    received = None
                reply = reader.gets(False)
                if reply is self._not_enough:
                    received = self._receive_by(sock, began_s)
                elif isinstance(reply, Exception):
                    replies.append(self._as_refusal(reply))
                else:
                    replies.append(reply)
        except _faults() as error:
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
        reader = self._reader
        if reader is None:
            while True:
                yield self.read()
        sock = self._connection._sock
        try:
            while True:
                reply = reader.gets(False)
                if reply is self._not_enough:
                    into[0] = 0
                    size = sock.recv_into(into)
                    if not size:
                        raise ConnectionError("the server closed the connection")
                    reader.feed(into, 0, size)
                elif isinstance(reply, Exception):
                    raise self._as_refusal(reply)
                else:
                    yield reply
        except _faults() as error:
            raise self._lost(error) from None

    def _receive_by(self, sock: Any, began_s: float) -> bytes:
        """More of a reply: one that trickles in never lets the socket's own timeout pass."""
        timeout_s = sock.gettimeout()
        if timeout_s is None:
            return bytes(sock.recv(_RECEIVE_BYTES))
        left_s = began_s + timeout_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        sock.settimeout(left_s)
        received = sock.recv(_RECEIVE_BYTES)
        sock.settimeout(timeout_s)
        return bytes(received)

    def _as_refusal(self, reply: Exception) -> CommandRefused:
        from redis import ResponseError

        if not isinstance(reply, ResponseError):
            raise reply
        return CommandRefused(f"{self.node}: {reply}", _code_of(reply))

    def read_or_refusal(self) -> Any:
        """The next reply; an error reply as a `CommandRefused`, not raised."""
        try:
            return self.read()
        except CommandRefused as refusal:
            return refusal

    def run_id(self) -> bytes:
        """What tells this run of the server from every other one, and from other servers."""
        return self._line(self.ask("INFO", "server"), b"run_id:")

    def primary_id(self) -> PrimaryId:
        """Who answers.

        Raises:
            ServerError: it does not say, as some proxies do not.
        """
        server, replication = self.exchange([("INFO", "server"), ("INFO", "replication")])
        return PrimaryId(self._line(server, b"run_id:"), self._line(replication, b"master_replid:"))

    def _line(self, info: Any, name: bytes) -> bytes:
        if isinstance(info, CommandRefused):
            raise info
        lines = info.split(b"\r\n") if isinstance(info, bytes) else []
        found = next((line for line in lines if line.startswith(name)), None)
        if found is None:
            raise self._lost(ValueError("it does not say who it is"))
        return bytes(found)

    def answer_within(self, timeout_s: float) -> None:
        """From now on a reply may take this long."""
        self._connection._sock.settimeout(timeout_s)

    def wait_forever(self) -> None:
        """Let `hear` wait without a bound, until another thread closes the wire."""
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


def packed(*parts: bytes) -> bytes:
    """A command as it goes over a wire."""
    return b"*%d\r\n%b" % (len(parts), b"".join(map(bulk, parts)))


def bulk(part: bytes) -> bytes:
    """A part of a command."""
    return b"$%d\r\n%b\r\n" % (len(part), part)


def _faults() -> tuple[type[Exception], ...]:
    """What ends a connection; looked up only where something was raised."""
    from redis import RedisError

    return RedisError, OSError, AttributeError, ValueError  # the latter: closed by another thread


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
