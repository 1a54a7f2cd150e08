"""Promise 2 between processes: what others change is forgotten, or the source is read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client
import yaml
from feast import Entity
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.types import Int64
from feast.value_type import ValueType
from hypothesis import given
from hypothesis import strategies as st

import hotplate
from hotplate import CachePolicy, PolicyError, Tier
from hotplate.clock import SYSTEM_CLOCK
from hotplate.embedded import EmbeddedServer
from hotplate.invalidation.announcer import Announcer
from hotplate.invalidation.channel import LEASE_NS
from hotplate.invalidation.messages import ENTITIES_MAX, Change, decode, encode
from hotplate.keys import (
    EntityShape,
    entity_key,
    parse_stored_key,
    shape_and_values,
    shapes_and_values,
)
from hotplate.servers.redis import RedisServer
from pipelines.lab.programs import redis_server
from pipelines.lab.proxy import Proxy

from ..stores import CACHED, MERCHANT, USER, Repo, await_

EVENT = {"default": {"ttl": "1h", "coherence": "event"}}
AGE = ["v:age"]
T0 = datetime(2026, 1, 1, tzinfo=UTC)


def until(is_so: Callable[[], Any], seconds: float = 20) -> Any:
    """Poll until something is so."""
    deadline = time.monotonic() + seconds
    while not (found := is_so()):
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.002)
    return found


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A server of the test's own, to be stopped and flushed."""
    with redis_server() as server:
        yield server


@pytest.fixture(params=["tracked", "announced"])
def repo(request: pytest.FixtureRequest, tmp_path: Path, server: EmbeddedServer) -> Iterator[Repo]:
    """Over Redis, whose own broadcast tells of changes, and over SQLite, where writers do."""
    shared = {"connection_string": server.connection_string}
    online: dict[str, Any] = {"type": "redis", **shared}
    settings: dict[str, Any] = {}
    if request.param == "announced":
        online, settings = {"type": "sqlite"}, {"shared": shared}
    repo = Repo(tmp_path, online, ttl_map=EVENT, settings=settings, clock=SYSTEM_CLOCK)
    repo.apply(USER, MERCHANT, repo.view("v", {"age": Int64}))
    write(repo, 0)
    yield repo
    repo.cache.runtime.coherence.close()


def write(repo: Repo, age: int, through: Any = None) -> None:
    """Write user 1; past the cache unless told otherwise."""
    repo.write("v", through, user_id=[1], age=[age], event_time=[T0 + timedelta(seconds=age)])


def read(repo: Repo) -> int:
    return repo.hot.get_online_features(AGE, [{"user_id": 1}]).to_dict()["age"][0]


def tier(repo: Repo) -> Tier:
    return repo.hot.get_online_features(AGE, [{"user_id": 1}]).freshness()["v"][0].tier


def warm(repo: Repo) -> None:
    """Read until the channel is whole and the row in memory."""
    until(lambda: tier(repo) is Tier.MEMORY)


def channel(repo: Repo) -> Any:
    return repo.cache.stats().channel


