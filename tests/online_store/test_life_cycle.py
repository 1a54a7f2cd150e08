"""Promise 5 over the whole life of a repo: what Feast can declare, write, change and take away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from feast import (
    BatchFeatureView,
    Entity,
    FeatureService,
    FeatureStore,
    FeatureView,
    Field,
    Project,
    RequestSource,
    StreamFeatureView,
)
from feast.data_source import PushMode
from feast.feature_view import FeatureViewState
from feast.labeling.label_view import LabelView
from feast.on_demand_feature_view import OnDemandFeatureView, on_demand_feature_view
from feast.protos.feast.types.Value_pb2 import RepeatedValue, Value
from feast.repo_contents import RepoContents
from feast.types import Array, Float32, Float64, Int64, String
from feast.value_type import ValueType

import hotplate
from hotplate import PolicyError

from ..conftest import settings_of
from ..stores import CACHED, MERCHANT, USER, Repo, answers, assert_same, frame_of

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{kind} feature view.*experimental:RuntimeWarning")
    for kind in ("On demand", "Stream", "Batch")
]

RepoMaker = Callable[..., Repo]
DAY_0 = datetime(2026, 1, 1, tzinfo=UTC)
ONE = [{"user_id": 1}]
USERS = [{"user_id": user} for user in (1, 2, 9, 1)]
VERSIONED = {"enable_online_feature_view_versioning": True}


def day(number: int) -> datetime:
    """An event time; a later one wins in every store."""
    return DAY_0 + timedelta(days=number)


def put(repo: Repo, view: str, moment: datetime = DAY_0, /, **columns: Any) -> None:
    """Write rows of one event time through the cached store."""
    count = len(next(iter(columns.values())))
    repo.write(view, repo.hot, event_time=[moment] * count, **columns)


@pytest.fixture
def shop(make_repo: RepoMaker) -> Repo:
    """Two views of a user with data of two users."""
    repo = make_repo()
    repo.apply(
        USER,
        repo.view("profile", {"age": Int64, "score": Float64}),
        repo.view("counts", {"n1": Int64, "age": Int64}),
    )
    put(repo, "profile", user_id=[1, 2], age=[10, 20], score=[0.5, 1.5])
    put(repo, "counts", user_id=[1, 2], n1=[1, 2], age=[7, 8])
    return repo


def add(repo: Repo, *objects: Any) -> None:
    """Apply more objects."""
    repo.apply(*objects)


# -- on-demand views -----------------------------------------------------------------------------

AMOUNT = RequestSource(name="request", schema=[Field(name="amount", dtype=Float64)])


def transforms(profile: FeatureView) -> list[OnDemandFeatureView]:
    """On-demand views of each mode, with and without request data."""

    @on_demand_feature_view(
        sources=[profile], schema=[Field(name="twice", dtype=Int64)], mode="python"
    )
    def doubled(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"twice": [None if age is None else age * 2 for age in inputs["age"]]}

    @on_demand_feature_view(
        sources=[profile, AMOUNT], schema=[Field(name="share", dtype=Float64)], mode="pandas"
    )
    def shared(inputs: pd.DataFrame) -> pd.DataFrame:
        return (inputs["amount"] / inputs["age"]).to_frame("share")

    @on_demand_feature_view(
        sources=[profile, AMOUNT],
        schema=[Field(name="total", dtype=Float64)],
        mode="python",
        singleton=True,
    )
    def summed(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"total": (inputs["score"] or 0.0) + inputs["amount"]}

    @on_demand_feature_view(
        sources=[AMOUNT], schema=[Field(name="half", dtype=Float64)], mode="python"
    )
    def halved(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"half": [amount / 2 for amount in inputs["amount"]]}

    return [doubled, shared, summed, halved]


def stored_transform(profile: FeatureView) -> OnDemandFeatureView:
    """An on-demand view that is computed when it is written."""

    @on_demand_feature_view(
        entities=[USER],
        sources=[profile],
        schema=[Field(name="user_id", dtype=Int64), Field(name="kept", dtype=Float64)],
        mode="python",
        write_to_online_store=True,
    )
    def stored(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"kept": [float(score) + 1 for score in inputs["score"]]}

    return stored


PAID = [{"user_id": 1, "amount": 5.0}, {"user_id": 2, "amount": 7.0}]
ON_DEMAND: list[tuple[list[str], Any]] = [
    (["doubled:twice"], USERS),
    (["doubled:twice", "profile:score", "counts:n1"], USERS),
    (["shared:share"], PAID),
    (["shared:share", "doubled:twice", "profile:age"], PAID),
    (["shared:share"], USERS),  # the request data is missing
    (["summed:total"], PAID[:1]),
    (["summed:total", "counts:n1"], PAID),
    (["halved:half"], [{"amount": 1.0}]),
    (["halved:half", "profile:age"], {"user_id": [2, 1], "amount": [1.0, 3.0]}),
    (["doubled:nope"], USERS),
    (["doubled:twice"], [{"user_id": None}]),
    (["doubled:twice"], []),
]


@pytest.mark.parametrize("is_full", [False, True], ids=["short", "full"])
def test_on_demand_views(shop: Repo, is_full: bool) -> None:
    """Python, pandas and singleton mode, with and without request data, alone and mixed."""
    add(shop, *transforms(shop.hot.get_feature_view("profile")))
    for features, entities in ON_DEMAND:
        assert_same(shop, features, entities, full_feature_names=is_full)


def test_an_on_demand_view_is_computed_from_cached_rows_and_sees_a_push(shop: Repo) -> None:
    """Its sources are read through the cache, and a push of a source changes its result."""
    add(shop, *transforms(shop.hot.get_feature_view("profile")))
    assert assert_same(shop, ["doubled:twice"], ONE)[0]["twice"] == [20]
    assert shop.cache.stats().groups["profile"].loads == 1
    frame = frame_of(user_id=[1], age=[99], score=[0.0], event_time=[day(1)])
    shop.hot.push("profile_push", frame)
    assert assert_same(shop, ["doubled:twice"], ONE)[0]["twice"] == [198]


def test_a_stored_on_demand_view_is_computed_on_write(shop: Repo) -> None:
    """Its stored result is cached, mixed with other views, and replaced by the next write."""
    add(shop, stored_transform(shop.hot.get_feature_view("profile")))
    assert assert_same(shop, ["stored:kept"], USERS)[0]["kept"] == [None] * 4
    put(shop, "stored", user_id=[1, 2], age=[0, 0], score=[0.5, 1.5])
    for features in (["stored:kept"], ["stored:kept", "profile:age"], ["stored:nope"]):
        assert_same(shop, features, USERS)
    put(shop, "stored", day(1), user_id=[1], age=[0], score=[4.0])
    assert assert_same(shop, ["stored:kept"], USERS)[0]["kept"] == [5.0, 2.5, None, 5.0]


def test_a_stored_on_demand_view_is_materialized(shop: Repo) -> None:
    """What `materialize` computes of a stored on-demand view is seen at once."""
    add(shop, stored_transform(shop.hot.get_feature_view("profile")))
    assert_same(shop, ["stored:kept"], USERS)
    rows = frame_of(user_id=[1], age=[1], score=[8.0], event_time=[day(1)])
    rows.to_parquet(shop.folder / "profile.parquet")
    shop.hot.materialize(DAY_0, day(2), feature_views=["stored"])
    assert assert_same(shop, ["stored:kept"], ONE)[0]["kept"] == [9.0]


# -- kinds of views ------------------------------------------------------------------------------


def test_a_view_without_entities(shop: Repo) -> None:
    """Global features, alone and beside a user's, through two materializations."""
    add(shop, shop.view("globe", {"rate": Float64}, entities=()))
    requests = [(["globe:rate"], ONE), (["globe:rate", "profile:score"], USERS)]
    for number in (1, 2):
        rows = frame_of(rate=[number / 2], event_time=[day(number)])
        rows.to_parquet(shop.folder / "globe.parquet")
        shop.hot.materialize(day(number - 1), day(number + 1), feature_views=["globe"])
        for features, entities in requests:
            assert assert_same(shop, features, entities)[0]["rate"][0] == number / 2
    assert_same(shop, ["globe:rate"], [{}])  # Feast needs a column to count the rows
    assert shop.cache.invalidate("globe") == 1


