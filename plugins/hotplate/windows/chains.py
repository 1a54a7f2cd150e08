"""Windows that can be computed together: one end, and each inside the next longer one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from hotplate.windows.exact import Integers
from hotplate.windows.spec import Window

_Moments = TypeVar("_Moments", int, Integers)

__all__ = ["NEVER", "Chain", "chains_of"]

NEVER = (1 << 63) - 1
"""A moment that does not come."""


class Chain:
    """Windows with the same end, the shortest first, whose starts never change places.

    Attributes:
        windows: the windows.
    """

    __slots__ = ("_delay", "_hops", "_is_exact", "_reaches", "_steps", "_terms", "windows")

    def __init__(self, windows: Iterable[Window]) -> None:
        self.windows = tuple(windows)
        self._delay = self.windows[0].delay_ms
        self._terms = [(one.reach_ms, one.hop_ms) for one in self.windows]
        self._hops = np.array([one.hop_ms for one in self.windows])
        self._reaches = np.array([one.reach_ms for one in self.windows])
        self._steps = self._hops + self._reaches
        self._is_exact = bool((self._hops == 1).all())

    def edges_at(self, t: int) -> list[int]:
        """The starts, and the end last."""
        edges = [(t - reach) // hop * hop for reach, hop in self._terms]
        edges.append(self.windows[0].end(t) if self._delay else t)
        return edges

    def edges(self, t: Integers) -> Integers:
        """int64 (m) -> (m, w + 1): the starts, and the end last."""
        if len(t) == 1:  # plain integers are faster than numpy for a few numbers
            return np.array([self.edges_at(int(t[0]))])
        out = np.empty((len(t), len(self.windows) + 1), np.int64)
        starts = t[:, None] - self._reaches
        out[:, :-1] = starts if self._is_exact else starts // self._hops * self._hops
        hop = self.windows[0].hop_ms
        out[:, -1] = (t - self._delay) // hop * hop if self._delay else t
        return out

    def leaves_at(self, ts: Integers) -> Integers:
        """When events leave each window: int64 (m, w), `ts` of one event for each -> (m, w)."""
        moments: Integers = ts // self._hops * self._hops + self._steps
        return moments

    def first_leaves_at(self, ts: list[int], begin: list[int], end: int) -> int:
        """The first moment at which a window loses an event; `NEVER` if all are empty.

        Args:
            ts: of the oldest event of each window.
            begin: its place, which is `end` or more where the window is empty.
            end: the place after the last event inside.
        """
        return min(
            (
                one // hop * hop + hop + reach
                for one, place, (reach, hop) in zip(ts, begin, self._terms, strict=True)
                if place < end
            ),
            default=NEVER,
        )

    def changes_at(self, key: Integers, begin: Integers, end: int) -> int:
        """The first moment at which an item of one log leaves a window, or the next one enters.

        Args:
            key: when each item happened, in order.
            begin: the first item of each window.
            end: the place after the last item inside.
        """
        oldest = key.take(begin, mode="clip").tolist()
        moment = self.first_leaves_at(oldest, begin.tolist(), end)
        return min(moment, self.enters_at(int(key[end]))) if end < len(key) else moment

    def enters_at(self, ts: _Moments) -> _Moments:
        """When events enter, which is the same moment for all of the windows."""
        if not self._delay:
            return ts + 1
        hop = self.windows[0].hop_ms
        return ts // hop * hop + (hop + self._delay)


def chains_of(windows: Iterable[Window]) -> list[Chain]:
    """Put windows into as few chains as possible.

    Two windows without a delay end at t, others where their delays and hops agree. The start of a
    shorter one never lies before that of a longer one if they are further apart than its hop.
    """
    ends: dict[tuple[int, int], list[list[Window]]] = {}
    for window in sorted(windows, key=lambda one: (one.reach_ms, one.hop_ms)):
        end = (window.delay_ms, window.hop_ms if window.delay_ms else 0)
        for chain in ends.setdefault(end, []):
            last = chain[-1]
            if window.reach_ms - last.reach_ms >= last.hop_ms - 1:
                chain.append(window)
                break
        else:
            ends[end].append([window])
    return [Chain(chain) for chains in ends.values() for chain in chains]
