"""What was hot and had to be forgotten is read again, at a rate that holds.

A write, a purge, a `materialize` takes rows out of memory that will be asked for again soon: who
asks first would wait. Here they are read once more on the side, in batches, in the order in which
they were forgotten; what a request loads meanwhile is left to it.

A row that is written and never read would be read again and again for nobody. Reads from memory
leave no trace, so each row has a credit: after so many times in a row it is left alone, until a
request has loaded it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from hotplate.contracts import View
from hotplate.core.engine import Bound, Engine, Want
from hotplate.forks import restart_in_children
from hotplate.keys import Key, token_of, values_of
from hotplate.pace import Pace
from hotplate.seldom import Seldom
from hotplate.stats import GroupCounters, RewarmStats

__all__ = ["Rewarmer"]

_WAITING_MOST: Final = 10_000
_NOTED_AT_ONCE: Final = 500
_CREDITS_MOST: Final = 100_000
_CREDIT: Final = 8
_GATHER_S: Final = 0.005
_IDLE_S: Final = 5.0
_PAUSE_S: Final = 1.0
_BATCH_MOST: Final = 200
_log = logging.getLogger("hotplate.warming")


class Rewarmer:
    """Reads again what was forgotten.

    The thread starts with the first row that is forgotten, and ends when nothing has been for a
    while.

    Args:
        engine: of the cache.
        limit: rows a second at the most.
        view_of: the view that a key's token stood for.
        resolve: what of a feature view is read now: its view, policy and counters.
        clock: seconds that only go forward.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        engine: Engine,
        limit: int,
        view_of: Callable[[int], View | None],
        resolve: Callable[[Any], tuple[View, Bound, GroupCounters]],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engine = engine
        self._limit, self._clock, self._sleep = limit, clock, sleep
        self._view_of, self._resolve = view_of, resolve
        self._seldom = Seldom()
        self._start_clean()
        restart_in_children(self)

    def _start_clean(self) -> None:
        self._pace = Pace(self._limit, self._clock, self._sleep)
        self._waiting: OrderedDict[tuple[View, tuple[Any, ...]], None] = OrderedDict()
        self._credits: OrderedDict[tuple[View, tuple[Any, ...]], int] = OrderedDict()
        self._tables: dict[View, Any] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wakes = threading.Event()
        self._read = self._dropped = self._errors = self._spared = 0

    def restart_after_fork(self) -> None:
        """Leave what waits to the parent."""
        self._start_clean()

    # -- told by the engine -----------------------------------------------------------------------

    def know(self, view: View, table: Any) -> None:
        """Rows of a view may come into memory without a request: by a preload or a warmer."""
        with self._lock:
            self._tables.setdefault(view, table)

    def note_loaded(self, wants: Mapping[Key, Want]) -> None:
        """A request loads rows: they are asked for, and have credit again."""
        with self._lock:
            for key, want in wants.items():
                if want.view not in self._tables:
                    self._tables[want.view] = want.table
                self._credits.pop((want.view, values_of(key)), None)

    def note_forgotten(self, keys: Sequence[Key]) -> None:
        """Rows were in memory, and had to go."""
        latest = keys[-_WAITING_MOST:]  # a million may go at once, and requests take this lock too
        for at in range(0, len(latest), _NOTED_AT_ONCE):
            entities = [
                (view, values_of(key))
                for key in latest[at : at + _NOTED_AT_ONCE]
                if (view := self._view_of(token_of(key))) is not None and view in self._tables
            ]
            with self._lock:
                self._note(entities)
        with self._lock:
            self._dropped += len(keys) - len(latest)
            if not self._waiting:
                return
            self._start()
        self._wakes.set()

    def _note(self, entities: Iterable[tuple[View, tuple[Any, ...]]]) -> None:
        for entity in entities:
            if not self._credits.get(entity, _CREDIT):
                self._spared += 1
                continue
            if len(self._waiting) >= _WAITING_MOST:
                self._waiting.popitem(last=False)
                self._dropped += 1
            self._waiting[entity] = None

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._work, name="hotplate-rewarm", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread to be had: then rows are read when they are asked for
                self._dropped += len(self._waiting)
                self._waiting.clear()
                return
            self._thread = thread

    # -- on the thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            if not self._wakes.wait(_IDLE_S):
                with self._lock:  # an idle thread would keep a cache alive that nobody uses
                    if not self._waiting:
                        self._thread = None
                        return
            self._wakes.clear()
            self._sleep(_GATHER_S)  # what is forgotten together is read together
            while self.step():
                pass

    def step(self) -> bool:
        """Read a batch; False where nothing waits."""
        batch = self._take()
        if not batch:
            return False
        self._pace.take(len(batch))
        try:
            wants = self._wants(batch)
            if wants:
                now_ns = self._engine.clock.now_ns()
                self._engine.read(wants, now_ns, is_rehearsed=True)
                self._read += sum(len(want.keys) for want in wants)
        except Exception as error:  # noqa: BLE001 - they are read when they are asked for
            self._errors += 1
            if self._seldom.is_time():
                _log.warning("rows are not read again: %s", type(error).__name__)
            self._sleep(_PAUSE_S)
        return True

    def _take(self) -> list[tuple[View, tuple[Any, ...]]]:
        most = min(_BATCH_MOST, self._pace.step)
        with self._lock:
            batch = [entity for entity, _ in zip(self._waiting, range(most), strict=False)]
            for entity in batch:
                del self._waiting[entity]
                left = self._credits.pop(entity, _CREDIT)
                if len(self._credits) >= _CREDITS_MOST:
                    self._credits.popitem(last=False)
                self._credits[entity] = left - 1
        return batch

    def _wants(self, batch: Sequence[tuple[View, tuple[Any, ...]]]) -> list[Want]:
        by_view: dict[View, list[tuple[Any, ...]]] = {}
        for view, values in batch:
            by_view.setdefault(view, []).append(values)
        wants = []
        for view, entities in by_view.items():
            table = self._tables[view]
            current, bound, counters = self._resolve(table)
            if current is not view or not bound.is_cached:
                continue  # another schema by now, or no longer to be kept
            keys = [view.key(values) for values in entities]
            wants.append(Want(view, table, bound, counters, keys))
        return wants

    def drain(self) -> None:
        """Wait until nothing waits; for tests."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
            time.sleep(0.001)

    def stats(self) -> RewarmStats:
        """The counts now."""
        return RewarmStats(self._read, self._dropped, self._spared, self._errors)