def test_stream_batch_and_label_views(shop: Repo) -> None:
    """Views of every other kind are read, written and pushed like any."""
    add(
        shop,
        StreamFeatureView(
            name="stream",
            entities=[USER],
            schema=[Field(name="s1", dtype=Int64)],
            source=shop.source("stream"),
            ttl=timedelta(days=1),
        ),
        BatchFeatureView(
            name="batch",
            entities=[USER],
            schema=[Field(name="b1", dtype=Int64)],
            source=shop.source("batch").batch_source,
            mode="python",
            udf=lambda rows: rows,
            online=True,
        ),
        labels(shop),
    )
    features = ["stream:s1", "batch:b1", "labels:fraud", "profile:age"]
    assert_same(shop, features, USERS)
    for number in (0, 1):
        moment = [day(number)]
        shop.hot.push("stream_push", frame_of(user_id=[1], s1=[number], event_time=moment))
        put(shop, "batch", day(number), user_id=[1], b1=[number])
        row = frame_of(user_id=[1], fraud=[number], labeler=["me"], event_time=moment)
        shop.hot.push("labels_push", row)
        got = assert_same(shop, features, USERS)[0]
        assert (got["s1"][0], got["b1"][0], got["fraud"][0]) == (number,) * 3


def labels(repo: Repo, **kwargs: Any) -> LabelView:
    """A label view of a user."""
    names = {"user_id": Int64, "fraud": Int64, "labeler": String}
    return LabelView(
        name="labels",
        entities=[USER],
        schema=[Field(name=name, dtype=dtype) for name, dtype in names.items()],
        source=repo.source("labels"),
        **kwargs,
    )


