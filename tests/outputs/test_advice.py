"""Advice on keys: what is said of the rows is true of them, by counting anew."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from hotplate.cli import main
from hotplate.outputs import InputField, InputSchema, OutputError
from hotplate.outputs.advice import Change, advise, schema_of


def counted(frame: pd.DataFrame, scores: list[float], kept: dict[str, int | None]) -> Any:
    """Keys, and the widest spread of scores under one, in plain Python."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for number, row in enumerate(frame.to_dict("records")):
        key = tuple(
            row[name] if places is None else round(row[name] * 10.0**places)
            for name, places in kept.items()
        )
        groups.setdefault(key, []).append(scores[number])
    return len(groups), max(max(found) - min(found) for found in groups.values())


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 3), st.integers(0, 3)),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from(["amount", "n", "both", "neither"]),
)
def test_every_change_holds_on_the_rows(rows: list[tuple[int, int, int]], reads: str) -> None:
    frame = pd.DataFrame(
        {
            "amount": [amount / 100 + 0.003 for amount, _, _ in rows],
            "n": [n for _, n, _ in rows],
            "noise": [noise for _, _, noise in rows],
        }
    )
    scores = [
        (amount // 10 if reads in ("amount", "both") else 0) + (n if reads in ("n", "both") else 0)
        for amount, n, _ in rows
    ]
    schema = InputSchema((InputField("amount"), InputField("n", "int"), InputField("noise", "int")))
    advice = advise(frame, np.array(scores, float), schema, least=1e-9)
    kept: dict[str, int | None] = {"amount": 4, "n": None, "noise": None}
    keys, spread = counted(frame, scores, kept)
    assert (advice.rows, advice.keys) == (len(rows), keys)
    assert math.isclose(advice.spread, spread)
    for change in advice.changes:
        if change.decimals is None:
            del kept[change.field]
        else:
            kept[change.field] = change.decimals
        now, spread = counted(frame, scores, kept)
        assert (change.keys, change.spread) == (now, pytest.approx(spread))
        assert change.keys <= keys
        assert change.spread <= 5e-5
        keys = now
    if reads == "neither":
        assert keys == 1, "whatever splits inputs of one score is found"
    if advice.refused is not None:
        assert advice.refused.spread > 5e-5


def test_it_says_what_to_do() -> None:
    """One field is noise, one too fine, one matters."""
    chance = np.random.default_rng(2)
    frame = pd.DataFrame(
        {
            "amount": chance.integers(0, 20, 3_000) + chance.uniform(-0.4, 0.4, 3_000),
            "request": chance.integers(0, 1 << 40, 3_000),
            "n": chance.integers(0, 3, 3_000),
            "kind": chance.choice(["pay", "refund"], 3_000),
        }
    )
    scores = np.rint(frame.amount) / 20 + frame.n + (frame.kind == "pay")
    advice = advise(frame, scores, schema_of(frame))
    assert advice.reuse == 0.0
    assert [one.what for one in advice.changes] == [
        "round amount to 0 places",
        "leave out request",
    ]
    assert advice.changes[-1].keys == 20 * 3 * 2
    assert advice.changes[-1].reuse == pytest.approx(1 - 120 / 3_000)
    assert advice.refused is not None


def test_keys_of_one_row_prove_nothing() -> None:
    """Every subset of these fields tells all rows apart; none of them is said to be enough."""
    chance = np.random.default_rng(3)
    frame = pd.DataFrame(chance.normal(size=(500, 5)), columns=list("abcde"))
    advice = advise(frame, frame.sum(axis=1), schema_of(frame))
    assert advice.changes == ()


def test_scores_that_differ_are_never_joined() -> None:
    frame = pd.DataFrame({"a": [1.0, 1.0001, 2.0], "b": ["x", "y", "x"]})
    advice = advise(frame, [0.1, 0.9, 0.5], schema_of(frame))
    assert advice.changes == ()
    assert isinstance(advice.refused, Change)
    assert (advice.refused.what, advice.refused.spread) == ("leave out a", pytest.approx(0.4))


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_score_that_is_no_number_is_left_out(odd: float) -> None:
    """It says nothing of the others, whatever it shares a key with."""
    frame = pd.DataFrame({"a": np.arange(400) % 20, "b": np.arange(400) % 2})
    scores = frame.a / 20
    expected = advise(frame.drop([5, 25]), scores.drop([5, 25]), schema_of(frame))
    scores[[5, 25]] = odd
    found = advise(frame, scores, schema_of(frame))
    assert (found.left_out, found.rows) == (2, 398)
    assert (found.changes, found.keys) == (expected.changes, expected.keys)
    with pytest.raises(OutputError, match="are all no numbers"):
        advise(frame, np.full(400, odd), schema_of(frame))
    with pytest.raises(OutputError, match="input 'c': is not among the columns"):
        advise(frame, frame.a, schema_of(frame.assign(c=1)))


def test_kinds_are_those_of_the_columns() -> None:
    frame = pd.DataFrame(
        {"f": [0.5], "i": [1], "b": [True], "t": [pd.Timestamp("2026-01-01")], "s": ["x"], "y": 1.0}
    )
    assert [(one.name, one.kind) for one in schema_of(frame, without=["y"]).fields] == [
        *(("f", "float"), ("i", "int"), ("b", "bool"), ("t", "time"), ("s", "text"))
    ]


@pytest.mark.parametrize("scores", [[0.5], ["a", "b"], 0.5])
def test_scores_that_are_none_are_refused(scores: Any) -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0]})
    with pytest.raises(OutputError, match="scores"):
        advise(frame, scores, schema_of(frame))
    with pytest.raises(OutputError, match="0 rows"):
        advise(frame[:0], [], schema_of(frame))


# -- the command ----------------------------------------------------------------------------------


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["outputs", "advise", *map(str, words)])


def write(folder: Path) -> Path:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "amount": rng.integers(0, 9, 600) / 4,
            "request": rng.integers(0, 1 << 40, 600),
            "channel": rng.choice(["app", "web"], 600),
            "when": rng.random(600),
        }
    ).assign(p=lambda made: made.amount / 10)
    path = folder / "scored.parquet"
    frame.to_parquet(path)
    frame.to_csv(folder / "scored.csv", index=False)
    return path


def test_the_command(tmp_path: Path) -> None:
    path = write(tmp_path)
    result = run(path, "--score", "p", "--without", "when")
    assert result.exit_code == 0, result.output
    assert "+ leave out request" in result.output
    assert "not: " in result.output
    words = ("--score", "p", "--without", "when", "--family", "channel", "--json")
    for file in (path, path.with_suffix(".csv")):
        found = json.loads(run(file, *words).stdout)
        assert {one["field"] for one in found["changes"]} >= {"request", "channel"}
        assert set(found["families"]) == {"app", "web"}
        assert sum(one["rows"] for one in found["families"].values()) == 600


def test_what_is_wrong_with_the_command_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "no.parquet").write_text("rows")
    for words, said in (
        ((path,), "has no column 'score'; there are amount, request"),
        ((path, "--score", "channel"), "scores: are object"),
        ((tmp_path / "no.parquet",), "cannot be read as Parquet"),
    ):
        result = run(*words)
        assert result.exit_code == 1
        assert said in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
