"""Rehearses reads that will come, at a rate that live traffic does not notice.

The rate begins at a small share of the stated peak and grows to a larger one; no second ever sees
more than that. What the source says decides besides: an error is followed by a pause, each time
twice as long, and the same batch again; when its answers take twice as long as in the beginning, or
whoever serves beside says that it suffers, the rate is halved, and grows back slowly.

The most valuable entities come first, so to stop early loses the least.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from hotplate.errors import HotplateError

__all__ = ["Batch", "NotKept", "Pacer", "WarmProgress", "Warmer", "WarmingError", "WarmingRate"]

_BASELINE: Final = 5  # batches that say how long an answer takes
_RECENT: Final = 5
_SLOWER: Final = 2.0
_BACK_PER_S: Final = 1.1
_SLOWEST: Final = 1 / 16  # of what the ramp allows
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 60.0


class WarmingError(HotplateError):
    """Warming cannot go on; the message says why, and what to do."""


class NotKept(HotplateError):
    """A batch was read, and what was to keep it did not."""


@dataclass(frozen=True)
class WarmingRate:
    """How fast.

    Attributes:
        peak: reads of rows that the source serves a second at its peak.
        first, most: shares of that at the beginning, and at the most.
        ramp_s: how long the rate takes from the one to the other.
        tries: of one batch until warming gives up.
    """

    peak: float
    first: float = 0.05
    most: float = 0.2
    ramp_s: float = 60.0
    tries: int = 8

    def __post_init__(self) -> None:
        if not (self.peak > 0 and 0 < self.first <= self.most <= 1 and self.ramp_s >= 0):
            raise ValueError(
                f"a peak of {self.peak:g} a second, from {self.first:.0%} to {self.most:.0%} of "
                "it: the peak must be above 0, and 0 < first <= most <= 100%"
            )
        if self.tries < 1:
            raise ValueError("tries: 1 at the least")

    def at(self, seconds: float) -> float:
        """Reads a second after so many seconds."""
        grown = 1.0 if not self.ramp_s else min(1.0, seconds / self.ramp_s)
        return self.peak * (self.first + (self.most - self.first) * grown)

    @property
    def limit(self) -> float:
        """The most reads in any second."""
        return self.peak * self.most


@dataclass(frozen=True)
class Batch:
    """Entities of one kind that are read together.

    Attributes:
        entity: their join keys, with commas.
        keys: values of each.
        reads: rows that are read for them.
        views: which; all of that kind of entity if empty.
    """

    entity: str
    keys: Sequence[tuple[object, ...]]
    reads: int
    views: tuple[str, ...] = ()


@dataclass(frozen=True)
class WarmProgress:
    """How far it is.

    Attributes:
        batches, entities, reads: done.
        errors: of the source so far.
        rate: reads a second that are allowed now.
        why: what holds it back, or nothing.
        stage: `"features"`, or `"outputs"` once all of those are there.
    """

    batches: int
    entities: int
    reads: int
    errors: int
    rate: float
    why: str
    stage: str = "features"


class Pacer(Protocol):
    """At most so many in any second; see `hotplate.pace.Pace`."""

    limit: int

    def take(self, count: int) -> None:
        """Wait until so many more may pass; at most `limit` of them."""


class Warmer:
    """Reads batches, one after the other.

    Args:
        read: reads a batch through the cache.
        rate: how fast.
        pace: holds the rate; its limit is set here.
        suffers: whether whoever serves beside is slower than it should be.
        clock: seconds that only go forward.
        sleep: waits so many seconds.
        chance: from which jitter comes.
    """

    def __init__(
        self,
        read: Callable[[Batch], None],
        rate: WarmingRate,
        pace: Pacer,
        *,
        suffers: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        chance: random.Random | None = None,
    ) -> None:
        self._read = read
        self._rate = rate
        self._pace = pace
        self._suffers = suffers
        self._clock = clock
        self._sleep = sleep
        self._chance = chance or random.Random()
        self._factor = 1.0
        self._rate_now = rate.at(0.0)
        self._baseline: list[float] = []
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._judged_s = 0.0

    def most_in_batch(self) -> int:
        """Reads that one batch may have, so that the first of them fits into the rate."""
        return max(1, int(self._rate.at(0.0)))

    def run(self, batches: Sequence[Batch]) -> Iterator[WarmProgress]:
        """Read batches; yields after each.

        Raises:
            WarmingError: a batch failed too often; the cause is the source's last error.
        """
        began_s = self._judged_s = self._clock()
        entities = reads = errors = 0
        for place, batch in enumerate(batches):
            tries = 0
            while True:
                self._allow(began_s)
                taken = self._pass(batch.reads)
                try:
                    self._read(batch)
                except Exception as error:
                    errors += 1
                    tries += 1
                    if tries >= self._rate.tries:
                        raise WarmingError(
                            f"{_shown(error, tries)}. "
                            f"{place:,} of {len(batches):,} batches are done; --resume goes on "
                            "from there once it answers"
                        ) from error
                    self._wait(tries)
                    continue
                self._note(self._clock() - taken, batch.reads)
                break
            entities += len(batch.keys)
            reads += batch.reads
            yield WarmProgress(place + 1, entities, reads, errors, self._rate_now, self._why())

    def _allow(self, began_s: float) -> None:
        """Set the rate of now."""
        now_s = self._clock()
        allowed = self._rate.at(now_s - began_s)
        passed_s, self._judged_s = now_s - self._judged_s, now_s
        if self._is_slow() or self._suffers():
            self._factor = max(_SLOWEST, self._factor / 2)
            self._recent.clear()
        else:
            self._factor = min(1.0, self._factor * _BACK_PER_S**passed_s)
        self._rate_now = allowed * self._factor

    def _pass(self, reads: int) -> float:
        """Wait for a batch's turn; returns when it came."""
        rate = self._rate_now
        # the pace lets no part of a batch through: where it is slower than that, wait before
        self._pace.limit = max(reads, int(rate))
        wait_s = max(0.0, reads / rate - 1.0)
        # beside others that warm, none keeps step with another
        self._sleep(wait_s + self._chance.random() * 0.1 * reads / rate)
        self._pace.take(reads)
        return self._clock()

    def _wait(self, tries: int) -> None:
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (tries - 1))
        self._sleep(longest * (0.5 + 0.5 * self._chance.random()))
        self._factor = max(_SLOWEST, self._factor / 2)

    def _note(self, seconds: float, reads: int) -> None:
        a_read = seconds / max(1, reads)
        if len(self._baseline) < _BASELINE:
            self._baseline.append(a_read)
        else:
            self._recent.append(a_read)

    def _is_slow(self) -> bool:
        if len(self._recent) < _RECENT:
            return False
        return statistics.median(self._recent) > _SLOWER * statistics.median(self._baseline)

    def _why(self) -> str:
        return "" if self._factor > 0.99 else "the source or live traffic is slower than it was"


def _shown(error: Exception, tries: int) -> str:
    if isinstance(error, NotKept):
        return f"{error}, {tries} times in a row"
    # what a source says may name whom it was asked for
    return f"the source failed {tries} times in a row: {type(error).__name__}"
