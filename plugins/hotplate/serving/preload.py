"""A process that comes up warm: it reads what processes before it held, before it is asked.

The keys are those that a process of this deployment wrote down last (`warming.hot_keys`). Rows that
it wrote beside them, when it ended, are put into memory as they are where they may be believed
(`serving.kept_rows`). The rest comes from the shared tier where that has it, else from the source,
in batches, until all are read or the budget of time is spent. A source that fails ends it: the
process starts all the same.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hotplate.errors import ConfigError
from hotplate.forks import restart_in_children
from hotplate.serving.kept_rows import held, restore, source_of
from hotplate.serving.rehearsal import Rehearsal
from hotplate.serving.runtime import Runtime
from hotplate.warming.hot_keys import HotKey, HotKeyFiles, keys_of
from hotplate.warming.warmer import Batch

__all__ = ["Preload", "Preloaded", "Preloading"]

_READS_A_BATCH: Final = 500
_SPENT: Final = "the budget of time is spent"
_log = logging.getLogger("hotplate.warming")


@dataclass(frozen=True)
class Preloaded:
    """What a process read before it was asked.

    Attributes:
        entities: of all views, counted once a view.
        wanted: how many there were to read.
        seconds: how long that took.
        problem: the error that ended it, or nothing.
        kept: how many of the entities needed no reading, because their rows had been kept.
    """

    entities: int
    wanted: int
    seconds: float
    problem: str = ""
    kept: int = 0

    def __str__(self) -> str:
        said = f"preloaded {self.entities:,} of {self.wanted:,} rows in {self.seconds:.1f} s"
        if self.kept:
            said += f", {self.kept:,} of them as they had been kept"
        return f"{said}: {self.problem}" if self.problem else said


class Preload:
    """Reads what was hot, and keeps writing down what is.

    Args:
        runtime: of the cache.
        folder: of the files; one for the processes of a deployment on this host.
        most: rows at the most.
        every_s: how often what is hot is written down.
    """

    def __init__(self, runtime: Runtime, folder: Path, most: int, every_s: float) -> None:
        self._runtime = weakref.ref(runtime)
        files = folder / runtime.project
        self._files = HotKeyFiles(files, runtime.clock, source_of(runtime.settings))
        self._most = min(most, runtime.engine.memory.bounds.max_entries)
        self._every_s = every_s
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._unread: list[HotKey] = []  # that there was no time for
        restart_in_children(self)

    def restart_after_fork(self) -> None:
        """Go on in the child, which has none of the parent's threads."""
        was_kept, self._thread, self._ends = self._thread is not None, None, threading.Event()
        if was_kept:
            self.keep()

    def run(
        self, store: Any, budget_s: float, clock: Callable[[], float] = time.monotonic
    ) -> Preloaded:
        """Read what was hot, for so long at the most.

        A source that does not answer is left to a thread of its own when the time is up.

        Args:
            store: the Feast store, for its registry.
            budget_s: after which no further batch is begun.
            clock: seconds that only go forward.
        """
        began_s = clock()
        state = _State()
        reading = threading.Thread(
            target=self._read, args=(store, state, began_s + budget_s, clock), daemon=True
        )
        reading.start()
        reading.join(max(0.0, budget_s))
        if reading.is_alive():
            state.problem = _SPENT
            state.is_over = True
        found = Preloaded(state.read, state.wanted, clock() - began_s, state.problem, state.kept)
        _log.log(logging.WARNING if found.problem else logging.INFO, "%s", found)
        return found

    def _read(self, store: Any, state: _State, until_s: float, clock: Callable[[], float]) -> None:
        runtime = self._runtime()
        assert runtime is not None
        batches: list[Batch] = []
        rehearsal = None
        try:
            kept = self._files.read(self._most)
        except OSError as error:
            state.problem = (
                f"{self._files.folder} cannot be read ({error.strerror}): change its owner, or "
                "online_store.preload.folder"
            )
            return
        try:
            state.wanted = len(kept)
            if state.wanted:
                rehearsal = Rehearsal(store, runtime)
                left = restore(runtime, rehearsal, kept)
                state.read = state.kept = state.wanted - len(left)
                self._unread = keys_of(left)
                batches = rehearsal.named(self._unread, _READS_A_BATCH)
            for batch in batches:
                if clock() >= until_s or state.is_over:
                    state.problem = _SPENT
                    break
                if runtime.engine.memory.is_nearly_full:
                    state.problem = "the memory is full"
                    break
                assert rehearsal is not None
                rehearsal.read(batch)
                state.batches.append(batch)
                state.read += batch.reads
            else:
                self._unread = []
        except Exception as error:  # noqa: BLE001 - a process starts whatever the source does
            state.problem = f"the source fails: {type(error).__name__}"
        if rehearsal is not None:
            rehearsal.touch(state.batches)  # what was read first is the hottest, not the oldest

    def keep(self) -> None:
        """From now on write down now and then what is in memory, and when the process ends."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work,
                args=(weakref.ref(self), self._ends, self._every_s),
                name="hotplate-hot-keys",
                daemon=True,
            )
            self._thread.start()
            atexit.register(_close, weakref.ref(self))

    def write(self, *, is_last: bool = False) -> bool:
        """Write down what is in memory, and behind it what there was no time to read.

        Args:
            is_last: rows as well, where the deployment says so: whoever is going to write next
                through this process would have to write all of them down again.
        """
        runtime = self._runtime()
        if runtime is None:
            return False
        with_rows = is_last and runtime.marks.is_kept
        keys = list(held(runtime, self._most, with_rows=with_rows))
        if len(keys) < self._most and self._unread:
            known = {one[:3] for one in keys}
            keys += [one for one in self._unread if one[:3] not in known][: self._most - len(keys)]
        return self._files.write(keys)

    def close(self) -> None:
        """Write it down for the last time, until `keep` is called again."""
        if self._thread is not None:
            self._ends.set()
            self._thread, self._ends = None, threading.Event()
            self.write(is_last=True)


@dataclass
class _State:
    """How far a preload is."""

    read: int = 0
    kept: int = 0
    wanted: int = 0
    problem: str = ""
    is_over: bool = False
    batches: list[Batch] = field(default_factory=list)


class Preloading:
    """The preload of one deployment, made when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Preload] = {}

    def run(self, runtime: Runtime, store: Any, budget_s: float | None) -> Preloaded:
        """Read what was hot, and from now on write down what is.

        Args:
            runtime: of the cache.
            store: the Feast store.
            budget_s: how long it may take; what the deployment says if left out.

        Raises:
            ConfigError: the deployment says nothing of it.
        """
        said = runtime.settings.preload
        if said is None:
            raise ConfigError(
                "online_store.preload: is not there. Name the folder in which processes write down "
                "what they hold: preload: {folder: /var/lib/hotplate/preload, budget: 10s}"
            )
        if "made" not in self._made:  # one for all threads, without a lock
            made = Preload(runtime, Path(said.folder), said.most, said.every / 1e9)
            self._made.setdefault("made", made)
        preload = self._made["made"]
        found = preload.run(store, said.budget / 1e9 if budget_s is None else budget_s)
        preload.keep()
        return found

    def close(self) -> None:
        """Write down for the last time what is hot, where that is done at all."""
        if (preload := self._made.get("made")) is not None:
            preload.close()


def _work(preload: weakref.ref[Preload], ends: threading.Event, every_s: float) -> None:
    while not ends.wait(every_s):
        found = preload()
        if found is None:
            return
        try:
            found.write()
        except Exception as error:  # noqa: BLE001 - the border of the thread
            _log.warning("hot keys are not kept: %s", type(error).__name__)
        del found


def _close(preload: weakref.ref[Preload]) -> None:
    found = preload()
    if found is not None:
        found.close()
