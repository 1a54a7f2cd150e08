"""What goes wrong where metrics are read."""

from __future__ import annotations

from hotplate.errors import HotplateError

__all__ = ["TelemetryError"]


class TelemetryError(HotplateError):
    """Metrics cannot be read; the message says from where, and what to do."""
