"""What training would have got: features of entities as of instants, from Feast itself.

Each view is asked for by itself, with each (entity, instant) once, because Feast's file store
answers one row for several of one entity and one instant, and leaves a row out altogether where all
rows of its entity come later. What is left out is null.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from feast import FeatureService, FeatureStore
from feast.feature_view import DUMMY_ENTITY_ID
from feast.value_type import ValueType

from hotplate.skew.errors import SkewError
from hotplate.skew.values import Values, values_of
from hotplate.windowed import WindowedView, windowed_of

__all__ = ["History", "View", "views_of"]

_AT: Final = "event_timestamp"
_ROW: Final = "hotplate_row"
_ASKED_AT_ONCE: Final = 100_000


@dataclass(frozen=True)
class View:
    """A feature view that is compared.

    Attributes:
        name: of the view.
        keys: its join keys.
        features: name -> declared type.
        windowed: its windows, where it has some.
        table: Feast's object.
    """

    name: str
    keys: tuple[str, ...]
    features: Mapping[str, ValueType]
    windowed: WindowedView | None
    table: Any

    @property
    def has_created(self) -> bool:
        """Whether its source says when each row was written."""
        source = self.table.batch_source
        return self.windowed is None and bool(getattr(source, "created_timestamp_column", ""))


def views_of(
    store: FeatureStore, features: str | Sequence[str]
) -> tuple[list[View], Mapping[str, str]]:
    """The views behind a feature service, or behind references.

    Args:
        store: the feature store.
        features: the service's name, or `"view:feature"` references.

    Returns:
        The views; and those that cannot be compared, with why.

    Raises:
        SkewError: there is no such service or view.
    """
    wanted: dict[str, list[str]] = {}
    left_out: dict[str, str] = {}
    if isinstance(features, str):
        for projection in _service(store, features).feature_view_projections:
            if projection.name_alias or projection.join_key_map:
                left_out[projection.name_to_use()] = "it is read under another name or key"
            else:
                names = [feature.name for feature in projection.features]
                wanted.setdefault(projection.name, []).extend(names)
    else:
        for reference in features:
            view, colon, name = reference.partition(":")
            if not (view and colon and name):
                raise SkewError(
                    where=f"feature {reference!r}",
                    problem="names no feature of a view",
                    fix="Write view:feature.",
                )
            wanted.setdefault(view, []).append(name)
    on_demand = {view.name for view in store.list_on_demand_feature_views()}
    found = []
    for name, names in wanted.items():
        if name in on_demand:
            left_out[name] = "it is computed on demand: compare what it is computed from"
        else:
            found.append(_view(store, name, names))
    return found, left_out


def _service(store: FeatureStore, name: str) -> FeatureService:
    try:
        return store.get_feature_service(name)
    except Exception as error:
        known = ", ".join(sorted(one.name for one in store.list_feature_services())) or "none"
        raise SkewError(
            where=f"feature service {name!r}",
            problem="is not in the registry",
            fix=f"There are: {known}.",
        ) from error


def _view(store: FeatureStore, name: str, names: Sequence[str]) -> View:
    tables = {one.name: one for one in store.list_all_feature_views()}
    if name not in tables:
        raise SkewError(
            where=f"feature view {name!r}",
            problem="is not in the registry",
            fix=f"There are: {', '.join(sorted(tables)) or 'none'}.",
        )
    table = tables[name]
    types = {feature.name: feature.dtype.to_value_type() for feature in table.features}
    missing = [one for one in names if one not in types]
    if missing:
        raise SkewError(
            where=f"feature view {name!r}",
            problem=f"has no feature {missing[0]!r}",
            fix=f"It has: {', '.join(types)}.",
        )
    keys = tuple(column.name for column in table.entity_columns if column.name != DUMMY_ENTITY_ID)
    return View(name, keys, {one: types[one] for one in names}, windowed_of(table), table)


class History:
    """Asks a feature store for features as of instants.

    Args:
        store: whose offline store answers.
    """

    def __init__(self, store: FeatureStore) -> None:
        self.store = store

    def ask(
        self,
        view: View,
        keys: pd.DataFrame,
        at_ms: npt.NDArray[np.int64],
        *,
        as_known: bool = False,
    ) -> dict[str, Values]:
        """The features of entities, each as of its own instant.

        Args:
            view: of which.
            keys: its join keys, a row an entity.
            at_ms: (rows,), ms since 1970.
            as_known: leave out what was written after the instant, where the source says when.

        Returns:
            Feature -> (rows,), as `values_of`.

        Raises:
            SkewError: the offline store cannot answer; the message has its own words.
        """
        moments = pd.to_datetime(at_ms, unit="ms", utc=True)
        rows = keys[list(view.keys)].reset_index(drop=True).assign(**{_AT: moments})
        distinct = rows.drop_duplicates(ignore_index=True)
        distinct = distinct.assign(**{_ROW: np.arange(len(distinct))})
        parts = [
            self._asked(view, distinct.iloc[at : at + _ASKED_AT_ONCE], as_known)
            for at in range(0, len(distinct), _ASKED_AT_ONCE)
        ]
        found = pd.concat(parts) if parts else pd.DataFrame({_ROW: [], **_none(view.features)})
        # one row each, also where an offline store answers more for ties within its source
        found = found.drop_duplicates(_ROW, keep="last").set_index(_ROW)
        places = rows.merge(distinct, how="left", on=[*view.keys, _AT])[_ROW]
        answered = found.reindex(places.to_numpy())
        return {
            name: values_of(answered[name], kind, f"training values of {view.name}:{name}")
            for name, kind in view.features.items()
        }

    def _asked(self, view: View, rows: pd.DataFrame, as_known: bool) -> pd.DataFrame:
        references = [f"{view.name}:{name}" for name in view.features]
        more = {"filter_by_created_timestamp": True} if as_known else {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                job = self.store.get_historical_features(rows, references, **more)
                found = job.to_df()
        except Exception as error:
            raise SkewError(
                where=f"feature view {view.name!r}",
                problem=f"the offline store cannot answer: {' '.join(str(error).split())}",
                fix="Try store.get_historical_features on a row of the log.",
            ) from error
        return found[[_ROW, *view.features]]


def _none(names: Iterable[str]) -> dict[str, list[Any]]:
    return {name: [] for name in names}
