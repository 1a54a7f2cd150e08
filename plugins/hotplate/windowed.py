"""Declare time windows over events, in the feature repo.

    from hotplate import windowed_view

    card_activity, card_events = windowed_view(
        name="card_activity",
        entities=[card],
        source=transactions,                  # a PushSource over the table of all events
        event_id="transaction_id",
        schema=[Field(name="transaction_id", dtype=String), Field(name="amount", dtype=Float64)],
        aggregations=[
            Aggregation(column="amount", function="sum", time_window=timedelta(minutes=10)),
            Aggregation(column="amount", function="mean / 30d", time_window=timedelta(hours=1)),
        ],
    )

One statement makes two feature views, because Feast 0.67 cannot push to a view whose columns are
not those of the source: the *event view* holds the raw columns and is pushed to, the *windowed
view* holds the outputs and is read. Both results must be names of the module, which is where
`feast apply` looks for feature views. More windows over the same events are declared with
`events=card_events`.

What is declared travels in a tag of each view, so that `feast apply` publishes it and every
process that reads the registry serves the same windows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

from feast import Entity, FeatureView, Field, PushSource
from feast.aggregation import Aggregation
from feast.data_source import DataSource
from feast.types import Float64, Int64
from feast.value_type import ValueType

from hotplate.cache_policy import EVENTS_TAG, WINDOWS_TAG, CachePolicy
from hotplate.durations import format_duration, parse_duration
from hotplate.windows.errors import WindowSpecError
from hotplate.windows.spec import (
    Aggregate,
    Column,
    EventSpec,
    Window,
    WindowSpec,
    default_hop_ms,
)

__all__ = [
    "CACHE_MODES",
    "EventLog",
    "WindowedView",
    "WindowedViews",
    "event_log_of",
    "read_event_log",
    "windowed_of",
    "windowed_view",
]

CACHE_MODES: Final = ("exact", "never", "ttl")
_TTL: Final = timedelta(seconds=30)
_LATENESS: Final = timedelta(hours=1)
_LATENESS_HOT: Final = timedelta(minutes=1)
_SKEW: Final = timedelta(seconds=5)
_TTL_SHARE: Final = 100
_TAG_VERSION: Final = 1
_RATIO: Final = re.compile(r"(\w+)\s*/\s*(\S+)")
_MS: Final = timedelta(milliseconds=1)
_FLOATS: Final = frozenset({ValueType.FLOAT, ValueType.DOUBLE})
_INTEGERS: Final = frozenset({ValueType.INT32, ValueType.INT64, ValueType.BOOL})
_COUNTED: Final = frozenset({ValueType.STRING, ValueType.BYTES})
_KEYS: Final = frozenset(
    {ValueType.INT32, ValueType.INT64, ValueType.STRING, ValueType.BYTES, ValueType.UNKNOWN}
)
_DISTINCTS: Final = ("approx_count_distinct",)
_OUTPUT_TYPES: Final = {"int64": Int64, "float64": Float64}


class WindowedViews(NamedTuple):
    """What one declaration makes.

    Attributes:
        windowed: the view that is read.
        events: the view that is pushed to.
    """

    windowed: FeatureView
    events: FeatureView


@dataclass(frozen=True)
class EventLog:
    """What an event view's tag says.

    Attributes:
        view: the event view's name.
        spec: what a record holds.
        windows: every window that is computed over the log, of whichever view.
        readers: the windowed views that are computed over it -> their cache mode.
    """

    view: str
    spec: EventSpec
    windows: tuple[Window, ...]
    readers: Mapping[str, str]


@dataclass(frozen=True)
class WindowedView:
    """What a windowed view's tag says.

    Attributes:
        view: the windowed view's name.
        events: the event view's name.
        spec: its outputs.
        cache: `"exact"`, `"never"` or `"ttl"`.
    """

    view: str
    events: str
    spec: WindowSpec
    cache: str


def windowed_view(
    *,
    name: str,
    entities: Sequence[Entity],
    aggregations: Sequence[Aggregation],
    source: PushSource | None = None,
    event_id: str = "",
    schema: Sequence[Field] = (),
    events: FeatureView | None = None,
    lateness: timedelta | None = None,
    skew: timedelta = _SKEW,
    scales: Mapping[str, int] | None = None,
    profile: str = "default",
    delay: timedelta = timedelta(0),
    cache: str = "exact",
    ttl: timedelta = _TTL,
    force: bool = False,
    group: str | None = None,
    backfilled: DataSource | None = None,
    description: str = "",
    owner: str = "",
    tags: Mapping[str, str] | None = None,
) -> WindowedViews:
    """Declare windows over the events of a push source.

    Args:
        name: of the windowed view; the event view is named `<name>_events`.
        entities: whose events they are.
        aggregations: Feast's own. `function` is count, sum, mean, min, max, std, last, first or
            approx_count_distinct, or one of them as a share of a longer window: `"sum / 30d"`.
            `time_window` is the window's length, `slide_interval` its hop; left out, the hop is
            that of the profile. Without a name the output is called as Feast calls it,
            `sum_amount_600s`. `count` without a column counts events.
        source: the push source that events are pushed to. Its batch source is the table of all
            events, with a `created_timestamp_column`: when each arrived.
        event_id: the column that tells events of one entity and one moment apart.
        schema: the raw columns; all of them are kept, so that later windows can use them.
        events: the event view of another declaration, for more windows over the same events;
            instead of `source`, `event_id`, `schema`, `lateness`, `skew` and `scales`.
        lateness: an event that arrives later than this after it happened does not count. Default
            1 h, in the hot profile 1 min.
        skew: an event stamped further in the future than this when it arrives does not count.
        scales: decimals kept of a column; 2 for floats, none for integers.
        profile: `"default"`: windows up to 1 h are exact, longer ones move in steps of at most
            1/24 of their length (20 min for a day, 2 h for 7 days, 12 h for 30 days). `"exact"`:
            all are exact. `"hot"`: none need be, for entities with more than one event a second.
        delay: the windows end this long before now, for values that become known late.
        cache: `"exact"`: a cached row is dropped when an event arrives and when time alone changes
            it. `"never"`: nothing is cached. `"ttl"`: a cached row may be as old as `ttl`, whatever
            happens meanwhile; refused where that is more than 1/100 of the shortest window.
        ttl: the most that a cached row may be old, in every mode.
        force: allow a `ttl` cache over windows that are short beside it.
        group: under which cache group the view is counted; its own name if left out.
        backfilled: where `hotplate windows backfill` writes the outputs, for readers that go past
            Hotplate.
        description, owner, tags: of the windowed view.

    Returns:
        The windowed view and the event view, to be bound to two names of the module.

    Raises:
        WindowSpecError: it cannot work; the message says where, and what to write instead.
    """
    where = f"windowed view {name!r}"
    _check_kinds(where, entities, aggregations, events)
    if events is None:
        event_spec = _event_spec(
            where, source, event_id, schema, entities, aggregations, lateness, skew, scales, profile
        )
        events = _event_view(name, entities, source, schema)
    else:
        given = {"source": source, "event_id": event_id, "schema": schema, "lateness": lateness}
        _check_shared(where, entities, events, {**given, "scales": scales})
        event_spec = _required_log(where, events).spec
    delay_ms = _ms(where, "delay", delay)
    spec = WindowSpec(
        event_spec, tuple(_aggregate(where, one, profile, delay_ms) for one in aggregations)
    )
    policy = _policy(where, spec, cache, ttl, is_forced=force)
    _add_windows(events, name, spec, cache)
    windowed = FeatureView(
        name=name,
        entities=list(entities),
        schema=[
            *events.entity_columns,
            *(
                Field(name=output, dtype=_OUTPUT_TYPES[kind])
                for output, kind in spec.output_types.items()
            ),
        ],
        source=backfilled or events.batch_source,
        ttl=timedelta(0),
        description=description,
        owner=owner,
        tags={
            **(tags or {}),
            **policy.tags(group),
            WINDOWS_TAG: _dump({"events": events.name, "spec": spec.to_json(), "cache": cache}),
        },
    )
    return WindowedViews(windowed, events)


def windowed_of(table: Any) -> WindowedView | None:
    """What a feature view's tag says, or None where it is no windowed view.

    Raises:
        WindowSpecError: the tag cannot be read.
    """
    written = (getattr(table, "tags", None) or {}).get(WINDOWS_TAG)
    if written is None:
        return None
    said = _load(table.name, WINDOWS_TAG, written, ("events", "spec", "cache"))
    return WindowedView(
        table.name, said["events"], WindowSpec.from_json(said["spec"]), said["cache"]
    )


def event_log_of(table: Any) -> EventLog | None:
    """What a feature view's tag says, or None where it is no event view.

    Raises:
        WindowSpecError: the tag cannot be read.
    """
    written = (getattr(table, "tags", None) or {}).get(EVENTS_TAG)
    return None if written is None else read_event_log(table.name, written)


def read_event_log(view: str, written: str) -> EventLog:
    """What the tag of an event view says.

    Raises:
        WindowSpecError: the tag cannot be read.
    """
    said = _load(view, EVENTS_TAG, written, ("spec", "windows", "readers"))
    try:
        windows = tuple(Window(*numbers) for numbers in said["windows"])
    except TypeError:
        raise _unreadable(view, EVENTS_TAG) from None
    return EventLog(view, EventSpec.from_json(said["spec"]), windows, said["readers"])


# -- the parts of a declaration -------------------------------------------------------------------


def _event_spec(
    where: str,
    source: PushSource | None,
    event_id: str,
    schema: Sequence[Field],
    entities: Sequence[Entity],
    aggregations: Sequence[Aggregation],
    lateness: timedelta | None,
    skew: timedelta,
    scales: Mapping[str, int] | None,
    profile: str,
) -> EventSpec:
    _check_source(where, source)
    fields = {field.name: field for field in schema}
    if event_id not in fields:
        raise WindowSpecError(
            where=where,
            problem=f"event_id {event_id!r} is no field of its schema",
            fix="Name the column that tells events apart, and declare it in the schema.",
        )
    join_keys = {entity.join_key for entity in entities}
    if event_id in join_keys:
        raise WindowSpecError(
            where=where,
            problem=f"event_id {event_id!r} is a join key, and so the same for all events of one "
            "entity: all but the first would be duplicates",
            fix="Name the column that tells events apart.",
        )
    for entity in entities:
        declared = fields.get(entity.join_key)
        kind = entity.value_type if declared is None else declared.dtype.to_value_type()
        if kind not in _KEYS:
            raise WindowSpecError(
                where=f"{where}, entity {entity.name!r}",
                problem=f"its key is {kind.name}, and event logs have no keys of that type",
                fix="Declare it as Int32, Int64, String or Bytes.",
            )
    counted = {one.column for one in aggregations if _function(one)[0] in _DISTINCTS}
    unknown = sorted(set(scales or {}) - fields.keys())
    if unknown:
        raise WindowSpecError(
            where=where,
            problem=f"scales names {unknown[0]!r}, which is no field of its schema",
            fix=f"Fields: {', '.join(fields)}.",
        )
    columns = [
        _column(where, field, (scales or {}).get(field.name), is_counted=field.name in counted)
        for field in schema
        if field.name not in join_keys and (field.name != event_id or event_id in counted)
    ]
    if lateness is None:
        lateness = _LATENESS_HOT if profile == "hot" else _LATENESS
    return EventSpec(
        event_id,
        tuple(columns),
        lateness_ms=_ms(where, "lateness", lateness),
        skew_ms=_ms(where, "skew", skew),
    )


def _column(where: str, field: Field, scale: int | None, *, is_counted: bool) -> Column:
    kind = field.dtype.to_value_type()
    if kind not in _FLOATS | _INTEGERS | _COUNTED:
        raise WindowSpecError(
            where=f"{where}, column {field.name!r}",
            problem=f"windows keep no values of type {kind.name}",
            fix="Leave it out of the schema: what is pushed may have more columns.",
        )
    if is_counted or kind not in _FLOATS | _INTEGERS:
        if scale is not None:
            raise WindowSpecError(
                where=f"{where}, column {field.name!r}",
                problem="it has a scale and is only counted",
                fix="Leave out one of the two.",
            )
        return Column.distinct(field.name)
    if kind in _INTEGERS:
        return Column(field.name, "numeric", 0 if scale is None else scale)
    return Column.floats(field.name) if scale is None else Column.floats(field.name, scale)


def _event_view(
    name: str, entities: Sequence[Entity], source: PushSource | None, schema: Sequence[Field]
) -> FeatureView:
    return FeatureView(
        name=f"{name}_events",
        entities=list(entities),
        schema=list(schema),
        source=source,
        ttl=timedelta(0),
        description=f"Events that {name} is computed from",
        tags=CachePolicy(cache="never").tags(),
    )


def _aggregate(where: str, one: Aggregation, profile: str, delay_ms: int) -> Aggregate:
    function, over = _function(one)
    if one.time_window is None:
        raise WindowSpecError(
            where=f"{where}, {one.resolved_name()!r}",
            problem="it has no time_window",
            fix="Say how far it looks back, as in time_window=timedelta(minutes=10).",
        )
    span_ms = _ms(where, "time_window", one.time_window)
    hop_ms = 0
    if one.slide_interval and one.slide_interval != one.time_window:  # Feast fills it in
        hop_ms = _ms(where, "slide_interval", one.slide_interval)
    window = Window(span_ms, hop_ms or default_hop_ms(span_ms, profile), delay_ms)
    longer = None
    if over is not None:
        over_ms = _parsed_ms(where, one.function, over)
        longer = Window(over_ms, hop_ms or default_hop_ms(over_ms, profile), delay_ms)
    return Aggregate(
        _output_name(one, function, span_ms, longer), function, one.column, window, longer
    )


def _function(one: Aggregation) -> tuple[str, str | None]:
    """The function's name and, for a share of a longer window, that window as it is written."""
    ratio = _RATIO.fullmatch(one.function.strip())
    return (ratio[1], ratio[2]) if ratio else (one.function.strip(), None)


