"""Decisions of the pipeline against training: live ones pass, and what is planted is found."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result

import hotplate
from hotplate.skew import SkewReport, SkewSpec
from pipelines.fraud import skew
from pipelines.fraud.__main__ import main
from pipelines.fraud.bundle import Models
from pipelines.fraud.ledger import open_ledger
from pipelines.fraud.line import EVENTS, Line
from pipelines.fraud.payments import events_of

from .conftest import World

pytestmark = pytest.mark.heavy  # whole repos and long replays: minutes in all

DECIDED = 400
COUNTS = ("card_count_1d", "card_count_7d", "card_count_30d", "card_count_10m", "card_count_1h")


def decide(world: World, records: list[tuple[str, dict[str, Any]]], **more: Any) -> None:
    """Let the pipeline decide records, in batches of a hundred."""
    store, decider = world.decider()
    with open_ledger(world.work.database) as ledger:
        line = Line(store, lambda: decider, ledger, "test", **more)
        for place in range(0, len(records), 100):
            line.process(records[place : place + 100])


@pytest.fixture(scope="module")
def decided(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world of the module's own, in which payments and questions were decided."""
    import shutil

    from hotplate.embedded import EmbeddedServer
    from pipelines.fraud.work import Work

    from .conftest import REPO, online

    folder = tmp_path_factory.mktemp("decided")
    for name in ("data", "models"):
        shutil.copytree(world.work.folder / name, folder / name)
    with EmbeddedServer.start() as server:
        work = Work(folder, REPO, online(server))
        work.fill()
        made = World(work, server, world.transactions, world.bundle)
        records = made.records(DECIDED)
        for _, record in records[::5]:
            record["kind"] = "check"
        decide(made, records, restamp=True)
        yield made


def check(world: World, database: str = "", **spec: Any) -> skew.Found:
    with open_ledger(database or world.work.database) as ledger:
        return skew.check(world.work, ledger, world.bundle, SkewSpec(**spec))


def unexplained(report: SkewReport) -> dict[str, int]:
    return {one.name: one.unexplained for one in report.features if one.unexplained}


def test_all_that_was_decided_is_equal_or_explained(decided: World) -> None:
    """Every input of the model, of payments of one card within a second, too."""
    found = check(decided)
    assert [one.name for one in found.skew.features] == list(decided.bundle.inputs)
    assert found.skew.rows == DECIDED
    assert unexplained(found.skew) == {}
    assert found.skew.is_fine
    held = {name for one in found.skew.features for name, count in one.counts.items() if count}
    assert {"equal", "rounded", "both null"} <= held


def test_drift_is_of_what_a_replay_does(decided: World) -> None:
    """Weeks of payments within seconds: what a card did within minutes is another distribution,
    the habits of cards are not."""
    found = check(decided).drift
    assert found is not None
    assert found.rows[0] <= 10_000
    verdicts = {one.name: one.verdict for one in found.features}
    assert list(verdicts) == list(decided.bundle.inputs)
    assert verdicts["card_count_10m"] == "drifted"
    assert verdicts["customer_mean_amount"] in ("steady", "too few rows")


def test_the_sample_beside_a_model_is_small_and_names_nobody(decided: World) -> None:
    path = decided.work.models.reference(decided.bundle.version)
    assert path is not None
    assert path.stat().st_size < 1_000_000
    table = pd.read_parquet(path)
    assert set(table) == {*decided.bundle.inputs, "customer_id", "terminal_id"}
    assert table["customer_id"].iloc[0] == 0
    assert table["customer_id"].nunique() == table["customer_id"].max() + 1
    assert decided.work.models.load(decided.bundle.version).reference == b""
    assert decided.work.models.save(decided.bundle)  # once more, and it is the same


