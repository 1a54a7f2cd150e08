"""`hotplate warm`: reads ahead what will be asked for."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

from hotplate.cli_repo import (
    chdir_option,
    fail,
    named,
    open_store,
    per_second,
    state_option,
    told,
)
from hotplate.durations import format_duration
from hotplate.errors import ServerError
from hotplate.imports import imported
from hotplate.pace import giving_way
from hotplate.sizes import format_bytes, parse_share

if TYPE_CHECKING:
    from hotplate.operations.warm import Coverage, WarmPlan
    from hotplate.warming.warmer import WarmingRate, WarmProgress

__all__ = ["warm"]

_REACH_S: Final = 5.0
_CHOOSES: Final = ("log", "top", "coverage", "days", "hours", "ids", "plot")
"""Options that say what is read, or show it; a warming that goes on has chosen that before."""


def _share(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        found = parse_share(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    if not 0 < found <= 1:
        raise click.BadParameter(f"{value!r}: write 90%", context, parameter)
    return found


def _part(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", value)
    which, of = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= which <= of:
        raise click.BadParameter(f"{value!r}: write 1/2, and 2/2 for the other", context, parameter)
    return which - 1, of


def _choose_nothing() -> None:
    """See that no option chooses what is read.

    Raises:
        click.UsageError: some do; the message says which.
    """
    context = click.get_current_context()
    said = [
        f"--{name}"
        for name in _CHOOSES
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if said:
        raise click.UsageError(
            f"--resume goes on with what was chosen before: leave out {', '.join(said)}, or begin "
            "anew without --resume"
        )


def _function(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> Callable[..., object] | None:
    if value is None:
        return None
    try:
        return imported(value)
    except (ImportError, TypeError) as error:
        raise click.BadParameter(
            f"{error}: write package.module:function of an installed package", context, parameter
        ) from None


@click.command()
@click.argument("groups", nargs=-1, metavar="[GROUP]...")
@click.option(
    "--log",
    type=click.Path(file_okay=False, path_type=Path),
    help="The traffic log's folder; that of online_store.traffic if left out.",
)
@click.option("--top", type=click.IntRange(min=1), help="So many entities of a kind at the most.")
@click.option(
    "--coverage",
    callback=_share,
    default="90%",
    show_default=True,
    metavar="SHARE",
    help="Of the reads that the chosen entities make.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 366),
    default=7,
    show_default=True,
    help="Of the log that are looked at, up to now.",
)
@click.option(
    "--hours",
    type=click.IntRange(1, 24),
    default=3,
    show_default=True,
    help="Of day that lie ahead: their reads count in full, others a tenth.",
)
@click.option(
    "--peak",
    callback=per_second,
    default="1000/s",
    show_default=True,
    metavar="N/s",
    help="Rows that the source serves at its peak; warming takes 5% of that, and grows to --most.",
)
@click.option(
    "--most",
    callback=_share,
    default="20%",
    show_default=True,
    metavar="SHARE",
    help="Of the peak, to which the rate rises.",
)
@click.option(
    "--part",
    callback=_part,
    default="1/1",
    metavar="K/N",
    help="The share of one of N warmers that run at once.",
)
@click.option(
    "--ids",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Entities in CSV, Parquet or JSON lines, for a log whose ids are hashed.",
)
@click.option(
    "--score",
    callback=_function,
    metavar="MODULE:FUNCTION",
    help="Called with the store and entities once their features are there, to warm outputs.",
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="A page of coverage.")
@click.option("--dry-run", is_flag=True, help="Say what would be read, and stop.")
@click.option("--json", "as_json", is_flag=True, help="What is chosen and done, for machines.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the warming of the same GROUPs and --part that was stopped.",
)
@state_option
@chdir_option
def warm(
    groups: tuple[str, ...],
    log: Path | None,
    top: int | None,
    coverage: float,
    days: int,
    hours: int,
    peak: int,
    most: float,
    part: tuple[int, int],
    ids: tuple[Path, ...],
    score: Callable[..., object] | None,
    plot: Path | None,
    dry_run: bool,
    as_json: bool,
    resume: bool,
    state: Path | None,
    chdir: Path,
) -> None:
    """Read into the shared tier what a traffic log says will be asked for.

    The most valuable entities first, at a rate that the source does not notice: from 5% of --peak
    up to --most, less when it or live traffic of this host (online_store.metrics) slows down, with
    longer and longer pauses when it fails. Ctrl-C stops it; --resume goes on. Without a shared tier
    a process can only warm itself: see `preload`.
    """
    from hotplate import of
    from hotplate.operations.cursors import state_folder
    from hotplate.operations.warm import Warming, WarmState
    from hotplate.warming.warmer import WarmingRate

    if resume:
        _choose_nothing()
    store = open_store(chdir)
    with told():
        hot = of(store)
        runtime = hot.runtime
        kept = WarmState(state or state_folder(), store.project, groups, part)
        try:
            rate = WarmingRate(peak, min(0.05, most), most)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        with named():
            rehearsal = hot.rehearsal(groups)
        if resume:
            plan = kept.load(rehearsal)
        else:
            plan = _planned(hot, store, rehearsal, log, top, coverage, days, hours, part, ids)
            if plot is not None:
                _draw(plan, plot)
        if not as_json:
            _show(plan, rate, rehearsal.shortest_ttl_ns)
        if dry_run:
            if as_json:
                click.echo(json.dumps(_said(plan, None)))
            return
        shared = runtime.shared()
        if shared is None:
            fail(
                "nothing would keep what it reads: this deployment has no shared tier, and the "
                "memory of this command ends with it. Name a server under online_store.shared "
                "(with tier: true where the wrapped store is Redis), or let each process warm "
                "itself: online_store.preload, or hotplate.of(store).warm(...)"
            )
        if not plan.reads and resume:
            fail(
                "nothing is left to be read: that warming is done, or its views are not cached any "
                "more. Begin one without --resume"
            )
        if not plan.reads:
            fail(f"nothing is to be read: {plan.why_nothing(part, has_ids=bool(ids))}")
        try:
            shared.reach(_REACH_S)
        except ServerError as error:
            fail(f"the shared tier cannot keep what would be read: {error}")
        if not resume:
            kept.keep(plan)
        scored = None if score is None else partial(score, store)
        warming = Warming(rehearsal, rate, _watched(runtime), score=scored, shared=shared)
        last = _run(warming, plan, kept)
        too_large = shared.too_large
        runtime.close()
    if too_large:
        click.echo(f"{too_large:,} rows are too large for the shared tier", err=True)
    if as_json:
        click.echo(json.dumps(_said(plan, last)))
    elif last is not None:
        click.echo(f"read {last.entities:,} entities, {last.reads:,} rows at the most")


def _watched(runtime: Any) -> Callable[[], bool]:
    """What says whether live traffic suffers, where the deployment counts what it does."""
    metrics = runtime.settings.metrics
    if metrics is None:
        return lambda: False
    from hotplate.telemetry.live import LiveTraffic

    return LiveTraffic(
        Path(metrics.folder), runtime.project, runtime.engine.source_seconds.snapshot
    ).suffers


def _said(plan: WarmPlan, last: WarmProgress | None) -> dict[str, Any]:
    """For machines: what is chosen, and what is done."""
    chosen = {name: _numbers(one) for name, one in plan.coverage.items()}
    done = None
    if last is not None:
        done = {"entities": last.entities, "reads": last.reads, "errors": last.errors}
    return {"chosen": chosen, "reads": plan.reads, "done": done}


def _planned(
    hot: Any,
    store: Any,
    rehearsal: Any,
    log: Path | None,
    top: int | None,
    coverage: float,
    days: int,
    hours: int,
    part: tuple[int, int],
    ids: tuple[Path, ...],
) -> WarmPlan:
    from hotplate.operations.shown import counting
    from hotplate.operations.warm import listed, plan_of
    from hotplate.warming.selection import SelectionSpec, select

    traffic = hot.runtime.traffic
    if log is None:
        if traffic is None:
            fail(
                "there is no traffic log: name its folder with --log, or write "
                "online_store.traffic: {folder: ...} and let the deployment run for a day"
            )
        log = traffic.settings.folder
    spec = SelectionSpec(datetime.now(UTC), days, hours)
    seen = 0
    with counting("reading the log") as advance:

        def progress(done: int, of: int) -> None:
            nonlocal seen
            advance(done - seen)
            seen = done

        chosen = select(log, spec, progress)
    if not chosen:
        fail(f"{log}: nothing was read in the last {days} days")
    return plan_of(
        rehearsal,
        chosen,
        store.project,
        top=top,
        share=coverage,
        part=part,
        ids=listed(ids) if ids else None,
    )


def _show(plan: WarmPlan, rate: WarmingRate, shortest_ttl_ns: int) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    for entity, one in plan.coverage.items():
        views = ", ".join(one.kind.views)
        console.print(
            f"[bold]{entity}[/bold]: {one.logged:,} entities, {one.reads:,.0f} reads of {views}",
            highlight=False,
            soft_wrap=True,
        )
        table = Table()
        for name in ("of the reads", "entities", "memory"):
            table.add_column(name, justify="right")
        for share, count, size in one.steps():
            table.add_row(f"{share:.0%}", f"{count:,}", format_bytes(size))
        console.print(table)
        chosen = f"chosen: {one.taken:,} entities, {one.share:.1%} of the reads"
        if one.unusable:
            chosen += (
                f"; {one.unusable:,} of them cannot be read: their ids are hashed and in no --ids "
                "list, or of another type than the views declare"
            )
        if one.uncounted:
            chosen += f"; no count is too low by more than {one.uncounted:,.0f} reads"
        console.print(chosen, highlight=False, soft_wrap=True)
    if plan.reads:
        takes_ns = max(1, round(plan.reads / rate.limit)) * 10**9
        said = (
            f"{plan.reads:,} rows to read, at {rate.at(0):,.0f} to {rate.limit:,.0f} a second: "
            f"{format_duration(takes_ns)} at the least"
        )
        if takes_ns > shortest_ttl_ns:
            shortest = format_duration(shortest_ttl_ns)
            said += (
                f". Some live for {shortest} only: the first of them expire before the last are "
                "read. Warm fewer (--top, --coverage, GROUP), or state a higher peak"
            )
        console.print(said, highlight=False, soft_wrap=True)


def _numbers(one: Coverage) -> dict[str, Any]:
    return {
        "entities": one.logged,
        "reads": one.reads,
        "views": list(one.kind.views),
        "chosen": one.taken,
        "share": one.share,
        "unusable": one.unusable,
        "uncounted": one.uncounted,
        "steps": [
            {"share": share, "entities": count, "bytes": size} for share, count, size in one.steps()
        ],
    }


def _draw(plan: WarmPlan, path: Path) -> None:
    try:
        import plotly.graph_objects as go
    except ImportError:
        fail("a plot needs plotly: pip install 'feast-hotplate[demo]'")
    figure = go.Figure()
    for entity, one in plan.coverage.items():
        # a line of a thousand points says as much as one of a million
        places = sorted({*range(0, len(one.shares), max(1, len(one.shares) // 1_000))})
        figure.add_scatter(
            x=[place + 1 for place in places],
            y=[float(one.shares[place]) for place in places],
            name=entity,
            customdata=[[format_bytes((place + 1) * one.kind.row_bytes)] for place in places],
            hovertemplate="%{x:,} entities: %{y:.1%} of the reads, %{customdata[0]}",
        )
        if one.taken:
            figure.add_scatter(
                x=[one.taken],
                y=[one.share],
                mode="markers",
                name=f"{entity}: chosen",
                marker={"size": 12, "symbol": "diamond"},
            )
    figure.update_layout(
        title="What the hottest entities make of the reads",
        xaxis={"title": "entities", "type": "log"},
        yaxis={"title": "share of the reads", "tickformat": ".0%", "range": [0, 1.02]},
        template="plotly_white",
    )
    try:
        figure.write_html(path, include_plotlyjs=True, config={"plotlyServerURL": ""})
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")
    click.echo(f"Plot: {path.resolve().as_uri()}", err=True)


def _run(warming: Any, plan: WarmPlan, kept: Any) -> WarmProgress | None:
    from hotplate.operations.shown import counting

    last: WarmProgress | None = None
    of_features = len(warming.batches(plan))
    total = of_features * (2 if warming.has_outputs else 1)
    try:
        with giving_way(), counting("warming (batches)", total) as advance:
            for progress in warming.run(plan, kept):
                if progress.stage == "features":
                    last = progress
                advance(1)
    except KeyboardInterrupt:
        done = last.batches if last else 0
        if warming.has_outputs and done == of_features:
            fail("stopped while outputs were warmed: all features are there; begin again for these")
        fail(f"stopped after {done:,} of {total:,} batches: go on with --resume")
    return last
