"""What a deployment says of the outputs of one model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import Any

from hotplate.durations import parse_duration
from hotplate.errors import ConfigError
from hotplate.outputs.errors import OutputError
from hotplate.outputs.rules import Rule, RuleSet
from hotplate.sizes import parse_bytes, parse_share

__all__ = ["OutputPolicy"]


@dataclass(frozen=True)
class OutputPolicy:
    """How long outputs are kept, which never are, and how they are watched.

    Attributes:
        ttl: how long an output may be served after its inputs were read.
        negative: which outputs are negative, a condition on the score as in a rule; None: none.
        negative_ttl: how long those may be served.
        needs_features: whether an output is kept only if it is said which features it came from,
            and so ends with them. False for a model that reads none; of no meaning for a cache that
            belongs to no store.
        rules: what must never be cached.
        rules_off: why the rules are not to be applied. Said aloud at every start.
        dry_run: answer nothing from the cache, and count what it would have saved and got wrong.
        shadow: share of hits that are computed all the same and compared.
        shadow_decimals: places to which the two must agree; None: every bit.
        shadow_limit: share of compared hits that may differ before the cache of this model switches
            itself off.
        shadow_least: compared hits before that is judged.
        shared: whether outputs are kept in the shared tier, too, for other processes; for a model
            whose features all come from views that are there (windows are not).
        family: columns of the batch, or a function of it that returns a label a row, by which hits
            are told apart (see `OutputCache.families`); few-valued, and none that tells who it is.
        family_pays: hit rate under which a family is bypassed; found out by the time that looking
            and computing take, if left out.
        family_least: rows that are looked at before a family is judged.
        family_pause: how long it is bypassed until it is tried again; twice as long each time.
        max_entries, max_bytes: bounds of the memory it takes.
    """

    ttl: str | timedelta = "30s"
    negative: Mapping[str, Any] | None = None
    negative_ttl: str | timedelta = "5s"
    needs_features: bool = True
    rules: Sequence[Any] = ()
    rules_off: str = ""
    dry_run: bool = False
    shadow: str | float = 0.01
    shadow_decimals: int | None = 4
    shadow_limit: str | float = 0.001
    shadow_least: int = 200
    shared: bool = False
    family: str | Sequence[str] | Callable[[Any], Any] | None = None
    family_pays: str | float | None = None
    family_least: int = 2_000
    family_pause: str | timedelta = "1m"
    max_entries: int = 1_000_000
    max_bytes: str | int = "512MB"
    ttl_ns: int = field(init=False, repr=False)
    negative_ttl_ns: int = field(init=False, repr=False)
    rule_set: RuleSet = field(init=False, repr=False, compare=False)
    negative_rule: Rule | None = field(init=False, repr=False, compare=False)
    shadow_share: float = field(init=False, repr=False)
    shadow_limit_share: float = field(init=False, repr=False)
    bytes_most: int = field(init=False, repr=False)
    families_by: Any = field(init=False, repr=False, compare=False)
    family_pays_from: float | None = field(init=False, repr=False)
    family_pause_ns: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "ttl_ns", parse_duration(self.ttl))
        put(self, "negative_ttl_ns", min(parse_duration(self.negative_ttl), self.ttl_ns))
        put(self, "rule_set", RuleSet.parse(self.rules))
        put(
            self,
            "negative_rule",
            None if self.negative is None else Rule("negative", self.negative),
        )
        put(self, "shadow_share", parse_share(self.shadow))
        put(self, "shadow_limit_share", parse_share(self.shadow_limit))
        put(self, "bytes_most", parse_bytes(self.max_bytes))
        by = (self.family,) if isinstance(self.family, str) else self.family
        put(self, "families_by", by)
        pays = self.family_pays
        put(self, "family_pays_from", None if pays is None else parse_share(pays))
        put(self, "family_pause_ns", parse_duration(self.family_pause))
        if by is not None and not callable(by) and not (by and all(map(_is_name, by))):
            raise OutputError(
                where="outputs, family",
                problem="names no columns",
                fix="Write family: channel, or family: [channel, kind].",
            )
        for name in ("shadow", "shadow_limit", "family_pays"):
            if not 0 <= parse_share(getattr(self, name) or 0) <= 1:
                raise OutputError(
                    where=f"outputs, {name}",
                    problem="is no share between nothing and all",
                    fix="Write 1%, or 0.01.",
                )
        if min(self.max_entries, self.shadow_least, self.family_least) < 1:
            raise OutputError(
                where="outputs",
                problem="max_entries, shadow_least and family_least must be at least 1",
                fix="Leave them out for the defaults.",
            )
        if not isinstance(self.rules_off, str):
            raise OutputError(
                where="outputs, rules_off",
                problem="is no text",
                fix="Write why the rules are not to be applied, for whoever reads the log.",
            )

    @property
    def fingerprint(self) -> str:
        """Changes with anything that is said."""
        said = {name: getattr(self, name) for name in self.settings()}
        said["rules"] = [[rule.name, rule.when] for rule in self.rule_set.rules]
        text = json.dumps(said, sort_keys=True, default=str)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    @classmethod
    def settings(cls) -> list[str]:
        """Names of all that can be said."""
        return [name for name, one in cls.__dataclass_fields__.items() if one.init]

    @property
    def applied(self) -> RuleSet:
        """The rules that are applied."""
        return RuleSet() if self.rules_off else self.rule_set

    @classmethod
    def parse(cls, said: Mapping[str, Any], where: str) -> OutputPolicy:
        """A policy as it stands in feature_store.yaml.

        Raises:
            ConfigError: a setting is unknown or cannot be read.
        """
        known = cls.settings()
        unknown = sorted(set(said) - set(known))
        if unknown:
            raise ConfigError(
                f"{where}: unknown settings {', '.join(unknown)}; there are {', '.join(known)}"
            )
        try:
            return cls(**said)
        except (OutputError, ValueError, TypeError) as error:
            raise ConfigError(f"{where}: {error}") from error


def _is_name(one: object) -> bool:
    return isinstance(one, str) and bool(one)
