"""One fault, switched on and off while several processes read and write.

This process writes, too. It reaches the server past the proxy, so that its announcements arrive
where the workers no longer hear them: only their leases keep them from serving what they have.
"""

from __future__ import annotations

import random
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from feast import FeatureStore, RepoConfig

from hotplate.clock import SYSTEM_CLOCK
from pipelines.lab.fleet import Nursery
from pipelines.lab.history import Kind
from pipelines.lab.stage import (
    AGED,
    EVENT,
    FAILING_OVER,
    FAULTS,
    Stage,
    past_proxy,
    staged,
    staged_under_sentinels,
)
from pipelines.lab.waiting import wait_until
from pipelines.lab.worker import Operations

__all__ = ["SENTINELS", "SQLITE", "TRACKED", "Line", "measure"]

SQLITE = "SQLite"
SENTINELS = "SQLite, sentinels"
TRACKED = "Redis"
_WRITER = 99
_WRITES = {"write": 1.0}


@dataclass(frozen=True)
class Line:
    """What a fault cost.

    Attributes:
        fault: its name.
        over: the wrapped store, and what the server does for it.
        reads: values served, all judged.
        wrong: those of them that were wrong.
        errors: reads that raised.
        bare_ms: p50 and p99 of reads of the uncached store during the fault (around Redis, which
            has the fault itself, before it).
        before_ms, during_ms: p50 and p99 of reads of the cached store.
        recovery_s: from when the server was well until every process used it again; the median
            over the repeats.
        aged_ms, event_ms: for how long at most a served value had been overwritten, in the group
            that is bounded by its age (400 ms) and in the event-coherent one.
    """

    fault: str
    over: str
    reads: int
    wrong: int
    errors: int
    bare_ms: tuple[float, float]
    before_ms: tuple[float, float]
    during_ms: tuple[float, float]
    recovery_s: float
    aged_ms: float
    event_ms: float


def measure(
    folder: Path, nursery: Nursery, over: str, fault: str, repeats: int, seconds: float
) -> Line:
    """Switch a fault on and off.

    Args:
        folder: for everything.
        nursery: where the workers are forked from.
        over: `SQLITE`, `SENTINELS` or `TRACKED`.
        fault: one of `FAULTS`; under sentinels that the primary fails.
        repeats: how often.
        seconds: how long it lasts, and how long the time before it.
    """
    if over == SENTINELS:
        opened, befall = staged_under_sentinels(folder, nursery), FAILING_OVER
    else:
        opened, befall = staged(folder, nursery, is_tracked=over == TRACKED), FAULTS[fault]
    with opened as stage:
        plan = replace(stage.fleet.plan, repo=str(past_proxy(stage)), weights=_WRITES, think_s=0.02)
        writer = Operations(plan, _WRITER)
        stage.await_well()
        stage.fleet.resume()
        writer.resume()
        bare = _Bare(stage)
        before, during, recoveries = [], [], []
        for _ in range(repeats):
            before.append(bare.read_for(seconds))
            with befall(stage):
                during.append(bare.read_for(seconds, is_store_well=over != TRACKED))
            ended_s = time.monotonic()
            wait_until(stage.is_well, f"{fault}: all is well")
            recoveries.append(time.monotonic() - ended_s)
        stage.fleet.pause()
        writer.pause()
        writer.cache.runtime.close()
        report = stage.judged()
        history = stage.history()
    reads = history[np.isin(history["kind"], (Kind.READ, Kind.READ_FAILED))]
    _, first = np.unique(reads[["process", "begin"]], return_index=True)  # a request, not a row
    requests = reads[first]
    return Line(
        fault,
        over,
        report.reads,
        report.wrongs.total(),
        int(np.count_nonzero(requests["kind"] == Kind.READ_FAILED)),
        _quantiles(_within(bare.taken(), before if over == TRACKED else during)),
        _quantiles(_within(requests, before)),
        _quantiles(_within(requests, during)),
        median(recoveries),
        max(0, report.worst_ns.get(AGED, 0)) / 1e6,
        max(0, report.worst_ns.get(EVENT, 0)) / 1e6,
    )


def _within(requests: Any, spans: list[tuple[int, int]]) -> Any:
    """Durations in seconds of the requests that came in one of some spans of time."""
    begins = requests["begin"]
    chosen = np.zeros(len(requests), bool)
    for first, last in spans:
        chosen |= (begins >= first) & (begins < last)
    return (requests["end"][chosen] - begins[chosen]) / 1e9


def _quantiles(seconds: Any) -> tuple[float, float]:
    if not len(seconds):
        return float("nan"), float("nan")
    p50, p99 = np.quantile(seconds, (0.5, 0.99)) * 1e3
    return float(p50), float(p99)


class _Bare:
    """Reads the wrapped store, as the workers read it through the cache.

    Attributes:
        spans: when each read began and ended.
    """

    def __init__(self, stage: Stage) -> None:
        self.spans: list[tuple[int, int]] = []
        self._plan, self._chance = stage.fleet.plan, random.Random(1)
        made = FeatureStore(repo_path=self._plan.repo).config
        settings = {**made.model_dump(by_alias=True), "online_store": made.online_config["store"]}
        self._store = FeatureStore(config=RepoConfig(**settings))

    def read_for(self, seconds: float, *, is_store_well: bool = True) -> tuple[int, int]:
        """Read for so long, or only wait where the store itself has the fault.

        Returns:
            When it began and ended.
        """
        began_ns = SYSTEM_CLOCK.now_ns()
        until_ns = began_ns + round(seconds * 1e9)
        if not is_store_well:
            time.sleep(seconds)
        while SYSTEM_CLOCK.now_ns() < until_ns:
            self._read()
            time.sleep(self._plan.think_s * self._chance.random() * 2)
        return began_ns, SYSTEM_CLOCK.now_ns()

    def _read(self) -> None:
        plan, chance = self._plan, self._chance
        entities = chance.sample(range(plan.entities), chance.randint(1, plan.rows))
        views = plan.views if entities[0] % 2 else [chance.choice(plan.views)]
        features = [f"{name}:{column}" for name in views for column in ("value", "copy")]
        began_ns = SYSTEM_CLOCK.now_ns()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._store.get_online_features(
                features, {"user_id": entities}, full_feature_names=True
            ).to_dict()
        self.spans.append((began_ns, SYSTEM_CLOCK.now_ns()))

    def taken(self) -> Any:
        """The reads as the workers' histories have theirs."""
        return np.array(self.spans, [("begin", "<i8"), ("end", "<i8")])
