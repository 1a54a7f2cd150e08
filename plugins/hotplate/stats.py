"""What the cache counts, per group.

Counters are plain integers that any thread may add to. `counter.hits += n` is one step under
CPython's interpreter lock (3.11 to 3.13 switch threads only at calls and backward jumps), and a
test with 16 threads holds that. A snapshot is immutable.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from hotplate.histogram import AGES_S, WAITS_S, Histogram, HistogramStats
from hotplate.intervals import wilson_interval
from hotplate.sizes import format_bytes

__all__ = [
    "EVENT_REASONS",
    "OUTPUT_RESULTS",
    "CacheStats",
    "ChannelStats",
    "EventCounters",
    "EventStats",
    "GroupCounters",
    "GroupStats",
    "HitCounter",
    "InvalidationCounters",
    "InvalidationStats",
    "LoaderCounters",
    "LoaderStats",
    "PassedCounters",
    "QualityCounters",
    "QualityStats",
    "RewarmStats",
    "SharedStats",
    "TrafficStats",
]

EVENT_REASONS: Final = (
    "invalid_timestamp", "missing_id", "invalid_value", "overflow", "late", "future"
)  # fmt: skip
"""Why an event does not count; see `hotplate.windows.events.REASONS`."""
OUTPUT_RESULTS: Final = (
    "hit", "miss", "expired", "invalidated", "compared", "rule", "off", "bypassed"
)  # fmt: skip
"""What becomes of a row that is scored: the first and `compared` were in the cache."""
AGE_SAMPLE: Final = 64
"""One request of so many has the ages of what it was served recorded."""


class HitCounter:
    """Hits of one plan: one addition a request, whatever the number of its groups.

    Attributes:
        requests: requests answered wholly from memory.
        rows: rows of these requests; each is one hit in every group of the plan.
    """

    __slots__ = ("requests", "rows")

    def __init__(self) -> None:
        self.requests = 0
        self.rows = 0


@dataclass(frozen=True)
class InvalidationStats:
    """What one cause made this process forget.

    Attributes:
        times: how often.
        rows: rows dropped from memory, and outputs that had been made of them.
    """

    times: int
    rows: int


class InvalidationCounters:
    """Invalidations by cause, one of `CAUSES`."""

    CAUSES: Final = (
        "write",  # through Feast, in this process
        "event",  # a window's event, written in this process
        "asked",  # an entity, a view or all, by `invalidate`, `clear` or a purge
        "apply",  # `feast apply` or `teardown`
        "broadcast",  # the wrapped store's server said which keys changed
        "announced",  # another process said what it wrote or invalidated
        "gap",  # something may have been missed
    )

    def __init__(self) -> None:
        self._counts = {cause: [0, 0] for cause in self.CAUSES}

    def add(self, cause: str, rows: int) -> None:
        """Count one."""
        counts = self._counts[cause]
        counts[0] += 1
        counts[1] += rows

    def snapshot(self) -> dict[str, InvalidationStats]:
        """The counts now."""
        return {cause: InvalidationStats(*counts) for cause, counts in self._counts.items()}


class PassedCounters:
    """Requests that were not answered from a plan, by reason; see `CacheStats.requests_passed`."""

    __slots__ = ("feast_path", "refused", "whole")

    def __init__(self) -> None:
        self.feast_path = 0
        self.refused = 0
        self.whole = 0

    def snapshot(self) -> dict[str, int]:
        """The counts now."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True)
class LoaderStats:
    """Counts of one loader since the cache was made.

    Attributes:
        queries: SQL statements or function calls that began.
        entities: entities asked for in them.
        found: entities that they returned a row for.
        errors: queries that failed, whatever the reason.
        timeouts: loads that were given up after the loader's `timeout`.
        written_back: rows written into the wrapped store (`write_back: true`).
        write_back_errors: rows that could not be written there.
        write_back_dropped: rows not written because too many were waiting.
    """

    queries: int = 0
    entities: int = 0
    found: int = 0
    errors: int = 0
    timeouts: int = 0
    written_back: int = 0
    write_back_errors: int = 0
    write_back_dropped: int = 0


class EventCounters:
    """The live counters of one event view; see `EventStats` for what each means."""

    def __init__(self) -> None:
        self.accepted = 0
        self.delayed = 0
        self.folds = 0
        self.dropped: dict[str, int] = {}

    def add(self, accepted: int, dropped: Mapping[str, int]) -> None:
        """Count a batch."""
        self.accepted += accepted
        for reason, count in dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def snapshot(self) -> EventStats:
        """The counts now."""
        return EventStats(self.accepted, dict(self.dropped), self.delayed, self.folds)