def _output_name(one: Aggregation, function: str, span_ms: int, longer: Window | None) -> str:
    if one.name:
        return str(one.name)
    parts = [function, *([one.column] if one.column else []), _seconds(span_ms)]
    return "_".join(parts if longer is None else [*parts, "of", _seconds(longer.span_ms)])


def _seconds(span_ms: int) -> str:
    return f"{span_ms // 1_000}s" if span_ms % 1_000 == 0 else f"{span_ms}ms"


def _policy(
    where: str, spec: WindowSpec, cache: str, ttl: timedelta, *, is_forced: bool
) -> CachePolicy:
    if cache not in CACHE_MODES:
        raise WindowSpecError(
            where=where,
            problem=f"cache {cache!r} is unknown",
            fix=f"Write one of {', '.join(map(repr, CACHE_MODES))}.",
        )
    if cache == "never":
        return CachePolicy(cache="never")
    ttl_ms = _ms(where, "ttl", ttl)
    if cache == "exact":
        # rows expire when their windows change, which spreads them well enough
        return CachePolicy(ttl=ttl, jitter=0, coherence="event")
    shortest = min(spec.windows)
    if shortest.span_ms < _TTL_SHARE * ttl_ms and not is_forced:
        raise WindowSpecError(
            where=where,
            problem=f"a ttl cache of {_shown(ttl_ms)} over a window of {_shown(shortest.span_ms)} "
            "serves values that the window has long left behind",
            fix=f"Write cache='exact', or a ttl of at most {_shown(shortest.span_ms // _TTL_SHARE)}"
            ", or force=True if such errors are acceptable.",
        )
    return CachePolicy(ttl=ttl)


