"""`online_store.quality`: bad rows are refused before anything is written, or only said."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from feast import FeatureStore

import hotplate
from hotplate.errors import ConfigError, HotplateError
from hotplate.quality import QualityError, QualityFailed
from hotplate.quality.aside import Aside
from hotplate.settings import QualityConfig

from ..stores import await_
from .repo import AT, CREATED, QualityRepo, table

NOW = datetime.now(UTC).replace(microsecond=0)
PLUGINS = str(Path(hotplate.__file__).parents[1])


def gated(folder: Path, **quality: Any) -> QualityRepo:
    """A repo with a gate, and the reference of rows that are good now."""
    made = QualityRepo(folder / "repo", quality)
    made.good = table(end=NOW)
    made.write(made.good)
    made.measure()
    return made


def materialize(repo: QualityRepo, store: FeatureStore | None = None, **more: Any) -> FeatureStore:
    """Materialize everything of the last two months."""
    store = store or repo.store()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.materialize(NOW - timedelta(days=60), NOW, feature_views=["cards"], **more)
    return store


def read(store: FeatureStore, card: int) -> Any:
    """What the online store answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return store.get_online_features(["cards:amount"], [{"card_id": card}]).to_dict()["amount"][
            0
        ]


def push(store: FeatureStore, frame: pd.DataFrame) -> None:
    """Push rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.push("cards_push", frame)


def rows(count: int = 20, **changed: Any) -> pd.DataFrame:
    """A good batch, changed."""
    return table(end=NOW).tail(count).assign(**changed)


# -- materialize ----------------------------------------------------------------------------------


def test_block_refuses_before_anything_is_written(tmp_path: Path) -> None:
    """The error names view, column, expectation, share and examples; the store stays empty."""
    repo = gated(tmp_path, materialize="block")
    bad = repo.good.copy()
    bad.loc[bad.index[::20], "amount"] = -7.0
    repo.write(bad)
    store = repo.store()
    with pytest.raises(QualityFailed) as caught:
        materialize(repo, store)
    said = str(caught.value)
    for part in ("cards.amount", "expect_column_values_to_be_between", "5.00%", "-7.0", "warn"):
        assert part in said
    assert caught.value.view == "cards"
    assert all(read(store, card) is None for card in bad["card_id"].iloc[:20])
    stats = hotplate.of(store).stats().quality
    assert stats is not None
    assert (stats.checked, stats.failed, stats.blocked) == (1, 1, 1)
    repo.write(repo.good)
    materialize(repo, store)
    assert read(store, int(repo.good["card_id"].iloc[-1])) is not None


def test_a_refused_view_is_not_marked_as_materialized(tmp_path: Path) -> None:
    """`materialize-incremental` begins again where it was before the refusal."""
    repo = gated(tmp_path, materialize="block")
    repo.write(repo.good.assign(amount=-1.0))
    store = repo.store()
    with pytest.raises(QualityFailed):
        materialize(repo, store)
    assert not repo.store().get_feature_view("cards").materialization_intervals


def test_warn_writes_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bad rows are written, logged and counted."""
    repo = gated(tmp_path, materialize="warn")
    repo.write(repo.good.assign(amount=-1.0))
    with caplog.at_level(logging.WARNING, "hotplate.quality"):
        store = materialize(repo)
    assert "not as expected" in caplog.text
    assert "cards.amount" in caplog.text
    assert read(store, int(repo.good["card_id"].iloc[-1])) == -1.0
    stats = hotplate.of(store).stats().quality
    assert stats is not None
    assert (stats.checked, stats.failed, stats.blocked) == (1, 1, 0)


def test_only_the_rows_to_be_written_are_judged(tmp_path: Path) -> None:
    """What lies outside the materialized time may be as bad as it likes."""
    repo = gated(tmp_path, materialize="block")
    old = repo.good.assign(
        amount=-1.0,
        **{AT: repo.good[AT] - timedelta(days=90), CREATED: repo.good[CREATED]},
    )
    repo.write(pd.concat([old, repo.good], ignore_index=True))
    materialize(repo)


def test_an_empty_stretch_of_time_is_no_fault(tmp_path: Path) -> None:
    """A job that finds nothing new is not refused for that."""
    repo = gated(tmp_path, materialize="block")
    repo.write(repo.good.iloc[:0])
    materialize(repo)


def test_a_backfill_of_old_times_is_not_stale(tmp_path: Path) -> None:
    """Age counts from the end of what is materialized."""
    repo = gated(tmp_path, materialize="block")
    store = repo.store()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        end = NOW - timedelta(days=15)
        store.materialize(NOW - timedelta(days=60), end, feature_views=["cards"])


