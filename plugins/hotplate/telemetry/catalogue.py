"""Every metric, declared once: its name, what it counts, its labels, where its value comes from.

Names and units follow Prometheus' conventions (base units, `_total` for counters). Labels are what
the deployment declares: projects, groups, views, loaders, models and rules. Nothing of a request
becomes a label, so their number is bounded by the feature repo; no entity id is among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from hotplate.histogram import HistogramStats
from hotplate.stats import EVENT_REASONS, OUTPUT_RESULTS, CacheStats, GroupStats

if TYPE_CHECKING:
    from hotplate.outputs.stats import OutputStats

__all__ = ["CATALOGUE", "Metric", "Sample", "measure"]

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: as Prometheus shows it; of a counter with `_total`.
        kind: what it is.
        said: what it counts.
        labels: their names, `project` first.
        across: what a gauge of several processes is: the `sum`, the `min` or the `max` of theirs.
    """

    name: str
    kind: Kind
    said: str
    labels: tuple[str, ...] = ("project",)
    across: Literal["sum", "min", "max"] = "sum"

    @property
    def family(self) -> str:
        """The name without what its kind adds."""
        return self.name.removesuffix("_total")


@dataclass(frozen=True)
class Sample:
    """One value of a metric.

    Attributes:
        metric: which.
        labels: their values, in the order of its labels.
        value: now; of a histogram its counts.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float | HistogramStats


CATALOGUE: Final[dict[str, Metric]] = {}
"""Metrics by name."""


def _metric(name: str, kind: Kind, said: str, *labels: str, across: Any = "sum") -> Metric:
    made = CATALOGUE[name] = Metric(name, kind, said, ("project", *labels), across)
    return made


def _counter(name: str, said: str, *labels: str) -> Metric:
    return _metric(f"{name}_total", "counter", said, *labels)


def _gauge(name: str, said: str, *labels: str, across: Any = "sum") -> Metric:
    return _metric(name, "gauge", said, *labels, across=across)


# -- groups ----------------------------------------------------------------------------------------

HITS: Final = _counter(
    "hotplate_hits",
    "Reads answered by a tier: memory, absent (memory knows that there is no such entity), shared",
    "group",
    "tier",
)
MISSES: Final = _counter(
    "hotplate_misses",
    "Reads that memory could not answer, by cause: cold, expired, never (policy), channel (down)",
    "group",
    "cause",
)
EVICTIONS: Final = _counter(
    "hotplate_evictions",
    "Rows pushed out of memory, by the bound that pushed them",
    "group",
    "bound",
)
OF_GROUP: Final[dict[str, Metric]] = {
    "loads": _counter("hotplate_loads", "Keys read from the source, refreshes included", "group"),
    "load_errors": _counter(
        "hotplate_load_errors", "Keys that the source answered with an error", "group"
    ),
    "coalesced": _counter(
        "hotplate_coalesced", "Misses answered by a load that another request had begun", "group"
    ),
    "last_good": _counter(
        "hotplate_last_good", "Misses answered past the ttl, because the source failed", "group"
    ),
    "fills_refused": _counter(
        "hotplate_fills_refused", "Loaded rows not kept: an invalidation came in between", "group"
    ),
    "refreshes": _counter(
        "hotplate_refreshes", "Keys reloaded in the background before they expired", "group"
    ),
    "refresh_errors": _counter("hotplate_refresh_errors", "Such reloads that failed", "group"),
    "refreshes_dropped": _counter(
        "hotplate_refreshes_dropped", "Such reloads not begun: too many were waiting", "group"
    ),
    "invalidated": _counter(
        "hotplate_invalidated_rows", "Rows dropped from memory by an invalidation", "group"
    ),
    "served_late": _counter(
        "hotplate_served_late", "Rows of sampled requests served past their bound: none", "group"
    ),
    "entries": _gauge("hotplate_entries", "Rows in memory", "group"),
    "bytes": _gauge(
        "hotplate_entry_bytes", "Bytes they take, keys and bookkeeping included", "group"
    ),
}
SHADOW: Final = _counter(
    "hotplate_shadow_rows",
    "Rows compared with the source: equal, stale (as the policy allows), overtaken, differed",
    "group",
    "outcome",
)
SHADOW_ERRORS: Final = _counter(
    "hotplate_shadow_errors", "Comparisons that the source answered with an error", "group"
)
EXCLUDED: Final = _gauge(
    "hotplate_group_excluded",
    "1: a process serves the group from the source, because of shadow checks",
    "group",
    across="max",
)
AGES: Final = _metric(
    "hotplate_age_seconds",
    "histogram",
    "Age of what was served from memory, counted from before the source was read; sampled",
    "group",
)
OLDEST: Final = _gauge(
    "hotplate_age_max_seconds", "The greatest of these ages so far", "group", across="max"
)
TTL: Final = _gauge(
    "hotplate_ttl_seconds",
    "How long a value may be served, by the group's policy; 0: it is not cached",
    "group",
    across="max",
)

# -- the source, and what makes processes forget ---------------------------------------------------

SOURCE_SECONDS: Final = _metric(
    "hotplate_source_seconds",
    "histogram",
    "What a round trip to the source took; one a request that misses, however many groups",
)
PASSED: Final = _counter(
    "hotplate_requests_passed", "Requests answered past the cache, by reason", "reason"
)
FAULTS: Final = _counter(
    "hotplate_faults", "Errors of the cache itself, each answered from the source"
)
INVALIDATIONS: Final = _counter(
    "hotplate_invalidations",
    "What made processes forget: write, event, asked, apply, broadcast, announced, gap",
    "cause",
)
CHANNEL_UP: Final = _gauge(
    "hotplate_channel_up",
    "1: every process has heard all that changed until a moment ago",
    across="min",
)
CHANNEL_LAG: Final = _metric(
    "hotplate_channel_lag_seconds",
    "histogram",
    "How long messages of the event channel are under way, by probes each 100 ms",
)
OF_CHANNEL: Final[dict[str, Metric]] = {
    "sessions": _counter("hotplate_channel_sessions", "How often the channel was set up"),
    "gaps": _counter(
        "hotplate_channel_gaps", "How often all was forgotten, because something may be missed"
    ),
    "keys_heard": _counter("hotplate_channel_keys_heard", "Changed keys that the server broadcast"),
    "changes_heard": _counter(
        "hotplate_channel_changes_heard", "Changes that other processes announced"
    ),
    "announced": _counter("hotplate_announcements", "Messages sent to other processes"),
    "announce_errors": _counter(
        "hotplate_announcement_errors", "Attempts to send them that failed, and are repeated"
    ),
    "pending": _gauge("hotplate_announcements_pending", "Messages that wait to be sent"),
}
SHARED_UP: Final = _gauge(
    "hotplate_shared_up",
    "1: every process uses the shared tier; 0: the breaker of one is open",
    across="min",
)
OF_SHARED: Final[dict[str, Metric]] = {
    "opened": _counter("hotplate_shared_breaker_opened", "How often the breaker opened"),
    "errors": _counter("hotplate_shared_errors", "Exchanges that failed or took too long"),
    "rejected": _counter("hotplate_shared_rejected", "Entries that did not verify"),
    "too_large": _counter("hotplate_shared_too_large", "Rows not put there for their size"),
    "fills_refused": _counter(
        "hotplate_shared_fills_refused", "Rows not kept: an invalidation came in between"
    ),
    "owed": _gauge("hotplate_shared_invalidations_owed", "Invalidations that wait for the server"),
}

# -- loaders, events, warming, purges --------------------------------------------------------------

OF_LOADER: Final[dict[str, Metric]] = {
    "queries": _counter("hotplate_loader_queries", "Statements or calls that began", "loader"),
    "entities": _counter("hotplate_loader_entities", "Entities asked for in them", "loader"),
    "found": _counter("hotplate_loader_found", "Entities that they returned a row for", "loader"),
    "errors": _counter("hotplate_loader_errors", "Queries that failed", "loader"),
    "timeouts": _counter("hotplate_loader_timeouts", "Loads given up after the timeout", "loader"),
    "written_back": _counter("hotplate_loader_written_back", "Rows written back", "loader"),
    "write_back_errors": _counter(
        "hotplate_loader_write_back_errors", "Rows that could not be written back", "loader"
    ),
    "write_back_dropped": _counter(
        "hotplate_loader_write_back_dropped", "Rows not written back: too many waited", "loader"
    ),
}
EVENTS: Final = _counter("hotplate_events", "Events written to an event view", "view")
EVENTS_DROPPED: Final = _counter(
    "hotplate_events_dropped", "Events that do not count, by reason", "view", "reason"
)
EVENTS_DELAYED: Final = _counter(
    "hotplate_events_delayed", "Events whose duplicates cannot be told any more", "view"
)
FOLDS: Final = _counter("hotplate_event_log_folds", "Event logs that were folded", "view")
TRAFFIC: Final = _counter(
    "hotplate_traffic_requests", "Requests of the traffic log: logged, lost", "outcome"
)
CHANGES: Final = _counter(
    "hotplate_traffic_changes",
    "Writes and invalidations of the change log: logged, lost",
    "outcome",
)
REWARMED: Final = _counter(
    "hotplate_rewarm_rows",
    "Rows that had to be forgotten: read again, dropped (too many waited), spared (nobody asked)",
    "outcome",
)
REWARM_ERRORS: Final = _counter("hotplate_rewarm_errors", "Errors of the source while rewarming")
WARMED: Final = _counter(
    "hotplate_warmed_reads", "Reads made by a warmer or a preload, without anybody having asked"
)
PURGED: Final = _counter("hotplate_purged_entries", "Entries that purges removed")

OF_QUALITY: Final[dict[str, Metric]] = {
    "checked": _counter("hotplate_quality_checked", "Materializations and pushes that were judged"),
    "failed": _counter("hotplate_quality_failed", "Those whose data was not as expected"),
    "blocked": _counter("hotplate_quality_blocked", "Those that were refused"),
    "dropped": _counter("hotplate_quality_dropped", "Pushes not judged: too many waited"),
    "errors": _counter("hotplate_quality_errors", "Those that could not be judged"),
}

# -- outputs ---------------------------------------------------------------------------------------

_MODEL: Final = ("model", "model_version")
OUTPUT_ROWS: Final = _counter(
    "hotplate_output_rows", f"Rows that were scored: {', '.join(OUTPUT_RESULTS)}", *_MODEL, "result"
)
OUTPUT_RULES: Final = _counter(
    "hotplate_output_rule_rows", "Rows that a rule forbade to cache", *_MODEL, "rule"
)
OUTPUT_RULE_ERRORS: Final = _counter(
    "hotplate_output_rule_errors", "Batches that a rule could not judge", *_MODEL, "rule"
)
OUTPUT_SHADOW: Final = _counter(
    "hotplate_output_shadow_rows",
    "Hits that were computed all the same: compared, and of them differed",
    *_MODEL,
    "outcome",
)
OUTPUT_ERRORS: Final = _counter(
    "hotplate_output_model_errors", "Calls of the model that failed", *_MODEL
)
OUTPUT_ENTRIES: Final = _gauge("hotplate_output_entries", "Outputs in memory", *_MODEL)
OUTPUT_BYTES: Final = _gauge("hotplate_output_entry_bytes", "Bytes they take", *_MODEL)
OUTPUT_EVICTIONS: Final = _counter(
    "hotplate_output_evictions", "Outputs pushed out for room", *_MODEL
)
OUTPUT_INVALIDATED: Final = _counter(
    "hotplate_output_invalidated", "Outputs that ended with one of their features", *_MODEL
)
OUTPUT_OFF: Final = _gauge(
    "hotplate_output_off", "1: the cache of this model answers nothing", *_MODEL, across="max"
)
PROCESSES: Final = _gauge("hotplate_processes", "Caches in use now, one a process and store")


@dataclass(frozen=True)
class Measured:
    """What a process has to show.

    Attributes:
        project: the Feast project.
        stats: of its cache.
        outputs: of each of its output caches.
        warmed: reads that it made without anybody having asked.
        purged: entries that it purged.
    """

    project: str
    stats: CacheStats
    outputs: Sequence[OutputStats] = ()
    warmed: int = 0
    purged: int = 0


def measure(found: Measured) -> Iterator[Sample]:
    """The values of all metrics that a process has."""
    project, stats = found.project, found.stats

    def one(metric: Metric, value: float | HistogramStats, *labels: str) -> Sample:
        return Sample(metric, (project, *labels), value)

    yield one(PROCESSES, 1)
    for name, group in stats.groups.items():
        yield from _of_group(one, name, group)
        yield one(EXCLUDED, name in stats.excluded, name)
    for name, ttl_s in stats.ttls_s.items():
        yield one(TTL, ttl_s, name)
    yield one(SOURCE_SECONDS, stats.source_seconds)
    yield one(FAULTS, stats.cache_faults)
    yield one(WARMED, found.warmed)
    yield one(PURGED, found.purged)
    for reason, count in stats.requests_passed.items():
        yield one(PASSED, count, reason)
    for cause, invalidations in stats.invalidations.items():
        yield one(INVALIDATIONS, invalidations.times, cause)
    if stats.channel is not None:
        if stats.channel.is_started:
            yield one(CHANNEL_UP, stats.channel.is_whole)
        yield one(CHANNEL_LAG, stats.channel.lags)
        yield from _attributes(one, OF_CHANNEL, stats.channel)
    if stats.shared is not None:
        yield one(SHARED_UP, stats.shared.is_usable)
        yield from _attributes(one, OF_SHARED, stats.shared)
    for name, loader in stats.loaders.items():
        yield from _attributes(one, OF_LOADER, loader, name)
    for name, events in stats.events.items():
        yield one(EVENTS, events.accepted, name)
        yield one(EVENTS_DELAYED, events.delayed, name)
        yield one(FOLDS, events.folds, name)
        for reason in EVENT_REASONS:
            yield one(EVENTS_DROPPED, events.dropped.get(reason, 0), name, reason)
    if stats.traffic is not None:
        yield one(TRAFFIC, stats.traffic.logged, "logged")
        yield one(TRAFFIC, stats.traffic.lost, "lost")
    if stats.changes is not None:
        yield one(CHANGES, stats.changes.logged, "logged")
        yield one(CHANGES, stats.changes.lost, "lost")
    if stats.rewarm is not None:
        for outcome in ("read", "dropped", "spared"):
            yield one(REWARMED, getattr(stats.rewarm, outcome), outcome)
        yield one(REWARM_ERRORS, stats.rewarm.errors)
    if stats.quality is not None:
        yield from _attributes(one, OF_QUALITY, stats.quality)
    for outputs in found.outputs:
        yield from _of_outputs(one, outputs)


_One = Callable[..., Sample]


def _attributes(
    one: _One, metrics: Mapping[str, Metric], values: Any, *labels: str
) -> Iterator[Sample]:
    for name, metric in metrics.items():
        yield one(metric, getattr(values, name), *labels)


def _of_group(one: _One, name: str, group: GroupStats) -> Iterator[Sample]:
    for tier in ("memory", "absent", "shared"):
        yield one(HITS, getattr(group, f"hits_{tier}"), name, tier)
    for cause in ("cold", "expired", "never", "channel"):
        yield one(MISSES, getattr(group, f"misses_{cause}"), name, cause)
    for bound in ("entries", "bytes", "absent_share"):
        yield one(EVICTIONS, getattr(group, f"evicted_{bound}"), name, bound)
    yield from _attributes(one, OF_GROUP, group, name)
    for outcome in ("equal", "stale", "overtaken", "differed"):
        yield one(SHADOW, getattr(group, f"shadow_{outcome}"), name, outcome)
    yield one(SHADOW_ERRORS, group.shadow_errors, name)
    yield one(AGES, group.ages, name)
    yield one(OLDEST, group.ages.greatest, name)


def _of_outputs(one: _One, found: OutputStats) -> Iterator[Sample]:
    labels = (found.model, found.version)
    for result in OUTPUT_RESULTS:
        yield one(OUTPUT_ROWS, found[result], *labels, result)
    # from the start: of a series that begins above nothing, Prometheus does not see the rise
    for rule in found.rules:
        yield one(OUTPUT_RULES, found.by_rule.get(rule, 0), *labels, rule)
        yield one(OUTPUT_RULE_ERRORS, found.rule_errors.get(rule, 0), *labels, rule)
    for outcome in ("compared", "differed"):
        count = found[f"shadow_{outcome}"] + found[f"shadow_{outcome}_before"]
        yield one(OUTPUT_SHADOW, count, *labels, outcome)
    yield one(OUTPUT_ERRORS, found["model_errors"], *labels)
    yield one(OUTPUT_ENTRIES, found.entries, *labels)
    yield one(OUTPUT_BYTES, found.size_bytes, *labels)
    yield one(OUTPUT_EVICTIONS, found.evicted, *labels)
    yield one(OUTPUT_INVALIDATED, found.invalidated, *labels)
    yield one(OUTPUT_OFF, bool(found.off), *labels)
