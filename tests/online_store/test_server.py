"""Promise 5 where most requests come from: Feast's own server, and its calls on an event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from feast import FeatureStore
from feast.feature_server_utils import convert_response_to_dict

import hotplate

from ..conftest import settings_of
from ..served import Server, by_column, fill, serving
from ..stores import Repo, answers, assert_same, frame_of, message_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:On demand feature view.*experimental:RuntimeWarning"
)

PLUGINS = str(Path(hotplate.__file__).parents[1])
DAY_0 = datetime(2026, 1, 1, tzinfo=UTC)
ONE = [{"user_id": 1}]


@pytest.fixture(scope="module", autouse=True)
def starting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Server]]:
    """A server around each of two stores, which start while other tests run."""
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(
                serving(tmp_path_factory.mktemp(kind), settings_of(request, kind))
            )
            for kind in ("sqlite", "redis")
        }


@pytest.fixture
def servers(starting: dict[str, Server]) -> dict[str, Server]:
    """The servers, once they answer."""
    for server in starting.values():
        server.await_health()
    return starting


@pytest.fixture(params=["sqlite", "redis"])
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    """Each of the servers."""
    return servers[request.param]


# -- on an event loop ----------------------------------------------------------------------------


@pytest.fixture(params=["redis", "postgres"])
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Repo]:
    """The same data over each store that Feast reads asynchronously."""
    online = settings_of(request, request.param)
    if request.param == "postgres":
        online["sslmode"] = "disable"
    made = Repo(tmp_path / "repo", online, project=f"async{request.param}{tmp_path.name}")
    fill(made)
    yield made
    for store in (made.bare, made.hot):
        asyncio.run(closed(nothing())(store))


async def nothing() -> None:
    """A call that does nothing."""


REQUESTS: list[tuple[Any, Any, dict[str, Any]]] = [
    (["profile:age"], ONE, {}),
    (["profile:age", "profile:score", "profile:city"], {"user_id": [2, 1, 9, 2]}, {}),
    (["pairs:seen", "profile:age"], [{"user_id": 1, "merchant_id": "a"}], {}),
    (["profile:city"], ONE, {"full_feature_names": True}),
    (["profile:city"], ONE, {"include_feature_view_version_metadata": True}),
    ("fs", [{"user_id": 1}, {"user_id": 9}], {}),
    (["shared:share", "profile:age"], [{"user_id": 1, "amount": 5.0}], {}),
    (["profile:age"], [{"user_id": "1"}], {}),
    (["profile:age"], [{"user_id": None}], {}),
    (["profile:nope"], ONE, {}),
    (["nope:x"], ONE, {}),
    (["profile:age"], [], {}),
    (["profile:age"], [{}], {}),
    (["pairs:seen"], ONE, {}),
]


def closed(call: Coroutine[Any, Any, Any]) -> Callable[[FeatureStore], Coroutine[Any, Any, Any]]:
    """A call, then the end of every connection, those that Feast's stores leave open included."""

    async def run(store: FeatureStore) -> Any:
        online = store._get_provider().online_store
        try:
            return await call
        finally:
            stores = [online]
            if hasattr(online, "runtime"):
                wrapped = online.runtime(store.config).wrapped
                stores = [wrapped.store(), *wrapped._by_loop.values()]
            opened = [
                connection
                for each in stores
                for name in ("_conn", "_conn_async", "_client_async")
                if (connection := getattr(each, name, None)) is not None
            ]
            await store.close()
            await store.close()  # again: nothing happens
            for connection in opened:
                closing = getattr(connection, "aclose", connection.close)()
                if closing is not None:
                    await closing

    return run


async def read_all(store: FeatureStore, times: int) -> list[Any]:
    """The answer to each request, or the error's type and text, after each other."""
    return [
        await async_answer(store, *request)
        for features, entities, options in REQUESTS
        for request in [(features, entities, options)] * times
    ]


async def async_answer(store: FeatureStore, features: Any, entities: Any, options: Any) -> Any:
    """Everything a response says, or the error's type and text."""
    try:
        asked = store.get_feature_service(features) if isinstance(features, str) else features
        response = await store.get_online_features_async(asked, entities, **options)
        as_dict, with_times = response.to_dict(), response.to_dict(include_event_timestamps=True)
        return as_dict, with_times, list(as_dict), message_of(response)
    except Exception as error:  # noqa: BLE001 - the error is the answer
        return type(error), str(error)


