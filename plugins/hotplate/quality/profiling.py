"""Measures what a table looks like, for a reference."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hotplate.quality.errors import QualityError
from hotplate.quality.frames import Frames, as_utc
from hotplate.quality.kinds import NUMERIC, TEXT, TIMES, kind_of
from hotplate.quality.reference import ColumnProfile, ViewProfile
from hotplate.quality.subject import CREATED, FEATURE, MOMENT, Column, Subject

__all__ = ["disorder_of", "profile"]

_QUANTILES: Final = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_FEW: Final = 30
_ROWS_A_VALUE: Final = 20


def profile(
    subject: Subject, frames: Frames, now: datetime, private: Collection[str] = ()
) -> ViewProfile:
    """Measure a table.

    Args:
        subject: what it is.
        frames: its rows.
        now: with a time zone.
        private: columns of which no value is kept.

    Raises:
        QualityError: a declared column is not there, or there are no rows.
    """
    names = frames.schema.names
    missing = [one.name for one in subject.columns if one.name not in names]
    if missing:
        raise QualityError(
            where=f"profile of {subject.name!r}",
            problem=f"its data has no column {missing[0]!r}; it has {', '.join(names)}",
            fix="A reference is made of good data: mend it, or name other data with --file.",
        )
    if not frames.rows:
        raise QualityError(
            where=f"profile of {subject.name!r}",
            problem="its data has no rows",
            fix="A reference is made of good data: name some with --file.",
        )
    hidden = {*private, *subject.masked}
    columns = {
        one.name: _column(one, frames, is_private=one.name in hidden) for one in subject.columns
    }
    since, until, gap_s = _moments(subject, frames)
    return ViewProfile(
        rows=frames.rows,
        since=since,
        until=until,
        gap_s=gap_s,
        late_s=0.0 if until is None else max(0.0, (now - until).total_seconds()),
        disorder=_disorder(subject, frames),
        columns=columns,
    )


def _column(column: Column, frames: Frames, *, is_private: bool) -> ColumnProfile:
    values = frames.read([column.name]).column(0)
    stored = values.type
    kind = kind_of(stored)
    if pa.types.is_dictionary(stored):
        values = values.cast(stored.value_type)
    rows = max(1, len(values))
    nulls = values.null_count
    if kind in NUMERIC:
        values = values.cast(pa.float64(), safe=False)
        is_there = pc.is_finite(values)
        nulls += int(pc.sum(pc.is_nan(values)).as_py() or 0)
        values = values.filter(is_there)
    said = ColumnProfile(str(stored), nulls / rows)
    if column.role in (MOMENT, CREATED) or kind in TIMES:
        return said
    distinct = _distinct(values)
    if is_private or column.role != FEATURE:
        return ColumnProfile(str(stored), nulls / rows, distinct)
    if kind in NUMERIC and len(values):
        ends = pc.min_max(values).as_py()
        quantiles = pc.quantile(values, list(_QUANTILES)).to_pylist()
        return ColumnProfile(
            str(stored),
            nulls / rows,
            distinct,
            range=(ends["min"], ends["max"]),
            quantiles=tuple(float(one) for one in quantiles),
        )
    is_few = distinct is not None and 0 < distinct <= min(_FEW, rows / _ROWS_A_VALUE)
    if kind == TEXT and is_few:
        texts = sorted(one for one in pc.unique(values).to_pylist() if one is not None)
        return ColumnProfile(str(stored), nulls / rows, distinct, values=tuple(texts))
    return ColumnProfile(str(stored), nulls / rows, distinct)


def _distinct(values: Any) -> int | None:
    try:
        return int(pc.count_distinct(values, mode="only_valid").as_py())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # of lists and maps there is no count
        return None


def _moments(subject: Subject, frames: Frames) -> tuple[datetime | None, datetime | None, float]:
    if not subject.moment:
        return None, None, 0.0
    column = as_utc(frames.read([subject.moment])).column(0)
    if not pa.types.is_timestamp(column.type):
        return None, None, 0.0
    micros = np.unique(
        column.cast(pa.timestamp("us", "UTC"), safe=False).drop_null().cast(pa.int64()).to_numpy()
    )
    if not len(micros):
        return None, None, 0.0
    gap_s = float(np.diff(micros).max()) / 1e6 if len(micros) > 1 else 0.0
    since, until = (datetime.fromtimestamp(int(at) / 1e6, UTC) for at in micros[[0, -1]])
    return since, until, gap_s


def _disorder(subject: Subject, frames: Frames) -> float:
    if not (subject.moment and subject.created and subject.keys):
        return 0.0
    table = as_utc(frames.read([*subject.keys, subject.moment, subject.created])).drop_null()
    if not table.num_rows:
        return 0.0
    return float(disorder_of(table.to_pandas()).mean())


def disorder_of(frame: Any) -> Any:
    """Which rows became known after a row of the same entity and a later moment had.

    Args:
        frame: a pandas frame of the keys, then the moment, then since when it was known.

    Returns:
        A boolean series with the frame's index.
    """
    *keys, moment, created = list(frame.columns)
    ordered = frame.sort_values([*keys, created, moment], kind="stable")
    at = ordered[moment].astype("int64") if len(ordered) else ordered[moment]
    newest = at.groupby([ordered[key] for key in keys], sort=False).cummax()
    return (at < newest).reindex(frame.index)
