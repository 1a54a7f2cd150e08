"""Drift: noise is steady as often as is said, what moved is found, and too few rows say so."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hotplate.skew import DriftReport, DriftSpec, FeatureDrift, SkewError, check_drift

# nothing is too small to matter: only chance is left to decide
BY_CHANCE_ALONE = {
    f"{measure}_{verdict}": 0.0
    for measure in ("psi", "ks", "js", "nulls")
    for verdict in ("shifted", "drifted")
}


def table(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """Columns of the kinds that features are."""
    normal = rng.normal(size=rows)
    return pd.DataFrame(
        {
            "normal": normal,
            "heavy": np.exp(2 * rng.normal(size=rows)),
            "mostly_zero": np.where(rng.random(rows) < 0.8, 0.0, rng.gamma(1, 1, rows)),
            "count": rng.poisson(3, rows),
            "flag": rng.integers(0, 2, rows),
            "constant": 7.0,
            "with_nulls": np.where(rng.random(rows) < 0.1, np.nan, normal),
            "segment": rng.choice(list("abcdef"), rows, p=[0.5, 0.3, 0.1, 0.05, 0.04, 0.01]),
        }
    )


def of(report: DriftReport, name: str) -> FeatureDrift:
    return next(one for one in report.features if one.name == name)


def value(one: FeatureDrift, name: str) -> float:
    found = one.measure(name)
    assert found is not None
    return found.value


def test_noise_moves_nothing_as_often_as_is_said() -> None:
    """250 pairs of tables of one distribution, small and large, with no threshold but chance: at a
    level of 10 % over all features, fewer than 15 % have a measure beyond it (a limit that a
    true 10 % passes less than once in 100 times)."""
    rng = np.random.default_rng(0)
    spec = DriftSpec(level=0.1, **BY_CHANCE_ALONE)
    alarms = 0
    for _ in range(250):
        sizes = rng.choice([30, 100, 400, 2_000], 2)
        report = check_drift(table(rng, sizes[0]), table(rng, sizes[1]), spec=spec)
        measures = [found for one in report.features for found in one.measures]
        alarms += any(found.value > found.chance for found in measures)
    assert alarms / 250 < 0.15


def test_noise_is_steady_at_the_defaults() -> None:
    """60 pairs of tables of 3,000 rows: not one verdict but steady."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        report = check_drift(table(rng, 3_000), table(rng, 3_000))
        assert {one.verdict for one in report.features} == {"steady"}
        assert report.is_fine


def test_owners_that_differ_are_noise_too() -> None:
    """Each card spends in its own way. Two samples of 40 cards differ, and say nothing; with 50
    rows a card taken for independent ones, nearly all pairs would be called moved."""
    spec = DriftSpec(level=0.1, owners={"amount": "card"}, **BY_CHANCE_ALONE)
    blind = DriftSpec(level=0.1, **BY_CHANCE_ALONE)
    rng = np.random.default_rng(2)
    alarms, blind_alarms = 0, 0
    for _ in range(100):
        tables = []
        for _ in range(2):
            own = rng.normal(size=40)
            cards = np.repeat(np.arange(40), 50)
            amounts = own[cards] + 0.3 * rng.normal(size=2_000)
            tables.append(pd.DataFrame({"card": cards, "amount": amounts}))
        for which in (spec, blind):
            report = check_drift(*tables, ["amount"], which)
            moved = any(found.value > found.chance for found in report.features[0].measures)
            alarms += moved and which is spec
            blind_alarms += moved and which is blind
    assert alarms <= 20
    assert blind_alarms > 90


