"""Looks a deployment over: what is wrong, what could be better, and what to change."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from feast import FeatureStore

from hotplate.durations import NO_LIMIT_NS
from hotplate.errors import HotplateError, ServerError
from hotplate.operations.findings import ERROR, OK, WARNING, Finding
from hotplate.operations.folders import examine_folders
from hotplate.operations.servers import Use, examine_server
from hotplate.policy import ResolvedPolicy
from hotplate.servers.redis import RedisServer
from hotplate.serving.coherence import server_of
from hotplate.serving.policies import feature_views_of
from hotplate.serving.runtime import Runtime
from hotplate.serving.windows import is_event_view
from hotplate.sizes import format_bytes

__all__ = ["examine"]

_LONG_S: Final = 600
_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def examine(
    store: FeatureStore, runtime: Runtime, resolve: Callable[[], Mapping[str, ResolvedPolicy]]
) -> list[Finding]:
    """Every check, in the order in which one would look.

    Args:
        store: the Feast store.
        runtime: its cache's.
        resolve: the policy of every group; raises where they contradict each other.
    """
    found = [_profile(runtime), _registry(store), _memory(runtime)]
    found += examine_folders(runtime.settings)
    found += _gate(store, runtime)
    policies: Mapping[str, ResolvedPolicy] = {}
    try:
        policies = resolve()
    except HotplateError as error:
        found.append(Finding("policies", ERROR, str(error), "correct the setting it names"))
    except Exception as error:  # noqa: BLE001 - a registry fails in as many ways as it has kinds
        found.append(Finding("policies", ERROR, f"Feast cannot read the registry: {error}", _APPLY))
    else:
        found += _policies(policies)
    place, is_store = runtime.meeting_place()
    found += _events(policies, place, is_store=is_store)
    is_event = any(policy.is_event for policy in policies.values())
    uses = _uses(runtime, place, is_store=is_store, is_event=is_event)
    for use in uses:
        found += examine_server(use)
    found += _one_server_for_both(uses)
    found += _event_logs(store, runtime)
    secrets = _secrets(use.server for use in uses)
    return [_without(secrets, finding) for finding in found]


_APPLY: Final = "run feast apply, or correct the registry's settings"


def _event_logs(store: FeatureStore, runtime: Runtime) -> list[Finding]:
    """Where windowed views find their events, and whether all of them are there."""
    try:
        views = feature_views_of(store.registry, store.project)
    except Exception:  # noqa: BLE001 - said above, where the policies are looked at
        return []
    found = []
    for view in (one for one in views if is_event_view(one)):
        check = f"event view {view.name}"
        try:
            logs = runtime.event_logs
            log = logs.log(view)
            logs.check_place()
            logs.layouts.ensure_complete(view.name, log.plan.fingerprint)
            others = len(logs.layouts.known(view.name)) - 1
        except HotplateError as error:
            found.append(Finding(check, ERROR, str(error)))
            continue
        if others > 0:
            seen = f"its logs are complete; its events are also written to {others} older layouts"
            fix = f"hotplate windows retire {view.name}, once every process has the new registry"
            found.append(Finding(check, WARNING, seen, fix))
        else:
            found.append(Finding(check, OK, "its logs are complete, on a server that keeps them"))
    return found


# -- this process ---------------------------------------------------------------------------------


def _profile(runtime: Runtime) -> Finding:
    settings = runtime.settings
    chosen = settings.profile()
    known = ", ".join(sorted(settings.profiles)) or "none"
    seen = f"{chosen or 'none'} by {settings.profile_variable} (known: {known})"
    return Finding("profile", OK, seen)


def _registry(store: FeatureStore) -> Finding:
    ttl_s = store.config.registry.cache_ttl_seconds
    if ttl_s == 0:
        fix = "set registry.cache_ttl_seconds: 60"
        return Finding("registry", WARNING, "changed policies are seen after a restart only", fix)
    seen = f"changed policies are seen within {ttl_s} s (registry.cache_ttl_seconds)"
    if ttl_s > _LONG_S:
        return Finding("registry", WARNING, seen, "set registry.cache_ttl_seconds: 60")
    return Finding("registry", OK, seen)


def _memory(runtime: Runtime) -> Finding:
    wanted, there = runtime.settings.memory.max_bytes, machine_bytes()
    if there is None:
        return Finding("memory", OK, f"up to {format_bytes(wanted)} a process")
    seen = f"up to {format_bytes(wanted)} a process, of {format_bytes(there)} here"
    fix = "lower online_store.memory.max_bytes: every process of this machine has its own"
    if wanted >= there:
        return Finding("memory", ERROR, seen, fix)
    return Finding("memory", WARNING if wanted > there / 2 else OK, seen, fix)


def machine_bytes() -> int | None:
    """How much memory there is: the machine's, or what its container may use."""
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    for path in _LIMITS:
        try:
            there = min(there, int(path.read_text()))
        except (OSError, ValueError):  # no container, or no limit
            continue
    return there


