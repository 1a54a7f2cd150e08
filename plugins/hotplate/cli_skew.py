"""`hotplate skew` and `hotplate drift`: served against training features, now against then."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotplate.cli_repo import chdir_option, open_store, told
from hotplate.durations import parse_duration
from hotplate.sizes import parse_share

if TYPE_CHECKING:
    import pandas as pd

    from hotplate.skew import DriftReport, ServedLog, SkewReport

__all__ = ["drift", "say_drift", "say_skew", "skew"]

_FILE = click.Path(path_type=Path, exists=True)
_HTML = click.Path(path_type=Path, dir_okay=False)
_EXAMPLES = 2  # of a feature
_SHOWN = 6  # features that more is said of: those with most unexplained values


def _share(context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        return parse_share(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def _seconds(context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        return parse_duration(value) / 1e9
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def _named(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    if any(not (name and text) for name, _, text in pairs):
        raise click.BadParameter("write NAME=VALUE", context, parameter)
    return {name: text for name, _, text in pairs}


def _lags(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    named = [value if "=" in value else f"={value}" for value in values]
    pairs = [value.partition("=") for value in named]
    return {name: _seconds(context, parameter, text) for name, _, text in pairs}


@click.command()
@click.option(
    "--served",
    required=True,
    metavar="FILE|URL",
    help="Parquet, CSV, JSON lines; or a database, as SQLAlchemy names it.",
)
@click.option("--table", default="", help="Of the database.")
@click.option("--query", default="", metavar="SQL", help="A SELECT, in the place of a table.")
@click.option("--service", default="", help="The feature service that was served.")
@click.option(
    "--feature",
    "features",
    multiple=True,
    metavar="VIEW:NAME",
    help="In its place: single features.",
)
@click.option(
    "--at",
    default="event_timestamp",
    show_default=True,
    metavar="COLUMN",
    help="The instant of each decision: timestamps, ISO 8601 or ms since 1970.",
)
@click.option(
    "--read-at", default="", metavar="COLUMN", help="When it was decided, where that is later."
)
@click.option(
    "--inputs",
    default="",
    metavar="COLUMN",
    help="Features as a JSON object, or as a list; where they are no columns.",
)
@click.option(
    "--names", default="", metavar="NAME,NAME", help="What a list of --inputs holds, in its order."
)
@click.option(
    "--age",
    "ages",
    multiple=True,
    callback=_named,
    metavar="VIEW=COLUMN",
    help="How old the features of a view were, seconds.",
)
@click.option(
    "--ages",
    "ages_json",
    default="",
    metavar="COLUMN",
    help="The same as a JSON object, view to seconds.",
)
@click.option("--layer", default="", metavar="COLUMN", help="What answered, to count by.")
@click.option(
    "--limit",
    default="0%",
    show_default=True,
    callback=_share,
    metavar="SHARE",
    help="Unexplained values of a feature that are accepted.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=20_000,
    show_default=True,
    help="Of the log, drawn evenly; 0 for all.",
)
@click.option(
    "--read-within",
    default="1m",
    show_default=True,
    callback=_seconds,
    metavar="TIME",
    help="How much later than its instant a decision may read.",
)
@click.option(
    "--lag",
    "lags",
    multiple=True,
    callback=_lags,
    metavar="[VIEW=]TIME",
    help="What a row or an event takes to come online.  [default: 1s]",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1),
    default=0.0,
    metavar="SHARE",
    help="Of a number that a rounded log may be off.",
)
@click.option("--ids", is_flag=True, help="Show whose the examples are.")
@click.option("--html", type=_HTML, help="Write a page with plots.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@chdir_option
def skew(
    served: str,
    table: str,
    query: str,
    service: str,
    features: tuple[str, ...],
    lags: Mapping[str, float],
    ids: bool,
    html: Path | None,
    as_json: bool,
    chdir: Path,
    **given: Any,
) -> None:
    """Compare features as they were served with what training has for the same instants.

    Every value is the same, or explained (served from a cache within its age, read a moment later,
    written afterwards), or unexplained. Exits with 1 where more than --limit of a feature is
    unexplained, or a feature is not in the log.
    """
    from hotplate.skew import SkewSpec, check_skew, write_page

    if bool(service) == bool(features):
        raise click.UsageError("name what was served with --service, or with --feature")
    if ("://" in served) != bool(table or query) or (table and query):
        raise click.UsageError("a database is read with --table or --query, a file with neither")
    spec = SkewSpec(
        limit=given["limit"],
        rows=given["rows"],
        read_within_s=given["read_within"],
        lag_s=lags.get("", SkewSpec.lag_s),
        lags_s={view: lag for view, lag in lags.items() if view},
        tolerance=given["tolerance"],
    )
    store = open_store(chdir)
    with told():
        log = _log(served, table, query, given)
        report = check_skew(store, service or list(features), log, spec)
        if html is not None:
            write_page(html, skew=report, words=_source(served, table))
    examples = _owners(report, log.frame, store) if ids else {}
    if as_json:
        numbers = report.numbers()
        for one in numbers["features"]:
            for example in one["examples"]:
                example |= {"entity": examples[example["row"]]} if ids else {}
        click.echo(json.dumps(numbers, indent=2, default=str))
    else:
        say_skew(report, examples)
    if html is not None:
        click.echo(f"Page: {html.resolve().as_uri()}", err=as_json)
    raise SystemExit(0 if report.is_fine else 1)


def _log(served: str, table: str, query: str, given: Mapping[str, Any]) -> ServedLog:
    """The log as a table, its JSON unpacked."""
    import pandas as pd

    from hotplate.skew import ServedLog
    from hotplate.skew.tables import read_file, unpacked

    if "://" in served:
        from hotplate.sources.tables import read_table

        frame = pd.DataFrame(read_table(served, table, query))
    else:
        frame = read_file(Path(served))
    if given["inputs"]:
        names = [name.strip() for name in given["names"].split(",") if name.strip()]
        frame = unpacked(frame, given["inputs"], names)
    ages = dict(given["ages"])
    if given["ages_json"]:
        held = unpacked(
            frame[[given["ages_json"]]] if given["ages_json"] in frame else frame,
            given["ages_json"],
        )
        named = {view: f"age of {view}" for view in held.columns}
        frame = pd.concat([frame, held.rename(columns=named)], axis=1)
        ages = {**named, **ages}
    return ServedLog(frame, given["at"], given["read_at"], ages, given["layer"])


def _source(served: str, table: str) -> str:
    if "://" not in served:
        return Path(served).name
    return f"table {table}" if table else "a query"


def _owners(report: SkewReport, frame: pd.DataFrame, store: Any) -> dict[int, dict[str, Any]]:
    """Whose the rows of the examples are."""
    keys = {key for entity in store.list_entities() for key in [entity.join_key]}
    names = [name for name in frame.columns if name in keys]
    rows = {example["row"] for one in report.features for example in one.examples}
    return {row: frame[names].iloc[[row]].to_dict("records")[0] for row in rows}


def say_skew(report: SkewReport, owners: Mapping[int, Mapping[str, Any]] | None = None) -> None:
    """Print what a comparison found.

    Args:
        report: what was found.
        owners: row -> its entity, where ids may be shown.
    """
    from rich.console import Console
    from rich.table import Table

    from hotplate.skew.compare import EXPLAINED

    used = [name for name in EXPLAINED if any(one.counts[name] for one in report.features)]
    shown = Table(box=None, pad_edge=False, header_style="dim")
    shown.add_column("feature", overflow="fold")
    for name in ("same", *used, "unexplained"):
        shown.add_column(name, justify="right")
    for one in report.features:
        bad = f"{one.unexplained:,}"
        if one.unexplained:
            bad = f"[red]{bad} ({one.unexplained_share:.2%})[/red]"
        counts = (f"{one.counts[name]:,}" for name in used)
        shown.add_row(one.name, f"{one.same:,}", *counts, bad)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(shown)
    for one in sorted(report.features, key=lambda one: -one.unexplained)[:_SHOWN]:
        for hint in one.hints:
            click.echo(f"{one.name}: {hint}")
        for example in one.examples[:_EXAMPLES]:
            whose = (owners or {}).get(example["row"], {})
            said = "".join(f", {name} {value}" for name, value in whose.items())
            values = f"served {example['served']}, training {example['training']}"
            click.echo(f"{one.name}: row {example['row']:,}{said}: {values}")
    for view, why in report.left_out.items():
        click.echo(f"{view} was not compared: {why}")
    for name in report.not_logged:
        click.echo(f"{name} is not in the log")
    verdict = "all is equal or explained" if report.is_fine else "not all is equal or explained"
    if report.is_fine and any(one.unexplained for one in report.features):
        verdict = f"no feature has more than {report.limit:.2%} unexplained"
    click.echo(f"{report.rows:,} decisions of {report.logged:,} compared: {verdict}")


@click.command()
@click.option(
    "--reference",
    required=True,
    type=_FILE,
    help="What the model was trained on: Parquet, CSV or JSON lines.",
)
@click.option("--current", required=True, type=_FILE, help="What it is given now.")
@click.option(
    "--feature",
    "features",
    multiple=True,
    metavar="NAME",
    help="One of them; all columns of the reference if left out.",
)
@click.option(
    "--owner",
    "owners",
    multiple=True,
    callback=_named,
    metavar="NAME=COLUMN",
    help="Whom the rows of a feature belong to (*=card_id for all): rows of one count for less.",
)
@click.option(
    "--level",
    default="1%",
    show_default=True,
    callback=_share,
    metavar="SHARE",
    help="How often anything may be called moved where nothing is.",
)
@click.option(
    "--psi",
    type=click.FloatRange(0),
    default=0.25,
    show_default=True,
    help="From which a number has drifted; it has shifted from 0.4 of that on.",
)
@click.option("--html", type=_HTML, help="Write a page with plots.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def drift(
    reference: Path,
    current: Path,
    features: tuple[str, ...],
    owners: Mapping[str, str],
    level: float,
    psi: float,
    html: Path | None,
    as_json: bool,
) -> None:
    """Compare how features are distributed now with how they were in training.

    A feature has moved where a measure is beyond what matters and beyond what chance does at so
    many rows. Exits with 1 where one has drifted, or is missing.
    """
    from hotplate.skew import DriftSpec, check_drift, write_page
    from hotplate.skew.tables import read_file

    if not 0 < level < 1:
        raise click.UsageError("--level is a share between 0 and 1, such as 1%")
    spec = DriftSpec(level=level, psi_shifted=0.4 * psi, psi_drifted=psi, owners=owners)
    with told():
        tables = read_file(reference), read_file(current)
        report = check_drift(*tables, list(features) or None, spec)
        if html is not None:
            write_page(html, drift=report, words=f"{current.name} against {reference.name}")
    if as_json:
        click.echo(json.dumps(report.numbers(), indent=2))
    else:
        say_drift(report)
    if html is not None:
        click.echo(f"Page: {html.resolve().as_uri()}", err=as_json)
    raise SystemExit(0 if report.is_fine else 1)


def say_drift(report: DriftReport) -> None:
    """Print how features have moved."""
    from rich.console import Console
    from rich.table import Table

    colors = {"drifted": "red", "missing": "red", "shifted": "yellow", "too few rows": "yellow"}
    shown = Table(box=None, pad_edge=False, header_style="dim")
    shown.add_column("feature", overflow="fold")
    shown.add_column("verdict")
    for name in ("PSI", "KS", "JS", "nulls", "outside"):
        shown.add_column(name, justify="right")
    for one in report.features:
        color = colors.get(one.verdict, "green")
        cells = []
        for name in ("psi", "ks", "js"):
            found = one.measure(name)
            cells.append(
                "" if found is None else f"{found.value:.3f} [dim]({found.chance:.3f})[/dim]"
            )
        nulls = f"{one.nulls[0]:.1%} > {one.nulls[1]:.1%}" if any(one.nulls) else ""
        outside = f"{one.outside:.1%}" if one.outside else ""
        shown.add_row(one.name, f"[{color}]{one.verdict}[/{color}]", *cells, nulls, outside)
    Console(width=None if sys.stdout.isatty() else 160).print(shown)
    drifted = len(report.of("drifted", "missing"))
    click.echo(
        f"{report.rows[1]:,} rows against {report.rows[0]:,}: {drifted} of {len(report.features)} "
        f"features have drifted, {len(report.of('shifted'))} shifted; in brackets what chance does"
    )
