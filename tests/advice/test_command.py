"""`hotplate advise`: what it says, what it writes, and what it says where it cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result
from feast.types import Float64, Int64

import hotplate
from hotplate.cli import main
from hotplate.policy import PolicyLayers, TTLMap
from hotplate.warming.families import FAMILIES_SCHEMA
from hotplate.warming.traffic import key_of

from ..stores import CACHED, MERCHANT, USER, Repo
from ..warming.logs import Row, write_log
from .conftest import RepoMaker

BEGIN = datetime(2026, 11, 30, 9, tzinfo=UTC)
TTL_MAP = {
    "default": "30s",
    "counts": {"ttl": "1m", "negative_ttl": "50s", "stale_while_revalidate": "40s"},
    "shops": {"cache": "never"},
}
Deployed = Callable[..., Repo]


@pytest.fixture
def deployed(make_repo: RepoMaker) -> Deployed:
    """A deployment with a `feature_store.yaml`."""

    def make(**settings: Any) -> Repo:
        repo = make_repo(ttl_map=TTL_MAP, settings=settings)
        repo.apply(
            USER,
            MERCHANT,
            repo.view("profile", {"age": Int64, "score": Float64}),
            repo.view("counts", {"n1": Int64}, created_timestamp_column="made"),
            repo.view("shops", {"size": Int64}, [MERCHANT]),
        )
        said = {
            "project": repo.project,
            "provider": "local",
            "registry": str(repo.folder / "registry.db"),
            "online_store": {
                "type": CACHED,
                "store": {"type": "sqlite", "path": str(repo.folder / "online.db")},
                "ttl_map": TTL_MAP,
                "traffic": {"folder": str(repo.folder / "traffic"), "sample": 1.0},
                **settings,
            },
            "offline_store": {"type": "file"},
            "entity_key_serialization_version": 3,
        }
        (repo.folder / "feature_store.yaml").write_text(yaml.safe_dump(said))
        return repo

    return make


def advise(repo: Repo, *args: str) -> Result:
    return CliRunner().invoke(main, ["advise", "-c", str(repo.folder), *args])


def logged(repo: Repo, *, plain: bool = False, weight: int = 1, name: str = "h-1-0") -> Path:
    """Ten users, read by turns every second for ten minutes; the first one reads a shop, too."""
    rows: list[Row] = []
    for second in range(600):
        at = BEGIN + timedelta(seconds=second)
        key = key_of((second % 10,), repo.project, has_ids=plain)
        rows.append((at, "user_id", key, "counts,profile", weight))
        rows.append((at, "merchant_id", key_of(("m",), repo.project, has_ids=plain), "shops", 1))
    path = repo.folder / "traffic" / f"traffic-{name}.parquet"
    write_log(path, rows)
    return path


def changed(repo: Repo) -> pd.DataFrame:
    """User 3 changes once a minute, half a second after it was read."""
    at = [BEGIN + timedelta(minutes=minute, seconds=3.5) for minute in range(10)]
    frame = pd.DataFrame({"user_id": 3, "when": pd.to_datetime(at, utc=True)})
    frame["when"] = frame["when"].astype("datetime64[us, UTC]")
    return frame


def numbers(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def of_ttl(group: Any, ttl: str, coherence: str = "ttl") -> Any:
    found = [
        one for one in group["predictions"] if (one["ttl"], one["coherence"]) == (ttl, coherence)
    ]
    assert len({json.dumps({**one, "max_bytes": 0}) for one in found}) == 1
    return found[0]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", ["csv", "parquet", "source"])
def test_what_is_foretold_can_be_counted_by_hand(
    deployed: Deployed, kind: str, plain: bool
) -> None:
    """Each user comes back every 10 s, and one changes every minute; the ids are hashed or not,
    the changes in a file or in the view's own table. What may not be cached is not looked at."""
    repo = deployed()
    logged(repo, plain=plain)
    frame, path = changed(repo), repo.folder / f"changes.{kind}"
    args = ["--changes", f"counts={path}"]
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        frame["made"], frame["event_time"] = frame.pop("when"), BEGIN - timedelta(days=3)
        frame.assign(n1=1).to_parquet(repo.folder / "counts.parquet")
        frame.iloc[:0].assign(age=1, score=1.0).to_parquet(repo.folder / "profile.parquet")
        args = ["--changes-from-source"]
    said = numbers(advise(repo, "--json", "--ttls", "5s,15s,25s,none", *args))
    assert set(said["groups"]) == {"counts", "profile"}
    counts, profile = said["groups"]["counts"], said["groups"]["profile"]
    assert (counts["reads"], counts["changes"]) == (600, 10)
    assert profile["changes"] == (0 if kind == "source" else None)
    assert of_ttl(profile, "none")["hit_rate"] == pytest.approx(590 / 600)
    assert of_ttl(profile, "none")["source_reads_s"] == pytest.approx(10 / 599)
    assert of_ttl(profile, "5s")["hit_rate"] == 0
    # of `counts` the last 40 s of a ttl are served and read again; of a shorter ttl the last half
    assert of_ttl(counts, "15s")["source_reads_s"] == pytest.approx(600 / 599, rel=0.02)
    # user 3 is read 9.5 s after it changed, and never learns of any change
    forever = of_ttl(counts, "none")
    assert forever["stale_share"] == pytest.approx(59 / 600)
    assert forever["stale_longest_s"] == pytest.approx(589.5)
    assert of_ttl(counts, "none", "event")["hit_rate"] == pytest.approx(580 / 600)
    assert of_ttl(counts, "none", "event")["stale_share"] == 0
    assert counts["entries"] == 10
    assert said["log"]["requests"] == 1_200


