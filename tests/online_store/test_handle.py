"""What Feast has no call for, and the borders of the cache."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import redis
from feast.online_response import OnlineResponse
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Int64

import hotplate
from hotplate import NotACachedStoreError
from hotplate.clock import FakeClock
from hotplate.errors import HotplateError
from hotplate.ingestion import defragment
from hotplate.testing import use_clock

from ..stores import USER, Repo, frame_of

RepoMaker = Callable[..., Repo]
AGE = ["v:age"]
ONE = [{"user_id": 1}]


@pytest.fixture
def repo(make_repo: RepoMaker) -> Repo:
    """One view with one user."""
    made = make_repo()
    made.apply(USER, made.view("v", {"age": Int64}))
    made.write("v", user_id=[1], age=[10])
    return made


def test_a_store_that_is_not_cached_is_refused(repo: Repo) -> None:
    """Asking a bare store for its cache says what to write."""
    with pytest.raises(NotACachedStoreError, match=r"hotplate\.online_store\.CachedOnlineStore"):
        hotplate.of(repo.bare)


@pytest.mark.parametrize("wrong", [None, "feature_repo", 7])
def test_what_is_no_store_is_refused(wrong: Any) -> None:
    """It says what it wants."""
    with pytest.raises(NotACachedStoreError, match=r"expected a feast\.FeatureStore, got a"):
        hotplate.of(wrong)


def test_a_clock_comes_before_the_first_use(repo: Repo) -> None:
    """The clock of a store in use cannot be exchanged."""
    repo.hot.get_online_features(AGE, ONE)
    with pytest.raises(HotplateError, match="before its first call"):
        use_clock(repo.hot, FakeClock())


def test_stats_are_a_snapshot_and_repr_shows_live_state(repo: Repo) -> None:
    """Counts do not move under the reader; repr shows what is held."""
    before = repo.cache.stats()
    for _ in range(3):
        repo.hot.get_online_features(AGE, ONE)
    after = repo.cache.stats()
    assert before.groups["v"].reads == 0  # known from the registry before it is read
    assert before.groups["v"].hit_rate == 0
    assert (after.groups["v"].hits, after.groups["v"].misses) == (2, 1)
    assert after.groups["v"].hit_rate == pytest.approx(2 / 3)
    assert after.source_batches == 1
    assert after.entries == 1
    assert after.bytes == after.groups["v"].bytes > 0
    assert "rows=1" in repr(repo.cache)


def test_stats_print_as_a_table(repo: Repo) -> None:
    """What a person wants to know, aligned; `repr` keeps every count."""
    for _ in range(3):
        repo.hot.get_online_features(AGE, ONE)
    repo.hot.get_online_features(AGE, ONE, include_feature_view_version_metadata=True)
    stats = repo.cache.stats()
    header, row, total = str(stats).splitlines()
    assert header.split() == [
        "group",
        "hit",
        "rate",
        *["hits", "misses", "loads", "entries", "bytes"],
    ]
    assert row.split()[:-1] == ["v", "75.0%", "3", "1", "1", "1"]
    assert len(header) == len(row)
    assert total.startswith("1 entries of ")
    assert "1 round trips to the source; 1 requests past the cache; 0 faults" in total
    assert repr(stats).startswith("CacheStats(groups={'v': GroupStats(hits_memory=3,")


def test_counts_outlive_the_plans_that_counted(repo: Repo) -> None:
    """A registry refresh drops plans, never hits."""
    for _ in range(5):
        repo.hot.get_online_features(AGE, ONE)
        repo.hot.refresh_registry()
    for _ in range(3):
        repo.hot.get_online_features(AGE, ONE)
    assert repo.cache.stats().groups["v"].reads == 8


def test_a_response_can_be_copied_and_sent_to_another_process(repo: Repo) -> None:
    """Pickled or copied, it is Feast's own response."""
    response = repo.hot.get_online_features(AGE, ONE)
    for twin in (pickle.loads(pickle.dumps(response)), copy.deepcopy(response)):
        assert type(twin) is OnlineResponse
        assert twin.to_dict() == response.to_dict()