def test_a_label_view_has_a_policy_and_can_be_invalidated(shop: Repo) -> None:
    """What is cached of a label view is listed, and forgotten on demand."""
    add(shop, labels(shop, tags={"hotplate.ttl": "1h"}))
    assert_same(shop, ["labels:fraud"], ONE)
    assert shop.cache.stats().groups["labels"].entries == 1
    assert shop.cache.policies()["labels"].shown()["ttl"] == "1h"
    assert shop.cache.invalidate("labels", {"user_id": 1}) == 1


def test_a_bad_tag_on_a_label_view_is_refused(shop: Repo) -> None:
    """`apply` checks label views as it checks the others."""
    with pytest.raises(PolicyError, match="group 'labels': ttl: 'soon' is not a duration"):
        shop.hot.apply([labels(shop, tags={"hotplate.ttl": "soon"})])


def test_one_push_source_of_two_views(make_repo: RepoMaker) -> None:
    """A push writes, and forgets, every view of its source."""
    repo = make_repo()
    source = repo.source("both")
    for name, column in (("left", "x"), ("right", "y")):
        fields = [Field(name="user_id", dtype=Int64), Field(name=column, dtype=Int64)]
        repo.apply(USER, FeatureView(name=name, entities=[USER], schema=fields, source=source))
    features = ["left:x", "right:y"]
    for number in (1, 2):
        row = frame_of(user_id=[1], x=[number], y=[-number], event_time=[day(number)])
        repo.hot.push("both_push", row)
        got = assert_same(repo, features, USERS)[0]
        assert (got["x"][0], got["y"][0]) == (number, -number)


def test_created_timestamps_and_ttl(make_repo: RepoMaker) -> None:
    """A created timestamp and Feast's own ttl change nothing that the bare store does not."""
    repo = make_repo()
    view = repo.view("v", {"age": Int64}, created_timestamp_column="made", ttl=timedelta(hours=1))
    repo.apply(USER, view)
    for number, age in enumerate((10, 20)):
        put(repo, "v", user_id=[1], age=[age], made=[day(number)])  # one event time for both
        assert_same(repo, ["v:age"], USERS)


def test_field_mapping(make_repo: RepoMaker) -> None:
    """Columns that the source names otherwise, materialized and written."""
    repo = make_repo()
    source = repo.source("v", field_mapping={"raw": "age", "uid": "user_id"}).batch_source
    fields = [Field(name="user_id", dtype=Int64), Field(name="age", dtype=Int64)]
    repo.apply(USER, FeatureView(name="v", entities=[USER], schema=fields, source=source))
    assert_same(repo, ["v:age"], USERS)
    rows = frame_of(uid=[1], raw=[4], event_time=[day(1)])
    rows.to_parquet(repo.folder / "v.parquet")
    repo.hot.materialize(DAY_0, day(2))
    assert assert_same(repo, ["v:age"], USERS)[0]["age"] == [4, None, None, 4]
    put(repo, "v", day(2), user_id=[1], age=[5])
    assert assert_same(repo, ["v:age"], USERS)[0]["age"][0] == 5


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


