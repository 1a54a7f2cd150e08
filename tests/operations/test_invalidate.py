"""`hotplate invalidate`: what is removed and announced, what is said before, and when it fails."""

from __future__ import annotations

import json
import logging
import os
import signal
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from feast import Entity
from feast.types import Int64
from feast.value_type import ValueType

import hotplate
from hotplate import Tier
from hotplate.clock import SYSTEM_CLOCK
from hotplate.embedded import EmbeddedServer
from hotplate.errors import EntityError
from hotplate.operations.entities import CHUNK, EntityReader
from hotplate.operations.invalidate import Invalidation, be_patient
from pipelines.lab.cluster import Cluster
from pipelines.lab.programs import redis_server

from ..stores import MERCHANT, USER, Repo, await_
from .deployments import another_cache, command, elsewhere, tiers

EVENT = {"default": {"ttl": "1h", "coherence": "event", "jitter": 0}}
PLAIN = {"default": {"ttl": "1h", "negative_ttl": "1h", "jitter": 0}}
USERS = [{"user_id": user} for user in range(5)]


@pytest.fixture(params=["redis", "valkey", "redis_cluster"])
def shared(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A server of each kind, as settings of `online_store.shared`."""
    return shared_of(request.getfixturevalue(request.param))


def shared_of(server: Any) -> dict[str, Any]:
    """Settings of `online_store.shared`, patient enough for a busy machine."""
    if isinstance(server, Cluster):
        return {**{k: v for k, v in server.settings.items() if k != "type"}, "timeout": "2s"}
    return {"connection_string": server.connection_string, "timeout": "2s"}


def shop(folder: Path, shared: dict[str, Any] | None, ttl_map: Any = PLAIN, **kwargs: Any) -> Repo:
    """Five users over SQLite."""
    settings = {} if shared is None else {"shared": shared}
    repo = Repo(
        folder / "repo",
        {"type": "sqlite"},
        project=f"inv_{folder.name}"[:60],
        ttl_map=ttl_map,
        settings=settings,
        clock=SYSTEM_CLOCK,
        **kwargs,
    )
    repo.apply(USER, MERCHANT, repo.view("v", {"age": Int64}))
    repo.write("v", user_id=list(range(5)), age=list(range(5)))
    return repo


@pytest.fixture
def repo(tmp_path: Path, redis: EmbeddedServer) -> Iterator[Repo]:
    made = shop(tmp_path, shared_of(redis))
    yield made
    made.cache.runtime.close()


@pytest.mark.heavy
def test_other_processes_forget_what_is_named(tmp_path: Path, shared: dict[str, Any]) -> None:
    """Out of the shared tier and of the memory of a process that listens; nothing else."""
    repo = shop(tmp_path, shared, EVENT)
    await_(lambda: tiers(repo.hot, USERS) == [Tier.MEMORY] * 5)
    repo.cache.invalidate("v")  # what was read before the channel was whole was not shared
    assert tiers(repo.hot, USERS) == [Tier.SOURCE] * 5
    done = elsewhere(repo, "invalidate", "v", "--entity", "user_id=1", "--yes")
    assert done.code == 0, done.out
    assert "1 entity of v (1 feature view: v); 1 entry in the shared tier now" in done.out
    assert "announced to 1 listening cache" in done.out
    await_(lambda: repo.cache.stats().channel.changes_heard == 1)
    # not by reading: where a busy machine let the lease lapse, all of it is read from the source
    assert len(repo.cache.runtime.engine.memory) == 4
    assert tiers(repo.hot, USERS[1:2]) == [Tier.SOURCE]
    repo.cache.runtime.close()


def test_a_whole_group(repo: Repo) -> None:
    """Counted by looking through the server, forgotten in one step."""
    assert tiers(repo.hot, USERS) == [Tier.SOURCE] * 5
    done = command(repo, "invalidate", "v", "--all", "--yes")
    assert done.exit_code == 0, done.output
    assert "every entity of v (1 feature view: v); 5 entries in the shared tier" in done.output
    assert "all entities invalidated" in done.output
    assert tiers(another_cache(repo), USERS) == [Tier.SOURCE] * 5


def test_a_dry_run_changes_nothing(repo: Repo) -> None:
    """It counts, also what is not there, and ends."""
    tiers(repo.hot, USERS[:2])
    asked = [part for user in range(4) for part in ("--entity", f"user_id={user}")]
    done = command(repo, "invalidate", "v", *asked, "--dry-run")
    assert done.exit_code == 0
    assert "would invalidate 4 entities" in done.output
    assert "2 entries in the shared tier now" in done.output
    assert tiers(another_cache(repo), USERS[:2]) == [Tier.SHARED] * 2


def test_nobody_to_ask(repo: Repo) -> None:
    """Without a terminal and without --yes it says what it would do, and does not."""
    tiers(repo.hot, USERS)
    done = command(repo, "invalidate", "v", "--all")
    assert done.exit_code == 2
    assert "would invalidate" in done.output
    assert "--yes" in done.output
    assert tiers(another_cache(repo), USERS) == [Tier.SHARED] * 5


@pytest.mark.heavy
@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("y\n", 0)])
def test_somebody_to_ask(repo: Repo, answer: str, code: int) -> None:
    """On a terminal it asks."""
    tiers(repo.hot, USERS)
    done = elsewhere(repo, "invalidate", "v", "--all", typed=answer)
    assert done.code == code, done.out
    assert "Invalidate? [y/N]" in done.out
    expected = Tier.SOURCE if code == 0 else Tier.SHARED
    assert tiers(another_cache(repo), USERS) == [expected] * 5


@pytest.mark.parametrize("online", ["sqlite", "redis"])
def test_nobody_can_be_told(tmp_path: Path, redis: EmbeddedServer, online: str) -> None:
    """Without a server to meet on, the others see it when their ttl ends; that is said."""
    repo = shop(tmp_path, None)
    if online == "redis":
        repo.online = {"type": "redis", "connection_string": redis.connection_string}
    done = command(repo, "invalidate", "v", "--all", "--yes")
    assert done.exit_code == 1
    assert "nobody can be told" in done.output
    assert "v: when its ttl ends, within 1h" in done.output
    assert "online_store.shared" in done.output


def test_event_groups_over_redis_are_told_without_a_shared_server(
    tmp_path: Path, redis: EmbeddedServer
) -> None:
    """They listen to the store's own server."""
    online = {"type": "redis", "connection_string": redis.connection_string}
    repo = Repo(tmp_path, online, project="told", ttl_map=EVENT, clock=SYSTEM_CLOCK)
    repo.apply(USER, repo.view("v", {"age": Int64}))
    repo.write("v", user_id=[1], age=[1])
    await_(lambda: tiers(repo.hot, USERS[1:2]) == [Tier.MEMORY])
    done = command(repo, "invalidate", "v", "--entity", "user_id=1", "--yes")
    assert done.exit_code == 0, done.output
    assert "there is no shared tier" in done.output
    assert "announced to 1 listening cache" in done.output
    repo.cache.runtime.close()


def test_what_is_never_cached_needs_no_invalidation(tmp_path: Path, redis: EmbeddedServer) -> None:
    """Nothing is done, and that is fine."""
    repo = shop(tmp_path, shared_of(redis), {"default": "0s"})
    done = command(repo, "invalidate", "v", "--all", "--yes")
    assert (done.exit_code, "nothing to invalidate" in done.output) == (0, True)


@pytest.mark.parametrize("arguments", [["--all"], ["--entity", "user_id=1"]])
def test_a_server_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """It waits a bounded time and says what was not taken."""
    monkeypatch.setattr(Invalidation, "wait_s", 0.5)
    repo = shop(tmp_path, {"connection_string": "127.0.0.1:1,password=hunter2"})
    done = command(repo, "invalidate", "v", *arguments, "--yes")
    assert done.exit_code == 1
    assert "cannot be seen" in done.output
    assert "did not take 1 announcement and 1 removal from the shared tier" in done.output
    assert "hunter2" not in done.output


def test_a_server_that_freezes_for_a_moment(tmp_path: Path) -> None:
    """What it did not take at once it takes later, and nothing more is forgotten for that."""
    with redis_server() as server:
        repo = shop(tmp_path, shared_of(server))
        tiers(repo.hot, USERS)
        store = another_cache(repo)
        be_patient(store)
        job = hotplate.of(store).invalidation("v")
        chunks = job.reader().chunks(["user_id=1", "user_id=2"], [])
        tier = job._runtime.shared()
        assert tier is not None
        assert job.scope(chunks).held == 2
        tier._pool.timeout_s = 0.1
        tier._pool.drop()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            job.wait_s = 0.3
            outcome = job.carry_out(chunks)
            assert (outcome.owed, outcome.is_complete) == (2, False)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        job.wait_s = 20
        assert job._settle(2).is_complete
        expected = [Tier.SHARED, Tier.SOURCE, Tier.SOURCE, Tier.SHARED, Tier.SHARED]
        assert tiers(another_cache(repo), USERS) == expected


# -- how entities are written ---------------------------------------------------------------------


def files_of(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Path]:
    """The same rows in every kind of file."""
    frame = pd.DataFrame(rows)
    paths = {kind: folder / f"ids.{kind}" for kind in ("csv", "parquet", "jsonl", "ndjson")}
    frame.to_csv(paths["csv"], index=False)
    frame.to_parquet(paths["parquet"])
    for kind in ("jsonl", "ndjson"):
        paths[kind].write_text("".join(json.dumps(row) + "\n" for row in rows))
    return paths


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "ndjson"])
def test_entities_from_a_file(repo: Repo, tmp_path: Path, kind: str) -> None:
    """Other columns are left alone; more than a chunk is no matter."""
    tiers(repo.hot, USERS)
    rows = [{"note": "x", "user_id": user} for user in (1, 3, *range(10, CHUNK + 20))]
    path = files_of(tmp_path, rows)[kind]
    done = command(repo, "invalidate", "v", "--file", str(path), "--yes")
    assert done.exit_code == 0, done.output
    assert f"would invalidate {len(rows):,} entities" in done.output
    assert "2 entries in the shared tier now" in done.output
    expected = [Tier.SHARED, Tier.SOURCE, Tier.SHARED, Tier.SOURCE, Tier.SHARED]
    assert tiers(another_cache(repo), USERS) == expected


