"""Which policy each feature view is read under, from the registry's tags and the deployment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from feast.infra.registry.base_registry import BaseRegistry

from hotplate.contracts import NO_LEASE_NEEDED, Lease
from hotplate.core.engine import Bound
from hotplate.durations import NO_LIMIT_NS
from hotplate.errors import PolicyError
from hotplate.policy import PolicyLayers, ResolvedPolicy, Stray, TaggedPolicy, TTLMap, read_tags

__all__ = [
    "PolicyBook",
    "feature_views_of",
    "group_of",
    "no_channel",
    "registry_state",
    "resolve_all",
    "tagged",
]

_READ_EVERY_NS: Final = 10_000_000_000
_log = logging.getLogger("hotplate.policy")


def registry_state(registry: Any) -> Any:
    """What differs whenever a registry's cache may hold something else; None without a cache.

    That is the version that registries in files write down, or else when the cache was filled.
    Feast fills it with what it held before at every `push`.
    """
    # in this order, which is the reverse of Feast's: a new moment comes with a new version
    created = getattr(registry, "cached_registry_proto_created", None)
    if created is None:
        return None
    held = getattr(registry, "cached_registry_proto", None)
    return getattr(held, "version_id", "") or created


def feature_views_of(registry: BaseRegistry, project: str) -> list[Any]:
    """Every view of a project that its online store holds."""
    views = [
        *registry.list_feature_views(project, allow_cache=True),
        *registry.list_stream_feature_views(project, allow_cache=True),
        *registry.list_label_views(project, allow_cache=True),
        *registry.list_on_demand_feature_views(project, allow_cache=True),
    ]
    return [
        view
        for view in views
        if getattr(view, "online", True) and getattr(view, "write_to_online_store", True)
    ]


def tagged(views: Iterable[Any]) -> dict[str, list[TaggedPolicy]]:
    """What the tags of views say, by group.

    Raises:
        PolicyError: a tag is unknown or malformed.
    """
    groups: dict[str, list[TaggedPolicy]] = {}
    for view in {view.name: view for view in views}.values():
        policy = read_tags(view.name, getattr(view, "tags", None))
        groups.setdefault(policy.group, []).append(policy)
    return groups


def group_of(views: Iterable[Any]) -> dict[str, str]:
    """Feature view -> group.

    Raises:
        PolicyError: a tag is unknown or malformed.
    """
    return {said.view: said.group for views in tagged(views).values() for said in views}


def resolve_all(layers: PolicyLayers, views: Iterable[Any]) -> dict[str, ResolvedPolicy]:
    """Every group's policy.

    Raises:
        PolicyError: the first contradiction found.
    """
    groups = tagged(views)
    return {group: layers.resolve(group, said) for group, said in sorted(groups.items())}


class _Page:
    """The tags of one state of the registry and the policies resolved from them."""

    __slots__ = ("bounds", "read_ns", "seen", "strays", "tagged")

    def __init__(
        self,
        tagged: Mapping[str, list[TaggedPolicy]],
        strays: Sequence[Stray],
        seen: object,
        read_ns: int,
    ) -> None:
        self.tagged = tagged
        self.strays = strays
        self.seen = seen
        self.read_ns = read_ns
        self.bounds: dict[tuple[str, bool], Bound] = {}


class PolicyBook:
    """The policies of one deployment, renewed when the registry is.

    A policy that cannot be resolved (tags that were applied past Hotplate's own check) excludes
    its group from the cache: wrong settings make reads slower, never stale. A name in a map that is
    no group's may have been meant for any group that the map does not name, so these are served
    no staler than its entry allows.

    Args:
        layers: the deployment's policy maps.
        lease: the event channel's, or None where there is no channel.
        is_own: whether nobody else can change what a feature view's rows are read from.
        note_views: told of the registry's feature views whenever they are read.
    """

    def __init__(
        self,
        layers: PolicyLayers,
        lease: Callable[[], Lease | None],
        is_own: Callable[[Any], bool] = lambda table: False,
        note_views: Callable[[Sequence[Any]], None] = lambda views: None,
    ) -> None:
        self.layers = layers
        self._lease = lease
        self._is_own = is_own
        self._note_views = note_views
        self._page = _Page({}, (), None, 0)
        self._reported: set[str] = set()
        self.excluded: dict[str, str] = {}
        """Groups that are taken out of the cache whatever their policy, and why."""

    def exclude(self, group: str, why: str | None) -> None:
        """Take a group out of the cache; None lets it back."""
        self.excluded = {name: said for name, said in self.excluded.items() if name != group}
        if why is not None:
            self.excluded[group] = why
        page = self._page  # a new one: what is resolved from the old one stays there
        self._page = _Page(page.tagged, page.strays, page.seen, page.read_ns)

    def renew(self, registry: BaseRegistry, project: str, now_ns: int) -> None:
        """Read the tags again if the registry's cache has changed since.

        A registry that keeps no cache of its own (Feast's remote one) is asked every 10 s.
        """
        page = self._page
        state = registry_state(registry)
        seen = (id(registry), state, project)
        if seen == page.seen and (state is not None or now_ns - page.read_ns < _READ_EVERY_NS):
            return
        said: dict[str, list[TaggedPolicy]] = {}
        known: dict[str, str] = {}
        views = feature_views_of(registry, project)
        self._note_views(views)
        for view in views:
            known[view.name] = view.name
            try:
                policy = read_tags(view.name, view.tags)
            except PolicyError as error:
                self._report(error)
                continue
            known[view.name] = policy.group
            said.setdefault(policy.group, []).append(policy)
        self._page = _Page(said, self._find_strays(known), seen, now_ns)

    def _find_strays(self, group_of: Mapping[str, str]) -> Sequence[Stray]:
        """The names in the maps that are no group's, each logged once; none before any apply."""
        strays = self.layers.strays(set(group_of.values())) if group_of else []
        for stray in strays:
            self._report(
                stray.error(group_of),
                "until it is corrected, or its group applied, groups that "
                f"{stray.ttl_map.origin} does not name are served no staler than it allows",
            )
        return strays

    def ttls_s(self) -> dict[str, float]:
        """Seconds that a value of each group that was read may be served; infinite for ever."""
        bounds = list(self._page.bounds.items())
        return {group: _seconds(bound.policy) for (group, _), bound in bounds}

    def bound(self, table: Any) -> tuple[str, Bound]:
        """The group of a feature view and the policy it is read under."""
        try:
            own = read_tags(table.name, getattr(table, "tags", None))
        except PolicyError as error:
            self._report(error)
            return table.name, Bound(_never(table.name))
        page = self._page  # once: what is resolved from a page belongs on that page
        is_own = self._is_own(table)
        bound = page.bounds.get((own.group, is_own))
        if bound is None:
            policy = self._resolve(page, own)
            bound = page.bounds[own.group, is_own] = self._bound(policy, is_own=is_own)
        return own.group, bound

    def _bound(self, policy: ResolvedPolicy, *, is_own: bool) -> Bound:
        if not policy.is_event or not policy.is_cached or is_own:
            return Bound(policy, NO_LEASE_NEEDED)
        lease = self._lease()
        if lease is not None:
            return Bound(policy, lease)
        self._report(no_channel(policy.group))
        return Bound(_never(policy.group))

    def _resolve(self, page: _Page, own: TaggedPolicy) -> ResolvedPolicy:
        if (why := self.excluded.get(own.group)) is not None:
            return _never(own.group, why)
        said = page.tagged.get(own.group, [])
        if not any(view.view == own.view for view in said):
            said = [*said, own]
        try:
            return self.layers.resolve(own.group, said, page.strays)
        except PolicyError as error:
            self._report(error)
            return _never(own.group)

    def _report(
        self, error: PolicyError, meanwhile: str = "until then this group is not cached"
    ) -> None:
        if str(error) not in self._reported:
            self._reported.add(str(error))
            _log.error("%s (%s)", error, meanwhile)


def no_channel(group: str) -> PolicyError:
    """The error of a group whose changes nobody can tell."""
    return PolicyError(
        group=group,
        key="coherence",
        problem="'event' needs a Redis or Valkey server on which processes hear of changes, and "
        "there is none",
        fix="Name one under online_store.shared, or write coherence: ttl.",
    )


def _seconds(policy: ResolvedPolicy) -> float:
    if not policy.is_cached:
        return 0.0
    return float("inf") if policy.ttl_ns >= NO_LIMIT_NS else policy.ttl_ns / 1e9


def _never(group: str, why: str = "its policy cannot be resolved") -> ResolvedPolicy:
    built_in = PolicyLayers(TTLMap()).resolve(group)
    return replace(built_in, is_never=True, origins={"cache": why})