@dataclass(frozen=True)
class EventStats:
    """Counts of the events that this process wrote to one event view.

    Attributes:
        accepted: events that count.
        dropped: reason -> events that do not; see `hotplate.windows.events.REASONS`.
        delayed: events, among the accepted, that were written later after they happened than their
            log remembers ids for: duplicates of these cannot be told.
        folds: logs that were folded.
    """

    accepted: int
    dropped: Mapping[str, int]
    delayed: int
    folds: int


class LoaderCounters:
    """The live counters of one loader; see `LoaderStats` for what each means."""

    __slots__ = (
        "entities",
        "errors",
        "found",
        "queries",
        "timeouts",
        "write_back_dropped",
        "write_back_errors",
        "written_back",
    )

    def __init__(self) -> None:
        self.queries = 0
        self.entities = 0
        self.found = 0
        self.errors = 0
        self.timeouts = 0
        self.written_back = 0
        self.write_back_errors = 0
        self.write_back_dropped = 0

    def snapshot(self) -> LoaderStats:
        """The counts now."""
        return LoaderStats(**{name: getattr(self, name) for name in self.__slots__})


_COUNTS: Final = (
    "hits_memory",
    "hits_absent",
    "hits_shared",
    "last_good",
    "coalesced",
    "misses_cold",
    "misses_expired",
    "misses_never",
    "misses_channel",
    "loads",
    "load_errors",
    "fills_refused",
    "refreshes",
    "refresh_errors",
    "refreshes_dropped",
    "evicted_entries",
    "evicted_bytes",
    "evicted_absent_share",
    "invalidated",
    "served_late",
    "shadow_equal",
    "shadow_stale",
    "shadow_overtaken",
    "shadow_differed",
    "shadow_errors",
    "entries",
    "bytes",
)


class GroupCounters:
    """The live counters of one group; see `GroupStats` for what each means."""

    __slots__ = (*_COUNTS, "ages", "name", "plans")

    def __init__(self, name: str) -> None:
        self.name = name
        for count in _COUNTS:
            setattr(self, count, 0)
        self.ages = Histogram(AGES_S)
        self.plans: list[HitCounter] = []

    hits_memory: int
    hits_absent: int
    hits_shared: int
    last_good: int
    coalesced: int
    misses_cold: int
    misses_expired: int
    misses_never: int
    misses_channel: int
    loads: int
    load_errors: int
    fills_refused: int
    refreshes: int
    refresh_errors: int
    refreshes_dropped: int
    evicted_entries: int
    evicted_bytes: int
    evicted_absent_share: int
    invalidated: int
    served_late: int
    shadow_equal: int
    shadow_stale: int
    shadow_overtaken: int
    shadow_differed: int
    shadow_errors: int
    entries: int
    bytes: int

    def add_plan(self, plan: object, counter: HitCounter) -> None:
        """Count a plan's hits as this group's, once for each view that the plan reads of it."""
        self.plans.append(counter)
        weakref.finalize(plan, self._retire_plan, counter).atexit = False

    def _retire_plan(self, counter: HitCounter) -> None:
        # in this order: a snapshot in between may find less for a moment, never more
        self.plans.remove(counter)
        self.hits_memory += counter.rows

    def snapshot(self) -> GroupStats:
        """The counts now."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        counts["hits_memory"] += sum(plan.rows for plan in list(self.plans))
        return GroupStats(**counts, ages=self.ages.snapshot())


@dataclass(frozen=True)
class GroupStats:
    """Counts of one group since the cache was made. One row of one request is one read.

    Attributes:
        hits_memory: reads answered from a row in memory.
        hits_absent: reads answered from memory: the entity is known to be absent.
        hits_shared: keys that memory did not have and the shared tier did.
        misses_cold: reads of a key that was not in memory.
        misses_expired: reads of a key whose row was past its bound.
        misses_never: reads that the policy excludes from caching (`cache: never`, `ttl: 0s`).
        misses_channel: reads of an event-coherent group while the event channel was not whole.
        coalesced: misses answered by a load that another request had begun.
        last_good: misses answered past the ttl: the source failed and the policy allows it.
        loads: keys read from the source, refreshes included.
        load_errors: keys that the source answered with an error.
        fills_refused: loaded rows not kept, because an invalidation came in between.
        refreshes: keys reloaded in the background before they expired.
        refresh_errors: such reloads that failed.
        refreshes_dropped: such reloads not begun because too many were waiting.
        evicted_entries, evicted_bytes, evicted_absent_share: rows pushed out, by the bound that
            pushed them.
        invalidated: rows dropped by an invalidation.
        served_late: rows of the sampled requests that a tier served past their bound: none, ever.
        shadow_equal, shadow_stale, shadow_overtaken, shadow_differed: rows that shadow checks found
            as the source has them; older than it, as the policy allows; gone while it was asked;
            and apart from it without a reason.
        shadow_errors: shadow checks that the source answered with an error.
        entries, bytes: what is held now, keys and bookkeeping included.
        ages: of what was served from memory, seconds: the oldest row of one request in
            `AGE_SAMPLE`.
    """

    hits_memory: int
    hits_absent: int
    hits_shared: int
    last_good: int
    coalesced: int
    misses_cold: int
    misses_expired: int
    misses_never: int
    misses_channel: int
    loads: int
    load_errors: int
    fills_refused: int
    refreshes: int
    refresh_errors: int
    refreshes_dropped: int
    evicted_entries: int
    evicted_bytes: int
    evicted_absent_share: int
    invalidated: int
    served_late: int
    shadow_equal: int
    shadow_stale: int
    shadow_overtaken: int
    shadow_differed: int
    shadow_errors: int
    entries: int
    bytes: int
    ages: HistogramStats

    @property
    def hits(self) -> int:
        """Reads answered from memory within their bound."""
        return self.hits_memory + self.hits_absent

    @property
    def shadow_compared(self) -> int:
        """Rows of which shadow checks could say whether they were right."""
        return self.shadow_equal + self.shadow_differed

    @property
    def mismatch_interval(self) -> tuple[float, float]:
        """Between which shares of the served rows differ from the source without a reason, with a
        confidence of 95 %: Wilson's interval of the compared ones; (0, 1) before the first."""
        return wilson_interval(self.shadow_differed, self.shadow_compared)

    @property
    def misses(self) -> int:
        """Reads that memory could not answer."""
        return self.misses_cold + self.misses_expired + self.misses_never + self.misses_channel

    @property
    def reads(self) -> int:
        """All reads."""
        return self.hits + self.misses

    @property
    def hit_rate(self) -> float:
        """Share of reads answered from memory; 0 before the first read."""
        return self.hits / self.reads if self.reads else 0.0


