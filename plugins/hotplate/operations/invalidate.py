"""Forget entities of a group wherever they are kept, from a process that serves nobody.

Such a process has no rows of its own: it removes what lies in the shared tier and tells the
processes that listen. What it cannot remove or say at once waits in its memory, and would be lost
with it: so it goes on in step with the server, and in the end says what was not taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from feast import FeatureStore
from feast.value_type import ValueType

from hotplate.errors import EntityError, ServerError
from hotplate.keys import EntityShape
from hotplate.operations.entities import Entities, EntityReader
from hotplate.operations.scan import count_keys
from hotplate.serving.coherence import server_of
from hotplate.serving.runtime import Runtime
from hotplate.tiers.entries import prefix_of

__all__ = ["Invalidation", "Outcome", "Scope", "Target", "be_patient"]

_PATIENT_NS: Final = 2_000_000_000
_POLL_S: Final = 0.02
_COUNTED_PAGES: Final = 10_000  # half a million places of the server's table


class Target(Protocol):
    """A feature view whose entities are to be forgotten."""

    view: str
    table: Any
    is_heard: bool

    @property
    def declared(self) -> Mapping[str, ValueType]:
        """Join key -> declared type; empty for a view without entities."""

    def read(
        self, wanted: Mapping[str, Sequence[Any]]
    ) -> list[tuple[EntityShape, tuple[Any, ...]]]:
        """The entities of columns, their values brought to the declared types."""


@dataclass(frozen=True)
class Scope:
    """What is going to be forgotten.

    Attributes:
        views: the feature views that are meant.
        entities: how many entities; None for all.
        held: how many entries of the shared tier that removes, seen a moment ago; None where there
            is no shared tier, or it does not say.
        is_counted: whether that is all of them.
        problem: why the server does not say; None if it does.
    """

    views: tuple[str, ...]
    entities: int | None
    held: int | None
    is_counted: bool = True
    problem: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What was forgotten.

    Attributes:
        entities: how many; for whole views 0.
        heard_by: how many caches listened to what was announced last.
        unsent: announcements that the server did not take.
        owed: removals that the shared tier did not take.
        is_complete: whether nothing is missing.
    """

    entities: int
    heard_by: int
    unsent: int
    owed: int

    @property
    def is_complete(self) -> bool:
        return not self.unsent and not self.owed


