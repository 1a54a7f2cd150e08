"""`hotplate stats`, `top` and `metrics`: what the processes of a host count, added up."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import Progress
from rich.text import Text

from hotplate.cli_repo import chdir_option, fail, open_store, told
from hotplate.durations import format_duration, parse_duration
from hotplate.sizes import format_bytes
from hotplate.telemetry.assets import asset
from hotplate.telemetry.reading import CONTENT_TYPE, FolderReader, Reading, exposition, read_url
from hotplate.telemetry.summary import GroupSummary, OutputSummary, Summary, summarize

__all__ = ["metrics", "report", "shown", "stats", "top"]

_F = TypeVar("_F", bound=Callable[..., Any])
_WIDTH: Final = 160


def source_options(function: _F) -> _F:
    """The options that say where counts are read."""
    for option in (
        click.option(
            "--folder",
            type=click.Path(path_type=Path),
            help="The folder that processes write into; that of feature_store.yaml if left out.",
        ),
        click.option("--url", metavar="URL", help="An endpoint that shows metrics, instead."),
        chdir_option,
    ):
        function = option(function)
    return function


def _reader(chdir: Path, folder: Path | None, url: str | None) -> Callable[[], Reading]:
    if folder is not None and url is not None:
        raise click.UsageError("--folder and --url are two places: name one of them")
    if url is not None:
        return lambda: read_url(url)
    chosen = _folder(chdir, folder)
    return FolderReader(chosen).read


def _folder(chdir: Path, folder: Path | None) -> Path:
    if folder is not None:
        return folder
    settings = getattr(open_store(chdir).config.online_store, "metrics", None)
    if settings is None:
        fail(
            "online_store.metrics is not there, so no process writes down what it counts. Add to "
            "feature_store.yaml metrics: {folder: /var/lib/hotplate/metrics} and start the "
            "processes again, or name another place by --folder or --url"
        )
    return Path(settings.folder)


def _every(context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        seconds = parse_duration(value) / 1e9
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3_600:
        said = f"{value!r}: write something between 100ms and 1h, such as 2s"
        raise click.BadParameter(said, context, parameter)
    return seconds


@click.command()
@source_options
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def stats(chdir: Path, folder: Path | None, url: str | None, as_json: bool) -> None:
    """Print what the processes of this host have counted since they began.

    Hit rates, ages of what was served against their bounds, the source, the event channel, outputs
    of models. Exits with 1 where nothing is counted.
    """
    with told():
        found = _reader(chdir, folder, url)()
        if found.is_empty:
            fail("nothing is counted there yet: has a process been asked something?")
        summary = summarize(found)
    if as_json:
        click.echo(json.dumps(_plain(asdict(summary)), indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(shown(summary, console.width))


@click.command()
@source_options
@click.option(
    "--every", default="2s", show_default=True, callback=_every, help="How often to look."
)
@click.option("--count", type=click.IntRange(1), help="Look so many times, and stop.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON each time.")
def top(
    chdir: Path,
    folder: Path | None,
    url: str | None,
    every: float,
    count: int | None,
    as_json: bool,
) -> None:
    """Watch what the processes of this host do: per group, a second. Ctrl-C ends it."""
    read = _reader(chdir, folder, url)
    is_live = sys.stdout.isatty() and not as_json
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    with told(), _until_interrupted():
        before = read()
        with (
            Live(Text("looking ..."), console=console, auto_refresh=False, screen=is_live)
            if is_live
            else _nothing() as live
        ):
            seen = 0
            while count is None or seen < count:
                time.sleep(every)
                now = read()
                summary = summarize(now, before)
                before, seen = now, seen + 1
                if as_json:
                    click.echo(json.dumps(_plain(asdict(summary))))
                elif live is not None:
                    live.update(shown(summary, console.width), refresh=True)
                else:
                    console.print(shown(summary, console.width))


@click.command()
@source_options
@click.option(
    "--html",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("hotplate.html"),
    show_default=True,
    help="Where the page goes.",
)
@click.option(
    "--over",
    callback=lambda context, parameter, value: value and _every(context, parameter, value),
    metavar="DURATION",
    help="Only what happens in this time from now on; since the start if left out.",
)
def report(chdir: Path, folder: Path | None, url: str | None, path: Path, over: float) -> None:
    """Write a page of plots: where reads were answered, how old values were against their bounds.

    One HTML file that needs nothing from the network.
    """
    from hotplate.telemetry.page import page

    if find_spec("plotly") is None:
        fail("a page of plots needs plotly: pip install 'feast-hotplate[demo]'")
    with told(), _until_interrupted():
        read = _reader(chdir, folder, url)
        before = read()
        if over:
            _wait(over)
        now = read()
        if now.is_empty:
            fail("nothing is counted there yet: has a process been asked something?")
        since = now.since(before) if over else now
        try:
            path.write_text(page(summarize(now, before if over else None), since), "utf-8")
        except OSError as error:
            fail(f"{path}: cannot be written: {error.strerror}")
    click.echo(f"written: {path}")


def _wait(seconds: float) -> None:
    with Progress(
        transient=True, disable=not sys.stderr.isatty(), console=Console(stderr=True)
    ) as bar:
        task = bar.add_task("counting", total=seconds)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))
            bar.update(task, completed=seconds - left)


@click.command()
@source_options
@click.option(
    "--serve",
    "address",
    metavar="[HOST:]PORT",
    help="Answer Prometheus at this address, until Ctrl-C; 127.0.0.1 unless a host is named.",
)
@click.option("--dashboard", is_flag=True, help="Print a dashboard for Grafana, and stop.")
@click.option("--alerts", is_flag=True, help="Print alert rules for Prometheus, and stop.")
def metrics(
    chdir: Path,
    folder: Path | None,
    url: str | None,
    address: str | None,
    dashboard: bool,
    alerts: bool,
) -> None:
    """Print all metrics in Prometheus' text format, or serve them.

    They are those of every process that writes into the folder, added up. Where `feast serve
    --metrics` runs, its own endpoint shows the same.
    """
    if sum((dashboard, alerts, address is not None)) > 1:
        raise click.UsageError("--serve, --dashboard and --alerts are three things: choose one")
    if dashboard or alerts:
        click.echo(asset("grafana.json" if dashboard else "alerts.yml"), nl=False)
        return
    with told():
        if url is not None:
            raise click.UsageError("what is at a URL is served already")
        chosen = _folder(chdir, folder)
        if address is None:
            click.echo(exposition(chosen).decode(), nl=False)
            return
        _serve(chosen, address)


def _serve(folder: Path, address: str) -> None:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65_536:
        raise click.UsageError(f"{address!r} is no address: write 9464 or 0.0.0.0:9464")

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, status, kind = b"metrics are at /metrics\n", 404, "text/plain"
            if self.path.partition("?")[0] in ("/", "/metrics"):
                try:
                    body, status, kind = exposition(folder), 200, CONTENT_TYPE
                except Exception as error:  # noqa: BLE001 - Prometheus is told, and comes again
                    body, status = f"{error}\n".encode(), 503
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """A line for each scrape helps nobody."""

    try:
        server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), Answer)
    except OSError as error:
        fail(f"{address}: cannot be listened at: {error.strerror or error}")
    server.daemon_threads = True
    with server, _until_interrupted():
        click.echo(f"metrics of {folder} at http://{host or '127.0.0.1'}:{port}/metrics", err=True)
        server.serve_forever()


@contextmanager
def _until_interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(130) from None


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


# -- how it looks ---------------------------------------------------------------------------------


def shown(found: Summary, width: int = _WIDTH) -> Group:
    """A summary, for a terminal of so many columns."""
    parts: list[Any] = [_head(found), _groups(found, width)]
    if found.outputs:
        parts.append(_outputs(found, width))
    return Group(*parts)


def _head(found: Summary) -> Text:
    said = [
        "since the start" if found.seconds is None else f"over {found.seconds:.1f} s",
        f"{found.processes} process{'' if found.processes == 1 else 'es'}",
    ]
    trips = (
        ""
        if found.source_p99_s is None
        else (f", p50 {_time(found.source_p50_s)}, p99 {_time(found.source_p99_s)}")
    )
    said.append(f"round trips to the source {_rate(found.source_trips, found.seconds)}{trips}")
    text = Text(" | ".join(said) + "\n")
    for name, state in (("event channel", found.channel), ("shared tier", found.shared)):
        if state is not None:
            text.append(f"{name} ")
            text.append("up" if state else "DOWN", style="green" if state else "bold red")
            if name == "event channel" and found.channel_p99_s is not None:
                text.append(f", p99 {_time(found.channel_p99_s)}")
            text.append(" | ")
    forgotten = ", ".join(
        f"{cause} {_rate(times, found.seconds)}" for cause, times in found.invalidations.items()
    )
    text.append(f"invalidations: {forgotten or 'none'} | faults of the cache: ")
    text.append(f"{found.faults:,.0f}\n", style="bold red" if found.faults else "")
    return text


def _groups(found: Summary, width: int) -> Text:
    headers = [
        "group",
        "ttl",
        "reads",
        "hits",
        "cold",
        "expired",
        "never",
        "channel",
        "loads",
        "errors",
    ]
    headers += ["age p50", "p99", "max", "rows", "memory"]
    has_checks = any(group.compared for group in found.groups.values())
    headers += ["differ at most"] if has_checks else []
    rows = [
        [name, *_of_group(group, found.seconds), *([_checked(group)] if has_checks else [])]
        for name, group in found.groups.items()
    ]
    return _table("Groups", headers, rows, width)


def _of_group(group: GroupSummary, seconds: float | None) -> list[Text | str]:
    causes = [group.misses.get(cause, 0.0) for cause in ("cold", "expired", "never", "channel")]
    return [
        _ttl(group.ttl_s),
        _rate(group.reads, seconds),
        _share(group.hit_rate),
        *(_rate(count, seconds) for count in causes),
        _rate(group.loads, seconds),
        Text(_rate(group.load_errors, seconds), style="bold red" if group.load_errors else ""),
        _time(group.age_p50_s),
        _time(group.age_p99_s),
        Text(_time(group.age_max_s or None), style="bold red" if group.late else ""),
        f"{group.entries:,.0f}",
        format_bytes(int(group.bytes)),
    ]


def _checked(group: GroupSummary) -> Text:
    """What shadow checks say: at most which share of the served rows is wrong."""
    if group.is_excluded:
        return Text("EXCLUDED", style="bold red")
    if not group.compared:
        return Text("-")
    said = f"{group.mismatch_high:.2%} ({group.differed:,} of {group.compared:,})"
    return Text(said, style="bold red" if group.differed else "")


def _outputs(found: Summary, width: int) -> Text:
    headers = [
        "model",
        "rows",
        "hits",
        "miss",
        "expired",
        "invalidated",
        "rule",
        "compared",
        "differed",
        "kept",
    ]
    headers += ["by rule"]
    rows = [[name, *_of_outputs(output, found.seconds)] for name, output in found.outputs.items()]
    return _table("Outputs of models", headers, rows, width)


def _table(
    title: str, headers: Sequence[str], rows: Sequence[Sequence[Text | str]], width: int
) -> Text:
    """A table as one text: rich's own takes ten times as long, every other second.

    What does not fit beside each other stands below, with the names again.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = [
        max(len(header), *(len(row[place].plain) for row in cells), 0)
        for place, header in enumerate(headers)
    ]
    text = Text(f"\n{title}", no_wrap=True, overflow="ellipsis", style="bold")
    for places in _parts(widths, width):
        text.append("\n")
        head = "  ".join(_padded(headers[place], widths, place) for place in places)
        text.append(head + "\n", style="bold")
        for row in cells:
            for place in places:
                style = "bold" if place == 0 else row[place].style or "not bold"
                gap = "" if place == places[-1] else "  "
                text.append(_padded(row[place].plain, widths, place) + gap, style=style)
            text.append("\n")
    return text


