"""What a Redis or Valkey server is like, and whether it suits what it is used for."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from hotplate.durations import format_duration
from hotplate.errors import CommandRefused, ServerError
from hotplate.operations.findings import ERROR, OK, WARNING, Finding, merged
from hotplate.operations.trials import (
    Ground,
    channel_works,
    missing_rights,
    operating_rights,
    tracking_works,
)
from hotplate.servers.redis import RedisServer
from hotplate.servers.topology import Topology
from hotplate.servers.wire import Wire
from hotplate.sizes import format_bytes

__all__ = ["Use", "examine_server"]

_OLDEST: Final = (7, 0)
_PINGS: Final = 200
_SLOW_CONNECT_S: Final = 0.25
_SKEW_S: Final = 0.1
_SCANS: Final = 20
_SCAN_COUNT: Final = 100
_NO_INFO: Final = "it cannot be seen: the user lacks +info"
_SEE: Final = "run hotplate doctor once as a user with +info"


@dataclass(frozen=True)
class Use:
    """What a server is there for.

    Attributes:
        name: where the deployment says so.
        server: how it is reached.
        project: the Feast project.
        is_store: it holds Feast's features.
        is_tier: it holds rows of the shared tier.
        is_channel: processes meet there.
        is_tracked: it broadcasts changes of what Feast wrote.
        timeout_ns: how long an exchange may take; None where no request waits for it.
    """

    name: str
    server: RedisServer
    project: str
    is_store: bool = False
    is_tier: bool = False
    is_channel: bool = False
    is_tracked: bool = False
    timeout_ns: int | None = None


def examine_server(use: Use) -> list[Finding]:
    """Every check of one deployment of a server, node by node."""
    try:
        topology, found = _reach(use)
    except ServerError as error:
        return [Finding(f"{use.name}: reachable", ERROR, str(error), _fix_of(error))]
    checks: dict[str, Callable[[Use, Ground], Finding]] = {
        "version": _version,
        "role": _role,
        "rights": _rights,
        "rights of tools": lambda _, ground: operating_rights(ground),
        "eviction": _eviction,
        "persistence": _persistence,
        "clock": _clock,
        "round trip": _round_trip,
        "other keys": _other_keys,
    }
    if use.is_channel:
        checks["channel"] = lambda _, ground: channel_works(ground)
    if use.is_tracked and use.is_channel:
        checks["tracking"] = lambda _, ground: tracking_works(ground)
    for name, check in checks.items():
        seen = []
        for node in topology.nodes:
            ground = Ground(use.server, topology, node, use.project)
            try:
                seen.append((str(node), check(use, ground)))
            except ServerError as error:
                seen.append((str(node), Finding("", ERROR, str(error), _fix_of(error))))
        found.append(merged(f"{use.name}: {name}", seen))
    return found


def _reach(use: Use) -> tuple[Topology, list[Finding]]:
    topology = use.server.topology()
    seen = []
    for node in topology.nodes:
        began_s = time.monotonic()
        wire = use.server.wire(node)
        took_s = time.monotonic() - began_s
        wire.close()
        text = f"connected within {took_s * 1e3:.1f} ms"
        if took_s > _SLOW_CONNECT_S:
            fix = "connecting may take 500 ms: look at the network, at TLS, at the server's load"
            seen.append((str(node), Finding("", WARNING, text, fix)))
        else:
            seen.append((str(node), Finding("", OK, text)))
    return topology, [merged(f"{use.name}: reachable", seen)]


def _fix_of(error: ServerError) -> str:
    said = str(error)
    found = re.search(r"run the '([^']+)' command", said)
    if found is not None:
        return f"allow the user +{found[1]}"
    if "WRONGPASS" in said or "NOAUTH" in said or "invalid username-password" in said:
        return "correct username and password in the connection string"
    return "correct the connection string, start the server, or open the way to it"


# -- what it is -----------------------------------------------------------------------------------


def _hello(ground: Ground) -> dict[bytes, Any]:
    """What a server says of itself to everybody."""
    with ground.wire() as wire:
        answer = wire.ask("HELLO")
    return dict(zip(answer[::2], answer[1::2], strict=True))


def _version(use: Use, ground: Ground) -> Finding:
    fix = "use Redis 7.0 or later, or Valkey: SET NX GET and sharded pub/sub are from 7.0"
    try:
        hello = _hello(ground)
    except CommandRefused:
        return Finding("", ERROR, "a server from before Redis 6", fix)
    name, text = hello[b"server"].decode(), hello[b"version"].decode()
    numbers = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    return Finding("", OK if numbers >= _OLDEST else ERROR, f"{name} {text}", fix)


def _role(use: Use, ground: Ground) -> Finding:
    role = _hello(ground)[b"role"].decode()
    if role == "master":
        return Finding("", OK, "primary")
    fix = "name the primary, or use redis_type: redis_sentinel so that it is found"
    return Finding("", ERROR, f"a {role}: it takes no writes", fix)


def _info(ground: Ground, section: str) -> dict[str, str] | None:
    with ground.wire() as wire:
        try:
            text: bytes = wire.ask("INFO", section)
        except CommandRefused:
            return None
    pairs = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}


def _eviction(use: Use, ground: Ground) -> Finding:
    info = _info(ground, "memory")
    if info is None:
        return Finding("", WARNING, _NO_INFO, _SEE)
    policy, bound = info.get("maxmemory_policy", "?"), int(info.get("maxmemory", 0))
    size = format_bytes(bound) if bound else "no maxmemory"
    seen = f"{policy}, {size}, {format_bytes(int(info.get('used_memory', 0)))} used"
    if use.is_store:
        if policy.startswith("allkeys"):
            fix = "Feast's features are no cache: set maxmemory-policy noeviction"
            return Finding("", WARNING, f"{seen}: it may drop features", fix)
        return Finding("", OK, seen)
    if not use.is_tier:
        return Finding("", OK, seen)
    if policy == "noeviction" or not bound:
        fix = "set maxmemory, and maxmemory-policy volatile-lru: every row has a ttl"
        what = "it refuses rows once it is full" if bound else "it grows until the host has no room"
        return Finding("", WARNING, f"{seen}: {what}", fix)
    if policy == "allkeys-random":
        fix = "set maxmemory-policy volatile-lru: the generations must not go before the rows"
        return Finding("", WARNING, seen, fix)
    return Finding("", OK, seen)


def _persistence(use: Use, ground: Ground) -> Finding:
    info, peers = _info(ground, "persistence"), _info(ground, "replication")
    if info is None or peers is None:
        return Finding("", WARNING, _NO_INFO, _SEE)
    is_aof = info.get("aof_enabled") == "1"
    saves, replicas = int(info.get("rdb_saves", 0)), int(peers.get("connected_slaves", 0))
    seen = f"AOF {'on' if is_aof else 'off'}, {saves} snapshots, {replicas} replicas"
    broken = [
        name
        for name in ("rdb_last_bgsave_status", "aof_last_write_status")
        if info.get(name, "ok") != "ok"
    ]
    if broken:
        fix = "make room on its disk: until a snapshot succeeds it may refuse writes (MISCONF)"
        return Finding("", ERROR, f"{seen}; {', '.join(broken)}: failed", fix)
    if info.get("loading") == "1":
        return Finding("", ERROR, "it is loading its data", "wait")
    if use.is_store and not (is_aof or saves or replicas):
        fix = "turn snapshots or AOF on, or add a replica; else materialize after every restart"
        return Finding("", WARNING, f"{seen}: a restart loses the features", fix)
    return Finding("", OK, seen)


# -- what may be done -----------------------------------------------------------------------------


def _rights(use: Use, ground: Ground) -> Finding:
    missing = missing_rights(ground, is_tier=use.is_tier, is_channel=use.is_channel)
    if missing:
        rules = " ".join(sorted(missing))
        return Finding("", ERROR, f"the user lacks {rules}", f"ACL SETUSER its-name {rules}")
    return Finding("", OK, "everything that is needed")


# -- how fast it is -------------------------------------------------------------------------------


def _clock(use: Use, ground: Ground) -> Finding:
    best_s, skew_s = float("inf"), 0.0
    with ground.wire() as wire:
        for _ in range(10):
            began_s = time.time()
            try:
                seconds, micros = wire.ask("TIME")
            except CommandRefused as refusal:
                return Finding("", WARNING, f"it cannot be seen: {refusal}", "allow the user +time")
            took_s = time.time() - began_s
            if 0 <= took_s < best_s:
                best_s = took_s
                skew_s = int(seconds) + int(micros) / 1e6 - (began_s + took_s / 2)
    seen = f"{skew_s * 1e3:+.1f} ms from this host's, give or take {best_s * 500:.1f} ms"
    if abs(skew_s) - best_s / 2 <= _SKEW_S:
        return Finding("", OK, seen)
    fix = "run an NTP client on both: ages are the greater of two clocks, so rows end early"
    return Finding("", WARNING, seen, fix)


def _round_trip(use: Use, ground: Ground) -> Finding:
    with ground.wire() as wire:
        times = sorted(_timed(wire) for _ in range(_PINGS))
    p50_s, p99_s = times[_PINGS // 2], times[_PINGS * 99 // 100]
    seen = f"{p50_s * 1e3:.2f} ms p50, {p99_s * 1e3:.2f} ms p99 of {_PINGS}"
    if use.timeout_ns is None:
        return Finding("", OK, seen)
    timeout = f"shared.timeout is {format_duration(use.timeout_ns)}"
    if p99_s > use.timeout_ns / 2e9:
        fix = "raise shared.timeout to twice that, or bring the server closer"
        return Finding("", WARNING, f"{seen}; {timeout}", fix)
    return Finding("", OK, f"{seen}; {timeout}")


def _timed(wire: Wire) -> float:
    """One exchange; an error is an answer, too."""
    began_s = time.monotonic()
    with suppress(CommandRefused):
        wire.ask("TIME")
    return time.monotonic() - began_s


# -- who else is there ----------------------------------------------------------------------------


def _other_keys(use: Use, ground: Ground) -> Finding:
    counts: Counter[str] = Counter()
    cursor = 0
    with ground.wire() as wire:
        for _ in range(_SCANS):
            try:
                after, keys = wire.ask("SCAN", cursor, "COUNT", _SCAN_COUNT)
            except CommandRefused:
                return Finding("", WARNING, "it cannot be seen: the user lacks +scan", "+scan")
            counts.update(map(_owner, keys))
            cursor = int(after)
            if cursor == 0:
                break
    total = counts.total()
    ours = {"hotplate", "Feast"} if use.is_store else {"hotplate"}
    others = {owner: count for owner, count in counts.most_common() if owner not in ours}
    sample = "all" if cursor == 0 else "the first"
    if not others:
        return Finding("", OK, f"none among {sample} {total:,} keys")
    shown = ", ".join(f"{owner} {count:,}" for owner, count in list(others.items())[:5])
    fix = "give it a server of its own: what others write, flush and let evict is out of our hands"
    return Finding("", WARNING, f"among {sample} {total:,} keys: {shown}", fix)


def _owner(key: bytes) -> str:
    """Whose a key is, by what it begins with; the rest of it is nobody's business here."""
    if key.startswith(b"hotplate:"):
        return "hotplate"
    count, tag = key[:4], key[4:8]
    if tag == b"\x02\x00\x00\x00" and 0 < int.from_bytes(count, "little") < 32:
        return "Feast"  # how its Redis store writes the names of join keys
    head, colon, _ = key.partition(b":")
    if not colon or not head.isascii() or not head.decode().isprintable():
        return "(no prefix)"
    return f"{head[:20].decode()}:*"
