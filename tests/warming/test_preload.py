"""A process that comes up warm: what the one before it held is there before it is asked."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hotplate
from hotplate.embedded import EmbeddedServer
from hotplate.errors import ConfigError
from hotplate.warming.hot_keys import HotKey, HotKeyFiles

from ..children import heed_permissions, in_child
from ..stores import Repo, await_
from .conftest import FEATURES
from .test_warm import loads

RepoMaker = Callable[..., Repo]


@pytest.fixture
def shop(logged: Callable[..., Repo], tmp_path: Path) -> Callable[..., Repo]:
    """Makes shops whose processes write down what they hold."""

    def make(**said: Any) -> Repo:
        repo = logged()
        repo.settings = {
            **repo.settings,
            "preload": {"folder": str(tmp_path / "preload"), **said},
        }
        return repo

    return make


def use(store: Any, users: range) -> None:
    for user in users:
        store.get_online_features(FEATURES, {"user_id": [user], "merchant_id": ["m1"]}).to_dict()


def rewarmed(store: Any) -> int:
    """Rows that had to be forgotten and were read again."""
    stats = hotplate.of(store).stats().rewarm
    assert stats is not None
    return stats.read


def is_whole(store: Any) -> bool:
    channel = hotplate.of(store).stats().channel
    return channel is not None and channel.is_whole


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "preload").rglob("hot-*.parquet"))


def test_what_was_hot_is_there_before_it_is_asked_for(
    shop: Callable[..., Repo], tmp_path: Path
) -> None:
    repo = shop()
    first = repo.open_hot()
    found = hotplate.of(first).preload()
    assert (found.entities, found.wanted, found.problem) == (0, 0, ""), "there was none before"
    use(first, range(30))
    first.get_online_features(["profile:age"], {"user_id": [77]}).to_dict()  # of one view alone
    asyncio.run(first._get_provider().online_store.close())
    (path,) = files(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "entity ids stand in it"
    second = repo.open_hot()
    found = hotplate.of(second).preload()
    assert (found.entities, found.wanted, found.problem) == (62, 62, "")
    before = loads(second)
    assert before == {"counts": 30, "profile": 31, "shops": 1}
    use(second, range(30))
    assert loads(second) == before
    traffic = hotplate.of(second).runtime.traffic
    assert traffic is not None
    traffic.flush()
    assert traffic.stats().logged == 30, "what nobody asked for is no traffic"


def test_the_most_recently_used_come_first_within_the_budget(
    shop: Callable[..., Repo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotplate.serving.preload._READS_A_BATCH", 5)
    repo = shop()
    first = repo.open_hot()
    hotplate.of(first).preload()
    use(first, range(30))
    use(first, range(5))
    asyncio.run(first._get_provider().online_store.close())
    second = repo.open_hot()
    ticks = iter(range(100))
    hot = hotplate.of(second)
    assert hot.preload(0.0).entities == 0
    made = hot._online._preloading._made["made"]
    await_(lambda: len(made._unread) == 61)
    made.write()  # before anything was read: what there was no time for is not lost
    found = made.run(second, 3.5, lambda: float(next(ticks)))
    assert found.problem == "the budget of time is spent"
    assert 0 < found.entities <= 15
    before = loads(second)
    use(second, range(5))
    assert loads(second)["profile"] == before["profile"]
    limited = repo.open_hot(preload={"folder": str(tmp_path / "preload"), "most": 7})
    assert hotplate.of(limited).preload().wanted == 7


@pytest.mark.parametrize("rows", [False, True])
def test_what_was_preloaded_is_read_again_when_it_is_forgotten(
    shop: Callable[..., Repo], tmp_path: Path, rows: bool
) -> None:
    """`rewarm` needs no request that loaded something before: a process that is warm makes none."""
    repo = shop()
    preload = {"folder": str(tmp_path / "preload"), "rows": rows}
    first = repo.open_hot(preload=preload, ttl_map={"default": "1h"})
    hotplate.of(first).preload()
    use(first, range(30))
    asyncio.run(first._get_provider().online_store.close())
    second = repo.open_hot(preload=preload, ttl_map={"default": "1h"}, rewarm="1000/s")
    hot = hotplate.of(second)
    assert hot.preload().entities > 0
    hot.invalidate("profile", {"user_id": [1, 2, 3]})
    await_(lambda: rewarmed(second) == 3)
    before = loads(second)["profile"]
    use(second, range(30))
    assert loads(second)["profile"] == before


def test_rows_of_event_groups_are_read_once_the_channel_is_whole(
    shop: Callable[..., Repo], tmp_path: Path, redis: EmbeddedServer
) -> None:
    """What is read before that would be forgotten as soon as the process begins to listen."""
    repo = shop()
    event = {
        "ttl_map": {"default": {"ttl": "1h", "coherence": "event"}},
        "shared": {"connection_string": redis.connection_string, "tier": False},
    }
    first = repo.open_hot(**event)
    hotplate.of(first).preload()
    use(first, range(1))  # from now on it listens
    await_(lambda: is_whole(first))
    use(first, range(30))
    hotplate.of(first).close()
    second = repo.open_hot(**event)
    hot = hotplate.of(second)
    found = hot.preload()
    assert found.entities == found.wanted > 60
    await_(lambda: is_whole(second))
    before = loads(second)
    use(second, range(30))
    assert loads(second) == before
    hot.close()


def test_a_source_that_hangs_is_left_behind_when_the_time_is_up(shop: Callable[..., Repo]) -> None:
    repo = shop()
    first = repo.open_hot()
    hotplate.of(first).preload()
    use(first, range(3))
    asyncio.run(first._get_provider().online_store.close())
    second = repo.open_hot()
    engine = hotplate.of(second).runtime.engine
    inner, ends = engine.source.load, threading.Event()

    def hangs(requests: Any) -> Any:
        ends.wait(60)
        return inner(requests)

    engine.source.load = hangs  # type: ignore[method-assign]
    began = time.monotonic()
    found = hotplate.of(second).preload(0.3)
    assert time.monotonic() - began < 20
    assert (found.entities, found.problem) == (0, "the budget of time is spent")
    ends.set()
    engine.source.load = inner  # type: ignore[method-assign]
    use(second, range(3))


def test_a_forked_child_writes_down_what_it_holds(
    shop: Callable[..., Repo], tmp_path: Path
) -> None:
    repo = shop(every="50ms")
    store = repo.open_hot()
    hotplate.of(store).preload()
    use(store, range(3))
    child = os.fork()
    if not child:
        time.sleep(30)
        os._exit(0)
    try:
        await_(lambda: any(f"-{child}." in one.name for one in files(tmp_path)))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        asyncio.run(store._get_provider().online_store.close())


def test_a_source_that_fails_keeps_no_process_from_starting(
    shop: Callable[..., Repo], caplog: pytest.LogCaptureFixture
) -> None:
    repo = shop()
    first = repo.open_hot()
    hotplate.of(first).preload()
    use(first, range(3))
    asyncio.run(first._get_provider().online_store.close())
    second = repo.open_hot()

    def fails(requests: Any) -> Any:
        raise OSError("password=secret")

    engine = hotplate.of(second).runtime.engine
    inner, engine.source.load = engine.source.load, fails  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO, "hotplate.warming"):
        found = hotplate.of(second).preload()
    assert found.problem == "the source fails: OSError"
    assert "secret" not in caplog.text
    engine.source.load = inner  # type: ignore[method-assign]
    use(second, range(3))


def test_views_that_are_gone_or_changed_and_files_that_are_none_are_left_out(
    shop: Callable[..., Repo], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repo = shop()
    folder = tmp_path / "preload" / repo.project
    HotKeyFiles(folder).write(
        [
            HotKey("user_id", "profile", "[1]"),
            HotKey("user_id", "gone", "[1]"),
            HotKey("user_id", "profile", '["text"]'),
            HotKey("user_id", "profile", "not json"),
            HotKey("user_id", "shops", "[1]"),
            HotKey("other_id", "profile", "[1]"),
        ]
    )
    (folder / "hot-half.parquet").write_bytes(files(tmp_path)[0].read_bytes()[:100])
    found = hotplate.of(repo.open_hot()).preload()
    assert (found.entities, found.wanted) == (1, 6)
    assert "hot-half.parquet is left out" in caplog.text
    old = time.time() - 2 * 86_400
    os.utime(folder / "hot-half.parquet", (old, old))
    HotKeyFiles(folder).write([])
    assert [one.name for one in files(tmp_path)] == [
        f"hot-{os.uname().nodename}-{os.getpid()}.parquet"
    ]


def test_a_group_that_must_not_be_cached_is_not_read(shop: Callable[..., Repo]) -> None:
    repo = shop()
    first = repo.open_hot()
    hotplate.of(first).preload()
    use(first, range(3))
    asyncio.run(first._get_provider().online_store.close())
    second = repo.open_hot(ttl_map={"default": "30s", "profile": {"cache": "never"}})
    hotplate.of(second).preload()
    assert loads(second) == {"counts": 3, "profile": 0, "shops": 1}


def test_without_a_folder_it_says_what_to_write(logged: Callable[..., Repo]) -> None:
    with pytest.raises(ConfigError, match=r"preload: \{folder:"):
        hotplate.of(logged().hot).preload()


def test_a_folder_that_cannot_be_written_is_said(
    shop: Callable[..., Repo], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "preload").write_text("in the way")
    store = shop().open_hot()
    hotplate.of(store).preload()
    use(store, range(2))
    asyncio.run(store._get_provider().online_store.close())
    assert "hot keys are not kept" in caplog.text


def test_a_folder_that_cannot_be_read_is_said(shop: Callable[..., Repo], tmp_path: Path) -> None:
    """That one, or the one in which it lies: it is not the source that fails."""
    repo = shop()
    first = repo.open_hot()
    hotplate.of(first).preload()
    use(first, range(3))
    asyncio.run(first._get_provider().online_store.close())
    (path,) = files(tmp_path)

    def said() -> list[Any]:
        heed_permissions()
        found = hotplate.of(repo.open_hot()).preload()
        return [found.entities, found.problem]

    for folder in (path.parent, path.parent.parent):
        folder.chmod(0o000)
        found = in_child(said)
        folder.chmod(0o700)
        assert found == [
            0,
            f"{path.parent} cannot be read (Permission denied): change its owner, or "
            "online_store.preload.folder",
        ]
    assert hotplate.of(repo.open_hot()).preload().entities == 7


SERVER = """
import sys, asyncio
from feast import FeatureStore
import hotplate
store = FeatureStore(repo_path=sys.argv[1])
asyncio.run(store._get_provider().initialize(store.config))
groups = hotplate.of(store).stats().groups
print({name: one.loads for name, one in groups.items()}, flush=True)
for user in range(12):
    store.get_online_features(["profile:age"], {"user_id": [user]}).to_dict()
