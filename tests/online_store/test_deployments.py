"""Promise 8 on each deployment: cluster, sentinels, TLS, users with rights, workers of a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client
from feast import FeatureStore
from feast.types import Int64

import hotplate
from hotplate import Tier
from hotplate.clock import SYSTEM_CLOCK, SystemClock
from hotplate.embedded import EmbeddedServer
from hotplate.invalidation import local
from hotplate.servers import rights as needed
from pipelines.lab.cluster import Cluster
from pipelines.lab.fleet import Nursery
from pipelines.lab.proxy import Proxy
from pipelines.lab.sentinel import SentinelGroup
from pipelines.lab.servers import TlsServer, acl_user, client_of, frozen
from pipelines.lab.stage import Stage, open_stage, over_sqlite
from pipelines.lab.waiting import wait_until

from ..stores import USER, Repo
from .test_faults import assert_right

AGE = ["v:age"]
T0 = datetime(2026, 1, 1, tzinfo=UTC)
SHARED_RIGHTS = list(needed.TIER)
CHANNEL_RIGHTS = [name for name in needed.CHANNEL if name != "client|tracking"]


def rights(names: list[str]) -> list[str]:
    """Of a user that may do this with our keys and channels."""
    return ["~hotplate:*", "&hotplate:*", "&__redis__:invalidate", *(f"+{name}" for name in names)]


# -- a cluster -----------------------------------------------------------------------------------


def shared_of(group: Any, **more: Any) -> dict[str, Any]:
    """Where a deployment is reached, as `shared` wants it."""
    return {name: value for name, value in group.settings.items() if name != "type"} | more


@pytest.mark.heavy
def test_a_cluster_beside_sqlite(tmp_path: Path, nursery: Nursery, own_cluster: Cluster) -> None:
    """Entries on every node; a slot moves, then a node fails and its replica takes over."""
    settings = over_sqlite(tmp_path, shared_of(own_cluster))
    with open_stage(tmp_path, settings, nursery) as fleet:
        stage = Stage(fleet)
        stage.await_well()
        for client in own_cluster.clients[:3]:
            wait_until(lambda client=client: working_until(stage, client))
        slot = own_cluster.clients[0].cluster("keyslot", own_generations(own_cluster))
        moved_to = (own_cluster.owner(slot) + 1) % 3
        assert_right(stage, stage.go_through(moving(own_cluster, slot, moved_to), 0.2))
        assert_right(stage, stage.go_through(failing(own_cluster, 0), 0.2))


def working_until(stage: Stage, client: Any) -> bool:
    stage.run(0.05)
    return any(client.scan_iter("hotplate:row:*"))


def own_generations(cluster: Cluster) -> bytes:
    """The key on which every look depends."""
    (key,) = (key for client in cluster.clients[:3] for key in client.keys("hotplate:gen*"))
    return bytes(key)


@contextmanager
def moving(cluster: Cluster, slot: int, to: int) -> Iterator[None]:
    with cluster.moving(slot, to):
        yield


@contextmanager
def failing(cluster: Cluster, index: int) -> Iterator[None]:
    cluster.fail(index)
    yield


def test_redis_cluster_as_the_store(tmp_path: Path, nursery: Nursery, own_cluster: Cluster) -> None:
    """Tracked on every node, wherever a slot moves; a node that fails may fail reads, no more."""
    with open_stage(tmp_path, {"online": own_cluster.settings}, nursery) as fleet:
        stage = Stage(fleet)
        stage.await_well()
        stage.run(0.3)
        client = own_cluster.clients[0]
        slot = client.cluster("keyslot", client.randomkey())
        report = stage.go_through(moving(own_cluster, slot, 1), 0.3)
        assert not report.wrongs, report.violations
        report = stage.go_through(failing(own_cluster, 0), 0.3)
        assert not report.wrongs, report.violations
        assert report.reads > 100


# -- sentinels -----------------------------------------------------------------------------------


def test_sentinels_beside_sqlite(
    tmp_path: Path, nursery: Nursery, own_sentinels: SentinelGroup
) -> None:
    """The primary dies, its replica takes over."""
    settings = over_sqlite(tmp_path, shared_of(own_sentinels))
    with open_stage(tmp_path, settings, nursery) as fleet:
        stage = Stage(fleet)
        assert_right(stage, stage.go_through(once(own_sentinels.fail_primary), 0.2))


@contextmanager
def once(action: Any) -> Iterator[None]:
    action()
    yield


def test_an_old_primary_that_goes_on_answering(
    tmp_path: Path, nursery: Nursery, own_sentinels: SentinelGroup
) -> None:
    """It cannot be told that it was replaced: whoever talks to it must find out by himself."""
    group = own_sentinels
    settings = over_sqlite(tmp_path, shared_of(group))
    with open_stage(tmp_path, settings, nursery) as fleet:
        stage = Stage(fleet)
        stage.await_well()
        group.clients[0].execute_command("ACL", "SETUSER", "default", "-replicaof", "-slaveof")
        assert_right(stage, stage.go_through(once(group.replace_primary), 1.5))
        assert group.clients[0].info("replication")["role"] == "master"
        assert group.clients[1].info("stats")["pubsub_channels"] > 1


def test_a_sentinel_that_is_cut_off_with_the_old_primary(
    tmp_path: Path, nursery: Nursery, own_sentinels: SentinelGroup
) -> None:
    """It is asked first and goes on naming it: what the others know of is newer."""
    group = own_sentinels
    with lonely_sentinel(group) as lonely:
        settings = shared_of(group)
        settings["connection_string"] = f"{lonely},{settings['connection_string']}"
        with open_stage(tmp_path, over_sqlite(tmp_path, settings), nursery) as fleet:
            stage = Stage(fleet)
            stage.await_well()
            group.clients[0].execute_command("ACL", "SETUSER", "default", "-replicaof", "-slaveof")
            assert_right(stage, stage.go_through(once(group.replace_primary), 1.5))
            assert group.clients[0].info("replication")["role"] == "master"
            assert group.clients[1].info("stats")["pubsub_channels"] > 1
            host, port = lonely.split(":")
            with redis_client.Redis(host=host, port=int(port)) as watcher:
                named = watcher.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")
            assert int(named[1]) == group.proxies[0].port


@contextmanager
def lonely_sentinel(group: SentinelGroup) -> Iterator[str]:
    """The address of one that watches the primary and has no way to hear of the others."""
    name = "lonely"
    # it may talk to the servers, but not on the channel where sentinels meet
    for client in group.clients:
        rights = ("on", ">secret", "~*", "+@all", "-replicaof", "-slaveof", "resetchannels")
        client.execute_command("ACL", "SETUSER", name, *rights)
    more = [f"sentinel auth-user mymaster {name}", "sentinel auth-pass mymaster secret"]
    with group.another(more) as at:
        yield at


# -- TLS, users and passwords --------------------------------------------------------------------


@contextmanager
def opened(folder: Path, shared: str, user: int = 1) -> Iterator[Repo]:
    """A cache over SQLite that meets others at `shared`."""
    folder.mkdir()
    settings = {"shared": {"connection_string": shared, "timeout": "1s", "lease": "100ms"}}
    ttl_map = {"default": {"ttl": "1h", "coherence": "event"}}
    repo = Repo(folder, {"type": "sqlite"}, ttl_map=ttl_map, settings=settings, clock=SYSTEM_CLOCK)
    repo.apply(USER, repo.view("v", {"age": Int64}))
    write(repo.bare, 0)
    try:
        yield repo
    finally:
        repo.cache.runtime.close()


def write(store: FeatureStore, age: int) -> None:
    Repo.write(None, "v", store, user_id=[1], age=[age], event_time=[T0 + timedelta(seconds=age)])  # type: ignore[arg-type]


def read(store: FeatureStore) -> tuple[Any, Tier]:
    response = store.get_online_features(AGE, [{"user_id": 1}])
    return response.to_dict()["age"][0], response.freshness()["v"][0].tier


def is_warm(repo: Repo) -> bool:
    return read(repo.hot)[1] is Tier.MEMORY


def is_shared(repo: Repo, admin: Any) -> bool:
    """Whether a row that is read anew lies in the shared tier, too."""
    repo.cache.runtime.domain.invalidate_all(repo.project)
    read(repo.hot)
    return bool(admin.keys("hotplate:row:*"))


def errors_of(repo: Repo) -> str:
    """What the shared tier and the channel say of their last errors."""
    stats = repo.cache.stats()
    return (
        f"{stats.shared and stats.shared.last_error} {stats.channel and stats.channel.last_error}"
    )


def use_everything(repo: Repo, admin: Any) -> str:
    """Whatever the server is ever asked for: loads, a release, forgetting, a server that forgot.

    Returns:
        The errors on the way.
    """
    source, shared = repo.cache.runtime.engine.source, repo.cache.runtime.shared()
    load, errors = source.load, []

    def fail(_: Any) -> Any:
        raise ConnectionError("away")

    def probe() -> None:
        shared._breaker.failed(Exception("a fault"))
        shared._breaker.try_probe()
        errors.append(errors_of(repo))

    for age in range(1, 3):
        for forget in (
            lambda age=age: write(repo.hot, age),
            lambda: repo.cache.invalidate("v", {"user_id": 1}),
            lambda: repo.cache.invalidate("v"),
            admin.script_flush,
            lambda: admin.delete(f"hotplate:generations:{repo.project}"),
        ):
            forget()
            errors.append(errors_of(repo))
            repo.cache.runtime.domain.invalidate_all(repo.project)
            assert read(repo.hot)[0] == age
            errors.append(errors_of(repo))
            probe()
        source.load = fail
        repo.cache.invalidate("v", {"user_id": 1})
        with pytest.raises(ConnectionError):  # the lease is given back
            read(repo.hot)
        source.load = load
        errors.append(errors_of(repo))
        probe()
    return " ".join(dict.fromkeys(errors))


def test_tls(tmp_path: Path, redis_tls: TlsServer) -> None:
    """Both connect only to whom the authority vouches for."""
    at = f"{redis_tls.host}:{redis_tls.port},ssl=true"
    trusted = f"{at},ssl_ca_certs={redis_tls.certificates.authority}"
    with opened(tmp_path / "trusted", trusted) as repo, client_of(redis_tls.plain) as admin:
        wait_until(lambda: is_warm(repo))
        wait_until(lambda: is_shared(repo, admin))
        assert errors_of(repo) == "None None"
    with opened(tmp_path / "unknown", at) as repo:
        assert [read(repo.hot) for _ in range(2)] == [(0, Tier.SOURCE)] * 2
        wait_until(lambda: errors_of(repo).count("certificate") >= 2)


def test_the_documented_rights(tmp_path: Path, own_server: EmbeddedServer) -> None:
    """They are enough."""
    granted = rights([*SHARED_RIGHTS, *CHANNEL_RIGHTS])
    with acl_user(own_server, *granted) as user, client_of(own_server) as admin:
        at = f"{own_server.connection_string},{user.parameters}"
        with opened(tmp_path / "repo", at) as repo:
            wait_until(lambda: is_warm(repo))
            assert set(use_everything(repo, admin).split()) == {"None", "a", "fault"}
            wait_until(lambda: is_warm(repo))
        log = [entry["object"] for entry in admin.acl_log()]
        # redis-py introduces itself, and does without where it may not
        assert not [name for name in log if not name.startswith("client|setinfo")]
    page = Path(__file__).parents[2] / "docs" / "operations.md"
    listed = page.read_text().replace("\\|", "|")
    assert " ".join(f"+{name}" for name in SHARED_RIGHTS) in listed
    assert all(f"+{name}" in listed for name in CHANNEL_RIGHTS)


@pytest.mark.parametrize("lacking", [*SHARED_RIGHTS, *CHANNEL_RIGHTS])
def test_a_right_that_lacks_is_named(tmp_path: Path, redis: EmbeddedServer, lacking: str) -> None:
    """And the source answers, rightly."""
    granted = [name for name in [*SHARED_RIGHTS, *CHANNEL_RIGHTS] if name != lacking]
    with acl_user(redis, *rights(granted)) as user, client_of(redis) as admin:
        at = f"{redis.connection_string},{user.parameters}"
        with opened(tmp_path / "repo", at) as repo:
            seen = []

            def is_named() -> bool:
                seen.append(use_everything(repo, admin))
                return any(f"{mark}{lacking}" in seen[-1] for mark in "'+")

            wait_until(is_named, f"{lacking} is named in {seen}", 15)
            assert user.password not in "".join(seen)


def test_the_rights_around_redis(tmp_path: Path, redis: EmbeddedServer) -> None:
    """The store's own user, who reads and writes its keys, needs the channel's beside."""
    own = ["~*", "&hotplate:*", "&__redis__:invalidate", "+@read", "+@write"]
    for lacking in ("", "client|tracking"):
        names = [n for n in (*CHANNEL_RIGHTS, "client|tracking") if n != lacking]
        granted = [*own, *(f"+{name}" for name in names)]
        with acl_user(redis, *granted) as user:
            at = f"{redis.connection_string},{user.parameters}"
            online = {"type": "redis", "connection_string": at}
            ttl_map = {"default": {"ttl": "1h", "coherence": "event"}}
            project = f"rights_{lacking[:6]}"
            repo = Repo(tmp_path / project, online, project, ttl_map, clock=SYSTEM_CLOCK)  # type: ignore[arg-type]
            repo.apply(USER, repo.view("v", {"age": Int64}))
            for age in range(2):
                write(repo.bare, age)
                wait_until(lambda age=age, repo=repo: read(repo.hot)[0] == age)
                if not lacking:
                    wait_until(lambda repo=repo: is_warm(repo))
            if lacking:
                named = partial(errors_of, repo)
                wait_until(lambda named=named: "'client|tracking'" in named())
            repo.cache.runtime.close()


def test_a_wrong_password_is_never_shown(
    tmp_path: Path, own_server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in an error, nor in a log, nor in a repr."""
    with acl_user(own_server, "~*", "&*", "+@all") as user:
        at = f"{own_server.connection_string},username={user.username},password=hunter2"
        with opened(tmp_path / "repo", at) as repo:
            assert [read(repo.hot) for _ in range(2)] == [(0, Tier.SOURCE)] * 2
            wait_until(lambda: errors_of(repo).lower().count("password") >= 2)
            shown = errors_of(repo) + caplog.text + repr(repo.cache.stats())
            shown += repr(repo.hot.config.online_store) + repr(repo.cache.runtime.shared())
            assert "hunter2" not in shown


