"""One row of a matrix goes a way of its own: what it answers, keeps and counts is a batch's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.clock import FakeClock
from hotplate.outputs import InputSchema, OutputCache, OutputError, OutputPolicy
from hotplate.outputs.run import Run
from hotplate.outputs.scored import Inputs
from hotplate.outputs.single import Single
from hotplate.tiers.outputs import OutputTier

SCHEMA = InputSchema.of("amount", "age")
RULES: tuple[dict[str, Any], ...] = (
    {"name": "big", "when": {"field": "amount", "above": 3}},
    {"name": "sure", "when": {"not": {"score": {"between": [-1, 4]}}}},
    {"name": "payout", "when": {"field": "kind", "in": ["payout"]}},
    {"name": "young", "when": {"all": [{"field": "age", "below": 1}, {"score": {"above": 2}}]}},
    {"name": "night", "when": {"hours": [22, 6]}},
    {"name": "second", "when": {"score": {"above": 9}, "column": 1}},
    {"name": "elsewhere", "when": {"field": "country", "is": "XX"}},
)
NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 1.00001, 3.5, float("nan"), 1e16, float("inf")])
REQUEST = st.tuples(
    NUMBERS,
    NUMBERS,
    st.sampled_from(["pay", "payout", None, 3]),
    st.sampled_from([0.0, 2.5, 5.0, 5.0, float("nan"), float("inf")]),  # what the model answers
    st.sampled_from(["none", "there", "gone", "ends"]),  # the features
    st.sampled_from([0, 1, 5, 31]),  # s that pass before
    st.booleans(),  # whether its entity is invalidated before
)


class _Store:
    """Answers in the place of the store's: what rows are made of."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.tiers: list[OutputTier] = []

    def __call__(self, features: Any, count: int) -> Inputs:
        life_s = 2 if features == "ends" else 60
        return Inputs(
            [(f"entity {row}".encode(),) for row in range(count)],
            [[b""] * count],
            [self._clock.now_ns() + life_s * 10**9] * count,
            lambda row: features != "gone",
        )

    def invalidate(self) -> None:
        for tier in self.tiers:
            tier.forget_keys([b"entity 0"])


def _cache(clock: FakeClock, policy: Mapping[str, Any], store: _Store) -> OutputCache:
    made = OutputPolicy(shadow=0, **policy)
    return OutputCache(
        "m", "1", SCHEMA, made, inputs_of=store, join=store.tiers.append, clock=clock
    )


def _scored(
    outputs: OutputCache, row: Any, predict: Callable[[Any], Any], features: Any, beside: Any
) -> tuple[Any, ...]:
    asked: list[Any] = []

    def counted(rows: Any) -> Any:
        asked.append(np.array(rows).tolist())
        return predict(rows)

    found = outputs.score(row, counted, features=features, beside=beside)
    return repr(found.values.tolist()), found.from_cache.tolist(), found.why, repr(asked)


@given(
    st.lists(st.sampled_from(RULES), unique_by=lambda rule: rule["name"]),
    st.sampled_from([None, "kind", "age"]),
    st.sampled_from([None, {"score": {"at_least": 3}}, {"field": "kind", "is": "pay"}]),
    st.booleans(),
    st.lists(REQUEST, min_size=1, max_size=20),
)
def test_one_row_is_answered_kept_and_counted_as_a_batch(
    rules: list[Any],
    family: str | None,
    negative: Any,
    needs_features: bool,
    requests: list[tuple[Any, ...]],
) -> None:
    clock = FakeClock()
    store = _Store(clock)
    policy: dict[str, Any] = {
        "rules": rules,
        "family": family,
        "negative": negative,
        "needs_features": needs_features,
        "family_least": 3,
        "family_pays": 0.2,
    }
    short, long = (_cache(clock, policy, store) for _ in range(2))
    long._short = lambda row, beside: None  # type: ignore[method-assign]
    for amount, age, kind, answer, features, wait_s, is_invalidated in requests:
        clock.advance(wait_s)
        if is_invalidated:
            store.invalidate()
        row = np.array([[amount, age]])
        beside = {"kind": [kind]}
        given_features = None if features == "none" else features

        def predict(rows: Any, answer: float = answer) -> Any:
            return np.array([answer] * len(rows), np.float32)

        found = [_scored(one, row, predict, given_features, beside) for one in (short, long)]
        assert found[0] == found[1]
        assert short.stats().counts == long.stats().counts
        assert short.families() == long.families()
        kept = [
            {key: one._tier.get(key)[:2] for key in list(one._tier._lru)}  # type: ignore[index]
            for one in (short, long)
        ]
        assert kept[0] == kept[1]
        short._tier.check()


def test_one_row_goes_the_short_way_whatever_becomes_of_it(monkeypatch: Any) -> None:
    """Only the first of all, of which nothing is known yet, goes as a batch."""
    clock = FakeClock()
    store = _Store(clock)
    outputs = _cache(clock, {"rules": RULES[:4], "family": "kind"}, store)
    ways: list[str] = []
    for kind in (Run, Single):

        def noted(self: Any, *args: Any, _of: Any = kind, _init: Any = kind.__init__, **named: Any):
            ways.append(_of.__name__)
            _init(self, *args, **named)

        monkeypatch.setattr(kind, "__init__", noted)
    for amount, kind_of in (
        (1.0, "pay"),
        (2.0, "pay"),
        (1.0, "pay"),
        (9.0, "pay"),
        (2.5, "payout"),
    ):
        outputs.score(
            np.array([[amount, 2.0]]),
            lambda rows: np.ones(len(rows)),
            features="there",
            beside={"kind": [kind_of]},
        )
    assert ways == ["Run", "Single", "Single", "Single"]  # the third was in memory
    assert outputs.stats().counts["hit"] == 1


def test_what_the_model_answers_one_row_is_refused_as_in_a_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    outputs = _cache(clock, {"needs_features": False}, _Store(clock))
    row = np.array([[1.0, 1.0]])
    outputs.score(row, lambda rows: np.ones(1))
    for number, wrong in enumerate((np.ones(2), np.ones((1, 2)), np.array(["a"]), np.ones(1, int))):
        with pytest.raises(OutputError, match=r"model 'm'"):
            outputs.score(row + number + 1, lambda rows, wrong=wrong: wrong)
        assert outputs.stats().counts["model_errors"] == number + 1
    with caplog.at_level(logging.WARNING):
        outputs.score(row + 9, lambda rows: np.array([np.nan]))
    assert "1 answers are no numbers" in caplog.text


def test_the_answer_for_one_row_is_the_callers_own() -> None:
    """A model that answers in one array, again and again, does not change what it said before."""
    clock = FakeClock()
    outputs = _cache(clock, {"needs_features": False}, _Store(clock))
    array = np.zeros(1)
    row = np.array([[1.0, 1.0]])

    def predict(rows: Any) -> Any:
        array[:] = rows[0, 0]
        return array

    found = [outputs.score(row * factor, predict).values for factor in (1, 2, 3)]
    assert [one.tolist() for one in found] == [[1.0], [2.0], [3.0]]
    found[1][:] = 9.0
    assert outputs.score(row * 2, predict).values.tolist() == [2.0]


async def test_one_row_on_an_event_loop_goes_the_same_way() -> None:
    clock = FakeClock()
    outputs = _cache(clock, {"needs_features": False}, _Store(clock))
    for expected in ("miss", "hit"):
        for amount in (1.0, 2.0):
            found = await outputs.score_async(
                np.array([[amount, 1.0]]), lambda rows: rows[:, 0].copy()
            )
            assert found.why == [expected]
            assert found.values.tolist() == [amount]
