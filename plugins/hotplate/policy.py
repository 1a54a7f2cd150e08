"""What a group says about its own freshness, and where each of its settings comes from.

A *group* is a feature view, or several that share the tag `hotplate.group`. Its settings come
from these places; a later one wins, setting by setting:

1. built-in defaults (`ttl: 0s`: nothing is kept until somebody says for how long)
2. the `default` of the `ttl_map` in feature_store.yaml, then of the profile that the environment
   chose
3. the tags that the feature repo wrote (`CachePolicy.tags`, `TTLMap.tags`)
4. a wildcard (`"merchant_*"`) of the `ttl_map`, then of the profile
5. the group's own name in the `ttl_map`, then in the profile

So what speaks of fewer groups wins, and of two that speak of as many, the profile.

A bound is only as good as it is unambiguous: a contradictory, negative, unknown or twice-said
setting is refused, with the group, the key and the fix.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from hotplate.cache_policy import (
    EVENTS_TAG,
    GROUP_TAG,
    PRESETS,
    SETTINGS,
    TAG_PREFIX,
    WINDOWS_TAG,
    CachePolicy,
    as_policy,
    show_setting,
)
from hotplate.errors import PolicyError
from hotplate.resolved import ResolvedPolicy, complete, stricter

__all__ = [
    "DEFAULT",
    "PRESETS",
    "SETTINGS",
    "CachePolicy",
    "PolicyLayers",
    "ResolvedPolicy",
    "Stray",
    "TTLMap",
    "TaggedPolicy",
    "read_tags",
]

DEFAULT: Final = "default"
_OF_WHAT_IS_KEPT: Final = ("stale_while_revalidate", "on_source_error", "coherence")


class TTLMap(Mapping[str, CachePolicy]):
    """Group name or wildcard -> policy, with a `default` for groups that say nothing.

    A value is a duration (the `ttl`), a mapping of settings, or a `CachePolicy`:

    >>> freshness = TTLMap({"user_features": "30s", "merchant_*": {"ttl": "5m", "jitter": "20%"}})
    >>> freshness.tags("user_features")
    {'hotplate.group': 'user_features', 'hotplate.ttl': '30s'}

    Args:
        policies: the map. The key `default` is the default.
        origin: where the map stands, for messages and `hotplate policy`.

    Raises:
        PolicyError: a policy is malformed; the error names its group.
    """

    def __init__(
        self, policies: Mapping[str, object] | None = None, *, origin: str = "ttl_map"
    ) -> None:
        self.origin = origin
        self._policies: dict[str, CachePolicy] = {}
        if not isinstance(policies, Mapping | None):
            raise self._error("", "", f"is a {type(policies).__name__}, not a mapping")
        for name, value in (policies or {}).items():
            if not isinstance(name, str) or not name.strip():
                raise self._error("", repr(name), "is no name of a group")
            try:
                self._policies[name] = as_policy(name, value)
            except PolicyError as error:
                raise error.placed(origin) from None

    def _error(self, group: str, key: str, problem: str) -> PolicyError:
        return PolicyError(
            group=group,
            key=key or self.origin,
            problem=problem,
            fix='Write names beside durations or settings, as in {"user_features": "30s"}.',
            place=self.origin if key else "",
        )

    def __getitem__(self, name: str) -> CachePolicy:
        return self._policies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._policies)

    def __len__(self) -> int:
        return len(self._policies)

    def __repr__(self) -> str:
        return f"TTLMap({self._policies!r})"

    def names(self) -> list[str]:
        """The exact group names, without the default and the wildcards."""
        return [name for name in self._policies if name != DEFAULT and not _is_wildcard(name)]

    def idle_wildcards(self, known: Collection[str]) -> list[str]:
        """The wildcards that match none of the groups."""
        wildcards = [name for name in self._policies if _is_wildcard(name)]
        return [name for name in wildcards if not any(fnmatchcase(one, name) for one in known)]

    def tags(self, group: str) -> dict[str, str]:
        """Feature-view tags for `group`, its settings merged as this map says.

        Raises:
            PolicyError: the map says nothing about `group`, not even a default; or what it says
                in several places contradicts itself.
        """
        merged, origins = _merge((*self.default(), *self.wildcard(group), *self.exact(group)))
        if not merged:
            near = difflib.get_close_matches(group, self._policies, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else "Add it, or a 'default'."
            raise PolicyError(
                group=group, key="ttl", problem="the TTL map does not name this group", fix=hint
            )
        if "ttl" not in merged:  # the deployment's to say, so what fits it cannot be known here
            return CachePolicy(_group=group, **_shown(merged)).tags(group)
        resolved = complete(group, merged, origins)
        if not resolved.is_cached:
            merged = {name: merged[name] for name in merged if name not in _OF_WHAT_IS_KEPT}
        shown = resolved.shown()
        return CachePolicy(_group=group, **{name: shown[name] for name in merged}).tags(group)

    def default(self) -> list[tuple[str, CachePolicy]]:
        """The default as (origin, policy), or nothing."""
        return self._layer([DEFAULT])

    def exact(self, group: str) -> list[tuple[str, CachePolicy]]:
        """What the map says under the group's own name."""
        return [] if group == DEFAULT or _is_wildcard(group) else self._layer([group])

    def wildcard(self, group: str) -> list[tuple[str, CachePolicy]]:
        """What the map's wildcards say about the group.

        Raises:
            PolicyError: two wildcards match the group and set one setting differently.
        """
        found = self._layer(
            [name for name in self._policies if _is_wildcard(name) and fnmatchcase(group, name)]
        )
        said: dict[str, tuple[str, Any]] = {}
        for origin, policy in found:
            for name, value in policy.settings().items():
                earlier = said.setdefault(name, (origin, value))
                if earlier[1] != value:
                    raise PolicyError(
                        group=group,
                        key=name,
                        problem=f"is ambiguous: {earlier[0]} says "
                        f"{show_setting(name, earlier[1])}, {origin} says "
                        f"{show_setting(name, value)}",
                        fix=f"Name the group itself in {self.origin}, or narrow one wildcard.",
                    )
        return found

    def _layer(self, names: Iterable[str]) -> list[tuple[str, CachePolicy]]:
        return [
            (f"{self.origin}[{name!r}]", self._policies[name])
            for name in names
            if name in self._policies
        ]


