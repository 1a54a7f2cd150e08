"""Window outputs recomputed from all events, one row and one window at a time, in plain Python.

Written from the definition of a window alone: nothing of the engine is used but the hash of a
value, whose registers are part of the definition of an approximate count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hotplate.windows.hyperloglog import registers_of
from hotplate.windows.spec import Aggregate, EventSpec, Window, WindowSpec

__all__ = ["Event", "recomputed"]


@dataclass(frozen=True)
class Event:
    """One event as it came: values are scaled integers or hashes, None for null."""

    key: int
    ts: int
    id: int
    arrival: int
    values: tuple[int | None, ...]


def recomputed(spec: WindowSpec, events: Sequence[Event], key: int, t: int) -> list[float]:
    """The outputs of one entity at one moment; null is NaN."""
    visible = [
        event for event in _kept(spec.event, events) if event.key == key and _is_visible(event, t)
    ]
    visible.sort(key=lambda event: (event.ts, event.id))
    return [_output(spec, one, visible, t) for one in spec.aggregates]


def _kept(spec: EventSpec, events: Iterable[Event]) -> list[Event]:
    """Accepted events, the first arrival of each."""
    first: dict[tuple[int, int, int], Event] = {}
    for event in events:
        if event.arrival - event.ts > spec.lateness_ms or event.ts - event.arrival > spec.skew_ms:
            continue
        name = (event.key, event.ts, event.id)
        if name not in first or event.arrival < first[name].arrival:
            first[name] = event
    return list(first.values())


def _is_visible(event: Event, t: int) -> bool:
    return event.arrival <= t and event.ts < t


def _output(spec: WindowSpec, one: Aggregate, visible: list[Event], t: int) -> float:
    value = _aggregate(spec, one, one.window, visible, t)
    if one.over is None:
        return value
    divisor = _aggregate(spec, one, one.over, visible, t)
    return value / divisor if divisor else math.nan


def _aggregate(
    spec: WindowSpec, one: Aggregate, window: Window, visible: list[Event], t: int
) -> float:
    start = math.floor((t - window.delay_ms - window.span_ms) / window.hop_ms) * window.hop_ms
    end = t
    if window.delay_ms:
        end = math.floor((t - window.delay_ms) / window.hop_ms) * window.hop_ms
    inside = [event for event in visible if start <= event.ts < end]
    if not one.column:
        return float(len(inside))
    names = [column.name for column in spec.event.columns]
    column = spec.event.column(one.column)
    at = names.index(one.column)
    values = [value for event in inside if (value := event.values[at]) is not None]
    return _of_values(one.function, values, 10.0**column.scale)


def _of_values(function: str, values: list[int], unit: float) -> float:
    n = len(values)
    if function == "count":
        return float(n)
    if function == "sum":
        return float(sum(values)) / unit
    if not n:
        return math.nan
    if function == "mean":
        return float(sum(values)) / (n * unit)
    if function == "std":
        numerator = n * sum(value * value for value in values) - sum(values) ** 2
        return math.sqrt(float(numerator) / (n * (n - 1))) / unit if n > 1 else math.nan
    if function == "approx_count_distinct":
        return _distinct(values)
    chosen = {"min": min(values), "max": max(values), "last": values[-1], "first": values[0]}
    return chosen[function] / unit


def _distinct(hashes: list[int]) -> float:
    registers = [0] * 1024
    for number, rank in zip(*registers_of(np.array(hashes, np.int64)), strict=True):
        registers[number] = max(registers[number], int(rank))
    zeros = registers.count(0)
    raw = 0.7213 / (1 + 1.079 / 1024) * 1024 * 1024 / sum(2.0**-rank for rank in registers)
    if raw <= 2560 and zeros:
        return float(round(1024 * math.log(1024 / zeros)))
    return float(round(raw))
