"""What a replay found, in the numbers that the table, the page and results.json show."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import hotplate
from pipelines.reads.replay import Ages, Block, Recording

__all__ = [
    "Answers",
    "Bucket",
    "GroupResult",
    "Latency",
    "Results",
    "buckets",
    "machine",
    "summarize",
]

_BUCKETS = 40


@dataclass(frozen=True)
class Latency:
    """Quantiles of a latency, microseconds."""

    p50_us: float
    p90_us: float
    p99_us: float
    mean_us: float
    requests: int

    @classmethod
    def of(cls, latency_ns: npt.NDArray[np.int64]) -> Latency | None:
        """Of some latencies; None where there are none."""
        if not len(latency_ns):
            return None
        quantiles = np.percentile(latency_ns, [50, 90, 99])
        p50, p90, p99, mean = (round(float(ns) / 1e3, 1) for ns in (*quantiles, latency_ns.mean()))
        return cls(p50, p90, p99, mean, len(latency_ns))


@dataclass(frozen=True)
class GroupResult:
    """What one group's cache did.

    Attributes:
        ttl_s: the bound; None where there is none.
        hit_rate: share of its reads answered from memory.
        loads: rows read from the source, `refreshes` (in the background) included.
        invalidated: rows forgotten because they were written.
        max_age_s: the oldest value served.
        past_bound: values served past their bound.
    """

    ttl_s: float | None
    reads: int
    hits: int
    hit_rate: float
    loads: int
    refreshes: int
    invalidated: int
    max_age_s: float
    median_age_s: float
    past_bound: int


@dataclass(frozen=True)
class Answers:
    """Whether the two answered alike.

    Attributes:
        different: answers of the cached store that were not bare Feast's.
        explained: those that differ only by what the outside writer had changed since the cache
            read it, served within its bound.
        unexplained: the others; any would be a fault.
        last_different_s: how long after the outside write the last of them was served.
        max_score_difference: of the model, over all requests.
    """

    compared: int
    different: int
    explained: int
    unexplained: int
    last_different_s: float
    max_score_difference: float


@dataclass(frozen=True)
class Results:
    """One run.

    Attributes:
        from_memory: share of the timed requests for which the cached store asked nobody.
        latency: "bare", "cached", and of the latter "cached_from_memory" and "cached_with_reads".
        source_reads_per_request: rows asked of the online store, "bare" and "cached".
        asked: feature views and features of one request.
        settings, data, machine: what was run, on what.
    """

    latency: Mapping[str, Latency | None]
    from_memory: float
    source_reads_per_request: Mapping[str, float]
    asked: Mapping[str, int]
    groups: Mapping[str, GroupResult]
    answers: Answers
    model: Mapping[str, Any]
    writes: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    def ratio(self, quantile: str) -> float:
        """How many times lower a quantile ("p50", "p90", "p99") is with the cache."""
        bare, cached = self.latency["bare"], self.latency["cached"]
        if bare is None or cached is None:
            return math.nan
        found: float = getattr(bare, f"{quantile}_us") / getattr(cached, f"{quantile}_us")
        return found

    def read_ratio(self) -> float:
        """How many times fewer rows were asked of the online store with the cache."""
        reads = self.source_reads_per_request
        return reads["bare"] / reads["cached"] if reads["cached"] else math.inf


@dataclass(frozen=True)
class Bucket:
    """A stretch of the replay.

    Attributes:
        at_s: its middle.
        hit_rates: by group.
        bare_reads, cached_reads: rows asked of the source, a request.
    """

    at_s: float
    hit_rates: Mapping[str, float]
    bare_reads: float
    cached_reads: float


def buckets(blocks: Sequence[Block], duration_s: float) -> list[Bucket]:
    """Join blocks into at most 40 stretches of as many blocks each."""
    size = max(1, math.ceil(len(blocks) / _BUCKETS))
    found = []
    for start in range(0, len(blocks), size):
        part = blocks[start : start + size]
        end_s = blocks[start + size].start_s if start + size < len(blocks) else duration_s
        requests = sum(block.requests for block in part)
        first, last = part[0].before, part[-1].after
        hit_rates, loads = {}, 0
        for group, after in last.items():
            before = first.get(group)
            hits = after.hits - (before.hits if before else 0)
            reads = after.reads - (before.reads if before else 0)
            loads += after.loads - (before.loads if before else 0)
            hit_rates[group] = hits / reads if reads else 0.0
        found.append(
            Bucket(
                at_s=(part[0].start_s + end_s) / 2,
                hit_rates=hit_rates,
                bare_reads=sum(block.bare_reads for block in part) / requests,
                cached_reads=loads / requests,
            )
        )
    return found


def summarize(
    found: Recording, policies: Mapping[str, hotplate.ResolvedPolicy], model: Mapping[str, Any]
) -> Results:
    """The numbers of a replay.

    Args:
        found: the replay.
        policies: of the cached store, by group.
        model: what is to be said of the model.
    """
    timed, memory = found.is_timed, found.is_from_memory
    last = found.blocks[-1].after
    requests = len(timed)
    bare_reads = sum(block.bare_reads for block in found.blocks)
    return Results(
        latency={
            "bare": Latency.of(found.bare_ns[timed]),
            "cached": Latency.of(found.cached_ns[timed]),
            "cached_from_memory": Latency.of(found.cached_ns[timed & memory]),
            "cached_with_reads": Latency.of(found.cached_ns[timed & ~memory]),
        },
        from_memory=float(memory[timed].mean()) if timed.any() else 0.0,
        source_reads_per_request={
            "bare": bare_reads / requests,
            "cached": sum(group.loads for group in last.values()) / requests,
        },
        asked={"views": found.views, "features": found.features},
        groups={
            name: _group(last[name], policies[name], found.ages[name]) for name in sorted(last)
        },
        answers=_answers(found),
        model=model,
        writes={
            "pushed_rows": found.pushed_rows,
            "outside_rows": found.outside_rows,
            "outside_at_s": found.outside_at_s,
            "outside_group": found.outside_group,
        },
    )


def _answers(found: Recording) -> Answers:
    return Answers(
        compared=len(found.is_timed),
        different=found.different,
        explained=found.explained,
        unexplained=found.different - found.explained,
        last_different_s=found.last_different_s,
        max_score_difference=float(np.abs(found.bare_scores - found.cached_scores).max()),
    )


def _group(stats: hotplate.GroupStats, policy: hotplate.ResolvedPolicy, ages: Ages) -> GroupResult:
    # The policy's own rendering tells a bound from "none"
    has_bound = policy.shown()["ttl"] != "none"
    return GroupResult(
        ttl_s=policy.ttl_ns / 1e9 if has_bound else None,
        reads=stats.reads,
        hits=stats.hits,
        hit_rate=stats.hit_rate,
        loads=stats.loads,
        refreshes=stats.refreshes,
        invalidated=stats.invalidated,
        max_age_s=max(ages.age_s),
        median_age_s=float(np.median(ages.age_s)),
        past_bound=sum(left_s < 0 for left_s in ages.left_s),
    )


def machine(store: str) -> dict[str, Any]:
    """The machine and the versions that the numbers belong to.

    Args:
        store: the online store's name and version.
    """
    names = ("feast", "redis", "numpy", "scikit-learn")
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "store": store,
        "versions": {
            "hotplate": hotplate.__version__,
            "python": platform.python_version(),
            **{name: found for name in names if (found := _version(name))},
        },
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
