"""What a run says in the terminal: a bar for each wait, and the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from pipelines.reads.results import Results
from pipelines.reads.wording import GROUP_HEADINGS, count, duration, equality, seconds, share, times

__all__ = ["Bars", "print_results"]


class Bars:
    """One bar for each wait, one below the other."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @classmethod
    @contextmanager
    def on(cls, console: Console) -> Iterator[Bars]:
        """Draw on a console until the block ends."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        # Feast's own prints are redirected elsewhere; rich must not redirect them back
        with Progress(
            *columns, console=console, redirect_stdout=False, redirect_stderr=False
        ) as progress:
            yield cls(progress)

    @contextmanager
    def wait(self, what: str, total: int = 1) -> Iterator[Callable[[int], None]]:
        """One wait; yields what is called with each advance. The end of the block completes it."""
        task = self._progress.add_task(what, total=total)
        yield lambda steps: self._progress.advance(task, steps)
        self._progress.update(task, completed=total)

    def say(self, text: str) -> None:
        """A line above the bars."""
        self._progress.console.print(text, highlight=False)


def print_results(console: Console, results: Results, page: Path, numbers: Path) -> None:
    """The table of results and where the page lies."""
    console.print()
    console.print(_overview(results))
    console.print(_groups(results))
    found, outside = results.answers, results.groups.get(results.writes["outside_group"])
    bound = seconds(outside.ttl_s if outside is not None else None)
    said = equality(found.compared, found.explained, found.unexplained, bound)
    for text in (_LEGEND, *said, _NEXT):
        console.print(text, highlight=False)
    for label, path in (("Page", page), ("Numbers", numbers)):
        # Text, not markup: a path may hold brackets. No wrapping: a link must stay in one piece.
        console.print(Text(f"{label}: {path.resolve().as_uri()}"), soft_wrap=True)


_LEGEND = (
    "Source reads: rows asked of the online store. Forgotten: rows dropped because they were "
    "pushed. Bound: the ttl. Past bound: values served older than it.\n"
)
_NEXT = (
    "\nNext: 'Five minutes on your own Feast repo' in README.md. This run followed features.py and "
    "feature_store.yaml in feature_repo; what they say together show\n"
    "  feast -c feature_repo apply && hotplate policy -c feature_repo\n"
)


def _overview(results: Results) -> Table:
    table = Table(title="Feast, bare and with Hotplate", title_justify="left", box=SIMPLE_HEAD)
    for name in ("", "bare Feast", "with Hotplate", "ratio"):
        table.add_column(name, justify="left" if not name else "right")
    bare, cached = results.latency["bare"], results.latency["cached"]
    if bare is not None and cached is not None:
        for name in ("p50", "p99"):
            shown = [duration(getattr(run, f"{name}_us")) for run in (bare, cached)]
            table.add_row(f"latency {name}", *shown, times(results.ratio(name)))
    memory = results.latency["cached_from_memory"]
    if bare is not None and memory is not None:
        table.add_row(
            f"p50 of the {share(results.from_memory)} from memory",
            duration(bare.p50_us),
            duration(memory.p50_us),
            times(bare.p50_us / memory.p50_us),
        )
    reads = results.source_reads_per_request
    table.add_row(
        "source reads per request",
        f"{reads['bare']:.2f}",
        f"{reads['cached']:.2f}",
        times(results.read_ratio()),
    )
    return table


def _groups(results: Results) -> Table:
    table = Table(title="The cache, group by group", title_justify="left", box=SIMPLE_HEAD)
    for name in GROUP_HEADINGS:
        # two lines: seven columns of one word fit into 80 characters
        heading = name.replace(" ", "\n")
        table.add_column(heading, justify="left" if name == "group" else "right", no_wrap=True)
    for name, group in results.groups.items():
        table.add_row(
            name,
            share(group.hit_rate),
            count(group.loads),
            count(group.invalidated),
            seconds(group.max_age_s),
            seconds(group.ttl_s),
            count(group.past_bound),
        )
    return table
