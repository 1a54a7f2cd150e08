"""What a group says about its own freshness, and where each of its settings comes from.

A *group* is a feature view, or several that share the tag `hotplate.group`. Its settings come
from these places; a later one wins, setting by setting:

1. built-in defaults (`ttl: 0s`: nothing is kept until somebody says for how long)
2. `ttl_map.default` in feature_store.yaml
3. the tags that the feature repo wrote (`CachePolicy.tags`, `TTLMap.tags`)
4. a wildcard of `ttl_map` in feature_store.yaml (`"merchant_*"`)
5. the group's own name in that `ttl_map`
6. the same three (default, wildcard, name) of the profile that the environment chose

A bound is only as good as it is unambiguous: a contradictory, negative, unknown or twice-said
setting is refused, with the group, the key and the fix.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from hotplate.durations import NO_LIMIT_NS, format_duration, parse_duration
from hotplate.errors import PolicyError

__all__ = [
    "DEFAULT",
    "PRESETS",
    "SETTINGS",
    "CachePolicy",
    "PolicyLayers",
    "ResolvedPolicy",
    "TTLMap",
    "TaggedPolicy",
    "read_tags",
]

DEFAULT: Final = "default"
TAG_PREFIX: Final = "hotplate."
GROUP_TAG: Final = "hotplate.group"
SETTINGS: Final = (
    "ttl",
    "negative_ttl",
    "jitter",
    "stale_while_revalidate",
    "on_source_error",
    "coherence",
    "cache",
)
_DURATIONS: Final = ("ttl", "negative_ttl", "stale_while_revalidate")
_NEGATIVE_TTL_NS: Final = 5_000_000_000
_JITTER: Final = 0.1
_FIX: Final = {
    "jitter": "Write a share of the ttl from 0% up to, not including, 100%, such as '10%'.",
    "on_source_error": "Write 'raise', or 'last_good 10m' to serve the last value up to that age.",
    "coherence": "Write 'ttl', 'event' or 'never'.",
    "cache": "Write 'cached' or 'never'.",
}
PRESETS: Final[Mapping[str, Mapping[str, str]]] = {
    "profile": {
        "ttl": "5m",
        "negative_ttl": "30s",
        "stale_while_revalidate": "1m",
        "on_source_error": "last_good 1h",
        "coherence": "ttl",
    },
    "session": {"ttl": "30s", "negative_ttl": "1s", "coherence": "event"},
    "blocked_list": {"coherence": "never"},
}
"""The usual cases, from what changes rarely to what must never be a moment late."""

_DURATION_FIX: Final = (
    "Write a duration such as '30s', '5m', '0s' (keep nothing) or 'none' (no limit)."
)


class CachePolicy(BaseModel):
    """The settings of one group; what is left out is decided by the next layer.

    Durations are text as people write it (`"30s"`, `"5m"`, `"1h30m"`, `"none"` for no limit) or
    a `timedelta`. They are held in nanoseconds.

    Attributes:
        ttl: how long a value may be served after it was read from the source. `"0s"`: never
            from the cache. `"none"`: until it is invalidated or evicted.
        negative_ttl: the same for an entity known not to exist; at most `ttl`. Default 5 s.
        jitter: share of `ttl` (0 <= jitter < 1, or `"10%"`) by which each value expires early, at
            random, so that values loaded together are not reloaded together. Only shortens.
        stale_while_revalidate: a value in this last part of its `ttl` is still served and is
            reloaded in the background. It never extends the `ttl`. Default off.
        on_source_error: `"raise"` (default), or `"last_good 10m"`: when the source fails, serve
            the last value read from it up to that age.
        coherence: `"ttl"` (default): changes made by other processes are seen when the ttl ends.
            `"event"`: within milliseconds, or the source is read; the ttl still holds. `"never"`:
            never from the cache.
        cache: `"cached"` (default) or `"never"`.
        preset: one of `PRESETS`; what is set beside it wins.

    Raises:
        PolicyError: a setting is unknown, malformed, or contradicts another.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ttl: int | None = None
    negative_ttl: int | None = None
    jitter: float | None = None
    stale_while_revalidate: int | None = None
    on_source_error: str | None = None
    coherence: str | None = None
    cache: str | None = None

    def __init__(self, **settings: Any) -> None:
        # pydantic's own message names a field of a model; a user needs the group, the key and a fix
        group = str(settings.pop("_group", "(no name yet)"))
        settings = _with_preset(group, settings)
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise _as_policy_error(group, error) from None
        said = self.settings()
        if said.get("coherence") == "event" and said.get("cache") == "never":
            raise PolicyError(
                group=group,
                key="coherence",
                problem="'event' has no meaning beside cache: 'never'",
                fix="Leave one of them out.",
            )
        if self.ttl is not None:
            _complete(group, said, dict.fromkeys(said, "in one policy"))

    @field_validator(*_DURATIONS, mode="before")
    @classmethod
    def _read_duration(cls, value: object) -> int:
        return parse_duration(value)

    @field_validator("jitter", mode="before")
    @classmethod
    def _read_jitter(cls, value: object) -> float:
        return _parse_share(value)

    @field_validator("on_source_error", mode="before")
    @classmethod
    def _read_on_source_error(cls, value: object) -> str:
        limit_ns = _parse_on_source_error(value)
        return "raise" if limit_ns is None else f"last_good {format_duration(limit_ns)}"

    @field_validator("coherence", mode="before")
    @classmethod
    def _read_coherence(cls, value: object) -> str:
        if value not in ("ttl", "event", "never"):
            raise ValueError(f"{value!r} is unknown")
        return str(value)

    @field_validator("cache", mode="before")
    @classmethod
    def _read_cache(cls, value: object) -> str:
        if value not in ("cached", "never"):
            raise ValueError(f"{value!r} is unknown")
        return str(value)

    def settings(self) -> dict[str, Any]:
        """The settings that this policy does say, by name."""
        return {name: value for name in SETTINGS if (value := getattr(self, name)) is not None}

    def tags(self, group: str | None = None) -> dict[str, str]:
        """Feature-view tags that publish this policy with `feast apply`.

        Args:
            group: name under which several views share one policy and one line of metrics.
        """
        shown = {TAG_PREFIX + name: _show(name, value) for name, value in self.settings().items()}
        return shown if group is None else {GROUP_TAG: group, **shown}

    def __repr__(self) -> str:
        said = ", ".join(
            f"{name}={_show(name, value)!r}" for name, value in self.settings().items()
        )
        return f"CachePolicy({said})"

    __str__ = __repr__


