"""Whether a server's user may do what is needed, found out by trying.

Everything is tried on keys of its own, `hotplate:doctor:*`, that go by themselves after seconds:
commands of hashes are sent to a key that holds a string, so that who may use them is told of a
wrong type, and nothing is left behind. Where the server lets the user ask (`ACL DRYRUN`), writes to
the deployment's real names are asked about as well.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from hotplate.errors import CommandRefused, ServerError
from hotplate.operations.findings import ERROR, OK, WARNING, Finding
from hotplate.servers import rights
from hotplate.servers.redis import RedisServer
from hotplate.servers.topology import Node, Topology
from hotplate.servers.wire import Wire
from hotplate.tiers.entries import generations_of, project_prefix

__all__ = ["Ground", "channel_works", "missing_rights", "operating_rights", "tracking_works"]

_TIMEOUT_S: Final = 1.0
_KEPT_MS: Final = 5_000
_PREFIX: Final = b"hotplate:doctor:"
_CHANGED_KEYS: Final = "__redis__:invalidate"
_PROBES: Final = 5
_PROBE_LATE_S: Final = 0.1
_PROBE_LOST_S: Final = 0.35
OPERATING: Final = ("exists", "scan", "getrange", "dbsize", "info")
"""Commands that only `hotplate invalidate`, `purge` and `doctor` need."""


@dataclass(frozen=True)
class Ground:
    """Where something is tried.

    Attributes:
        server: the deployment.
        topology: its primaries.
        node: the one that is asked.
        project: the Feast project.
    """

    server: RedisServer
    topology: Topology
    node: Node
    project: str

    def key(self) -> bytes:
        """A new throw-away key that this node holds."""
        while True:
            key = _PREFIX + f"{{{uuid.uuid4().hex}}}".encode()
            if self.topology.node_of(key) == self.node:
                return key

    @contextmanager
    def wire(self) -> Iterator[Wire]:
        """A connection to the node, closed afterwards."""
        wire = self.server.wire(self.node)
        try:
            wire.answer_within(_TIMEOUT_S)
            yield wire
        finally:
            wire.close()

    @property
    def is_cluster(self) -> bool:
        """Whether the node is one of a cluster."""
        return bool(self.topology.slots)


def _refusal(wire: Wire, *command: Any) -> str | None:
    """What kind of right is missing for a command: `command`, `key` or `channel`; None if none."""
    try:
        wire.ask(*command)
    except CommandRefused as refusal:
        if refusal.code != "NOPERM":
            return None
        said = str(refusal)
        if "run the" in said:
            return "command"
        return "channel" if "channel" in said else "key"
    return None


def _named(kind: str | None, right: str, pattern: str = "") -> set[str]:
    """A missing right as it is written in an ACL rule."""
    if kind is None:
        return set()
    return {"command": {f"+{right}"}, "key": {f"~{rights.KEYS}"}, "channel": {f"&{pattern}"}}[kind]


# -- rights ---------------------------------------------------------------------------------------


def missing_rights(ground: Ground, *, is_tier: bool, is_channel: bool) -> set[str]:
    """Rights that the user lacks, as ACL rules: `+get`, `~hotplate:*`.

    Raises:
        ServerError: the node does not answer.
    """
    missing: set[str] = set()
    if is_tier:
        missing |= _missing_for_tier(ground)
    if is_channel:
        missing |= _missing_for_channel(ground)
    return missing


def _missing_for_tier(ground: Ground) -> set[str]:
    key, home = ground.key(), generations_of(ground.project)
    row = project_prefix(ground.project) + b"doctor"
    trials: dict[str, tuple[Any, ...]] = {
        "set": ("SET", key, "x", "NX", "GET", "PX", _KEPT_MS),
        "get": ("GET", key),
        "mget": ("MGET", key),
        "hmget": ("HMGET", key, "x"),
        "hset": ("HSET", key, "x", "x"),
        "hsetnx": ("HSETNX", key, "x", "x"),
        "time": ("TIME",),
        "info": ("INFO", "server"),
        "eval": ("EVAL", "return 1", 1, key),
        "evalsha": ("EVALSHA", "0" * 40, 1, key),
        "unlink": ("UNLINK", key),
    }
    with ground.wire() as wire:
        # without SET there is no string in the way of HSET: nothing may be left behind
        missing = _named(_refusal(wire, *trials.pop("set")), "set")
        if missing or not _is_there(wire, key):
            del trials["hset"], trials["hsetnx"]
        for right, command in trials.items():
            missing |= _named(_refusal(wire, *command), right)
        for right, command in (("hmget", ("HMGET", home, "*")), ("get", ("GET", row))):
            missing |= _named(_refusal(wire, *command), right)
        for right, command in (
            ("hset", ("HSET", home, "x", "x")),
            ("set", ("SET", row, "x")),
            ("unlink", ("UNLINK", row)),
        ):
            missing |= _asked(wire, right, command)
    return missing


def _is_there(wire: Wire, key: bytes) -> bool:
    """Whether the string lies there."""
    try:
        return wire.ask("SET", key, "x", "XX", "PX", _KEPT_MS) is not None
    except CommandRefused:
        return False


def _asked(wire: Wire, right: str, command: tuple[Any, ...]) -> set[str]:
    """The same without doing it, where the user may ask."""
    try:
        answer = wire.ask("ACL", "DRYRUN", wire.ask("ACL", "WHOAMI"), *command)
    except CommandRefused:
        return set()
    if answer == b"OK":
        return set()
    return _named("command" if b"run the" in answer else "key", right)


def _missing_for_channel(ground: Ground) -> set[str]:
    name = ground.key().decode()
    missing: set[str] = set()
    with ground.wire() as listener, ground.wire() as talker:
        missing |= _named(_refusal(listener, "CLIENT", "ID"), "client|id")
        commands: list[tuple[str, tuple[Any, ...]]] = [
            ("client|tracking", ("CLIENT", "TRACKING", "OFF")),
            ("publish", ("PUBLISH", name, "x")),
        ]
        if ground.is_cluster:
            commands += [
                ("spublish", ("SPUBLISH", name, "x")),
                ("cluster|slots", ("CLUSTER", "SLOTS")),
                ("cluster|info", ("CLUSTER", "INFO")),
            ]
        for right, command in commands:
            missing |= _named(_refusal(talker, *command), right, rights.CHANNELS[0])
        names = [("subscribe", name), ("subscribe", _CHANGED_KEYS)]
        names += [("ssubscribe", name)] if ground.is_cluster else []
        for right, channel in names:
            pattern = _CHANGED_KEYS if channel == _CHANGED_KEYS else rights.CHANNELS[0]
            missing |= _named(_refusal(listener, right.upper(), channel), right, pattern)
    return missing


def operating_rights(ground: Ground) -> Finding:
    """What tools may do for this user; nothing that serves requests needs it."""
    key = ground.key()
    trials: dict[str, tuple[Any, ...]] = {
        "exists": ("EXISTS", key),
        "scan": ("SCAN", 0, "COUNT", 1),
        "getrange": ("GETRANGE", key, 0, 0),
        "dbsize": ("DBSIZE",),
        "info": ("INFO", "server"),
    }
    with ground.wire() as wire:
        missing = [right for right in OPERATING if _refusal(wire, *trials[right]) is not None]
    if not missing:
        return Finding("", OK, rights.shown(OPERATING))
    lacks = rights.shown(tuple(missing))
    seen = f"the user lacks {lacks}"
    return Finding("", WARNING, seen, f"run hotplate invalidate and purge as a user with {lacks}")


# -- the event channel ----------------------------------------------------------------------------


def tracking_works(ground: Ground) -> Finding:
    """A changed key under a tracked prefix is broadcast; says how long that took."""
    key = ground.key()
    with ground.wire() as listener, ground.wire() as talker, ground.wire() as writer:
        try:
            me = listener.ask("CLIENT", "ID")
            listener.ask("SUBSCRIBE", _CHANGED_KEYS)
            talker.ask("CLIENT", "TRACKING", "ON", "REDIRECT", me, "BCAST", "PREFIX", _PREFIX)
            began_s = time.monotonic()
            writer.ask("SET", key, "x", "PX", _KEPT_MS)
        except CommandRefused as refusal:
            seen = f"it could not be tried: {refusal}"
            return Finding("", WARNING, seen, f"let the user write keys {rights.KEYS}")
        took_s = _await(listener, key, began_s)
    if took_s is None:
        return Finding(
            "",
            ERROR,
            f"a changed key was not broadcast within {_TIMEOUT_S:g} s",
            "server and proxies must support CLIENT TRACKING with REDIRECT and BCAST",
        )
    return Finding("", OK, f"a changed key was heard of after {took_s * 1e3:.2f} ms")


def channel_works(ground: Ground) -> Finding:
    """A message to ourselves comes back well within the lease; says how long that took."""
    name = ground.key()
    slowest_s = 0.0
    with ground.wire() as listener, ground.wire() as talker:
        try:
            listener.ask("SUBSCRIBE", name)
            for number in range(_PROBES):
                probe = b"%d" % number
                began_s = time.monotonic()
                talker.ask("PUBLISH", name, probe)
                took_s = _await(listener, probe, began_s)
                if took_s is None:
                    seen = f"a message to ourselves did not come back within {_TIMEOUT_S:g} s"
                    return Finding(
                        "", ERROR, seen, "a proxy before the server must pass pub/sub on"
                    )
                slowest_s = max(slowest_s, took_s)
        except CommandRefused as refusal:
            return Finding(
                "", ERROR, f"it could not be tried: {refusal}", "give the user the right"
            )
    seen = f"{_PROBES} messages came back, the slowest after {slowest_s * 1e3:.2f} ms"
    if slowest_s <= _PROBE_LATE_S:
        return Finding("", OK, seen)
    status = ERROR if slowest_s > _PROBE_LOST_S else WARNING
    fix = "event-coherent rows need it within 350 ms: bring server and processes closer together"
    return Finding("", status, seen, fix)


def _await(listener: Wire, expected: bytes, began_s: float) -> float | None:
    """How long a message, or word of a changed key, took; None if it did not come."""
    try:
        while time.monotonic() - began_s < _TIMEOUT_S:
            _, _, body = listener.read()
            if body == expected or (isinstance(body, list) and expected in body):
                return time.monotonic() - began_s
    except ServerError:
        pass
    return None
