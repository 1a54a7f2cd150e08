"""The gate on a table of 40 columns against Great Expectations alone, a process each."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from hotplate.sizes import format_bytes
from pipelines.bench.machine import machine, write_results
from pipelines.quality.weigh import COLUMNS, WAYS, prepare

__all__ = ["run"]

_BUDGET_S: Final = 60.0
_BUDGET_BYTES: Final = 2_000_000_000
_HEAD: Final = ("way", "seconds", "of its processors", "peak memory", "expectations", "failed")


def run(console: Console, rows: int, rounds: int, out: Path) -> None:
    """Measure, print and write a table."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="hotplate-quality-") as folder:
        with console.status("writing the table and its reference"):
            prepare(Path(folder), rows)
        for number in range(rounds):
            for way in WAYS:
                with console.status(f"{way}, round {number + 1} of {rounds}"):
                    found[way].append(_weighed(way, folder))
    machine_ = {**machine(), "great_expectations": version("great_expectations")}
    lines = [_line(way, weighed) for way, weighed in found.items()]
    table = Table(
        title=f"{rows:,} rows x {COLUMNS} columns: budget {_BUDGET_S:.0f} s, "
        f"{format_bytes(_BUDGET_BYTES)}; medians of {rounds}, smallest and largest",
        title_justify="left",
    )
    for name in _HEAD:
        table.add_column(name)
    for line in lines:
        table.add_row(*line)
    console.print(table)
    write_results(out, [_HEAD, ["---"] * len(_HEAD), *lines], machine_, [found])
    console.print(f"Table: {(out / 'table.md').resolve()}", soft_wrap=True)


def _weighed(way: str, folder: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.quality.weigh", way, folder],
        capture_output=True,
        text=True,
        check=True,
    )
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {name: float(value) for name, value in said.items()}


def _line(way: str, weighed: list[dict[str, float]]) -> list[str]:
    def spread(name: str, shown: Any) -> str:
        values = [one[name] for one in weighed]
        middle = shown(statistics.median(values))
        return f"{middle} ({shown(min(values))} to {shown(max(values))})"

    return [
        way,
        spread("seconds", lambda value: f"{value:.1f}"),
        spread("processor_s", lambda value: f"{value:.1f}"),
        spread("peak_bytes", lambda value: format_bytes(int(value))),
        f"{weighed[0]['expectations']:.0f}",
        f"{weighed[0]['failed']:.0f}",
    ]
