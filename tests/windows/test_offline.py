"""Windows of past moments equal what the definition says, bit for bit."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pytest

from hotplate.windows.errors import WindowSpecError
from hotplate.windows.events import Events, accept
from hotplate.windows.offline import Moments, outputs_at
from hotplate.windows.spec import (
    DAY_MS,
    MAX_VALUE,
    Aggregate,
    Column,
    EventSpec,
    Window,
    WindowSpec,
)

from . import oracle
from .histories import LOG, Stream, as_events, moments, random_spec, random_stream

_SEEDS = int(os.environ.get("HOTPLATE_WINDOW_SEEDS", "25"))


def same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal, a null being equal to a null, and no zero having lost its sign."""
    np.testing.assert_array_equal(found, expected)
    some = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[some]), np.signbit(expected[some]))


def recomputed(spec: WindowSpec, stream: Stream, rows: Moments) -> np.ndarray:
    """What the definition says, one row after another."""
    events = {
        key: oracle.kept(spec.event, as_events(stream, key)) for key in set(rows.keys.tolist())
    }
    return np.array(
        [
            oracle.answer(spec, events[key], t)
            for key, t in zip(rows.keys.tolist(), rows.t_ms.tolist(), strict=True)
        ]
    )


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_equals_the_recomputation_bit_for_bit(seed: int) -> None:
    """Late, repeated, tied, future and null events, hops, delays, any partition size."""
    rng = np.random.default_rng(seed)
    keys = int(rng.choice([1, 3, 20]))
    largest = int(rng.choice([100, 1_000_000, MAX_VALUE]))
    stream = random_stream(rng, int(rng.choice([1, 30, 400])), keys, largest, rng.choice([0, 0.2]))
    rows, spec = moments(rng, stream, 60, keys), random_spec(rng)
    found = outputs_at(
        spec, stream.events, stream.keys, rows, max_events=int(rng.choice([1, 50, 10_000]))
    )
    same_bits(found, recomputed(spec, stream, rows))


def test_many_events_in_one_window_equal_the_recomputation() -> None:
    """Ranges that are longer than the blocks of the tables, of one entity, with limbs."""
    rng = np.random.default_rng(5)
    stream = random_stream(rng, 1_500, 1, MAX_VALUE)
    window = Window(50_000)
    spec = WindowSpec(
        LOG,
        tuple(
            Aggregate(f"{function}_{column}", function, column, window)
            for column, functions in {
                "amount": ("sum", "mean", "min", "max", "std", "last", "first"),
                "merchant": ("count", "approx_count_distinct"),
            }.items()
            for function in functions
        ),
    )
    rows = Moments(np.zeros(8, np.int64), np.linspace(9_000, 20_000, 8).astype(np.int64))
    found = outputs_at(spec, stream.events, stream.keys, rows)
    same_bits(found, recomputed(spec, stream, rows))


def test_an_event_counts_from_the_moment_after_it_and_no_longer_than_the_window() -> None:
    """The start is inside, the end is not, and what arrives later is not there yet."""
    spec = WindowSpec(LOG, (Aggregate("n", "count", "", Window(10)),))
    events = Events(*(np.array([v]) for v in (1_000, 1, 1_004)), np.array([[5, 5, 5]]))
    t_ms = np.array([1_000, 1_001, 1_003, 1_004, 1_010, 1_011])
    found = outputs_at(spec, events, np.array([0]), Moments(np.zeros(6, np.int64), t_ms))
    assert found[:, 0].tolist() == [0, 0, 0, 1, 1, 0]


def test_no_events_are_count_0_sum_0_and_null() -> None:
    """Neither a stream without events nor an entity without events is special."""
    spec = random_spec(np.random.default_rng(0))
    nothing = Events(*(np.zeros(0, np.int64) for _ in range(3)), np.zeros((0, 3), np.int64))
    rows = Moments(np.array([0, 7, 7]), np.array([0, 10, 1 << 45]))
    found = outputs_at(spec, nothing, np.zeros(0, np.int64), rows)
    same_bits(found, np.array([oracle.answer(spec, [], 5)] * 3))


def test_no_rows_are_no_rows() -> None:
    """An empty question has an empty answer."""
    stream = random_stream(np.random.default_rng(1), 20, 2)
    spec = random_spec(np.random.default_rng(1))
    found = outputs_at(
        spec, stream.events, stream.keys, Moments(np.zeros(0, np.int64), np.zeros(0, np.int64))
    )
    assert found.shape == (0, len(spec.aggregates))


