"""The matrix reader: the same numbers as `to_df`, in the order a model wants."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from feast import FeatureService
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus
from feast.types import Bool, Float32, Float64, Int32, Int64, String, UnixTimestamp

from hotplate import Tier

from ..stores import MERCHANT, USER, Repo

RepoMaker = Callable[..., Repo]
FEATURES = ["a:x", "a:n", "b:small", "b:is_new", "b:i"]


@pytest.fixture
def repo(make_repo: RepoMaker) -> Repo:
    """Numbers of several widths, strings and nulls."""
    made = make_repo()
    made.apply(
        USER,
        MERCHANT,
        made.view("a", {"x": Float64, "n": Int64, "name": String, "seen": UnixTimestamp}),
        made.view("b", {"small": Float32, "is_new": Bool, "i": Int32}),
        made.view("floats", {"f1": Float64, "f2": Float64, "f3": Float64}),
        made.view("pairs", {"p": Float64}, entities=(USER, MERCHANT)),
    )
    when = pd.Timestamp("2026-01-01", tz="UTC")
    made.write(
        "a",
        user_id=[1, 2, 3],
        x=[0.5, None, 1e300],
        n=[7, 8, None],
        name=["", "a", None],
        seen=[when, None, when],
    )
    made.write("b", user_id=[1, 2], small=[0.1, 2.5], is_new=[True, False], i=[-1, None])
    made.write("floats", user_id=[1, 2, 3], f1=[1.0, 2.0, None], f2=[4.0, 5.0, 6.0], f3=[7.0] * 3)
    made.write("pairs", user_id=[1], merchant_id=["m"], p=[9.0])
    return made


def expected(repo: Repo, features: Any, order: list[str], entities: Any) -> Any:
    frame = repo.bare.get_online_features(features, entities).to_df()[order]
    with np.errstate(over="ignore"):
        return frame.apply(pd.to_numeric).to_numpy(dtype=np.float64, na_value=np.nan).astype("f4")


@pytest.mark.parametrize("users", [[1], [3, 1, 3, 9], [2, 2], list(range(-3, 5)), [9]])
def test_equals_to_df(repo: Repo, users: list[int]) -> None:
    """Any batch, on a miss and on a hit: the values of `to_df`, null and unknown as NaN."""
    reader = repo.cache.reader(FEATURES)
    assert reader.feature_names == ("x", "n", "small", "is_new", "i")
    with np.errstate(over="ignore"):
        for _ in range(2):
            got = reader.matrix({"user_id": users})
            assert got.dtype == np.float32
            want = expected(repo, FEATURES, list(reader.feature_names), {"user_id": users})
            np.testing.assert_array_equal(got, want)


def test_columns_come_in_the_models_order(repo: Repo) -> None:
    """A model that trusts column order gets its own, across views."""
    order = ["i", "x", "small", "n", "is_new"]
    reader = repo.cache.reader(FEATURES, order=order)
    got = reader.matrix({"user_id": np.array([1, 2])})
    np.testing.assert_array_equal(got, expected(repo, FEATURES, order, {"user_id": [1, 2]}))


def test_views_of_one_width_and_rows_with_nulls(repo: Repo) -> None:
    """The fast path over equal cells and the patched rows among them."""
    features = ["floats:f3", "floats:f1", "floats:f2"]
    reader = repo.cache.reader(features)
    for users in ([1, 2], [1, 3, 2], [3], [8, 1]):
        for _ in range(2):
            got = reader.matrix({"user_id": users})
            np.testing.assert_array_equal(
                got, expected(repo, features, ["f3", "f1", "f2"], {"user_id": users})
            )


def test_service_composite_keys_and_full_names(repo: Repo) -> None:
    """A feature service, a composite key, names with the view's."""
    views = {view.name: view for view in repo.hot.list_feature_views()}
    repo.apply(FeatureService(name="m", features=[views["floats"], views["pairs"]]))
    reader = repo.cache.reader(repo.hot.get_feature_service("m"), full_feature_names=True)
    assert set(reader.feature_names) == {"floats__f1", "floats__f2", "floats__f3", "pairs__p"}
    got = reader.matrix({"merchant_id": ["m", "x"], "user_id": pd.Series([1, 1])})
    column = reader.feature_names.index("pairs__p")
    np.testing.assert_array_equal(got[:, column], [9.0, np.nan])


def test_freshness_and_empty_batches(repo: Repo) -> None:
    """The reader tells where each row came from; no entities give no rows."""
    reader = repo.cache.reader(["floats:f1"])
    assert reader.matrix({"user_id": []}).shape == (0, 1)
    assert reader.read({"user_id": [1]}).freshness()["floats"][0].tier is Tier.SOURCE
    repo.clock.advance(2)
    answer = reader.read({"user_id": [1]})
    assert answer.freshness()["floats"][0].tier is Tier.MEMORY
    assert answer.freshness()["floats"][0].age_s == pytest.approx(2)
    reader = repo.cache.reader(["floats:f1", "a:n"])
    answer = reader.read({"user_id": [1, 2, 3]})
    ages = answer.ages_s()
    for view, items in answer.freshness().items():
        np.testing.assert_array_equal(ages[view], [item.age_s for item in items])
    assert set(ages) == {"floats", "a"}
    assert ages["floats"][0] == pytest.approx(2)