def _with_preset(group: str, settings: dict[str, Any]) -> dict[str, Any]:
    name = settings.get("preset")
    if name is None:
        return settings
    if name not in PRESETS:
        near = difflib.get_close_matches(str(name), PRESETS, n=1)
        known = ", ".join(PRESETS)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known presets: {known}."
        raise PolicyError(group=group, key="preset", problem=f"{name!r} is unknown", fix=hint)
    return {**PRESETS[name], **{key: value for key, value in settings.items() if key != "preset"}}


def _parse_share(value: object) -> float:
    shown = value
    if isinstance(value, str):
        text = value.strip()
        scale = 0.01 if text.endswith("%") else 1.0
        try:
            value = float(text.removesuffix("%")) * scale
        except ValueError:
            raise ValueError(f"{shown!r} is not a share") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{shown!r} is not a share")
    if not 0 <= value < 1:
        raise ValueError(f"{shown!r} is out of range")
    return float(value)


def _parse_on_source_error(value: object) -> int | None:
    if value == "raise":
        return None
    if isinstance(value, str) and value.startswith("last_good "):
        return parse_duration(value.removeprefix("last_good "))
    raise ValueError(f"{value!r} is unknown")


def _show(name: str, value: Any) -> str:
    if name in _DURATIONS:
        return format_duration(value)
    return f"{value:.6g}" if name == "jitter" else str(value)


def _as_policy_error(group: str, error: ValidationError) -> PolicyError:
    first = error.errors()[0]
    key = str(first["loc"][0]) if first["loc"] else "(policy)"
    if first["type"] == "extra_forbidden":
        return _unknown_setting(group, key)
    problem = first["msg"].removeprefix("Value error, ")
    return PolicyError(group=group, key=key, problem=problem, fix=_FIX.get(key, _DURATION_FIX))


def _unknown_setting(group: str, key: str) -> PolicyError:
    known = (*SETTINGS, "preset")
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known settings: {', '.join(known)}."
    return PolicyError(group=group, key=key, problem="is not a setting", fix=hint)


