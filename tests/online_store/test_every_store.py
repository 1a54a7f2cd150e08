"""The core promises once on every store that can be had here, and on one with odd habits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from feast import Entity, FeatureStore
from feast.errors import VersionedOnlineReadNotSupported
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Float32, Float64, Int64, String

from ..conftest import settings_of
from ..stores import MERCHANT, USER, Repo, answers, assert_same, frame_of, message_of

ODD = "tests.online_store.odd_store.OddOnlineStore"
DAY_0 = datetime(2026, 1, 1, tzinfo=UTC)
USERS = [{"user_id": user} for user in (1, 2, 9, 1)]
PAIRS = {"user_id": [1, 1, 2, 9], "merchant_id": ["a", "b", "a", "zz"]}

_numbers = itertools.count()


def odd(**settings: Any) -> dict[str, Any]:
    """Settings of the odd store over a database of its own."""
    return {"type": ODD, "database": f"db{next(_numbers)}", **settings}


def hybrid(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    """Settings of Feast's store that sends views to SQLite or Redis by a tag."""
    redis = settings_of(request, "redis")
    redis.pop("type")
    return {
        "type": "hybrid",
        "routing_tag": "team",
        "online_stores": [
            {"type": "sqlite", "conf": {"path": str(folder / "hybrid.db")}},
            {"type": "redis", "conf": redis},
        ],
    }


STORES = [
    "sqlite",
    "redis",
    "valkey",
    "postgres",
    "postgres_pool",
    "redis_cluster",
    "hybrid",
    "odd_nothing",
    "odd_unset",
    "odd_empty",
    "odd_time_only",
    "odd_epoch",
]


def settings_for(request: pytest.FixtureRequest, kind: str, folder: Path) -> dict[str, Any]:
    """Settings of one of `STORES`, its servers started if it needs any."""
    if kind == "redis_cluster":
        return dict(request.getfixturevalue("redis_cluster").settings)
    if kind == "hybrid":
        return hybrid(request, folder)
    if kind == "odd_epoch":
        return odd(unknown="unset", is_epoch=True)
    if kind.startswith("odd_"):
        return odd(unknown=kind.removeprefix("odd_"))
    if kind.startswith("postgres"):
        settings = {**settings_of(request, "postgres"), "sslmode": "disable"}
        return {**settings, "conn_type": "pool"} if kind == "postgres_pool" else settings
    return settings_of(request, kind)


@pytest.fixture(params=STORES)
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Repo]:
    """Three views with data over one of the stores."""
    online = settings_for(request, request.param, tmp_path)
    policy = {"ttl": "30s", "negative_ttl": "5s", "jitter": 0}
    made = Repo(
        tmp_path / "repo", online, project=f"every{next(_numbers)}", ttl_map={"default": policy}
    )
    views = [
        made.view("profile", {"age": Int64, "city": String}, tags={"team": "sqlite"}),
        made.view("counts", {"n1": Float32, "n2": Float64}, tags={"team": "redis"}),
        made.view("pairs", {"seen": Int64}, (USER, MERCHANT), tags={"team": "redis"}),
    ]
    for view in views:  # one by one: Feast's hybrid store applies no two at once
        made.apply(USER, MERCHANT, view)
    made.write("profile", user_id=[1, 2, 3], age=[10, 20, None], city=["x", None, ""])
    made.write("counts", user_id=[1, 2], n1=[0.1, -0.0], n2=[None, 1e308])
    made.write("pairs", user_id=[1, 1], merchant_id=["a", "b"], seen=[3, 4])
    yield made
    for store in (made.bare, made.hot):
        asyncio.run(close(store))


