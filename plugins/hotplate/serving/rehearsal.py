"""Reading entities through the cache for what that leaves behind: in this process, and shared.

The same path as a request's, so a policy that forbids to keep something forbids it here, a row that
is there already is not read again, and one that is invalidated meanwhile is not kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hotplate.contracts import NO_LEASE_NEEDED, Lease
from hotplate.core.request import Bound, Want
from hotplate.durations import NO_LIMIT_NS
from hotplate.keys import EntityShape
from hotplate.serving.entities import declared_shape
from hotplate.serving.policies import feature_views_of
from hotplate.serving.runtime import Runtime
from hotplate.sources.redis import is_redis_store
from hotplate.warming.hot_keys import HotKey
from hotplate.warming.warmer import Batch

__all__ = ["Rehearsal", "Warmable"]

_FEW_AT_ONCE: Final = 16  # p99 beside a warmer: 1.05 of that alone; with 50, 1.14
_MANY_AT_ONCE: Final = 50
_HEARD_S: Final = 2.0
_POLL_S: Final = 0.005
_ROW_BYTES: Final = 33 + 32 + 90  # of a row beside its cells: object, key, slot; see tiers.memory
_LIMITS: Final = {"int64_val": 1 << 63, "int32_val": 1 << 31}
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "int64_val": (int,),
    "int32_val": (int,),
    "unix_timestamp_val": (int,),
    "string_val": (str,),
    "double_val": (float, int),
    "float_val": (float, int),
    "bool_val": (bool,),
}


@dataclass(frozen=True)
class Warmable:
    """What is read for entities of one kind.

    Attributes:
        entity: their join keys, with commas.
        shape: of their keys.
        views: names of the feature views.
        row_bytes: what their rows take in memory for one entity, texts aside.
    """

    entity: str
    shape: EntityShape
    views: tuple[str, ...]
    row_bytes: int

    def values_of(self, key: str) -> tuple[Any, ...] | None:
        """The values of a key as it stands in the traffic log; None where it is none of these."""
        try:
            said = json.loads(key)
        except ValueError:
            return None
        if not isinstance(said, list) or len(said) != len(self.shape.types):
            return None
        values = []
        for value, kind in zip(said, self.shape.types, strict=True):
            if kind == "bytes_val" and isinstance(value, str):
                try:
                    value = bytes.fromhex(value)
                except ValueError:
                    return None
            elif type(value) not in _KINDS.get(kind, ()):
                return None
            limit = _LIMITS.get(kind)
            if limit and not -limit <= value < limit:
                return None
            values.append(value)
        return tuple(values)


class Rehearsal:
    """Reads entities of a deployment through its cache.

    Args:
        store: the Feast store.
        runtime: of its cache.
        groups: only these, or feature views of these names; all of them if empty.

    Raises:
        KeyError: a name is neither a group nor a feature view; the message says which there are.
    """

    def __init__(self, store: Any, runtime: Runtime, groups: Sequence[str] = ()) -> None:
        self._runtime = runtime
        runtime.policies.renew(store.registry, store.project, runtime.clock.now_ns())
        self._tables: dict[str, list[Any]] = {}
        self._kinds: dict[str, Warmable] = {}
        found: dict[EntityShape, list[tuple[Any, Bound, int]]] = {}
        self.shortest_ttl_ns = NO_LIMIT_NS
        """Of all that can be kept warm."""
        self._unheard: list[Lease] = []  # under which event-coherent rows are kept
        names: set[str] = set()
        for table in feature_views_of(store.registry, store.project):
            group, bound = runtime.policies.bound(table)
            names |= {group, table.name}
            is_wanted = not groups or group in groups or table.name in groups
            if not is_wanted or not bound.is_cached or not table.features:
                continue
            view, bound, _ = runtime.resolve(table)
            if bound.lease is not NO_LEASE_NEEDED:
                self._unheard.append(bound.lease)
            self.shortest_ttl_ns = min(self.shortest_ttl_ns, bound.policy.ttl_ns)
            if runtime.rewarmer is not None:
                runtime.rewarmer.know(view, table)
            shape = declared_shape(table)
            found.setdefault(shape, []).append((table, bound, view.layout.fixed_end))
        unknown = sorted(set(groups) - names)
        if unknown:
            raise KeyError(
                f"there is no group and no feature view {unknown[0]!r}; there are: "
                f"{', '.join(sorted(names))}"
            )
        # where views disagree about an entity's type, those of the most of them are read
        for shape, tables in sorted(found.items(), key=lambda item: len(item[1])):
            entity = ",".join(shape.join_keys)
            self._tables[entity] = [table for table, _, _ in tables]
            self._kinds[entity] = Warmable(
                entity,
                shape,
                tuple(sorted(table.name for table, _, _ in tables)),
                sum(size + _ROW_BYTES for _, _, size in tables),
            )

    @property
    def kinds(self) -> Mapping[str, Warmable]:
        """What can be kept warm, by the join keys of its entities."""
        return self._kinds

    @property
    def most_at_once(self) -> int:
        """Rows that live reads can wait for: Redis answers nobody else meanwhile."""
        return _FEW_AT_ONCE if is_redis_store(self._runtime.wrapped.store()) else _MANY_AT_ONCE

    def table(self, entity: str, view: str) -> Any | None:
        """Feast's feature view of a name, where its rows are kept warm for such entities."""
        tables = self._tables.get(entity, ())
        return next((table for table in tables if table.name == view), None)

    def restricted(self, entity: str, views: Iterable[str]) -> Warmable | None:
        """What of a kind is kept warm where only some views are read; None where nothing is."""
        kind = self._kinds.get(entity)
        read = set(views)
        if kind is None:
            return None
        tables = [table for table in self._tables[entity] if table.name in read]
        if not tables:
            return None
        self._tables[entity] = tables
        sizes = [self._runtime.resolve(table)[0].layout.fixed_end for table in tables]
        names = tuple(sorted(table.name for table in tables))
        size = sum(sizes) + _ROW_BYTES * len(sizes)
        made = self._kinds[entity] = Warmable(entity, kind.shape, names, size)
        return made

    def batches(self, entity: str, keys: Sequence[tuple[Any, ...]], most: int) -> list[Batch]:
        """Entities in batches of at most so many reads."""
        views = len(self._tables[entity])
        step = max(1, most // views)
        return [
            Batch(entity, keys[at : at + step], len(keys[at : at + step]) * views)
            for at in range(0, len(keys), step)
        ]

    def named(self, keys: Sequence[HotKey], most: int) -> list[Batch]:
        """Entities of views in batches of at most so many reads, in their order.

        Each view gets batches of its own: what was hot of one need not be hot of another.
        """
        by_view: dict[tuple[str, str], list[tuple[int, tuple[Any, ...]]]] = {}
        for place, key in enumerate(keys):
            kind = self._kinds.get(key.entity)
            values = None if kind is None else kind.values_of(key.key)
            if values is not None and kind is not None and key.view in kind.views:
                by_view.setdefault((key.entity, key.view), []).append((place, values))
        found = []
        for (entity, view), placed in by_view.items():
            for at in range(0, len(placed), most):
                some = placed[at : at + most]
                batch = Batch(entity, [values for _, values in some], len(some), (view,))
                found.append((some[0][0], batch))
        return [batch for _, batch in sorted(found, key=lambda pair: pair[0])]

    def read(self, batch: Batch) -> None:
        """Read a batch.

        Raises:
            Exception: whatever the source raised.
        """
        runtime = self._runtime
        if self._unheard:
            self._let_hear()
        runtime.engine.read(self._wants(batch), runtime.clock.now_ns(), is_rehearsed=True)

    def _let_hear(self) -> None:
        """Wait until the event channel is whole: what is read before that is forgotten by then."""
        unheard, self._unheard = self._unheard, []
        until_s = time.monotonic() + _HEARD_S
        now_ns = self._runtime.clock.now_ns
        while not all(lease.is_valid(now_ns()) for lease in unheard):
            if time.monotonic() > until_s:
                return
            time.sleep(_POLL_S)

    def drop(self, batch: Batch) -> None:
        """Let a batch that was read go from memory."""
        keys = [key for want in self._wants(batch) for key in want.keys]
        self._runtime.engine.memory.forget(keys)

    def _wants(self, batch: Batch) -> list[Want]:
        wants = []
        for table in self._tables[batch.entity]:
            if batch.views and table.name not in batch.views:
                continue
            view, bound, counters = self._runtime.resolve(table)
            keys = [view.key(values) for values in batch.keys]
            wants.append(Want(view, table, bound, counters, keys))
        return wants

    def touch(self, batches: Sequence[Batch]) -> None:
        """Mark what was read as used, the first batches last: they are the most valuable."""
        get = self._runtime.engine.memory.get
        for batch in reversed(batches):
            for table in self._tables[batch.entity]:
                if batch.views and table.name not in batch.views:
                    continue
                view = self._runtime.resolve(table)[0]
                for values in reversed(batch.keys):
                    get(view.key(values))

    @property
    def is_full(self) -> bool:
        """Whether more of it would push out what is there, and nobody else would have it."""
        return self._runtime.shared() is None and self._runtime.engine.memory.is_nearly_full
