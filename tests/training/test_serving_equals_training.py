"""Features read online through Feast, and the same rows computed later for training."""

from __future__ import annotations

import random
import warnings
from datetime import timedelta
from pathlib import Path

import pandas as pd
from feast.aggregation import Aggregation

from ..windows.bank import HOUR, aggregations, bank, frame_of, random_payment

SETTINGS = {"windows": {"in_process": True}}
CARDS = 4


def test_what_was_served_is_what_is_trained_on(tmp_path: Path) -> None:
    """Pushed late, twice, out of order and from the future; read through the cache at any time."""
    more = [
        Aggregation(column="amount", function=function, time_window=timedelta(hours=6))
        for function in ("mean", "std", "min", "max", "last", "first", "sum / 24h")
    ]
    made = bank(
        tmp_path,
        {"type": "sqlite"},
        "trained",
        settings=SETTINGS,
        aggregations=[*aggregations(), *more],
    )
    chance = random.Random(5)
    served = []
    for _ in range(250):
        # what arrives after a read, in the read's own millisecond, is not in it: the one gap left
        made.repo.clock.advance(chance.choice([0.001, 0.5, 20, 600, 4_000]))
        if chance.random() < 0.6:
            made.push(*(random_payment(chance, made, CARDS) for _ in range(chance.randrange(1, 4))))
            continue
        cards = chance.sample(range(CARDS + 1), 3)
        for card, row in zip(cards, made.read(*cards), strict=True):
            served.append({"card_id": card, "t": made.now, **row})
    frame_of(made.pushed).to_parquet(tmp_path / "payments.parquet")
    expected = pd.DataFrame(served)
    rows = pd.DataFrame(
        {
            "card_id": expected.card_id,
            "event_timestamp": pd.to_datetime(expected["t"], unit="ms", utc=True),
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained = made.repo.hot.get_historical_features(rows, made.features).to_df()
    names = [one.name for one in made.windowed.features]
    assert len(expected) > 200
    assert (expected["t"].max() - expected["t"].min()) > 24 * HOUR
    pd.testing.assert_frame_equal(
        trained[names].astype(float), expected[names].astype(float), check_exact=True
    )
