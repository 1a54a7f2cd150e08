"""How the commands speak: bars on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from hotplate.operations.invalidate import Outcome, Scope

__all__ = ["counting", "of", "say_outcome", "say_scope"]


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
