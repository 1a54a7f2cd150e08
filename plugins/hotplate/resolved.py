"""A group's settings merged from every layer: complete, free of contradictions, with origins."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hotplate.durations import NO_LIMIT_NS, format_duration, parse_duration
from hotplate.errors import PolicyError

__all__ = [
    "Defaults",
    "ResolvedPolicy",
    "complete",
    "parse_defaults",
    "parse_on_source_error",
    "show_defaults",
    "show_revalidation",
    "stricter",
]

Defaults = tuple[tuple[str, int | float | str | bool], ...]
"""Feature and value, sorted by feature."""

_NEGATIVE_TTL_NS: Final = 5_000_000_000
_JITTER: Final = 0.1


@dataclass(frozen=True)
class ResolvedPolicy:
    """A group's settings, complete and free of contradictions, and where each comes from.

    Durations are nanoseconds; `NO_LIMIT_NS` means no limit.

    Attributes:
        last_good_ns: the greatest age at which the last value may stand in for a failing source,
            or None where the source's error reaches the caller.
        is_event: whether changes made by other processes are heard of.
        absent: what an entity that the source does not know is answered with.
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
    absent: Defaults = ()
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
            "stale_while_revalidate": show_revalidation(self.stale_while_revalidate_ns),
            "on_source_error": "raise"
            if self.last_good_ns is None
            else f"last_good {format_duration(self.last_good_ns)}",
            "coherence": "never" if self.is_never else "event" if self.is_event else "ttl",
            "cache": "never" if self.is_never else "cached",
            **(
                {"absent": show_defaults(self.absent)}
                if self.absent or "absent" in self.origins
                else {}
            ),
        }


def show_revalidation(nanoseconds: int) -> str:
    """Write `stale_while_revalidate` as it is read."""
    return format_duration(nanoseconds) if nanoseconds else "off"


def parse_defaults(value: object) -> Defaults:
    """Read features and their defaults: a mapping, or one as JSON, as tags have it.

    Raises:
        ValueError: it is neither, or a value is no number, text or boolean.
    """
    if isinstance(value, tuple):
        value = dict(value)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(f"{value!r} is no mapping") from None
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is no mapping")
    for name, said in value.items():
        if not isinstance(name, str) or not isinstance(said, int | float | str):
            raise ValueError(f"{said!r} beside {name!r} is no number, text or boolean")
        if isinstance(said, float) and not math.isfinite(said):
            raise ValueError(f"{said!r} beside {name!r} is no finite number")
    return tuple(sorted(value.items()))


def show_defaults(defaults: Defaults) -> str:
    """Write defaults as they are read."""
    return json.dumps(dict(defaults), ensure_ascii=False)


def parse_on_source_error(value: object) -> int | None:
    """The age up to which the last value stands in for a failing source; None for `raise`.

    Raises:
        ValueError: the text is neither `raise` nor `last_good` with a duration.
    """
    if value == "raise":
        return None
    if isinstance(value, str) and value.startswith("last_good "):
        return parse_duration(value.removeprefix("last_good "))
    raise ValueError(f"{value!r} is unknown")


def stricter(one: ResolvedPolicy, other: ResolvedPolicy) -> ResolvedPolicy:
    """Of two policies of one group whatever of each lets less be served from memory."""
    last_good = [ns for ns in (one.last_good_ns, other.last_good_ns) if ns is not None]
    merged = replace(
        other if other.ttl_ns < one.ttl_ns else one,
        negative_ttl_ns=min(one.negative_ttl_ns, other.negative_ttl_ns),
        last_good_ns=min(last_good) if len(last_good) == 2 else None,
        is_never=one.is_never or other.is_never,
        is_event=one.is_event or other.is_event,
    )
    origins = {
        name: said.origins[name]
        for said in (other, one)
        for name, value in merged.shown().items()
        if name in said.origins and said.shown()[name] == value
    }
    return replace(merged, origins=origins)


def complete(group: str, said: Mapping[str, Any], origins: Mapping[str, str]) -> ResolvedPolicy:
    """Fill in what nobody said, and cut what a shorter ttl of another layer leaves no room for.

    Args:
        group: whose settings.
        said: settings by name, as `CachePolicy.settings` has them.
        origins: where each was said.

    Raises:
        PolicyError: one layer contradicts itself, or the last good value would be younger than
            the ttl.
    """
    noted = dict(origins)
    ttl_ns: int = said.get("ttl", 0)
    return ResolvedPolicy(
        group=group,
        ttl_ns=ttl_ns,
        negative_ttl_ns=_complete_negative_ttl(group, said, noted, ttl_ns),
        jitter=said.get("jitter", _JITTER),
        stale_while_revalidate_ns=_complete_revalidation(group, said, noted, ttl_ns),
        last_good_ns=_complete_last_good(group, said, noted, ttl_ns),
        is_never=said.get("cache") == "never" or said.get("coherence") == "never",
        is_event=said.get("coherence") == "event",
        absent=said.get("absent", ()),
        origins=noted,
    )


def _cut(origins: dict[str, str], name: str, why: str) -> None:
    """Say that a setting is not as its layer wrote it, and whose ttl is to blame."""
    origins[name] = f"{origins[name]}, {why} ({origins.get('ttl', 'built-in default')})"


def _complete_negative_ttl(
    group: str, said: Mapping[str, Any], origins: dict[str, str], ttl_ns: int
) -> int:
    negative_ns: int = said.get("negative_ttl", min(ttl_ns, _NEGATIVE_TTL_NS))
    if negative_ns <= ttl_ns:
        return negative_ns
    if origins["negative_ttl"] != origins.get("ttl"):
        # the layer that lowered the ttl need not know what another said of absence
        _cut(origins, "negative_ttl", "cut to fit the ttl")
        return ttl_ns
    raise PolicyError(
        group=group,
        key="negative_ttl",
        problem=f"{format_duration(negative_ns)} is longer than the ttl of "
        f"{format_duration(ttl_ns)} ({origins['negative_ttl']})",
        fix=f"Write at most {format_duration(ttl_ns)}, or raise the ttl.",
    )


def _complete_revalidation(
    group: str, said: Mapping[str, Any], origins: dict[str, str], ttl_ns: int
) -> int:
    swr_ns: int = said.get("stale_while_revalidate", 0)
    if not swr_ns or swr_ns < ttl_ns < NO_LIMIT_NS:
        return swr_ns
    if origins["stale_while_revalidate"] != origins.get("ttl"):
        has_end = ttl_ns < NO_LIMIT_NS
        why = "cut to fit the ttl" if has_end else "off for want of a ttl that ends"
        _cut(origins, "stale_while_revalidate", why)
        return ttl_ns // 2 if has_end else 0
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
    group: str, said: Mapping[str, Any], origins: dict[str, str], ttl_ns: int
) -> int | None:
    last_good_ns = parse_on_source_error(said.get("on_source_error", "raise"))
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
