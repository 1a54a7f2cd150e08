"""Promise 5: the cached store answers every request shape as the bare one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from feast import FeatureService
from feast.types import Float32, Float64, Int32, Int64, String

from ..stores import MERCHANT, USER, Repo, answers, assert_same, frame_of

RepoMaker = Callable[..., Repo]


@pytest.fixture
def repo(make_repo: RepoMaker) -> Repo:
    """Two views of a user, one of a user at a merchant."""
    made = make_repo()
    made.apply(
        USER,
        MERCHANT,
        made.view("profile", {"age": Int64, "score": Float64, "city": String}),
        made.view("counts", {"n1": Int32, "ratio": Float32}),
        made.view("pairs", {"seen": Int64}, entities=(USER, MERCHANT)),
    )
    made.write(
        "profile", user_id=[1, 2, 3], age=[30, 40, 50], score=[0.5, 1.5, None], city=["a", "", None]
    )
    made.write("counts", user_id=[1, 2], n1=[7, 8], ratio=[0.1, 0.2])
    made.write("pairs", user_id=[1, 1], merchant_id=["m", "n"], seen=[3, 4])
    return made


ALL = ["profile:age", "profile:score", "profile:city", "counts:n1", "counts:ratio"]


@pytest.mark.parametrize(
    "entities",
    [
        [{"user_id": 1}],
        [{"user_id": 1}, {"user_id": 2}, {"user_id": 3}],
        [{"user_id": 3}, {"user_id": 1}, {"user_id": 3}, {"user_id": 9}],
        {"user_id": [2, 1, 2]},
        {"user_id": (1,)},
        [{"user_id": "1"}],
        [{"user_id": 1.0}],
        [{"user_id": True}],
        [{"user_id": -(2**63)}],
        [{"user_id": 2**63}],
        [{"user_id": None}],
        [{"user_id": 1}, {"user_id": None}],
        [],
        [{}],
        {},
        {"user_id": []},
        [{"user_id": 1}, {"merchant_id": "m"}],
        [{"user_id": 1}, {}],
        [{"user_id": 1, "unknown": 5}],
        [{"user": 1}],
        [{"other": 1}],
        [{"user_id": [1]}],
    ],
    ids=repr,
)
def test_entity_rows_of_every_shape(repo: Repo, entities: Any) -> None:
    """Rows, columns, coerced, odd, empty and wrong ones give Feast's answers and Feast's errors."""
    assert_same(repo, ALL, entities)


@pytest.mark.parametrize("is_full", [False, True])
def test_names(repo: Repo, is_full: bool) -> None:
    """Short and full feature names come in Feast's order."""
    assert_same(repo, ALL, [{"user_id": 2}], full_feature_names=is_full)


def test_requests_for_one_view_in_any_combination(repo: Repo) -> None:
    """[a], [b], [b, a], [a] of one view are right, and the caller's list is left alone."""
    for features in (["profile:age"], ["profile:city"], ["profile:city", "profile:age"]):
        asked = list(features)
        assert_same(repo, asked, [{"user_id": 1}])
        assert asked == features
    assert_same(repo, ["profile:age"], [{"user_id": 1}])


def test_composite_keys_in_any_order(repo: Repo) -> None:
    """A composite key reads the same entry however the caller orders its parts."""
    features = ["pairs:seen", "profile:age"]
    assert_same(repo, features, [{"user_id": 1, "merchant_id": "n"}])
    assert_same(repo, features, [{"merchant_id": "n", "user_id": 1}])
    assert_same(repo, features, {"merchant_id": ["m", "x", "n", "m"], "user_id": [1, 1, 1, 1]})
    stats = repo.cache.stats().groups["pairs"]
    assert stats.loads == 3  # ("m"), ("n"), ("x"): once each


def test_missing_join_key_of_a_composite(repo: Repo) -> None:
    """A request that lacks one part of a composite key gets what Feast makes of it."""
    assert_same(repo, ["pairs:seen"], [{"user_id": 1}])


def test_unknown_features_and_views(repo: Repo) -> None:
    """Feast's own errors for what does not exist."""
    for features in (["nope:x"], ["profile:nope"], ["profile"], [], ["profile:age", "profile:age"]):
        assert_same(repo, features, [{"user_id": 1}])