ELSEWHERE = """
import sys, warnings
warnings.simplefilter("ignore")
from datetime import datetime, timezone
import pandas as pd
from feast import FeatureStore
import hotplate
for line in sys.stdin:
    verb, number = line.split()
    if verb == "open":
        store = FeatureStore(repo_path=number)
    elif verb == "write":
        moment = pd.Timestamp("2026-01-01", tz="UTC") + pd.Timedelta(seconds=int(number))
        frame = pd.DataFrame({"user_id": [1], "age": [int(number)], "event_time": [moment]})
        store.write_to_online_store("v", frame)
    elif verb == "invalidate":
        hotplate.of(store).invalidate("v", {"user_id": int(number)})
    elif verb == "whole":
        hotplate.of(store).invalidate("v")
    elif verb == "clear":
        hotplate.of(store).clear()
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def other_process() -> Iterator[Callable[[str], None]]:
    """A process that does as it is told."""
    with subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": "plugins", "PATH": "/usr/bin:/bin"},
    ) as process:
        into, out = process.stdin, process.stdout
        assert into is not None
        assert out is not None

        def tell(line: str) -> None:
            into.write(line + "\n")
            into.flush()
            assert out.readline() == "done\n"

        yield tell
        into.close()
        process.wait(20)


@pytest.fixture
def elsewhere(repo: Repo, other_process: Callable[[str], None]) -> Callable[[str], None]:
    """Another process over the same feature repo."""
    settings = {
        "project": repo.project,
        "provider": "local",
        "registry": str(repo.folder / "registry.db"),
        "entity_key_serialization_version": 3,
        "online_store": {
            "type": CACHED,
            "store": repo.online,
            "ttl_map": dict(repo.ttl_map),
            **repo.settings,
        },
    }
    (repo.folder / "feature_store.yaml").write_text(yaml.safe_dump(settings))
    other_process(f"open {repo.folder}")
    return other_process


def test_a_write_in_another_process_is_seen(repo: Repo, elsewhere: Callable[[str], None]) -> None:
    """Long before the ttl; and nothing is forgotten that was not written."""
    for age in range(1, 6):
        warm(repo)
        elsewhere(f"write {age}")
        until(lambda age=age: read(repo) == age, seconds=1)
    assert channel(repo).gaps == 1


@pytest.mark.parametrize("order", ["invalidate 1", "whole 0", "clear 0"])
def test_an_invalidation_in_another_process_is_heard(
    repo: Repo, elsewhere: Callable[[str], None], order: str
) -> None:
    """Of one entity, of a group, of everything."""
    warm(repo)
    before = repo.cache.stats().groups["v"].loads
    elsewhere(order)
    until(lambda: read(repo) == 0 and repo.cache.stats().groups["v"].loads > before, seconds=1)
    assert channel(repo).changes_heard == 1


LATER = """
import sys, time
import redis
with redis.Redis(port=int(sys.argv[1])) as client:
    client.ping()
    print("ready", flush=True)
    sys.stdin.readline()
    time.sleep(0.2)
    client.execute_command(*(bytes.fromhex(word) for word in sys.argv[2:]))
