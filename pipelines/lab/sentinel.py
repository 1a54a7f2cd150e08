"""A primary, a replica and the sentinels that decide which is which."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis as redis_client

from hotplate.embedded import EmbeddedServer, find_binary

from .programs import redis_binary
from .proxy import Proxy
from .servers import SERVERS, client_of
from .waiting import wait_until

__all__ = ["SentinelGroup", "sentinel_group"]

NAME = "mymaster"
_PROMPT_MS, _PATIENT_MS = 500, 10_000
_PERIODS = ("INFO-PERIOD", 200, "PING-PERIOD", 100, "ASK-PERIOD", 100, "PUBLISH-PERIOD", 200)


@dataclass
class SentinelGroup:
    """Two servers, one of which is the primary.

    Attributes:
        servers: the first is the primary at the start.
        proxies: in front of each server, whose addresses the sentinels hand out, or none.
        sentinels: the servers that watch them.
        clients: of the servers, past their proxies.
        watchers: clients of the sentinels.
        kind: `redis` or `valkey`.
    """

    servers: list[EmbeddedServer]
    proxies: list[Proxy]
    sentinels: list[EmbeddedServer]
    clients: list[Any]
    watchers: list[Any]
    kind: str = "redis"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of Feast's Redis store."""
        return {
            "type": "redis",
            "redis_type": "redis_sentinel",
            "sentinel_master": NAME,
            "connection_string": ",".join(each.connection_string for each in self.sentinels),
        }

    def primary(self) -> int:
        """The server that all sentinels name.

        Raises:
            LookupError: they do not agree.
        """
        fronts = self.proxies or self.servers
        named = {self._named_by(watcher) for watcher in self.watchers}
        if len(named) > 1:
            raise LookupError(f"the sentinels name several primaries: {named}")
        return [front.port for front in fronts].index(named.pop())

    def failover(self) -> int:
        """Let the servers change places; return the new primary once all of them know it."""
        new = self.replace_primary()
        wait_until(self.is_settled, "the old primary follows the new one")
        return new

    def replace_primary(self) -> int:
        """Make the other server the primary, whatever the old one makes of it."""
        old = self.primary()
        self._set_patience(_PATIENT_MS)  # a busy machine's pause must not undo it
        wait_until(lambda: self._is_replaced(old), f"server {1 - old} is the primary")
        return 1 - old

    def fail_primary(self) -> int:
        """End the primary; return the new one once it serves. `servers[...].restart()` revives."""
        old = self.primary()
        self._set_patience(_PROMPT_MS)
        self.servers[old].stop()
        self.await_primary(1 - old)
        return 1 - old

    def is_settled(self) -> bool:
        """Whether the sentinels agree, and the other server follows the primary."""
        try:
            primary = self.primary()
        except LookupError:
            return False
        other = self.clients[1 - primary].info("replication")
        return self._is_primary(primary) and other.get("master_link_status") == "up"

    @contextmanager
    def another(self, settings: Sequence[str] = ()) -> Iterator[str]:
        """The address of one more sentinel, with settings of its own, for the primary of now."""
        with tempfile.TemporaryDirectory(prefix="hotplate-watch-") as folder:
            port = (self.proxies or self.servers)[self.primary()].port
            program = _sentinel_program(Path(folder), self.kind, 99, port, 99, settings)
            with EmbeddedServer.start(binary=program) as watcher, client_of(watcher) as client:
                client.execute_command("SENTINEL", "DEBUG", *_PERIODS)
                wait_until(
                    lambda: client.sentinel_master(NAME)["flags"] == "master",
                    "it is in touch with the primary",
                )
                yield watcher.connection_string

    def await_primary(self, index: int) -> None:
        """Wait until a server serves as the primary and all sentinels name it."""

        wait_until(lambda: self._serves(index), f"server {index} is the primary")

    def _serves(self, index: int) -> bool:
        """Whether a server is the primary in its own eyes and in those of all sentinels."""
        try:
            return self.primary() == index and self._is_primary(index)
        except LookupError:
            return False

    def _is_replaced(self, old: int) -> bool:
        """Ask for a failover until there was one: a sentinel may give one up half-way."""
        if self._named_by(self.watchers[0]) == (self.proxies or self.servers)[old].port:
            with suppress(redis_client.ResponseError):  # one is under way, or no replica is ready
                self.watchers[0].execute_command("SENTINEL", "FAILOVER", NAME)
            return False
        return self._serves(1 - old)

    def _set_patience(self, silence_ms: int) -> None:
        """How long a server may be silent before sentinels take it for dead."""
        for watcher in self.watchers:
            watcher.execute_command("SENTINEL", "SET", NAME, "down-after-milliseconds", silence_ms)

    def _is_primary(self, index: int) -> bool:
        return bool(self.clients[index].info("replication")["role"] == "master")

    @staticmethod
    def _named_by(watcher: Any) -> int:
        return int(watcher.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])

    def knows_everybody(self) -> bool:
        """Whether each sentinel knows the replica and the other sentinels."""
        return all(
            state["num-slaves"] == 1 and state["num-other-sentinels"] == len(self.watchers) - 1
            for state in (watcher.sentinel_master(NAME) for watcher in self.watchers)
        )


