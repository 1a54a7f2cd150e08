"""Servers with a user who may do what is documented, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import redis as redis_client

from hotplate.servers import rights

__all__ = ["Guarded"]


class Guarded:
    """A server, or the servers of a cluster, with a user who may do what is documented."""

    def __init__(self, addresses: str, kind: str = "redis") -> None:
        self.kind = kind
        self.addresses = addresses
        self._stack = ExitStack()
        self.admins = [
            self._stack.enter_context(redis_client.Redis(port=int(address.rpartition(":")[2])))
            for address in addresses.split(",")
        ]

    @property
    def documented(self) -> list[str]:
        """The documented rights for this kind of server, and who has them."""
        commands = [*rights.TIER, *rights.CHANNEL]
        if self.kind == "redis_cluster":
            commands += rights.CLUSTER_CHANNEL
        return [
            f"~{rights.KEYS}",
            *(f"&{channel}" for channel in rights.CHANNELS),
            *(f"+{command}" for command in commands),
        ]

    def allow(self, allowed: Sequence[str]) -> dict[str, Any]:
        """Settings of `online_store.shared` for a user who may do this and no more."""
        for admin in self.admins:
            rules = ("reset", "on", ">pass-word", *allowed)
            admin.execute_command("ACL", "SETUSER", "hotplate", *rules)
        return {
            "connection_string": f"{self.addresses},username=hotplate,password=pass-word",
            "redis_type": self.kind,
            "timeout": "2s",
        }

    def close(self) -> None:
        """Leave the servers as they were."""
        for admin in self.admins:
            admin.execute_command("ACL", "DELUSER", "hotplate")
        self._stack.close()
