"""`hotplate doctor`: a good deployment passes; each thing that is wrong is named, with its fix."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis as redis_client
from feast.types import Int64

import hotplate
from hotplate.clock import SYSTEM_CLOCK
from hotplate.embedded import EmbeddedServer
from hotplate.operations import doctor, servers, trials
from hotplate.operations.findings import ERROR, OK, WARNING, Finding, merged
from hotplate.servers import rights
from pipelines.lab.programs import redis_server

from ..guarded import Guarded
from ..stores import USER, Repo, await_
from .deployments import another_cache, command

EVENT = {"default": {"ttl": "1h", "coherence": "event"}}
SECRET = "pass-word"
RULES = [
    f"~{rights.KEYS}",
    *(f"&{name}" for name in rights.CHANNELS),
    *(f"+{name}" for name in (*rights.TIER, *rights.CHANNEL)),
]
CLUSTER_RULES = [f"+{name}" for name in rights.CLUSTER_CHANNEL]


def shop(folder: Path, shared: Any = None, online: Any = None, **kwargs: Any) -> Repo:
    """One event-coherent view."""
    settings = {} if shared is None else {"shared": shared}
    kwargs = {"ttl_map": EVENT, "settings": settings, "clock": SYSTEM_CLOCK, **kwargs}
    repo = Repo(folder / "repo", online or {"type": "sqlite"}, project="doctor", **kwargs)
    repo.bare.apply([USER, repo.view("v", {"age": Int64})])
    return repo


def seen(repo: Repo) -> dict[str, Finding]:
    """What is found, by check, without the name of the server."""
    found = hotplate.of(another_cache(repo)).examine()
    return {finding.check.rpartition(": ")[2]: finding for finding in found}


def bad(found: dict[str, Finding], status: str) -> set[str]:
    return {check for check, finding in found.items() if finding.status == status}


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A server of the test's own."""
    with redis_server() as server:
        yield server


@pytest.fixture
def admin(server: EmbeddedServer) -> Iterator[Any]:
    with redis_client.Redis(port=server.port) as client:
        yield client


@pytest.fixture
def repo(tmp_path: Path, server: EmbeddedServer) -> Repo:
    """Over SQLite, with a shared tier."""
    # a long deadline: on a busy machine 5 ms pass without anybody being at fault
    return shop(tmp_path, {"connection_string": server.connection_string, "timeout": "2s"})


# -- all is well ----------------------------------------------------------------------------------


def test_a_good_deployment_passes(repo: Repo, admin: Any) -> None:
    """No errors, no warnings; a line a check, with what was seen."""
    admin.config_set("maxmemory", "1gb")
    admin.config_set("maxmemory-policy", "volatile-lru")
    done = command(repo, "doctor")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert all(line.startswith("ok ") for line in lines), done.output
    assert len(lines) > 14
    for text in (
        "ok      profile: none by HOTPLATE_PROFILE",
        "online_store.shared: version: redis 7",
        "online_store.shared: role: primary",
        "volatile-lru, 1.1GB",
        "a changed key was heard of after ",
        "5 messages came back, the slowest after ",
    ):
        assert text in done.output


def test_for_machines(repo: Repo) -> None:
    """JSON and nothing else."""
    done = command(repo, "doctor", "--json")
    body = json.loads(done.output)
    assert (done.exit_code, body["errors"], body["warnings"]) == (0, 0, 1)
    (warning,) = [one for one in body["checks"] if one["status"] == "warning"]
    assert warning["check"] == "online_store.shared: eviction"
    assert warning["fix"].startswith("set maxmemory")


def test_the_documented_rights_pass(tmp_path: Path, guarded: Guarded) -> None:
    """On each kind of server; what cannot be seen without more is a warning."""
    repo = shop(tmp_path, guarded.allow(guarded.documented))
    found = seen(repo)
    assert bad(found, ERROR) == set()
    expected = {"rights of tools", "eviction", "other keys"}
    assert bad(found, WARNING) - {"round trip", "channel"} == expected
    assert found["rights"].seen.startswith("everything that is needed")
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("guarded", "rule"),
    [
        *((kind, rule) for kind in ("redis", "valkey") for rule in RULES),
        *(("redis_cluster", rule) for rule in RULES + CLUSTER_RULES),
    ],
    indirect=["guarded"],
)
def test_a_missing_right_is_named(tmp_path: Path, guarded: Guarded, rule: str) -> None:
    """One removed at a time, on each kind of server that needs it."""
    rules = [one for one in guarded.documented if one != rule]
    repo = shop(tmp_path, guarded.allow(rules))
    found = seen(repo)
    named = found["reachable"] if rule == "+cluster|slots" else found["rights"]
    assert named.status == ERROR
    assert rule in named.fix.split()
    assert set(named.fix.split()) & {*RULES, *CLUSTER_RULES} == {rule}
    assert SECRET not in repr(found)
    for client in guarded.admins:
        left = list(client.scan_iter("hotplate:doctor:*"))
        assert all(0 <= client.pttl(key) <= 5_000 or not client.exists(key) for key in left)