@contextmanager
def sentinel_group(
    kind: str = "redis", *, sentinels: int = 3, quorum: int = 2, is_proxied: bool = False
) -> Iterator[SentinelGroup]:
    """A primary, its replica, and sentinels that replace a silent primary after half a second.

    Args:
        kind: `redis` or `valkey`.
        sentinels: how many watch.
        quorum: how many of them must miss the primary.
        is_proxied: put a proxy before each server; replication and sentinels go through it too.
    """
    with ExitStack() as stack:
        made = SentinelGroup([], [], [], [], [], kind)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hotplate-watch-")))
        for number in range(2):
            arguments = ["--repl-diskless-sync-delay", "0"]
            if is_proxied:
                made.proxies.append(stack.enter_context(Proxy(("127.0.0.1", 0))))
                arguments += ["--replica-announce-ip", "127.0.0.1"]
                arguments += ["--replica-announce-port", str(made.proxies[-1].port)]
            if number:
                first = (made.proxies or made.servers)[0]
                arguments += ["--replicaof", first.host, str(first.port)]
            server = stack.enter_context(SERVERS[kind](extra_args=arguments))
            if is_proxied:
                made.proxies[-1].retarget((server.host, server.port))
            made.servers.append(server)
            made.clients.append(stack.enter_context(client_of(server)))
        first = (made.proxies or made.servers)[0]
        for number in range(sentinels):
            program = _sentinel_program(folder, kind, number, first.port, quorum)
            watcher = stack.enter_context(EmbeddedServer.start(binary=program))
            made.sentinels.append(watcher)
            made.watchers.append(stack.enter_context(client_of(watcher)))
            made.watchers[-1].execute_command("SENTINEL", "DEBUG", *_PERIODS)
        wait_until(made.knows_everybody, "the sentinels know each other and the replica")
        wait_until(made.is_settled, "the replica follows")
        yield made


def _sentinel_program(
    folder: Path, kind: str, number: int, port: int, quorum: int, more: Sequence[str] = ()
) -> Path:
    """A program that is a sentinel: it wants a configuration file, as its first argument."""
    settings = folder / f"sentinel{number}.conf"
    settings.write_text(
        f"sentinel monitor {NAME} 127.0.0.1 {port} {quorum}\n"
        f"sentinel down-after-milliseconds {NAME} {_PROMPT_MS}\n"
        f"sentinel failover-timeout {NAME} 2000\n" + "".join(f"{line}\n" for line in more)
    )
    server = redis_binary() if kind == "redis" else find_binary()
    program = folder / f"sentinel{number}"
    command = f"{shlex.quote(str(server))} {shlex.quote(str(settings))}"
    program.write_text(f'#!/bin/sh\nexec {command} "$@" --sentinel\n')
    program.chmod(0o755)
    return program