def _add_windows(events: FeatureView, name: str, spec: WindowSpec, cache: str) -> None:
    """Let the event view's tag name the windows, too: what is kept of its events depends on all."""
    known = event_log_of(events)
    windows = sorted({*(known.windows if known else ()), *spec.windows})
    events.tags[EVENTS_TAG] = _dump(
        {
            "spec": spec.event.to_json(),
            "windows": [[one.span_ms, one.hop_ms, one.delay_ms] for one in windows],
            "readers": {**(known.readers if known else {}), name: cache},
        }
    )


# -- checks ---------------------------------------------------------------------------------------


def _check_kinds(
    where: str,
    entities: Sequence[Entity],
    aggregations: Sequence[Aggregation],
    events: FeatureView | None,
) -> None:
    if not entities or not all(isinstance(one, Entity) for one in entities):
        raise WindowSpecError(
            where=where, problem="it names no entity", fix="Write entities=[card]."
        )
    if not all(isinstance(one, Aggregation) for one in aggregations):
        raise WindowSpecError(
            where=where,
            problem="its aggregations are not all feast.aggregation.Aggregation",
            fix='Write Aggregation(column="amount", function="sum", time_window=...).',
        )
    if events is not None and not isinstance(events, FeatureView):
        raise WindowSpecError(
            where=where,
            problem=f"events is a {type(events).__name__}",
            fix="Give it the second result of another windowed_view(...).",
        )


