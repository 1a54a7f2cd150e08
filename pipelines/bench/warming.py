"""How soon a restarted process is warm, what warming costs live reads, and what it finds in a log.

Requests follow a recorded access trace (Twitter's cluster 52) where it is there, else a Zipf law of
its exponent. The restart: one process reads the first half of them and ends; another reads the
second half, cold or preloaded, from the source or with rows that the first one kept. It is back
when, of the last 1,000 requests, no more missed than in steady state and two points; the time of
the preload counts. Requests come at the speed of the machine, one after the other, where a cold
process warms itself as fast as it can be asked; how long it takes where they come as they were
recorded is counted from the recorded times.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from feast import FeatureStore

import hotplate
from hotplate.embedded import EmbeddedServer
from hotplate.operations.warm import Warming, WarmPlan
from hotplate.sizes import format_bytes
from hotplate.warming.selection import SelectionSpec, select
from hotplate.warming.traffic import SCHEMA
from hotplate.warming.warmer import Batch, WarmingRate
from pipelines.bench.children import said, started
from pipelines.bench.line import Line
from pipelines.bench.measure import Spread, percentile
from pipelines.bench.place import VIEWS, Place, features_of, rows_of, write

__all__ = ["warming"]

_TRACE: Final = "twitter_cluster52_2m.parquet"
_FORETOLD: Final = (("twitter_cluster52_2m", "key_id"), ("cache2k_orm_busy", "key"))
_A_SECOND: Final = 2_000
_SKEW: Final = 0.98
_WINDOW: Final = 1_000
_TWO_POINTS: Final = 0.02
_LIVE: Final = 4_000  # of which 40 are slower than the 99th percentile
_HOUR_US: Final = 3_600_000_000
_ALLOWED: Final = 2_000  # rows a second
_PART: Final = 5_000_000  # logged reads in a file
_ENTITIES: Final = 3_000_000
_FEATURES: Final = features_of()
Ids = npt.NDArray[np.int64]


def warming(data: Path, rounds: int, *, is_short: bool = False) -> list[Line]:
    """Restarts with and without preloading, live reads beside a warmer, selection from logs."""
    entities, requests = (2_000, 12_000) if is_short else (20_000, 240_000)
    asked = _requests(data, entities, requests)
    with _place(entities) as place:
        lines = _restarts(place, asked, 1 if is_short else min(rounds, 3))
        lines.append(_beside(place, entities, 2 if is_short else rounds))
        lines.append(_busiest_second(place, entities, 2 if is_short else 5))
    lines.append(_selection(200_000 if is_short else 100_000_000, rounds=1 if is_short else 3))
    for name, column in _FORETOLD:
        lines += _foretold(data / f"{name}.parquet", column, limit=100_000 if is_short else None)
    return lines


class _Requests(NamedTuple):
    """Entities in the order in which they are asked for.

    Attributes:
        ids: of the entities.
        at_s: when, in seconds; None where that is not known.
        origin: where they come from.
    """

    ids: Ids
    at_s: Ids | None
    origin: str


def _requests(data: Path, entities: int, requests: int) -> _Requests:
    path = data / _TRACE
    if path.is_file():
        table = pq.read_table(path, columns=["time", "key_id"])[: 10 * requests]
        at_s, found = (table[name].to_numpy().astype(np.int64) for name in ("time", "key_id"))
        kept = np.flatnonzero(found < entities)[:requests]
        return _Requests(found[kept], at_s[kept], "trace")
    rng = np.random.default_rng(0)
    weight = np.arange(1, entities + 1, dtype=np.float64) ** -_SKEW
    ids = rng.choice(entities, size=requests, p=weight / weight.sum())
    return _Requests(ids, None, "Zipf")


@contextmanager
def _place(entities: int) -> Iterator[Place]:
    with (
        EmbeddedServer.start() as server,
        tempfile.TemporaryDirectory(prefix="hotplate-warming-") as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        place = Place(server, Path(folder))
        store = place.open("warming", {"type": "redis", **place.address}, None)
        for view in range(VIEWS):
            for start in range(0, entities, 2_000):
                rows = rows_of(view, range(start, min(start + 2_000, entities)), 1.0)
                write(store, view, rows)
        yield place


def _open(place: Place, **settings: Any) -> FeatureStore:
    return place.open(
        "warming-hot",
        {"type": "redis", **place.address},
        {"ttl_map": {"default": {"ttl": "1h", "jitter": 0}}, **settings},
    )


# -- a restart ------------------------------------------------------------------------------------


_WAYS: Final = ("cold", "read", "kept")
"""How a process begins: with nothing, with what it reads from the source, with rows kept."""


def _restarts(place: Place, asked: _Requests, rounds: int) -> list[Line]:
    half = len(asked.ids) // 2
    taken_s: dict[str, list[float]] = {way: [] for way in _WAYS}
    recorded_s: dict[str, list[float]] = {way: [] for way in _WAYS}
    for turn in range(rounds):
        preload = {"folder": str(place.folder / f"preload-{turn}"), "budget": "1m", "rows": True}
        first = _open(place, preload=preload)
        hotplate.of(first).preload()
        misses = _read(first, asked.ids[:half])
        steady = sum(misses[-half // 4 :]) / (half // 4)
        asyncio.run(first._get_provider().online_store.close())
        for way in _WAYS:
            store = _open(place, preload={**preload, "rows": way == "kept"})
            store.get_online_features(_FEATURES, [{"user_id": int(asked.ids[0])}]).to_dict()
            began_s = time.perf_counter()
            preload_s = 0.0
            if way != "cold":
                preload_s = hotplate.of(store).preload().seconds
            needed = len(_read(store, asked.ids[half:], until=steady + _TWO_POINTS))
            taken_s[way].append(time.perf_counter() - began_s)
            if asked.at_s is not None:
                passed = int(asked.at_s[half + needed - 1] - asked.at_s[half])
                recorded_s[way].append(preload_s + max(passed, 1))  # recorded in whole seconds
    title = f"warming: a restart until it is back within 2 points, {asked.origin}"
    lines = [
        _sooner(f"{title}, cold against rows kept", taken_s, "kept", 10),
        _sooner(f"{title}, cold against rows read before", taken_s, "read", None),
    ]
    if asked.at_s is not None:
        lines.append(
            _sooner(f"{title}, as recorded, cold against rows read before", recorded_s, "read", 10)
        )
    return lines


def _sooner(title: str, taken_s: dict[str, list[float]], way: str, aim: int | None) -> Line:
    both = zip(taken_s["cold"], taken_s[way], strict=True)
    found = Spread.of([cold / warm for cold, warm in both])
    cold_s, warm_s = (statistics.median(taken_s[one]) for one in ("cold", way))
    return Line(
        title,
        f"{found.median:.1f} x sooner",
        f"{found.low:.1f} to {found.high:.1f}",
        "" if aim is None else f">= {aim} x",
        None if aim is None else found.median >= aim,
        f"{cold_s:.2f} s against {warm_s:.2f} s",
    )


def _read(store: FeatureStore, ids: Ids, until: float | None = None) -> list[bool]:
    """Ask for one entity after the other; returns which missed. Ends where few enough do."""
    groups = hotplate.of(store).runtime.engine.group_counters
    counters = None
    missed: list[bool] = []
    recent: deque[bool] = deque(maxlen=_WINDOW)
    for user in ids.tolist():
        before = counters.loads if counters is not None else -1
        store.get_online_features(_FEATURES, [{"user_id": user}]).to_dict()
        if counters is None:
            counters = groups()["v0"]
        is_missed = counters.loads != before
        missed.append(is_missed)
        recent.append(is_missed)
        if until is not None and len(recent) == _WINDOW and sum(recent) <= until * _WINDOW:
            break
    return missed


# -- live reads beside a warmer -------------------------------------------------------------------

_WARMER: Final = """
import os, sys, warnings
warnings.simplefilter("ignore")
from feast import FeatureStore
import hotplate
from hotplate.operations.warm import Warming, WarmPlan
from hotplate.warming.warmer import WarmingRate
store = FeatureStore(repo_path=sys.argv[1])
hot = hotplate.of(store)
rehearsal = hot.rehearsal()
(kind,) = rehearsal.kinds.values()
keys = [(user,) for user in range(int(sys.argv[2]))]
plan = WarmPlan({kind.entity: keys}, {kind.entity: kind.views}, {})
rate = WarmingRate(float(sys.argv[3]), 0.2, 0.2)
print("ready", flush=True)
os.nice(10)  # as the command does
while True:
    sys.stdin.readline()
    for progress in Warming(rehearsal, rate).run(plan):
        pass
    hot.clear()
