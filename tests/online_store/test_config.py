"""What people write into feature_store.yaml: good settings work, bad ones are refused readably."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from feast import FeatureStore

import hotplate
from hotplate.cli import main

from ..stores import CACHED, frame_of

PLUGINS = str(Path(hotplate.__file__).parents[1])
SECRET = "hunter2"
SQLITE = {"type": "sqlite", "path": "online.db"}

PROFILED: dict[str, Any] = {
    "ttl_map": {"default": "30s", "counts": {"ttl": "2m", "jitter": "5%"}},
    "profiles": {
        "ci": {"*": {"cache": "never"}, "counts": "9s"},
        "edge": {"default": "7s"},
        "production": {"prof*": "5m", "counts": {"ttl": "1h"}},
    },
}

# Feast takes seconds to import: this program does it once, then forks a child for every command.
FORKING_FEAST = """\
import json, os, sys, traceback
import feast.cli.cli, feast.infra.offline_stores.dask, feast.infra.registry.registry
import feast.infra.compute_engines.local.compute, feast.infra.online_stores.sqlite
import hotplate.online_store
print("ready", flush=True)
while line := sys.stdin.readline():
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.chdir(job["folder"])
        os.environ.update(job["env"])
        sys.path[0] = job["folder"]
        try:
            feast.cli.cli.cli(job["arguments"], prog_name="feast", standalone_mode=True)
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # taking down all that was imported would take a second
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

VIEWS = """\
from feast import Entity, FeatureView, Field, FileSource, PushSource, ValueType
from feast.types import Float64, Int64

user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
rows = FileSource(name="rows", path="rows.parquet", timestamp_field="event_time")


def view(name, dtype, tags):
    fields = [Field(name="user_id", dtype=Int64), Field(name="x", dtype=dtype)]
    source = PushSource(name=name + "_push", batch_source=rows)
    return FeatureView(name=name, entities=[user], schema=fields, source=source, tags=tags)


profile = view("profile", Int64, {profile})
counts = view("counts", Float64, {counts})
"""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


