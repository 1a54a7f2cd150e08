"""How long the records of a log are kept one by one, and in which tiles after that.

A tile holds what is known together of all events of one stretch of time, `[start, start + size)`.
It may only be made where no edge of any window will ever fall inside it again. The start of a
window of hop g moves in steps of g, so it never cuts a tile whose size divides g; and it only moves
on, so it never cuts a tile that it has passed. Both are decided by the *age* of a tile's end alone:

    size may be used from age a on  <=>  for every window: size divides its hop,
                                         or a >= delay + span + hop - 1   (the start has passed)
    and a >= lateness                                                    (no event is still to come)

The windows that are still ahead only become fewer with age, so the greatest common divisor of
their hops only grows, and each size divides the next. With the default hops and windows up to 30
days that gives single records for 1 h, tiles of 20 min up to a day, of 2 h up to 7 days, of 12 h
up to 30 days.

The *fingerprint* covers what decides whether stored state can answer: the record (columns, kinds,
scales, the id), lateness, skew and slack, the tiles and how long they are kept. It covers no
window. A window added over stored columns leaves it as it is exactly where it changes neither the
tiles nor the retention, that is where every tile that may exist is one that the new window's edges
cannot cut, and nothing that it looks back on has been dropped. Everything else gives another
fingerprint, and so a new log.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from hotplate.windows.errors import WindowSpecError
from hotplate.windows.spec import EventSpec, Window, WindowSpec

__all__ = ["LogPlan", "TileRule"]

_LAYOUT: Final = 1
"""Version of the layout of records and tiles and of the hashes in them."""


@dataclass(frozen=True)
class TileRule:
    """Tiles of `size_ms`, whose end is at least `age_ms` old.

    Attributes:
        age_ms: from this age on; counted from the end of the tile.
        size_ms: length of the tiles; starts are multiples of it.
    """

    age_ms: int
    size_ms: int


@dataclass(frozen=True)
class LogPlan:
    """How one event log is stored, from all the windows that are computed over it.

    Attributes:
        event: what a record holds.
        rules: which tiles may be made, the youngest and smallest first.
        retention_ms: an event older than this is in no window and may be dropped.
    """

    event: EventSpec
    rules: tuple[TileRule, ...]
    retention_ms: int

    @classmethod
    def of(cls, specs: Iterable[WindowSpec]) -> LogPlan:
        """The plan of the log over which all of `specs` are computed.

        Raises:
            WindowSpecError: there is no spec, or two of them disagree about the log.
        """
        specs = list(specs)
        if not specs:
            raise WindowSpecError(
                where="event log", problem="has no windows", fix="Declare a windowed view over it."
            )
        event = specs[0].event
        for spec in specs[1:]:
            if spec.event != event:
                raise WindowSpecError(
                    where=f"event log with the id {event.event_id!r}",
                    problem=f"is declared in two ways: {event} and {spec.event}",
                    fix="Declare the same columns, lateness, skew and slack for all its windows.",
                )
        windows = {window for spec in specs for window in spec.windows}
        longest = max(window.reach_ms + window.hop_ms for window in windows)
        return cls(event, _rules(event, windows), longest + event.lateness_ms + event.slack_ms)

    @property
    def ttl_ms(self) -> int:
        """How long stored state must live after an append, so that its expiry changes nothing."""
        return self.retention_ms

    def check(self, spec: WindowSpec) -> None:
        """Make sure that logs stored by this plan answer `spec`.

        Raises:
            WindowSpecError: they do not; the message names the window.
        """
        if spec.event != self.event:
            raise WindowSpecError(
                where="windows",
                problem="are declared over another event log than the plan's",
                fix="Make the plan of all specs over the log: LogPlan.of(specs).",
            )
        kept = self.retention_ms - self.event.lateness_ms - self.event.slack_ms
        for window in spec.windows:
            cut = [
                rule
                for rule in self.rules
                if window.hop_ms % rule.size_ms and rule.age_ms < _passed_at(window)
            ]
            if cut or window.reach_ms + window.hop_ms > kept:
                raise WindowSpecError(
                    where=f"window {window}",
                    problem="cannot be answered from the log: its edges cut tiles"
                    if cut
                    else "reaches further back than the log",
                    fix="Make the plan of all specs over the log: LogPlan.of(specs).",
                )

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that differ where stored state cannot answer."""
        return self.digest.hex()

    @cached_property
    def digest(self) -> bytes:
        """The fingerprint as 8 bytes."""
        event = self.event
        content = [
            _LAYOUT,
            event.event_id,
            [[column.name, column.kind, column.scale] for column in event.columns],
            [event.lateness_ms, event.skew_ms, event.slack_ms, self.retention_ms],
            [[rule.age_ms, rule.size_ms] for rule in self.rules],
        ]
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=True)
        return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _passed_at(window: Window) -> int:
    """The age from which on the window's start has passed a moment for good."""
    return window.reach_ms + window.hop_ms - 1


def _rules(event: EventSpec, windows: Iterable[Window]) -> tuple[TileRule, ...]:
    ahead = sorted(windows, key=_passed_at)
    rules: list[TileRule] = []
    age = event.lateness_ms
    while ahead:
        size = math.gcd(*(window.hop_ms for window in ahead))
        if size > (rules[-1].size_ms if rules else 1):
            if rules and rules[-1].age_ms == age:
                rules.pop()
            rules.append(TileRule(age, size))
        age = max(age, _passed_at(ahead.pop(0)))
    return tuple(rules)
