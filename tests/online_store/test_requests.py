"""Promise 5 for every form of a request: services, aliases, key types, vectors, documents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from feast import (
    Entity,
    FeatureService,
    FeatureStore,
    FeatureView,
    Field,
)
from feast.protos.feast.types.Value_pb2 import RepeatedValue, Value
from feast.types import Array, Float32, Float64, Int64, String
from feast.value_type import ValueType

from ..stores import MERCHANT, USER, Repo, answers, assert_same, frame_of
from .shop import ONE, USERS, RepoMaker, add, day, put, transforms

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{kind} feature view.*experimental:RuntimeWarning")
    for kind in ("On demand", "Stream", "Batch")
]


# -- services, names, aliases --------------------------------------------------------------------


@pytest.mark.parametrize("is_full", [False, True], ids=["short", "full"])
def test_feature_services(shop: Repo, is_full: bool) -> None:
    """Several views, projections, on-demand views, aliases, colliding names and text references."""
    profile, counts = (shop.hot.get_feature_view(name) for name in ("profile", "counts"))
    doubled, shared, *_ = transforms(profile)
    friend = profile.with_name("friend").with_join_key_map({"user_id": "friend_id"})
    services = [
        FeatureService(name="several", features=[profile, counts[["n1"]]]),
        FeatureService(name="on_demand", features=[profile[["score"]], doubled, shared]),
        FeatureService(name="alias", features=[profile.with_name("p2"), doubled]),
        FeatureService(name="colliding", features=[profile, counts]),
        FeatureService(name="as_text", features=["profile:age", "counts:n1"]),
        FeatureService(name="friends", features=[profile.with_name("me"), friend]),
    ]
    add(shop, doubled, shared, *services)
    rows = [
        {"user_id": user, "friend_id": other, "amount": 3.0}
        for user, other in ((1, 2), (2, 9), (1, 1))
    ]
    for service in services:
        known = shop.bare.get_feature_service(service.name)
        for asked in (service, known):
            for entities in (rows, rows[:1], ONE):
                assert_same(shop, asked, entities, full_feature_names=is_full)


def test_a_push_is_seen_through_an_alias(shop: Repo) -> None:
    """A view read under another name and another join key is forgotten with the view."""
    profile = shop.hot.get_feature_view("profile")
    friend = profile.with_name("friend").with_join_key_map({"user_id": "friend_id"})
    service = FeatureService(name="friends", features=[profile.with_name("me"), friend])
    add(shop, service)
    entities = [{"user_id": 1, "friend_id": 2}, {"user_id": 9, "friend_id": 1}]
    for number in (1, 2):
        assert_same(shop, service, entities, full_feature_names=True)
        put(shop, "profile", day(number), user_id=[1, 2], age=[number, -number], score=[1.0, 2.0])
        got = assert_same(shop, service, entities, full_feature_names=True)[0]
        assert (got["me__age"], got["friend__age"]) == ([number, None], [-number, number])
    assert shop.cache.invalidate("profile", {"user_id": 1}) == 1


def test_a_service_that_does_not_exist_and_one_that_changes(shop: Repo) -> None:
    """Feast's own error, and after `apply` the new definition at once."""
    profile, counts = (shop.hot.get_feature_view(name) for name in ("profile", "counts"))
    assert_same(shop, FeatureService(name="nope", features=[profile]), ONE)
    for features in ([profile[["age"]]], [profile[["score"]]], [counts]):
        service = FeatureService(name="fs", features=features)
        add(shop, service)
        assert_same(shop, service, USERS)


def test_equal_names(shop: Repo) -> None:
    """Two views with one feature name collide as in Feast, unless the names are full."""
    features = ["profile:age", "counts:age"]
    kind, _ = assert_same(shop, features, USERS)
    assert kind.__name__ == "FeatureNameCollisionError"
    got = assert_same(shop, features, USERS, full_feature_names=True)[0]
    assert (got["profile__age"][0], got["counts__age"][0]) == (10, 7)


def test_a_feature_named_like_a_join_key(shop: Repo) -> None:
    """The entity column and the feature of one name come out as in Feast."""
    card = Entity(name="card", join_keys=["card_id"], value_type=ValueType.INT64)
    add(shop, card, shop.view("owner", {"user_id": Int64, "limit": Int64}, entities=(card,)))
    put(shop, "owner", card_id=[5], user_id=[1], limit=[9])
    for features in (["owner:user_id"], ["owner:user_id", "profile:age"], ["owner:limit"]):
        for entities in ([{"card_id": 5}], [{"card_id": 5, "user_id": 2}]):
            for is_full in (False, True):
                assert_same(shop, features, entities, full_feature_names=is_full)


# -- entities ------------------------------------------------------------------------------------

