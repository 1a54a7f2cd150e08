"""The Feast plugin: an online store that keeps another one warm.

In feature_store.yaml::

    online_store:
      type: hotplate.online_store.CachedOnlineStore
      store:                      # any Feast online store, as it was written before
        type: redis
        connection_string: localhost:6379
      ttl_map:
        default: 30s
        merchant_profile: 5m

Feast wants an online store and its configuration class in one module, which is why both are here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from feast import Entity, FeatureService, FeatureStore, FeatureView, RepoConfig
from feast.infra.infra_object import InfraObject
from feast.infra.online_stores.online_store import OnlineStore
from feast.infra.registry.base_registry import BaseRegistry
from feast.infra.supported_async_methods import SupportedAsyncMethods
from feast.online_response import OnlineResponse
from feast.protos.feast.core.Registry_pb2 import Registry as RegistryProto
from feast.protos.feast.types.EntityKey_pb2 import EntityKey as EntityKeyProto
from feast.protos.feast.types.Value_pb2 import Value as ValueProto
from feast.repo_config import FeastConfigBaseModel
from pydantic import Field, field_validator, model_validator

from hotplate.clock import SYSTEM_CLOCK, Clock
from hotplate.errors import ConfigError, HotplateError
from hotplate.loaders import LoaderSettings, read_loaders
from hotplate.policy import PolicyLayers, TTLMap
from hotplate.serving import feast_path
from hotplate.serving.checks import check_apply
from hotplate.serving.lookup import Request, fault_judged, prepare
from hotplate.serving.outputs import output_policies
from hotplate.serving.preload import Preloaded, Preloading
from hotplate.serving.response import CachedResponse
from hotplate.serving.runtime import Runtime
from hotplate.serving.windows import is_computed
from hotplate.settings import (
    BlobsConfig,
    MemoryConfig,
    MetricsConfig,
    PreloadConfig,
    QualityConfig,
    Rate,
    ShadowConfig,
    SharedConfig,
    TrafficConfig,
    WindowsConfig,
    check_store,
    checked,
    store_class,
)

__all__ = [
    "BlobsConfig",
    "CachedOnlineStore",
    "CachedOnlineStoreConfig",
    "MemoryConfig",
    "SharedConfig",
    "WindowsConfig",
]

_TYPE: Final = "hotplate.online_store.CachedOnlineStore"

_Row = tuple[EntityKeyProto, dict[str, ValueProto], datetime, datetime | None]
_ReadRow = tuple[datetime | None, dict[str, ValueProto] | None]

# Types wrapped in this process: what a store is asked before its first call depends on its own.
_wrapped_types: Final[set[str]] = set()


class CachedOnlineStoreConfig(FeastConfigBaseModel):  # type: ignore[misc]
    """`online_store` in feature_store.yaml. Building it reads no network and starts nothing."""

    type: Literal["hotplate.online_store.CachedOnlineStore"] = _TYPE
    """Online store type selector."""

    store: dict[str, Any] = Field(repr=False)
    """The online store to keep warm, with its own settings."""

    ttl_map: dict[str, Any] = Field(default_factory=dict)
    """Group or wildcard -> ttl, or a mapping of policy settings; `default` is for all others."""

    loaders: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Feature view or group -> the SQL or the function that loads it; see `hotplate.loaders`."""

    profiles: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Name -> a ttl_map laid over the other, chosen by the environment."""

    profile_variable: str = "HOTPLATE_PROFILE"
    """Environment variable that names the profile."""

    memory: MemoryConfig = Field(default_factory=MemoryConfig)
    """Bounds of the memory tier."""

    shadow: ShadowConfig | None = None
    """How much of what is served is compared with the source; see `hotplate.serving.shadow`."""

    shared: SharedConfig | None = None
    """Where processes hear of each other's changes. Not needed where the store is Redis itself."""

    blobs: BlobsConfig | None = None
    """Where payloads of more than 1 MB lie: outputs of models, and what `hot.blobs` is given."""

    preload: PreloadConfig | None = None
    """What a serving process reads before it is ready; see `Hotplate.preload`."""

    metrics: MetricsConfig | None = None
    """Where processes write down what they count; see `hotplate.telemetry`."""

    rewarm: Rate | None = None
    """How many rows a second (`"500/s"`) are read again that were in memory and had to go."""

    traffic: TrafficConfig | None = None
    """Where a sample of what is read is logged, for warming; see `hotplate.warming.traffic`."""

    windows: WindowsConfig = Field(default_factory=WindowsConfig)
    """Where the event logs of windowed views are kept; see `hotplate.windowed`."""

    outputs: dict[str, Any] = Field(default_factory=dict)
    """Model -> how long its outputs are kept and which never are; see `hotplate.outputs`."""

    quality: QualityConfig | None = None
    """What is done with data that is not as expected; see `hotplate.quality`."""

    enforce_max_age: bool = False
    """Answer OUTSIDE_MAX_AGE for a value whose event time is past its feature view's own `ttl`."""

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, values: Any) -> Any:
        return checked(values, list(cls.model_fields))

    @field_validator("store")
    @classmethod
    def _check_store(cls, value: dict[str, Any]) -> dict[str, Any]:
        check_store(value, _TYPE)
        _wrapped_types.add(value["type"])
        return value

    @model_validator(mode="after")
    def _check_profile(self) -> CachedOnlineStoreConfig:
        self.profile()
        self.loader_settings()
        output_policies(self.outputs)
        return self

    def profile(self) -> str | None:
        """The profile that the environment names, or None.

        Raises:
            ConfigError: there is no such profile.
        """
        name = os.environ.get(self.profile_variable, "").strip()
        if not name:
            return None
        if name not in self.profiles:
            known = ", ".join(sorted(self.profiles)) or "none"
            raise ConfigError(
                f"{self.profile_variable}={name!r} names no profile of online_store.profiles "
                f"(known: {known}). Correct the variable or add the profile."
            )
        return name

    def loader_settings(self) -> dict[str, LoaderSettings]:
        """The loaders of this deployment, by name."""
        return read_loaders(self.loaders)

    def layers(self) -> PolicyLayers:
        """The policy maps of this deployment, the chosen profile over the `ttl_map`."""
        return self.every_layers()[self.profile()]

    def every_layers(self) -> dict[str | None, PolicyLayers]:
        """The policy maps under each profile, and under None without any."""
        ttl_map = TTLMap(self.ttl_map)
        return {None: PolicyLayers(ttl_map)} | {
            name: PolicyLayers(ttl_map, TTLMap(policies, origin=f"profiles[{name!r}]"))
            for name, policies in self.profiles.items()
        }


