"""Families: what is counted of each, and that one whose hits do not pay is left alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.clock import FakeClock
from hotplate.errors import ConfigError
from hotplate.outputs import InputSchema, OutputCache, OutputError, OutputPolicy
from hotplate.outputs.families import Families

SECOND = 10**9


def cache(clock: FakeClock | None = None, **policy: Any) -> OutputCache:
    made = OutputPolicy(**{"shadow": 0, "family": "channel", "family_pays": "10%", **policy})
    schema = InputSchema.of("amount", "channel")
    return OutputCache("fraud", "1", schema, made, clock=clock or FakeClock())


def model(batch: Any) -> Any:
    cells = batch["amount"] if not isinstance(batch, np.ndarray) else batch[:, 0]
    return np.asarray(cells, np.float64) * 2


def batch_of(*rows: tuple[float, Any]) -> dict[str, Any]:
    return {"amount": [row[0] for row in rows], "channel": [row[1] for row in rows]}


def by_name(outputs: OutputCache) -> dict[str, Any]:
    return {one.name: one for one in outputs.families()}


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=8), max_size=8),
    st.booleans(),
)
def test_rows_and_hits_are_counted_where_they_belong(
    batches: list[list[tuple[int, int]]], is_frame: bool
) -> None:
    outputs = cache()
    rows: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    kept: set[tuple[int, int]] = set()
    for batch in batches:
        made: Any = batch_of(*batch)
        outputs.score(
            pd.DataFrame(made, columns=["amount", "channel"]) if is_frame else made, model
        )
        for row in batch:
            rows[str(row[1])] += 1
            hits[str(row[1])] += row in kept
        kept |= set(batch)
    found = by_name(outputs)
    assert {name: one.rows for name, one in found.items()} == dict(rows)
    assert {name: one.hits for name, one in found.items()} == {name: hits[name] for name in rows}
    for name, one in found.items():
        assert one.outputs == len({row[0] for row in kept if str(row[1]) == name})


def test_a_family_that_does_not_pay_is_bypassed_and_tried_again() -> None:
    clock = FakeClock()
    outputs = cache(clock, family_least=20, family_pause="60s", ttl="1d")
    calls = 0

    def counted(batch: Any) -> Any:
        nonlocal calls
        calls += len(batch["amount"])
        return model(batch)

    def send(first: int) -> list[str]:
        """Twenty rows that were never there, and one that always is."""
        rows = [(float(first + number), 1) for number in range(20)] + [(1.0, 2)]
        scored = outputs.score(batch_of(*rows), counted)
        np.testing.assert_array_equal(scored.values, [2 * amount for amount, _ in rows])
        return scored.why

    assert send(0) == ["miss"] * 21
    assert send(100) == ["bypassed"] * 20 + ["hit"]
    assert send(100)[0] == "bypassed", "nothing was kept of them"
    found = by_name(outputs)
    assert found["1"].is_bypassed
    assert not found["2"].is_bypassed
    assert (found["1"].rows, found["1"].bypassed, found["1"].computed) == (60, 40, 60)
    clock.advance(61)
    assert send(200) == ["miss"] * 20 + ["hit"], "it is tried again"
    clock.advance(61)
    assert send(200)[0] == "bypassed", "for twice as long now"
    clock.advance(61)
    assert send(200) == ["hit"] * 21, "what was kept meanwhile"
    for _ in range(3):
        assert send(200) == ["hit"] * 21, "by now it pays"
    assert calls == 21 + 20 * 4


def test_one_row_of_a_matrix_counts_and_is_bypassed_too() -> None:
    outputs = cache(family_least=5, ttl="1d")
    for _ in range(4):
        outputs.score(np.array([[7.0, 2.0]]), model)
    for number in range(6):
        outputs.score(np.array([[float(number), 1.0]]), model)
    outputs.score(np.array([[0.0, 1.0]]), model)
    found = by_name(outputs)
    assert (found["2"].rows, found["2"].hits, found["2"].computed) == (4, 3, 1)
    assert (found["1"].rows, found["1"].hits, found["1"].bypassed) == (7, 0, 2)
    assert outputs.explain(np.array([[0.0, 1.0]])).decided == (
        "computed: the cache is off (the hits of family '1' do not pay)"
    )


def test_near_duplicates_show_a_key_that_is_too_fine() -> None:
    outputs = cache()
    steps = [1 + number / 10_000 for number in range(10)]  # a place too many
    far = [float(number) for number in range(10)]

    def flat(batch: Any) -> Any:
        return np.zeros(len(batch["amount"]))

    fine, apart, other_answers, again = 1, 2, 3, 4
    outputs.score(batch_of(*[(x, fine) for x in steps]), flat)
    outputs.score(batch_of(*[(x, apart) for x in far]), flat)
    outputs.score(batch_of(*[(x, other_answers) for x in steps]), model)
    outputs.score(batch_of(*[(1.0, again)] * 3), flat)
    found = by_name(outputs)
    assert [found[str(name)].near_duplicates for name in (1, 2, 3, 4)] == [9, 0, 0, 0]
    assert [found[str(name)].outputs for name in (1, 2, 3, 4)] == [1, 1, 10, 1]


def test_a_family_has_one_name_in_every_container() -> None:
    outputs = cache(family=["channel", "kind"], family_pays=0)
    rows = [{"amount": 1.0, "channel": 3, "kind": "a"}, {"amount": 2.0, "channel": 3, "kind": None}]
    frame = pd.DataFrame(rows)
    for given_ in (rows, frame, pa.Table.from_pandas(frame), frame.to_dict("list")):
        outputs.score(given_, lambda batch: np.zeros(2))
    assert {name: one.rows for name, one in by_name(outputs).items()} == {
        "3 a": 4,
        "3 (missing)": 4,
    }
    by_function = cache(family=lambda batch: batch["amount"] > 1, family_pays=0)
    by_function.score(frame, lambda batch: np.zeros(2))
    assert set(by_name(by_function)) == {"True", "False"}


def test_there_are_never_too_many() -> None:
    outputs = cache(family_pays=0)
    outputs.score(batch_of(*[(float(x), x) for x in range(400)]), model)
    found = by_name(outputs)
    assert len(found) == 257
    assert found["(other)"].rows == 400 - 256


def test_what_pays_is_what_a_row_costs_here_by_what_it_costs_the_model() -> None:
    found = Families(["x"], least=1, pays_from=None, pause_ns=SECOND)
    assert found.pays_from == 0.0, "nothing is known yet"
    found.note_time(0.002, 1_000, 0.02, 1_000)
    assert found.pays_from == pytest.approx(0.1)
    found.note_time(0.002, 1_000, 200.0, 1_000)
    assert found.pays_from == 0.001
    found.note_time(500.0, 1_000, 0.0, 0)
    assert found.pays_from == 0.95


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(OutputError, match="family 'channel'"):
        OutputCache("m", "1", InputSchema.of("amount"), OutputPolicy(family="channel")).score(
            {"amount": [1.0]}, model
        )
    with pytest.raises(OutputError, match="1 labels for 2 rows"):
        cache(family=lambda batch: ["a"]).score(batch_of((1.0, 1), (2.0, 1)), model)
    for wrong in ({"family": []}, {"family": [3]}, {"family_least": 0}, {"family_pays": "200%"}):
        with pytest.raises(ConfigError):
            OutputPolicy.parse(wrong, "outputs")