def _as_policy(group: str, value: object) -> CachePolicy:
    if isinstance(value, CachePolicy):
        return value
    if isinstance(value, Mapping):
        return CachePolicy(_group=group, **{str(key): item for key, item in value.items()})
    return CachePolicy(_group=group, ttl=value)


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
        self._policies = {
            str(name): _as_policy(str(name), value) for name, value in (policies or {}).items()
        }

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

    def tags(self, group: str) -> dict[str, str]:
        """Feature-view tags for `group`, its settings merged as this map says.

        Raises:
            PolicyError: the map says nothing about `group`, not even a default.
        """
        merged: dict[str, Any] = {}
        for _, policy in (*self.default(), *self.wildcard(group), *self.exact(group)):
            merged |= policy.settings()
        if not merged:
            near = difflib.get_close_matches(group, self._policies, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else "Add it, or a 'default'."
            raise PolicyError(
                group=group, key="ttl", problem="the TTL map does not name this group", fix=hint
            )
        return CachePolicy.model_construct(**merged).tags(group)

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
                        problem=f"is ambiguous: {earlier[0]} says {_show(name, earlier[1])}, "
                        f"{origin} says {_show(name, value)}",
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
    own = {key: value for key, value in (tags or {}).items() if key.startswith(TAG_PREFIX)}
    group = own.pop(GROUP_TAG, view)
    if not group or group == DEFAULT or _is_wildcard(group):
        raise PolicyError(
            group=view,
            key=GROUP_TAG,
            problem=f"{group!r} cannot name a group",
            fix=f"Choose a name without wildcards that is not {DEFAULT!r}.",
        )
    settings = {key.removeprefix(TAG_PREFIX): value for key, value in own.items()}
    return TaggedPolicy(view, group, CachePolicy(_group=group, **settings))


@dataclass(frozen=True)
class ResolvedPolicy:
    """A group's settings, complete and free of contradictions, and where each comes from.

    Durations are nanoseconds; `NO_LIMIT_NS` means no limit.

    Attributes:
        last_good_ns: the greatest age at which the last value may stand in for a failing source,
            or None where the source's error reaches the caller.
        is_event: whether changes made by other processes are heard of.
        origins: setting -> where it was said.
    """

    group: str
    ttl_ns: int
    negative_ttl_ns: int
    jitter: float
    stale_while_revalidate_ns: int
    last_good_ns: int | None
    is_never: bool
    is_event: bool = False
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def is_cached(self) -> bool:
        """Whether anything of this group is ever served from the cache."""
        return not self.is_never and self.ttl_ns > 0

    def shown(self) -> dict[str, str]:
        """The settings as people write them."""
        return {
            "ttl": format_duration(self.ttl_ns),
            "negative_ttl": format_duration(self.negative_ttl_ns),
            "jitter": f"{self.jitter:.6g}",
            "stale_while_revalidate": format_duration(self.stale_while_revalidate_ns),
            "on_source_error": "raise"
            if self.last_good_ns is None
            else f"last_good {format_duration(self.last_good_ns)}",
            "coherence": "never" if self.is_never else "event" if self.is_event else "ttl",
            "cache": "never" if self.is_never else "cached",
        }


@dataclass(frozen=True)
class PolicyLayers:
    """The maps of one deployment: its `ttl_map` and, over it, the chosen profile's."""

    ttl_map: TTLMap
    profile: TTLMap | None = None

    def resolve(self, group: str, tagged: Iterable[TaggedPolicy] = ()) -> ResolvedPolicy:
        """Merge every layer for one group.

        Args:
            group: the group's name.
            tagged: what the tags of the group's feature views say.

        Raises:
            PolicyError: a contradiction, within one layer or in the merged result.
        """
        said: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for origin, policy in (
            *self.ttl_map.default(),
            *_merged_tags(group, tagged),
            *self.ttl_map.wildcard(group),
            *self.ttl_map.exact(group),
            *self._profile_layers(group),
        ):
            for name, value in policy.settings().items():
                said[name] = value
                origins[name] = origin
        return _complete(group, said, origins)

    def _profile_layers(self, group: str) -> list[tuple[str, CachePolicy]]:
        if self.profile is None:
            return []
        return [*self.profile.default(), *self.profile.wildcard(group), *self.profile.exact(group)]

    def check_names(self, known: Iterable[str]) -> None:
        """Refuse an exact name in either map that is no group.

        Raises:
            PolicyError: for the first such name, with the nearest known one.
        """
        groups = sorted(set(known))
        for layer in (self.ttl_map, self.profile):
            for name in layer.names() if layer is not None else ():
                if name not in groups:
                    near = difflib.get_close_matches(name, groups, n=1)
                    hint = (
                        f"Did you mean {near[0]!r}?"
                        if near
                        else f"Known groups: {', '.join(groups)}."
                    )
                    raise PolicyError(
                        group=name,
                        key=layer.origin if layer else "",
                        problem="names no group of this feature repo",
                        fix=hint,
                    )


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
                        f"feature view {earlier[0]!r} says {_show(name, earlier[1])}, "
                        f"feature view {view.view!r} of the same group says {_show(name, value)}"
                    ),
                    fix="Give the views of one group the same tags, or groups of their own.",
                )
        merged.append((f"tags of feature view {view.view!r}", view.policy))
    return merged