def test_a_ttl_is_recommended_that_keeps_to_the_limits(deployed: Deployed) -> None:
    """The one that asks the source least: with a change a minute of one of ten users, and reads
    every ten seconds, answers are stale only under a ttl above ten seconds."""
    repo = deployed()
    logged(repo)
    path = repo.folder / "changes.parquet"
    changed(repo).to_parquet(path)
    args = ["profile", "--json", "--changes", f"profile={path}", "--ttls", "5s,12s,15s,45s"]
    strict = numbers(advise(repo, *args, "--stale-share", "0", "--stale-age", "1m"))
    assert set(strict["groups"]) == {"profile"}
    profile = strict["groups"]["profile"]
    assert profile["recommended"]["ttl"] == "5s"
    assert profile["event"]["source_reads_s"] < profile["recommended"]["source_reads_s"]
    loose = numbers(advise(repo, *args, "--stale-share", "10%", "--stale-age", "1m"))
    assert loose["groups"]["profile"]["recommended"]["ttl"] == "45s"
    bounded = numbers(advise(repo, *args, "--stale-share", "10%", "--stale-age", "10s"))
    assert bounded["groups"]["profile"]["recommended"]["ttl"] in ("12s", "15s")
    unknown = numbers(advise(repo, *args[:2], *args[4:], "--stale-age", "12s"))
    assert unknown["groups"]["profile"]["recommended"]["ttl"] == "12s"
    assert any("not known when its rows change" in note for note in unknown["notes"])
    assert unknown["groups"]["profile"]["event"] is None
    both = numbers(advise(repo, "--json", "--ttls", "45s", "--changes", f"profile={path}"))
    assert both["groups"]["counts"]["event"] is None, "of another group it is known"
    never = numbers(advise(repo, *args, "--stale-share", "0", "--stale-age", "0s"))
    assert never["groups"]["profile"]["recommended"]["ttl"] == "5s"


def test_the_page_and_the_map_are_ready_for_use(deployed: Deployed) -> None:
    """The page needs nothing from elsewhere; the map is the deployment's, with other ttls."""
    repo = deployed()
    logged(repo)
    page, ttl_map = repo.folder / "page.html", repo.folder / "map.yaml"
    result = advise(
        repo,
        "--html",
        str(page),
        "--ttl-map",
        str(ttl_map),
        "--ttls",
        "5s,20s",
        "--stale-age",
        "25s",
    )
    assert result.exit_code == 0, result.output
    assert "profile: 20s" in result.output
    text = page.read_text()
    for needed in ("profile", "counts", "answered from memory", "recommended: 20s"):
        assert needed in text
    assert 'src="http' not in text
    said = yaml.safe_load(ttl_map.read_text())["ttl_map"]
    assert said["profile"] == "20s"
    assert said["default"] == "30s"
    assert said["shops"] == {"cache": "never"}
    assert said["counts"]["ttl"] == "20s"
    policy = PolicyLayers(TTLMap(said)).resolve("counts")
    assert policy.ttl_ns == 20 * 10**9
    assert policy.stale_while_revalidate_ns < policy.ttl_ns
    assert policy.negative_ttl_ns <= policy.ttl_ns
    unwritable = advise(repo, "--html", str(repo.folder / "no" / "page.html"))
    assert unwritable.exit_code == 1
    assert "cannot be written" in unwritable.stderr


