"""Why there is no advice."""

from __future__ import annotations

from hotplate.errors import HotplateError

__all__ = ["AdviceError"]


class AdviceError(HotplateError):
    """A log or its changes cannot be replayed; the message says why, and what to do."""