# -- versions ------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def versioned(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Repo]:
    """A view in two versions, on each store that can hold them."""
    online = settings_of(request, request.param)
    if request.param == "postgres":
        online["sslmode"] = "disable"
    repo = Repo(tmp_path / "repo", online, project=f"v{tmp_path.name}", registry=VERSIONED)
    repo.apply(USER, repo.view("v", {"age": Int64}))
    put(repo, "v", user_id=[1], age=[10])
    assert_same(repo, ["v:age"], ONE)
    repo.apply(repo.view("v", {"age": Int64, "city": String}))
    put(repo, "v", user_id=[1], age=[11], city=["x"])
    yield repo
    close_postgres(repo)


def close_postgres(repo: Repo) -> None:
    """Close what Feast's Postgres store leaves open."""
    wrapped = repo.cache.runtime.wrapped.store()
    for store in (wrapped, repo.bare._get_provider().online_store):
        connection = getattr(store, "_conn", None)
        if connection is not None:
            connection.close()


VERSION_REQUESTS: list[tuple[list[str], bool]] = [
    (["v:age", "v:city"], False),
    (["v@v0:age"], False),
    (["v@v1:age", "v@v1:city"], False),
    (["v@v0:age", "v@v1:age", "v:age"], True),
    (["v@v0:age", "v@v1:age"], False),  # the names collide
    (["v@v0:city"], False),
    (["v@v7:age"], False),
    (["v@latest:age"], False),
]


def test_versions(versioned: Repo) -> None:
    """Each version of a view keeps its own rows, and the latest is what a plain name means."""
    repo = versioned
    for features, is_full in VERSION_REQUESTS:
        for with_metadata in (False, True):
            assert_same(
                repo,
                features,
                USERS,
                full_feature_names=is_full,
                include_feature_view_version_metadata=with_metadata,
            )
    got = assert_same(repo, ["v@v0:age", "v:age"], ONE, full_feature_names=True)[0]
    assert (got["v@v0__age"], got["v__age"]) == ([10], [11])
    put(repo, "v", day(1), user_id=[1], age=[12], city=["y"])
    got = assert_same(repo, ["v@v0:age", "v@v1:age"], ONE, full_feature_names=True)[0]
    assert (got["v@v0__age"], got["v@v1__age"]) == ([10], [12])


def test_services_pin_versions(versioned: Repo) -> None:
    """A service reads the versions that it names."""
    service = FeatureService(name="pinned", features=["v@v0:age", "v@v1:city"])
    add(versioned, service)
    for asked in (service, versioned.bare.get_feature_service("pinned")):
        got = assert_same(versioned, asked, USERS)[0]
        assert (got["age"][0], got["city"][0]) == (10, "x")


def test_materialize_of_one_version(versioned: Repo) -> None:
    """Rows materialized into an old version are seen there at once, and nowhere else."""
    features = ["v@v0:age", "v:age"]
    assert_same(versioned, features, USERS, full_feature_names=True)
    rows = frame_of(user_id=[1], age=[77], city=["z"], event_time=[day(1)])
    rows.to_parquet(versioned.folder / "v.parquet")
    versioned.hot.materialize(DAY_0, day(2), feature_views=["v"], version="v0")
    got = assert_same(versioned, features, USERS, full_feature_names=True)[0]
    assert (got["v@v0__age"][0], got["v__age"][0]) == (77, 11)


def test_versions_where_they_are_off(shop: Repo) -> None:
    """Without the registry's option Feast's own error, every time."""
    for feature in ("profile@v0:age", "profile@v1:age"):
        kind, text = assert_same(shop, [feature], ONE)
        assert kind is ValueError
        assert "online versioning is disabled" in text


# -- views that are closed -----------------------------------------------------------------------


