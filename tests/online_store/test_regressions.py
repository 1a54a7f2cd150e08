"""Faults that were found and mended, each by its symptom."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Float64, Int64, UnixTimestamp

from hotplate import CachePolicy, Tier
from hotplate.core.flights import Flight

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


def slow_loads(repo: Repo, seconds: float) -> list[int]:
    """Let every read of the source take a while; returns how many keys each asks for."""
    source, asked = repo.cache.runtime.engine.source, []
    load = source.load

    def slow_load(requests: Any) -> Any:
        asked.append(sum(len(request.keys) for request in requests))
        repo.clock.advance(seconds)
        return load(requests)

    source.load = slow_load  # type: ignore[method-assign]
    return asked


def test_a_row_expired_while_the_request_waited_for_another(make_repo: RepoMaker) -> None:
    """A value is within its ttl when it is answered, not only when it was looked up."""
    repo = simple(make_repo, CachePolicy(ttl="5s", jitter=0))
    read(repo)
    repo.clock.advance(4)
    repo.write("v", user_id=[1, 2], age=[11, 20], event_time=[LATE, LATE])
    asked = slow_loads(repo, 3)
    response = repo.hot.get_online_features(AGE, [{"user_id": 1}, {"user_id": 2}])
    assert response.to_dict()["age"] == [11, 20]
    assert asked == [1, 1]
    first, second = response.freshness()["v"]
    assert (first.age_s, first.tier) == (3, Tier.SOURCE)
    assert (second.age_s, second.tier) == (6, Tier.SOURCE)  # as old as its own load made it


def test_a_source_slower_than_the_ttl_is_asked_once_a_request(make_repo: RepoMaker) -> None:
    """What the request itself loaded is answered, as the uncached store would have."""
    repo = simple(make_repo, CachePolicy(ttl="5s", jitter=0))
    asked = slow_loads(repo, 60)
    assert [read(repo), read(repo)] == [[10], [10]]
    assert asked == [1, 1]


def test_a_request_took_what_another_had_read_too_long_ago(
    make_repo: RepoMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load that began before the request counts with the age it has when it lands."""
    repo = simple(make_repo, CachePolicy(ttl="5s", jitter=0))
    source = repo.cache.runtime.engine.source
    load, wait = source.load, Flight.wait
    is_loading, is_waiting = threading.Event(), threading.Event()

    def held_load(requests: Any) -> Any:
        rows = load(requests)
        if not is_loading.is_set():
            is_loading.set()
            assert is_waiting.wait(30)
            repo.write("v", user_id=[1], age=[11], event_time=[LATE])
            repo.clock.advance(4)
        return rows

    def noted_wait(flight: Flight) -> None:
        is_waiting.set()
        wait(flight)

    source.load = held_load  # type: ignore[method-assign]
    monkeypatch.setattr(Flight, "wait", noted_wait)
    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(read, repo)
        assert is_loading.wait(30)
        repo.clock.advance(2)
        late = pool.submit(read, repo)
        assert (early.result(30), late.result(30)) == ([10], [11])


def test_async_reads_of_a_store_without_them_answered_on_a_hit_only(tmp_path: Path) -> None:
    """SQLite reads no rows on an event loop; that shows on the first request, not on a miss."""
    repo = Repo(tmp_path, {"type": "sqlite"}, project="no_async")
    repo.apply(USER, repo.view("v", {"age": Int64}))
    repo.write("v", user_id=[1], age=[10])
    assert read(repo) == [10]
    table = repo.hot.get_feature_view("v")
    key = EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=1)])
    for store in (repo.hot, repo.bare):
        with pytest.raises(NotImplementedError):
            asyncio.run(store.get_online_features_async(AGE, ONE))
        online = store._get_provider().online_store
        with pytest.raises(NotImplementedError):
            asyncio.run(online.online_read_async(store.config, table, [key], ["age"]))


def test_threads_got_each_others_rows_from_one_connection(make_repo: RepoMaker) -> None:
    """Feast's SQLite store has one connection, which Python 3.13 does not let threads share."""
    repo = simple(make_repo)
    users = range(50)
    repo.write("v", user_id=list(users), age=list(users), event_time=[LATE] * 50)

    def work(seed: int) -> set[tuple[int, int]]:
        wrong = set()
        for step in range(60):
            user = (seed * 31 + step * 7) % 50
            got = repo.hot.get_online_features(AGE, [{"user_id": user}]).to_dict()["age"]
            wrong |= {(user, age) for age in got if age != user}
            repo.cache.invalidate("v", {"user_id": user})
        return wrong

    with ThreadPoolExecutor(16) as pool:
        assert set().union(*pool.map(work, range(16))) == set()


def test_every_request_waited_for_a_source_that_had_just_failed(make_repo: RepoMaker) -> None:
    """Where the last value may stand in, one request a second asks; the others do not wait."""
    repo = simple(make_repo, CachePolicy(ttl="5s", jitter=0, on_source_error="last_good 60s"))
    read(repo)
    source, asked = repo.cache.runtime.engine.source, []
    load = source.load

    def fail(requests: Any) -> Any:
        asked.append(requests)
        raise ConnectionError("away")

    source.load = fail  # type: ignore[method-assign]
    for seconds, times in ((6, 1), (0.5, 1), (0.6, 2), (0.1, 2)):
        repo.clock.advance(seconds)
        response = repo.hot.get_online_features(AGE, ONE)
        assert response.to_dict()["age"] == [10]
        assert response.freshness()["v"][0].tier is Tier.LAST_GOOD
        assert len(asked) == times
    with pytest.raises(ConnectionError):  # a row that is not there cannot stand in
        repo.hot.get_online_features(AGE, [{"user_id": 2}])
    repo.write("v", user_id=[1], age=[11], event_time=[LATE])
    source.load = load  # type: ignore[method-assign]
    repo.clock.advance(1.1)
    assert [read(repo), read(repo)] == [[11], [11]]


def test_a_last_value_passed_its_limit_while_another_row_was_loaded(make_repo: RepoMaker) -> None:
    """It is judged when the request is answered."""
    repo = make_repo()
    policy = CachePolicy(ttl="5s", jitter=0, on_source_error="last_good 60s")
    repo.apply(
        USER,
        repo.view("v", {"age": Int64}, tags=policy.tags()),
        repo.view("w", {"size": Int64}),
    )
    repo.write("v", user_id=[1], age=[10])
    repo.write("w", user_id=[1], size=[1])
    features = ["v:age", "w:size"]
    repo.hot.get_online_features(["v:age"], ONE)
    repo.clock.advance(50)
    engine = repo.cache.runtime.engine
    engine._last_good.asked_again_ns = dict.fromkeys(
        engine.domain.views_named(repo.project, "v"), 2**62
    )
    asked = slow_loads(repo, 20)
    assert repo.hot.get_online_features(features, ONE).to_dict()["age"] == [10]
    assert len(asked) == 2  # the row of w, then that of v, which had become too old meanwhile
