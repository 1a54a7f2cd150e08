"""Everything a cached store holds once it knows its configuration."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feast import FeatureStore, RepoConfig
from feast.infra.online_stores.helpers import compute_versioned_name
from feast.infra.online_stores.online_store import OnlineStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.value_type import ValueType

from hotplate.clock import SYSTEM_CLOCK, Clock
from hotplate.codec import Column, Layout
from hotplate.contracts import NO_LEASE_NEEDED, View
from hotplate.core.engine import Bound, Engine, Want
from hotplate.errors import ConfigError, HotplateError
from hotplate.invalidation.local import Domain, domain_of
from hotplate.keys import EntityShape, ViewIdentity, shape_and_values, shapes_and_values
from hotplate.policy import PolicyLayers
from hotplate.seldom import Seldom
from hotplate.servers.redis import RedisServer
from hotplate.serving.chosen_source import ChosenSource
from hotplate.serving.coherence import Announcement, Coherence, server_of
from hotplate.serving.entities import declared_shape
from hotplate.serving.events import Batch, Entity, from_feast
from hotplate.serving.loaders import Loaders
from hotplate.serving.logs import traffic_logs, write_marks
from hotplate.serving.outputs import Outputs
from hotplate.serving.plan import PlanInputs
from hotplate.serving.plans import Plans
from hotplate.serving.policies import PolicyBook, feature_views_of
from hotplate.serving.rewarm import Rewarmer
from hotplate.serving.shadow import Shadow, ShadowSettings
from hotplate.serving.windowed_source import WindowedSource
from hotplate.serving.windows import (
    EventLogs,
    Log,
    is_event_view,
    is_windowed,
    mark_of,
    no_place,
)
from hotplate.serving.wrapped import WrappedStore
from hotplate.sources.redis import is_redis_store
from hotplate.stats import (
    CacheStats,
    GroupCounters,
    InvalidationCounters,
    PassedCounters,
    QualityCounters,
)
from hotplate.telemetry.catalogue import Measured, Sample, measure
from hotplate.telemetry.publisher import Publisher
from hotplate.tiers.blobs import BlobTier
from hotplate.tiers.memory import MemoryBounds
from hotplate.tiers.shared import SharedBounds, SharedTier
from hotplate.windows.redis_state import LogServer

if TYPE_CHECKING:
    from hotplate.online_store import CachedOnlineStoreConfig

__all__ = ["Runtime"]

_FORGOTTEN_AT_ONCE: Final = 5_000
_log = logging.getLogger("hotplate")


class Runtime:
    """The engine, the plans and the wrapped store of one `CachedOnlineStore`.

    Args:
        config: Feast's configuration, whose `online_store` is Hotplate's.
        clock: where ages come from.
    """

    def __init__(self, config: RepoConfig, clock: Clock = SYSTEM_CLOCK) -> None:
        settings: CachedOnlineStoreConfig = config.online_store
        self.settings = settings
        self.clock = clock
        self.project = config.project
        self.wrapped = WrappedStore(settings.store)
        self.wrapped.config(config)
        self._config = config
        self.versioning = bool(config.registry.enable_online_feature_view_versioning)
        self.domain: Domain = domain_of(config.project)
        self.loaders = Loaders(settings.loader_settings(), self.wrapped, clock)
        self.outputs = Outputs(self, settings.outputs)
        self.traffic, self.changes, self.families = traffic_logs(
            settings.traffic, self.project, clock, self.outputs.families
        )
        self.marks = write_marks(settings.preload, self.project, clock)
        self.event_logs = EventLogs(self.project, self._log_server, self._registered, clock)
        self.engine = Engine(
            WindowedSource(self.event_logs, self.loaders.over(ChosenSource(self.wrapped))),
            self.domain,
            MemoryBounds(
                settings.memory.max_entries,
                settings.memory.max_bytes,
                settings.memory.absent_share,
            ),
            clock,
            self.shared,
            self._note_some if settings.traffic or settings.shadow else None,
        )
        self.shadow: Shadow | None = None
        if (said := settings.shadow) is not None:
            checks = ShadowSettings(said.share, said.rate, said.limit, said.least)
            self.shadow = Shadow(self.engine, checks, self.exclude, self._says_when)
        self._samplers = [one for one in (self.traffic, self.shadow) if one is not None]
        self.rewarmer: Rewarmer | None = None
        if settings.rewarm is not None:
            self.rewarmer = self.engine.rewarm = Rewarmer(
                self.engine, settings.rewarm, self.domain.view_of, self.resolve
            )
        self.invalidations = InvalidationCounters()
        self.coherence = Coherence(
            self.project,
            self.domain,
            clock,
            self.meeting_place,
            self.shared,
            self.invalidations,
            is_shared=settings.shared is not None,
        )
        self.policies = PolicyBook(
            settings.layers(),
            self.coherence.lease,
            lambda table: is_windowed(table) and self.event_logs.is_in_process,
            self.event_logs.note_views,
        )
        self.plans = Plans(
            PlanInputs(
                self.resolve,
                self.engine.memory.get,
                settings.enforce_max_age,
                self.policies.renew,
                lambda grouped: self.wrapped.store()._check_versioned_read_support(grouped),
                self._samplers,
            )
        )
        self._shared: dict[str, SharedTier | None] = {}
        self._blobs: dict[str, BlobTier | None] = {}
        self.passed = PassedCounters()
        self.purged = 0
        self._told_in = 0
        self.publisher: Publisher | None = None
        if (metrics := settings.metrics) is not None:
            self.publisher = Publisher(Path(metrics.folder), metrics.every / 1e9, self.samples)
        self.quality = QualityCounters()
        self.cache_faults = 0
        self._answers_whole: bool | None = None
        self._seldom = Seldom()

    @property
    def answers_whole(self) -> bool:
        """Whether the wrapped store answers requests in a way of its own, not by reading rows.

        Feast's remote store does: its rows carry neither the statuses nor the timestamps of its
        answers, so keeping rows would change the answers. Such requests go straight to it.
        """
        if self._answers_whole is None:  # no lock: a forked child could find it held
            own = type(self.wrapped.store()).get_online_features
            is_whole = own is not OnlineStore.get_online_features
            if is_whole and self.loaders:
                raise ConfigError(
                    "online_store.loaders: the wrapped store answers whole requests by itself, so "
                    "no loader would be asked. Put the loaders where its own store is configured."
                )
            self._answers_whole = is_whole
        return self._answers_whole

    @property
    def layers(self) -> PolicyLayers:
        """The deployment's policy maps."""
        return self.policies.layers

    # -- views ----------------------------------------------------------------------------------

    def resolve(
        self, table: Any, requested: Sequence[str] = (), shape: EntityShape | None = None
    ) -> tuple[View, Bound, GroupCounters]:
        """The view of a feature view as Feast holds it, its policy and its counters.

        Args:
            table: Feast's feature view.
            requested: features asked for; one that the view does not declare becomes a column too.
            shape: the entity's shape; the declared one if left out.
        """
        columns = [Column(field.name, field.dtype.to_value_type()) for field in table.features]
        known = {column.name for column in columns}
        columns += [Column(name, ValueType.UNKNOWN) for name in requested if name not in known]
        view = self.domain.view(self._identity(table, columns, shape), Layout(columns))
        view.is_shareable = not is_windowed(table)
        group, bound = self.policies.bound(table)
        self.coherence.note_view(view, is_event=bound.lease is not NO_LEASE_NEEDED)
        self.begin_publishing()
        return view, bound, self.engine.counters(group, view)

    def identity(self, table: Any, shape: EntityShape | None = None) -> ViewIdentity:
        """What `resolve` would look for, without anything being made or listened for."""
        columns = [Column(field.name, field.dtype.to_value_type()) for field in table.features]
        return self._identity(table, columns, shape)

    def _identity(
        self, table: Any, columns: Sequence[Column], shape: EntityShape | None
    ) -> ViewIdentity:
        version = compute_versioned_name(table, self.versioning)
        if is_windowed(table):
            version += mark_of(table, self.policies.bound(table)[1].policy.ttl_ns)
        return ViewIdentity(
            project=self.project,
            view=table.name,
            version=version,
            columns=tuple((column.name, column.value_type.name) for column in columns),
            shape=shape or declared_shape(table),
        )

    def wants(
        self, table: Any, keys: Sequence[EntityKey], requested: Sequence[str]
    ) -> tuple[list[Want], list[tuple[int, int]]]:
        """What the engine is asked for where Feast hands over its own entity keys.

        Returns:
            One want for each shape among the keys, and for each key (want, position in it).
        """
        wants: dict[EntityShape, Want] = {}
        order: list[EntityShape] = []
        places: list[tuple[int, int]] = []
        for key in keys:
            shape, values = shape_and_values(key)
            want = wants.get(shape)
            if want is None:
                view, bound, counters = self.resolve(table, requested, shape)
                want = wants[shape] = Want(view, table, bound, counters, [])
                order.append(shape)
            held: list[Any] = want.keys  # type: ignore[assignment]
            held.append(want.view.key(values))
            places.append((order.index(shape), len(held) - 1))
        return [wants[shape] for shape in order], places

    def meeting_place(self) -> tuple[RedisServer | None, bool]:
        """Where processes meet, and whether it is the wrapped Redis store's own server."""
        if is_redis_store(self.wrapped.store()):
            return server_of(self.wrapped.current_config().online_store), True
        return server_of(self.settings.shared) or self._named_log_server(), False

    def _named_log_server(self) -> RedisServer | None:
        windows = self.settings.windows
        return server_of(windows) if windows.connection_string else None

    def _log_server(self) -> LogServer | None:
        """The server that keeps event logs; None where they are kept in this process.

        Raises:
            ConfigError: the deployment names neither.
        """
        windows = self.settings.windows
        if windows.in_process:
            return None
        server = self._named_log_server()
        if server is None and is_redis_store(self.wrapped.store()):
            server = server_of(self.wrapped.current_config().online_store)
        if server is None:
            raise no_place()
        return LogServer(server, windows.timeout / 1e9)

    def _registered(self) -> list[Any]:
        """The feature views of the registry, for calls that come without it."""
        config = self._config
        return feature_views_of(FeatureStore(config=config).registry, config.project)

    def shared(self) -> SharedTier | None:
        """The shared tier; None where the deployment has none."""
        if "made" not in self._shared:
            settings, made = self.settings.shared, None
            server = server_of(settings)
            if settings is not None and server is not None:
                is_wanted = settings.tier
                if is_wanted is None:  # a second Redis before the first one saves nothing
                    is_wanted = not is_redis_store(self.wrapped.store())
                if is_wanted:
                    bounds = SharedBounds(
                        settings.timeout / 1e9, settings.lease / 1e9, settings.max_row_bytes
                    )
                    made = SharedTier(server, self.project, bounds, self.clock)
                    made.has_ties = self.outputs.are_shared
            self._shared.setdefault("made", made)  # one for all threads, without a lock
        return self._shared["made"]

    def blobs(self) -> BlobTier | None:
        """The blob tier; None where the deployment names no folder for it."""
        if "made" not in self._blobs:
            settings, made = self.settings.blobs, None
            if settings is not None:
                made = BlobTier(settings.folder, max_bytes=settings.max_bytes, clock=self.clock)
            self._blobs.setdefault("made", made)  # one for all threads, without a lock
        return self._blobs["made"]

    def is_heard(self, table: Any) -> bool:
        """Whether other processes listen for changes of a feature view."""
        return self.coherence.is_shared or self.policies.bound(table)[1].policy.is_event

    # -- forgetting -----------------------------------------------------------------------------

    def forget_written(
        self,
        table: Any,
        data: Sequence[tuple[EntityKey, dict[str, Any], datetime, datetime | None]],
    ) -> None:
        """Forget the entities of rows that were written, here and in the processes that listen."""
        self.begin_publishing()
        self.loaders.note_written(table)
        self.note_changed(table, data)
        # where Redis broadcasts what is written into it, nothing need be said
        is_said = self.is_heard(table) and not self.coherence.is_broadcast()
        is_known = bool(self.domain.views_named(self.project, table.name))
        if not (is_known or is_said or self.shared()):
            return  # nobody here has read the view yet, as in a job that only writes
        versions = self._versions(table)
        # in parts: what lives through a large write makes the garbage collector walk all its rows
        for at in range(0, len(data), _FORGOTTEN_AT_ONCE):
            shaped = shapes_and_values(row[0] for row in data[at : at + _FORGOTTEN_AT_ONCE])
            self._forget(table, shaped, versions, is_heard=is_said, cause="write")

    def note_changed(
        self,
        table: Any,
        data: Sequence[tuple[EntityKey, dict[str, Any], datetime, datetime | None]] | None = None,
    ) -> None:
        """Note that rows of a feature view changed, all of them if none are named."""
        self.marks.mark(table.name)
        if self.changes is not None:
            shaped = None if data is None else shapes_and_values(row[0] for row in data)
            self.changes.note(table.name, shaped)

    async def forget_written_async(
        self,
        table: Any,
        data: Sequence[tuple[EntityKey, dict[str, Any], datetime, datetime | None]],
    ) -> None:
        """The same for callers on an event loop."""
        if self.shared() is None and not self.is_heard(table) and self.changes is None:
            self.forget_written(table, data)
        else:
            await asyncio.to_thread(self.forget_written, table, data)

    def write_computed(
        self,
        table: Any,
        data: Sequence[tuple[EntityKey, dict[str, Any], datetime, datetime | None]],
    ) -> None:
        """Write rows of an event view into their logs, then forget what is computed from them.

        Raises:
            HotplateError: they are rows of a windowed view, which is computed and never written.
        """
        if not is_event_view(table):
            raise HotplateError(
                f"feature view {table.name!r} is computed from events and cannot be written: push "
                "to its event view, or leave it out of materialize by `provider: "
                "hotplate.provider.HotplateProvider` in feature_store.yaml"
            )
        log = self.event_logs.log(table)
        now_ms = self.clock.wall_ns() // 1_000_000
        self.append_batch(log, from_feast(table, log.said.spec, data, now_ms))

    def append_batch(self, log: Log, batch: Batch) -> None:
        """The same for a batch of events."""
        self.begin_publishing()
        try:
            self.event_logs.append(log, batch)
        finally:  # also after an error: part of the batch may have been written
            self.forget_computed(log, batch.entities)

    def forget_computed(
        self, log: Log, touched: Sequence[Entity] | None, *, is_announced: bool = False
    ) -> None:
        """Forget what is computed from logs that were written to.

        Args:
            log: how they are stored.
            touched: whose logs; None for all of them.
            is_announced: whether other processes have been told already; see `announcements`.
        """
        for name, cache in log.said.readers.items():
            if self.changes is not None:
                self.changes.note(name, touched)
            if touched is None:
                dropped = self.domain.invalidate_views(self.domain.views_named(self.project, name))
            else:
                dropped = self.domain.invalidate_entities(self.project, name, touched)
            self.invalidations.add("event", dropped)
            if cache == "exact" and not self.event_logs.is_in_process and not is_announced:
                self.coherence.announce(name, touched)

    def announcements(self, log: Log, touched: Sequence[Entity]) -> list[Announcement]:
        """What `forget_computed` tells other processes, for who says it by itself."""
        return [
            one
            for name, cache in log.said.readers.items()
            if cache == "exact"
            for one in self.coherence.announcements(name, touched)
        ]

    def forget_entities(
        self, table: Any, shaped: Sequence[tuple[EntityShape, tuple[Any, ...]]], *, is_heard: bool
    ) -> int:
        """Forget entities of a feature view, here and, where `is_heard`, in other processes.

        Returns:
            How many rows were dropped here.
        """
        self.marks.mark(table.name)
        if self.changes is not None:
            self.changes.note(table.name, shaped)
        versions = self.every_version(table)
        return self._forget(table, shaped, versions, is_heard=is_heard, cause="asked")

    def _forget(
        self,
        table: Any,
        shaped: Sequence[tuple[EntityShape, tuple[Any, ...]]],
        versions: Iterable[str],
        *,
        is_heard: bool,
        cause: str,
    ) -> int:
        # In this order: what is still in the shared tier could be read into memory again, and what
        # others are told of they may look for at once.
        shared = self.shared()
        if shared is not None:
            for version in versions:
                shared.forget_entities(version, shaped)
        count = self.domain.invalidate_entities(self.project, table.name, shaped)
        self.invalidations.add(cause, count)
        if is_heard:
            self.coherence.announce(table.name, shaped)
        return count

    def _versions(self, table: Any) -> set[str]:
        known = self.domain.views_named(self.project, table.name)
        return {
            compute_versioned_name(table, self.versioning),
            *(view.identity.version for view in known),
        }

    def every_version(self, table: Any) -> set[str]:
        """The names under which rows of a feature view may be kept, by whichever process.

        A write touches one version of a view; who invalidates an entity means all of them, also
        those that only other processes read.
        """
        latest = (getattr(table, "current_version_number", None) or 0) if self.versioning else 0
        older = (f"{table.name}_v{number}" for number in range(1, latest + 1))  # as Feast has it
        return {table.name, *older, *self._versions(table)}

    def forget_views(
        self, tables: Iterable[Any], cause: str = "asked", *, is_same: bool = False
    ) -> int:
        """Forget feature views as a whole, here and in the processes that listen.

        Args:
            tables: which.
            cause: as which this counts.
            is_same: whether what the source holds of them is what it held before.

        Returns:
            How many rows were dropped here.
        """
        distinct = {table.name: table for table in tables}
        if not is_same:
            self.marks.mark(*distinct)
        shared = self.shared()
        if shared is not None:
            shared.forget_views(distinct)
        views = [view for name in distinct for view in self.domain.views_named(self.project, name)]
        dropped = self.domain.invalidate_views(views)
        self.invalidations.add(cause, dropped)
        for name, table in distinct.items():
            if self.is_heard(table):
                self.coherence.announce(name, None)
        return dropped

    def forget_here(self, table: Any) -> None:
        """Forget a feature view in this process, after others wrote it through their own caches."""
        self.loaders.note_written(table)
        self.note_changed(table)
        views = self.domain.views_named(self.project, table.name)
        self.invalidations.add("write", self.domain.invalidate_views(views))

    def forget_all(self, cause: str = "asked", *, is_heard: bool = False) -> None:
        """Forget everything of this project, here and, where `is_heard`, in other processes."""
        self.marks.mark_all()
        shared = self.shared()
        if shared is not None:
            shared.forget_all()
        self.invalidations.add(cause, self.domain.invalidate_all(self.project))
        if is_heard:
            self.coherence.announce(None, None)

    def exclude(self, group: str, why: str | None) -> None:
        """Serve a group from the source from now on; None lets it back into the cache."""
        if why == self.policies.excluded.get(group):
            return
        if why is not None:
            _log.error("group %s is served from the source from now on: %s", group, why)
        self.policies.exclude(group, why)
        self.plans.clear()
        # by what was read, not by the registry, which may be down just now
        views = self.engine.views_of(group)
        self.marks.mark(*{view.identity.view for view in views})
        if (shared := self.shared()) is not None:
            shared.forget_views({view.identity.view for view in views})
        self.invalidations.add("asked", self.domain.invalidate_views(views))
        if why is None and self.shadow is not None:
            self.shadow.begin_anew(self.engine.group_counters()[group])

    def _says_when(self, table: Any) -> bool:
        """Whether the event time of a view's rows says when they were written."""
        loader = self.loaders.of(table)
        is_loaded = loader is not None and loader.settings.event_timestamp_column is None
        return not is_loaded and not is_windowed(table)

    def _note_some(self, wants: Sequence[Want]) -> None:
        for sampler in self._samplers:
            sampler.note_some(wants)

    def note_fault(self, error: Exception) -> None:
        """Count a fault of the cache itself, and log it once a minute."""
        self.cache_faults += 1
        if self._seldom.is_time(self.clock.now_ns() / 1e9):
            # the error's text may hold an entity's id or a driver's settings
            name = type(error).__name__
            _log.error("the cache failed and the source answers instead: %s", name)

    def close(self) -> None:
        """Close what connects processes and what loaders opened, until it is needed again."""
        self.loaders.close()
        self.event_logs.close()
        self.coherence.close()
        shared = self._shared.get("made")
        if shared is not None:
            shared.close()
        for log in (self.traffic, self.changes, self.families, self.shadow, self.publisher):
            if log is not None:
                log.close()

    # -- looking --------------------------------------------------------------------------------

    def stats(self) -> CacheStats:
        """The counts now."""
        groups = self.engine.group_counters()
        return CacheStats(
            groups={name: counters.snapshot() for name, counters in sorted(groups.items())},
            entries=len(self.engine.memory),
            bytes=self.engine.memory.size_bytes,
            source_batches=self.engine.source_batches,
            source_seconds=self.engine.source_seconds.snapshot(),
            invalidations=self.invalidations.snapshot(),
            ttls_s=self.policies.ttls_s(),
            excluded=dict(self.policies.excluded),
            requests_passed=self.passed.snapshot(),
            cache_faults=self.cache_faults,
            loaders=self.loaders.stats(),
            channel=self.coherence.stats(),
            shared=shared.stats() if (shared := self._shared.get("made")) else None,
            events=self.event_logs.stats(),
            traffic=None if self.traffic is None else self.traffic.stats(),
            changes=None if self.changes is None else self.changes.stats(),
            rewarm=None if self.rewarmer is None else self.rewarmer.stats(),
            quality=None if self.settings.quality is None else self.quality.snapshot(),
        )

    def samples(self) -> list[Sample]:
        """The values of all metrics now."""
        outputs, engine = self.outputs.stats(), self.engine
        found = Measured(self.project, self.stats(), outputs, engine.rehearsed, self.purged)
        return list(measure(found))

    def begin_publishing(self) -> None:
        """From now on metrics are written, where the deployment says so."""
        if self.publisher is not None and not self.publisher.is_running:
            self.publisher.start()
            settings = self.settings.metrics
            if settings is not None and settings.opentelemetry and self._told_in != os.getpid():
                self._told_in = os.getpid()  # a forked child tells its own provider
                from hotplate.telemetry.opentelemetry import instrument

                instrument(self.samples)
