"""What a forked child must not touch, and what starts clean in it.

The child has its parent's sockets, event loops and locks, but none of its threads. Letting the
parent's connections be collected would say goodbye in its name, so they are kept, unused.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Final, Protocol

__all__ = ["Restarting", "leave_behind", "restart_in_children"]


class Restarting(Protocol):
    """Something that starts clean in a forked child."""

    def restart_after_fork(self) -> None:
        """Runs in the child, before anything else does."""


_left_behind: Final[list[Any]] = []
_restarting: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def leave_behind(*things: Any) -> None:
    """Keep what is the parent's from being collected, and so closed, in this child."""
    _left_behind.extend(things)


def restart_in_children(one: Restarting) -> None:
    """Restart an object in every child that is forked while it lives."""
    _restarting.add(one)


def _restart_after_fork() -> None:
    for one in list(_restarting):
        one.restart_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_after_fork)
