"""One policy as people write it: its settings, what they may be, and the tags that publish them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from hotplate.durations import format_duration, parse_duration
from hotplate.errors import PolicyError
from hotplate.resolved import (
    Defaults,
    complete,
    parse_defaults,
    parse_on_source_error,
    show_defaults,
    show_revalidation,
)
from hotplate.sizes import parse_share

__all__ = [
    "EVENTS_TAG",
    "GROUP_TAG",
    "PRESETS",
    "SETTINGS",
    "TAG_PREFIX",
    "WINDOWS_TAG",
    "CachePolicy",
    "as_policy",
    "show_setting",
]

TAG_PREFIX: Final = "hotplate."
GROUP_TAG: Final = "hotplate.group"
WINDOWS_TAG: Final = "hotplate.windows"  # both are written by hotplate.windowed_view
EVENTS_TAG: Final = "hotplate.events"
SETTINGS: Final = (
    "ttl",
    "negative_ttl",
    "jitter",
    "stale_while_revalidate",
    "on_source_error",
    "coherence",
    "cache",
    "absent",
)
_DURATIONS: Final = ("ttl", "negative_ttl", "stale_while_revalidate")
_FIX: Final = {
    "jitter": "Write a share of the ttl from 0% up to, not including, 100%, such as '10%'.",
    "on_source_error": "Write 'raise', or 'last_good 10m' to serve the last value up to that age.",
    "coherence": "Write 'ttl', 'event' or 'never'.",
    "cache": "Write 'cached' or 'never'.",
    "absent": 'Write features beside their defaults, such as {"risk": 0.5, "segment": "new"}.',
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
            reloaded in the background. It never extends the `ttl`. Default `"off"`.
        on_source_error: `"raise"` (default), or `"last_good 10m"`: when the source fails, serve
            the last value read from it up to that age.
        coherence: `"ttl"` (default): changes made by other processes are seen when the ttl ends.
            `"event"`: within milliseconds, or the source is read; the ttl still holds. `"never"`:
            never from the cache.
        cache: `"cached"` (default) or `"never"`.
        absent: feature -> what an entity that the source does not know is answered with: a number,
            a text or a boolean of the feature's type. Its status stays NOT_FOUND. Features that
            are not named are null, as ever.
        preset: one of `PRESETS`; what is set beside it wins.

    Raises:
        PolicyError: a setting is unknown, malformed, without effect, or contradicts another.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ttl: int | None = None
    negative_ttl: int | None = None
    jitter: float | None = None
    stale_while_revalidate: int | None = None
    on_source_error: str | None = None
    coherence: str | None = None
    cache: str | None = None
    absent: Defaults | None = None

    def __init__(self, *unnamed: object, **settings: Any) -> None:
        # pydantic's own message names a field of a model; a user needs the group, the key and a fix
        group = str(settings.pop("_group", ""))
        if unnamed:
            raise PolicyError(
                group=group,
                key="ttl",
                problem=f"{unnamed[0]!r} is given without the name of a setting",
                fix="Name every setting: CachePolicy(ttl='30s').",
            )
        settings = _with_preset(group, settings)
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise _as_policy_error(group, error) from None
        said = self.settings()
        self._check_effects(group, said)
        if self.ttl is not None:
            complete(group, said, dict.fromkeys(said, "in one policy"))

    @staticmethod
    def _check_effects(group: str, said: Mapping[str, Any]) -> None:
        """Refuse what promises something that cannot be where nothing is kept."""
        if said.get("cache") == "never":
            why = "cache: never"
        elif said.get("coherence") == "never":
            why = "coherence: never"
        elif said.get("ttl") == 0:
            why = "ttl: 0s"
        else:
            return
        for name, nothing in (
            ("coherence", ("ttl", "never")),
            ("stale_while_revalidate", (0,)),
            ("on_source_error", ("raise",)),
        ):
            if name in said and said[name] not in nothing:
                raise PolicyError(
                    group=group,
                    key=name,
                    problem=f"{show_setting(name, said[name])!r} has no effect beside {why}, "
                    "under which nothing is kept",
                    fix="Leave one of them out.",
                )

    @field_validator(*_DURATIONS, mode="before")
    @classmethod
    def _read_duration(cls, value: object, info: ValidationInfo) -> int:
        if info.field_name == "stale_while_revalidate" and (value is False or value == "off"):
            return 0  # YAML reads `off` as false
        if value in ("never", "cached"):
            raise ValueError(f"{value!r} is not a duration; write {{cache: {value}}}")
        return parse_duration(value)

    @field_validator("jitter", mode="before")
    @classmethod
    def _read_jitter(cls, value: object) -> float:
        share = parse_share(value)
        if not 0 <= share < 1:
            raise ValueError(f"{value!r} is out of range")
        return share

    @field_validator("on_source_error", mode="before")
    @classmethod
    def _read_on_source_error(cls, value: object) -> str:
        limit_ns = parse_on_source_error(value)
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

    @field_validator("absent", mode="before")
    @classmethod
    def _read_absent(cls, value: object) -> Defaults:
        return parse_defaults(value)

    def settings(self) -> dict[str, Any]:
        """The settings that this policy does say, by name."""
        return {name: value for name in SETTINGS if (value := getattr(self, name)) is not None}

    def tags(self, group: str | None = None) -> dict[str, str]:
        """Feature-view tags that publish this policy with `feast apply`.

        Args:
            group: name under which several views share one policy and one line of metrics.
        """
        shown = {
            TAG_PREFIX + name: show_setting(name, value) for name, value in self.settings().items()
        }
        return shown if group is None else {GROUP_TAG: group, **shown}

    def __repr__(self) -> str:
        said = ", ".join(
            f"{name}={show_setting(name, value)!r}" for name, value in self.settings().items()
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


def show_setting(name: str, value: Any) -> str:
    """A setting as people write it."""
    if name == "stale_while_revalidate":
        return show_revalidation(value)
    if name in _DURATIONS:
        return format_duration(value)
    if name == "absent":
        return show_defaults(value)
    return f"{value:.6g}" if name == "jitter" else str(value)


def _as_policy_error(group: str, error: ValidationError) -> PolicyError:
    first = error.errors()[0]
    key = str(first["loc"][0]) if first["loc"] else "(policy)"
    if first["type"] == "extra_forbidden":
        return _unknown_setting(group, key)
    # what is wrong with a duration says itself what to write
    problem = first["msg"].removeprefix("Value error, ")
    return PolicyError(group=group, key=key, problem=problem, fix=_FIX.get(key, ""))


def _unknown_setting(group: str, key: str) -> PolicyError:
    known = (*SETTINGS, "preset")
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known settings: {', '.join(known)}."
    return PolicyError(group=group, key=key, problem="is not a setting", fix=hint)


def as_policy(group: str, value: object) -> CachePolicy:
    """A policy from what stands beside a group's name: a duration, settings, or a policy.

    Raises:
        PolicyError: it is none of them.
    """
    if isinstance(value, CachePolicy):
        return value
    if isinstance(value, Mapping):
        return CachePolicy(_group=group, **{str(key): item for key, item in value.items()})
    return CachePolicy(_group=group, ttl=value)
