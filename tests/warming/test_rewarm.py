"""What was hot and had to be forgotten is read again: at a rate that holds, and not for nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from feast.types import Float64, Int64
from hypothesis import given
from hypothesis import strategies as st

import hotplate
from hotplate.errors import ConfigError
from hotplate.online_store import CachedOnlineStoreConfig
from hotplate.serving.rewarm import Rewarmer

from ..stores import Repo, await_
from .test_preload import use
from .test_warm import loads
from .test_warmer import Time


@pytest.fixture
def shop(logged: Callable[..., Repo]) -> Callable[..., Any]:
    """Makes shops that read again what they forget."""

    def make(rate: str | int = "1000/s", **said: Any) -> tuple[Repo, Any]:
        repo = logged()
        return repo, repo.open_hot(rewarm=rate, ttl_map={"default": "1h"}, **said)

    return make


def rewarmer(store: Any) -> Rewarmer:
    found = hotplate.of(store).runtime.rewarmer
    assert found is not None
    return found


def read_again(store: Any) -> int:
    return rewarmer(store).stats().read


def test_a_row_that_was_written_is_there_when_it_is_asked_for(shop: Callable[..., Any]) -> None:
    repo, store = shop()
    use(store, range(5))
    repo.write("profile", store, user_id=[1, 2, 150], age=[71, 72, 73], score=[0.0, 0.0, 0.0])
    await_(lambda: read_again(store) == 2)
    before = loads(store)
    for user, age in ((1, 71), (2, 72), (3, 3)):
        found = store.get_online_features(["profile:age"], {"user_id": [user]}).to_dict()
        assert found["age"] == [age]
    assert loads(store) == before, "150 was not in memory, and is not read"


def test_a_group_that_is_forgotten_as_a_whole_comes_back(shop: Callable[..., Any]) -> None:
    """Under new keys: the old ones mean nothing any more."""
    _, store = shop()
    use(store, range(30))
    assert hotplate.of(store).invalidate("profile") == 30
    await_(lambda: read_again(store) == 30)
    before = loads(store)
    use(store, range(30))
    assert loads(store) == before


@given(
    st.integers(1, 400), st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(0, 200)
)
def test_the_rate_holds(limit: int, batches: list[int], takes_ms: int) -> None:
    """In every second, whatever is forgotten when, and however slow the source is."""
    from hotplate.codec import Layout
    from hotplate.contracts import View
    from hotplate.keys import EntityShape, ViewIdentity

    clock = Time()
    seen: list[tuple[float, int]] = []
    shape = EntityShape(("user_id",), ("int64_val",))
    view = View(ViewIdentity("p", "v", "v", (), shape), Layout([]), 1)

    class _Bound:
        is_cached = True

    class _Engine:
        class clock:
            now_ns = staticmethod(lambda: 0)

        def read(self, wants: Any, now_ns: int, *, is_rehearsed: bool) -> None:
            assert is_rehearsed
            seen.append((clock.now, sum(len(want.keys) for want in wants)))
            clock.now += takes_ms / 1_000

    engine: Any = _Engine()
    bound: Any = _Bound()
    made = Rewarmer(
        engine, limit, lambda token: view, lambda table: (view, bound, None), clock, clock.sleep
    )  # type: ignore[arg-type]
    made._start = lambda: None  # type: ignore[method-assign]
    made._tables[view] = object()
    number = 0
    for count in batches:
        made.note_forgotten([view.key((number + at,)) for at in range(count)])
        number += count
        clock.now += 0.05
        while made.step():
            pass
    assert sum(count for _, count in seen) == number
    for at, _ in seen:
        assert sum(count for moment, count in seen if at <= moment < at + 1) <= limit


def test_what_nobody_reads_is_left_alone_after_a_while(shop: Callable[..., Any]) -> None:
    repo, store = shop()
    use(store, range(2))
    for turn in range(1, 13):
        repo.write("profile", store, user_id=[1], age=[turn], score=[0.0])
        await_(lambda turn=turn: read_again(store) == min(turn, 8))
        rewarmer(store).drain()
    stats = rewarmer(store).stats()
    assert (stats.read, stats.spared) == (8, 1), "then it is no longer in memory at all"
    before = loads(store)["profile"]
    found = store.get_online_features(["profile:age"], {"user_id": [1]}).to_dict()
    assert (found["age"], loads(store)["profile"]) == ([12], before + 1)
    repo.write("profile", store, user_id=[1], age=[50], score=[0.0])
    await_(lambda: read_again(store) == 9)


def test_what_was_written_while_it_was_read_again_is_not_kept(shop: Callable[..., Any]) -> None:
    repo, store = shop()
    use(store, range(3))
    engine = hotplate.of(store).runtime.engine
    inner = engine.source.load
    writes: list[int] = []

    def load(requests: Any) -> Any:
        rows = inner(requests)
        if not writes:  # whoever reads now has read what is about to be replaced
            writes.append(len(writes))
            repo.write("profile", store, user_id=[1], age=[80 + len(writes)], score=[0.0])
        return rows

    engine.source.load = load  # type: ignore[method-assign]
    repo.write("profile", store, user_id=[1], age=[80], score=[0.0])
    await_(lambda: read_again(store) == 1)
    found = store.get_online_features(["profile:age"], {"user_id": [1]}).to_dict()
    assert found["age"] == [81]


def test_a_source_that_fails_is_asked_again_later(
    shop: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotplate.serving.rewarm._PAUSE_S", 0.01)
    repo, store = shop()
    use(store, range(3))
    engine = hotplate.of(store).runtime.engine
    inner = engine.source.load

    def fails(requests: Any) -> Any:
        raise OSError("away")

    engine.source.load = fails  # type: ignore[method-assign]
    repo.write("profile", store, user_id=[1], age=[80], score=[0.0])
    await_(lambda: rewarmer(store).stats().errors == 1)
    engine.source.load = inner  # type: ignore[method-assign]
    found = store.get_online_features(["profile:age"], {"user_id": [1]}).to_dict()
    assert found["age"] == [80]
    repo.write("profile", store, user_id=[1], age=[81], score=[0.0])
    await_(lambda: read_again(store) == 1)


def test_more_than_may_wait_is_dropped_and_counted(
    shop: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotplate.serving.rewarm._WAITING_MOST", 10)
    _, store = shop("1/s")
    use(store, range(50))
    rewarmer(store)._start = lambda: None  # type: ignore[method-assign]
    hotplate.of(store).invalidate("profile")
    assert rewarmer(store).stats().dropped == 40
    assert len(rewarmer(store)._waiting) == 10


def test_to_forget_a_million_rows_holds_up_no_request(shop: Callable[..., Any]) -> None:
    """Of so many only the latest are noted, and in steps."""
    _, store = shop("1/s")
    use(store, range(2))
    made = rewarmer(store)
    made._start = lambda: None  # type: ignore[method-assign]
    (view,) = [view for view in made._tables if view.identity.view == "profile"]
    keys = [view.key((number,)) for number in range(1_000_000)]
    inner, steps = made._note, []

    def noted(entities: Any) -> None:
        assert made._lock.locked()
        steps.append(len(entities))
        inner(entities)

    made._note = noted  # type: ignore[method-assign]
    made.note_forgotten(keys)
    assert (sum(steps), max(steps)) == (10_000, 500), "requests pass in between"
    assert made.stats().dropped == 990_000


def test_a_view_that_is_no_longer_cached_is_not_read(shop: Callable[..., Any]) -> None:
    repo, store = shop()
    use(store, range(3))
    rewarmer(store)._start = lambda: None  # type: ignore[method-assign]
    hotplate.of(store).invalidate("profile")
    never = hotplate.CachePolicy(cache="never").tags()
    store.apply([repo.view("profile", {"age": Int64, "score": Float64}, tags=never)])
    store.get_online_features(["counts:n1"], {"user_id": [1]}).to_dict()
    before = loads(store)
    while rewarmer(store).step():
        pass
    assert loads(store) == before
    assert read_again(store) == 0


def test_nothing_is_read_again_unless_that_is_asked_for(logged: Callable[..., Repo]) -> None:
    def threads() -> set[int | None]:
        return {one.ident for one in threading.enumerate() if one.name == "hotplate-rewarm"}

    before = threads()
    repo = logged()
    use(repo.hot, range(3))
    repo.write("profile", repo.hot, user_id=[1], age=[1], score=[0.0])
    assert repo.cache.stats().rewarm is None
    assert threads() <= before


@pytest.mark.parametrize("said", ["fast", 0, "0/s", 1.5, True])
def test_a_rate_that_is_none_is_refused(said: Any) -> None:
    with pytest.raises(ConfigError, match="is no rate: write '500/s'"):
        CachedOnlineStoreConfig(store={"type": "sqlite"}, rewarm=said)
