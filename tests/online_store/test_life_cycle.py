"""Promise 5 over the life of a repo: what Feast can write, change and take away."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from feast import (
    FeatureService,
    FeatureStore,
    Project,
)
from feast.data_source import PushMode
from feast.repo_contents import RepoContents
from feast.types import Float64, Int64, String

import hotplate
from hotplate import PolicyError

from ..stores import CACHED, USER, Repo, answers, assert_same, frame_of
from .shop import DAY_0, ONE, USERS, RepoMaker, add, day, put, transforms

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{kind} feature view.*experimental:RuntimeWarning")
    for kind in ("On demand", "Stream", "Batch")
]


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
        with pytest.raises(PolicyError, match="ttll: is not a setting"):
            shop.hot.apply([bad, other])
    assert (shop.folder / "registry.db").read_bytes() == before
    assert [view.name for view in shop.open_bare().list_feature_views()] == ["profile", "counts"]
    assert_same(shop, ["profile:age"], USERS)
    add(shop, shop.view("late", {"x": Int64}))
    names = {view.name: view.tags for view in shop.open_bare().list_feature_views()}
    assert names == {"profile": {}, "counts": {}, "late": {}}
    assert_same(shop, ["profile:age", "late:x"], USERS)


def test_views_of_one_group_applied_one_by_one(make_repo: RepoMaker) -> None:
    """A contradiction that was applied past the cache is answered uncached, and reported."""
    repo = make_repo(ttl_map={})
    tags = {"hotplate.group": "users"}
    repo.apply(USER, repo.view("v", {"x": Int64}, tags={**tags, "hotplate.ttl": "5s"}))
    wrong = repo.view("w", {"y": Int64}, tags={**tags, "hotplate.ttl": "9s"})
    with pytest.raises(PolicyError, match="feature view 'v' of the same group says 5s"):
        repo.hot.apply([wrong])
    repo.bare.apply([wrong])
    repo.hot.refresh_registry()
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
    with pytest.raises(PolicyError, match="ttll: is not a setting"):
        repo.hot.apply([repo.view("w", {"x": Int64}, tags={"hotplate.ttll": "5s"})])
    repo.hot.refresh_registry()
    repo.bare.refresh_registry()
    put(repo, "v", user_id=[1], age=[1])
    for number in (1, 2):
        repo.write("w", event_time=[day(number)], user_id=[1], x=[number])
        assert assert_same(repo, ["v:age", "w:x"], ONE)[0]["x"] == [number]
    assert repo.cache.stats().groups["w"].entries == 0
