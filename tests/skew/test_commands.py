"""`hotplate skew` and `hotplate drift`: what they take, print, write, and how they end."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from hotplate.cli import main

from .shop import Shop

YAML = """\
project: shop
provider: hotplate.provider.HotplateProvider
registry: registry.db
online_store: {type: sqlite, path: online.db}
offline_store: {type: file}
entity_key_serialization_version: 3
"""
NAMES = ("n_1h", "n_24h", "sum_1h", "mean", "score", "segment")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A repo with a log in each form."""
    shop = Shop(tmp_path_factory.mktemp("shop"), decisions=120)
    folder, log = shop.folder, shop.log
    (folder / "feature_store.yaml").write_text(YAML)
    log.to_parquet(folder / "log.parquet", index=False)
    log.to_csv(folder / "log.csv", index=False)
    packed = pd.DataFrame(
        {
            "card_id": log["card_id"],
            "at_ms": log["at"].dt.as_unit("ms").astype("int64"),
            "decided_ms": log["decided"].dt.as_unit("ms").astype("int64"),
            "inputs": [json.dumps(list(row)) for row in _plain(log)],
            "ages": [json.dumps({"profile": age}) for age in log["age_s"]],
        }
    )
    packed.to_json(folder / "log.jsonl", orient="records", lines=True)
    # not by a connection of sqlite3: pandas would change how this process writes timestamps there
    engine = sa.create_engine(f"sqlite:///{folder / 'log.db'}")
    packed.to_sql("decisions", engine, index=False)
    engine.dispose()
    return shop


def _plain(log: pd.DataFrame) -> list[tuple[Any, ...]]:
    held = log[list(NAMES)].astype(object)
    return list(held.where(held.notna(), None).itertuples(index=False, name=None))


def run(*args: Any) -> Result:
    return CliRunner().invoke(main, [str(one) for one in args])


def skew(shop: Shop, served: Any, *more: Any) -> Result:
    return run("skew", "-c", shop.folder, "--served", served, *more)


COLUMNS = ("--at", "at", "--read-at", "decided", "--age", "profile=age_s", "--layer", "layer")
PACKED = ("--at", "at_ms", "--read-at", "decided_ms", "--inputs", "inputs", "--names")
PACKED += (",".join(NAMES), "--ages", "ages")  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("served", "more"),
    [
        ("log.parquet", COLUMNS),
        ("log.csv", COLUMNS),
        ("log.jsonl", PACKED),
        ("sqlite:///{}/log.db", (*PACKED, "--table", "decisions")),
        ("sqlite:///{}/log.db", (*PACKED, "--query", "SELECT * FROM decisions WHERE card_id > 2")),
    ],
    ids=["parquet", "csv", "json", "table", "query"],
)
def test_a_log_of_any_form_is_read(shop: Shop, served: str, more: Sequence[str]) -> None:
    place = served.format(shop.folder) if "://" in served else shop.folder / served
    found = skew(shop, place, "--service", "model", "--json", *more)
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    assert said["is_fine"]
    assert [one["feature"] for one in said["features"]] == list(NAMES)
    assert said["rows"] == (120 if "SELECT" not in more[-1] else (shop.log.card_id > 2).sum())
    assert all(one["unexplained"] == 0 for one in said["features"])
    assert sum(one["cached"] for one in said["features"]) > 0


def test_a_skew_ends_with_1_and_says_where(shop: Shop, tmp_path: Path) -> None:
    """Ids are shown only where they are asked for; the page holds all that it needs."""
    pytest.importorskip("plotly", reason="plotly is not installed")
    log = shop.log.assign(card_id=shop.log["card_id"])
    log["sum_1h"] = log["sum_1h"] * 100
    log.to_parquet(tmp_path / "bad.parquet")
    page = tmp_path / "pages" / "skew.html"
    found = skew(shop, tmp_path / "bad.parquet", "--service", "model", *COLUMNS, "--html", page)
    assert found.exit_code == 1, found.output
    assert "sum_1h: served is 100 times the training value" in found.stdout
    assert "not all is equal or explained" in found.stdout
    assert "card_id" not in found.stdout
    drawn = page.read_text()
    assert "served is 100 times" in drawn.replace("Served is", "served is")
    assert "scatter" in drawn
    assert "src=" not in drawn.split("</script>")[-1]
    shown = skew(shop, tmp_path / "bad.parquet", "--service", "model", *COLUMNS, "--ids")
    assert ", card_id " in shown.stdout
    said = skew(shop, tmp_path / "bad.parquet", "--service", "model", *COLUMNS, "--ids", "--json")
    bad = next(one for one in json.loads(said.stdout)["features"] if one["feature"] == "sum_1h")
    for example in bad["examples"]:
        assert example["entity"]["card_id"] == log["card_id"].iloc[example["row"]]
    accepted = skew(
        shop, tmp_path / "bad.parquet", "--service", "model", *COLUMNS, "--limit", "100%"
    )
    assert accepted.exit_code == 0


