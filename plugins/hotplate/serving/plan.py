"""A request compiled once: which views, which columns, which names, in Feast's own resolution.

What a request asks for, (features or service, full_feature_names, the names of the entity
columns), decides everything but the entities' values. Feast resolves it again on every call; a
plan keeps Feast's own answer for as long as the registry object it came from is the current one
and its cache is valid, so that `apply` and the registry's cache TTL keep their meaning.

Requests that need more than reading rows (on-demand views, request data, an entity column that is
missing or unknown) have no plan: they take Feast's own path, with the cache below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

from feast import utils
from feast.feature_view import DUMMY_ENTITY_ID, DUMMY_ENTITY_VAL
from feast.infra.online_stores.online_store import OnlineStore
from feast.protos.feast.serving.ServingService_pb2 import (
    FeatureList,
    GetOnlineFeaturesResponse,
    GetOnlineFeaturesResponseMetadata,
)
from feast.value_type import ValueType

from hotplate.codec import kind_of
from hotplate.contracts import NO_LEASE_NEEDED, View
from hotplate.core.engine import Bound, Want
from hotplate.keys import Key
from hotplate.sampling import Sampler
from hotplate.serving.defaults import default_of, with_default
from hotplate.stats import AGE_SAMPLE, GroupCounters, HitCounter

__all__ = ["EntityColumn", "Plan", "PlanGroup", "PlanInputs", "compile_plan", "entity_column"]

# declared type -> the Python type that Feast takes over unchanged, value for value
_EXACT: Final = {ValueType.INT64: int, ValueType.INT32: int, ValueType.STRING: str}
_LIMITS: Final = {ValueType.INT64: 1 << 63, ValueType.INT32: 1 << 31}


@dataclass(frozen=True)
class EntityColumn:
    """A column of entity values in the request.

    Attributes:
        name: as the caller names it.
        value_type: declared type.
        kind: the field of Feast's `Value` that holds it.
        exact: the Python type that needs no coercion, or None.
        limit: an integer `n` must hold `-limit <= n < limit`; 0 for other types. Feast refuses
            what does not, and a key must not: it would be another entity's.
    """

    name: str
    value_type: ValueType
    kind: str
    exact: type | None
    limit: int

    def takes(self, values: Sequence[Any]) -> bool:
        """Whether Feast takes over these values, one or more, unchanged."""
        if self.exact is None or set(map(type, values)) != {self.exact}:
            return False
        return not self.limit or (-self.limit <= min(values) and max(values) < self.limit)


class PlanGroup:
    """What a plan reads of one view.

    Attributes:
        view: whose rows.
        table: Feast's feature view, as resolved for this request.
        bound: the policy it is read under.
        counters: its group's counters.
        positions: columns of the layout, in output order.
        spans: (start, end) of their cells in a row.
        names: output names.
        max_age_us: Feast's own `ttl` where enforcing it is on, else 0.
        default: what its absent entities are answered with; see `hotplate.serving.defaults`.
    """

    __slots__ = (
        "_columns",
        "_constant",
        "bound",
        "counters",
        "decode",
        "decode_plain",
        "default",
        "fresh_ns",
        "integer",
        "max_age_us",
        "names",
        "pick",
        "positions",
        "single",
        "spans",
        "table",
        "view",
    )

    def __init__(
        self,
        view: View,
        table: Any,
        bound: Bound,
        counters: GroupCounters,
        columns: Sequence[int],
        outputs: Sequence[tuple[str, int]],
    ) -> None:
        self.view = view
        self.table = table
        self.bound = bound
        self.counters = counters
        self.names = [name for name, _ in outputs]
        self.positions = [position for _, position in outputs]
        self.fresh_ns = bound.surely_fresh_ns
        self.single = columns[0] if len(columns) == 1 and columns[0] >= 0 else None
        self.integer = self.single if view.has_integer_keys else None
        self._constant = list(columns) == [-1]
        self._columns = list(columns)
        self.pick = _picker(self.positions)
        layout = view.layout
        self.spans = [
            (layout.offsets[position], layout.offsets[position] + layout.widths[position])
            for position in self.positions
        ]
        self.decode = layout.decode
        self.decode_plain = layout.decode_plain
        self.max_age_us = 0
        self.default = default_of(layout, bound.policy.absent)

    def keys(self, columns: Sequence[Sequence[Any]], count: int) -> list[Key]:
        """The key of each of `count` request rows."""
        view = self.view
        if self.single is not None:
            if view.has_integer_keys:
                base = view.base
                return [base + value for value in columns[self.single]]
            token = view.token
            return [(token, value) for value in columns[self.single]]
        token = view.token
        if self._constant:
            return [(token, DUMMY_ENTITY_VAL)] * count
        return list(zip(repeat(token), *(columns[index] for index in self._columns), strict=False))

    def want(self, columns: Sequence[Sequence[Any]], count: int) -> Want:
        """What the engine is asked for."""
        return Want(self.view, self.table, self.bound, self.counters, self.keys(columns, count))


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if len(positions) == 1:
        only = positions[0]
        return lambda values: (values[only],)
    return itemgetter(*positions) if positions else lambda values: ()


class _Turn:
    """When a sampler is told of a hit for the next time."""

    __slots__ = ("due", "gap", "sampler")

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.gap = self.due = sampler.gap()


class Plan:
    """A compiled request.

    Attributes:
        entities: the entity columns, in the caller's order.
        groups: what is read of each view.
        names: output names: the entity columns, then the features.
        feature_types: name -> declared type, as Feast's response wants it.
    """

    __slots__ = (
        "__weakref__",
        "_ages_due",
        "_due",
        "_get",
        "_turns",
        "entities",
        "feature_types",
        "groups",
        "has_defaults",
        "hits",
        "is_enforced",
        "lease",
        "names",
        "names_field",
    )

    def __init__(
        self,
        entities: Sequence[EntityColumn],
        groups: Sequence[PlanGroup],
        feature_types: dict[str, ValueType],
        get: Callable[[Key], bytes | None],
        samplers: Sequence[Sampler] = (),
    ) -> None:
        self.entities = tuple(entities)
        self.groups = tuple(groups)
        self.names = [column.name for column in entities]
        for group in groups:
            self.names += group.names
        self.feature_types = feature_types
        self.names_field = GetOnlineFeaturesResponse(
            metadata=GetOnlineFeaturesResponseMetadata(feature_names=FeatureList(val=self.names))
        ).SerializeToString()
        self.is_enforced = any(group.max_age_us for group in groups)
        self.has_defaults = any(group.default is not None for group in groups)
        # one for all groups: a cache has one channel
        leases = [group.bound.lease for group in groups]
        self.lease = next((one for one in leases if one is not NO_LEASE_NEEDED), NO_LEASE_NEEDED)
        self.hits = HitCounter()
        for group in groups:
            group.counters.add_plan(self, self.hits)
        self._get = get
        self._turns = [_Turn(sampler) for sampler in samplers]
        self._ages_due = self._due = 0

    def hit(
        self, columns: Sequence[Sequence[Any]], count: int, now_ns: int
    ) -> list[list[bytes]] | None:
        """The rows of every group, where all of them are in memory and surely fresh; else None."""
        lease = self.lease
        if now_ns > lease.until_ns or lease.unheard[0]:
            return None
        get = self._get
        found: list[list[bytes]] = []
        threshold = b""
        fresh_ns = -2
        for group in self.groups:
            if group.fresh_ns != fresh_ns:
                fresh_ns = group.fresh_ns
                if fresh_ns < 0:
                    return None
                threshold = group.bound.threshold(now_ns)
            if count == 1:
                row = get(
                    group.view.base + columns[group.integer][0]
                    if group.integer is not None
                    else group.keys(columns, 1)[0]
                )
                if row is None or row <= threshold:
                    return None
                found.append([row])
                continue
            rows = [get(key) for key in group.keys(columns, count)]
            try:
                if not min(rows) > threshold:  # type: ignore[type-var, operator]
                    return None
            except TypeError:  # a None among them: not in memory
                return None
            found.append(rows)  # type: ignore[arg-type]
        hits = self.hits
        hits.rows += count
        hits.requests += 1
        if hits.requests >= self._due:
            self._note_some(found, columns, count, now_ns)
        return found

    def _note_some(
        self,
        found: Sequence[Sequence[bytes]],
        columns: Sequence[Sequence[Any]],
        count: int,
        now_ns: int,
    ) -> None:
        """Of one hit of so many record the ages, of one of so many say what was asked for."""
        requests = self.hits.requests
        if requests >= self._ages_due:
            self._ages_due = requests + AGE_SAMPLE
            self._record_ages(found, now_ns)
        for turn in self._turns:
            if requests >= turn.due:
                turn.sampler.note(self.wants(columns, count), turn.gap)
                turn.gap = turn.sampler.gap()
                turn.due = requests + turn.gap
        self._due = min([self._ages_due, *[turn.due for turn in self._turns]])

    def _record_ages(self, found: Sequence[Sequence[bytes]], now_ns: int) -> None:
        for group, rows in zip(self.groups, found, strict=True):
            oldest_ns = int.from_bytes(min(rows)[:8], "big")
            age_ns = now_ns - oldest_ns
            group.counters.ages.add(age_ns / 1e9)
            if age_ns > group.bound.policy.ttl_ns:
                group.counters.served_late += 1

    def with_defaults(self, rows: list[list[bytes]]) -> list[list[bytes]]:
        """Rows of every group, with what it declares in place of those that are absent."""
        if not self.has_defaults:
            return rows
        return [
            with_default(own, group.default) for own, group in zip(rows, self.groups, strict=True)
        ]

    def wants(self, columns: Sequence[Sequence[Any]], count: int) -> list[Want]:
        """What the engine is asked for where memory alone cannot answer."""
        return [group.want(columns, count) for group in self.groups]


@dataclass(frozen=True)
class PlanInputs:
    """What compiling needs from the plugin.

    Attributes:
        resolve: (table, requested features) -> view, bound, counters.
        get: memory lookup.
        is_max_age_enforced: whether Feast's own `ttl` is enforced.
        renew: reads the policies again where the registry was refreshed: (registry, project, now).
        check: refuses versions of views that the wrapped store cannot read.
        samplers: what is told of some of the hits.
    """

    resolve: Callable[[Any, Sequence[str]], tuple[View, Bound, GroupCounters]]
    get: Callable[[Key], bytes | None]
    is_max_age_enforced: bool
    renew: Callable[[Any, str, int], None]
    check: Callable[[Sequence[Any]], None]
    samplers: Sequence[Sampler] = ()


def compile_plan(
    context: tuple[Any, ...], given: Sequence[str], full_names: bool, inputs: PlanInputs
) -> Plan | None:
    """Compile a request, or return None where it needs Feast's own path.

    Args:
        context: Feast's resolution of the features (`utils._get_cached_request_context`).
        given: names of the request's entity columns, in order.
        full_names: whether output names carry the view's name.
        inputs: what compiling needs from the plugin.
    """
    (
        _,
        on_demand,
        entity_map,
        entity_types,
        join_keys,
        grouped_refs,
        wanted,
        request_data,
        is_entityless,
    ) = context
    if on_demand or request_data or not all(name in join_keys for name in given):
        return None
    entities = [entity_column(name, entity_types.get(name)) for name in given]
    groups: list[PlanGroup] = []
    for table, requested in grouped_refs:
        columns = _columns_of(table, entity_map, given, bool(is_entityless))
        if columns is None:
            return None
        if any(index >= 0 and entities[index].value_type is ValueType.UNKNOWN for index in columns):
            return None
        view, bound, counters = inputs.resolve(table, requested)
        kinds = tuple("string_val" if index < 0 else entities[index].kind for index in columns)
        if kinds != view.identity.shape.types:
            return None
        prefix = f"{table.projection.name_to_use()}__" if full_names else ""
        outputs = [
            (prefix + name, view.layout.positions[name])
            for name in requested
            if prefix + name in wanted
        ]
        group = PlanGroup(view, table, bound, counters, columns, outputs)
        if inputs.is_max_age_enforced and isinstance(getattr(table, "ttl", None), timedelta):
            group.max_age_us = table.ttl // timedelta(microseconds=1)
        groups.append(group)
    plan = Plan(
        entities,
        groups,
        OnlineStore._build_feature_types(grouped_refs),
        inputs.get,
        inputs.samplers,
    )
    # two outputs of one name, or Feast's own dummy entity among them: rare enough to leave to Feast
    is_plain = len(set(plan.names)) == len(plan.names) and DUMMY_ENTITY_ID not in plan.names
    return plan if is_plain and groups else None


def entity_column(name: str, value_type: ValueType | None) -> EntityColumn:
    """A column of entity values by its name and declared type."""
    declared = value_type or ValueType.UNKNOWN
    return EntityColumn(
        name, declared, kind_of(declared), _EXACT.get(declared), _LIMITS.get(declared, 0)
    )


def _columns_of(
    table: Any, entity_map: dict[str, str], given: Sequence[str], is_entityless: bool
) -> list[int] | None:
    """For each join key of a view, sorted, the request column that holds it; -1 is the dummy's.

    None where the request does not give all of them.
    """
    sentinels: dict[str, Any] = {name: [index] for index, name in enumerate(given)}
    if is_entityless:
        sentinels[DUMMY_ENTITY_ID] = [-1]
    held = utils._get_table_entity_values(table, entity_map, sentinels)
    needed = {entity_map[name] for name in table.entities}
    if set(held) != needed or not needed:
        return None
    return [held[name][0] for name in sorted(held)]