"""


def _beside(place: Place, entities: int, rounds: int) -> Line:
    """p99 of reads that miss, with and without a process that warms at a fifth of their rate."""
    import signal

    store = _open(place, ttl_map={"default": "0s"})
    _live(store, entities)
    peak = VIEWS * _LIVE / sum(_live(store, entities))
    folder = str(place.folder / "warming-hot-2")
    place.open("warming-hot-2", {"type": "redis", **place.address}, {"ttl_map": {"default": "1h"}})
    process = started(_WARMER, folder, str(entities), f"{peak:.0f}")
    assert process.stdin is not None
    ratios, alone_us, beside_us = [], [], []
    try:
        process.stdin.write("\n" * 1_000)
        process.stdin.flush()
        for _ in range(rounds):
            process.send_signal(signal.SIGSTOP)
            alone = percentile(_live(store, entities), 0.99)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.2)
            beside = percentile(_live(store, entities), 0.99)
            ratios.append(beside / alone)
            alone_us.append(alone * 1e6)
            beside_us.append(beside * 1e6)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
    found = Spread.of(ratios)
    return Line(
        "warming: p99 of live reads while another process warms at 20 % of their rate",
        f"{found.median:.2f} of that alone",
        f"{found.low:.2f} to {found.high:.2f}",
        "<= 1.2",
        found.median <= 1.2,
        f"{statistics.median(alone_us):,.0f} us against {statistics.median(beside_us):,.0f} us, "
        f"at {0.2 * peak:,.0f} rows/s",
    )


def _busiest_second(place: Place, entities: int, seconds: int) -> Line:
    """The most rows that a warmer has read in any second, against what it was allowed."""
    folder = "warming-busiest"
    store = place.open(folder, {"type": "redis", **place.address}, {"ttl_map": {"default": "1h"}})
    hot = hotplate.of(store)
    rehearsal, limit = hot.rehearsal(), _ALLOWED
    (kind,) = rehearsal.kinds.values()
    count = min(entities, seconds * limit // len(kind.views))
    plan = WarmPlan(
        {kind.entity: [(user,) for user in range(count)]}, {kind.entity: kind.views}, {}
    )
    seen: list[tuple[float, int]] = []
    read = rehearsal.read

    def noted(batch: Batch) -> None:
        seen.append((time.monotonic(), batch.reads))
        read(batch)

    rehearsal.read = noted  # type: ignore[method-assign]
    rate = WarmingRate(limit, first=1.0, most=1.0, ramp_s=0)
    for _ in Warming(rehearsal, rate).run(plan):
        pass
    hot.close()
    most = max(
        sum(reads for at_s, reads in seen if began_s <= at_s < began_s + 1) for began_s, _ in seen
    )
    return Line(
        "warming: rows read in the busiest second",
        f"{most / limit:.2f} of the limit",
        "",
        "<= 1",
        most <= limit,
        f"{most:,} against {limit:,}, over {seen[-1][0] - seen[0][0]:.0f} s",
    )


def _live(store: FeatureStore, entities: int) -> list[float]:
    taken = []
    for number in range(_LIVE):
        began_s = time.perf_counter()
        store.get_online_features(_FEATURES, [{"user_id": number * 7 % entities}]).to_dict()
        taken.append(time.perf_counter() - began_s)
    return taken


# -- logs -----------------------------------------------------------------------------------------


def _write_log(folder: Path, ids: Ids, at_us: Ids, name: str) -> None:
    keys = pa.array([f"[{number}]" for number in range(int(ids.max()) + 1)])
    none = pa.array(np.zeros(len(ids), np.int32))
    arrays = [
        pa.array(at_us, pa.timestamp("us", "UTC")),
        pa.array(np.arange(len(ids)), pa.uint64()),
        pa.DictionaryArray.from_arrays(none, ["user_id"]),
        keys.take(pa.array(ids)),
        pa.DictionaryArray.from_arrays(none, ["v0,v1,v2,v3"]),
        pa.array(np.ones(len(ids)), pa.uint32()),
    ]
    folder.mkdir(exist_ok=True)
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    pq.write_table(table, folder / f"traffic-{name}.parquet", compression="zstd")


_SELECT = """
import json, sys, time
from datetime import datetime
from pathlib import Path
from hotplate.warming.selection import SelectionSpec, select

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

