"""Several views of Feast's Postgres store in one query, as Feast's own multi-view read does it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from feast import RepoConfig

from hotplate.contracts import LoadRequest
from hotplate.sources.feast import encode_rows, entity_keys, names_of

__all__ = ["PostgresReader", "is_postgres_store"]


def is_postgres_store(store: Any) -> bool:
    """Whether a store is Feast's Postgres store with the parts that this reader uses."""
    try:
        from feast.infra.online_stores.postgres_online_store.postgres import PostgreSQLOnlineStore
    except ImportError:  # Feast without its postgres extra
        return False
    return type(store) is PostgreSQLOnlineStore and hasattr(
        store, "_construct_batched_query_and_params"
    )


class PostgresReader:
    """Reads the tables of several views in one UNION ALL.

    Args:
        store: returns the wrapped `PostgreSQLOnlineStore`.
        config: returns its configuration.
    """

    def __init__(self, store: Callable[[], Any], config: Callable[[], RepoConfig]) -> None:
        self._store = store
        self._config = config

    def load(self, requests: Sequence[LoadRequest]) -> list[list[bytes]]:
        store, config = self._store(), self._config()
        reads = _reads(store, config, requests)
        query, params = store._construct_batched_query_and_params(config, reads)
        with store._get_conn(config, autocommit=True) as conn, conn.cursor() as cursor:
            cursor.execute(query, params)
            buckets = store._bucket_rows(reads, cursor)
        return _pack(store, requests, reads, buckets)

    async def load_async(self, requests: Sequence[LoadRequest]) -> list[list[bytes]]:
        store, config = self._store(), self._config()
        reads = _reads(store, config, requests)
        query, params = store._construct_batched_query_and_params(config, reads)
        buckets: list[dict[bytes, list[Any]]] = [defaultdict(list) for _ in reads]
        async with store._get_conn_async(config, autocommit=True) as conn, conn.cursor() as cursor:
            await cursor.execute(query, params)
            async for row in cursor:
                store._bucket_row(buckets, row)
        return _pack(store, requests, reads, buckets)


def _reads(store: Any, config: RepoConfig, requests: Sequence[LoadRequest]) -> list[Any]:
    from feast.infra.online_stores.postgres_online_store.postgres import _BatchedRead

    return [
        _BatchedRead(
            table=request.table,
            requested_features=names_of(request),
            keys=store._prepare_keys(entity_keys(request), config.entity_key_serialization_version),
            idxs=(),
            output_len=len(request.keys),
        )
        for request in requests
    ]


def _pack(
    store: Any,
    requests: Sequence[LoadRequest],
    reads: Sequence[Any],
    buckets: Sequence[dict[bytes, list[Any]]],
) -> list[list[bytes]]:
    return [
        encode_rows(request, store._result_from_values_dict(read.keys, bucket))
        for request, read, bucket in zip(requests, reads, buckets, strict=True)
    ]
