"""Faults that are planted in good data, and what must name each of them.

A gate that passes everything passes good data, too: each of these must be caught by the check that
is for it, at the column that it is in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from hotplate.quality.outcome import Checked, Outcome
from pipelines.fraud.ledger import DECISIONS
from pipelines.quality.stage import Stage

__all__ = ["FAULTS", "Fault", "caught", "plant"]

_AT: Final = "event_timestamp"


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: what is wrong, in words.
        view: in whose data.
        column: in which column it must be seen.
        check: by which check.
        plant: makes a frame wrong; it is given a copy.
        table: the file of the data.
    """

    name: str
    view: str
    column: str
    check: str
    plant: Callable[[pd.DataFrame], pd.DataFrame | pa.Table]
    table: str


def _some(frame: pd.DataFrame, share: float) -> Any:
    """Rows drawn evenly over a frame."""
    count = max(1, round(len(frame) * share))
    return frame.index[np.linspace(0, len(frame) - 1, count).astype(int)]


def _set(column: str, share: float, value: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Change some rows; `value` is one, or makes them of what they were."""

    def plant(frame: pd.DataFrame) -> pd.DataFrame:
        rows = _some(frame, share)
        made = value(frame.loc[rows, column]) if callable(value) else value
        if made is None and frame[column].dtype.kind in "iu":
            frame[column] = frame[column].astype("Int64")
        frame.loc[rows, column] = made
        return frame

    return plant


def _doubled(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame.loc[_some(frame, 0.02)]], ignore_index=True)


def _naive(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(**{_AT: frame[_AT].dt.tz_localize(None)})


def _stale(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame[_AT] < frame[_AT].max() - timedelta(days=40)]


def _as_text(column: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.assign(**{column: frame[column].astype(str)})


def _half(column: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.assign(**{column: frame[column] + 0.5})


def _hundredfold(column: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.assign(**{column: frame[column] * 100})


def _lost(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.tail(len(frame) // 4)


def _strangers(frame: pd.DataFrame) -> pd.DataFrame:
    rows = frame.index[frame["customer_id"] % 3 == 0]
    frame.loc[rows, "customer_id"] += 10**9
    return frame


def _late(frame: pd.DataFrame) -> pd.DataFrame:
    """Every tenth payment becomes known a month late, after many newer ones of its card."""
    rows = frame.index[::10]
    frame.loc[rows, "arrived"] += timedelta(days=30)
    return frame


def _known_before(frame: pd.DataFrame) -> pd.DataFrame:
    frame.loc[_some(frame, 0.02), "arrived"] -= timedelta(hours=1)
    return frame


def _ahead(moments: Any) -> Any:
    return moments + timedelta(days=60)


_PROFILE, _EVENTS = "customer_profile", "card_windows_events"
FAULTS: Final = (
    Fault("nulls in a feature", _PROFILE, "customer_tx_per_day", "nulls",
          _set("customer_tx_per_day", 0.4, None), _PROFILE),
    Fault("nulls in a key", _EVENTS, "customer_id", "nulls",
          _set("customer_id", 0.01, None), "payments"),
    Fault("rows twice", _PROFILE, "customer_id, event_timestamp", "unique", _doubled, _PROFILE),
    Fault("events twice", _EVENTS, "customer_id, event_timestamp, transaction_id", "unique",
          _doubled, "payments"),
    Fault("out of range", _EVENTS, "amount", "range",
          _set("amount", 0.01, lambda was: was + 1e6), "payments"),
    Fault("negative amounts", _EVENTS, "amount", "own",
          _set("amount", 0.01, lambda was: -was - 1), "payments"),
    Fault("cents, not euros", _EVENTS, "amount", "median", _hundredfold("amount"), "payments"),
    Fault("a number as text", _EVENTS, "amount", "type", _as_text("amount"), "payments"),
    Fault("a fraction in whole numbers", "terminal_windows_events", "is_fraud", "type",
          _half("is_fraud"), "labels"),
    Fault("a renamed column", _PROFILE, "customer_std_amount", "exists",
          lambda frame: frame.rename(columns={"customer_std_amount": "customer_stddev_amount"}),
          _PROFILE),
    Fault("timestamps without a zone", _PROFILE, _AT, "zone", _naive, _PROFILE),
    Fault("stale rows", _EVENTS, _AT, "fresh", _stale, "payments"),
    Fault("rows of the future", _EVENTS, _AT, "future", _set(_AT, 0.01, _ahead), "payments"),
    Fault("rows of 1970", _EVENTS, _AT, "oldest",
          _set(_AT, 0.01, pd.Timestamp(0, tz="UTC")), "payments"),
    Fault("known before it happened", _EVENTS, f"arrived, {_AT}", "created",
          _known_before, "payments"),
    Fault("versions out of order", _EVENTS, f"customer_id, {_AT}, arrived", "order",
          _late, "payments"),
    Fault("three rows of four lost", _EVENTS, "", "rows", _lost, "payments"),
    Fault("unknown entities", _EVENTS, "customer_id", "covered", _strangers, "payments"),
    Fault("a score above 1", "decisions", "score", "range", _set("score", 0.01, 1.5), "decisions"),
    Fault("an unknown decision", "decisions", "decision", "values",
          _set("decision", 0.01, "perhaps"), "decisions"),
)  # fmt: skip
"""What a gate must catch."""


def plant(stage: Stage, fault: Fault, folder: Path) -> Checked:
    """Judge good data with one fault in it."""
    if fault.table == "decisions":
        quality = stage.quality(sql={fault.view: _in_database(stage, fault, folder)})
    else:
        made = fault.plant(stage.tables[fault.table].copy())
        table = made if isinstance(made, pa.Table) else pa.Table.from_pandas(made)
        path = folder / f"{fault.name.replace(' ', '_')}.parquet"
        pq.write_table(table, path, coerce_timestamps="us")
        quality = stage.quality({fault.view: path})
    (checked,) = quality.check([fault.view], stage.now).checked
    return checked


def _in_database(stage: Stage, fault: Fault, folder: Path) -> str:
    source = sa.create_engine(stage.database.partition("#")[0])
    url = f"sqlite:///{folder / (fault.name.replace(' ', '_') + '.db')}"
    target = sa.create_engine(url)
    try:
        with source.connect() as connection:
            frame = pd.read_sql(sa.select(DECISIONS), connection)
        DECISIONS.metadata.create_all(target)
        with target.begin() as connection:
            rows = fault.plant(frame).to_dict("records")
            connection.execute(sa.insert(DECISIONS), rows)
    finally:
        source.dispose()
        target.dispose()
    return f"{url}#decisions"


def caught(fault: Fault, checked: Checked) -> Outcome | None:
    """What names the fault; None where nothing does."""
    for one in checked.bad:
        if (one.view, one.column, one.check) == (fault.view, fault.column, fault.check):
            return one
    return None
