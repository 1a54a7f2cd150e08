"""Advice on a deployment's TTL map: what its log would have cost under other settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

import yaml
from feast import FeatureStore

from hotplate.advice.changes import Changes
from hotplate.advice.entities import Slots, ViewSpec
from hotplate.advice.errors import AdviceError
from hotplate.advice.lru import Room
from hotplate.advice.predictions import Replayed, ReplaySpec, replay
from hotplate.advice.reads import TrafficFiles
from hotplate.advice.recommendation import Limits, Recommendation, enough, recommend
from hotplate.codec import Column, Layout
from hotplate.durations import format_duration, parse_duration
from hotplate.errors import EntityError, PolicyError
from hotplate.keys import has_integer_keys, make_key
from hotplate.operations.changed import ChangeSource, LogFolder, OwnTables, change_files
from hotplate.operations.entities import EntityReader
from hotplate.policy import PolicyLayers, ResolvedPolicy, TTLMap
from hotplate.serving.entities import declared_shape
from hotplate.serving.policies import feature_views_of, tagged
from hotplate.serving.runtime import Runtime
from hotplate.tiers.memory import cost_of
from hotplate.windowed import windowed_of

__all__ = ["TTLS_NS", "Advice", "Advising", "AdvisingSpec", "Collector"]

TTLS_NS: Final = tuple(
    parse_duration(text)
    for text in (
        *("0s", "1s", "2s", "5s", "10s", "20s", "30s", "1m", "2m", "5m", "10m", "20m", "30m", "1h"),
        *("2h", "6h", "1d"),
    )
)
"""What is tried unless somebody says otherwise, as far as the log is long enough to judge it."""

_USUAL: Final[dict[str, Any]] = {"string_val": "x" * 12, "bytes_val": b"x" * 12}
_SHARES: Final = (1 / 16, 1 / 4, 1, 4)
"""Of the deployment's memory; what else is tried."""


class Collector(Protocol):
    """A place where it is written down when rows changed; see `hotplate.operations.changed`."""

    def collect(self, source: ChangeSource, into: Changes, begin: int, end: int) -> list[str]:
        """Note the changes between two moments, microseconds; returns what is to be said of it."""


@dataclass(frozen=True)
class AdvisingSpec:
    """What is asked.

    Attributes:
        log: the traffic log's folder, or a file of it; that of the deployment if None.
        groups: groups or feature views; all that are read if empty.
        ttls_ns: that are tried; see `TTLS_NS` if empty.
        sizes: bytes of memory that are tried; parts of the deployment's if empty.
        changes: where it is written down when rows changed. If there is none, the change log beside
            the traffic log, where there is one.
        limits: how stale answers may be.
        row_bytes: group -> what one of its rows takes in memory, for groups that hold texts.
        since, until: which part of the log, microseconds.
        skip_ns, workers, entities: see `ReplaySpec`.
    """

    log: Path | None = None
    groups: Sequence[str] = ()
    ttls_ns: Sequence[int] = ()
    sizes: Sequence[int] = ()
    changes: Sequence[Collector] = ()
    limits: Limits = field(default_factory=Limits)
    row_bytes: Mapping[str, int] = field(default_factory=dict)
    since: int | None = None
    until: int | None = None
    skip_ns: int = 0
    workers: int | None = None
    entities: int = 200_000


@dataclass(frozen=True)
class Advice:
    """What was found.

    Attributes:
        log: that was replayed.
        replayed: the predictions.
        room: the deployment's memory.
        recommended: group -> what to do.
        enough: the smallest memory tried that costs the source no more reads than the largest.
        limits: as asked.
        notes: what is to be known of it.
    """

    log: Path
    replayed: Replayed
    room: Room
    recommended: Mapping[str, Recommendation]
    enough: Room
    limits: Limits
    notes: tuple[str, ...]


