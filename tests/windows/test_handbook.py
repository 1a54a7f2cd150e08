"""The features that the Fraud Detection Handbook published come out of its raw transactions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hotplate.windows.events import accept
from hotplate.windows.offline import Moments, outputs_at
from hotplate.windows.spec import DAY_MS, Aggregate, Column, EventSpec, Window, WindowSpec

from .handbook import DAYS, SAME_SECOND, arrival_ms, read_published, read_raw


@pytest.fixture(scope="module")
def raw() -> pd.DataFrame:
    """Transactions that any published feature depends on."""
    return read_raw()


@pytest.fixture(scope="module")
def published(raw: pd.DataFrame) -> pd.DataFrame:
    """The features of 201,295 transactions, with their raw columns."""
    return read_published(raw)


def computed(
    raw: pd.DataFrame, rows: pd.DataFrame, entity: str, column: Column, delay_ms: int
) -> pd.DataFrame:
    """Count and mean over 1, 7 and 30 days at the arrival of each transaction of `rows`."""
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