# -- garbled answers, clocks, loops, forks -------------------------------------------------------


def test_garbled_answers_are_no_errors(tmp_path: Path, redis: EmbeddedServer) -> None:
    """Whatever a reply is turned into."""
    with (
        Proxy((redis.host, redis.port)) as proxy,
        opened(tmp_path / "repo", proxy.connection_string) as repo,
    ):
        wait_until(lambda: is_warm(repo))
        shared = repo.cache.runtime.shared()
        for every in (*range(3, 60), 97, 131, 301):
            proxy.corrupt(to_client=every)
            repo.cache.runtime.domain.invalidate_all(repo.project)
            assert read(repo.hot)[0] == 0
            proxy.heal()
            if not shared.is_usable:
                assert shared._breaker.try_probe()
        wait_until(lambda: is_warm(repo))


class SteppedClock(SystemClock):
    """A wall clock that somebody sets."""

    step_ns = 0

    def wall_ns(self) -> int:  # type: ignore[override]
        return time.time_ns() + self.step_ns


def test_a_stepped_wall_clock(tmp_path: Path, redis: EmbeddedServer) -> None:
    """An hour back or forth, of the reader or the writer: nothing is older than the ttl."""
    shared = {"connection_string": redis.connection_string, "timeout": "1s"}
    ttl_map = {"default": {"ttl": "200ms", "jitter": 0}}
    clock: Any = SteppedClock()
    repo = Repo(
        tmp_path, {"type": "sqlite"}, "stepped", ttl_map, settings={"shared": shared}, clock=clock
    )
    repo.apply(USER, repo.view("v", {"age": Int64}))
    write(repo.bare, 0)
    for age, step_s in enumerate((0, -3_600, 3_600, 3_600, -7_200), 1):
        local._domains.clear()
        other = repo.open_hot()
        assert read(repo.hot)[0] == age - 1
        write(repo.bare, age)
        written_s = time.monotonic()
        clock.step_ns += step_s * 1_000_000_000
        while time.monotonic() - written_s < 0.25:
            began_s = time.monotonic()
            found = read(other)[0]
            assert found == age or began_s - written_s < 0.2
            hotplate.of(other).runtime.domain.invalidate_all("stepped")
        assert read(other)[0] == read(repo.hot)[0] == age
        hotplate.of(other).runtime.close()
    repo.cache.runtime.close()