KEYS: dict[str, tuple[ValueType, list[Any], list[Any]]] = {
    "int32": (ValueType.INT32, [1, -(2**31)], ["1", 1.0, 2**31, "x", None]),
    "int64": (ValueType.INT64, [1, -(2**63)], ["1", np.int64(1), np.int32(1), 1.5, 2**63]),
    "string": (ValueType.STRING, ["a", "ü€"], [5, "", np.str_("a"), b"a", None]),
    "bytes": (ValueType.BYTES, [b"a", b"\x00\xff"], [b"", None]),
    "timestamp": (ValueType.UNIX_TIMESTAMP, [day(1), day(2)], [5, pd.Timestamp(day(1))]),
    "undeclared": (ValueType.UNKNOWN, [1, 2], ["1", 1.0, "x"]),
}


@pytest.mark.parametrize("name", KEYS)
def test_entities_of_each_type(make_repo: RepoMaker, name: str) -> None:
    """Keys of each type that Feast can serialize are read, pushed and forgotten by value."""
    value_type, keys, others = KEYS[name]
    repo = make_repo()
    thing = Entity(name="thing", join_keys=["thing_id"], value_type=value_type)
    view = repo.view("v", {"age": Int64}, entities=(thing,))
    if value_type is ValueType.UNKNOWN:  # Feast takes the type from the source
        frame_of(thing_id=keys, age=[0, 0]).to_parquet(repo.folder / "v.parquet")
    repo.apply(thing, view)
    put(repo, "v", thing_id=keys, age=[10, 20])
    for values in (keys, keys[::-1], [*keys, *keys], *([other] for other in others)):
        assert_same(repo, ["v:age"], [{"thing_id": value} for value in values])
        assert_same(repo, ["v:age"], {"thing_id": values})
    repo.hot.push("v_push", frame_of(thing_id=keys[:1], age=[30], event_time=[day(1)]))
    assert assert_same(repo, ["v:age"], {"thing_id": keys})[0]["age"] == [30, 20]
    assert repo.cache.invalidate("v", {"thing_id": keys[0]}) == 1


@pytest.mark.parametrize("value", [2**63, 2**64 + 1, -(2**63) - 1], ids=["max", "wrapped", "min"])
@pytest.mark.parametrize("through", ["to_dict", "matrix"])
def test_an_integer_beyond_64_bits_is_refused(shop: Repo, value: int, through: str) -> None:
    """Feast raises; a response that is never rendered as protobuf, and the reader, do as well."""
    reader = shop.cache.reader(["profile:age"])
    for users in ([value], [1, value]):
        entities = {"user_id": users}
        for store in (shop.bare, shop.hot):
            if through == "to_dict" or store is shop.bare:
                with pytest.raises(ValueError):
                    store.get_online_features(["profile:age"], entities).to_dict()
            else:
                with pytest.raises(ValueError):
                    reader.matrix(entities)


def test_a_wrong_value_is_the_callers_fault(make_repo: RepoMaker) -> None:
    """Text where bytes are declared is refused in Feast's words, and counted as no cache fault."""
    repo = make_repo()
    thing = Entity(name="thing", join_keys=["thing_id"], value_type=ValueType.BYTES)
    repo.apply(thing, repo.view("v", {"age": Int64}, entities=(thing,)))
    assert assert_same(repo, ["v:age"], [{"thing_id": "text"}])[0] is AssertionError
    assert repo.cache.stats().cache_faults == 0


def test_entity_values_as_protobuf(shop: Repo) -> None:
    """Feast's own values, in a list and as one message, are taken as Feast takes them."""
    values = [Value(int64_val=user) for user in (2, 1, 9)]
    for column in (values, RepeatedValue(val=values)):
        assert_same(shop, ["profile:age", "counts:n1"], {"user_id": column})


def test_composite_keys_beside_single_ones(make_repo: RepoMaker) -> None:
    """Views of two entities, of each of them and of both are read in one request."""
    repo = make_repo()
    repo.apply(
        USER,
        MERCHANT,
        repo.view("pair", {"seen": Int64}, entities=(MERCHANT, USER)),
        repo.view("user", {"age": Int64}),
        repo.view("place", {"size": Float64}, entities=(MERCHANT,)),
    )
    put(repo, "pair", user_id=[1, 1], merchant_id=["a", "b"], seen=[3, 4])
    put(repo, "user", user_id=[1], age=[10])
    put(repo, "place", merchant_id=["a"], size=[0.5])
    features = ["place:size", "pair:seen", "user:age"]
    entities = {"merchant_id": ["b", "a", "x"], "user_id": [1, 1, 1]}
    assert_same(repo, features, entities)
    row = frame_of(user_id=[1], merchant_id=["b"], seen=[5], event_time=[day(1)])
    repo.hot.push("pair_push", row)
    assert assert_same(repo, features, entities)[0]["seen"] == [5, 3, None]


