"""Why a windowed view answers what it answers: `explain`, and the commands about windows."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result
from feast import FeatureStore

import hotplate
from hotplate.cli import main
from hotplate.embedded import EmbeddedServer

from ..operations.deployments import write_yaml
from .bank import DAY, MINUTE, Payment, bank, frame_of, random_payment

OWN: dict[str, Any] = {"settings": {"windows": {"in_process": True}}}
SOURCE = """
from datetime import timedelta
from feast import Entity, Field, FileSource, PushSource
from feast.aggregation import Aggregation
from feast.types import Float64, Int64, String
from feast.value_type import ValueType
from hotplate import windowed_view

card = Entity(name="card", join_keys=["card_id"], value_type=ValueType.INT64)
payments = PushSource(
    name="payments",
    batch_source=FileSource(
        name="payments_table",
        path="payments.parquet",
        timestamp_field="at",
        created_timestamp_column="arrived",
    ),
)
activity, activity_events = windowed_view(
    name="activity",
    entities=[card],
    source=payments,
    event_id="payment_id",
    schema=[
        Field(name="card_id", dtype=Int64),
        Field(name="payment_id", dtype=String),
        Field(name="amount", dtype=Float64),
    ],
    aggregations=[
        Aggregation(column="amount", function="sum", time_window=timedelta(hours=1)),
        Aggregation(column="amount", function="mean / 30d", time_window=timedelta(days=1)),
    ],
)
"""


def test_it_agrees_with_what_is_read(tmp_path: Path) -> None:
    """Outputs, counts in the windows and the moment of change, at random moments."""
    shop = bank(tmp_path, {"type": "sqlite"}, tmp_path.name, **OWN)
    chance = random.Random(2)
    reasons = set()
    for _ in range(80):
        shop.push(*(random_payment(chance, shop, 1) for _ in range(chance.randrange(6))))
        shop.repo.clock.advance(chance.choice([0, 0.001, 2, 700, 3_600]))
        shop.repo.cache.runtime.event_logs.compaction.drain()
        found = shop.repo.cache.explain("activity", {"card_id": 0})
        truth = shop.truth(0)
        assert dict(found.outputs) == truth
        for edge in found.edges:
            assert edge.events == truth[f"count_{edge.window.span_ms}"]
        if found.valid_until_ms is not None:
            reasons.add(found.because.split(" of ")[0] + found.because.split(" ")[4])
            assert shop.truth(0, found.valid_until_ms - 1) == truth
    assert len(reasons) >= 2, reasons


def test_it_says_what_this_process_holds(tmp_path: Path) -> None:
    """A row and for how long, none, or one that is not served any more."""
    shop = bank(tmp_path, {"type": "sqlite"}, tmp_path.name, **OWN)
    assert shop.repo.cache.explain("activity", "card_id=1").held is None
    shop.pay(1, ago=MINUTE - 5_000)
    shop.read(1)
    found = shop.repo.cache.explain("activity", "card_id=1")
    assert found.held is not None
    assert found.held.expires_in_s == pytest.approx(5.001, abs=1e-6)
    assert found.because.startswith("the event of")
    assert "leaves the window" in found.because
    shop.repo.clock.advance(6)
    late = shop.repo.cache.explain("activity", "card_id=1").held
    assert late is not None
    assert late.expires_in_s < 0


def test_what_does_not_count_is_there_too(tmp_path: Path) -> None:
    """Duplicates, and what is not visible yet."""
    shop = bank(tmp_path, {"type": "sqlite"}, tmp_path.name, **OWN)
    now = shop.now
    shop.push(
        Payment(1, now - 10, now, "a", 100),
        Payment(1, now - 10, now + 1, "a", 100),
        Payment(1, now + 3_000, now, "b", 250),
    )
    found = shop.repo.cache.explain("activity", "card_id=1")
    assert [(one.ts_ms - now, one.state) for one in found.events] == [
        (-10, "counts"),
        (-10, "duplicate"),
        (3_000, "unseen"),
    ]
    assert found.events[2].values == {"amount": 2.5}


def test_wrong_questions(tmp_path: Path) -> None:
    """Name what is wrong."""
    shop = bank(tmp_path, {"type": "sqlite"}, tmp_path.name, **OWN)
    with pytest.raises(KeyError, match="no windowed view"):
        shop.repo.cache.explain("activity_events", "card_id=1")
    with pytest.raises(hotplate.HotplateError, match="an entity is written"):
        shop.repo.cache.explain("activity", "card=1")
    with pytest.raises(KeyError, match="one entity"):
        shop.repo.cache.explain("activity", {"card_id": [1, 2]})


def test_commands_whose_logs_end_with_them_are_refused(tmp_path: Path) -> None:
    """With where to call it instead; a backfill needs no logs."""
    shop = bank(tmp_path, {"type": "sqlite"}, "own", **OWN)
    shop.pay(1)
    write_yaml(shop.repo)
    for words in (
        ("seed", "activity_events"),
        ("retire", "activity_events"),
        ("explain", "activity", "--entity", "card_id=1"),
    ):
        done = hot(shop.repo.folder, *words)
        assert done.exit_code == 1
        assert f"hotplate.of(store).{words[0]}(...)" in done.output
    done = hot(shop.repo.folder, "backfill", "activity", "--to", str(tmp_path / "all.parquet"))
    assert done.exit_code == 0, done.output


# -- the commands ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, redis: EmbeddedServer) -> Path:
    """A repo on disk, applied, with a history of 300 payments of 3 cards up to now."""
    tmp_path = tmp_path_factory.mktemp("commands")
    now = int(pd.Timestamp.now("UTC").timestamp() * 1_000)
    chance = random.Random(9)
    events = []
    for number in range(300):
        at = now - chance.randrange(1, 2 * DAY)
        events.append(
            Payment(chance.randrange(3), at, at, f"p{number}", chance.randrange(1, 9_999))
        )
    frame_of(events).to_parquet(tmp_path / "payments.parquet")
    (tmp_path / "features.py").write_text(SOURCE)
    settings = {
        "project": tmp_path.name.replace("-", "_"),
        "provider": "hotplate.provider.HotplateProvider",
        "registry": "registry.db",
        "offline_store": {"type": "file"},
        "entity_key_serialization_version": 3,
        "online_store": {
            "type": "hotplate.online_store.CachedOnlineStore",
            "store": {"type": "redis", "connection_string": redis.connection_string},
        },
    }
    (tmp_path / "feature_store.yaml").write_text(yaml.safe_dump(settings))
    feast(tmp_path, "apply")
    return tmp_path


def feast(folder: Path, *words: str) -> str:
    """Run Feast's own command."""
    command = [str(Path(sys.executable).parent / "feast"), "-c", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def hot(folder: Path, *words: str) -> Result:
    """Run `hotplate windows`."""
    return CliRunner().invoke(main, ["windows", *words, "-c", str(folder)])


@pytest.mark.heavy
def test_a_repo_is_applied_seeded_explained_and_backfilled(folder: Path) -> None:
    """From the command line alone, and a read agrees with what is said."""
    listed = feast(folder, "feature-views", "list")
    assert "activity " in listed
    assert "activity_events" in listed
    done = hot(folder, "seed", "activity_events")
    assert done.exit_code == 0, done.output
    assert "seeded 3 logs with 300 events" in done.output
    told = hot(folder, "explain", "activity", "--entity", "card_id=1")
    assert told.exit_code == 0, told.output
    assert "sum_amount_3600s" in told.output
    assert "this process holds no row" in told.output
    as_json = json.loads(
        hot(folder, "explain", "activity", "--entity", "card_id=1", "--json").output
    )
    store = FeatureStore(repo_path=str(folder))
    row = store.get_online_features(
        ["activity:mean_amount_86400s_of_2592000s"], [{"card_id": 1}]
    ).to_dict()
    name = "mean_amount_86400s_of_2592000s"
    assert as_json["outputs"][name] == pytest.approx(row[name][0])
    hotplate.of(store).runtime.close()
    wrote = hot(folder, "backfill", "activity", "--to", str(folder / "windows.parquet"))
    assert wrote.exit_code == 0, wrote.output
    table = pd.read_parquet(folder / "windows.parquet")
    assert len(table) == 300
    assert {"card_id", "event_timestamp", "sum_amount_3600s", name} <= set(table.columns)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["seed", "activity"], "no event view"),
        (["seed", "nothing"], "no group or feature view"),
        (["explain", "activity_events", "--entity", "card_id=1"], "no windowed view"),
        (["explain", "activity", "--entity", "card=1"], "an entity is written"),
        (["backfill", "activity_events"], "no windowed view"),
    ],
)
def test_mistakes_are_one_line(folder: Path, words: list[str], said: str) -> None:
    """On the error stream, with exit code 1."""
    done = hot(folder, *words)
    assert done.exit_code == 1
    assert said in done.output
    assert "Traceback" not in done.output
