"""What a replay counts, and what is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hotplate.advice.entities import Floats, Ints

__all__ = ["Ages", "Tally"]

_BINS: Final = 1_024
_GROWTH: Final = np.log(1.03)


class Ages:
    """Ages in bins that are 3 % wide, from a microsecond to 400 years.

    Attributes:
        count: how many, by their weights.
        longest_us: the greatest, exactly.
    """

    def __init__(self) -> None:
        self._bins = np.zeros(_BINS)
        self.count = 0.0
        self.longest_us = 0

    def add(self, ages_us: Ints, weights: Floats) -> None:
        """Count ages, microseconds, none below 0, each as often as its weight says."""
        if not len(ages_us):
            return
        places = (np.log1p(ages_us.astype(np.float64)) / _GROWTH).astype(np.int64)
        self._bins += np.bincount(np.minimum(places, _BINS - 1), weights, _BINS)
        self.count += float(weights.sum())
        self.longest_us = max(self.longest_us, int(ages_us.max()))

    def quantile_us(self, share: float) -> int:
        """The age that this share of all does not exceed; at most 3 % too high, never too low."""
        if not self.count:
            return 0
        place = int(np.searchsorted(np.cumsum(self._bins), share * self.count))
        return min(self.longest_us, int(np.ceil(np.expm1((place + 1) * _GROWTH))))


@dataclass
class Tally:
    """Counts of one group under one candidate.

    Attributes:
        reads: of rows that were replayed and count.
        misses: reads that had to wait for the source, by the weights of their rows.
        loads: rows read from the source, in the background too, by their weights.
        ages: of stale answers: since the first change that they did not show.
        by_bucket: misses of rows that stand for others, by the entity's bucket.
    """

    reads: int = 0
    misses: float = 0.0
    loads: float = 0.0
    ages: Ages = field(default_factory=Ages)
    by_bucket: Floats = field(default_factory=lambda: np.zeros(32))