def test_rights_for_the_real_names_are_asked_about(
    tmp_path: Path, server: EmbeddedServer, admin: Any
) -> None:
    """A user confined to the throw-away keys is found out, by trying and by asking."""
    guarded = Guarded(server.connection_string)
    rules = [rule for rule in guarded.documented if rule != "~hotplate:*"]
    shared = guarded.allow([*rules, "~hotplate:doctor:*"])
    assert "~hotplate:*" in seen(shop(tmp_path / "a", shared))["rights"].fix
    more = ["~hotplate:doctor:*", "%R~hotplate:*", "+acl|dryrun", "+acl|whoami"]
    shared = guarded.allow([*rules, *more])
    assert "~hotplate:*" in seen(shop(tmp_path / "b", shared))["rights"].fix
    guarded.close()


# -- the store is Redis ---------------------------------------------------------------------------


def test_around_redis(tmp_path: Path, server: EmbeddedServer, admin: Any) -> None:
    """Its server broadcasts; what is good for a cache is bad for it."""
    repo = shop(tmp_path, online={"type": "redis", "connection_string": server.connection_string})
    repo.write("v", user_id=[1], age=[1])
    found = seen(repo)
    assert bad(found, ERROR) == set()
    assert bad(found, WARNING) == {"persistence"}
    assert "restart loses the features" in found["persistence"].seen
    assert found["event groups"].seen == "v: the store's server broadcasts every change"
    assert found["tracking"].status == OK
    assert found["other keys"].status == OK
    admin.config_set("maxmemory-policy", "allkeys-lru")
    admin.config_set("appendonly", "yes")
    found = seen(repo)
    assert bad(found, WARNING) == {"eviction"}
    assert "may drop features" in found["eviction"].seen
    assert "noeviction" in found["eviction"].fix


def test_one_server_for_both(tmp_path: Path, server: EmbeddedServer) -> None:
    """Features and cached rows need different rules when memory ends."""
    at = {"connection_string": server.connection_string}
    repo = shop(tmp_path, {**at, "tier": True}, {"type": "redis", **at})
    assert "one server for both" in bad(seen(repo), WARNING)
    repo = shop(tmp_path / "off", at, {"type": "redis", **at})
    assert "one server for both" not in seen(repo)


# -- what can be wrong with a server --------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "bound", "status"),
    [
        ("noeviction", "100mb", WARNING),
        ("volatile-lru", "0", WARNING),
        ("allkeys-random", "100mb", WARNING),
        ("volatile-lru", "100mb", OK),
        ("allkeys-lfu", "100mb", OK),
    ],
)
def test_eviction(repo: Repo, admin: Any, policy: str, bound: str, status: str) -> None:
    """A cache must make room for what is new."""
    admin.config_set("maxmemory", bound)
    admin.config_set("maxmemory-policy", policy)
    assert seen(repo)["eviction"].status == status


