"""Processes write down what they count, and whoever reads adds them up, exactly."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

import hotplate
from hotplate.errors import ConfigError
from hotplate.histogram import Histogram
from hotplate.online_store import CachedOnlineStoreConfig
from hotplate.telemetry import CATALOGUE, Sample, exposition, read_folder
from hotplate.telemetry.files import ProcessFiles, clean, locked
from hotplate.telemetry.reading import read_families

from ..online_store.shop import day, put
from ..operations.deployments import PLUGINS
from ..stores import Repo
from .conftest import ask, write


def test_what_is_written_is_what_is_counted(measured: Callable[..., Repo], folder: Path) -> None:
    """Every count of the groups stands in the folder, after random reads, as `stats` has it."""
    repo = measured()
    chance = random.Random(7)
    for _ in range(50):
        ask(repo, *(chance.randrange(4) for _ in range(chance.randrange(1, 5))))
        repo.clock.advance(chance.choice([0, 1, 40]))
    put(repo, "profile", day(1), user_id=[1], age=[11], score=[0.5])
    write(repo)
    stats, found = hotplate.of(repo.hot).stats(), read_folder(folder)
    for name, group in stats.groups.items():
        assert found.by("hotplate_hits_total", "tier", group=name) == {
            "memory": group.hits_memory,
            "absent": group.hits_absent,
            "shared": 0,
        }
        assert found.sum("hotplate_misses_total", group=name) == group.misses
        assert found.sum("hotplate_loads_total", group=name) == group.loads
        assert found.sum("hotplate_entries", group=name) == group.entries
        assert found.sum("hotplate_ttl_seconds", group=name) == 30
    seconds = stats.source_seconds
    assert found.sum("hotplate_source_seconds_count") == seconds.count == stats.source_batches > 0
    assert found.by("hotplate_invalidations_total", "cause")["write"] == 1


def test_feasts_own_reader_reads_them(measured: Callable[..., Repo], folder: Path) -> None:
    """prometheus_client's collector for several processes, as Feast's metrics server uses it."""
    repo = measured()
    ask(repo, 1)
    ask(repo, 1)
    write(repo)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))
    text = generate_latest(registry).decode()
    project = repo.hot.project
    said = f'hotplate_hits_total{{group="profile",project="{project}",tier="memory"}} 1.0'
    assert said in text


def test_our_sum_is_that_of_prometheus_client(folder: Path) -> None:
    """Counters, gauges and histograms of several processes: each value as its collector has it."""
    chance = random.Random(5)
    processes = [ProcessFiles(folder, number) for number in range(4)]
    for files in processes:
        samples = []
        for metric in CATALOGUE.values():
            for labels in {tuple(chance.choice("ab") for _ in metric.labels) for _ in range(3)}:
                value: Any = chance.randrange(100)
                if metric.kind == "histogram":
                    histogram = Histogram((0.1, 1.0, 10.0))
                    for _ in range(value):
                        histogram.add(chance.expovariate(1))
                    value = histogram.snapshot()
                samples.append(Sample(metric, labels, value))
        files.write(samples, {})
    ours = read_folder(folder).values
    theirs: dict[str, dict[Any, float]] = {}
    for family in read_families(folder):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            theirs.setdefault(sample.name, {})[labels] = sample.value
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert ours[name] == pytest.approx(theirs[name]), name
    for files in processes:
        files.close()


def test_every_metric_says_what_it_is() -> None:
    """Names follow Prometheus' conventions, and no two are alike."""
    for name, metric in CATALOGUE.items():
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert metric.labels[0] == "project", name
        assert metric.said.strip(), name
        assert not {"entity", "key", "user"} & set(metric.labels), name


def _read_in_child(repo: Repo, users: list[int]) -> None:
    for user in users:
        ask(repo, user)
    write(repo)


def test_a_forked_child_counts_its_own(measured: Callable[..., Repo], folder: Path) -> None:
    """Parent and children add up: what the parent had counted is not counted again."""
    repo = measured()
    for _ in range(5):
        ask(repo, 1)
    write(repo)
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=_read_in_child, args=(repo, [1, 1, 2])) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    ask(repo, 1)
    write(repo)
    found = read_folder(folder)
    reads = found.sum("hotplate_hits_total") + found.sum("hotplate_misses_total")
    assert reads == 2 * (6 + 4 * 3)  # two groups


