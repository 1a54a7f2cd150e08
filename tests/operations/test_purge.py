"""`hotplate purge`: what it removes, how fast, and how it goes on after it was stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client
from feast.types import Int64, String
from feast.value_type import ValueType
from hypothesis import given
from hypothesis import strategies as st

import hotplate
from hotplate import ConfigError, Tier
from hotplate.clock import SYSTEM_CLOCK
from hotplate.codec import Column, Layout
from hotplate.contracts import View
from hotplate.embedded import EmbeddedServer
from hotplate.errors import ServerError
from hotplate.keys import EntityShape, ViewIdentity
from hotplate.operations import purge as purge_module
from hotplate.operations.cursors import CursorFile, Position, Selection
from hotplate.operations.purge import Limits
from hotplate.pace import Pace
from hotplate.servers.redis import RedisServer
from hotplate.tiers.shared import SharedBounds, SharedTier

from ..stores import USER, Repo, await_
from .deployments import PLUGINS, another_cache, command, elsewhere, tiers, write_yaml

PLAIN = {"default": {"ttl": "1h", "negative_ttl": "1h", "jitter": 0}}
FAST = Limits(rate=1_000_000, batch=1_000, max_misses=1_000_000)
MANY = 600


class Deployment:
    """Two views over SQLite, whose rows are in the shared tier."""

    def __init__(self, folder: Path, shared: dict[str, Any], ttl_map: Any = PLAIN) -> None:
        self.repo = Repo(
            folder / "repo",
            {"type": "sqlite"},
            project=f"purge_{folder.name}"[:60],
            ttl_map=ttl_map,
            settings={"shared": {**shared, "timeout": "2s"}},
            clock=SYSTEM_CLOCK,
        )
        self.state = folder / "state"
        self.repo.apply(
            USER, self.repo.view("v", {"age": Int64}), self.repo.view("w", {"n": Int64})
        )
        self.servers = [
            redis_client.Redis(port=int(address.rpartition(":")[2]))
            for address in shared["connection_string"].split(",")
        ]

    def fill(self, count: int = MANY) -> None:
        """Rows of both views for so many users."""
        for feature in ("v:age", "w:n"):
            tiers(another_cache(self.repo), users(count), feature)

    def keys(self, view: str = "", project: str = "") -> set[bytes]:
        """What lies in the shared tier."""
        prefix = f"hotplate:row:{project or self.repo.project}:{view and view + ':'}"
        return {key for server in self.servers for key in server.scan_iter(prefix + "*", 1000)}

    def run(self, *groups: str, limits: Limits = FAST, **kwargs: Any) -> list[Any]:
        """Purge here, to the end."""
        cache = hotplate.of(another_cache(self.repo))
        named = groups or None
        return list(cache.purge(named, limits=limits, state=self.state, **kwargs))


def users(count: int) -> list[dict[str, int]]:
    return [{"user_id": user} for user in range(count)]


@pytest.fixture(params=["redis", "valkey", "redis_cluster"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """On each kind of server."""
    server = request.getfixturevalue(request.param)
    if isinstance(server, EmbeddedServer):
        shared = {"connection_string": server.connection_string}
    else:
        shared = {key: value for key, value in server.settings.items() if key != "type"}
    yield from deployed(tmp_path, shared)


@pytest.fixture
def here(redis: EmbeddedServer, tmp_path: Path) -> Iterator[Deployment]:
    """On Redis."""
    yield from deployed(tmp_path, {"connection_string": redis.connection_string})


def deployed(folder: Path, shared: dict[str, Any]) -> Iterator[Deployment]:
    made = Deployment(folder, shared)
    yield made
    made.repo.cache.runtime.close()
    for server in made.servers:
        server.close()


def test_a_group_and_nothing_else(anywhere: Deployment) -> None:
    """Every entry of it, on every node; the cursor file goes when it is over."""
    anywhere.fill()
    assert len(anywhere.keys("v")) == MANY
    last = anywhere.run("v")[-1]
    assert (last.removed, last.live, last.done, last.is_over) == (MANY, MANY, 1.0, True)
    assert anywhere.keys("v") == set()
    assert len(anywhere.keys("w")) == MANY
    assert list(anywhere.state.iterdir()) == []


def test_the_whole_project_and_no_other(anywhere: Deployment) -> None:
    """Project `a` is no part of `data` or `a:v`; what is ours but no row stays."""
    anywhere.fill(20)
    shared = anywhere.repo.settings["shared"]
    kind = shared.get("redis_type", "redis")
    server = RedisServer(shared["connection_string"], kind)
    for name in ("a", "data", "a:v", anywhere.repo.project + "x", "x" + anywhere.repo.project):
        put(SharedTier(server, name, SharedBounds(2, 1, 1_000), SYSTEM_CLOCK), name)
    everything = anywhere.keys(project="*")
    mine = anywhere.keys()
    assert len(mine) == 40
    assert anywhere.run()[-1].removed == 40
    assert anywhere.keys(project="*") == everything - mine
    generations = {key for one in anywhere.servers for key in one.scan_iter("hotplate:gen*")}
    assert f"hotplate:generations:{anywhere.repo.project}".encode() in generations
    for one in anywhere.servers:
        for key in one.scan_iter("hotplate:row:*"):
            one.delete(key)


def put(tier: SharedTier, project: str) -> None:
    """An entry of another project."""
    shape = EntityShape(("user_id",), ("int64_val",))
    columns = (("age", "INT64"),)
    identity = ViewIdentity(project, "v", "v", columns, shape)
    view = View(identity, Layout([Column("age", ValueType.INT64)]), 8)
    (found,) = tier.claim([tier.look([(view, view.key((1,)))])[0].slot])
    tier.fill([(found.slot, bytes(8) + b"row", 10**12)])
    tier.close()


def test_outdated_entries_alone(here: Deployment) -> None:
    """Of another schema, of a view that is gone, of an earlier generation; garbage, too."""
    here.fill(10)
    repo = here.repo
    repo.apply(USER, repo.view("v", {"age": Int64, "city": String}))
    tiers(another_cache(repo), users(3))  # replaced by the new schema
    hotplate.of(another_cache(repo)).invalidate("w")
    tiers(another_cache(repo), users(2), "w:n")
    prefix = f"hotplate:row:{repo.project}:"
    here.servers[0].set(prefix + "gone:user_id:int64_val:1", "x")
    here.servers[0].set(prefix + "v:user_id:int64_val:99", "garbage")
    here.servers[0].set(prefix + "neither", "garbage")
    last = here.run(outdated=True)[-1]
    assert (last.removed, last.live) == (7 + 8 + 3, 0)
    assert len(here.keys("v")) == 3
    assert len(here.keys("w")) == 2
    assert tiers(another_cache(repo), users(3)) == [Tier.SHARED] * 3


def test_every_version_of_a_view(tmp_path: Path, redis: EmbeddedServer) -> None:
    """Also those that only pinned requests read; none of them is outdated."""
    repo = Repo(
        tmp_path / "repo",
        {"type": "sqlite"},
        project="purge_versions",
        ttl_map=PLAIN,
        registry={"enable_online_feature_view_versioning": True},
        settings={"shared": {"connection_string": redis.connection_string, "timeout": "2s"}},
        clock=SYSTEM_CLOCK,
    )
    for schema in ({"age": Int64}, {"age": Int64, "city": String}):
        repo.apply(USER, repo.view("v", schema))
        repo.write("v", user_id=[1], **{name: [None] for name in schema})
    for feature in ("v@v0:age", "v:age"):
        tiers(another_cache(repo), users(1), feature)
    cache = hotplate.of(another_cache(repo))
    state = tmp_path / "state"
    assert list(cache.purge(["v"], outdated=True, limits=FAST, state=state))[-1].removed == 0
    assert list(cache.purge(["v"], limits=FAST, state=state))[-1].removed == 2


@pytest.mark.heavy
@pytest.mark.parametrize("anywhere", ["redis", "redis_cluster"], indirect=True)
def test_processes_that_listen_forget_it_too(anywhere: Deployment) -> None:
    """The memory of another process is emptied of exactly those rows."""
    repo = anywhere.repo
    anywhere.fill(30)
    store = another_cache(repo)
    for feature in ("v:age", "w:n"):
        tiers(store, users(30), feature)
    await_(lambda: hotplate.of(store).stats().channel.is_whole)
    done = elsewhere(repo, "purge", "v", "--max-misses", "500/s", "--state", str(anywhere.state))
    assert done.code == 0, done.out
    assert "done: 30 entries removed" in done.out
    await_(lambda: hotplate.of(store).stats().groups["v"].invalidated >= 30)
    assert tiers(store, users(30)) == [Tier.SOURCE] * 30
    assert tiers(store, users(30), "w:n") == [Tier.MEMORY] * 30
    hotplate.of(store).runtime.close()


def test_the_source_is_read_no_faster_than_allowed(here: Deployment) -> None:
    """While requests go on for what is being removed."""
    limit = 40
    here.fill(100)
    store = another_cache(here.repo)
    tiers(store, users(100))
    loads: list[float] = []
    source = hotplate.of(store).runtime.engine.source
    load = source.load

    def noted(requests: Any) -> Any:
        loads.extend([time.monotonic()] * sum(len(request.keys) for request in requests))
        return load(requests)

    source.load = noted  # type: ignore[method-assign]
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            tiers(store, users(100))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        cache = hotplate.of(store)
        limits = Limits(max_misses=limit)
        began = time.monotonic()
        last = list(cache.purge(["v"], limits=limits, state=here.state))[-1]
        spent = time.monotonic() - began
        await_(lambda: len(loads) >= 100)
    finally:
        is_over.set()
        reader.join()
    # those that were loaded again behind the cursor are not found again; none is missed
    assert last.removed >= 100
    assert spent > 100 / limit - 1
    for at in loads:
        within = sum(at <= other < at + 1 for other in loads)
        assert within <= 2 * limit, within  # a busy machine may read late what went before


@given(
    st.integers(1, 500),
    st.lists(st.tuples(st.floats(0, 2), st.integers(1, 60)), min_size=1, max_size=80),
)
def test_no_second_has_more_than_the_limit(limit: int, calls: list[tuple[float, int]]) -> None:
    """Wherever the second begins, however unevenly it is asked for; and it comes to its end."""
    now = [1_000.0]
    pace = Pace(limit, lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    taken: list[tuple[float, int]] = []
    for pause, count in calls:
        now[0] += pause
        for _ in range(0, count, pace.step):
            pace.take(pace.step)
            taken.append((now[0], pace.step))
    for at, _ in taken:
        assert sum(count for other, count in taken if at <= other < at + 1) <= limit
    total = sum(count for _, count in taken)
    spent = now[0] - 1_000 - sum(pause for pause, _ in calls)
    assert spent <= 1.3 * total / limit + 1.1


# -- stopping and going on -------------------------------------------------------------------------


def test_it_goes_on_where_it_was_stopped(anywhere: Deployment) -> None:
    """Not at the beginning; nothing is left over."""
    anywhere.fill()
    cache = hotplate.of(another_cache(anywhere.repo))
    steps = cache.purge(["v"], limits=Limits(10**6, 100, 10**6), state=anywhere.state)
    while (progress := next(steps)).removed < MANY / 2:
        pass
    steps.close()  # type: ignore[attr-defined]
    file = CursorFile(anywhere.state, anywhere.repo.project)
    left = file.load()
    assert left is not None
    assert (left.selection, left.removed) == (Selection(("v",)), progress.removed)
    assert left.removed < MANY
    before = sum(node.pages for node in left.nodes.values())
    assert before > 0
    rest = list(cache.purge(resume=True, limits=FAST, state=anywhere.state))
    assert rest[-1].removed == MANY
    assert anywhere.keys("v") == set()
    assert len(anywhere.keys("w")) == MANY
    with pytest.raises(ConfigError, match="nothing to resume"):
        cache.purge(resume=True, state=anywhere.state)


@pytest.mark.parametrize("what", ["another_life", "another_topology"])
def test_a_cursor_of_another_server_means_nothing(here: Deployment, what: str) -> None:
    """A node that was restarted, a deployment that was rearranged: from the beginning."""
    here.fill(50)
    cache = hotplate.of(another_cache(here.repo))
    steps = cache.purge(["v"], limits=FAST, state=here.state)
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    file = CursorFile(here.state, here.repo.project)
    body = json.loads(file.path.read_text())
    for node in body["nodes"].values():
        node.update(is_done=True, cursor=0)
        if what == "another_life":
            node["run_id"] = "f" * 40
    if what == "another_topology":
        body["topology"] = "0-16383=elsewhere:1"
    file.path.write_text(json.dumps(body))
    list(cache.purge(resume=True, limits=FAST, state=here.state))
    assert here.keys("v") == set()


def test_a_cluster_that_is_rearranged_is_walked_again(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys may have moved to where the walk has been; in the end it gives up, and says so."""
    here.fill(10)
    seen = iter(range(100))
    monkeypatch.setattr(purge_module, "_shown", lambda topology: str(min(3, next(seen))))
    assert here.run("v")[-1].removed == 10
    monkeypatch.setattr(purge_module, "_shown", lambda topology: str(next(seen)))
    with pytest.raises(ServerError, match="rearranged"):
        here.run("v")
    assert CursorFile(here.state, here.repo.project).load() is not None