def test_a_fault_of_the_cache_is_answered_by_the_source_and_counted(
    repo: Repo, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever breaks between request and memory costs time, not answers; it is logged once."""
    from hotplate.serving.plan import Plan

    repo.hot.get_online_features(AGE, ONE)

    def broken(*args: Any) -> Any:
        raise AssertionError("a bug")

    monkeypatch.setattr(Plan, "hit", broken)
    with caplog.at_level(logging.ERROR, logger="hotplate"):
        for _ in range(3):
            got = repo.hot.get_online_features(AGE, ONE).to_dict()
            assert got == repo.bare.get_online_features(AGE, ONE).to_dict()
    assert repo.cache.stats().cache_faults == 3
    assert len([record for record in caplog.records if "the cache failed" in record.message]) == 1


def test_requests_that_take_feasts_own_path_are_counted(repo: Repo) -> None:
    """Who wonders why a request is slow finds the reason."""
    repo.hot.get_online_features(AGE, ONE, include_feature_view_version_metadata=True)
    assert repo.cache.stats().requests_passed["feast_path"] == 1


def _chunked() -> pd.DataFrame:
    ids = pa.chunked_array([[101], [102], [103]], type=pa.int64())
    ages = pa.chunked_array([[1, 2], [3]], type=pa.int64())
    frame = pd.DataFrame(
        {
            "user_id": pd.Series(pd.arrays.ArrowExtensionArray(ids)),
            "age": pd.Series(pd.arrays.ArrowExtensionArray(ages)),
        }
    )
    frame.index = pd.Index([7, 8, 9])
    return frame.assign(event_time=frame_of(x=[1])["event_time"][0])


def test_the_provider_loses_no_rows_of_a_chunked_frame(make_repo: RepoMaker) -> None:
    """With Hotplate's provider, Feast's own `push` keeps all rows of an Arrow-backed frame."""
    repo = make_repo(provider="hotplate.provider.HotplateProvider")
    repo.apply(USER, repo.view("v", {"age": Int64}))
    repo.hot.push("v_push", _chunked())
    got = repo.hot.get_online_features(AGE, {"user_id": [101, 102, 103]}).to_dict()
    assert got["age"] == [1, 2, 3]


def test_defragment_changes_nothing_but_the_chunks() -> None:
    """Values, types, index and plain frames stay as they are."""
    frame = _chunked()
    whole = defragment(frame)
    pd.testing.assert_frame_equal(whole, frame)
    assert whole["user_id"].array.__arrow_array__().num_chunks == 1
    plain = frame_of(user_id=[1], age=[2])
    assert defragment(plain) is plain


def test_write_through_the_handle(repo: Repo) -> None:
    """`write` is `write_to_online_store` for any frame."""
    repo.cache.write("v", _chunked())
    got = repo.hot.get_online_features(AGE, {"user_id": [103]}).to_dict()
    assert got["age"] == [3]


@pytest.mark.parametrize("wrong", [None, {"user_id": [1]}, [1]])
def test_writing_what_is_no_frame_is_refused(repo: Repo, wrong: Any) -> None:
    """Before Feast trips over it."""
    with pytest.raises(TypeError, match="expected a pandas DataFrame"):
        repo.cache.push("v_push", wrong)
    with pytest.raises(TypeError, match="expected a pandas DataFrame"):
        repo.cache.write("v", wrong)


def test_writing_an_unknown_view_is_refused(repo: Repo) -> None:
    """It names those there are."""
    with pytest.raises(KeyError, match="no group or feature view 'w'; groups: v"):
        repo.cache.write("w", frame_of(user_id=[1], age=[1]))
    repo.apply(repo.view("w", {"age": Int64}, tags={"hotplate.group": "g"}))
    with pytest.raises(KeyError, match="'g' is a group: name the feature view"):
        repo.cache.write("g", frame_of(user_id=[1], age=[1]))


def test_stats_are_told_where_the_registry_is_not(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts are asked for when things are down, too."""
    cache = repo.cache

    def down(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("registry")

    monkeypatch.setattr(type(repo.hot.registry), "list_feature_views", down)
    assert cache.stats().groups == {}


def test_no_secret_is_shown(tmp_path: Path) -> None:
    """The password in a connection string reaches no repr."""
    online = {"type": "redis", "connection_string": "127.0.0.1:1,password=hunter2"}
    repo = Repo(tmp_path / "r", online)
    cache = repo.cache
    shown = repr(cache) + repr(cache.runtime.engine.memory) + repr(cache.stats())
    online_store = repo.hot._get_provider().online_store
    key = EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=1)])
    with pytest.raises(redis.exceptions.ConnectionError) as caught:  # nobody listens on port 1
        online_store.online_read(repo.hot.config, repo.view("v", {"age": Int64}), [key], ["age"])
    assert "hunter2" not in shown + str(caught.value) + repr(online_store)


def test_update_in_place_is_offered_only_where_the_wrapped_store_has_it(repo: Repo) -> None:
    """Feast asks with `hasattr`, also before the first call; the answer is the wrapped store's."""
    import asyncio

    fresh = repo.open_hot()
    for store in (fresh, repo.hot):
        assert not hasattr(store._get_provider().online_store, "update_online_store_async")
    with pytest.raises(NotImplementedError):
        asyncio.run(repo.hot.update_online_store("v", frame_of(user_id=[1], age=[2]), {}))
    inner = repo.cache.runtime.wrapped.store()
    inner.update_online_store_async = None  # type: ignore[attr-defined]
    assert hasattr(repo.hot._get_provider().online_store, "update_online_store_async")
