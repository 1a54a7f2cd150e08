"""How long a row may be served: a candidate policy as numbers, in the cache's own arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hotplate.advice.changes import FAR
from hotplate.advice.entities import Ints
from hotplate.durations import NO_LIMIT_NS
from hotplate.resolved import ResolvedPolicy

__all__ = ["Bytes", "Lifetime"]

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Lifetime:
    """How long a row of a group may be served, nanoseconds.

    Attributes:
        ttl_ns: the longest; 0 where nothing is served from memory, `NO_LIMIT_NS` for ever.
        jitter: the share by which rows expire early, at random.
        revalidate_ns: in this last part a row is served, and loaded again.
    """

    ttl_ns: int
    jitter: float = 0.0
    revalidate_ns: int = 0

    @classmethod
    def of(cls, policy: ResolvedPolicy, ttl_ns: int | None = None) -> Lifetime:
        """That of a group's policy, under another ttl if one is given.

        As where one layer's ttl is shorter than another's `stale_while_revalidate`: half of it.
        """
        ttl_ns = policy.ttl_ns if ttl_ns is None else ttl_ns
        revalidate_ns = policy.stale_while_revalidate_ns
        if ttl_ns >= NO_LIMIT_NS:
            revalidate_ns = 0
        elif revalidate_ns >= ttl_ns:
            revalidate_ns = ttl_ns // 2
        return cls(ttl_ns, policy.jitter, revalidate_ns)

    def expiry_us(self, chance: Bytes) -> Ints:
        """The age at which rows may no longer be served, whole microseconds, rounded down.

        Args:
            chance: of each row, as it is drawn when the row is loaded.
        """
        if self.ttl_ns >= NO_LIMIT_NS:
            return np.full(len(chance), FAR, np.int64)
        shortened = int(self.ttl_ns * self.jitter)
        # in units that cannot overflow: a byte is 255 at the most
        early = shortened // 255 * chance.astype(np.int64)
        early += shortened % 255 * chance.astype(np.int64) // 255
        return (self.ttl_ns - early) // 1_000

    def renewal_us(self, chance: Bytes) -> Ints:
        """The age above which a row is loaded again by whoever reads it, whether it is served or
        not."""
        if self.ttl_ns >= NO_LIMIT_NS:
            return np.full(len(chance), FAR, np.int64)
        expiry_us = self.expiry_us(chance)
        return expiry_us - self.revalidate_ns // 1_000 if self.revalidate_ns else expiry_us
