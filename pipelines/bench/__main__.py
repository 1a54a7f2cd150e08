"""`make bench`: measure everything, print the table, write it as Markdown and JSON."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from pipelines.bench.advice import advice
from pipelines.bench.blobs import blobs
from pipelines.bench.cases import CASES, traces
from pipelines.bench.fleet import fleet
from pipelines.bench.into import into_option, put_table
from pipelines.bench.line import Line
from pipelines.bench.loaders import computed_on_miss
from pipelines.bench.machine import machine, write_results
from pipelines.bench.metrics import metrics
from pipelines.bench.outputs import outputs
from pipelines.bench.propagation import propagation
from pipelines.bench.purge import purge
from pipelines.bench.scorer import scorer
from pipelines.bench.serving import serving
from pipelines.bench.shop import open_shop
from pipelines.bench.warming import warming
from pipelines.bench.windowed import windowed
from pipelines.bench.writes import large_writes


@click.command()
@click.option(
    "--rounds", default=9, show_default=True, help="Alternating rounds of each comparison."
)
@click.option("--entities", default=10_000, show_default=True, help="Entities written.")
@click.option(
    "--trace-limit",
    default=None,
    type=int,
    help="Requests read of each access trace; all if left out.",
)
@click.option("--only", default="", help="Run only cases whose name contains this.")
@click.option(
    "--data",
    default=Path("../shared/data/traces"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of the access traces.",
)
@click.option(
    "--out",
    default=Path("out/bench"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where the table goes.",
)
@into_option("bench")
def main(
    rounds: int,
    entities: int,
    trace_limit: int | None,
    only: str,
    data: Path,
    out: Path,
    into: tuple[Path, ...],
) -> None:
    """Measure Hotplate against Feast alone, over the same server, in the same run."""
    if into and only:
        raise click.UsageError("--into replaces a whole table: leave --only out")
    warnings.simplefilter("ignore")
    console = Console(width=None if sys.stdout.isatty() else 200)
    found = machine()
    began = time.monotonic()
    lines: list[Line] = []
    is_short = trace_limit is not None
    cases = [case for case in CASES if only in case.__name__]
    with Progress(console=console, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task("starting the server, writing entities", total=len(cases) + 13)
        with open_shop(entities) as shop:
            for case in cases:
                progress.update(task, description=(case.__doc__ or "").strip().splitlines()[0])
                lines += case(shop, rounds)
                progress.advance(task)
        if only in "traces":
            progress.update(task, description="replaying access traces")
            lines += traces(data, trace_limit)
        progress.advance(task)
        if only in "fleet":
            progress.update(task, description=(fleet.__doc__ or "").strip().splitlines()[0])
            lines += fleet(rounds, is_short=is_short)
        progress.advance(task)
        if only in "propagation":
            progress.update(task, description="waiting for one process to hear of another's writes")
            lines += propagation(*((1, 50) if is_short else (rounds, 200)))
        progress.advance(task)
        if only in "large_writes":
            progress.update(task, description="materializing through the plugin and without it")
            lines += large_writes(*((1_000, 1) if is_short else (100_000, min(rounds, 3))))
        progress.advance(task)
        if only in "purge":
            progress.update(task, description="reading while another process purges")
            lines += purge(*((50_000, 2) if is_short else (1_000_000, 4 * rounds)))
        progress.advance(task)
        if only in "metrics":
            progress.update(task, description=(metrics.__doc__ or "").strip())
            lines += metrics(rounds, is_short=is_short)
        progress.advance(task)
        if only in "computed_on_miss":
            progress.update(task, description="computing features on a miss, on PostgreSQL")
            lines += computed_on_miss(data, trace_limit)
        progress.advance(task)
        if only in "outputs":
            progress.update(task, description=(outputs.__doc__ or "").strip().splitlines()[0])
            lines += outputs(rounds, is_short=is_short)
        progress.advance(task)
        if only in "scorer":
            progress.update(task, description=(scorer.__doc__ or "").strip().splitlines()[0])
            lines += scorer(rounds, is_short=is_short)
        progress.advance(task)
        if only in "serving":
            progress.update(task, description=(serving.__doc__ or "").strip().splitlines()[0])
            lines += serving(rounds, is_short=is_short)
        progress.advance(task)
        if only in "blobs":
            progress.update(task, description=(blobs.__doc__ or "").strip().splitlines()[0])
            lines += blobs(rounds, is_short=is_short)
        progress.advance(task)
        if only in "windowed":
            progress.update(task, description="windows against plain rows of as many features")
            lines += windowed(rounds, is_short=is_short)
        progress.advance(task)
        if only in "warming":
            progress.update(task, description=(warming.__doc__ or "").strip().splitlines()[0])
            lines += warming(data, rounds, is_short=is_short)
        progress.advance(task)
        if only in "advice":
            progress.update(task, description=(advice.__doc__ or "").strip().splitlines()[0])
            lines += advice(data, rounds, is_short=is_short)
        progress.advance(task)
    found["seconds"] = f"{time.monotonic() - began:.0f}"
    _print(console, lines)
    rows = _rows(lines)
    write_results(out, rows, found, [asdict(line) for line in lines])
    for page in into:
        put_table(page, "bench", rows, found)
    console.print(f"written: {out / 'table.md'} and {out / 'results.json'}")


def _print(console: Console, lines: Sequence[Line]) -> None:
    table = Table(title="Hotplate against Feast alone, same server, same run", title_justify="left")
    for column in ("measured", "value", "over the rounds", "aim", "", "for orientation"):
        table.add_column(column, overflow="fold")
    for line in lines:
        table.add_row(line.what, line.value, line.spread, line.target, _mark(line), line.detail)
    console.print(table)


def _mark(line: Line) -> str:
    return "" if line.is_met is None else "met" if line.is_met else "short"


def _rows(lines: Sequence[Line]) -> list[Sequence[str]]:
    return [
        ("measured", "value", "over the rounds", "aim", "", "for orientation"),
        ("---",) * 6,
        *((li.what, li.value, li.spread, li.target, _mark(li), li.detail) for li in lines),
    ]


if __name__ == "__main__":
    main()
