"""What several processes cost and gain: coherence, the shared tier, one load for all."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis
import yaml
from feast import Entity, FeatureStore, FeatureView, Field, FileSource
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Float64
from feast.value_type import ValueType

import hotplate
from hotplate.embedded import EmbeddedServer
from pipelines.bench.line import Line
from pipelines.bench.measure import Spread, percentile, time_calls

__all__ = ["fleet"]

_CACHED = "hotplate.online_store.CachedOnlineStore"
_VIEWS = 4
_COLUMNS = 10
_T0 = datetime(2026, 1, 1, tzinfo=UTC)
_PROCESSES = 4
_THREADS = 32
_COLD_KEYS = 100


def fleet(rounds: int, rows: int, *, is_short: bool = False) -> list[Line]:
    """Several processes: event coherence, the shared tier, one load for all.

    Args:
        rounds: of each comparison.
        rows: of a large write.
        is_short: leave out what starts processes, which the tests do as well.
    """
    with EmbeddedServer.start() as server, TemporaryDirectory(prefix="hotplate-fleet-") as folder:
        place = _Place(server, Path(folder))
        return [
            *_hits_under_a_lease(place, rounds),
            *_shared_hits(place, rounds),
            *([] if is_short else [*_seen_elsewhere(place), *_one_load(place)]),
            *_large_writes(place, rows),
        ]


class _Place:
    """A server and repos around it."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.address = {"connection_string": server.connection_string}

    def open(
        self, name: str, store: dict[str, Any], cached: dict[str, Any] | None, views: int = _VIEWS
    ) -> FeatureStore:
        """A repo in a folder of its own, applied; another store of one that is there."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        online = store if cached is None else {"type": _CACHED, "store": store, **cached}
        settings = {
            "project": name.split("-")[0],
            "provider": "local",
            "registry": {
                "path": str(self.folder / f"{name.split('-')[0]}.db"),
                "cache_ttl_seconds": 0,
            },
            "entity_key_serialization_version": 3,
            "offline_store": {"type": "file"},
            "online_store": online,
        }
        (folder / "feature_store.yaml").write_text(yaml.safe_dump(settings))
        made = FeatureStore(repo_path=str(folder))
        user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
        source = FileSource(name="source", path=str(folder / "x.parquet"), timestamp_field="t")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.apply(
                [
                    user,
                    *(
                        FeatureView(
                            name=f"v{view}",
                            entities=[user],
                            source=source,
                            schema=[
                                Field(name=f"v{view}_f{column}", dtype=Float64)
                                for column in range(_COLUMNS)
                            ],
                        )
                        for view in range(views)
                    ),
                ]
            )
        return made


def _features(views: int = _VIEWS) -> list[str]:
    return [f"v{view}:v{view}_f{column}" for view in range(views) for column in range(_COLUMNS)]


def _rows(view: int, users: range, value: float, moment: datetime = _T0) -> list[Any]:
    return [
        (
            EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=user)]),
            {f"v{view}_f{column}": Value(double_val=value) for column in range(_COLUMNS)},
            moment,
            None,
        )
        for user in users
    ]


def _write(store: FeatureStore, view: int, rows: list[Any]) -> None:
    table = store.get_feature_view(f"v{view}")
    store._get_provider().online_write_batch(store.config, table, rows, None)


def _await_channel(store: FeatureStore) -> None:
    while not (channel := hotplate.of(store).stats().channel) or not channel.is_whole:
        store.get_online_features(_features(1), [{"user_id": 0}])
        time.sleep(0.01)


def _hits_under_a_lease(place: _Place, rounds: int) -> list[Line]:
    """A warm hit of event-coherent groups against one that age alone bounds."""
    online = {"type": "redis", **place.address}
    plain = place.open("plain", online, {"ttl_map": {"default": "1h"}})
    event = place.open(
        "event", online, {"ttl_map": {"default": {"ttl": "1h", "coherence": "event"}}}
    )
    for store in (plain, event):
        for view in range(_VIEWS):
            _write(store, view, _rows(view, range(100), 1.0))
    _await_channel(event)
    features, entity = _features(), [{"user_id": 1}]
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


def _shared_hits(place: _Place, rounds: int) -> list[Line]:
    """A request that finds its four rows in the shared tier, against one pipelined round trip."""
    online = {"type": "sqlite", "path": str(place.folder / "shared.sqlite")}
    shared = {**place.address, "timeout": "250ms"}
    store = place.open("shared", online, {"ttl_map": {"default": "1h"}, "shared": shared})
    for view in range(_VIEWS):
        _write(store, view, _rows(view, range(1_000), 1.0))
    features = _features()
    for user in range(1_000):
        store.get_online_features(features, [{"user_id": user}])
    runtime = hotplate.of(store).runtime
    keys = [
        [f"hotplate:row:shared:v{view}:user_id:int64_val:{user}" for view in range(_VIEWS)]
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


_READER = """
import sys, time, warnings
warnings.simplefilter("ignore")
from feast import FeatureStore
import hotplate
store = FeatureStore(repo_path=sys.argv[1])
features, entity = ["v0:v0_f0"], [{"user_id": 0}]
def read():
    return store.get_online_features(features, entity)
