"""The plans of one cache, valid as long as the registry they were compiled from is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from feast import FeatureService, utils
from feast.infra.registry.base_registry import BaseRegistry

from hotplate.durations import NO_LIMIT_NS
from hotplate.serving.plan import Plan, PlanInputs, compile_plan

__all__ = ["Plans", "is_not_compiled"]

_PLANS_MAX: Final = 4096
_NOT_COMPILED: Final = object()


class _State:
    """The plans of one state of one registry; replaced as a whole, so that no lock is needed."""

    __slots__ = ("by_request", "created", "last", "registry", "valid_until_ns")

    def __init__(self, registry: Any, created: Any, valid_until_ns: int) -> None:
        self.registry = registry
        self.created = created
        self.valid_until_ns = valid_until_ns
        self.by_request: dict[Any, Plan | None] = {}
        self.last: tuple[Any, bool, str, tuple[str, ...], Plan] | None = None


class Plans:
    """Compiled requests by what was asked for.

    Args:
        inputs: what compiling needs from the plugin.
    """

    def __init__(self, inputs: PlanInputs) -> None:
        self._inputs = inputs
        self._state = _State(None, None, -1)

    def __len__(self) -> int:
        return len(self._state.by_request)

    def __iter__(self) -> Iterator[Plan]:
        return iter([plan for plan in list(self._state.by_request.values()) if plan is not None])

    def find(
        self,
        features: Any,
        is_full: bool,
        project: str,
        given: tuple[str, ...],
        registry: Any,
        now_ns: int,
    ) -> Plan | object | None:
        """The plan of a request; None where it has none; `NOT_COMPILED` where nobody has tried."""
        state = self._state
        if (
            registry is not state.registry
            or now_ns > state.valid_until_ns
            or registry.cached_registry_proto_created is not state.created
        ):
            return _NOT_COMPILED
        last = state.last
        if (
            last is not None
            and last[0] == features
            and last[3] == given
            and last[1] is is_full
            and last[2] == project
        ):
            return last[4]
        plan = state.by_request.get(_request_key(features, is_full, project, given), _NOT_COMPILED)
        if type(features) is list and isinstance(plan, Plan):
            state.last = (list(features), is_full, project, given, plan)
        return plan

    def compile(
        self,
        features: list[str] | FeatureService,
        is_full: bool,
        project: str,
        given: tuple[str, ...],
        registry: BaseRegistry,
        now_ns: int,
    ) -> Plan | None:
        """Compile a request from Feast's own resolution of it; None where it has no plan.

        Raises:
            Exception: what Feast raises for an unknown view, feature, service or version.
        """
        before = getattr(registry, "cached_registry_proto_created", None)
        self._inputs.renew(registry, project, now_ns)
        context = utils._get_cached_request_context(registry, project, features, is_full)
        self._inputs.check(context[5])
        plan = compile_plan(context, given, is_full, self._inputs)
        state = self._renewed(registry, now_ns)
        # a registry that was refreshed meanwhile leaves a plan good for this request only
        if before is state.created and len(state.by_request) < _PLANS_MAX:
            state.by_request[_request_key(features, is_full, project, given)] = plan
        return plan

    def _renewed(self, registry: Any, now_ns: int) -> _State:
        state = self._state
        created = getattr(registry, "cached_registry_proto_created", None)
        if (
            registry is not state.registry
            or created is not state.created
            or now_ns > state.valid_until_ns
        ):
            until_ns = -1 if created is None else now_ns + _valid_for_ns(registry, created)
            state = self._state = _State(registry, created, until_ns)
        return state

    def clear(self) -> None:
        """Forget every plan."""
        self._state = _State(None, None, -1)


def is_not_compiled(plan: object) -> bool:
    """Whether `Plans.find` has nothing to say about a request."""
    return plan is _NOT_COMPILED


def _valid_for_ns(registry: Any, created: datetime) -> int:
    ttl_s = registry.cached_registry_proto_ttl.total_seconds()
    if ttl_s <= 0:
        return NO_LIMIT_NS
    moment = created if created.tzinfo else created.replace(tzinfo=UTC)
    return int((ttl_s - (datetime.now(UTC) - moment).total_seconds()) * 1e9)


def _request_key(features: Any, is_full: bool, project: str, given: tuple[str, ...]) -> Any:
    asked = tuple(features) if isinstance(features, list) else ("service", features.name)
    return asked, is_full, project, given