def test_a_gate_without_a_reference_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Block refuses what it cannot judge; warn writes it, and says so."""
    repo = gated(tmp_path, materialize="block")
    (repo.folder / "quality.json").unlink()
    with pytest.raises(QualityError, match="hotplate quality profile"):
        materialize(repo)
    other = QualityRepo(tmp_path / "other", {"materialize": "warn"})
    other.write(repo.good)
    with caplog.at_level(logging.WARNING, "hotplate.quality"):
        store = materialize(other)
    assert "was not judged" in caplog.text
    stats = hotplate.of(store).stats().quality
    assert stats is not None
    assert stats.errors == 1


def test_everything_is_judged_where_everything_is_written(tmp_path: Path) -> None:
    """`disable_event_timestamp` writes rows of all times, so rows of all times are judged."""
    repo = gated(tmp_path, materialize="block")
    old = repo.good.assign(
        amount=-1.0,
        **{name: repo.good[name] - timedelta(days=90) for name in (AT, CREATED)},
    )
    repo.write(pd.concat([old, repo.good], ignore_index=True))
    with pytest.raises(QualityFailed):
        materialize(repo, disable_event_timestamp=True)


def test_a_fault_of_the_gate_itself_stops_nothing_that_is_only_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the gate stumbles over, `warn` writes, counts and says so."""
    repo = gated(tmp_path, materialize="warn")

    def broken(*arguments: Any) -> Any:
        raise RuntimeError("stumbled")

    monkeypatch.setattr("hotplate.quality.gate.check", broken)
    with caplog.at_level(logging.WARNING, "hotplate.quality"):
        store = materialize(repo)
    assert "stumbled" in caplog.text
    assert read(store, int(repo.good["card_id"].iloc[-1])) is not None


def test_what_the_repo_says_is_read_again(tmp_path: Path) -> None:
    """A `quality.py` that is changed counts for the next materialization of the same process."""
    repo = gated(tmp_path, materialize="block")
    repo.write(repo.good.assign(amount=-1.0))
    store = repo.store()
    with pytest.raises(QualityFailed):
        materialize(repo, store)
    repo.declare(
        "from hotplate.quality import ColumnQuality, ViewQuality\n"
        "cards = ViewQuality('cards', columns={'amount': ColumnQuality(off=['range', 'median'])})\n"
    )
    materialize(repo, store)


def test_apply_refuses_a_gate_that_nothing_asks(tmp_path: Path) -> None:
    """Under another provider the setting would be a promise that nobody keeps."""
    repo = QualityRepo(
        tmp_path / "repo", {"materialize": "block"}, provider="local", is_applied=False
    )
    with pytest.raises(ConfigError, match="HotplateProvider"):
        repo.apply()


def test_the_doctor_looks_at_the_gate(tmp_path: Path) -> None:
    """Fine with a reference, an error without one, nothing where the gate is off."""
    repo = gated(tmp_path, materialize="block")

    def seen(made: QualityRepo) -> list[tuple[str, str]]:
        found = hotplate.of(made.store()).examine()
        return [(one.status, one.fix) for one in found if one.check == "quality"]

    assert seen(repo) == [("ok", "")]
    (repo.folder / "quality.json").unlink()
    assert seen(repo) == [("error", "hotplate quality profile")]
    assert seen(QualityRepo(tmp_path / "off")) == []


# -- pushes ---------------------------------------------------------------------------------------


def test_block_refuses_a_push(tmp_path: Path) -> None:
    """Nothing of a bad batch is written; a good one is."""
    repo = gated(tmp_path, pushes="block")
    store = repo.store()
    bad = rows(amount=-1.0)
    with pytest.raises(QualityFailed, match=r"cards\.amount"):
        push(store, bad)
    assert read(store, int(bad["card_id"].iloc[0])) is None
    push(store, rows())
    assert read(store, int(bad["card_id"].iloc[0])) is not None


async def test_block_refuses_a_push_on_an_event_loop(tmp_path: Path) -> None:
    """The same for the asynchronous call, and the loop goes on meanwhile."""
    repo = gated(tmp_path, pushes="block")
    provider = repo.store()._get_provider()
    view = repo.store().get_feature_view("cards")
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    with pytest.raises(QualityFailed):
        await provider.ingest_df_async(view, rows(amount=-1.0))
    counting.cancel()
    assert turns > 1


