"""Training through Feast gets what serving would have answered."""

from __future__ import annotations

import logging
import warnings
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feast import FeatureService, FeatureStore, Field, FileSource
from feast.aggregation import Aggregation
from feast.infra.offline_stores.file_source import SavedDatasetFileStorage
from feast.types import Int64
from feast.value_type import ValueType

from hotplate.training.columns import moments_of, values_of
from hotplate.training.errors import TrainingError
from hotplate.windowed import WindowedViews, windowed_view

from .repo import CARD, TrainingRepo, columns, served, transactions, use_of_limit

CARDS = "card_activity"
MERCHANTS = "merchant_activity"


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> TrainingRepo:
    """One repo for all that only reads."""
    return TrainingRepo(tmp_path_factory.mktemp("training"), transactions())


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Entity rows within the day and after it, one card of which nothing is known."""
    rng = np.random.default_rng(1)
    at = pd.Timestamp("2026-03-01", tz="UTC") + pd.to_timedelta(
        rng.integers(0, 100_000_000, 40), unit="ms"
    )
    return pd.DataFrame(
        {
            "card_id": rng.integers(1, 6, 40),
            "merchant_id": rng.choice(["m1", "m2", "m4"], 40),
            "event_timestamp": at,
        }
    )


def refs(views: WindowedViews) -> list[str]:
    return [f"{views.windowed.name}:{name}" for name in columns(views)]


def assert_served(
    repo: TrainingRepo, views: WindowedViews, found: pd.DataFrame, key: str, prefix: str = ""
) -> None:
    """Every row holds, bit for bit, what a read at its timestamp answers."""
    names = [prefix + name for name in columns(views)]
    expected = [
        served(views, repo.events, entity, t)
        for entity, t in zip(found[key], found.event_timestamp, strict=True)
    ]
    np.testing.assert_array_equal(found[names].to_numpy(float), np.array(expected))


def test_windowed_features_are_what_serving_answers_at_each_timestamp(
    repo: TrainingRepo, rows: pd.DataFrame
) -> None:
    """Several views over several entities, no ordinary view, rows in the order given."""
    found = repo.history(rows, [*refs(repo.cards), *refs(repo.merchants)])
    assert list(found.card_id) == list(rows.card_id)
    assert_served(repo, repo.cards, found, "card_id")
    assert_served(repo, repo.merchants, found, "merchant_id")
    assert found.sum_amount_3600s.sum() > 0


def test_beside_ordinary_views(repo: TrainingRepo, rows: pd.DataFrame) -> None:
    """The offline store answers those; full names tell them apart."""
    known = rows[rows.card_id < 5]
    features = ["profile:limit", *refs(repo.cards)]
    found = repo.history(known, features, full_feature_names=True)
    assert list(found.profile__limit) == [100.0 * card for card in known.card_id]
    assert_served(repo, repo.cards, found, "card_id", f"{CARDS}__")


def test_some_of_the_outputs_and_their_types(repo: TrainingRepo, rows: pd.DataFrame) -> None:
    """Only what is asked for; counts are whole numbers, a null is a null."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = repo.store.get_historical_features(rows, [f"{CARDS}:last_items_3600s", f"{CARDS}:n"])
    table = job.to_arrow()
    assert table.column_names == [*rows.columns, "last_items_3600s", "n"]
    assert [str(table.schema.field(name).type) for name in table.column_names[-2:]] == ["int64"] * 2
    assert table.column("last_items_3600s").null_count > 0
    assert table.column("n").null_count == 0