def _parts(widths: Sequence[int], width: int) -> Iterator[list[int]]:
    """Columns that fit beside the first one, in their order."""
    part, used = [0], widths[0]
    for place in range(1, len(widths)):
        if len(part) > 1 and used + 2 + widths[place] > width:
            yield part
            part, used = [0], widths[0]
        part.append(place)
        used += 2 + widths[place]
    yield part


def _padded(cell: str, widths: Sequence[int], place: int) -> str:
    is_words = place == 0 or (place == len(widths) - 1 and cell[:1].isalpha())
    return cell.ljust(widths[place]) if is_words else cell.rjust(widths[place])


def _of_outputs(output: OutputSummary, seconds: float | None) -> list[Text | str]:
    results = [output.results.get(word, 0.0) for word in ("miss", "expired", "invalidated", "rule")]
    rules = ", ".join(f"{rule} {_rate(count, seconds)}" for rule, count in output.rules.items())
    return [
        _rate(output.rows, seconds),
        Text("OFF", style="bold red") if output.is_off else _share(output.hit_rate),
        *(_rate(count, seconds) for count in results),
        f"{output.compared:,.0f}",
        Text(f"{output.differed:,.0f}", style="bold red" if output.differed else ""),
        f"{output.entries:,.0f}",
        rules,
    ]


def _rate(count: float, seconds: float | None) -> str:
    if seconds is None:
        return f"{count:,.0f}"
    rate = count / seconds if seconds > 0 else 0.0
    return "0/s" if not rate else f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _ttl(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return "never" if seconds == 0 else format_duration(round(min(seconds, 9e9) * 1e9))


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {name}"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _plain(value: Any) -> Any:
    """Numbers that JSON has: infinite ones are null."""
    if isinstance(value, dict):
        return {key: _plain(held) for key, held in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
