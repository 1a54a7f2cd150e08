"""What a row's score costs: the scorer of the fraud pipeline against `inplace_predict`.

One model, rows of 40 floats; both sides get the same matrix, and the Booster has all its threads.
Over 64 rows both are the same call.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from pipelines.bench.line import Line
from pipelines.bench.measure import compare
from pipelines.fraud.scorer import Scorer

__all__ = ["scorer"]

_WIDTH, _TREES, _DEPTH = 40, 200, 6
_AIMS = {1: 2.5, 8: 2.0, 64: 1.2, 200: None, 1_000: None, 10_000: None}
# calls a block are so many that all counts of rows take about as long
_ROWS_A_BLOCK = 30_000
_CALLS = (5, 300)


def scorer(rounds: int, *, is_short: bool = False) -> list[Line]:
    """Scores of few rows and of many, where XGBoost is installed."""
    try:
        import xgboost
    except ImportError:
        return []
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(max(_AIMS), _WIDTH)).astype(np.float32)
    labels = rows[:, 0] + rows[:, 1] > 0
    settings = {"max_depth": _DEPTH, "objective": "binary:logistic"}
    model = xgboost.train(settings, xgboost.DMatrix(rows, labels), 20 if is_short else _TREES)
    made = Scorer(model)
    lines = []
    for count, aim in _AIMS.items():
        some = rows[:count]
        calls = int(np.clip(_ROWS_A_BLOCK // count, *_CALLS))
        pair = compare(
            partial(model.inplace_predict, some), partial(made.score, some), (calls, calls), rounds
        )
        lines.append(
            Line(
                f"scorer: {count:,} row{'s' * (count > 1)} against inplace_predict",
                f"{pair.p50.median:.1f} x faster",
                f"{pair.p50.low:.1f} to {pair.p50.high:.1f}",
                "" if aim is None else f">= {aim:g} x",
                None if aim is None else pair.p50.median >= aim,
                f"{pair.first_us:,.0f} us against {pair.second_us:,.0f} us",
            )
        )
    return lines