REQUESTS: list[tuple[list[str], Any]] = [
    (["profile:age"], USERS),
    (["profile:city"], USERS),  # another column of rows that are in memory
    (["profile:age", "profile:city", "counts:n1", "counts:n2"], USERS),
    (["counts:n2", "profile:age"], [{"user_id": 3}]),
    (["pairs:seen", "profile:age", "counts:n1"], PAIRS),
    (["pairs:seen"], {"merchant_id": ["a"], "user_id": [1]}),
    (["profile:age"], [{"user_id": "1"}, {"user_id": 2.0}]),
    (["profile:nope"], USERS),
    (["profile:age"], [{"user_id": None}]),
]


@pytest.mark.parametrize("with_metadata", [False, True], ids=["plan", "feast_path"])
def test_same_answers(repo: Repo, with_metadata: bool) -> None:
    """Known and unknown entities, nulls, duplicates and composite keys, on a miss and on a hit."""
    for features, entities in REQUESTS:
        asked = list(features)
        for is_full in (False, True):
            assert_same(
                repo,
                asked,
                entities,
                full_feature_names=is_full,
                include_feature_view_version_metadata=with_metadata,
            )
        assert asked == features
    assert_same(repo, [feature for features, _ in REQUESTS[2:5:2] for feature in features], PAIRS)


def test_online_read(repo: Repo) -> None:
    """The store's own read gives the requested features only, in order, miss and hit."""
    table = repo.hot.get_feature_view("profile")
    keys = [
        EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=user)])
        for user in (2, 9, 1, 3)
    ]
    bare, hot = (store._get_provider().online_store for store in (repo.bare, repo.hot))
    expected = bare.online_read(repo.bare.config, table, keys, ["age"])
    for _ in range(2):
        asked = ["age"]
        got = hot.online_read(repo.hot.config, table, keys, asked)
        assert asked == ["age"]
        assert [read_as(*row) for row in got] == [read_as(*row) for row in expected]
        assert all(not values or set(values) == {"age"} for _, values in got)


def read_as(moment: datetime | None, values: dict[str, Any] | None) -> tuple[Any, Any]:
    """A row as Feast takes it: a naive time is UTC, no values and no row are the same."""
    aware = moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
    return aware, (values or {}).get("age")


def test_a_second_read_asks_nobody_until_the_ttl_is_over(repo: Repo) -> None:
    """Rows are served for their ttl, absences for theirs, and then read again."""
    features = ["profile:age", "counts:n1"]

    def loads() -> tuple[int, int]:
        answers(repo.hot, features, USERS)
        groups = repo.cache.stats().groups
        return groups["profile"].loads, groups["counts"].loads

    assert loads() == loads() == (3, 3)  # users 1, 2 and the unknown 9
    row = {"user_id": [1], "event_time": [DAY_0 + timedelta(days=1)]}
    repo.write("profile", age=[11], city=["y"], **row)
    before = answers(repo.hot, features, USERS)
    repo.clock.advance(30)
    assert answers(repo.hot, features, USERS[:1])[0]["age"] == before[0]["age"][:1]
    repo.clock.advance(0.001)
    assert assert_same(repo, features, USERS)[0]["age"][0] == 11


def test_a_push_is_seen_at_once(repo: Repo) -> None:
    """New values of known entities and the first values of an unknown one, in each view."""
    features = ["profile:age", "counts:n1", "pairs:seen"]
    assert_same(repo, features, PAIRS)
    for number in (1, 2):
        moment = [DAY_0 + timedelta(days=number)]
        for user in (1, 9):
            row = {"user_id": [user], "event_time": moment}
            repo.hot.push("profile_push", frame_of(age=[number], city=["z"], **row))
            repo.hot.push("counts_push", frame_of(n1=[number / 2], n2=[0.5], **row))
        pair = {"user_id": [9], "merchant_id": ["zz"], "event_time": moment}
        repo.hot.push("pairs_push", frame_of(seen=[number], **pair))
        got = assert_same(repo, features, PAIRS)[0]
        assert got["age"] == [number, number, 20, number]
        assert got["seen"] == [3, 4, None, number]


