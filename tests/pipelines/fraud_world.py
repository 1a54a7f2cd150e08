"""A small world of payments with features online, models of it, and a server to ask."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from feast import FeatureStore

from hotplate.embedded import EmbeddedServer
from pipelines.fraud.bundle import Bundle, digest_of, schema_of
from pipelines.fraud.inputs import REQUEST_INPUTS
from pipelines.fraud.ledger import Ledger
from pipelines.fraud.serve import Server, ServeSettings, served
from pipelines.fraud.simulate import SimulationSpec, radius_for, simulate
from pipelines.fraud.stores import OnlineSource
from pipelines.fraud.tables import moved_to_now
from pipelines.fraud.work import SERVICE, Work

from ..stores import await_

REPO = Path(__file__).resolve().parents[2] / "feature_repo"
CUSTOMERS, TERMINALS = 30, 40


@dataclass(frozen=True)
class World:
    """Features of some customers and terminals in a server of their own.

    Attributes:
        server: the online store.
        folder: with the registry.
    """

    server: EmbeddedServer
    folder: Path

    def work(self, folder: Path, redis: str = "") -> Work:
        """A run's folder over these features, without models and decisions."""
        folder.mkdir(exist_ok=True)
        shutil.copy(self.folder / "registry.db", folder)
        address = redis or self.server.connection_string
        settings = {"type": "redis", "connection_string": address}
        return Work(folder, REPO, OnlineSource(address, settings))


@contextmanager
def a_world(folder: Path) -> Iterator[World]:
    """A world that is gone after the block."""
    with EmbeddedServer.start() as server:
        world = World(server, folder)
        settings = {"type": "redis", "connection_string": server.connection_string}
        work = Work(folder, REPO, OnlineSource("Valkey", settings))
        spec = SimulationSpec(CUSTOMERS, TERMINALS, 60, radius=radius_for(TERMINALS))
        work.write_tables(moved_to_now(simulate(spec)))
        work.fill()
        yield world


def a_model(store: FeatureStore, version: str, **parameters: Any) -> Bundle:
    """A version of the model, trained on noise; another name is another model."""
    import xgboost

    features = schema_of(store, SERVICE)
    names = [*REQUEST_INPUTS, *features]
    draw = np.random.default_rng(sum(version.encode()))
    rows = np.abs(draw.normal(size=(400, len(names)))).astype(np.float32) * 30
    rows[draw.random(rows.shape) < 0.2] = np.nan
    labels = draw.integers(0, 2, len(rows))
    settings = {"objective": "binary:logistic", "max_depth": 6, "eta": 1, "nthread": 1}
    settings |= parameters
    data = xgboost.DMatrix(rows, labels, feature_names=names)
    raw = bytes(xgboost.train(settings, data, 12).save_raw("ubj"))
    return Bundle(
        version=version,
        service=SERVICE,
        features=features,
        review_at=0.5,
        decline_at=0.6,
        rounds=12,
        metrics={"auc": 0.5, "average_precision": 0.5},
        data={},
        made={"xgboost": xgboost.__version__, "at": "today"},
        digest=digest_of(raw),
        raw=raw,
    )


def payment(transaction_id: str, number: int = 0, **more: Any) -> dict[str, Any]:
    """A record; the same number is the same card, terminal and amount."""
    return {
        "transaction_id": transaction_id,
        "customer_id": number % CUSTOMERS,
        "terminal_id": number * 7 % TERMINALS,
        "amount": 5.0 + number % 90,
        **more,
    }


class Client:
    """One connection to a server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._line = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any, Mapping[str, str]]:
        """Status, body and headers of an answer; what is no bytes goes as JSON."""
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        self._line.request(method, path, raw)
        found = self._line.getresponse()
        text = found.read()
        is_json = found.headers["content-type"] == "application/json" and text
        return found.status, json.loads(text) if is_json else text.decode(), found.headers

    def score(self, record: Any) -> tuple[int, Any]:
        """Status and body of what a record is answered."""
        return self.ask("POST", "/score", record)[:2]

    def close(self) -> None:
        """Hang up."""
        self._line.close()


@contextmanager
def serving(
    work: Work, database: str = "", settings: ServeSettings | None = None
) -> Iterator[tuple[str, list[str]]]:
    """A server in a thread of this process: where it listens, and what it has said."""
    said: list[str] = []
    with served(work, database or work.database, settings, said.append) as service:
        server = Server(service)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            await_(lambda: server.started)
            client = Client(server.url)
            await_(lambda: client.ask("GET", "/readyz")[0] == 200)
            client.close()
            yield server.url, said
        finally:
            server.should_exit = True
            thread.join()


def rows_of(database: str) -> dict[str, Mapping[str, Any]]:
    """The decisions in a database, by transaction id."""
    ledger = Ledger(database)
    try:
        return {str(row["transaction_id"]): row for row in ledger.rows()}
    finally:
        ledger.close()


def check_scores(work: Work, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Each score is what the Booster of the version that it names gives for the inputs of its row,
    to the bit."""
    by_version: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows.values():
        by_version.setdefault(row["model_version"], []).append(row)
    for version, some in by_version.items():
        given = [json.loads(row["inputs"]) for row in some]
        inputs = np.array(given, np.float64).astype(np.float32)  # null is NaN
        expected = work.models.load(version).booster().inplace_predict(inputs)
        assert [row["score"] for row in some] == expected.tolist(), version
