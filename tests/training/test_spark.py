"""On Spark: the same bits as here, through Feast's own Spark store, in any time zone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feast import FeatureStore
from feast.infra.offline_stores.contrib.spark_offline_store.spark_source import (
    SavedDatasetSparkStorage,
    SparkSource,
)

import hotplate
from hotplate.operations.seed import Seed
from hotplate.testing import FakeClock, use_clock
from hotplate.training.backfill import BackfillSettings, Progress, backfill_view
from hotplate.training.errors import TrainingError

from ..sparks import spark_session
from .repo import TrainingRepo, columns, transactions, use_of_limit

pytest.importorskip("pyspark", reason="pyspark is not installed")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java 17, and there is none", allow_module_level=True)


# Feast calls its Spark store experimental whenever one of its objects is made
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.heavy]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with spark_session(tmp_path_factory.mktemp("warehouse")) as session:
        yield session


class SparkRepo(TrainingRepo):
    """The same views and events, in Feast's Spark store."""

    def source(self, **kwargs: Any) -> SparkSource:
        return SparkSource(file_format="parquet", **kwargs)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> TrainingRepo:
    return TrainingRepo(tmp_path_factory.mktemp("local"), transactions())


@pytest.fixture(scope="module")
def repo(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> SparkRepo:
    folder = tmp_path_factory.mktemp("spark")
    backfilled = SparkSource(
        name="card_outputs",
        path=str(folder / "outputs"),
        file_format="parquet",
        timestamp_field="event_timestamp",
        created_timestamp_column="created_timestamp",
    )
    return SparkRepo(folder, transactions(), {"type": "spark"}, backfilled)


def rows(count: int = 200) -> pd.DataFrame:
    """Entities, one of them unknown, at moments on, before and after events."""
    rng = np.random.default_rng(1)
    events = transactions().sample(count, random_state=1)
    moments = pd.to_datetime(events["at"], utc=True) + pd.to_timedelta(
        rng.integers(-2_000, 2_000, count), "ms"
    )
    return pd.DataFrame(
        {
            "card_id": rng.integers(1, 6, count),
            "merchant_id": events["merchant_id"].to_numpy(),
            "event_timestamp": moments.reset_index(drop=True).astype("datetime64[us, UTC]"),
            "row": range(count),
        }
    )


def wanted(repo: TrainingRepo) -> list[str]:
    cards = [f"card_activity:{name}" for name in columns(repo.cards)]
    return [*cards, *(f"merchant_activity:{name}" for name in columns(repo.merchants))]


def by_row(table: Any) -> pd.DataFrame:
    return table.to_pandas().sort_values("row", ignore_index=True)


def asked(repo: TrainingRepo, entity_df: Any, features: Any, **kwargs: Any) -> Any:
    return repo.store.get_historical_features(entity_df, features, **kwargs)


def same(found: pd.DataFrame, expected: pd.DataFrame, names: list[str]) -> None:
    """Bit for bit."""
    assert len(found) == len(expected) > 0
    for name in names:
        left = found[name].to_numpy(np.float64, na_value=np.nan)
        right = expected[name].to_numpy(np.float64, na_value=np.nan)
        assert left.tobytes() == right.tobytes(), name


def outputs(repo: TrainingRepo) -> list[str]:
    return [*columns(repo.cards), *columns(repo.merchants)]


def test_a_frame_gets_the_same_bits_as_locally(local: TrainingRepo, repo: SparkRepo) -> None:
    features = [*wanted(repo), "profile:limit"]
    given = rows()
    expected = by_row(asked(local, given.copy(), features).to_arrow())
    found = by_row(asked(repo, given.copy(), features).to_arrow())
    same(found, expected, [*outputs(repo), "limit"])
    given["card_id"] = given.card_id.astype("Int64").where(given.row % 7 > 0)  # some have no key
    expected = by_row(asked(local, given.copy(), wanted(repo)).to_arrow())
    alone = by_row(asked(repo, given.copy(), wanted(repo)).to_arrow())
    same(alone, expected, outputs(repo))
    moments = pd.to_datetime(alone.event_timestamp, utc=True)
    assert moments.tolist() == given.event_timestamp.tolist()


def test_queries_and_spark_frames_are_rows_too(
    spark: Any, local: TrainingRepo, repo: SparkRepo, tmp_path: Path
) -> None:
    given = rows()
    expected = by_row(asked(local, given.copy(), wanted(repo)).to_arrow())
    frame = spark.createDataFrame(pa.Table.from_pandas(given, preserve_index=False))
    same(by_row(asked(repo, frame, wanted(repo)).to_arrow()), expected, outputs(repo))
    frame.createOrReplaceTempView("rows_to_label")
    query = "SELECT * FROM rows_to_label"
    same(by_row(asked(repo, query, wanted(repo)).to_arrow()), expected, outputs(repo))
    stamps = given.event_timestamp.dt.tz_localize(None)
    naive = pa.Table.from_pandas(given.assign(event_timestamp=stamps), preserve_index=False)
    pq.write_table(naive, tmp_path / "naive.parquet")  # without a zone, and so in UTC
    frame = spark.read.parquet(str(tmp_path / "naive.parquet"))
    assert dict(frame.dtypes)["event_timestamp"] == "timestamp_ntz"
    same(by_row(asked(repo, frame, wanted(repo)).to_arrow()), expected, outputs(repo))


def test_every_entity_in_a_task_of_its_own_is_the_same(
    spark: Any, local: TrainingRepo, repo: SparkRepo
) -> None:
    given = rows()
    expected = by_row(asked(local, given.copy(), wanted(repo)).to_arrow())
    spark.conf.set("spark.hotplate.maxRows", "20")
    try:
        same(by_row(asked(repo, given.copy(), wanted(repo)).to_arrow()), expected, outputs(repo))
        spark.conf.set("spark.hotplate.maxRows", "many")
        with pytest.raises(TrainingError, match=r"spark\.hotplate\.maxRows.*'many'"):
            asked(repo, given.copy(), wanted(repo)).to_df()
    finally:
        spark.conf.unset("spark.hotplate.maxRows")


def test_aliases_name_their_entity_in_their_own_way(local: TrainingRepo, repo: SparkRepo) -> None:
    given = rows().rename(columns={"card_id": "payer"})
    given["payee"] = np.roll(given.payer.to_numpy(), 7)

    def features(of: TrainingRepo) -> Any:
        from feast import FeatureService

        view = of.cards.windowed
        service = FeatureService(
            name="both",
            features=[
                view[["sum_amount_3600s", "n"]]
                .with_name("payer_activity")
                .with_join_key_map({"card_id": "payer"}),
                view[["n"]].with_name("payee_activity").with_join_key_map({"card_id": "payee"}),
            ],
        )
        of.apply(service)
        return service

    given = given.drop(columns="merchant_id")
    names = ["payer_activity__sum_amount_3600s", "payer_activity__n", "payee_activity__n"]
    expected = asked(local, given.copy(), features(local), full_feature_names=True)
    found = asked(repo, given.copy(), features(repo), full_feature_names=True)
    same(by_row(found.to_arrow()), by_row(expected.to_arrow()), names)


def test_on_demand_views_and_saved_datasets(local: TrainingRepo, repo: SparkRepo) -> None:
    for one in (local, repo):
        one.apply(use_of_limit(one))
    features = ["card_activity:sum_amount_3600s", "profile:limit", "use_of_limit:share"]
    given = rows().assign(asked=10.0)
    expected = asked(local, given.copy(), features).to_df().sort_values("row", ignore_index=True)
    found = asked(repo, given.copy(), features).to_df().sort_values("row", ignore_index=True)
    same(found, expected, ["share", "sum_amount_3600s"])
    path = str(repo.folder / "saved")
    job = asked(repo, given.copy(), features[:2])
    job.persist(SavedDatasetSparkStorage(path=path, file_format="parquet"))
    saved = pd.read_parquet(path).sort_values("row", ignore_index=True)
    same(saved, expected, ["sum_amount_3600s"])
    assert set(job.metadata.keys) >= {"card_id", "merchant_id"}
    assert job.metadata.features == features[:2]


def test_nothing_runs_before_a_result_is_asked_for(repo: SparkRepo) -> None:
    given = rows()
    given["event_timestamp"] = given.event_timestamp.where(given.row > 2)
    job = asked(repo, given, wanted(repo))
    with pytest.raises(TrainingError, match="3 rows have no timestamp"):
        job.to_df()
    with pytest.raises(TrainingError, match="no column 'card_id'"):
        asked(repo, rows().drop(columns="card_id"), wanted(repo))
    with pytest.raises(TrainingError, match="is a int"):
        asked(repo, 7, wanted(repo))


def test_a_backfill_writes_the_same_table(
    local: TrainingRepo, repo: SparkRepo, tmp_path: Path
) -> None:
    target = tmp_path / "whole.parquet"
    for at in ("event", "after"):
        settings = BackfillSettings(at=at, max_rows=1_000)
        here = backfill_view(local.store, "card_activity", target=target, settings=settings)
        seen: list[Progress] = []
        there = backfill_view(repo.store, "card_activity", settings=settings, progress=seen.append)
        assert (there.events, there.rows) == (here.events, here.rows)
        assert there.target == str(repo.folder / "outputs")
        assert seen[-1] == Progress("compute", here.events, here.events)
        assert [one.done for one in seen] == sorted(one.done for one in seen)
        keys = ["card_id", "event_timestamp"]
        expected = pd.read_parquet(target).sort_values(keys, ignore_index=True)
        found = pd.read_parquet(there.target).sort_values(keys, ignore_index=True)
        assert list(found.columns) == list(expected.columns)
        same(found, expected, ["card_id", *columns(repo.cards)])
        for name in ("event_timestamp", "created_timestamp"):
            assert pd.to_datetime(found[name], utc=True).tolist() == expected[name].tolist()


def test_a_backfill_from_and_to_elsewhere(repo: SparkRepo, tmp_path: Path) -> None:
    half = tmp_path / "half.parquet"
    repo.events[::2].to_parquet(half, coerce_timestamps="us")
    target = tmp_path / "outputs"
    result = backfill_view(repo.store, "merchant_activity", events=half, target=target)
    assert result.events == len(repo.events[::2])
    assert len(pd.read_parquet(target)) == result.rows > 0
    with pytest.raises(TrainingError, match=r"merchant_activity.*declares no table"):
        backfill_view(repo.store, "merchant_activity")


def test_a_backfill_that_fails_leaves_what_was_there(repo: SparkRepo, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.parquet"
    repo.events.assign(items="many").to_parquet(wrong, coerce_timestamps="us")
    target = tmp_path / "outputs"
    backfill_view(repo.store, "card_activity", target=target)
    before = pd.read_parquet(target)
    with pytest.raises(Exception, match="items"):
        backfill_view(repo.store, "card_activity", events=wrong, target=target)
    pd.testing.assert_frame_equal(pd.read_parquet(target), before)


def test_outputs_in_a_table_of_sparks(spark: Any, repo: SparkRepo) -> None:
    from hotplate.training.spark_backfill import backfill_on_spark

    kept = SparkSource(name="kept", table="card_outputs", timestamp_field="event_timestamp")
    view = repo.cards.windowed.__copy__()
    view.batch_source = kept
    result = backfill_on_spark(view, repo.cards.events, repo.store.config)
    assert result.target == "card_outputs"
    assert spark.table("card_outputs").count() == result.rows > 0
    kept.spark_options.table, kept.spark_options.query = None, "SELECT 1"
    with pytest.raises(TrainingError, match="'kept': is a query"):
        backfill_on_spark(view, repo.cards.events, repo.store.config)


# -- the online side ------------------------------------------------------------------------------


class HotSparkRepo(SparkRepo):
    """The same, served."""

    def online_store(self) -> dict[str, Any]:
        return {
            "type": "hotplate.online_store.CachedOnlineStore",
            "store": super().online_store(),
            "windows": {"in_process": True},
            "ttl_map": {"default": "1h"},
        }


@pytest.fixture(scope="module")
def hot(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> HotSparkRepo:
    folder = tmp_path_factory.mktemp("hot")
    return HotSparkRepo(
        folder, transactions(), {"type": "spark"}, batch_engine={"type": "spark.engine"}
    )


def test_seeded_from_spark_it_serves_what_training_sees(hot: HotSparkRepo, local: Any) -> None:
    last = hot.events.arrived.max() + pd.Timedelta("1s")
    hot.store = FeatureStore(config=hot.config())
    use_clock(hot.store, FakeClock(wall_s=last.value / 1e9))
    cache = hotplate.of(hot.store)
    seed = Seed(hot.store, cache.runtime, hot.cards.events, max_rows=100)
    *_, done = seed.run()
    assert (done.done, done.total) == (len(hot.events), len(hot.events))
    cards = [1, 2, 3, 4, 5]
    features = [f"card_activity:{name}" for name in columns(hot.cards)]
    served = hot.store.get_online_features(features, {"card_id": cards}).to_df()
    stamped = pd.DataFrame({"card_id": cards, "event_timestamp": last, "row": range(5)})
    stamped["event_timestamp"] = stamped.event_timestamp.dt.tz_localize("UTC")
    trained = by_row(asked(hot, stamped.copy(), features).to_arrow())
    same(trained, served, columns(hot.cards))
    same(by_row(asked(local, stamped.copy(), features).to_arrow()), served, columns(hot.cards))


def test_what_sparks_engine_materialized_is_seen_at_once(hot: HotSparkRepo) -> None:
    """It writes from executors, which are other processes; this one has kept the rows before."""

    def limits() -> Any:
        answer = hot.store.get_online_features(["profile:limit"], {"card_id": [1, 4, 9]})
        return answer.to_dict()["limit"]

    assert limits() == limits() == [None, None, None]
    hot.store.materialize(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC))
    assert limits() == [100.0, 400.0, None]
    assert hotplate.of(hot.store).stats().groups["profile"].hits > 0
