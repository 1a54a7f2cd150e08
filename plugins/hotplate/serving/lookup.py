"""The way of a request: what memory has is answered at once, the rest is asked for.

Functions instead of methods of the plugin, because the plugin's module holds what Feast wants in
one place, and this is the hot path, which deserves one of its own.
"""

from __future__ import annotations

from typing import Any, Final

from feast import FeatureService, RepoConfig
from feast.errors import FeastError

from hotplate.core.engine import Answer, Want
from hotplate.serving.plan import Plan
from hotplate.serving.plans import is_not_compiled
from hotplate.serving.requests import EntityValues, coerce, columns_of
from hotplate.serving.response import CachedResponse
from hotplate.serving.runtime import Runtime

__all__ = ["Request", "prepare"]

# What resolving and coercing a wrong request raises; Feast's own path raises it again.
_FEASTS_OWN: Final = (FeastError, ValueError, TypeError, KeyError, IndexError, OverflowError)


class Request:
    """A request that memory could not answer by itself."""

    __slots__ = ("_runtime", "count", "now_ns", "plan", "values")

    def __init__(
        self, runtime: Runtime, plan: Plan, values: EntityValues, count: int, now_ns: int
    ) -> None:
        self._runtime = runtime
        self.plan = plan
        self.values = values
        self.count = count
        self.now_ns = now_ns

    def wants(self) -> list[Want]:
        return self.plan.wants(self.values.keys, self.count)

    def respond(self, answer: Answer) -> CachedResponse:
        wall_us = self._runtime.clock.wall_ns() // 1_000 if self.plan.is_enforced else 0
        values = self.values
        return CachedResponse(
            self.plan, values.shown, values.protos, answer.rows, self.now_ns, answer, wall_us
        )


def prepare(
    runtime: Runtime,
    config: RepoConfig,
    features: Any,
    entity_rows: Any,
    registry: Any,
    project: str,
    is_full: bool,
) -> CachedResponse | Request | None:
    """The response where memory has it all, else what to ask for; None for Feast's own path.

    Whatever goes wrong here is answered by Feast's own path instead: a wrong request is refused
    there in Feast's own words; a fault of the cache is counted and costs no more than time.
    """
    try:
        return _look(runtime, config, features, entity_rows, registry, project, is_full)
    except Exception as error:  # noqa: BLE001 - the border: a cache fault is a miss
        if isinstance(error, _FEASTS_OWN):
            runtime.passed.refused += 1
        else:
            runtime.note_fault(error)
        return None


def _look(
    runtime: Runtime,
    config: RepoConfig,
    features: Any,
    entity_rows: Any,
    registry: Any,
    project: str,
    is_full: bool,
) -> CachedResponse | Request | None:
    regular = columns_of(entity_rows)
    if regular is None or project != runtime.project:
        return None
    given, columns, count = regular
    now_ns = runtime.clock.now_ns()
    plan = runtime.plans.find(features, is_full, project, given, registry, now_ns)
    if is_not_compiled(plan):
        plan = _compile(runtime, features, is_full, project, given, registry, now_ns)
    if type(plan) is not Plan:
        return None
    protos = None
    shown = columns
    for column, exact in zip(columns, plan.exact, strict=True):
        if exact is None or (
            type(column[0]) is not exact if count == 1 else set(map(type, column)) != {exact}
        ):
            values = coerce(plan, columns)
            if values is None:
                return None
            columns, shown, protos = values.keys, values.shown, values.protos
            break
    rows = plan.hit(columns, count, now_ns)
    if rows is not None:
        wall_us = runtime.clock.wall_ns() // 1_000 if plan.is_enforced else 0
        return CachedResponse(plan, shown, protos, rows, now_ns, None, wall_us)
    runtime.wrapped.config(config)
    return Request(runtime, plan, EntityValues(columns, shown, protos), count, now_ns)


def _compile(
    runtime: Runtime,
    features: Any,
    is_full: bool,
    project: str,
    given: tuple[str, ...],
    registry: Any,
    now_ns: int,
) -> Plan | None:
    if not isinstance(features, (list, FeatureService)) or not features:
        return None
    runtime.policies.renew(registry, project, now_ns)
    return runtime.plans.compile(features, is_full, project, given, registry, now_ns)
