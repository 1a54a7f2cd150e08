"""Adapters: the model's own names and answers, whatever container the batch comes in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from hotplate.outputs import (
    InputField,
    Model,
    OutputCache,
    OutputError,
    OutputPolicy,
    from_onnx,
    from_sklearn,
    from_xgboost,
)

NAMES = ["amount", "age", "count"]
CHANCE = np.random.default_rng(5)
X = pd.DataFrame(CHANCE.normal(size=(400, 3)).round(4), columns=NAMES)
Y = (X.amount + CHANCE.normal(size=400) / 4 > X.age).astype(int)


def containers(frame: pd.DataFrame) -> list[Any]:
    """The same rows in every form; columns in another order where they have names."""
    turned = frame[[*reversed(frame.columns)]].assign(other="x")
    rows = turned.to_dict("records")
    return [frame, turned, pa.Table.from_pandas(turned), turned.to_dict("list"), rows]


def check(model: Model, expected: Any, frame: pd.DataFrame, *, is_exact: bool = True) -> None:
    """Answers as the framework's own, and the cache's as the model's."""
    cache = OutputCache(model.name, model.version, model.inputs, OutputPolicy(shadow=0))
    given = containers(frame)
    if all(field.kind == "float" for field in model.inputs.fields):
        given.insert(0, frame.to_numpy())
    for number, batch in enumerate(given):
        scored = cache.score(batch, model.predict)
        assert scored.from_cache.all() == (number > 0), "the same key from every container"
        found = model.predict(batch)
        for one in (found, scored.values):
            if is_exact:
                np.testing.assert_array_equal(one, expected)
            else:
                np.testing.assert_allclose(one, expected, rtol=1e-5)
    single = dict(zip(frame.columns, frame.iloc[0].tolist(), strict=True))
    np.testing.assert_allclose(model.predict(single)[0], expected[0], rtol=1e-5)


# -- XGBoost -------------------------------------------------------------------------------------


def booster(seed: int = 0, **more: Any) -> Any:
    xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    data = xgboost.DMatrix(X, Y)
    settings = {"objective": "binary:logistic", "max_depth": 3, "seed": seed, "eta": 0.5}
    return xgboost.train({**settings, **more}, data, 10, evals=[(data, "d")], verbose_eval=False)


def test_xgboost() -> None:
    made = booster()
    model = from_xgboost(made, "fraud")
    assert model.inputs.names == tuple(NAMES)
    frame = X.head(20).copy()
    frame.iloc[3, 1] = np.nan
    check(model, made.inplace_predict(frame.to_numpy(np.float32)), frame)
    assert from_xgboost(booster(), "fraud").version == model.version
    assert from_xgboost(booster(eta=0.3), "fraud").version != model.version


def test_xgboost_estimators_say_what_is_missing() -> None:
    xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    frame = X.copy()
    frame.loc[::3, "amount"] = -999
    made, plain = (
        xgboost.XGBClassifier(n_estimators=5, missing=missing).fit(frame, frame.amount < -1)
        for missing in (-999, np.nan)
    )
    some = frame.head(20)
    for estimator in (made, plain):
        model = from_xgboost(estimator, "fraud")
        check(model, estimator.predict_proba(some)[:, 1], some)
    assert from_xgboost(made, "f").version != from_xgboost(made.get_booster(), "f").version
    assert from_xgboost(plain, "f").version == from_xgboost(plain.get_booster(), "f").version


def test_xgboost_estimators_leave_out_what_came_after_the_best_round() -> None:
    xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    noise = np.random.default_rng(1).integers(0, 2, 400)
    made = xgboost.XGBClassifier(n_estimators=60, early_stopping_rounds=3, max_depth=6)
    made.fit(X[:300], noise[:300], eval_set=[(X[300:], noise[300:])], verbose=False)
    assert made.best_iteration < len(made.get_booster().get_dump()) - 1
    model = from_xgboost(made, "fraud")
    found = model.predict(X[300:])
    np.testing.assert_allclose(found, made.predict_proba(X[300:])[:, 1], rtol=1e-6)


def test_what_xgboost_does_not_say_is_asked_for() -> None:
    xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    nameless = xgboost.train({}, xgboost.DMatrix(X.to_numpy(), Y), 1)
    with pytest.raises(OutputError, match="does not name its features"):
        from_xgboost(nameless, "fraud")
    frame = X.assign(kind=pd.Categorical(["a", "b"] * 200))
    data = xgboost.DMatrix(frame, Y, enable_categorical=True)
    with pytest.raises(OutputError, match="'kind'"):
        from_xgboost(xgboost.train({}, data, 1), "fraud")
    with pytest.raises(OutputError, match="'amuont'"):
        from_xgboost(booster(), "fraud", fields={"amuont": InputField("amuont")})


