"""What is measured: each case returns rows for the table."""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hotplate.stats import AGE_SAMPLE, HitCounter
from hotplate.tiers.memory import MemoryBounds, MemoryTier
from pipelines.bench.line import Line
from pipelines.bench.measure import Pair, Spread, compare, percentile, time_calls
from pipelines.bench.shop import VIEWS, Shop

__all__ = ["CASES", "Line", "traces"]


def _ratio(what: str, pair: Pair, at_least: float, p99: float | None = None) -> list[Line]:
    detail = f"{pair.first_us:,.0f} us against {pair.second_us:,.1f} us"
    lines = [_line(f"{what}, p50", pair.p50, at_least, detail)]
    if p99 is not None:
        lines.append(_line(f"{what}, p99", pair.p99, p99, ""))
    return lines


def _line(what: str, spread: Spread, at_least: float, detail: str) -> Line:
    shown = f"{spread.low:.1f} to {spread.high:.1f}"
    is_met = spread.median >= at_least
    return Line(what, f"{spread.median:.1f} x faster", shown, f">= {at_least:g} x", is_met, detail)


def _rows(count: int, start: int = 0) -> list[dict[str, int]]:
    return [{"user_id": start + i} for i in range(count)]


def warm_dict(shop: Shop, rounds: int) -> list[Line]:
    """`get_online_features(...).to_dict()` where everything is in memory."""
    lines = []
    for count, target, p99 in ((1, 60, 40), (50, 100, None)):
        rows = _rows(count)
        for kind, features in (("40 floats", shop.features), ("40 of 5 types", shop.mixed)):
            pair = compare(
                lambda f=features, r=rows: shop.bare.get_online_features(f, r).to_dict(),  # type: ignore[misc]
                lambda f=features, r=rows: shop.hot.get_online_features(f, r).to_dict(),  # type: ignore[misc]
                (200, 4_000) if count == 1 else (20, 1_000),
                rounds,
            )
            what = f"warm to_dict, {count} row{'s' * (count > 1)}, {kind}"
            lines += _ratio(what, pair, target, p99 if kind == "40 floats" else None)
    return lines


def warm_proto(shop: Shop, rounds: int) -> list[Line]:
    """`.proto`, what the feature server turns into JSON."""
    lines = []
    for count in (1, 50):
        rows = _rows(count)
        pair = compare(
            lambda r=rows: shop.bare.get_online_features(shop.features, r).proto,  # type: ignore[misc]
            lambda r=rows: shop.hot.get_online_features(shop.features, r).proto,  # type: ignore[misc]
            (200, 2_000) if count == 1 else (20, 300),
            rounds,
        )
        lines += _ratio(f"warm .proto, {count} row{'s' * (count > 1)}", pair, 15)
    return lines


def misses(shop: Shop, rounds: int) -> list[Line]:
    """A request that finds nothing in memory, against Feast alone."""
    lines = []
    runtime = shop.cache.runtime
    for count in (1, 50):
        starts = itertools.cycle(range(0, shop.entities - count, count))
        pair = compare(
            lambda n=count, s=starts: shop.bare.get_online_features(  # type: ignore[misc]
                shop.features, _rows(n, next(s))
            ).to_dict(),
            lambda n=count, s=starts: shop.hot.get_online_features(  # type: ignore[misc]
                shop.features, _rows(n, next(s))
            ).to_dict(),
            (200, 200) if count == 1 else (20, 20),
            rounds,
            before_second=runtime.forget_all,
        )
        cost = Spread(1 / pair.p50.median, 1 / pair.p50.high, 1 / pair.p50.low)
        lines.append(
            Line(
                f"miss of everything, {count} row{'s' * (count > 1)}, p50",
                f"{cost.median:.2f} of Feast's time",
                f"{cost.low:.2f} to {cost.high:.2f}",
                "<= 1.0",
                cost.median <= 1.0,
                f"{pair.first_us:,.0f} us against {pair.second_us:,.0f} us",
            )
        )
    return lines


