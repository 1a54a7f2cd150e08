"""`inspect`: what it says of the next read is what the next read does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from feast.types import Float64, Int64

import hotplate
from hotplate.errors import EntityError

from ..conftest import settings_of
from ..online_store.shop import day, put
from ..stores import USER, Repo

FEATURES = ["profile:age"]


@pytest.fixture(params=["sqlite"])
def online(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What is wrapped makes no difference here."""
    return {"type": request.param}


@pytest.fixture
def shared_shop(make_repo: Callable[..., Repo], request: pytest.FixtureRequest) -> Repo:
    """A view of a user over SQLite, with a shared tier."""
    server = settings_of(request, "redis")
    repo = make_repo(
        settings={"shared": {"connection_string": server["connection_string"], "timeout": "1s"}},
        ttl_map={"default": {"ttl": "30s", "negative_ttl": "5s"}, "counts": {"cache": "never"}},
    )
    repo.apply(
        USER,
        repo.view("profile", {"age": Int64, "score": Float64}),
        repo.view("counts", {"n1": Int64}),
    )
    put(repo, "profile", user_id=[1, 2], age=[10, 20], score=[0.5, 1.5])
    put(repo, "counts", user_id=[1], n1=[1])
    return repo


def test_the_next_read_is_as_it_says(shared_shop: Repo) -> None:
    """After random reads, writes, drops of the memory and waits: memory, shared tier or source."""
    repo, chance, seen = shared_shop, random.Random(3), set()
    hot = hotplate.of(repo.hot)
    for number in range(120):
        for _ in range(chance.randrange(3)):
            kind, user = chance.choice("rrwmt"), chance.randrange(1, 4)
            if kind == "r":
                repo.hot.get_online_features(FEATURES, {"user_id": [user]})
            elif kind == "w":
                put(repo, "profile", day(number), user_id=[user % 2 + 1], age=[number], score=[1.0])
            elif kind == "m":
                view = hot.runtime.domain.views_named(repo.hot.project, "profile")
                hot.runtime.domain.invalidate_views(view)
            else:
                repo.clock.advance(chance.choice([1, 4, 40]))
        user = chance.randrange(1, 4)
        (found,) = hot.inspect("profile", {"user_id": user})
        before = hot.stats().groups["profile"]
        answer = repo.hot.get_online_features(FEATURES, {"user_id": [user]}).to_dict()
        after = hot.stats().groups["profile"]
        did = (after.hits - before.hits, after.hits_shared - before.hits_shared)
        expected = found.next_read.partition(":")[0]
        seen.add(expected)
        assert {(1, 0): "from memory", (0, 1): "from the shared tier", (0, 0): "from the source"}[
            did
        ] == expected
        served = found.memory if did == (1, 0) else found.shared if did == (0, 1) else None
        values = found.source if served is None else served.values
        assert answer["age"] == [None if not values else values["age"]]
    assert seen == {"from memory", "from the shared tier", "from the source"}


def test_it_says_how_old_and_until_when(shared_shop: Repo) -> None:
    """Age from before the read of the source, the end by ttl and jitter, and whether it still is
    what the source says."""
    repo = shared_shop
    hot = hotplate.of(repo.hot)
    repo.hot.get_online_features(FEATURES, {"user_id": [1]})
    repo.clock.advance(7)
    repo.write("profile", repo.bare, event_time=[day(1)], user_id=[1], age=[11], score=[0.5])
    (found,) = hot.inspect("profile", "user_id=1")
    assert found.memory is not None
    assert found.shared is not None
    for held in (found.memory, found.shared):
        assert held.age_s == pytest.approx(7, abs=0.01)
        assert held.expires_in_s is not None
        assert 27 - 7 <= held.expires_in_s <= 30 - 7
        assert (held.values["age"], held.is_as_source) == (10, False)
    assert found.source is not None
    assert found.source["age"] == 11
    assert found.policy["ttl"] == "30s"


def test_what_is_never_kept_and_who_is_not_there(shared_shop: Repo) -> None:
    """A policy that keeps nothing says where it is said; an unknown entity is absent."""
    hot = hotplate.of(shared_shop.hot)
    (never,) = hot.inspect("counts", {"user_id": 1})
    assert never.next_read.startswith("from the source: the policy keeps nothing")
    assert never.source == {"n1": 1}
    (unknown,) = hot.inspect("profile", {"user_id": 77})
    assert unknown.source is None
    with pytest.raises(KeyError, match="no group or feature view 'prifile'"):
        hot.inspect("prifile", {"user_id": 1})
    with pytest.raises(EntityError, match="an entity is written"):
        hot.inspect("profile", "user=1")
    with pytest.raises(KeyError, match="name one entity"):
        hot.inspect("profile", {"user_id": [1, 2]})


def test_a_group_that_is_taken_out_is_in_no_tier(shared_shop: Repo) -> None:
    """What was wrong in memory may have come from the shared tier, or gone there: let back, the
    group begins with the source."""
    repo = shared_shop
    hot = hotplate.of(repo.hot)
    repo.hot.get_online_features(FEATURES, {"user_id": [1]})
    assert hot.inspect("profile", {"user_id": 1})[0].shared is not None
    hot.runtime.exclude("profile", "as a test says")
    hot.admit("profile")
    (found,) = hot.inspect("profile", {"user_id": 1})
    assert (found.memory, found.shared) == (None, None)
    assert found.next_read.startswith("from the source")


def test_a_source_that_fails_is_named(shared_shop: Repo) -> None:
    """The tiers are shown although the source does not answer, and no value is in its error."""
    repo = shared_shop
    hot = hotplate.of(repo.hot)
    repo.hot.get_online_features(FEATURES, {"user_id": [1]})
    hot.runtime.engine.source = _Failing()
    (found,) = hot.inspect("profile", {"user_id": 1})
    assert (found.source_error, found.source) == ("OSError", None)
    assert found.memory is not None
    assert found.memory.is_as_source is None


class _Failing:
    def load(self, requests: Any) -> Any:
        raise OSError("user 1 is secret")

    async def load_async(self, requests: Any) -> Any:
        raise OSError("user 1 is secret")