def _gate(store: FeatureStore, runtime: Runtime) -> list[Finding]:
    """The quality gate: whether it has what it judges by."""
    settings = runtime.settings.quality
    if settings is None or not {settings.materialize, settings.pushes} - {"off"}:
        return []
    path = Path(store.config.repo_path or ".") / settings.reference
    seen = f"materialize: {settings.materialize}, pushes: {settings.pushes}, by {path}"
    if find_spec("great_expectations") is None:
        fix = "pip install 'feast-hotplate[quality]'"
        return [Finding("quality", ERROR, "Great Expectations is not installed", fix)]
    if not getattr(store._get_provider(), "judges_quality", False):
        fix = "write provider: hotplate.provider.HotplateProvider"
        return [Finding("quality", ERROR, "nothing asks the gate under this provider", fix)]
    if not path.is_file():
        return [Finding("quality", ERROR, f"{path} is not there", "hotplate quality profile")]
    return [Finding("quality", OK, seen)]


# -- policies -------------------------------------------------------------------------------------


def _policies(policies: Mapping[str, ResolvedPolicy]) -> list[Finding]:
    if not policies:
        return [Finding("policies", WARNING, "there are no feature views yet", "run feast apply")]
    bare = [name for name, policy in policies.items() if not policy.is_never and not policy.ttl_ns]
    endless = [
        name
        for name, policy in policies.items()
        if policy.is_cached and not policy.is_event and policy.ttl_ns >= NO_LIMIT_NS
    ]
    found = [Finding("policies", OK, f"no contradictions in {len(policies)} of them")]
    if bare:
        fix = "give them a ttl, or say cache: never"
        seen = f"never cached for want of a ttl: {', '.join(bare)}"
        found.append(Finding("groups without ttl", WARNING, seen, fix))
    if endless:
        fix = "give them a ttl, or coherence: event"
        seen = f"changes of other processes are never seen: {', '.join(endless)}"
        found.append(Finding("groups without end", WARNING, seen, fix))
    return found


def _events(
    policies: Mapping[str, ResolvedPolicy], place: RedisServer | None, *, is_store: bool
) -> list[Finding]:
    groups = [name for name, policy in policies.items() if policy.is_event]
    if not groups:
        return []
    names = ", ".join(groups)
    if place is None:
        return [
            Finding(
                "event groups",
                ERROR,
                f"{names}: never cached, the store cannot broadcast and there is no server to meet",
                "name a Redis or Valkey server under online_store.shared, or write coherence: ttl",
            )
        ]
    how = "the store's server broadcasts every change"
    if not is_store:
        how = "writers announce changes, those that do not use Hotplate are not heard"
    return [Finding("event groups", OK, f"{names}: {how}")]


# -- servers --------------------------------------------------------------------------------------


def _uses(
    runtime: Runtime, place: RedisServer | None, *, is_store: bool, is_event: bool
) -> list[Use]:
    shared, project = runtime.settings.shared, runtime.project
    server = server_of(shared)
    uses = []
    if is_store and place is not None:
        is_channel = is_event or shared is not None
        name = "online_store.store"
        uses.append(
            Use(name, place, project, is_store=True, is_channel=is_channel, is_tracked=is_channel)
        )
    if shared is not None and server is not None:
        is_tier = runtime.shared() is not None
        uses.append(
            Use(
                "online_store.shared",
                server,
                project,
                is_tier=is_tier,
                is_channel=not is_store,
                is_tracked=not is_store,
                timeout_ns=shared.timeout if is_tier else None,
            )
        )
    return uses


def _one_server_for_both(uses: list[Use]) -> list[Finding]:
    if len(uses) < 2 or not uses[1].is_tier:
        return []
    try:
        store, shared = (set(use.server.hosts()) for use in uses)
    except ServerError:  # said already: it cannot be reached
        return []
    if not store & shared:
        return []
    fix = "give online_store.shared a server of its own, or leave its tier off"
    seen = "features and cached rows share one memory, and one rule of what goes when it is full"
    return [Finding("one server for both", WARNING, seen, fix)]


def _secrets(servers: Any) -> set[str]:
    """Passwords of connection strings, to be kept out of whatever a client's errors say."""
    parts = (part for server in servers for part in server.connection_string.split(","))
    return {part.partition("=")[2] for part in parts if part.startswith("password=") and part[9:]}


def _without(secrets: set[str], finding: Finding) -> Finding:
    seen = finding.seen
    for secret in secrets:
        seen = seen.replace(secret, "***")
    return Finding(finding.check, finding.status, seen, "" if finding.status == OK else finding.fix)
