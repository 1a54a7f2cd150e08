"""Rows that outlive their process come back only where it could have served them itself."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from feast import FeatureStore, FeatureView
from feast.types import Float64, Int64

import hotplate
from hotplate.clock import SYSTEM_CLOCK, FakeClock
from hotplate.embedded import EmbeddedServer
from hotplate.serving.preload import Preloaded
from hotplate.serving.rehearsal import Rehearsal
from hotplate.warming import hot_keys, marks
from hotplate.warming.hot_keys import HotKeyFiles
from hotplate.warming.marks import WriteMarks

from ..stores import USER, Repo, await_, frame_of
from .test_warm import loads

FEATURES = ["profile:age", "counts:n1"]
USERS = list(range(1, 9))
TTL_S = 30.0

pytestmark = pytest.mark.skipif(not marks.boot_id(), reason="the system does not say which boot")


@pytest.fixture
def shop(make_repo: Callable[..., Repo], tmp_path: Path) -> Callable[..., Repo]:
    """Makes shops whose processes leave rows to those that follow."""

    def make(**settings: Any) -> Repo:
        preload = {"folder": str(tmp_path / "preload"), "rows": True}
        repo = make_repo(settings={"preload": preload, **settings})
        repo.apply(USER, repo.view("profile", {"age": Int64}), repo.view("counts", {"n1": Int64}))
        repo.write("profile", user_id=USERS, age=[0] * len(USERS))
        repo.write("counts", user_id=USERS, n1=[0] * len(USERS))
        return repo

    return make


@pytest.fixture
def online() -> dict[str, Any]:
    return {"type": "sqlite"}


def use(store: FeatureStore) -> dict[str, list[Any]]:
    return store.get_online_features(FEATURES, {"user_id": USERS}).to_dict()


def end(store: FeatureStore) -> None:
    asyncio.run(store._get_provider().online_store.close())


def begin(repo: Repo, **changes: Any) -> tuple[FeatureStore, Preloaded]:
    store = repo.open_hot(**changes)
    return store, hotplate.of(store).preload()


def used_and_ended(repo: Repo, **changes: Any) -> None:
    store, _ = begin(repo, **changes)
    use(store)
    end(store)
    if isinstance(repo.clock, FakeClock):
        repo.clock.advance(1)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "preload").rglob("hot-*.parquet"))


def rows_kept(tmp_path: Path) -> int:
    (path,) = files(tmp_path)
    return len(pq.read_table(path)["row"].drop_null())


def write(store: FeatureStore) -> None:
    store.write_to_online_store("profile", frame_of(user_id=[1], age=[7]))


def profile(store: FeatureStore) -> FeatureView:
    return store.get_feature_view("profile")


def test_rows_come_back_with_their_age(shop: Callable[..., Repo]) -> None:
    repo = shop()
    used_and_ended(repo)
    # by somebody of whom no process hears before the ttl ends
    repo.write("profile", user_id=USERS, age=[1] * len(USERS))
    second, found = begin(repo)
    assert (found.kept, found.entities, found.wanted, found.problem) == (16, 16, 16, "")
    assert "16 of them as they had been kept" in str(found)
    assert use(second)["age"] == [0] * len(USERS)
    assert loads(second) == {"counts": 0, "profile": 0}
    hotplate.of(second).runtime.engine.memory.check()
    end(second)
    third, found = begin(repo)  # an age goes on, however often it is written down
    assert found.kept == 16
    repo.clock.advance(TTL_S - 1)
    assert use(third)["age"] == [1] * len(USERS)
    end(third)
    repo.clock.advance(TTL_S + 1)
    _, found = begin(repo)
    assert (found.kept, found.entities) == (0, 16), "what is too old is read"


def test_nothing_is_kept_unless_asked_for_and_by_who_ends(
    shop: Callable[..., Repo], tmp_path: Path
) -> None:
    repo = shop()
    folder = str(tmp_path / "preload")
    used_and_ended(repo, preload={"folder": folder})
    assert rows_kept(tmp_path) == 0
    store, _ = begin(repo)
    use(store)
    store._get_provider().online_store._preloading._made["made"].write()  # as it does each minute
    assert rows_kept(tmp_path) == 0
    end(store)
    assert rows_kept(tmp_path) == 16
    _, found = begin(repo, preload={"folder": folder})
    assert (found.kept, found.entities) == (0, 16)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (write, 8),
        (lambda store: hotplate.of(store).invalidate("profile", {"user_id": 1}), 8),
        (lambda store: hotplate.of(store).invalidate("profile"), 8),
        (lambda store: hotplate.of(store).clear(), 0),
        (lambda store: hotplate.of(store).runtime.forget_here(profile(store)), 8),
        (lambda store: hotplate.of(store).runtime.exclude("profile", "it is wrong"), 16),
        (lambda store: store.apply([profile(store)]), 16),
        (lambda store: store.apply([], objects_to_delete=[profile(store)], partial=False), 8),
    ],
    ids=["write", "entity", "group", "clear", "spark", "unread", "same", "dropped"],
)
def test_what_another_process_of_this_host_changed_does_not_come_back(
    shop: Callable[..., Repo], change: Callable[[FeatureStore], Any], kept: int
) -> None:
    repo = shop()
    used_and_ended(repo)
    change(repo.open_hot())
    repo.clock.advance(1)
    assert begin(repo)[1].kept == kept


def test_nor_what_was_changed_while_the_process_ran(shop: Callable[..., Repo]) -> None:
    """It did not hear of it, but whoever follows it does; what it read since is newer."""
    repo = shop()
    first, _ = begin(repo)
    use(first)
    repo.clock.advance(1)
    WriteMarks(Path(repo.settings["preload"]["folder"]) / repo.project, repo.clock).mark("profile")
    repo.clock.advance(1)
    hotplate.of(first).runtime.engine.memory.forget([view_key(first, user) for user in USERS[:3]])
    use(first)
    end(first)
    repo.clock.advance(1)
    assert begin(repo)[1].kept == 8 + 3


def view_key(store: FeatureStore, user: int) -> Any:
    view, _, _ = hotplate.of(store).runtime.resolve(profile(store))
    return view.key((user,))


@pytest.mark.parametrize("moment", ["before the keys", "before the marks", "after the marks"])
@pytest.mark.parametrize("what", ["entity", "group", "all"])
def test_an_invalidation_beside_a_preload_wins(
    shop: Callable[..., Repo], monkeypatch: pytest.MonkeyPatch, moment: str, what: str
) -> None:
    repo = shop()
    used_and_ended(repo)
    repo.write("profile", user_id=USERS, age=[1] * len(USERS))
    store = repo.open_hot()
    hot = hotplate.of(store)
    done: list[str] = []

    def changes(now: str) -> None:
        if now == moment and not done:
            done.append(now)
            if what == "all":
                hot.clear()
            else:
                hot.invalidate("profile", {"user_id": 1} if what == "entity" else None)

    table_of, last_ns = Rehearsal.table, WriteMarks.last_ns

    def table(self: Rehearsal, entity: str, view: str) -> Any:
        if view == "profile":
            changes("before the keys")
        return table_of(self, entity, view)

    def last(self: WriteMarks, view: str) -> int:
        if view != "profile":
            return last_ns(self, view)
        changes("before the marks")
        found = last_ns(self, view)
        changes("after the marks")
        return found

    monkeypatch.setattr(Rehearsal, "table", table)
    monkeypatch.setattr(WriteMarks, "last_ns", last)
    hot.preload()
    assert done
    assert use(store)["age"][0] == 1
    if what == "entity" and moment == "after the marks":
        assert use(store)["age"][1:] == [0] * (len(USERS) - 1), "the others came back"


def test_groups_that_hear_of_changes_are_read(
    shop: Callable[..., Repo], redis: EmbeddedServer, tmp_path: Path
) -> None:
    """Nobody listened while there was no process; and a group may hear from now on."""
    repo = shop()
    place = {"connection_string": f"127.0.0.1:{redis.port}"}
    ways: list[dict[str, Any]] = [
        {"shared": place},
        {"ttl_map": {"default": {"ttl": "30s", "coherence": "event"}}, "shared": place},
    ]
    for hears in ways:
        used_and_ended(repo, **hears)
        assert rows_kept(tmp_path) == 0
        used_and_ended(repo)
        assert rows_kept(tmp_path) == 16
        assert begin(repo, **hears)[1].kept == 0


def test_a_group_whose_server_tells_of_changes_is_read(
    tmp_path: Path, redis: EmbeddedServer
) -> None:
    preload = {"folder": str(tmp_path / "preload"), "rows": True}
    online = {"type": "redis", "connection_string": f"127.0.0.1:{redis.port}"}
    repo = Repo(tmp_path / "repo", online, project="kept_told", settings={"preload": preload})
    repo.clock = SYSTEM_CLOCK  # type: ignore[assignment]  # a channel waits for real
    repo.apply(USER, repo.view("profile", {"age": Int64}), repo.view("counts", {"n1": Int64}))
    repo.write("profile", user_id=USERS, age=[0] * len(USERS))
    repo.write("counts", user_id=USERS, n1=[0] * len(USERS))
    used_and_ended(repo)
    tells = {"default": "30s", "profile": {"ttl": "30s", "coherence": "event"}}
    told, found = begin(repo, ttl_map=tells)
    assert (found.kept, found.entities) == (8, 16)
    channel = hotplate.of(told).runtime.coherence
    await_(lambda: channel.parts()[0].is_whole)  # type: ignore[index]
    use(told)
    end(told)
    assert rows_kept(tmp_path) == 8


def test_a_group_that_is_never_cached_now(shop: Callable[..., Repo]) -> None:
    repo = shop()
    used_and_ended(repo)
    never = {"default": "30s", "profile": {"cache": "never"}}
    assert begin(repo, ttl_map=never)[1].kept == 8
    shorter = {"default": "30s", "profile": "1s"}
    assert begin(repo, ttl_map=shorter)[1].kept == 8


def test_another_schema(shop: Callable[..., Repo]) -> None:
    repo = shop()
    used_and_ended(repo)
    repo.apply(USER, repo.view("profile", {"age": Float64}), repo.view("counts", {"n1": Int64}))
    repo.clock.advance(1)
    assert begin(repo)[1].kept == 8


def test_another_store_behind_the_cache(shop: Callable[..., Repo], tmp_path: Path) -> None:
    """What was read from one is no answer of the other, however young it is."""
    repo = shop()
    used_and_ended(repo)
    elsewhere = {**repo.online, "path": str(tmp_path / "elsewhere.db")}
    assert begin(repo, store=elsewhere)[1].kept == 0
    assert begin(repo)[1].kept == 16


def test_another_boot_or_a_copy_of_the_machine(
    shop: Callable[..., Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ages cannot be told there: the clock began anew, or stood still for who knows how long."""
    repo = shop()
    used_and_ended(repo)
    wall_s = repo.clock.wall_ns() / 1e9
    repo.clock = FakeClock(repo.clock.now_ns() / 1e9, wall_s + 3)
    assert begin(repo)[1].kept == 0
    repo.clock = FakeClock(repo.clock.now_ns() / 1e9, wall_s)
    assert begin(repo)[1].kept == 16
    monkeypatch.setattr(hot_keys, "boot_id", lambda: "another")
    assert begin(repo)[1].kept == 0


