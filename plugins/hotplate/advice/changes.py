"""When rows changed: for every slot, and for views of which everything changed at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hotplate.advice.entities import Entities, Ints, Slots
from hotplate.advice.errors import AdviceError

__all__ = ["FAR", "NEVER", "ChangeTimes", "Changes", "Whole"]

FAR: Final = 1 << 62
"""Later than any moment of a log, microseconds."""

NEVER: Final = -(1 << 62)
"""Before any moment of a log."""

_MOST: Final = 50_000_000


@dataclass(frozen=True)
class Whole:
    """Changes of every entity of some slots.

    Attributes:
        span: these slots.
        at: microseconds, sorted.
    """

    span: slice
    at: Ints


class ChangeTimes:
    """The moments at which slots changed.

    Args:
        slot, at: one change each, in any order; microseconds.
        wholes: changes of whole views.
        begin, end: the moments between which a log lies.

    Raises:
        AdviceError: the log is too long for so many slots to be told apart.
    """

    def __init__(
        self, slot: Ints, at: Ints, begin: int, end: int, wholes: tuple[Whole, ...] = ()
    ) -> None:
        self._begin = begin
        self._width = end - begin + 3
        if len(slot) and (int(slot.max()) + 1) * self._width >= FAR:
            raise AdviceError(
                "the log is too long for so many entities: choose a part of it with --since and "
                "--until, or fewer entities with --entities"
            )
        inside = (at >= begin) & (at <= end)
        self._moments = np.sort(slot[inside] * self._width + (at[inside] - begin + 1))
        self.wholes = tuple(
            Whole(one.span, one.at[(one.at >= begin) & (one.at <= end)]) for one in wholes
        )

    def __len__(self) -> int:
        return len(self._moments) + sum(len(one.at) for one in self.wholes)

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not len(self)

    def _offset(self, at: Ints) -> Ints:
        return np.clip(at - self._begin + 1, 0, self._width - 1)

    def until(self, slot: Ints, at: Ints) -> Ints:
        """A number that differs between two moments of a slot if it changed in between: after the
        one, at the other at the latest."""
        found = np.searchsorted(self._moments, slot * self._width + self._offset(at), "right")
        found = found.astype(np.int64)
        for one in self.wholes:
            own = (slot >= one.span.start) & (slot < one.span.stop)
            found[own] += np.searchsorted(one.at, at[own], "right")
        return found

    def after(self, slot: Ints, at: Ints) -> Ints:
        """When slots changed for the first time after a moment; `FAR` where they did not."""
        found = np.full(len(slot), FAR, np.int64)
        if len(self._moments):
            query = slot * self._width + self._offset(at)
            place = np.searchsorted(self._moments, query, "right")
            is_there = place < len(self._moments)
            moment = self._moments[np.minimum(place, len(self._moments) - 1)]
            is_own = is_there & (moment // self._width == slot)
            found[is_own] = moment[is_own] % self._width - 1 + self._begin
        for one in self.wholes:
            if not len(one.at):
                continue
            own = np.flatnonzero((slot >= one.span.start) & (slot < one.span.stop))
            place = np.searchsorted(one.at, at[own], "right")
            moment = np.where(place < len(one.at), one.at[np.minimum(place, len(one.at) - 1)], FAR)
            found[own] = np.minimum(found[own], moment)
        return found

    def of_slots(self, count: int) -> Ints:
        """How often each slot changed: int64 (count,)."""
        found = np.bincount(self._moments // self._width, minlength=count)
        for one in self.wholes:
            found[one.span] += len(one.at)
        return found.astype(np.int64)

    def between(self, after: int, until: int) -> tuple[Ints, Ints]:
        """(slots, moments) of the changes after one moment, at another at the latest."""
        slot, at = self._moments // self._width, self._moments % self._width - 1 + self._begin
        inside = (at > after) & (at <= until)
        slots, moments = [slot[inside]], [at[inside]]
        for one in self.wholes:
            for moment in one.at[(one.at > after) & (one.at <= until)].tolist():
                slots.append(np.arange(one.span.start, one.span.stop))
                moments.append(np.full(one.span.stop - one.span.start, moment))
        return np.concatenate(slots).astype(np.int64), np.concatenate(moments).astype(np.int64)


@dataclass
class Changes:
    """Changes as they are collected, before slots are known to them.

    Args:
        slots: those that are replayed; changes of others are left out.

    Attributes:
        seen: changes that were looked at, of all entities.
        groups: that have changes, or of which it is known that there are none.
    """

    slots: Slots
    seen: int = 0
    groups: set[str] = field(default_factory=set)
    _slot: list[Ints] = field(default_factory=list)
    _at: list[Ints] = field(default_factory=list)
    _origin: list[Ints] = field(default_factory=list)
    _wholes: list[tuple[str, Ints, str]] = field(default_factory=list)
    _origins: dict[str, int] = field(default_factory=dict)
    _kept: int = 0

    def add(self, view: str, entities: Entities, at: Ints, origin: str = "") -> None:
        """Note changes of entities of a view.

        Args:
            view: which must be one of the slots'.
            entities: one a change.
            at: microseconds since 1970.
            origin: the process that made them, if it is known.

        Raises:
            AdviceError: there are too many.
        """
        spec = next(one for one in self.slots.views if one.name == view)
        self.groups.add(spec.group)
        self.seen += len(at)
        place = self.slots.places(spec.entity, entities)
        kept = np.flatnonzero(place >= 0)
        self._kept += len(kept)
        if self._kept > _MOST:
            raise AdviceError(
                f"more than {_MOST:,} changes: choose a part of the log with --since and --until, "
                "or fewer entities with --entities"
            )
        self._slot.append(place[kept] + self.slots.base(view))
        self._at.append(at[kept])
        number = self._origins.setdefault(origin, len(self._origins))
        self._origin.append(np.full(len(kept), number, np.int64))

    def add_whole(self, view: str, at: Ints, origin: str = "") -> None:
        """Note changes of every entity of a view."""
        spec = next(one for one in self.slots.views if one.name == view)
        self.groups.add(spec.group)
        self.seen += len(at)
        self._wholes.append((view, at, origin))

    def times(self, begin: int, end: int, origin: str | None = None) -> ChangeTimes:
        """When slots changed.

        Args:
            begin, end: of the log, microseconds.
            origin: only changes that this process made.
        """
        none = np.zeros(0, np.int64)
        slot = np.concatenate([none, *self._slot])
        at = np.concatenate([none, *self._at])
        if origin is not None:
            made = np.concatenate([none, *self._origin]) == self._origins.get(origin, -1)
            slot, at = slot[made], at[made]
        return ChangeTimes(slot, at, begin, end, self._whole_times(origin))

    def _whole_times(self, origin: str | None) -> tuple[Whole, ...]:
        specs: Mapping[str, slice] = {one.name: self.slots.span(one) for one in self.slots.views}
        found: dict[str, list[Ints]] = {}
        for view, at, by in self._wholes:
            if origin is None or by == origin:
                found.setdefault(view, []).append(at)
        return tuple(
            Whole(specs[view], np.sort(np.concatenate(parts))) for view, parts in found.items()
        )