def test_warn_looks_at_a_push_on_the_side(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The batch is written; that it was bad is counted and logged, once in a while."""
    repo = gated(tmp_path, pushes="warn", sample="100%")
    store = repo.store()
    hot = hotplate.of(store)
    with caplog.at_level(logging.WARNING, "hotplate.quality"):
        for _ in range(3):
            push(store, rows(amount=-1.0))
            counters = hot.runtime.quality
            await_(lambda counters=counters: counters.checked + counters.dropped >= 1)
        await_(lambda: counters.checked + counters.dropped == 3)
    assert read(store, int(rows()["card_id"].iloc[0])) == -1.0
    assert counters.failed == counters.checked
    assert sum("a push to cards" in record.message for record in caplog.records) == 1


def test_only_a_sample_of_pushes_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in ten: those whose draw falls below the share, and no other."""
    repo = gated(tmp_path, pushes="block", sample="10%")
    store = repo.store()
    draws = iter([0.5, 0.1, 0.0999, 0.9])
    monkeypatch.setattr("hotplate.quality.gate.random.random", lambda: next(draws))
    bad = rows(amount=-1.0)
    push(store, bad)
    push(store, bad)
    with pytest.raises(QualityFailed):
        push(store, bad)
    push(store, bad)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("a future moment", {AT: pd.Timestamp(NOW + timedelta(days=2)).as_unit("us")}),
        ("numbers as text", {"amount": "12"}),
        ("texts among numbers", {"amount": [1.0, "x"] * 10}),
        ("an unknown kind", {"kind": "gift"}),
        ("a null key", {"card_id": pd.array([None, 7] * 10, dtype="Int64")}),
    ],
)
def test_faults_of_a_push_are_named(tmp_path: Path, name: str, changed: dict[str, Any]) -> None:
    """A pushed frame is judged as it is given, whatever pandas holds in it."""
    repo = gated(tmp_path, pushes="block")
    (column,) = changed
    with pytest.raises(QualityFailed, match=rf"cards\.{column}"):
        push(repo.store(), rows(**changed))


# -- off ------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_nothing_is_imported_unless_the_gate_is_on(tmp_path: Path) -> None:
    """Without a gate, or with one for pushes alone, reading and materializing import none of it."""
    code = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "from datetime import datetime, timedelta, timezone\n"
        "from feast import FeatureStore\n"
        "store = FeatureStore(repo_path=sys.argv[1])\n"
        "now = datetime.now(timezone.utc)\n"
        "store.materialize(now - timedelta(days=60), now, feature_views=['cards'])\n"
        "store.get_online_features(['cards:amount'], [{'card_id': 1}]).to_dict()\n"
        "print('great_expectations' in sys.modules)\n"
    )
    said = []
    for number, quality in enumerate((None, {"pushes": "warn"}, {"materialize": "warn"})):
        repo = QualityRepo(tmp_path / str(number), quality)
        repo.good = table(end=NOW)
        repo.write(repo.good)
        repo.measure()
        done = subprocess.run(
            [sys.executable, "-c", code, str(repo.folder)],
            env={**os.environ, "PYTHONPATH": PLUGINS},
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(done.stdout.split()[-1])
    assert said == ["False", "False", "True"]


@pytest.mark.parametrize(
    "settings",
    [{"materialize": "sometimes"}, {"pushes": True}, {"sample": "0%"}, {"sample": 2}, {"bogus": 1}],
)
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    """What means nothing is refused when the settings are read."""
    with pytest.raises((ValueError, HotplateError)):
        QualityConfig(**settings)


def test_settings_have_sensible_defaults() -> None:
    """Off; of what may be refused all, of the rest one in a hundred; YAML's `off` is off."""
    assert (QualityConfig().materialize, QualityConfig().pushes) == ("off", "off")
    assert QualityConfig(pushes="block").share == 1
    assert QualityConfig(pushes="warn").share == 0.01
    assert QualityConfig(pushes="block", sample="5%").share == 0.05
    assert QualityConfig(materialize=False).materialize == "off"


# -- the side -------------------------------------------------------------------------------------


def test_the_side_is_bounded_and_waits_for_nobody() -> None:
    """While the worker is busy a few things wait, the rest is turned away, and none blocks."""
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work(one: int) -> None:
        begun.set()
        go_on.wait(30)
        done.append(one)

    aside = Aside(work)
    assert aside.put(0)
    assert begun.wait(30)
    taken = [aside.put(number) for number in range(1, 10)]
    assert taken == [True] * 4 + [False] * 5
    go_on.set()
    aside.close()
    assert done == [0, 1, 2, 3, 4]
    assert not aside.put(10)


def test_a_forked_child_starts_its_own_side() -> None:
    """The thread is not the child's: what it puts is done by one of its own."""
    done: list[int] = []
    aside = Aside(done.append)
    aside.put(1)
    await_(lambda: done == [1])
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads: the point
        child = os.fork()
    if child == 0:
        aside.put(2)
        aside.close()
        os.write(write_end, str(done).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read_end, 100) == b"[1, 2]"
    os.close(read_end)
    os.close(write_end)
    aside.close()
