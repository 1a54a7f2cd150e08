"""Several views of Feast's Redis store in one round trip.

Feast's own `get_online_features` sends one pipeline for all views, its `online_read` one for each.
This reader uses the same building blocks of `RedisOnlineStore` (its keys, its hash fields, its
client) and packs the replies without going through a protobuf message for every value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from feast import RepoConfig
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.infra.online_stores.helpers import _mmh3, compute_versioned_name
from google.protobuf.timestamp_pb2 import Timestamp

from hotplate.codec import SourceRow, event_us
from hotplate.contracts import LoadRequest, View
from hotplate.sources.feast import entity_keys, names_of

__all__ = ["RedisReader", "is_redis_store"]

_Command = tuple[bytes, list[str | bytes]]


def is_redis_store(store: Any) -> bool:
    """Whether a store is Feast's Redis store with the parts that this reader uses.

    A subclass that reads in another way is not: it keeps its own `online_read`.
    """
    try:
        from feast.infra.online_stores.redis import RedisOnlineStore
    except ImportError:  # Feast without its redis extra
        return False
    return type(store) is RedisOnlineStore and hasattr(store, "_read_hash_fields")


class RedisReader:
    """Reads hashes of several views in one pipeline.

    Args:
        store: returns the wrapped `RedisOnlineStore`.
        config: returns its configuration.
    """

    def __init__(self, store: Callable[[], Any], config: Callable[[], RepoConfig]) -> None:
        self._store = store
        self._config = config
        self._fields: dict[tuple[View, str], list[str | bytes]] = {}

    def load(self, requests: Sequence[LoadRequest]) -> list[list[bytes]]:
        config = self._config()
        replies = self._store()._read_hash_fields(config, self._commands(config, requests))
        return _pack(requests, replies)

    async def load_async(self, requests: Sequence[LoadRequest]) -> list[list[bytes]]:
        config = self._config()
        client = await self._store()._get_client_async(config.online_store)
        async with client.pipeline(transaction=False) as pipe:
            for key, fields in self._commands(config, requests):
                pipe.hmget(key, fields)
            replies = await pipe.execute()
        return _pack(requests, replies)

    def _commands(self, config: RepoConfig, requests: Sequence[LoadRequest]) -> list[_Command]:
        project = config.project.encode()
        version = config.entity_key_serialization_version
        return [
            (serialize_entity_key(key, entity_key_serialization_version=version) + project, fields)
            for request in requests
            for fields in (self._fields_of(config, request),)
            for key in entity_keys(request)
        ]

    def _fields_of(self, config: RepoConfig, request: LoadRequest) -> list[str | bytes]:
        name = compute_versioned_name(
            request.table, config.registry.enable_online_feature_view_versioning
        )
        known = (request.view, name)
        fields = self._fields.get(known)
        if fields is None:
            fields = [_mmh3(f"{name}:{feature}") for feature in names_of(request)]
            fields.append(f"_ts:{name}")
            self._fields[known] = fields
        return fields


def _pack(requests: Sequence[LoadRequest], replies: Sequence[Sequence[Any]]) -> list[list[bytes]]:
    packed: list[list[bytes]] = []
    at = 0
    for request in requests:
        encode = request.view.layout.encode
        rows = replies[at : at + len(request.keys)]
        at += len(request.keys)
        packed.append([encode(SourceRow(_moment_us(row[-1]), _values(row))) for row in rows])
    return packed


def _values(reply: Sequence[Any]) -> list[bytes]:
    # Feast answers a field that is not in the hash with an unset value, PRESENT
    return [value or b"" for value in reply[:-1]]


def _moment_us(raw: bytes | None) -> int | None:
    stamp = Timestamp()
    if raw:
        stamp.ParseFromString(raw)
    # through a float, as Feast does it, so that the microseconds agree
    return event_us(datetime.fromtimestamp(stamp.seconds + stamp.nanos / 1e9, tz=UTC))
