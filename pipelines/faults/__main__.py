"""`make faults`: the matrix of faults, printed and written as Markdown and JSON."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from pipelines.bench.into import into_option, put_table
from pipelines.bench.machine import machine, write_results
from pipelines.faults.measure import SENTINELS, SQLITE, TRACKED, Line, measure
from pipelines.lab.fleet import Nursery
from pipelines.lab.stage import FAULTS, TRACKED_FAULTS

_COLUMNS = (
    "fault",
    "around",
    "wrong",
    "errors",
    "uncached p50 / p99",
    "before p50 / p99",
    "during p50 / p99",
    "p99 above the uncached store's",
    "recovers in",
    "worst staleness: ttl group",
    "event group",
)
_SHORT = ((SQLITE, "frozen"), (SQLITE, "black hole"), (TRACKED, "reset"))
_BUDGET_MS = 5.0


@click.command()
@click.option("--short", is_flag=True, help="A few faults, once: it must run, no more.")
@click.option("--repeats", default=3, show_default=True, help="How often each fault comes.")
@click.option("--seconds", default=0.8, show_default=True, help="How long each lasts.")
@click.option("--only", default="", help="Only faults whose name contains this.")
@click.option(
    "--out",
    default=Path("out/faults"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where the table goes.",
)
@into_option("faults")
def main(
    short: bool, repeats: int, seconds: float, only: str, out: Path, into: tuple[Path, ...]
) -> None:
    """Let two processes read and write while faults of the server come and go."""
    if into and (only or short):
        raise click.UsageError("--into replaces a whole table: leave --only and --short out")
    warnings.simplefilter("ignore")
    console = Console()
    found = machine()
    began_s = time.monotonic()
    cases = [
        *((SQLITE, name) for name in FAULTS),
        (SENTINELS, "failing over"),
        *((TRACKED, name) for name in TRACKED_FAULTS),
    ]
    if short:
        cases, repeats = [case for case in cases if case in _SHORT], 1
    cases = [case for case in cases if only in case[1]]
    lines = []
    with (
        closing(Nursery()) as nursery,
        Progress(console=console, disable=not sys.stdout.isatty()) as progress,
        TemporaryDirectory(prefix="hotplate-faults-") as folder,
    ):
        task = progress.add_task("", total=len(cases))
        for number, (over, fault) in enumerate(cases):
            progress.update(task, description=f"{fault}, {over}")
            place = Path(folder) / str(number)
            lines.append(measure(place, nursery, over, fault, repeats, seconds))
            progress.advance(task)
    found["seconds"] = f"{time.monotonic() - began_s:.0f}"
    rows = [_row(line) for line in lines]
    table = Table(title="Faults of the server on which processes meet", title_justify="left")
    for column in ("fault", *_COLUMNS[2:]):
        table.add_column(column, overflow="fold")
    for fault, over, *rest in rows:
        table.add_row(f"{fault}\n{over}", *rest)
    console.print(table)
    written = [_COLUMNS, ("---",) * len(_COLUMNS), *rows]
    write_results(out, written, found, [*map(asdict, lines)])
    for page in into:
        put_table(page, "faults", written, found)
    for aim in _aims(lines):
        console.print(aim)
    console.print(f"written: {out / 'table.md'} and {out / 'results.json'}")
    if any(line.wrong for line in lines):
        raise SystemExit("wrong answers were served")


def _row(line: Line) -> Sequence[str]:
    return (
        line.fault,
        line.over,
        f"{line.wrong} of {line.reads:,}",
        f"{line.errors:,}",
        *("{:.2f} / {:.1f} ms".format(*p) for p in (line.bare_ms, line.before_ms, line.during_ms)),
        # around Redis the store itself has the fault
        "" if line.over == TRACKED else f"{_above_ms(line):+.1f} ms",
        f"{line.recovery_s:.2f} s",
        f"{line.aged_ms:.0f} ms",
        f"{line.event_ms:.0f} ms",
    )


def _above_ms(line: Line) -> float:
    return line.during_ms[1] - line.bare_ms[1]


def _aims(lines: Sequence[Line]) -> Sequence[str]:
    """What was aimed at, and what misses it."""
    beside = [line for line in lines if line.over != TRACKED]
    aims = (
        ("p99 above the uncached store's", _BUDGET_MS, beside, _above_ms),
        ("back to normal", 1_000.0, lines, lambda line: line.recovery_s * 1e3),
        ("worst staleness, ttl group", 400.0, lines, lambda line: line.aged_ms),
        ("worst staleness, event group", 400.0, lines, lambda line: line.event_ms),
    )
    return [_aim(what, at_most_ms, some, value_of) for what, at_most_ms, some, value_of in aims]


def _aim(
    what: str, at_most_ms: float, lines: Sequence[Line], value_of: Callable[[Line], float]
) -> str:
    missed = [
        f"{line.fault} ({line.over}) {value_of(line):.1f} ms"
        for line in lines
        if value_of(line) > at_most_ms
    ]
    met = f"{what}, at most {at_most_ms:g} ms: met by {len(lines) - len(missed)} of {len(lines)}"
    return f"{met}; missed by {', '.join(missed)}" if missed else met


if __name__ == "__main__":
    main()
