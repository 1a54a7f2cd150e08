"""What `feast apply` checks before the wrapped store is asked to change anything."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from feast import FeatureStore, RepoConfig

from hotplate.cache_policy import TAG_PREFIX
from hotplate.errors import HotplateError, PolicyError
from hotplate.policy import PolicyLayers, TaggedPolicy, read_tags
from hotplate.serving.defaults import check_defaults
from hotplate.serving.loaders import Loaders
from hotplate.serving.policies import feature_views_of, group_of, no_channel, tagged
from hotplate.serving.window_checks import check_exact, check_gate, check_place
from hotplate.serving.windows import is_event_view, is_windowed

if TYPE_CHECKING:
    from hotplate.serving.runtime import Runtime

__all__ = ["check_apply"]

_LOOKALIKE: Final = re.compile(r"hotplate", re.IGNORECASE)
_log = logging.getLogger("hotplate.apply")


def check_apply(
    runtime: Runtime,
    config: RepoConfig,
    applied: Sequence[Any],
    deleted: Sequence[Any],
    *,
    is_partial: bool,
) -> None:
    """Check the policies of what is applied under every profile, because any may serve it.

    Args:
        runtime: of the store that applies.
        config: Feast's.
        applied, deleted: feature views.
        is_partial: whether other feature views stay as they are registered.

    Raises:
        PolicyError: the first contradiction, unknown name or group without its channel.
        ConfigError: a loader is named as no view and no group, or the provider is another than
            what the deployment asks for needs.
        LoaderError: a loader cannot load its view.
        WindowSpecError: a windowed view cannot be computed.
    """
    check_place(runtime.event_logs, config, applied)
    check_gate(config)
    groups = tagged(applied)
    others = _registered(config, [*applied, *deleted]) if is_partial else []
    for view in others:
        said = read_tags(view.name, view.tags)
        if said.group in groups:
            groups[said.group].append(said)
    every = runtime.settings.every_layers()
    for profile, layers in every.items():
        try:
            _check_policies(runtime, layers, groups, applied, others)
        except PolicyError as error:
            if len(every) == 1:
                raise
            place = "without a profile" if profile is None else f"profile {profile!r}"
            raise error.placed(place) from None
    if not is_partial:
        _check_names(every.values(), runtime.loaders, config, applied, deleted)
    for view in filter(is_event_view, applied):  # nothing can be refused any more
        runtime.event_logs.admit(runtime.event_logs.log(view), is_new=True)
    _warn(runtime, applied, groups, is_partial=is_partial)


def _check_policies(
    runtime: Runtime,
    layers: PolicyLayers,
    groups: Mapping[str, list[TaggedPolicy]],
    applied: Sequence[Any],
    others: Sequence[Any],
) -> None:
    policies = {group: layers.resolve(group, said) for group, said in sorted(groups.items())}
    events = {group for group, policy in policies.items() if policy.is_event}
    heard = events if events and runtime.coherence.is_broadcast() else set()
    runtime.loaders.check_views(applied, heard)
    check_exact(applied, policies)
    check_defaults([*applied, *others], policies)
    own = {read_tags(view.name, view.tags).group for view in applied if is_windowed(view)}
    if not own or not runtime.event_logs.is_in_process:
        own = set()  # what nobody else can change needs no channel
    for group in sorted(events - own):
        if policies[group].is_cached and runtime.coherence.parts() is None:
            raise no_channel(group)


def _registered(config: RepoConfig, but: Iterable[Any]) -> list[Any]:
    """Other views in the registry as it was before, where their tags can be read."""
    names = {view.name for view in but}
    store = FeatureStore(config=config)
    found = []
    for view in feature_views_of(store.registry, config.project):
        try:
            read_tags(view.name, view.tags)
        except PolicyError:
            continue  # nothing of this apply
        if view.name not in names:
            found.append(view)
    return found


def _check_names(
    every: Iterable[PolicyLayers],
    loaders: Loaders,
    config: RepoConfig,
    applied: Sequence[Any],
    deleted: Sequence[Any],
) -> None:
    """Refuse a name of a TTL map or a loader that is none of what is applied now or was before."""
    every = list(every)
    try:
        _check_known(every, loaders, applied)
    except HotplateError:
        # `feast apply` names every view; a caller of the SDK may name only what changes
        _check_known(every, loaders, [*applied, *_registered(config, [*applied, *deleted])])


def _check_known(every: Iterable[PolicyLayers], loaders: Loaders, views: Sequence[Any]) -> None:
    for layers in every:
        layers.check_names(group_of(views))
    loaders.check_names(views)


def _warn(
    runtime: Runtime,
    applied: Sequence[Any],
    groups: Mapping[str, list[TaggedPolicy]],
    *,
    is_partial: bool,
) -> None:
    """Say what is allowed and yet hardly meant."""
    for group, said in sorted(groups.items()):
        policy = runtime.layers.resolve(group, said)
        if "ttl" not in policy.origins and not policy.is_never:
            _log.warning(
                "group %s has no ttl, so it is not cached: add it, or a default, to "
                "online_store.ttl_map",
                group,
            )
    for view in applied:
        for tag in getattr(view, "tags", None) or ():
            if _LOOKALIKE.match(tag) and not tag.startswith(TAG_PREFIX):
                _log.warning(
                    "feature view %s has the tag %r, which says nothing: Hotplate's own begin "
                    "with %r",
                    view.name,
                    tag,
                    TAG_PREFIX,
                )
    if is_partial:
        return
    maps = {
        map_.origin: map_
        for layers in runtime.settings.every_layers().values()
        for map_ in layers.maps
    }
    for ttl_map in maps.values():
        for wildcard in ttl_map.idle_wildcards(groups):
            _log.warning("%s[%r] matches no group", ttl_map.origin, wildcard)