# -- documents -----------------------------------------------------------------------------------

SEARCHES: list[Callable[[FeatureStore], Any]] = [
    lambda store: store.retrieve_online_documents([1.0, 0.0], 2, ["docs:vector"]),
    lambda store: store.retrieve_online_documents_v2(
        features=["docs:vector", "docs:text"], top_k=2, query=[1.0, 0.0]
    ),
    lambda store: store.retrieve_online_documents_v2(
        features=["docs:text"], top_k=2, query_string="hello"
    ),
]


def documents(repo: Repo) -> None:
    """Two documents."""
    fields = [
        Field(name="user_id", dtype=Int64),
        Field(name="vector", dtype=Array(Float32), vector_index=True, vector_length=2),
        Field(name="text", dtype=String),
    ]
    source = repo.source("docs")
    repo.apply(USER, FeatureView(name="docs", entities=[USER], schema=fields, source=source))
    vectors = [[1.0, 0.0], [0.0, 1.0]]
    put(repo, "docs", user_id=[1, 2], vector=vectors, text=["hello world", "bye"])


def found(store: FeatureStore, search: Callable[[FeatureStore], Any]) -> Any:
    """What a search finds, or the error's type and text."""
    try:
        return search(store).to_dict()
    except Exception as error:  # noqa: BLE001 - the error is the answer
        return type(error), str(error)


def test_document_retrieval_refuses_alike(make_repo: RepoMaker) -> None:
    """Where the store searches no documents, its own error comes through."""
    repo = make_repo()
    documents(repo)
    for search in SEARCHES:
        expected = found(repo.bare, search)
        assert isinstance(expected, tuple)
        assert found(repo.hot, search) == expected


def test_text_search(tmp_path: Path) -> None:
    """SQLite's text search finds the same documents through the cache."""
    seen = []
    for kind in ("bare", "hot"):  # each its own file: Feast leaves a transaction open
        online = {"type": "sqlite", "text_search_enabled": True}
        repo = Repo(tmp_path / kind, online)
        documents(repo)
        seen.append(found(getattr(repo, kind), SEARCHES[2]))
    assert seen[0]["text"] == ["hello world"]
    assert seen[1] == seen[0]


# -- precomputed vectors -------------------------------------------------------------------------


def precomputed(repo: Repo) -> tuple[FeatureService, FeatureService]:
    """A service that asks for precomputed vectors, and the same one that does not."""
    views = [repo.hot.get_feature_view("profile"), repo.hot.get_feature_view("counts")[["n1"]]]
    fast = FeatureService(name="fast", features=views, precompute_online=True)
    plain = FeatureService(name="plain", features=views)
    add(repo, fast, plain)
    return fast, plain


@pytest.mark.parametrize("is_full", [False, True], ids=["short", "full"])
def test_precomputed_services_are_answered_from_rows(shop: Repo, is_full: bool) -> None:
    """Feast computes no vectors through Hotplate, and needs none: the rows are the same values."""
    fast, plain = precomputed(shop)
    assert shop.hot.precompute_feature_service("fast") == 0
    for with_metadata in (False, True):
        options = {
            "full_feature_names": is_full,
            "include_feature_view_version_metadata": with_metadata,
        }
        for entities in (ONE, USERS, [{"user_id": 1}, {}], [{"user_id": None}], []):
            expected = answers(shop.bare, plain, entities, **options)
            for _ in range(2):
                assert answers(shop.hot, fast, entities, **options) == expected
    assert shop.cache.stats().groups["profile"].loads == 3


@pytest.mark.parametrize("online", ["redis"], indirect=True)
@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
def test_a_push_is_seen_in_a_precomputed_service(shop: Repo) -> None:
    """Vectors that a bare Redis store computed grow old with a push through Hotplate: unused."""
    fast, plain = precomputed(shop)
    assert shop.bare.precompute_feature_service("fast") == 2
    for number in (1, 2):
        row = frame_of(user_id=[1], age=[number], score=[0.5], event_time=[day(number)])
        shop.hot.push("profile_push", row)
        expected = answers(shop.bare, plain, USERS)
        assert expected[0]["age"][0] == number
        for _ in range(2):
            assert answers(shop.hot, fast, USERS) == expected


@pytest.mark.parametrize("is_metadata_asked", [False, True])
def test_a_precomputed_service_is_read_without_a_warning(
    shop: Repo, is_metadata_asked: bool
) -> None:
    """The caller's service is the applied one, so nothing is said about it."""
    fast, _ = precomputed(shop)
    entities = ONE if is_metadata_asked else [{"user_id": 1}, {}]
    shop.hot.get_online_features(
        fast, entities, include_feature_view_version_metadata=is_metadata_asked
    )
