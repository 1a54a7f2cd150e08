"""Several processes with a cached store each over the same data, judged by the checker.

`make soak` runs them for minutes (`HOTPLATE_ORACLE_EXAMPLES`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value

from hotplate.embedded import EmbeddedServer
from pipelines.lab.checker import Bound, Report, Wrong, check
from pipelines.lab.fleet import Fleet, Nursery
from pipelines.lab.history import NEVER, Kind
from pipelines.lab.plan import Plan, write_repo
from pipelines.lab.programs import redis_server
from pipelines.lab.servers import client_of, out_of_memory, put_garbage

from ..conftest import settings_of

EXAMPLES = int(os.environ.get("HOTPLATE_ORACLE_EXAMPLES", "25"))
IS_LONG = EXAMPLES > 100
SECONDS = EXAMPLES * 0.06
TTL_MAP = {"default": {"ttl": "300ms", "negative_ttl": "100ms"}}
BOUND = Bound(300_000_000, 100_000_000)

_numbers = itertools.count()


def planned(folder: Path, online: Mapping[str, Any], **changes: Any) -> Plan:
    """A plan over a feature repo of its own."""
    settings = dict(online)
    if settings["type"] == "sqlite":
        settings["path"] = str(folder / "online.db")
    repo = write_repo(folder / f"fleet{next(_numbers)}", settings, TTL_MAP)
    return Plan(str(repo), str(folder / "histories"), **changes)


def over(server: EmbeddedServer) -> dict[str, Any]:
    """Settings of Feast's Redis store."""
    return {"type": "redis", "connection_string": server.connection_string}


def judged(fleet: Fleet) -> Report:
    return check(fleet.history(), dict.fromkeys(range(len(fleet.plan.views)), BOUND))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_no_process_serves_what_it_must_not(
    request: pytest.FixtureRequest, tmp_path: Path, nursery: Nursery, kind: str
) -> None:
    """Writes of other processes are seen within the ttl, a process's own at once.

    One thread on SQLite: Feast's store has one connection, through which a thread reads rows of
    a batch that another one has half written. In the long form workers are programs of their own.
    """
    threads = 1 if kind == "sqlite" else 2
    plan = planned(tmp_path, settings_of(request, kind), threads=threads)
    with Fleet(plan, 3, nursery=None if IS_LONG else nursery) as fleet:
        tally = fleet.run(SECONDS)
        report = judged(fleet)
    print(f"\n{kind}: {report.reads} values read, {report.stale} of them stale within the bound")
    assert not report.wrongs, report.violations
    assert not tally.errors
    assert report.stale > 20
    assert report.absent > 0
    assert set(tally.done) == set(plan.weights)


def test_forked_frozen_and_killed_workers(
    tmp_path: Path, nursery: Nursery, redis: EmbeddedServer
) -> None:
    """A child starts with its parent's memory and duties; one that was away is as fresh as any."""
    with Fleet(planned(tmp_path, over(redis)), 2, nursery=nursery) as fleet:
        fleet.resume()
        assert fleet.fork(1) == 3
        fleet.run(0.3)
        fleet.resume()
        fleet.freeze(2)
        fleet.pause(1)
        fleet.thaw(2)
        fleet.kill(3)
        assert not fleet.run(0.3).errors
        history = fleet.history()
        report = judged(fleet)
        assert set(history[history["kind"] == Kind.READ]["process"]) == {1, 2, 3}
    assert not report.wrongs, report.violations


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("ignore_ttl", {Wrong.TOO_OLD}),
        ("forget_nothing", {Wrong.OWN_WRITE, Wrong.OWN_INVALIDATION}),
    ],
)
def test_a_broken_cache_is_found(
    tmp_path: Path, nursery: Nursery, redis: EmbeddedServer, fault: str, found: set[Wrong]
) -> None:
    """Every violation is the broken worker's, and of the kind to be expected."""
    plan = planned(tmp_path, over(redis))
    with Fleet(plan, 2, faults={2: fault}, nursery=nursery) as fleet:
        report = Report()
        for _ in range(60):  # one is enough, on a machine that has time for it
            fleet.run(0.5)
            report = judged(fleet)
            if set(report.wrongs) >= found:
                break
    assert set(report.wrongs) == found
    assert {violation.process for violation in report.violations} == {2}


def test_errors_come_back(tmp_path: Path, nursery: Nursery) -> None:
    """Of an operation in the tally and in the history, of a command as an exception."""
    with (
        redis_server() as server,
        client_of(server) as client,
        Fleet(planned(tmp_path, over(server)), 1, nursery=nursery) as fleet,
    ):
        with out_of_memory(server):
            errors = fleet.run(0.3).errors
            assert {text.split(":")[0] for text in errors} == {"write"}
        history = fleet.history()
        assert set(history[history["kind"] == Kind.WRITE]["end"]) == {NEVER}
        put_garbage(client, [_key_of(fleet.plan, entity) for entity in range(20)], ["list"])
        assert any(text.startswith("read:") for text in fleet.run(0.5).errors)
        assert judged(fleet).failed
        with pytest.raises(RuntimeError, match="unexpected keyword"):
            fleet.members[1].ask("open", nothing=1)
        fleet.kill(1)
        assert not fleet.members


def _key_of(plan: Plan, entity: int) -> bytes:
    """Where Feast's Redis store keeps an entity."""
    key = EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=entity)])
    made: bytes = serialize_entity_key(key, entity_key_serialization_version=3)
    return made + Path(plan.repo).name.encode()
