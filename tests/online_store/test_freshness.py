"""Promises 1, 4 and 6: the age bound, errors, absent entities, never."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pytest
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus
from feast.types import Float64, Int64

import hotplate
from hotplate import CachePolicy, Tier

from ..stores import USER, Repo, answers, assert_same

RepoMaker = Callable[..., Repo]
AGE = ["v:age"]
ONE = [{"user_id": 1}]


def simple(make_repo: RepoMaker, policy: CachePolicy | None = None, **kwargs: Any) -> Repo:
    """One view with one written user."""
    repo = make_repo(**kwargs)
    tags = policy.tags() if policy else {}
    repo.apply(USER, repo.view("v", {"age": Int64}, tags=tags))
    put(repo, 10)
    return repo


_ticks = iter(range(1, 10**6))


def put(repo: Repo, age: int | None, user_id: int = 1) -> None:
    """Write past the cache, as another process would, always with a newer event time."""
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(_ticks))
    repo.write("v", user_id=[user_id], age=[age], event_time=[moment])


def read(repo: Repo, user_id: int = 1) -> Any:
    return repo.hot.get_online_features(AGE, [{"user_id": user_id}]).to_dict()["age"][0]


def loads(repo: Repo) -> int:
    return repo.cache.stats().groups["v"].loads


def test_a_value_is_served_up_to_its_ttl_and_not_beyond(make_repo: RepoMaker) -> None:
    """Within 5 s the old value may be served, after them never."""
    repo = simple(make_repo, ttl_map={"default": {"ttl": "5s", "jitter": 0}})
    assert read(repo) == 10
    put(repo, 20)
    repo.clock.advance(5)
    assert read(repo) == 10
    repo.clock.advance(0.001)
    assert read(repo) == 20
    assert loads(repo) == 2


def test_age_counts_from_before_the_source_was_read(make_repo: RepoMaker) -> None:
    """A slow load does not make its value younger."""
    repo = simple(make_repo, ttl_map={"default": {"ttl": "5s", "jitter": 0}})
    source = repo.cache.runtime.engine.source
    load = source.load

    def slow(requests: Any) -> Any:
        rows = load(requests)
        repo.clock.advance(3)
        return rows

    source.load = slow  # type: ignore[method-assign]
    assert read(repo) == 10
    source.load = load  # type: ignore[method-assign]
    put(repo, 20)
    repo.clock.advance(2.5)
    assert read(repo) == 20


def test_ttl_zero_keeps_nothing(make_repo: RepoMaker) -> None:
    """`0s` asks the source every time, and counts why."""
    repo = simple(make_repo, ttl_map={"default": "0s"})
    for age in (10, 20, 30):
        put(repo, age)
        assert read(repo) == age
    stats = repo.cache.stats()
    assert stats.groups["v"].misses_never == 3
    assert stats.entries == 0


def test_ttl_none_keeps_until_invalidated(make_repo: RepoMaker) -> None:
    """`none` has no age bound."""
    repo = simple(make_repo, ttl_map={"default": "none"})
    assert read(repo) == 10
    put(repo, 20)
    repo.clock.advance(10 * 365 * 86_400)
    assert read(repo) == 10
    repo.cache.invalidate("v", {"user_id": 1})
    assert read(repo) == 20


def test_without_any_ttl_nothing_is_cached(make_repo: RepoMaker) -> None:
    """Nobody is served an old value because of a setting that was not made."""
    repo = simple(make_repo, ttl_map={})
    for age in (10, 20):
        put(repo, age)
        assert read(repo) == age


def test_never_means_never(make_repo: RepoMaker) -> None:
    """`cache: never` reads the source every time, also where a ttl is set, and counts why."""
    repo = simple(make_repo, CachePolicy(ttl="1h", cache="never"))
    for age in (10, 20):
        put(repo, age)
        assert read(repo) == age
    assert repo.cache.stats().groups["v"].misses_never == 2


def test_lowering_a_ttl_takes_effect_at_once(make_repo: RepoMaker) -> None:
    """A row loaded under an hour's ttl is past its bound as soon as the ttl is 10 s."""
    repo = simple(make_repo, CachePolicy(ttl="1h"))
    assert read(repo) == 10
    put(repo, 20)
    repo.clock.advance(20)
    assert read(repo) == 10
    bound = repo.cache.runtime.engine
    registry = repo.hot.registry
    view = repo.bare.get_feature_view("v")
    view.tags = CachePolicy(ttl="10s").tags()
    repo.bare.apply([view])  # as another process would
    repo.hot.refresh_registry()
    assert registry is repo.hot.registry
    assert len(bound.memory) == 1
    assert read(repo) == 20


