"""Promises 2, 3 and 10: forgetting, no resurrection, isolation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from feast.data_source import PushMode
from feast.types import Float64, Int64, String

from ..stores import MERCHANT, USER, Repo, assert_same, frame_of

RepoMaker = Callable[..., Repo]
AGE = ["v:age"]
ONE = [{"user_id": 1}]
EARLY = datetime(2025, 1, 1, tzinfo=UTC)
LATE = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture
def repo(make_repo: RepoMaker) -> Repo:
    """One view, an hour's ttl, one user."""
    made = make_repo(ttl_map={"default": "1h"})
    made.apply(USER, MERCHANT, made.view("v", {"age": Int64}), made.view("w", {"size": Float64}))
    made.write("v", user_id=[1, 2], age=[10, 11], event_time=[EARLY, EARLY])
    return made


def read(repo: Repo, user_id: int = 1) -> Any:
    return repo.hot.get_online_features(AGE, [{"user_id": user_id}]).to_dict()["age"][0]


def test_a_push_is_seen_at_once(repo: Repo) -> None:
    """What `push` returned from is what the next read gives."""
    assert read(repo) == 10
    repo.hot.push("v_push", frame_of(user_id=[1], age=[20], event_time=[LATE]))
    assert read(repo) == 20
    assert read(repo, 2) == 11


def test_write_to_online_store_is_seen_at_once(repo: Repo) -> None:
    """The same for a direct write."""
    assert read(repo) == 10
    repo.write("v", repo.hot, user_id=[1], age=[20], event_time=[LATE])
    assert read(repo) == 20