def test_a_replica_is_no_place_to_write(tmp_path: Path, server: EmbeddedServer) -> None:
    """It is told from a primary without any right."""
    with redis_server() as second, redis_client.Redis(port=second.port) as client:
        client.replicaof(server.host, server.port)
        await_(lambda: client.info("replication")["master_link_status"] == "up")
        found = seen(shop(tmp_path, {"connection_string": second.connection_string}))
        assert found["role"] == Finding(
            "online_store.shared: role",
            ERROR,
            "a replica: it takes no writes",
            "name the primary, or use redis_type: redis_sentinel so that it is found",
        )


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    """One line for it, and 1; what does not need it is checked all the same."""
    repo = shop(tmp_path, {"connection_string": f"127.0.0.1:1,password={SECRET}"})
    done = command(repo, "doctor")
    assert done.exit_code == 1
    errors = [line for line in done.output.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    assert "online_store.shared: reachable: 127.0.0.1:1: " in errors[0]
    assert "correct the connection string, start the server" in errors[0]
    assert "ok      memory" in done.output
    assert SECRET not in done.output


def test_a_wrong_password(repo: Repo, admin: Any, server: EmbeddedServer) -> None:
    """Said, not shown."""
    admin.config_set("requirepass", "another")
    address = f"{server.connection_string},password={SECRET}"
    repo.settings = {"shared": {"connection_string": address}}
    done = command(repo, "doctor", "--json")
    assert done.exit_code == 1
    assert "correct username and password" in done.output
    assert SECRET not in done.output
    admin.config_set("requirepass", "")


def test_secrets_in_what_a_client_says(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an error holds, the password is taken out."""
    shared = repo.settings["shared"]
    address = f"{shared['connection_string']},password={SECRET}"
    repo.settings = {"shared": {"connection_string": address}}
    loud = Finding("x", ERROR, f"cannot log in with {SECRET}", "")
    monkeypatch.setattr(doctor, "examine_server", lambda use: [loud])
    assert seen(repo)["x"].seen == "cannot log in with ***"


@pytest.mark.parametrize(
    ("name", "version", "status"),
    [("redis", "6.2.14", ERROR), ("redis", "7.0.0", OK), ("valkey", "9.1.2", OK)],
)
def test_versions(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, name: str, version: str, status: str
) -> None:
    """What SET NX GET and sharded pub/sub need."""
    hello = {b"server": name.encode(), b"version": version.encode(), b"role": b"master"}
    monkeypatch.setattr(servers, "_hello", lambda ground: hello)
    found = seen(repo)["version"]
    assert (found.status, found.seen) == (status, f"{name} {version}")


@pytest.mark.parametrize(("step_s", "status"), [(0.05, OK), (0.3, WARNING), (-0.3, WARNING)])
def test_clocks_that_differ(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, step_s: float, status: str
) -> None:
    """Rows end early by the difference."""
    clock = SimpleNamespace(time=lambda: time.time() + step_s, monotonic=time.monotonic)
    monkeypatch.setattr(servers, "time", clock)
    found = seen(repo)["clock"]
    assert found.status == status
    assert f"{-step_s * 1e3:+.0f}"[:3] in found.seen or abs(step_s) < 0.1


@pytest.mark.parametrize(("took_s", "status"), [(0.9, OK), (1.1, WARNING)])
def test_a_slow_round_trip(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, took_s: float, status: str
) -> None:
    """Half of the deadline is the bound."""
    monkeypatch.setattr(servers, "_timed", lambda wire: took_s)
    found = seen(repo)["round trip"]
    assert (found.status, "shared.timeout is 2s" in found.seen) == (status, True)


def test_a_slow_connection(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not take half a second."""
    monkeypatch.setattr(servers, "_SLOW_CONNECT_S", -1)
    assert seen(repo)["reachable"].status == WARNING


def test_keys_of_others(repo: Repo, admin: Any) -> None:
    """Counted by what they begin with; no more of them is shown."""
    for number in range(5):
        admin.set(f"session:{SECRET}{number}", "x")
    admin.set(SECRET, "x")
    admin.set(b"\xff\xfe:x", "x")
    found = seen(repo)["other keys"]
    assert found.status == WARNING
    assert "session:* 5" in found.seen
    assert "(no prefix) 2" in found.seen
    assert SECRET not in found.seen


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"rdb_last_bgsave_status": "err"}, "rdb_last_bgsave_status: failed"),
        ({"loading": "1"}, "it is loading its data"),
    ],
)
def test_a_server_that_takes_no_writes(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, section: dict[str, str], text: str
) -> None:
    """For now, or until somebody makes room."""
    monkeypatch.setattr(servers, "_info", lambda ground, name: section)
    found = seen(repo)["persistence"]
    assert (found.status, text in found.seen) == (ERROR, True)


