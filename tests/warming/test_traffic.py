"""The log of what is read: all of it where that is asked for, and never in a read's way."""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hotplate
from hotplate.errors import ConfigError
from hotplate.online_store import CachedOnlineStoreConfig
from hotplate.warming.row_log import LOST
from hotplate.warming.traffic import SCHEMA, key_of

from ..children import heed_permissions, in_child
from ..stores import Repo, await_
from .conftest import FEATURES

ODD = 'm\U0001f600 "quoted"'


def log_of(repo: Repo) -> pd.DataFrame:
    """All that was logged so far."""
    traffic = hotplate.of(repo.hot).runtime.traffic
    assert traffic is not None
    traffic.flush()
    paths = sorted(traffic.settings.folder.glob("traffic-*.parquet"))
    return pd.concat([pq.read_table(path).to_pandas() for path in paths])


def ask(repo: Repo, *pairs: tuple[int, str]) -> Any:
    users, merchants = zip(*pairs, strict=True)
    entities = {"user_id": list(users), "merchant_id": list(merchants)}
    return repo.hot.get_online_features(FEATURES, entities).to_dict()


def test_every_request_is_there_once(logged: Callable[..., Repo]) -> None:
    """Hits and misses, by Feast's call, the reader, and a view that Feast reads in its own way."""
    repo = logged()
    ask(repo, (1, "m1"), (2, "m1"))  # a miss
    ask(repo, (1, "m1"), (2, "m1"))  # a hit
    hotplate.of(repo.hot).reader(["profile:age"]).read({"user_id": [7]})
    repo.clock.advance(1)
    ask(repo, (3, ODD))
    found = log_of(repo)
    assert list(found.columns) == SCHEMA.names
    assert found["request"].nunique() == 4
    read = Counter(zip(found["entity"], found["key"], found["views"], strict=True))
    assert read == {
        ("user_id", "[1]", "counts,profile"): 2,
        ("user_id", "[2]", "counts,profile"): 2,
        ("merchant_id", '["m1"]', "shops"): 2,
        ("user_id", "[7]", "profile"): 1,
        ("user_id", "[3]", "counts,profile"): 1,
        (
            "merchant_id",
            json.dumps(['m\U0001f600 "quoted"'], ensure_ascii=False).replace(", ", ","),
            "shops",
        ): 1,
    }
    assert set(found["weight"]) == {1}
    late = found["at"].max() - found["at"].min()
    assert late == pd.Timedelta(seconds=1)
    stats = repo.cache.stats().traffic
    assert stats is not None
    assert (stats.logged, stats.lost, stats.problem) == (4, 0, "")


def test_a_share_of_the_requests_stands_for_all_of_them(logged: Callable[..., Repo]) -> None:
    """Weights add up to the number of requests, hits and misses apart, whatever their rhythm."""
    repo = logged(sample="5%")
    for turn in range(4_000):
        ask(repo, (turn % 2, "m1"))  # one of two, in turns
    for turn in range(2_000):
        hotplate.of(repo.hot).runtime.domain.invalidate_all(repo.project)
        ask(repo, (turn % 3, "m2"))
    found = log_of(repo)
    of_users = found[found["entity"] == "user_id"]
    assert 180 < len(of_users) < 450
    by_shop = found[found["entity"] == "merchant_id"].groupby("key", observed=True)["weight"].sum()
    assert float(by_shop['["m1"]']) == pytest.approx(4_000, rel=0.05)
    assert float(by_shop['["m2"]']) == pytest.approx(2_000, rel=0.05)
    by_user = of_users.groupby("key", observed=True)["weight"].sum()
    assert by_user["[0]"] / by_user["[1]"] == pytest.approx(1, abs=0.35)


def test_ids_are_hashed_unless_they_are_allowed(logged: Callable[..., Repo]) -> None:
    repo = logged(ids="hashed")
    ask(repo, (123_456_789, "secret-shop"))
    found = log_of(repo)
    text = found.to_csv()
    assert "123456789" not in text
    assert "secret-shop" not in text
    assert set(found["key"]) == {
        key_of((123_456_789,), repo.project, has_ids=False),
        key_of(("secret-shop",), repo.project, has_ids=False),
    }
    assert key_of((1,), "a", has_ids=False) != key_of((1,), "b", has_ids=False)


