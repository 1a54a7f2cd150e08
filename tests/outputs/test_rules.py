"""What rules forbid, against one row at a time in plain Python; in doubt they forbid."""

from __future__ import annotations

import operator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hotplate.outputs import OutputError, OutputPolicy, Rule
from hotplate.outputs.batch import batch_of
from hotplate.outputs.conditions import Asked
from hotplate.outputs.rules import RuleSet

NAMES = ("amount", "kind", "age")
OPERATORS = {
    "above": operator.gt,
    "at_least": operator.ge,
    "below": operator.lt,
    "at_most": operator.le,
}
HOUR_NS = 3_600 * 10**9


def truth(when: Any, row: dict[str, Any], score: float, hour: float) -> bool | None:
    """Yes, no or None for unknown."""
    (word,) = [name for name in when if name not in ("field", "column", "zone")]
    said = when[word]
    if word in ("any", "all"):
        answers = [truth(part, row, score, hour) for part in said]
        wins = word == "any"
        if wins in answers:
            return wins
        return None if None in answers else not wins
    if word == "not":
        inner = truth(said, row, score, hour)
        return None if inner is None else not inner
    if word == "hours":
        start, end = said
        return start <= hour < end if start <= end else hour >= start or hour < end
    if word == "score":
        return truth({"field": "score", **said}, {"score": score}, score, hour)
    value = row[when["field"]]
    if word == "missing":
        return value is None
    if value is None:
        return None
    if word == "is":
        return value == said if isinstance(value, str) == isinstance(said, str) else None
    if word == "in":
        alike = [one for one in said if isinstance(one, str) == isinstance(value, str)]
        return value in alike if alike else None
    low, high = said if word == "between" else (said, said)
    if isinstance(value, str) != isinstance(low, str):
        return None
    if word == "between":
        return low <= value <= high
    return OPERATORS[word](value, said)


numbers = st.integers(-3, 3)
compared = st.one_of(
    st.tuples(st.sampled_from(sorted(OPERATORS)), numbers).map(lambda pair: {pair[0]: pair[1]}),
    st.lists(numbers, min_size=2, max_size=2).map(lambda pair: {"between": sorted(pair)}),
    numbers.map(lambda one: {"is": one}),
    st.lists(numbers, min_size=1, max_size=3).map(lambda some: {"in": some}),
    st.just({"missing": True}),
)
leaves = st.one_of(
    st.tuples(st.sampled_from(["amount", "age"]), compared).map(
        lambda pair: {"field": pair[0], **pair[1]}
    ),
    st.sampled_from(["a", "b"]).map(lambda one: {"field": "kind", "is": one}),
    st.lists(st.sampled_from(["a", "b", "c", 1]), min_size=1).map(
        lambda some: {"field": "kind", "in": some}
    ),
    st.sampled_from([1, True]).map(lambda one: {"field": "kind", "is": one}),
    st.just({"field": "kind", "missing": True}),
    compared.filter(lambda one: "missing" not in one).map(lambda one: {"score": one}),
    st.tuples(st.integers(0, 24), st.integers(0, 24)).map(lambda pair: {"hours": list(pair)}),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"any": some}),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"all": some}),
        inner.map(lambda one: {"not": one}),
    ),
    max_leaves=8,
)
rows_of = st.lists(
    st.fixed_dictionaries(
        {
            "amount": st.none() | numbers,
            "kind": st.none() | st.sampled_from(["a", "b", "c"]) | numbers,
            "age": numbers,
        }
    ),
    min_size=1,
    max_size=6,
)


@given(conditions, rows_of, st.data(), st.integers(0, 23))
def test_rules_say_of_a_batch_what_they_say_of_each_row(
    when: Any, rows: list[dict[str, Any]], data: Any, hour: int
) -> None:
    scores = data.draw(st.lists(numbers, min_size=len(rows), max_size=len(rows)))
    rule = Rule("r", when)
    frame = pd.DataFrame(rows, columns=NAMES)
    frame["amount"] = frame.amount.astype("Float64")
    for given_ in (rows, frame, {name: frame[name].tolist() for name in NAMES}):
        asked = Asked(
            batch_of(given_, NAMES), np.array(scores, np.float64)[:, None], hour * HOUR_NS
        )
        verdict = rule.judge(asked)
        assert verdict.error is None
        expected = [truth(when, row, score, hour) for row, score in zip(rows, scores, strict=True)]
        assert verdict.holds.tolist() == [one is not False for one in expected]
        assert verdict.unknown.tolist() == [one is None for one in expected]


@example(
    {"all": [{"field": "amount", "above": 0}, {"field": "age", "above": 0}]},
    [{"amount": -1, "age": 1, "kind": None}],
    0,
    0,
)
@given(conditions, rows_of, st.integers(-3, 3), st.integers(0, 23))
def test_one_row_of_a_matrix_is_judged_alike_the_short_way(
    when: Any, rows: list[dict[str, Any]], score: int, hour: int
) -> None:
    """Texts stand for no number, and a field that the matrix lacks forbids, as in a batch."""
    row = {**rows[0], "kind": None}
    numbers_of = [np.nan if row[name] is None else float(row[name]) for name in NAMES]
    matrix = np.array([numbers_of])
    rule, wall_ns = Rule("r", when), hour * HOUR_NS
    for names in (NAMES, (*NAMES[:2], "another")):
        batch = batch_of(matrix, names)
        verdict = rule.judge(Asked(batch, np.array([[float(score)]]), wall_ns))
        places = {name: place for place, name in enumerate(names)}
        said = RuleSet([rule]).for_row(places)(matrix[0].tolist(), [float(score)], wall_ns)
        assert said >= verdict.holds[0]
        if verdict.error is None:
            assert said == verdict.holds[0]


