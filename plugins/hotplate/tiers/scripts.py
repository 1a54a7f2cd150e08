"""What the shared tier runs on the server: a value is replaced only where it is what was seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hotplate.servers.pool import Command

__all__ = ["FILL", "RELEASE", "USED_IN_SCRIPTS", "script", "whole"]

FILL: Final = (
    b"if redis.call('GET', KEYS[1]) == ARGV[1] then "
    b"redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1 end return 0"
)
"""Puts ARGV[2] in place of ARGV[1], for ARGV[3] milliseconds."""

RELEASE: Final = (
    b"if redis.call('GET', KEYS[1]) == ARGV[1] then "
    b"return redis.call('UNLINK', KEYS[1]) end return 0"
)
"""Removes ARGV[1]."""

USED_IN_SCRIPTS: Final = ("get", "set", "unlink")
"""Rights that a user needs in them, too."""


def script(source: bytes, key: bytes, *arguments: Any) -> Command:
    """The command that runs one on a key, by its digest."""
    return key, ("EVALSHA", _DIGESTS[source], 1, key, *arguments)


def whole(command: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same for a server that does not know it yet."""
    return ("EVAL", _SOURCES[command[1]], *command[2:])


def _sha1(source: bytes) -> bytes:
    from hashlib import sha1

    return sha1(source, usedforsecurity=False).hexdigest().encode()


_DIGESTS: Final[Mapping[bytes, bytes]] = {source: _sha1(source) for source in (FILL, RELEASE)}
_SOURCES: Final[Mapping[bytes, bytes]] = {digest: source for source, digest in _DIGESTS.items()}