def test_feature_service(repo: Repo) -> None:
    """A feature service resolves as Feast resolves it."""
    views = {view.name: view for view in repo.hot.list_feature_views()}
    service = FeatureService(name="model", features=[views["profile"][["age"]], views["counts"]])
    repo.apply(service)
    for store_service in (service, repo.hot.get_feature_service("model")):
        assert_same(repo, store_service, [{"user_id": 1}, {"user_id": 7}])


def test_join_key_alias(repo: Repo) -> None:
    """An aliased join key reads the same rows under another name."""
    views = {view.name: view for view in repo.hot.list_feature_views()}
    payer = views["profile"].with_name("payer").with_join_key_map({"user_id": "payer_id"})
    payee = views["profile"].with_name("payee").with_join_key_map({"user_id": "payee_id"})
    repo.apply(FeatureService(name="alias", features=[payer, payee]))
    rows = [{"payee_id": 1, "payer_id": 2}, {"payee_id": 2, "payer_id": 2}]
    as_dict, *_ = assert_same(
        repo, repo.hot.get_feature_service("alias"), rows, full_feature_names=True
    )
    assert as_dict["payer__age"] == [40, 40]
    assert repo.cache.stats().groups["profile"].loads == 2


def test_mutating_a_response_does_no_harm(repo: Repo) -> None:
    """A caller may do what it likes with a response."""
    expected = answers(repo.bare, ALL, [{"user_id": 1}])
    for _ in range(3):
        response = repo.hot.get_online_features(ALL, [{"user_id": 1}])
        as_dict = response.to_dict()
        as_dict["age"][0] = -1
        as_dict["age"].append(5)
        response.proto.results[0].values[0].int64_val = 99
        del response.proto.results[1]
    assert answers(repo.hot, ALL, [{"user_id": 1}]) == expected


def test_a_changed_proto_is_what_to_dict_shows(repo: Repo) -> None:
    """As with Feast, `to_dict` shows the protobuf message once it has been handed out."""
    response = repo.hot.get_online_features(["profile:age"], [{"user_id": 1}])
    response.proto.results[1].values[0].int64_val = 99
    assert response.to_dict()["age"] == [99]


def test_frames_and_tables(repo: Repo) -> None:
    """`to_df` and `to_arrow` equal Feast's."""
    rows = [{"user_id": 1}, {"user_id": 3}, {"user_id": 8}]
    bare = repo.bare.get_online_features(ALL, rows)
    for _ in range(2):
        hot = repo.hot.get_online_features(ALL, rows)
        pd.testing.assert_frame_equal(hot.to_df(True), bare.to_df(True))
        assert hot.to_arrow().equals(bare.to_arrow())


def test_version_metadata(repo: Repo) -> None:
    """A request for version metadata gets it, on a miss and on a hit."""
    assert_same(repo, ALL, [{"user_id": 1}], include_feature_view_version_metadata=True)


def test_online_read_returns_requested_features(repo: Repo) -> None:
    """The store's own read returns what was asked for, and leaves the caller's list alone."""
    from feast.infra.passthrough_provider import PassthroughProvider
    from feast.protos.feast.types.EntityKey_pb2 import EntityKey
    from feast.protos.feast.types.Value_pb2 import Value

    provider = repo.hot._get_provider()
    assert isinstance(provider, PassthroughProvider)
    table = repo.hot.get_feature_view("profile")
    keys = [EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=i)]) for i in (1, 5)]
    asked = ["age", "city"]
    for _ in range(2):
        rows = provider.online_read(repo.hot.config, table, keys, asked)
        assert asked == ["age", "city"]
        assert rows[0][1] == {"age": Value(int64_val=30), "city": Value(string_val="a")}
        assert len(rows) == 2


def test_the_three_rows_of_a_chunked_frame_are_three_rows(repo: Repo) -> None:
    """An Arrow-backed frame of several chunks loses nothing through the plugin's ingestion."""
    import pyarrow as pa

    chunks = {
        "user_id": pa.chunked_array([[101], [102], [103]], type=pa.int64()),
        "n1": pa.chunked_array([[1], [2], [3]], type=pa.int32()),
        "ratio": pa.chunked_array([[0.5], [0.25], [0.125]], type=pa.float32()),
    }
    frame = pd.DataFrame(
        {name: pd.Series(pd.arrays.ArrowExtensionArray(chunk)) for name, chunk in chunks.items()}
    )
    frame["event_time"] = frame_of(x=[1])["event_time"][0]
    repo.cache.push("counts_push", frame)
    got = repo.hot.get_online_features(["counts:n1"], {"user_id": [101, 102, 103]}).to_dict()
    assert got["n1"] == [1, 2, 3]
