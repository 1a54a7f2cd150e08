"""Which rows of features an output is computed from: what ends it, and when at the latest."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from hotplate.contracts import NO_LEASE_NEEDED, Lease
from hotplate.errors import ConfigError
from hotplate.keys import Key, token_of
from hotplate.outputs.cache import Inputs, OutputCache
from hotplate.outputs.errors import OutputError
from hotplate.outputs.families import FamilyStats
from hotplate.outputs.inputs import InputSchema
from hotplate.outputs.policy import OutputPolicy
from hotplate.outputs.stats import OutputStats, by_version
from hotplate.serving.plan import PlanGroup
from hotplate.serving.reader import MatrixAnswer
from hotplate.serving.response import CachedResponse
from hotplate.tiers.shared_outputs import SharedOutputs

if TYPE_CHECKING:
    from hotplate.serving.runtime import Runtime

__all__ = ["Outputs", "inputs_of", "output_policies"]


def inputs_of(runtime: Runtime, features: Any, count: int) -> Inputs:
    """What the rows of one or several answers of the store were made of.

    Args:
        runtime: of the store's cache.
        features: a response, a `MatrixAnswer`, or a sequence of them.
        count: rows that each must have.

    Raises:
        OutputError: one is no answer of the cache, or has another number of rows.
    """
    answers = features if isinstance(features, (list, tuple)) else [features]
    if not answers:
        raise OutputError(
            where="features",
            problem="are an empty list",
            fix="Give the answers that the rows were made of; leave features out for a model that "
            "reads none of the store.",
        )
    parts = [part for answer in answers for part in _parts(answer, count)]
    keys = [part[1] for part in parts]
    views = [group.view for group, _, _ in parts]
    rows = [part[2] for part in parts]
    deadlines = [group.bound.deadlines_ns(of_group) for group, _, of_group in parts]
    lease = next((lease for group, _, _ in parts if (lease := _lease(group)) is not None), None)
    peek, is_current = runtime.engine.memory.peek, runtime.domain.is_current

    def are_there(place: int) -> bool:
        return all(
            is_current(token_of(of_group[place])) and peek(of_group[place]) == kept[place]
            for of_group, kept in zip(keys, rows, strict=True)
        )

    return Inputs(
        list(zip(*keys, strict=True)),
        rows,
        [min(of_row) for of_row in zip(*deadlines, strict=True)],
        are_there,
        lease,
        views if all(view.is_shareable for view in views) else None,
    )


def _parts(answer: Any, count: int) -> list[tuple[PlanGroup, list[Key], Sequence[bytes]]]:
    response = answer._response if isinstance(answer, MatrixAnswer) else answer
    if not isinstance(response, CachedResponse):
        raise OutputError(
            where="features",
            problem=f"are a {type(answer).__name__}, which says nothing of how fresh they are",
            fix="Give what get_online_features or a reader of Hotplate answered. A request with "
            "on-demand views is answered by Feast itself: read its source views instead.",
        )
    rows: Any = getattr(response, "_rows", None)  # an answer for no entity at all has none
    found = len(rows[0]) if rows else 0
    if found != count:
        raise OutputError(
            where="features",
            problem=f"have {found:,} rows, the batch {count:,}",
            fix="Row i of the one must be what row i of the other was made of.",
        )
    if not found:
        return []
    if response._answer is not None:  # as they are kept, without what a group declares for them
        rows = response._answer.rows
    return [
        (group, group.keys(response._keys, count), of_group)
        for group, of_group in zip(response._plan.groups, rows, strict=True)
    ]


def _lease(group: PlanGroup) -> Lease | None:
    lease = group.bound.lease
    return None if lease is NO_LEASE_NEEDED else lease


class Outputs:
    """The caches of model outputs of one store, made once for each model and version.

    Args:
        runtime: of the store's cache.
        settings: `online_store.outputs`: model -> its policy; `default` for all others.
    """

    def __init__(self, runtime: Runtime, settings: Mapping[str, Any]) -> None:
        self._runtime = runtime
        self._policies = output_policies(settings)
        self._made: WeakValueDictionary[tuple[str, ...], OutputCache] = WeakValueDictionary()
        self._gone: list[OutputStats] = []

    def of(
        self, model: str, version: str, inputs: InputSchema, policy: OutputPolicy | None
    ) -> OutputCache:
        """The cache of one version of a model.

        Raises:
            ConfigError: the deployment says nothing of outputs of this model.
        """
        if policy is None:
            policy = self._policies.get(model, self._policies.get("default"))
        if policy is None:
            raise ConfigError(
                f"online_store.outputs says nothing of model {model!r}: write outputs: "
                f"{{{model}: {{ttl: 30s}}}} there, or give a policy"
            )
        name = (model, version, inputs.fingerprint, policy.fingerprint)
        found = self._made.get(name)
        if found is None:
            runtime = self._runtime
            shared = self._shared(model, name[1:], policy) if policy.shared else None
            made = OutputCache(
                model,
                version,
                inputs,
                policy,
                inputs_of=partial(inputs_of, runtime),
                join=partial(runtime.domain.join, is_dependent=True),
                clock=runtime.clock,
                shared=shared,
                blobs=runtime.blobs(),
            )
            found = self._made.setdefault(name, made)
            if found is made:
                weakref.finalize(made, _retire, self._gone, made.stats_after()).atexit = False
        return found

    def stats(self) -> list[OutputStats]:
        """Counts of each version of a model, those of caches that were let go included."""
        return by_version([*self._gone, *(cache.stats() for cache in list(self._made.values()))])

    def families(self) -> Iterator[tuple[str, str, FamilyStats]]:
        """Model, version and counts of each family of the caches that are held."""
        for cache in list(self._made.values()):
            for family in cache.families():
                yield cache.name, cache.version, family

    @property
    def are_shared(self) -> bool:
        """Whether the deployment keeps outputs of any model in the shared tier."""
        return any(policy.shared for policy in self._policies.values())

    def _shared(self, model: str, identity: tuple[str, ...], policy: OutputPolicy) -> SharedOutputs:
        tier = self._runtime.shared()
        if tier is None:
            raise ConfigError(
                f"outputs of model {model!r}: shared, and the deployment has no shared tier: write "
                "online_store.shared (with tier: true where the wrapped store is Redis)"
            )
        if not self.are_shared:
            raise ConfigError(
                f"outputs of model {model!r}: shared in code alone. Write it under "
                "online_store.outputs: whoever invalidates features must know of it, too"
            )
        return SharedOutputs(tier, model, identity, policy.ttl_ns)


def _retire(gone: list[OutputStats], after: Callable[[], OutputStats]) -> None:
    """A cache was let go: what it counted stays."""
    gone[:] = by_version([*gone, after()])


def output_policies(settings: Mapping[str, Any]) -> dict[str, OutputPolicy]:
    """The policies of a deployment.

    Raises:
        ConfigError: one cannot be read.
    """
    found = {}
    for model, said in settings.items():
        where = f"online_store.outputs, model {model!r}"
        if not isinstance(said, Mapping):
            raise ConfigError(f"{where}: is no mapping; write {{ttl: 30s}}")
        found[model] = OutputPolicy.parse(said, where)
    return found