def test_a_timestamp_is_in_its_zone_or_utc_and_floored_to_milliseconds(repo: TrainingRepo) -> None:
    """As a read at that millisecond would be."""
    first = repo.events.sort_values("arrived").iloc[0]
    t = pd.Timestamp(first.arrived) + pd.Timedelta("999us")
    naive = pd.DataFrame({"card_id": [first.card_id] * 2, "when": [t, t - pd.Timedelta("1ms")]})
    found = repo.history(naive, [f"{CARDS}:n"])
    assert list(found.n) == [1, 0]
    for zone in ("UTC", "Europe/Berlin", "Asia/Kathmandu"):
        away = naive.assign(when=naive.when.dt.tz_localize("UTC").dt.tz_convert(zone))
        assert list(repo.history(away, [f"{CARDS}:n"]).n) == [1, 0]


def test_feature_services_aliases_and_renamed_keys(repo: TrainingRepo, rows: pd.DataFrame) -> None:
    """One view twice, each time for another column of the rows."""
    service = FeatureService(
        name="both",
        features=[
            repo.cards.windowed.with_name("payer").with_join_key_map({"card_id": "payer_id"}),
            repo.cards.windowed.with_name("payee").with_join_key_map({"card_id": "payee_id"}),
            repo.profile,
        ],
    )
    repo.apply(service)
    known = rows[rows.card_id < 5].rename(columns={"card_id": "payer_id"})
    known["payee_id"] = known.payer_id.to_numpy()[::-1]
    known["card_id"] = 1
    found = repo.history(known, service, full_feature_names=True)
    assert_served(repo, repo.cards, found, "payer_id", "payer__")
    assert_served(repo, repo.cards, found, "payee_id", "payee__")


def test_on_demand_views_see_windowed_features(repo: TrainingRepo, rows: pd.DataFrame) -> None:
    """Also where only they ask for them."""
    repo.apply(use_of_limit(repo))
    known = rows[rows.card_id < 5].assign(asked=10.0)
    found = repo.history(known, ["use_of_limit:share"])
    np.testing.assert_allclose(found.share, (found.sum_amount_3600s + 10.0) / found.limit)
    expected = [
        served(repo.cards, repo.events, card, t)[0]
        for card, t in zip(found.card_id, found.event_timestamp, strict=True)
    ]
    assert list(found.sum_amount_3600s) == expected


def test_a_saved_dataset_keeps_the_windowed_features(
    repo: TrainingRepo, rows: pd.DataFrame
) -> None:
    """Persisted, registered and read again."""
    path = repo.folder / "saved.parquet"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = repo.store.get_historical_features(rows, refs(repo.cards))
        assert job.metadata.features == refs(repo.cards)
        assert set(job.metadata.keys) == {"card_id", "merchant_id"}
        assert job.metadata.max_event_timestamp == rows.event_timestamp.max().to_pydatetime()
        repo.store.create_saved_dataset(
            job, "trained", SavedDatasetFileStorage(path=str(path)), allow_overwrite=True
        )
        read = repo.store.get_saved_dataset("trained").to_df()
    saved = read.merge(rows, on=["card_id", "event_timestamp"])
    assert_served(repo, repo.cards, saved, "card_id")


def test_events_that_had_not_arrived_are_not_seen(repo: TrainingRepo) -> None:
    """Without asking for filter_by_created_timestamp: it is always so for windows."""
    late = repo.events[(repo.events.arrived - repo.events["at"]).between(
        pd.Timedelta("10min"), pd.Timedelta("50min")
    )].iloc[0]  # fmt: skip
    t = pd.DatetimeIndex([late.arrived - pd.Timedelta("1ms"), late.arrived], tz="UTC")
    rows = pd.DataFrame({"card_id": [late.card_id] * 2, "event_timestamp": t})
    before, after = repo.history(rows, [f"{CARDS}:n"]).n
    assert after == before + 1