def _is_wildcard(name: str) -> bool:
    return any(character in name for character in "*?[")


def _merge(
    layers: Iterable[tuple[str, CachePolicy]],
) -> tuple[dict[str, Any], dict[str, str]]:
    """What layers say together, a later one over an earlier, and which of them said it."""
    said: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, policy in layers:
        for name, value in policy.settings().items():
            said[name] = value
            origins[name] = origin
    return said, origins


def _shown(said: Mapping[str, Any]) -> dict[str, str]:
    return {name: show_setting(name, value) for name, value in said.items()}


@dataclass(frozen=True)
class TaggedPolicy:
    """What one feature view's tags say.

    Attributes:
        view: the feature view's name.
        group: its `hotplate.group` tag, or its own name.
        policy: the settings in its tags.
    """

    view: str
    group: str
    policy: CachePolicy


def read_tags(view: str, tags: Mapping[str, str] | None) -> TaggedPolicy:
    """Read the `hotplate.*` tags of a feature view; other tags are nobody's business here.

    Raises:
        PolicyError: a `hotplate.*` tag is unknown or malformed.
    """
    own = {
        key: value
        for key, value in (tags or {}).items()
        if key.startswith(TAG_PREFIX) and key not in (WINDOWS_TAG, EVENTS_TAG)
    }
    group = own.pop(GROUP_TAG, view)
    if not group or group == DEFAULT or _is_wildcard(group):
        raise PolicyError(
            group=view,
            key=GROUP_TAG,
            problem=f"{group!r} cannot name a group",
            fix=f"Choose a name without wildcards that is not {DEFAULT!r}.",
        )
    settings = {key.removeprefix(TAG_PREFIX): value for key, value in own.items()}
    try:
        return TaggedPolicy(view, group, CachePolicy(_group=group, **settings))
    except PolicyError as error:
        raise error.placed(f"tags of feature view {view!r}") from None


