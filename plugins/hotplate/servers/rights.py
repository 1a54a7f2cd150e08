"""What a server's user must be allowed: once, for the documentation, error messages and checks."""

from __future__ import annotations

from typing import Final

__all__ = [
    "CHANNEL",
    "CHANNELS",
    "CLUSTER_CHANNEL",
    "CONSUMER",
    "CONSUMER_APART",
    "KEYS",
    "LOGS",
    "TIER",
    "shown",
]

TIER: Final = (
    "get",
    "mget",
    "set",
    "unlink",
    "hmget",
    "hset",
    "hsetnx",
    "time",
    "eval",
    "evalsha",
    "info",
)
"""Commands of the shared tier; its scripts use no others."""

LOGS: Final = ("append", "get", "pexpire", "set", "eval", "hset", "hgetall", "hdel", "info")
"""Commands of the event logs of windowed views; the script that folds them uses no others."""

CHANNEL: Final = ("client|id", "client|tracking", "subscribe", "publish")
"""Commands of the event channel."""

CLUSTER_CHANNEL: Final = ("ssubscribe", "spublish", "cluster|slots", "cluster|info")
"""What it needs besides in a cluster."""

CONSUMER: Final = (
    "xgroup|create",
    "xgroup|delconsumer",
    "xreadgroup",
    "xautoclaim",
    "xpending",
    "xack",
    "xadd",
    "xinfo|groups",
    "xinfo|stream",
    "publish",
)
"""Commands of a stream's consumer besides those of event logs. Without `xinfo` it cannot see how
far it is behind, without `xgroup|delconsumer` it leaves its name in the group."""

CONSUMER_APART: Final = ("hmget", "hset", "hdel")
"""What it needs besides in a cluster, or where stream and logs are on different servers."""

KEYS: Final = "hotplate:*"
"""Keys that are ours."""

CHANNELS: Final = ("hotplate:*", "__redis__:invalidate")
"""Names that are subscribed to and published on."""


def shown(*groups: tuple[str, ...]) -> str:
    """Commands as an ACL rule allows them: `+get +set`."""
    return " ".join(f"+{command}" for group in groups for command in group)
