"""The matrix reader: the same numbers as `to_df`, in the order a model wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from feast import FeatureService
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
        (["pairs:p"], None, {"user_id": [1]}, "Use get_online_features"),
    ],
)
def test_what_cannot_be_a_matrix_is_refused(
    repo: Repo, features: list[str], order: Any, entities: Any, says: str
) -> None:
    """A wrong order, a string, a missing key: an error that names it, before a wrong score."""
    with pytest.raises(ValueError, match=says):
        repo.cache.reader(features, order=order).matrix(entities)
