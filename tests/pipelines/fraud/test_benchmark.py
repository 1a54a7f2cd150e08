"""The published benchmark of the Handbook, from raw transactions to three decimals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.fraud.benchmark import PUBLISHED, benchmark
from pipelines.fraud.load import load_transactions

from .conftest import REPO

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
RAW = DATA / "transactions" / "fdh_transactions.parquet"
SAID = DATA / "xgboost" / "fdh_baseline" / "meta.json"


@pytest.mark.heavy
@pytest.mark.skipif(not RAW.is_file(), reason=f"the Handbook's transactions are not at {RAW}")
def test_the_published_numbers() -> None:
    pytest.importorskip("xgboost", reason="XGBoost is not installed")
    bundle = benchmark(REPO, load_transactions(RAW))
    assert (bundle.metrics["rows"], bundle.metrics["frauds"]) == (58_264, 385)
    assert {name: round(bundle.metrics[name], 3) for name in PUBLISHED} == PUBLISHED
    known = json.loads(SAID.read_text("utf-8"))["metrics"]
    for name, other in (("auc", "auc_roc"), ("average_precision", "average_precision")):
        assert bundle.metrics[name] == pytest.approx(known[other], abs=1e-6)
    assert bundle.metrics["card_precision"] == pytest.approx(known["card_precision_at_100"])


def test_other_transactions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "TRANSACTION_ID,CUSTOMER_ID,TERMINAL_ID,TX_AMOUNT,TX_DATETIME,TX_FRAUD\n"
        "1,1,1,5.0,2020-01-01 00:00:00,0\n"
    )
    with pytest.raises(ValueError, match="give the Handbook's own data"):
        benchmark(REPO, load_transactions(path))
