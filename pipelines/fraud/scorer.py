"""Scores of an XGBoost model: for few rows sooner than `inplace_predict`, and the same bits.

Three quarters of what `Booster.inplace_predict` takes for one row is the same in every call: Python
finds out what kind of container it was given and writes the settings as JSON; the library makes a
matrix object, which reads the CPU quota of its control group from files. For few rows the library
is called as `inplace_predict` calls it, through `XGBoosterPredictFromDense`, but with the settings
written once and one matrix object a thread (`XGProxyDMatrixCreate`). The trees are walked, the sums
made and the objective applied by XGBoost itself.

Up to 64 rows are few. XGBoost hands rows to its threads in blocks of 64: one block is walked by one
thread however many there are, so one is all that few rows are given. A team would wait for its
last thread, on a busy machine for a time slice of the scheduler, milliseconds; and each thread of a
server would have a team of its own. More blocks are walked sooner by several threads.
`python -m pipelines.bench --only scorer` measures both sides of that limit.
"""

from __future__ import annotations

import ctypes
import json
import re
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["Scorer"]

Floats = npt.NDArray[np.float32]

_MOST_FEW: Final = 64
_TRIED: Final = (1, 7, _MOST_FEW)
_ARRAY: Final = b'{"data":[%d,true],"shape":[%d,%d],"strides":null,"typestr":"<f4","version":3}'
_ODD: Final = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3.4e38, -3.4e38)


class Scorer:
    """Scores rows with a Booster: the same bits as its `inplace_predict`, sooner for few rows.

    The model is copied, twice, so that what is done to the Booster later changes nothing here. All
    methods may be called from several threads at once.

    On "cuda" a row may differ in its last bits with the number of rows it comes with: few are
    scored on the CPU, many on the GPU. `way` says by how much they differed when this was made.

    Attributes:
        features: columns of a matrix of rows.
    """

    def __init__(self, booster: Any, *, device: str = "cpu") -> None:
        """Copy the model, and try the way for few rows against `inplace_predict`.

        Args:
            booster: the `xgboost.Booster`. Where training stopped early, trees after the best round
                are left out.
            device: where many rows are scored: "cpu", or "cuda" ("cuda:1") where there is a GPU.

        Raises:
            ValueError: another device.
        """
        if device != "cpu" and device.partition(":")[0] != "cuda":
            raise ValueError(f"device={device!r}: is none; give 'cpu', 'cuda' or 'cuda:0'")
        self.features = int(booster.num_features())
        best = booster.attr("best_iteration")
        self._rounds = (0, int(best) + 1) if best is not None else (0, 0)
        self._booster = _copy(booster, device=device)
        self._lock = threading.Lock()
        self._few: Callable[[Floats], Floats] | None = None
        self._many = self._in_place
        self._way = self._choose(_copy(booster, device="cpu", nthread=1))

    @property
    def way(self) -> str:
        """Which way rows are scored, and why: one line."""
        return self._way

    def __repr__(self) -> str:
        return f"Scorer({self._way})"

    def score(self, rows: Floats) -> Floats:
        """The objective's output for each row: a probability for `binary:logistic`.

        Args:
            rows: float32 (rows, features), in the model's order, NaN where a value is missing.
                Categories are their codes. Another dtype or order in memory costs a copy.

        Returns:
            float32 (rows,); of a model of several outputs (rows, outputs).

        Raises:
            ValueError: a matrix of another shape; an infinity, where the model is `gblinear`.
        """
        given = np.ascontiguousarray(rows, np.float32)
        if given.ndim != 2 or given.shape[1] != self.features:
            raise ValueError(
                f"rows of shape {np.shape(rows)}: the model reads (rows, {self.features}); "
                "give one column a feature, and one row as (1, features)"
            )
        if self._few is not None and 0 < len(given) <= _MOST_FEW:
            return self._few(given)
        return self._many(given)

    # -- the ways ---------------------------------------------------------------------------------

    def _in_place(self, rows: Floats) -> Floats:
        return np.asarray(self._booster.inplace_predict(rows, iteration_range=self._rounds))

    def _from_matrix(self, rows: Floats) -> Floats:
        """For `gblinear`, which has no range of rounds and is safe in one thread at a time."""
        import xgboost

        matrix = xgboost.DMatrix(rows)
        with self._lock:
            return np.asarray(self._booster.predict(matrix, validate_features=False))

    def _choose(self, alone: Any) -> str:
        """Set the ways.

        Args:
            alone: the model on the CPU, with one thread.
        """
        device = json.loads(self._booster.save_config())["learner"]["generic_param"]["device"]
        given = [_rows_to_try(count, self.features) for count in _TRIED]
        try:
            expected = [alone.inplace_predict(rows, iteration_range=self._rounds) for rows in given]
        except ValueError as error:
            self._many = self._from_matrix
            return f"any number of rows: predict of a DMatrix on {device}, as {_said(error)}"
        few, fault = _try_direct(alone, self._rounds, given, expected)
        if few is None:
            return f"any number of rows: inplace_predict on {device}, as {fault}"
        self._few = few
        line = (
            f"up to {_MOST_FEW} rows, a block of one thread: the C interface on cpu, which gave "
            f"the bits of inplace_predict for {sum(_TRIED)} rows tried; more: inplace_predict on "
            f"{device}"
        )
        if device != "cpu":
            apart = np.abs(self._in_place(given[-1]) - expected[-1]).max()
            line += f", up to {apart:.1g} from cpu"
        return line


