"""The features that the Fraud Detection Handbook published come out of its raw transactions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hotplate.windows.events import accept
from hotplate.windows.offline import Moments, outputs_at
from hotplate.windows.spec import DAY_MS, Aggregate, Column, EventSpec, Window, WindowSpec

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "transactions"
DAYS = (1, 7, 30)
# the longest terminal window begins 37 days before the first published row
FIRST = np.datetime64("2018-06-18")
# one customer in one second: the book counts the first without the second
SAME_SECOND = (1_240_489, 1_240_490)


@pytest.fixture(scope="module")
def raw() -> pd.DataFrame:
    """Transactions that any published feature depends on."""
    path = DATA / "fdh_transactions.parquet"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    every = pd.read_parquet(path)
    return every[(every.TX_DATETIME >= FIRST) & (np.datetime64("2018-08-15") > every.TX_DATETIME)]


@pytest.fixture(scope="module")
def published(raw: pd.DataFrame) -> pd.DataFrame:
    """The features of 201,295 transactions, with their raw columns."""
    path = DATA / "fdh_features_20180725_20180814.parquet"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return pd.read_parquet(path).merge(raw, on="TRANSACTION_ID", validate="one_to_one")


def arrival_ms(raw: pd.DataFrame, entity: str) -> np.ndarray:
    """How long after it happened each transaction arrives."""
    place = raw.sort_values("TRANSACTION_ID").groupby([entity, "TX_DATETIME"]).cumcount()
    return (1_000 + place.reindex(raw.index).to_numpy()).astype("timedelta64[ms]")


def computed(
    raw: pd.DataFrame, rows: pd.DataFrame, entity: str, column: Column, delay_ms: int
) -> pd.DataFrame:
    """Count and mean over 1, 7 and 30 days at one second after each transaction of `rows`.

    The book's windows hold the transaction itself and what came before it: (t - w, t], in whole
    seconds; of those in its own second the ones with a smaller id. So each arrives a second later,
    and those of one entity and second a millisecond after one another.
    """
    log = EventSpec("TRANSACTION_ID", (column,))
    happened = raw.TX_DATETIME.to_numpy().astype("datetime64[ms]")
    arrived = happened + arrival_ms(raw, entity)
    accepted = accept(
        log,
        happened,
        raw.TRANSACTION_ID.to_numpy(),
        arrived,
        {column.name: raw[column.name].to_numpy()},
    )
    assert not accepted.dropped
    spec = WindowSpec(
        log,
        tuple(
            Aggregate(f"{function}_{days}", function, column.name, window)
            for days in DAYS
            for window in [Window(days * DAY_MS, 1_000, delay_ms)]
            for function in ("count", "mean")
        ),
    )
    read_at = pd.Series(arrived, raw.TRANSACTION_ID).loc[rows.TRANSACTION_ID]
    found = outputs_at(
        spec,
        accepted.events,
        raw[entity].to_numpy().astype(np.int64),
        Moments(
            rows[entity].to_numpy().astype(np.int64),
            read_at.to_numpy().astype("datetime64[ms]").astype(np.int64),
        ),
    )
    return pd.DataFrame(found, columns=list(spec.output_types))


def test_customer_windows_equal_the_published_ones(
    raw: pd.DataFrame, published: pd.DataFrame
) -> None:
    """Counts exactly and means within 1e-9, but for two transactions in one second."""
    found = computed(raw, published, "CUSTOMER_ID", Column.floats("TX_AMOUNT"), 0)
    is_apart = ~published.TRANSACTION_ID.isin(SAME_SECOND).to_numpy()
    assert len(published) == 201_295
    assert (~is_apart).sum() == 2
    for days in DAYS:
        count = published[f"CUSTOMER_ID_NB_TX_{days}DAY_WINDOW"].to_numpy()
        mean = published[f"CUSTOMER_ID_AVG_AMOUNT_{days}DAY_WINDOW"].to_numpy()
        np.testing.assert_array_equal(found[f"count_{days}"][is_apart], count[is_apart])
        np.testing.assert_allclose(found[f"mean_{days}"][is_apart], mean[is_apart], 0, 1e-9)


def test_terminal_windows_equal_the_published_ones(
    raw: pd.DataFrame, published: pd.DataFrame
) -> None:
    """Counts and shares of fraud as they were known seven days later, all of them exactly."""
    found = computed(raw, published, "TERMINAL_ID", Column.integers("TX_FRAUD"), 7 * DAY_MS)
    for days in DAYS:
        count = published[f"TERMINAL_ID_NB_TX_{days}DAY_WINDOW"].to_numpy()
        risk = published[f"TERMINAL_ID_RISK_{days}DAY_WINDOW"].to_numpy()
        np.testing.assert_array_equal(found[f"count_{days}"], count)
        np.testing.assert_array_equal(found[f"mean_{days}"].fillna(0), risk)