@pytest.mark.parametrize(
    ("features", "order", "entities", "says"),
    [
        (["a:x", "a:n"], ["x"], {"user_id": [1]}, r"not in the order: \['n'\]"),
        (["a:x"], ["x", "y"], {"user_id": [1]}, r"not read: \['y'\]"),
        (["a:x"], ["x", "x"], {"user_id": [1]}, "repeated: 1"),
        (["a:x", "a:name"], None, {"user_id": [1]}, "'name' is STRING, not a number"),
        (["a:seen"], None, {"user_id": [1]}, "UNIX_TIMESTAMP, not a number"),
        (["a:x"], None, {"user_id": [1], "other": [1, 2]}, "different length"),
        (["a:x"], None, {"user_id": [None]}, "null or not of its declared type"),
        (["a:x"], None, {}, "name no join key"),
        (["a:x"], None, [{"user_id": 1}, {"user": 2}], "different join keys"),
        (["a:x"], None, {"user_id": [1], "y": [1]}, "keyed by user_id; the columns given are"),
        (["pairs:p"], None, {"user_id": [1]}, "keyed by user_id, merchant_id; the columns given"),
    ],
)
def test_what_cannot_be_a_matrix_is_refused(
    repo: Repo, features: list[str], order: Any, entities: Any, says: str
) -> None:
    """A wrong order, a string, a missing key: an error that names it, before a wrong score."""
    with pytest.raises(ValueError, match=says):
        repo.cache.reader(features, order=order).matrix(entities)


@pytest.mark.parametrize(
    ("features", "order", "error", "says"),
    [
        ("a:x", None, TypeError, r"write \['a:x'\]"),
        ("model", None, TypeError, r"store.get_feature_service\('model'\)"),
        (None, None, TypeError, "must be a list"),
        ([], None, TypeError, "must be a list"),
        (["x"], None, ValueError, "'x' names no feature of a view"),
        (["a:x"], "x", TypeError, "give a list of output names"),
        (["a:x", "a:n"], ["x"], ValueError, r"not in the order: \['n'\]"),
        (["a:name"], None, ValueError, "'name' is STRING, not a number"),
        (["a:nope"], None, Exception, "nope"),
    ],
)
def test_a_wrong_reader_is_refused_when_it_is_made(
    repo: Repo, features: Any, order: Any, error: type[Exception], says: str
) -> None:
    """What is wrong with its features shows where it is made, not in production."""
    with pytest.raises(error, match=says):
        repo.cache.reader(features, order=order)


def test_entities_come_in_any_form(repo: Repo) -> None:
    """Columns, a frame, rows, a single one."""
    reader = repo.cache.reader(["floats:f1", "floats:f2"])
    assert reader.join_keys == ("user_id",)
    want = reader.matrix({"user_id": [1, 2]})
    for entities in (
        {"user_id": (1, 2)},
        {"user_id": np.array([1, 2])},
        pd.DataFrame({"user_id": [1, 2]}),
        [{"user_id": 1}, {"user_id": 2}],
    ):
        np.testing.assert_array_equal(reader.matrix(entities), want)
    np.testing.assert_array_equal(reader.matrix({"user_id": np.int64(2)}), want[1:])
    for wrong in (7, "7", [7], None):
        with pytest.raises(TypeError, match=r"write \{'card_id': 7\}"):
            reader.matrix(wrong)


def test_statuses_of_a_matrix(make_repo: RepoMaker) -> None:
    """What is too old for Feast, null or unknown can be told apart, as in Feast's response."""
    repo = make_repo(settings={"enforce_max_age": True})
    old = repo.view("old", {"o": Int64}, ttl=timedelta(days=1))
    repo.apply(USER, old, repo.view("new", {"n": Int64}))
    repo.write("old", user_id=[1], o=[5], event_time=[pd.Timestamp("2024-01-01", tz="UTC")])
    repo.write("new", user_id=[1, 2], n=[6, None])
    reader = repo.cache.reader(["new:n", "old:o"], order=["o", "n"])
    users = {"user_id": [1, 2, 3]}
    for _ in range(2):
        answer = reader.read(users)
        response = repo.hot.get_online_features(["old:o", "new:n"], users).proto
        want = np.array([vector.statuses for vector in response.results[1:]]).T
        np.testing.assert_array_equal(answer.statuses, want)
        assert answer.statuses[0, 0] == FieldStatus.OUTSIDE_MAX_AGE
    assert reader.read({"user_id": []}).statuses.shape == (0, 2)