sys.stdin.readline()
"""


@pytest.mark.heavy
@pytest.mark.parametrize("end", ["exits", "killed"])
def test_a_restarted_server_is_warm(shop: Callable[..., Repo], tmp_path: Path, end: str) -> None:
    """As the feature server starts and ends: by itself, or killed, with what it wrote down last."""
    import yaml

    repo = shop(every="100ms")
    folder = tmp_path / "repo"
    folder.mkdir()
    said = {
        "project": repo.project,
        "provider": "local",
        "registry": str(repo.folder / "registry.db"),
        "online_store": {
            "type": "hotplate.online_store.CachedOnlineStore",
            "store": dict(repo.online),
            "ttl_map": {"default": "1h"},
            "preload": {"folder": str(tmp_path / "preload"), "every": "100ms"},
        },
        "offline_store": {"type": "file"},
        "entity_key_serialization_version": 3,
    }
    (folder / "feature_store.yaml").write_text(yaml.safe_dump(said))

    def serve() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SERVER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def has_written() -> bool:
        return len(HotKeyFiles(tmp_path / "preload" / repo.project).read(100)) == 12

    with serve() as first:
        assert first.stdout is not None
        assert "'profile': 0" in first.stdout.readline()
        if end == "killed":
            await_(has_written)
            first.send_signal(signal.SIGKILL)
        else:
            first.communicate("\n", timeout=60)
            assert first.returncode == 0
    assert has_written()
    with serve() as second:
        assert second.stdout is not None
        assert "'profile': 12" in second.stdout.readline()
        second.communicate("\n", timeout=60)
