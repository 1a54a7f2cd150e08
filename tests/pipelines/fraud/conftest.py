"""A small world with features, windows and a trained model, made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hotplate.embedded import EmbeddedServer
from pipelines.fraud.bundle import Bundle
from pipelines.fraud.decide import Decider, Layers, scorer_of
from pipelines.fraud.device import Device
from pipelines.fraud.simulate import SimulationSpec, radius_for, simulate
from pipelines.fraud.stores import OnlineSource
from pipelines.fraud.tables import moved_to_now
from pipelines.fraud.train import TrainSpec, train
from pipelines.fraud.work import SERVICE, Work

ROOT = Path(__file__).resolve().parents[3]
REPO = ROOT / "feature_repo"
WORLD = SimulationSpec(300, 400, 70, radius=radius_for(400), seed=3)


@dataclass
class World:
    """A folder of the pipeline with everything up to a model, on a server.

    Attributes:
        work: the folder.
        server: the online store.
        transactions: what was simulated.
        bundle: the model.
        lines: what the training said.
    """

    work: Work
    server: EmbeddedServer
    transactions: pd.DataFrame
    bundle: Bundle
    lines: list[str] = field(default_factory=list)

    def decider(self, layers: Layers | None = None) -> tuple[Any, Decider]:
        """A store of its own and what decides with it."""
        store = self.work.open(layers)
        scorer = scorer_of(self.bundle, "cpu", is_fast=layers is None or layers.scorer)
        return store, Decider(store, self.bundle, scorer, layers)

    def records(self, count: int, first: int = 0, **more: Any) -> list[tuple[str, dict[str, Any]]]:
        """Some of the latest payments, as new ones."""
        rows = self.transactions.iloc[-(first + count) : len(self.transactions) - first]
        return [
            (
                f"{first + place}",
                {
                    "transaction_id": f"new-{first + place}",
                    "customer_id": int(row.CUSTOMER_ID),
                    "terminal_id": int(row.TERMINAL_ID),
                    "amount": float(row.TX_AMOUNT),
                    **more,
                },
            )
            for place, row in enumerate(rows.itertuples())
        ]


def online(server: EmbeddedServer) -> OnlineSource:
    """A server as the online store; Feast waits for one that is frozen as long as it is told to."""
    address = f"{server.connection_string},socket_timeout=2"
    return OnlineSource("Valkey", {"type": "redis", "connection_string": address})


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The small world; tests may decide payments in it, and change nothing else."""
    pytest.importorskip("xgboost", reason="XGBoost is not installed")
    with EmbeddedServer.start() as server:
        work = Work(tmp_path_factory.mktemp("fraud"), REPO, online(server))
        transactions = moved_to_now(simulate(WORLD))
        work.save(transactions)
        work.write_tables(transactions)
        work.fill()
        lines: list[str] = []
        spec = TrainSpec(weeks=1, folds=1, most_rounds=60)
        device = Device("cpu", "a test")
        bundle = train(work.open(), SERVICE, work.labelled(), device, spec, say=lines.append)
        work.models.save(bundle)
        work.models.make_current(bundle.version)
        yield World(work, server, transactions, bundle, lines)


@pytest.fixture
def fresh(world: World, tmp_path: Path) -> Iterator[Callable[[], World]]:
    """Worlds of a test's own: the same tables and model, each on a server of its own."""
    servers: list[EmbeddedServer] = []

    def make() -> World:
        folder = tmp_path / f"work{len(servers)}"
        folder.mkdir()
        for name in ("data", "models"):
            shutil.copytree(world.work.folder / name, folder / name)
        servers.append(EmbeddedServer.start())
        work = Work(folder, REPO, online(servers[-1]))
        work.fill()
        return World(work, servers[-1], world.transactions, world.bundle)

    yield make
    for server in servers:
        server.stop()
