"""Files that come with the package: a dashboard for Grafana, and alert rules for Prometheus."""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

__all__ = ["asset"]


def asset(name: Literal["grafana.json", "alerts.yml"]) -> str:
    """The text of a file."""
    return files("hotplate.telemetry").joinpath(name).read_text("utf-8")