def test_what_cannot_be_had_is_said_in_a_line(deployed: Deployed, tmp_path: Path) -> None:
    """Samples, logs that are none, folders without one, names and moments that are none."""
    repo = deployed()
    traffic = repo.folder / "traffic"

    def refused(*args: str) -> str:
        result = advise(repo, *args)
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith("hotplate: ")
        assert "Traceback" not in result.output
        return str(result.stderr)

    assert "no such folder" in refused()
    traffic.mkdir()
    assert "no Parquet files" in refused()
    (traffic / "traffic-a-1-1.parquet").write_bytes(b"PAR1 cut short")
    assert "none of its 1 files" in refused()
    pq.write_table(pa.table({"x": [1]}), traffic / "traffic-a-1-2.parquet")
    assert "has no column 'at'" in refused()
    good = logged(repo)
    whole = advise(repo)
    assert whole.exit_code == 0
    assert "left out traffic-a-1-1.parquet" in whole.output
    assert "left out traffic-a-1-2.parquet: has no column 'at'" in whole.output
    for moment in ("2027-01-01", "1s"):  # the latter ago
        assert "nothing was read in that time" in refused("--since", moment)
    assert advise(repo, "--until", "1s").exit_code == 0
    assert "no group and no feature view 'nix'" in refused("nix")
    assert "nothing to try" in refused("shops")
    assert "no such file" in refused("--changes", "nix.csv")
    (tmp_path / "empty").mkdir()
    assert "holds no change log" in refused("--changes", str(tmp_path / "empty"))
    assert "counts" in refused("--changes-from-source"), "its table is not there"
    sampled = logged(repo, weight=20, name="h-2-0")
    assert "is a sample of the requests" in refused()
    assert "--since" in refused()
    sampled.unlink()
    keys = pq.ParquetFile(good).metadata.row_group(0).column(3)
    assert keys.path_in_schema == "key"
    raw, at = good.read_bytes(), keys.dictionary_page_offset
    good.write_bytes(raw[:at] + bytes(200) + raw[at + 200 :])  # all else is whole
    assert "none of its 3 files" in refused()
    good.write_bytes(bytes(len(raw) // 2) + raw[len(raw) // 2 :])
    assert "none of its 3 files" in refused()
    for wrong in (["--ttls", "5"], ["--sizes", "many"], ["--since", "monday"], ["--skip", "none"]):
        result = advise(repo, *wrong)
        assert result.exit_code == 2, result.output


def test_changes_that_cannot_be_read_are_said_in_a_line(deployed: Deployed) -> None:
    """Another schema, no timestamps, a value of another type: never the value itself."""
    repo = deployed()
    logged(repo)
    path = repo.folder / "changes.csv"

    def refused(text: str, *more: str) -> str:
        path.write_text(text)
        result = advise(repo, "--changes", str(path), *more)
        assert result.exit_code == 1, result.output
        return str(result.stderr)

    assert "has not the join keys" in refused("card_id,at\n1,2026-11-30T09:00:00Z\n")
    assert "no column of timestamps" in refused("user_id,at\n1,soon\n")
    two = "user_id,at,made\n1,2026-11-30T09:00:00Z,2026-11-30T09:00:00Z\n"
    assert "--changed-at" in refused(two)
    assert "has no column 'x'" in refused(two, "--changed-at", "x")
    odd = refused("user_id,at\nsecret,2026-11-30T09:00:00Z\n")
    assert "user_id is no whole number" in odd
    assert "secret" not in odd
    assert "no whole number" in refused("user_id,at\n,2026-11-30T09:00:00Z\n")
    lacking = repo.folder / "changes.parquet"
    changed(repo).astype({"user_id": "Int64"}).assign(user_id=None).to_parquet(lacking)
    result = advise(repo, "--changes", f"profile={lacking}")
    assert result.exit_code == 1
    assert "lacks a join key" in result.stderr


def test_interrupted_it_ends_with_130(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = deployed()
    logged(repo)

    def interrupted(*args: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hotplate.operations.advise.replay", interrupted)
    result = advise(repo)
    assert result.exit_code == 130
    assert result.stderr == "hotplate: stopped; nothing was changed\n"


def test_the_change_log_has_what_this_process_changed(deployed: Deployed) -> None:
    """Writes through Feast, invalidations of entities and of a whole view; ids are hashed."""
    repo = deployed()
    traffic = {"folder": str(repo.folder / "traffic"), "sample": 1.0, "changes": True}
    store = repo.open_hot(traffic=traffic)
    repo.write("counts", store, user_id=[3, 4], n1=[1, 2], made=[BEGIN, BEGIN])
    hot = hotplate.of(store)
    hot.invalidate("profile", {"user_id": [5]})
    hot.invalidate("profile")
    hot.runtime.close()
    stats = hot.stats().changes
    assert stats is not None
    assert (stats.logged, stats.lost, stats.problem) == (3, 0, "")
    (path,) = (repo.folder / "traffic").glob("changes-*.parquet")
    assert path.stat().st_mode & 0o077 == 0, "only its owner may read it"
    rows = pq.read_table(path).to_pylist()
    key = {user: key_of((user,), repo.project, has_ids=False) for user in (3, 4, 5)}
    assert [(row["view"], row["entity"], row["key"]) for row in rows] == [
        ("counts", "user_id", key[3]),
        ("counts", "user_id", key[4]),
        ("profile", "user_id", key[5]),
        ("profile", "", None),
    ]
    logged(repo)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"hotplate.lost": "3"}), path)
    path.with_name("changes-h-1-0.parquet").write_bytes(b"PAR1 cut short")
    families = path.with_name("families-h-1-0.parquet")
    pq.write_table(FAMILIES_SCHEMA.empty_table(), families)
    found = numbers(advise(repo, "--json", "--ttls", "5s"))
    assert not any("families" in note for note in found["notes"]), "it is a log of its own"
    assert any("3 writes could not be logged" in note for note in found["notes"])
    assert any("left out changes-h-1-0.parquet" in note for note in found["notes"])
    none = repo.open_hot(traffic={**traffic, "changes": False})
    assert hotplate.of(none).stats().changes is None
