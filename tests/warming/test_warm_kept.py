"""What `hotplate warm` reads is in the shared tier when it says so; live traffic is watched."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import hotplate
from hotplate.embedded import EmbeddedServer
from hotplate.histogram import WAITS_S, Histogram
from hotplate.operations.warm import Warming, WarmPlan, plan_of
from hotplate.telemetry.catalogue import CATALOGUE, Sample
from hotplate.telemetry.files import ProcessFiles
from hotplate.telemetry.live import LiveTraffic
from hotplate.warming.selection import SelectionSpec, select
from hotplate.warming.warmer import WarmingError, WarmingRate
from pipelines.lab.proxy import Proxy

from ..stores import Repo
from .test_warm import deployment, real_log, run  # noqa: F401 - a fixture

FAST = WarmingRate(1_000_000, most=1.0, first=1.0, ramp_s=0, tries=4)


def loads_of_another(folder: Path, users: int) -> int:
    """Rows that a new process reads from the source when it is asked for them."""
    from feast import FeatureStore

    store = FeatureStore(repo_path=str(folder))
    hot = hotplate.of(store)
    shared = hot.runtime.shared()
    assert shared is not None
    shared.reach(10)
    for user in range(users):
        store.get_online_features(["profile:age"], {"user_id": [user]})
    loads = hot.stats().groups["profile"].loads
    hot.runtime.close()
    return loads


def test_the_hottest_are_kept_however_long_connecting_takes(
    deployment: Any,  # noqa: F811
    tmp_path: Path,
    redis: EmbeddedServer,
) -> None:
    """The first rows are the most valuable, and a connection takes longer than a reply may."""
    with Proxy((redis.host, redis.port)) as proxy:
        proxy.delay(to_client=0.02)
        shared = {"connection_string": proxy.connection_string, "timeout": "5ms"}
        repo, folder = deployment(shared=shared)
        real_log(repo, tmp_path)
        done = run(folder, "--top", "10", "--peak", "100000/s", "--state", str(tmp_path / "state"))
        assert done.exit_code == 0, done.output
        proxy.heal()
        assert loads_of_another(folder, 10) == 0


def test_a_server_that_is_not_there_is_said_before_anything_is_read(
    deployment: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    repo, folder = deployment(shared={"connection_string": "127.0.0.1:1", "timeout": "5ms"})
    real_log(repo, tmp_path)
    done = run(folder, "--peak", "100000/s", "--state", str(tmp_path / "state"))
    assert done.exit_code == 1
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith("hotplate: the shared tier cannot keep what would be read: 127.0.0.1:1")
    )
    assert "entities," not in done.stdout.splitlines()[-1]


@pytest.fixture
def warmed(
    logged: Callable[..., Repo], tmp_path: Path, own_server: EmbeddedServer
) -> Callable[[Proxy], tuple[Any, WarmPlan]]:
    """A cache with a shared tier behind a proxy, and what is to be warmed in it."""

    def make(proxy: Proxy) -> tuple[Any, WarmPlan]:
        repo = logged()
        repo.settings = {
            **repo.settings,
            "shared": {"connection_string": proxy.connection_string, "timeout": "50ms"},
        }
        real_log(repo, tmp_path)
        hot = hotplate.of(repo.open_hot(ttl_map={"default": "1h"}))
        chosen = select(tmp_path / "traffic", SelectionSpec(datetime.now(UTC), 7, 24))
        return hot, plan_of(hot.rehearsal(["profile"]), chosen, repo.project, share=1.0)

    return make


def test_a_batch_that_was_not_kept_is_read_again(
    warmed: Callable[[Proxy], tuple[Any, WarmPlan]], own_server: EmbeddedServer
) -> None:
    """The server says nothing for a while: all is kept in the end, and counted once."""
    with Proxy((own_server.host, own_server.port)) as proxy:
        hot, plan = warmed(proxy)
        shared = hot.runtime.shared()
        shared.reach(10)

        def sleep(seconds: float) -> None:
            if seconds >= 0.2:  # the pause after an error
                proxy.heal()
                time.sleep(0.3)

        warming = Warming(hot.rehearsal(["profile"]), FAST, shared=shared, sleep=sleep)
        proxy.drop_replies()
        last = list(warming.run(plan))[-1]
        assert (last.entities, last.errors > 0) == (40, True)
        (view,) = hot.runtime.engine.views_of("profile")
        users = [(view.identity.shape, (user,)) for user in range(40)]
        assert shared.count_entities(view.identity.version, users) == 40
        hot.runtime.close()


def test_a_tier_that_stays_away_is_an_error(
    warmed: Callable[[Proxy], tuple[Any, WarmPlan]], own_server: EmbeddedServer
) -> None:
    with Proxy((own_server.host, own_server.port)) as proxy:
        hot, plan = warmed(proxy)
        shared = hot.runtime.shared()
        shared.reach(10)
        proxy.pause()
        warming = Warming(hot.rehearsal(["profile"]), FAST, shared=shared, sleep=lambda _: None)
        with pytest.raises(WarmingError, match=r"did not keep what was read: .* 4 times in a row"):
            list(warming.run(plan))
        proxy.heal()
        hot.runtime.close()


def test_an_entity_with_more_rows_than_a_second_may_see_is_refused(
    logged: Callable[..., Repo], tmp_path: Path
) -> None:
    repo = logged()
    real_log(repo, tmp_path)
    hot = hotplate.of(repo.hot)
    with pytest.raises(WarmingError, match=r"fewer than the 2 of one user_id.*a higher peak"):
        list(hot.warm(tmp_path / "traffic", WarmingRate(5, ramp_s=0)))
    assert hot.runtime.engine.rehearsed == 0


class Live:
    """Processes that count what their requests wait for, and a warmer that counts, too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_s = 0.0
        self.files = ProcessFiles(folder, 0)
        self.live, self.own = Histogram(WAITS_S), Histogram(WAITS_S)

    def count(self, seconds: float, times: int, *, own: bool = False) -> None:
        for _ in range(times):
            self.live.add(seconds)  # of the host: the warmer's are among them
            if own:
                self.own.add(seconds)
        sample = Sample(CATALOGUE["hotplate_source_seconds"], ("p",), self.live.snapshot())
        self.files.write([sample], {})

    def watch(self) -> LiveTraffic:
        return LiveTraffic(self.folder, "p", self.own.snapshot, lambda: self.now_s)

    def suffers_after(self, watch: LiveTraffic, seconds: float) -> bool:
        self.now_s += seconds
        return watch.suffers()