def test_composite_keys_and_typed_values(repo: Repo, tmp_path: Path) -> None:
    """A text that looks like a number stays a text; a comma in a value is no border."""
    repo.apply(USER, MERCHANT, repo.view("pair", {"n": Int64}, entities=(USER, MERCHANT)))
    pairs = [{"user_id": 7, "merchant_id": name} for name in ("007", "7", "a,b=c")]
    assert tiers(repo.hot, pairs, "pair:n") == [Tier.SOURCE] * 3
    asked = ["--entity", "merchant_id=007,user_id=7", "--entity", "user_id=7,merchant_id=a,b=c"]
    done = command(repo, "invalidate", "pair", *asked, "--yes")
    assert "2 entities of pair" in done.output
    assert "2 entries in the shared tier" in done.output
    expected = [Tier.SOURCE, Tier.SHARED, Tier.SOURCE]
    assert tiers(another_cache(repo), pairs, "pair:n") == expected


def test_a_group_of_several_views(tmp_path: Path, redis: EmbeddedServer) -> None:
    """By the group all of its views, by a view's name that view."""
    repo = shop(tmp_path, shared_of(redis))
    tags = {"hotplate.group": "both"}
    other = repo.view("w", {"n": Int64}, tags=tags)
    repo.apply(USER, repo.view("v", {"age": Int64}, tags=tags), other)
    for feature in ("v:age", "w:n"):
        tiers(repo.hot, USERS, feature)
    done = command(repo, "invalidate", "w", "--entity", "user_id=1", "--yes")
    assert "1 entry in the shared tier" in done.output
    done = command(repo, "invalidate", "both", "--entity", "user_id=1", "--dry-run")
    assert "(2 feature views: v, w); 1 entry in the shared tier" in done.output
    assert command(repo, "invalidate", "both", "--all", "--yes").exit_code == 0
    for feature in ("v:age", "w:n"):
        assert tiers(another_cache(repo), USERS, feature) == [Tier.SOURCE] * 5