def _copy(booster: Any, **settings: Any) -> Any:
    made = booster.copy()
    made.set_param(settings)
    return made


def _rows_to_try(count: int, features: int) -> Floats:
    """Numbers of many sizes, and a fifth of odd ones: missing, infinite, tiny, huge."""
    draw = np.random.default_rng(count)
    shape = (count, features)
    rows = draw.normal(size=shape) * 10.0 ** draw.integers(-3, 6, shape)
    return np.where(draw.random(shape) < 0.2, draw.choice(_ODD, shape), rows).astype(np.float32)


def _try_direct(
    alone: Any, rounds: tuple[int, int], given: list[Floats], expected: list[Floats]
) -> tuple[Callable[[Floats], Floats] | None, str]:
    """The call of the C interface, or None and what is wrong with it."""
    if expected[0].ndim != 1:
        return None, f"the model gives {expected[0].shape[1]} numbers a row"
    try:
        direct = _Direct(_library(), alone, rounds)
        found = [direct(rows) for rows in given]
    except (AttributeError, KeyError, OSError, RuntimeError, ValueError) as error:
        return None, f"the C interface fails: {_said(error)}"
    wrong = sum(
        int((ours.view(np.uint32) != theirs.view(np.uint32)).sum())
        for ours, theirs in zip(found, expected, strict=True)
    )
    if wrong:
        return None, f"the C interface differs from it in {wrong} of {sum(_TRIED)} rows tried"
    return direct, ""


def _said(error: Exception) -> str:
    """The first line of an error, without XGBoost's time and place in its source."""
    return re.sub(r"^\[[\d:]+\] \S+: ", "", str(error).partition("\n")[0])


# -- the C interface ------------------------------------------------------------------------------


def _library() -> Any:
    """The library that the package `xgboost` has loaded, with argument types of our own."""
    import xgboost

    library = ctypes.CDLL(xgboost.build_info()["libxgboost"])
    a_pointer = ctypes.c_void_p
    library.XGBoosterPredictFromDense.argtypes = [
        *(a_pointer, ctypes.c_char_p, ctypes.c_char_p, a_pointer),
        *(a_pointer, a_pointer, a_pointer),
    ]
    library.XGProxyDMatrixCreate.argtypes = [a_pointer]
    library.XGDMatrixFree.argtypes = [a_pointer]
    library.XGBGetLastError.restype = ctypes.c_char_p
    return library


class _Proxy:
    """A matrix object that is told where the rows are, and holds none itself."""

    def __init__(self, library: Any) -> None:
        self.handle = ctypes.c_void_p()
        self._free = library.XGDMatrixFree
        if library.XGProxyDMatrixCreate(ctypes.byref(self.handle)):
            raise RuntimeError(library.XGBGetLastError().decode())

    def __del__(self) -> None:
        if self.handle:
            self._free(self.handle)


class _Direct(threading.local):
    """`XGBoosterPredictFromDense`, made ready once in each thread that calls it."""

    def __init__(self, library: Any, booster: Any, rounds: tuple[int, int]) -> None:
        self._library = library
        self._booster = booster
        self._proxy = _Proxy(library)
        self._settings = (
            b'{"type":0,"training":false,"iteration_begin":%d,"iteration_end":%d,'
            b'"missing":NaN,"strict_shape":false,"cache_id":0}' % rounds
        )
        self._scores = ctypes.POINTER(ctypes.c_float)()
        shape, dimensions = ctypes.c_void_p(), ctypes.c_uint64()
        self._results = tuple(map(ctypes.byref, (shape, dimensions, self._scores)))

    def __call__(self, rows: Floats) -> Floats:
        """Scores of (rows, features), float32, C order, at least one row."""
        status = self._library.XGBoosterPredictFromDense(
            self._booster.handle,
            _ARRAY % (rows.ctypes.data, *rows.shape),
            self._settings,
            self._proxy.handle,
            *self._results,
        )
        if status:
            raise RuntimeError(self._library.XGBGetLastError().decode())
        return np.frombuffer(bytearray(ctypes.string_at(self._scores, 4 * len(rows))), np.float32)
