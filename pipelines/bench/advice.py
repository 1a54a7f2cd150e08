"""How fast a traffic log is replayed, and how well that foretells what the cache does.

The requests of recorded access traces are given to the cache itself, with a clock that follows
them and a source that answers at once, and, as a traffic log, to the replay.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from feast.value_type import ValueType

from hotplate.advice.changes import Changes
from hotplate.advice.entities import Slots, ViewSpec
from hotplate.advice.lru import Room
from hotplate.advice.predictions import Prediction, Replayed, ReplaySpec, replay
from hotplate.advice.reads import TrafficFiles
from hotplate.clock import FakeClock
from hotplate.codec import PREFIX_BYTES, Column, Layout
from hotplate.core.engine import Bound, Engine, Want
from hotplate.durations import parse_duration
from hotplate.invalidation.local import Domain
from hotplate.keys import EntityShape, ViewIdentity
from hotplate.policy import PolicyLayers, ResolvedPolicy, TTLMap
from hotplate.tiers.memory import MemoryBounds
from hotplate.warming.traffic import SCHEMA
from pipelines.bench.line import Line
from pipelines.bench.measure import Spread

__all__ = ["Off", "advice", "foretold"]

Ints = npt.NDArray[np.int64]

_BEGIN_US: Final = 1_767_225_600_000_000
_ROW_GROUP: Final = 500_000
_ROOM: Final = 1 << 50
_RATE: Final = 5_000  # reads a second of a trace that has no times
_TRACES: Final = (("twitter_cluster52_2m", "key_id"), ("cache2k_orm_busy", "key"))
_TRIED: Final = (("1s", 1 << 40), ("10s", 1 << 40), ("1m", 20_000), ("none", 5_000))
_TTLS: Final = ("1s", "2s", "5s", "10s", "20s", "30s", "1m", "2m", "5m", "10m", "20m", "none")


def advice(data: Path, rounds: int, *, is_short: bool = False) -> list[Line]:
    """Replays of a traffic log under many policies, and what they foretell of the cache."""
    reads = 200_000 if is_short else 5_000_000
    lines = [
        _speed(reads, is_changing=changing, rounds=1 if is_short else min(rounds, 3))
        for changing in (False, True)
    ]
    for name, column in _TRACES:
        path = data / f"{name}.parquet"
        if path.is_file():
            lines.append(_foretold(path, column, 50_000 if is_short else 1_000_000))
        else:
            lines.append(Line(f"advice: hits foretold on {name}", "skipped", "", "", None, ""))
    return lines


# -- how fast -------------------------------------------------------------------------------------


def _speed(reads: int, *, is_changing: bool, rounds: int) -> Line:
    """Twelve ttls, one bound of memory that holds all; with changes each of them judged."""
    rng = np.random.default_rng(0)
    ids = np.minimum(rng.pareto(0.9, reads).astype(np.int64), 400_000)
    at = np.sort(rng.integers(0, 3_600_000_000, reads)) + _BEGIN_US
    rates, steps_s = [], []
    with tempfile.TemporaryDirectory(prefix="hotplate-advice-") as folder:
        _write_log(Path(folder), ids, at)
        for _ in range(rounds):
            began_s = time.perf_counter()
            found = _replay(
                Path(folder), _TTLS, [Room(_ROOM, _ROOM)], changes=reads // 100 * is_changing
            )
            taken_s = time.perf_counter() - began_s
            rates.append(found.steps / taken_s)
            steps_s.append(taken_s)
    spread = Spread.of(rates)
    what = "and 1 change a 100 reads, each answer judged" if is_changing else "no changes"
    return Line(
        f"advice: {reads:,} logged reads, {len(_TTLS)} ttls, {what}",
        f"{spread.median / 1e6:.1f} M reads/s a policy",
        f"{spread.low / 1e6:.1f} to {spread.high / 1e6:.1f}",
        ">= 1 M reads/s",
        spread.median >= 1e6,
        f"{sorted(steps_s)[len(steps_s) // 2]:.1f} s in all, reading the log included",
    )


def _write_log(folder: Path, ids: Ints, at_us: Ints) -> None:
    distinct, places = np.unique(ids, return_inverse=True)
    keys = pa.array([f"[{number}]" for number in distinct.tolist()])
    none = pa.array(np.zeros(len(ids), np.int32))
    arrays = [
        pa.array(at_us, pa.timestamp("us", "UTC")),
        pa.array(np.arange(len(ids)), pa.uint64()),
        pa.DictionaryArray.from_arrays(none, ["user_id"]),
        keys.take(pa.array(places)),
        pa.DictionaryArray.from_arrays(none, ["v"]),
        pa.array(np.ones(len(ids)), pa.uint32()),
    ]
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    path = folder / "traffic-here-1-0.parquet"
    pq.write_table(table, path, compression="zstd", row_group_size=_ROW_GROUP)


def _replay(
    folder: Path, ttls: Sequence[str], rooms: Sequence[Room], *, changes: int = 0
) -> Replayed:
    def collect(slots: Slots, begin: int, end: int) -> Changes:
        rng = np.random.default_rng(1)
        found = Changes(slots)
        known = slots.entities(slots.views[0])
        at = rng.integers(begin, end, changes)
        found.add("v", known[rng.integers(0, len(known), changes)], at)
        return found

    return replay(
        TrafficFiles(folder, "bench"),
        ReplaySpec(
            [ViewSpec("v", "v", "user_id", 200)],
            frozenset(["v"]),
            {"v": _policy(ttls[0])},
            [parse_duration(ttl) for ttl in ttls],
            rooms,
            entities=1_000_000,
        ),
        collect if changes else None,
    )


def _policy(ttl: str) -> ResolvedPolicy:
    return PolicyLayers(TTLMap({"v": {"ttl": ttl}})).resolve("v")


# -- how well -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Off:
    """How far a prediction was from the cache: in hit rate, and in loads of each read."""

    hits: float
    loads: float
    real: float


def foretold(path: Path, column: str, limit: int) -> dict[tuple[str, int], Off]:
    """How far the replay of a trace is off what the cache does with it.

    Args:
        path: of the trace.
        column: of its keys.
        limit: requests that are taken of it.

    Returns:
        (ttl, rows in memory) -> how far.
    """
    table = pq.read_table(path).slice(0, limit)
    ids = table[column].to_numpy().astype(np.int64)
    if "time" in table.column_names:
        second = table["time"].to_numpy().astype(np.int64)
        # whole seconds in the trace: spread over each of them
        within = np.arange(len(ids)) - np.searchsorted(second, second)
        count = np.bincount(second)[second]
        at = second * 1_000_000 + within * 1_000_000 // count
    else:
        at = np.arange(len(ids)) * (1_000_000 // _RATE)
    at = at + _BEGIN_US
    with tempfile.TemporaryDirectory(prefix="hotplate-advice-") as folder:
        _write_log(Path(folder), ids, at)
        rooms = list(dict.fromkeys(Room(_ROOM, entries) for _, entries in _TRIED))
        found = _replay(Path(folder), [ttl for ttl, _ in _TRIED], rooms)
    offs = {}
    for ttl, entries in _TRIED:
        room = Room(_ROOM, entries)
        # a bound that holds everything foretells what the largest does
        tried = room if room in found.rooms else rooms[0]
        (one,) = [
            one for one in found.groups["v"].of(tried, "ttl") if one.ttl_ns == parse_duration(ttl)
        ]
        offs[ttl, entries] = _compared(one, found.seconds, ids, at, ttl, entries)
    return offs


def _foretold(path: Path, column: str, limit: int) -> Line:
    offs = foretold(path, column, limit)
    worst = max(abs(off.hits) for off in offs.values())
    loads = max(abs(off.loads) for off in offs.values())
    shown = ", ".join(
        f"{ttl}{'' if entries >= 1 << 40 else f' with {entries:,} rows'}: {off.real:.2%}"
        for (ttl, entries), off in offs.items()
    )
    return Line(
        f"advice: hit rates foretold on {path.stem}, against the cache itself",
        f"{100 * worst:.2f} points off at the most",
        "",
        "<= 2 points",
        worst <= 0.02,
        f"{limit:,} requests, {shown}; loads at most {100 * loads:.2f} % of the reads off",
    )


def _compared(one: Prediction, seconds: float, ids: Ints, at: Ints, ttl: str, entries: int) -> Off:
    clock = FakeClock(now_s=_BEGIN_US / 1e6)
    domain = Domain()
    shape = EntityShape(("user_id",), ("int64_val",))
    columns = [Column("x", ValueType.INT64)]
    identity = ViewIdentity("bench", "v", "v", (("x", "INT64"),), shape)
    view = domain.view(identity, Layout(columns))
    engine = Engine(_Source(view.layout), domain, MemoryBounds(entries, _ROOM, 0.0), clock)
    counters, bound = engine.counters("v", view), Bound(_policy(ttl))
    last_us = _BEGIN_US
    for number, at_us in zip(ids.tolist(), at.tolist(), strict=True):
        clock.advance((at_us - last_us) / 1e6)
        last_us = at_us
        engine.read([Want(view, None, bound, counters, [view.key((number,))])], clock.now_ns())
    real = counters.snapshot()
    loads = (one.source_reads_s * seconds - real.loads) / len(ids)
    return Off(one.hit_rate - real.hit_rate, loads, real.hit_rate)


class _Source:
    """Answers at once."""

    def __init__(self, layout: Layout) -> None:
        self._row = bytes(layout.fixed_end - PREFIX_BYTES)

    def load(self, requests: Sequence[Any]) -> list[list[bytes] | Exception]:
        return [[self._row] * len(request.keys) for request in requests]

    async def load_async(self, requests: Sequence[Any]) -> list[list[bytes] | Exception]:
        return self.load(requests)
