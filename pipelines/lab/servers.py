"""Servers that refuse, forget, freeze or hold rubbish.

`EmbeddedServer` itself freezes (`pause`, `resume`) and comes back empty (`restart`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis as redis_client

from hotplate.embedded import EmbeddedServer, EmbeddedServerError, _free_port

from .certificates import Certificates, make_certificates
from .programs import ProgramMissing, redis_server, valkey_server
from .proxy import Proxy
from .waiting import wait_until

__all__ = [
    "GARBAGE",
    "SERVERS",
    "SNAPSHOTS",
    "Credentials",
    "TlsServer",
    "acl_user",
    "client_of",
    "frozen",
    "out_of_memory",
    "put_garbage",
    "replica_of",
    "tls_server",
]

SERVERS: dict[str, Callable[..., AbstractContextManager[EmbeddedServer]]] = {
    "redis": redis_server,
    "valkey": valkey_server,
}

SNAPSHOTS = ["--dbfilename", "dump.rdb"]
"""Arguments of a server that finds its snapshot again when it is restarted."""


def client_of(server: EmbeddedServer | Proxy, **settings: Any) -> Any:
    """A client, to be used as a context manager: an unclosed one is a warning, and so an error."""
    return redis_client.Redis(host=server.host, port=server.port, **settings)


@contextmanager
def frozen(server: EmbeddedServer) -> Iterator[None]:
    """Stop the server's process (SIGSTOP) for the length of the block."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


@contextmanager
def out_of_memory(server: EmbeddedServer) -> Iterator[None]:
    """Let every command that could need memory fail with OOM."""
    with client_of(server) as admin:
        before = admin.config_get("maxmemory", "maxmemory-policy")
        admin.config_set("maxmemory-policy", "noeviction", "maxmemory", 1)
        try:
            yield
        finally:
            admin.config_set(*itertools.chain.from_iterable(before.items()))


@dataclass(frozen=True)
class Credentials:
    """A user of a server."""

    username: str
    password: str

    @property
    def parameters(self) -> str:
        """What to add to a connection string of Feast's Redis store."""
        return f"username={self.username},password={self.password}"


_user_numbers = itertools.count(1)


@contextmanager
def acl_user(server: EmbeddedServer, *rights: str) -> Iterator[Credentials]:
    """A user with these rights alone: `acl_user(server, "~*", "&*", "+@read", "+ping")`."""
    number = next(_user_numbers)
    user = Credentials(f"user{number}", f"secret{number}")
    with client_of(server) as admin:
        settings = ("reset", "on", f">{user.password}", *rights)
        admin.execute_command("ACL", "SETUSER", user.username, *settings)
        try:
            yield user
        finally:
            admin.execute_command("ACL", "DELUSER", user.username)


@contextmanager
def replica_of(
    primary: EmbeddedServer, through: Proxy | None = None, *arguments: str
) -> Iterator[EmbeddedServer]:
    """A read-only replica, in step with its primary; it may follow it through a proxy."""
    with client_of(primary) as admin:
        admin.config_set("repl-diskless-sync-delay", 0)  # by default it waits 5 s for more replicas
    front = through or primary
    extra = ("--replicaof", front.host, str(front.port), *arguments)
    with EmbeddedServer.start(binary=primary.binary, extra_args=extra) as server:
        with client_of(server) as admin:
            wait_until(lambda: admin.info("replication")["master_link_status"] == "up")
        yield server


@dataclass(frozen=True)
class TlsServer:
    """A server that speaks TLS on one port and, for the test's own use, plain text on another."""

    plain: EmbeddedServer
    port: int
    certificates: Certificates

    @property
    def host(self) -> str:
        return self.plain.host

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of redis-py's client."""
        trusted = str(self.certificates.authority)
        return {"host": self.host, "port": self.port, "ssl": True, "ssl_ca_certs": trusted}


@contextmanager
def tls_server(folder: Path, *arguments: str) -> Iterator[TlsServer]:
    """Redis with a certificate of an authority of its own; the wheel's Valkey has no TLS."""
    files = make_certificates(folder)
    port = _free_port()
    options = ["--tls-port", str(port), "--tls-auth-clients", "no"]
    options += ["--tls-cert-file", str(files.certificate), "--tls-key-file", str(files.key)]
    options += ["--tls-ca-cert-file", str(files.authority)]
    with ExitStack() as stack:
        try:
            server = stack.enter_context(redis_server(extra_args=(*options, *arguments)))
        except EmbeddedServerError as error:
            if "Bad directive" in str(error):
                raise ProgramMissing("this redis-server was built without TLS") from None
            raise
        yield TlsServer(server, port, files)


GARBAGE = ("bytes", "empty", "cut", "flipped", "longer", "list", "hash")
"""Kinds of garbage; `cut`, `flipped` and `longer` spoil the string or the fields that are there."""


def put_garbage(
    client: Any, keys: Iterable[bytes | str], kinds: Iterable[str] = GARBAGE, seed: int = 0
) -> dict[bytes | str, str]:
    """Put garbage under each key, the kinds in turn, and say which key got which."""
    chance = random.Random(seed)
    placed = dict(zip(keys, itertools.cycle(kinds)))  # the kinds never end
    for key, kind in placed.items():
        held = client.type(key)
        if kind in ("cut", "flipped", "longer") and held in (b"string", b"hash"):
            if held == b"string":
                client.set(key, _spoiled(client.get(key) or b"", kind, chance))  # it may expire
            else:
                for name, value in client.hgetall(key).items():
                    client.hset(key, name, _spoiled(value, kind, chance))
            continue
        client.delete(key)
        noise = chance.randbytes(chance.randint(1, 200))
        if kind == "list":
            client.rpush(key, noise)
        elif kind == "hash":
            client.hset(key, noise[:8], noise)
        else:
            client.set(key, b"" if kind == "empty" else noise)
    return placed


def _spoiled(value: bytes, kind: str, chance: random.Random) -> bytes:
    if kind == "cut":
        return value[: chance.randrange(len(value))] if value else value
    if kind == "longer":
        return value + chance.randbytes(chance.randint(1, 16))
    made = bytearray(value)
    if made:
        made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
    return bytes(made)