def judge(when: Any, given_: Any, scores: Any = None, wall_ns: int = 0) -> Any:
    return Rule("r", when).judge(Asked(batch_of(given_, ("x",)), scores, wall_ns))


def test_a_rule_that_cannot_be_judged_forbids_everything() -> None:
    verdict = judge({"field": "y", "above": 1}, {"x": [1, 2]})
    assert verdict.holds.all()
    assert "field 'y': is not among the columns" in str(verdict.error)
    verdict = judge({"score": {"above": 1}, "column": 2}, {"x": [1]}, np.zeros((1, 2)))
    assert verdict.holds.all()
    assert "the model answers 2" in str(verdict.error)
    # text where a number is meant, and the other way round: in doubt, forbidden
    assert judge({"field": "x", "above": 1}, {"x": ["a", "b"]}).unknown.all()
    assert judge({"field": "x", "in": ["a"]}, {"x": [1, 2]}).unknown.all()
    assert judge({"not": {"field": "x", "above": 1}}, {"x": ["a"]}).holds.all()


def test_numbers_of_numpy_are_numbers() -> None:
    """In a rule that is written in Python, on every way to it."""
    for value in (np.float64(2), np.float32(2), np.int64(2)):
        for when in ({"above": value}, {"is": value}, {"in": [value]}, {"between": [value, 9]}):
            rule = Rule("r", {"not": {"not": {"field": "x", **when}}})
            alone = RuleSet([rule]).for_row({"x": 0})
            for cell in (1.0, 2.0, 3.0):
                expected = cell > 2 if "above" in when else cell >= 2
                expected = cell == 2 if {"is", "in"} & set(when) else expected
                for found in ([cell], [cell, cell]):
                    assert judge(rule.when, {"x": found}).holds.tolist() == [expected] * len(found)
                assert alone([cell], [], 0) is expected


def test_hours_are_those_of_their_zone() -> None:
    when = {"hours": [22, 6], "zone": "America/New_York"}
    for hour, expected in ((3, True), (10, True), (11, False), (12, False), (2, False)):
        # in January New York is five hours behind
        assert judge(when, {"x": [1]}, None, hour * HOUR_NS).holds[0] == expected


@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])
def test_hours_follow_the_changes_of_their_zone(zone: str) -> None:
    """Through a year, minute by minute around each change, as the zone itself says."""
    rule = Rule("r", {"hours": [1.5, 3], "zone": zone})
    place, before = ZoneInfo(zone), None
    for at_s in range(0, 366 * 86_400, 1_800):
        offset = datetime.fromtimestamp(at_s + 1_767_225_600, place).utcoffset()
        steps = range(at_s - 3_600, at_s + 3_600, 60) if offset != before else (at_s,)
        before = offset
        for step_s in steps:
            now = datetime.fromtimestamp(step_s + 1_767_225_600, place)
            is_inside = 90 <= now.hour * 60 + now.minute < 180
            asked = Asked(
                batch_of({"x": [1]}, ("x",)), None, (step_s + 1_767_225_600) * 1_000_000_000
            )
            assert rule.judge(asked).holds[0] == is_inside, now


@pytest.mark.parametrize(
    "when",
    [
        *({}, 7, {"field": "x"}, {"above": 1}, {"field": "x", "more": 1}, {"any": []}, {"any": {}}),
        *({"not": {"field": "x"}}, {"field": "x", "between": [1]}, {"field": "x", "in": 5}),
        *({"field": "x", "above": [1]}, {"field": "x", "missing": False}, {"score": 5}),
        *({"score": {"above": 1}, "column": -1}, {"hours": [1]}, {"hours": [1, 25]}),
        *({"hours": [1, 2], "zone": "Mars/Base"}, {"field": "x", "above": 1, "below": 5}),
        *({"any": [{"field": "x", "above": 1}], "all": []}, {"field": 5, "above": 1}),
    ],
)
def test_a_condition_that_cannot_be_read_is_refused_by_name(when: Any) -> None:
    with pytest.raises(OutputError, match="rule 'odd'"):
        Rule("odd", when)


def test_rules_are_named_once_and_read_from_settings() -> None:
    said = [{"name": "big", "when": {"field": "x", "above": 1}, "reason": "big ones"}]
    (rule,) = RuleSet.parse(said).rules
    assert (rule.name, rule.reason) == ("big", "big ones")
    for wrong, match in (
        ([*said, *said], "'big': is there twice"),
        ([{"name": "big"}], "not made of a name"),
        (["big"], "not made of a name"),
        ([{"when": {"field": "x", "above": 1}}], "has no name"),
        ([{**said[0], "why": "?"}], "not made of a name"),
    ):
        with pytest.raises(OutputError, match=match):
            RuleSet.parse(wrong)
    policies = [
        OutputPolicy(),
        OutputPolicy(rules=said),
        OutputPolicy(rules=[{**said[0], "when": {"field": "x", "above": 2}}]),
        OutputPolicy(rules=said, rules_off="a test"),
        OutputPolicy(ttl="1s"),
    ]
    assert len({policy.fingerprint for policy in policies}) == len(policies)
