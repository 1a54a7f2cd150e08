"""Scores are XGBoost's own to the bit, for few rows and many, or come from XGBoost itself."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.fraud import scorer
from pipelines.fraud.scorer import Scorer

xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed")

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
BOOSTERS = DATA / "xgboost" / "boosters"
BASELINE = DATA / "xgboost" / "fdh_baseline"
TRANSACTIONS = DATA / "transactions"

needs_published = pytest.mark.skipif(
    not BOOSTERS.is_dir(), reason=f"the published models are not at {BOOSTERS}"
)
needs_baseline = pytest.mark.skipif(
    not (BASELINE.is_dir() and TRANSACTIONS.is_dir()),
    reason=f"the baseline is not at {BASELINE}, or its transactions at {TRANSACTIONS}",
)
CASES = [
    "dart_regression",
    *(f"gblinear_{kind}" for kind in ("binary", "multiclass", "regression")),
    *(f"gbtree_{kind}" for kind in ("binary_logistic", "multiclass", "regression")),
    *(f"gbtree_{kind}_missing" for kind in ("binary_logistic", "multiclass", "regression")),
    *(f"gbtree_{kind}" for kind in ("categorical", "categorical_binary", "deep_trees")),
    *(f"gbtree_{kind}" for kind in ("many_trees", "single_tree", "wide_features")),
]

COUNTS = (0, 1, 2, 17, 63, 64, 65, 200)
ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3.4e38, -3.4e38]


def train(seed: int = 0, rounds: int = 12, features: int = 4, **more: Any) -> Any:
    """Return a model of rows of which some values are missing."""
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(300, features)).astype(np.float32)
    labels = (rows[:, 0] - rows[:, -1] + draw.normal(size=300) / 2 > 0).astype(np.float32)
    if more.get("objective") == "multi:softprob":
        labels += rows[:, 0] > 1
    rows[draw.random(rows.shape) < 0.2] = np.nan
    if more.get("booster") != "gblinear":
        more = {"max_depth": 4, **more}
    settings = {"objective": "binary:logistic", "seed": seed, **more}
    return xgboost.train({"nthread": 1, **settings}, xgboost.DMatrix(rows, labels), rounds)


def odd_rows(booster: Any, count: int, seed: int = 0) -> Any:
    """Return rows whose values are those the model splits at, their neighbors, and odd ones."""
    draw = np.random.default_rng(seed)
    trees = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]
    trees = trees.get("gbtree", trees)["model"]["trees"]
    columns = []
    for feature in range(booster.num_features()):
        splits = [
            value
            for tree in trees
            for value, index, left in zip(
                tree["split_conditions"],
                tree["split_indices"],
                tree["left_children"],
                strict=True,
            )
            if index == feature and left >= 0
        ]
        at = np.array([*splits, *draw.normal(size=5)], np.float32)
        down, up = (np.nextafter(at, np.float32(end)) for end in (-np.inf, np.inf))
        some = draw.choice(np.concatenate([at, down, up]), count)
        is_odd = draw.random(count) < 0.25
        columns.append(np.where(is_odd, draw.choice(ODD, count), some))
    return np.array(columns).T.astype(np.float32)


def bits(scores: Any) -> Any:
    """Return what is compared: shape, dtype and every bit."""
    return scores.shape, scores.dtype, scores.tobytes()


def check(made: Scorer, booster: Any, rounds: tuple[int, int] = (0, 0)) -> None:
    """Scores of any number of rows are those of `inplace_predict`, to the bit."""
    rows = odd_rows(booster, max(COUNTS))
    for count in COUNTS:
        some = rows[:count].copy()
        expected = booster.inplace_predict(some, iteration_range=rounds)
        assert bits(made.score(some)) == bits(expected), f"{count} rows"
        assert some.tobytes() == rows[:count].tobytes(), "rows are left as they were"


def is_fast(made: Scorer) -> bool:
    """Whether few rows go another way than many."""
    return made.way.startswith("up to 64 rows") and "C interface on cpu" in made.way


# -- the same bits --------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rounds=st.integers(1, 40),
    features=st.integers(1, 12),
    max_depth=st.integers(1, 9),
    objective=st.sampled_from(["binary:logistic", "reg:squarederror", "binary:logitraw"]),
    base_score=st.sampled_from([None, 0.5, 0.003, 0.31, 0.97]),
    tree_method=st.sampled_from(["hist", "exact"]),
)
def test_any_model_scores_to_the_bit(seed: int, rounds: int, features: int, **more: Any) -> None:
    """Depths, objectives and base scores, on values at the splits, missing, infinite and tiny."""
    booster = train(seed, rounds, features, **more)
    made = Scorer(booster)
    assert is_fast(made)
    check(made, booster)


@pytest.mark.parametrize(
    "more",
    [
        {"objective": "count:poisson"},
        {"objective": "binary:hinge"},
        {"booster": "dart", "rate_drop": 0.5},
        {"num_parallel_tree": 3, "subsample": 0.5},
        {"grow_policy": "lossguide", "max_depth": 0, "max_leaves": 40},
    ],
)
def test_other_objectives_and_boosters_of_one_output_score_to_the_bit(more: Any) -> None:
    """What XGBoost walks itself needs no rules of ours for it."""
    booster = train(**more)
    made = Scorer(booster)
    assert is_fast(made)
    check(made, booster)


def test_categories_score_to_the_bit() -> None:
    """Categories are given as their codes; unknown ones are no error."""
    draw = np.random.default_rng(2)
    rows = np.column_stack([draw.integers(0, 6, 300), draw.normal(size=300)])
    kinds = {"feature_types": ["c", "q"], "enable_categorical": True}
    data = xgboost.DMatrix(rows, rows[:, 0] % 2 == 0, **kinds)
    booster = xgboost.train({"objective": "binary:logistic"}, data, 8)
    made = Scorer(booster)
    assert is_fast(made)
    check(made, booster)


def test_rounds_after_the_best_one_are_left_out() -> None:
    """Where training stopped early, as `hotplate.outputs.from_xgboost` and the estimators do."""
    draw = np.random.default_rng(1)
    rows, noise = draw.normal(size=(400, 4)), draw.integers(0, 2, 400)
    parts = [xgboost.DMatrix(rows[some], noise[some]) for some in (slice(300), slice(300, 400))]
    booster = xgboost.train(
        {"objective": "binary:logistic"},
        parts[0],
        60,
        evals=[(parts[1], "d")],
        early_stopping_rounds=3,
        verbose_eval=False,
    )
    assert booster.best_iteration < booster.num_boosted_rounds() - 1
    made = Scorer(booster)
    check(made, booster, (0, booster.best_iteration + 1))
    some = rows[:5].astype(np.float32)
    assert made.score(some).tobytes() != booster.inplace_predict(some).tobytes()


@needs_published
@pytest.mark.parametrize("case", CASES)
def test_published_models_score_as_published(case: str) -> None:
    """Models of another project, with their inputs and outputs.

    Those came from `predict`, which in models of dart differs from `inplace_predict` in a last bit.
    """
    booster = xgboost.Booster(model_file=BOOSTERS / f"{case}.model.json")
    inputs, outputs = (
        json.loads((BOOSTERS / f"{case}.{part}.json").read_text()) for part in ("input", "expected")
    )
    rows = np.array(inputs["features"], np.float64).astype(np.float32)
    made = Scorer(booster)
    found = made.score(rows)
    expected = np.array(outputs["predictions_transformed"], np.float32).reshape(found.shape)
    near = {"gblinear": 2e-5, "dart": 2e-7}.get(case.partition("_")[0], 0.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=near)
    if "gblinear" not in case:
        check(made, booster)


@needs_baseline
def test_the_baseline_scores_as_recorded() -> None:
    """58,264 transactions, one by one, in blocks and all at once."""
    names = json.loads((BASELINE / "meta.json").read_text())["features"]
    table = pd.read_parquet(BASELINE / "expected.parquet")
    amounts = pd.read_parquet(
        TRANSACTIONS / "fdh_transactions.parquet", columns=["TRANSACTION_ID", "TX_AMOUNT"]
    )
    table = table.merge(amounts, on="TRANSACTION_ID").merge(
        pd.read_parquet(TRANSACTIONS / "fdh_features_20180725_20180814.parquet"),
        on="TRANSACTION_ID",
    )
    rows = np.ascontiguousarray(table[names].to_numpy(np.float32))
    expected = table["prob"].to_numpy(np.float32)
    assert len(rows) == 58_264
    made = Scorer(xgboost.Booster(model_file=BASELINE / "model.ubj"))
    assert is_fast(made)
    assert made.score(rows).tobytes() == expected.tobytes()
    for size, until in ((1, 2_000), (64, len(rows))):
        starts = range(0, until, size)
        found = np.concatenate([made.score(rows[at : at + size]) for at in starts])
        assert found.tobytes() == expected[: len(found)].tobytes(), f"{size} at once"


# -- giving way -----------------------------------------------------------------------------------


def test_a_model_of_several_outputs_is_left_to_the_booster() -> None:
    """It answers (rows, outputs), and the line says why."""
    booster = train(objective="multi:softprob", num_class=3)
    made = Scorer(booster)
    assert (
        made.way == "any number of rows: inplace_predict on cpu, as the model gives 3 numbers a row"
    )
    check(made, booster)


def test_a_linear_model_is_left_to_the_booster() -> None:
    """`inplace_predict` refuses it, so it is scored from a DMatrix, whose rows must be finite."""
    booster = train(booster="gblinear")
    made = Scorer(booster)
    assert made.way.startswith("any number of rows: predict of a DMatrix on cpu, as Inplace")
    rows = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    for count in (1, 64, 100):
        expected = booster.predict(xgboost.DMatrix(rows[:count]))
        assert bits(made.score(rows[:count])) == bits(expected)
    rows[0, 0] = np.inf
    with pytest.raises(ValueError, match="inf"):
        made.score(rows)


@pytest.mark.parametrize("count", [1, 7, 64])
def test_one_wrong_bit_is_found_when_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """In the last row of one of the batches tried; the Booster then scores everything."""
    right = scorer._Direct.__call__

    def wrong(direct: Any, rows: Any) -> Any:
        scores = right(direct, rows)
        if len(rows) == count:
            scores.view(np.uint32)[-1] ^= 1
        return scores

    monkeypatch.setattr(scorer._Direct, "__call__", wrong)
    booster = train()
    made = Scorer(booster)
    assert made.way == (
        "any number of rows: inplace_predict on cpu, "
        "as the C interface differs from it in 1 of 72 rows tried"
    )
    check(made, booster)


def test_a_library_that_cannot_be_called_so_is_left_to_the_booster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not found, without the function, or refusing the call."""
    booster = train()
    with monkeypatch.context() as patch:
        patch.setattr(xgboost, "build_info", dict)
        made = Scorer(booster)
        assert made.way.endswith("as the C interface fails: 'libxgboost'")
        check(made, booster)
    with monkeypatch.context() as patch:
        patch.setattr(xgboost, "build_info", lambda: {"libxgboost": None})
        made = Scorer(booster)
        assert "undefined symbol: XGBoosterPredictFromDense" in made.way
        check(made, booster)
    with monkeypatch.context() as patch:
        patch.setattr(scorer, "_ARRAY", b'{"at":%d,"of":[%d,%d]}')
        made = Scorer(booster)
        assert "as the C interface fails: " in made.way
        check(made, booster)


