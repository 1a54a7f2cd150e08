"""One statement declares windows: what it makes, what travels in tags, what it refuses."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from feast import Entity, Field, FileSource, PushSource
from feast.aggregation import Aggregation
from feast.types import Array, Bool, Float64, Int64, String
from feast.value_type import ValueType

from hotplate import HotplateError, windowed_view
from hotplate.windowed import event_log_of, windowed_of
from hotplate.windows.spec import DAY_MS, MINUTE_MS, Window

CARD = Entity(name="card", join_keys=["card_id"], value_type=ValueType.INT64)
SHOP = Entity(name="shop", join_keys=["shop_id"], value_type=ValueType.STRING)
SCHEMA = [
    Field(name="card_id", dtype=Int64),
    Field(name="transaction_id", dtype=String),
    Field(name="amount", dtype=Float64),
    Field(name="is_online", dtype=Bool),
    Field(name="country", dtype=String),
]
HOUR = timedelta(hours=1)


def sums(span: timedelta | None, function: str = "sum", column: str = "amount") -> Aggregation:
    """One aggregation."""
    return Aggregation(column=column, function=function, time_window=span)


SUM = sums(timedelta(minutes=10))


def source(**batch: Any) -> PushSource:
    """A push source over a table with both timestamps, unless `batch` says otherwise."""
    given = {"timestamp_field": "at", "created_timestamp_column": "arrived", **batch}
    return PushSource(name="payments", batch_source=FileSource(path="payments.parquet", **given))


def declare(**changes: Any) -> Any:
    """A declaration that works, with changes."""
    usual: dict[str, Any] = {
        "name": "activity",
        "entities": [CARD],
        "source": source(),
        "event_id": "transaction_id",
        "schema": SCHEMA,
        "aggregations": [SUM],
    }
    return windowed_view(**{**usual, **changes})


def test_it_makes_a_view_to_push_to_and_a_view_to_read() -> None:
    """The raw columns in the one, the outputs in the other, the entity in both."""
    windowed, events = declare()
    assert (windowed.name, events.name) == ("activity", "activity_events")
    assert [field.name for field in windowed.features] == ["sum_amount_600s"]
    assert windowed.features[0].dtype == Float64
    raw = {field.name for field in events.features}
    assert raw == {"transaction_id", "amount", "is_online", "country"}
    assert windowed.entities == events.entities == ["card"]
    assert events.stream_source.name == "payments"


def test_outputs_are_called_as_feast_calls_them() -> None:
    """Function, column and seconds; the longer window of a share behind; or the given name."""
    windowed, _ = declare(
        aggregations=[
            SUM,
            Aggregation(column="amount", function="max", time_window=HOUR, name="top"),
            sums(HOUR, "count", ""),
            sums(HOUR, "mean / 30d"),
        ]
    )
    assert [field.name for field in windowed.features] == [
        SUM.resolved_name(SUM.time_window),
        "top",
        "count_3600s",
        "mean_amount_3600s_of_2592000s",
    ]
    assert [field.dtype for field in windowed.features] == [Float64, Float64, Int64, Float64]


def test_columns_are_kept_as_what_their_type_allows() -> None:
    """Floats with two decimals, integers and booleans whole, the rest as hashes."""
    _, events = declare(scales={"amount": 4})
    log = event_log_of(events)
    assert log is not None
    assert [(one.name, one.kind, one.scale) for one in log.spec.columns] == [
        ("amount", "numeric", 4),
        ("country", "distinct", 0),
        ("is_online", "numeric", 0),
    ]


def test_tags_say_all_that_serving_needs() -> None:
    """Spec, windows and cache mode survive the registry."""
    windowed, events = declare(
        lateness=timedelta(minutes=5), delay=timedelta(days=7), cache="never", profile="exact"
    )
    said, log = windowed_of(windowed), event_log_of(events)
    assert said is not None
    assert log is not None
    assert (said.view, said.events, said.cache) == ("activity", "activity_events", "never")
    assert said.spec.event == log.spec
    assert log.spec.lateness_ms == 5 * MINUTE_MS
    assert log.windows == said.spec.windows == (Window(10 * MINUTE_MS, 1, 7 * DAY_MS),)
    assert log.readers == {"activity": "never"}
    assert windowed_of(events) is None
    assert event_log_of(windowed) is None


def test_more_windows_over_the_same_events_are_told_to_the_log() -> None:
    """How long events are kept, and in which tiles, depends on every window over them."""
    _, events = declare()
    second, same = windowed_view(
        name="habits", entities=[CARD], events=events, aggregations=[sums(timedelta(days=30))]
    )
    assert same is events
    log = event_log_of(events)
    assert log is not None
    assert log.readers == {"activity": "exact", "habits": "exact"}
    assert [one.span_ms for one in log.windows] == [10 * MINUTE_MS, 30 * DAY_MS]
    said = windowed_of(second)
    assert said is not None
    assert said.events == "activity_events"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"aggregations": [sums(HOUR, "median")]}, ["'median'", "Known functions: count"]),
        ({"aggregations": [sums(HOUR, column="amonut")]}, ["'amonut'", "Known: 'amount'"]),
        ({"aggregations": [sums(None)]}, ["no time_window"]),
        ({"aggregations": [sums(HOUR, "sum / 5m")]}, ["longer"]),
        ({"aggregations": [sums(HOUR, "sum / soon")]}, ["'sum / soon'"]),
        ({"aggregations": [sums(HOUR, column="country")]}, ["'country'", "hashes"]),
        ({"aggregations": [SUM, SUM]}, ["twice"]),
        ({"aggregations": []}, ["at least one"]),
        ({"aggregations": ["sum"]}, ["Aggregation("]),
        ({"cache": "ttl", "ttl": timedelta(seconds=30)}, ["10m", "at most 6s", "force=True"]),
        ({"cache": "sometimes"}, ["'sometimes'", "'exact'"]),
        ({"source": source(created_timestamp_column="")}, ["created_timestamp_column", "arrived"]),
        ({"source": FileSource(path="x.parquet", timestamp_field="at")}, ["PushSource"]),
        ({"event_id": "id"}, ["'id'", "schema"]),
        ({"event_id": "card_id"}, ["'card_id'", "join key", "duplicates"]),
        (
            {"schema": [Field(name="card_id", dtype=Float64), *SCHEMA[1:]]},
            ["entity 'card'", "DOUBLE", "Int64"],
        ),
        ({"entities": []}, ["entities=[card]"]),
        ({"scales": {"amuont": 3}}, ["'amuont'"]),
        ({"scales": {"country": 3}}, ["'country'", "scale"]),
        ({"schema": [*SCHEMA, Field(name="tags", dtype=Array(String))]}, ["'tags'", "STRING_LIST"]),
        ({"delay": 7}, ["delay", "timedelta"]),
        ({"profile": "cold"}, ["'cold'", "'hot'"]),
        ({"events": "activity_events"}, ["events is a str"]),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], words: list[str]) -> None:
    """With what is wrong and what to write instead."""
    with pytest.raises(HotplateError) as refused:
        declare(**changes)
    for word in words:
        assert word in str(refused.value)


def test_a_ttl_cache_over_short_windows_can_be_forced() -> None:
    """And over windows long enough it needs no force."""
    forced, _ = declare(cache="ttl", ttl=timedelta(seconds=30), force=True)
    assert forced.tags["hotplate.ttl"] == "30s"
    allowed, _ = declare(cache="ttl", ttl=timedelta(seconds=6))
    assert allowed.tags["hotplate.ttl"] == "6s"


def test_events_are_declared_once() -> None:
    """What belongs to the events is refused beside `events`, and so are other entities."""
    windowed, events = declare()
    given: list[dict[str, Any]] = [{"source": source()}, {"lateness": HOUR}, {"schema": SCHEMA}]
    for more in given:
        with pytest.raises(HotplateError, match="both events and"):
            windowed_view(name="more", entities=[CARD], events=events, aggregations=[SUM], **more)
    with pytest.raises(HotplateError, match="those of 'activity_events' are card"):
        windowed_view(name="more", entities=[SHOP], events=events, aggregations=[SUM])
    with pytest.raises(HotplateError, match="no event view"):
        windowed_view(name="more", entities=[CARD], events=windowed, aggregations=[SUM])


def test_a_tag_that_cannot_be_read_says_so() -> None:
    """As one of a newer version of Hotplate."""
    windowed, events = declare()
    windowed.tags["hotplate.windows"] = events.tags["hotplate.events"] = '{"version":99}'
    with pytest.raises(HotplateError, match="feast apply"):
        windowed_of(windowed)
    with pytest.raises(HotplateError, match="feast apply"):
        event_log_of(events)
    _, events = declare()
    written = json.loads(events.tags["hotplate.events"])
    for windows in (None, [[1, 2, 3, 4]]):
        events.tags["hotplate.events"] = json.dumps({**written, "windows": windows})
        with pytest.raises(HotplateError, match="feast apply"):
            event_log_of(events)
