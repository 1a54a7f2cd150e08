"""The wrapped store: its configuration, one instance for threads and one for each event loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from feast import RepoConfig
from feast.infra.online_stores.helpers import get_online_store_from_config
from feast.infra.online_stores.online_store import OnlineStore
from feast.infra.online_stores.sqlite import SqliteOnlineStore

from hotplate.forks import leave_behind

__all__ = ["WrappedStore"]

_FREE: Final = contextlib.nullcontext()


class WrappedStore:
    """The store inside, made when it is first needed.

    Async clients belong to the event loop that made them; Feast's stores keep one client for good,
    so a second `asyncio.run` fails with "Event loop is closed". Here every loop has a store of its
    own. A forked child makes new ones.

    Args:
        settings: the wrapped store's `online_store` settings.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._configs: tuple[tuple[RepoConfig, RepoConfig], ...] = ()
        self._store: OnlineStore | None = None
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, OnlineStore] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._pid = os.getpid()
        self._reads_async: bool | None = None

    def config(self, outer: RepoConfig) -> RepoConfig:
        """The configuration that the wrapped store is given in place of `outer`."""
        for known, derived in self._configs:
            if known is outer:
                return derived
        inner = outer.model_copy()
        inner.online_config = dict(self._settings)
        inner._online_store = None
        # Feast hands over one or two equal objects; keep the last few, newest first
        self._configs = ((outer, inner), *self._configs[:3])
        return inner

    def current_config(self) -> RepoConfig:
        """The last configuration derived; there is one once any call came through Feast."""
        if not self._configs:
            raise RuntimeError("the wrapped store has no configuration yet")
        return self._configs[0][1]

    @property
    def reads_async(self) -> bool:
        """Whether the store has async reads at all; where not, it refuses them itself.

        Otherwise a hit would answer what a miss cannot: such an error would wait for production.
        """
        if self._reads_async is None:
            kind = type(self.store())
            self._reads_async = any(
                getattr(kind, name) is not getattr(OnlineStore, name)
                for name in ("online_read_async", "_read_features_per_fv_async")
            )
        return self._reads_async

    def store(self) -> OnlineStore:
        """The wrapped store for synchronous calls."""
        self._notice_fork()
        if self._store is None:
            with self._lock:
                if self._store is None:
                    self._store = self._make()
        return self._store

    def reading(self) -> AbstractContextManager[Any]:
        """What a thread holds while it reads: a lock where the store can serve only one at a time.

        Feast's SQLite store shares one connection among all threads. On Python 3.13 two reads at
        once fail or get each other's rows, and the cache reads on threads of its own (refresh).
        """
        self._notice_fork()
        return self._reading if isinstance(self.store(), SqliteOnlineStore) else _FREE

    def store_async(self) -> OnlineStore:
        """The wrapped store of the running event loop."""
        self._notice_fork()
        loop = asyncio.get_running_loop()
        store = self._by_loop.get(loop)
        if store is None:
            with self._lock:
                for other in [known for known in list(self._by_loop) if known.is_closed()]:
                    del self._by_loop[other]  # its clients refer to it, so it would never go
                store = self._by_loop[loop] = self._make()
        return store

    def _make(self) -> OnlineStore:
        return get_online_store_from_config(self.current_config().online_store)

    def _notice_fork(self) -> None:
        if self._pid == os.getpid():
            return
        leave_behind(self._store, self._by_loop)
        self._store = None
        self._by_loop = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._pid = os.getpid()

    async def close(self) -> None:
        """Close what was opened; calling it again does nothing."""
        self._notice_fork()
        store, self._store = self._store, None
        mine = self._by_loop.pop(asyncio.get_running_loop(), None)
        for opened in (store, mine):
            if opened is not None:
                await opened.close()
                await _close_clients(opened)


async def _close_clients(store: OnlineStore) -> None:
    """Close what Feast's Redis and Postgres stores leave open: they do not close themselves."""
    for name in ("_client_async", "_conn_async", "_conn_pool_async", "_conn", "_conn_pool"):
        client = getattr(store, name, None)
        if client is None:
            continue
        closing = client.aclose() if hasattr(client, "aclose") else client.close()
        if inspect.isawaitable(closing):
            await closing
