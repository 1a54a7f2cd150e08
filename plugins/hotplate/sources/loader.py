"""Loaders as a source: a batch of entities in, packed rows out, within a limit and a timeout.

A load is cut into batches, each of which is one query or one call and takes its turn among
`max_concurrent` of the loader's. All of them together have the loader's `timeout`, the wait for a
turn included; what has not begun by then never begins. Threads and event loops wait for the same
futures, so both are answered alike, and neither runs the query itself.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any, Protocol

from hotplate.clock import Clock
from hotplate.contracts import LoadRequest
from hotplate.errors import LoaderError, LoaderTimeoutError
from hotplate.imports import imported
from hotplate.loaders import LoaderSettings
from hotplate.sources.loaded import Columns, columns_of, encode_loaded, entities_of
from hotplate.sources.sql import SqlQuery
from hotplate.sources.workers import Workers, run_on_loop
from hotplate.stats import LoaderCounters

__all__ = ["Loader", "Loading"]


class Query(Protocol):
    """What a loader asks; it blocks until there is an answer."""

    def prepare(self, view: str, join_keys: Sequence[str]) -> None:
        """Make ready what later calls share, before anybody's time runs."""

    def batch_size(self, join_keys: Sequence[str]) -> int:
        """How many entities one call may ask for."""

    def __call__(self, view: str, entities: Mapping[str, list[Any]], deadline_s: float) -> Columns:
        """Ask for a batch."""

    def close(self) -> None:
        """Close what was opened; a later call opens it again."""


class Loader:
    """One loader of the deployment; nothing is opened or started before its first load.

    Args:
        settings: what the deployment says of it.
        clock: where the event timestamps come from that the loader does not give.
    """

    def __init__(self, settings: LoaderSettings, clock: Clock) -> None:
        self.settings = settings
        self.counters = LoaderCounters()
        self._clock = clock
        self._workers = Workers(settings.max_concurrent, f"hotplate-loader-{settings.name}")
        self._query: Query = FunctionCall(settings) if settings.sql is None else SqlQuery(settings)

    def __repr__(self) -> str:
        return f"Loader({self.settings.name!r}, {self.settings.kind})"

    def start(self, request: LoadRequest) -> Loading:
        """Begin to read every key of a request.

        Raises:
            LoaderError: the loader cannot be used at all.
        """
        view, join_keys = request.view.identity.view, request.view.identity.shape.join_keys
        self._query.prepare(view, join_keys)
        deadline_s = time.monotonic() + self.settings.timeout_s
        size = self._query.batch_size(join_keys)
        batches = [
            LoadRequest(request.view, request.table, request.keys[at : at + size])
            for at in range(0, len(request.keys), size)
        ]
        return Loading(
            self, view, [self._submit(batch, deadline_s) for batch in batches], deadline_s
        )

    def close(self) -> None:
        """Close what was opened; a later load opens it again."""
        self._query.close()

    def _submit(self, batch: LoadRequest, deadline_s: float) -> Future[list[bytes]]:
        return self._workers.submit(lambda: self._load(batch, deadline_s))

    def _load(self, batch: LoadRequest, deadline_s: float) -> list[bytes]:
        """One query, on a thread of the loader's own."""
        view = batch.view.identity.view
        if time.monotonic() >= deadline_s:
            raise _timed_out(self.settings, view, has_begun=False)
        now_us = self._clock.wall_ns() // 1_000
        counters = self.counters
        counters.queries += 1
        counters.entities += len(batch.keys)
        try:
            columns = self._query(view, entities_of(batch), deadline_s)
            rows = encode_loaded(batch, columns, self.settings.event_timestamp_column, now_us)
        except Exception as error:
            counters.errors += 1
            error.add_note(f"raised by the loader of feature view {view!r}")
            raise
        counters.found += len(next(iter(columns.values()), ()))
        return rows


