"""The scoring job: micro-batches from a source through the line, until the source ends.

Figures go to the terminal while it runs. SIGINT and SIGTERM end it behind a committed batch; it
may as well be killed (see `pipelines.fraud.ledger`).
"""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from pipelines.fraud.line import Line, Processed
from pipelines.fraud.sources import Batch

__all__ = ["Figures", "Job", "Source"]

_RECENT: Final = 200
_DRAWN_EVERY_S: Final = 0.25


class Source(Protocol):
    """Where payments come from."""

    name: str

    def batches(self, position: str | None, size: int, wait_ms: float) -> Iterator[Batch]:
        """Records behind a position."""


@dataclass
class Figures:
    """What a job has done so far.

    Attributes:
        decided, repeated, dead, hits, approve, review, decline: payments.
        model_s: seconds in the model.
        steps_s: seconds by step.
        batches: how many there were.
        batch_s: what the latest of them took.
        began_s, ended_s: the clock, when the first began and the last ended.
    """

    decided: int = 0
    repeated: int = 0
    dead: int = 0
    hits: int = 0
    approve: int = 0
    review: int = 0
    decline: int = 0
    model_s: float = 0.0
    steps_s: dict[str, float] = field(default_factory=dict)
    batch_s: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    batches: int = 0

    def numbers(self) -> dict[str, float]:
        """For machines."""
        spent_s = self.ended_s - self.began_s
        return {
            **{
                name: getattr(self, name)
                for name in ("decided", "repeated", "dead", "hits", "approve", "review", "decline")
            },
            "model_s": self.model_s,
            "seconds": spent_s,
            "per_s": self.decided / spent_s if spent_s > 0 else 0.0,
            **{f"{name}_s": seconds for name, seconds in self.steps_s.items()},
        }

    def add(self, found: Processed, seconds: float) -> None:
        """Count a batch."""
        self.batches += 1
        self.ended_s = time.monotonic()
        self.repeated += found.repeated
        self.dead += len(found.dead)
        for step, spent in found.seconds.items():
            self.steps_s[step] = self.steps_s.get(step, 0.0) + spent
        if not found.decided:
            return
        for decided in found.decided:
            self.decided += len(decided.scores)
            self.hits += sum(layer == "hit" for layer in decided.layers)
            self.model_s += decided.model_s
            for name in ("approve", "review", "decline"):
                count = sum(decision == name for decision in decided.decisions)
                setattr(self, name, getattr(self, name) + count)
        self.batch_s.append((seconds, sum(len(decided.scores) for decided in found.decided)))

    def table(self) -> Table:
        """As a table for the terminal."""
        spent_s = max(time.monotonic() - self.began_s, 1e-9)
        table = Table.grid(padding=(0, 2))
        recent = np.array([seconds for seconds, _ in self.batch_s] or [0.0])
        sizes = [size for _, size in self.batch_s] or [0]
        shown = (
            ("decided", f"{self.decided:,} ({self.decided / spent_s:,.0f}/s)"),
            (
                "approve / review / decline",
                f"{self.approve:,} / {self.review:,} / {self.decline:,}",
            ),
            ("answered by the cache of outputs", _share(self.hits, self.decided)),
            ("in the model", f"{1e6 * self.model_s / max(self.decided, 1):.1f} us a payment"),
            (
                "latest batches",
                f"{np.mean(sizes):,.0f} payments, p50 {1e3 * np.median(recent):.1f} ms, "
                f"p99 {1e3 * np.quantile(recent, 0.99):.1f} ms",
            ),
            ("decided before", f"{self.repeated:,}"),
            ("dead letters", f"{self.dead:,}"),
        )
        for name, value in shown:
            table.add_row(Text(name, style="dim"), value)
        return table


class Job:
    """One run over a source.

    Args:
        line: the steps.
        source: where payments come from.
        size: payments in a batch at the most.
        wait_ms: how long the first of a batch waits for others.
    """

    def __init__(self, line: Line, source: Source, size: int, wait_ms: float) -> None:
        self._line = line
        self._source = source
        self._size = size
        self._wait_ms = wait_ms
        self._stopped = threading.Event()
        self.figures = Figures()

    def stop(self, *_: object) -> None:
        """End behind the batch at hand."""
        self._stopped.set()
        stop: Callable[[], None] = getattr(self._source, "stop", lambda: None)
        stop()

    def run(
        self, position: str | None = None, progress: Callable[[Figures], None] = lambda _: None
    ) -> Figures:
        """Work until the source ends, or `stop`.

        Args:
            position: where to begin in the place of where the last job ended.
            progress: told after each batch.

        Raises:
            SourceError, LedgerError: what cannot be waited for.
        """
        begun = self._line.begin()
        start = position if position is not None else begun
        gc.freeze()  # what lives as long as the job need not be looked through for each batch
        self.figures.began_s = self.figures.ended_s = time.monotonic()
        for batch in self._source.batches(start, self._size, self._wait_ms):
            began_s = time.perf_counter()
            found = self._line.process(batch.records, batch.position)
            self.figures.add(found, time.perf_counter() - began_s)
            progress(self.figures)
            if self._stopped.is_set():
                break
        return self.figures


@contextmanager
def ended_by_signals(job: Job) -> Iterator[None]:
    """SIGINT and SIGTERM end the job behind the batch at hand; a second one ends the process."""

    def first(number: int, _: object) -> None:
        signal.signal(number, before[signal.Signals(number)])
        job.stop()

    before = {one: signal.signal(one, first) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def shown(console: Console, total: int | None) -> Iterator[Callable[[Figures], None]]:
    """Figures in the terminal while a job runs, and once more when it has ended.

    Args:
        console: where.
        total: payments in the source, where that is known.
    """
    bar = Progress(
        TextColumn("score"), BarColumn(bar_width=28), MofNCompleteColumn(), TimeElapsedColumn()
    )
    task = bar.add_task("score", total=total)
    latest: list[Figures] = []
    drawn_s = 0.0

    def drawn() -> Group:
        return Group(bar, *(one.table() for one in latest[-1:]))

    with Live(drawn(), console=console, auto_refresh=False, redirect_stdout=False) as live:

        def show(figures: Figures) -> None:
            nonlocal drawn_s
            latest[:] = [figures]
            if time.monotonic() - drawn_s > _DRAWN_EVERY_S:
                drawn_s = time.monotonic()
                bar.update(task, completed=figures.decided + figures.repeated + figures.dead)
                live.update(drawn(), refresh=True)

        yield show
        if latest:
            figures = latest[-1]
            bar.update(task, completed=figures.decided + figures.repeated + figures.dead)
            live.update(drawn(), refresh=True)


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.1%})" if whole else "none"
