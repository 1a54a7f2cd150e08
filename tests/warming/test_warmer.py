"""Warming holds its rate whatever the source does, goes on after errors, and yields."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.pace import Pace
from hotplate.warming.warmer import Batch, Warmer, WarmingError, WarmingRate


class Time:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def batches(count: int, reads: int = 10) -> list[Batch]:
    return [Batch("user_id", [(number,)] * (reads // 2), reads) for number in range(count)]


def warmer(clock: Time, rate: WarmingRate, read: Callable[[Batch], None], **more: Any) -> Warmer:
    pace = Pace(1, clock, clock.sleep)
    return Warmer(read, rate, pace, clock=clock, sleep=clock.sleep, chance=random.Random(1), **more)


@given(
    st.integers(20, 4_000),
    st.integers(1, 60),
    st.lists(st.tuples(st.booleans(), st.floats(0, 0.3)), min_size=1, max_size=30),
    st.booleans(),
)
def test_no_second_sees_more_reads_than_the_limit(
    peak: int, reads: int, behaviour: list[tuple[bool, float]], has_ramp: bool
) -> None:
    """Whatever fails and however long it takes; a batch that fails counts each time."""
    clock = Time()
    seen: list[tuple[float, int]] = []

    def read(batch: Batch) -> None:
        fails, takes = behaviour[len(seen) % len(behaviour)]
        seen.append((clock.now, batch.reads))
        clock.now += takes
        if fails and len(seen) % 3:
            raise OSError("away")

    rate = WarmingRate(peak, ramp_s=20.0 if has_ramp else 0.0)
    made = warmer(clock, rate, read)
    size = min(reads, made.most_in_batch())
    list(made.run(batches(60, size)))
    for at, _ in seen:
        within = sum(count for moment, count in seen if at <= moment < at + 1)
        assert within <= max(rate.limit, size) + 1e-9


def test_it_starts_slowly_and_grows_to_its_limit() -> None:
    clock = Time()
    at: list[float] = []
    rate = WarmingRate(1_000, ramp_s=30)
    made = warmer(clock, rate, lambda batch: at.append(clock.now))
    list(made.run(batches(1_500)))
    took = [sum(10 for moment in at if s <= moment - at[0] < s + 1) for s in (0, 15, 40, 60)]
    assert 30 <= took[0] <= 70
    assert 90 <= took[1] <= 150
    assert 160 <= took[2] <= 200
    assert 160 <= took[3] <= 200


def test_errors_are_waited_out_ever_longer_and_nothing_is_left_out() -> None:
    clock = Time()
    read_: list[int] = []
    left = [4, 0, 2]

    def read(batch: Batch) -> None:
        number = int(str(batch.keys[0][0]))
        if number < len(left) and left[number]:
            left[number] -= 1
            raise OSError("away")
        read_.append(number)

    made = warmer(clock, WarmingRate(10_000, ramp_s=0), read)
    seen = list(made.run(batches(20)))
    assert read_ == list(range(20)), "in order, each once"
    assert seen[-1].errors == 6
    pauses = [one for one in clock.slept if one > 0.2]
    assert 0.25 <= pauses[0] <= 0.5
    assert 2 <= pauses[3] <= 4, "each time twice as long"


def test_it_gives_up_on_a_source_that_stays_away() -> None:
    clock = Time()

    def read(batch: Batch) -> None:
        if batch.keys[0] == (3,):
            raise OSError("password=secret")

    made = warmer(clock, WarmingRate(10_000, ramp_s=0, tries=5), read)
    with pytest.raises(WarmingError, match=r"failed 5 times in a row: OSError\. 3 of 20") as caught:
        list(made.run(batches(20)))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("who", ["source", "live"])
def test_it_yields_when_the_source_or_live_traffic_slows_down(who: str) -> None:
    clock = Time()
    at: list[float] = []
    trouble = [False]

    def read(batch: Batch) -> None:
        at.append(clock.now)
        clock.now += 0.02 if trouble[0] and who == "source" else 0.001

    made = warmer(
        clock,
        WarmingRate(2_000, ramp_s=0),
        read,
        suffers=lambda: trouble[0] and who == "live",
    )
    rates, whys = [], []
    for number, progress in enumerate(made.run(batches(3_000))):
        trouble[0] = 400 <= number < 500
        rates.append(progress.rate)
        whys.append(progress.why)
    assert rates[399] == pytest.approx(400)
    assert min(rates[400:520]) <= 100
    assert "slower" in whys[499]
    assert rates[-1] == pytest.approx(400), "and comes back"
    assert whys[-1] == ""


@pytest.mark.parametrize("said", [{"peak": 0}, {"peak": 1, "first": 0}, {"peak": 1, "most": 2}])
def test_rates_that_cannot_be_are_refused(said: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="peak"):
        WarmingRate(**said)
