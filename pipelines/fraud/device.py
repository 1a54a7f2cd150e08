"""Whether there is a GPU that XGBoost can use, found out without believing anybody's word.

XGBoost accepts `device="cuda"` where there is none, warns, and goes on with the CPU. So the driver
is asked how many devices it has, and XGBoost on which one it has trained two rows.
"""

from __future__ import annotations

import ctypes
import json
import warnings
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Device", "find_device"]


class Device(NamedTuple):
    """Where models are trained and scored.

    Attributes:
        name: for XGBoost, `"cuda"` or `"cpu"`.
        why: how that was found out, for people.
    """

    name: str
    why: str


def find_device(wanted: str = "auto") -> Device:
    """The device to use.

    Args:
        wanted: `"auto"`, `"cpu"` or `"cuda"`.

    Raises:
        ValueError: `"cuda"` was wanted, and there is none; the message says why.
    """
    if wanted == "cpu":
        return Device("cpu", "CPU, as asked for")
    why = _why_not()
    if why is None:
        return Device("cuda", "GPU: the driver has one, and XGBoost has trained on it")
    if wanted == "cuda":
        raise ValueError(f"no GPU: {why}; give --device cpu")
    return Device("cpu", f"CPU: {why}")


def _why_not() -> str | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no CUDA driver (libcuda.so.1)"
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return "the CUDA driver does not start"
    if not count.value:
        return "the CUDA driver has no device"
    import xgboost

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            rows = xgboost.DMatrix(np.zeros((2, 1), np.float32), label=np.array([0, 1]))
            booster = xgboost.train({"device": "cuda", "verbosity": 0}, rows, 1)
        except xgboost.core.XGBoostError as error:
            return f"XGBoost cannot train on it: {str(error).splitlines()[0]}"
    config: Any = json.loads(booster.save_config())
    used = config["learner"]["generic_param"]["device"]
    return None if used.startswith("cuda") else f"this XGBoost trains on {used}"
