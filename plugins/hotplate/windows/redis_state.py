"""Event logs on a Redis or Valkey server: one string an entity, written by APPEND alone.

Writers never read: an event is one `APPEND`, and now and then a `PEXPIRE` with it. A log must live
for `ttl_ms` after its last event, however rarely it has one. So each is given a little more, and
its life is extended with every event but those that follow within that little more on an event that
this process has already extended it for: once in a while where there are many, always where there
are few. (Extending it when its length passes a multiple of some bytes loses events of entities that
have few.) Readers `GET`. Only compaction writes what it has read, by a script that compares the
log with what was read and attaches what was appended meanwhile (see `hotplate.windows.compaction`).
Every command touches one key, so a cluster needs nothing of its own.

The server holds the truth, not a copy of it, so it must never evict: whoever evicts a log turns
"no events" into an answer. `LogServer.check` refuses every policy but `noeviction`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from hotplate.errors import CommandRefused, ConfigError, ServerError
from hotplate.servers import rights
from hotplate.servers.pool import Command, Pool, Primaries
from hotplate.servers.redis import RedisServer
from hotplate.windows.compaction import Fold

__all__ = ["LogServer", "RedisState"]

_MARGIN: Final = 32
_EXTENDED_MAX: Final = 100_000
_AT_ONCE: Final = 1_000
_POLICY: Final = b"noeviction"

# KEYS[1]: the log. ARGV: what it must begin with, how many of its bytes are replaced, by what.
_SWAP: Final = """
local held = redis.call('GET', KEYS[1])
local consumed = tonumber(ARGV[2])
if not held or #held < consumed or string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
if ARGV[1] == '' and held ~= '' then return 0 end
redis.call('SET', KEYS[1], ARGV[3] .. string.sub(held, consumed + 1), 'KEEPTTL')
return 1
"""


class LogServer:
    """A deployment that keeps event logs.

    Args:
        server: how it is reached.
        timeout_s: how long one exchange may take.

    Raises:
        ConfigError: (every method) the server evicts, or does not say whether it does.
        ServerError: (every method) it does not answer. What was to be appended may have been, or
            not; appending it again changes nothing.
    """

    def __init__(self, server: RedisServer, timeout_s: float) -> None:
        self.server = server
        self.timeout_s = timeout_s
        self.pool = Pool(server, timeout_s, self._met)
        self._is_checked = False
        self.term = 0
        """Goes up whenever it was connected to anew: it may then have lost what it was given."""

    def _met(self, met: Primaries) -> None:
        self.term += 1
        if met.have_changed:
            self._is_checked = False

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Logs, in the order of the keys, in one round trip."""
        return self.ask([(key, (b"GET", key)) for key in keys])

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands, and once more to whoever answers now: a connection may have grown old."""
        if not self._is_checked:
            self.check()
        if not commands:
            return []
        try:
            replies = self.pool.ask(commands)
        except ServerError:
            self.pool.renew()
            replies = self.pool.ask(commands)
        for reply in replies:
            if isinstance(reply, CommandRefused):
                raise _explained(reply)
        return replies

    def check(self) -> None:
        """Make sure that the server keeps what it is given."""
        for node in self.pool.server.topology().nodes:
            wire = self.pool.server.wire(node)
            try:
                policy = _policy_of(wire.ask("INFO", "memory"))
            except CommandRefused as error:
                raise ConfigError(
                    f"online_store.windows: server {node} does not say whether it evicts "
                    f"({error.code}). Give the user the right +info."
                ) from None
            finally:
                wire.close()
            if policy != _POLICY:
                raise ConfigError(
                    f"online_store.windows: server {node} has maxmemory-policy {policy.decode()}, "
                    "so it may evict event logs, and a log that is gone reads as no events. Set "
                    "maxmemory-policy noeviction there, or name another server."
                )
        self._is_checked = True

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        self.pool.drop()


class RedisState:
    """The logs of one plan on a server.

    Args:
        server: the server.
        ttl_ms: how long a log lives after the last append, as `LogPlan.ttl_ms` says.
    """

    def __init__(self, server: LogServer, ttl_ms: int) -> None:
        self._server = server
        self._ttl_ms = ttl_ms
        self._margin_ms = max(1, ttl_ms // _MARGIN)
        self._period = (0, -1)
        self._extended: set[bytes] = set()

    def append(self, key: bytes, data: bytes) -> None:
        """See `State.append`."""
        self.append_many([(key, data)])

    def append_many(self, entries: Sequence[tuple[bytes, bytes]]) -> list[int]:
        """See `State.append_many`."""
        lengths: list[int] = []
        for at in range(0, len(entries), _AT_ONCE):
            lengths += self._append(entries[at : at + _AT_ONCE])
        return lengths

    def _append(self, entries: Sequence[tuple[bytes, bytes]]) -> list[int]:
        commands: list[Command] = [(key, (b"APPEND", key, data)) for key, data in entries]
        due = self.due([key for key, _ in entries])
        commands += [(key, (b"PEXPIRE", key, self.life_ms)) for key in due]
        lengths = self._server.ask(commands)[: len(entries)]
        self.note_extended(due)
        return lengths

    @property
    def life_ms(self) -> int:
        """How long a log is given to live when its life is extended."""
        return self._ttl_ms + 2 * self._margin_ms

    def due(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those of some logs whose life must be extended with what is appended to them now."""
        # an older clock than that of a moment ago only extends once more, and so does a server that
        # was connected to anew: it may have lost the logs, and new ones would live without an end
        period = (self._server.term, int(time.monotonic() * 1_000) // self._margin_ms)
        if period != self._period or len(self._extended) > _EXTENDED_MAX:
            self._period, self._extended = period, set()
        extended = self._extended
        return [key for key in keys if key not in extended]

    def note_extended(self, keys: Iterable[bytes]) -> None:
        """The life of logs has been extended just now."""
        self._extended.update(keys)

    def get(self, key: bytes) -> bytes | None:
        """See `State.get`."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `State.get_many`."""
        return self._server.get_many(keys)

    def swap(self, key: bytes, fold: Fold) -> bool:
        """See `State.swap`."""
        command = (b"EVAL", _SWAP, 1, key, fold.expected, fold.consumed, fold.blob)
        return bool(self._server.ask([(key, command)])[0])


def _explained(refusal: CommandRefused) -> CommandRefused:
    said = str(refusal)
    # what a script may not use is told without the code, in words of each server's own
    if refusal.code != "NOPERM" and "executing the script" not in said and "ACL" not in said:
        return refusal
    needed = rights.shown(rights.LOGS)
    return CommandRefused(
        f"online_store.windows: {refusal}. The user needs ~{rights.KEYS} {needed}", refusal.code
    )


def _policy_of(info: Any) -> bytes:
    lines = info.split(b"\r\n") if isinstance(info, bytes) else []
    found = next((line for line in lines if line.startswith(b"maxmemory_policy:")), b":unknown")
    return found.split(b":", 1)[1]
