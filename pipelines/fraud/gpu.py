"""What a GPU gains over the CPU, in training and in scoring: `python -m pipelines.fraud.gpu`.

Needs NumPy and XGBoost (its GPU build) alone, so that it can be carried to a machine that has
nothing else. Where there is no GPU it says why, and ends with status 3.

Both sides get the same rows, the same parameters and as many threads as XGBoost takes; they take
turns, and the medians over the turns are compared. Scores of the two are compared, too: a GPU adds
up in another order, so the last bits may differ.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pipelines.fraud.device import find_device
from pipelines.fraud.scorer import Scorer

__all__ = ["compare", "main"]

_WIDTH: Final = 28
_NO_GPU: Final = 3
_PARAMETERS: Final = {
    "objective": "binary:logistic",
    "tree_method": "hist",
    "max_depth": 6,
    "learning_rate": 0.1,
}
Rows = npt.NDArray[np.float32]


def compare(
    device: str, rows: int, trees: int, batches: Sequence[int], turns: int
) -> dict[str, Any]:
    """Train and score on the CPU and on another device.

    Args:
        device: for XGBoost, `"cuda"`.
        rows: of the training.
        trees: of the model.
        batches: rows of each scoring that is timed.
        turns: of each.

    Returns:
        `train_s` and `score_s`, by device and for scores by batch, and `differ`, the largest
        difference between scores of the two.
    """
    import xgboost

    data, labels = _data(rows)
    devices = ("cpu", device)

    def fit(on: str) -> Any:
        matrix = xgboost.QuantileDMatrix(data, labels)
        return xgboost.train({**_PARAMETERS, "device": on}, matrix, trees)

    train_s, models = _timed({on: partial(fit, on) for on in devices}, turns)
    model = models["cpu"]
    scorers = {on: Scorer(model, device=on) for on in devices}
    score_s: dict[str, dict[str, float]] = {}
    differ = 0.0
    for count in batches:
        some = np.resize(data, (count, _WIDTH))
        ways = {on: partial(scorers[on].score, some) for on in devices}
        taken, answers = _timed(ways, turns * 3)
        score_s[str(count)] = taken
        differ = max(differ, float(np.abs(answers["cpu"] - answers[device]).max()))
    return {"train_s": train_s, "score_s": score_s, "differ": differ}


def _data(rows: int) -> tuple[Rows, npt.NDArray[np.float32]]:
    """Rows like those of payments: counts, amounts and shares, some missing; rare frauds."""
    draw = np.random.default_rng(0)
    data = draw.lognormal(1, 1, (rows, _WIDTH)).astype(np.float32)
    data[:, 5::4] = np.floor(data[:, 5::4])
    data[draw.random(data.shape) < 0.05] = np.nan
    filled = np.nan_to_num(data[:, :6])
    risk = filled[:, 0] * 0.3 + filled[:, 1] * filled[:, 2] * 0.05 - filled[:, 3] * 0.2
    labels = risk + draw.normal(0, 1, rows) > np.quantile(risk, 0.98)
    return data, labels.astype(np.float32)


def _timed(
    ways: Mapping[str, Callable[[], Any]], turns: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Median seconds of each, taking turns, after one turn that does not count; and its answer."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    answers: dict[str, Any] = {name: way() for name, way in ways.items()}
    for _ in range(turns):
        for name, way in ways.items():
            began_s = time.perf_counter()
            answers[name] = way()
            found[name].append(time.perf_counter() - began_s)
    return {name: statistics.median(taken) for name, taken in found.items()}, answers


def main(given: Sequence[str] | None = None) -> int:
    """Compare, print a table, and write it as JSON where a file is named; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the training")
    parser.add_argument("--trees", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a file for the numbers, JSON")
    asked = parser.parse_args(given)
    device = find_device()
    print(device.why)
    if device.name == "cpu":
        print("nothing is compared")
        return _NO_GPU
    import xgboost

    batches = (1, 64, 1_000, 10_000, 100_000, 1_000_000)
    found = compare(device.name, asked.rows, asked.trees, batches, asked.turns)
    said = {
        "xgboost": xgboost.__version__,
        "gpu": device.why,
        "rows": asked.rows,
        "trees": asked.trees,
        **found,
    }
    for line in _table(found, device.name):
        print(line)
    if asked.out is not None:
        asked.out.write_text(json.dumps(said, indent=2) + "\n", "utf-8")
    return 0


def _table(found: dict[str, Any], device: str) -> list[str]:
    def line(what: str, taken: dict[str, float]) -> str:
        cpu, other = taken["cpu"], taken[device]
        return f"{what:24} {cpu * 1e3:12,.2f} {other * 1e3:12,.2f} {cpu / other:8.1f} x"

    return [
        f"{'ms':24} {'cpu':>12} {device:>12} {'faster':>8}",
        line("train", found["train_s"]),
        *(line(f"score {int(count):,}", taken) for count, taken in found["score_s"].items()),
        f"scores differ by {found['differ']:.2g} at the most",
    ]


if __name__ == "__main__":
    sys.exit(main())