@pytest.mark.parametrize("at_once", [1, 3, 10, 11])
def test_every_row_of_a_large_write_is_forgotten(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """They are forgotten in parts, of which none may be left out."""
    monkeypatch.setattr("hotplate.serving.runtime._FORGOTTEN_AT_ONCE", at_once)
    users = list(range(10))
    repo.write("v", user_id=users, age=users, event_time=[EARLY] * 10)
    entities = [{"user_id": user} for user in users]
    repo.hot.get_online_features(AGE, entities)
    ages = [user + 100 for user in users]
    repo.write("v", repo.hot, user_id=users, age=ages, event_time=[LATE] * 10)
    assert repo.hot.get_online_features(AGE, entities).to_dict()["age"] == ages


def test_older_rows_and_corrections_end_where_the_bare_store_ends(repo: Repo) -> None:
    """Which row wins is the wrapped store's affair: SQLite the last, Redis the newest."""
    for moment, age in ((LATE, 20), (EARLY, 5), (LATE, 21), (LATE + timedelta(seconds=1), 22)):
        assert_same(repo, AGE, ONE)
        repo.write("v", repo.hot, user_id=[1], age=[age], event_time=[moment])
        assert_same(repo, AGE, ONE)


def test_a_newly_written_entity_is_no_longer_absent(repo: Repo) -> None:
    """A remembered absence ends with the write that ends it."""
    assert read(repo, 77) is None
    repo.write("v", repo.hot, user_id=[77], age=[1])
    assert read(repo, 77) == 1


def test_materialize_is_seen_at_once(repo: Repo) -> None:
    """Rows materialized from the batch source replace what was read before."""
    assert read(repo) == 10
    frame_of(user_id=[1, 3], age=[30, 33], event_time=[LATE, LATE]).to_parquet(
        repo.folder / "v.parquet"
    )
    repo.hot.materialize(EARLY, LATE + timedelta(days=1), feature_views=["v"])
    assert read(repo) == 30
    assert read(repo, 3) == 33
    repo.hot.materialize_incremental(LATE + timedelta(days=2), feature_views=["v"])
    assert_same(repo, AGE, ONE)


def test_another_store_object_of_this_process_forgets_too(repo: Repo) -> None:
    """A write through one FeatureStore is seen by every other one of the process."""
    other = repo.open_hot()
    for store in (repo.hot, other):
        assert store.get_online_features(AGE, ONE).to_dict()["age"] == [10]
    repo.write("v", other, user_id=[1], age=[20], event_time=[LATE])
    for store in (repo.hot, other):
        assert store.get_online_features(AGE, ONE).to_dict()["age"] == [20]


def test_invalidate_one_entity(repo: Repo) -> None:
    """Only the named entity is read again, in every view of the group."""
    assert (read(repo), read(repo, 2)) == (10, 11)
    repo.write("v", user_id=[1, 2], age=[20, 21], event_time=[LATE, LATE])
    assert repo.cache.invalidate("v", {"user_id": "1"}) == 1
    assert (read(repo), read(repo, 2)) == (20, 11)
    repo.cache.invalidate("v", [{"user_id": 1}, {"user_id": 2}])
    assert read(repo, 2) == 21


def test_entities_to_invalidate_come_in_any_form(repo: Repo) -> None:
    """One, columns, a frame, rows, an iterator; the answer counts the rows that were held."""
    for entities in (
        {"user_id": [1, 2]},
        {"user_id": (1, 2, 9)},
        {"user_id": np.array([1, 2])},
        pd.DataFrame({"user_id": [1, 2]}),
        [{"user_id": 1}, {"user_id": 2}],
        iter([{"user_id": 1}, {"user_id": 2}]),
        None,
    ):
        for user in (1, 2):
            read(repo, user)
        assert repo.cache.invalidate("v", entities) == 2
        assert repo.cache.invalidate("v", {"user_id": 1}) == 0
    read(repo)
    assert repo.cache.invalidate("v", {"user_id": np.int64(1)}) == 1
    for none in ([], {"user_id": []}, pd.DataFrame({"user_id": []})):
        assert repo.cache.invalidate("v", none) == 0


@pytest.mark.parametrize(
    ("entities", "error", "says"),
    [
        (7, TypeError, "entities are a int: write"),
        ("7", TypeError, "entities are a str: write"),
        ([7], TypeError, "an entity is a int: write"),
        ([{"user_id": 1}, 7], TypeError, "an entity is a int: write"),
        ({"user_id": None}, ValueError, "'user_id' is null or cannot be INT64"),
        ([{"user_id": 1}, {"user_id": None}], ValueError, "null or cannot be INT64"),
        ({"user_id": float("nan")}, ValueError, "null or cannot be INT64"),
        ({"user_id": "seven"}, ValueError, "null or cannot be INT64"),
        ({"user_id": [[1]]}, ValueError, "null or cannot be INT64"),
        ({"user_id": [1], "x": [1, 2]}, ValueError, "of different length"),
        ({"user_id": [1, 2], "x": 1}, ValueError, "mix single values and columns"),
        ({}, ValueError, "name no join key"),
        ([{"user_id": 1}, {"user": 1}], ValueError, "different join keys"),
    ],
)
def test_wrong_entities_are_refused_and_nothing_is_forgotten(
    repo: Repo, entities: Any, error: type[Exception], says: str
) -> None:
    """An invalidation that forgets nothing because of a typo would be found much later."""
    read(repo)
    with pytest.raises(error, match=says):
        repo.cache.invalidate("v", entities)
    assert repo.cache.stats().entries == 1


def test_invalidate_a_group(repo: Repo) -> None:
    """Everything of the group is read again, nothing of the others."""
    repo.write("w", user_id=[1], size=[1.0])
    repo.hot.get_online_features([*AGE, "w:size"], ONE)
    repo.write("v", user_id=[1], age=[20], event_time=[LATE])
    repo.write("w", user_id=[1], size=[2.0], event_time=[LATE])
    repo.cache.invalidate("v")
    got = repo.hot.get_online_features([*AGE, "w:size"], ONE).to_dict()
    assert (got["age"], got["size"]) == ([20], [1.0])
    repo.cache.clear()
    assert len(repo.cache.runtime.engine.memory) == 0
    got = repo.hot.get_online_features([*AGE, "w:size"], ONE).to_dict()
    assert got["size"] == [2.0]


def test_invalidating_what_does_not_exist_says_so(repo: Repo) -> None:
    """A wrong name or a missing join key is an error, not a silent nothing."""
    with pytest.raises(KeyError, match="no group or feature view 'u'; groups: v, w"):
        repo.cache.invalidate("u")
    with pytest.raises(KeyError, match="lacks 'user_id'"):
        repo.cache.invalidate("v", {"merchant_id": "x"})


def _paused_load(repo: Repo) -> tuple[threading.Event, threading.Event]:
    """The next load reads the source, then waits before it returns."""
    has_read, may_go = threading.Event(), threading.Event()
    source = repo.cache.runtime.engine.source
    load = source.load

    def paused(requests: Any) -> Any:
        source.load = load  # type: ignore[method-assign]
        rows = load(requests)
        has_read.set()
        assert may_go.wait(30)
        return rows

    source.load = paused  # type: ignore[method-assign]
    return has_read, may_go


@pytest.mark.parametrize("by", ["write", "entity", "group", "clear", "apply"])
def test_a_load_blocked_across_an_invalidation_is_not_kept(repo: Repo, by: str) -> None:
    """What was read before an invalidation is not in the cache after it, however it came."""
    has_read, may_go = _paused_load(repo)
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.append(read(repo)))
    reader.start()
    assert has_read.wait(30)
    if by == "write":
        repo.write("v", repo.hot, user_id=[1], age=[20], event_time=[LATE])
    else:
        repo.write("v", user_id=[1], age=[20], event_time=[LATE])
    if by == "entity":
        repo.cache.invalidate("v", {"user_id": 1})
    elif by == "group":
        repo.cache.invalidate("v")
    elif by == "clear":
        repo.cache.clear()
    elif by == "apply":
        repo.hot.apply([repo.hot.get_feature_view("v")])
    assert read(repo) == 20  # does not join the load that began before
    may_go.set()
    reader.join(30)
    assert got == [10]  # it asked before the invalidation
    assert read(repo) == 20
    assert len(repo.cache.runtime.engine.flights) == 0