@given(
    st.lists(st.one_of(st.text(), st.integers(), st.binary(), st.floats()), min_size=1), st.text()
)
def test_any_key_can_be_written(values: list[Any], project: str) -> None:
    """Also texts that are no Unicode, such as half of a pair."""
    assert len(key_of(values, project or "p", has_ids=False)) == 24
    assert isinstance(key_of(values, project or "p", has_ids=True), str)


def test_what_cannot_be_written_fails_no_read(
    logged: Callable[..., Repo], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file in the folder's place; then it goes on."""
    folder = tmp_path / "traffic"
    folder.write_text("in the way")
    repo = logged()
    traffic = hotplate.of(repo.hot).runtime.traffic
    assert traffic is not None
    with caplog.at_level(logging.WARNING, "hotplate.traffic"):
        assert ask(repo, (1, "m1"))["age"] == [1]
        traffic.flush()
        assert ask(repo, (1, "m1"))["age"] == [1]
        traffic.flush()
    said = [record.levelname for record in caplog.records if record.name == "hotplate.traffic"]
    assert said == ["WARNING"], "said once a minute"
    stats = traffic.stats()
    assert (stats.logged, stats.lost) == (0, 2)
    assert "traffic" in stats.problem
    folder.unlink()
    ask(repo, (1, "m1"))
    assert log_of(repo)["request"].nunique() == 1
    assert traffic.stats().problem == ""


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 64 kB in a folder's place."""
    folder.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("nothing may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write until there is no room."""
    with path.open("wb", 0) as file:
        while True:
            file.write(bytes(1024))


def test_a_full_disk_fails_no_read(
    logged: Callable[..., Repo], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Reads go on, what is lost is counted and said once; with room again it is logged again, and
    the next file says how much is missing."""
    folder, repo = tmp_path / "traffic", logged()
    traffic = hotplate.of(repo.hot).runtime.traffic
    assert traffic is not None
    with small_disk(folder), caplog.at_level(logging.WARNING, "hotplate.traffic"):
        ask(repo, (1, "m1"))
        traffic.flush()
        (first,) = folder.iterdir()
        filler = folder / "filler"
        with pytest.raises(OSError, match="No space left"):
            fill(filler)
        for turn in range(2, 6):
            repo.clock.advance(1)
            assert ask(repo, (turn, "m1"))["age"] == [turn]
            traffic.flush()
        stats = traffic.stats()
        assert (stats.logged, stats.lost) == (1, 4)
        assert "No space left on device" in stats.problem
        (said,) = [record for record in caplog.records if record.name == "hotplate.traffic"]
        assert said.getMessage().startswith(
            f"traffic is not logged in {folder}: OSError: [Errno 28]"
        )
        assert sorted(folder.iterdir()) == sorted([filler, first]), "nothing half written is left"
        filler.unlink()
        assert ask(repo, (6, "m1"))["age"] == [6]
        traffic.flush()
        assert (traffic.stats().logged, traffic.stats().lost, traffic.stats().problem) == (2, 4, "")
        (second,) = set(folder.iterdir()) - {first}
        assert pq.read_schema(second).metadata[LOST] == b"4"


def _refused(repo: Repo, forbid: Callable[[], None], allow: Callable[[], None]) -> list[Any]:
    """What two reads answer and the log says while it cannot write, and when it can again."""
    traffic = hotplate.of(repo.hot).runtime.traffic
    assert traffic is not None
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hotplate.traffic").addHandler(handler)
    forbid()
    found: list[Any] = []
    for user in (1, 2):
        found += ask(repo, (user, "m1"))["age"]
        traffic.flush()
    stats = traffic.stats()
    found += [stats.logged, stats.lost, stats.problem, len(warnings)]
    allow()
    found += ask(repo, (3, "m1"))["age"]
    traffic.flush()
    stats = traffic.stats()
    return [*found, stats.logged, stats.lost, stats.problem]


def test_a_write_that_is_refused_fails_no_read(logged: Callable[..., Repo], tmp_path: Path) -> None:
    """The system refuses any byte, as a full disk does, to who may mount nothing, too."""
    repo = logged()

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def child() -> list[Any]:
        return _refused(repo, lambda: limit(0), lambda: limit(resource.RLIM_INFINITY))

    assert in_child(child) == [1, 2, 0, 2, "OSError: [Errno 27] File too large", 1, 3, 1, 2, ""]
    (path,) = (tmp_path / "traffic").iterdir()
    assert pq.read_schema(path).metadata[LOST] == b"2"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_folder_that_may_not_be_written_fails_no_read(
    logged: Callable[..., Repo], tmp_path: Path, is_there: bool
) -> None:
    """Neither where it is there, nor where it would have to be made."""
    folder = tmp_path / "shut" / "traffic"
    (folder if is_there else folder.parent).mkdir(parents=True)
    shut = folder if is_there else folder.parent
    repo = logged(folder=str(folder))

    def forbid() -> None:
        heed_permissions()
        shut.chmod(0o500)

    found = in_child(lambda: _refused(repo, forbid, lambda: shut.chmod(0o700)))
    problem = found.pop(4)
    assert problem.startswith("PermissionError: [Errno 13] Permission denied")
    assert found == [1, 2, 0, 2, 1, 3, 1, 2, ""]


def test_what_does_not_fit_is_lost_and_counted(
    logged: Callable[..., Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is stuck on a disk that does not answer: reads go on, the queue has an end."""
    monkeypatch.setattr("hotplate.warming.row_log._WAITING_MOST", 50)
    repo = logged()
    traffic = hotplate.of(repo.hot).runtime.traffic
    assert traffic is not None
    with traffic._log._writing:  # as if a file were being written
        began = time.monotonic()
        for _ in range(200):
            ask(repo, (1, "m1"))
        assert time.monotonic() - began < 20
    assert traffic.stats().lost == 150
    assert log_of(repo)["request"].nunique() == 50


def test_a_lossless_log_has_every_read_however_fast_they_come(
    logged: Callable[..., Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that read without a pause, faster than one thread could log."""
    monkeypatch.setattr("hotplate.warming.row_log._WAITING_MOST", 50)
    monkeypatch.setattr("hotplate.warming.row_log._ROWS_MOST", 700)
    repo = logged(lossless=True)
    reads = range(400)

    def read(user: int) -> None:
        for _ in reads:
            ask(repo, (user, "m1"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(4)))
    traffic = hotplate.of(repo.hot).runtime.traffic
    assert traffic is not None
    rows = log_of(repo)
    assert traffic.stats().lost == 0
    users = rows[rows["entity"] == "user_id"]
    assert users.groupby("key").size().tolist() == [len(reads)] * 4


def test_a_sample_cannot_be_lossless() -> None:
    said = {"folder": "/t", "lossless": True, "sample": "10%"}
    with pytest.raises(ConfigError, match="lossless: a sample loses requests; write sample: 100%"):
        CachedOnlineStoreConfig(store={"type": "sqlite"}, traffic=said)


def test_files_are_written_by_themselves_and_the_oldest_go(
    logged: Callable[..., Repo], tmp_path: Path
) -> None:
    folder = tmp_path / "traffic"
    repo = logged(every="1ms", max_bytes=9_000)
    traffic = hotplate.of(repo.hot).runtime.traffic
    assert traffic is not None

    def files() -> list[Path]:
        return sorted(folder.glob("*")) if folder.is_dir() else []

    ask(repo, (1, "m1"))
    repo.clock.advance(1)
    await_(files)
    first = files()[0]
    for turn in range(6):
        ask(repo, (turn, "m1"))
        repo.clock.advance(1)
        traffic.flush()
    assert first not in files()
    assert sum(one.stat().st_size for one in files()) < 9_000
    assert all(one.name.startswith("traffic-") for one in files()), "none is left half written"


def test_nothing_starts_before_something_is_read(logged: Callable[..., Repo]) -> None:
    def threads() -> int:
        return sum(one.name == "hotplate-traffic" for one in threading.enumerate())

    before = threads()
    repo = logged()
    assert threads() == before
    ask(repo, (1, "m1"))
    assert threads() == before + 1
    hotplate.of(repo.hot).runtime.close()
    assert threads() == before
    assert log_of(repo)["request"].nunique() == 1, "closing writes what was noted"
    ask(repo, (2, "m1"))


def test_a_forked_child_logs_its_own_reads_alone(logged: Callable[..., Repo]) -> None:
    repo = logged()
    ask(repo, (1, "m1"))
    child = os.fork()
    if not child:
        status = 1
        try:
            ask(repo, (2, "m2"))
            hotplate.of(repo.hot).runtime.traffic.flush()  # type: ignore[union-attr]
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = log_of(repo)
    keys = Counter(found.loc[found["entity"] == "user_id", "key"])
    assert keys == {"[1]": 1, "[2]": 1}


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"folder": "traffic"}, "begins with no '/'"),
        ({"folder": "/x", "sample": 0}, "greater than 0"),
        ({"folder": "/x", "ids": "clear"}, "hashed"),
        ("/x", "not a mapping"),
    ],
)
def test_settings_that_cannot_be_are_refused(said: Any, problem: str) -> None:
    with pytest.raises((ValueError, ConfigError), match=problem):
        CachedOnlineStoreConfig(store={"type": "sqlite"}, traffic=said)


def test_families_of_outputs_stand_beside(logged: Callable[..., Repo], tmp_path: Path) -> None:
    """How often each was asked for since the file before, whenever reads are written."""
    repo = logged()
    policy = {"needs_features": False, "family": "channel", "ttl": "1h", "shadow": 0}
    repo.settings = {**repo.settings, "outputs": {"m": policy}}
    repo.hot = repo.open_hot()
    hot = hotplate.of(repo.hot)
    outputs = hot.outputs("m", "7", ["amount"])

    def score(channels: list[str]) -> None:
        frame = pd.DataFrame({"amount": [float(ord(one[0])) for one in channels]})
        outputs.score(frame, lambda rows: rows["amount"].to_numpy(), beside={"channel": channels})

    def found() -> list[tuple[Any, ...]]:
        paths = sorted((tmp_path / "traffic").glob("families-*.parquet"))
        tables = [pq.read_table(path).to_pylist() for path in paths]
        names = ("model", "version", "family", "rows", "hits", "computed")
        return [tuple(row[name] for name in names) for rows in tables for row in rows]

    score(["web", "web", "shop"])
    ask(repo, (1, "m1"))
    assert hot.runtime.traffic is not None
    assert hot.runtime.families is not None
    hot.runtime.traffic.flush()  # a file of reads: counts are noted
    repo.clock.advance(1)  # a file's name has the time
    score(["web", "app"])
    hot.runtime.close()
    by_family = {("web", 2): (0, 1), ("shop", 1): (0, 1), ("web", 1): (1, 0), ("app", 1): (0, 1)}
    assert {(row[2], row[3]): row[4:] for row in found()} == by_family
    assert {row[:2] for row in found()} == {("m", "7")}
    before = len(found())
    repo.clock.advance(1)
    ask(repo, (1, "m1"))
    hot.runtime.close()
    assert len(found()) == before, "nothing was scored since"
    assert len(log_of(repo)) == 4


def test_families_that_cannot_be_counted_lose_no_read(
    logged: Callable[..., Repo], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    repo = logged()
    runtime = hotplate.of(repo.hot).runtime
    assert runtime.traffic is not None

    def fails() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(runtime.traffic._log, "_beside", fails)
    ask(repo, (1, "m1"))
    assert len(log_of(repo)) == 2
    assert "ZeroDivisionError" in caplog.text
