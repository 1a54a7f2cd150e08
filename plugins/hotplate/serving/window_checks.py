"""What `feast apply` checks of windowed views, and of what needs Hotplate's own provider."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from feast import RepoConfig
from feast.importer import import_class

from hotplate.durations import NO_LIMIT_NS
from hotplate.errors import ConfigError, PolicyError
from hotplate.policy import ResolvedPolicy, read_tags
from hotplate.serving.windows import EventLogs, is_computed, is_windowed
from hotplate.windowed import windowed_of

__all__ = ["check_exact", "check_gate", "check_place"]

_PROVIDER: Final = "hotplate.provider.HotplateProvider"


def check_place(logs: EventLogs, config: RepoConfig, applied: Sequence[Any]) -> None:
    """Make sure that windowed views have all they need in the deployment.

    Raises:
        ConfigError: their logs have no place or one that evicts, or the provider is another.
        ServerError: the server that keeps them does not answer.
        WindowSpecError: a view's tag cannot be read.
    """
    computed = [view for view in applied if is_computed(view)]
    if not computed:
        return
    for view in computed:
        if is_windowed(view):
            windowed_of(view)
        else:
            logs.log(view)
    if not _is_ours(str(config.provider)):
        raise ConfigError(
            f"provider: is {config.provider!r}, under which `materialize` and "
            "`get_historical_features` do not know what the windowed view "
            f"{computed[0].name!r} is. Write provider: {_PROVIDER} in feature_store.yaml."
        )
    logs.check_place()


def check_gate(config: RepoConfig) -> None:
    """Make sure that a quality gate stands where data passes.

    Raises:
        ConfigError: the provider is another.
    """
    quality = getattr(config.online_store, "quality", None)
    if quality is None or not {quality.materialize, quality.pushes} & {"block", "warn"}:
        return
    if not _is_ours(str(config.provider), "judges_quality"):
        raise ConfigError(
            f"provider: is {config.provider!r}, under which nothing asks online_store.quality "
            f"before it writes. Write provider: {_PROVIDER} in feature_store.yaml."
        )


def _is_ours(provider: str, ability: str = "computes_windows") -> bool:
    module, _, name = provider.rpartition(".")
    return bool(module) and getattr(import_class(module, name), ability, False)


def check_exact(applied: Iterable[Any], policies: Mapping[str, ResolvedPolicy]) -> None:
    """Make sure that no layer of the policies takes away what an exact cache is exact by.

    Raises:
        PolicyError: one does.
    """
    for view in applied:
        said = windowed_of(view) if is_windowed(view) else None
        if said is None or said.cache != "exact":
            continue
        group = read_tags(view.name, view.tags).group
        policy = policies[group]
        if not policy.is_cached:
            continue
        if not policy.is_event:
            raise _inexact(
                policy, "coherence", f"'ttl' would let {view.name!r} miss events of other processes"
            )
        if policy.ttl_ns >= NO_LIMIT_NS:
            raise _inexact(policy, "ttl", f"'none' leaves rows of {view.name!r} without an end")


def _inexact(policy: ResolvedPolicy, key: str, problem: str) -> PolicyError:
    return PolicyError(
        group=policy.group,
        key=key,
        problem=f"{problem}, and it is declared with cache='exact'",
        fix="Leave this setting out, or declare the view with cache='ttl' or 'never'.",
        place=policy.origins.get(key, ""),
    )