def test_a_write_that_fails_half_way_is_forgotten_too(repo: Repo) -> None:
    """Part of a failed batch may have been written, so nothing of it is served from before."""
    assert read(repo) == 10
    inner = repo.cache.runtime.wrapped.store()
    write = inner.online_write_batch

    def half(config: Any, table: Any, data: Any, progress: Any) -> None:
        write(config, table, data, progress)
        raise ConnectionError("lost on the way")

    inner.online_write_batch = half
    with pytest.raises(ConnectionError):
        repo.write("v", repo.hot, user_id=[1], age=[20], event_time=[LATE])
    assert read(repo) == 20


def test_push_async(repo: Repo) -> None:
    """The async push forgets as well, where the wrapped store writes async."""
    assert read(repo) == 10

    async def push() -> None:
        try:
            await repo.hot.push_async(
                "v_push", frame_of(user_id=[1], age=[20], event_time=[LATE]), to=PushMode.ONLINE
            )
        finally:
            await repo.hot.close()

    if repo.hot._get_provider().async_supported.online.write:
        asyncio.run(push())
        assert read(repo) == 20
    else:
        with pytest.raises(NotImplementedError):
            asyncio.run(push())


def test_teardown_leaves_nothing(repo: Repo) -> None:
    """After teardown the memory tier is empty."""
    assert read(repo) == 10
    engine = repo.cache.runtime.engine
    assert len(engine.memory) == 1
    repo.hot.teardown()
    assert len(engine.memory) == 0
    assert engine.memory.size_bytes == 0


def test_a_column_added_by_another_process_is_never_missing(repo: Repo) -> None:
    """After `apply` elsewhere, a new column is read from the source, not from an older row."""
    assert read(repo) == 10
    wider = repo.view("v", {"age": Int64, "city": String})
    repo.bare.apply([wider])
    repo.write("v", user_id=[1], age=[20], city=["x"], event_time=[LATE])
    repo.hot.refresh_registry()
    assert_same(repo, ["v:age", "v:city"], ONE)
    assert_same(repo, ["v:city"], ONE)


def test_a_column_whose_type_changes_is_never_served_in_the_old_type(repo: Repo) -> None:
    """A schema is part of an entry's identity."""
    assert read(repo) == 10
    repo.hot.apply([repo.view("v", {"age": String})])
    repo.bare.refresh_registry()
    repo.write("v", user_id=[1], age=["old"], event_time=[LATE])
    assert_same(repo, AGE, ONE)


def test_a_dropped_and_recreated_view_starts_empty(repo: Repo) -> None:
    """`apply` that drops a view forgets its rows."""
    assert read(repo) == 10
    repo.hot.apply([], objects_to_delete=[repo.hot.get_feature_view("v")], partial=False)
    repo.hot.apply([USER, repo.view("v", {"age": Int64})])
    repo.bare.refresh_registry()
    assert_same(repo, AGE, ONE)


def test_projects_do_not_touch_each_other(make_repo: RepoMaker) -> None:
    """Two projects over one store, one name ending in the other's, stay apart."""
    short, long = make_repo(), make_repo()
    for repo in (short, long):
        repo.apply(USER, repo.view("v", {"age": Int64}))
    short.write("v", user_id=[1], age=[1])
    long.write("v", user_id=[1], age=[2])
    assert (read(short), read(long)) == (1, 2)
    short.cache.clear()
    assert len(short.cache.runtime.engine.memory) == 0
    assert len(long.cache.runtime.engine.memory) == 1
    assert (read(short), read(long)) == (1, 2)


def test_key_types_do_not_cross(repo: Repo) -> None:
    """The int32 1, the int64 1 and the string "1" are three entities to the store's own read."""
    from feast.protos.feast.types.EntityKey_pb2 import EntityKey
    from feast.protos.feast.types.Value_pb2 import Value

    table = repo.hot.get_feature_view("v")
    keys = [
        EntityKey(join_keys=["user_id"], entity_values=[value])
        for value in (Value(int64_val=1), Value(int32_val=1), Value(string_val="1"))
    ]
    bare, hot = (s._get_provider().online_store for s in (repo.bare, repo.hot))
    expected = bare.online_read(repo.bare.config, table, keys, ["age"])
    for _ in range(2):
        assert hot.online_read(repo.hot.config, table, keys, ["age"]) == expected
    for key in reversed(keys):
        got = hot.online_read(repo.hot.config, table, [key], ["age"])
        assert got == bare.online_read(repo.bare.config, table, [key], ["age"])
