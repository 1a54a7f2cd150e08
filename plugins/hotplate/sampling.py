"""Some of many, at random, so that no rhythm of the many is followed."""

from __future__ import annotations

import random
from typing import Any, Protocol

__all__ = ["Sampler", "Share"]


class Sampler(Protocol):
    """What is told of some requests."""

    def gap(self) -> int:
        """After how many more requests the next one is told, itself included."""

    def note(self, wants: Any, weight: int) -> None:
        """A request asks for `wants`, and stands for `weight` of them."""


class Share:
    """A share of many.

    Threads may share one; two at once may take the same turn, which is one more or less of many.

    Args:
        share: above 0, up to 1.
    """

    __slots__ = ("_chance", "_gap", "_left", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        self._chance = random.Random()
        self._gap = self._left = self.gap()

    def gap(self) -> int:
        """After how many more the next one is taken, itself included."""
        mean = 1 / self.share
        return 1 if mean <= 1 else self._chance.randint(1, max(1, round(2 * mean) - 1))

    def take(self) -> int:
        """For how many this one stands, where it is taken; else 0."""
        self._left -= 1
        if self._left > 0:
            return 0
        weight, self._gap = self._gap, self.gap()
        self._left = self._gap
        return weight