def test_disabled_views(shop: Repo) -> None:
    """A disabled view refuses, also when it was being served, and serves again once enabled."""
    assert_same(shop, ["profile:age"], USERS)
    shop.hot.disable_feature_view("profile")
    assert answers(shop.hot, ["profile:age"], USERS)[0] is ValueError
    shop.bare.refresh_registry()
    assert "is disabled" in assert_same(shop, ["profile:age", "counts:n1"], USERS)[1]
    assert_same(shop, ["counts:n1"], USERS)
    shop.hot.enable_feature_view("profile")
    shop.bare.refresh_registry()
    assert_same(shop, ["profile:age"], USERS)


@pytest.mark.parametrize("is_served", [False, True])
def test_the_state_of_a_view_gates_its_reads(make_repo: RepoMaker, is_served: bool) -> None:
    """Feast serves a view in some states only, and the cache in the same ones."""
    repo = make_repo(registry={"serve_features_while_materializing": is_served})
    repo.apply(USER, repo.view("v", {"age": Int64}))
    put(repo, "v", user_id=[1], age=[10])
    assert_same(repo, ["v:age"], USERS)
    seen = []
    for state in list(FeatureViewState)[1:]:
        repo.hot.set_feature_view_state("v", state)
        repo.bare.refresh_registry()
        seen.append(isinstance(assert_same(repo, ["v:age"], USERS)[0], dict))
    assert seen == [False, False, is_served, True]


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


# -- writing -------------------------------------------------------------------------------------


def test_materialize_and_materialize_incremental_of_several_views(shop: Repo) -> None:
    """Every view's new rows are seen at once, and rows that did not change stay."""
    features = ["profile:age", "counts:n1"]
    assert_same(shop, features, USERS)
    for number in (1, 2):
        profile = frame_of(user_id=[1], age=[number], score=[1.0], event_time=[day(number)])
        profile.to_parquet(shop.folder / "profile.parquet")
        counts = frame_of(user_id=[9], n1=[number], age=[1], event_time=[day(number)])
        counts.to_parquet(shop.folder / "counts.parquet")
        if number == 1:
            shop.hot.materialize(DAY_0, day(1) + timedelta(hours=1))
        else:
            shop.hot.materialize_incremental(day(3))
        got = assert_same(shop, features, USERS)[0]
        assert got["age"] == [number, 20, None, number]
        assert got["n1"] == [1, 2, number, 1]


def test_push_to_each_store(shop: Repo) -> None:
    """A push offline changes nothing online until it is materialized; one to both does at once."""
    frame_of(user_id=[1], age=[1], score=[1.0]).to_parquet(shop.folder / "profile.parquet")
    assert_same(shop, ["profile:age"], USERS)
    for number, (to, expected) in enumerate(
        [(PushMode.OFFLINE, 10), (PushMode.ONLINE, 2), (PushMode.ONLINE_AND_OFFLINE, 3)], 1
    ):
        row = frame_of(user_id=[1], age=[number], score=[1.0], event_time=[day(number)])
        shop.hot.push("profile_push", row, to=to)
        assert assert_same(shop, ["profile:age"], ONE)[0]["age"] == [expected]
    kept = pd.read_parquet(shop.folder / "profile.parquet")
    assert sorted(kept["age"]) == [1, 1, 3]
    shop.hot.materialize(DAY_0, day(9), feature_views=["profile"])
    assert_same(shop, ["profile:age"], ONE)


def test_write_to_online_store_of_a_frame_and_of_columns(shop: Repo) -> None:
    """Both ways to hand over rows are written through; an empty frame changes nothing."""
    assert_same(shop, ["profile:age", "profile:score"], USERS)
    columns = {"user_id": [1], "age": [5], "score": [None], "event_time": [day(1)]}
    shop.hot.write_to_online_store("profile", inputs=columns)
    got = assert_same(shop, ["profile:age", "profile:score"], ONE)[0]
    assert (got["age"], got["score"]) == ([5], [None])
    put(shop, "profile", day(2), user_id=[1, 3], age=[6, 7], score=[1.0, 2.0])
    assert_same(shop, ["profile:age", "profile:score"], [{"user_id": user} for user in (1, 3)])
    with pytest.warns(UserWarning, match="empty dataframe"):
        shop.hot.write_to_online_store("profile", pd.DataFrame())
    assert_same(shop, ["profile:age", "profile:score"], USERS)


# -- apply, plan, teardown -----------------------------------------------------------------------


