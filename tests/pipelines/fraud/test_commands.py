"""The pipeline from its command line, step by step, and the ways to get it wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from hotplate.embedded import EmbeddedServer
from hotplate.telemetry import read_folder
from pipelines.fraud.__main__ import main
from pipelines.fraud.ledger import open_ledger

from ...stores import await_

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The command, over a folder and a server of the module's own."""
    pytest.importorskip("xgboost", reason="XGBoost is not installed")
    folder = tmp_path_factory.mktemp("commands")
    with EmbeddedServer.start() as server:
        options = ["--work", str(folder), "--redis", server.connection_string]

        def command(*args: Any, fails: int = 0) -> Result:
            found = CliRunner().invoke(main, [*options, *map(str, args)])
            assert found.exit_code == fails, found.output
            return found

        command.folder = folder  # type: ignore[attr-defined]
        yield command


def one_line(found: Result) -> str:
    (line,) = found.stderr.strip().splitlines()
    assert line.startswith("fraud: ")
    return line


@pytest.mark.heavy
def test_step_by_step(run: Run) -> None:
    folder: Path = run.folder  # type: ignore[attr-defined]
    assert "run `python -m pipelines.fraud simulate`" in one_line(run("features", fails=1))
    assert "has no payments" in one_line(run("train", "--device", "cpu", fails=1))
    said = run("simulate", "--customers", 150, "--terminals", 150, "--days", 60).stdout
    assert "payments" in said
    run("features")
    assert "names no current model" in one_line(run("score", "--stream", "s", fails=1))
    said = run("train", "--weeks", 1, "--folds", 1, "--rounds", 30, "--version", "one").stdout
    assert "model one, current" in said
    assert "CPU" in said
    run("train", "--weeks", 1, "--folds", 0, "--rounds", 5, "--version", "two", "--not-current")
    said = run("models").stdout
    assert "* one" in said
    assert "  two" in said
    run("deploy", "two")
    run("deploy", "--rollback")
    assert "* one" in run("models").stdout
    rows = pd.read_parquet(folder / "transactions.parquet").tail(300)
    rows.assign(TRANSACTION_ID=range(9_000_000, 9_000_300)).to_parquet(folder / "new.parquet")
    score = ("score", "--file", folder / "new.parquet", "--restamp", "--json")
    decided = 0
    for part in ("1/2", "2/2"):
        decided += json.loads(run(*score, "--part", part).stdout.splitlines()[-1])["decided"]
    assert decided == 300
    again = json.loads(run(*score, "--part", "1/2").stdout.splitlines()[-1])
    assert again["decided"] == 0
    await_(lambda: read_folder(folder / "metrics").sum("hotplate_output_rows_total") >= 300)
    counted = read_folder(folder / "metrics")
    assert counted.sum("hotplate_output_rows_total", model="fraud") == 300
    assert counted.by("hotplate_events_total", "view")["card_windows_events"] > 0
    with open_ledger(f"sqlite:///{folder / 'decisions.db'}") as ledger:
        assert {row["model_version"] for row in ledger.rows()} == {"one"}
    assert "300 decisions of 300 compared: all is equal or explained" in run("skew").stdout


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("score",), "give --stream KEY or --file FILE"),
        (("score", "--stream", "a", "--file", __file__), "give --stream KEY or --file FILE"),
        (("score", "--stream", "a", "--part", "3/2"), "write 1/2"),
        (("train", "--review", "0.1", "--decline", "0.2"), "--decline is a share"),
        (("deploy",), "give a VERSION or --rollback"),
        (("load", "nowhere.parquet"), "does not exist"),
    ],
)
def test_what_is_wrong_with_the_command_is_said(given: tuple[str, ...], problem: str) -> None:
    found = CliRunner().invoke(main, list(given))
    assert found.exit_code == 2
    assert problem in found.stderr


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("score", "--stream", "a", "--without", "magic"), "there is no layer 'magic'"),
        (("score", "--file", __file__), "cannot be read"),
        (("deploy", "none"), "holds no model 'none'"),
        (("benchmark", __file__), "unknown kind of file"),
    ],
)
def test_what_cannot_be_done_is_one_line(run: Run, given: tuple[str, ...], problem: str) -> None:
    assert problem in one_line(run(*given, fails=1))


def test_a_gpu_that_is_not_there_is_refused_by_name(run: Run) -> None:
    from pipelines.fraud.device import find_device

    if find_device().name == "cuda":
        pytest.skip("there is one")
    assert "no GPU" in one_line(run("train", "--device", "cuda", fails=1))


@pytest.mark.heavy
def test_a_server_that_is_not_there_is_said(run: Run) -> None:
    folder: Path = run.folder  # type: ignore[attr-defined]
    if not (folder / "registry.db").exists():
        pytest.skip("only after the steps")
    options = ["--work", str(folder), "--redis", "127.0.0.1:1"]
    found = CliRunner().invoke(main, [*options, "score", "--stream", "s"])
    assert found.exit_code == 1
    assert "does not answer" in found.stderr
