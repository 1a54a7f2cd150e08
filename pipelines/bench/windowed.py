"""Windowed views through Feast against plain views of as many features on the same server.

Seven windows (1 min, 5 min, 10 min, 1 h, 24 h, 7 d, 30 d) with six aggregates each: 42 values. The
plain view has 42 features of the same types. Neither is cached: all of it is what a miss takes.
"""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

import numpy as np
import redis

from pipelines.bench.line import Line
from pipelines.bench.measure import Pair, Spread, compare, time_calls
from pipelines.bench.windowed_cache import cache_lines
from pipelines.bench.windowed_shop import WindowedShop, frame_of, open_windowed_shop
from pipelines.bench.windows_offline import offline_lines

__all__ = ["windowed"]

_CARDS = 50
_EVENTS = 100
_MERCHANT, _LARGE = 1_000, 2_000
_MERCHANT_MS = 2 * 3_600_000
_A_SECOND = 10
_LEAST_BATCH = 500
_PUSHED_TO = 5_000


def windowed(rounds: int, *, is_short: bool = False) -> list[Line]:
    """Windows: reads against plain rows, ingestion, bytes, past moments, the cache."""
    scale = 20 if is_short else 1
    with open_windowed_shop() as shop:
        shop.write_plain(range(_CARDS))
        for card in range(_CARDS):
            shop.fill("activity", card, _EVENTS)
        shop.fill("activity", _LARGE, 10_000)
        shop.fold("activity", _LARGE)
        shop.fill("merchant", _MERCHANT, _A_SECOND * _MERCHANT_MS // 1_000 // scale, _MERCHANT_MS)
        shop.fold("merchant", _MERCHANT)
        lines = [
            *_reads(shop, rounds, scale),
            *_merchant(shop, rounds, scale),
            *_ingestion(shop, rounds, scale),
            *_sizes(shop),
        ]
    return [*lines, *cache_lines(is_short=is_short), *offline_lines(rounds, is_short=is_short)]


def _reads(shop: WindowedShop, rounds: int, scale: int) -> list[Line]:
    lines = []
    for count, calls, most in ((1, 2_000, 1.5), (_CARDS, 200, 0.6)):
        cards = {"card_id": list(range(count))}
        counts = (max(20, calls // scale), max(20, calls // scale))
        for name, store, aim in (("Hotplate", shop.hot, most), ("Feast alone", shop.bare, None)):
            pair = compare(
                lambda c=cards: shop.hot.get_online_features(shop.windowed, c).to_dict(),  # type: ignore[misc]
                lambda c=cards, s=store: s.get_online_features(shop.plain, c).to_dict(),  # type: ignore[misc]
                counts,
                rounds,
            )
            what = f"{count} row{'s' * (count > 1)} of windows, {_EVENTS} events, 42 values"
            lines.append(_times(f"{what}, against plain rows through {name}", pair, aim))
    return lines


def _times(what: str, pair: Pair, at_most: float | None) -> Line:
    return Line(
        what,
        f"{pair.p50.median:.2f} of the time",
        f"{pair.p50.low:.2f} to {pair.p50.high:.2f}",
        "" if at_most is None else f"<= {at_most:g}",
        None if at_most is None else pair.p50.median <= at_most,
        f"{pair.first_us:,.0f} us against {pair.second_us:,.0f} us",
    )


def _merchant(shop: WindowedShop, rounds: int, scale: int) -> list[Line]:
    one = {"card_id": [_MERCHANT]}
    medians = [
        1e6
        * statistics.median(
            time_calls(
                lambda: shop.hot.get_online_features(shop.merchant, one).to_dict(),
                max(20, 500 // scale),
            )
        )
        for _ in range(rounds)
    ]
    spread = Spread.of(medians)
    return [
        Line(
            f"read of a merchant with {_A_SECOND} events/s, hot profile",
            f"{spread.median:,.0f} us",
            f"{spread.low:,.0f} to {spread.high:,.0f}",
            "< 500 us",
            spread.median < 500,
            f"{_MERCHANT_MS // 3_600_000} h of events, compacted",
        )
    ]


def _ingestion(shop: WindowedShop, rounds: int, scale: int) -> list[Line]:
    lines = []
    cache = shop.cache
    for count in (_LEAST_BATCH, 10_000):
        now_ms = time.time_ns() // 1_000_000
        cards = np.random.default_rng(1).integers(10_000, 10_000 + _PUSHED_TO, count)

        frame = frame_of(cards, [now_ms] * count, count)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pair = compare(
                lambda f=frame: shop.hot.push("activity_push", f),  # type: ignore[misc]
                lambda f=frame: cache.ingest("activity_events", f),  # type: ignore[misc]
                (max(2, 4_000 // count // scale), max(4, 40_000 // count // scale)),
                rounds,
            )
        each_us = pair.second_us / count
        lines.append(
            Line(
                f"ingest, {count:,} events at once, an event",
                f"{each_us:.1f} us",
                "",
                "<= 15 us",
                each_us <= 15,
                f"store.push: {pair.first_us / count:.1f} us, {pair.p50.median:.1f} x",
            )
        )
    return lines


def _sizes(shop: WindowedShop) -> list[Line]:
    lines = []
    client: Any = redis.Redis(port=shop.server.port)
    for card, count, most in ((0, _EVENTS, 6_000), (_LARGE, 10_000, 45_000)):
        key = shop.key("activity", card)
        size = client.strlen(key)
        lines.append(
            Line(
                f"state of an entity with {count:,} events over 30 days",
                f"{size:,} bytes",
                "",
                f"<= {most:,} bytes",
                size <= most,
                f"MEMORY USAGE {client.memory_usage(key):,} bytes",
            )
        )
    client.close()
    return lines
