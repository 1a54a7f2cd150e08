"""The feature repo in which the documentation's examples run: its declarations and its data."""

from __future__ import annotations

import shutil
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pandas as pd
from feast import FeatureStore

__all__ = ["FEATURES", "SETTINGS", "fill", "prepare"]

FEATURES: Final = Path(__file__).with_name("features.py")

SETTINGS: Final[dict[str, Any]] = {
    "project": "shop",
    "provider": "local",
    "registry": {"path": "registry.db", "cache_ttl_seconds": 60},
    "offline_store": {"type": "file"},
    "entity_key_serialization_version": 3,
    "online_store": {
        "type": "hotplate.online_store.CachedOnlineStore",
        "store": {"type": "redis", "connection_string": "localhost:6379"},
        "ttl_map": {"default": "30s"},
    },
}
"""What stands in feature_store.yaml before a page says more."""

CARDS: Final = list(range(1, 21))
MERCHANTS: Final = list(range(1, 11))
_NOW: Final = datetime.now(UTC).replace(microsecond=0)


def prepare(folder: Path) -> None:
    """Put declarations, tables and an operational database into a folder."""
    shutil.copy(FEATURES, folder / "features.py")
    for name, frame in _frames().items():
        frame.to_parquet(folder / f"{name}.parquet")
    with sqlite3.connect(folder / "shop.db") as shop:
        shop.executescript(
            "CREATE TABLE merchants (merchant_id INTEGER);"
            "CREATE TABLE payments (merchant INTEGER, amount REAL);"
        )
        shop.executemany("INSERT INTO merchants VALUES (?)", [(one,) for one in MERCHANTS])
        rows = [(one, 10.0 * one + n) for one in MERCHANTS for n in range(3)]
        shop.executemany("INSERT INTO payments VALUES (?, ?)", rows)
    shop.close()


def fill(store: FeatureStore) -> None:
    """Write the data of every view into its online store."""
    for name, frame in _frames().items():
        if name != "payments":
            store.write_to_online_store(name, frame)


def _frames() -> dict[str, pd.DataFrame]:
    cards, merchants = {"card_id": CARDS}, {"merchant_id": MERCHANTS}
    frames = {
        "card_stats": {
            **cards,
            "n_1d": [card % 7 for card in CARDS],
            "sum_1d": [12.5 * card for card in CARDS],
        },
        "session_clicks": {**cards, "clicks": CARDS},
        "blocked_cards": {**cards, "is_blocked": [card % 10 == 0 for card in CARDS]},
        "merchant_profile": {**merchants, "age_days": [100 * one for one in MERCHANTS]},
        "merchant_risk": {**merchants, "n": [0] * 10, "mean": [0.0] * 10},
        "account": {"account_id": [1, 2, 3], "balance": [10.0, 20.0, 30.0]},
        "payments": {
            "card_id": [card for card in CARDS for _ in range(5)],
            "payment_id": [f"h{number}" for number in range(100)],
            "amount": [1.25 * number for number in range(100)],
            "shop": [f"s{number % 9}" for number in range(100)],
            "at": [_NOW - pd.Timedelta(minutes=7 * number) for number in range(100)],
            "arrived": [_NOW - pd.Timedelta(minutes=7 * number) for number in range(100)],
        },
    }
    made = {name: pd.DataFrame(columns) for name, columns in frames.items()}
    for name, frame in made.items():
        if name != "payments":
            frame["event_timestamp"] = pd.Timestamp(_NOW)
    return made
