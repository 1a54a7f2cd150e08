"""What Feast has no call for: statistics, policies, invalidation, the matrix reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from feast import FeatureService, FeatureStore
from feast.data_source import PushMode

from hotplate.errors import ConfigError, NotACachedStoreError
from hotplate.ingestion import defragment
from hotplate.online_store import CachedOnlineStore
from hotplate.operations.consume import Consumer, ConsumerSettings
from hotplate.operations.cursors import CursorFile, Position, Selection, state_folder
from hotplate.operations.doctor import examine
from hotplate.operations.entities import EntityReader
from hotplate.operations.explain import Explanation, explain
from hotplate.operations.findings import Finding
from hotplate.operations.ingest import Ingested, Ingestion, tables_of
from hotplate.operations.inspect import Inspected, inspect
from hotplate.operations.invalidate import Invalidation
from hotplate.operations.purge import Limits, Progress, Purge
from hotplate.operations.seed import Seed, Seeded
from hotplate.operations.warm import Warming, listed, plan_of
from hotplate.outputs import InputSchema, Model, OutputCache, OutputError, OutputPolicy
from hotplate.policy import ResolvedPolicy
from hotplate.serving.entities import Target, as_columns
from hotplate.serving.names import Names
from hotplate.serving.policies import feature_views_of, group_of, resolve_all
from hotplate.serving.preload import Preloaded
from hotplate.serving.reader import MatrixReader
from hotplate.serving.rehearsal import Rehearsal
from hotplate.serving.runtime import Runtime
from hotplate.stats import CacheStats, GroupCounters
from hotplate.telemetry.reading import families, read_families
from hotplate.warming.selection import SelectionSpec, select
from hotplate.warming.warmer import WarmingRate, WarmProgress
from hotplate.windowed import event_log_of, windowed_of

if TYPE_CHECKING:
    from hotplate.tiers.blobs import BlobTier

__all__ = ["Hotplate", "of"]


def of(store: FeatureStore) -> Hotplate:
    """The cache behind a Feast store.

    Args:
        store: any `FeatureStore` whose online store is Hotplate's. Handles of one store share its
            cache, so a handle may be made for every use.

    Raises:
        NotACachedStoreError: its online store is not Hotplate's, or it is no `FeatureStore`.
    """
    return Hotplate(store)


class Hotplate:
    """The cache behind a Feast store.

    Args:
        store: a Feast store whose online store is `hotplate.online_store.CachedOnlineStore`.
    """

    def __init__(self, store: FeatureStore) -> None:
        if not isinstance(store, FeatureStore):
            raise NotACachedStoreError(
                f"expected a feast.FeatureStore, got a {type(store).__name__}: write "
                "hotplate.of(FeatureStore(repo_path=...))"
            )
        online = store._get_provider().online_store
        if not isinstance(online, CachedOnlineStore):
            raise NotACachedStoreError(
                f"the online store is {type(online).__name__}, not CachedOnlineStore. In "
                "feature_store.yaml write online_store: {type: "
                "hotplate.online_store.CachedOnlineStore, store: {...}}"
            )
        self._store = store
        self._online = online
        self._names = Names(store, lambda: self.runtime)

    def __repr__(self) -> str:
        return f"Hotplate({self._online!r})"

    @property
    def runtime(self) -> Runtime:
        """The parts behind it; for tools, not for everyday use."""
        return self._online.runtime(self._store.config)

    def stats(self) -> CacheStats:
        """Counts per group since this process began to use the store.

        Groups of the registry that have not been read yet are there, with zeros.
        """
        counted = self.runtime.stats()
        unread = self._names.groups() - set(counted.groups)
        groups = {**counted.groups, **{name: GroupCounters(name).snapshot() for name in unread}}
        return replace(counted, groups=dict(sorted(groups.items())))

    def metrics(self, *, of_host: bool = True) -> list[Any]:
        """All metrics now, as prometheus_client's families, for an endpoint of the application::

            REGISTRY.register(hotplate.telemetry.Collector(hot.metrics))

        Args:
            of_host: those of all processes of this host, added up, where the deployment names a
                folder (`online_store.metrics`). False: those of this process alone, for endpoints
                that are each asked by themselves.

        Raises:
            TelemetryError: the folder cannot be read.
        """
        runtime = self.runtime
        if runtime.publisher is None or not of_host:
            return families(runtime.samples())
        runtime.begin_publishing()
        runtime.publisher.write()
        return read_families(runtime.publisher.folder)

    def policies(self) -> dict[str, ResolvedPolicy]:
        """The policy of every group, complete, with where each setting comes from.

        Empty before the first `feast apply`.

        Raises:
            PolicyError: the tags and the deployment contradict each other.
            ConfigError: a loader is named as no view and no group.
        """
        views = feature_views_of(self._store.registry, self._store.project)
        layers = self.runtime.layers
        policies = resolve_all(layers, views)
        if policies:
            layers.check_names(group_of(views))
            self.runtime.loaders.check_names(views)
        return policies

    def loaders(self) -> dict[str, dict[str, str]]:
        """Group -> feature view -> `"sql"` or `"function"`, for the views that have a loader."""
        views = feature_views_of(self._store.registry, self._store.project)
        return self.runtime.loaders.kinds(views)

    def reader(
        self,
        features: list[str] | FeatureService,
        order: Sequence[str] | None = None,
        full_feature_names: bool = False,
    ) -> MatrixReader:
        """A reader that returns a float32 matrix, for a model.

        Args:
            features: `"view:feature"` references, or a feature service.
            order: output names in the order of the matrix's columns, for a model that trusts
                column order; the order of `features` if left out.
            full_feature_names: whether output names carry the view's name, as in `view__feature`.

        Returns:
            A `MatrixReader`: `matrix(entities)` is the matrix, `read(entities)` the matrix with
            statuses and freshness. Make it once and keep it.

        Raises:
            TypeError: `features` or `order` is not of its kind.
            ValueError: a feature is not a number or needs more than reading rows, or `order` does
                not name exactly the features.
        """
        return MatrixReader(self._store, self.runtime, features, order, full_feature_names)

    def outputs(
        self,
        model: str | Model,
        version: str | None = None,
        inputs: InputSchema | Sequence[str] | None = None,
        policy: OutputPolicy | None = None,
    ) -> OutputCache:
        """The cache of the outputs of one version of a model; see `OutputCache.score`.

        Made once for each model and version. Another version, schema, policy or set of rules is
        another cache, and what the one before had kept is forgotten.

        Args:
            model: its name; or what an adapter of `hotplate.outputs` made of it, which says its
                version and inputs, too.
            version: of the model.
            inputs: what it reads, in its order: fields, or names of floats that count to 4 places.
            policy: how long outputs are kept and what never is; that of `online_store.outputs` in
                feature_store.yaml if left out, by the model's name or `default`.

        Raises:
            ConfigError: the deployment says nothing of outputs of this model, or what cannot be.
            OutputError: no inputs, or one twice, or no version.
        """
        name = model
        if isinstance(model, Model):
            name, version, inputs = model.name, version or model.version, inputs or model.inputs
        if not version or inputs is None:
            raise OutputError(
                where=f"outputs of model {name!r}",
                problem="come without the model's version or inputs",
                fix='Write outputs("fraud", version="7", inputs=[...]): another version must never '
                "be answered with this one's outputs.",
            )
        schema = inputs if isinstance(inputs, InputSchema) else InputSchema.of(*inputs)
        return self.runtime.outputs.of(str(name), version, schema, policy)

    @property
    def blobs(self) -> BlobTier:
        """The blob tier of the deployment, for embedding tables and candidate sets of its own.

        Raises:
            ConfigError: the deployment names no folder for it.
        """
        tier = self.runtime.blobs()
        if tier is None:
            raise ConfigError(
                "the deployment has no blob tier: write online_store.blobs: "
                "{folder: /var/cache/hotplate}"
            )
        return tier

    def inspect(self, name: str, entity: str | Mapping[str, Any]) -> list[Inspected]:
        """Where each row of an entity is held, how old it is, and how the next read is answered.

        Nothing is filled by it. The memory is that of this process alone.

        Args:
            name: a group or a feature view.
            entity: `{"card_id": 7}`, or as text `"card_id=7"`.

        Raises:
            KeyError: there is no such group or view, or a join key is missing.
            EntityError: the text is no entity of it.
        """
        targets = self._names.targets(name)
        declared = {key: kind for target in targets for key, kind in target.declared.items()}
        if isinstance(entity, str):
            entity = EntityReader(declared).from_text(entity)
        columns, count = as_columns(entity)
        if count != 1:
            raise KeyError("name one entity")
        runtime = self.runtime
        runtime.policies.renew(self._store.registry, self._store.project, runtime.clock.now_ns())
        return [inspect(runtime, target, *target.read(columns)) for target in targets]

    def invalidate(self, name: str, entities: Any = None) -> int:
        """Never again serve what was read before: for some entities, or for a whole group.

        Args:
            name: a group or a feature view.
            entities: `{"card_id": 7}` for one entity; `{"card_id": [7, 8]}`, a DataFrame or
                `[{"card_id": 7}, {"card_id": 8}]` for more; all of the group's if left out.

        Returns:
            How many rows this process held of them and dropped, one a feature view and entity;
            0 where none had been read. Loads under way are refused either way.

        Raises:
            KeyError: there is no such group or view, or an entity lacks a join key.
            TypeError: `entities` is in none of these forms.
            ValueError: a value is null or not of its declared type, or columns differ in length.
        """
        targets = self._names.targets(name)
        runtime = self.runtime
        if entities is None:
            for target in targets:
                runtime.note_changed(target.table)
            return runtime.forget_views([target.table for target in targets])
        columns, count = as_columns(entities)
        if not count:
            return 0
        # all are read before any is forgotten: a wrong one changes nothing
        wanted = [(target, target.read(columns)) for target in targets]
        return sum(
            runtime.forget_entities(target.table, shaped, is_heard=target.is_heard)
            for target, shaped in wanted
        )

    def invalidation(self, name: str) -> Invalidation:
        """The same for tools: counts before it forgets, reads files, says what was not taken.

        Args:
            name: a group or a feature view.

        Raises:
            KeyError: there is no such group or view.
        """
        runtime = self.runtime
        runtime.policies.renew(self._store.registry, self._store.project, runtime.clock.now_ns())
        return Invalidation(runtime, self._names.look_up(name))

    def purge(
        self,
        groups: Iterable[str] | None = None,
        *,
        outdated: bool = False,
        limits: Limits | None = None,
        resume: bool = False,
        state: Path | None = None,
    ) -> Iterator[Progress]:
        """Remove entries of the shared tier at a pace that the source bears; see `Purge`.

        Nothing happens before the first step of the iteration; one that is left off keeps where it
        was, and goes on with `resume`.

        Args:
            groups: groups or feature views; the whole project if left out.
            outdated: only entries that nobody with the present registry would serve.
            limits: how fast.
            resume: go on with the purge that was left off, whatever it was to remove.
            state: the folder in which it keeps where it is.

        Yields:
            How far it is, after every few entries; the last one says that it is over.

        Raises:
            ConfigError: there is no shared tier, or nothing to resume.
            KeyError: there is no such group or view.
        """
        file = CursorFile(state or state_folder(), self._store.project)
        position = file.load() if resume else None
        if resume and position is None:
            raise ConfigError("there is nothing to resume: the last purge came to its end")
        if position is None:
            chosen = None if groups is None else tuple(groups)
            position = Position(Selection(chosen, outdated))
        named = position.selection.groups
        chosen_tables = None
        if named is not None:
            chosen_tables = [found.table for name in named for found in self._names.look_up(name)]
        views = feature_views_of(self._store.registry, self._store.project)
        purge = Purge(self.runtime, views, chosen_tables, position, limits or Limits(), file)
        return purge.run()

    def preload(self, budget_s: float | None = None) -> Preloaded:
        """Read what processes before this one held in memory, before the first request.

        The feature server (`feast serve`) does it by itself. From then on this process writes down
        what it holds, for the one after it.

        Args:
            budget_s: how long it may take, in seconds; `online_store.preload.budget` if left out.

        Raises:
            ConfigError: the deployment has no `online_store.preload`.
        """
        return self._online.preload(self._store.config, self._store, budget_s)

    def close(self) -> None:
        """Write down what this process logged, counted and holds, and end its threads.

        Python does it by itself at its end, but not for a process that a signal ends: call it from
        what handles SIGTERM. Whoever reads once more goes on, with threads begun anew.
        """
        self._online.finish()

    def rehearsal(self, groups: Sequence[str] = ()) -> Rehearsal:
        """What reads entities through this process's cache without anybody having asked.

        Args:
            groups: groups or feature views; all of them if empty.

        Raises:
            KeyError: there is no such group or view.
        """
        return Rehearsal(self._store, self.runtime, groups)

    def warm(
        self,
        log: str | Path,
        rate: WarmingRate,
        *,
        groups: Sequence[str] = (),
        top: int | None = None,
        share: float | None = 0.9,
        days: int = 7,
        hours: int = 3,
        part: tuple[int, int] = (0, 1),
        ids: Sequence[Path] = (),
        suffers: Callable[[], bool] = lambda: False,
        score: Callable[[dict[str, list[Any]]], object] | None = None,
    ) -> Iterator[WarmProgress]:
        """Read the entities that a traffic log says will be asked for, at a controlled rate.

        Nothing is read before the first step of the iteration. What it reads is kept in this
        process, and in the shared tier where there is one.

        Args:
            log: the folder of the traffic log.
            rate: how fast; see `WarmingRate`.
            groups: groups or feature views; all of them if empty.
            top: so many entities of each kind at the most.
            share: of the reads that the chosen entities should make.
            days, hours: which reads count, see `hotplate.warming.selection`.
            part: (which, of how many) warmers that share the work this is.
            ids: files of entities, for a log whose ids are hashed.
            suffers: asked before each batch whether live traffic is slower than it should be.
            score: scores entities, join key -> values, through a cache of outputs (`outputs`);
                called batch by batch at the same rate, once all features are there.

        Yields:
            How far it is, after each batch.

        Raises:
            TrafficError: there is no log.
            KeyError: there is no such group or view.
            WarmingError: the source, or the scoring, failed too often.
        """
        rehearsal, spec = self.rehearsal(groups), SelectionSpec(datetime.now(UTC), days, hours)
        found = listed(ids) if ids else None
        chosen, project = select(Path(log), spec), self._store.project
        plan = plan_of(rehearsal, chosen, project, top=top, share=share, part=part, ids=found)
        return Warming(rehearsal, rate, suffers, score=score).run(plan)

    def admit(self, group: str) -> None:
        """Let a group back into the cache that shadow checks took out of it, in this process.

        Raises:
            KeyError: it was not taken out.
        """
        if group not in self.runtime.policies.excluded:
            raise KeyError(f"group {group!r} was not taken out of the cache")
        self.runtime.exclude(group, None)

    def examine(self) -> list[Finding]:
        """Look the deployment over; what `hotplate doctor` prints."""
        return examine(self._store, self.runtime, self.policies)

    def clear(self) -> None:
        """Never again serve anything of this project that was read before."""
        runtime = self.runtime
        views = feature_views_of(self._store.registry, self._store.project)
        runtime.forget_all(is_heard=any(map(runtime.is_heard, views)))

    def push(
        self, push_source_name: str, frame: pd.DataFrame, to: PushMode = PushMode.ONLINE
    ) -> None:
        """`store.push` that loses no rows of an Arrow-backed frame.

        Args:
            push_source_name: as in `PushSource(name=...)`.
            frame: join keys, features and the event timestamp.
            to: the online store, the offline store or both.

        Raises:
            TypeError: `frame` is not a pandas DataFrame.
        """
        self._store.push(push_source_name, defragment(frame), to=to)

    def ingest(
        self,
        event_view: str,
        events: Any,
        *,
        to_offline: bool = False,
        progress: Callable[[Ingested], None] = lambda so_far: None,
    ) -> Ingested:
        """Write events into their logs, several times faster than `push`.

        Args:
            event_view: the second result of `windowed_view(...)`, by name.
            events: a pandas frame, an Arrow table or record batch, a list of dicts, or an iterator
                of any of these, under the column names of the batch source. Without the column
                that says when they arrived, they arrive now.
            to_offline: also write them, with the same time of arrival, into the batch source.
            progress: told now and then what became of the events so far.

        Returns:
            What became of them. Ingesting events again changes nothing, as long as their log
            remembers their ids.

        Raises:
            KeyError: there is no such event view.
            TypeError: `events` is in none of these forms.
            TrainingError: a column is missing, or cannot be what the view declares.
            ServerError: the server does not answer; events before are in.
        """
        ingestion = Ingestion(
            self.runtime, _event_view(self._names.targets(event_view), event_view)
        )
        total = Ingested()
        for table in tables_of(events):
            stamped = ingestion.stamp(table)
            total = ingestion.write(stamped, total, progress)
            if to_offline:
                self._store.write_to_offline_store(event_view, stamped.to_pandas())
        return total

    def seed(self, event_view: str, events: Path | None = None) -> Iterator[Seeded]:
        """Fill the logs of an event view from history, beside whatever goes on; see `Seed`.

        Args:
            event_view: the second result of `windowed_view(...)`, by name.
            events: a Parquet file or folder of all events, by the column names of the batch source;
                the batch source itself if left out.

        Yields:
            How far it is; the last one says that all is done. What is left off keeps what is done.

        Raises:
            KeyError: there is no such event view.
            TrainingError: a column is missing, or cannot be what the view declares.
            ServerError: the server does not answer.
        """
        return Seed(
            self._store, self.runtime, _event_view(self._names.targets(event_view), event_view)
        ).run(events)

    def retire(self, event_view: str) -> int:
        """Write events of an event view to its present layout alone, once every process reads it.

        Processes that still have an older registry would miss what happens from now on: wait for
        `registry.cache_ttl_seconds` after the last `feast apply`. What older layouts hold expires.

        Returns:
            How many layouts are not written to any more.

        Raises:
            KeyError: there is no such event view.
            WindowStateError: the present layout has not been seeded.
            ServerError: the server does not answer.
        """
        self._store.refresh_registry()  # by an older one the present layout would be the other
        logs = self.runtime.event_logs
        log = logs.log(_event_view(self._names.targets(event_view), event_view))
        logs.layouts.ensure_complete(event_view, log.plan.fingerprint)
        return logs.layouts.retire_others(event_view, log.plan.fingerprint)

    def explain(self, view: str, entity: str | Mapping[str, Any]) -> Explanation:
        """Why a windowed view answers what it answers for an entity, now.

        Args:
            view: the windowed view.
            entity: `{"card_id": 7}`, or as text `"card_id=7"`.

        Raises:
            KeyError: there is no such view, or a join key is missing.
            EntityError: the text is no entity of the view.
            WindowStateError: the log lacks history, or is damaged.
            ServerError: the server does not answer.
        """
        target = next((one for one in self._names.targets(view) if one.view == view), None)
        if target is None or windowed_of(target.table) is None:
            raise KeyError(f"{view!r} is no windowed view")
        if isinstance(entity, str):
            entity = EntityReader(target.declared).from_text(entity)
        columns, count = as_columns(entity)
        if count != 1:
            raise KeyError("name one entity")
        (found,) = target.read(columns)
        runtime = self.runtime
        runtime.policies.renew(self._store.registry, self._store.project, runtime.clock.now_ns())
        return explain(runtime, target.table, *found)

    def consume(
        self, event_view: str, stream: str, settings: ConsumerSettings | None = None
    ) -> Consumer:
        """Follow a Redis stream, and bring its entries into the event logs, each once.

        Args:
            event_view: the second result of `windowed_view(...)`, by name.
            stream: the stream's key. Its entries hold the columns of the batch source as text, or
                one field `json` with an object; see docs/windows.md.
            settings: how.

        Returns:
            A `Consumer`: nothing happens before it is iterated over; `stop()` ends that.

        Raises:
            KeyError: there is no such event view.
            ConfigError: it cannot work with this deployment or this event view.
        """

        def find_view() -> Any:
            return _event_view(self._names.look_up(event_view), event_view)

        return Consumer(self.runtime, find_view, stream, settings or ConsumerSettings())

    def write(self, feature_view_name: str, frame: pd.DataFrame) -> None:
        """`store.write_to_online_store` that loses no rows of an Arrow-backed frame.

        Raises:
            KeyError: there is no such feature view.
            TypeError: `frame` is not a pandas DataFrame.
        """
        if all(
            target.view != feature_view_name for target in self._names.targets(feature_view_name)
        ):
            raise KeyError(f"{feature_view_name!r} is a group: name the feature view to write")
        self._store.write_to_online_store(feature_view_name, defragment(frame))


def _event_view(targets: Iterable[Target], name: str) -> Any:
    target = next((one for one in targets if one.view == name), None)
    if target is None or event_log_of(target.table) is None:
        raise KeyError(f"{name!r} is no event view")
    return target.table