@dataclass
class Feast:
    """The `feast` command in processes that share one import."""

    process: subprocess.Popen[str]

    def __call__(self, folder: Path, *arguments: str, **env: str) -> Done:
        """Run a command in a folder."""
        job = {
            "folder": str(folder),
            "arguments": arguments,
            "env": env,
            "out": str(folder.parent / "out.txt"),
            "err": str(folder.parent / "err.txt"),
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        return Done(code, Path(job["out"]).read_text(), Path(job["err"]).read_text())


def environment(**changes: str) -> dict[str, str]:
    """The environment of a command: this one's, without a profile."""
    kept = {name: value for name, value in os.environ.items() if name != "HOTPLATE_PROFILE"}
    return {**kept, "PYTHONPATH": PLUGINS, "FEAST_USAGE": "False", **changes}


@pytest.fixture(scope="module")
def feast() -> Iterator[Feast]:
    """The `feast` command, imported once."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING_FEAST],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Feast(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


@dataclass
class Folder:
    """A feature repo on disk."""

    path: Path
    online: dict[str, Any] = field(default_factory=dict)

    def write(
        self,
        online: Any = None,
        *,
        profile: Mapping[str, str] | None = None,
        counts: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        """Write the yaml, with Hotplate around SQLite unless told otherwise, and the views."""
        self.path.mkdir(parents=True, exist_ok=True)
        if online is None:
            default = {"type": CACHED, "store": SQLITE, "ttl_map": {"default": "30s"}}
            online = {**default, **settings}
        config = {
            "project": "shop",
            "provider": "local",
            "registry": "registry.db",
            "offline_store": {"type": "file"},
            "entity_key_serialization_version": 3,
            "online_store": online,
        }
        # in the order written: people put the store last as often as first
        (self.path / "feature_store.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        views = VIEWS.replace("{profile}", repr(dict(profile or {})))
        (self.path / "views.py").write_text(views.replace("{counts}", repr(dict(counts or {}))))

    def state(self) -> dict[str, bytes]:
        """Everything that `apply` could have changed: the registry and the store, byte by byte."""
        return {
            path.name: path.read_bytes()
            for path in self.path.iterdir()
            if path.is_file() and path.suffix in (".db", ".sqlite")
        }


@dataclass
class Started:
    """A command that runs in a folder, in a process that imports everything itself."""

    folder: Folder
    process: subprocess.Popen[str]

    def done(self) -> Done:
        """The command, once it has ended."""
        out, err = (self.folder.path.parent / name for name in ("out.txt", "err.txt"))
        return Done(self.process.wait(300), out.read_text(), err.read_text())


HOTPLATE = f"{sys.executable} -c 'from hotplate.cli import main; main()'"


@pytest.fixture(scope="module", autouse=True)
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Started]]:
    """The real commands, as a shell runs them; they take seconds and run beside other tests."""
    feast = str(Path(sys.executable).with_name("feast"))
    commands = {
        "good": f"{feast} apply && {HOTPLATE} policy --json >policies.json",
        "bad": f"{feast} apply",
    }
    with ExitStack() as stack:
        started = {}
        for name, command in commands.items():
            folder = Folder(tmp_path_factory.mktemp(name) / "repo")
            folder.write(profile={"hotplate.ttll": "5s"} if name == "bad" else {}, **PROFILED)
            out, err = (
                stack.enter_context((folder.path.parent / text).open("w"))
                for text in ("out.txt", "err.txt")
            )
            process = subprocess.Popen(
                ["sh", "-c", command],
                cwd=folder.path,
                env=environment(HOTPLATE_PROFILE="production"),
                stdout=out,
                stderr=err,
                text=True,
            )
            stack.callback(process.wait)
            started[name] = Started(folder, process)
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty one."""
    return Folder(tmp_path / "repo")


@pytest.fixture(scope="module")
def good(feast: Feast, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A good repo that was applied; not to be changed."""
    folder = Folder(tmp_path_factory.mktemp("good") / "repo")
    folder.write()
    done = feast(folder.path, "apply")
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def applied(good: Folder, folder: Folder) -> Folder:
    """The same, of a test's own."""
    shutil.copytree(good.path, folder.path)
    return folder


# -- what is accepted ----------------------------------------------------------------------------


GOOD: dict[str, dict[str, Any]] = {
    "every_setting": {
        "ttl_map": {
            "default": {"ttl": "30s", "negative_ttl": "0s", "jitter": "20%"},
            "prof*": {"ttl": "5m", "on_source_error": "last_good 10m"},
            "counts": {"ttl": "none", "cache": "never"},
        },
        "profiles": {"ci": {"default": {"ttl": "9s", "stale_while_revalidate": False}}},
        "memory": {"max_entries": 10, "max_bytes": "1.5GiB", "absent_share": "5%"},
        "enforce_max_age": True,
    },
    "store_only": {"ttl_map": {}},
    "keys_that_say_nothing": {"ttl_map": None, "profiles": {"ci": None}, "memory": None},
    "wildcards_that_agree": {"ttl_map": {"p*": "5s", "*file": "5s", "*": {"jitter": 0}}},
    "full_type_of_the_store": {
        "store": {"type": "feast.infra.online_stores.sqlite.SqliteOnlineStore", "path": "online.db"}
    },
}


@pytest.mark.parametrize("name", GOOD)
def test_good_settings_are_applied(folder: Folder, feast: Feast, name: str) -> None:
    """Every setting, none but the store, and wildcards that say the same."""
    folder.write(**GOOD[name])
    done = feast(folder.path, "apply")
    assert done.code == 0, done.err
    # who sets no ttl is told that nothing is cached
    is_without = name in ("store_only", "keys_that_say_nothing", "wildcards_that_agree")
    assert ("group counts has no ttl" in done.err) == is_without


def test_the_life_of_a_repo_from_the_command_line(applied: Folder, feast: Feast) -> None:
    """plan, apply again, materialize, list, teardown: all through Hotplate."""
    frame_of(user_id=[1], x=[5]).to_parquet(applied.path / "rows.parquet")
    for arguments in (
        ("plan",),
        ("apply",),
        ("materialize", "2025-12-01T00:00:00", "2026-02-01T00:00:00"),
        ("materialize-incremental", "2026-03-01T00:00:00"),
        ("feature-views", "list"),
    ):
        done = feast(applied.path, *arguments)
        assert done.code == 0, done.err
    store = FeatureStore(repo_path=str(applied.path))
    for _ in range(2):
        got = store.get_online_features(["profile:x"], [{"user_id": 1}, {"user_id": 2}]).to_dict()
        assert got["x"] == [5, None]
    done = feast(applied.path, "teardown")
    assert done.code == 0, done.err


# -- what is refused -----------------------------------------------------------------------------

REDIS = {"type": "redis", "connection_string": f"127.0.0.1:1,password={SECRET}"}
GROUP_G = {"hotplate.group": "g"}

# what is wrong -> (settings, texts that the message has: the group, the key, the fix)
BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "contradictory_tags": (
        {"profile": {**GROUP_G, "hotplate.ttl": "5s"}, "counts": {**GROUP_G, "hotplate.ttl": "9s"}},
        ["group 'g': ttl: feature view", "says 5s", "says 9s", "Give the views of one group"],
    ),
    "unknown_tag": (
        {"profile": {"hotplate.ttll": "5s"}},
        ["(tags of feature view 'profile'): ttll: is not a setting", "Did you mean 'ttl'?"],
    ),
    "malformed_tag": (
        {"profile": {"hotplate.ttl": "soon"}},
        [
            "group 'profile' (tags of",
            "ttl: 'soon' is not a duration",
            "write for example '250ms', '30s'",
        ],
    ),
    "group_named_by_a_wildcard": (
        {"profile": {"hotplate.group": "user_*"}},
        ["group 'profile': hotplate.group: 'user_*' cannot name a group", "Choose a name"],
    ),
    "negative_ttl": (
        {"ttl_map": {"profile": "-5s"}},
        ["group 'profile' (ttl_map): ttl: '-5s' is negative", "write '0s' to keep nothing"],
    ),
    "ttl_without_unit": (
        {"ttl_map": {"profile": 30}},
        [
            "group 'profile' (ttl_map): ttl: 30 has no unit",
            "write '30s' for seconds or '30m' for minutes",
        ],
    ),
    "negative_ttl_longer_than_ttl": (
        {"ttl_map": {"profile": {"ttl": "5s", "negative_ttl": "9s"}}},
        ["(ttl_map): negative_ttl: 9s is longer than the ttl of 5s", "Write at most 5s"],
    ),
    "unknown_setting_in_ttl_map": (
        {"ttl_map": {"profile": {"tll": "5s"}}},
        ["group 'profile' (ttl_map): tll: is not a setting", "Did you mean 'ttl'?"],
    ),
    "unknown_group": (
        {"ttl_map": {"default": "30s", "profiel": "5s"}},
        ["group 'profiel': ttl_map: names no group", "Did you mean 'profile'?"],
    ),
    "unknown_group_in_the_chosen_profile": (
        {"profiles": {"ci": {"profiel": "5s"}}, "env": "ci"},
        ["group 'profiel': profiles['ci']: names no group", "Did you mean 'profile'?"],
    ),
    "ambiguous_wildcards": (
        {"ttl_map": {"prof*": "5s", "*file": "9s"}},
        ["group 'profile': ttl: is ambiguous", "ttl_map['prof*'] says 5s", "narrow one wildcard"],
    ),
    "malformed_profile": (
        {"profiles": {"ci": {"profile": "5 apples"}}},
        ["group 'profile' (profiles['ci']): ttl: '5 apples' is not a duration"],
    ),
    "unknown_group_in_another_profile": (
        {"profiles": {"ci": {"profiel": "5s"}}},
        ["group 'profiel': profiles['ci']: names no group", "Did you mean 'profile'?"],
    ),
    "contradiction_in_another_profile": (
        {
            "ttl_map": {"default": {"ttl": "5s", "on_source_error": "last_good 10s"}},
            "profiles": {"ci": {"profile": "1m"}},
        },
        ["group 'profile' (profile 'ci'): on_source_error: last_good 10s is shorter"],
    ),
    "ambiguous_wildcards_in_another_profile": (
        {"profiles": {"ci": {"prof*": "5s", "*file": "9s"}}},
        ["group 'profile' (profile 'ci'): ttl: is ambiguous"],
    ),
    "event_without_a_server_in_another_profile": (
        {"profiles": {"ci": {"profile": {"coherence": "event"}}}},
        ["group 'profile' (profile 'ci'): coherence: 'event' needs a Redis"],
    ),
    "unknown_profile": (
        {"profiles": {"ci": {}}, "env": "cj"},
        ["HOTPLATE_PROFILE='cj' names no profile", "known: ci", "Correct the variable"],
    ),
    "unknown_key": ({"tll_map": {}}, ["tll_map"]),
    "unknown_key_under_memory": (
        {"memory": {"max_byte": 5}},
        ["online_store.memory.max_byte: no such setting", "Did you mean 'max_bytes'?"],
    ),
    "several_under_traffic": (
        {"traffic": {"foldr": "x", "sample": "often"}},
        [
            "traffic.folder: is missing",
            "traffic.foldr: no such setting",
            "traffic.sample",
            "folder: /",
        ],
    ),
    "no_rate": ({"rewarm": "fast"}, ["online_store.rewarm: 'fast' is no rate: write '500/s'"]),
    "unknown_key_of_the_store": (
        {"store": {**SQLITE, "pth": "x"}},
        ["store.pth", "not permitted"],
    ),
    "store_without_type": (
        {"store": {"path": "online.db"}},
        ["store: names no 'type'", "the online store as it was before"],
    ),
    "no_store": ({"store": None}, ["store"]),
    "unknown_store": (
        {"store": {"type": "sqlit"}},
        ["online_store.store.type: 'sqlit' is no online store", "Did you mean 'sqlite'?"],
    ),
    "unknown_store_of_another_package": (
        {"store": {"type": "nowhere.NoOnlineStore"}},
        ["online_store.store.type: 'nowhere.NoOnlineStore' cannot be imported"],
    ),
    "map_that_is_text": (
        {"ttl_map": "30s"},
        ["online_store.ttl_map: is text, not a mapping", "ttl_map: {default: 30s}"],
    ),
    "profiles_that_are_a_list": (
        {"profiles": ["ci"]},
        ["online_store.profiles: is a list, not a mapping", "profiles: {edge: {default: 5s}}"],
    ),
    "profile_that_is_text": (
        {"profiles": {"ci": "5s"}},
        ["online_store.profiles.ci: is text, not a mapping"],
    ),
    "memory_that_is_text": (
        {"memory": "512MB"},
        ["online_store.memory: is text, not a mapping", "memory: {max_bytes: 512MB}"],
    ),
    "max_age_that_is_text": (
        {"enforce_max_age": "yes please"},
        ["online_store.enforce_max_age: must be true or false"],
    ),
    "default_of_a_profile": (
        {"profiles": {"ci": {"default": "5 apples"}}},
        ["cache policy of the default (profiles['ci']): ttl: '5 apples' is not a duration"],
    ),
    "never_in_place_of_a_ttl": (
        {"ttl_map": {"profile": "never"}},
        ["ttl: 'never' is not a duration", "write {cache: never}"],
    ),
    "wrapping_itself": (
        {"store": {"type": CACHED, "store": SQLITE}},
        ["store: a cached store cannot wrap itself", "the store inside"],
    ),
    "bytes_without_unit": (
        {"memory": {"max_bytes": "5 apples"}},
        ["memory.max_bytes", "'5 apples' has an unknown unit", "write for example '512MB'"],
    ),
    "no_bytes": ({"memory": {"max_bytes": 0}}, ["memory.max_bytes", "leaves no room", "'512MB'"]),
    "negative_bytes": ({"memory": {"max_bytes": "-5MB"}}, ["memory.max_bytes", "is not a size"]),
    "no_entries": ({"memory": {"max_entries": 0}}, ["memory.max_entries", "greater than 0"]),
    "share_above_one": ({"memory": {"absent_share": 2}}, ["absent_share", "less than or equal"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_refused_and_change_nothing(
    applied: Folder, feast: Feast, name: str
) -> None:
    """`feast apply` ends with an error that says what, where and what to do; nothing is touched."""
    settings, expected = BAD[name]
    settings = dict(settings)
    env = {"HOTPLATE_PROFILE": settings.pop("env")} if "env" in settings else {}
    before = applied.state()
    applied.write(**settings)
    done = feast(applied.path, "apply", **env)
    assert done.code == 1
    for text in expected:
        assert text in done.err
    assert applied.state() == before


# -- profiles and hotplate policy ----------------------------------------------------------------


@pytest.fixture
def profiled(applied: Folder, feast: Feast) -> Folder:
    """An applied repo with tags, a ttl_map and two profiles."""
    applied.write(profile={"hotplate.ttl": "10s", "hotplate.negative_ttl": "1s"}, **PROFILED)
    done = feast(applied.path, "apply")
    assert done.code == 0, done.err
    return applied


def policies(folder: Folder, *options: str, profile: str = "") -> Result:
    """`hotplate policy` in this process."""
    return CliRunner(env={"HOTPLATE_PROFILE": profile}).invoke(
        main, ["policy", "--chdir", str(folder.path), *options]
    )


@pytest.mark.parametrize(
    ("chosen", "ttls"),
    [
        ("", {"profile": "10s", "counts": "2m"}),
        ("ci", {"profile": "10s", "counts": "9s"}),
        ("edge", {"profile": "10s", "counts": "2m"}),
        ("production", {"profile": "5m", "counts": "1h"}),
    ],
)
def test_the_environment_chooses_the_profile(
    profiled: Folder, chosen: str, ttls: dict[str, str]
) -> None:
    """Of what speaks of as many groups the profile's wins, and each says where it stands."""
    done = policies(profiled, "--json", profile=chosen)
    assert done.exit_code == 0, done.output
    shown = json.loads(done.output)
    assert {name: group["settings"]["ttl"] for name, group in shown.items()} == ttls
    assert (shown["profile"]["settings"]["cache"] == "never") is (chosen == "ci")
    origin = shown["profile"]["origins"]["ttl"]
    if chosen == "production":
        assert origin == "profiles['production']['prof*']"
    else:
        assert origin == "tags of feature view 'profile'"
    assert shown["counts"]["origins"]["jitter"] == "ttl_map['counts']"
    assert shown["counts"]["settings"]["jitter"] == "0.05"


def test_a_profile_by_another_variable(applied: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """`profile_variable` names the variable, and the default one is then nobody's."""
    applied.write(**PROFILED, profile_variable="STAGE")
    monkeypatch.setenv("STAGE", "ci")
    done = policies(applied, "--json", profile="production")
    assert json.loads(done.output)["counts"]["settings"]["ttl"] == "9s"


def cells(done: Result, first: str) -> list[str]:
    """The cells of the first table row that begins with a text."""
    line = next(line for line in done.output.splitlines() if line.startswith(f"│ {first}"))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_the_table_of_policies(profiled: Folder) -> None:
    """A line a group; where nothing is kept, no setting that has no effect."""
    done = policies(profiled, profile="production")
    assert done.exit_code == 0, done.output
    assert "Cache policies (profile: production)" in done.output
    assert cells(done, "profile") == ["profile", "5m", "1s", "0.1", "off", "raise", "ttl", "cached"]
    assert cells(policies(profiled, profile="ci"), "counts") == ["counts", *"------", "never"]


def test_the_long_table_of_policies(profiled: Folder) -> None:
    """Every group, every setting, its value and its origin, for people."""
    done = policies(profiled, "--long", profile="production")
    assert done.exit_code == 0, done.output
    assert cells(done, "profile") == ["profile", "ttl", "5m", "profiles['production']['prof*']"]
    for text in ("counts", "negative_ttl", "on_source_error", "built-in default", "1h"):
        assert text in done.output
    assert cells(policies(profiled, "--long", profile="ci"), "counts")[2] == "-"


def test_a_wildcard_that_matches_nothing_is_pointed_out(folder: Folder, feast: Feast) -> None:
    """By `feast apply`, under any profile, and by `hotplate policy`."""
    folder.write(ttl_map={"default": "1m", "sesion_*": "2s"}, profiles={"ci": {"x_*": "1s"}})
    done = feast(folder.path, "apply")
    assert done.code == 0
    assert "ttl_map['sesion_*'] matches no group" in done.err
    assert "profiles['ci']['x_*'] matches no group" in done.err
    assert "ttl_map['sesion_*'] matches no group" in policies(folder).output


def test_policies_of_an_empty_registry(folder: Folder) -> None:
    """Before the first `apply` it says what to do, whatever the maps name."""
    folder.write(ttl_map={"profile": "5s"})
    done = policies(folder)
    assert done.exit_code == 0
    assert "Nothing is applied yet: run feast apply" in done.output
    assert json.loads(policies(folder, "--json").output) == {}


def broken(folder: Folder, kind: str) -> None:
    """A repo that is broken in one way."""
    folder.write()
    yaml_file = folder.path / "feature_store.yaml"
    if kind == "no_repo":
        yaml_file.unlink()
    elif kind == "no_yaml":
        yaml_file.write_text("project: [shop\n  provider")
    elif kind == "bad_settings":
        folder.write(ttl_map={"profile": "-5s"})
    elif kind == "another_store":
        folder.write(online=SQLITE)
    elif kind == "unknown_group":
        folder.write(ttl_map={"profiel": "5s"})
    else:
        (folder.path / "registry.db").write_bytes(b"\xff\xff not a registry")


BROKEN = {
    "no_repo": ["holds no feature_store.yaml", "--chdir FOLDER"],
    "no_yaml": ["Feast cannot read", "feature_store.yaml"],
    "bad_settings": ["group 'profile' (ttl_map): ttl: '-5s' is negative"],
    "another_store": ["is SqliteOnlineStore, not CachedOnlineStore", "write online_store:"],
    "unknown_group": ["group 'profiel': ttl_map: names no group"],
}


@pytest.mark.parametrize("kind", BROKEN)
def test_policies_of_a_broken_repo(applied: Folder, kind: str) -> None:
    """Exit code 1 and one readable line on stderr; no traceback."""
    broken(applied, kind)
    done = policies(applied)
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    assert done.stderr.startswith("hotplate: ")
    for text in BROKEN[kind]:
        assert text in done.stderr


def test_policies_of_a_broken_registry(applied: Folder) -> None:
    """The same for a registry that cannot be read."""
    broken(applied, "registry")
    done = policies(applied)
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    assert done.stderr.startswith("hotplate: ")


def test_no_password_of_the_registry_is_shown(
    applied: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Feast's own words about a registry may hold its address with the password."""
    for text in (f"no postgresql://feast:{SECRET}@db:5432/x", f"dsn host=db password={SECRET} x"):

        def fail(*args: Any, text: str = text, **kwargs: Any) -> Any:
            raise RuntimeError(text)

        monkeypatch.setattr(hotplate.Hotplate, "policies", fail)
        done = policies(applied)
        assert done.exit_code == 1
        assert SECRET not in done.output
        assert "***" in done.stderr


def test_an_unknown_option_is_wrong_usage(applied: Folder) -> None:
    """Exit code 2, as the help says."""
    assert policies(applied, "--jsno").exit_code == 2
    assert policies(Folder(applied.path / "nowhere")).exit_code == 2


# -- secrets -------------------------------------------------------------------------------------

POSTGRES = {
    "type": "postgres",
    "host": "127.0.0.1",
    "port": 1,
    "database": "d",
    "user": "u",
    "password": SECRET,
}
LEAKY: dict[str, dict[str, Any]] = {
    "bad_ttl": {"type": CACHED, "ttl_map": {"default": "-5s"}, "store": POSTGRES},
    "bad_profile": {"type": CACHED, "profiles": {"ci": {"x": 5}}, "store": REDIS},
    "no_type": {"type": CACHED, "store": {"connection_string": REDIS["connection_string"]}},
    "missing_setting": {
        "type": CACHED,
        "store": {key: value for key, value in POSTGRES.items() if key != "database"},
    },
    "under_shared": {
        "type": CACHED,
        "store": {"type": "sqlite"},
        "shared": {"connection_string": "127.0.0.1:1", "password": SECRET, "timeout": "soon"},
    },
    "kind_of_shared": {
        "type": CACHED,
        "store": {"type": "sqlite"},
        "shared": {"connection_string": [f"127.0.0.1:1,password={SECRET}"]},
    },
    "wrapping_itself": {"type": CACHED, "store": {"type": CACHED, "store": REDIS}},
}


MISPLACED: dict[str, dict[str, Any]] = {
    "beside_the_store": {"type": CACHED, "store": {"type": "redis"}, "password": SECRET},
    "in_place_of_the_store": {"type": CACHED, "store": REDIS["connection_string"]},
}


@pytest.mark.parametrize("name", MISPLACED)
def test_no_secret_in_an_error_about_its_place(folder: Folder, feast: Feast, name: str) -> None:
    """Moving a store's settings under `store` and forgetting one shows none of them."""
    folder.write(online=MISPLACED[name])
    done = feast(folder.path, "apply")
    assert done.code == 1
    assert SECRET not in done.out + done.err + policies(folder).output


@pytest.mark.parametrize("name", LEAKY)
def test_no_secret_in_an_error(folder: Folder, feast: Feast, name: str) -> None:
    """A password of the wrapped store is in no message about wrong settings."""
    folder.write(online=LEAKY[name])
    done = feast(folder.path, "apply")
    assert done.code == 1
    shown = done.out + done.err + policies(folder).output
    assert SECRET not in shown


def test_no_secret_in_other_errors(folder: Folder, feast: Feast) -> None:
    """Nor where the error is found elsewhere, or later, or the store cannot be reached."""
    for settings in (
        {"tll_map": {}},
        {"memory": {"max_bytes": 0}},
        {"ttl_map": {"profiel": "5s"}},
        {"store": {**REDIS, "redis_type": "nope"}},
    ):
        folder.write(online={"type": CACHED, "store": REDIS, **settings})
        done = feast(folder.path, "apply")
        assert done.code == 1
        assert SECRET not in done.out + done.err + policies(folder).output
    folder.write(profile={"hotplate.ttll": "5s"}, store=REDIS)
    assert SECRET not in feast(folder.path, "apply").err


def unreachable(folder: Folder, caplog: pytest.LogCaptureFixture) -> FeatureStore:
    """A repo whose wrapped store cannot be reached, read once."""
    folder.write(store=REDIS)
    store = FeatureStore(repo_path=str(folder.path))
    with caplog.at_level(logging.DEBUG):
        hotplate.of(store).policies()
    return store


def test_no_secret_in_logs_and_repr(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """What the cache says of itself names the kind of store and no more."""
    store = unreachable(folder, caplog)
    online = store._get_provider().online_store
    cache = hotplate.of(store)
    texts = [repr(online), repr(cache), repr(cache.stats()), repr(cache.runtime), caplog.text]
    assert "CachedOnlineStore(redis, " in texts[0]
    assert SECRET not in "".join(texts)
    assert SECRET not in policies(folder).output


def test_no_secret_in_the_repr_of_settings(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """`repr` of the settings leaves the wrapped store's own out."""
    store = unreachable(folder, caplog)
    assert SECRET not in repr(store.config.online_store)


# -- the real commands, last because they take their time ------------------------------------------


@pytest.mark.heavy
def test_a_good_repo_is_applied_with_the_real_command(shell: dict[str, Started]) -> None:
    """`feast apply` as people run it: in a new process, from the shell."""
    done, folder = shell["good"].done(), shell["good"].folder
    assert done.code == 0, done.err
    assert "Deploying infrastructure for" in done.out
    assert set(folder.state()) == {"registry.db", "online.db"}
    assert "no ttl" not in done.err
    assert b"shop_profile" in folder.state()["online.db"]


def test_a_bad_repo_is_refused_by_the_real_command(shell: dict[str, Started]) -> None:
    """The same from the shell: the exit code, and the message as the last line of stderr."""
    done = shell["bad"].done()
    assert done.code == 1
    assert done.err.strip().splitlines()[-1] == (
        "hotplate.errors.PolicyError: cache policy of group 'profile' (tags of feature view "
        "'profile'): ttll: is not a setting. Did you mean 'ttl'?"
    )
    assert "online.db" not in shell["bad"].folder.state()


def test_policies_in_a_process_of_its_own(shell: dict[str, Started]) -> None:
    """As installed: JSON on stdout and nothing else there, the profile from the environment."""
    assert shell["good"].done().code == 0
    shown = json.loads((shell["good"].folder.path / "policies.json").read_text())
    assert shown["profile"]["settings"]["ttl"] == "5m"
    assert shown["counts"]["settings"]["ttl"] == "1h"