def test_materialize_is_seen_at_once(repo: Repo) -> None:
    """Rows of the batch source replace what was read before."""
    assert_same(repo, ["counts:n1"], USERS)
    day = DAY_0 + timedelta(days=1)
    rows = frame_of(user_id=[1, 9], n1=[7.0, 8.0], n2=[1.0, 2.0], event_time=[day] * 2)
    rows.to_parquet(repo.folder / "counts.parquet")
    repo.hot.materialize(DAY_0, day + timedelta(days=1), feature_views=["counts"])
    got = assert_same(repo, ["counts:n1"], USERS)[0]["n1"]
    assert (got[0], got[2]) == (7.0, 8.0)


def test_async_reads(repo: Repo) -> None:
    """On an event loop the answers are those of the bare store, its refusal included."""
    asked: list[tuple[list[str], Any]] = [
        (["profile:age", "counts:n1"], USERS),
        (["pairs:seen", "profile:city"], PAIRS),
        (["profile:nope"], USERS),
    ]

    async def read(store: FeatureStore) -> list[Any]:
        try:
            return [await async_answer(store, *request) for request in asked for _ in range(2)]
        finally:
            await close(store)

    expected = asyncio.run(read(repo.bare))
    for _ in range(2):  # each run has an event loop of its own
        assert asyncio.run(read(repo.hot)) == expected


async def async_answer(store: FeatureStore, features: list[str], entities: Any) -> Any:
    """Everything a response says, or the error's type and text."""
    try:
        response = await store.get_online_features_async(features, entities)
        return response.to_dict(include_event_timestamps=True), message_of(response)
    except Exception as error:  # noqa: BLE001 - the error is the answer
        return type(error), str(error)


async def close(store: FeatureStore) -> None:
    """Close a store, and the connections that Feast's stores leave open."""
    online = store._get_provider().online_store
    stores = [online]
    if hasattr(online, "runtime"):
        wrapped = online.runtime(store.config).wrapped
        stores = [wrapped.store(), *wrapped._by_loop.values()]
    opened = [
        connection
        for each in stores
        for name in ("_conn", "_conn_pool", "_conn_async", "_conn_pool_async", "_client_async")
        if (connection := getattr(each, name, None)) is not None
    ]
    await store.close()
    for connection in opened:
        closing = (connection.aclose if hasattr(connection, "aclose") else connection.close)()
        if closing is not None:
            await closing