def test_apply_in_part_and_as_a_whole(shop: Repo) -> None:
    """Views that are added, changed and dropped answer as over the bare store at every step."""
    requests = [["profile:age"], ["counts:n1"], ["more:x"], ["profile:age", "profile:city"]]

    def same() -> list[Any]:
        shop.bare.refresh_registry()
        return [type(assert_same(shop, features, USERS)[0]) for features in requests]

    assert same() == [dict, dict, type, type]
    more = shop.view("more", {"x": Int64})
    shop.hot.apply([more])
    assert same() == [dict, dict, dict, type]
    wider = shop.view("profile", {"age": Int64, "score": Float64, "city": String})
    shop.hot.apply([wider])
    assert same() == [dict, dict, dict, dict]
    put(shop, "profile", day(1), user_id=[1], age=[3], score=[0.5], city=["x"])
    put(shop, "more", user_id=[1], x=[4])
    assert same() == [dict, dict, dict, dict]
    gone = shop.hot.get_feature_view("counts")
    shop.hot.apply([USER, more, wider], objects_to_delete=[gone], partial=False)
    assert same() == [dict, type, dict, dict]
    shop.hot.apply([shop.view("counts", {"n1": Int64, "age": Int64})])
    assert same() == [dict, dict, dict, dict]  # Redis dropped its rows, SQLite its table
    shop.hot.delete_feature_view("more")
    shop.hot.refresh_registry()  # Feast's own store would serve it until then, too
    assert same() == [dict, dict, type, dict]


def test_a_view_is_dropped_where_the_ttl_map_names_the_ones_that_stay(make_repo: RepoMaker) -> None:
    """`apply([], objects_to_delete=[x], partial=False)` works for every ttl_map that was valid."""
    repo = make_repo(ttl_map={"default": "30s", "v": "1h"})
    repo.apply(USER, repo.view("v", {"age": Int64}), repo.view("w", {"size": Float64}))
    repo.hot.apply([], objects_to_delete=[repo.hot.get_feature_view("w")], partial=False)


@pytest.mark.parametrize("kind", ["on_demand", "offline"])
def test_apply_and_policies_agree_on_what_a_group_is(make_repo: RepoMaker, kind: str) -> None:
    """What `apply` accepts, `policies` accepts: also tags on views that no online store holds."""
    repo = make_repo()
    view = repo.view("v", {"age": Int64})
    if kind == "on_demand":
        other: Any = transforms(repo.view("profile", {"age": Int64, "score": Float64}))[3]
        other.tags = {"hotplate.ttll": "5s"}
    else:
        other = repo.view("w", {"x": Int64}, online=False, tags={"hotplate.ttll": "5s"})
    try:
        repo.hot.apply([USER, view, other])
    except PolicyError:
        return
    repo.cache.policies()


def test_a_refused_apply_changes_nothing(shop: Repo) -> None:
    """A bad policy is refused before anything is applied; the next good one applies only itself."""
    before = (shop.folder / "registry.db").read_bytes()
    bad = shop.view("profile", {"age": String}, tags={"hotplate.ttll": "5s"})
    other = shop.view("more", {"x": Int64})
    for _ in range(2):
        with pytest.raises(PolicyError, match="group 'profile': ttll: is not a setting"):
            shop.hot.apply([bad, other])
    assert (shop.folder / "registry.db").read_bytes() == before
    assert [view.name for view in shop.open_bare().list_feature_views()] == ["profile", "counts"]
    assert_same(shop, ["profile:age"], USERS)
    add(shop, shop.view("late", {"x": Int64}))
    names = {view.name: view.tags for view in shop.open_bare().list_feature_views()}
    assert names == {"profile": {}, "counts": {}, "late": {}}
    assert_same(shop, ["profile:age", "late:x"], USERS)


def test_views_of_one_group_applied_one_by_one(make_repo: RepoMaker) -> None:
    """A contradiction that no single `apply` shows is answered uncached, and reported."""
    repo = make_repo(ttl_map={})
    tags = {"hotplate.group": "users"}
    repo.apply(USER, repo.view("v", {"x": Int64}, tags={**tags, "hotplate.ttl": "5s"}))
    repo.apply(repo.view("w", {"y": Int64}, tags={**tags, "hotplate.ttl": "9s"}))
    for number in (1, 2):
        repo.write("v", event_time=[day(number)], user_id=[1], x=[number])
        assert_same(repo, ["v:x", "w:y"], USERS)
    assert repo.cache.stats().entries == 0
    with pytest.raises(PolicyError, match=r"view 'v' says 5s.*view 'w' of the same group says 9s"):
        repo.cache.policies()