class Loading:
    """A load under way.

    Args:
        loader: whose.
        view: the feature view's name.
        batches: one future a batch, in the order of the keys.
        deadline_s: when to give up, on `time.monotonic`.
    """

    def __init__(
        self, loader: Loader, view: str, batches: Sequence[Future[list[bytes]]], deadline_s: float
    ) -> None:
        self._loader = loader
        self._view = view
        self._batches = batches
        self._deadline_s = deadline_s

    def result(self) -> list[bytes]:
        """Block this thread until all rows are there.

        Raises:
            LoaderTimeoutError: they did not come in time.
            Exception: whatever the database or the function raised.
        """
        try:
            wait(self._batches, self._left_s(), FIRST_EXCEPTION)
            return self._landed()
        finally:
            self.abandon()

    async def result_async(self) -> list[bytes]:
        """The same on the running event loop."""
        waiting = [asyncio.wrap_future(batch) for batch in self._batches]
        try:
            await asyncio.wait(waiting, timeout=self._left_s(), return_when=asyncio.FIRST_EXCEPTION)
            return self._landed()
        finally:
            for future in waiting:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # looked at, so that asyncio does not complain of it
            self.abandon()

    def abandon(self) -> None:
        """Let no batch begin that has not begun."""
        for batch in self._batches:
            batch.cancel()

    def _left_s(self) -> float:
        return max(0.0, self._deadline_s - time.monotonic())

    def _landed(self) -> list[bytes]:
        late = False
        for batch in self._batches:
            if not batch.done():
                late = True
            elif (error := batch.exception()) is not None:
                if isinstance(error, LoaderTimeoutError):
                    self._loader.counters.timeouts += 1
                raise error
        if late:
            self._loader.counters.timeouts += 1
            has_begun = any(batch.running() for batch in self._batches)
            raise _timed_out(self._loader.settings, self._view, has_begun=has_begun)
        return [row for batch in self._batches for row in batch.result()]


class FunctionCall:
    """Calls a loader's function, which is imported when it is first needed.

    Args:
        settings: of the loader.
    """

    def __init__(self, settings: LoaderSettings) -> None:
        self._settings = settings
        self._function: Callable[[dict[str, list[Any]]], Any] | None = None

    def close(self) -> None:
        """What the function opened is its own affair."""

    def batch_size(self, join_keys: Sequence[str]) -> int:
        return self._settings.max_batch

    def prepare(self, view: str, join_keys: Sequence[str]) -> None:
        """Import the function.

        Raises:
            LoaderError: there is no such function.
        """
        if self._function is not None:
            return
        try:
            self._function = imported(self._settings.function or "")
        except ImportError as error:
            raise LoaderError(
                view=view,
                problem=f"its function {error}",
                fix="Correct the path, 'package.module:function', or install the package where "
                "the features are served.",
            ) from error
        except TypeError as error:
            raise LoaderError(
                view=view, problem=str(error), fix="Name one that can be called."
            ) from None

    def __call__(self, view: str, entities: Mapping[str, list[Any]], deadline_s: float) -> Columns:
        function = self._function
        assert function is not None, "prepare comes first"
        answer = function(dict(entities))
        if inspect.iscoroutine(answer):
            answer = self._await(view, answer, deadline_s)
        return columns_of(view, answer)

    def _await(self, view: str, answer: Coroutine[Any, Any, Any], deadline_s: float) -> Any:
        """Run a coroutine on the loaders' event loop, and stop it when its time is over."""
        running = run_on_loop(answer)
        wait((running,), max(0.0, deadline_s - time.monotonic()))
        if not running.done():
            running.cancel()
            raise _timed_out(self._settings, view, has_begun=True)
        return running.result()


def _timed_out(settings: LoaderSettings, view: str, *, has_begun: bool) -> LoaderTimeoutError:
    """The error for a caller that has waited long enough."""
    limit = f"its timeout of {settings.timeout_s:g} s"
    if has_begun:
        problem = f"it did not answer within {limit}"
        fix = "Speed it up, or raise the timeout."
    else:
        turns = settings.max_concurrent
        problem = f"none of its {turns} turns (max_concurrent) came free within {limit}"
        fix = "Speed it up, or raise max_concurrent or the timeout."
    return LoaderTimeoutError(view=view, problem=problem, fix=fix)