def test_no_rows_give_no_rows(repo: TrainingRepo, rows: pd.DataFrame) -> None:
    """With all their columns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = repo.store.get_historical_features(rows[:0], refs(repo.cards))
    table = job.to_arrow()
    assert table.num_rows == 0
    assert table.column_names[-1] == columns(repo.cards)[-1]


def test_an_entity_without_a_key_has_no_features(repo: TrainingRepo) -> None:
    """Null, as for any feature view: not the count 0 of a card that did nothing."""
    t = pd.Timestamp("2026-03-01T12:00", tz="UTC")
    rows = pd.DataFrame({"card_id": pd.array([1, None], "Int64"), "event_timestamp": t})
    assert repo.history(rows, [f"{CARDS}:n"]).n.isna().tolist() == [False, True]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda rows: None, "is asked for without entity_df"),
        (lambda rows: "SELECT 1", "is a str"),
        (lambda rows: rows.drop(columns="card_id"), "have no column 'card_id'"),
        (lambda rows: rows.assign(n=1), "there is a column 'n' already"),
        (lambda rows: rows.assign(card_id="one"), "is .*string in the entity rows and int64"),
        (lambda rows: rows.assign(event_timestamp=pd.NaT), "40 rows have no timestamp"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    repo: TrainingRepo, rows: pd.DataFrame, change: Any, expected: str
) -> None:
    """The message says what is wrong and where."""
    with pytest.raises(TrainingError, match=expected):
        repo.store.get_historical_features(change(rows), [f"{CARDS}:n"]).to_df()


def test_ordinary_retrieval_is_left_alone(repo: TrainingRepo, rows: pd.DataFrame) -> None:
    """The same job as Feast's own provider makes, and the same error for a query."""
    ours = repo.store.get_historical_features(rows, ["profile:limit"])
    plain = FeatureStore(config=repo.config("local"))
    theirs = plain.get_historical_features(rows, ["profile:limit"])
    assert type(ours) is type(theirs)
    pd.testing.assert_frame_equal(ours.to_df(), theirs.to_df())


def test_materialize_leaves_windowed_views_out_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both kinds, with one line each; ordinary views are written."""
    made = TrainingRepo(tmp_path, transactions(20))
    with caplog.at_level(logging.INFO, "hotplate"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.store.materialize(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC))
    left_out = [one.message for one in caplog.records if "materialize leaves out" in one.message]
    assert len(left_out) == 4
    assert made.store.get_online_features(["profile:limit"], [{"card_id": 2}]).to_dict()[
        "limit"
    ] == [200.0]


def test_columns_of_the_table_may_have_other_names(tmp_path: Path) -> None:
    """`field_mapping` of the batch source holds for windowed views, too."""
    events = transactions(200)
    made = TrainingRepo(tmp_path, events)
    made.events.rename(columns={"amount": "amt", "card_id": "card", "arrived": "seen"}).to_parquet(
        made.path
    )
    for views in (made.cards, made.merchants):
        views.events.batch_source = FileSource(
            name=f"{views.events.name}_mapped",
            path=str(made.path),
            timestamp_field="at",
            created_timestamp_column="arrived",
            field_mapping={"amt": "amount", "card": "card_id", "seen": "arrived"},
        )
    made.store.registry.apply_feature_view(made.cards.events, "shop")
    rows = pd.DataFrame(
        {"card_id": [1, 2, 3], "event_timestamp": pd.Timestamp("2026-03-01T20:00", tz="UTC")}
    )
    assert_served(made, made.cards, made.history(rows, refs(made.cards)), "card_id")


def test_whole_numbers_beside_a_null_keep_their_digits(tmp_path: Path) -> None:
    """Ids above 2**53 tell events apart, though pandas would turn that column into floats."""
    made = TrainingRepo(tmp_path, transactions(20))
    events = made.events.assign(code=pd.array([(1 << 60) + i for i in range(22)], "Int64"))
    events.loc[3, "code"] = None
    events["at"], events["arrived"] = events["at"].iloc[0], events["at"].iloc[0]
    without_pandas = pa.Table.from_pandas(events).replace_schema_metadata(None)
    pq.write_table(without_pandas, made.path)
    views = windowed_view(
        name="by_code",
        entities=[CARD],
        source=made.push_source("code_pushes"),
        event_id="code",
        schema=[Field(name="code", dtype=Int64)],
        aggregations=[Aggregation(function="count", time_window=timedelta(hours=1), name="n")],
    )
    made.apply(*views)
    t = events["at"].iloc[0] + pd.Timedelta("1min")
    rows = pd.DataFrame({"card_id": [1, 2, 3, 4], "event_timestamp": t})
    assert made.history(rows, ["by_code:n"]).n.sum() == 21


class PullingStore:
    """An offline store that is not Feast's own for files, and answers as that one does."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.pulled: list[dict[str, Any]] = []

    def pull_all_from_table_or_query(self, **kwargs: Any) -> Any:
        self.pulled.append(kwargs)
        return self._inner.pull_all_from_table_or_query(**kwargs)


