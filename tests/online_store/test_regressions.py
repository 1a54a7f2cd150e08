"""Faults that were found and mended, each by its symptom."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Float64, Int64, UnixTimestamp

from hotplate import CachePolicy

from ..stores import MERCHANT, USER, Repo, assert_same

RepoMaker = Callable[..., Repo]
AGE = ["v:age"]
ONE = [{"user_id": 1}]
LATE = datetime(2026, 6, 1, tzinfo=UTC)


def simple(make_repo: RepoMaker, policy: CachePolicy | None = None, **kwargs: Any) -> Repo:
    repo = make_repo(**kwargs)
    repo.apply(USER, repo.view("v", {"age": Int64}, tags=policy.tags() if policy else {}))
    repo.write("v", user_id=[1], age=[10])
    return repo


def read(repo: Repo) -> Any:
    return repo.hot.get_online_features(AGE, ONE).to_dict()["age"]


def test_a_flight_handed_on_an_old_row_after_an_invalidation(make_repo: RepoMaker) -> None:
    """When flights let go of a key, its old row must be out of memory already."""
    repo = simple(make_repo)
    read(repo)
    engine = repo.cache.runtime.engine
    detach, seen = engine.flights.detach, []

    def detached(keys: Any) -> None:
        seen.extend(engine.memory.peek(key) for key in keys)
        detach(keys)

    engine.flights.detach = detached  # type: ignore[method-assign]
    repo.cache.invalidate("v", {"user_id": 1})
    assert seen == [None]


def test_a_store_opened_with_other_settings_kept_what_was_written(make_repo: RepoMaker) -> None:
    """Two configurations that reach the same data forget together, however they are spelled."""
    repo = simple(make_repo)
    known = {"sqlite": {"vector_enabled": False}, "redis": {"full_scan_for_deletion": False}}
    other = repo.open_hot(store={**repo.online, **known[repo.online["type"]]})
    for store in (repo.hot, other):
        assert store.get_online_features(AGE, ONE).to_dict()["age"] == [10]
    repo.write("v", other, user_id=[1], age=[20], event_time=[LATE])
    assert read(repo) == [20]


def test_a_column_nobody_asked_for_made_requests_fail(make_repo: RepoMaker) -> None:
    """A timestamp that no calendar holds fails only those who ask for it, as with Feast."""
    repo = make_repo()
    repo.apply(USER, repo.view("v", {"age": Float64, "seen": UnixTimestamp}))
    table = repo.bare.get_feature_view("v")
    rows = [
        (
            EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=user)]),
            {"age": Value(double_val=1.0), "seen": Value(unix_timestamp_val=1_700_000_000_000)},
            LATE,
            None,
        )
        for user in (1, 2)
    ]
    repo.bare._get_provider().online_write_batch(repo.bare.config, table, rows, None)
    for users in ([1], [1, 2], [1, 3]):
        assert_same(repo, AGE, [{"user_id": user} for user in users])
        got = repo.cache.reader(AGE).matrix({"user_id": users})
        assert got[0, 0] == 1.0


def test_last_good_was_judged_by_the_start_of_a_slow_failure(make_repo: RepoMaker) -> None:
    """A value of 50 s does not stand in after a source took 300 s to fail."""
    policy = CachePolicy(ttl="5s", jitter=0, on_source_error="last_good 60s")
    repo = simple(make_repo, policy)
    read(repo)
    repo.clock.advance(50)

    def slow_failure(requests: Any) -> Any:
        repo.clock.advance(300)
        raise ConnectionError("away")

    repo.cache.runtime.engine.source.load = slow_failure  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        read(repo)


def test_a_refresh_that_found_no_thread_failed_the_request(
    make_repo: RepoMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no thread can be started nothing is refreshed ahead, and reads go on."""
    repo = simple(make_repo, CachePolicy(ttl="10s", jitter=0, stale_while_revalidate="4s"))
    read(repo)
    repo.clock.advance(7)

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert read(repo) == [10]
    assert repo.cache.stats().groups["v"].refreshes_dropped == 1


def test_books_drifted_with_keys_that_are_not_ascii(make_repo: RepoMaker) -> None:
    """What a row was booked with is what it is taken off with, whatever Python did to its key."""
    repo = make_repo()
    repo.apply(MERCHANT, repo.view("m", {"size": Int64}, entities=(MERCHANT,)))
    for number in range(4):
        repo.write("m", repo.hot, merchant_id=["Bäckerei 🥐"], size=[number])
        repo.hot.get_online_features(["m:size"], [{"merchant_id": "Bäckerei 🥐"}])
    repo.cache.invalidate("m", {"merchant_id": "Bäckerei 🥐"})
    memory = repo.cache.runtime.engine.memory
    assert (len(memory), memory.size_bytes) == (0, 0)
    memory.check()