def test_rows_of_the_future_are_not_believed(shop: Callable[..., Repo]) -> None:
    repo = shop()
    used_and_ended(repo)
    now_s, wall_s = repo.clock.now_ns() / 1e9, repo.clock.wall_ns() / 1e9
    repo.clock = FakeClock(now_s - 100, wall_s - 100)
    assert begin(repo)[1].kept == 0


@pytest.mark.parametrize("at", [0.3, 0.5, 0.7])
def test_a_damaged_file_is_left_out(
    shop: Callable[..., Repo], tmp_path: Path, at: float, caplog: pytest.LogCaptureFixture
) -> None:
    repo = shop()
    used_and_ended(repo)
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    where = int(at * len(whole))
    path.write_bytes(whole[:where] + bytes([whole[where] ^ 0xFF]) + whole[where + 1 :])
    store, found = begin(repo)
    assert use(store)["age"] == [0] * len(USERS)
    assert found.wanted in (0, 16)
    assert (found.wanted == 0) == ("is left out" in caplog.text)


def test_files_of_earlier_versions_hold_keys_alone(
    shop: Callable[..., Repo], tmp_path: Path
) -> None:
    repo = shop()
    used_and_ended(repo)
    (path,) = files(tmp_path)
    pq.write_table(pq.read_table(path).select(["entity", "view", "key"]), path)
    _, found = begin(repo)
    assert (found.kept, found.entities) == (0, 16)


