"""`hotplate windows`: what is done with windowed views from the command line."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from hotplate.cli_repo import chdir_option, fail, json_option, named, open_store, told
from hotplate.durations import format_duration, parse_duration
from hotplate.errors import HotplateError

if TYPE_CHECKING:
    from hotplate.operations.explain import Explanation

__all__ = ["windows"]


_from_option = click.option(
    "--from",
    "events",
    type=click.Path(exists=True, path_type=Path),
    help="A Parquet file or folder of all events; the event view's batch source if left out.",
)


@click.group()
def windows() -> None:
    """Time windows over events: fill them, look into them, write them out."""


def _refuse_own_logs(hot: Any, call: str) -> None:
    """A command whose logs are its own would change, or show, what ends with it."""
    if hot.runtime.event_logs.is_in_process:
        fail(
            "online_store.windows.in_process: the event logs are those of each process, and this "
            f"command's own end with it. Call hotplate.of(store).{call}(...) in the process that "
            "serves, or name a server under online_store.windows"
        )


@windows.command()
@click.argument("event_view")
@_from_option
@json_option
@chdir_option
def seed(event_view: str, events: Path | None, as_json: bool, chdir: Path) -> None:
    """Fill the logs of an EVENT_VIEW from history.

    Runs beside whatever reads and writes them. Running it again, or again after it was stopped,
    changes nothing.
    """
    from hotplate import of
    from hotplate.operations.shown import counting

    store = open_store(chdir)
    with told():
        hot = of(store)
        _refuse_own_logs(hot, "seed")
        with named():
            steps = hot.seed(event_view, events)
        last = None
        with counting("seeding") as advance:
            for step in steps:
                advance(step.events - (last.events if last else 0))
                last = step
        hot.runtime.close()
    if last is None:
        return
    if as_json:
        click.echo(json.dumps(asdict(last)))
        return
    click.echo(f"seeded {last.logs:,} logs with {last.events:,} events of {last.total:,} rows")
    if last.kept:
        click.echo(
            f"left {last.kept:,} logs as they are: they hold events that the table lacks", err=True
        )


@windows.command()
@click.argument("event_view")
@json_option
@chdir_option
def retire(event_view: str, as_json: bool, chdir: Path) -> None:
    """Stop writing the events of an EVENT_VIEW to layouts that were there before.

    When every process has read the registry anew (registry.cache_ttl_seconds after `feast apply`).
    """
    from hotplate import of

    store = open_store(chdir)
    with told():
        hot = of(store)
        _refuse_own_logs(hot, "retire")
        with named():
            count = hot.retire(event_view)
        hot.runtime.close()
    said = f"{count} older layouts are not written to any more, and expire"
    click.echo(json.dumps({"retired": count}) if as_json else said)


@windows.command()
@click.argument("view")
@_from_option
@click.option(
    "--to",
    "target",
    type=click.Path(path_type=Path),
    help="A Parquet file, or a folder of them; the view's own batch source if left out.",
)
@click.option(
    "--at",
    type=click.Choice(["event", "after"]),
    default="event",
    show_default=True,
    help="As of each event, without it, or a millisecond later, with it.",
)
@click.option(
    "--max-rows",
    type=click.IntRange(1_000),
    default=500_000,
    show_default=True,
    help="Events held in memory at a time.",
)
@json_option
@chdir_option
def backfill(
    view: str,
    events: Path | None,
    target: Path | None,
    at: Any,
    max_rows: int,
    as_json: bool,
    chdir: Path,
) -> None:
    """Compute the outputs of a windowed VIEW at every event, and write them as a table.

    A run that was stopped goes on where it was, and repeats one part at most.
    """
    from hotplate.operations.shown import counting
    from hotplate.training.backfill import BackfillSettings, Progress, backfill_view

    store = open_store(chdir)
    with told(), counting("computing") as advance:
        done = 0

        def note(progress: Progress) -> None:
            nonlocal done
            if progress.step == "compute":
                advance(progress.done - done)
                done = progress.done

        settings = BackfillSettings(at=at, max_rows=max_rows)
        result = backfill_view(
            store, view, events=events, target=target, settings=settings, progress=note
        )
    if as_json:
        click.echo(json.dumps(asdict(result), default=str))
        return
    click.echo(f"wrote {result.rows:,} rows of {result.events:,} events to {result.target}")


@windows.command()
@click.argument("view")
@click.option("--entity", required=True, metavar="KEY=VALUE[,KEY=VALUE]", help="The entity.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@chdir_option
def explain(view: str, entity: str, as_json: bool, chdir: Path) -> None:
    """Show why a windowed VIEW answers what it answers for an entity.

    Its events and tiles, where each window begins and ends, the outputs, and until when a cached
    row would hold. Shows the entity's events: mind who looks on.
    """
    from hotplate import of

    store = open_store(chdir)
    with told():
        hot = of(store)
        _refuse_own_logs(hot, "explain")
        with named():
            found = hot.explain(view, entity)
        hot.runtime.close()
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        _show(found)


def _show(found: Explanation) -> None:
    from hotplate.operations.explain import shown_moment

    console = Console(width=None if Console().is_terminal else 120)
    console.print(f"{found.view} at {shown_moment(found.t_ms)}: a log of {found.size:,} bytes")
    if found.events:
        names = list(found.events[0].values)
        table = Table("happened", "arrived after", *names, "", title="events", title_justify="left")
        for event in found.events:
            values = ["" if value is None else f"{value}" for value in event.values.values()]
            late = f"{event.arrival_ms - event.ts_ms:,} ms"
            table.add_row(shown_moment(event.ts_ms), late, *values, event.state)
        console.print(table)
    if found.tiles:
        names = [f"sum of {name}" for name in found.tiles[0].sums]
        table = Table("from", "to", "events", *names, title="tiles", title_justify="left")
        for tile in found.tiles:
            sums = [f"{total}" for total in tile.sums.values()]
            table.add_row(
                shown_moment(tile.start_ms), shown_moment(tile.end_ms), f"{tile.events:,}", *sums
            )
        console.print(table)
    table = Table("window", "hop", "from", "to", "events", title="windows", title_justify="left")
    for edge in found.edges:
        window = edge.window
        span = _length(window.span_ms)
        if window.delay_ms:
            span += f", until {_length(window.delay_ms)} ago"
        hop = "exact" if window.hop_ms == 1 else _length(window.hop_ms)
        table.add_row(
            span, hop, shown_moment(edge.start_ms), shown_moment(edge.end_ms), f"{edge.events:,}"
        )
    console.print(table)
    table = Table("output", "value", title="outputs", title_justify="left")
    for name, value in found.outputs.items():
        table.add_row(name, "null" if value is None else f"{value:,}")
    console.print(table)
    _show_cache(console, found)


def _show_cache(console: Console, found: Explanation) -> None:
    from hotplate.operations.explain import shown_moment

    if found.cache == "never":
        console.print("cache: never; every read computes it")
        return
    if found.valid_until_ms is None:
        console.print("nothing but another event changes it")
    else:
        left_s = (found.valid_until_ms - found.t_ms) / 1_000
        console.print(
            f"changes by itself in {left_s:,.3f} s, at {shown_moment(found.valid_until_ms)}: "
            f"{found.because}"
        )
    if found.held is None:
        console.print(f"cache: {found.cache}; this process holds no row of it")
    elif found.held.expires_in_s < 0:
        console.print(f"cache: {found.cache}; the row that this process holds is not served")
    else:
        console.print(
            f"cache: {found.cache}; this process serves its row for another "
            f"{found.held.expires_in_s:,.3f} s"
        )


def _length(ms: int) -> str:
    return format_duration(ms * 1_000_000)


def _seconds(context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        return parse_duration(value) / 1e9
    except (ValueError, HotplateError):
        wrong = f"{value!r} is no duration: write 500ms, 1s or 2m"
        raise click.BadParameter(wrong, context, parameter) from None


@windows.command()
@click.argument("event_view")
@click.option("--stream", required=True, metavar="KEY", help="The stream to follow.")
@click.option("--group", default="hotplate", show_default=True, help="The consumer group.")
@click.option("--consumer", help="This consumer's name in the group.  [default: one of its own]")
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    default=500,
    show_default=True,
    help="Entries read at once.",
)
@click.option(
    "--block",
    callback=_seconds,
    metavar="DURATION",
    default="1s",
    show_default=True,
    help="How long to wait for entries, and so how long stopping may take.",
)
@click.option(
    "--claim-after",
    callback=_seconds,
    metavar="DURATION",
    default="1m",
    show_default=True,
    help="Take over what a consumer was handed this long ago and has not finished.",
)
@click.option("--start", default="0", show_default=True, help="Where a new group begins: 0, $, ID.")
@click.option("--once", is_flag=True, help="End when nothing is left.")
@click.option("--dead", metavar="KEY", help="The stream for dead letters.  [default: KEY:dead]")
@click.option(
    "--dead-max",
    type=click.IntRange(1),
    default=100_000,
    show_default=True,
    help="About how many dead letters are kept.",
)
@click.option(
    "--keep-dropped", is_flag=True, help="Late and other dropped events become dead letters."
)
@click.option("--refuse-unknown", is_flag=True, help="Entries with unknown columns are no events.")
@click.option(
    "--url",
    "connection_string",
    metavar="HOST:PORT[,...]",
    help="The stream's server as Feast writes it; that of the event logs if left out.",
)
@click.option(
    "--redis-type",
    type=click.Choice(["redis", "redis_cluster", "redis_sentinel"]),
    default="redis",
    show_default=True,
    help="What --url names.",
)
@click.option(
    "--sentinel-master",
    default="mymaster",
    show_default=True,
    help="The name by which sentinels know the primary.",
)
@click.option("--json", "as_json", is_flag=True, help="A line of JSON now and then, on stdout.")
@chdir_option
def consume(
    event_view: str,
    stream: str,
    block: float,
    claim_after: float,
    as_json: bool,
    chdir: Path,
    **rest: Any,
) -> None:
    """Follow a Redis stream, and bring its entries into the logs of EVENT_VIEW, each once.

    Entries hold the columns of the batch source as text, or one field `json` with an object. Ctrl-C
    and SIGTERM end it after the batch in hand, with exit code 0; what is killed in any other way
    loses and repeats nothing.
    """
    from hotplate import of
    from hotplate.operations.consume import ConsumerSettings
    from hotplate.operations.consume_shown import ConsumeReport

    store = open_store(chdir)
    report = ConsumeReport(as_json=as_json)
    with told():
        settings = ConsumerSettings(block_s=block, claim_after_s=claim_after, **rest)
        hot = of(store)
        with named():
            consumer = hot.consume(event_view, stream, settings)
        try:
            with _stopped_by_signals(consumer.stop):
                for so_far in consumer:
                    report.note(so_far)
        finally:
            report.end()
            hot.runtime.close()


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop it; a second one ends the process as it always does."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def hear(number: int, _: Any) -> None:
        for each, handler in before.items():
            signal.signal(each, handler)
        stop()

    for number in numbers:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
