"""Windows computed from the events alone, one by one, in plain Python: what the engine must equal.

Written from the definitions (start inclusive, end exclusive, first arrival wins, visible when it
has arrived), with Python's integers and `math`; it shares no code with the engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction

from hotplate.windows.spec import Aggregate, EventSpec, Window, WindowSpec

LIMIT = 2**53


@dataclass(frozen=True)
class Event:
    """An event as its source has it, after hashing: a value is a Decimal, a hash, or None."""

    ts: int
    event_id: int
    arrival: int
    values: tuple[Decimal | int | None, ...]


def scaled(value: Decimal, scale: int) -> int:
    """round_half_even(value * 10**scale)."""
    with localcontext() as context:
        context.prec = 400
        return int((value * 10**scale).to_integral_value(ROUND_HALF_EVEN))


def is_accepted(spec: EventSpec, event: Event) -> bool:
    """Neither late, nor from the future, nor too large."""
    if event.arrival - event.ts > spec.lateness_ms or event.ts - event.arrival > spec.skew_ms:
        return False
    return all(
        not column.is_numeric or value is None or abs(scaled(Decimal(value), column.scale)) <= LIMIT
        for column, value in zip(spec.columns, event.values, strict=True)
    )


def _order(spec: EventSpec, event: Event) -> tuple[object, ...]:
    """Of two arrivals of one millisecond the one with the smaller stored values is the first."""
    stored = []
    for column, value in zip(spec.columns, event.values, strict=True):
        if column.is_numeric:
            stored.append(-(2**63) if value is None else scaled(Decimal(value), column.scale))
        else:
            stored.append(0 if value is None else int(value))
    return (event.arrival, *stored)


def kept(spec: EventSpec, events: Sequence[Event]) -> list[Event]:
    """Accepted events without duplicates, by (ts, id)."""
    first: dict[tuple[int, int], Event] = {}
    for event in events:
        if is_accepted(spec, event):
            key = (event.ts, event.event_id)
            if key not in first or _order(spec, event) < _order(spec, first[key]):
                first[key] = event
    return [first[key] for key in sorted(first)]


def start_of(window: Window, t: int) -> int:
    moment = t - window.delay_ms - window.span_ms
    return moment - moment % window.hop_ms


def end_of(window: Window, t: int) -> int:
    moment = t - window.delay_ms
    return moment - moment % window.hop_ms if window.delay_ms else t


def inside(window: Window, events: Sequence[Event], t: int) -> list[Event]:
    """The events of a window, of those that are visible at t."""
    start, end = start_of(window, t), end_of(window, t)
    return [one for one in events if one.arrival <= t and one.ts < t and start <= one.ts < end]


def nearest(numerator: int, denominator: int = 1) -> float:
    """The float nearest to a fraction."""
    return float(Fraction(numerator, denominator))


def distinct(hashes: Sequence[int]) -> float:
    """HyperLogLog with 1,024 registers over 64-bit hashes, as Flajolet et al. wrote it in 2007."""
    registers = [0] * 1024
    for one in hashes:
        bits = format(one % 2**64, "064b")
        following = bits[10:52]  # 42 bits after the register's number decide its value
        rank = following.index("1") + 1 if "1" in following else 43
        number = int(bits[:10], 2)
        registers[number] = max(registers[number], rank)
    alpha = 0.7213 / (1 + 1.079 / 1024)
    total = sum(Fraction(1, 2**rank) for rank in registers)
    raw = alpha * 1024 * 1024 / float(total)
    zeros = registers.count(0)
    if raw <= 2.5 * 1024 and zeros:
        return float(round(1024 * math.log(1024 / zeros)))
    return float(round(raw))


def value_of(spec: EventSpec, aggregate: Aggregate, events: Sequence[Event]) -> float:
    """One aggregate over the events of one window; null is NaN."""
    if not aggregate.column:
        return float(len(events))
    names = [column.name for column in spec.columns]
    index = names.index(aggregate.column)
    column = spec.columns[index]
    raw = [one.values[index] for one in events if one.values[index] is not None]
    function = aggregate.function
    if function == "count":
        return float(len(raw))
    if function == "approx_count_distinct":
        return distinct([int(one) for one in raw]) if raw else math.nan
    values = [scaled(Decimal(one), column.scale) for one in raw]
    unit = 10**column.scale
    if function == "sum":
        return nearest(sum(values)) / nearest(unit)
    if not values:
        return math.nan
    n = len(values)
    if function == "mean":
        return nearest(sum(values)) / nearest(n * unit)
    if function == "std":
        if n < 2:
            return math.nan
        numerator = n * sum(one * one for one in values) - sum(values) ** 2
        return math.sqrt(nearest(numerator) / nearest(n * (n - 1))) / nearest(unit)
    picked = {"min": min(values), "max": max(values), "first": values[0], "last": values[-1]}
    return nearest(picked[function], unit)


def answer(spec: WindowSpec, known: Sequence[Event], t: int) -> list[float]:
    """All outputs at t, of events that `kept` has returned."""
    in_window = {window: inside(window, known, t) for window in spec.windows}
    out = []
    for aggregate in spec.aggregates:
        found = [value_of(spec.event, aggregate, in_window[window]) for window in aggregate.windows]
        if len(found) == 1:
            out.append(found[0])
        else:
            value, over = found
            is_null = math.isnan(value) or math.isnan(over) or over == 0
            out.append(math.nan if is_null else value / over)
    return out


def contents(spec: WindowSpec, known: Sequence[Event], t: int) -> list[list[Event]]:
    """The events of each window at t: what must differ where `valid_until` ends."""
    return [inside(window, known, t) for window in spec.windows]


def next_change(spec: WindowSpec, known: Sequence[Event], t: int) -> int | None:
    """The first moment after t at which some window holds other events, tried one by one.

    The moments tried are all at which an edge can pass an event, whatever the rule for it is: the
    next few ends of a hop after it, and a millisecond to either side of each.
    """
    moments = set()
    for event in known:
        moments |= {event.arrival, event.ts, event.ts + 1}
        for window in spec.windows:
            for reach in (window.delay_ms, window.delay_ms + window.span_ms):
                below = event.ts - event.ts % window.hop_ms + reach
                for grid in (event.ts + reach, below, below + window.hop_ms):
                    moments |= {grid - 1, grid, grid + 1}
    now = contents(spec, known, t)
    for moment in sorted(one for one in moments if one > t):
        if contents(spec, known, moment) != now:
            return moment
    return None