# -- scikit-learn --------------------------------------------------------------------------------


def test_scikit_learn() -> None:
    linear = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    made = linear.LogisticRegression().fit(X, Y)
    model = from_sklearn(made, "fraud")
    check(model, made.predict_proba(X.head(20)), X.head(20))
    again = linear.LogisticRegression().fit(X, Y)
    assert from_sklearn(again, "fraud").version == model.version
    other = linear.LogisticRegression(C=0.1).fit(X, Y)
    assert from_sklearn(other, "fraud").version != model.version
    margins = from_sklearn(made, "fraud", method="decision_function")
    assert margins.version != model.version
    check(margins, made.decision_function(X.head(20)), X.head(20))
    with pytest.raises(OutputError, match="has no transform"):
        from_sklearn(made, "fraud", method="transform")
    with pytest.raises(OutputError, match="does not name its features"):
        from_sklearn(linear.LogisticRegression().fit(X.to_numpy(), Y), "fraud")


def test_a_pipeline_that_reads_texts() -> None:
    linear = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    frame = X.assign(kind=np.where(X.age > 0, "pay", "refund"))
    coded = make_column_transformer((OneHotEncoder(), ["kind"]), remainder="passthrough")
    made = make_pipeline(coded, linear.LogisticRegression()).fit(frame, Y)
    model = from_sklearn(made, "fraud", fields={"kind": InputField("kind", "text")})
    check(model, made.predict_proba(frame.head(20)), frame.head(20))


# -- ONNX Runtime --------------------------------------------------------------------------------


def session(inputs: list[Any], nodes: list[Any], more: list[Any], **metadata: str) -> Any:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    from onnx import TensorProto, helper

    out = helper.make_tensor_value_info("score", TensorProto.FLOAT, [None, 1])
    graph = helper.make_graph(nodes, "g", inputs, [out], more)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(made, metadata)
    onnx.checker.check_model(made)
    return runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


def linear_session(**metadata: str) -> Any:
    """score = features @ [1, 2, 3]."""
    pytest.importorskip("onnx", reason="onnx is not installed")
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.array([[1], [2], [3]], np.float32), "w")
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, [None, 3])
    return session(
        [rows], [helper.make_node("MatMul", ["rows", "w"], ["score"])], [weights], **metadata
    )


def test_onnx_with_one_matrix() -> None:
    frame = X.head(20)
    expected = frame.to_numpy(np.float32) @ np.array([[1], [2], [3]], np.float32)
    named = from_onnx(linear_session(), "fraud", version="7", names=NAMES)
    check(named, expected, frame, is_exact=False)
    said = linear_session(feature_names='["amount", "age", "count"]')
    assert from_onnx(said, "fraud", version="7").inputs == named.inputs
    for wrong in ("", "no json", "[1]"):
        with pytest.raises(OutputError, match="does not name its features"):
            from_onnx(linear_session(feature_names=wrong), "fraud", version="7")
    with pytest.raises(OutputError, match="reads 3 features, and 2 are named"):
        from_onnx(linear_session(), "fraud", version="7", names=NAMES[:2])


def test_versions_tell_outputs_of_one_session_apart() -> None:
    made = linear_session()
    (name,) = [one.name for one in made.get_outputs()]
    assert from_onnx(made, "fraud", version="7", names=NAMES).version == f"7:{name}"


def test_onnx_with_an_input_a_column() -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    from onnx import TensorProto, helper

    inputs = [
        helper.make_tensor_value_info("amount", TensorProto.FLOAT, [None, 1]),
        helper.make_tensor_value_info("days", TensorProto.INT64, [None, 1]),
    ]
    nodes = [
        helper.make_node("Cast", ["days"], ["d"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["amount", "d"], ["score"]),
    ]
    model = from_onnx(session(inputs, nodes, []), "fraud", version="1")
    assert [(one.name, one.kind) for one in model.inputs.fields] == [
        ("amount", "float"),
        ("days", "int"),
    ]
    frame = pd.DataFrame({"amount": [0.5, 1.25], "days": [3, 4]})
    check(model, np.array([[3.5], [5.25]], np.float32), frame)