def test_counts_of_ended_processes_stay_and_gauges_go(
    measured: Callable[..., Repo], folder: Path
) -> None:
    """A counter never falls; what a dead process held in memory is not held any more."""
    repo = measured()
    ask(repo, 1)
    write(repo)
    fork = multiprocessing.get_context("fork")
    for _ in range(20):  # so many that they are added up
        child = fork.Process(target=_read_in_child, args=(repo, [1]))
        child.start()
        child.join()
    before = read_folder(folder)
    clean(folder)
    after = read_folder(folder)
    for name in (
        "hotplate_hits_total",
        "hotplate_age_seconds_bucket",
        "hotplate_source_seconds_sum",
    ):
        assert after.values[name] == pytest.approx(before.values[name])
    assert after.sum("hotplate_processes") == before.sum("hotplate_processes") == 1
    assert len(list(folder.glob("gauge_livesum_*.db"))) == 1
    assert len(list(folder.glob("counter_*.db"))) < 1 + 1 + 16  # ours, the sum, and some more
    assert after.sum("hotplate_hits_total") == 2 * 20


def test_who_finds_nobody_alive_for_long_begins_anew(
    measured: Callable[..., Repo], folder: Path
) -> None:
    """Counts of a deployment that ended long ago are not added to this one's."""
    repo = measured()
    hotplate.of(repo.hot).runtime.close()
    for path in folder.glob(f"*_hotplate-{os.getpid()}-*"):
        path.unlink()
    fork = multiprocessing.get_context("fork")
    for users, minutes, expected in (([1, 2], 0, 4), ([1], 9, 6), ([1], 11, 2)):
        long_ago = time.time() - minutes * 60
        for path in folder.iterdir():
            os.utime(path, (long_ago, long_ago))
        child = fork.Process(target=_read_in_child, args=(repo, users))
        child.start()
        child.join()
        reads = read_folder(folder).values["hotplate_misses_total"]
        assert sum(reads.values()) == expected


