"""The wrapped Feast online store as a source: keys in, packed rows out.

A store's own entry point (`online_read`) reads one view. Where Feast's store can read several
views in one round trip (Redis, Postgres) a reader of that store does the same here, so that a
request that misses everything still costs one round trip; see `redis.py` and `postgres.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from feast import RepoConfig
from feast.infra.online_stores.online_store import OnlineStore

from hotplate.codec import Layout, SourceRow, event_us
from hotplate.contracts import LoadRequest
from hotplate.keys import entity_key, values_of

__all__ = ["FeastSource", "encode_rows", "entity_keys", "names_of"]


class FeastSource:
    """Reads a Feast online store through its public interface.

    Args:
        store: returns the wrapped store; a function, because a forked child gets a new one.
        config: the wrapped store's configuration.
        reading: what a thread holds while it reads.
    """

    def __init__(
        self,
        store: Callable[[], OnlineStore],
        config: Callable[[], RepoConfig],
        reading: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._store = store
        self._config = config
        self._reading = reading

    def load(self, requests: Sequence[LoadRequest]) -> list[list[bytes]]:
        store, config = self._store(), self._config()
        with self._reading():
            answers = [
                store.online_read(config, request.table, entity_keys(request), names_of(request))
                for request in requests
            ]
        return [
            encode_rows(request, answer) for request, answer in zip(requests, answers, strict=True)
        ]

    async def load_async(self, requests: Sequence[LoadRequest]) -> list[list[bytes]]:
        store, config = self._store(), self._config()
        answers = await asyncio.gather(
            *(
                store.online_read_async(
                    config, request.table, entity_keys(request), names_of(request)
                )
                for request in requests
            )
        )
        return [
            encode_rows(request, answer) for request, answer in zip(requests, answers, strict=True)
        ]


def names_of(request: LoadRequest) -> list[str]:
    """The names of a view's features, a new list each time: some stores append to it."""
    return [column.name for column in request.view.layout.columns]


def entity_keys(request: LoadRequest) -> list[Any]:
    """Feast's entity keys of a request."""
    shape = request.view.identity.shape
    return [entity_key(shape, values_of(key)) for key in request.keys]


def encode_rows(
    request: LoadRequest, answer: Sequence[tuple[datetime | None, dict[str, Any] | None]]
) -> list[bytes]:
    """Pack what `online_read` returned.

    Raises:
        RuntimeError: the store did not return one row a key.
    """
    if len(answer) != len(request.keys):
        raise RuntimeError(
            f"the online store returned {len(answer)} rows of feature view "
            f"{request.view.identity.view!r} for {len(request.keys)} entities"
        )
    layout = request.view.layout
    names = [column.name for column in layout.columns]
    return [_encode(layout, names, moment, values) for moment, values in answer]


def _encode(
    layout: Layout, names: list[str], moment: datetime | None, values: dict[str, Any] | None
) -> bytes:
    found = values or {}
    return layout.encode(SourceRow(event_us(moment), [found.get(name) for name in names]))