def test_async_answers(repo: Repo) -> None:
    """Async, sync and bare are one: on a miss, on a hit, and on a second event loop."""
    expected = []
    for features, entities, options in REQUESTS:
        asked = repo.bare.get_feature_service(features) if isinstance(features, str) else features
        expected += [answers(repo.bare, asked, entities, **options)] * 2
    for store in (repo.bare, repo.hot, repo.hot, repo.open_hot()):
        got = asyncio.run(closed(read_all(store, 2))(store))
        assert got == expected
    for (features, entities, options), answer in zip(REQUESTS, expected[::2], strict=True):
        asked = repo.hot.get_feature_service(features) if isinstance(features, str) else features
        assert answers(repo.hot, asked, entities, **options) == answer


def test_many_async_readers_at_once(repo: Repo) -> None:
    """Fifty tasks that miss on the same rows get the bare answer, from one load a row."""
    features = ["profile:age", "pairs:seen"]
    entities = {"user_id": [1, 2, 9], "merchant_id": ["a", "b", "c"]}
    expected = answers(repo.bare, features, entities)

    async def many() -> list[Any]:
        calls = (async_answer(repo.hot, features, entities, {}) for _ in range(50))
        return await asyncio.gather(*calls)

    got = asyncio.run(closed(many())(repo.hot))
    assert got == [expected] * 50
    groups = repo.cache.stats().groups
    assert (groups["profile"].loads, groups["pairs"].loads) == (3, 3)


def test_an_async_write_is_seen_by_sync_and_async_reads(repo: Repo) -> None:
    """What `push_async` returned from is what every later read gives, where Feast can push so."""
    features = ["profile:age"]
    assert_same(repo, features, ONE)
    row = {"user_id": [1], "age": [99], "score": [0.5], "city": ["z"]}
    frame = frame_of(**row, event_time=[DAY_0 + timedelta(days=1)])

    async def push_and_read(store: FeatureStore) -> Any:
        await store.push_async("profile_push", frame)
        return await async_answer(store, features, ONE, {})

    can_write = repo.bare._get_provider().async_supported.online.write
    assert repo.hot._get_provider().async_supported.online.write == can_write
    if not can_write:
        for store in (repo.bare, repo.hot):
            with pytest.raises(NotImplementedError, match="does not support online write batch"):
                asyncio.run(closed(push_and_read(store))(store))
        return
    got = asyncio.run(closed(push_and_read(repo.hot))(repo.hot))
    assert got[0]["age"] == [99]
    assert assert_same(repo, features, ONE)[0]["age"] == [99]


def test_async_support_is_the_wrapped_stores(repo: Repo) -> None:
    """The server asks the store whether to await it; `initialize` makes the answer known."""
    supported = repo.bare._get_provider().async_supported
    store = repo.open_hot()

    async def start() -> Any:
        await store.initialize()
        return store._get_provider().async_supported

    assert asyncio.run(closed(start())(store)) == supported


def test_close_before_any_use(repo: Repo) -> None:
    """Closing a store that was never used opens nothing and does not fail."""
    store = repo.open_hot()

    async def twice() -> None:
        await store.close()
        await store.close()

    asyncio.run(twice())
    assert repr(store._get_provider().online_store) == "CachedOnlineStore(not used yet)"


# -- requests to the servers ----------------------------------------------------------------------

BODIES: list[dict[str, Any]] = [
    {"features": ["profile:age"], "entities": {"user_id": [1]}},
    {"features": ["profile:age", "profile:score", "profile:city"], "entities": {"user_id": [2]}},
    {"features": ["profile:age", "profile:score"], "entities": {"user_id": [1, 9, 2, 1]}},
    {"features": ["profile:age"], "entities": {"user_id": ["1", 2.0]}},
    {
        "features": ["pairs:seen", "profile:score"],
        "entities": {"merchant_id": ["b", "zz"], "user_id": [1, 1]},
        "full_feature_names": True,
    },
    {"feature_service": "fs", "entities": {"user_id": [1, 9]}},
    {"feature_service": "fs", "entities": {"user_id": [1]}, "full_feature_names": True},
    {"features": ["shared:share"], "entities": {"user_id": [1, 2], "amount": [5.0, 7.0]}},
    {
        "features": ["profile:age", "pairs:seen"],
        "entities": {"user_id": [1], "merchant_id": ["a"]},
        "include_feature_view_version_metadata": True,
    },
]


