"""Which ttl to choose: the one that asks the source least while answers stay as fresh as they must.

Where it is known when rows change, an answer is stale if its row had changed before it was served,
and its staleness is the time since the first change that it does not show. Where it is not known,
one thing is certain: nothing is stale for longer than its ttl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hotplate.advice.lru import Room
from hotplate.advice.predictions import GroupForecast, Prediction, Replayed
from hotplate.advice.replay import EVENT, TTL
from hotplate.durations import format_duration

__all__ = ["Limits", "Recommendation", "enough", "recommend"]

_AS_GOOD: Final = 1.01
"""Source reads within 1 % of the fewest are as few: the shorter ttl, the smaller memory wins."""

_AS_OFTEN: Final = 0.005
"""Hit rates within half a point of the highest are as high."""


@dataclass(frozen=True)
class Limits:
    """How stale answers may be.

    Attributes:
        stale_share: of the answers of a group that may be stale at all.
        stale_age_s: how long ago the change may be that an answer does not show; no answer of the
            log may be staler.
    """

    stale_share: float = 0.001
    stale_age_s: float = 30.0

    def __str__(self) -> str:
        share = f"{100 * self.stale_share:.3g} %"
        age = format_duration(round(self.stale_age_s * 1e9))
        return f"{share} of the answers stale, none for longer than {age}"

    def allow(self, one: Prediction) -> bool:
        """Whether answers under a policy are as fresh as they must be."""
        if one.stale_share is None:
            return one.ttl_ns <= self.stale_age_s * 1e9
        return one.stale_share <= self.stale_share and one.stale_longest_s <= self.stale_age_s


@dataclass(frozen=True)
class Recommendation:
    """What to write into the TTL map for a group.

    Attributes:
        chosen: the policy; None where no ttl keeps to the limits, so that nothing should be kept.
        why: in a sentence.
        event: what `coherence: event` would give, with the ttl that asks the source least; None
            where that is not known, or nothing better.
    """

    chosen: Prediction | None
    why: str
    event: Prediction | None = None


def recommend(forecast: GroupForecast, room: Room, limits: Limits) -> Recommendation:
    """The recommendation for a group, under a bound of memory."""
    own = EVENT if forecast.policy.is_event and forecast.of(room, EVENT) else TTL
    tried = [one for one in forecast.of(room, own) if one.ttl_ns]
    allowed = [one for one in tried if limits.allow(one)]
    chosen = _cheapest(allowed)
    event = None
    if own == TTL:
        best = _cheapest([one for one in forecast.of(room, EVENT) if one.ttl_ns])
        if best is not None and (
            chosen is None or best.source_reads_s <= chosen.source_reads_s * _AS_GOOD
        ):
            event = best
    return Recommendation(chosen, _why(forecast, chosen, tried, limits), event)


def _cheapest(found: list[Prediction]) -> Prediction | None:
    if not found:
        return None
    least = min(one.source_reads_s for one in found)
    few = [one for one in found if one.source_reads_s <= least * _AS_GOOD]
    # what is read again in the background costs as much, and nobody waits for it
    most = max(one.hit_rate for one in few)
    return min((one for one in few if one.hit_rate >= most - _AS_OFTEN), key=lambda one: one.ttl_ns)


def _why(
    forecast: GroupForecast, chosen: Prediction | None, tried: list[Prediction], limits: Limits
) -> str:
    if chosen is None:
        return f"no ttl that was tried keeps to the limit: {limits}"
    if forecast.changes is None:
        return "when its rows change is not known: the ttl is no longer than answers may be stale"
    if chosen.coherence == EVENT:
        return "what changes is dropped at once: a longer ttl spares no more reads"
    longer = [one for one in tried if one.ttl_ns > chosen.ttl_ns]
    if longer and not limits.allow(longer[0]):
        return f"the next longer ttl is past the limit: {limits}"
    return "a longer ttl spares no more reads"


def enough(replayed: Replayed, chosen: Mapping[str, Recommendation]) -> Room:
    """The smallest bound of memory that costs the source no more reads than the largest.

    Args:
        replayed: the log.
        chosen: group -> what is recommended for it.
    """
    costs = {
        room: sum(
            one.source_reads_s
            for name, forecast in replayed.groups.items()
            if (said := chosen[name].chosen) is not None
            for one in forecast.of(room, said.coherence)
            if one.ttl_ns == said.ttl_ns
        )
        for room in replayed.rooms
    }
    least = min(costs.values())
    good = [room for room in replayed.rooms if costs[room] <= least * _AS_GOOD]
    return min(good, key=lambda room: (room.max_bytes, room.max_entries))
