"""What one request wants of the engine, and what it is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from hotplate.codec import ABSENT_ROW, FLAGS_AT, PREFIX_BYTES, heads_of, is_absent, stamp_of
from hotplate.contracts import NO_LEASE_NEEDED, Found, Lease, Tier, View
from hotplate.durations import NO_LIMIT_NS
from hotplate.keys import Key
from hotplate.policy import ResolvedPolicy
from hotplate.stats import GroupCounters

__all__ = ["Answer", "Bound", "Reading", "Want", "aged"]

_FEW: Final = 16
_LONG_NS: Final = 1 << 54  # over half a year: times 255 it would not fit 64 bits


class Bound:
    """A policy as the two numbers that a read compares with.

    Attributes:
        policy: the policy.
        lease: under which rows may be served from memory.
        is_cached: whether anything is ever served from the cache.
        surely_fresh_ns: an age up to which a row is fresh whatever its jitter, and not yet due for
            a refresh; -1 where nothing may be served from memory.
    """

    __slots__ = ("_by_jitter_ns", "is_cached", "lease", "policy", "surely_fresh_ns")

    def __init__(self, policy: ResolvedPolicy, lease: Lease = NO_LEASE_NEEDED) -> None:
        self.policy = policy
        self.lease = lease
        self.is_cached = policy.is_cached
        self._by_jitter_ns = int(policy.ttl_ns * policy.jitter)
        if not self.is_cached:
            self.surely_fresh_ns = -1
        elif policy.ttl_ns >= NO_LIMIT_NS:
            self.surely_fresh_ns = NO_LIMIT_NS
        else:
            shortest = policy.ttl_ns - self._by_jitter_ns
            self.surely_fresh_ns = max(0, shortest - policy.stale_while_revalidate_ns)

    def expiry_ns(self, row: bytes) -> int:
        """The age at which this row may no longer be served."""
        policy = self.policy
        ttl_ns, by_jitter_ns = policy.ttl_ns, self._by_jitter_ns
        if row[FLAGS_AT] & ABSENT_ROW:
            ttl_ns = policy.negative_ttl_ns
            by_jitter_ns = int(ttl_ns * policy.jitter)
        if ttl_ns >= NO_LIMIT_NS:
            return NO_LIMIT_NS
        return ttl_ns - by_jitter_ns * row[PREFIX_BYTES - 1] // 255

    def deadlines_ns(self, rows: Sequence[bytes]) -> list[int]:
        """When each of some rows may no longer be served, on the cache's clock."""
        policy = self.policy
        if not self.is_cached:
            return [stamp_of(row) for row in rows]
        shortened = self._by_jitter_ns
        if len(rows) < _FEW or policy.ttl_ns >= _LONG_NS or policy.negative_ttl_ns >= _LONG_NS:
            return [stamp_of(row) + self.expiry_ns(row) for row in rows]
        heads = heads_of(rows)
        ttl_ns, most_ns = (
            np.where(heads["flags"] & ABSENT_ROW, absent, present)
            for absent, present in (
                (policy.negative_ttl_ns, policy.ttl_ns),
                (int(policy.negative_ttl_ns * policy.jitter), shortened),
            )
        )
        found: list[int] = (heads["stamp"] + ttl_ns - most_ns * heads["jitter"] // 255).tolist()
        return found

    def threshold(self, now_ns: int) -> bytes:
        """What a row's bytes must exceed for the row to be surely fresh at `now_ns`."""
        oldest = now_ns - self.surely_fresh_ns
        return oldest.to_bytes(8, "big") if oldest > 0 else b""

    def is_refresh_due(self, row: bytes, age_ns: int) -> bool:
        """Whether a row that is still fresh should be reloaded in the background."""
        swr_ns = self.policy.stale_while_revalidate_ns
        return bool(swr_ns) and not is_absent(row) and age_ns > self.expiry_ns(row) - swr_ns


@dataclass(slots=True)
class Want:
    """What one request wants of one view: a row a key, in order, duplicates included."""

    view: View
    table: Any
    bound: Bound
    counters: GroupCounters
    keys: Sequence[Key]


@dataclass(slots=True)
class Answer:
    """Rows for each want, in the order of its keys.

    Attributes:
        rows: per want, per key.
        now_ns: when it was ready; ages and deadlines are meant as of then.
        origins: where rows came from that did not come from memory.
    """

    rows: list[list[bytes]]
    now_ns: int
    origins: dict[Key, Tier] = field(default_factory=dict)
    wants: Sequence[Want] = ()

    def tiers(self, index: int) -> list[Tier]:
        """Where each row of a want came from."""
        return [self.origins.get(key, Tier.MEMORY) for key in self.wants[index].keys]


class Reading:
    """The state of one read: what was found, what is missing, where it came from.

    Attributes:
        began_ns: when the request came.
        now_ns: when its rows were last judged; later than that once it had to wait.
        loaded: what it read from the source itself.
        flights_ended: how many flights had ended when it last looked into memory.
        first: what the shared tier said of missing keys, and their versions before it was asked.
    """

    __slots__ = (
        "answer_of",
        "began_ns",
        "first",
        "flights_ended",
        "is_async",
        "is_refresh",
        "is_rehearsed",
        "loaded",
        "missing",
        "now_ns",
        "origins",
        "refresh",
        "wants",
    )

    def __init__(
        self,
        wants: Sequence[Want],
        now_ns: int,
        *,
        is_async: bool = False,
        is_refresh: bool = False,
        is_rehearsed: bool = False,
    ) -> None:
        self.wants = wants
        self.is_async = is_async
        self.is_refresh = is_refresh
        self.is_rehearsed = is_rehearsed
        self.began_ns = now_ns
        self.flights_ended = 0
        self.now_ns = now_ns
        self.answer_of: dict[Key, bytes] = {}
        self.missing: dict[Key, Want] = {}
        self.origins: dict[Key, Tier] = {}
        self.loaded: set[Key] = set()
        self.refresh: dict[Key, Want] = {}
        self.first: dict[Key, tuple[Found, int]] = {}

    def answer(self) -> Answer:
        found = self.answer_of
        return Answer(
            [[found[key] for key in want.keys] for want in self.wants],
            self.now_ns,
            self.origins,
            self.wants,
        )


def aged(
    fresh: Mapping[Key, bytes], lives_ns: Sequence[int], bound: Bound, began_ns: int
) -> dict[Key, bytes]:
    """Rows that do not hold for a whole ttl, as if their read had begun earlier.

    So they expire in time wherever they are read, and nothing else has to know. Their view's
    identity must hold the ttl: under a longer one they would live on.
    """
    longest_ns = bound.policy.ttl_ns
    return {
        key: row
        if life_ns >= longest_ns
        else max(0, began_ns + life_ns - longest_ns).to_bytes(8, "big") + row[8:]
        for (key, row), life_ns in zip(fresh.items(), lives_ns, strict=True)
    }