# what is started in the background of a script ignores Ctrl-C, and so would its children
HEEDS_CTRL_C = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from hotplate.cli import main
main()
"""


@pytest.mark.heavy
def test_ctrl_c_stops_it_and_says_how_to_go_on(here: Deployment) -> None:
    """At once, with what was removed; and it does go on."""
    here.fill()
    write_yaml(here.repo)
    state = str(here.state)
    line = ["purge", "v", "--max-misses", "30/s", "--state", state]
    with subprocess.Popen(
        [sys.executable, "-c", HEEDS_CTRL_C, *line],
        cwd=here.repo.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PYTHONPATH": PLUGINS, "PATH": "/usr/bin:/bin"},
    ) as process:
        await_(lambda: len(here.keys("v")) < MANY - 20, 60)
        # meanwhile it lets other programs of the machine go first
        niceness = os.getpriority(os.PRIO_PROCESS, process.pid)
        assert niceness == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "Traceback" not in out
    assert f"go on with: hotplate purge --resume --state {state} -c ." in out
    left = len(here.keys("v"))
    assert 0 < left < MANY - 20
    done = command(here.repo, "purge", "--resume", "--max-misses", "100000", "--state", state)
    assert done.exit_code == 0, done.output
    assert "done: " in done.output
    assert here.keys("v") == set()
    done = command(here.repo, "purge", "--resume", "--state", state)
    assert (done.exit_code, done.output) == (0, "there is nothing to resume\n")


def test_a_server_that_goes_away(here: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, how to go on, and 1."""
    here.fill(10)
    monkeypatch.setattr(purge_module.Purge, "_judge", lambda self, keys: fail())

    def fail() -> Any:
        raise ServerError("127.0.0.1:1: away")

    done = command(here.repo, "purge", "--all", "--state", str(here.state))
    assert done.exit_code == 1
    assert "hotplate: 127.0.0.1:1: away" in done.output
    assert "--resume" in done.output


