"""What several processes cost and gain: coherence, the shared tier, one load for all."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import redis

import hotplate
from hotplate.embedded import EmbeddedServer
from pipelines.bench.line import Line
from pipelines.bench.measure import Spread, percentile, time_calls
from pipelines.bench.place import VIEWS, Place, await_channel, features_of, rows_of, write

__all__ = ["fleet"]

_PROCESSES = 4
_THREADS = 32
_COLD_KEYS = 100


def fleet(rounds: int, *, is_short: bool = False) -> list[Line]:
    """Several processes: event coherence, the shared tier, one load for all.

    Args:
        rounds: of each comparison.
        is_short: leave out what starts processes, which the tests do as well.
    """
    with EmbeddedServer.start() as server, TemporaryDirectory(prefix="hotplate-fleet-") as folder:
        place = Place(server, Path(folder))
        return [
            *_hits_under_a_lease(place, rounds),
            *_shared_hits(place, rounds),
            *([] if is_short else _one_load(place)),
        ]


def _hits_under_a_lease(place: Place, rounds: int) -> list[Line]:
    """A warm hit of event-coherent groups against one that age alone bounds."""
    online = {"type": "redis", **place.address}
    plain = place.open("plain", online, {"ttl_map": {"default": "1h"}})
    event = place.open(
        "event", online, {"ttl_map": {"default": {"ttl": "1h", "coherence": "event"}}}
    )
    for store in (plain, event):
        for view in range(VIEWS):
            write(store, view, rows_of(view, range(100), 1.0))
    await_channel(event)
    features, entity = features_of(), [{"user_id": 1}]
    ratios, micros = [], []
    calls = [
        lambda s=store: s.get_online_features(features, entity).to_dict()
        for store in (plain, event)
    ]
    for _ in range(rounds):
        a, b = (percentile(time_calls(call, 4_000), 0.5) for call in calls)
        ratios.append(b / a)
        micros.append((a * 1e6, b * 1e6))
    for store in (plain, event):
        hotplate.of(store).runtime.close()
    spread = Spread.of(ratios)
    first, second = sorted(micros)[len(micros) // 2]
    return [
        Line(
            "warm hit with coherence: event, p50",
            f"{spread.median:.3f} of one without",
            f"{spread.low:.3f} to {spread.high:.3f}",
            "<= 1.03",
            spread.median <= 1.03,
            f"{second:.1f} us against {first:.1f} us",
        )
    ]


def _shared_hits(place: Place, rounds: int) -> list[Line]:
    """A request that finds its four rows in the shared tier, against one pipelined round trip."""
    online = {"type": "sqlite", "path": str(place.folder / "shared.sqlite")}
    shared = {**place.address, "timeout": "250ms"}
    store = place.open("shared", online, {"ttl_map": {"default": "1h"}, "shared": shared})
    for view in range(VIEWS):
        write(store, view, rows_of(view, range(1_000), 1.0))
    features = features_of()
    for user in range(1_000):
        store.get_online_features(features, [{"user_id": user}])
    runtime = hotplate.of(store).runtime
    keys = [
        [f"hotplate:row:shared:v{view}:user_id:int64_val:{user}" for view in range(VIEWS)]
        for user in range(1_000)
    ]
    client = redis.Redis(port=place.server.port)

    def pipelined(user: int) -> None:
        with client.pipeline(transaction=False) as pipe:
            for key in keys[user]:
                pipe.get(key)
            assert None not in pipe.execute()

    ratios, micros = [], []
    for _ in range(rounds):
        runtime.domain.invalidate_all("shared")
        ours, raw = [], []
        for user in range(1_000):
            began = time.perf_counter()
            response = store.get_online_features(features, [{"user_id": user}])
            between = time.perf_counter()
            pipelined(user)
            raw.append(time.perf_counter() - between)
            ours.append(between - began)
        assert response.freshness()["v0"][0].tier is hotplate.Tier.SHARED
        ratios.append(percentile(ours, 0.5) / percentile(raw, 0.5))
        micros.append((percentile(raw, 0.5) * 1e6, percentile(ours, 0.5) * 1e6))
    client.close()
    runtime.close()
    spread = Spread.of(ratios)
    first, second = sorted(micros)[len(micros) // 2]
    return [
        Line(
            "request answered by the shared tier, 4 groups, p50",
            f"{spread.median:.2f} of one pipelined round trip",
            f"{spread.low:.2f} to {spread.high:.2f}",
            "<= 1.5",
            spread.median <= 1.5,
            f"{second:.0f} us against {first:.0f} us (redis-py, the same keys)",
        )
    ]


_STAMPEDE = """
import sys, threading, time, warnings
warnings.simplefilter("ignore")
from concurrent.futures import ThreadPoolExecutor
from feast import FeatureStore
import hotplate
store = FeatureStore(repo_path=sys.argv[1])
store.get_online_features(["v0:v0_f0"], [{"user_id": -1}])
group = lambda: hotplate.of(store).stats().groups["v0"].loads
before = group()
print("ready", flush=True)
sys.stdin.readline()
def work(_):
    for user in range(int(sys.argv[3])):
        store.get_online_features(["v0:v0_f0"], [{"user_id": user}])
began = time.perf_counter()
with ThreadPoolExecutor(int(sys.argv[2])) as pool:
    list(pool.map(work, range(int(sys.argv[2]))))
print(group() - before, time.perf_counter() - began, flush=True)
"""


@contextmanager
def _processes(arguments: list[str]) -> Iterator[list[subprocess.Popen[str]]]:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _STAMPEDE, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(_PROCESSES)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _one_load(place: Place) -> list[Line]:
    """4 processes of 32 threads on 100 cold keys."""
    loads = {}
    for name, more in (("alone", {}), ("together", {"shared": {**place.address, "lease": "30s"}})):
        if more:
            more["shared"]["timeout"] = "5s"
        online = {"type": "sqlite", "path": str(place.folder / f"{name}.sqlite")}
        store = place.open(name, online, {"ttl_map": {"default": "1h"}, **more}, views=1)
        write(store, 0, rows_of(0, range(_COLD_KEYS), 1.0))
        hotplate.of(store).runtime.close()
        arguments = [str(place.folder / name), str(_THREADS), str(_COLD_KEYS)]
        with _processes(arguments) as processes:
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            said = [process.stdout.readline().split() for process in processes if process.stdout]
        loads[name] = sum(int(count) for count, _ in said)
    return [
        Line(
            f"source loads, {_PROCESSES} processes x {_THREADS} threads, {_COLD_KEYS} cold keys",
            str(loads["together"]),
            "",
            f"{_COLD_KEYS}",
            loads["together"] == _COLD_KEYS,
            f"{loads['alone']} without the shared tier",
        )
    ]