class CachedOnlineStore(OnlineStore):  # type: ignore[misc]
    """A read-through cache around any Feast online store.

    Feast makes it without arguments and hands over the configuration with every call; nothing is
    opened or started before the first call that needs it.
    """

    def __init__(self) -> None:
        self._runtime: Runtime | None = None
        self._clock: Clock = SYSTEM_CLOCK
        self._bound: dict[str, Runtime] = {}
        self._preloading = Preloading()

    def __repr__(self) -> str:
        if self._runtime is None:
            return "CachedOnlineStore(not used yet)"
        kind, memory = self._runtime.settings.store["type"], self._runtime.engine.memory
        return f"CachedOnlineStore({kind}, {memory!r})"

    # -- binding --------------------------------------------------------------------------------

    def runtime(self, config: RepoConfig) -> Runtime:
        """Everything behind this store, made on the first call."""
        runtime = self._runtime
        if runtime is None:
            # one step for all threads, without a lock that a forked child could find held
            runtime = self._bound.setdefault("runtime", Runtime(config, self._clock))
            self._runtime = runtime
        runtime.wrapped.config(config)
        return runtime

    def use_clock(self, clock: Clock) -> None:
        """Take the time from `clock`, for tests; only before the first use.

        Raises:
            HotplateError: the store has been used.
        """
        if self._runtime is not None:
            raise HotplateError("the store has been used: give it the clock before its first call")
        self._clock = clock

    def _inner(self, config: RepoConfig) -> tuple[OnlineStore, RepoConfig]:
        wrapped = self.runtime(config).wrapped
        return wrapped.store(), wrapped.config(config)

    def _inner_async(self, config: RepoConfig) -> tuple[OnlineStore, RepoConfig]:
        wrapped = self.runtime(config).wrapped
        return wrapped.store_async(), wrapped.config(config)

    @property
    def async_supported(self) -> SupportedAsyncMethods:
        """What the wrapped store supports; nothing before the first call made it known."""
        if self._runtime is None:
            return SupportedAsyncMethods()
        return self._runtime.wrapped.store().async_supported

    def _check_versioned_read_support(self, grouped_refs: list[Any]) -> None:
        # Feast decides by the store's class, and keeps what it decided: ask the wrapped store
        if self._runtime is not None:
            self._runtime.wrapped.store()._check_versioned_read_support(grouped_refs)

    def preload(
        self, config: RepoConfig, store: FeatureStore | None = None, budget_s: float | None = None
    ) -> Preloaded:
        """Read what processes before this one held in memory; see `Hotplate.preload`."""
        runtime = self.runtime(config)
        return self._preloading.run(runtime, store or FeatureStore(config=config), budget_s)

    # -- reading --------------------------------------------------------------------------------

    def get_online_features(
        self,
        config: RepoConfig,
        features: list[str] | FeatureService,
        entity_rows: Any,
        registry: BaseRegistry,
        project: str,
        full_feature_names: bool = False,
        include_feature_view_version_metadata: bool = False,
    ) -> OnlineResponse:
        """Answer a request from memory, and from the wrapped store what memory does not hold."""
        runtime = self._runtime or self.runtime(config)
        if runtime.answers_whole:
            runtime.passed.whole += 1
            return runtime.wrapped.store().get_online_features(
                config=runtime.wrapped.config(config),
                features=features,
                entity_rows=entity_rows,
                registry=registry,
                project=project,
                full_feature_names=full_feature_names,
                include_feature_view_version_metadata=include_feature_view_version_metadata,
            )
        request = None
        if not include_feature_view_version_metadata:
            request = prepare(
                runtime, config, features, entity_rows, registry, project, full_feature_names
            )
            if type(request) is CachedResponse:
                return request
            if type(request) is Request:
                answer = runtime.engine.read(request.wants(), request.now_ns)
                return request.respond(answer)
        with fault_judged(runtime, request):
            runtime.policies.renew(registry, project, runtime.clock.now_ns())
            return super().get_online_features(
                config,
                feast_path.without_vectors(features),
                entity_rows,
                registry,
                project,
                full_feature_names,
                include_feature_view_version_metadata,
            )

    async def get_online_features_async(
        self,
        config: RepoConfig,
        features: list[str] | FeatureService,
        entity_rows: Any,
        registry: BaseRegistry,
        project: str,
        full_feature_names: bool = False,
        include_feature_view_version_metadata: bool = False,
    ) -> OnlineResponse:
        """As `get_online_features`, for callers on an event loop."""
        runtime = self._runtime or self.runtime(config)
        if runtime.answers_whole or not runtime.wrapped.reads_async:
            runtime.passed.whole += 1
            return await runtime.wrapped.store_async().get_online_features_async(
                config=runtime.wrapped.config(config),
                features=features,
                entity_rows=entity_rows,
                registry=registry,
                project=project,
                full_feature_names=full_feature_names,
                include_feature_view_version_metadata=include_feature_view_version_metadata,
            )
        request = None
        if not include_feature_view_version_metadata:
            request = prepare(
                runtime, config, features, entity_rows, registry, project, full_feature_names
            )
            if type(request) is CachedResponse:
                return request
            if type(request) is Request:
                answer = await runtime.engine.read_async(request.wants(), request.now_ns)
                return request.respond(answer)
        with fault_judged(runtime, request):
            runtime.policies.renew(registry, project, runtime.clock.now_ns())
            return await super().get_online_features_async(
                config,
                feast_path.without_vectors(features),
                entity_rows,
                registry,
                project,
                full_feature_names,
                include_feature_view_version_metadata,
            )

    def _read_features_per_fv(
        self,
        config: RepoConfig,
        grouped_refs: list[Any],
        join_key_values: dict[str, Any],
        entity_name_to_join_key_map: dict[str, str],
        online_features_response: Any,
        full_feature_names: bool,
        include_feature_view_version_metadata: bool,
    ) -> None:
        """Feast's own path, with all its views read through the cache in one batch."""
        runtime = self.runtime(config)
        reads = feast_path.prepare(
            runtime, grouped_refs, join_key_values, entity_name_to_join_key_map
        )
        now_ns = runtime.clock.now_ns()
        answer = runtime.engine.read([want for read in reads for want in read.wants], now_ns)
        feast_path.populate(
            runtime,
            reads,
            answer,
            online_features_response,
            full_feature_names,
            include_feature_view_version_metadata,
        )

    async def _read_features_per_fv_async(
        self,
        config: RepoConfig,
        grouped_refs: list[Any],
        join_key_values: dict[str, Any],
        entity_name_to_join_key_map: dict[str, str],
        online_features_response: Any,
        full_feature_names: bool,
        include_feature_view_version_metadata: bool,
    ) -> None:
        """As `_read_features_per_fv`, for callers on an event loop."""
        runtime = self.runtime(config)
        reads = feast_path.prepare(
            runtime, grouped_refs, join_key_values, entity_name_to_join_key_map
        )
        now_ns = runtime.clock.now_ns()
        answer = await runtime.engine.read_async(
            [want for read in reads for want in read.wants], now_ns
        )
        feast_path.populate(
            runtime,
            reads,
            answer,
            online_features_response,
            full_feature_names,
            include_feature_view_version_metadata,
        )

    def online_read(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKeyProto],
        requested_features: list[str] | None = None,
    ) -> list[_ReadRow]:
        """Rows of one view through the cache; only the requested features, where any are named."""
        runtime = self.runtime(config)
        if feast_path.is_synthetic(table):
            store, inner = self._inner(config)
            rows: list[_ReadRow] = store.online_read(
                inner, table, list(entity_keys), requested_features and list(requested_features)
            )
            return rows
        read = feast_path.read_of(runtime, table, entity_keys, requested_features)
        answer = runtime.engine.read(read.wants, runtime.clock.now_ns())
        return feast_path.feast_rows(read, answer.rows)

    async def online_read_async(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKeyProto],
        requested_features: list[str] | None = None,
    ) -> list[_ReadRow]:
        """As `online_read`, for callers on an event loop."""
        runtime = self.runtime(config)
        if feast_path.is_synthetic(table) or not runtime.wrapped.reads_async:
            store, inner = self._inner_async(config)
            rows: list[_ReadRow] = await store.online_read_async(
                inner, table, list(entity_keys), requested_features and list(requested_features)
            )
            return rows
        read = feast_path.read_of(runtime, table, entity_keys, requested_features)
        answer = await runtime.engine.read_async(read.wants, runtime.clock.now_ns())
        return feast_path.feast_rows(read, answer.rows)

    # -- writing --------------------------------------------------------------------------------

    def online_write_batch(
        self,
        config: RepoConfig,
        table: FeatureView,
        data: list[_Row],
        progress: Callable[[int], Any] | None,
    ) -> None:
        """Write through, then forget what was written.

        Which of two rows wins is the wrapped store's affair (SQLite keeps the last one written,
        Redis the newest event time), so nothing is put into the cache: the next read asks.
        """
        if is_computed(table):
            self.runtime(config).write_computed(table, data)
            return
        store, inner = self._inner(config)
        try:
            store.online_write_batch(inner, table, data, progress)
        finally:  # also after an error: part of the batch may have been written
            self.runtime(config).forget_written(table, data)

    async def online_write_batch_async(
        self,
        config: RepoConfig,
        table: FeatureView,
        data: list[_Row],
        progress: Callable[[int], Any] | None,
    ) -> None:
        """As `online_write_batch`, for callers on an event loop."""
        if is_computed(table):
            await asyncio.to_thread(self.runtime(config).write_computed, table, data)
            return
        store, inner = self._inner_async(config)
        try:
            await store.online_write_batch_async(inner, table, data, progress)
        finally:
            await self.runtime(config).forget_written_async(table, data)

    def __getattr__(self, name: str) -> Any:
        # Feast asks whether a store has this method before it uses it; only DynamoDB's does
        if name == "update_online_store_async" and self._can_update_in_place():
            return self._update_online_store_async
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _can_update_in_place(self) -> bool:
        runtime = self.__dict__.get("_runtime")
        stores = [runtime.wrapped.store()] if runtime else map(store_class, _wrapped_types)
        return any(hasattr(store, "update_online_store_async") for store in stores)

    async def _update_online_store_async(
        self,
        config: RepoConfig,
        table: FeatureView,
        data: list[_Row],
        update_expressions: dict[str, str],
        **more: Any,
    ) -> None:
        """Update in place where the wrapped store can (DynamoDB), then forget what was updated."""
        store, inner = self._inner_async(config)
        try:
            await store.update_online_store_async(
                config=inner, table=table, data=data, update_expressions=update_expressions, **more
            )
        finally:
            await self.runtime(config).forget_written_async(table, data)

    # -- life cycle -----------------------------------------------------------------------------

    def update(
        self,
        config: RepoConfig,
        tables_to_delete: Sequence[FeatureView],
        tables_to_keep: Sequence[FeatureView],
        entities_to_delete: Sequence[Entity],
        entities_to_keep: Sequence[Entity],
        partial: bool,
    ) -> None:
        """`feast apply`: check the policies, let the wrapped store apply, forget what changed.

        Raises:
            PolicyError: a policy is contradictory, ambiguous or unknown under any profile; the
                wrapped store was not asked, and a file registry is left as it was (Feast's SQL
                registry writes before).
            ConfigError: a loader is named as no view and no group.
            LoaderError: a loader cannot load its view.
        """
        runtime = self.runtime(config)
        check_apply(runtime, config, tables_to_keep, tables_to_delete, is_partial=partial)
        store, inner = self._inner(config)
        try:
            store.update(
                config=inner,
                tables_to_delete=[one for one in tables_to_delete if not is_computed(one)],
                tables_to_keep=[one for one in tables_to_keep if not is_computed(one)],
                entities_to_delete=entities_to_delete,
                entities_to_keep=entities_to_keep,
                partial=partial,
            )
        finally:
            runtime.forget_views(tables_to_delete, "apply")
            runtime.forget_views(tables_to_keep, "apply", is_same=True)
            runtime.plans.clear()

    def note_written_elsewhere(self, config: RepoConfig, table: FeatureView) -> None:
        """Forget a view that other processes wrote for this one, as Spark's executors do."""
        self.runtime(config).forget_here(table)

    def plan(self, config: RepoConfig, desired_registry_proto: RegistryProto) -> list[InfraObject]:
        """`feast plan`: what the wrapped store would change."""
        store, inner = self._inner(config)
        return list(store.plan(inner, desired_registry_proto))

    def teardown(
        self, config: RepoConfig, tables: Sequence[FeatureView], entities: Sequence[Entity]
    ) -> None:
        """`feast teardown`: let the wrapped store tear down, then forget everything."""
        store, inner = self._inner(config)
        runtime = self.runtime(config)
        try:
            store.teardown(inner, [one for one in tables if not is_computed(one)], entities)
        finally:
            runtime.forget_all("apply", is_heard=any(map(runtime.is_heard, tables)))
            runtime.plans.clear()

    async def initialize(self, config: RepoConfig) -> None:
        """The feature server starts: the wrapped store prepares itself, what was hot is read."""
        store, inner = self._inner_async(config)
        await store.initialize(inner)
        if config.online_store.preload is not None:
            await asyncio.to_thread(self.preload, config)

    def finish(self) -> None:
        """Write down what is hot, logged and counted, and stop working on the side."""
        if self._runtime is not None:
            self._preloading.close()
            self._runtime.close()

    async def close(self) -> None:
        """The feature server stops: close the wrapped store; calling it again does nothing."""
        if self._runtime is not None:
            await asyncio.to_thread(self.finish)
            await self._runtime.wrapped.close()

    # -- documents ------------------------------------------------------------------------------

    def retrieve_online_documents(self, config: RepoConfig, *args: Any, **kwargs: Any) -> Any:
        """Vector search, by the wrapped store."""
        store, inner = self._inner(config)
        return store.retrieve_online_documents(inner, *args, **kwargs)

    def retrieve_online_documents_v2(self, config: RepoConfig, *args: Any, **kwargs: Any) -> Any:
        """Vector and text search, by the wrapped store."""
        store, inner = self._inner(config)
        return store.retrieve_online_documents_v2(inner, *args, **kwargs)
