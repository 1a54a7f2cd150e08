"""Feast's own path through a request, with the cache below it.

Requests that no plan covers (on-demand views, request data, version metadata, keys of unknown
type) go through Feast's `get_online_features`. It asks the store for its views in one call, which
lands here: the rows come from the engine, the response is populated as Feast does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from feast import FeatureService, utils
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus
from feast.protos.feast.types.EntityKey_pb2 import EntityKey

from hotplate.codec import DEFAULTED, FLAGS_AT, Layout, is_absent
from hotplate.core.engine import Answer, Want
from hotplate.serving.defaults import default_of, with_default

if TYPE_CHECKING:
    from hotplate.serving.runtime import Runtime

__all__ = [
    "ViewRead",
    "feast_rows",
    "is_synthetic",
    "populate",
    "prepare",
    "read_of",
    "without_vectors",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SYNTHETIC: Final = "__precomputed__"


@dataclass(frozen=True)
class ViewRead:
    """What is read of one view, and where each entity's row lies among the wants' rows.

    Attributes:
        places: for each entity (index of the want in `wants`, position in it).
        indexes: for each entity the request rows that it answers.
    """

    table: Any
    requested: Sequence[str]
    wants: Sequence[Want]
    places: Sequence[tuple[int, int]]
    indexes: Sequence[Sequence[int]] = ()
    output_len: int = 0


def is_synthetic(table: Any) -> bool:
    """Whether Feast made this view up to keep precomputed vectors in."""
    return str(table.name).startswith(_SYNTHETIC)


def read_of(
    runtime: Runtime, table: Any, keys: Sequence[EntityKey], requested: Sequence[str] | None
) -> ViewRead:
    """The read of one view for Feast's entity keys."""
    names = list(requested) if requested else [field.name for field in table.features]
    wants, places = runtime.wants(table, keys, names)
    return ViewRead(table, names, wants, places)


def prepare(
    runtime: Runtime,
    grouped_refs: Sequence[tuple[Any, Sequence[str]]],
    join_key_values: dict[str, Any],
    entity_map: dict[str, str],
) -> list[ViewRead]:
    """The reads of a request, its entities resolved as Feast does it."""
    reads = []
    for table, requested in grouped_refs:
        entities, indexes, output_len = utils._get_unique_entities(
            table, join_key_values, entity_map
        )
        keys = utils._get_entity_key_protos(entities)
        wants, places = runtime.wants(table, keys, requested)
        reads.append(ViewRead(table, requested, wants, places, indexes, output_len))
    return reads


def feast_rows(
    read: ViewRead, rows: Sequence[Sequence[bytes]]
) -> list[tuple[datetime | None, dict[str, Any] | None]]:
    """Rows as Feast's `online_read` returns them, the requested features only."""
    return [
        _feast_row(read.wants[want].view.layout, rows[want][at], read.requested)
        for want, at in read.places
    ]


def _feast_row(
    layout: Layout, row: bytes, requested: Sequence[str]
) -> tuple[datetime | None, dict[str, Any] | None]:
    moment_us = layout.event_us(row)
    moment = None if moment_us is None else _EPOCH + timedelta(microseconds=moment_us)
    values = layout.values(row)
    found = {
        name: value
        for name in requested
        if (position := layout.positions.get(name)) is not None
        and (value := values[position]) is not None
    }
    return (None, None) if moment is None and not found else (moment, found)


def populate(
    runtime: Runtime,
    reads: Sequence[ViewRead],
    answer: Answer,
    response: Any,
    is_full: bool,
    with_versions: bool,
) -> None:
    """Write the rows into Feast's response, view by view, as Feast does it."""
    at = 0
    for read in reads:
        rows = answer.rows[at : at + len(read.wants)]
        at += len(read.wants)
        defaults = [default_of(want.view.layout, want.bound.policy.absent) for want in read.wants]
        rows = [with_default(own, one) for own, one in zip(rows, defaults, strict=True)]
        first = len(response.results)
        utils._populate_response_from_feature_data(
            list(read.requested),
            feast_rows(read, rows),
            read.indexes,
            response,
            is_full,
            read.table,
            read.output_len,
            with_versions,
        )
        if any(one is not None for one in defaults):
            _mark_defaults(read, rows, response.results[first:])
        if runtime.settings.enforce_max_age:
            _enforce_max_age(runtime, read, rows, response.results[first:])


def _mark_defaults(read: ViewRead, rows: Sequence[Sequence[bytes]], vectors: Sequence[Any]) -> None:
    """What the source does not know is NOT_FOUND, whatever it is answered with."""
    for (want, at), targets in zip(read.places, read.indexes, strict=True):
        if rows[want][at][FLAGS_AT] & DEFAULTED:
            for vector in vectors:
                for target in targets:
                    vector.statuses[target] = FieldStatus.NOT_FOUND


def _enforce_max_age(
    runtime: Runtime, read: ViewRead, rows: Sequence[Sequence[bytes]], vectors: Sequence[Any]
) -> None:
    ttl = getattr(read.table, "ttl", None)
    if not isinstance(ttl, timedelta) or ttl <= timedelta(0):
        return
    oldest_us = runtime.clock.wall_ns() // 1_000 - ttl // timedelta(microseconds=1)
    for (want, at), targets in zip(read.places, read.indexes, strict=True):
        row = rows[want][at]
        moment_us = read.wants[want].view.layout.event_us(row)
        if moment_us is None or moment_us >= oldest_us or is_absent(row):
            continue
        for vector in vectors:
            for target in targets:
                if vector.statuses[target] == FieldStatus.PRESENT:
                    vector.statuses[target] = FieldStatus.OUTSIDE_MAX_AGE


class _WithoutVectors(FeatureService):  # type: ignore[misc]
    """A feature service without its wish for precomputed vectors.

    Feast computes them where its own Redis store is the online store itself, so through Hotplate
    they would be missing, or left over from before a push. The rows they are made of are read
    through the cache instead: the same values, and never older than their bound.
    """

    def __init__(self, service: FeatureService) -> None:
        self.__dict__.update(service.__dict__)
        self.precompute_online = False
        self._service = service

    def __eq__(self, other: object) -> bool:
        # Feast warns about a service that differs from the registry's; this one only leaves out
        return bool(self._service == other)

    __hash__ = FeatureService.__hash__


def without_vectors(features: Any) -> Any:
    """The features of a request, without a service's wish for precomputed vectors."""
    return _WithoutVectors(features) if getattr(features, "precompute_online", False) else features