def test_a_closed_cache_leaves_its_counts(measured: Callable[..., Repo], folder: Path) -> None:
    """`close` writes for the last time; a later read begins again and nothing is counted twice."""
    repo = measured()
    hot = hotplate.of(repo.hot)
    ask(repo, 1)
    write(repo)
    ask(repo, 1)
    hot.runtime.close()
    found = read_folder(folder)
    assert (found.sum("hotplate_hits_total"), found.sum("hotplate_processes")) == (2, 0)
    ask(repo, 1)
    write(repo)
    found = read_folder(folder)
    assert (found.sum("hotplate_hits_total"), found.sum("hotplate_processes")) == (4, 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(measured: Callable[..., Repo], folder: Path) -> None:
    """Reads go on, and the log says why there are no metrics."""
    folder.mkdir(mode=0o500)
    repo = measured()
    ask(repo, 1)
    write(repo)


def test_a_folder_that_is_a_file(
    measured: Callable[..., Repo], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Reads go on, and the log says why there are no metrics."""
    folder.write_text("")
    repo = measured()
    assert ask(repo, 1)["age"] == [10]
    write(repo)
    assert "metrics are not written" in caplog.text


def test_without_a_folder_this_process_alone(make_repo: Callable[..., Repo]) -> None:
    """`metrics()` shows what this process counts, and starts no thread."""
    repo = make_repo()
    hot = hotplate.of(repo.hot)
    assert hot.runtime.publisher is None
    names = {family.name for family in hot.metrics()}
    assert "hotplate_source_seconds" in names


def test_a_relative_folder_is_refused() -> None:
    """Processes that were started elsewhere would write elsewhere."""
    with pytest.raises(ConfigError, match="begins with no '/'"):
        CachedOnlineStoreConfig(store={"type": "sqlite"}, metrics={"folder": "metrics"})


def _killed(folder: Path) -> None:
    files = ProcessFiles(folder, 0)
    files.write([Sample(CATALOGUE["hotplate_processes"], ("p",), 1)], {})
    files.write([Sample(CATALOGUE["hotplate_faults_total"], ("p",), 3)], {})
    os.kill(os.getpid(), 9)


def test_what_a_killed_process_held_is_held_no_more(folder: Path) -> None:
    """Its counts stay, its gauges are not shown, although nobody has cleaned up."""
    child = multiprocessing.get_context("fork").Process(target=_killed, args=(folder,))
    child.start()
    child.join()
    found = read_folder(folder)
    assert (found.sum("hotplate_processes"), found.sum("hotplate_faults_total")) == (0, 3)
    text = exposition(folder).decode()
    assert "hotplate_processes" not in text
    assert "hotplate_faults_total" in text


def test_a_process_of_another_container_ends_by_its_silence(folder: Path) -> None:
    """Its pid means nothing here: it is there for as long as it writes."""
    other = "hotplate-1-1-1-0"
    files = ProcessFiles(folder, 0)
    files._id = other
    files.write([Sample(CATALOGUE["hotplate_processes"], ("p",), 1)], {})
    clean(folder)
    assert read_folder(folder).sum("hotplate_processes") == 1
    long_ago = time.time() - 700
    for path in folder.glob(f"*{other}*"):
        os.utime(path, (long_ago, long_ago))
    assert read_folder(folder).sum("hotplate_processes") == 0
    files.write([], {})  # it lives after all
    assert read_folder(folder).sum("hotplate_processes") == 1
    files.close()


def test_a_counter_never_falls(folder: Path) -> None:
    """Whatever a snapshot finds between two steps, and after it was closed and opened again."""
    faults = CATALOGUE["hotplate_faults_total"]
    files = ProcessFiles(folder, 0)
    for value, seen in ((5, 5), (3, 5), (8, 8)):
        files.write([Sample(faults, ("p",), value)], {})
        assert read_folder(folder).sum("hotplate_faults_total") == seen
    files.close()
    files.write([Sample(faults, ("p",), 2)], {})
    assert read_folder(folder).sum("hotplate_faults_total") == 8
    files.close()


def test_a_lock_that_is_held_stops_nobody(measured: Callable[..., Repo], folder: Path) -> None:
    """Cleaning waits for another time; writing, reading and closing go on."""
    repo = measured()
    with locked(folder, fcntl.LOCK_EX, 10.0) as is_held:  # the publisher may be at its first look
        assert is_held
        clean(folder)
        ask(repo, 1)
        write(repo)
        assert read_folder(folder).sum("hotplate_misses_total") == 2
        hotplate.of(repo.hot).runtime.close()


def _keep(release: Any) -> None:
    release.wait(60)


def test_a_child_does_not_keep_the_lock(folder: Path) -> None:
    """One that was forked while it was held has a copy of it, which is let go with ours."""
    folder.mkdir()
    fork = multiprocessing.get_context("fork")
    release = fork.Event()
    with locked(folder, fcntl.LOCK_EX, 0.0):
        child = fork.Process(target=_keep, args=(release,))
        child.start()
    with locked(folder, fcntl.LOCK_EX, 0.0) as is_held:
        assert is_held
    release.set()
    child.join()


def test_a_cache_that_was_closed_is_not_counted_in_children(
    measured: Callable[..., Repo], folder: Path
) -> None:
    """What the parent had counted stays the parent's, also where it writes no more."""
    repo = measured()
    for _ in range(10):
        ask(repo, 1)
    write(repo)
    hotplate.of(repo.hot).runtime.close()
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=_read_in_child, args=(repo, [1]))
    child.start()
    child.join()
    found = read_folder(folder)
    reads = found.sum("hotplate_hits_total") + found.sum("hotplate_misses_total")
    assert reads == 2 * (10 + 1)


FULL = """
import sys
from pathlib import Path
from hotplate.telemetry.catalogue import CATALOGUE, Sample
from hotplate.telemetry.files import ProcessFiles
files = ProcessFiles(Path(sys.argv[1]) / "metrics", 0)
try:
    files.write([Sample(CATALOGUE["hotplate_faults_total"], ("p",), 3)], {})
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk_is_an_error_and_no_signal(tmp_path: Path) -> None:
    """A map of a file that has no room ends its process when it is written to."""
    mounted = ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(tmp_path)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("nothing may be mounted here")
    try:
        done = subprocess.run(
            [sys.executable, "-c", FULL, str(tmp_path)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": PLUGINS},
            check=False,
        )
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert (done.returncode, done.stdout) == (0, "No space left on device\n"), done.stderr
