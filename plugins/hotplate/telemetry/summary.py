"""What a person wants to know of all these counts: by group, by model, of what is behind them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hotplate.intervals import wilson_interval
from hotplate.telemetry.reading import Reading

__all__ = ["GroupSummary", "OutputSummary", "Summary", "quantile", "summarize"]


@dataclass(frozen=True)
class GroupSummary:
    """One group, between two moments or since the start.

    Attributes:
        ttl_s: how long a value may be served; infinite for ever, None where nobody said.
        reads: rows that were asked for.
        hit_rate: share of them answered from memory; None where nothing was asked.
        misses: cause -> reads that memory could not answer.
        shared: of these, answered by the shared tier.
        loads, load_errors: keys read from the source, and loads that failed.
        age_p50_s, age_p99_s, age_max_s: of what was served from memory; the last since the start,
            as are the others where none was sampled in between.
        late: rows of sampled requests that were served past their bound, since the start.
        entries, bytes: in memory now, of all processes.
        compared, differed: rows that shadow checks compared since the start, and that should not
            have been as they were.
        mismatch_high: share of the served rows that differs at the most, with 95 % confidence.
        is_excluded: whether a process serves the group from the source because of that.
    """

    ttl_s: float | None
    reads: float
    hit_rate: float | None
    misses: Mapping[str, float]
    shared: float
    loads: float
    load_errors: float
    age_p50_s: float | None
    age_p99_s: float | None
    age_max_s: float
    late: float
    entries: float
    bytes: float
    compared: int
    differed: int
    mismatch_high: float
    is_excluded: bool


@dataclass(frozen=True)
class OutputSummary:
    """The outputs of one version of a model, between two moments or since the start.

    Attributes:
        rows: that were scored.
        hit_rate: share of them answered from the cache; None where none were scored.
        results: what became of them -> rows.
        rules: rule -> rows that it forbade to cache.
        compared, differed: hits that were computed all the same, and those of another result.
        entries: outputs in memory now.
        is_off: whether the cache answers nothing.
    """

    rows: float
    hit_rate: float | None
    results: Mapping[str, float]
    rules: Mapping[str, float]
    compared: float
    differed: float
    entries: float
    is_off: bool


@dataclass(frozen=True)
class Summary:
    """All of it, for each project that writes there.

    Attributes:
        seconds: between the two moments; None: since the start.
        processes: that use the cache now.
        groups: by name, with the project before it where there are several.
        outputs: by model and version.
        source_p50_s, source_p99_s: of round trips to the source; None where there were none.
        source_trips: how many.
        invalidations: cause -> how often.
        channel: whether all processes have heard all there was; None where there is no channel.
        channel_p99_s: how long its messages are under way.
        shared: whether all processes use the shared tier; None where there is none.
        faults: errors of the cache itself.
    """

    seconds: float | None
    processes: int
    groups: Mapping[str, GroupSummary]
    outputs: Mapping[str, OutputSummary]
    source_p50_s: float | None
    source_p99_s: float | None
    source_trips: float
    invalidations: Mapping[str, float]
    channel: bool | None
    channel_p99_s: float | None
    shared: bool | None
    faults: float


def summarize(now: Reading, before: Reading | None = None) -> Summary:
    """What happened since another reading, or since the start.

    Args:
        now: the latest.
        before: an earlier one of the same processes.
    """
    since = now if before is None else now.since(before)
    # what was counted since has the labels of what is there now
    earlier, models = since.parts(*_OF_GROUP), since.parts(*_OF_MODEL)
    has_several = len(now.by("hotplate_misses_total", "project")) > 1
    groups = {
        f"{project}/{name}" if has_several else name: _group(found, earlier[project, name])
        for (project, name), found in sorted(now.parts(*_OF_GROUP).items())
    }
    outputs = {}
    for place, found in sorted(now.parts(*_OF_MODEL).items()):
        project, model, version = place
        name = f"{model} {version}"
        outputs[f"{project}/{name}" if has_several else name] = _outputs(found, models[place])
    return Summary(
        None if before is None else now.at_s - before.at_s,
        int(now.sum("hotplate_processes")),
        groups,
        outputs,
        quantile(since, "hotplate_source_seconds", 0.5),
        quantile(since, "hotplate_source_seconds", 0.99),
        since.sum("hotplate_source_seconds_count"),
        _counts(since, "hotplate_invalidations_total", "cause"),
        _state(now, "hotplate_channel_up"),
        quantile(since, "hotplate_channel_lag_seconds", 0.99),
        _state(now, "hotplate_shared_up"),
        since.sum("hotplate_faults_total"),
    )


_OF_GROUP: Final = ("project", "group")
_OF_MODEL: Final = ("project", "model", "model_version")


def _group(now: Reading, since: Reading) -> GroupSummary:
    tiers = since.by("hotplate_hits_total", "tier")
    misses = since.by("hotplate_misses_total", "cause")
    hits = tiers.get("memory", 0.0) + tiers.get("absent", 0.0)
    reads = hits + sum(misses.values())
    ttls = now.values.get("hotplate_ttl_seconds", {}).values()
    shadow = now.by("hotplate_shadow_rows_total", "outcome")
    differed = int(shadow.get("differed", 0))
    compared = differed + int(shadow.get("equal", 0))  # as `GroupStats.shadow_compared`
    return GroupSummary(
        ttl_s=max(ttls, default=None),
        reads=reads,
        hit_rate=hits / reads if reads else None,
        misses=misses,
        shared=tiers.get("shared", 0.0),
        loads=since.sum("hotplate_loads_total"),
        load_errors=since.sum("hotplate_load_errors_total"),
        age_p50_s=_age(now, since, 0.5),
        age_p99_s=_age(now, since, 0.99),
        age_max_s=now.sum("hotplate_age_max_seconds"),
        late=now.sum("hotplate_served_late_total"),
        entries=now.sum("hotplate_entries"),
        bytes=now.sum("hotplate_entry_bytes"),
        compared=compared,
        differed=differed,
        mismatch_high=wilson_interval(differed, compared)[1],
        is_excluded=now.sum("hotplate_group_excluded") > 0,
    )


def _age(now: Reading, since: Reading, share: float) -> float | None:
    """Ages are sampled: where none was between the two moments, that since the start."""
    found = quantile(since, "hotplate_age_seconds", share)
    if found is None:
        found = quantile(now, "hotplate_age_seconds", share)
    # within its bucket a quantile is a guess; it is never more than the greatest value
    greatest = now.sum("hotplate_age_max_seconds")
    return min(found, greatest) if found is not None and greatest else found


def _outputs(now: Reading, since: Reading) -> OutputSummary:
    results = since.by("hotplate_output_rows_total", "result")
    rows = sum(results.values())
    shadow = since.by("hotplate_output_shadow_rows_total", "outcome")
    return OutputSummary(
        rows=rows,
        hit_rate=(results.get("hit", 0.0) + results.get("compared", 0.0)) / rows if rows else None,
        results=results,
        rules=_counts(since, "hotplate_output_rule_rows_total", "rule"),
        compared=shadow.get("compared", 0.0),
        differed=shadow.get("differed", 0.0),
        entries=now.sum("hotplate_output_entries"),
        is_off=now.sum("hotplate_output_off") > 0,
    )


def _counts(found: Reading, name: str, label: str) -> dict[str, float]:
    return {key: value for key, value in found.by(name, label).items() if value}


def _state(now: Reading, name: str) -> bool | None:
    values = now.values.get(name)
    return None if not values else min(values.values()) > 0


def quantile(found: Reading, name: str, share: float) -> float | None:
    """A quantile of a histogram, read as `histogram_quantile` of Prometheus does.

    Args:
        found: counts.
        name: of the histogram.
        share: 0.99 for the 99th percentile.

    Returns:
        Within its bucket as if values lay evenly in it; the last bound for those above all bounds;
        None where there are no values.
    """
    buckets = found.by(f"{name}_bucket", "le")
    bounds = sorted((float(bound), count) for bound, count in buckets.items())
    if not bounds or not bounds[-1][1] > 0:
        return None
    wanted = share * bounds[-1][1]
    for (lower, below), (upper, count) in itertools.pairwise([(0.0, 0.0), *bounds]):
        if count >= wanted:
            if math.isinf(upper):
                return lower
            return lower + (upper - lower) * (wanted - below) / (count - below)
    return None
