"""`hotplate quality`: whether data is what the feature repo expects."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from rich.console import Console
from rich.table import Table

from hotplate.cli_repo import chdir_option, fail, open_store, told

if TYPE_CHECKING:
    from hotplate.quality.outcome import Checked, Report
    from hotplate.quality.run import Quality

__all__ = ["quality"]

_WIDTH: Final = 160
_F = TypeVar("_F", bound=Callable[..., Any])


@click.group()
def quality() -> None:
    """Judge data by what the definitions, a reference and quality.py expect of it.

    Runs Great Expectations (`pip install 'feast-hotplate[quality]'`); nothing is sent anywhere.
    """


def _pair(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> Any:
    pairs = {}
    for one in value:
        name, sign, place = one.partition("=")
        if not sign or not name or not place:
            raise click.BadParameter(f"{one!r} is no VIEW=PLACE", context, parameter)
        pairs[name] = place
    return pairs


def _now(context: click.Context, parameter: click.Parameter, value: str | None) -> datetime:
    if value is None:
        return datetime.now(UTC)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is no time: write 2026-01-31T12:00:00Z", context, parameter
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _data_options(function: _F) -> _F:
    """What both commands are told of where data is."""
    options = (
        click.argument("views", nargs=-1, metavar="[VIEW]..."),
        click.option(
            "--file",
            "files",
            multiple=True,
            callback=_pair,
            metavar="VIEW=PATH",
            help="A Parquet or CSV file or folder in the place of the view's own data.",
        ),
        click.option(
            "--sql",
            multiple=True,
            callback=_pair,
            metavar="VIEW=URL#TABLE",
            help="The same from a database of SQLAlchemy's; or URL#SELECT ...; ${NAME} in it is "
            "the environment's.",
        ),
        click.option(
            "--reference",
            type=click.Path(dir_okay=False, path_type=Path),
            help="How data was.  [default: quality.json in the repo's folder]",
        ),
        click.option(
            "--now",
            callback=_now,
            metavar="TIME",
            help="The time to judge by, such as 2026-01-31T12:00:00Z; this moment if left out.",
        ),
        chdir_option,
    )
    for option in reversed(options):
        function = option(function)
    return function


@quality.command()
@_data_options
@click.option("--dry-run", is_flag=True, help="Print it, and write nothing.")
def profile(
    views: tuple[str, ...],
    files: dict[str, str],
    sql: dict[str, str],
    reference: Path | None,
    now: datetime,
    dry_run: bool,
    chdir: Path,
) -> None:
    """Measure good data of VIEWs (or all), and write it down as the reference.

    What stands under "expect" in the file is yours, and is kept.
    """
    path = reference or chdir / "quality.json"
    with _stopped(), told():
        run = _open(chdir, files, sql, path, needs_reference=False)
        names = _chosen(run, views)
        with _shown(len(names)) as advance:
            made = run.profile(names, now, advance)
        if dry_run:
            click.echo(made.text(), nl=False)
            return
        made.write(path)
        judged = _open(chdir, files, sql, path, needs_reference=True)
        with _shown(len(names)) as advance:
            report = judged.check(names, now, progress=advance)
    click.echo(f"{path}: {_count(len(names), 'view or table', 'views and tables')} measured")
    click.echo("Read it, correct it, and keep it beside your definitions.")
    if not report.is_good:
        console = Console(width=None if sys.stdout.isatty() else _WIDTH)
        console.print("\nThis data is not as expected in itself:")
        _faults(console, report)
        click.echo(
            "Mend it, or accept it: under the view in that file write, for instance,\n"
            '  "expect": {"off": ["zone", "unique"]}\n'
            "with the checks that are not to be made. `hotplate quality run` fails until then."
        )


@quality.command()
@_data_options
@click.option(
    "--html",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="A page of everything, index.html there.",
)
@click.option(
    "--junit",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The same for a CI.",
)
@click.option("--json", "as_json", is_flag=True, help="The same for machines, on the screen.")
@click.option("--show-ids", is_flag=True, help="Show entity ids as they are.")
def run(
    views: tuple[str, ...],
    files: dict[str, str],
    sql: dict[str, str],
    reference: Path | None,
    now: datetime,
    html: Path | None,
    junit: Path | None,
    as_json: bool,
    show_ids: bool,
    chdir: Path,
) -> None:
    """Judge the data of VIEWs, or of all views and tables.

    Exits with 1 where anything is not as expected, or cannot be read.
    """
    path = reference or chdir / "quality.json"
    with _stopped(), told():
        asked = _open(chdir, files, sql, path, needs_reference=reference is not None)
        names = _chosen(asked, views)
        with _shown(len(names)) as advance:
            report = asked.check(names, now, shows_ids=show_ids, progress=advance)
        _write(report, html, junit)
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        _show(report, path)
        if html is not None:
            click.echo(f"Page: {(html / 'index.html').resolve().as_uri()}")
    raise SystemExit(0 if report.is_good else 1)


def _open(
    folder: Path, files: dict[str, str], sql: dict[str, str], path: Path, *, needs_reference: bool
) -> Quality:
    from hotplate.quality.reference import Reference
    from hotplate.quality.run import Given, Quality

    if twice := sorted(set(files) & set(sql)):
        raise click.UsageError(f"{twice[0]} has both a --file and a --sql")
    store = open_store(folder)
    is_there = path.exists() or needs_reference
    known = Reference.read(path) if is_there else Reference()
    given = Given({name: Path(place) for name, place in files.items()}, sql)
    try:
        found = Quality(store, folder, given, known)
    except Exception as error:
        if type(error).__module__.startswith("hotplate"):
            raise
        fail(f"Feast cannot read the registry of {folder.resolve()}: {error}")
    if not found.names:
        fail(
            f"{folder.resolve()}: nothing is applied yet, and quality.py declares no table: run "
            "feast apply"
        )
    return found


def _chosen(run: Quality, views: tuple[str, ...]) -> list[str]:
    try:
        return run.chosen(views)
    except KeyError as error:
        raise click.UsageError(str(error.args[0])) from None


def _write(report: Report, html: Path | None, junit: Path | None) -> None:
    from hotplate.quality.junit import junit as as_junit
    from hotplate.quality.page import page

    place = html
    try:
        if html is not None:
            html.mkdir(parents=True, exist_ok=True)
            place = html / "index.html"
            place.write_text(page(report), "utf-8")
        if junit is not None:
            place = junit
            junit.parent.mkdir(parents=True, exist_ok=True)
            junit.write_bytes(as_junit(report))
    except OSError as error:
        fail(f"{place} cannot be written: {error.strerror}")


def _show(report: Report, path: Path) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    _summary(console, report)
    if not report.is_good:
        _faults(console, report)
    bare = [one.view for one in report.checked if not one.has_reference and not one.problem]
    if bare:
        console.print(
            f"No reference ({path}) says how {', '.join(bare)} was: ranges, nulls and texts are "
            "not judged. Make one: hotplate quality profile",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
    bad = len(report.bad) + sum(bool(one.problem) for one in report.checked)
    total = sum(len(one.outcomes) for one in report.checked)
    if bad:
        console.print(
            f"[bold red]not as expected[/]: {bad:,} of {total:,} expectations", highlight=False
        )
    else:
        console.print(f"[bold green]as expected[/]: {total:,} expectations", highlight=False)


def _summary(console: Console, report: Report) -> None:
    from hotplate.quality.outcome import ERROR, FAILED, PASSED, SKIPPED

    table = Table(title=f"Data of {report.project}", title_justify="left")
    table.add_column("view or table", style="bold", overflow="fold")
    for name in ("rows", "passed", "failed", "skipped", "seconds"):
        table.add_column(name, justify="right")
    for one in report.checked:
        failed = one.count(FAILED) + one.count(ERROR)
        table.add_row(
            one.view,
            "unread" if one.rows is None else f"{one.rows:,}",
            f"{one.count(PASSED):,}",
            f"[red]{failed:,}[/]" if failed else "0",
            f"{one.count(SKIPPED):,}",
            f"{one.seconds:.1f}",
        )
    console.print(table)


def _faults(console: Console, report: Report) -> None:
    table = Table(title="What is wrong", title_justify="left", show_lines=True)
    table.add_column("view", style="bold", overflow="fold")
    table.add_column("column", overflow="fold")
    table.add_column("expectation", overflow="fold", ratio=2)
    table.add_column("failing", justify="right")
    table.add_column("examples", overflow="fold", ratio=2)
    for one in report.checked:
        for row in _rows(one):
            table.add_row(*(_plain(cell) for cell in row))
    console.print(table)


def _rows(checked: Checked) -> Iterator[tuple[str, ...]]:
    from hotplate.quality.outcome import percent

    if checked.problem:
        yield checked.view, "", checked.problem, "unread", ""
    for one in checked.bad:
        seen = ", ".join(one.examples) or one.observed
        yield (
            one.view,
            one.column,
            f"{one.says}\n{one.expectation}",
            "" if one.share is None else percent(one.share),
            f"{seen}\n{one.hint}".strip(),
        )


def _plain(cell: str) -> str:
    """Text that Rich does not take for its markup."""
    return cell.replace("[", "\\[")


@contextmanager
def _shown(total: int) -> Iterator[Callable[[str], None]]:
    """Yields what is told the name of each view; shows it where somebody looks on."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    with Console(stderr=True).status("loading Great Expectations") as status:
        done = 0

        def advance(name: str) -> None:
            nonlocal done
            done += 1
            status.update(f"{name} ({done} of {total})")

        yield advance


@contextmanager
def _stopped() -> Iterator[None]:
    """Ctrl-C is one line; what was there before is as it was."""
    try:
        yield
    except KeyboardInterrupt:
        said = "stopped; nothing was written. Name fewer views to be done sooner"
        click.echo(f"hotplate: {said}", err=True)
        raise SystemExit(130) from None


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