TYPES = {
    "int64": (ValueType.INT64, "-12", -12),
    "int32": (ValueType.INT32, "12", 12),
    "string": (ValueType.STRING, " 0012,x=y", " 0012,x=y"),
    "bytes": (ValueType.BYTES, "00ff", b"\x00\xff"),
    "moment": (ValueType.UNIX_TIMESTAMP, "2026-01-31T12:00:00Z", 1769860800),
    "seconds": (ValueType.UNIX_TIMESTAMP, "1769860800", 1769860800),
}


@pytest.mark.parametrize("name", TYPES)
def test_every_type_of_key(repo: Repo, name: str) -> None:
    """What is typed is the entity that was read."""
    kind, text, value = TYPES[name]
    assert EntityReader({"k": kind}).from_text(f"k={text}") == {"k": value}
    thing = Entity(name=f"thing_{name}", join_keys=["k"], value_type=kind)
    repo.apply(thing, repo.view(f"of_{name}", {"n": Int64}, entities=(thing,)))
    asked = datetime.fromtimestamp(value, UTC) if "UNIX" in kind.name else value
    assert tiers(repo.hot, [{"k": asked}], f"of_{name}:n") == [Tier.SOURCE]
    done = command(repo, "invalidate", f"of_{name}", "--entity", f"k={text}", "--dry-run")
    assert "1 entry in the shared tier" in done.output, done.output


