"""Served features against training features, for the same entities and instants.

Training is asked for the log's own rows: what `get_historical_features` says of each entity as of
the instant of its decision is what a model would be trained on. A value that differs may still be
right, and then it is the training value of another instant, which this names:

- *cached*: features may be as old as was served with them (`ages`), which is the point of a cache.
  Windows are never old, unless their view says `cache="ttl"`, so an age explains nothing of them;
- *read later*: a decision about 10:00:00.000 reads at 10:00:00.120, and what happened in between
  is seen. At most `read_within`, and only where the log says when it read (`read_at`);
- *not yet online*: a row or an event takes a moment (`lag`) from the offline side to the online;
- *written later*: the source's created timestamp says that the row was written afterwards.

How far training looks for such an instant is bounded by what the log says of each row, so a value
that is staler than its age, or of another time zone, stays unexplained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from feast import FeatureStore
from feast.value_type import ValueType

from hotplate.skew.compare import (
    CACHED,
    NOT_YET_ONLINE,
    READ_LATER,
    UNEXPLAINED,
    WRITTEN_LATER,
    Candidates,
    Verdicts,
    code_of,
    compared,
    differing,
    summed,
)
from hotplate.skew.errors import SkewError
from hotplate.skew.hints import SHIFTS_MS, called, hints_of
from hotplate.skew.history import History, View, views_of
from hotplate.skew.instants import changes_within
from hotplate.skew.report import SkewReport
from hotplate.skew.values import Values, instants_of, values_of

__all__ = ["ServedLog", "SkewSpec", "check_skew"]

_Whole = npt.NDArray[np.int64]
_INTEGERS: Final = frozenset({ValueType.INT32, ValueType.INT64})


@dataclass(frozen=True)
class ServedLog:
    """Features as they were served; a row is a decision.

    Attributes:
        frame: with the join keys, the features (`feature`, or `view__feature`) and what follows.
        at: column of the instants that training would ask for: timestamps, ISO 8601 (UTC where
            they name no zone), or whole ms since 1970.
        read_at: column of the instants at or before which features were read, likewise: when the
            decision was made. "" for the instants themselves.
        ages: view -> column of how old its row was when it was read, seconds; null is 0.
        layer: column that says what answered; "" for none.
    """

    frame: pd.DataFrame = field(repr=False)
    at: str = "event_timestamp"
    read_at: str = ""
    ages: Mapping[str, str] = field(default_factory=dict)
    layer: str = ""


@dataclass(frozen=True)
class SkewSpec:
    """How strictly is compared.

    Attributes:
        limit: greatest share of unexplained values that is accepted of a feature.
        rows: of the log that are compared at the most, drawn evenly; 0 for all.
        read_within_s: how much later than its instant a row may have been read.
        lag_s: how long a row or an event may take to come online.
        lags_s: the same of some views.
        tolerance: a difference up to this share of the greater number is a rounding; a float32 is
            one in any case.
        seed: of the draw.
    """

    limit: float = 0.0
    rows: int = 20_000
    read_within_s: float = 60.0
    lag_s: float = 1.0
    lags_s: Mapping[str, float] = field(default_factory=dict)
    tolerance: float = 0.0
    seed: int = 0


def check_skew(
    store: FeatureStore,
    features: str | Sequence[str],
    log: ServedLog,
    spec: SkewSpec | None = None,
    progress: Callable[[str], None] = lambda view: None,
) -> SkewReport:
    """Compare what was served with what training has.

    Args:
        store: of the features; only its registry and its offline store are asked.
        features: a feature service's name, or `"view:feature"` references.
        log: what was served.
        spec: how strictly.
        progress: told each view's name before it is asked for.

    Raises:
        SkewError: the log lacks a column, or the features cannot be asked for.
    """
    spec = spec or SkewSpec()
    views, left_out = views_of(store, features)
    unknown = sorted(set(spec.lags_s) - {view.name for view in views})
    if unknown:
        raise SkewError(
            where=f"lag of {unknown[0]!r}",
            problem="is of no view that is compared",
            fix=f"There are: {', '.join(view.name for view in views)}.",
        )
    rows = _Rows.of(log, views, spec)
    history = History(store)
    verdicts: dict[str, dict[str, Verdicts]] = {}
    found, not_logged, thinned = [], [], 0
    for view in views:
        progress(view.name)
        served = rows.served(view)
        not_logged += [f"{view.name}:{name}" for name in view.features if name not in served]
        if not served:
            continue
        of_view = _View(history, view, rows, spec)
        verdicts[view.name] = of_view.judge(served)
        thinned += of_view.thinned
        for name, one in verdicts[view.name].items():
            hints = hints_of(name, verdicts[view.name], of_view.shifted(name))
            found.append(summed(view.name, name, one, hints, rows.places))
    if not found:
        raise SkewError(
            where="the log",
            problem="holds none of the features",
            fix="Name columns after the features, or view__feature.",
        )
    return SkewReport(
        found,
        len(rows.at_ms),
        len(log.frame),
        spec.limit,
        int(rows.at_ms.min()),
        int(rows.at_ms.max()),
        left_out,
        not_logged,
        _by_layer(rows, verdicts),
        thinned,
        rows.read_after_s(),
        {f"{view}:{name}": one for view, of in verdicts.items() for name, one in of.items()},
    )


class _Rows:
    """The rows of a log that are compared, with keys and instants in their declared types."""

    def __init__(
        self, log: ServedLog, frame: pd.DataFrame, places: _Whole, at_ms: _Whole, read_ms: _Whole
    ) -> None:
        self.log, self.frame, self.places = log, frame, places
        self.at_ms, self.read_ms = at_ms, read_ms

    @classmethod
    def of(cls, log: ServedLog, views: Sequence[View], spec: SkewSpec) -> _Rows:
        """Check the log, and draw from it."""
        wanted = {log.at: "the instants", log.read_at: "when features were read"}
        wanted |= dict.fromkeys(log.ages.values(), "ages") | {log.layer: "the layers"}
        wanted |= {key: f"a join key of {view.name}" for view in views for key in view.keys}
        for column, what in wanted.items():
            if column and column not in log.frame:
                raise SkewError(
                    where="the log",
                    problem=f"has no column {column!r}, {what}",
                    fix=f"Its columns: {', '.join(map(str, log.frame.columns))}.",
                )
        if not len(log.frame):
            raise SkewError(where="the log", problem="has no rows", fix="Give one with decisions.")
        places = np.arange(len(log.frame))
        if 0 < spec.rows < len(places):
            drawn = np.random.default_rng(spec.seed).choice(len(places), spec.rows, replace=False)
            places = np.sort(drawn)
        frame = log.frame.iloc[places].reset_index(drop=True)
        at_ms = instants_of(frame[log.at], f"column {log.at!r} of the log")
        read_ms = at_ms
        if log.read_at:
            read_ms = instants_of(frame[log.read_at], f"column {log.read_at!r} of the log")
        for view in views:
            for column in view.table.entity_columns:
                if column.name in view.keys:
                    frame[column.name] = _keys(frame[column.name], column.dtype.to_value_type())
        return cls(log, frame, places, at_ms, read_ms)

    def read_after_s(self) -> tuple[float, float]:
        """How long after its instant a decision was made: of half of them, and of 99 %, s."""
        half, most = np.quantile((self.read_ms - self.at_ms) / 1_000, [0.5, 0.99]).tolist()
        return half, most

    def served(self, view: View) -> dict[str, Values]:
        """The features of a view that the log holds, as they were served."""
        found = {}
        for name, kind in view.features.items():
            for column in (f"{view.name}__{name}", name):
                if column in self.frame:
                    where = f"column {column!r} of the log"
                    found[name] = values_of(self.frame[column], kind, where)
                    break
        return found

    def ages_ms(self, view: View) -> _Whole:
        """How old the rows of a view were, ms, rounded up."""
        column = self.log.ages.get(view.name)
        if column is None:
            return np.zeros(len(self.frame), np.int64)
        where = f"column {column!r} of the log"
        seconds = values_of(self.frame[column], ValueType.DOUBLE, where)
        ages = np.nan_to_num(seconds, nan=0.0)
        if (ages < 0).any() or not np.isfinite(ages).all():
            raise SkewError(where=where, problem="holds ages that are none", fix="Log seconds.")
        return np.asarray(np.ceil(ages * 1_000), np.int64)


def _keys(column: pd.Series, kind: ValueType) -> pd.Series:
    """Join keys in their declared type: text files know no types."""
    try:
        if kind in _INTEGERS:
            return column.astype("int64")
        return column.astype(str) if kind == ValueType.STRING else column
    except (ValueError, TypeError) as error:
        raise SkewError(
            where=f"column {column.name!r} of the log",
            problem=f"holds what is no {kind.name}",
            fix="Leave rows without an entity out.",
        ) from error


class _View:
    """A view, as training has it for the rows."""

    def __init__(self, history: History, view: View, rows: _Rows, spec: SkewSpec) -> None:
        self._history, self._view, self._rows, self._spec = history, view, rows, spec
        self._keys = rows.frame[list(view.keys)]
        self.thinned = 0

    def judge(self, served: Mapping[str, Values]) -> dict[str, Verdicts]:
        """The verdict of each row of each feature."""
        rows, tolerance = self._rows, self._spec.tolerance
        training = self._history.ask(self._view, self._keys, rows.at_ms)
        open_rows = np.unique(
            np.concatenate(
                [differing(of, training[name], tolerance) for name, of in served.items()]
            )
        )
        found = self._candidates(open_rows) if len(open_rows) else None
        return compared(served, training, found, tolerance)

    def _candidates(self, rows: _Whole) -> Candidates:
        """Training values of some rows as of the instants that serving may have answered with."""
        view, spec = self._view, self._spec
        at_ms, low_ms = self._rows.at_ms[rows], self._rows.at_ms[rows]
        is_old = view.windowed is None or view.windowed.cache == "ttl"
        fresh_ms = at_ms - (self._rows.ages_ms(view)[rows] if is_old else 0)
        low_ms = fresh_ms - round(1_000 * spec.lags_s.get(view.name, spec.lag_s))
        latest = at_ms + round(1_000 * spec.read_within_s)
        high_ms = np.clip(self._rows.read_ms[rows], at_ms, latest)
        keys = self._keys.iloc[rows]
        changes = changes_within(self._history.store, view, keys, low_ms, high_ms)
        self.thinned += changes.thinned
        every = np.arange(len(rows))
        # as of the edges, too: a value that held there may have begun before
        places = np.concatenate([every, every, every, changes.rows])
        moments = np.concatenate([low_ms, fresh_ms, at_ms, changes.at_ms])
        reasons = np.full(len(moments), code_of(CACHED), np.int8)
        reasons[moments > at_ms[places]] = code_of(READ_LATER)
        reasons[moments < fresh_ms[places]] = code_of(NOT_YET_ONLINE)
        asked = keys.iloc[places]
        values = self._history.ask(view, asked, moments)
        if view.has_created:
            known = self._history.ask(view, asked, moments, as_known=True)
            values = {name: np.concatenate([of, known[name]]) for name, of in values.items()}
            later = np.full(len(moments), code_of(WRITTEN_LATER), np.int8)
            places, reasons = np.tile(places, 2), np.concatenate([reasons, later])
        return Candidates(rows[places], reasons, values)

    def shifted(self, name: str) -> Callable[[_Whole], Mapping[str, Values]]:
        """Training values of a feature as of other instants than the rows' own."""

        def ask(rows: _Whole) -> Mapping[str, Values]:
            at_ms = self._rows.at_ms[rows]
            moments = {called(shift_ms): at_ms + shift_ms for shift_ms in SHIFTS_MS}
            moments["when it was decided"] = self._rows.read_ms[rows]
            every = np.tile(rows, len(moments))
            asked = np.concatenate(list(moments.values()))
            found = self._history.ask(self._view, self._keys.iloc[every], asked)[name]
            return dict(zip(moments, np.split(found, len(moments)), strict=True))

        return ask


def _by_layer(
    rows: _Rows, verdicts: Mapping[str, Mapping[str, Verdicts]]
) -> dict[str, tuple[int, int]]:
    if not rows.log.layer:
        return {}
    is_bad = np.zeros(len(rows.at_ms), np.bool_)
    for of_view in verdicts.values():
        for one in of_view.values():
            is_bad[one.where(UNEXPLAINED)] = True
    layers = rows.frame[rows.log.layer].astype(str)
    found = pd.DataFrame({"layer": layers, "bad": is_bad}).groupby("layer")["bad"]
    return {
        str(layer): (int(count), int(bad))
        for layer, count, bad in zip(found.size().index, found.size(), found.sum(), strict=True)
    }