def test_the_server_answers_as_the_bare_store(server: Server) -> None:
    """JSON of every kind of request, first from the store and then from memory."""
    bare = server.repo.bare
    for body in BODIES:
        asked = {key: value for key, value in body.items() if key != "feature_service"}
        features = (
            bare.get_feature_service(body["feature_service"])
            if "feature_service" in body
            else asked.pop("features")
        )
        response = bare.get_online_features(features, asked.pop("entities"), **asked)
        expected = by_column(json.loads(json.dumps(convert_response_to_dict(response.proto))))
        for _ in range(2):
            assert server.read(**body) == expected


def test_the_server_refuses_what_feast_refuses(server: Server) -> None:
    """Wrong requests are answered with an error, again and again, and harm no later one."""
    wrong = [
        {"features": ["nope:x"], "entities": {"user_id": [1]}},
        {"features": ["profile:nope"], "entities": {"user_id": [1]}},
        {"features": ["profile:age"], "entities": {"user_id": [None]}},
        {"features": ["profile:age"], "entities": {"user_id": ["x"]}},
        {"feature_service": "nope", "entities": {"user_id": [1]}},
    ]
    for body in wrong:
        for _ in range(2):
            assert server.post("/get-online-features", body)[0] >= 400
    got = server.read(features=["profile:score"], entities={"user_id": [1]})
    assert got["score"]["values"] == [0.1]


def test_a_push_to_the_server_is_read_at_once(server: Server) -> None:
    """`/push` and `/write-to-online-store` return, and the next request gives the new value."""
    body = {"features": ["profile:age"], "entities": {"user_id": [7]}}
    assert server.read(**body)["age"]["values"] == [None]
    for number in (1, 2):
        moment = str(DAY_0 + timedelta(days=number))
        row = {"user_id": [7], "age": [number], "score": [0.5], "city": ["z"]}
        frame = {**row, "event_time": [moment]}
        pushed = {"push_source_name": "profile_push", "df": frame, "to": "online"}
        assert server.post("/push", pushed)[0] == 200
        assert server.read(**body)["age"]["values"] == [number]
        written = {"feature_view_name": "pairs", "df": pair(number, moment)}
        assert server.post("/write-to-online-store", written)[0] == 200
        entities = {"user_id": [7], "merchant_id": ["m"]}
        assert server.read(features=["pairs:seen"], entities=entities)["seen"]["values"] == [number]
    bare = answers(server.repo.bare, ["profile:age"], [{"user_id": 7}])[0]
    assert bare["age"] == [2]


def pair(seen: int, moment: str) -> dict[str, list[Any]]:
    """A row of the view of pairs."""
    return {"user_id": [7], "merchant_id": ["m"], "seen": [seen], "event_time": [moment]}


def over_remote(server: Server, folder: Path) -> Repo:
    """Hotplate around Feast's remote store, which asks the server, and that store bare."""
    registry = {"path": str(server.repo.folder / "registry.db")}
    online = {"type": "remote", "path": server.url}
    return Repo(folder, online, project=server.repo.project, registry=registry)


PROFILES = ["profile:age", "profile:score", "profile:city"]


def test_hotplate_around_a_remote_server(servers: dict[str, Server], tmp_path: Path) -> None:
    """Feast's remote store answers whole requests: each goes straight to it, and is counted."""
    repo = over_remote(servers["sqlite"], tmp_path)

    def values(store: FeatureStore, entities: Any) -> Any:
        return store.get_online_features(PROFILES, entities).to_dict()

    users = [{"user_id": user} for user in (1, 2, 99, 1)]
    assert values(repo.hot, users) == values(repo.hot, users) == values(repo.bare, users)
    assert repo.cache.stats().requests_passed["whole"] == 2
    for number in (1, 2):
        row = {"user_id": [70], "age": [number], "score": [0.5], "city": ["z"]}
        frame = {**row, "event_time": [str(DAY_0 + timedelta(days=number))]}
        pushed = {"push_source_name": "profile_push", "df": frame, "to": "online"}
        assert servers["sqlite"].post("/push", pushed)[0] == 200
        repo.cache.invalidate("profile", {"user_id": 70})
        assert values(repo.hot, [{"user_id": 70}])["age"] == [number]


def test_statuses_over_a_remote_server(servers: dict[str, Server], tmp_path: Path) -> None:
    """An unknown user is NOT_FOUND, and no user has the event time of another one."""
    repo = over_remote(servers["sqlite"], tmp_path)
    assert_same(repo, PROFILES, [{"user_id": user} for user in (1, 2, 99, 1)])
