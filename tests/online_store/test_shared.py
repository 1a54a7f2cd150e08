"""Promises 1, 3, 8, 9 and 10 through the shared tier: what one process loaded, for the others."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client
import yaml
from feast import FeatureStore
from feast.types import Array, Int64, String

import hotplate
from hotplate import Tier
from hotplate.clock import FakeClock
from hotplate.embedded import EmbeddedServer
from hotplate.errors import ConfigError
from hotplate.invalidation import local
from hotplate.servers import pool as pool_module
from hotplate.tiers.shared import SharedTier
from pipelines.lab.programs import redis_server
from pipelines.lab.proxy import Proxy
from pipelines.lab.servers import frozen

from ..stores import CACHED, USER, Repo, await_

AGE = ["v:age"]
ONE = [{"user_id": 1}]
T0 = datetime(2026, 1, 1, tzinfo=UTC)
TTL = {"default": {"ttl": "60s", "jitter": 0, "negative_ttl": "5s"}}


class Fleet:
    """Several caches over one SQLite store, each as if in a process of its own."""

    def __init__(self, folder: Path, shared: dict[str, Any], ttl_map: dict[str, Any]) -> None:
        self.clock = FakeClock()
        self.repo = Repo(
            folder,
            {"type": "sqlite"},
            ttl_map=ttl_map,
            settings={"shared": shared},
            clock=self.clock,
        )
        self.repo.apply(USER, self.repo.view("v", {"age": Int64, "notes": Array(String)}))
        self.moment = 0

    def join(self, **changes: Any) -> FeatureStore:
        """Another cache that shares nothing with the others but the server."""
        local._domains.clear()  # as another process would have a domain of its own
        store = self.repo.open_hot(**changes)
        hotplate.of(store).runtime  # noqa: B018 - binds the domain now
        return store

    def write(self, age: int, user: int = 1, through: Any = None, notes: Any = ()) -> None:
        self.moment += 1
        self.repo.write(
            "v",
            through or self.repo.bare,
            user_id=[user],
            age=[age],
            notes=[list(notes)],
            event_time=[T0 + timedelta(seconds=self.moment)],
        )


@pytest.fixture
def fleet(tmp_path: Path, server: EmbeddedServer, client: Any) -> Fleet:
    # a long deadline: on a busy machine 5 ms pass without anybody being at fault
    shared = {"connection_string": server.connection_string, "timeout": "2s"}
    fleet = Fleet(tmp_path, shared, TTL)
    fleet.write(10)
    return fleet


def read(store: FeatureStore, user: int = 1) -> tuple[Any, Tier]:
    response = store.get_online_features(AGE, [{"user_id": user}])
    return response.to_dict()["age"][0], response.freshness()["v"][0].tier


def age_of(store: FeatureStore) -> float:
    return float(store.get_online_features(AGE, ONE).freshness()["v"][0].age_s)


def group(store: FeatureStore) -> Any:
    return hotplate.of(store).stats().groups["v"]


def shared_stats(store: FeatureStore) -> Any:
    return hotplate.of(store).stats().shared


def test_one_loads_and_the_others_take_it(fleet: Fleet) -> None:
    """The source is asked once, the answer is the same, known absence included."""
    stores = [fleet.join() for _ in range(3)]
    assert [read(store) for store in stores] == [(10, Tier.SOURCE), *[(10, Tier.SHARED)] * 2]
    assert [read(store, 9)[0] for store in stores] == [None] * 3
    assert [group(store).loads for store in stores] == [2, 0, 0]
    assert [read(store) for store in stores] == [(10, Tier.MEMORY)] * 3
    bare = fleet.repo.bare.get_online_features(AGE, [{"user_id": 1}, {"user_id": 9}])
    got = stores[2].get_online_features(AGE, [{"user_id": 1}, {"user_id": 9}])
    assert got.proto == bare.proto


def test_tiers_never_add_up_to_more_than_the_ttl(fleet: Fleet) -> None:
    """A row from the shared tier carries the age it has, in every cache it passes through."""
    first, second, third = (fleet.join() for _ in range(3))
    read(first)
    fleet.write(11)
    fleet.clock.advance(59)
    assert read(second) == (10, Tier.SHARED)
    assert age_of(second) == pytest.approx(59, abs=1)
    fleet.clock.advance(1.5)
    assert read(second) == (11, Tier.SOURCE)
    assert read(third) == (11, Tier.SHARED)
    assert read(first) == (11, Tier.SHARED)


def test_what_memory_had_may_expire_while_the_server_is_asked(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request with one row from memory and one from the server: both are fresh in the end."""
    first, second = fleet.join(), fleet.join()
    fleet.write(20, user=2)
    assert read(second)[0] == 10
    fleet.clock.advance(59)
    fleet.write(11)
    assert read(first, user=2)[0] == 20
    look = SharedTier.look

    def takes_long(self: SharedTier, asked: Any) -> Any:
        found = look(self, asked)
        fleet.clock.advance(2)
        return found

    monkeypatch.setattr(SharedTier, "look", takes_long)
    both = second.get_online_features(AGE, [{"user_id": 1}, {"user_id": 2}])
    assert both.to_dict()["age"] == [11, 20]
    tiers = [row.tier for row in both.freshness()["v"]]
    assert tiers == [Tier.SOURCE, Tier.SHARED]


