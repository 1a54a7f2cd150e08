"""How the commands speak: bars on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from hotplate.durations import format_duration
from hotplate.operations.invalidate import Outcome, Scope
from hotplate.operations.purge import Progress as PurgeProgress

__all__ = ["PurgeReport", "counting", "of", "say_outcome", "say_progress", "say_scope"]


@contextmanager
def counting(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yields what is called with each advance; shows it where somebody looks on."""
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        TextColumn("{task.completed:,.0f}"),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda steps: progress.advance(task, steps)


class PurgeReport:
    """Says how far a purge is: in one line that changes, or in a line now and then."""

    def __init__(self) -> None:
        self._is_watched = sys.stderr.isatty()
        self._every_s = 0.2 if self._is_watched else 10.0
        self._said_s = time.monotonic()
        self.last: PurgeProgress | None = None

    def note(self, progress: PurgeProgress) -> None:
        """Look at how far it is, and say so if it is time to."""
        self.last = progress
        now_s = time.monotonic()
        if now_s - self._said_s >= self._every_s:
            self._said_s = now_s
            lead, end = ("\r\x1b[2K", "") if self._is_watched else ("", "\n")
            print(lead + say_progress(progress), end=end, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line that changes."""
        if self._is_watched:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def say_progress(progress: PurgeProgress) -> str:
    """How far a purge is."""
    parts = [f"{of(progress.removed, 'entry', 'entries')} removed", f"{progress.rate_s:,.0f}/s"]
    if progress.done is not None and not progress.is_over:
        parts.append(f"{progress.done:.0%} of the keys looked at")
    if progress.remaining_s is not None and not progress.is_over:
        whole_ns = max(1, round(progress.remaining_s)) * 1_000_000_000
        parts.append(f"about {format_duration(whole_ns)} to go")
    return ", ".join(parts)


def of(count: int, one: str, many: str) -> str:
    """`1 entity`, `1,200 entities`."""
    return f"{count:,} {one if count == 1 else many}"


def say_scope(scope: Scope, name: str) -> str:
    """What would be forgotten."""
    if scope.entities is None:
        what = f"every entity of {name}"
    else:
        what = f"{of(scope.entities, 'entity', 'entities')} of {name}"
    views = of(len(scope.views), "feature view", "feature views")
    text = f"{what} ({views}: {', '.join(scope.views)})"
    if scope.problem is not None:
        return f"{text}; how many are in the shared tier cannot be seen: {scope.problem}"
    if scope.held is None:
        return f"{text}; there is no shared tier"
    least = "" if scope.is_counted else "at least "
    held = of(scope.held, "entry", "entries")
    return f"{text}; {least}{held} in the shared tier now"


def say_outcome(outcome: Outcome, scope: Scope) -> str:
    """What was forgotten, or what was not."""
    if outcome.is_complete:
        listening = of(outcome.heard_by, "listening cache", "listening caches")
        done = (
            "all entities" if scope.entities is None else of(outcome.entities, "entity", "entities")
        )
        return f"{done} invalidated; announced to {listening}"
    missing = []
    if outcome.unsent:
        missing.append(of(outcome.unsent, "announcement", "announcements"))
    if outcome.owed:
        missing.append(of(outcome.owed, "removal", "removals") + " from the shared tier")
    whole = "" if scope.entities is None else f", the last of {outcome.entities:,} entities tried,"
    return (
        f"the server did not take {' and '.join(missing)} in time{whole} and nothing of that is "
        "kept: run the command again once the server answers (hotplate doctor says what is wrong). "
        "Until then other processes serve what they have up to their ttl."
    )