def test_of_several_files_the_latest_counts(shop: Callable[..., Repo], tmp_path: Path) -> None:
    repo = shop()
    used_and_ended(repo)
    (path,) = files(tmp_path)
    path.rename(path.with_name("hot-elsewhere-1.parquet"))
    repo.clock.advance(10)
    repo.write("profile", user_id=USERS, age=[1] * len(USERS))
    first, _ = begin(repo, preload={"folder": str(tmp_path / "preload"), "rows": True, "most": 3})
    hotplate.of(first).clear()
    repo.clock.advance(1)
    use(first)
    end(first)
    repo.clock.advance(1)
    kept = HotKeyFiles(tmp_path / "preload" / repo.project, repo.clock).read(100)
    assert len(kept) == 16, "each entity of a view is there once"
    second, found = begin(repo)
    assert found.kept == 3, "the rest was read before everything was forgotten"
    assert use(second)["age"] == [1] * len(USERS)


def test_a_mark_that_cannot_be_written_counts_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    clock = FakeClock()
    left = WriteMarks(tmp_path / "file", clock)
    assert left.last_ns("profile") in (0, clock.now_ns())
    clock.advance(1)
    left.mark("profile")
    assert left.last_ns("profile") == clock.now_ns()
    assert "cannot be written down" in caplog.text