@pytest.mark.parametrize(
    ("name", "change", "measure"),
    [
        ("normal", lambda column: column + 1, "psi"),
        ("heavy", lambda column: column * 100, "psi"),
        ("count", lambda column: column * 2, "ks"),
        ("constant", lambda column: column + 1, "psi"),
        ("constant", lambda column: column - 1, "psi"),
        ("flag", lambda column: 1.0, "ks"),
        ("with_nulls", lambda column: column.where(column > 0), "nulls"),
        ("mostly_zero", lambda column: column.where(column > 0, 0.01), "psi"),
        ("segment", lambda column: column.replace("a", "z"), "js"),
    ],
)
def test_what_moved_is_found_and_nothing_else(name: str, change: Any, measure: str) -> None:
    rng = np.random.default_rng(3)
    reference, current = table(rng, 4_000), table(rng, 2_000)
    current[name] = change(current[name])
    report = check_drift(reference, current)
    assert [one.name for one in report.of("drifted")] == [name]
    assert not report.of("shifted", "too few rows")
    found = of(report, name).measure(measure)
    assert found is not None
    assert found.verdict == "drifted"
    assert found.value > found.drifted > found.chance
    assert not report.is_fine


def test_a_small_move_is_a_shift() -> None:
    rng = np.random.default_rng(4)
    reference, current = table(rng, 6_000), table(rng, 6_000)
    report = check_drift(reference, current.assign(normal=current["normal"] + 0.4))
    assert [one.name for one in report.of("shifted")] == ["normal"]
    assert report.is_fine


def test_few_rows_say_nothing() -> None:
    """A PSI of a tenth among 50 rows: neither steady nor moved. A great move is seen even so."""
    rng = np.random.default_rng(5)
    reference, current = rng.normal(size=2_000), rng.normal(size=50)
    report = check_drift(pd.DataFrame({"a": reference}), pd.DataFrame({"a": current}))
    assert value(report.features[0], "psi") > 0.1
    assert report.features[0].verdict == "too few rows"
    assert report.is_fine
    report = check_drift(pd.DataFrame({"a": reference}), pd.DataFrame({"a": current + 3}))
    assert report.features[0].verdict == "drifted"


def test_measures_do_not_depend_on_the_unit_or_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(6)
    reference, current = table(rng, 1_000), table(rng, 800)
    first = check_drift(reference, current)
    mixed = current.sample(frac=1, random_state=1)
    second = check_drift(
        reference.assign(heavy=reference["heavy"] * 8), mixed.assign(heavy=mixed["heavy"] * 8)
    )
    for one, other in zip(first.features, second.features, strict=True):
        pairs = zip(one.measures, other.measures, strict=True)
        assert all(left.value == pytest.approx(right.value) for left, right in pairs), one.name


def test_columns_that_are_gone_or_new_are_named() -> None:
    rng = np.random.default_rng(7)
    current = table(rng, 500).drop(columns="count").assign(extra=1)
    report = check_drift(table(rng, 500), current)
    assert [one.name for one in report.of("missing")] == ["count"]
    assert report.added == ["extra"]
    assert not report.is_fine
    assert json.loads(json.dumps(report.numbers()))["added"] == ["extra"]


def test_a_column_of_nulls_has_drifted_from_one_of_numbers() -> None:
    rng = np.random.default_rng(8)
    report = check_drift(table(rng, 500), table(rng, 500).assign(normal=np.nan))
    assert of(report, "normal").verdict == "drifted"
    assert of(report, "normal").nulls == (0, 1)


@pytest.mark.parametrize(
    ("reference", "current", "more", "problem"),
    [
        ({"a": []}, {"a": [1.0]}, {}, "the reference table: has no rows"),
        ({"a": [1.0]}, {"a": []}, {}, "the current table: has no rows"),
        ({"a": [1.0]}, {"a": ["x"]}, {}, "column 'a' of the current table: is object"),
        ({"a": [1.0]}, {"a": [1.0]}, {"features": ["b"]}, "has no column 'b'"),
        ({"a": [1.0]}, {"a": [1.0]}, {"spec": DriftSpec(owners={"a": "who"})}, "column 'who'"),
    ],
)
def test_what_cannot_be_compared_is_said(
    reference: Any, current: Any, more: Any, problem: str
) -> None:
    with pytest.raises(SkewError, match=problem):
        check_drift(pd.DataFrame(reference), pd.DataFrame(current), **more)