def _check_source(where: str, source: PushSource | None) -> None:
    if not isinstance(source, PushSource):
        raise WindowSpecError(
            where=where,
            problem="its source is no PushSource",
            fix="Write source=PushSource(name=..., batch_source=...), or events=... of another "
            "declaration.",
        )
    batch = source.batch_source
    if not batch.timestamp_field:
        raise WindowSpecError(
            where=where,
            problem=f"the batch source of {source.name!r} has no timestamp_field",
            fix="Name the column that says when an event happened.",
        )
    if not batch.created_timestamp_column:
        raise WindowSpecError(
            where=where,
            problem=f"the batch source of {source.name!r} has no created_timestamp_column",
            fix="Name the column that says when an event arrived. Training needs it to see what "
            "serving saw: an event that came late was not there yet.",
        )


def _check_shared(
    where: str, entities: Sequence[Entity], events: FeatureView, given: Mapping[str, Any]
) -> None:
    twice = [name for name, value in given.items() if value]
    if twice:
        raise WindowSpecError(
            where=where,
            problem=f"it gives both events and {twice[0]}",
            fix=f"Leave out {twice[0]}: the events are declared once.",
        )
    names = [entity.name for entity in entities]
    if sorted(names) != sorted(events.entities):
        raise WindowSpecError(
            where=where,
            problem=f"its entities are {', '.join(names)}, those of {events.name!r} are "
            f"{', '.join(events.entities)}",
            fix="Events of other entities are another declaration, with a source of its own or the "
            "same.",
        )


