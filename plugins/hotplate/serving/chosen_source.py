"""The wrapped store as a source, read in the fastest way there is for its kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotplate.contracts import Source
from hotplate.serving.wrapped import WrappedStore
from hotplate.sources.feast import FeastSource
from hotplate.sources.postgres import PostgresReader, is_postgres_store
from hotplate.sources.redis import RedisReader, is_redis_store

__all__ = ["ChosenSource"]


class ChosenSource:
    """The fastest way to read the wrapped store, chosen when it is first read."""

    def __init__(self, wrapped: WrappedStore) -> None:
        self._wrapped = wrapped
        self._sync: Source | None = None
        self._async: Source | None = None

    def load(self, requests: Sequence[Any]) -> Sequence[list[bytes] | Exception]:
        if self._sync is None:
            self._sync = self._choose(self._wrapped.store)
        return self._sync.load(requests)

    async def load_async(self, requests: Sequence[Any]) -> Sequence[list[bytes] | Exception]:
        if self._async is None:
            self._async = self._choose(self._wrapped.store_async)
        return await self._async.load_async(requests)

    def _choose(self, store: Any) -> Source:
        wrapped = self._wrapped
        if is_redis_store(store()):
            return RedisReader(store, wrapped.current_config)
        if is_postgres_store(store()):
            return PostgresReader(store, wrapped.current_config)
        return FeastSource(store, wrapped.current_config, wrapped.reading)