@dataclass(frozen=True)
class Stray:
    """A name in a TTL map that is no group's: which group was meant is not known.

    Attributes:
        ttl_map: where it stands.
        name: the name.
    """

    ttl_map: TTLMap
    name: str

    def error(self, group_of: Mapping[str, str]) -> PolicyError:
        """The error that says so, with what was probably meant.

        Args:
            group_of: feature view -> group, of all there are.
        """
        groups = sorted(set(group_of.values()))
        near = difflib.get_close_matches(self.name, groups, n=1)
        if self.name in group_of:
            group = group_of[self.name]
            hint = f"It is a feature view of group {group!r}: name the group."
        elif near:
            hint = f"Did you mean {near[0]!r}?"
        else:
            hint = f"Known groups: {', '.join(groups)}."
        return PolicyError(
            group=self.name,
            key=self.ttl_map.origin,
            problem="names no group of this feature repo",
            fix=hint,
        )


@dataclass(frozen=True)
class PolicyLayers:
    """The maps of one deployment: its `ttl_map` and, over it, the chosen profile's."""

    ttl_map: TTLMap
    profile: TTLMap | None = None

    @property
    def maps(self) -> tuple[TTLMap, ...]:
        """The maps, the one that wins last."""
        return (self.ttl_map,) if self.profile is None else (self.ttl_map, self.profile)

    def resolve(
        self, group: str, tagged: Sequence[TaggedPolicy] = (), strays: Iterable[Stray] = ()
    ) -> ResolvedPolicy:
        """Merge every layer for one group.

        Args:
            group: the group's name.
            tagged: what the tags of the group's feature views say.
            strays: names that are no group's. Each may have been meant for this group, unless its
                map names the group as well: what is served is then no staler than either allows.

        Raises:
            PolicyError: a contradiction, within one layer or in the merged result.
        """
        policy = self._resolve(group, tagged, None)
        for stray in strays:
            if group not in stray.ttl_map:
                policy = stricter(policy, self._resolve(group, tagged, stray))
        return policy

    def _resolve(
        self, group: str, tagged: Iterable[TaggedPolicy], meant: Stray | None
    ) -> ResolvedPolicy:
        layers = [said for ttl_map in self.maps for said in ttl_map.default()]
        layers += _merged_tags(group, tagged)
        layers += [said for ttl_map in self.maps for said in ttl_map.wildcard(group)]
        for ttl_map in self.maps:
            layers += ttl_map.exact(meant.name if meant and meant.ttl_map is ttl_map else group)
        return complete(group, *_merge(layers))

    def strays(self, known: Collection[str]) -> list[Stray]:
        """The exact names in the maps that are none of the groups."""
        return [
            Stray(ttl_map, name)
            for ttl_map in self.maps
            for name in ttl_map.names()
            if name not in known
        ]

    def check_names(self, group_of: Mapping[str, str]) -> None:
        """Refuse an exact name in either map that is no group.

        Args:
            group_of: feature view -> group, of all there are.

        Raises:
            PolicyError: for the first such name, with what was probably meant.
        """
        for stray in self.strays(set(group_of.values())):
            raise stray.error(group_of)


def _merged_tags(group: str, tagged: Iterable[TaggedPolicy]) -> list[tuple[str, CachePolicy]]:
    merged: list[tuple[str, CachePolicy]] = []
    said: dict[str, tuple[str, Any]] = {}
    for view in tagged:
        for name, value in view.policy.settings().items():
            earlier = said.setdefault(name, (view.view, value))
            if earlier[1] != value:
                raise PolicyError(
                    group=group,
                    key=name,
                    problem=(
                        f"feature view {earlier[0]!r} says {show_setting(name, earlier[1])}, "
                        f"feature view {view.view!r} of the same group says "
                        f"{show_setting(name, value)}"
                    ),
                    fix="Give the views of one group the same tags, or groups of their own.",
                )
        merged.append((f"tags of feature view {view.view!r}", view.policy))
    return merged
