"""Promise 5 for every kind of view: on-demand, entity-less, stream, versioned, closed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from feast import (
    BatchFeatureView,
    FeatureService,
    FeatureView,
    Field,
    StreamFeatureView,
)
from feast.feature_view import FeatureViewState
from feast.labeling.label_view import LabelView
from feast.on_demand_feature_view import OnDemandFeatureView, on_demand_feature_view
from feast.types import Float64, Int64, String

from hotplate import PolicyError

from ..conftest import settings_of
from ..stores import USER, Repo, answers, assert_same, frame_of
from .shop import DAY_0, ONE, USERS, VERSIONED, RepoMaker, add, day, put, transforms

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{kind} feature view.*experimental:RuntimeWarning")
    for kind in ("On demand", "Stream", "Batch")
]


# -- on-demand views -----------------------------------------------------------------------------


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
    with pytest.raises(PolicyError, match=r"'labels'.*ttl: 'soon' is not a duration"):
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