def test_plan(make_repo: RepoMaker) -> None:
    """`feast plan` shows what the bare store would show."""
    repo = make_repo()
    view = repo.view("v", {"age": Int64})
    contents = RepoContents(
        projects=[Project(name=repo.project)],
        data_sources=[view.stream_source, view.batch_source],
        entities=[USER],
        feature_views=[view],
        feature_services=[],
        on_demand_feature_views=[],
        stream_feature_views=[],
        label_views=[],
        permissions=[],
    )

    def shown(store: FeatureStore) -> tuple[str, str, Any]:
        registry, infra, wanted = store.plan(contents)
        return registry.to_string(), infra.to_string(), wanted.to_proto()

    assert shown(repo.hot) == shown(repo.bare)
    assert "Created feature view" in shown(repo.hot)[0]


def test_teardown(shop: Repo) -> None:
    """After it both stores refuse alike, and a repo applied anew starts empty."""
    views = [shop.hot.get_feature_view(name) for name in ("profile", "counts")]
    assert_same(shop, ["profile:age"], USERS)
    shop.hot.teardown()
    shop.bare = shop.open_bare()
    assert assert_same(shop, ["profile:age"], USERS)[0].__name__ == "FeatureViewNotFoundException"
    shop.hot = shop.open_hot()  # Feast's SQLite store keeps the file that it removed
    add(shop, USER, *views)
    assert assert_same(shop, ["profile:age"], USERS)[0]["age"] == [None] * 4
    put(shop, "profile", user_id=[1], age=[5], score=[0.5])
    assert assert_same(shop, ["profile:age"], USERS)[0]["age"] == [5, None, None, 5]


@pytest.mark.parametrize("online", ["redis"], indirect=True)
def test_several_projects_in_one_redis(make_repo: RepoMaker) -> None:
    """Equal views and users of two projects stay apart, through writes and one teardown."""
    repos = [make_repo(), make_repo()]
    for number, repo in enumerate(repos):
        repo.apply(USER, repo.view("v", {"age": Int64}))
        put(repo, "v", user_id=[1], age=[number])
    for turn in (1, 2):
        for number, repo in enumerate(repos):
            expected = number + (turn - 1) * 10
            assert assert_same(repo, ["v:age"], ONE)[0]["age"] == [expected]
            put(repo, "v", day(turn), user_id=[1], age=[number + turn * 10])
    repos[0].hot.teardown()
    assert assert_same(repos[1], ["v:age"], ONE)[0]["age"] == [21]
    assert repos[1].cache.stats().entries == 1


def test_two_stores_with_policies_of_their_own(shop: Repo) -> None:
    """A second object over the same repo keeps to its own ttl_map and sees every write."""
    other = shop.open_hot(ttl_map={"default": "0s"})
    for number in (1, 2):
        assert_same(shop, ["profile:age"], USERS)
        put(shop, "profile", day(number), user_id=[1], age=[number], score=[0.5])
        assert answers(other, ["profile:age"], USERS) == answers(shop.hot, ["profile:age"], USERS)
    assert hotplate.of(other).stats().entries == 0
    assert shop.cache.stats().entries == 3


# -- registries ----------------------------------------------------------------------------------


def registry_of(folder: Path, kind: str, ttl_s: int) -> Mapping[str, Any]:
    """Settings of a registry in a file or in a database."""
    if kind == "file":
        return {"cache_ttl_seconds": ttl_s}
    path = f"sqlite:///{folder / 'registry.sqlite'}"
    return {"registry_type": "sql", "path": path, "cache_ttl_seconds": ttl_s}


def on_real_time(repo: Repo, kind: str) -> FeatureStore:
    """A store of its own, as another process has it; Feast's registries use the real clock."""
    if kind == "bare":
        return repo.open_bare()
    settings = {"type": CACHED, "store": dict(repo.online), "ttl_map": {"default": "1h"}}
    return FeatureStore(config=repo._config(settings))


