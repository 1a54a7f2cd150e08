"""Which views are loaded by a loader, and the source that asks each view's own truth.

A view with a loader is never read from the wrapped store: the loader is its truth. A request that
misses on both kinds asks the loaders on their threads while this one reads the store.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from hotplate.cache_policy import GROUP_TAG
from hotplate.clock import Clock
from hotplate.contracts import LoadRequest, Source
from hotplate.errors import ConfigError, LoaderError
from hotplate.loaders import LoaderSettings
from hotplate.serving.wrapped import WrappedStore
from hotplate.serving.write_back import WriteBack
from hotplate.sources.loader import Loader, Loading
from hotplate.sources.sql import entity_parameter
from hotplate.stats import LoaderStats

__all__ = ["LoadedSource", "Loaders"]

_log = logging.getLogger("hotplate.loaders")


class Loaders:
    """The loaders of one deployment, by the names of views and groups.

    Args:
        settings: by name, as `read_loaders` returns them.
        wrapped: the store that rows are written back into.
        clock: where event timestamps come from.
    """

    def __init__(
        self, settings: Mapping[str, LoaderSettings], wrapped: WrappedStore, clock: Clock
    ) -> None:
        self._by_name = {name: Loader(said, clock) for name, said in settings.items()}
        self._write_back = WriteBack(wrapped)
        self._told: set[str] = set()

    def __len__(self) -> int:
        return len(self._by_name)

    def of(self, table: Any) -> Loader | None:
        """The loader of a feature view: the one named as the view, else as its group."""
        found = self._by_name.get(table.name)
        if found is not None or not self._by_name:
            return found
        return self._by_name.get(_group_of(table))

    def over(self, store: Source) -> Source:
        """The source that asks loaders for their views, and `store` for the rest."""
        return LoadedSource(self, store) if self._by_name else store

    def check_names(self, views: Iterable[Any]) -> None:
        """Refuse a loader that is named as no view and no group.

        Raises:
            ConfigError: for the first such loader, with the nearest known name.
        """
        known = sorted({name for view in views for name in (view.name, _group_of(view))})
        for name in self._by_name:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
                raise ConfigError(
                    f"online_store.loaders[{name!r}]: names no feature view and no group of this "
                    f"feature repo. {hint}"
                )

    def check_views(self, views: Iterable[Any], heard: Collection[str] = ()) -> None:
        """Refuse loaders that cannot load their views.

        Args:
            views: the feature views.
            heard: groups that forget what is written into the wrapped store, whoever writes it.

        Raises:
            LoaderError: the SQL does not bind a view's entities, or what is written back would be
                heard as a change of what was just loaded.
        """
        for view in views:
            loader = self.of(view)
            if loader is None:
                continue
            if loader.settings.sql is not None:
                join_keys = sorted(field.name for field in view.entity_columns)
                entity_parameter(view.name, loader.settings.sql, join_keys)
            if loader.settings.write_back and _group_of(view) in heard:
                raise LoaderError(
                    view=view.name,
                    problem="with write_back and 'coherence: event' around Redis, every load would "
                    "be heard as a change and forgotten",
                    fix="Leave out one of the two.",
                )

    def note_written(self, table: Any) -> None:
        """Say once that what was written into a view with a loader is not what reads answer."""
        if table.name not in self._told and self.of(table) is not None:
            self._told.add(table.name)
            _log.warning(
                "feature view %s has a loader: what is written into the online store is stored "
                "there, and reads answer what the loader says",
                table.name,
            )

    def keep(self, loader: Loader, request: LoadRequest, rows: Sequence[bytes]) -> None:
        """Write loaded rows into the wrapped store, where the loader says so."""
        if loader.settings.write_back and not request.is_check:
            self._write_back.submit(request, rows, loader.counters)

    def kinds(self, views: Iterable[Any]) -> dict[str, dict[str, str]]:
        """Group -> feature view -> kind of its loader, for the views that have one."""
        found: dict[str, dict[str, str]] = {}
        for view in views:
            loader = self.of(view)
            if loader is not None:
                found.setdefault(_group_of(view), {})[view.name] = loader.settings.kind
        return found

    def drain(self) -> None:
        """Wait until everything loaded so far has been written back; for tests."""
        self._write_back.drain()

    def close(self) -> None:
        """Close the loaders' connections; a later load opens new ones."""
        for loader in self._by_name.values():
            loader.close()

    def stats(self) -> dict[str, LoaderStats]:
        """The counts of each loader."""
        return {name: found.counters.snapshot() for name, found in sorted(self._by_name.items())}


class LoadedSource:
    """Asks each view's loader, and the wrapped store for the views without one.

    Where one of them fails, the rows of the others are there all the same.

    Args:
        loaders: the loaders.
        store: reads the wrapped store.
    """

    def __init__(self, loaders: Loaders, store: Source) -> None:
        self._loaders = loaders
        self._store = store

    def load(self, requests: Sequence[LoadRequest]) -> Sequence[list[bytes] | Exception]:
        found: dict[int, list[bytes] | Exception] = {}
        started, stored = self._start(requests, found)
        try:
            try:
                _put(found, stored, self._store.load(stored) if stored else [])
            except Exception as error:  # noqa: BLE001 - handed on as the answer of its part
                _put(found, stored, [error] * len(stored))
            for loader, request, going in started:
                try:
                    rows = going.result()
                except Exception as error:  # noqa: BLE001 - as above
                    found[id(request)] = error
                else:
                    found[id(request)] = rows
                    self._loaders.keep(loader, request, rows)
        finally:
            _abandon(started)
        return [found[id(request)] for request in requests]

    async def load_async(
        self, requests: Sequence[LoadRequest]
    ) -> Sequence[list[bytes] | Exception]:
        found: dict[int, list[bytes] | Exception] = {}
        started, stored = self._start(requests, found)
        try:
            try:
                _put(found, stored, await self._store.load_async(stored) if stored else [])
            except Exception as error:  # noqa: BLE001 - handed on as the answer of its part
                _put(found, stored, [error] * len(stored))
            for loader, request, going in started:
                try:
                    rows = await going.result_async()
                except Exception as error:  # noqa: BLE001 - as above
                    found[id(request)] = error
                else:
                    found[id(request)] = rows
                    self._loaders.keep(loader, request, rows)
        finally:
            _abandon(started)
        return [found[id(request)] for request in requests]

    def _start(
        self, requests: Sequence[LoadRequest], found: dict[int, list[bytes] | Exception]
    ) -> tuple[list[tuple[Loader, LoadRequest, Loading]], list[LoadRequest]]:
        started: list[tuple[Loader, LoadRequest, Loading]] = []
        stored: list[LoadRequest] = []
        for request in requests:
            loader = self._loaders.of(request.table)
            if loader is None:
                stored.append(request)
                continue
            try:
                started.append((loader, request, loader.start(request)))
            except Exception as error:  # noqa: BLE001 - handed on as the answer of its part
                found[id(request)] = error
        return started, stored


def _put(
    found: dict[int, list[bytes] | Exception],
    requests: Sequence[LoadRequest],
    answers: Sequence[list[bytes] | Exception],
) -> None:
    for request, answer in zip(requests, answers, strict=True):
        found[id(request)] = answer


def _abandon(started: Iterable[tuple[Loader, LoadRequest, Loading]]) -> None:
    for _, _, going in started:
        going.abandon()


def _group_of(table: Any) -> str:
    return str((getattr(table, "tags", None) or {}).get(GROUP_TAG, table.name))
