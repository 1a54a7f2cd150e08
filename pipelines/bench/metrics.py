"""What it costs to be looked at: metrics written once a second, and `hotplate top`."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from feast import FeatureStore
from rich.console import Console

import hotplate
from hotplate.cli_metrics import shown
from hotplate.stats import CacheStats
from hotplate.telemetry.catalogue import Measured, measure
from hotplate.telemetry.files import ProcessFiles
from hotplate.telemetry.publisher import Publisher
from hotplate.telemetry.reading import FolderReader
from hotplate.telemetry.summary import summarize
from pipelines.bench.line import Line
from pipelines.bench.measure import Spread
from pipelines.bench.shop import Shop, open_shop

__all__ = ["metrics"]

_GROUPS = 20
_PROCESSES = 4
_TOP_EVERY_S = 2.0


def metrics(rounds: int, *, is_short: bool) -> list[Line]:
    """writing metrics, and watching them"""
    with (
        TemporaryDirectory(prefix="hotplate-bench-") as folder,
        open_shop(100 if is_short else 1_000) as shop,
    ):
        block_s = 0.05 if is_short else 2.0
        lines = [_hits(shop, Path(folder) / "shop", rounds, block_s)]
        lines += _sampled(shop, Path(folder), rounds, block_s)
        stats = hotplate.of(shop.hot).stats()
        lines.append(_top(Path(folder) / "many", stats, 3 if is_short else 10 * rounds))
    return lines


def _hits(shop: Shop, folder: Path, rounds: int, block_s: float) -> Line:
    """Hits while metrics are written once a second against hits while none are.

    The mean of processor time: what a thread takes now and then, no single hit shows.
    """
    hot = hotplate.of(shop.hot)
    publisher = Publisher(folder, 1.0, hot.runtime.samples)

    hit = partial(_hit, shop.hot, shop.features)
    ratios, without_us, took_us = [], [], []
    for _ in range(rounds):
        alone_s = _mean_s(hit, block_s)
        publisher.start()
        beside_s = _mean_s(hit, block_s)
        began = time.thread_time()
        publisher.write()
        took_us.append((time.thread_time() - began) * 1e6)
        publisher.close()
        ratios.append(beside_s / alone_s)
        without_us.append(alone_s * 1e6)
    spread = Spread.of(ratios)
    return Line(
        "hit of 1 row while metrics are written, processor time",
        f"{spread.median:.3f} of one without",
        f"{spread.low:.3f} to {spread.high:.3f}",
        "< 1.05",
        spread.median < 1.05,
        f"of {statistics.median(without_us):.1f} us; one write of 4 groups, each second: "
        f"{statistics.median(took_us):,.0f} us",
    )


def _sampled(shop: Shop, folder: Path, rounds: int, block_s: float) -> list[Line]:
    """Hits of which some are logged, or compared with the source, against hits of which none is."""
    lines = []
    for what, aim, settings in (
        (
            "one in 100 of which is logged",
            1.02,
            {"traffic": {"folder": str(folder / "traffic"), "sample": "1%"}},
        ),
        ("one in 1,000 of which is compared", 1.02, {"shadow": {"share": "0.1%"}}),
    ):
        with open_shop(shop.entities, **settings) as other:
            alone_s: list[float] = []
            beside_s: list[float] = []
            for _ in range(rounds):
                for store, found in ((shop.hot, alone_s), (other.hot, beside_s)):
                    found.append(_mean_s(partial(_hit, store, shop.features), block_s))
            hotplate.of(other.hot).runtime.close()
        ratios = [b / a for a, b in zip(alone_s, beside_s, strict=True)]
        spread = Spread.of(ratios)
        lines.append(
            Line(
                f"hit of 1 row, {what}, processor time",
                f"{spread.median:.3f} of one without",
                f"{spread.low:.3f} to {spread.high:.3f}",
                f"< {aim:g}",
                spread.median < aim,
                f"of {statistics.median(alone_s) * 1e6:.1f} us",
            )
        )
    return lines


def _hit(store: FeatureStore, features: list[str]) -> None:
    store.get_online_features(features, [{"user_id": 1}]).to_dict()


def _mean_s(call: Callable[[], None], seconds: float) -> float:
    """Processor time of a call, that of the threads beside it included: other programs of the
    machine change it little."""
    call()
    began, began_cpu, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() < began + seconds:
        for _ in range(100):
            call()
        count += 100
    return (time.process_time() - began_cpu) / count


def _top(folder: Path, stats: CacheStats, looks: int) -> Line:
    """One look of `hotplate top`, at as many processes and groups as a host may have."""
    one = next(iter(stats.groups.values()))
    many = replace(stats, groups={f"group_{number}": one for number in range(_GROUPS)})
    for number in range(_PROCESSES):
        files = ProcessFiles(folder, 1_000 + number)
        files.write(measure(Measured("bench", many)), {})
    console = Console(file=io.StringIO(), width=160, force_terminal=True)
    reader = FolderReader(folder)
    before, spent_s = reader.read(), []
    for _ in range(looks):
        began = time.process_time()
        now = reader.read()
        console.print(shown(summarize(now, before)))
        spent_s.append(time.process_time() - began)
        before = now
    spread = Spread.of([100 * seconds / _TOP_EVERY_S for seconds in spent_s])
    return Line(
        f"hotplate top, {_PROCESSES} processes of {_GROUPS} groups, share of a core",
        f"{spread.median:.2f} %",
        f"{spread.low:.2f} to {spread.high:.2f}",
        "< 1 %",
        spread.median < 1,
        f"{statistics.median(spent_s) * 1e3:.1f} ms each {_TOP_EVERY_S:g} s",
    )
