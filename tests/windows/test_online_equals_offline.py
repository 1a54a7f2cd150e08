"""What serving answers over a long random run is what training computes from the same events."""

from __future__ import annotations

import os

import numpy as np
import pytest

from hotplate.clock import FakeClock
from hotplate.windows.compaction import Compactor
from hotplate.windows.events import Events, accept
from hotplate.windows.kernel import Reader
from hotplate.windows.log import LogFormat
from hotplate.windows.offline import Moments, outputs_at
from hotplate.windows.plan import LogPlan
from hotplate.windows.spec import Aggregate, Column, EventSpec, Window, WindowSpec
from hotplate.windows.state import LocalState

VALUES = int(os.environ.get("HOTPLATE_WINDOW_VALUES", "60000"))
"""How many values are compared in each run; `make soak` compares millions."""

KEYS = 5
LOG = EventSpec(
    "id",
    (Column.floats("amount"), Column.integers("items"), Column.distinct("shop")),
    lateness_ms=2_000,
    skew_ms=100,
    slack_ms=300,
)
WINDOWS = (
    Window(500),
    Window(2_000, 50),
    Window(10_000, 500),
    Window(30_000, 1_000),
    Window(5_000, 100, 3_000),
)
FUNCTIONS = ("sum", "mean", "min", "max", "std", "last", "first", "count")
SPEC = WindowSpec(
    LOG,
    (
        *(Aggregate(f"n_{i}", "count", "", window) for i, window in enumerate(WINDOWS)),
        *(
            Aggregate(f"{function}_{column}_{i}", function, column, window)
            for i, window in enumerate(WINDOWS)
            for column in ("amount", "items")
            for function in FUNCTIONS
        ),
        *(
            Aggregate(f"{function}_shop_{i}", function, "shop", window)
            for i, window in enumerate(WINDOWS)
            for function in ("count", "approx_count_distinct")
        ),
        Aggregate("share", "sum", "amount", Window(2_000, 50), Window(30_000, 1_000)),
    ),
)


class Service:
    """Writers, readers and compactors of one log in memory, under one clock.

    Attributes:
        written: every accepted batch, by entity, also what a retry wrote twice.
        answers: every read: entity, moment and values.
    """

    def __init__(self, rng: np.random.Generator, largest: int) -> None:
        self.rng, self.largest = rng, largest
        plan = LogPlan.of([SPEC])
        self.clock = FakeClock(1_000_000)
        self.state = LocalState(plan.ttl_ms, self.clock)
        self.reader, self.compactor = Reader(SPEC, plan), Compactor(plan)
        self.records = LogFormat(plan).records
        self.written: list[tuple[int, Events]] = []
        self.answers: list[tuple[int, int, np.ndarray]] = []
        self.folds = 0

    @property
    def now_ms(self) -> int:
        return self.clock.now_ns() // 1_000_000

    def ingest(self) -> None:
        """Some events of one entity: late, ahead of time, tied, with nulls, sometimes twice."""
        rng, count = self.rng, int(self.rng.integers(1, 6))
        delay = np.where(
            rng.random(count) < 0.3, rng.integers(-150, 2_100, count), rng.integers(0, 20, count)
        )
        # a writer whose clock is ahead of the readers', within the slack
        arrivals = np.full(count, self.now_ms + int(rng.choice([0, 0, 0, 290])))
        accepted = accept(
            LOG,
            (arrivals - delay) // 10 * 10,
            rng.integers(1, 4, count),
            arrivals,
            {
                "amount": np.where(rng.random(count) < 0.1, np.nan, self.amounts(count)),
                "items": rng.integers(-self.largest, self.largest + 1, count),
                "shop": rng.choice(np.array(["a", "b", "c", "d", None], object), count),
            },
        )
        self.append(int(rng.integers(KEYS)), accepted.events)

    def amounts(self, count: int) -> np.ndarray:
        return self.rng.integers(-self.largest, self.largest + 1, count) / 100

    def append(self, key: int, events: Events) -> None:
        if len(events):
            self.state.append(b"%d" % key, self.records.pack(events).tobytes())
            self.written.append((key, events))

    def retry(self) -> None:
        """A write that had arrived after all, once more."""
        if self.written:
            key, events = self.written[-int(self.rng.integers(1, min(len(self.written), 4) + 1))]
            if self.now_ms - events.arrivals[0] < LOG.slack_ms:
                self.append(key, events)

    def read(self) -> None:
        """All entities at once, or one."""
        t = self.now_ms
        keys = list(range(KEYS)) if self.rng.random() < 0.5 else [int(self.rng.integers(KEYS))]
        answer = self.reader.read(self.state.get_many([b"%d" % key for key in keys]), t)
        self.answers += [(key, t, row) for key, row in zip(keys, answer.values, strict=True)]

    def compact(self) -> None:
        """Fold one log, by a clock that is a little off."""
        key = b"%d" % self.rng.integers(KEYS)
        blob = self.state.get(key)
        if blob is None:
            return
        fold = self.compactor.fold(blob, self.now_ms - int(self.rng.integers(0, 3_000)))
        if fold is not None:
            if self.rng.random() < 0.3:
                self.ingest()
            self.folds += self.state.swap(key, fold)

    def run(self, reads: int) -> None:
        """Go on until so many entities have been read."""
        steps = (self.ingest, self.retry, self.read, self.compact)
        while len(self.answers) < reads:
            self.rng.choice(np.array(steps), p=[0.4, 0.05, 0.4, 0.15])()
            # at least 1 ms: what arrives after a read, in its millisecond, is the gap that remains
            pause = 60_000 if self.rng.random() < 0.0005 else int(self.rng.integers(1, 400))
            self.clock.advance(pause / 1_000)

    def history(self) -> tuple[np.ndarray, Events]:
        """All that was written, as the offline store has it: in no order."""
        keys = np.concatenate([np.full(len(events), key) for key, events in self.written])
        order = self.rng.permutation(len(keys))
        columns = [
            np.concatenate([getattr(events, name) for _, events in self.written])[order]
            for name in ("ts", "ids", "arrivals", "values")
        ]
        return keys[order], Events(*columns)


@pytest.mark.slow
@pytest.mark.parametrize("largest", [100_000, 1 << 53], ids=["small", "wide"])
def test_serving_and_training_agree_bit_for_bit(largest: int) -> None:
    """Late, repeated and tied events, retries, compactions at any moment, expiry, two clocks."""
    service = Service(np.random.default_rng(11), largest)
    service.run(VALUES // len(SPEC.aggregates))
    keys, events = service.history()
    rows = Moments(
        np.array([key for key, _, _ in service.answers]),
        np.array([t for _, t, _ in service.answers]),
    )
    offline = outputs_at(SPEC, events, keys, rows, max_events=2_000)
    online = np.array([row for _, _, row in service.answers])
    assert service.folds > 10
    assert not np.isnan(online).all(axis=0).any(), "some output was null all the time"
    np.testing.assert_array_equal(online.view(np.int64), offline.view(np.int64))
    print(f"{online.size:,} values, {len(keys):,} events, {service.folds:,} folds: all equal")
