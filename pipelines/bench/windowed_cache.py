"""The cache over windows, on bursts of reads and events: hits, and whether any value was wrong.

How the trace is made: each of 100 cards has bursts, one every ten minutes on average (exponential
gaps), of a minute on average. In a burst the card is read every 1.5 s and has an event every 20 s
on average (exponential gaps), each event visible 20 ms later. One hour; the clock moves as the
trace says. Every row that is served is compared with the same row read past the cache.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

import hotplate
from hotplate import windowed_view
from hotplate.clock import FakeClock
from hotplate.testing import use_clock
from pipelines.bench.line import Line
from pipelines.bench.windowed_shop import CARD, aggregations, declare, frame_of, open_store

__all__ = ["bursts", "cache_lines"]

_CARDS = 100
_HOUR_S = 3_600.0
_REST_S, _BURST_S, _READ_S, _EVENT_S = 600.0, 60.0, 1.5, 20.0
_LEAST_HITS = 0.65
_BEGAN_MS = 1_767_225_600_000
_CACHED = "hotplate.online_store.CachedOnlineStore"


class Step(NamedTuple):
    """A read of a card, or an event of it; `at_ms` from the start."""

    at_ms: int
    is_event: bool
    card: int


def bursts(seconds: float, seed: int = 0) -> list[Step]:
    """The trace, in order of time."""
    rng = np.random.default_rng(seed)
    steps = []
    for card in range(_CARDS):
        at = rng.exponential(_REST_S)
        while at < seconds:
            end = at + rng.exponential(_BURST_S)
            for is_event, gap in ((False, _READ_S), (True, _EVENT_S)):
                moments = at + np.cumsum(rng.exponential(gap, int(4 * (end - at) / gap) + 8))
                until = min(end, seconds)
                steps += [Step(int(s * 1_000), is_event, card) for s in moments if s < until]
            at = end + rng.exponential(_REST_S)
    return sorted(steps)


def cache_lines(*, is_short: bool = False) -> list[Line]:
    """Hits of the exact cache over the trace, and wrong values."""
    steps = bursts(_HOUR_S / 12 if is_short else _HOUR_S)
    with TemporaryDirectory(prefix="hotplate-bench-") as folder:
        hits, wrong = _replay(Path(folder), steps)
    reads = sum(not step.is_event for step in steps)
    events = len(steps) - reads
    trace = f"{reads:,} reads and {events:,} events of {_CARDS} cards in bursts"
    return [
        Line(
            "windows in bursts, rows from memory",
            f"{hits / reads:.1%}",
            "",
            f">= {_LEAST_HITS:.0%}",
            hits / reads >= _LEAST_HITS,
            trace,
        ),
        Line(
            "the same, values that differ from those past the cache",
            f"{wrong:,}",
            "",
            "0",
            wrong == 0,
            f"of {reads * len(aggregations()):,}",
        ),
    ]


def _replay(folder: Path, steps: list[Step]) -> tuple[int, int]:
    """How many reads memory answered, and how many values were wrong."""
    online = {"type": "sqlite", "path": str(folder / "online.db")}
    store = open_store(folder, {"type": _CACHED, "store": online, "windows": {"in_process": True}})
    clock = FakeClock(wall_s=_BEGAN_MS / 1_000)
    use_clock(store, clock)
    cached = declare("cached", folder)
    past, events = windowed_view(
        name="past",
        entities=[CARD],
        events=cached.events,
        aggregations=aggregations(),
        cache="never",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.apply([CARD, cached.windowed, past, events])
    features = {
        view.name: [f"{view.name}:{field.name}" for field in view.features]
        for view in (cached.windowed, past)
    }
    cache = hotplate.of(store)
    wrong, now_ms = 0, 0
    for number, step in enumerate(steps):
        clock.advance((step.at_ms - now_ms) / 1_000)
        now_ms = step.at_ms
        if step.is_event:
            cache.ingest("cached_events", frame_of([step.card], [_BEGAN_MS + now_ms], number))
            continue
        one = {"card_id": [step.card]}
        served, truth = (
            store.get_online_features(features[name], one).to_dict() for name in ("cached", "past")
        )
        wrong += sum(served[name] != value for name, value in truth.items())
    hits = cache.stats().groups["cached"].hits_memory
    return hits, wrong
