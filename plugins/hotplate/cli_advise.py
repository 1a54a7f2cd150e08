"""`hotplate advise`: how long to keep what, from what was read and what changed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from hotplate.cli_repo import chdir_option, fail, named, open_store, told
from hotplate.clock import SYSTEM_CLOCK
from hotplate.durations import NO_LIMIT_NS, format_duration, parse_duration
from hotplate.sizes import format_bytes, parse_bytes, parse_share

if TYPE_CHECKING:
    from hotplate.advice.predictions import GroupForecast, Prediction
    from hotplate.advice.recommendation import Recommendation
    from hotplate.operations.advise import Advice, Advising, Collector

__all__ = ["advise"]


def _durations(context: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    try:
        return [parse_duration(text.strip()) for text in value.split(",") if text.strip()]
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def _duration(context: click.Context, parameter: click.Parameter, value: str) -> int:
    try:
        found = parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    if found >= NO_LIMIT_NS:
        raise click.BadParameter(f"{value!r} has no end", context, parameter)
    return found


def _sizes(context: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    try:
        return [parse_bytes(text.strip()) for text in value.split(",") if text.strip()]
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def _share(context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        found = parse_share(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    if not 0 <= found <= 1:
        raise click.BadParameter(f"{value!r}: write 0.1%", context, parameter)
    return found


def _moment(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return _ago(context, parameter, value)
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1e6)


def _ago(context: click.Context, parameter: click.Parameter, value: str) -> int:
    try:
        ago_ns = parse_duration(value)
    except ValueError:
        ago_ns = NO_LIMIT_NS
    if ago_ns >= NO_LIMIT_NS:
        hint = f"{value!r}: write 2026-01-31T12:00:00Z, or 2h for two hours ago"
        raise click.BadParameter(hint, context, parameter)
    return (SYSTEM_CLOCK.wall_ns() - ago_ns) // 1_000


def _row_bytes(
    context: click.Context, parameter: click.Parameter, value: Sequence[str]
) -> dict[str, int]:
    found = {}
    for text in value:
        name, _, size = text.rpartition("=")
        if not name or not size.isdigit() or not int(size):
            raise click.BadParameter(f"{text!r}: write GROUP=400", context, parameter)
        found[name] = int(size)
    return found


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C is a line and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("hotplate: stopped; nothing was changed", err=True)
        raise SystemExit(130) from None


@click.command()
@click.argument("groups", nargs=-1, metavar="[GROUP]...")
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    help="The traffic log's folder; that of online_store.traffic if left out.",
)
@click.option(
    "--changes",
    multiple=True,
    metavar="[NAME=]PATH",
    help="When rows changed: the folder of a change log, or a CSV or Parquet file with a column a "
    "join key and one of timestamps, of the views that have these, or of the group or view NAME. "
    "Left out: the change log in the traffic log's folder, where there is one.",
)
@click.option("--changed-at", metavar="COLUMN", default="", help="That of the timestamps.")
@click.option(
    "--changes-from-source",
    is_flag=True,
    help="Every row of a view's own offline table is a change.",
)
@click.option("--ttls", callback=_durations, default="", metavar="TTL,...", help="To try.")
@click.option(
    "--sizes",
    callback=_sizes,
    default="",
    metavar="BYTES,...",
    help="Memory to try, besides that of the deployment.",
)
@click.option(
    "--stale-share",
    callback=_share,
    default="0.1%",
    show_default=True,
    metavar="SHARE",
    help="Of a group's answers that may be stale.",
)
@click.option(
    "--stale-age",
    callback=_duration,
    default="30s",
    show_default=True,
    metavar="TIME",
    help="No answer may be stale for longer.",
)
@click.option(
    "--since", callback=_moment, metavar="TIME", help="Leave out what was read before; 2h: ago."
)
@click.option(
    "--until", callback=_moment, metavar="TIME", help="Leave out what was read later; 2h: ago."
)
@click.option(
    "--skip",
    callback=_duration,
    default="0s",
    show_default=True,
    metavar="TIME",
    help="The first part of the log fills memory and does not count.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    help="So many processes instead of those that wrote the log.",
)
@click.option(
    "--entities",
    type=click.IntRange(1_000),
    default=200_000,
    show_default=True,
    help="To replay; of more, a random part.",
)
@click.option(
    "--row-bytes",
    multiple=True,
    callback=_row_bytes,
    metavar="GROUP=BYTES",
    help="What one row takes in memory, where it holds texts.",
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="A page of plots.")
@click.option(
    "--ttl-map",
    "ttl_map",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The TTL map as recommended, for feature_store.yaml.",
)
@click.option("--json", "as_json", is_flag=True, help="All that was found, for machines.")
@chdir_option
def advise(
    groups: tuple[str, ...],
    log: Path | None,
    changes: tuple[str, ...],
    changed_at: str,
    changes_from_source: bool,
    ttls: list[int],
    sizes: list[int],
    stale_share: float,
    stale_age: int,
    since: int | None,
    until: int | None,
    skip: int,
    workers: int | None,
    entities: int,
    row_bytes: dict[str, int],
    html: Path | None,
    ttl_map: Path | None,
    as_json: bool,
    chdir: Path,
) -> None:
    """Say how long to keep the rows of GROUPs, from what was read and what changed.

    Replays a traffic log of all requests (online_store.traffic: {sample: 100%}) under other ttls
    and sizes of memory, and says for each group what is answered from memory, how often the source
    is read, and how many answers are stale. Recommends the ttl that reads the source least within
    the limits. Changes nothing. Ctrl-C stops it with exit code 130.
    """
    with told(), _stoppable():
        from hotplate import of
        from hotplate.advice.recommendation import Limits
        from hotplate.operations.advise import Advising, AdvisingSpec

        store = open_store(chdir)
        advising = Advising(store, of(store).runtime)
        spec = AdvisingSpec(
            log,
            groups,
            ttls,
            sizes,
            _places(advising, changes, changed_at, has_tables=changes_from_source),
            Limits(stale_share, stale_age / 1e9),
            row_bytes,
            since,
            until,
            skip,
            workers,
            entities,
        )
        with named():
            found = _found(advising, spec)
        if html is not None:
            _write(html, _page(found), "Page")
        if ttl_map is not None:
            _write(ttl_map, advising.ttl_map(found), "TTL map")
    if as_json:
        click.echo(json.dumps(_said(found), indent=2))
    else:
        _show(found)


def _places(
    advising: Advising, changes: tuple[str, ...], moment: str, *, has_tables: bool
) -> list[Collector]:
    from hotplate.operations.changed import LogFolder, NamedFile

    found: list[Collector] = []
    for text in changes:
        name, path = "", Path(text)
        if not path.exists() and "=" in text:
            name, _, rest = text.partition("=")
            path = Path(rest)
        if not path.exists():
            fail(f"{path}: there is no such file or folder of changes")
        found.append(LogFolder(path) if path.is_dir() else NamedFile(path, name, moment))
    if has_tables:
        found.append(advising.own_tables())
    return found


def _found(advising: Advising, spec: Any) -> Advice:
    from hotplate.operations.shown import counting

    _, files = advising.files(spec)
    with counting("replaying the log", 2 * files.size) as advance:
        return advising.run(spec, advance)


def _write(path: Path, text: str, what: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")
    click.echo(f"{what}: {path.resolve().as_uri()}", err=True)


def _page(found: Advice) -> str:
    try:
        from hotplate.advice.page import page
    except ImportError:
        fail("a page needs plotly: pip install 'feast-hotplate[demo]'")
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    made = f"{now} · {found.log}"
    return page(found.replayed, found.recommended, found.room, found.limits, found.notes, made)


# -- what is shown --------------------------------------------------------------------------------


def _show(found: Advice) -> None:
    console = Console(width=None if sys.stdout.isatty() else 140)
    replayed = found.replayed
    span = format_duration(max(1, round(replayed.seconds)) * 10**9)
    console.print(
        f"{replayed.survey.requests:,} requests of {replayed.processes:,} "
        f"process{'' if replayed.processes == 1 else 'es'} in {span}; memory "
        f"{format_bytes(found.room.max_bytes)} a process; at most {found.limits}",
        highlight=False,
        soft_wrap=True,
    )
    for name, forecast in replayed.groups.items():
        console.print(_table(forecast, found))
        console.print(_sentence(name, found.recommended[name]), highlight=False, soft_wrap=True)
    _show_sizes(console, found)
    for note in found.notes:
        console.print(f"[dim]{note}[/dim]", highlight=False, soft_wrap=True)


def _table(forecast: GroupForecast, found: Advice) -> Table:
    said = found.recommended[forecast.name]
    now = forecast.now(found.room)
    taken = format_bytes(forecast.size_bytes[found.room])
    table = Table(
        title=f"{forecast.name}: {forecast.reads:,} reads of rows, "
        f"{forecast.entries[found.room]:,} rows in memory, {taken}",
        title_justify="left",
    )
    for name in (
        "ttl",
        "",
        "hit rate",
        "source reads",
        "stale",
        "half of them",
        "99 %",
        "none over",
    ):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    own = now.coherence if said.chosen is None else said.chosen.coherence
    for one in forecast.of(found.room, own):
        marks = [
            text for text, which in (("now", now), ("recommended", said.chosen)) if which == one
        ]
        table.add_row(
            format_duration(one.ttl_ns),
            ", ".join(marks),
            *_cells(one),
            style="bold" if one == said.chosen else None,
        )
    if said.event is not None:
        ttl = format_duration(said.event.ttl_ns)
        table.add_row(ttl, "coherence: event", *_cells(said.event), style="green")
    return table


def _cells(one: Prediction) -> tuple[str, ...]:
    rate = f"{one.hit_rate:.1%}" + (f" ±{100 * one.error:.1f}" if one.error else "")
    reads = f"{one.source_reads_s:,.1f}/s"
    if one.stale_share is None:
        return rate, reads, "not known", "", "", ""
    if not one.stale_longest_s:
        return rate, reads, f"{one.stale_share:.2%}", "", "", ""
    ages = (one.stale_p50_s, one.stale_p99_s, one.stale_longest_s)
    return rate, reads, f"{one.stale_share:.2%}", *(f"{age:,.1f} s" for age in ages)


def _sentence(name: str, said: Recommendation) -> str:
    if said.chosen is None:
        text = f"[bold]{name}: keep nothing[/bold] ({said.why})"
    else:
        text = f"[bold]{name}: {format_duration(said.chosen.ttl_ns)}[/bold] ({said.why})"
    if said.event is not None:
        text += (
            f"; with coherence: event and {format_duration(said.event.ttl_ns)} the source is read "
            f"{said.event.source_reads_s:,.1f} times a second, and nothing is stale"
        )
    return text


def _show_sizes(console: Console, found: Advice) -> None:
    rooms = sorted(found.replayed.rooms, key=lambda room: room.max_bytes)
    if len(rooms) < 2:
        return
    table = Table(title="memory a process, with the recommended ttls", title_justify="left")
    table.add_column("memory", justify="right")
    table.add_column("")
    for name in found.replayed.groups:
        table.add_column(name, justify="right")
    for room in rooms:
        marks = [
            text for text, which in (("now", found.room), ("enough", found.enough)) if which == room
        ]
        cells = []
        for name, forecast in found.replayed.groups.items():
            chosen = found.recommended[name].chosen or forecast.now(room)
            same = [
                one for one in forecast.of(room, chosen.coherence) if one.ttl_ns == chosen.ttl_ns
            ]
            cells.append(f"{same[0].hit_rate:.1%}")
        table.add_row(format_bytes(room.max_bytes), ", ".join(marks), *cells)
    console.print(table)


def _said(found: Advice) -> dict[str, Any]:
    """For machines: durations in seconds, `null` for one without end."""
    replayed = found.replayed
    survey = replayed.survey
    return {
        "log": {
            "requests": survey.requests,
            "lost": survey.lost,
            "processes": replayed.processes,
            "seconds": replayed.seconds,
            "replayed_share": replayed.share,
        },
        "limits": asdict(found.limits),
        "memory": {"now": asdict(found.room), "enough": asdict(found.enough)},
        "groups": {
            name: {
                "reads": forecast.reads,
                "changes": forecast.changes,
                "entries": forecast.entries[found.room],
                "bytes": forecast.size_bytes[found.room],
                "now": _numbers(forecast.now(found.room)),
                "recommended": _numbers(found.recommended[name].chosen),
                "why": found.recommended[name].why,
                "event": _numbers(found.recommended[name].event),
                "predictions": [_numbers(one) for one in forecast.predictions],
            }
            for name, forecast in replayed.groups.items()
        },
        "notes": list(found.notes),
    }


def _numbers(one: Prediction | None) -> dict[str, Any] | None:
    if one is None:
        return None
    shown = asdict(one)
    ttl_ns, room = shown.pop("ttl_ns"), shown.pop("room")
    return {
        "ttl": format_duration(ttl_ns),
        "ttl_s": None if ttl_ns >= NO_LIMIT_NS else ttl_ns / 1e9,
        "max_bytes": room["max_bytes"],
        **shown,
    }
