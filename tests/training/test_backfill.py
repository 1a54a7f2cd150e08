"""Outputs at every event, written as a table: right, bounded in memory, and resumable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from hotplate.training import backfill as module
from hotplate.training.backfill import Backfill, BackfillSettings, Progress, backfill_view
from hotplate.training.errors import TrainingError
from hotplate.training.reading import EventSource
from hotplate.training.spill import chunks_of

from .repo import TrainingRepo, columns, served, transactions

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> TrainingRepo:
    """Some 6,600 events in row groups of 500."""
    made = TrainingRepo(tmp_path_factory.mktemp("backfill"), transactions(6_000))
    made.events.to_parquet(made.path, row_group_size=500)
    return made


def by_row(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(["card_id", "event_timestamp"], ignore_index=True)


@pytest.fixture(scope="module")
def whole(repo: TrainingRepo) -> pd.DataFrame:
    """The outputs, computed at once."""
    target = repo.folder / "whole.parquet"
    backfill_view(repo.store, "card_activity", target=target)
    return by_row(pd.read_parquet(target))


def test_each_row_is_what_serving_answers_at_the_event(
    repo: TrainingRepo, whole: pd.DataFrame
) -> None:
    """One row for each card and moment of an accepted event; the event itself does not count."""
    log = repo.events[repo.events.arrived - repo.events["at"] <= pd.Timedelta("1h")]
    assert len(whole) == len(log.drop_duplicates(["card_id", "at"]))
    assert (whole.created_timestamp == whole.event_timestamp).all()
    some = whole.sample(60, random_state=0)
    expected = [
        served(repo.cards, repo.events, card, t)
        for card, t in zip(some.card_id, some.event_timestamp, strict=True)
    ]
    found = some[columns(repo.cards)].to_numpy(float)
    np.testing.assert_array_equal(found, np.array(expected))


def test_rows_may_be_as_of_just_after_the_event(repo: TrainingRepo, whole: pd.DataFrame) -> None:
    """A millisecond later."""
    target = repo.folder / "after.parquet"
    backfill_view(repo.store, "card_activity", target=target, settings=BackfillSettings(at="after"))
    after = by_row(pd.read_parquet(target))
    assert (after.event_timestamp - whole.event_timestamp == pd.Timedelta("1ms")).all()
    t = after.event_timestamp[100]
    assert (
        after.loc[100, columns(repo.cards)].tolist()[0]
        == (served(repo.cards, repo.events, after.card_id[100], t)[0])
    )


def test_parts_on_disk_give_the_same_table(repo: TrainingRepo, whole: pd.DataFrame) -> None:
    """Divided by entity, in chunks, with whatever is held at a time; nothing is left beside it."""
    target, seen = repo.folder / "parts.parquet", []
    settings = BackfillSettings(max_rows=1_000)
    result = backfill_view(
        repo.store, "card_activity", target=target, settings=settings, progress=seen.append
    )
    pd.testing.assert_frame_equal(by_row(pd.read_parquet(target)), whole)
    assert (result.events, result.rows) == (6_600, len(whole))
    assert [one.done for one in seen if one.step == "divide"] == [
        1_000 * n for n in range(1, 7)
    ] + [6_600]
    assert [one.done for one in seen if one.step == "compute"][-1] == 6_600
    assert not target.with_name("parts.parquet.backfill").exists()


def test_a_folder_of_events_and_a_folder_of_outputs(
    repo: TrainingRepo, whole: pd.DataFrame
) -> None:
    """Paths without a suffix are folders; what was there is replaced."""
    source, target = repo.folder / "events", repo.folder / "outputs"
    source.mkdir(exist_ok=True)
    for number, start in enumerate(range(0, len(repo.events), 2_000)):
        repo.events[start : start + 2_000].to_parquet(source / f"{number}.parquet")
    target.mkdir(exist_ok=True)
    (target / "old.parquet").write_text("old")
    settings = BackfillSettings(max_rows=2_000)
    backfill_view(repo.store, "card_activity", events=source, target=target, settings=settings)
    pd.testing.assert_frame_equal(by_row(ds.dataset(target).to_table().to_pandas()), whole)
    assert not (target / "old.parquet").exists()


class Stopped(Exception):
    """As if the process had been killed."""


@pytest.mark.parametrize("after", [2, 5, 8, 9, 12])
def test_a_stopped_run_goes_on_where_it_was(
    repo: TrainingRepo, whole: pd.DataFrame, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever step it was in; what is done is not done again."""
    target = repo.folder / f"stopped-{after}.parquet"
    settings = BackfillSettings(max_rows=1_000)
    computed: list[int] = []
    write = Backfill._write

    def counted(self: Backfill, history: object, path: Path) -> None:
        computed.append(int(path.stem.split("-")[1]))
        write(self, history, path)  # type: ignore[arg-type]

    monkeypatch.setattr(Backfill, "_write", counted)
    left = iter(range(after))

    def stop(_: Progress) -> None:
        if next(left, None) is None:
            raise Stopped

    with pytest.raises(Stopped):
        backfill_view(repo.store, "card_activity", target=target, settings=settings, progress=stop)
    assert not target.exists()
    backfill_view(repo.store, "card_activity", target=target, settings=settings)
    pd.testing.assert_frame_equal(by_row(pd.read_parquet(target)), whole)
    assert len(computed) == len(set(computed)), "a part was computed twice"