@pytest.mark.parametrize("what", ["channel", "tracking"])
def test_a_channel_that_tells_nothing(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A proxy that swallows it, for example."""
    monkeypatch.setattr(trials, "_await", lambda *_: None)
    assert seen(repo)[what].status == ERROR


@pytest.mark.parametrize(("took_s", "status"), [(0.2, WARNING), (0.5, ERROR)])
def test_a_slow_channel(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, took_s: float, status: str
) -> None:
    """Event-coherent rows are served only while messages come back in time."""
    monkeypatch.setattr(trials, "_await", lambda *_: took_s)
    assert seen(repo)["channel"].status == status


# -- what can be wrong without one ----------------------------------------------------------------


def test_event_groups_without_a_server(tmp_path: Path) -> None:
    """They are never cached; that is an error."""
    found = seen(shop(tmp_path))
    assert bad(found, ERROR) == {"event groups"}
    assert "online_store.shared" in found["event groups"].fix


LOCAL: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no_ttl": ({"ttl_map": {}}, "groups without ttl", WARNING, "for want of a ttl: v"),
    "never": ({"ttl_map": {"default": {"cache": "never"}}}, "policies", OK, "no contradictions"),
    "no_end": ({"ttl_map": {"default": "none"}}, "groups without end", WARNING, "never seen: v"),
    "unknown_group": ({"ttl_map": {"nope": "5s"}}, "policies", ERROR, "nope"),
    "loader_of_nothing": (
        {"settings": {"loaders": {"nope": {"function": "os:getcwd"}}}},
        "policies",
        ERROR,
        "nope",
    ),
    "memory": (
        {"settings": {"memory": {"max_bytes": 10**15}}},
        "memory",
        ERROR,
        "up to 1000000.0GB a process",
    ),
    "registry_forever": ({"registry": {"cache_ttl_seconds": 0}}, "registry", WARNING, "restart"),
    "registry_long": ({"registry": {"cache_ttl_seconds": 7200}}, "registry", WARNING, "7200 s"),
    "registry_short": ({"registry": {"cache_ttl_seconds": 60}}, "registry", OK, "within 60 s"),
}


@pytest.mark.parametrize("name", LOCAL)
def test_settings(tmp_path: Path, name: str) -> None:
    """What can be told without any server."""
    changes, check, status, text = LOCAL[name]
    found = seen(shop(tmp_path, **{"ttl_map": {"default": "5m"}, "settings": {}, **changes}))
    assert (found[check].status, text in found[check].seen) == (status, True), found
    assert bool(found[check].fix) == (status != OK)


def test_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that the environment chose."""
    monkeypatch.setenv("HOTPLATE_PROFILE", "edge")
    profiles = {"edge": {"default": "5s"}, "core": {}}
    repo = shop(tmp_path, ttl_map={"default": "5m"}, settings={"profiles": profiles})
    assert seen(repo)["profile"].seen == "edge by HOTPLATE_PROFILE (known: core, edge)"


def test_memory_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it may use counts, where that is less than there is."""
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(doctor, "_LIMITS", (limit,))
    whole = doctor.machine_bytes()
    limit.write_text("max\n")
    assert doctor.machine_bytes() == whole
    limit.write_text("600000000\n")
    found = seen(shop(tmp_path, ttl_map={"default": "5m"}, settings={}))["memory"]
    assert (found.status, found.seen) == (WARNING, "up to 512.0MB a process, of 600.0MB here")


def test_an_empty_and_an_unreadable_registry(tmp_path: Path) -> None:
    """Before the first apply, and after an accident."""
    ttl_map = {"default": "5m", "not_applied_yet": "1m"}
    repo = Repo(tmp_path / "repo", {"type": "sqlite"}, ttl_map=ttl_map)
    assert seen(repo)["policies"].fix == "run feast apply"
    (tmp_path / "repo" / "registry.db").write_bytes(b"\xff" * 50)
    assert "Feast cannot read the registry" in seen(repo)["policies"].seen


def of_nodes(*seen: tuple[str, str]) -> Finding:
    """One check of several nodes."""
    return merged("c", [(f"n{at}", Finding("", *one, "mend")) for at, one in enumerate(seen)])


def test_several_nodes_in_one_line() -> None:
    """All of them where all is well, else those that are not."""
    assert of_nodes((OK, "a")) == Finding("c", OK, "a")
    assert of_nodes((OK, "a"), (OK, "a")) == Finding("c", OK, "a (2 of 2 nodes)")
    assert of_nodes((OK, "a"), (OK, "b")) == Finding("c", OK, "n0: a; n1: b")
    expected = Finding("c", ERROR, "n1: b; n2: c", "mend")
    assert of_nodes((OK, "a"), (WARNING, "b"), (ERROR, "c")) == expected


def test_folders_that_cannot_hold_what_they_may_are_named(tmp_path: Path) -> None:
    """In the way of one lies a file, the disk of another is too small, the third is well."""
    (tmp_path / "file").write_text("in the way")
    good = tmp_path / "made" / "by" / "doctor"
    settings = {
        "blobs": {"folder": str(tmp_path / "file" / "blobs")},
        "traffic": {"folder": str(tmp_path / "traffic"), "max_bytes": 1 << 60},
        "preload": {"folder": str(good)},
    }
    repo = shop(tmp_path, settings=settings, ttl_map={"default": "1h"})
    found = seen(repo)
    assert found["blobs"].status == ERROR
    assert "online_store.blobs.folder" in found["blobs"].fix
    assert found["traffic"].status == WARNING
    assert "max_bytes" in found["traffic"].fix
    assert found["preload"].status == OK
    assert "it may hold 100.0MB" in found["preload"].seen
    kept = {"preload": {"folder": str(good), "rows": True}, "memory": {"max_bytes": "400MB"}}
    assert "it may hold 500.0MB" in seen(shop(tmp_path / "kept", settings=kept))["preload"].seen
    assert list(good.iterdir()) == [], "nothing is left there"
    assert not {"blobs", "traffic", "preload"} & set(seen(shop(tmp_path / "other")))