@dataclass(frozen=True)
class ChannelStats:
    """What the event channel has seen.

    Attributes:
        is_started: whether it listens; a process that only announces does not.
        is_whole: whether everything changed until a moment ago has been heard.
        sessions: how often it was set up, the first time included.
        gaps: how often all event-coherent rows were forgotten, because something may be missed.
        keys_heard: changed keys that the server broadcast.
        changes_heard: changes that other processes announced.
        announced: messages sent to other processes.
        announce_errors: attempts to send that failed; they are repeated.
        pending: messages that still wait to be sent.
        last_error: why the last session ended or could not begin; None if none did.
        lags: how long messages to this process itself were under way, seconds; one each 100 ms.
    """

    is_started: bool
    is_whole: bool
    sessions: int
    gaps: int
    keys_heard: int
    changes_heard: int
    announced: int
    announce_errors: int
    pending: int
    last_error: str | None
    lags: HistogramStats


@dataclass(frozen=True)
class SharedStats:
    """What the shared tier has seen.

    Attributes:
        is_usable: whether it is asked; not while its breaker is open.
        opened: how often the breaker opened.
        errors: exchanges that failed or took too long.
        rejected: entries that did not verify: garbage, another schema, a clock that went back.
        too_large: rows not put there for their size.
        fills_refused: rows not kept, because an invalidation came in between.
        owed: invalidations that wait for the server; until then it is not asked.
        last_error: the last thing that went wrong; None if nothing did.
    """

    is_usable: bool
    opened: int
    errors: int
    rejected: int
    too_large: int
    fills_refused: int
    owed: int
    last_error: str | None


@dataclass(frozen=True)
class RewarmStats:
    """What was read again after it had to be forgotten, since the start.

    Attributes:
        read: rows.
        dropped: rows that were not, because too many waited.
        spared: rows that were not, because no request had asked for them in a while.
        errors: of the source.
    """

    read: int
    dropped: int
    spared: int
    errors: int


