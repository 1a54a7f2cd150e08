"""The quality gate on the demo's data: `python -m pipelines.quality`.

Good data must pass: the repo's own, a week younger than its reference; the simulator's file; the
real transactions where they are; decisions, through SQLAlchemy. Then every fault of
`pipelines.quality.faults` is planted, and must be named. At last `materialize` itself must refuse
bad rows before it writes any.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from hotplate.quality.outcome import Checked, Outcome, Report
    from pipelines.quality.faults import Fault
    from pipelines.quality.stage import Stage

_ROOT: Final = Path(__file__).resolve().parents[2]
_REAL: Final = _ROOT.parent / "shared" / "data" / "transactions" / "fdh_transactions.parquet"


@click.group(invoke_without_command=True, context_settings={"show_default": True})
@click.option(
    "--repo",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=_ROOT / "feature_repo",
    show_default="feature_repo",
    help="The feature repo; its quality.py is used.",
)
@click.option("--customers", type=click.IntRange(min=50), default=150, help="Simulated cards.")
@click.option(
    "--real",
    type=click.Path(path_type=Path),
    default=_REAL,
    show_default="../shared/data",
    help="Real transactions; left out where they are not.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=_ROOT / "out" / "quality",
    show_default="out/quality",
    help="Where the pages go.",
)
@click.pass_context
def main(context: click.Context, repo: Path, customers: int, real: Path, out: Path) -> None:
    """Judge the demo's data: what is good must pass, every planted fault must be named."""
    warnings.simplefilter("ignore")
    if context.invoked_subcommand is not None:
        return
    try:
        from hotplate import HotplateError
    except ImportError as error:
        _fail(f"{error}; install what this needs: pip install 'feast-hotplate[all,quality]'")
    try:
        is_good = _run(_console(), repo, customers, real, out)
    except (ValueError, OSError, HotplateError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("stopped; nothing of it is kept")
    raise SystemExit(0 if is_good else 1)


def _fail(message: str) -> NoReturn:
    click.echo(f"quality: {' '.join(message.split())}", err=True)
    raise SystemExit(1)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 150)


def _run(console: Console, repo: Path, customers: int, real: Path, out: Path) -> bool:
    from hotplate.quality.outcome import Report
    from hotplate.quality.page import page
    from pipelines.quality.faults import FAULTS, caught, plant
    from pipelines.quality.stage import staged

    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hotplate-quality-") as folder:
        work = Path(folder)
        with (
            console.status("simulating, and measuring last week's data"),
            staged(repo, work, customers) as stage,
        ):
            files = {"real transactions": real} if real.is_file() else {}
            quality = stage.quality()
            good = list(quality.check(quality.chosen(()), stage.now).checked)
            for name, path in files.items():
                (checked,) = stage.quality({"transactions": path}).check(
                    ["transactions"], stage.now
                ).checked  # fmt: skip
                good.append(_under(name, checked))
            bad = [(fault, plant(stage, fault, work)) for fault in FAULTS]
            gate = _gate(stage)
        report = Report(stage.store.project, stage.now, tuple(good), _versions())
        planted = replace(report, checked=tuple(_under(fault.name, one) for fault, one in bad))
        for place, shown in ((out, report), (out / "faults", planted)):
            place.mkdir(parents=True, exist_ok=True)
            (place / "index.html").write_text(page(shown), "utf-8")
    _show_good(console, report)
    if not files:
        console.print(f"[yellow]left out[/]: {real} is not there", highlight=False)
    missed = [fault for fault, checked in bad if caught(fault, checked) is None]
    _show_faults(console, [(fault, checked, caught(fault, checked)) for fault, checked in bad])
    for line in gate:
        console.print(line, highlight=False, soft_wrap=True)
    is_good = report.is_good and not missed and not any("[red]" in line for line in gate)
    verdict = "[bold green]good[/]" if is_good else "[bold red]not good[/]"
    console.print(
        f"{verdict}: {sum(len(one.outcomes) for one in good):,} expectations of good data, "
        f"{len(bad) - len(missed)} of {len(bad)} faults named, "
        f"{time.monotonic() - began_s:.0f} s",
        highlight=False,
    )
    console.print(f"Page: {(out / 'index.html').resolve().as_uri()}", soft_wrap=True)
    console.print(f"Faults: {(out / 'faults' / 'index.html').resolve().as_uri()}", soft_wrap=True)
    return is_good


def _under(name: str, checked: Checked) -> Checked:
    """The same under another name."""
    outcomes = tuple(replace(one, view=name) for one in checked.outcomes)
    return replace(checked, view=name, outcomes=outcomes)


def _versions() -> dict[str, str]:
    from hotplate.quality.gx import version

    return {"great_expectations": version()}


def _gate(stage: Stage) -> list[str]:
    """`materialize` of bad rows is refused, and of good ones goes through."""
    from pipelines.quality.gate import refused_then_written

    return refused_then_written(stage)


def _show_good(console: Console, report: Report) -> None:
    table = Table(title="Good data", title_justify="left")
    for name in ("data", "rows", "expectations", "failed"):
        table.add_column(name, justify="left" if name == "data" else "right")
    for one in report.checked:
        rows = "unread" if one.rows is None else f"{one.rows:,}"
        failed = "; ".join(bad.line() for bad in one.bad) or one.problem
        shown = failed.replace("[", "\\[")
        table.add_row(
            one.view, rows, f"{len(one.outcomes):,}", f"[red]{shown}[/]" if failed else "0"
        )
    console.print(table)


def _show_faults(console: Console, rows: Sequence[tuple[Fault, Checked, Outcome | None]]) -> None:
    from hotplate.quality.outcome import percent

    table = Table(title="Planted faults", title_justify="left")
    for name in ("fault", "view", "column", "named by", "failing", "such as"):
        table.add_column(name, overflow="fold")
    for fault, checked, outcome in rows:
        if outcome is None:
            seen = "; ".join(one.line() for one in checked.bad) or checked.problem or "all passed"
            table.add_row(fault.name, fault.view, fault.column, "[red]nobody[/]", "", seen)
            continue
        share = "" if outcome.share is None else percent(outcome.share)
        seen = ", ".join(outcome.examples[:2]) or outcome.hint or outcome.observed
        cells = (fault.name, fault.view, fault.column, outcome.check, share)
        table.add_row(*cells, seen.replace("[", "\\["))
    console.print(table)


@main.command()
@click.option("--rows", type=click.IntRange(min=1_000), default=1_000_000)
@click.option("--rounds", type=click.IntRange(min=1), default=3)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=_ROOT / "out" / "quality" / "bench",
    show_default="out/quality/bench",
)
def bench(rows: int, rounds: int, out: Path) -> None:
    """Weigh the gate on a table of 40 columns against Great Expectations alone."""
    from pipelines.quality.bench import run

    run(_console(), rows, rounds, out)


if __name__ == "__main__":
    main()