def test_jitter_only_shortens(make_repo: RepoMaker) -> None:
    """With 50 % jitter, rows expire between half the ttl and the ttl, and not all at once."""
    repo = make_repo(ttl_map={"default": {"ttl": "100s", "jitter": "50%"}})
    repo.apply(USER, repo.view("v", {"age": Int64}))
    users = list(range(200))
    repo.write("v", user_id=users, age=users)
    rows = [{"user_id": user} for user in users]
    repo.hot.get_online_features(AGE, rows)
    assert loads(repo) == 200
    seen = []
    for _ in range(4):
        repo.clock.advance(24.9)
        repo.hot.get_online_features(AGE, rows)
        seen.append(loads(repo))
    assert seen[0] == seen[1] == 200  # 49.8 s: nothing may expire yet
    assert 200 < seen[2] < 400  # 74.7 s: some have
    repo.clock.advance(0.5)
    repo.hot.get_online_features(AGE, rows)
    assert loads(repo) >= 400  # 100.1 s: every first load has


def test_an_absent_entity_is_remembered_for_negative_ttl(make_repo: RepoMaker) -> None:
    """An unknown key read three times costs one source read, and answers as the bare store."""
    repo = simple(make_repo, ttl_map={"default": {"ttl": "30s", "negative_ttl": "2s", "jitter": 0}})
    expected = answers(repo.bare, AGE, [{"user_id": 404}])
    for _ in range(3):
        assert answers(repo.hot, AGE, [{"user_id": 404}]) == expected
    stats = repo.cache.stats()
    assert stats.groups["v"].loads == 1
    assert repo.cache.runtime.engine.memory.absent_entries == 1
    put(repo, 40, user_id=404)
    repo.clock.advance(2)
    assert read(repo, 404) is None
    repo.clock.advance(0.001)
    assert read(repo, 404) == 40