"""


@pytest.mark.parametrize("how", ["tracked", "announced"])
def test_a_process_that_never_waits_hears(tmp_path: Path, server: EmbeddedServer, how: str) -> None:
    """Whoever reads without a pause lets the listener have the interpreter as soon as it needs it.

    Left alone, the reader would keep it for the whole of the switch interval; the lease, by a
    clock that stands still, does not end.
    """
    shared = {"connection_string": server.connection_string}
    is_tracked = how == "tracked"
    online: dict[str, Any] = {"type": "redis", **shared} if is_tracked else {"type": "sqlite"}
    repo = Repo(tmp_path, online, ttl_map=EVENT, settings={} if is_tracked else {"shared": shared})
    repo.apply(USER, repo.view("v", {"age": Int64}))
    write(repo, 0)
    with redis_client.Redis(port=server.port) as client:
        stored = [key for key in client.scan_iter() if b"hotplate" not in key]
    shape = EntityShape(("user_id",), ("int64_val",))
    (told,) = encode("another process", "v", [(shape, (1,))])
    topic = b"hotplate:changes:{%b}" % repo.project.encode()
    command = (b"DEL", stored[0]) if is_tracked else (b"PUBLISH", topic, told)
    with subprocess.Popen(
        [sys.executable, "-c", LATER, str(server.port), *(word.hex() for word in command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        warm(repo)
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(100)
        try:
            process.stdin.write(b"go\n")
            process.stdin.flush()
            deadline = time.monotonic() + 20
            while tier(repo) is Tier.MEMORY:
                assert time.monotonic() < deadline, "it was not heard"
        finally:
            sys.setswitchinterval(interval_s)
    repo.cache.runtime.close()


def test_another_entity_stays(repo: Repo, elsewhere: Callable[[str], None]) -> None:
    """Exactly what changed is forgotten."""
    warm(repo)
    before = repo.cache.stats().groups["v"].invalidated
    elsewhere("invalidate 2")
    until(lambda: channel(repo).changes_heard == 1)
    assert repo.cache.stats().groups["v"].invalidated == before
    assert tier(repo) is Tier.MEMORY


def test_own_changes_are_not_heard_twice(repo: Repo) -> None:
    """What this process announces it has forgotten already."""
    warm(repo)
    repo.cache.invalidate("v", {"user_id": 1})
    read(repo)
    until(lambda: channel(repo).announced >= 1)
    time.sleep(0.05)
    assert channel(repo).changes_heard == 0
    assert tier(repo) is Tier.MEMORY


def test_a_writer_that_does_not_know_hotplate(tmp_path: Path, server: EmbeddedServer) -> None:
    """Redis itself tells: bare Feast, a pipeline, an expiry, a deletion, a flush."""
    online = {"type": "redis", "connection_string": server.connection_string}
    repo = Repo(tmp_path, online, ttl_map=EVENT, clock=SYSTEM_CLOCK)
    repo.apply(USER, repo.view("v", {"age": Int64}))
    write(repo, 0)
    client = redis_client.Redis(port=server.port)
    key = next(iter(client.scan_iter()))
    warm(repo)
    write(repo, 7)
    until(lambda: read(repo) == 7, seconds=1)
    for change in (
        lambda: client.pexpire(key, 1),
        lambda: (write(repo, 8), until(lambda: read(repo) == 8, 1), client.delete(key)),
        lambda: (write(repo, 9), until(lambda: read(repo) == 9, 1), client.flushall()),
    ):
        change()
        until(lambda: read(repo) is None, seconds=1)
    client.close()
    repo.cache.runtime.coherence.close()


def test_only_event_groups_are_listened_for(tmp_path: Path, server: EmbeddedServer) -> None:
    """Nothing is connected for groups that age alone bounds."""
    online = {"type": "redis", "connection_string": server.connection_string}
    repo = Repo(tmp_path, online, clock=SYSTEM_CLOCK)
    repo.apply(USER, repo.view("v", {"age": Int64}))
    write(repo, 0)
    assert read(repo) == read(repo) == 0
    write(repo, 1)
    assert read(repo) == 0
    assert channel(repo) is None


def test_an_event_group_without_a_channel_is_refused(tmp_path: Path) -> None:
    """At apply; a process that was not asked reads the source every time."""
    repo = Repo(tmp_path, {"type": "sqlite"}, ttl_map={"default": "1h"})
    policy = CachePolicy(coherence="event")
    with pytest.raises(
        PolicyError, match=r"'v': coherence: 'event' needs a Redis or Valkey.*shared"
    ):
        repo.apply(USER, repo.view("v", {"age": Int64}, tags=policy.tags()))
    repo.bare.apply([USER, repo.view("v", {"age": Int64}, tags=policy.tags())])
    write(repo, 0)
    for age in (0, 1):
        write(repo, age)
        assert read(repo) == age


def test_a_frozen_server_ends_the_lease(tmp_path: Path, server: EmbeddedServer) -> None:
    """Nothing is served from memory once nothing is known; after it thaws, all is well again."""
    shared = {"connection_string": server.connection_string}
    repo = Repo(
        tmp_path, {"type": "sqlite"}, ttl_map=EVENT, settings={"shared": shared}, clock=SYSTEM_CLOCK
    )
    repo.apply(USER, repo.view("v", {"age": Int64}))
    write(repo, 0)
    warm(repo)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        frozen_ns = SYSTEM_CLOCK.now_ns()
        until(lambda: tier(repo) is Tier.SOURCE, seconds=5)
        assert SYSTEM_CLOCK.now_ns() - frozen_ns < LEASE_NS + 2_000_000_000
        write(repo, 5)
        assert read(repo) == 5
        assert repo.cache.stats().groups["v"].misses_channel > 0
    finally:
        os.kill(server.pid, signal.SIGCONT)
    warm(repo)
    assert read(repo) == 5
    assert channel(repo).gaps >= 1
    repo.cache.runtime.coherence.close()


def test_a_lapse_forgets_what_others_could_not_tell(tmp_path: Path, server: EmbeddedServer) -> None:
    """The server froze for less than it takes to give it up; an announcement is on its way."""
    shared = {"connection_string": server.connection_string}
    repo = Repo(
        tmp_path, {"type": "sqlite"}, ttl_map=EVENT, settings={"shared": shared}, clock=SYSTEM_CLOCK
    )
    repo.apply(USER, repo.view("v", {"age": Int64}))
    write(repo, 0)
    warm(repo)
    sessions = channel(repo).sessions
    os.kill(server.pid, signal.SIGSTOP)
    try:
        until(lambda: not channel(repo).is_whole)
        write(repo, 5)  # by a process that cannot reach the server either
    finally:
        os.kill(server.pid, signal.SIGCONT)
    until(lambda: channel(repo).is_whole)
    assert read(repo) == 5
    assert channel(repo).sessions == sessions or channel(repo).gaps > 1
    repo.cache.runtime.close()


def test_a_lost_connection_forgets_what_it_may_have_missed(repo: Repo) -> None:
    """Whatever happened between two sessions is unknown."""
    warm(repo)
    sessions = channel(repo).sessions
    settings = repo.settings.get("shared") or repo.online
    host, port = settings["connection_string"].split(":")
    client = redis_client.Redis(host=host, port=int(port))
    client.client_kill_filter(_type="pubsub")
    until(lambda: channel(repo).sessions > sessions)
    client.close()
    assert channel(repo).gaps > 1
    warm(repo)


def test_garbage_on_the_topic_counts_as_a_gap(repo: Repo) -> None:
    """What it meant to say is unknown."""
    warm(repo)
    gaps = channel(repo).gaps
    settings = repo.settings.get("shared") or repo.online
    host, port = settings["connection_string"].split(":")
    client = redis_client.Redis(host=host, port=int(port))
    for garbage in (
        b"",
        b"\x80\x04.",
        b"{}",
        b'{"v": 2}',
        b'{"v":1,"o":"x","view":"v","entities":3}',
    ):
        client.publish(f"hotplate:changes:{{{repo.project}}}", garbage)
    client.close()
    until(lambda: channel(repo).gaps == gaps + 5)


def test_another_project_on_the_same_server_is_another_matter(
    tmp_path: Path, server: EmbeddedServer
) -> None:
    """Its keys may begin and end alike: project `data` is not project `a`."""
    online = {"type": "redis", "connection_string": server.connection_string}
    repos = [
        Repo(tmp_path / name, online, project=name, ttl_map=EVENT, clock=SYSTEM_CLOCK)
        for name in ("a", "data")
    ]
    for repo in repos:
        repo.apply(USER, repo.view("v", {"age": Int64}))
        write(repo, 0)
    warm(repos[0])
    before = channel(repos[0]).keys_heard
    invalidated = repos[0].cache.stats().groups["v"].invalidated
    write(repos[1], 5)
    until(lambda: channel(repos[0]).keys_heard > before)
    assert repos[0].cache.stats().groups["v"].invalidated == invalidated
    assert tier(repos[0]) is Tier.MEMORY
    for repo in repos:
        repo.cache.runtime.coherence.close()


# -- what travels --------------------------------------------------------------------------------

VALUES = {
    "int64_val": st.integers(-(2**63), 2**63 - 1),
    "int32_val": st.integers(-(2**31), 2**31 - 1),
    "unix_timestamp_val": st.integers(-(2**63), 2**63 - 1),
    "string_val": st.text(st.characters(exclude_categories=["Cs"])),
    "bytes_val": st.binary(),
}
SHAPES = st.lists(
    st.tuples(st.text("abc_é", min_size=1), st.sampled_from(sorted(VALUES))),
    min_size=1,
    max_size=3,
    unique_by=lambda pair: pair[0],
).map(lambda pairs: EntityShape(*(tuple(part) for part in zip(*sorted(pairs), strict=True))))
ENTITIES = SHAPES.flatmap(
    lambda shape: st.tuples(st.just(shape), st.tuples(*(VALUES[kind] for kind in shape.types)))
)


@given(st.lists(ENTITIES, max_size=20), st.text())
def test_messages_say_what_was_said(entities: list[tuple[EntityShape, Any]], view: str) -> None:
    """Every key type arrives as it was sent."""
    heard = []
    for message in encode("me", view, entities):
        origin, change = decode(message)
        assert (origin, change.view) == ("me", view)
        heard += [(change.shape, values) for values in change.entities]
    assert sorted(heard, key=repr) == sorted(entities, key=repr)


def test_a_large_batch_is_several_messages() -> None:
    """None holds more than its share."""
    shape = EntityShape(("user_id",), ("int64_val",))
    messages = list(
        encode("me", "v", [(shape, (number,)) for number in range(2 * ENTITIES_MAX + 1)])
    )
    assert [len(decode(message)[1].entities) for message in messages] == [
        ENTITIES_MAX,
        ENTITIES_MAX,
        1,
    ]
    assert decode(next(iter(encode("me", None, None)))) == ("me", Change(None))


@given(ENTITIES, st.sampled_from([b"a", b"data", b"shop"]), st.binary(max_size=3))
def test_stored_keys_are_read_as_feast_writes_them(
    entity: tuple[EntityShape, Any], project: bytes, more: bytes
) -> None:
    """And only with exactly this project behind them."""
    shape, values = entity
    raw = serialize_entity_key(entity_key(shape, values), entity_key_serialization_version=3)
    assert parse_stored_key(raw + project, project) == entity
    if more:
        assert parse_stored_key(raw + more + project, project) is None
    for end in range(len(raw)):
        assert parse_stored_key(raw[:end] + project, project) in (None, entity) or end == len(raw)


@given(st.lists(ENTITIES, max_size=20))
def test_many_entities_are_split_like_each_of_them(entities: list[tuple[EntityShape, Any]]) -> None:
    """What a large write takes a shorter way for, unset values and several keys included."""
    keys = [entity_key(shape, values) for shape, values in entities]
    keys.append(entity_key(EntityShape(("user_id",), ("",)), (None,)))
    assert shapes_and_values(keys) == [shape_and_values(key) for key in keys]


def test_keys_of_every_type_are_heard(tmp_path: Path, server: EmbeddedServer) -> None:
    """A row keyed by a text and bytes is forgotten like one keyed by a number."""
    online = {"type": "redis", "connection_string": server.connection_string}
    blob = Entity(name="blob", join_keys=["blob_id"], value_type=ValueType.BYTES)
    repo = Repo(tmp_path, online, ttl_map=EVENT, clock=SYSTEM_CLOCK)
    repo.apply(MERCHANT, blob, repo.view("m", {"size": Int64}, entities=(MERCHANT, blob)))
    entity = {"merchant_id": ["Bäcker 🥐"], "blob_id": [b"\x00\xff"]}

    def see() -> Any:
        return repo.hot.get_online_features(["m:size"], entity)

    for size in range(3):
        repo.write("m", **entity, size=[size], event_time=[T0 + timedelta(seconds=size)])
        until(lambda size=size: see().to_dict()["size"] == [size], seconds=2)
        until(lambda: see().freshness()["m"][0].tier is Tier.MEMORY)
    assert hotplate.of(repo.hot).stats().groups["m"].invalidated >= 2
    repo.cache.runtime.coherence.close()


def test_a_connection_that_was_closed_while_idle_delays_nothing(own_server: EmbeddedServer) -> None:
    """By the server, or by what lies between: the message goes over a new one at once."""
    announcer = Announcer(RedisServer(own_server.connection_string), "topic")
    announcer.announce([b"first"])
    with redis_client.Redis(port=own_server.port) as client:
        client.client_kill_filter(_type="normal", skipme=True)
    announcer.announce([b"second"])
    assert (announcer.sent, announcer.pending, announcer.errors) == (2, 0, 0)
    announcer.close()


def test_who_closes_waits_until_all_is_said(own_server: EmbeddedServer) -> None:
    """For a moment: a server that answers again within it has been told everything."""
    with Proxy((own_server.host, own_server.port)) as proxy:
        announcer = Announcer(RedisServer(proxy.connection_string), "topic")
        announcer.announce([b"first"])
        proxy.pause()
        announcer.announce([b"second"])
        assert announcer.pending == 1
        healing = threading.Timer(0.3, proxy.heal)
        healing.start()
        announcer.close()
        assert (announcer.sent, announcer.pending) == (2, 0)
        healing.join()


_ENDS = """
import sys, warnings
warnings.simplefilter("ignore")
import pandas as pd, redis
from feast import FeatureStore
store = FeatureStore(repo_path=sys.argv[1])
def write(user, age):
    frame = pd.DataFrame({"user_id": [user], "age": [age], "event_time": [pd.Timestamp.now("UTC")]})
    store.write_to_online_store("v", frame)