def test_announcements_that_are_not_taken_stop_it(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else they would be shortened to whole views, all at once."""
    here.fill(10)
    monkeypatch.setattr(purge_module, "_WAIT_S", 0.2)
    cache = hotplate.of(another_cache(here.repo))
    parts = cache.runtime.coherence.parts()
    assert parts is not None
    monkeypatch.setattr(type(parts[1]), "pending", 1)
    with pytest.raises(ServerError, match="does not take what is announced"):
        list(cache.purge(["v"], limits=FAST, state=here.state))


@pytest.mark.parametrize("right", ["scan", "getrange", "unlink", "info"])
def test_a_missing_right_is_named(here: Deployment, right: str) -> None:
    """The server's own words say which."""
    here.fill(5)
    admin = here.servers[0]
    admin.execute_command("ACL", "SETUSER", "purger", "on", ">pw", "~*", "&*", "+@all", f"-{right}")
    try:
        shared = here.repo.settings["shared"]
        address = f"{shared['connection_string']},username=purger,password=pw"
        here.repo.settings = {"shared": {**shared, "connection_string": address}}
        done = command(here.repo, "purge", "v", "--state", str(here.state))
        assert done.exit_code == 1
        assert right in done.output
    finally:
        admin.execute_command("ACL", "DELUSER", "purger")


def test_without_dbsize_nothing_is_estimated(here: Deployment) -> None:
    """Who may not see how much there is, is told less."""
    here.fill(5)
    admin = here.servers[0]
    rules = ("on", ">pw", "~*", "&*", "+@all", "-dbsize")
    admin.execute_command("ACL", "SETUSER", "purger", *rules)
    try:
        shared = here.repo.settings["shared"]
        address = f"{shared['connection_string']},username=purger,password=pw"
        here.repo.settings = {"shared": {**shared, "connection_string": address}}
        first, *_, last = here.run("v")
        assert (first.done, first.remaining_s, last.removed) == (None, None, 5)
    finally:
        admin.execute_command("ACL", "DELUSER", "purger")


def test_a_folder_that_cannot_be_written(here: Deployment, tmp_path: Path) -> None:
    """Said before anything is removed."""
    here.fill(5)
    (tmp_path / "file").write_text("")
    done = command(here.repo, "purge", "v", "--state", str(tmp_path / "file" / "sub"))
    assert done.exit_code == 1
    assert "--state FOLDER" in done.output
    assert len(here.keys("v")) == 5


def test_wrong_usage(here: Deployment, tmp_path: Path) -> None:
    """Nothing chosen, or two things at once; rates that are none; a group that is not there."""
    state = ("--state", str(here.state))
    for arguments in (
        [],
        ["v", "--all"],
        ["v", "--resume"],
        ["--resume", "--outdated"],
        ["v", "--rate", "0"],
        ["v", "--max-misses", "5/m"],
        ["v", "--batch", "0"],
    ):
        assert command(here.repo, "purge", *arguments, *state).exit_code == 2, arguments
    done = command(here.repo, "purge", "nope", *state)
    assert (done.exit_code, "no group or feature view 'nope'" in done.output) == (1, True)
    bare = Repo(tmp_path / "bare", {"type": "sqlite"})
    bare.apply(USER, bare.view("v", {"age": Int64}))
    done = command(bare, "purge", "v", *state)
    assert (done.exit_code, "there is no shared tier" in done.output) == (1, True)
    with pytest.raises(ConfigError, match="at least 1"):
        Limits(rate=0)


def test_a_stopped_purge_that_is_given_up_is_said(here: Deployment) -> None:
    """A new one takes its place."""
    here.fill(5)
    CursorFile(here.state, here.repo.project).save(Position(Selection(("w",), True)))
    done = command(here.repo, "purge", "v", "--state", str(here.state))
    assert "a purge of outdated entries of w that was stopped is given up" in done.output
    assert here.keys("v") == set()


@pytest.mark.parametrize("text", ["", "{}", '{"v": 2}', '{"v": 1, "selection": 3}', "[]"])
def test_an_unreadable_cursor_file_is_none(tmp_path: Path, text: str) -> None:
    """There is nothing to go on with."""
    file = CursorFile(tmp_path, "shop")
    file.path.write_text(text)
    assert file.load() is None


def test_where_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the usual variables."""
    from hotplate.operations.cursors import state_folder

    monkeypatch.setenv("HOTPLATE_STATE", "/x")
    assert state_folder() == Path("/x")
    monkeypatch.delenv("HOTPLATE_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", "/y")
    assert state_folder() == Path("/y/hotplate")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/z")
    assert state_folder() == Path(f"/z{os.sep}.local/state/hotplate")
