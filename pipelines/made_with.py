"""When, on which machine and with which versions a page was made."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

__all__ = ["made_with"]


def made_with(made_at: str, machine: Mapping[str, Any]) -> str:
    """When, on which machine and with which versions a page was made: a line.

    Args:
        made_at: date and time.
        machine: as `pipelines.reads.results.machine` finds it.
    """
    versions = machine["versions"]
    return escape(
        f"{made_at} · {machine['cpu']}, {machine['cores']} cores · {machine['store']} · "
        f"Feast {versions.get('feast', '?')} · Hotplate {versions['hotplate']} · "
        f"Python {versions['python']}"
    )
