"""What is kept of the events of one source, and which windows are computed over them.

`EventSpec` says what a record of an event log holds, `Window` when an event is inside, `Aggregate`
what is computed, `WindowSpec` puts them together for one feature view. All are frozen, validated
when they are made, and survive a round trip through JSON, so that they can live in a tag of a
feature view. How they are stored follows in `plan`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hotplate.windows.errors import WindowSpecError

__all__ = [
    "DAY_MS",
    "FUNCTIONS",
    "HOUR_MS",
    "MAX_VALUE",
    "MINUTE_MS",
    "Aggregate",
    "Column",
    "EventSpec",
    "Window",
    "WindowSpec",
    "default_hop_ms",
]

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

MAX_VALUE: Final = 1 << 53
"""Largest magnitude of a scaled value: up to here float64 holds every integer exactly."""
MAX_SPAN_MS: Final = 3_660 * DAY_MS
MAX_HOP_MS: Final = 24 * DAY_MS
"""So that places inside a tile fit 32 bits."""
MAX_LATENESS_MS: Final = 366 * DAY_MS
_MAX_SCALE: Final = 12
_VERSION: Final = 1

FUNCTIONS: Final = (
    "count",
    "sum",
    "mean",
    "min",
    "max",
    "std",
    "last",
    "first",
    "approx_count_distinct",
)
_OF_DISTINCT: Final = ("count", "approx_count_distinct")
_OF_RATIOS: Final = ("count", "sum", "mean", "min", "max", "std", "approx_count_distinct")

# Each divides the next, so that the tile of one window is never cut by the edge of another.
_HOPS_MS: Final = (
    SECOND_MS,
    5 * SECOND_MS,
    10 * SECOND_MS,
    MINUTE_MS,
    5 * MINUTE_MS,
    20 * MINUTE_MS,
    2 * HOUR_MS,
    12 * HOUR_MS,
)
_HOPS_A_WINDOW: Final = {"default": 24, "hot": 60}
PROFILES: Final = ("default", "exact", "hot")


def default_hop_ms(span_ms: int, profile: str = "default") -> int:
    """The hop of a window that names none, in milliseconds.

    The longest of 1 s, 5 s, 10 s, 1 min, 5 min, 20 min, 2 h and 12 h that goes often enough into
    the window. Few hops for many windows is on purpose: a window added later then leaves the
    tiles of a log as they are, so stored state answers it at once.

    Args:
        span_ms: length of the window.
        profile: `"default"`: windows up to 1 h are exact (hop 1 ms), others have at least 24 hops
            and are never over 4.2 % longer than they say: 20 min for 24 h, 2 h for 7 d, 12 h for
            30 d. `"exact"`: all are exact. `"hot"`, for keys with over one event a second: none
            is exact that need not be, each has at least 60 hops (1 s for 1 min, 5 s for 5 min,
            10 s for 10 min, 1 min for 1 h, the others as above); give the log a lateness of 1 min.

    Raises:
        WindowSpecError: the profile is unknown.
    """
    if profile not in PROFILES:
        raise WindowSpecError(
            where="profile",
            problem=f"{profile!r} is unknown",
            fix=f"Write one of {', '.join(map(repr, PROFILES))}.",
        )
    if profile == "exact" or (profile == "default" and span_ms <= HOUR_MS):
        return 1
    fitting = [hop for hop in _HOPS_MS if hop * _HOPS_A_WINDOW[profile] <= span_ms]
    return fitting[-1] if fitting else 1


def _whole(where: str, name: str, value: object, low: int, high: int) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not low <= value <= high:  # type: ignore[operator]
        raise WindowSpecError(
            where=where,
            problem=f"{name} is {value!r}",
            fix=f"Write a whole number from {low:,} to {high:,}.",
        )


def _name(where: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise WindowSpecError(where=where, problem=f"{value!r} is no name", fix="Write a name.")


@dataclass(frozen=True)
class Column:
    """One raw column that every record of a log holds.

    Attributes:
        name: its name in the event source.
        kind: `"numeric"`: held as the integer `round_half_even(value * 10**scale)`, of magnitude
            up to 2**53. `"distinct"`: held as a 64-bit hash; it can be counted, not added.
        scale: decimals that are kept (0 to 12); 0 for distinct columns.
    """

    name: str
    kind: str = "numeric"
    scale: int = 2

    def __post_init__(self) -> None:
        _name("a column", self.name)
        where = f"column {self.name!r}"
        if self.kind not in ("numeric", "distinct"):
            raise WindowSpecError(
                where=where,
                problem=f"kind {self.kind!r} is unknown",
                fix="Write 'numeric' or 'distinct'.",
            )
        _whole(where, "scale", self.scale, 0, 0 if self.kind == "distinct" else _MAX_SCALE)

    @classmethod
    def floats(cls, name: str, scale: int = 2) -> Column:
        """A column of floats or decimals, of which `scale` decimals are kept."""
        return cls(name, "numeric", scale)

    @classmethod
    def integers(cls, name: str) -> Column:
        """A column of whole numbers."""
        return cls(name, "numeric", 0)

    @classmethod
    def distinct(cls, name: str) -> Column:
        """A column of anything whose different values are counted."""
        return cls(name, "distinct", 0)

    @property
    def is_numeric(self) -> bool:
        """Whether it can be added."""
        return self.kind == "numeric"


@dataclass(frozen=True)
class EventSpec:
    """What one event log holds: the log of one event source for one kind of entity.

    Columns are held in the order of their names, so that the order in which they were declared
    decides nothing.

    Attributes:
        event_id: the column that tells events of one entity and one moment apart.
        columns: what else a record holds.
        lateness_ms: an event that arrives later than this after it happened is dropped.
        skew_ms: an event stamped further than this in the future is dropped.
        slack_ms: how far the clocks of readers, writers and compactors may lie apart, and how long
            a write may be under way, retries included.

    Raises:
        WindowSpecError: a name is missing or said twice, or a number is out of range.
    """

    event_id: str
    columns: tuple[Column, ...] = ()
    lateness_ms: int = HOUR_MS
    skew_ms: int = 5 * SECOND_MS
    slack_ms: int = MINUTE_MS

    def __post_init__(self) -> None:
        _name("event_id", self.event_id)
        object.__setattr__(self, "columns", tuple(sorted(self.columns, key=lambda c: c.name)))
        names = [column.name for column in self.columns]
        for name in names:
            if names.count(name) > 1:
                raise WindowSpecError(
                    where=f"column {name!r}", problem="is declared twice", fix="Remove one."
                )
        _whole("event log", "lateness_ms", self.lateness_ms, 0, MAX_LATENESS_MS)
        _whole("event log", "skew_ms", self.skew_ms, 0, MAX_LATENESS_MS)
        _whole("event log", "slack_ms", self.slack_ms, 0, MAX_LATENESS_MS)
        if self.skew_ms > self.lateness_ms + self.slack_ms:
            # state lives for lateness + slack longer than the windows, counted from the append
            raise WindowSpecError(
                where="event log",
                problem=f"skew_ms ({self.skew_ms:,}) is longer than lateness_ms and slack_ms "
                f"together ({self.lateness_ms + self.slack_ms:,})",
                fix="Shorten skew_ms, or lengthen slack_ms.",
            )

    def to_json(self) -> str:
        """Canonical JSON: equal declarations give equal text."""
        return _dump({"version": _VERSION, "event": _written_event(self)})

    @classmethod
    def from_json(cls, text: str) -> EventSpec:
        """Read what `to_json` wrote.

        Raises:
            WindowSpecError: it is not such text, or of a newer version.
        """
        content = _load(text)
        try:
            return _read_event(content["event"])
        except (ValueError, TypeError, KeyError):
            raise _unreadable("lacks a part of its declaration") from None

    @property
    def numeric(self) -> tuple[Column, ...]:
        """The columns that can be added."""
        return tuple(column for column in self.columns if column.is_numeric)

    @property
    def distinct(self) -> tuple[Column, ...]:
        """The columns that can only be counted."""
        return tuple(column for column in self.columns if not column.is_numeric)

    def column(self, name: str) -> Column:
        """The column of that name.

        Raises:
            WindowSpecError: there is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        known = ", ".join(repr(column.name) for column in self.columns) or "none"
        raise WindowSpecError(
            where=f"column {name!r}", problem="is not in the event log", fix=f"Known: {known}."
        )


