"""A process that comes up warm: it reads what processes before it held, before it is asked.

The keys are those that a process of this deployment wrote down last (`warming.hot_keys`), the
rows come from the shared tier where that has them, else from the source, in batches, until all are
read or the budget of time is spent. A source that fails ends it: the process starts all the same.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hotplate.errors import ConfigError
from hotplate.keys import token_of, values_of
from hotplate.serving.rehearsal import Rehearsal
from hotplate.serving.runtime import Runtime
from hotplate.warming.hot_keys import HotKey, HotKeyFiles
from hotplate.warming.traffic import key_of

__all__ = ["Preload", "Preloaded", "Preloading"]

_READS_A_BATCH: Final = 500
_log = logging.getLogger("hotplate.warming")


@dataclass(frozen=True)
class Preloaded:
    """What a process read before it was asked.

    Attributes:
        entities: of all views, counted once a view.
        wanted: how many there were to read.
        seconds: how long that took.
        problem: the error that ended it, or nothing.
    """

    entities: int
    wanted: int
    seconds: float
    problem: str = ""

    def __str__(self) -> str:
        said = f"preloaded {self.entities:,} of {self.wanted:,} rows in {self.seconds:.1f} s"
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
        self._files = HotKeyFiles(folder / runtime.project)
        self._most = most
        self._every_s = every_s
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def run(
        self, store: Any, budget_s: float, clock: Callable[[], float] = time.monotonic
    ) -> Preloaded:
        """Read what was hot, for so long at the most.

        Args:
            store: the Feast store, for its registry.
            budget_s: after which no further batch is begun.
            clock: seconds that only go forward.
        """
        runtime = self._runtime()
        assert runtime is not None
        began_s = clock()
        keys = self._files.read(self._most)
        read, problem = 0, ""
        if keys:
            rehearsal = Rehearsal(store, runtime)
            for batch in rehearsal.named(keys, _READS_A_BATCH):
                if clock() - began_s >= budget_s:
                    problem = "the budget of time is spent"
                    break
                try:
                    rehearsal.read(batch)
                except Exception as error:  # noqa: BLE001 - a process starts whatever the source does
                    problem = f"the source fails: {type(error).__name__}"
                    break
                read += batch.reads
        found = Preloaded(read, len(keys), clock() - began_s, problem)
        _log.log(logging.WARNING if problem else logging.INFO, "%s", found)
        return found

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

    def write(self) -> bool:
        """Write down what is in memory."""
        runtime = self._runtime()
        return runtime is not None and self._files.write(_held(runtime, self._most))

    def close(self) -> None:
        """Write it down for the last time."""
        if self._thread is not None and not self._ends.is_set():
            self._ends.set()
            self.write()


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


def _held(runtime: Runtime, most: int) -> Iterator[HotKey]:
    """What is in memory, the most recently used first."""
    for key in runtime.engine.memory.recent(most):
        view = runtime.domain.view_of(token_of(key))
        if view is not None and view.identity.project == runtime.project:
            identity = view.identity
            text = key_of(values_of(key), "", has_ids=True)
            yield HotKey(",".join(identity.shape.join_keys), identity.view, text)


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
