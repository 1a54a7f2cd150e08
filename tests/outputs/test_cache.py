"""Answers of a model from memory: never other than the model's, never where a rule forbids it."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.clock import FakeClock
from hotplate.errors import ConfigError
from hotplate.outputs import InputField, InputSchema, OutputCache, OutputError, OutputPolicy, Scored
from hotplate.outputs.batch import batch_of
from hotplate.tiers.outputs import OutputTier

BIG = {"name": "big", "when": {"field": "amount", "above": 100}, "reason": "big ones are looked at"}
UNSURE = {"name": "unsure", "when": {"score": {"between": [0.4, 0.6]}}}
NO_SHADOW: dict[str, Any] = {"shadow": "0%"}


class Model:
    """Counts what it is asked, and stamps what it answers with the number of the call."""

    def __init__(self, answer: Callable[[np.ndarray[Any, Any]], Any] | None = None) -> None:
        self.asked: list[Any] = []
        self.answer = answer

    def __call__(self, batch: Any) -> Any:
        rows = batch_of(batch, ("amount", "n"))
        amounts = np.asarray(rows.column("amount"), np.float64)
        self.asked.append(amounts.tolist())
        if self.answer is not None:
            return self.answer(amounts)
        return np.full(len(amounts), len(self.asked), np.float64)


def cache(clock: FakeClock | None = None, **policy: Any) -> OutputCache:
    made = OutputPolicy(**{**NO_SHADOW, **policy})
    return OutputCache("fraud", "1", InputSchema.of("amount"), made, clock=clock or FakeClock())


def why(scored: Scored) -> list[str]:
    return scored.why


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=6), st.integers(0, 20)
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_a_dict_and_a_clock_answer_the_same(
    steps: list[tuple[list[tuple[int, bool]], int]], has_rule: bool
) -> None:
    """Each answer is of the call that the oracle says; rows that are alike are asked once."""
    clock, model = FakeClock(), Model()
    rules = [{"name": "marked", "when": {"field": "marked", "is": True}}] if has_rule else []
    outputs = cache(clock, rules=rules, negative={"score": {"at_most": 3}})
    kept: dict[int, tuple[float, float]] = {}  # amount -> (value, deadline)
    now, calls = 0.0, 0
    for rows, wait in steps:
        batch = {
            "amount": np.array([amount for amount, _ in rows], np.float64),
            "marked": np.array([mark for _, mark in rows], np.bool_),
        }
        found = outputs.score(batch, model)
        is_found = [
            not (has_rule and mark) and amount in kept and now <= kept[amount][1]
            for amount, mark in rows
        ]
        calls += not all(is_found)
        assert len(model.asked) == calls
        expected = [
            kept[amount][0] if hit else float(calls)
            for (amount, _), hit in zip(rows, is_found, strict=True)
        ]
        assert found.values.tolist() == expected
        assert found.from_cache.tolist() == is_found
        if not all(is_found):
            alone = [
                amount
                for (amount, mark), hit in zip(rows, is_found, strict=True)
                if not hit and not (has_rule and mark)
            ]
            marked = sum(1 for _, mark in rows if has_rule and mark)
            assert len(model.asked[-1]) == len(set(alone)) + marked
            for amount in alone:
                kept[amount] = (float(calls), now + (5 if calls <= 3 else 30))
        clock.advance(wait)
        now += wait
    outputs._tier.check()


def test_what_a_rule_forbids_is_computed_every_time() -> None:
    """Under many threads, too; what it does not forbid is computed once each."""
    model = Model(lambda amounts: amounts / 1_000)
    lock, asked = threading.Lock(), []

    def predict(batch: Any) -> Any:
        with lock:
            asked.extend(batch["amount"])
            return model(batch)

    outputs = cache(rules=[BIG])
    outputs.score({"amount": [5.0]}, predict)

    def work() -> None:
        for _ in range(50):
            found = outputs.score({"amount": [5.0, 500.0]}, predict)
            assert found.values.tolist() == [0.005, 0.5]
            assert found.why == ["hit", "rule: big"]

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked.count(500.0) == 200
    assert asked.count(5.0) == 1
    stats = outputs.stats()
    assert stats.by_rule == {"big": 200}
    assert (stats.rows, stats.hits, stats["computed"]) == (401, 200, 201)
    assert stats.hit_rate == pytest.approx(200 / 401)


def test_rules_on_the_score_and_on_the_hour_are_judged_when_it_is_asked() -> None:
    clock = FakeClock(wall_s=12 * 3600)
    night = {"name": "night", "when": {"all": [{"hours": [22, 6]}, {"score": {"above": 0.8}}]}}
    outputs = cache(clock, rules=[UNSURE, night], ttl="1d")
    model = Model(lambda amounts: amounts)
    batch = {"amount": [0.1, 0.5, 0.9]}
    assert why(outputs.score(batch, model)) == ["miss"] * 3
    assert why(outputs.score(batch, model)) == ["hit", "miss", "hit"]  # 0.5 was not kept
    clock.advance(11 * 3600)
    assert why(outputs.score(batch, model)) == ["hit", "miss", "rule: night"]
    clock.advance(8 * 3600)
    assert why(outputs.score(batch, model)) == ["hit", "miss", "hit"]


def test_what_is_given_beside_the_inputs_is_for_rules_alone() -> None:
    outputs = cache(rules=[{"name": "blocked", "when": {"field": "state", "is": "blocked"}}])
    model = Model()
    frame = pd.DataFrame({"amount": [1.0, 1.0], "state": ["fine", "blocked"]})
    assert why(outputs.score(frame, model)) == ["miss", "rule: blocked"]
    assert why(outputs.score(frame, model)) == ["hit", "rule: blocked"]
    frame["state"] = [None, "fine"]  # in doubt it is forbidden
    assert why(outputs.score(frame, model)) == ["rule: blocked", "hit"]
    assert outputs.stats().counts["rule unknown: blocked"] == 1


def test_a_row_counts_once_for_a_rule_that_forbids_it() -> None:
    """Also where other rules need the score, and so are judged later."""
    outputs = cache(rules=[BIG, UNSURE])
    for _ in range(3):
        outputs.score({"amount": [0.1, 0.5, 500.0]}, Model(lambda amounts: amounts))
    assert outputs.stats().by_rule == {"big": 3, "unsure": 3}


def test_a_rule_that_cannot_be_judged_forbids_all_and_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outputs = cache(rules=[{"name": "blocked", "when": {"field": "state", "is": "blocked"}}])
    for _ in range(2):
        assert why(outputs.score({"amount": [1.0]}, Model())) == ["rule: blocked"]
    assert outputs.stats().rule_errors == {"blocked": 2}
    assert "field 'state': is not among the columns" in caplog.text


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (lambda amounts: amounts[:-1], "answered 1 rows for 2"),
        (lambda amounts: 0.5, "answered one value for 2"),
        (lambda amounts: np.array(["a"] * len(amounts)), "answered <U1"),
        (lambda amounts: None, "answered object"),
        (lambda amounts: amounts.astype(np.float32), "rows of float32.*float64"),
        (lambda amounts: np.stack([amounts, amounts], 1), r"rows of float64 \(2,\)"),
    ],
)
def test_an_answer_that_is_none_is_refused_and_not_kept(
    answer: Callable[[Any], Any], match: str
) -> None:
    outputs = cache()
    good = Model(lambda amounts: amounts)
    outputs.score({"amount": [9.0]}, good)
    with pytest.raises(OutputError, match=match):
        outputs.score({"amount": [1.0, 2.0]}, answer_of(answer))
    assert why(outputs.score({"amount": [1.0, 2.0]}, good)) == ["miss", "miss"]
    assert outputs.stats().counts["model_errors"] == 1
    outputs._tier.check()


def answer_of(answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda batch: answer(np.asarray(batch["amount"]))


def test_a_model_that_raises_or_answers_nan_keeps_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outputs, good = cache(), Model(lambda amounts: amounts)

    def fails(_: Any) -> Any:
        raise RuntimeError("no GPU")

    with pytest.raises(RuntimeError, match="no GPU"):
        outputs.score({"amount": [1.0]}, fails)
    for wrong in (np.nan, np.inf):
        answered = outputs.score({"amount": [1.0, 2.0]}, lambda _, x=wrong: np.array([x, 1.0]))
        assert answered.values[1] == 1.0
        assert not np.isfinite(answered.values[0])
    assert "are no numbers; none is kept" in caplog.text
    assert outputs.stats().counts["not finite"] == 2
    assert why(outputs.score({"amount": [1.0, 2.0]}, good)) == ["miss", "miss"]


def test_shadow_checks_find_a_planted_entry_and_switch_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outputs = cache(shadow="100%", shadow_least=10, shadow_limit="1%")
    model = Model(lambda amounts: amounts)
    outputs.score({"amount": np.arange(20.0)}, model)
    for _ in range(3):
        found = outputs.score({"amount": np.arange(20.0)}, model)
        assert set(found.why) == {"compared"}
        assert not outputs.is_off
    (key,) = outputs.inputs.keys(batch_of({"amount": 3.0}, ("amount",)))
    kept = outputs._tier.get(key)
    planted = (key, np.float64(0.9).tobytes(), kept[1], (), False, (0,))
    outputs._tier.put([planted])
    found = outputs.score({"amount": [3.0]}, model)
    assert found.values.tolist() == [3.0]  # what was compared is answered as computed
    assert "a cached output differs from a fresh one: [0.9], not [3.0]" in caplog.text
    assert outputs.stats().counts["shadow_differed"] == 1
    assert "1.64% of 61 compared outputs differed" in outputs.is_off
    for _ in range(2):
        assert why(outputs.score({"amount": [5.0]}, model)) == ["off"]
    outputs.switch_on()
    assert why(outputs.score({"amount": [5.0]}, model)) == ["miss"]
    assert why(outputs.score({"amount": [5.0]}, model)) == ["compared"]


def test_a_difference_within_the_declared_places_is_none() -> None:
    outputs = cache(shadow="100%", shadow_least=1, shadow_decimals=2)
    outputs.score({"amount": [1.0]}, lambda _: np.array([0.501]))
    outputs.score({"amount": [1.0]}, lambda _: np.array([0.504]))
    assert (outputs.is_off, outputs.stats()["shadow_differed"]) == ("", 0)
    outputs.score({"amount": [1.0]}, lambda _: np.array([0.52]))
    assert outputs.is_off


def test_a_share_of_the_hits_is_compared() -> None:
    outputs = cache(shadow="10%")
    outputs._chance = random.Random(3)
    model = Model(lambda amounts: amounts)
    batch = {"amount": np.arange(1_000.0)}
    outputs.score(batch, model)
    compared = sum(one == "compared" for one in outputs.score(batch, model).why)
    assert 60 < compared < 140


def test_a_row_by_itself_is_compared_as_often_as_among_others() -> None:
    outputs = cache(shadow="30%")
    outputs._chance = random.Random(3)
    model = Model(lambda amounts: amounts)
    row = np.array([[1.0]])
    found = [outputs.score(row, lambda rows: model({"amount": rows[:, 0]})) for _ in range(401)]
    assert 80 < sum(one.why == ["compared"] for one in found) < 160
    assert outputs.stats()["shadow_compared"] == len(model.asked) - 1


def test_a_dry_run_answers_nothing_and_says_what_it_would_have() -> None:
    outputs = cache(dry_run=True, shadow_least=1)
    for answer in (1.0, 1.0, 2.0):
        found = outputs.score({"amount": [1.0, 2.0]}, lambda _, x=answer: np.array([x, 1.0]))
        assert found.values.tolist() == [answer, 1.0]
        assert not found.from_cache.any()
    stats = outputs.stats()
    assert stats["dry_run_compared"] == stats.hits == 4
    assert stats["dry_run_differed"] == 1
    assert not stats.off


def test_rules_are_switched_off_aloud(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        outputs = cache(rules=[BIG], rules_off="a load test, until Friday")
    assert "its 1 rules are NOT applied: a load test, until Friday" in caplog.text
    outputs.score({"amount": [500.0]}, Model())
    assert why(outputs.score({"amount": [500.0]}, Model())) == ["hit"]


CONTAINERS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "matrix": lambda cells: cells,
    "frame": lambda cells: pd.DataFrame(cells, columns=["amount", "n"]),
    "table": lambda cells: pa.table({"amount": cells[:, 0], "n": cells[:, 1]}),
    "batch": lambda cells: pa.record_batch({"amount": cells[:, 0], "n": cells[:, 1]}),
    "columns": lambda cells: {"amount": cells[:, 0], "n": pd.Series(cells[:, 1])},
    "lists": lambda cells: {"amount": cells[:, 0].tolist(), "n": cells[:, 1].tolist()},
    "rows": lambda cells: [{"amount": a, "n": n} for a, n in cells.tolist()],
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_model_gets_its_rows_in_the_container_they_came_in(container: str) -> None:
    make = CONTAINERS[container]
    outputs = OutputCache(
        "fraud", "1", InputSchema.of("amount", "n"), OutputPolicy(**NO_SHADOW), clock=FakeClock()
    )
    given_: list[Any] = []

    def predict(batch: Any) -> Any:
        given_.append(batch)
        rows = batch_of(batch, ("amount", "n"))
        return np.asarray(rows.column("amount")) * 10 + np.asarray(rows.column("n"))

    cells = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [3.0, 4.0]])
    outputs.score(make(cells[1:2]), predict)
    found = outputs.score(make(cells), predict)
    assert found.values.tolist() == [12.0, 34.0, 56.0, 34.0]
    assert found.from_cache.tolist() == [False, True, False, True]
    assert type(given_[1]) is type(make(cells))
    assert batch_of(given_[1], ("amount", "n")).count == 2


def test_one_row_by_itself_and_outputs_of_several_columns() -> None:
    outputs = cache()
    both = {"amount": 5, "kind": "payment"}

    def predict(row: Any) -> Any:
        assert row == both
        return np.array([[0.25, 0.75]], np.float32)

    first, second = outputs.score(both, predict), outputs.score(both, predict)
    assert first.values.tolist() == second.values.tolist() == [[0.25, 0.75]]
    assert second.values.dtype == np.float32
    assert second.from_cache.all()


def test_a_matrix_of_one_row_is_answered_as_any_other() -> None:
    """It takes a shorter way from memory: in time, off, in a dry run and by rules alike."""
    clock, names = FakeClock(), InputSchema.of("amount", "n")
    row, model = np.array([[1.0, 2.0]]), Model(lambda amounts: amounts)
    ruled = {**NO_SHADOW, "rules": [BIG, UNSURE]}
    for policy in (NO_SHADOW, {"shadow": "100%"}, {**NO_SHADOW, "dry_run": True}, ruled):
        outputs = OutputCache("m", "1", names, OutputPolicy(**policy), clock=clock)
        long = OutputCache("m", "1", names, OutputPolicy(**policy), clock=clock)
        for wait in (0, 10, 19.9, 0.2, 0):
            clock.advance(wait)
            found = outputs.score(row, lambda batch: model({"amount": batch[:, 0]}))
            other = long.score({"amount": [1.0], "n": [2.0]}, model)
            assert found.why == other.why
            assert found.values.tolist() == other.values.tolist()
        big = np.array([[500.0, 2.0]])
        for _ in range(2):
            found = outputs.score(big, lambda batch: model({"amount": batch[:, 0]}))
            assert found.why == long.score({"amount": [500.0], "n": [2.0]}, model).why
        assert outputs.stats().counts == long.stats().counts
        outputs.switch_off("a test")
        assert outputs.score(row, lambda batch: batch[:, 0]).why == ["off"]
    wide = np.array([[1.0, 2.0, 3.0]])
    with pytest.raises(OutputError, match="reads 2"):
        outputs.score(wide, lambda batch: batch[:, 0])


def test_an_empty_batch_asks_nobody() -> None:
    model = Model()
    assert len(cache().score({"amount": np.empty(0)}, model).values) == 0
    assert model.asked == []


async def test_on_an_event_loop() -> None:
    outputs = cache()

    async def predict(batch: Any) -> Any:
        await asyncio.sleep(0)
        return np.asarray(batch["amount"]) * 2

    assert (await outputs.score_async({"amount": [1.0]}, predict)).values.tolist() == [2.0]
    found = await outputs.score_async({"amount": [1.0, 2.0]}, Model(lambda amounts: amounts * 2))
    assert found.values.tolist() == [2.0, 4.0]
    assert found.why == ["hit", "miss"]

    async def fails(_: Any) -> Any:
        raise RuntimeError("away")

    with pytest.raises(RuntimeError, match="away"):
        await outputs.score_async({"amount": [3.0]}, fails)


def test_the_least_recently_used_go_first_and_the_books_are_right() -> None:
    outputs = cache(max_entries=100)
    chance, model = random.Random(0), Model(lambda amounts: amounts)
    for _ in range(100):
        outputs.score({"amount": [float(chance.randrange(300)) for _ in range(10)]}, model)
    stats = outputs.stats()
    assert stats.entries == 100
    assert stats.evicted > 100
    outputs._tier.check()
    small = cache(max_bytes=10_000)
    small.score({"amount": np.arange(1_000.0)}, model)
    assert 10 < small.stats().entries < 40
    assert small.stats().size_bytes <= 10_000
    small.clear()
    assert small.stats().entries == small.stats().size_bytes == 0


def test_outputs_are_let_go_in_steps() -> None:
    """The least recently used first, down to nothing; what comes after is kept as ever."""
    outputs, model = cache(), Model(lambda amounts: amounts)
    outputs.score({"amount": np.arange(10.0)}, model)
    outputs.score({"amount": [0.0]}, model)
    assert [outputs.release(4), outputs.release(4)] == [6, 2]
    outputs._tier.check()
    assert outputs.score({"amount": [0.0, 1.0]}, model).why == ["hit", "miss"]
    assert outputs.release(1_000) == outputs.release(1) == 0
    assert outputs.stats().size_bytes == 0


def test_a_tie_that_is_cut_ends_its_outputs_and_no_others() -> None:
    """Against a dict: random ties, cuts, evictions, replacements, releases."""
    chance, tier = random.Random(1), OutputTier(50, 1 << 30)
    alive: dict[bytes, set[Any]] = {}
    for step in range(4_000):
        entities = tuple(
            chance.sample([(1 << 60, "a"), (1 << 60, "b"), *range(10)], chance.randrange(3))
        )
        if chance.random() < 0.7:
            key = b"%d" % chance.randrange(80)
            versions = tier.versions(entities)
            is_cut = bool(entities) and chance.random() < 0.2
            if is_cut:
                tier.forget_keys(entities[:1])
                for ties in alive.values():
                    if entities[0] in ties:
                        ties.add("cut")
            refused = tier.put([(key, b"x", step, entities, False, versions)])
            assert refused == is_cut
            if not refused:
                alive[key] = set(entities)
        else:
            tier.forget_keys(entities)
            for ties in alive.values():
                if ties & set(entities):
                    ties.add("cut")
        if step % 40 == 0:
            before = len(tier)
            assert tier.release(3) == len(tier) == max(0, before - 3)
        for key, ties in list(alive.items()):
            kept = tier._lru.peek(key)
            if kept is None:
                del alive[key]
            else:
                assert any(tie.is_cut for tie in kept[2]) == ("cut" in ties)
        if step % 50 == 0:
            tier.check()


def test_explain_says_what_decides() -> None:
    clock = FakeClock()
    outputs = cache(clock, rules=[BIG, UNSURE])
    model = Model(lambda amounts: amounts)
    assert outputs.explain({"amount": 0.1}).decided == "computed: nothing is kept for this input"
    outputs.score({"amount": [0.1, 0.5]}, model)
    found = outputs.explain({"amount": 0.1})
    assert found.decided == "answered from memory"
    assert found.kept == (0.1,)
    assert found.expires_in_s == 30
    assert "rule big: no  (big ones are looked at)" in str(found)
    big = outputs.explain({"amount": 200})
    assert big.decided == "computed: rule 'big' says yes (big ones are looked at)"
    assert big.rules[1] == ("unsure", "", "needs the score")
    clock.advance(31)
    assert outputs.explain({"amount": 0.1}).decided == "computed: the kept output has expired"
    outputs.switch_off("for a reason")
    assert "the cache is off (for a reason)" in str(outputs.explain({"amount": 0.1}))
    with pytest.raises(OutputError, match="takes one row"):
        outputs.explain({"amount": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"tll": "30s"}, "unknown settings tll; there are ttl, negative"),
        ({"ttl": "soon"}, "'soon' is not a duration"),
        ({"shadow": "2"}, "shadow: is no share"),
        ({"rules": [{"name": "x", "when": {}}]}, "rule 'x'"),
        ({"negative": {"above": 1}}, "rule 'negative'"),
        ({"rules_off": True}, "rules_off: is no text"),
        ({"max_entries": 0}, "at least 1"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(said: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        OutputPolicy.parse(said, "online_store.outputs, model 'fraud'")
    assert "model 'fraud'" in str(caught.value)


def test_kinds_of_fields_meet_in_one_input() -> None:
    schema = InputSchema.of(
        "amount",
        InputField("shop", "text"),
        InputField("embedding", "list", 3),
        InputField("at", "time"),
    )
    outputs = OutputCache("m", "1", schema, OutputPolicy(**NO_SHADOW), clock=FakeClock())
    row = {"amount": 1, "shop": "a", "embedding": [1.0, 2.00001], "at": "2026-01-01T00:00:00"}
    outputs.score(row, lambda _: [1.0])
    same = {**row, "amount": 1.00001, "embedding": np.array([1, 2.0])}
    assert outputs.score(same, lambda _: [2.0]).values.tolist() == [1.0]
    for name, value in (("shop", "b"), ("embedding", [1.0, 2.1]), ("at", "2026-01-01T00:00:01")):
        assert outputs.score({**row, name: value}, lambda _: [3.0]).values.tolist() == [3.0]


def test_what_is_no_matrix_of_the_model_is_refused_wherever_it_is_looked_at() -> None:
    for policy in ({}, {"family": "amount"}):
        outputs = cache(**policy)
        outputs.score(np.array([[1.0]]), np.ravel)
        for odd in (np.array(3.0), np.array([1.0]), np.zeros((1, 2)), np.zeros((1, 1, 1))):
            with pytest.raises(OutputError, match="are an array of shape"):
                outputs.score(odd, np.ravel)


def test_an_answer_is_the_callers_own() -> None:
    """Whoever writes into it changes nothing of what others are answered."""
    outputs = cache()
    for batch in (np.array([[1.0]]), np.array([[1.0]]), np.array([[1.0], [1.0]])):
        scored = outputs.score(batch, lambda rows: rows[:, 0] + 1)
        assert scored.values.tolist() == [2.0] * len(batch)
        scored.values *= 7


BESIDE_RULES = [
    {"name": "payout", "when": {"field": "kind", "in": ["payout", "refund"]}},
    {"name": "old", "when": {"all": [{"field": "days", "above": 3}, {"score": {"above": 1}}]}},
    BIG,
]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from(["pay", "payout", None, 7]),
            st.none() | st.integers(2, 5),
        ),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_columns_beside_a_matrix_are_those_of_a_frame(
    rows: list[tuple[int, Any, int | None]], is_again: bool
) -> None:
    """Rules and families say the same, also of one row that is answered the short way."""
    amounts = np.array([[float(amount)] for amount, _, _ in rows])
    kinds = np.array([kind for _, kind, _ in rows], object)
    days = [days for _, _, days in rows]
    frame = pd.DataFrame({"amount": amounts[:, 0], "kind": kinds, "days": days})
    frame["days"] = frame["days"].astype("Int64")
    matrix_cache, frame_cache = (cache(rules=BESIDE_RULES, family="kind") for _ in range(2))
    for _ in range(2):
        for start in range(len(rows)) if is_again else [0]:
            part = slice(start, start + 1) if is_again else slice(None)
            beside = {"kind": kinds[part], "days": days[part]}
            one = matrix_cache.score(amounts[part], lambda rows: rows[:, 0] + 0.5, beside=beside)
            other = frame_cache.score(frame[part], lambda rows: rows.amount.to_numpy() + 0.5)
            assert one.why == other.why
            np.testing.assert_array_equal(one.values, other.values)
            if is_again:
                said = matrix_cache.explain(amounts[part], beside=beside)
                assert said.rules == frame_cache.explain(frame[part]).rules
    assert matrix_cache.families() == frame_cache.families()
    assert matrix_cache.stats().counts == frame_cache.stats().counts


async def test_columns_beside_a_matrix_on_an_event_loop() -> None:
    outputs = cache(rules=BESIDE_RULES)
    for expected in ("miss", "hit"):
        scored = await outputs.score_async(
            np.array([[1.0], [2.0]]), np.ravel, beside={"kind": ["pay", "payout"], "days": [1, 1]}
        )
        assert scored.why == [expected, "rule: payout"]


@pytest.mark.parametrize(
    ("beside", "problem"),
    [
        ({"kind": ["a", "b"]}, "has 2 values for 1 rows"),
        ({"kind": "a"}, "has one value for 1 rows"),
        ({"amount": [1]}, "is what the model reads"),
    ],
)
def test_what_cannot_lie_beside_is_refused(beside: Any, problem: str) -> None:
    outputs = cache()
    for batch in (np.array([[1.0]]), pd.DataFrame({"amount": [1.0]})):
        with pytest.raises(OutputError, match=problem):
            outputs.score(batch, lambda rows: np.ones(len(rows)), beside=beside)