def _complete(group: str, said: dict[str, Any], origins: dict[str, str]) -> ResolvedPolicy:
    ttl_ns: int = said.get("ttl", 0)
    return ResolvedPolicy(
        group=group,
        ttl_ns=ttl_ns,
        negative_ttl_ns=_complete_negative_ttl(group, said, origins, ttl_ns),
        jitter=said.get("jitter", _JITTER),
        stale_while_revalidate_ns=_complete_revalidation(group, said, origins, ttl_ns),
        last_good_ns=_complete_last_good(group, said, origins, ttl_ns),
        is_never=said.get("cache") == "never" or said.get("coherence") == "never",
        is_event=said.get("coherence") == "event",
        origins=origins,
    )


def _complete_negative_ttl(
    group: str, said: dict[str, Any], origins: dict[str, str], ttl_ns: int
) -> int:
    negative_ns: int = said.get("negative_ttl", min(ttl_ns, _NEGATIVE_TTL_NS))
    if negative_ns <= ttl_ns:
        return negative_ns
    if origins["negative_ttl"] != origins.get("ttl"):
        return ttl_ns  # the layer that lowered the ttl need not know what another said of absence
    raise PolicyError(
        group=group,
        key="negative_ttl",
        problem=f"{format_duration(negative_ns)} is longer than the ttl of "
        f"{format_duration(ttl_ns)} ({origins['negative_ttl']})",
        fix=f"Write at most {format_duration(ttl_ns)}, or raise the ttl.",
    )


def _complete_revalidation(
    group: str, said: dict[str, Any], origins: dict[str, str], ttl_ns: int
) -> int:
    swr_ns: int = said.get("stale_while_revalidate", 0)
    if not swr_ns or not ttl_ns or swr_ns < ttl_ns < NO_LIMIT_NS:
        return swr_ns
    if origins["stale_while_revalidate"] != origins.get("ttl"):
        return 0 if ttl_ns >= NO_LIMIT_NS else ttl_ns // 2
    if ttl_ns >= NO_LIMIT_NS:
        problem, fix = "has no meaning without a ttl", "Set a ttl, or leave it out."
    else:
        problem = (
            f"{format_duration(swr_ns)} is not shorter than the ttl of {format_duration(ttl_ns)}"
        )
        fix = "It is the last part of the ttl: write less than the ttl."
    raise PolicyError(
        group=group,
        key="stale_while_revalidate",
        problem=f"{problem} ({origins['stale_while_revalidate']})",
        fix=fix,
    )


def _complete_last_good(
    group: str, said: dict[str, Any], origins: dict[str, str], ttl_ns: int
) -> int | None:
    last_good_ns = _parse_on_source_error(said.get("on_source_error", "raise"))
    if last_good_ns is None or last_good_ns >= ttl_ns:
        return last_good_ns
    shown = format_duration(ttl_ns)
    raise PolicyError(
        group=group,
        key="on_source_error",
        problem=f"last_good {format_duration(last_good_ns)} is shorter than the ttl of {shown} "
        f"({origins['on_source_error']})",
        fix=f"Write at least 'last_good {shown}', or 'raise'.",
    )