# -- use ------------------------------------------------------------------------------------------


def test_threads_do_not_disturb_one_another() -> None:
    """Each scores rows of its own in blocks of its own size, all at once; none leaves a thing."""
    booster = train(rounds=30)
    made = Scorer(booster)
    rows = odd_rows(booster, 3_000)
    expected = booster.inplace_predict(rows)
    sizes = (1, 2, 5, 31, 64, 65, 500)
    start, wrong = threading.Barrier(len(sizes)), []

    def work(size: int) -> None:
        start.wait()
        order = np.random.default_rng(size).permutation(len(rows))
        for at in range(0, len(rows), size):
            some = order[at : at + size]
            if made.score(rows[some]).tobytes() != expected[some].tobytes():
                wrong.append((size, at))

    def proxies() -> int:
        gc.collect()
        return sum(type(one) is scorer._Proxy for one in gc.get_objects())

    before = proxies()
    threads = [threading.Thread(target=work, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert proxies() == before


def test_what_is_done_to_the_booster_later_changes_nothing() -> None:
    """The scorer has the model as it was; the Booster keeps its own settings."""
    booster = train()
    rows = odd_rows(booster, 100)
    expected = booster.inplace_predict(rows)
    before = booster.save_config()
    made = Scorer(booster)
    assert booster.save_config() == before
    booster.update(xgboost.DMatrix(np.nan_to_num(rows), np.arange(100) % 2), 12)
    booster.set_attr(best_iteration="0")
    for count in (1, 64, 100):
        assert made.score(rows[:count]).tobytes() == expected[:count].tobytes()


def test_scores_are_the_callers_own() -> None:
    """Another call leaves them as they are, and they can be written to."""
    booster = train()
    made = Scorer(booster)
    rows = odd_rows(booster, 64)
    first = made.score(rows)
    kept = first.copy()
    made.score(rows[::-1])
    assert first.tobytes() == kept.tobytes()
    first[0] = 2.0
    assert made.score(rows).tobytes() == kept.tobytes()


@pytest.mark.parametrize("count", [1, 9, 64, 100])
def test_matrices_of_other_dtypes_and_orders_are_the_same_rows(count: int) -> None:
    """What is not float32 in C order is copied into it."""
    booster = train()
    made = Scorer(booster)
    rows = odd_rows(booster, count)
    expected = booster.inplace_predict(rows).tobytes()
    wide = np.zeros((2 * count, 8), np.float32)
    wide[::2, ::2] = rows
    for one in (np.asfortranarray(rows), rows.astype(np.float64), wide[::2, ::2]):
        assert made.score(one).tobytes() == expected


def test_other_shapes_are_refused() -> None:
    """One row is a matrix of one row; a column too few is no missing one."""
    made = Scorer(train())
    for shape in ((4,), (3, 5), (3, 3), (1, 3, 4)):
        with pytest.raises(ValueError, match=r"the model reads \(rows, 4\)"):
            made.score(np.zeros(shape, np.float32))


def test_other_devices_are_refused() -> None:
    """A device is named as XGBoost names it."""
    with pytest.raises(ValueError, match="device='gpu'"):
        Scorer(train(), device="gpu")


def test_a_gpu_that_xgboost_does_not_find_is_not_said_to_be_used(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """XGBoost warns and scores on the CPU; the line names what it does."""
    if xgboost.build_info()["USE_CUDA"]:
        pytest.skip("this XGBoost may find a GPU")
    booster = train()
    made = Scorer(booster, device="cuda")
    assert any("GPU" in str(one.message) for one in recwarn)
    assert "cuda" not in made.way
    check(made, booster)