class Invalidation:
    """What it would do, and then doing it.

    Args:
        runtime: the cache's.
        targets: the feature views that are meant.

    Attributes:
        wait_s: how long to wait for a server that does not take what it is sent.
    """

    wait_s = 10.0

    def __init__(self, runtime: Runtime, targets: Sequence[Target]) -> None:
        self._runtime = runtime
        self._targets = targets

    # -- before ---------------------------------------------------------------------------------

    def reader(self) -> EntityReader:
        """Reads entities that are meant for every one of the views.

        Raises:
            EntityError: the views declare a join key in different ways.
        """
        return EntityReader(_declared_by(self._targets))

    @property
    def is_cached(self) -> bool:
        """Whether anything of these views is ever served from a cache."""
        return any(self._policy(target).is_cached for target in self._targets)

    def unreachable(self) -> dict[str, str]:
        """Views of which nobody can be told -> when other processes see the change."""
        return {
            target.view: _when_seen(self._policy(target))
            for target in self._targets
            if self._policy(target).is_cached and not target.is_heard
        }

    def _policy(self, target: Target) -> Any:
        return self._runtime.policies.bound(target.table)[1].policy

    def scope(
        self, entities: Entities | None, advance: Callable[[int], None] = lambda count: None
    ) -> Scope:
        """Count, and change nothing.

        Args:
            entities: makes the chunks of entities; None for all there are.
            advance: told how many entities were looked at since the last call.

        Raises:
            EntityError: an entity cannot be read.
        """
        views = tuple(target.view for target in self._targets)
        tier = self._runtime.shared()
        if entities is None:
            return self._whole(views)
        count, held, problem = 0, 0, None
        for chunk in entities():
            for target in self._targets:
                shaped = target.read(_as_columns(chunk))
                if tier is None or problem is not None:
                    continue
                try:
                    for version in self._runtime.every_version(target.table):
                        held += tier.count_entities(version, shaped)
                except ServerError as error:
                    problem = str(error)
            count += len(chunk)
            advance(len(chunk))
        is_said = tier is not None and problem is None
        return Scope(views, count, held if is_said else None, problem=problem)

    def _whole(self, views: tuple[str, ...]) -> Scope:
        server = server_of(self._runtime.settings.shared)
        if self._runtime.shared() is None or server is None:
            return Scope(views, None, None)
        prefixes = [
            prefix_of(self._runtime.project, version)
            for target in self._targets
            for version in sorted(self._runtime.every_version(target.table))
        ]
        try:
            held, is_counted = count_keys(server, prefixes, _COUNTED_PAGES)
        except ServerError as error:
            return Scope(views, None, None, problem=str(error))
        return Scope(views, None, held, is_counted)

    # -- doing it -------------------------------------------------------------------------------

    def carry_out(
        self, entities: Entities | None, advance: Callable[[int], None] = lambda count: None
    ) -> Outcome:
        """Remove and announce; stops early where the server does not take it.

        Args:
            entities: makes the chunks of entities; None for all there are.
            advance: told how many entities were done since the last call.

        Raises:
            EntityError: an entity cannot be read; those before it are done.
        """
        if entities is None:
            for target in self._targets:
                self._runtime.note_changed(target.table)
            self._runtime.forget_views([target.table for target in self._targets])
            return self._settle(0)
        done = 0
        outcome = Outcome(0, 0, 0, 0)
        for chunk in entities():
            for target in self._targets:
                shaped = target.read(_as_columns(chunk))
                self._runtime.forget_entities(target.table, shaped, is_heard=target.is_heard)
            done += len(chunk)
            advance(len(chunk))
            outcome = self._settle(done)
            if not outcome.is_complete:
                break
        return outcome

    def _settle(self, done: int) -> Outcome:
        """Wait until the server has taken everything, up to a bound."""
        deadline = time.monotonic() + self.wait_s
        while True:
            outcome = self._now(done)
            if outcome.is_complete or time.monotonic() >= deadline:
                return outcome
            time.sleep(_POLL_S)

    def _now(self, done: int) -> Outcome:
        tier = self._runtime.shared()
        parts = self._runtime.coherence.parts()
        announcer = None if parts is None else parts[1]
        return Outcome(
            entities=done,
            heard_by=0 if announcer is None else announcer.heard_by,
            unsent=0 if announcer is None else announcer.pending,
            owed=0 if tier is None else tier.owed,
        )


def _as_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _declared_by(targets: Iterable[Target]) -> dict[str, ValueType]:
    """The join keys that an entity must have to be one of every view.

    Raises:
        EntityError: two views declare one in different ways.
    """
    declared: dict[str, ValueType] = {}
    for target in targets:
        for name, kind in target.declared.items():
            if declared.setdefault(name, kind) is not kind:
                raise EntityError(
                    f"views of the group declare the join key {name} as {declared[name].name} and "
                    f"as {kind.name}: name one view instead of the group"
                )
    return declared


def be_patient(store: FeatureStore) -> None:
    """Let a tool's store wait for the shared tier, before its first use.

    The deadline that keeps requests fast would take a busy server for a dead one, and have a
    thousand single removals become one of everything.
    """
    online = store.config.online_store
    shared = getattr(online, "shared", None)
    if shared is not None and shared.timeout < _PATIENT_NS:
        online.shared = shared.model_copy(update={"timeout": _PATIENT_NS})


def _when_seen(policy: Any) -> str:
    shown = policy.shown()["ttl"]
    return "when it is evicted there" if shown == "none" else f"when its ttl ends, within {shown}"