class Advising:
    """Gives advice on one deployment.

    Args:
        store: the Feast store.
        runtime: of its cache.
    """

    def __init__(self, store: FeatureStore, runtime: Runtime) -> None:
        self._store, self._runtime = store, runtime
        self._tables = {
            table.name: table for table in feature_views_of(store.registry, store.project)
        }
        self._tagged = tagged(self._tables.values())
        self._group_of = {one.view: one.group for said in self._tagged.values() for one in said}
        self._layers: PolicyLayers = runtime.layers
        self._notes: list[str] = []

    def run(
        self, spec: AdvisingSpec, progress: Callable[[int], None] = lambda size: None
    ) -> Advice:
        """Replay the log and judge what came of it.

        Args:
            spec: what is asked.
            progress: told how many bytes were done since the last call; see `size`.

        Raises:
            AdviceError: there is no log, or it cannot be replayed.
            KeyError: there is no such group or view; the message says which there are.
            PolicyError: the policies contradict each other.
        """
        self._notes = []
        wanted = self._wanted(spec)
        policies = {
            group: self._layers.resolve(group, said) for group, said in self._tagged.items()
        }
        wanted = frozenset(group for group in wanted if not policies[group].is_never)
        if not wanted:
            raise AdviceError("none of these groups may be cached: there is nothing to try")
        # all that is kept takes room in the same memory
        views = [
            view
            for view in self._views(spec)
            if view.group in wanted or policies[view.group].is_cached
        ]
        log, files = self.files(spec)
        rooms = self._rooms(spec)
        seconds = (max(unit.end for unit in files.units) - files.begin) / 1e6
        collectors = self._collectors(spec, log)
        replayed = replay(
            files,
            ReplaySpec(
                views,
                wanted,
                policies,
                spec.ttls_ns or [ttl for ttl in TTLS_NS if ttl <= seconds * 1e9 / 4],
                rooms,
                spec.workers,
                spec.entities,
                spec.skip_ns // 1_000,
            ),
            self._collecting(collectors) if collectors else None,
            progress,
        )
        return self._judged(spec, log, replayed, rooms[0])

    def files(self, spec: AdvisingSpec) -> tuple[Path, TrafficFiles]:
        """The log: where it lies, and its files.

        Raises:
            AdviceError: there is none, or it is a sample of the requests.
        """
        log, traffic = spec.log, self._runtime.traffic
        if log is None:
            if traffic is None:
                raise AdviceError(
                    "there is no traffic log: name its folder with --log, or write "
                    "online_store.traffic: {folder: ..., sample: 100%} and let the deployment run "
                    "for a while"
                )
            log = traffic.settings.folder
        return log, TrafficFiles(log, self._store.project, spec.since, spec.until)

    # -- what is looked at ------------------------------------------------------------------------

    def _wanted(self, spec: AdvisingSpec) -> frozenset[str]:
        """The groups that are asked about: a ttl is a group's, also where one view is named."""
        names = {*self._group_of, *self._group_of.values()}
        for name in (*spec.groups, *spec.row_bytes):
            if name not in names:
                raise KeyError(
                    f"there is no group and no feature view {name!r}; there are: "
                    f"{', '.join(sorted(set(self._group_of.values())))}"
                )
        groups = {name if name in self._tagged else self._group_of[name] for name in spec.groups}
        return frozenset(groups or self._tagged)

    def _views(self, spec: AdvisingSpec) -> list[ViewSpec]:
        found = []
        for name, table in self._tables.items():
            if not table.features:
                continue
            group = self._group_of[name]
            size = spec.row_bytes.get(group, spec.row_bytes.get(name)) or self._row_bytes(table)
            found.append(ViewSpec(name, group, ",".join(declared_shape(table).join_keys), size))
        return found

    @staticmethod
    def _row_bytes(table: Any) -> int:
        """Of a row as memory counts it, with an id of usual length, texts among features aside."""
        columns = [Column(one.name, one.dtype.to_value_type()) for one in table.features]
        shape = declared_shape(table)
        values = tuple(_USUAL.get(kind, 1_000_000) for kind in shape.types)
        key = make_key(1 << 59, values, is_integer=has_integer_keys(shape))
        return cost_of(key, bytes(Layout(columns).fixed_end))

    def _rooms(self, spec: AdvisingSpec) -> list[Room]:
        memory = self._runtime.settings.memory
        own = Room(memory.max_bytes, memory.max_entries)
        sizes = spec.sizes or [round(memory.max_bytes * share) for share in _SHARES]
        others = [Room(size, own.max_entries) for size in sizes if size != own.max_bytes]
        return [own, *dict.fromkeys(others)]

    # -- changes ----------------------------------------------------------------------------------

    def own_tables(self) -> OwnTables:
        """The views' own offline tables, as a place of changes."""
        events = {}
        for name, table in self._tables.items():
            windowed = windowed_of(table)
            if windowed is not None and windowed.events in self._tables:
                events[name] = self._tables[windowed.events]
        return OwnTables(self._store.config, events)

    def _collectors(self, spec: AdvisingSpec, log: Path) -> Sequence[Collector]:
        if spec.changes:
            return spec.changes
        folder = log if log.is_dir() else log.parent
        return [LogFolder(folder)] if change_files(folder) else []

    def _collecting(self, collectors: Sequence[Collector]) -> Callable[[Slots, int, int], Changes]:
        readers, join_keys = {}, {}
        for name, table in self._tables.items():
            if table.features:
                declared = {one.name: one.dtype.to_value_type() for one in table.entity_columns}
                with suppress(EntityError):  # of a type that nobody can name in a file
                    readers[name] = EntityReader(declared)
                    join_keys[name] = declared_shape(table).join_keys
        source = ChangeSource(self._store.project, self._tables, readers, join_keys)

        def collect(slots: Slots, begin: int, end: int) -> Changes:
            changes = Changes(slots)
            for one in collectors:
                self._notes += one.collect(source, changes, begin, end)
            return changes

        return collect

    # -- what came of it --------------------------------------------------------------------------

    def _judged(self, spec: AdvisingSpec, log: Path, replayed: Replayed, room: Room) -> Advice:
        recommended = {
            name: recommend(forecast, room, spec.limits)
            for name, forecast in replayed.groups.items()
        }
        self._note_limits(replayed)
        return Advice(
            log,
            replayed,
            room,
            recommended,
            enough(replayed, recommended),
            spec.limits,
            tuple(self._notes),
        )

    def _note_limits(self, replayed: Replayed) -> None:
        survey, notes = replayed.survey, self._notes
        notes += [f"left out {said}" for said in survey.left_out]
        if survey.lost:
            notes.append(
                f"{survey.lost:,} of {survey.lost + survey.requests:,} requests could not be "
                "logged: hit rates are rather higher than said here"
            )
        if replayed.share < 1:
            notes.append(
                f"the hottest entities and {replayed.share:.1%} of the others were replayed, all "
                "reads of each; what that may be off by stands beside the hit rate"
            )
        for name, forecast in replayed.groups.items():
            if forecast.changes is None:
                notes.append(
                    f"{name}: it is not known when its rows change, so how much was stale cannot "
                    "be said: --changes, or --changes-from-source"
                )
            if forecast.policy.is_event and forecast.changes is None:
                notes.append(f"{name}: its changes drop rows, so hit rates are at most these")
        computed = [
            name
            for name, table in self._tables.items()
            if self._group_of[name] in replayed.groups and windowed_of(table) is not None
        ]
        if computed:
            notes.append(
                f"rows of {', '.join(sorted(computed))} are computed from windows and end by "
                "themselves when time alone changes them: hit rates are at most these"
            )

    # -- the TTL map ------------------------------------------------------------------------------

    def ttl_map(self, advice: Advice) -> str:
        """The deployment's TTL map with what is recommended, as YAML for feature_store.yaml.

        Raises:
            PolicyError: the map as it would be contradicts itself.
        """
        said: dict[str, Any] = dict(self._runtime.settings.ttl_map)
        lines = []
        for name, one in advice.recommended.items():
            forecast = advice.replayed.groups[name]
            ttl_ns = 0 if one.chosen is None else one.chosen.ttl_ns
            said[name] = self._entry(name, said.get(name), forecast.policy, ttl_ns)
            lines.append(f"#   {name}: {_told(forecast.policy, one)}")
        checked = replace(self._layers, ttl_map=TTLMap(said))
        for group, views in self._tagged.items():
            checked.resolve(group, views)
        text = yaml.safe_dump({"ttl_map": said}, sort_keys=False, allow_unicode=True)
        head = [
            "# Put this in the place of ttl_map under online_store in feature_store.yaml.",
            f"# From {advice.log}: {advice.replayed.survey.requests:,} requests in "
            f"{format_duration(round(advice.replayed.seconds) * 10**9)}; at most {advice.limits}",
        ]
        return "\n".join([*head, *lines, text])

    def _entry(self, group: str, said: Any, policy: ResolvedPolicy, ttl_ns: int) -> Any:
        """A group's entry of the map under another ttl; what would not fit it is cut."""
        ttl = format_duration(ttl_ns)
        if not isinstance(said, Mapping):
            return ttl
        entry = {**said, "ttl": ttl}
        if "negative_ttl" in entry:
            entry["negative_ttl"] = format_duration(min(policy.negative_ttl_ns, ttl_ns))
        if "stale_while_revalidate" in entry and policy.stale_while_revalidate_ns >= ttl_ns > 0:
            entry["stale_while_revalidate"] = format_duration(ttl_ns // 2)
        if not ttl_ns:
            for name in ("stale_while_revalidate", "on_source_error", "coherence"):
                entry.pop(name, None)
        if policy.last_good_ns is not None and "on_source_error" in entry:
            longest = max(policy.last_good_ns, ttl_ns)
            entry["on_source_error"] = f"last_good {format_duration(longest)}"
        try:
            TTLMap({group: entry}).tags(group)
        except PolicyError:
            return {"ttl": ttl}
        return entry


def _told(policy: ResolvedPolicy, one: Recommendation) -> str:
    text = f"now {format_duration(policy.ttl_ns)}; "
    chosen, event = one.chosen, one.event
    if chosen is None:
        text += one.why
    else:
        text += f"{chosen.hit_rate:.1%} from memory, {chosen.source_reads_s:,.1f} source reads/s"
        text += "" if chosen.stale_share is None else f", {chosen.stale_share:.2%} stale"
    if event is not None:
        text += (
            f"; with {{ttl: {format_duration(event.ttl_ns)}, coherence: event}} "
            f"{event.source_reads_s:,.1f}/s and nothing stale"
        )
    return text
