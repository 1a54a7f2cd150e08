"""The direct reader: a batch of entities in, a float32 matrix in the model's feature order out.

Feast's own call makes a protobuf message of every value and a Python object of every message; a
model wants neither. Rows come from the same engine under the same policies as
`get_online_features`; a batch of them becomes numpy by joining their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from feast import FeatureService, FeatureStore

from hotplate.contracts import Freshness
from hotplate.serving.plan import Plan
from hotplate.serving.plans import is_not_compiled
from hotplate.serving.requests import coerce
from hotplate.serving.response import CachedResponse

if TYPE_CHECKING:
    from hotplate.serving.runtime import Runtime

__all__ = ["MatrixAnswer", "MatrixReader"]


@dataclass(frozen=True)
class MatrixAnswer:
    """A matrix and how fresh it is.

    Attributes:
        values: float32, shape (entities, features); null and unknown are NaN.
        feature_names: the columns.
    """

    values: npt.NDArray[np.float32]
    feature_names: tuple[str, ...]
    _response: CachedResponse

    def freshness(self) -> dict[str, list[Freshness]]:
        """Feature view -> one item an entity, as `CachedResponse.freshness`."""
        return self._response.freshness()


class MatrixReader:
    """Reads features as a matrix.

    Args:
        store: the Feast store.
        runtime: what is behind its cached online store.
        features: `"view:feature"` references, or a feature service.
        order: output names in the order of the matrix's columns, for a model that trusts column
            order; the order of `features` if left out.
        full_feature_names: whether output names carry the view's name.

    Raises:
        ValueError: `order` names a feature that is not read, leaves one out or repeats one; or a
            feature is not a number.
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
        self._features = list(features) if isinstance(features, list) else features
        self._is_full = full_feature_names
        self._columns: tuple[Plan, list[list[int]]] | None = None
        self.feature_names: tuple[str, ...] = tuple(order) if order is not None else self._asked()

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

    def matrix(self, entities: Mapping[str, Any]) -> npt.NDArray[np.float32]:
        """The features of a batch of entities.

        Args:
            entities: join key -> values (list, tuple, numpy array or pandas column), one an entity.

        Returns:
            float32, shape (entities, features), in the order of `feature_names`; null is NaN.

        Raises:
            ValueError: the columns are of different length, or a request that needs more than
                reading rows (on-demand views, request data).
        """
        return self.read(entities).values

    def read(self, entities: Mapping[str, Any]) -> MatrixAnswer:
        """As `matrix`, with the freshness of what was read."""
        columns, count = _columns(entities)
        if not count:
            empty = np.empty((0, len(self.feature_names)), np.float32)
            return MatrixAnswer(empty, self.feature_names, _EMPTY)
        runtime = self._runtime
        now_ns = runtime.clock.now_ns()
        plan = self._plan(tuple(entities), now_ns)
        values = coerce(plan, columns)
        if values is None:
            raise ValueError(
                "an entity value is null or not of its declared type; "
                f"columns given: {', '.join(entities)}"
            )
        answer = None
        rows = plan.hit(values.keys, count, now_ns)
        if rows is None:
            answer = runtime.engine.read(plan.wants(values.keys, count), now_ns)
            rows, now_ns = answer.rows, answer.now_ns
        response = CachedResponse(plan, values.shown, values.protos, rows, now_ns, answer)
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
            raise ValueError(
                "these features cannot be read as a matrix: they need an on-demand view, request "
                f"data, or entity columns other than {', '.join(given)}. Use get_online_features."
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


def _columns(entities: Mapping[str, Any]) -> tuple[list[list[Any]], int]:
    columns = [
        values.tolist() if hasattr(values, "tolist") else list(values)
        for values in entities.values()
    ]
    lengths = {name: len(column) for name, column in zip(entities, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"entity columns are of different length: {lengths}")
    return columns, len(columns[0]) if columns else 0
