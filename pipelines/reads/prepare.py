"""From transactions to what is served: feature tables, training rows, requests.

One instant splits the data: the materialization moment, a midnight a week before its end. Features
are what was known at that moment; the requests come from the week after it. The model learns from
the second week before it, so that its labels, known a week late, were known by then. A training row
has the features of the midnight before its payment, which is how a daily job would have served it.

Times are moved by whole weeks so that the last payment lies just before now: a registry that looks
a year back finds them, and the days of the week stay what they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pandas as pd

from pipelines.fraud.simulate import SimulationSpec, customers, terminals

__all__ = ["FULL_DAYS", "WINDOWS_DAYS", "World", "as_of", "prepare", "risk", "spending"]

WINDOWS_DAYS = (1, 7, 30)
LABEL_DELAY_DAYS = 7
TRAIN_DAYS = 7
REPLAY_DAYS = 7
HISTORY_DAYS = max(WINDOWS_DAYS) + LABEL_DELAY_DAYS
LEAST_HISTORY_DAYS = 14
NEEDED_DAYS = LEAST_HISTORY_DAYS + TRAIN_DAYS + LABEL_DELAY_DAYS + REPLAY_DAYS
FULL_DAYS = HISTORY_DAYS + TRAIN_DAYS + LABEL_DELAY_DAYS + REPLAY_DAYS
_DAY = pd.Timedelta(days=1)
_NIGHT_ENDS_HOUR = 6


@dataclass(frozen=True)
class World:
    """What a run needs of its data.

    Attributes:
        moment: the materialization moment, UTC without an offset.
        tables: feature view -> its rows as of `moment`.
        next_risk: `terminal_risk` as of a day later: what the next batch job will write.
        training: payments before `moment` with their features, and TX_FRAUD.
        stream: payments after `moment`, in time order.
        shift_weeks: by how many weeks the times were moved.
    """

    moment: pd.Timestamp
    tables: dict[str, pd.DataFrame]
    next_risk: pd.DataFrame
    training: pd.DataFrame
    stream: pd.DataFrame
    shift_weeks: int


def prepare(
    transactions: pd.DataFrame, spec: SimulationSpec | None = None, now: datetime | None = None
) -> World:
    """Split transactions at the materialization moment and compute the features around it.

    Args:
        transactions: in time order, with the columns of `TRANSACTION_DTYPES`.
        spec: of the simulation they come from; without it profiles are computed from the history.
        now: before which the last payment is moved.

    Raises:
        ValueError: the labels are missing, or the data is too short.
    """
    _require_usable(transactions)
    moved, weeks = _moved(transactions, now or datetime.now(UTC))
    end = moved["TX_DATETIME"].iloc[-1].floor("D") + _DAY
    moment = end - REPLAY_DAYS * _DAY
    kept = moved[moved["TX_DATETIME"] >= moment - (FULL_DAYS - REPLAY_DAYS) * _DAY]
    train_start = moment - (LABEL_DELAY_DAYS + TRAIN_DAYS) * _DAY
    profiles = _profiles(kept[kept["TX_DATETIME"] < train_start], spec)
    tables = {**profiles, **as_of(kept, moment)}
    return World(
        moment=moment,
        tables={name: table.assign(event_timestamp=_utc(moment)) for name, table in tables.items()},
        next_risk=risk(kept, moment + _DAY).assign(event_timestamp=_utc(moment + _DAY)),
        training=_training(kept, train_start, profiles),
        stream=_with_moments(kept[kept["TX_DATETIME"] >= moment]),
        shift_weeks=weeks,
    )


def _require_usable(transactions: pd.DataFrame) -> None:
    if "TX_FRAUD" not in transactions:
        raise ValueError("column TX_FRAUD missing: the model learns from it; add 0 or 1")
    times = transactions["TX_DATETIME"]
    span_days = (times.iloc[-1].floor("D") - times.iloc[0].floor("D")).days + 1
    if span_days < NEEDED_DAYS:
        raise ValueError(
            f"the transactions span {span_days} days; give at least {NEEDED_DAYS} "
            f"({FULL_DAYS} for windows of full length)"
        )


def _moved(transactions: pd.DataFrame, now: datetime) -> tuple[pd.DataFrame, int]:
    last = transactions["TX_DATETIME"].iloc[-1]
    weeks = (pd.Timestamp(now).tz_convert("UTC").tz_localize(None) - last) // pd.Timedelta(weeks=1)
    times = transactions["TX_DATETIME"] + pd.Timedelta(weeks=weeks)
    return transactions.assign(TX_DATETIME=times), int(weeks)


def _utc(moment: pd.Timestamp) -> pd.Timestamp:
    return moment.tz_localize("UTC").as_unit("us")


# -- features -----------------------------------------------------------------------------------


def as_of(transactions: pd.DataFrame, moment: pd.Timestamp) -> dict[str, pd.DataFrame]:
    """The window features known at a moment, by feature view."""
    return {
        "customer_spending": spending(transactions, moment),
        "terminal_risk": risk(transactions, moment),
    }


def spending(transactions: pd.DataFrame, moment: pd.Timestamp) -> pd.DataFrame:
    """Count and mean amount of each customer's payments in the windows that end at a moment.

    A customer without payments in a window has count 0 and mean 0.
    """
    return _windows(transactions, moment, "CUSTOMER_ID", "TX_AMOUNT", "customer", "mean_amount")


def risk(transactions: pd.DataFrame, moment: pd.Timestamp) -> pd.DataFrame:
    """Count and share of frauds of each terminal's payments, a week before a moment.

    The week is the time that labels take to become known.
    """
    known = moment - LABEL_DELAY_DAYS * _DAY
    return _windows(transactions, known, "TERMINAL_ID", "TX_FRAUD", "terminal", "fraud_share")


def _windows(
    transactions: pd.DataFrame,
    end: pd.Timestamp,
    key: str,
    column: str,
    entity: str,
    measure: str,
) -> pd.DataFrame:
    past = transactions[transactions["TX_DATETIME"] < end]
    ids = np.unique(past[key])
    table = pd.DataFrame({f"{entity}_id": ids.astype("int64")})
    means = {}
    for days in WINDOWS_DAYS:
        inside = past[past["TX_DATETIME"] >= end - days * _DAY]
        grouped = inside.groupby(key)[column].agg(["count", "mean"]).reindex(ids, fill_value=0)
        table[f"{entity}_tx_{days}d"] = grouped["count"].to_numpy("int64")
        means[f"{entity}_{measure}_{days}d"] = grouped["mean"].to_numpy("float64")
    return table.assign(**means)


def _profiles(history: pd.DataFrame, spec: SimulationSpec | None) -> dict[str, pd.DataFrame]:
    days = max(1, (history["TX_DATETIME"].iloc[-1] - history["TX_DATETIME"].iloc[0]) / _DAY)
    by_terminal = history.groupby("TERMINAL_ID")
    terminal = pd.DataFrame(
        {
            "terminal_mean_amount": by_terminal["TX_AMOUNT"].mean(),
            "terminal_tx_per_day": by_terminal.size() / days,
            "terminal_customers": by_terminal["CUSTOMER_ID"].nunique(),
        }
    )
    customer = _habits(history, days) if spec is None else _simulated_habits(spec)
    if spec is not None:
        world = terminals(spec).set_index("TERMINAL_ID")
        terminal = terminal.reindex(world.index).fillna(0.0)
        terminal["terminal_customers"] = world["CUSTOMERS_IN_REACH"].astype("int64")
    return {
        "customer_profile": _keyed(customer, "customer_id"),
        "terminal_profile": _keyed(terminal, "terminal_id"),
    }


def _habits(history: pd.DataFrame, days: float) -> pd.DataFrame:
    by_customer = history.groupby("CUSTOMER_ID")
    return pd.DataFrame(
        {
            "customer_mean_amount": by_customer["TX_AMOUNT"].mean(),
            "customer_std_amount": by_customer["TX_AMOUNT"].std(ddof=0),
            "customer_tx_per_day": by_customer.size() / days,
            "customer_terminals": by_customer["TERMINAL_ID"].nunique(),
        }
    )


def _simulated_habits(spec: SimulationSpec) -> pd.DataFrame:
    names = {
        "MEAN_AMOUNT": "customer_mean_amount",
        "STD_AMOUNT": "customer_std_amount",
        "MEAN_TX_PER_DAY": "customer_tx_per_day",
        "TERMINALS_IN_REACH": "customer_terminals",
    }
    habits = customers(spec).set_index("CUSTOMER_ID").rename(columns=names)[[*names.values()]]
    return habits.astype({"customer_terminals": "int64"})


def _keyed(table: pd.DataFrame, key: str) -> pd.DataFrame:
    keyed = table.rename_axis(key).reset_index()
    return keyed.astype({key: "int64"})


# -- training rows and the stream ---------------------------------------------------------------


def _with_moments(payments: pd.DataFrame) -> pd.DataFrame:
    times = payments["TX_DATETIME"].dt
    return payments.assign(
        amount=payments["TX_AMOUNT"],
        is_night=(times.hour < _NIGHT_ENDS_HOUR).astype("float64"),
        is_weekend=(times.dayofweek >= 5).astype("float64"),
    )


def _training(
    transactions: pd.DataFrame, start: pd.Timestamp, profiles: dict[str, pd.DataFrame]
) -> pd.DataFrame:
    days = []
    for number in range(TRAIN_DAYS):
        midnight = start + number * _DAY
        is_of_day = transactions["TX_DATETIME"].between(midnight, midnight + _DAY, "left")
        payments = _with_moments(transactions[is_of_day])
        tables = {**profiles, **as_of(transactions, midnight)}
        days.append(_joined(payments, tables))
    return pd.concat(days, ignore_index=True)


def _joined(payments: pd.DataFrame, tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    for name, table in tables.items():
        entity = name.split("_", 1)[0]
        key, column = f"{entity}_id", f"{entity.upper()}_ID"
        payments = payments.join(table.set_index(key), on=column)
    return payments
