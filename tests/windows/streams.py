"""Random event logs, and the same events as the engine and as the oracle take them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal

import numpy as np

from hotplate.windows.events import Accepted, accept
from hotplate.windows.log import LogFormat
from hotplate.windows.plan import LogPlan
from hotplate.windows.spec import Aggregate, Column, EventSpec, Window, WindowSpec

from . import oracle

FUNCTIONS = ("count", "sum", "mean", "min", "max", "std", "last", "first")


def make_spec(
    windows: Sequence[Window],
    *,
    lateness_ms: int = 50,
    skew_ms: int = 10,
    slack_ms: int = 20,
    over: Window | None = None,
) -> WindowSpec:
    """Every function of two numeric columns and a distinct one over each of the windows."""
    event = EventSpec(
        "id",
        (Column.floats("amount"), Column.integers("items"), Column.distinct("shop")),
        lateness_ms=lateness_ms,
        skew_ms=skew_ms,
        slack_ms=slack_ms,
    )
    aggregates = []
    for index, window in enumerate(windows):
        aggregates.append(Aggregate(f"events_{index}", "count", "", window))
        for function in FUNCTIONS:
            for column in ("amount", "items"):
                name = f"{column}_{function}_{index}"
                aggregates.append(Aggregate(name, function, column, window))
        aggregates += [
            Aggregate(f"shop_{function}_{index}", function, "shop", window)
            for function in ("count", "approx_count_distinct")
        ]
        if over is not None and over.span_ms > window.span_ms and over.delay_ms == window.delay_ms:
            for function, column in (("count", ""), ("sum", "amount"), ("mean", "items")):
                name = f"ratio_{function}_{index}"
                aggregates.append(Aggregate(name, function, column, window, over))
    return WindowSpec(event, tuple(aggregates))


def take(spec: EventSpec, events: Sequence[oracle.Event]) -> Accepted:
    """Pass events through `accept`; hashes are given as such, so ids are set afterwards."""
    columns = {
        column.name: np.array([one.values[index] for one in events], dtype=object)
        for index, column in enumerate(spec.columns)
    }
    return accept(
        spec,
        np.array([one.ts for one in events], np.int64),
        np.array([one.event_id for one in events], np.int64),
        np.array([one.arrival for one in events], np.int64),
        columns,
    )


def records(plan: LogPlan, events: Sequence[oracle.Event]) -> list[bytes]:
    """Each accepted event as its record."""
    accepted = take(plan.event, events)
    words = LogFormat(plan).records.pack(accepted.events)
    return [row.tobytes() for row in words]


def hashed(events: Sequence[oracle.Event], spec: EventSpec) -> list[oracle.Event]:
    """The events with their ids and distinct values as the engine hashes integers."""
    return [
        oracle.Event(
            one.ts,
            mixed(one.event_id),
            one.arrival,
            tuple(
                value if column.is_numeric or value is None else mixed(int(value))
                for column, value in zip(spec.columns, one.values, strict=True)
            ),
        )
        for one in events
    ]


def mixed(number: int) -> int:
    """SplitMix64's finalizer, from its definition."""
    mask = 2**64 - 1
    x = (number + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    x ^= x >> 31
    return struct.unpack("<q", struct.pack("<Q", x or 1))[0]


def stream(
    rng: np.random.Generator, count: int, *, until: int, span: int, spec: EventSpec, huge: bool
) -> list[oracle.Event]:
    """Events in the order of arrival: late, early, duplicate, tied, null, negative, huge."""
    made: list[oracle.Event] = []
    grid = int(rng.choice([1, 1, 5, 10]))
    for _ in range(count):
        ts = max(0, int(until - rng.integers(0, span) // grid * grid))
        delay = int(rng.integers(-spec.skew_ms - 3, spec.lateness_ms + 4))
        if rng.random() < 0.6:
            delay = int(rng.integers(0, 4))
        if made and rng.random() < 0.15:
            twin = made[int(rng.integers(len(made)))]
            if rng.random() < 0.5:  # a duplicate, perhaps with other values
                event_id, ts = twin.event_id, twin.ts
            else:  # another event of the same millisecond
                event_id, ts = int(rng.integers(1, 50)), twin.ts
        else:
            event_id = int(rng.integers(1, 50))
        values = (_amount(rng, huge), _items(rng, huge), _shop(rng))
        made.append(oracle.Event(ts, event_id, max(0, ts + delay), values))
    return sorted(made, key=lambda one: one.arrival)


def _amount(rng: np.random.Generator, huge: bool) -> Decimal | None:
    if rng.random() < 0.1:
        return None
    if huge and rng.random() < 0.3:
        return Decimal(int(rng.choice([-1, 1])) * (2**53 - int(rng.integers(-1, 3)))) / 100
    return Decimal(int(rng.integers(-100_000, 10_000_000))) / 1000


def _items(rng: np.random.Generator, huge: bool) -> int | None:
    if rng.random() < 0.05:
        return None
    if huge and rng.random() < 0.5:
        return int(rng.choice([-1, 1])) * (2**53 - int(rng.integers(-1, 3)))
    return int(rng.integers(-5, 100))


def _shop(rng: np.random.Generator) -> int | None:
    return None if rng.random() < 0.1 else int(rng.integers(0, 30))