def _edited(world: World, folder: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """A copy of the ledger with every row changed."""
    source = world.work.database.removeprefix("sqlite:///")
    place = folder / "edited.db"
    with closing(sqlite3.connect(source)) as given, closing(sqlite3.connect(place)) as made:
        given.backup(made)
        made.row_factory = sqlite3.Row
        for row in made.execute("SELECT * FROM decisions").fetchall():
            said = dict(row) | {"inputs": json.loads(row["inputs"])}
            change(said)
            made.execute(
                "UPDATE decisions SET inputs = ?, at_ms = ? WHERE transaction_id = ?",
                (json.dumps(said["inputs"]), said["at_ms"], said["transaction_id"]),
            )
        made.commit()
    return f"sqlite:///{place}"


def test_an_input_in_another_unit_is_found(decided: World, tmp_path: Path) -> None:
    at = decided.bundle.inputs.index("customer_mean_amount")

    def change(row: dict[str, Any]) -> None:
        if row["inputs"][at] is not None:
            row["inputs"][at] *= 100

    report = check(decided, _edited(decided, tmp_path, change)).skew
    assert set(unexplained(report)) == {"customer_mean_amount"}
    (bad,) = report.failed
    assert any("served is 100 times the training value" in hint for hint in bad.hints)


def test_one_altered_value_is_found(decided: World, tmp_path: Path) -> None:
    at = decided.bundle.inputs.index("card_count_30d")

    def change(row: dict[str, Any]) -> None:
        if row["transaction_id"] == "new-7":
            row["inputs"][at] += 1

    report = check(decided, _edited(decided, tmp_path, change)).skew
    assert unexplained(report) == {"card_count_30d": 1}


def test_an_amount_that_is_not_the_payments_is_found(decided: World, tmp_path: Path) -> None:
    def change(row: dict[str, Any]) -> None:
        row["inputs"][0] = row["inputs"][0] + 1

    report = check(decided, _edited(decided, tmp_path, change)).skew
    assert unexplained(report) == {"amount": DECIDED}


def test_instants_of_another_time_zone_are_found(decided: World, tmp_path: Path) -> None:
    def change(row: dict[str, Any]) -> None:
        row["at_ms"] -= 3_600_000

    report = check(decided, _edited(decided, tmp_path, change)).skew
    assert {"card_count_10m", "card_count_1h"} <= set(unexplained(report))


def test_payments_that_no_table_has_are_found(
    fresh: Callable[[], World],
) -> None:
    """Recorded in the windows past the ledger, as by a job that writes to another database: served
    counts have them, training will never."""
    world = fresh()
    records = world.records(100)
    rows = [fields for _, fields in records]
    ghost = events_of(
        [f"ghost-{place}" for place in range(len(rows))],
        [row["customer_id"] for row in rows],
        [1.0] * len(rows),
        [int(pd.Timestamp.now("UTC").timestamp() * 1_000) - 60_000] * len(rows),
    )
    hotplate.of(world.work.open()).ingest(EVENTS, ghost)
    decide(world, records, restamp=True)
    report = check(world).skew
    assert set(COUNTS) <= set(unexplained(report))
    assert min(unexplained(report)[name] for name in COUNTS) > 90
    assert "customer_mean_amount" not in unexplained(report)


def command(world: World, *args: Any) -> Result:
    options = ["--work", str(world.work.folder), "--redis", world.server.connection_string]
    return CliRunner().invoke(main, [*options, "skew", *map(str, args)])


def test_the_command_writes_a_page_and_ends_with_what_it_found(
    decided: World, tmp_path: Path
) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed")
    found = command(decided, "--out", tmp_path / "fine")
    assert found.exit_code == 0, found.output
    assert "all is equal or explained" in found.stdout
    numbers = json.loads((tmp_path / "fine" / "results.json").read_text())
    assert numbers["skew"]["is_fine"]
    assert "How much differs, and why" in (tmp_path / "fine" / "index.html").read_text()

    def change(row: dict[str, Any]) -> None:
        row["inputs"][0] = 0.0

    database = _edited(decided, tmp_path, change)
    found = command(decided, "--out", tmp_path / "bad", "--database", database)
    assert found.exit_code == 1, found.output
    assert "amount: row 0: served 0.0" in found.stdout
    assert command(decided, "--database", database, "--limit", "1").exit_code == 0


def test_a_model_without_a_sample_is_compared_all_the_same(
    decided: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that was trained before samples were kept."""
    monkeypatch.setattr(Models, "reference", lambda self, version: None)
    found = command(decided, "--out", tmp_path)
    assert found.exit_code == 0, found.output
    assert "was trained without a sample" in found.stdout
    assert json.loads((tmp_path / "results.json").read_text())["drift"] is None


def test_what_is_missing_is_one_line(decided: World, tmp_path: Path) -> None:
    found = command(decided, "--database", f"sqlite:///{tmp_path}/empty.db")
    assert found.exit_code == 1
    assert "has decided nothing" in found.stderr
    assert command(decided, "--model", "none").exit_code == 1