def observations(repo: Repo, kind: str, service: FeatureService) -> list[Any]:
    """What one store answers between the steps of a change that another one applies."""
    store, other = on_real_time(repo, kind), repo.open_bare()
    seen: list[Any] = []

    def look() -> None:
        for features in (["v:age"], ["v:age", "v:city"], service):
            answer = answers(store, features, ONE)
            seen.append(answer[0] if isinstance(answer[0], dict) else answer)

    look()
    other.apply([repo.view("v", {"age": Int64, "city": String})])
    look()
    other.apply([FeatureService(name="fs", features=["w:size"])])
    look()
    answers(store, ["w:size"], ONE)  # a request that is new to Feast looks at a registry file
    look()
    store.refresh_registry()
    look()
    other.delete_feature_view("v")
    look()
    store.refresh_registry()
    look()
    return seen


@pytest.mark.parametrize(("registry", "ttl_s"), [("file", 0), ("file", 600), ("sql", 600)])
def test_a_change_applied_elsewhere_is_seen_when_feast_sees_it(
    tmp_path: Path, registry: str, ttl_s: int
) -> None:
    """Plans are as old as Feast's own resolution of a request, and never older."""
    seen = []
    for kind in ("bare", "hot"):
        folder = tmp_path / kind
        repo = Repo(folder, {"type": "sqlite"}, registry=registry_of(folder, registry, ttl_s))
        service = FeatureService(name="fs", features=["v:age"])
        views = repo.view("v", {"age": Int64}), repo.view("w", {"size": Float64})
        repo.apply(USER, *views, service)
        put(repo, "v", user_id=[1], age=[1])
        put(repo, "w", user_id=[1], size=[0.5])
        seen.append(observations(repo, kind, service))
    assert seen[1] == seen[0]
    assert seen[0][0] != seen[0][-3]  # the last change is visible in the end


@pytest.mark.parametrize("registry", ["file", "sql"])
def test_a_change_is_seen_once_the_registry_cache_expires(tmp_path: Path, registry: str) -> None:
    """With a registry ttl of a second nobody needs to refresh, and rows stay cached over it."""
    settings = registry_of(tmp_path, registry, 1)
    repo = Repo(tmp_path, {"type": "sqlite"}, registry=settings)
    repo.apply(USER, repo.view("v", {"age": Int64}), repo.view("w", {"size": Float64}))
    put(repo, "v", user_id=[1], age=[1])
    for kind, name in (("bare", "w"), ("hot", "v")):
        store = on_real_time(repo, kind)
        features = [f"{name}:{'age' if name == 'v' else 'size'}"]
        before = answers(store, features, ONE)
        if kind == "hot":
            created = store.registry.cached_registry_proto_created
            await_(lambda s=store, c=created: reads_registry(s) != c)  # type: ignore[misc]
            assert answers(store, features, ONE) == before
            assert hotplate.of(store).stats().groups[name].loads == 1
        repo.open_bare().delete_feature_view(name)
        await_(lambda s=store, f=features, b=before: answers(s, f, ONE) != b)  # type: ignore[misc]
        assert answers(store, features, ONE)[0].__name__ == "FeatureViewNotFoundException"


def reads_registry(store: FeatureStore) -> Any:
    """When the registry that answers reads was fetched, after one read."""
    answers(store, ["v:age"], ONE)
    return store.registry.cached_registry_proto_created


def await_(is_so: Callable[[], bool]) -> None:
    """Poll until something is so, up to a deadline."""
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("online", ["redis"], indirect=True)
def test_what_a_sql_registry_keeps_of_a_refused_apply(make_repo: RepoMaker, tmp_path: Path) -> None:
    """Feast writes to a SQL registry before it asks the store; such a view is read uncached."""
    repo = make_repo(registry=registry_of(tmp_path, "sql", 600))
    repo.apply(USER, repo.view("v", {"age": Int64}))
    with pytest.raises(PolicyError, match="group 'w': ttll: is not a setting"):
        repo.hot.apply([repo.view("w", {"x": Int64}, tags={"hotplate.ttll": "5s"})])
    repo.hot.refresh_registry()
    repo.bare.refresh_registry()
    put(repo, "v", user_id=[1], age=[1])
    for number in (1, 2):
        repo.write("w", event_time=[day(number)], user_id=[1], x=[number])
        assert assert_same(repo, ["v:age", "w:x"], ONE)[0]["x"] == [number]
    assert repo.cache.stats().groups["w"].entries == 0
