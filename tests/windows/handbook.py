"""Transactions of the Fraud Detection Handbook, and the features that it published of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
import pytest

__all__ = ["DAYS", "SAME_SECOND", "arrival_ms", "read_published", "read_raw"]

DAYS: Final = (1, 7, 30)
SAME_SECOND: Final = (1_240_489, 1_240_490)
"""One customer in one second: the book counts the first without the second."""

_DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "transactions"
# the longest terminal window begins 37 days before the first published row
_FIRST = np.datetime64("2018-06-18")
_END = np.datetime64("2018-08-15")


def _read(name: str) -> pd.DataFrame:
    path = _DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return pd.read_parquet(path)


def read_raw() -> pd.DataFrame:
    """Transactions that any published feature depends on; skips where the file is not here."""
    every = _read("fdh_transactions.parquet")
    return every[(every.TX_DATETIME >= _FIRST) & (every.TX_DATETIME < _END)]


def read_published(raw: pd.DataFrame) -> pd.DataFrame:
    """The features of 201,295 transactions, with their raw columns; skips likewise."""
    features = _read("fdh_features_20180725_20180814.parquet")
    return features.merge(raw, on="TRANSACTION_ID", validate="one_to_one")


def arrival_ms(raw: pd.DataFrame, entity: str) -> np.ndarray:
    """How long after it happened each transaction arrives.

    The book's windows hold the transaction itself and what came before it: (t - w, t], in whole
    seconds; of those in its own second the ones with a smaller id. So each arrives a second later,
    and those of one entity and second a millisecond after one another.
    """
    place = raw.sort_values("TRANSACTION_ID").groupby([entity, "TX_DATETIME"]).cumcount()
    return (1_000 + place.reindex(raw.index).to_numpy()).astype("timedelta64[ms]")