def test_the_channel_may_fall_silent_while_the_server_is_asked(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event-coherent row of the shared tier is served only if all has been heard by then."""
    event = {"default": {"ttl": "60s", "coherence": "event"}}
    first, second = fleet.join(ttl_map=event), fleet.join(ttl_map=event)
    look, looked = SharedTier.look, []

    def falls_silent(self: SharedTier, asked: Any) -> Any:
        found = look(self, asked)
        looked.append([one.row is not None for one in found])
        parts = hotplate.of(second).runtime.coherence.parts()
        assert parts is not None
        parts[0].close()
        return found

    await_(lambda: read(second)[1] is Tier.MEMORY)  # its channel is whole
    memory = hotplate.of(second).runtime.engine.memory
    memory.forget(memory.recent(9))
    await_(lambda: read(first)[1] is Tier.MEMORY)
    monkeypatch.setattr(SharedTier, "look", falls_silent)
    fleet.write(11)  # behind everybody's back
    assert read(second) == (11, Tier.SOURCE)
    assert looked == [[True]]


def test_a_stepped_wall_clock_never_makes_a_row_younger(fleet: Fleet) -> None:
    """Back or forth, of the reader or of the writer."""
    first, second = fleet.join(), fleet.join()
    read(first)
    fleet.write(11)
    for step_s in (-3600.0, 7200.0):
        fleet.clock._wall_ns += round(step_s * 1e9)
        value, _ = read(second)
        assert value in (10, 11)
        assert age_of(second) >= 0
        hotplate.of(second).runtime.domain.invalidate_all("shop")
    # an hour ahead it seemed an hour old, and was loaded again
    assert read(second) == (11, Tier.SHARED)


def test_a_policy_of_its_own_ttl(fleet: Fleet) -> None:
    """A cache with a shorter ttl does not take what is too old for it."""
    patient, hasty = fleet.join(), fleet.join(ttl_map={"default": {"ttl": "5s", "jitter": 0}})
    read(patient)
    fleet.write(11)
    fleet.clock.advance(6)
    assert read(hasty) == (11, Tier.SOURCE)
    assert read(fleet.join()) == (11, Tier.SHARED)
    assert read(patient) == (10, Tier.MEMORY)


def test_an_invalidation_reaches_the_shared_tier(fleet: Fleet) -> None:
    """Of an entity, by a write, of a view, of everything; and nothing else is touched."""
    store = fleet.join()
    cache = hotplate.of(store)
    fleet.write(20, user=2)
    for forget in (
        lambda: cache.invalidate("v", {"user_id": 1}),
        lambda: fleet.write(12, through=store),
        lambda: cache.invalidate("v"),
        cache.clear,
    ):
        read(store)
        forget()
        assert read(fleet.join())[1] is Tier.SOURCE
    read(store, 2)
    cache.invalidate("v", {"user_id": 1})
    assert read(fleet.join(), 2)[1] is Tier.SHARED


def test_an_invalidation_reaches_versions_that_only_others_read(
    tmp_path: Path, server: EmbeddedServer, client: Any
) -> None:
    """A process that never read an old version of a view removes its entities all the same."""
    repo = Repo(
        tmp_path,
        {"type": "sqlite"},
        registry={"enable_online_feature_view_versioning": True},
        settings={"shared": {"connection_string": server.connection_string, "timeout": "2s"}},
        ttl_map=TTL,
    )
    for schema in ({"age": Int64}, {"age": Int64, "city": String}, {"age": Int64, "size": Int64}):
        repo.apply(USER, repo.view("v", schema))
        repo.write("v", user_id=[1], **{name: [None] for name in schema} | {"age": [len(schema)]})

    def tiers() -> list[Tier]:
        local._domains.clear()
        store = repo.open_hot()
        asked = [["v@v0:age"], ["v@v1:age"], ["v:age"]]
        return [
            next(iter(store.get_online_features(one, ONE).freshness().values()))[0].tier
            for one in asked
        ]

    assert tiers() == [Tier.SOURCE] * 3
    assert tiers() == [Tier.SHARED] * 3
    local._domains.clear()
    hotplate.of(repo.open_hot()).invalidate("v", {"user_id": 1})
    assert tiers() == [Tier.SOURCE] * 3


def test_a_load_that_began_before_an_invalidation_is_not_kept(fleet: Fleet) -> None:
    """Not in the shared tier either."""
    slow, writer = fleet.join(), fleet.join()
    source = hotplate.of(slow).runtime.engine.source
    load = source.load

    def load_and_be_overtaken(requests: Any) -> Any:
        rows = load(requests)
        fleet.write(11)
        hotplate.of(writer).invalidate("v", {"user_id": 1})
        return rows

    source.load = load_and_be_overtaken  # type: ignore[method-assign]
    assert read(slow) == (10, Tier.SOURCE)
    assert shared_stats(slow).fills_refused == 1
    assert read(fleet.join()) == (11, Tier.SOURCE)


def test_the_others_wait_for_the_one_that_loads(fleet: Fleet) -> None:
    """And take what it brings, on threads and on a loop."""
    slow, *others = (fleet.join() for _ in range(3))
    source = hotplate.of(slow).runtime.engine.source
    load, is_loading, may_end = source.load, threading.Event(), threading.Event()

    def held_load(requests: Any) -> Any:
        is_loading.set()
        assert may_end.wait(30)
        return load(requests)

    source.load = held_load  # type: ignore[method-assign]
    with ThreadPoolExecutor(3) as pool:
        loading = pool.submit(read, slow)
        assert is_loading.wait(30)
        waiting = [pool.submit(read, other) for other in others]
        time.sleep(0.1)
        assert not any(one.done() for one in waiting)
        may_end.set()
        assert loading.result(30) == (10, Tier.SOURCE)
        assert [one.result(30) for one in waiting] == [(10, Tier.SHARED)] * 2
    assert [group(other).loads for other in others] == [0, 0]


def test_a_loader_that_dies_is_not_waited_for_long(
    tmp_path: Path, server: EmbeddedServer, client: Any
) -> None:
    """Its lease ends, another takes it; a source that fails gives the lease back at once."""
    shared = {"connection_string": server.connection_string, "timeout": "2s", "lease": "300ms"}
    fleet = Fleet(tmp_path, shared, TTL)
    fleet.write(10)
    dead, alive, third = (fleet.join() for _ in range(3))

    def die(requests: Any) -> Any:
        raise SystemExit  # what ends a thread in the middle of a load

    hotplate.of(dead).runtime.engine.source.load = die  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        read(dead)
    began = time.monotonic()
    assert read(alive) == (10, Tier.SOURCE)
    assert 0.1 < time.monotonic() - began < 10
    assert read(third) == (10, Tier.SHARED)

    def fail(requests: Any) -> Any:
        raise ConnectionError("away")

    hotplate.of(dead).runtime.engine.source.load = fail  # type: ignore[method-assign]
    hotplate.of(alive).invalidate("v", {"user_id": 1})
    with pytest.raises(ConnectionError):
        read(dead)
    assert not client.exists("hotplate:row:shop:v:user_id:int64_val:1")


def test_what_does_not_verify_is_a_miss(fleet: Fleet, client: Any) -> None:
    """Garbage, a flipped bit, another version, another key's entry, a list: each is replaced."""
    store = fleet.join()
    fleet.write(20, user=2)
    read(store)
    read(store, 2)
    key, other = (f"hotplate:row:shop:v:user_id:int64_val:{user}" for user in (1, 2))
    entry = client.get(key)
    bad = [
        b"",
        b"\x01",
        b"garbage" * 20,
        b"\x02" + entry[1:],
        *(entry[:at] + bytes([entry[at] ^ 1]) + entry[at + 1 :] for at in (2, 6, 14, 50, 60, 90)),
        entry[:-1],
        client.get(other),
    ]
    rejected = 0
    for count, value in enumerate(bad, 1):
        client.set(key, value)
        reader = fleet.join()
        assert read(reader) == (10, Tier.SOURCE), value
        rejected += shared_stats(reader).rejected
        assert rejected == count
        assert read(fleet.join()) == (10, Tier.SHARED)
    client.delete(key)
    client.rpush(key, "a", "list")
    assert read(fleet.join())[0] == 10
    assert read(fleet.join()) == (10, Tier.SOURCE)


def test_another_schema_and_another_project_are_other_entries(fleet: Fleet) -> None:
    """A column more, and a project whose name begins alike."""
    old = fleet.join()
    read(old)
    repo = fleet.repo
    repo.apply(USER, repo.view("v", {"age": Int64, "notes": Array(String), "size": Int64}))
    new = fleet.join()
    assert read(new)[1] is Tier.SOURCE
    assert new.get_online_features(["v:size"], ONE).to_dict()["size"] == [None]


def test_clearing_one_project_touches_no_other(
    tmp_path: Path, server: EmbeddedServer, client: Any
) -> None:
    """Project `a` is no part of project `data`, nor of `a:v`."""
    shared = {"connection_string": server.connection_string, "timeout": "2s"}
    stores = {}
    for name in ("a", "data", "a:v", "a%3Av"):
        repo = Repo(
            tmp_path / name.replace(":", "_"),
            {"type": "sqlite"},
            project=name.replace(":", "_").replace("%", "_"),
            settings={"shared": shared},
            ttl_map=TTL,
        )
        repo.apply(USER, repo.view("v", {"age": Int64}))
        repo.write("v", user_id=[1], age=[10])
        read(repo.hot)
        stores[name] = repo
    before = {key: client.get(key) for key in client.keys("hotplate:row:*") if b":a:" not in key}
    hotplate.of(stores["a"].hot).clear()
    assert {key: client.get(key) for key in before} == before
    assert len(before) == 3
    fields = {key: client.hgetall(key) for key in client.keys("hotplate:generations:*")}
    assert len(fields) == 4


def test_large_rows_stay_out(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """Counted, logged, and still answered."""
    store = fleet.join()
    fleet.write(1, user=3, notes=["x" * 600_000, "y" * 600_000])
    assert read(store, 3) == (1, Tier.SOURCE)
    assert shared_stats(store).too_large == 1
    assert "stays out of the shared tier" in caplog.text
    assert read(fleet.join(), 3) == (1, Tier.SOURCE)


def test_a_frozen_server_is_left_alone(fleet: Fleet, server: EmbeddedServer) -> None:
    """Reads come from the source after one deadline; an invalidation is made up for."""
    fast = {"connection_string": server.connection_string, "timeout": "50ms"}
    store, other = fleet.join(shared=fast), fleet.join()
    read(store)
    read(other)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        hotplate.of(store).runtime.domain.invalidate_all("shop")
        began = time.monotonic()
        assert read(store) == (10, Tier.SOURCE)
        assert time.monotonic() - began < 5
        assert not shared_stats(store).is_usable
        fleet.write(11, through=store)
        assert shared_stats(store).owed > 0
        assert read(store) == (11, Tier.SOURCE)
        hotplate.of(store).runtime.domain.invalidate_all("shop")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    deadline = time.monotonic() + 20
    while not shared_stats(store).is_usable:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert shared_stats(store).owed == 0
    assert read(store)[0] == 11
    assert read(fleet.join())[0] == 11


@pytest.mark.parametrize("fault", ["frozen", "black hole", "full backlog"])
def test_nobody_waits_for_a_connection_to_a_frozen_server(
    tmp_path: Path, own_server: EmbeddedServer, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections and never answers: a process that has none reads the source."""
    monkeypatch.setattr(pool_module, "CONNECT_TIMEOUT_S", 60.0)
    with Proxy((own_server.host, own_server.port)) as proxy, ExitStack() as stack:
        at = {
            "frozen": own_server.connection_string,
            "black hole": proxy.connection_string,
            "full backlog": stack.enter_context(full_backlog()),
        }[fault]
        fleet = Fleet(tmp_path, {"connection_string": at}, TTL)
        fleet.write(10)
        if fault == "frozen":
            stack.enter_context(frozen(own_server))
        proxy.blackhole()
        store = fleet.join()
        began = time.monotonic()
        for user in (1, 2, 3):
            assert read(store, user)[1] is Tier.SOURCE
        assert time.monotonic() - began < 30
        assert shared_stats(store).errors == 3
        assert shared_stats(store).opened == 0, "it may just be far away"
        hotplate.of(store).runtime.close()


@contextmanager
def full_backlog() -> Iterator[str]:
    """An address that does not even take connections, without refusing them."""
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_an_entry_that_trickles_in_is_not_waited_for(fleet: Fleet, server: EmbeddedServer) -> None:
    """The deadline is that of the whole exchange, not of each of its parts."""
    fleet.write(10, notes=["x" * 100_000])
    read(fleet.join())
    with Proxy((server.host, server.port)) as proxy:
        slow = {"connection_string": proxy.connection_string, "timeout": "200ms"}
        store = fleet.join(shared=slow)
        read(store, 2)
        proxy.limit(to_client=20_000)
        began = time.monotonic()
        assert read(store) == (10, Tier.SOURCE)
        assert time.monotonic() - began < 3
        hotplate.of(store).runtime.close()


def test_what_was_deleted_may_come_back_with_a_restart(tmp_path: Path) -> None:
    """From a snapshot, or on a replica that had not heard of it: nobody believes it."""
    with redis_server() as own, redis_client.Redis(port=own.port) as admin:
        fleet = Fleet(tmp_path, {"connection_string": own.connection_string, "timeout": "2s"}, TTL)
        fleet.write(10)
        store = fleet.join()
        read(store)
        snapshot = {key: admin.dump(key) for key in admin.keys("hotplate:*")}
        fleet.write(11, through=store)
        own.restart()
        for key, value in snapshot.items():
            admin.restore(key, 60_000, value)
        for _ in range(2):
            assert read(store)[0] == 11
            hotplate.of(store).runtime.domain.invalidate_all("shop")
            deadline = time.monotonic() + 20
            while not shared_stats(store).is_usable:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert read(store)[0] == 11
        hotplate.of(store).runtime.close()


def test_a_full_server_is_read_but_not_written(fleet: Fleet, client: Any) -> None:
    """Out of memory: what is there is used, the rest is loaded."""
    store = fleet.join()
    fleet.write(20, user=2)
    read(store)
    client.config_set("maxmemory", 1)
    try:
        other = fleet.join()
        assert read(other) == (10, Tier.SHARED)
        assert read(other, 2) == (20, Tier.SOURCE)
        fleet.write(11, through=other)
        assert read(other)[0] == 11
        assert read(fleet.join())[0] == 11
    finally:
        client.config_set("maxmemory", 0)


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    """From the first request on, the source answers; nothing is raised."""
    shared = {"connection_string": "127.0.0.1:1,password=hunter2"}
    fleet = Fleet(tmp_path, shared, TTL)
    fleet.write(10)
    store = fleet.join()
    assert [read(store) for _ in range(3)] == [(10, Tier.SOURCE), *[(10, Tier.MEMORY)] * 2]
    fleet.write(11, through=store)
    assert read(store)[0] == 11
    assert "hunter2" not in repr(shared_stats(store)) + repr(store.config.online_store)


def test_async_reads_take_from_the_shared_tier(
    tmp_path: Path, server: EmbeddedServer, client: Any, redis: EmbeddedServer
) -> None:
    """Around a Redis store, where it is asked for, on one loop after the other."""
    online = {"type": "redis", "connection_string": redis.connection_string}
    shared = {"connection_string": server.connection_string, "timeout": "2s", "tier": True}
    repo = Repo(tmp_path, online, project="async_shared", settings={"shared": shared}, ttl_map=TTL)
    repo.apply(USER, repo.view("v", {"age": Int64}))
    repo.write("v", user_id=[1], age=[10])

    async def ask(store: FeatureStore) -> tuple[Any, Tier]:
        response = await store.get_online_features_async(AGE, ONE)
        tier = response.freshness()["v"][0].tier
        await store._get_provider().online_store.close()
        return response.to_dict()["age"][0], tier

    assert asyncio.run(ask(repo.hot)) == (10, Tier.SOURCE)
    hotplate.of(repo.hot).runtime.domain.invalidate_all("async_shared")
    assert asyncio.run(ask(repo.hot)) == (10, Tier.SHARED)


def test_async_reads_do_not_queue_behind_the_application(
    tmp_path: Path, server: EmbeddedServer, client: Any, redis: EmbeddedServer
) -> None:
    """The loop's own executor is full of work that does not end."""
    online = {"type": "redis", "connection_string": redis.connection_string}
    shared = {"connection_string": server.connection_string, "timeout": "2s", "tier": True}
    repo = Repo(tmp_path, online, project="queues", settings={"shared": shared}, ttl_map=TTL)
    repo.apply(USER, repo.view("v", {"age": Int64}))
    repo.write("v", user_id=[1], age=[10])
    read(repo.hot)
    may_end = threading.Event()

    async def ask() -> Tier:
        repo.cache.runtime.domain.invalidate_all("queues")
        busy = [asyncio.ensure_future(asyncio.to_thread(may_end.wait, 60)) for _ in range(64)]
        try:
            reading = repo.hot.get_online_features_async(AGE, ONE)
            response = await asyncio.wait_for(reading, 30)
        finally:
            may_end.set()
            await asyncio.gather(*busy)
        await repo.hot._get_provider().online_store.close()
        tier: Tier = response.freshness()["v"][0].tier
        return tier

    assert asyncio.run(ask()) is Tier.SHARED


def test_around_redis_it_is_off_unless_asked_for(
    tmp_path: Path, server: EmbeddedServer, client: Any
) -> None:
    """A second Redis before the first one saves nothing."""
    server_at = {"connection_string": server.connection_string}
    repo = Repo(tmp_path, {"type": "redis", **server_at}, settings={"shared": server_at})
    repo.apply(USER, repo.view("v", {"age": Int64}))
    repo.write("v", user_id=[1], age=[10])
    read(repo.hot)
    assert repo.cache.stats().shared is None
    assert not client.keys("hotplate:row:*")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timeout": "0s"}, "no time to wait"),
        ({"timeout": "none"}, "no time to wait"),
        ({"lease": "soon"}, "duration"),
        ({"max_row_bytes": "-1MB"}, "bytes|size"),
        ({"tire": True}, "tire"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    """By name, and without the password beside it."""
    shared = {"connection_string": "localhost:6379,password=hunter2", **settings}
    with pytest.raises(Exception, match=message) as caught:
        Repo(tmp_path, {"type": "sqlite"}, settings={"shared": shared})
    assert "hunter2" not in str(caught.value)
    assert isinstance(caught.value, ConfigError) or "shared" in str(caught.value)


STAMPEDE = """
import sys, threading, warnings
warnings.simplefilter("ignore")
from concurrent.futures import ThreadPoolExecutor
from feast import FeatureStore
import hotplate
store = FeatureStore(repo_path=sys.argv[1])
store.get_online_features(["v:age"], [{"user_id": -1}])
source = hotplate.of(store).runtime.engine.source
load = source.load
count = [0]
def slow_load(requests):
    count[0] += sum(len(request.keys) for request in requests)
    threading.Event().wait(0.02)
    return load(requests)
source.load = slow_load
print("ready", flush=True)
sys.stdin.readline()
def work(number):
    for user in range(40):
        got = store.get_online_features(["v:age"], [{"user_id": user}]).to_dict()["age"]
        assert got == [user], got
with ThreadPoolExecutor(16) as pool:
    list(pool.map(work, range(16)))
print(count[0], flush=True)
"""


@pytest.mark.heavy
def test_one_load_across_processes(tmp_path: Path, redis: EmbeddedServer) -> None:
    """3 processes of 16 threads on 40 cold keys ask the source 40 times."""
    users = list(range(40))
    repo = Repo(tmp_path, {"type": "sqlite"}, project="stampede")
    repo.apply(USER, repo.view("v", {"age": Int64}))
    repo.write("v", user_id=users, age=users)
    shared = {"connection_string": redis.connection_string, "timeout": "30s", "lease": "30s"}
    settings = {
        "project": repo.project,
        "provider": "local",
        "registry": str(repo.folder / "registry.db"),
        "entity_key_serialization_version": 3,
        "online_store": {
            "type": CACHED,
            "store": repo.online,
            "ttl_map": {"default": "1h"},
            "shared": shared,
        },
    }
    (repo.folder / "feature_store.yaml").write_text(yaml.safe_dump(settings))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STAMPEDE, str(repo.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": "plugins", "PATH": "/usr/bin:/bin"},
        )
        for _ in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        counts = [int(process.communicate(timeout=120)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert sum(counts) == 40


def test_a_forked_child_starts_clean(fleet: Fleet) -> None:
    """With connections of its own, while the parent goes on with its own."""
    store = fleet.join()
    read(store)
    hotplate.of(store).runtime.domain.invalidate_all("shop")
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child
        code = 1
        try:
            code = 0 if read(store) == (10, Tier.SHARED) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert read(store) == (10, Tier.SHARED)


def test_a_child_forked_during_a_fault_recovers(fleet: Fleet, server: EmbeddedServer) -> None:
    """The thread that would find out is its parent's, and so is the one that pays what is owed."""
    store = fleet.join(shared={"connection_string": server.connection_string, "timeout": "50ms"})
    read(store)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        fleet.write(11, through=store)
        assert shared_stats(store).owed > 0
        pid = os.fork()
        if pid == 0:  # pragma: no cover - the child
            code = 1
            try:
                deadline = time.monotonic() + 20
                while not shared_stats(store).is_usable and time.monotonic() < deadline:
                    assert read(store)[0] == 11
                    time.sleep(0.01)
                code = 0 if shared_stats(store).is_usable and read(store)[0] == 11 else 2
            finally:
                os._exit(code)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_cache_that_is_collected_closes_its_connections(fleet: Fleet) -> None:
    """By itself: were it left to the sockets, they would go first, with a warning."""
    store = fleet.join()
    read(store)
    hotplate.of(store).invalidate("v", {"user_id": 1})
    runtime = hotplate.of(store).runtime
    parts, shared = runtime.coherence.parts(), runtime.shared()
    assert parts is not None
    assert shared is not None
    wires = [*parts[1]._wires, *(wire for some in shared._pool._idle.values() for wire in some)]
    assert len(wires) >= 2
    assert all(wire._is_open for wire in wires)
    del runtime, parts, shared, store
    local._domains.clear()
    deadline = time.monotonic() + 20
    while any(wire._is_open for wire in wires):
        assert time.monotonic() < deadline, "it was collected, its connections are open"
        gc.collect()
        time.sleep(0.01)