def test_an_all_null_push_is_answered_as_the_bare_store_does(make_repo: RepoMaker) -> None:
    """Pushing nothing but nulls leaves the cached store where it leaves the bare one."""
    repo = simple(make_repo)
    assert read(repo) == 10
    frame = pd.DataFrame(
        {"user_id": [1], "age": pd.array([None], "Int64"), "event_time": [datetime.now(UTC)]}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        repo.hot.push("v_push", frame)
    assert_same(repo, AGE, ONE)


def test_a_source_error_reaches_the_caller_once_and_is_not_kept(make_repo: RepoMaker) -> None:
    """A source that raises once gives the error, then the value."""
    repo = simple(make_repo)
    source = repo.cache.runtime.engine.source
    load, broken = source.load, [True]

    def failing(requests: Any) -> Any:
        if broken:
            broken.clear()
            raise ConnectionError("the source is away")
        return load(requests)

    source.load = failing  # type: ignore[method-assign]
    with pytest.raises(ConnectionError, match="the source is away"):
        read(repo)
    assert read(repo) == 10
    assert read(repo) == 10
    stats = repo.cache.stats().groups["v"]
    assert stats.load_errors == 1
    assert stats.loads == 1


def test_last_good_stands_in_for_a_failing_source_up_to_its_age(make_repo: RepoMaker) -> None:
    """`last_good 60s` answers with the last value until it is 60 s old, then the error shows."""
    policy = CachePolicy(ttl="5s", jitter=0, on_source_error="last_good 60s")
    repo = simple(make_repo, policy)
    assert read(repo) == 10

    def failing(requests: Any) -> Any:
        raise ConnectionError("the source is away")

    repo.cache.runtime.engine.source.load = failing  # type: ignore[method-assign]
    repo.clock.advance(30)
    response = repo.hot.get_online_features(AGE, ONE)
    assert response.to_dict()["age"] == [10]
    (fresh,) = response.freshness()["v"]
    assert fresh.tier is Tier.LAST_GOOD
    assert fresh.age_s == pytest.approx(30)
    assert fresh.expires_in_s == pytest.approx(30)
    with pytest.raises(ConnectionError):
        read(repo, 2)  # never read before: nothing can stand in
    repo.clock.advance(30.1)
    with pytest.raises(ConnectionError):
        read(repo)
    assert repo.cache.stats().groups["v"].last_good == 1


def test_an_invalidated_value_never_stands_in(make_repo: RepoMaker) -> None:
    """The last good value is not one that somebody said is wrong."""
    policy = CachePolicy(ttl="5s", on_source_error="last_good 60s")
    repo = simple(make_repo, policy)
    assert read(repo) == 10

    def failing(requests: Any) -> Any:
        raise ConnectionError("the source is away")

    repo.cache.runtime.engine.source.load = failing  # type: ignore[method-assign]
    repo.cache.invalidate("v", {"user_id": 1})
    with pytest.raises(ConnectionError):
        read(repo)


def test_refresh_ahead_reloads_in_the_background_within_the_ttl(make_repo: RepoMaker) -> None:
    """In the last 4 s of its 10 s a value is served at once and reloaded by somebody else."""
    policy = CachePolicy(ttl="10s", jitter=0, stale_while_revalidate="4s")
    repo = simple(make_repo, policy)
    assert read(repo) == 10
    put(repo, 20)
    repo.clock.advance(6)
    assert read(repo) == 10
    assert repo.cache.stats().groups["v"].refreshes == 0
    repo.clock.advance(0.5)
    assert read(repo) == 10  # the old one, at once
    repo.cache.runtime.engine.refresher.drain()
    stats = repo.cache.stats().groups["v"]
    assert stats.refreshes == 1
    assert read(repo) == 20  # the new one, without a wait
    assert repo.cache.stats().groups["v"].misses == 1  # only the very first read
    put(repo, 30)
    repo.clock.advance(10.1)
    assert read(repo) == 30  # past the ttl nothing old is served, refresh or not


def test_a_refresh_that_fails_is_counted_and_harmless(make_repo: RepoMaker) -> None:
    """The value stays until its ttl; nobody sees the error."""
    policy = CachePolicy(ttl="10s", jitter=0, stale_while_revalidate="4s")
    repo = simple(make_repo, policy)
    assert read(repo) == 10
    source = repo.cache.runtime.engine.source
    load = source.load

    def failing(requests: Any) -> Any:
        raise ConnectionError("the source is away")

    source.load = failing  # type: ignore[method-assign]
    repo.clock.advance(7)
    assert read(repo) == 10
    repo.cache.runtime.engine.refresher.drain()
    assert repo.cache.stats().groups["v"].refresh_errors == 1
    assert read(repo) == 10
    source.load = load  # type: ignore[method-assign]


def test_event_time_older_than_the_views_ttl(make_repo: RepoMaker) -> None:
    """Feast does not enforce a view's own ttl online: miss and hit are alike, both PRESENT."""
    repo = make_repo()
    repo.apply(USER, repo.view("v", {"age": Int64}, ttl=timedelta(hours=1)))
    repo.write("v", user_id=[1], age=[10], event_time=[datetime(2020, 1, 1, tzinfo=UTC)])
    assert_same(repo, AGE, ONE)
    statuses = [
        repo.hot.get_online_features(AGE, ONE).proto.results[1].statuses[0] for _ in range(2)
    ]
    assert statuses == [FieldStatus.PRESENT] * 2


def test_enforced_max_age_is_the_same_on_miss_and_hit(make_repo: RepoMaker) -> None:
    """With enforcement on, a value past its view's ttl says OUTSIDE_MAX_AGE, miss and hit."""
    repo = make_repo(settings={"enforce_max_age": True})
    repo.apply(
        USER,
        repo.view("v", {"age": Int64}, ttl=timedelta(hours=1)),
        repo.view("w", {"size": Float64}, ttl=timedelta(0)),
    )
    now = datetime.fromtimestamp(repo.clock.wall_ns() / 1e9, UTC)
    for view, column in (("v", "age"), ("w", "size")):
        repo.write(
            view,
            **{"user_id": [1, 2], column: [10, 20]},
            event_time=[now - timedelta(hours=2), now - timedelta(minutes=30)],
        )
    rows = [{"user_id": i} for i in (1, 2, 3)]
    bare = repo.bare.get_online_features([*AGE, "w:size"], rows).proto
    for meta in (False, False, True, True):  # the plan's path, then Feast's own
        response = repo.hot.get_online_features(
            [*AGE, "w:size"], rows, include_feature_view_version_metadata=meta
        )
        results = dict(
            zip(response.proto.metadata.feature_names.val, response.proto.results, strict=True)
        )
        statuses = list(results["age"].statuses)
        assert statuses[:2] == [FieldStatus.OUTSIDE_MAX_AGE, FieldStatus.PRESENT]
        assert statuses[2] == bare.results[1].statuses[2]
        assert list(results["size"].statuses)[:2] == [FieldStatus.PRESENT] * 2
        assert results["age"].values[0].int64_val == 10


def test_freshness_of_each_row(make_repo: RepoMaker) -> None:
    """Age, tier and deadline of every row, by view."""
    repo = make_repo(ttl_map={"default": {"ttl": "30s", "negative_ttl": "4s", "jitter": 0}})
    repo.apply(USER, repo.view("v", {"age": Int64}), repo.view("w", {"size": Float64}))
    repo.write("v", user_id=[1, 2], age=[1, 2])
    repo.hot.get_online_features(AGE, ONE)
    repo.clock.advance(10)
    response = repo.hot.get_online_features([*AGE, "w:size"], [{"user_id": 1}, {"user_id": 2}])
    old, new = response.freshness()["v"]
    assert (old.tier, new.tier) == (Tier.MEMORY, Tier.SOURCE)
    assert old.age_s == pytest.approx(10)
    assert new.age_s == pytest.approx(0)
    assert old.expires_in_s == pytest.approx(20)
    assert new.deadline_ns - old.deadline_ns == 10_000_000_000
    assert response.freshness()["w"][0].expires_in_s == pytest.approx(4)
    again = repo.hot.get_online_features(AGE, ONE).freshness()["v"][0]
    assert again.tier is Tier.MEMORY


@pytest.mark.parametrize("seed", range(5))
def test_nothing_expires_later_than_its_bound_allows(make_repo: RepoMaker, seed: int) -> None:
    """Whatever was loaded, waited for, jittered or stood in: age and rest are within the bound."""
    policy = {"ttl": "30s", "negative_ttl": "4s", "on_source_error": "last_good 2m"}
    repo = make_repo(ttl_map={"default": policy})
    repo.apply(USER, repo.view("v", {"age": Int64}))
    repo.write("v", user_id=[1, 2, 3], age=[1, 2, 3])
    repo.hot.get_online_features(AGE, ONE)
    chance = random.Random(seed)
    source = repo.cache.runtime.engine.source
    load = source.load

    def slow(requests: Any) -> Any:
        repo.clock.advance(chance.choice([0, 0.5, 40]))
        if chance.random() < 0.2:
            raise ConnectionError("the source")
        return load(requests)

    source.load = slow  # type: ignore[method-assign]
    for _ in range(150):
        repo.clock.advance(chance.choice([0, 0.001, 2, 15, 31]))
        users = chance.sample([1, 2, 3, 9], k=chance.randint(1, 4))
        began_ns = repo.clock.now_ns()
        try:
            response = repo.hot.get_online_features(AGE, {"user_id": users})
        except ConnectionError:
            continue
        for user, row in zip(users, response.freshness()["v"], strict=True):
            bound_s = {Tier.LAST_GOOD: 120}.get(row.tier, 4 if user == 9 else 30)
            assert row.age_s >= 0
            assert row.expires_in_s <= bound_s
            assert row.age_s + row.expires_in_s <= bound_s + 1e-9
            # past its bound only what was read since the request came, by a slow source
            waited_s = (repo.clock.now_ns() - began_ns) / 1e9
            assert row.expires_in_s >= 0 or row.age_s <= waited_s or row.tier is Tier.LAST_GOOD


def test_a_row_that_came_after_the_clock_was_read_is_new(make_repo: RepoMaker) -> None:
    """Another request's load may land between a request's look at the clock and at memory."""
    repo = make_repo(ttl_map={"default": {"ttl": "30s", "jitter": 0}})
    repo.apply(USER, repo.view("v", {"age": Int64}))
    repo.write("v", user_id=[1], age=[1])
    repo.hot.get_online_features(AGE, ONE)
    response: Any = repo.hot.get_online_features(AGE, ONE)
    response._now_ns -= 1_000_000_000
    (row,) = response.freshness()["v"]
    assert (row.age_s, row.expires_in_s) == (0, 30)


def test_a_never_cached_row_is_expired_when_it_is_served(make_repo: RepoMaker) -> None:
    """Whoever builds on a response's deadlines cannot keep what must not be kept."""
    repo = simple(make_repo, CachePolicy(cache="never"))
    (fresh,) = repo.hot.get_online_features(AGE, ONE).freshness()["v"]
    assert fresh.tier is Tier.SOURCE
    assert fresh.expires_in_s <= 0


def test_groups_share_a_policy_and_a_line_of_metrics(make_repo: RepoMaker) -> None:
    """Two views of one group: one says the ttl, both live by it."""
    repo = make_repo(ttl_map={})
    repo.apply(
        USER,
        repo.view("v", {"age": Int64}, tags=CachePolicy(ttl="9s", jitter=0).tags("users")),
        repo.view("w", {"size": Float64}, tags=CachePolicy().tags("users")),
    )
    put(repo, 10)
    repo.write("w", user_id=[1], size=[1.0])
    for _ in range(2):
        repo.hot.get_online_features([*AGE, "w:size"], ONE)
    stats = repo.cache.stats().groups
    assert list(stats) == ["users"]
    assert (stats["users"].hits, stats["users"].misses) == (2, 2)
    assert hotplate.of(repo.hot).policies()["users"].shown()["ttl"] == "9s"


def test_what_would_be_served_past_its_bound_is_counted(
    shop: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ages are taken of all that tiers answer, by the policy itself: a bound that is computed wrong
    is seen; and one that holds counts nothing."""
    from hotplate.core.request import Bound

    hot = hotplate.of(shop.hot)
    right = Bound.expiry_ns
    for _ in range(200):
        shop.hot.get_online_features(["profile:age"], {"user_id": [1, 2]})
        shop.clock.advance(1.7)
    group = hot.stats().groups["profile"]
    assert group.served_late == 0
    assert group.ages.count > 0
    monkeypatch.setattr(Bound, "expiry_ns", lambda self, row: 100 * right(self, row))
    for _ in range(200):
        shop.hot.get_online_features(["profile:age"], {"user_id": [1, 2]})
        shop.clock.advance(1.7)
    assert hot.stats().groups["profile"].served_late > 0
