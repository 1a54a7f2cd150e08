"""Tables say what was known when: recomputed row by row from the transactions."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from pipelines.fraud.metrics import card_precision, quality
from pipelines.fraud.simulate import SimulationSpec, radius_for, simulate
from pipelines.fraud.tables import DAY, LABEL_DELAY, moved_to_now, tables_of
from pipelines.fraud.train import TrainSpec, folds_of

NOW = datetime(2026, 6, 3, 12, tzinfo=UTC)
TRANSACTIONS = moved_to_now(
    simulate(SimulationSpec(60, 80, 62, radius=radius_for(80), seed=2)), NOW
)
TABLES = tables_of(TRANSACTIONS, NOW)
PAYMENTS = TABLES["payments"].assign(is_fraud=TRANSACTIONS["TX_FRAUD"].to_numpy())


def test_times_move_by_whole_weeks() -> None:
    last = TRANSACTIONS["TX_DATETIME"].iloc[-1].tz_localize("UTC")
    assert pd.Timedelta(0) <= pd.Timestamp(NOW) - last < pd.Timedelta(weeks=1)


@pytest.mark.parametrize("entity", ["customer", "terminal"])
def test_profiles_are_up_to_date_whenever_they_are_written(entity: str) -> None:
    """The last Monday's are there, however long ago the last payment was; none lies ahead."""
    drawn = simulate(SimulationSpec(60, 80, 30, radius=radius_for(80), seed=2))
    for hours in range(0, 8 * 24, 5):
        now = pd.Timestamp(NOW) + pd.Timedelta(hours=hours)
        table = tables_of(moved_to_now(drawn, now), now)[f"{entity}_profile"]
        newest = table["event_timestamp"].max()
        assert pd.Timedelta(0) <= now - newest < pd.Timedelta(weeks=1), now
        assert newest.dayofweek == 0


def test_labels_arrive_late() -> None:
    labels = TABLES["labels"]
    assert (labels["arrived"] - labels["event_timestamp"] == LABEL_DELAY).all()
    assert (TABLES["payments"]["arrived"] == TABLES["payments"]["event_timestamp"]).all()
    assert labels["is_fraud"].tolist() == TRANSACTIONS["TX_FRAUD"].tolist()


@pytest.mark.parametrize("entity", ["customer", "terminal"])
def test_risk_scores_know_only_labels_that_have_arrived(entity: str) -> None:
    key, name = f"{entity}_id", f"{entity}_risk_score"
    table = TABLES[name]
    assert table[name].isna().groupby(table[key]).sum().eq(1).all(), (
        "a row before anything is known"
    )
    rows = table[table[name].notna()].sample(60, random_state=1)
    for _, row in rows.iterrows():
        moment = row["event_timestamp"]
        known = PAYMENTS[PAYMENTS["event_timestamp"] + LABEL_DELAY < moment]
        own = known[known[key] == row[key]]
        prior = known["is_fraud"].mean()
        expected = (own["is_fraud"].sum() + 20 * prior) / (len(own) + 20)
        assert row[name] == pytest.approx(expected)
        assert (own["event_timestamp"] + LABEL_DELAY >= moment - DAY).any()


@pytest.mark.parametrize("entity", ["customer", "terminal"])
def test_profiles_know_the_four_weeks_before(entity: str) -> None:
    key, name = f"{entity}_id", f"{entity}_mean_amount"
    table = TABLES[f"{entity}_profile"]
    rows = table[table[name].notna()].sample(60, random_state=1)
    assert set(rows["event_timestamp"].dt.dayofweek) == {0}
    for _, row in rows.iterrows():
        moment = row["event_timestamp"]
        times = PAYMENTS["event_timestamp"]
        past = PAYMENTS[(times >= moment - pd.Timedelta(weeks=4)) & (times < moment)]
        assert row[name] == pytest.approx(past[past[key] == row[key]]["amount"].mean())


def test_folds_leave_a_week_for_labels() -> None:
    spec = TrainSpec(weeks=1, folds=2)
    folds = folds_of(PAYMENTS, spec, pd.Timestamp(NOW))
    assert len(folds) == 3
    for fold in folds:
        assert fold.test_from - fold.train_to == LABEL_DELAY
        assert fold.test_to - fold.test_from == pd.Timedelta(weeks=1)
    assert pd.Timestamp(NOW) - folds[-1].test_to >= LABEL_DELAY
    with pytest.raises(ValueError, match="give more of them, or fewer folds"):
        folds_of(PAYMENTS, TrainSpec(weeks=4, folds=9), pd.Timestamp(NOW))


def test_card_precision_forgets_cards_that_were_found() -> None:
    """Two cards a day: on the second day that which was found on the first is not looked at."""
    days = pd.to_datetime(["2026-01-01"] * 3 + ["2026-01-02"] * 4, utc=True)
    frame = pd.DataFrame(
        {
            "event_timestamp": days,
            "customer_id": [1, 2, 3, 1, 2, 3, 4],
            "is_fraud": [1, 0, 0, 1, 1, 0, 1],
        }
    )
    scores = np.array([0.9, 0.8, 0.1, 0.99, 0.7, 0.6, 0.1])
    assert card_precision(frame, scores, cards_a_day=2) == pytest.approx((0.5 + 0.5) / 2)
    found = quality(frame, scores)
    assert found.auc == pytest.approx(roc_auc_score(frame["is_fraud"], scores))
    assert (found.rows, found.frauds) == (7, 4)
    assert quality(frame.assign(is_fraud=0), scores).auc is None