@dataclass(frozen=True, order=True)
class Window:
    """A stretch of time before t: `[floor_g(t - delay - span), floor_g(t - delay))`.

    The start is inclusive, the end exclusive, `g` the hop; hops count from 1970. Without a delay
    the window ends at t itself, whatever the hop: an event at t is not inside.

    Attributes:
        span_ms: length.
        hop_ms: steps in which its edges move; 1 is exact.
        delay_ms: how long before t it ends.
    """

    span_ms: int
    hop_ms: int = 1
    delay_ms: int = 0

    def __post_init__(self) -> None:
        where = f"window of {self.span_ms!r} ms"
        _whole(where, "span_ms", self.span_ms, 1, MAX_SPAN_MS)
        _whole(where, "hop_ms", self.hop_ms, 1, min(self.span_ms, MAX_HOP_MS))
        _whole(where, "delay_ms", self.delay_ms, 0, MAX_SPAN_MS)

    @property
    def reach_ms(self) -> int:
        """How far it looks back from t, apart from the hop."""
        return self.delay_ms + self.span_ms

    def start(self, t_ms: int) -> int:
        """The first moment inside."""
        return (t_ms - self.reach_ms) // self.hop_ms * self.hop_ms

    def end(self, t_ms: int) -> int:
        """The first moment after it."""
        if not self.delay_ms:
            return t_ms
        return (t_ms - self.delay_ms) // self.hop_ms * self.hop_ms

    def enters_at(self, ts_ms: int) -> int:
        """The first t at which an event of `ts_ms` lies before the end."""
        if not self.delay_ms:
            return ts_ms + 1
        return ts_ms // self.hop_ms * self.hop_ms + self.hop_ms + self.delay_ms

    def leaves_at(self, ts_ms: int) -> int:
        """The first t at which an event of `ts_ms` lies before the start."""
        return ts_ms // self.hop_ms * self.hop_ms + self.hop_ms + self.reach_ms