write(8, 1)
redis.Redis(port=int(sys.argv[2])).client_kill_filter(_type="normal", skipme=True)
write(7, 777)
"""


@pytest.mark.heavy
def test_a_process_that_ends_has_told_the_others(
    make_repo: Callable[..., Repo], own_server: EmbeddedServer
) -> None:
    """Its last write met connections that were closed: neither memory nor the shared tier keeps
    what was there before."""
    settings = {"shared": {"connection_string": own_server.connection_string, "timeout": "2s"}}
    event = {"default": {"ttl": "1h", "coherence": "event"}}
    repo = make_repo(settings=settings, ttl_map=event)
    repo.apply(USER, repo.view("v", {"age": Int64}))
    repo.write("v", user_id=[7, 8], age=[1, 1])
    online = {"type": CACHED, "store": dict(repo.online), "ttl_map": event, **settings}
    said = {
        "project": repo.project,
        "provider": "local",
        "registry": str(repo.folder / "registry.db"),
        "online_store": online,
        "offline_store": {"type": "file"},
        "entity_key_serialization_version": 3,
    }
    folder = repo.folder / "job"
    folder.mkdir()
    (folder / "feature_store.yaml").write_text(yaml.safe_dump(said))

    def read(store: Any) -> Any:
        return store.get_online_features(["v:age"], {"user_id": [7]}).to_dict()["age"][0]

    def is_warm() -> bool:
        read(repo.hot)
        return hotplate.of(repo.hot).stats().groups["v"].hits_memory > 0

    await_(is_warm)
    done = subprocess.run(
        [sys.executable, "-c", _ENDS, str(folder), str(own_server.port)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    await_(lambda: read(repo.hot) == 777, 5)
    assert read(repo.open_hot()) == 777