while read().freshness()["v0"][0].tier is not hotplate.Tier.MEMORY:
    time.sleep(0.01)
print("ready", flush=True)
seen, until = 0.0, time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    value = read().to_dict()["v0_f0"][0]
    if value != seen:
        print(int(value), time.perf_counter_ns(), flush=True)
        seen = value
    time.sleep(0.00005)
print("end", flush=True)
"""


def _seen_elsewhere(place: _Place, writes: int = 1_000) -> list[Line]:
    """From the end of a write in one process until another one no longer serves what was there."""
    lines = []
    for what, online, more in (
        ("Redis tells", {"type": "redis", **place.address}, {}),
        (
            "the writer tells",
            {"type": "sqlite", "path": str(place.folder / "told.sqlite")},
            {"shared": {**place.address, "tier": False}},
        ),
    ):
        name = "told" if more else "heard"
        cached = {"ttl_map": {"default": {"ttl": "1h", "coherence": "event"}}, **more}
        writer = place.open(name, online, cached, views=1)
        _write(writer, 0, _rows(0, range(1), 0.0))
        seconds = writes * 0.004
        reader = subprocess.Popen(
            [sys.executable, "-c", _READER, str(place.folder / name), str(seconds + 1)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        ended: dict[int, int] = {}
        for number in range(1, writes):
            _write(writer, 0, _rows(0, range(1), float(number), _T0 + timedelta(seconds=number)))
            ended[number] = time.perf_counter_ns()
            time.sleep(0.002)
        seen = {}
        for line in iter(reader.stdout.readline, "end\n"):
            value, moment = line.split()
            seen[int(value)] = int(moment)
        reader.wait(30)
        hotplate.of(writer).runtime.close()
        delays = [max(0, seen[number] - ended[number]) / 1e6 for number in seen if number in ended]
        p99 = percentile(delays, 0.99)
        lines.append(
            Line(
                f"write to 'no longer served elsewhere', {what}, p99",
                f"{p99:.2f} ms",
                f"p50 {percentile(delays, 0.5):.2f}, greatest {max(delays):.2f}",
                "<= 1 ms",
                p99 <= 1.0,
                f"{len(delays)} writes, one reader without a pause",
            )
        )
    return lines


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


def _one_load(place: _Place) -> list[Line]:
    """4 processes of 32 threads on 100 cold keys."""
    loads = {}
    for name, more in (("alone", {}), ("together", {"shared": {**place.address, "lease": "30s"}})):
        if more:
            more["shared"]["timeout"] = "5s"
        online = {"type": "sqlite", "path": str(place.folder / f"{name}.sqlite")}
        store = place.open(name, online, {"ttl_map": {"default": "1h"}, **more}, views=1)
        _write(store, 0, _rows(0, range(_COLD_KEYS), 1.0))
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


def _large_writes(place: _Place, rows: int) -> list[Line]:
    """A large batch written through the plugin, told to other processes, against the bare store."""
    lines = []
    for what, online, more in (
        ("Redis", {"type": "redis", **place.address}, {}),
        (
            "SQLite, told to others",
            {"type": "sqlite", "path": str(place.folder / "large.sqlite")},
            {"shared": {**place.address, "timeout": "250ms"}},
        ),
    ):
        name = "large" + online["type"]
        cached = {"ttl_map": {"default": {"ttl": "1h", "coherence": "event"}}, **more}
        hot = place.open(name, online, cached, views=1)
        bare = place.open(f"{name}-bare", online, None, views=1)
        ratios, seconds = [], []
        for number in range(3):
            # Redis skips rows whose event time it has already: each write brings a newer one
            batches = [
                _rows(0, range(rows), float(number), _T0 + timedelta(days=2 * number + second))
                for second in range(2)
            ]
            taken = []
            for store, batch in zip(
                (bare, hot) if number % 2 else (hot, bare), batches, strict=True
            ):
                began = time.perf_counter()
                for start in range(0, rows, 10_000):
                    _write(store, 0, batch[start : start + 10_000])
                taken.append(time.perf_counter() - began)
            if not number % 2:
                taken.reverse()
            ratios.append(taken[1] / taken[0])
            seconds.append(taken)
        hotplate.of(hot).runtime.close()
        spread = Spread.of(ratios)
        middle = sorted(seconds)[len(seconds) // 2]
        lines.append(
            Line(
                f"{rows:,} rows written through the plugin, {what}",
                f"{spread.median:.3f} of the bare store's time",
                f"{spread.low:.3f} to {spread.high:.3f}",
                "<= 1.05",
                spread.median <= 1.05,
                f"{middle[1]:.1f} s against {middle[0]:.1f} s",
            )
        )
    return lines