@dataclass(frozen=True)
class Aggregate:
    """One output: a function of a column over a window, or the ratio of it over two windows.

    Attributes:
        name: the output's name.
        function: one of `FUNCTIONS`.
        column: the column; "" for `count`, which then counts events. With a column it counts the
            events in which the column is not null.
        window: the window.
        over: the longer window of a ratio: `function(window) / function(over)`, null where either
            is null or the second is 0. None for a plain aggregate.

    Raises:
        WindowSpecError: they do not fit each other.
    """

    name: str
    function: str
    column: str
    window: Window
    over: Window | None = None

    def __post_init__(self) -> None:
        _name("an aggregate", self.name)
        where = f"aggregate {self.name!r}"
        if self.function not in FUNCTIONS:
            raise WindowSpecError(
                where=where,
                problem=f"function {self.function!r} is unknown",
                fix=f"Known functions: {', '.join(FUNCTIONS)}.",
            )
        if not self.column and self.function != "count":
            raise WindowSpecError(
                where=where, problem=f"{self.function} needs a column", fix="Name one."
            )
        if self.over is not None:
            self._check_ratio(where, self.over)

    def _check_ratio(self, where: str, over: Window) -> None:
        if self.function not in _OF_RATIOS:
            raise WindowSpecError(
                where=where,
                problem=f"{self.function} has no ratio",
                fix=f"Functions with one: {', '.join(_OF_RATIOS)}.",
            )
        if over.span_ms <= self.window.span_ms or over.delay_ms != self.window.delay_ms:
            raise WindowSpecError(
                where=where,
                problem="the second window of a ratio is not longer, or has another delay",
                fix="Give it a longer span_ms and the same delay_ms.",
            )

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows it reads: one, or two for a ratio."""
        return (self.window,) if self.over is None else (self.window, self.over)


@dataclass(frozen=True)
class WindowSpec:
    """The outputs of one windowed feature view, and the event log they are computed from.

    Attributes:
        event: the log.
        aggregates: the outputs, in the view's order.

    Raises:
        WindowSpecError: an output is named twice, or asks for what the log does not hold.
    """

    event: EventSpec
    aggregates: tuple[Aggregate, ...]
    _types: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "aggregates", tuple(self.aggregates))
        if not self.aggregates:
            raise WindowSpecError(
                where="windows", problem="there is no aggregate", fix="Declare at least one."
            )
        types: dict[str, str] = {}
        for aggregate in self.aggregates:
            if aggregate.name in types:
                raise WindowSpecError(
                    where=f"aggregate {aggregate.name!r}",
                    problem="is declared twice",
                    fix="Rename one.",
                )
            types[aggregate.name] = self._type_of(aggregate)
        object.__setattr__(self, "_types", types)

    def _type_of(self, aggregate: Aggregate) -> str:
        column = self.event.column(aggregate.column) if aggregate.column else None
        if column and not column.is_numeric and aggregate.function not in _OF_DISTINCT:
            raise WindowSpecError(
                where=f"aggregate {aggregate.name!r}",
                problem=f"{aggregate.function} of {column.name!r}, of which only hashes are kept",
                fix=f"Use {' or '.join(_OF_DISTINCT)}, or declare the column numeric.",
            )
        if column and column.is_numeric and aggregate.function == "approx_count_distinct":
            raise WindowSpecError(
                where=f"aggregate {aggregate.name!r}",
                problem=f"{column.name!r} is numeric, of which no hashes are kept",
                fix="Declare the column distinct.",
            )
        if aggregate.over is not None:
            return "float64"
        if aggregate.function in ("count", "approx_count_distinct"):
            return "int64"
        if aggregate.function in ("last", "first") and column and not column.scale:
            return "int64"
        return "float64"

    @property
    def output_types(self) -> Mapping[str, str]:
        """Output name -> `"int64"` or `"float64"`, in order.

        Counts are int64, `last` and `first` of a column without decimals too, all else float64.
        """
        return dict(self._types)

    @property
    def windows(self) -> tuple[Window, ...]:
        """The distinct windows, sorted."""
        return tuple(sorted({window for one in self.aggregates for window in one.windows}))

    def to_json(self) -> str:
        """Canonical JSON: equal declarations give equal text."""
        content = {
            "version": _VERSION,
            "event": _written_event(self.event),
            "aggregates": [
                [one.name, one.function, one.column, *map(_as_list, one.windows)]
                for one in self.aggregates
            ],
        }
        return _dump(content)

    @classmethod
    def from_json(cls, text: str) -> WindowSpec:
        """Read what `to_json` wrote.

        Raises:
            WindowSpecError: it is not such text, or of a newer version.
        """
        content = _load(text)
        try:
            return cls(_read_event(content["event"]), _read_aggregates(content["aggregates"]))
        except (ValueError, TypeError, KeyError, IndexError):
            raise _unreadable("lacks a part of its declaration") from None


def _dump(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _load(text: str) -> Mapping[str, Any]:
    try:
        content: Mapping[str, Any] = json.loads(text)
        version = content["version"]
    except (ValueError, TypeError, KeyError):
        raise _unreadable("is no declaration of windows") from None
    if version != _VERSION:
        raise _unreadable(f"is of version {version!r}, and this is version {_VERSION}")
    return content


def _written_event(event: EventSpec) -> dict[str, Any]:
    return {
        "event_id": event.event_id,
        "columns": [[column.name, column.kind, column.scale] for column in event.columns],
        "lateness_ms": event.lateness_ms,
        "skew_ms": event.skew_ms,
        "slack_ms": event.slack_ms,
    }


def _as_list(window: Window) -> list[int]:
    return [window.span_ms, window.hop_ms, window.delay_ms]


def _read_event(content: Mapping[str, Any]) -> EventSpec:
    columns = tuple(Column(name, kind, scale) for name, kind, scale in content["columns"])
    return EventSpec(**{**content, "columns": columns})


def _read_aggregates(content: list[list[Any]]) -> tuple[Aggregate, ...]:
    return tuple(
        Aggregate(name, function, column, *(Window(*numbers) for numbers in windows))
        for name, function, column, *windows in content
    )


def _unreadable(problem: str) -> WindowSpecError:
    return WindowSpecError(
        where="stored declaration",
        problem=problem,
        fix="Run `feast apply` again with the version of Hotplate that reads it.",
    )
