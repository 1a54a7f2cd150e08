"""What Feast has no call for: statistics, policies, invalidation, the matrix reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from feast import FeatureService, FeatureStore
from feast.data_source import PushMode
from feast.feature_view import DUMMY_ENTITY_ID, DUMMY_ENTITY_VAL
from feast.type_map import python_values_to_proto_values
from feast.value_type import ValueType

from hotplate.errors import ConfigError, NotACachedStoreError
from hotplate.ingestion import defragment
from hotplate.keys import EntityShape
from hotplate.online_store import CachedOnlineStore
from hotplate.operations.cursors import CursorFile, Position, Selection, state_folder
from hotplate.operations.doctor import examine
from hotplate.operations.findings import Finding
from hotplate.operations.invalidate import Invalidation
from hotplate.operations.purge import Limits, Progress, Purge
from hotplate.policy import ResolvedPolicy, read_tags
from hotplate.serving.plan import entity_column
from hotplate.serving.policies import feature_views_of, resolve_all
from hotplate.serving.reader import MatrixReader
from hotplate.serving.runtime import Runtime
from hotplate.stats import CacheStats

__all__ = ["Hotplate", "of"]


def of(store: FeatureStore) -> Hotplate:
    """The cache behind a Feast store.

    Raises:
        NotACachedStoreError: its online store is not Hotplate's.
    """
    return Hotplate(store)


class Hotplate:
    """The cache behind a Feast store.

    Args:
        store: a Feast store whose online store is `hotplate.online_store.CachedOnlineStore`.
    """

    def __init__(self, store: FeatureStore) -> None:
        online = store._get_provider().online_store
        if not isinstance(online, CachedOnlineStore):
            raise NotACachedStoreError(
                f"the online store is {type(online).__name__}, not CachedOnlineStore. In "
                "feature_store.yaml write online_store: {type: "
                "hotplate.online_store.CachedOnlineStore, store: {...}}"
            )
        self._store = store
        self._online = online
        self._created: object = None
        self._known: dict[str, list[_Target]] = {}

    def __repr__(self) -> str:
        return f"Hotplate({self._online!r})"

    @property
    def runtime(self) -> Runtime:
        """The parts behind it; for tools, not for everyday use."""
        return self._online.runtime(self._store.config)

    def stats(self) -> CacheStats:
        """Counts per group since this process began to use the store."""
        return self.runtime.stats()

    def policies(self) -> dict[str, ResolvedPolicy]:
        """The policy of every group, complete, with where each setting comes from.

        Raises:
            PolicyError: the tags and the deployment contradict each other.
        """
        views = feature_views_of(self._store.registry, self._store.project)
        layers = self.runtime.layers
        policies = resolve_all(layers, views)
        layers.check_names(policies)
        return policies

    def reader(
        self,
        features: list[str] | FeatureService,
        order: Sequence[str] | None = None,
        full_feature_names: bool = False,
    ) -> MatrixReader:
        """A reader that returns a float32 matrix; see `MatrixReader`."""
        return MatrixReader(self._store, self.runtime, features, order, full_feature_names)

    def invalidate(
        self, name: str, entities: Iterable[Mapping[str, Any]] | Mapping[str, Any] | None = None
    ) -> int:
        """Never again serve what was read before: for some entities, or for a whole group.

        Args:
            name: a group or a feature view.
            entities: join key -> value, one mapping an entity; all of the group's if left out.

        Returns:
            How many keys were forgotten (for a whole group: how many of its views), whether or
            not they were held.

        Raises:
            KeyError: there is no such group or view, or an entity lacks a join key.
        """
        targets = self._targets(name)
        runtime = self.runtime
        if entities is None:
            return runtime.forget_views([target.table for target in targets])
        wanted = [entities] if isinstance(entities, Mapping) else list(entities)
        return sum(
            runtime.forget_entities(target.table, target.read(wanted), is_heard=target.is_heard)
            for target in targets
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
        return Invalidation(runtime, self._look_up(name))

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
            chosen_tables = [found.table for name in named for found in self._look_up(name)]
        views = feature_views_of(self._store.registry, self._store.project)
        purge = Purge(self.runtime, views, chosen_tables, position, limits or Limits(), file)
        return purge.run()

    def examine(self) -> list[Finding]:
        """Look the deployment over; what `hotplate doctor` prints."""
        return examine(self._store, self.runtime)

    def clear(self) -> None:
        """Never again serve anything of this project that was read before."""
        runtime = self.runtime
        views = feature_views_of(self._store.registry, self._store.project)
        runtime.forget_all(is_heard=any(map(runtime.is_heard, views)))

    def _targets(self, name: str) -> list[_Target]:
        """The views that a name stands for, looked up once for each state of the registry."""
        registry = self._store.registry
        created = getattr(registry, "cached_registry_proto_created", None)
        if created is None or created is not self._created:
            self._created, self._known = created, {}
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._look_up(name)
        return found

    def _look_up(self, name: str) -> list[_Target]:
        views = feature_views_of(self._store.registry, self._store.project)
        group_of = {view.name: read_tags(view.name, view.tags).group for view in views}
        found = [
            _Target(view, is_heard=self.runtime.is_heard(view))
            for view in views
            if name in (view.name, group_of[view.name])
        ]
        if not found:
            known = sorted(set(group_of.values()))
            raise KeyError(f"no group or feature view {name!r}; groups: {', '.join(known)}")
        return found

    def push(
        self, push_source_name: str, frame: pd.DataFrame, to: PushMode = PushMode.ONLINE
    ) -> None:
        """`store.push` that loses no rows of an Arrow-backed frame."""
        self._store.push(push_source_name, defragment(frame), to=to)

    def write(self, feature_view_name: str, frame: pd.DataFrame) -> None:
        """`store.write_to_online_store` that loses no rows of an Arrow-backed frame."""
        self._store.write_to_online_store(feature_view_name, defragment(frame))


class _Target:
    """A feature view whose entities are to be forgotten.

    Attributes:
        view: its name.
        table: Feast's feature view.
        is_heard: whether other processes listen for its changes.
    """

    def __init__(self, table: Any, *, is_heard: bool) -> None:
        self.view: str = table.name
        self.table = table
        self.is_heard = is_heard
        declared = {field.name: field.dtype.to_value_type() for field in table.entity_columns}
        self._is_entityless = set(declared) == {DUMMY_ENTITY_ID}
        self._columns = [entity_column(name, declared[name]) for name in sorted(declared)]
        names = tuple(column.name for column in self._columns)
        self._shape = EntityShape(names, tuple(column.kind for column in self._columns))

    @property
    def declared(self) -> Mapping[str, ValueType]:
        """Join key -> declared type; empty for a view without entities."""
        if self._is_entityless:
            return {}
        return {column.name: column.value_type for column in self._columns}

    def read(
        self, wanted: Sequence[Mapping[str, Any]]
    ) -> list[tuple[EntityShape, tuple[Any, ...]]]:
        """The entities, their values brought to the declared types as Feast does it."""
        if self._is_entityless:  # Feast keys such a view by one made-up entity
            wanted = [{DUMMY_ENTITY_ID: DUMMY_ENTITY_VAL}]
        columns: list[list[Any]] = []
        for column in self._columns:
            try:
                values = [entity[column.name] for entity in wanted]
            except KeyError:
                raise KeyError(
                    f"feature view {self.view!r} is keyed by {', '.join(self._shape.join_keys)}; "
                    f"an entity lacks {column.name!r}"
                ) from None
            if values and not column.takes(values):
                made = python_values_to_proto_values(values, column.value_type)
                values = [getattr(value, column.kind) for value in made]
            columns.append(values)
        return [(self._shape, row) for row in zip(*columns, strict=True)]
