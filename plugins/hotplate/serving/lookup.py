"""The way of a request: what memory has is answered at once, the rest is asked for.

Functions instead of methods of the plugin, because the plugin's module holds what Feast wants in
one place, and this is the hot path, which deserves one of its own.
"""

from __future__ import annotations

from typing import Any

from feast import FeatureService, RepoConfig

from hotplate.core.engine import Answer, Want
from hotplate.serving.plan import Plan
from hotplate.serving.plans import is_not_compiled
from hotplate.serving.requests import EntityValues, coerce, columns_of
from hotplate.serving.response import CachedResponse
from hotplate.serving.runtime import Runtime

__all__ = ["Request", "fault_judged", "prepare"]


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
            self.plan,
            values.shown,
            values.protos,
            self.plan.with_defaults(answer.rows),
            answer.now_ns,
            answer,
            wall_us,
            values.keys,
        )


def prepare(
    runtime: Runtime,
    config: RepoConfig,
    features: Any,
    entity_rows: Any,
    registry: Any,
    project: str,
    is_full: bool,
) -> CachedResponse | Request | Exception | None:
    """The response where memory has it all, else what to ask for; None for Feast's own path.

    An error is returned, not raised: Feast's own path answers instead. If it refuses the request,
    in its own words, the request was wrong; if it answers, the cache was (see `fault_judged`).
    """
    try:
        return _look(runtime, config, features, entity_rows, registry, project, is_full)
    except Exception as error:  # noqa: BLE001 - the border: a cache fault is a miss
        return error


class fault_judged:
    """Around Feast's own path: who was wrong, if anyone was, before it."""

    __slots__ = ("_fault", "_runtime")

    def __init__(self, runtime: Runtime, fault: object) -> None:
        self._runtime = runtime
        self._fault = fault

    def __enter__(self) -> None:
        self._runtime.passed.feast_path += 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not isinstance(self._fault, Exception):
            return
        if error is None:
            self._runtime.note_fault(self._fault)
        else:
            self._runtime.passed.refused += 1


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
    for values, column in zip(columns, plan.entities, strict=True):
        # `takes` once more for a single row, without its loops
        exact: Any = column.exact
        limit = column.limit
        if count > 1:
            if column.takes(values):
                continue
        elif type(values[0]) is exact and (not limit or -limit <= values[0] < limit):
            continue
        coerced = coerce(plan, columns)
        if coerced is None:
            return None
        columns, shown, protos = coerced.keys, coerced.shown, coerced.protos
        break
    rows = plan.hit(columns, count, now_ns)
    if rows is not None:
        wall_us = runtime.clock.wall_ns() // 1_000 if plan.is_enforced else 0
        return CachedResponse(plan, shown, protos, rows, now_ns, None, wall_us, columns)
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
    return runtime.plans.compile(features, is_full, project, given, registry, now_ns)
