"""What answers while the source fails: the last value, where a policy allows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hotplate.clock import Clock
from hotplate.codec import stamp_of
from hotplate.contracts import Tier, View
from hotplate.core.request import Bound, Reading, Want
from hotplate.keys import Key
from hotplate.tiers.memory import MemoryTier

__all__ = ["LastGood"]

_LEFT_ALONE_NS: Final = 1_000_000_000


class LastGood:
    """Rows past their bound that may stand in for a source that fails.

    Args:
        memory: where they are.
        clock: the cache's.

    Attributes:
        asked_again_ns: for each view whose source failed of late, when to ask it again.
    """

    def __init__(self, memory: MemoryTier, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock
        self.asked_again_ns: dict[View, int] = {}

    def take(self, reading: Reading, wanted: Mapping[Key, Want], error: BaseException) -> bool:
        """Let the last value stand in for a failing source, where every policy allows it."""
        if reading.is_refresh:
            return False  # nobody waits for it: what is in memory stays there
        now_ns = self._clock.now_ns()  # a source may take minutes to fail
        stand_in: dict[Key, bytes] = {}
        for key, want in wanted.items():
            row = self._row(key, want.bound, now_ns)
            if row is None:
                return False
            stand_in[key] = row
        for key, row in stand_in.items():
            self._answer(reading, key, wanted[key], row)
            self.asked_again_ns[wanted[key].view] = now_ns + _LEFT_ALONE_NS
        return True

    def stand_in(self, reading: Reading, missing: dict[Key, Want]) -> None:
        """Spare a source that just failed: who may be answered by the last value does not wait.

        One request in a while asks it again.
        """
        now_ns = self._clock.now_ns()
        for view in {want.view for want in missing.values()} & self.asked_again_ns.keys():
            if self.asked_again_ns.get(view, 0) <= now_ns:
                self.asked_again_ns[view] = now_ns + _LEFT_ALONE_NS  # by this request
                continue
            for key, want in list(missing.items()):
                row = self._row(key, want.bound, now_ns) if want.view is view else None
                if row is not None:
                    self._answer(reading, key, want, row)
                    del missing[key]

    def _row(self, key: Key, bound: Bound, now_ns: int) -> bytes | None:
        """The last value, where the policy lets it stand in."""
        limit_ns = bound.policy.last_good_ns
        row = self._memory.peek(key) if bound.policy.is_cached else None
        if limit_ns is None or row is None or now_ns - stamp_of(row) > limit_ns:
            return None
        return row

    def _answer(self, reading: Reading, key: Key, want: Want, row: bytes) -> None:
        want.counters.last_good += 1
        reading.answer_of[key] = row
        reading.origins[key] = Tier.LAST_GOOD
