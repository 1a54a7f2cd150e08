"""Random streams of events that break every rule once in a while."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from hotplate.windows.events import Events
from hotplate.windows.hashing import NO_HASH
from hotplate.windows.offline import Moments
from hotplate.windows.scaling import NO_VALUE
from hotplate.windows.spec import Aggregate, Column, EventSpec, Window, WindowSpec

from . import oracle

__all__ = ["LOG", "Stream", "as_events", "moments", "random_spec", "random_stream"]

LOG = EventSpec(
    "id",
    (Column.floats("amount"), Column.integers("items"), Column.distinct("merchant")),
    lateness_ms=400,
    skew_ms=50,
    slack_ms=100,
)
_FUNCTIONS = ("count", "sum", "mean", "min", "max", "std", "last", "first")


@dataclass(frozen=True)
class Stream:
    """Events that the log accepts, and the entity of each."""

    keys: np.ndarray
    events: Events


def random_stream(
    rng: np.random.Generator, count: int, keys: int, largest: int = 100_000, nulls: float = 0.1
) -> Stream:
    """Events on few moments: late, out of order, future, repeated with other values, with nulls."""
    span = max(count * 3, 10)
    ts = 10_000 + rng.integers(0, span, count)
    late = np.where(rng.random(count) < 0.3, rng.integers(0, 401, count), rng.integers(0, 5, count))
    arrivals = ts + np.where(rng.random(count) < 0.1, -rng.integers(0, 51, count), late)
    ids = rng.integers(-3, 4, count)
    values = np.column_stack(
        [
            rng.integers(-largest, largest + 1, count),
            rng.integers(-5, 6, count),
            rng.integers(1, 1 << 62, 40)[rng.integers(0, 40, count)],
        ]
    )
    is_null = rng.random((count, 3)) < nulls
    values[:, :2][is_null[:, :2]] = NO_VALUE
    values[:, 2][is_null[:, 2]] = NO_HASH
    chosen = rng.integers(0, keys, count)
    # the same (entity, ts, id) again, with another arrival and another value
    again = rng.integers(0, count, count // 5)
    moved = np.clip(arrivals[again] + rng.integers(-30, 31, len(again)), ts[again] - 50, None)
    moved = np.minimum(moved, ts[again] + 400)
    order = rng.permutation(count + len(again))
    return Stream(
        np.concatenate([chosen, chosen[again]])[order],
        Events(
            np.concatenate([ts, ts[again]])[order],
            np.concatenate([ids, ids[again]])[order],
            np.concatenate([arrivals, moved])[order],
            np.concatenate([values, values[::-1][: len(again)]])[order],
        ),
    )


def as_events(stream: Stream, key: int) -> list[oracle.Event]:
    """The events of one entity for the recomputation."""
    events, mine = stream.events, np.flatnonzero(stream.keys == key)
    return [
        oracle.Event(
            int(events.ts[i]),
            int(events.ids[i]),
            int(events.arrivals[i]),
            (
                _given(events.values[i, 0], NO_VALUE, 100),
                _given(events.values[i, 1], NO_VALUE, 1),
                None if events.values[i, 2] == NO_HASH else int(events.values[i, 2]),
            ),
        )
        for i in mine
    ]


def _given(value: np.int64, null: int, unit: int) -> Decimal | None:
    return None if value == null else Decimal(int(value)) / unit


def moments(rng: np.random.Generator, stream: Stream, count: int, keys: int) -> Moments:
    """Rows around events, before the first and long after the last, of unknown keys too."""
    around = stream.events.ts[rng.integers(0, len(stream.keys), count)] + rng.integers(
        -3, 500, count
    )
    outside = rng.integers(-5_000, 200_000, count)
    t_ms = np.where(rng.random(count) < 0.9, around, outside)
    return Moments(rng.integers(0, keys + 2, count), t_ms)


def random_spec(rng: np.random.Generator, log: EventSpec = LOG) -> WindowSpec:
    """Windows with and without hops and delays, all functions, ratios."""
    aggregates = [Aggregate("events", "count", "", _window(rng))]
    for number in range(int(rng.integers(1, 5))):
        window = _window(rng)
        for column in ("amount", "items"):
            aggregates += [
                Aggregate(f"{function}_{column}_{number}", function, column, window)
                for function in _FUNCTIONS
                if rng.random() < 0.6
            ]
        aggregates += [
            Aggregate(f"{function}_merchant_{number}", function, "merchant", window)
            for function in ("count", "approx_count_distinct")
            if rng.random() < 0.6
        ]
        over = Window(window.span_ms + 500, int(rng.integers(1, 90)), window.delay_ms)
        aggregates.append(Aggregate(f"share_{number}", "sum", "amount", window, over))
    return WindowSpec(log, tuple(aggregates))


def _window(rng: np.random.Generator) -> Window:
    span = int(rng.choice([1, 7, 60, 300, 2_000, 50_000]))
    hop = int(rng.integers(1, span + 1)) if rng.random() < 0.5 else 1
    delay = int(rng.choice([1, 50, 900])) if rng.random() < 0.3 else 0
    return Window(span, hop, delay)