SECRET = "4929-1234-5678"
BAD: dict[str, tuple[list[str], str]] = {
    "a_text_for_a_number": (["--entity", f"user_id={SECRET}"], "--entity: the value of user_id is"),
    "another_key": (["--entity", f"card={SECRET}"], "an entity is written user_id=VALUE"),
    "no_key": (["--entity", SECRET], "an entity is written user_id=VALUE"),
    "twice": (["--entity", "user_id=1,user_id=2"], "each join key once"),
    "too_large": (["--entity", f"user_id={1 << 63}"], "is no whole number of its type"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_entities_are_refused_without_being_shown(
    repo: Repo, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """The message names the key and the place, never the value."""
    arguments, message = BAD[name]
    with caplog.at_level(logging.DEBUG):
        done = command(repo, "invalidate", "v", *arguments, "--yes")
    assert done.exit_code == 1
    assert message in done.output
    assert SECRET not in done.output + caplog.text


FILES: dict[str, tuple[bytes, str]] = {
    "value.csv": (f"user_id\n1\n{SECRET}\n".encode(), "value.csv, row 2: the value of user_id"),
    "column.csv": (f"user\n{SECRET}\n".encode(), "there is no column user_id"),
    "empty.csv": (b"", "there is no column user_id"),
    "short.csv": (f"a,user_id\n1,2\n{SECRET}\n".encode(), "after row 1: the next row is cut short"),
    "latin.csv": (b"user_id\n\xe9\n", "UnicodeDecodeError"),
    "value.jsonl": (f'{{"user_id": "{SECRET}"}}'.encode(), "row 1: the value of user_id"),
    "float.jsonl": (b'{"user_id": 1.5}', "row 1: the value of user_id is no whole number"),
    "key.jsonl": (f'{{"user": "{SECRET}"}}'.encode(), "the next row lacks one of user_id"),
    "list.jsonl": (b"[1]", "the next row lacks one of user_id"),
    "text.jsonl": (SECRET.encode(), "the next row is no JSON object"),
    "text.parquet": (SECRET.encode(), "text.parquet cannot be read after row 0: ArrowInvalid"),
    "text.txt": (b"1", "write .csv, .parquet, .jsonl, .ndjson, not .txt"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files_are_refused_without_being_shown(repo: Repo, tmp_path: Path, name: str) -> None:
    """The message names the file and the row, never the value; nothing is done."""
    body, message = FILES[name]
    (tmp_path / name).write_bytes(body)
    done = command(repo, "invalidate", "v", "--file", str(tmp_path / name), "--yes")
    assert done.exit_code == 1
    assert message in done.output, done.output
    assert SECRET not in done.output


def test_wrong_usage(repo: Repo) -> None:
    """Neither entities nor --all, or both; a group that is not there."""
    assert command(repo, "invalidate", "v", "--yes").exit_code == 2
    assert command(repo, "invalidate", "v", "--all", "--entity", "user_id=1").exit_code == 2
    done = command(repo, "invalidate", "nope", "--all", "--yes")
    assert (done.exit_code, "no group or feature view 'nope'; groups: v" in done.output) == (
        1,
        True,
    )


def test_views_that_declare_a_key_differently(repo: Repo) -> None:
    """An entity cannot be meant for both."""
    other = Entity(name="other", join_keys=["user_id"], value_type=ValueType.STRING)
    tags = {"hotplate.group": "both"}
    view = repo.view("w", {"n": Int64}, entities=(other,), tags=tags)
    repo.apply(USER, repo.view("v", {"age": Int64}, tags=tags))
    repo.apply(other, view)
    with pytest.raises(EntityError, match="name one view instead of the group"):
        hotplate.of(another_cache(repo)).invalidation("both").reader()


@pytest.mark.heavy
def test_a_large_file_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """What is held does not grow with the file."""
    path = tmp_path / "ids.csv"
    path.write_text("user_id\n" + "".join(f"{user}\n" for user in range(200_000)))
    reader = EntityReader({"user_id": ValueType.INT64})
    peaks = []
    for _ in range(3):  # other threads of the process are counted, too
        tracemalloc.start()
        count = sum(len(chunk) for chunk in reader.from_file(path))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert count == 200_000
    assert min(peaks) < 3_000_000
