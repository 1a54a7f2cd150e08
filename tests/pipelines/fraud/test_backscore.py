"""History scored on Spark: the scores of the same payments here, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from pipelines.fraud import backscore as module
from pipelines.fraud.__main__ import main
from pipelines.fraud.backscore import backscore
from pipelines.fraud.bundle import ModelRefused
from pipelines.fraud.decide import judged, scorer_of
from pipelines.fraud.train import features_of
from pipelines.fraud.work import SERVICE, Work

from ...sparks import spark_session
from ..fraud_world import a_model
from .conftest import World, online

pytest.importorskip("pyspark", reason="pyspark is not installed")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java 17, and there is none", allow_module_level=True)

# Feast calls its Spark store experimental whenever one of its objects is made
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.heavy]


@pytest.fixture(scope="module")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The command takes the session that is there."""
    with spark_session(tmp_path_factory.mktemp("warehouse")):
        yield


def _copied(world: World, folder: Path) -> Work:
    """A folder of a test's own over the same features."""
    folder.mkdir()
    shutil.copytree(world.work.folder / "data", folder / "data")
    shutil.copy(world.work.folder / "registry.db", folder)
    return Work(folder, world.work.repo.folder, online(world.server))


@pytest.mark.usefixtures("_session")
def test_every_payment_gets_the_score_that_it_gets_here(world: World, tmp_path: Path) -> None:
    """Of some weeks, in a session of another time zone; two payments of a card at one instant, and
    of cards of which nothing is known, among them."""
    work = _copied(world, tmp_path / "work")
    table = work.folder / "data" / "payments.parquet"
    before = pd.read_parquet(table)
    times = before["event_timestamp"]
    since, until = times.quantile(0.6).floor("s"), times.quantile(0.9).floor("s")
    inside = before[(times >= since) & (times < until)].head(3)
    odd = pd.concat(
        [
            inside.assign(transaction_id=[f"twin-{row}" for row in range(3)]),
            inside.assign(
                transaction_id=[f"new-{row}" for row in range(3)], customer_id=[7777] * 3
            ),
        ]
    )
    asked = pd.concat([before, odd]).sort_values("event_timestamp", kind="stable")
    out = tmp_path / "out"
    out.mkdir()
    (out / "part-old.parquet").write_text("from the time before")
    bundle = a_model(work.open(), "back")
    asked.to_parquet(table, index=False, coerce_timestamps="us")
    found = backscore(work, bundle, out, since=since.to_pydatetime(), until=until.to_pydatetime())
    expected = asked[(asked.event_timestamp >= since) & (asked.event_timestamp < until)]
    inputs = features_of(work.open(), SERVICE, expected, list(bundle.features))
    scores = scorer_of(bundle, "cpu").score(inputs)
    by_id = pd.read_parquet(out).set_index("transaction_id").loc[expected["transaction_id"]]
    assert len(by_id) == len(expected) > 300
    assert np.stack(by_id["inputs"].to_list()).tobytes() == inputs.tobytes()
    assert by_id["score"].to_numpy().tobytes() == scores.tobytes()
    decisions, reasons = judged(scores, bundle.review_at, bundle.decline_at)
    assert (by_id["decision"].tolist(), by_id["reason"].tolist()) == (decisions, reasons)
    assert set(by_id["model_version"]) == {"back"}
    moments = pd.to_datetime(by_id["event_timestamp"], utc=True)
    assert moments.tolist() == expected["event_timestamp"].tolist()
    counts = by_id["decision"].value_counts().to_dict()
    assert found.decisions == counts
    assert not (out / "part-old.parquet").exists()
    assert {one.name for one in tmp_path.iterdir()} == {"out", "work"}, "nothing is left beside it"


@pytest.mark.usefixtures("_session")
def test_what_cannot_be_is_said_before_anything_is_replaced(world: World, tmp_path: Path) -> None:
    work = world.work
    bundle = a_model(work.open(), "back")
    (tmp_path / "kept").write_text("here")
    with pytest.raises(ValueError, match="holds 'kept', which is no score"):
        backscore(work, bundle, tmp_path)
    with pytest.raises(ValueError, match="no payment lies between"):
        backscore(work, bundle, tmp_path / "new", since=pd.Timestamp("2100-01-01", tz="UTC"))
    other = replace(bundle, features={**bundle.features, "shoe_size": "Int64"})
    with pytest.raises(ModelRefused, match="shoe_size"):
        backscore(work, other, tmp_path / "new")
    empty = Work(tmp_path / "empty", work.repo.folder)
    with pytest.raises(ValueError, match=r"python -m pipelines\.fraud features"):
        backscore(empty, bundle, tmp_path / "new")
    assert (tmp_path / "kept").read_text() == "here"


def test_without_java_it_says_so(world: World, tmp_path: Path, monkeypatch: Any) -> None:
    work = _copied(world, tmp_path / "work")
    work.models.save(a_model(work.open(), "back"))
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    args = ["--work", str(work.folder), "--redis", world.server.connection_string]
    result = CliRunner().invoke(main, [*args, "backscore", "--model", "back"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("fraud: Spark wants Java 17")