KILLER = """
import os, signal, sys, time, warnings
from pathlib import Path
from feast import FeatureStore
from hotplate.training.backfill import BackfillSettings, backfill_view
from tests.training.repo import TrainingRepo

warnings.simplefilter("ignore")
repo = TrainingRepo.__new__(TrainingRepo)
repo.folder, target = Path(sys.argv[1]), Path(sys.argv[2])
for patience in (0.05, 0.1, 0.15, 0.2, 60):
    worker = os.fork()
    if not worker:
        backfill_view(
            FeatureStore(config=repo.config()),
            "card_activity",
            target=target,
            settings=BackfillSettings(max_rows=1000),
            progress=lambda _: time.sleep(0.02),
        )
        os._exit(0)
    end = time.monotonic() + patience
    while time.monotonic() < end and os.waitpid(worker, os.WNOHANG) == (0, 0):
        time.sleep(0.005)
    if target.exists():
        break
    print("killed", flush=True)
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
"""


@pytest.mark.heavy
def test_a_killed_run_goes_on_where_it_was(repo: TrainingRepo, whole: pd.DataFrame) -> None:
    """SIGKILL at no particular moment, several times, until it is through."""
    target = repo.folder / "killed.parquet"
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(repo.folder), str(target)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'plugins'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("killed") >= 2
    pd.testing.assert_frame_equal(by_row(pd.read_parquet(target)), whole)


def test_what_is_done_of_other_events_is_not_mixed_in(tmp_path: Path) -> None:
    """The events have changed since the run was stopped: refused, with what to delete."""
    made = TrainingRepo(tmp_path, transactions(300))
    target = tmp_path / "out.parquet"

    def stop(_: Progress) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        backfill_view(made.store, "card_activity", target=target, progress=stop)
    manifest = json.loads((tmp_path / "out.parquet.backfill" / "manifest.json").read_text())
    assert manifest["rows"] == 330
    made.events[:-1].to_parquet(made.path)
    with pytest.raises(TrainingError, match="Delete that folder"):
        backfill_view(made.store, "card_activity", target=target)


def test_outputs_are_read_by_feast_without_hotplate(tmp_path: Path) -> None:
    """Declared as the view's batch source, the table joins point in time like any other."""
    from feast import FeatureStore, FileSource

    made = TrainingRepo(tmp_path, transactions(200))
    path = tmp_path / "kept.parquet"
    made.cards.windowed.batch_source = FileSource(
        name="kept", path=str(path), timestamp_field="t", created_timestamp_column="made"
    )
    made.store.registry.apply_feature_view(made.cards.windowed, "shop")
    backfill_view(made.store, "card_activity")
    written = pd.read_parquet(path)
    assert list(written.columns[:3]) == ["card_id", "t", "made"]
    rows = written[["card_id", "t"]].rename(columns={"t": "event_timestamp"})
    plain = FeatureStore(config=made.config("local"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        joined = plain.get_historical_features(rows, ["card_activity:n"]).to_df()
    both = joined.merge(written, left_on=["card_id", "event_timestamp"], right_on=["card_id", "t"])
    assert (both.n_x == both.n_y).all()
    assert len(both) == len(written)


def test_what_cannot_be_backfilled_is_refused(repo: TrainingRepo, tmp_path: Path) -> None:
    """The message says what to do."""
    with pytest.raises(TrainingError, match="is no windowed view"):
        backfill_view(repo.store, "profile", target=tmp_path / "x.parquet")
    with pytest.raises(TrainingError, match="declare backfilled="):
        backfill_view(repo.store, "card_activity")
    with pytest.raises(TrainingError, match="are not to be read"):
        backfill_view(
            repo.store, "card_activity", events=tmp_path / "none.parquet", target=tmp_path
        )
    with pytest.raises(ValidationError):
        BackfillSettings(max_rows=10)
    poor = tmp_path / "poor.parquet"
    repo.events.drop(columns="arrived").to_parquet(poor)
    with pytest.raises(TrainingError, match="have no column 'arrived'"):
        backfill_view(repo.store, "card_activity", events=poor, target=tmp_path / "x.parquet")
    assert not list(tmp_path.glob("*.backfill"))


def test_an_event_table_without_rows_is_refused(repo: TrainingRepo, tmp_path: Path) -> None:
    """A file without rows says nothing about what was meant."""
    empty = tmp_path / "empty.parquet"
    repo.events[:0].to_parquet(empty)
    with pytest.raises(TrainingError, match="not one event"):
        backfill_view(repo.store, "card_activity", events=empty, target=tmp_path / "x.parquet")


def test_chunks_hold_whole_row_groups(repo: TrainingRepo) -> None:
    """As many as fit, at least one."""
    events = ds.dataset(repo.path)
    assert [chunk.rows for chunk in chunks_of(events, 1_200)] == [1_000] * 6 + [600]
    assert [chunk.rows for chunk in chunks_of(events, 10)] == [500] * 13 + [100]
    assert pq.read_metadata(repo.path).num_row_groups == 14
    read = [
        sum(batch.num_rows for batch in one.batches(["at"])) for one in chunks_of(events, 1_200)
    ]
    assert read == [1_000] * 6 + [600]
    assert EventSource(repo.cards.events).table.columns == [
        "card_id", "transaction_id", "amount", "items", "merchant_id", "at", "arrived",
    ]  # fmt: skip
    assert module.Progress("divide", 1, 2).step == "divide"