def _required_log(where: str, events: FeatureView) -> EventLog:
    log = event_log_of(events)
    if log is None:
        raise WindowSpecError(
            where=where,
            problem=f"{events.name!r} is no event view",
            fix="Give it the second result of another windowed_view(...).",
        )
    return log


def _ms(where: str, name: str, value: object) -> int:
    if not isinstance(value, timedelta) or value % _MS:
        raise WindowSpecError(
            where=where,
            problem=f"{name} is {value!r}",
            fix="Write a timedelta of whole milliseconds.",
        )
    return value // _MS


def _parsed_ms(where: str, function: str, written: str) -> int:
    try:
        return parse_duration(written) // 1_000_000
    except ValueError as error:
        raise WindowSpecError(
            where=where,
            problem=f"function {function!r}: {error}",
            fix="Write a share of a longer window as in 'sum / 30d'.",
        ) from None


def _shown(span_ms: int) -> str:
    return format_duration(span_ms * 1_000_000)


# -- tags -----------------------------------------------------------------------------------------


def _dump(said: Mapping[str, Any]) -> str:
    return json.dumps({"version": _TAG_VERSION, **said}, sort_keys=True, separators=(",", ":"))


def _load(view: str, tag: str, written: str, names: Sequence[str]) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(written)
        is_known = said["version"] == _TAG_VERSION and all(name in said for name in names)
    except (ValueError, TypeError, KeyError):
        is_known = False
    if not is_known:
        raise _unreadable(view, tag)
    return said


def _unreadable(view: str, tag: str) -> WindowSpecError:
    return WindowSpecError(
        where=f"feature view {view!r}",
        problem=f"its tag {tag!r} cannot be read",
        fix="It is written by windowed_view(...): run `feast apply` again, with the version of "
        "Hotplate that serves it.",
    )