@pytest.mark.parametrize("kind", ["postgres", "postgres_pool"])
def test_close_closes_postgres_connections(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """No connection outlives `close()`: Feast's Postgres store has no close of its own."""
    online = settings_for(request, kind, tmp_path)
    repo = Repo(tmp_path, online, project=f"every{next(_numbers)}")
    repo.apply(USER, repo.view("v", {"age": Int64}))
    assert_same(repo, ["v:age"], USERS)
    wrapped = repo.cache.runtime.wrapped.store()
    asyncio.run(repo.hot.close())
    opened = wrapped._conn_pool or wrapped._conn
    was_closed = opened.closed
    for connection in (opened, repo.bare._get_provider().online_store._conn):
        if connection is not None:
            connection.close()
    asyncio.run(close(repo.bare))
    assert was_closed


# -- the odd store by itself ---------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["one_less", "one_more"])
@pytest.mark.parametrize("with_metadata", [False, True], ids=["plan", "feast_path"])
def test_a_wrong_number_of_rows_is_refused(tmp_path: Path, rows: str, with_metadata: bool) -> None:
    """A store that answers too few or too many rows is named, and nothing of it is kept."""
    repo = Repo(tmp_path, odd(rows=rows))
    repo.apply(USER, repo.view("v", {"age": Int64}))
    repo.write("v", user_id=[1, 2], age=[10, 20])
    for count in (1, 2):
        wrong = 1 if rows == "one_less" else 3
        message = f"returned {wrong} rows of feature view 'v' for 2 entities"
        with pytest.raises(RuntimeError, match=message):
            repo.hot.get_online_features(
                ["v:age"],
                USERS[:2],
                include_feature_view_version_metadata=with_metadata,
            )
        assert repo.cache.stats().entries == 0
        assert repo.cache.stats().groups["v"].load_errors == 2 * count


def test_the_odd_store_keeps_its_habits_through_the_cache(tmp_path: Path) -> None:
    """Dropped views, teardown and other projects of one database are as over the bare store."""
    settings = odd()
    repos = [Repo(tmp_path / name, settings, project=name) for name in ("a", "b")]
    for repo in repos:
        repo.apply(USER, repo.view("v", {"age": Int64}), repo.view("w", {"size": Float64}))
        repo.write("v", repo.hot, user_id=[1], age=[10])
        assert_same(repo, ["v:age", "w:size"], USERS)
    first, second = repos
    gone = first.hot.get_feature_view("v")
    first.hot.apply([first.view("w", {"size": Float64})], objects_to_delete=[gone], partial=False)
    first.apply(first.view("v", {"age": Int64}))
    assert assert_same(first, ["v:age"], USERS)[0]["age"] == [None] * 4
    first.hot.teardown()
    assert assert_same(second, ["v:age"], USERS)[0]["age"][0] == 10


def versioned(tmp_path: Path) -> Repo:
    """A view in two versions over a store that keeps none."""
    registry = {"enable_online_feature_view_versioning": True}
    repo = Repo(tmp_path, odd(), registry=registry)
    repo.apply(USER, repo.view("v", {"age": Int64}))
    repo.apply(repo.view("v", {"age": Int64, "city": String}))
    repo.write("v", user_id=[1], age=[10], city=["x"])
    return repo


def test_versions_over_a_store_that_keeps_none(tmp_path: Path) -> None:
    """The wrapped store's own refusal, naming it; the latest version is served."""
    repo = versioned(tmp_path)
    assert_same(repo, ["v:age", "v:city"], USERS)
    for with_metadata in (True, False):
        for entities in (USERS, [{"user_id": 1}, {}]):
            asked = {"include_feature_view_version_metadata": with_metadata}
            expected = answers(repo.bare, ["v@v0:age"], entities, **asked)
            assert expected[0] is VersionedOnlineReadNotSupported
            assert "OddOnlineStore" in expected[1]
            assert answers(repo.open_hot(), ["v@v0:age"], entities, **asked) == expected


def test_versions_over_a_store_that_keeps_none_are_refused_every_time(tmp_path: Path) -> None:
    """The second read of a version is refused like the first."""
    repo = versioned(tmp_path)
    assert_same(repo, ["v@v0:age"], USERS)


def test_the_matrix_reader_refuses_them_every_time(tmp_path: Path) -> None:
    """The same for the direct reader, when it is made."""
    cache = versioned(tmp_path).cache
    for _ in range(2):
        with pytest.raises(VersionedOnlineReadNotSupported):
            cache.reader(["v@v0:age"])


@pytest.mark.filterwarnings("ignore:Entity value_type will be mandatory:DeprecationWarning")
def test_a_store_of_a_third_party_is_named_by_its_path(tmp_path: Path) -> None:
    """Nothing of the wrapped store is registered anywhere, and no entity needs a declared type."""
    repo = Repo(tmp_path, odd())
    card = Entity(name="card", join_keys=["card_id"])
    assert repr(repo.hot._get_provider().online_store) == "CachedOnlineStore(not used yet)"
    frame_of(card_id=["c"], age=[1]).to_parquet(repo.folder / "v.parquet")
    repo.apply(card, repo.view("v", {"age": Int64}, entities=(card,)))
    assert repr(repo.hot._get_provider().online_store).startswith(f"CachedOnlineStore({ODD}, ")
    repo.write("v", repo.hot, card_id=["c"], age=[5])
    assert assert_same(repo, ["v:age"], {"card_id": ["c", "d"]})[0]["age"] == [5, None]
