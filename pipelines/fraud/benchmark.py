"""The published benchmark of the Fraud Detection Handbook, through our own features.

Raw transactions in, the book's twelve window features computed by `get_historical_features`, its
split and its XGBoost: area under the ROC curve 0.862, average precision 0.639, card precision@100
0.273 (chapter 5, "Baseline"). Three conventions are the book's and not this pipeline's: a payment
counts in its own windows, so features are read just after it; a mean of nothing is 0; and payments
of one card or terminal in one second count in the order of their ids.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from pipelines.fraud.bundle import Bundle
from pipelines.fraud.device import Device
from pipelines.fraud.stores import FeatureRepo, OnlineSource, quiet_feast
from pipelines.fraud.tables import DAY, WEEK, tables_of
from pipelines.fraud.train import TrainSpec, train

__all__ = ["PUBLISHED", "benchmark"]

SERVICE: Final = "fraud_handbook"
PUBLISHED: Final = {"auc": 0.862, "average_precision": 0.639, "card_precision": 0.273}
_TEST_TO: Final = pd.Timestamp("2018-08-15", tz="UTC")
_HISTORY: Final = 5 * WEEK + 30 * DAY
_SPEC: Final = TrainSpec(
    weeks=1,
    folds=0,
    most_rounds=100,
    parameters={"tree_method": "exact", "base_score": 0.5, "learning_rate": 0.3},
    null=0.0,
)


def benchmark(
    repo: Path, transactions: pd.DataFrame, say: Callable[[str], None] = lambda line: None
) -> Bundle:
    """Train and test as the book does.

    Args:
        repo: the feature repo.
        transactions: the Handbook's data, unmoved.
        say: told what is done.

    Raises:
        ValueError: these are not the Handbook's transactions of June to August 2018.
    """
    times = transactions["TX_DATETIME"].dt.tz_localize("UTC")
    wanted = transactions[(times >= _TEST_TO - _HISTORY) & (times < _TEST_TO)]
    if not len(wanted) or times.iloc[0] > _TEST_TO - _HISTORY or times.iloc[-1] < _TEST_TO - DAY:
        raise ValueError(
            f"the transactions do not reach from {_TEST_TO - _HISTORY:%Y-%m-%d} to "
            f"{_TEST_TO:%Y-%m-%d}: give the Handbook's own data, with their own times"
        )
    tables = tables_of(wanted.reset_index(drop=True), _TEST_TO)
    payments, labels = tables["payments"], tables["labels"]
    read_at = payments["event_timestamp"] + _after(wanted)
    # payments and labels are known just when the payment's own features are read
    payments["arrived"], labels["arrived"] = read_at, labels["arrived"] + _after(wanted)
    with tempfile.TemporaryDirectory(prefix="hotplate-benchmark-") as folder, quiet_feast():
        work = Path(folder)
        sqlite = {"type": "sqlite", "path": str(work / "online.db")}
        files = FeatureRepo(repo, work, OnlineSource("SQLite", sqlite), root=work)
        files.write_tables(tables)
        store = files.open_cached({"windows": {"in_process": True}})
        files.apply(store)
        asked = payments.assign(read_at=read_at, is_fraud=labels["is_fraud"])
        return train(
            store, SERVICE, asked, Device("cpu", ""), _SPEC, known_at=_TEST_TO + WEEK, say=say
        )


def _after(transactions: pd.DataFrame) -> Any:
    """How long after each payment its features are read: a second, and a millisecond for each
    payment of its card or terminal in the same second that has a smaller id."""
    places = [
        transactions.groupby([entity, "TX_DATETIME"]).cumcount().to_numpy()
        for entity in ("CUSTOMER_ID", "TERMINAL_ID")
    ]
    return (1_000 + np.maximum(*places)).astype("timedelta64[ms]")
