"""Why a windowed view answers what it answers: its events, tiles, edges, values, and until when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np

from hotplate.codec import stamp_of
from hotplate.durations import format_duration
from hotplate.keys import EntityShape
from hotplate.serving.runtime import Runtime
from hotplate.serving.windows import Log
from hotplate.windowed import WindowedView
from hotplate.windows.chains import NEVER
from hotplate.windows.log import LogFormat
from hotplate.windows.records import ARRIVAL, ID, TS, VALUES, first_arrivals
from hotplate.windows.scaling import NO_VALUE
from hotplate.windows.spec import Window

__all__ = ["Edge", "Event", "Explanation", "Held", "Tile", "explain", "shown_moment"]

_ARRIVAL_SHIFT: Final = 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Event:
    """One record of a log.

    Attributes:
        ts_ms, arrival_ms: when it happened and when it arrived, ms UTC.
        id: the hash of its id, 16 hex digits.
        values: column -> number, or the hash of a column that is only counted; None for null.
        state: `"counts"`; `"duplicate"` of one that arrived before; `"unseen"`: it has not arrived
            yet, or happened at or after the moment.
    """

    ts_ms: int
    arrival_ms: int
    id: str
    values: Mapping[str, float | str | None]
    state: str


@dataclass(frozen=True)
class Tile:
    """Events that were folded together.

    Attributes:
        start_ms, end_ms: they happened from the first up to, not including, the second.
        events: how many.
        sums: numeric column -> sum.
    """

    start_ms: int
    end_ms: int
    events: int
    sums: Mapping[str, float]


@dataclass(frozen=True)
class Edge:
    """One window at the moment.

    Attributes:
        window: it.
        start_ms, end_ms: from the first up to, not including, the second.
        events: how many lie inside.
    """

    window: Window
    start_ms: int
    end_ms: int
    events: int


@dataclass(frozen=True)
class Held:
    """The row that this process has in memory.

    Attributes:
        age_s: seconds since it was computed, or a little more: a row that time changes before its
            ttl is held as if it were older.
        expires_in_s: seconds until it may not be served any more; negative if it may not now.
    """

    age_s: float
    expires_in_s: float


@dataclass(frozen=True)
class Explanation:
    """All that decides one answer.

    Attributes:
        view: the windowed view.
        events_view: its event view.
        t_ms: the moment, ms UTC.
        size: bytes of the log.
        events, tiles, edges: what lies in it.
        outputs: name -> value, in the view's order.
        valid_until_ms: the first moment at which the outputs change without another event; None if
            they will not.
        because: why then.
        cache: the view's cache mode.
        held: what this process has in memory; None if nothing.
    """

    view: str
    events_view: str
    t_ms: int
    size: int
    events: tuple[Event, ...]
    tiles: tuple[Tile, ...]
    edges: tuple[Edge, ...]
    outputs: Mapping[str, float | None]
    valid_until_ms: int | None
    because: str
    cache: str
    held: Held | None


def explain(
    runtime: Runtime, table: Any, shape: EntityShape, values: tuple[Any, ...]
) -> Explanation:
    """Explain what a windowed view answers for an entity now.

    Args:
        runtime: of the cache.
        table: the windowed view.
        shape, values: the entity.

    Raises:
        WindowStateError: the log lacks history, or is damaged.
        ServerError: the server does not answer.
    """
    logs = runtime.event_logs
    compiled = logs.compiled(table)
    log, said = compiled.log, compiled.said
    logs.layouts.ensure_complete(log.said.view, log.plan.fingerprint)
    t_ms = runtime.clock.wall_ns() // 1_000_000
    blob = logs.state(log).get(log.key(shape, values)) or b""
    logs.layouts.ensure_complete(log.said.view, log.plan.fingerprint)  # it may have come back empty
    answer = compiled.reader.read([blob], t_ms)
    content = _Content(log, blob, t_ms)
    found = answer.values[0].tolist()
    kinds = said.spec.output_types
    outputs = {
        name: None if value != value else int(value) if kinds[name] == "int64" else value
        for name, value in zip(kinds, found, strict=True)
    }
    until = int(answer.valid_until[0])
    return Explanation(
        view=table.name,
        events_view=log.said.view,
        t_ms=t_ms,
        size=len(blob),
        events=content.events,
        tiles=content.tiles,
        edges=tuple(content.edge(window) for window in said.spec.windows),
        outputs=outputs,
        valid_until_ms=None if until >= NEVER else until,
        because="" if until >= NEVER else content.because(said, until),
        cache=said.cache,
        held=_held(runtime, table, values),
    )


def _held(runtime: Runtime, table: Any, values: tuple[Any, ...]) -> Held | None:
    view, bound, _ = runtime.resolve(table)
    row = runtime.engine.memory.peek(view.key(values))
    if row is None:
        return None
    age_ns = runtime.clock.now_ns() - stamp_of(row)
    return Held(age_ns / 1e9, (bound.expiry_ns(row) - age_ns) / 1e9)


class _Content:
    """What lies in a log, taken apart."""

    def __init__(self, log: Log, blob: bytes, t_ms: int) -> None:
        self._spec = log.said.spec
        self._t_ms = t_ms
        form = LogFormat(log.plan)
        head = form.head(blob)
        fields = form.records.fields(memoryview(blob)[head.size if head else 0 :])
        _, kept = first_arrivals(fields)
        firsts = set(kept.tolist())
        order = np.lexsort((fields[ARRIVAL], fields[TS]))
        self.events = tuple(
            self._event(fields[:, at].tolist(), is_first=at in firsts) for at in order.tolist()
        )
        self.tiles = tuple(map(self._tile, head.tiles if head else ()))

    def _event(self, words: list[int], *, is_first: bool) -> Event:
        arrival = words[ARRIVAL] >> _ARRIVAL_SHIFT
        is_seen = arrival <= self._t_ms and words[TS] < self._t_ms
        values = {
            column.name: self._value(column, word)
            for column, word in zip(self._spec.columns, words[VALUES:], strict=True)
        }
        state = "counts" if is_seen else "unseen"
        return Event(
            words[TS], arrival, _hex(words[ID]), values, state if is_first else "duplicate"
        )

    @staticmethod
    def _value(column: Any, word: int) -> float | str | None:
        if not column.is_numeric:
            return _hex(word) if word else None
        return None if word == NO_VALUE else word / 10**column.scale

    def _tile(self, tile: Any) -> Tile:
        sums = {
            column.name: int(total) / 10**column.scale
            for column, total in zip(self._spec.numeric, tile["s"].tolist(), strict=True)
        }
        start = int(tile["start"])
        return Tile(start, start + int(tile["span"]), int(tile["events"]), sums)

    def edge(self, window: Window) -> Edge:
        """A window, and how many events lie inside."""
        start, end = window.start(self._t_ms), window.end(self._t_ms)
        inside = sum(one.events for one in self.tiles if start <= one.start_ms < end)
        inside += sum(one.state == "counts" and start <= one.ts_ms < end for one in self.events)
        return Edge(window, start, end, inside)

    def because(self, said: WindowedView, until_ms: int) -> str:
        """What changes the outputs then."""
        return next(
            (why for moment, why in self._changes(said) if moment == until_ms),
            "a window moves on",
        )

    def _changes(self, said: WindowedView) -> Iterator[tuple[int, str]]:
        """Every moment at which something enters or leaves a window, and what."""
        single = [(one.ts_ms, "the event", one) for one in self.events]
        folded = [(one.start_ms, "the tile", None) for one in self.tiles]
        for window in said.spec.windows:
            span = f"the window of {format_duration(window.span_ms * 1_000_000)}"
            for ts_ms, kind, event in (*single, *folded):
                what = f"{kind} of {shown_moment(ts_ms)}"
                if event is None or event.state == "counts":
                    yield window.leaves_at(ts_ms), f"{what} leaves {span}"
                    yield window.enters_at(ts_ms), f"{what} enters {span}"
                elif event.state == "unseen":
                    moment = max(window.enters_at(ts_ms), event.arrival_ms)
                    yield moment, f"{what} becomes visible"


def shown_moment(ms: int) -> str:
    """Milliseconds since 1970 as people read them, in UTC."""
    return f"{_EPOCH + timedelta(milliseconds=ms):%Y-%m-%d %H:%M:%S}.{ms % 1_000:03d}Z"


def _hex(word: int) -> str:
    return f"{word & 0xFFFF_FFFF_FFFF_FFFF:016x}"
