"""Models of the usual frameworks, as what the cache of outputs needs to know of them.

Each adapter takes the names of the inputs, in their order, from the model itself, and makes a
`predict` that takes a batch in any of its usual containers. The frameworks are imported by nobody
but the caller: an adapter only calls what it was given.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from hotplate.outputs.batch import batch_of
from hotplate.outputs.errors import OutputError
from hotplate.outputs.inputs import InputField, InputSchema, Kind

__all__ = ["Model", "from_onnx", "from_sklearn", "from_xgboost"]

_METHODS: Final = ("predict_proba", "predict")
_ONNX_KINDS: Final[dict[str, tuple[Kind, Any]]] = {
    "tensor(float)": ("float", np.float32),
    "tensor(double)": ("float", np.float64),
    "tensor(float16)": ("float", np.float16),
    **{
        f"tensor({sign}int{bits})": ("int", np.dtype(f"{sign}int{bits}"))
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "tensor(bool)": ("bool", np.bool_),
    "tensor(string)": ("text", np.object_),
}
_FLOATS: Final = tuple(name for name, (kind, _) in _ONNX_KINDS.items() if kind == "float")


@dataclass(frozen=True)
class Model:
    """A model, as `hotplate.of(store).outputs(...)` and `score` want it.

    Attributes:
        name: of the model.
        version: of the model.
        inputs: what it reads, in its order.
        predict: takes a batch in any container, returns an array of (rows,) or (rows, columns).
    """

    name: str
    version: str
    inputs: InputSchema
    predict: Callable[[Any], npt.NDArray[Any]]


def from_xgboost(
    model: Any,
    name: str,
    *,
    version: str | None = None,
    decimals: int | None = 4,
    fields: Mapping[str, InputField] | None = None,
) -> Model:
    """A `Booster`, or an estimator of `xgboost.sklearn`, scored with `inplace_predict`.

    Args:
        model: the model; it must know the names of its features.
        name: of the model.
        version: of the model; a hash of all of it if left out.
        decimals: places to which inputs are rounded for their key; None for every bit.
        fields: of inputs that are to be rounded otherwise.

    Returns:
        Its outputs are those of the objective: a probability for `binary:logistic`. Where training
        stopped early, trees after the best round are left out, as the estimators do. What an
        estimator was told to read as `missing` is missing beside NaN.

    Raises:
        OutputError: it names no features, or reads categories.
    """
    is_estimator = hasattr(model, "get_booster")
    booster = model.get_booster() if is_estimator else model
    missing = float(model.missing) if is_estimator and model.missing is not None else np.nan
    names = booster.feature_names
    _must_name(name, names, "Train it from a DataFrame, or set booster.feature_names.")
    kinds = booster.feature_types or []
    if "c" in kinds:
        raise OutputError(
            where=f"model {name!r}",
            problem=f"reads categories ({names[kinds.index('c')]!r}), whose codes only a frame has",
            fix="Declare its inputs yourself, and give outputs.score a predict of your own.",
        )
    best = booster.attr("best_iteration")
    rounds = (0, int(best) + 1) if best is not None else (0, 0)

    def predict(batch: Any) -> npt.NDArray[Any]:
        matrix = _matrix_of(batch, names, np.float32)
        return np.asarray(booster.inplace_predict(matrix, iteration_range=rounds, missing=missing))

    if version is None:
        version = _digest(bytes(booster.save_raw("ubj")))
        version += "" if np.isnan(missing) else f":missing={missing:g}"
    return Model(
        name,
        version,
        _schema(names, {}, fields, decimals),
        predict,
    )


def from_sklearn(
    estimator: Any,
    name: str,
    *,
    version: str | None = None,
    decimals: int | None = 4,
    fields: Mapping[str, InputField] | None = None,
    method: str | None = None,
) -> Model:
    """A fitted estimator or pipeline of scikit-learn.

    Args:
        estimator: fitted on a frame, so that it knows the names of its features.
        name: of the model.
        version: of the model; a hash of all of it (`joblib.hash`) if left out.
        decimals: places to which floats are rounded for their key; None for every bit.
        fields: inputs that are no floats, or are to be rounded otherwise.
        method: what is called: `"predict_proba"` where it has that, else `"predict"`.

    Raises:
        OutputError: it names no features, or has no such method.
    """
    names = getattr(estimator, "feature_names_in_", None)
    _must_name(name, names, "Fit it on a DataFrame.")
    names = [str(one) for one in names]  # type: ignore[union-attr]
    chosen = method or next((one for one in _METHODS if hasattr(estimator, one)), _METHODS[-1])
    call = getattr(estimator, chosen, None)
    if call is None:
        raise OutputError(
            where=f"model {name!r}",
            problem=f"has no {chosen}",
            fix="Name a method that it has: method='decision_function'.",
        )
    if version is None:
        version = str(importlib.import_module("joblib").hash(estimator))
    schema = _schema(names, {}, fields, decimals)
    is_plain = all(field.kind == "float" for field in schema.fields)

    def predict(batch: Any) -> npt.NDArray[Any]:
        if isinstance(batch, pd.DataFrame) and list(batch.columns) == names:
            return np.asarray(call(batch))
        if is_plain:
            frame = pd.DataFrame(_matrix_of(batch, names, np.float64), columns=names)
        else:
            frame = pd.DataFrame(_columns_of(batch, schema))
        return np.asarray(call(frame))

    return Model(name, f"{version}:{chosen}", schema, predict)


def from_onnx(
    session: Any,
    name: str,
    *,
    version: str,
    names: Sequence[str] | None = None,
    decimals: int | None = 4,
    fields: Mapping[str, InputField] | None = None,
    output: str | None = None,
) -> Model:
    """An `InferenceSession` of ONNX Runtime.

    Either each input of the session is a column, of (rows,) or (rows, 1), and its name the name of
    the feature; or there is one input of (rows, features), and the features are named by `names`,
    or by the model's metadata under `feature_names`, a JSON list.

    Args:
        session: the session.
        name: of the model.
        version: of the model: a session does not say which it is.
        names: see above.
        decimals: places to which floats are rounded for their key; None for every bit.
        fields: inputs that are to be rounded otherwise.
        output: which of its outputs is the score; the last one that is a tensor of floats, if left
            out.

    Raises:
        OutputError: names are missing, an input or output is none that a cache can hold.
    """
    given = {one.name: one for one in session.get_inputs()}
    for one in given.values():
        if one.type not in _ONNX_KINDS:
            raise OutputError(
                where=f"model {name!r}, input {one.name!r}",
                problem=f"is a {one.type}",
                fix="Declare its inputs yourself, and give outputs.score a predict of your own.",
            )
    chosen = output or _onnx_output(session, name)
    shape = next(iter(given.values())).shape
    is_matrix = len(given) == 1 and len(shape) == 2 and shape[1] != 1
    if is_matrix:
        ((only, one),) = given.items()
        found = names or _onnx_names(session)
        _must_name(name, found, "Give names=[...], in the model's order.")
        width = shape[1] if isinstance(shape[1], int) else len(found)
        if len(found) != width:
            raise OutputError(
                where=f"model {name!r}",
                problem=f"reads {width} features, and {len(found)} are named",
                fix="Name each of them once, in the model's order.",
            )
        kind, dtype = _ONNX_KINDS[one.type]
        matrix_names = list(found)

        def feed(batch: Any) -> dict[str, Any]:
            return {only: _matrix_of(batch, matrix_names, dtype)}

        schema = _schema(found, dict.fromkeys(found, kind), fields, decimals)
    else:
        found = list(given)
        schema = _schema(
            found, {one.name: _ONNX_KINDS[one.type][0] for one in given.values()}, fields, decimals
        )

        def feed(batch: Any) -> dict[str, Any]:
            columns = _columns_of(batch, schema)
            made = {}
            for each, one in given.items():
                cells = np.asarray(columns[each]).astype(_ONNX_KINDS[one.type][1])
                made[each] = cells.reshape(-1, 1) if len(one.shape) == 2 else cells
            return made

    def predict(batch: Any) -> npt.NDArray[Any]:
        (answer,) = session.run([chosen], feed(batch))
        return np.asarray(answer)

    return Model(name, f"{version}:{chosen}", schema, predict)


def _onnx_output(session: Any, name: str) -> str:
    fitting = [one.name for one in session.get_outputs() if one.type in _FLOATS]
    if not fitting:
        kinds = ", ".join(one.type for one in session.get_outputs())
        raise OutputError(
            where=f"model {name!r}",
            problem=f"has no output of floats: {kinds}",
            fix="Convert it without ZipMap, or name an output that is a tensor of numbers.",
        )
    return str(fitting[-1])


def _onnx_names(session: Any) -> list[str]:
    said = session.get_modelmeta().custom_metadata_map.get("feature_names")
    try:
        found = json.loads(said) if said else []
    except ValueError:
        return []
    return found if isinstance(found, list) and all(isinstance(x, str) for x in found) else []


# -- names and containers -------------------------------------------------------------------------


def _must_name(name: str, names: Any, fix: str) -> None:
    if names is None or not len(names):
        raise OutputError(where=f"model {name!r}", problem="does not name its features", fix=fix)


def _schema(
    names: Sequence[str],
    kinds: Mapping[str, Kind],
    fields: Mapping[str, InputField] | None,
    decimals: int | None,
) -> InputSchema:
    own = dict(fields or {})
    for name, field in own.items():
        if name not in names or field.name != name:
            raise OutputError(
                where=f"input {name!r}",
                problem="is none of the model's",
                fix=f"It reads {', '.join(names)}.",
            )
    return InputSchema(
        tuple(own.get(one) or InputField(one, kinds.get(one, "float"), decimals) for one in names)
    )


def _matrix_of(given: Any, names: Sequence[str], dtype: Any) -> npt.NDArray[Any]:
    """A batch as (rows, features), what is missing as NaN."""
    if isinstance(given, np.ndarray) and given.ndim == 2 and given.shape[1] == len(names):
        return np.ascontiguousarray(given, dtype)
    batch = batch_of(given, names)
    matrix = np.empty((batch.count, len(names)), dtype)
    for place, name in enumerate(names):
        column = pd.Series(_plain(batch.required(name)))
        matrix[:, place] = pd.to_numeric(column).to_numpy(np.float64, na_value=np.nan)
    return matrix


def _columns_of(given: Any, schema: InputSchema) -> dict[str, Any]:
    batch = batch_of(given, schema.names, schema.lists)
    return {name: _plain(batch.required(name)) for name in schema.names}


def _plain(values: Any) -> Any:
    """A column as pandas or numpy hold it."""
    return values.to_pandas() if hasattr(values, "to_pandas") else values


def _digest(raw: bytes) -> str:
    return blake2b(raw, digest_size=8).hexdigest()
