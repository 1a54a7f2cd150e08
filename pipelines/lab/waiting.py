"""Waiting for something to become so."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_until"]


def wait_until(is_so: Callable[[], object], what: str = "", within_s: float = 30.0) -> None:
    """Poll until something is so.

    Raises:
        TimeoutError: it was not so within `within_s` seconds; the message says `what`.
    """
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"not so within {within_s:g} s: {what or is_so}")
        time.sleep(0.01)