def test_other_offline_stores_are_asked_for_the_columns_and_the_time_that_matter(
    repo: TrainingRepo, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is the same; nothing is read that no window reaches."""
    provider = repo.store._get_provider()
    other = PullingStore(provider.offline_store)
    monkeypatch.setattr(provider, "_offline_store", other)
    late = rows[rows.event_timestamp > rows.event_timestamp.median()]
    assert_served(repo, repo.cards, repo.history(late, refs(repo.cards)), "card_id")
    (asked,) = other.pulled
    assert asked["join_key_columns"] == ["card_id"]
    assert set(asked["feature_name_columns"]) == {
        "transaction_id", "amount", "items", "merchant_id",
    }  # fmt: skip
    earliest = late.event_timestamp.min() - pd.Timedelta("24h20min") - pd.Timedelta("1h")
    assert abs(asked["start_date"] - earliest) <= pd.Timedelta("1ms")


def test_floats_that_lost_digits_are_refused() -> None:
    """They would tell no events apart."""
    with pytest.raises(TrainingError, match="which have lost digits"):
        values_of(pa.array([2.0**60, None]), ValueType.INT64, "column 'code'")
    found = values_of(pa.array([2.0**40, None]), ValueType.INT64, "column 'code'")
    np.testing.assert_array_equal(found, [2.0**40, np.nan])


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        (pa.array([1, None], pa.int32()), ValueType.INT32, [1.0, np.nan]),
        (pa.array([1, 2], pa.uint8()), ValueType.INT64, [1, 2]),
        (pa.array([(1 << 60) + 1, None]), ValueType.INT64, [(1 << 60) + 1, None]),
        (pa.array([True, None]), ValueType.BOOL, [1.0, np.nan]),
        (pa.array([0.1, None]), ValueType.FLOAT, [float(np.float32(0.1)), np.nan]),
        (pa.array([1, None]), ValueType.DOUBLE, [1.0, np.nan]),
        (pa.array([Decimal("2.675")]), ValueType.DOUBLE, [2.675]),
        (pa.array(["a", None]).dictionary_encode(), ValueType.STRING, ["a", None]),
        (pa.array([b"a"]), ValueType.BYTES, [b"a"]),
        (pa.array([None, None]), ValueType.DOUBLE, [np.nan, np.nan]),
    ],
)
def test_values_are_typed_as_serving_types_them(column: Any, kind: Any, expected: list) -> None:
    """Whatever type the table has."""
    found = values_of(column, kind, "column")
    assert len(found) == len(expected)
    for one, other in zip(found.tolist(), expected, strict=True):
        assert one == other or (one != one and other != other)


def test_values_of_another_kind_are_refused() -> None:
    """The message names the column and both types."""
    with pytest.raises(TrainingError, match="column 'x': its values of type string are no DOUBLE"):
        values_of(pa.array(["x"]), ValueType.DOUBLE, "column 'x'")
    with pytest.raises(TrainingError, match="is of type int64, not timestamps"):
        moments_of(pa.array([1]), "column 'at'")
