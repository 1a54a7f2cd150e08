"""The plans of one cache, valid as long as the registry they were compiled from is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from feast import FeatureService, utils
from feast.infra.registry.base_registry import BaseRegistry

from hotplate.durations import NO_LIMIT_NS
from hotplate.serving.plan import Plan, PlanInputs, compile_plan

__all__ = ["Plans", "is_not_compiled"]

_PLANS_MAX: Final = 4096
_NOT_COMPILED: Final = object()


class Plans:
    """Compiled requests by what was asked for.

    Args:
        inputs: what compiling needs from the plugin.
    """

    def __init__(self, inputs: PlanInputs) -> None:
        self._inputs = inputs
        self._by_request: dict[Any, Plan | None] = {}
        self._registry: Any = None
        self._created: object = None
        self._valid_until_ns = -1
        self._last: tuple[Any, bool, str, tuple[str, ...], Plan] | None = None

    def __len__(self) -> int:
        return len(self._by_request)

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
        if (
            registry is not self._registry
            or now_ns > self._valid_until_ns
            or registry.cached_registry_proto_created is not self._created
        ):
            return _NOT_COMPILED
        last = self._last
        if (
            last is not None
            and last[0] == features
            and last[3] == given
            and last[1] is is_full
            and last[2] == project
        ):
            return last[4]
        plan = self._by_request.get(_request_key(features, is_full, project, given), _NOT_COMPILED)
        if type(features) is list and isinstance(plan, Plan):
            self._last = (list(features), is_full, project, given, plan)
        return plan

    def compile(
        self,
        features: list[str] | FeatureService,
        is_full: bool,
        project: str,
        given: tuple[str, ...],
        registry: BaseRegistry,
        now_ns: int,
    ) -> tuple[Plan | None, Sequence[Any]]:
        """Compile a request from Feast's own resolution of it.

        Returns:
            The plan (None where it needs Feast's own path) and Feast's (view, features) pairs.

        Raises:
            Exception: what Feast raises for an unknown view, feature or service.
        """
        context = utils._get_cached_request_context(registry, project, features, is_full)
        self._renew(registry, now_ns)
        plan = compile_plan(context, given, is_full, self._inputs)
        if len(self._by_request) < _PLANS_MAX:
            self._by_request[_request_key(features, is_full, project, given)] = plan
        return plan, context[5]

    def _renew(self, registry: Any, now_ns: int) -> None:
        created = getattr(registry, "cached_registry_proto_created", None)
        if (
            registry is self._registry
            and created is self._created
            and now_ns <= self._valid_until_ns
        ):
            return
        self._by_request = {}
        self._last = None
        self._registry, self._created = registry, created
        self._valid_until_ns = -1 if created is None else now_ns + _valid_for_ns(registry, created)

    def clear(self) -> None:
        """Forget every plan."""
        self._registry = None
        self._by_request = {}
        self._last = None


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