before = peak()
print("ready", flush=True)
began_s = time.perf_counter()
(chosen,) = select(Path(sys.argv[1]), SelectionSpec(datetime.fromisoformat(sys.argv[2]))).values()
print(json.dumps([time.perf_counter() - began_s, before, peak(), len(chosen.keys)]), flush=True)
"""


def _selection(reads: int, rounds: int) -> Line:
    """From a log of seven days, of up to three million entities, to its hottest ones.

    Each time in a process of its own, for the memory that it takes.
    """
    rng = np.random.default_rng(0)
    now = datetime(2026, 11, 30, 9, tzinfo=UTC)
    rates, peaks, before, entities = [], [], 0, 0
    with tempfile.TemporaryDirectory(prefix="hotplate-log-") as folder:
        for part, start in enumerate(range(0, reads, _PART)):
            count = min(_PART, reads - start)
            # ranks of a Zipf law with the exponent 0.9
            ids = (_ENTITIES * rng.random(count) ** 10).astype(np.int64)
            at_us = int(now.timestamp() * 1e6) - rng.integers(1, 7 * 24 * _HOUR_US, count)
            _write_log(Path(folder), ids, np.sort(at_us), str(part))
        for _ in range(rounds):
            with started(_SELECT, folder, now.isoformat()) as process:
                seconds, before, peak, entities = said(process)
            rates.append(reads / seconds)
            peaks.append(peak)
    found = Spread.of(rates)
    return Line(
        f"warming: the hottest entities of {reads:,} logged reads",
        f"{found.median / 1e6:.1f} M reads/s",
        f"{found.low / 1e6:.1f} to {found.high / 1e6:.1f}",
        ">= 1 M reads/s",
        found.median >= 1e6,
        f"{entities:,} entities of {_ENTITIES:,} kept; {format_bytes(max(peaks))} at the most, "
        f"{format_bytes(before)} of them before it began",
    )


def _foretold(path: Path, column: str, limit: int | None) -> list[Line]:
    """Cold misses of the first minute that warming by the traffic before it saves.

    A trace without times is taken for one of 2,000 requests a second, as the other one has.
    """
    if not path.is_file():
        return []
    table = pq.read_table(path)
    if limit is not None:
        table = table.slice(0, limit)
    _, ids = np.unique(table[column].to_numpy(), return_inverse=True)
    has_times = "time" in table.column_names
    at = (
        table["time"].to_numpy().astype(np.int64) if has_times else np.arange(len(ids)) // _A_SECOND
    )
    middle = int(at[-1]) // 2
    now = datetime(2026, 11, 30, 9, tzinfo=UTC)
    is_past = at < middle
    future = ids[(at >= middle) & (at < middle + 60)]
    needed = np.unique(future)
    with tempfile.TemporaryDirectory(prefix="hotplate-log-") as folder:
        at_us = int(now.timestamp() * 1e6) - (middle - at[is_past]) * 1_000_000
        _write_log(Path(folder), ids[is_past], at_us, "past")
        (chosen,) = select(Path(folder), SelectionSpec(now)).values()
    lines = []
    for share in (0.8, 0.9, 1.0):
        count = chosen.first(share=share)
        warm = np.array([json.loads(key)[0] for key in chosen.keys[:count]])
        saved = len(np.intersect1d(needed, warm)) / len(needed)
        oracle = min(count, len(needed)) / len(needed)
        lines.append(
            Line(
                f"warming: cold misses of a minute saved, {path.stem}, {share:.0%} of the past's "
                "reads covered",
                f"{saved:.1%}",
                "",
                "",
                None,
                f"{count:,} entities; who knows the future and as many: {oracle:.1%}",
            )
        )
    return lines