def test_moments_far_apart_do_not_overflow() -> None:
    """Many entities over the whole range of timestamps fit no 64-bit number, and need not."""
    rng = np.random.default_rng(3)
    count = 200_000
    ts = rng.integers(0, 1 << 46, count)
    events = Events(ts, rng.integers(0, 9, count), ts, rng.integers(1, 9, (count, 3)))
    keys = np.arange(count)
    spec = WindowSpec(LOG, (Aggregate("sum", "sum", "items", Window(100)),))
    found = outputs_at(spec, events, keys, Moments(keys, ts + 100), max_events=1 << 20)
    same_bits(found[:, 0], events.values[:, 1].astype(float))


def test_progress_counts_every_row_once() -> None:
    """Also rows of entities without events."""
    rng = np.random.default_rng(2)
    stream = random_stream(rng, 300, 9)
    rows, seen = moments(rng, stream, 500, 9), []
    outputs_at(
        random_spec(rng), stream.events, stream.keys, rows, max_events=30, progress=seen.append
    )
    assert sum(seen) == 500
    assert len(seen) > 3


@pytest.mark.parametrize(
    ("keys", "rows", "expected"),
    [
        ([0], ([0], [1]), "2 events have 1 keys"),
        ([0, -1], ([0], [1]), "keys are not all whole numbers"),
        ([0, 0], ([0, 1], [1]), "2 keys have 1 moments"),
        ([0, 0], ([0], [1 << 60]), "not in whole milliseconds"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(keys: list, rows: tuple, expected: str) -> None:
    """The message says which."""
    spec = WindowSpec(LOG, (Aggregate("n", "count", "", Window(10)),))
    events = Events(*(np.array([1, 2]) for _ in range(3)), np.zeros((2, 3), np.int64))
    with pytest.raises(WindowSpecError, match=expected):
        outputs_at(spec, events, np.array(keys), Moments(*map(np.array, rows)))


def test_rows_pass_ingestion_and_come_out_as_recomputed() -> None:
    """From raw columns through `accept`, which drops what ingestion drops."""
    log = EventSpec("id", (Column.floats("amount"),))
    ts = np.array(["2026-01-01T00:00:00", "2026-01-01T00:00:01"] * 2, "datetime64[ns]")
    late = np.array([0, 3_600_000, 3_600_001, -5_001], "timedelta64[ms]")
    accepted = accept(log, ts, ["a", "b", "c", "d"], ts + late, {"amount": [1.005, 2.0, 4.0, 8.0]})
    assert accepted.dropped == {"late": 1, "future": 1}
    spec = WindowSpec(log, (Aggregate("sum", "sum", "amount", Window(DAY_MS)),))
    t_ms = accepted.events.ts[:1] + 2 * 3_600_000
    found = outputs_at(
        spec, accepted.events, np.zeros(2, np.int64), Moments(np.zeros(1, int), t_ms)
    )
    assert found.tolist() == [[3.0]]


@pytest.mark.parametrize("spread", [300, 1 << 16, 1 << 20])
def test_codes_need_not_be_small(spread: int) -> None:
    """Entities keep their events when their codes need more than 16 bits."""
    rng = np.random.default_rng(4)
    stream, spec = random_stream(rng, 200, 5), random_spec(rng)
    rows = moments(rng, stream, 50, 5)
    plain = outputs_at(spec, stream.events, stream.keys, rows)
    far = outputs_at(
        spec, stream.events, stream.keys * spread, Moments(rows.keys * spread, rows.t_ms)
    )
    same_bits(far, plain)


def test_equals_rolling_windows_of_pandas() -> None:
    """A computation of somebody else's, where the two mean the same: exact windows, no delay."""
    rng = np.random.default_rng(9)
    count, span = 5_000, 40_000
    ts = 1_000_000 + rng.permutation(500_000)[:count]  # pandas counts ties in
    keys, cents = rng.integers(0, 7, count), rng.integers(-50_000, 50_000, count)
    log = EventSpec("id", (Column.floats("amount"),))
    accepted = accept(log, ts, np.arange(count), ts, {"amount": cents / 100})
    functions = ("sum", "mean", "min", "max", "std", "count")
    spec = WindowSpec(
        log, tuple(Aggregate(name, name, "amount", Window(span)) for name in functions)
    )
    found = outputs_at(spec, accepted.events, keys, Moments(keys, ts))
    frame = pd.DataFrame({"key": keys, "amount": cents / 100, "row": np.arange(count)})
    frame.index = pd.to_datetime(ts, unit="ms")
    rolling = frame.sort_index().groupby("key").rolling(f"{span}ms", closed="left")
    expected = rolling["amount"].agg(list(functions)).reset_index(drop=True)
    order = frame.sort_index().sort_values("key", kind="stable").row.to_numpy()
    expected["sum"] = expected["sum"].fillna(0)
    expected["count"] = expected["count"].fillna(0)
    np.testing.assert_allclose(found[order], expected.to_numpy(), rtol=1e-9, atol=1e-6)
