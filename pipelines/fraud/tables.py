"""From transactions to the tables that the feature repo's sources name.

Every row says what was known when: `event_timestamp` is when it happened or became true, `arrived`
when it became known. A label arrives `LABEL_DELAY` after its payment, and everything made of labels
waits for it. So a point-in-time read of these tables sees nothing of its future.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import pandas as pd

__all__ = ["LABEL_DELAY", "moved_to_now", "tables_of"]

DAY: Final = pd.Timedelta(days=1)
WEEK: Final = pd.Timedelta(weeks=1)
LABEL_DELAY: Final = WEEK
_PROFILE_WEEKS: Final = 4
_PRIOR_PAYMENTS: Final = 20.0  # a risk score weighs everybody's share like so many own payments


def moved_to_now(transactions: pd.DataFrame, now: datetime | None = None) -> pd.DataFrame:
    """Transactions moved by whole weeks, so that the last one lies within the week before now.

    Days of the week and times of day stay what they are.
    """
    last = transactions["TX_DATETIME"].iloc[-1]
    end = pd.Timestamp(now or datetime.now(UTC)).tz_convert("UTC").tz_localize(None)
    return transactions.assign(
        TX_DATETIME=transactions["TX_DATETIME"] + (end - last) // WEEK * WEEK
    )


def tables_of(transactions: pd.DataFrame, now: datetime | None = None) -> dict[str, pd.DataFrame]:
    """The tables of `fraud_v2`, by the name of their Parquet file.

    Args:
        transactions: in time order, with the columns of `TRANSACTION_DTYPES`; where TX_FRAUD is
            missing there are no labels, and no risk scores.
        now: up to when the weekly job has written profiles; None: this moment.
    """
    now = pd.Timestamp(now or datetime.now(UTC)).tz_convert("UTC")
    happened = _utc(transactions["TX_DATETIME"])
    payments = pd.DataFrame(
        {
            "transaction_id": transactions["TRANSACTION_ID"].astype(str),
            "customer_id": transactions["CUSTOMER_ID"].astype("int64"),
            "terminal_id": transactions["TERMINAL_ID"].astype("int64"),
            "amount": transactions["TX_AMOUNT"].astype("float64"),
            "event_timestamp": happened,
            "arrived": happened,
        }
    )
    first = happened.iloc[0].floor("D")
    has_labels = "TX_FRAUD" in transactions
    labels = payments.drop(columns="amount").assign(
        is_fraud=transactions["TX_FRAUD"].astype("int64") if has_labels else 0,
        arrived=happened + LABEL_DELAY,
    )
    if not has_labels:
        labels = labels.iloc[:0]
    tables = {"payments": payments, "labels": labels}
    for entity in ("customer", "terminal"):
        for name, table in (
            ("profile", _profiles(payments, entity, now)),
            ("risk_score", _risk_scores(labels, entity)),
        ):
            tables[f"{entity}_{name}"] = _begun(table, entity, payments, first)
    return tables


def _begun(
    table: pd.DataFrame, entity: str, payments: pd.DataFrame, first: pd.Timestamp
) -> pd.DataFrame:
    """A table with a row of nulls for each entity before anything was known of it.

    Feast's file store leaves a payment out altogether where all rows of its entity come later.
    """
    ids = pd.DataFrame({f"{entity}_id": payments[f"{entity}_id"].unique()})
    nothing = ids.assign(event_timestamp=first.as_unit("us"))
    return pd.concat([nothing, table], ignore_index=True)[table.columns]


def _utc(times: pd.Series) -> pd.Series:
    return times.astype("datetime64[us]").dt.tz_localize("UTC")


def _profiles(payments: pd.DataFrame, entity: str, now: pd.Timestamp) -> pd.DataFrame:
    """Habits over the four weeks before each Monday, for whoever paid in them.

    The job that writes them goes on after the last payment, as long as there are any in its weeks.
    """
    first = payments["event_timestamp"].iloc[0].floor("D")
    last = payments["event_timestamp"].iloc[-1]
    end = min(now, last + _PROFILE_WEEKS * WEEK)
    mondays = pd.date_range(first + DAY, end, freq="W-MON", tz="UTC")
    # the first snapshot stands for whatever is asked before the second week is over
    moments = mondays if len(mondays) else pd.DatetimeIndex([min(last.floor("D") + DAY, now)])
    times = payments["event_timestamp"]
    parts = []
    for moment in moments:
        start, end = (times.searchsorted(at) for at in (moment - _PROFILE_WEEKS * WEEK, moment))
        parts.append(_habits(payments.iloc[start:end], entity, moment, first))
    return pd.concat(parts, ignore_index=True)


def _habits(
    past: pd.DataFrame, entity: str, moment: pd.Timestamp, first: pd.Timestamp
) -> pd.DataFrame:
    days = min(_PROFILE_WEEKS * WEEK, moment - first) / DAY
    by_entity = past.groupby(f"{entity}_id")
    amounts = by_entity["amount"]
    habits = {f"{entity}_mean_amount": amounts.mean()}
    if entity == "customer":
        habits["customer_std_amount"] = amounts.std(ddof=0)
        habits["customer_tx_per_day"] = by_entity.size() / days
        habits["customer_terminals"] = by_entity["terminal_id"].nunique()
    else:
        habits["terminal_tx_per_day"] = by_entity.size() / days
        habits["terminal_customers"] = by_entity["customer_id"].nunique()
    table = pd.DataFrame(habits).rename_axis(f"{entity}_id").reset_index()
    return table.assign(event_timestamp=moment.as_unit("us"))


def _risk_scores(labels: pd.DataFrame, entity: str) -> pd.DataFrame:
    """The share of frauds of each entity that got labels, at the midnight after these arrived.

    With few payments of its own an entity is drawn towards the share of everybody so far.
    """
    key, name = f"{entity}_id", f"{entity}_risk_score"
    midnight = labels["arrived"].dt.floor("D") + DAY
    of_day = labels.groupby(midnight)["is_fraud"].agg(["count", "sum"]).cumsum()
    everybody = of_day["sum"] / of_day["count"]
    known = labels.groupby([labels[key], midnight])["is_fraud"].agg(["count", "sum"])
    so_far = known.groupby(level=0).cumsum().reset_index(names=[key, "event_timestamp"])
    prior = so_far["event_timestamp"].map(everybody).astype("float64")
    score = (so_far["sum"] + _PRIOR_PAYMENTS * prior) / (so_far["count"] + _PRIOR_PAYMENTS)
    return pd.DataFrame(
        {
            key: so_far[key].astype("int64"),
            name: score.astype("float64"),
            "event_timestamp": so_far["event_timestamp"],
        }
    )