def test_two_event_loops_one_after_the_other(
    tmp_path: Path, redis: EmbeddedServer, own_server: EmbeddedServer
) -> None:
    """Around Redis with a shared tier; the server freezes in between and on the second loop."""
    online = {"type": "redis", "connection_string": redis.connection_string}
    shared = {"connection_string": own_server.connection_string, "tier": True}
    ttl_map = {"default": {"ttl": "1h", "coherence": "event"}}
    settings = {"shared": shared}
    repo = Repo(tmp_path, online, f"loops{own_server.port}", ttl_map, settings, clock=SYSTEM_CLOCK)
    repo.apply(USER, repo.view("v", {"age": Int64}))
    write(repo.bare, 0)

    async def ask() -> list[Any]:
        calls = [repo.hot.get_online_features_async(AGE, [{"user_id": 1}]) for _ in range(20)]
        found = [response.to_dict()["age"][0] for response in await asyncio.gather(*calls)]
        await repo.hot._get_provider().online_store.close()
        return found

    assert asyncio.run(ask()) == [0] * 20
    with frozen(own_server):
        write(repo.bare, 1)
        wait_until(lambda: read(repo.hot)[0] == 1)
        assert asyncio.run(ask()) == [1] * 20
    assert asyncio.run(ask()) == [1] * 20
    repo.cache.runtime.close()