def asynchronous(shop: Shop, rounds: int) -> list[Line]:
    """The async call against the sync one, and what the event loop itself costs."""
    rows = _rows(1)

    def sync() -> object:
        return shop.hot.get_online_features(shop.features, rows).to_dict()

    async def one() -> object:
        response = await shop.hot.get_online_features_async(shop.features, rows)
        return response.to_dict()

    async def nothing() -> object:
        return None

    async def block(call: Callable[[], Any], count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            await call()
            seconds.append(time.perf_counter() - began)
        return seconds

    async def on_a_loop() -> tuple[list[float], list[float]]:
        await block(one, 50)
        return await block(one, 4_000), await block(lambda: asyncio.ensure_future(nothing()), 4_000)

    extra, loop_cost = [], []
    for _ in range(rounds):
        awaited, empty = asyncio.run(on_a_loop())
        extra.append((percentile(awaited, 0.5) - percentile(time_calls(sync, 4_000), 0.5)) * 1e6)
        loop_cost.append(percentile(empty, 0.5) * 1e6)
    more, cost = Spread.of(extra), Spread.of(loop_cost)
    return [
        Line(
            "warm async to_dict over sync, 1 row, p50",
            f"{more.median:+.1f} us",
            f"{more.low:+.1f} to {more.high:+.1f}",
            f"<= {cost.median:.1f} us (an empty task)",
            more.median <= cost.median,
            "",
        )
    ]


def matrix(shop: Shop, rounds: int) -> list[Line]:
    """10,000 entities x 40 features as a float32 matrix, against Feast's `to_df`."""
    count = min(10_000, shop.entities)
    entities = {"user_id": list(range(count))}
    as_array = {"user_id": np.arange(count)}
    reader = shop.cache.reader(shop.features)
    reader.matrix(as_array)
    ratios, ours, theirs = [], [], []
    for _ in range(max(2, rounds // 3)):
        began = time.perf_counter()
        shop.bare.get_online_features(shop.features, entities).to_df()
        bare_s = time.perf_counter() - began
        gc.collect()
        hot_s = statistics.median(time_calls(lambda: reader.matrix(as_array), 20))
        ratios.append(bare_s / hot_s)
        ours.append(hot_s * 1e6)
        theirs.append(bare_s * 1e6)
    pair = Pair(
        Spread.of(ratios), Spread.of(ratios), statistics.median(theirs), statistics.median(ours)
    )
    return _ratio(f"warm matrix, {count:,} x 40, against to_df", pair, 300)


def memory_of_a_row(shop: Shop, rounds: int) -> list[Line]:
    """What a row of ten floats costs beyond its key, and one invalidation among a million."""
    cache, runtime = shop.cache, shop.cache.runtime
    runtime.forget_all()
    shop.hot.get_online_features(shop.features, _rows(1)).to_dict()
    (view,) = runtime.domain.views_named(runtime.project, "v0")
    held = runtime.engine.memory.peek(view.key((0,)))
    assert held is not None
    keys = [view.key((i,)) for i in range(1_000_000)]
    gc.collect()
    before = _resident_bytes()
    for start in range(0, len(keys), 10_000):
        items = [
            (key, bytes(bytearray(held)), runtime.engine.memory.version(key))
            for key in keys[start : start + 10_000]
        ]
        runtime.engine.memory.fill(items, lambda token: True)
        del items
    gc.collect()
    a_row = (_resident_bytes() - before) / len(keys)
    seconds: list[float] = []
    for user in range(0, 1_000_000, 50):
        began = time.perf_counter()
        cache.invalidate("v0", {"user_id": user})
        seconds.append(time.perf_counter() - began)
    p50_us, p99_us = (percentile(seconds, share) * 1e6 for share in (0.5, 0.99))
    runtime.forget_all()
    return [
        Line(
            "bytes a row of 10 floats beyond its key",
            f"{a_row:.0f}",
            "",
            "<= 300",
            a_row <= 300,
            "resident memory of 1,000,000 rows",
        ),
        Line(
            "invalidate one key of 1,000,000, p50",
            f"{p50_us:.1f} us",
            f"p99 {p99_us:.1f}",
            "<= 20 us",
            p50_us <= 20,
            "",
        ),
    ]


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def counting(shop: Shop, rounds: int) -> list[Line]:
    """What counting costs a hit: the statements that count, timed by themselves."""
    rows = _rows(1)
    hit_s = percentile(
        time_calls(lambda: shop.hot.get_online_features(shop.features, rows).to_dict(), 4_000), 0.5
    )
    hits, due, count, repeats = HitCounter(), 0, 1, 200_000

    began = time.perf_counter()
    for _ in range(repeats):
        pass
    empty_s = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(repeats):
        hits.rows += count
        hits.requests += 1
        if hits.requests >= due:
            due = hits.requests + AGE_SAMPLE
    counted_s = (time.perf_counter() - began - empty_s) / repeats
    (plan,) = [p for p in shop.cache.runtime.plans if len(p.groups) == VIEWS][:1]
    found = plan.hit([[0]], 1, shop.cache.runtime.clock.now_ns())
    assert found is not None
    aged_s = percentile(time_calls(lambda: plan._record_ages(found, 0), 2_000), 0.5) / AGE_SAMPLE
    share = (counted_s + aged_s) / hit_s * 100
    return [
        Line(
            "counting, share of a hit of 1 row",
            f"{share:.1f} %",
            "",
            "< 5 %",
            share < 5,
            f"{(counted_s + aged_s) * 1e9:.0f} ns of {hit_s * 1e6:.1f} us",
        )
    ]


def traces(folder: Path, limit: int | None) -> list[Line]:
    """Hit rates on two recorded access traces against an exact LRU of the same capacity."""
    import pyarrow.parquet as pq

    lines = []
    for name, column, known in (
        (
            "twitter_cluster52_2m",
            "key_id",
            {
                1_000: 1_275_093,
                5_000: 1_462_626,
                20_000: 1_617_663,
                50_000: 1_689_177,
                100_000: 1_725_833,
            },
        ),
        ("cache2k_orm_busy", "key", {1_000: None, 5_000: None, 20_000: None}),
    ):
        path = folder / f"{name}.parquet"
        if not path.is_file():
            lines.append(Line(f"hits on {name}", "skipped", "", "", None, f"no {path}"))
            continue
        keys = pq.read_table(path)[column].to_pylist()[:limit]
        for capacity, published in known.items():
            ours = _replay(keys, capacity)
            exact = published if published is not None and limit is None else _exact(keys, capacity)
            lines.append(
                Line(
                    f"hits on {name}, capacity {capacity:,}",
                    f"{ours:,} ({ours / len(keys):.2%})",
                    "",
                    f"exact LRU {exact:,}",
                    ours == exact,
                    f"{len(keys):,} requests",
                )
            )
    return lines


def _replay(keys: list[int], capacity: int) -> int:
    memory = MemoryTier(MemoryBounds(capacity, 1 << 60, 0.0))
    row = bytes(24)
    hits = 0
    for number in keys:
        key = (1, number)
        if memory.get(key) is None:
            memory.fill([(key, row, memory.version(key))], lambda token: True)
        else:
            hits += 1
    return hits


def _exact(keys: list[int], capacity: int) -> int:
    lru: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for key in keys:
        if key in lru:
            hits += 1
            lru.move_to_end(key)
        else:
            lru[key] = None
            if len(lru) > capacity:
                lru.popitem(last=False)
    return hits


CASES: tuple[Callable[[Shop, int], list[Line]], ...] = (
    warm_dict,
    warm_proto,
    misses,
    asynchronous,
    matrix,
    counting,
    memory_of_a_row,
)