@dataclass(frozen=True)
class TrafficStats:
    """Counts of the traffic log since the start.

    Attributes:
        logged: requests written into files.
        lost: requests that were to be logged and are not: the queue was full, or no file could be
            written.
        files: written.
        problem: why the last file could not be written, or nothing.
    """

    logged: int
    lost: int
    files: int
    problem: str


@dataclass(frozen=True)
class QualityStats:
    """What the quality gate has seen, since the start.

    Attributes:
        checked: materializations and pushes that were looked at.
        failed: among them, those whose data was not as expected.
        blocked: among these, those that were refused.
        dropped: pushes that were to be looked at on the side and were not: too many waited.
        errors: those that could not be judged.
        last: what the last one that failed was, or why it could not be judged; ids masked.
    """

    checked: int
    failed: int
    blocked: int
    dropped: int
    errors: int
    last: str


class QualityCounters:
    """The live counters of the quality gate; see `QualityStats` for what each means."""

    __slots__ = ("blocked", "checked", "dropped", "errors", "failed", "last")

    def __init__(self) -> None:
        self.checked = 0
        self.failed = 0
        self.blocked = 0
        self.dropped = 0
        self.errors = 0
        self.last = ""

    def snapshot(self) -> QualityStats:
        """The counts now."""
        return QualityStats(**{name: getattr(self, name) for name in self.__slots__})


@dataclass(frozen=True)
class CacheStats:
    """Counts of one cache.

    Attributes:
        groups: by name.
        entries, bytes: what the memory tier holds.
        source_batches: round trips to the source: one a request that misses, however many groups.
        source_seconds: how long each took, those that failed included.
        invalidations: what made this process forget, by cause; see `InvalidationCounters.CAUSES`.
        excluded: groups that shadow checks took out of the cache, and why.
        ttls_s: seconds that a value of each group that was read may be served; infinite for ever.
        requests_passed: requests that no plan answered: `feast_path` took Feast's own path with
            the cache below it; `refused`, among them, were wrong in themselves; `whole` went to a
            wrapped store that answers whole requests and has no rows to keep (Feast's remote one).
        cache_faults: errors of the cache itself; each was answered from the source.
        loaders: counts of each loader, by its name in feature_store.yaml.
        channel: what the event channel has seen; None where there is none.
        shared: what the shared tier has seen; None where there is none.
        events: counts of each event view that this process wrote to.
        traffic: counts of the traffic log; None where there is none.
        changes: the same of the change log beside it, in writes instead of requests.
        rewarm: what was read again after it was forgotten; None where that is off.
        quality: what the quality gate has seen; None where it is off.
    """

    groups: Mapping[str, GroupStats]
    entries: int
    bytes: int
    source_batches: int
    source_seconds: HistogramStats = field(default_factory=lambda: Histogram(WAITS_S).snapshot())
    invalidations: Mapping[str, InvalidationStats] = field(default_factory=dict)
    ttls_s: Mapping[str, float] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)
    requests_passed: Mapping[str, int] = field(default_factory=dict)
    cache_faults: int = 0
    loaders: Mapping[str, LoaderStats] = field(default_factory=dict)
    channel: ChannelStats | None = None
    shared: SharedStats | None = None
    events: Mapping[str, EventStats] = field(default_factory=dict)
    traffic: TrafficStats | None = None
    changes: TrafficStats | None = None
    rewarm: RewarmStats | None = None
    quality: QualityStats | None = None

    def __str__(self) -> str:
        """A table of the groups, for people; `repr` has every count."""
        rows: list[tuple[str, ...]] = [
            ("group", "hit rate", "hits", "misses", "loads", "entries", "bytes")
        ]
        rows += [
            (name, f"{group.hit_rate:.1%}", *(f"{count:,}" for count in _main_counts(group)))
            for name, group in self.groups.items()
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in rows
        ]
        passed = sum(count for name, count in self.requests_passed.items() if name != "refused")
        lines.append(
            f"{self.entries:,} entries of {format_bytes(self.bytes)}; {self.source_batches:,} "
            f"round trips to the source; {passed:,} requests past the cache; "
            f"{self.cache_faults:,} faults"
        )
        if self.channel is not None:
            lines.append(f"event channel: {'whole' if self.channel.is_whole else 'not whole'}")
        if self.shared is not None:
            lines.append(f"shared tier: {'in use' if self.shared.is_usable else 'left alone'}")
        return "\n".join(lines)


def _main_counts(group: GroupStats) -> tuple[int, ...]:
    return group.hits, group.misses, group.loads, group.entries, group.bytes