def test_the_latest_mark_remains(tmp_path: Path) -> None:
    clock = FakeClock()
    left, other = WriteMarks(tmp_path, clock), WriteMarks(tmp_path, clock)
    assert left.last_ns("a/b") == 0
    other.mark("a/b")
    began_ns = clock.now_ns()
    clock.advance(1)
    assert left.last_ns("a/b") == began_ns
    assert left.last_ns("a") == 0
    other.mark_all()
    assert left.last_ns("a/b") == left.last_ns("a") == clock.now_ns()
    (tmp_path / f"changed-{marks.boot_id()}-a").write_bytes(b"half")
    clock.advance(1)
    assert left.last_ns("a") == clock.now_ns(), "what cannot be read was written just now"


def test_marks_of_other_hosts_are_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one folder, which several may mount; they go when their boot is long over."""
    clock = FakeClock()
    WriteMarks(tmp_path, clock).mark("a")
    here_ns = clock.now_ns()
    clock.advance(1)
    own = marks.boot_id
    monkeypatch.setattr(marks, "boot_id", lambda: "another")
    assert WriteMarks(tmp_path, clock).last_ns("a") == 0
    WriteMarks(tmp_path, clock).mark("a")
    monkeypatch.setattr(marks, "boot_id", own)
    assert WriteMarks(tmp_path, clock).last_ns("a") == here_ns
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    WriteMarks(tmp_path, clock).mark("b")
    assert {path.name for path in tmp_path.iterdir()} == {
        f"changed-{own()}-a",
        f"changed-{own()}-b",
    }


@pytest.mark.parametrize("seed", range(6))
def test_random_processes(shop: Callable[..., Repo], seed: int) -> None:
    """A dict and a clock: no answer is older than the ttl, or than a change through Hotplate."""
    rng = random.Random(seed)
    repo = shop()
    clock = repo.clock
    # what the source said of each entity from when on, and the moment before which none counts
    said = {user: [(clock.now_ns(), 0)] for user in USERS}
    least_ns = dict.fromkeys(USERS, 0)
    store, _ = begin(repo)
    kept = answered = 0
    for number in range(1, 400):
        clock.advance(rng.choice([0.001, 0.1, 1.0, 4.0]))
        user = rng.choice(USERS)
        match rng.choices(
            ["read", "write", "behind", "elsewhere", "stop", "kill"], [30, 4, 6, 2, 6, 2]
        )[0]:
            case "read":
                read = store.get_online_features(["profile:age"], {"user_id": [user]}).to_dict()
                oldest_ns = max(clock.now_ns() - int(TTL_S * 1e9), least_ns[user])
                before = [age for at_ns, age in said[user] if at_ns <= oldest_ns][-1:]
                since = [age for at_ns, age in said[user] if at_ns > oldest_ns]
                assert read["age"][0] in before + since
                answered += 1
            case "write" | "behind" | "elsewhere" as how:
                through = {"write": store, "behind": repo.bare}.get(how) or repo.open_hot()
                repo.write("profile", through, user_id=[user], age=[number])
                said[user].append((clock.now_ns(), number))
                if how == "write":
                    least_ns[user] = clock.now_ns()
                elif how == "elsewhere":  # whoever runs now is not told, who follows knows
                    clock.advance(0.001)
                    end(store)
                    store, found = begin(repo)
                    least_ns[user], kept = clock.now_ns(), kept + found.kept
            case end_of:
                if end_of == "stop":
                    end(store)
                store, found = begin(repo)
                kept += found.kept
    assert kept > 20
    assert answered > 150