def test_live_traffic_that_waits_longer_is_seen(tmp_path: Path) -> None:
    live = Live(tmp_path)
    live.count(0.001, 1_000)
    watch = live.watch()
    assert watch.usual_s is not None
    live.count(0.001, 100)
    assert not live.suffers_after(watch, 1)
    live.count(0.02, 100)
    assert not live.suffers_after(watch, 0.5), "once a second"
    assert live.suffers_after(watch, 0.5)
    assert not live.suffers_after(watch, 1), "nobody asked"
    live.count(0.02, 10)
    assert not live.suffers_after(watch, 1), "too few to tell"
    live.count(0.02, 15)
    assert live.suffers_after(watch, 1), "with these there are enough"
    live.count(0.001, 200)
    assert not live.suffers_after(watch, 1)


def test_what_the_warmer_itself_waits_is_not_live(tmp_path: Path) -> None:
    live = Live(tmp_path)
    live.count(0.001, 1_000)
    watch = live.watch()
    live.count(0.05, 500, own=True)
    live.count(0.001, 100)
    assert not live.suffers_after(watch, 1)


def test_what_is_usual_is_learnt_where_nothing_was_counted(tmp_path: Path) -> None:
    live = Live(tmp_path)
    live.count(0.02, 3)
    watch = live.watch()
    assert watch.usual_s is None
    live.count(0.02, 100)
    assert not live.suffers_after(watch, 1)
    live.count(0.02, 100)
    assert not live.suffers_after(watch, 1)
    live.count(0.2, 100)
    assert live.suffers_after(watch, 1)


def test_a_folder_that_cannot_be_read_holds_up_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    watch = LiveTraffic(tmp_path / "none", "p", Histogram(WAITS_S).snapshot, lambda: now[0])
    assert not watch.suffers()
    now[0] = 5.0
    assert not watch.suffers()
    assert "live traffic cannot be watched" in caplog.text


def test_a_life_shorter_than_warming_takes_is_said(
    deployment: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    """What is read first, the most valuable, would be gone before the end."""
    for ttl, is_said in (("2s", True), ("1h", False)):
        repo, folder = deployment(ttl_map={"default": ttl})
        real_log(repo, tmp_path)
        looked = run(folder, "--dry-run", "--peak", "50/s", "--coverage", "100%")
        assert looked.exit_code == 0, looked.output
        assert ("Some live for 2s only" in looked.output) == is_said
