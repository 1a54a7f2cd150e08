"""Which columns of a historical retrieval are windowed, and how they are computed.

Ordinary feature views go to the offline store as they always did. What it answers are the rows; to
each the windowed features are added as of the row's own timestamp: what a read of that entity at
that instant would have answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from feast import FeatureView
from feast.errors import FeastObjectNotFoundException
from feast.utils import _parse_feature_ref

from hotplate.training.columns import codes_of, moments_of
from hotplate.training.errors import TrainingError
from hotplate.training.outputs import as_arrow
from hotplate.training.reading import EventSource, EventTable, history_of
from hotplate.windowed import windowed_of
from hotplate.windows.offline import Moments, outputs_at
from hotplate.windows.spec import WindowSpec

__all__ = ["Split", "Wanted", "WantedOfEvents", "WindowedColumns", "moments_in", "split"]


@dataclass(frozen=True)
class Wanted:
    """Some outputs of one windowed view, for one way of naming its entities.

    Attributes:
        name: of the view, as it is asked for.
        spec: the outputs that are wanted.
        join_keys: for each join key of the events the column of the rows that holds it.
        columns: names of the columns to add, one for each output.
    """

    name: str
    spec: WindowSpec
    join_keys: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def kinds(self) -> dict[str, str]:
        """Column -> `"int64"` or `"float64"`."""
        return dict(zip(self.columns, self.spec.output_types.values(), strict=True))

    def empty(self, table: pa.Table) -> pa.Table:
        """The table of no rows with the columns."""
        return self.added(table, np.empty((0, len(self.columns))))

    def added(self, table: pa.Table, found: npt.NDArray[np.float64]) -> pa.Table:
        """The table with the columns: float64 (rows, outputs)."""
        for number, (column, kind) in enumerate(self.kinds.items()):
            table = table.append_column(column, as_arrow(found[:, number], kind))
        return table


@dataclass(frozen=True)
class WantedOfEvents:
    """All that is wanted of the events of one view; needs no registry.

    Attributes:
        events: how the events lie in a table.
        wanted: the outputs.
    """

    events: EventTable
    wanted: tuple[Wanted, ...]

    @property
    def reach_ms(self) -> int:
        """How long before a moment an event can have happened that counts at it."""
        windows = [window for one in self.wanted for window in one.spec.windows]
        back = max(window.reach_ms + window.hop_ms for window in windows)
        return back + self.events.spec.lateness_ms

    def add(self, table: pa.Table, timestamp: str, events: pa.Table) -> pa.Table:
        """The rows with the columns, as of each row's own timestamp.

        Args:
            table: the rows.
            timestamp: the column that says when each row is.
            events: all events that can count for them.

        Raises:
            TrainingError: rows or events are not as they must be.
        """
        t_ms = moments_in(table, timestamp)
        history = history_of(self.events, events)
        for wanted in self.wanted:
            rows = [table.column(key) for key in wanted.join_keys]
            codes = codes_of(history.keys, rows, wanted.join_keys)
            is_known = codes.rows >= 0  # no key, no entity: null, as for any feature view
            found = np.full((table.num_rows, len(wanted.columns)), np.nan)
            found[is_known] = outputs_at(
                wanted.spec,
                history.events,
                codes.events,
                Moments(codes.rows[is_known], t_ms[is_known]),
            )
            table = wanted.added(table, found)
        return table


@dataclass(frozen=True)
class Split:
    """The two halves of a retrieval.

    Attributes:
        ordinary: feature views for the offline store.
        refs: their feature references.
        windowed: the other views.
        windowed_refs: theirs.
    """

    ordinary: list[Any]
    refs: list[str]
    windowed: list[FeatureView]
    windowed_refs: list[str]


def split(feature_views: Sequence[Any], feature_refs: Sequence[str]) -> Split:
    """Tell windowed feature views from all others."""
    ordinary = [view for view in feature_views if windowed_of(view) is None]
    windowed = [view for view in feature_views if windowed_of(view) is not None]
    return Split(ordinary, _refs(feature_refs, ordinary), windowed, _refs(feature_refs, windowed))


def _refs(feature_refs: Sequence[str], views: Sequence[Any]) -> list[str]:
    """The references to these views; those to on-demand views are to none."""
    names = {view.projection.name_to_use() for view in views}
    return [ref for ref in feature_refs if _view_of(ref) in names]


def _view_of(ref: str) -> str:
    """The name that a reference gives a view."""
    view, version, _ = _parse_feature_ref(ref)
    return view if version is None else f"{view}@v{version}"


class WindowedColumns:
    """The windowed columns of a retrieval, ready to be computed for its rows.

    Args:
        parts: the retrieval.
        registry, project: where the event views are found.
        full_feature_names: whether columns are named after their view, too.
        offline_store, config: where the events are read.

    Raises:
        TrainingError: a view cannot be computed; the message says why.
    """

    def __init__(
        self,
        parts: Split,
        registry: Any,
        project: str,
        *,
        full_feature_names: bool,
        offline_store: Any,
        config: Any,
    ) -> None:
        self._offline_store, self._config = offline_store, config
        sources: dict[str, EventSource] = {}
        wanted: dict[str, list[Wanted]] = {}
        for view in parts.windowed:
            name = view.projection.name_to_use()
            outputs = [_feature(ref) for ref in parts.windowed_refs if _view_of(ref) == name]
            said = windowed_of(view)
            assert said is not None
            if said.events not in sources:
                sources[said.events] = _source(view.name, said.events, registry, project)
            key_map = view.projection.join_key_map
            wanted.setdefault(said.events, []).append(
                Wanted(
                    name,
                    _only(said.spec, dict.fromkeys(outputs)),
                    tuple(key_map.get(key, key) for key in sources[said.events].table.join_keys),
                    tuple(
                        f"{name}__{output}" if full_feature_names else output
                        for output in dict.fromkeys(outputs)
                    ),
                )
            )
        self.by_source = [
            (source, WantedOfEvents(source.table, tuple(wanted[name])))
            for name, source in sources.items()
        ]
        """The wanted outputs, those of one event view together: its events are read once."""

    @property
    def _wanted(self) -> list[Wanted]:
        return [one for _, of_events in self.by_source for one in of_events.wanted]

    def check(self, columns: Iterable[str]) -> None:
        """Make sure that rows of these columns can be given the windowed ones.

        Raises:
            TrainingError: a join key is missing, or a name is taken.
        """
        given = set(columns)
        for wanted in self._wanted:
            where = f"windowed view {wanted.name!r}"
            for key in wanted.join_keys:
                if key not in given:
                    raise TrainingError(
                        where=where,
                        problem=f"the entity rows have no column {key!r}",
                        fix="Add it: it says whose windows are meant.",
                    )
            for column in wanted.columns:
                if column in given:
                    raise TrainingError(
                        where=where,
                        problem=f"there is a column {column!r} already",
                        fix="Rename the column of the entity rows, or ask for full_feature_names.",
                    )

    def add(self, table: pa.Table, timestamp: str) -> pa.Table:
        """The table with the windowed columns, as of each row's own timestamp.

        Args:
            table: the rows.
            timestamp: the column that says when each row is.

        Raises:
            TrainingError: rows or events are not as they must be.
        """
        self.check(table.column_names)
        if not table.num_rows:
            for wanted in self._wanted:
                table = wanted.empty(table)
            return table
        t_ms = moments_in(table, timestamp)
        for source, of_events in self.by_source:
            start_ms = int(t_ms.min()) - of_events.reach_ms
            events = source.pull(self._offline_store, self._config, start_ms, int(t_ms.max()))
            table = of_events.add(table, timestamp, events)
        return table


def _feature(ref: str) -> str:
    return str(_parse_feature_ref(ref)[2])


def _source(view: str, events: str, registry: Any, project: str) -> EventSource:
    try:
        return EventSource(registry.get_feature_view(events, project))
    except FeastObjectNotFoundException as error:
        raise TrainingError(
            where=f"windowed view {view!r}",
            problem=f"its event view {events!r} is not in the registry",
            fix="Bind both results of windowed_view(...) to names of the module and run "
            "`feast apply`.",
        ) from error


def _only(spec: WindowSpec, outputs: Iterable[str]) -> WindowSpec:
    by_name = {one.name: one for one in spec.aggregates}
    return WindowSpec(spec.event, tuple(by_name[name] for name in outputs))


def moments_in(table: pa.Table, timestamp: str) -> npt.NDArray[np.int64]:
    """When each row is, in ms since 1970.

    Raises:
        TrainingError: a row has no timestamp.
    """
    where = f"entity rows, column {timestamp!r}"
    moments = moments_of(table.column(timestamp), where)
    if np.isnat(moments).any():
        raise TrainingError(
            where=where,
            problem=f"{int(np.isnat(moments).sum()):,} rows have no timestamp",
            fix="Say as of when each row is meant, or leave such rows out.",
        )
    return moments.astype("datetime64[ms]").view(np.int64)
