"""All parts of a deployment on at once, for a moment: what there is to see in production.

The pipeline itself needs no more than its feature_store.yaml says. Here the store is opened once
more with the parts that it leaves out: a shared tier, a loader for profiles that live in another
database, the traffic log, the gate before `materialize`, shadow checks of every request. Some
payments are decided by it, and while it is in use, what it counts is written as the page that
`hotplate report` writes for any deployment. Every metric of the dashboard is among that.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import sqlalchemy as sa
from feast import FeatureStore

import hotplate
from hotplate.telemetry import read_folder
from hotplate.telemetry.assets import asset
from hotplate.telemetry.page import page
from hotplate.telemetry.reading import Reading
from hotplate.telemetry.summary import summarize
from pipelines.fraud.decide import Decider, scorer_of
from pipelines.fraud.payments import CHECK, read_records
from pipelines.fraud.stores import quiet_feast
from pipelines.fraud.work import Work

__all__ = ["Seen", "look"]

_LOADED: Final = "customer_profile"
_OF_SERVER: Final = ("connection_string", "redis_type", "sentinel_master")
_MATERIALIZED: Final = "terminal_profile"
_ROUNDS: Final = 3
_WAIT_S: Final = 10.0
_POLL_S: Final = 0.05
_SUFFIX: Final = re.compile(r"_(bucket|sum|count)$")


@dataclass(frozen=True)
class Seen:
    """What was counted.

    Attributes:
        html: the page.
        metrics: how many there were.
        asked: how many of them the dashboard and the alert rules ask for.
        absent: those that they ask for and that nobody counted.
    """

    html: Path
    metrics: int
    asked: int
    absent: tuple[str, ...]


def look(work: Work, requests: int = 200) -> Seen:
    """Decide some payments with everything on, and write what was counted.

    Args:
        work: a folder with features and a model, on a Redis or Valkey server.
        requests: the latest payments, asked for one by one.

    Raises:
        ValueError: the online store is no Redis.
        HotplateError: features cannot be read.
    """
    work.repo.client().close()  # which says so where it is none
    store = work.repo.open_cached(_everything(work))
    try:
        _use(work, store, requests)
        found = _counted(work.folder / "metrics")
    finally:
        hotplate.of(store).close()
    html = work.folder / "counted.html"
    html.write_text(page(summarize(found), found), "utf-8")
    there, asked = _names(found), _asked()
    return Seen(html, len(there), len(asked), tuple(sorted(asked - there)))


def _everything(work: Work) -> dict[str, Any]:
    """Settings of `online_store` in the place of the repo's own, with what they need."""
    database = work.folder / "operational.db"
    engine = sa.create_engine(f"sqlite:///{database.resolve()}")
    rows = pd.read_parquet(work.folder / "data" / f"{_LOADED}.parquet")
    latest = rows.sort_values("event_timestamp").groupby("customer_id", as_index=False).last()
    with engine.begin() as connection:
        latest.to_sql(_LOADED, connection, if_exists="replace", index=False)
    engine.dispose()
    columns = ", ".join(name for name in latest.columns if name != "event_timestamp")
    source = work.repo.wrapped
    server = {name: source[name] for name in _OF_SERVER if name in source}
    settings: dict[str, Any] = {
        "shared": {**server, "tier": True, "timeout": "250ms"},
        "loaders": {
            _LOADED: {
                "sql": f"SELECT {columns} FROM {_LOADED} WHERE customer_id IN :customer_id",
                "url": f"sqlite:///{database.resolve()}",
            }
        },
        "traffic": {
            "folder": str((work.folder / "traffic").resolve()),
            "sample": 1.0,
            "changes": True,
        },
        "shadow": {"share": 1.0},
    }
    if find_spec("great_expectations") is not None:
        reference = str((work.folder / "quality.json").resolve())
        settings["quality"] = {"materialize": "warn", "reference": reference}
    return settings


def _use(work: Work, store: FeatureStore, requests: int) -> None:
    hot, bundle = hotplate.of(store), work.models.load()
    decider = Decider(store, bundle, scorer_of(bundle, "cpu"))
    rows = work.transactions().tail(requests)
    records = [
        (
            str(place),
            {
                "transaction_id": f"seen-{place}",
                "customer_id": int(row.CUSTOMER_ID),
                "terminal_id": int(row.TERMINAL_ID),
                "amount": float(row.TX_AMOUNT),
                "kind": CHECK,
            },
        )
        for place, row in enumerate(rows.itertuples())
    ]
    for _ in range(_ROUNDS):
        payments, _ = read_records(records, time.time_ns() // 1_000_000)
        for place in range(len(payments)):
            decider.decide(payments.chosen(np.array([place])))
    with quiet_feast():
        if find_spec("great_expectations") is not None:
            _measure(work, store)
        work.materialize(store, _MATERIALIZED)
    hot.invalidate(_LOADED, [{"customer_id": int(rows["CUSTOMER_ID"].iloc[-1])}])


def _measure(work: Work, store: FeatureStore) -> None:
    """Say what the gate compares with: the data as it is now."""
    from hotplate.quality.run import Quality

    reference = Quality(store, work.repo.folder).profile([_MATERIALIZED], datetime.now(UTC))
    reference.write(work.folder / "quality.json")


def _counted(folder: Path) -> Reading:
    """What all processes of the folder have counted, once this one's is there whole."""
    until_s = time.monotonic() + _WAIT_S
    asked = _asked()
    while True:
        found = read_folder(folder)
        if asked <= _names(found) or time.monotonic() > until_s:
            return found
        time.sleep(_POLL_S)


def _names(found: Reading) -> set[str]:
    return {_SUFFIX.sub("", name) for name in found.values}


def _asked() -> set[str]:
    """The metrics that the dashboard and the alert rules ask for."""
    text = asset("grafana.json") + asset("alerts.yml")
    return {_SUFFIX.sub("", name) for name in re.findall(r"\bhotplate_\w+", text)}