def test_single_features_may_be_named(shop: Shop) -> None:
    found = skew(
        shop, shop.folder / "log.parquet", "--feature", "profile:score", "--json", *COLUMNS
    )
    assert [one["feature"] for one in json.loads(found.stdout)["features"]] == ["score"]


@pytest.mark.parametrize(
    ("args", "code", "problem"),
    [
        (("log.parquet",), 2, "with --service, or with --feature"),
        (("log.parquet", "--service", "model", "--table", "t"), 2, "a file with neither"),
        (("sqlite:///log.db", "--service", "model"), 2, "with --table or --query"),
        (("log.parquet", "--service", "model", "--limit", "much"), 2, "--limit"),
        (("log.parquet", "--service", "model", "--lag", "profile=soon"), 2, "--lag"),
        (("log.parquet", "--service", "model", "--age", "age_s"), 2, "write NAME=VALUE"),
        (("log.parquet", "--service", "model"), 1, "has no column 'event_timestamp'"),
        (("log.parquet", "--service", "other", "--at", "at"), 1, "There are: beside, model"),
        (("log.txt", "--service", "model"), 1, "Write .parquet, .csv or .jsonl"),
        (("none.parquet", "--service", "model"), 1, "cannot be read"),
        (("sqlite:///none.db", "--service", "model", "--table", "t"), 1, "there is no such file"),
        (("sqlite:///log.db", "--service", "model", "--table", "t"), 1, "no such table: t"),
        (("sqlite:///log.db", "--service", "model", "--query", "DROP"), 1, "cannot be read"),
        (("nodb://u:secret@h/d", "--service", "model", "--table", "t"), 1, "URL cannot be used"),
        (("log.jsonl", "--service", "model", "--inputs", "inputs"), 1, "a list of 0 values"),
        (("log.jsonl", "--service", "model", "--inputs", "card_id"), 1, "row 1"),
    ],
)
def test_what_is_wrong_is_one_line(
    shop: Shop, args: Sequence[str], code: int, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop.folder)
    found = run("skew", "--served", *args)
    assert found.exit_code == code, found.output
    assert problem in found.stderr
    assert "Traceback" not in found.stderr
    assert "secret" not in found.output
    if code == 1:
        assert len(found.stderr.strip().splitlines()) == 1


def _tables(folder: Path, move: float) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    for name, rows, by in (("then.parquet", 3_000, 0.0), ("now.csv", 2_000, move)):
        made = pd.DataFrame(
            {
                "card_id": rng.integers(0, 300, rows),
                "amount": rng.normal(size=rows) + by,
                "kind": rng.choice(["a", "b"], rows),
            }
        )
        path = folder / name
        made.to_csv(path, index=False) if path.suffix == ".csv" else made.to_parquet(path)
    return folder / "then.parquet", folder / "now.csv"


def test_a_drift_ends_with_1_and_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed")
    then, now = _tables(tmp_path, 2.0)
    page = tmp_path / "drift.html"
    args = ("drift", "--reference", then, "--current", now, "--owner", "*=card_id")
    found = run(*args, "--html", page)
    assert found.exit_code == 1, found.output
    assert "1 of 2 features have drifted" in found.stdout
    assert "Then and now" in page.read_text()
    said = json.loads(run(*args, "--json").stdout)
    assert {one["feature"]: one["verdict"] for one in said["features"]} == {
        "amount": "drifted",
        "kind": "steady",
    }
    assert run(*args, "--feature", "kind").exit_code == 0
    assert run(*args, "--psi", "100", "--feature", "kind").exit_code == 0


def test_what_has_not_drifted_ends_with_0(tmp_path: Path) -> None:
    then, now = _tables(tmp_path, 0.0)
    found = run("drift", "--reference", then, "--current", now, "--owner", "*=card_id")
    assert found.exit_code == 0, found.output


def test_without_plotly_a_page_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    then, now = _tables(tmp_path, 0.0)
    for name in [name for name in sys.modules if name.split(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    found = run("drift", "--reference", then, "--current", now, "--html", tmp_path / "page.html")
    assert found.exit_code == 1
    assert "pip install 'feast-hotplate[demo]'" in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("level", ["0%", "100%"])
def test_a_level_is_a_share(tmp_path: Path, level: str) -> None:
    then, now = _tables(tmp_path, 0.0)
    assert run("drift", "--reference", then, "--current", now, "--level", level).exit_code == 2
