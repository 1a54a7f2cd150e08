"""When the features of an entity change between two instants, from the rows behind them.

A feature as of t is constant between two changes, so asking as of the beginning of a stretch and as
of each change within it gives every value that it ever had there. An ordinary view changes where
its source has a row of the entity (or one was written); a windowed view where an event becomes
visible, enters a window, or leaves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from feast import FeatureStore

from hotplate.skew.errors import SkewError
from hotplate.skew.history import View
from hotplate.training.columns import codes_of, moments_of
from hotplate.training.reading import EventSource, history_of, utc
from hotplate.windows.spec import Window

__all__ = ["Changes", "changes_within"]

_Whole = npt.NDArray[np.int64]
_MOST_A_ROW: Final = 200
"""Changes that are looked at for one row; more are thinned out evenly."""


@dataclass(frozen=True)
class Changes:
    """Changes of the features of rows.

    Attributes:
        rows: int64 (n,), which row each is of.
        at_ms: int64 (n,), when.
        thinned: rows that have more changes than are looked at.
    """

    rows: _Whole
    at_ms: _Whole
    thinned: int = 0


def changes_within(
    store: FeatureStore, view: View, keys: pd.DataFrame, low_ms: _Whole, high_ms: _Whole
) -> Changes:
    """The changes in (low, high] of each row's own stretch.

    Args:
        store: whose offline store has the sources.
        view: whose features.
        keys: its join keys, a row an entity.
        low_ms, high_ms: (rows,), ms since 1970.

    Raises:
        SkewError: the source cannot be read.
    """
    if not len(keys):
        return Changes(np.empty(0, np.int64), np.empty(0, np.int64))
    given = [pa.array(keys[name], from_pandas=True) for name in view.keys]
    try:
        low, high = int(low_ms.min()), int(high_ms.max())
        if view.windowed is None:
            found = _of_source(store, view, given, len(keys), low, high)
        else:
            found = _of_events(store, view, given, low, high)
    except SkewError:
        raise
    except Exception as error:
        raise SkewError(
            where=f"source of feature view {view.name!r}",
            problem=f"cannot be read: {' '.join(str(error).split())}",
            fix="The offline store must be able to read what training reads.",
        ) from error
    return _between(found, low_ms, high_ms)


@dataclass(frozen=True)
class _Found:
    """Moments by entity: codes and ms of the moments, codes of the rows."""

    owners: _Whole
    at_ms: _Whole
    rows: _Whole


def _of_source(
    store: FeatureStore, view: View, keys: Sequence[Any], count: int, low_ms: int, high_ms: int
) -> _Found:
    source = view.table.batch_source
    named = {new: old for old, new in (source.field_mapping or {}).items()}
    columns = [named.get(name, name) for name in view.keys]
    created = source.created_timestamp_column or None
    job = store._get_provider().offline_store.pull_all_from_table_or_query(
        config=store.config,
        data_source=source,
        join_key_columns=columns,
        feature_name_columns=[named.get(name, name) for name in view.features],
        timestamp_field=source.timestamp_field,
        created_timestamp_column=created,
        start_date=utc(max(low_ms, 0)),
        end_date=utc(max(high_ms, 0)) + timedelta(milliseconds=1),
    )
    table = job.to_arrow()
    codes = codes_of([table.column(name) for name in columns], keys, view.keys) if columns else None
    owners = codes.events if codes else np.zeros(table.num_rows, np.int64)
    rows = codes.rows if codes else np.zeros(count, np.int64)
    stamps = [source.timestamp_field, *([created] if created else [])]
    # rounded up: as of the millisecond before, it had not happened
    moments = [_up(moments_of(table.column(name), f"column {name!r}")) for name in stamps]
    return _Found(np.tile(owners, len(moments)), np.concatenate(moments), rows)


def _up(moments: npt.NDArray[Any]) -> _Whole:
    whole = moments.astype("datetime64[ms]")
    return np.asarray(whole.view(np.int64) + (whole < moments), np.int64)


def _of_events(
    store: FeatureStore, view: View, keys: Sequence[Any], low_ms: int, high_ms: int
) -> _Found:
    said = view.windowed
    assert said is not None
    windows = sorted({one for aggregate in said.spec.aggregates for one in aggregate.windows})
    source = EventSource(store.get_feature_view(said.events))
    reach = max(one.reach_ms + one.hop_ms for one in windows)
    begin = low_ms - reach - source.table.spec.lateness_ms
    offline = store._get_provider().offline_store
    history = history_of(source.table, source.pull(offline, store.config, begin, high_ms))
    codes = codes_of(history.keys, keys, view.keys)
    is_asked = np.isin(codes.events, codes.rows)
    ts, arrivals = history.events.ts[is_asked], history.events.arrivals[is_asked]
    moments = [np.maximum(arrivals, ts + 1)]
    for window in windows:
        moments += [np.maximum(_enters(window, ts), arrivals), _leaves(window, ts)]
    owners = np.tile(codes.events[is_asked], len(moments))
    at_ms = np.concatenate(moments)
    is_within = (at_ms > low_ms) & (at_ms <= high_ms)
    return _Found(owners[is_within], at_ms[is_within], codes.rows)


def _enters(window: Window, ts_ms: _Whole) -> _Whole:
    """`Window.enters_at` of many."""
    if not window.delay_ms:
        return ts_ms + 1
    return ts_ms // window.hop_ms * window.hop_ms + window.hop_ms + window.delay_ms


def _leaves(window: Window, ts_ms: _Whole) -> _Whole:
    """`Window.leaves_at` of many."""
    return ts_ms // window.hop_ms * window.hop_ms + window.hop_ms + window.reach_ms


def _between(found: _Found, low_ms: _Whole, high_ms: _Whole) -> Changes:
    """The moments of each row's entity in (low, high]: two searches in one sorted order."""
    if not len(found.at_ms):
        return Changes(np.empty(0, np.int64), np.empty(0, np.int64))
    moments = np.unique(found.at_ms)
    width = len(moments) + 1
    ordered = np.unique(found.owners * width + np.searchsorted(moments, found.at_ms))
    base = found.rows * width
    begin = np.searchsorted(ordered, base + np.searchsorted(moments, low_ms, "right"))
    end = np.searchsorted(ordered, base + np.searchsorted(moments, high_ms, "right"))
    counts = np.where(found.rows < 0, 0, end - begin)
    taken = np.minimum(counts, _MOST_A_ROW)
    rows = np.repeat(np.arange(len(counts)), taken)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(taken) - taken, taken)
    step = np.repeat(counts / np.maximum(taken, 1), taken)
    chosen = ordered[np.repeat(begin, taken) + (place * step).astype(np.int64)]
    thinned = int((counts > _MOST_A_ROW).sum())
    return Changes(rows, moments[chosen % width], thinned)
