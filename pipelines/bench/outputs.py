"""What the cache of model outputs costs, and what it saves.

A batch of 10,000 rows of 40 floats; a model that costs nothing, so that all that is measured is the
cache; and one row from memory against XGBoost on the same row, where XGBoost is installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hotplate.outputs import InputSchema, OutputCache, OutputPolicy
from hotplate.outputs.batch import batch_of
from hotplate.outputs.conditions import Asked
from hotplate.outputs.rules import RuleSet
from hotplate.tiers.blobs import BlobTier
from hotplate.tiers.outputs import OutputTier
from pipelines.bench.line import Line
from pipelines.bench.measure import Spread, compare

__all__ = ["outputs"]

_ROWS, _WIDTH = 10_000, 40
_TREES, _DEPTH = 200, 6
_ONE_ROW = 300
_LARGE, _LARGE_READS = 14_000_000 // 4, 15
_RULES = [
    {"name": "large", "when": {"field": "f0", "above": 2}},
    {
        "name": "odd",
        "when": {"all": [{"field": "f1", "below": -1}, {"not": {"field": "f2", "is": 0}}]},
    },
    {"name": "unsure", "when": {"score": {"between": [0.45, 0.55]}}},
    {"name": "night", "when": {"hours": [2, 2]}},
    {"name": "unknown", "when": {"field": "f3", "missing": True}},
]


def outputs(rounds: int, *, is_short: bool = False) -> list[Line]:
    """Keys, rules, hits, misses and invalidations of model outputs."""
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(_ROWS, _WIDTH))
    schema = InputSchema.of(*(f"f{number}" for number in range(_WIDTH)))
    answers = draw.random(_ROWS).astype(np.float32)
    batch = batch_of(rows, schema.names)
    rules, asked = RuleSet.parse(_RULES), Asked(batch, answers[:, None].astype(np.float64), 0)
    cache = OutputCache("bench", "1", schema, OutputPolicy(shadow="0%"))

    def miss() -> None:
        cache.clear()
        cache.score(rows, lambda some: answers[: len(some)])

    times = 3 if is_short else 5
    keys = _best(lambda: schema.keys(batch), rounds, times)
    judged = _best(lambda: rules.judge(asked), rounds, times)
    missed = _best(miss, rounds, times)
    found = _best(lambda: cache.score(rows, answers.__getitem__), rounds, times)
    return [
        _line("keys of 10,000 rows of 40 floats", keys, 1e3, "ms", 10),
        _line("five rules for them", judged, 1e3, "ms", 5),
        _line("a row that misses, in a batch, model apart", missed, 1e6 / _ROWS, "us", 2),
        _line("a row that hits, in a batch", found, 1e6 / _ROWS, "us", None),
        _one_row_missed(rows, schema, rounds),
        _large(rounds),
        *_against_xgboost(rows, schema, rounds),
        _invalidation(100_000 if is_short else 1_000_000, rounds),
    ]


def _line(what: str, taken: Spread, scale: float, unit: str, most: float | None) -> Line:
    value = taken.median * scale
    return Line(
        f"outputs: {what}",
        f"{value:,.2f} {unit}",
        f"{taken.low * scale:,.2f} to {taken.high * scale:,.2f}",
        "" if most is None else f"<= {most} {unit}",
        None if most is None else value <= most,
        "",
    )


def _best(work: Callable[[], Any], rounds: int, times: int) -> Spread:
    """Of each round the fastest of some tries."""
    found = []
    for _ in range(rounds):
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
        found.append(min(taken))
    return Spread.of(found)


def _one_row_missed(rows: Any, schema: InputSchema, rounds: int) -> Line:
    """Rows one by one, each for the first time, with a model that costs nothing."""
    cache = OutputCache("bench", "1", schema, OutputPolicy(shadow="0%", rules=_RULES))
    answer = np.zeros(1, np.float32)
    ones = [rows[at : at + 1] for at in range(_ONE_ROW)]
    cache.score(ones[0], lambda one: answer)

    def miss() -> None:
        cache.clear()
        for one in ones:
            cache.score(one, lambda one: answer)

    taken = _best(miss, rounds, 3)
    return _line("one row that misses, five rules, model apart", taken, 1e6 / _ONE_ROW, "us", None)


def _large(rounds: int) -> Line:
    """An output of 14 MB, read whole from the blob tier, against a map that is open already."""
    with TemporaryDirectory(prefix="hotplate-outputs-") as folder:
        plain = Path(folder, "plain")
        array = np.random.default_rng(0).random(_LARGE, dtype=np.float32)
        array.tofile(plain)
        mapped = np.memmap(plain, np.float32, "r")
        blobs = BlobTier(Path(folder, "blobs"))
        cache = OutputCache(
            "bench", "1", InputSchema.of("x"), OutputPolicy(shadow="0%"), blobs=blobs
        )
        one = np.ones((1, 1))
        for _ in range(2):
            scored = cache.score(one, lambda _: array[None])
        assert scored.from_cache.all(), blobs.stats()

        def fails(_: Any) -> Any:
            raise RuntimeError("it was kept, and is not there")

        pair = compare(
            lambda: cache.score(one, fails).values.sum(),
            lambda: mapped.sum(),
            (_LARGE_READS, _LARGE_READS),
            rounds,
        )
        blobs.close()
    return Line(
        "outputs: one of 14 MB from the blob tier, and sum, p50",
        f"{pair.p50.median:.2f} of a bare memory map",
        f"{pair.p50.low:.2f} to {pair.p50.high:.2f}",
        "<= 1.2",
        pair.p50.median <= 1.2,
        f"{pair.first_us / 1e3:,.2f} ms against {pair.second_us / 1e3:,.2f} ms",
    )


def _against_xgboost(rows: Any, schema: InputSchema, rounds: int) -> list[Line]:
    try:
        import xgboost
    except ImportError:
        return []
    labels = rows[:, 0] + rows[:, 1] > 0
    settings = {"max_depth": _DEPTH, "objective": "binary:logistic"}
    model = xgboost.train(settings, xgboost.DMatrix(rows, labels), _TREES)
    lines = []
    for what, rules in (("", ()), (", five rules", _RULES)):
        cache = OutputCache("bench", "1", schema, OutputPolicy(shadow="0%", rules=rules))
        one = _kept(cache, rows, model.inplace_predict)
        pair = compare(
            partial(model.inplace_predict, one),
            partial(cache.score, one, model.inplace_predict),
            (_ONE_ROW, _ONE_ROW),
            rounds,
        )
        lines.append(
            Line(
                f"outputs: one row from memory against inplace_predict{what}",
                f"{pair.p50.median:.1f} x faster",
                f"{pair.p50.low:.1f} to {pair.p50.high:.1f}",
                ">= 20 x",
                pair.p50.median >= 20,
                f"{pair.first_us:,.0f} us against {pair.second_us:,.1f} us",
            )
        )
    return lines


def _kept(cache: OutputCache, rows: Any, predict: Callable[[Any], Any]) -> Any:
    """A row that no rule forbids to keep, and that is kept."""
    for at in range(len(rows)):
        one = rows[at : at + 1]
        cache.score(one, predict)
        if cache.score(one, predict).from_cache.all():
            return one
    raise RuntimeError("the rules forbid every row")


def _invalidation(count: int, rounds: int) -> Line:
    """An entity on which one of so many outputs hangs."""
    tier = OutputTier(2 * count, 1 << 40)
    versions = {number: tier.versions((number,)) for number in range(count)}
    tier.put(
        (b"%040d" % number, b"0000", 1 << 62, (number,), False, versions[number])
        for number in range(count)
    )
    taken = []
    for turn in range(rounds):
        some = range(turn * 100, turn * 100 + 100)
        began = time.perf_counter()
        for number in some:
            tier.forget_keys((number,))
        taken.append((time.perf_counter() - began) / len(some))
    assert tier.invalidated == 100 * rounds
    what = f"invalidate an entity, {count:,} kept"
    return _line(what, Spread.of(taken), 1e6, "us", 50)
