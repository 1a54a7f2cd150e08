"""The direct reader: a batch of entities in, a float32 matrix in the model's feature order out.

Feast's own call makes a protobuf message of every value and a Python object of every message; a
model wants neither. Rows come from the same engine under the same policies as
`get_online_features`; a batch of them becomes numpy by joining their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from feast import FeatureService, FeatureStore, utils
from feast.feature_view import DUMMY_ENTITY_ID

from hotplate.contracts import Freshness
from hotplate.serving.entities import as_columns
from hotplate.serving.plan import Plan
from hotplate.serving.plans import is_not_compiled
from hotplate.serving.requests import coerce
from hotplate.serving.response import CachedResponse

if TYPE_CHECKING:
    from hotplate.serving.runtime import Runtime

__all__ = ["MatrixAnswer", "MatrixReader"]


@dataclass(frozen=True)
class MatrixAnswer:
    """A matrix, Feast's statuses of its values, and how fresh it is.

    Attributes:
        values: float32, shape (entities, features); null and unknown are NaN.
        feature_names: the columns.
    """

    values: npt.NDArray[np.float32]
    feature_names: tuple[str, ...]
    _response: CachedResponse

    @cached_property
    def statuses(self) -> npt.NDArray[np.uint8]:
        """Feast's `FieldStatus` of each value, in the matrix's shape; made when first asked for.

        With `enforce_max_age` a value past its feature view's own `ttl` is `OUTSIDE_MAX_AGE`
        here, and in `values` what the store holds, as in Feast's own response.
        """
        if not len(self.values):
            return np.empty(self.values.shape, np.uint8)
        answer = self._response.proto
        read = dict(zip(answer.metadata.feature_names.val, answer.results, strict=True))
        return np.array([read[name].statuses for name in self.feature_names], np.uint8).T

    def freshness(self) -> dict[str, list[Freshness]]:
        """Feature view -> one item an entity, as `CachedResponse.freshness`."""
        return self._response.freshness()

    def ages_s(self) -> dict[str, npt.NDArray[np.float64]]:
        """Feature view -> ages, seconds, float64 (entities,), as `CachedResponse.ages_s`."""
        return self._response.ages_s()


class MatrixReader:
    """Reads features as a matrix. Made by `Hotplate.reader`, which says what it takes.

    Attributes:
        feature_names: the matrix's columns, by output name.
        join_keys: the entity columns that a batch must have, in any order.
    """

    def __init__(
        self,
        store: FeatureStore,
        runtime: Runtime,
        features: list[str] | FeatureService,
        order: Sequence[str] | None = None,
        full_feature_names: bool = False,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._features = _checked(features)
        self._is_full = full_feature_names
        self._columns: tuple[Plan, list[list[int]]] | None = None
        if isinstance(order, str):
            raise TypeError("the order is a text: give a list of output names")
        # the same resolution as a request's, so that what is wrong shows here and not in production
        registry, project = store.registry, store.project
        context = utils._get_cached_request_context(
            registry, project, self._features, self._is_full
        )
        self.join_keys = _join_keys(context)
        self.feature_names: tuple[str, ...] = tuple(self._asked() if order is None else order)
        self._into(self._plan(self.join_keys, runtime.clock.now_ns()))

    def __repr__(self) -> str:
        return f"MatrixReader({len(self.feature_names)} features by {', '.join(self.join_keys)})"

    def _asked(self) -> tuple[str, ...]:
        if isinstance(self._features, list):
            refs = self._features
        else:
            service = self._store.registry.get_feature_service(
                self._features.name, self._store.project, allow_cache=True
            )
            refs = [
                f"{projection.name_to_use()}:{field.name}"
                for projection in service.feature_view_projections
                for field in projection.features
            ]
        views_and_names = [ref.split(":", 1) for ref in refs]
        return tuple(f"{view}__{name}" if self._is_full else name for view, name in views_and_names)

    def matrix(self, entities: Any) -> npt.NDArray[np.float32]:
        """The features of a batch of entities.

        Args:
            entities: join key -> values (list, tuple, numpy array or pandas column), a DataFrame
                of the join keys, or a list of rows as Feast takes them.

        Returns:
            float32, shape (entities, features), in the order of `feature_names`; null is NaN.

        Raises:
            TypeError: `entities` is in none of these forms.
            ValueError: a join key is missing, there is a column that is none, columns are of
                different length, or a value is null or not of its declared type.
        """
        return self.read(entities).values

    def read(self, entities: Any) -> MatrixAnswer:
        """As `matrix`, with the statuses and the freshness of what was read."""
        columns, count = as_columns(entities)
        if not count:
            empty = np.empty((0, len(self.feature_names)), np.float32)
            return MatrixAnswer(empty, self.feature_names, _EMPTY)
        runtime = self._runtime
        now_ns = runtime.clock.now_ns()
        plan = self._plan(tuple(columns), now_ns)
        values = coerce(plan, list(columns.values()))
        if values is None:
            raise ValueError(
                "an entity value is null or not of its declared type; "
                f"columns given: {', '.join(columns)}"
            )
        answer = None
        rows = plan.hit(values.keys, count, now_ns)
        if rows is None:
            answer = runtime.engine.read(plan.wants(values.keys, count), now_ns)
            rows, now_ns = plan.with_defaults(answer.rows), answer.now_ns
        wall_us = runtime.clock.wall_ns() // 1_000 if plan.is_enforced else 0
        response = CachedResponse(
            plan, values.shown, values.protos, rows, now_ns, answer, wall_us, values.keys
        )
        return MatrixAnswer(self._fill(plan, rows, count), self.feature_names, response)

    def _fill(
        self, plan: Plan, rows: Sequence[Sequence[bytes]], count: int
    ) -> npt.NDArray[np.float32]:
        out = np.empty((count, len(self.feature_names)), np.float32)
        for group, group_rows, into in zip(plan.groups, rows, self._into(plan), strict=True):
            group.view.layout.fill_matrix(group_rows, group.positions, out, into)
        return out

    def _plan(self, given: tuple[str, ...], now_ns: int) -> Plan:
        runtime, store = self._runtime, self._store
        registry, project = store.registry, store.project
        plan = runtime.plans.find(self._features, self._is_full, project, given, registry, now_ns)
        if is_not_compiled(plan):
            plan = runtime.plans.compile(
                self._features, self._is_full, project, given, registry, now_ns
            )
        if not isinstance(plan, Plan):
            if set(given) != set(self.join_keys):
                raise ValueError(
                    f"the features are keyed by {', '.join(self.join_keys)}; the columns given are "
                    f"{', '.join(given)}"
                )
            raise ValueError(
                "these features cannot be read as a matrix: they need an on-demand view or request "
                "data, or two have one name (full_feature_names keeps them apart). Otherwise use "
                "get_online_features."
            )
        return plan

    def _into(self, plan: Plan) -> list[list[int]]:
        """For each group of the plan, the matrix column of each of its outputs."""
        if self._columns is None or self._columns[0] is not plan:
            self._columns = (plan, self._match(plan))
        return self._columns[1]

    def _match(self, plan: Plan) -> list[list[int]]:
        column_of = {name: index for index, name in enumerate(self.feature_names)}
        read = [name for group in plan.groups for name in group.names]
        missing = sorted(set(self.feature_names) - set(read))
        extra = sorted(set(read) - set(column_of))
        if missing or extra or len(column_of) != len(self.feature_names):
            raise ValueError(
                "the order does not name exactly the features read: "
                f"not read: {missing or 'none'}; not in the order: {extra or 'none'}; "
                f"repeated: {len(self.feature_names) - len(column_of)}"
            )
        for group in plan.groups:
            for name, position in zip(group.names, group.positions, strict=True):
                column = group.view.layout.columns[position]
                if not group.view.layout.is_numeric(column.name):
                    raise ValueError(
                        f"feature {name!r} is {column.value_type.name}, not a number or a boolean: "
                        "leave it out, or read it with get_online_features"
                    )
        return [[column_of[name] for name in group.names] for group in plan.groups]


_EMPTY = CachedResponse.__new__(CachedResponse)


def _checked(features: Any) -> list[str] | FeatureService:
    if isinstance(features, FeatureService):
        return features
    if isinstance(features, str):
        hint = (
            f"write [{features!r}]"
            if ":" in features
            else f"write store.get_feature_service({features!r}) for a feature service"
        )
        raise TypeError(f"the features are a text: {hint}")
    if not isinstance(features, Sequence) or not features:
        raise TypeError("features must be a list such as ['view:feature'], or a feature service")
    for ref in features:
        if not isinstance(ref, str) or ":" not in ref:
            raise ValueError(f"{ref!r} names no feature of a view: write 'view:feature'")
    return list(features)


def _join_keys(context: tuple[Any, ...]) -> tuple[str, ...]:
    """The entity columns that a request needs, from Feast's resolution of it."""
    entity_map, grouped_refs = context[2], context[5]
    needed: dict[str, None] = {}
    for table, _ in grouped_refs:
        renamed = table.projection.join_key_map
        for entity in table.entities:
            needed[renamed.get(entity_map[entity], entity_map[entity])] = None
    needed.pop(DUMMY_ENTITY_ID, None)
    return tuple(needed)
