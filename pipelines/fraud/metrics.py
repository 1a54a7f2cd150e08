"""How good scores are, by the measures of the Fraud Detection Handbook.

Reference: Y.-A. Le Borgne et al., "Reproducible Machine Learning for Credit Card Fraud Detection -
Practical Handbook", 2022, chapter 4, "Performance metrics".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["CARDS_A_DAY", "Quality", "card_precision", "quality"]

CARDS_A_DAY: Final = 100


@dataclass(frozen=True)
class Quality:
    """Measures of the scores of some payments; None where there is one kind of label only.

    Attributes:
        auc: area under the ROC curve.
        average_precision: area under the precision-recall curve.
        card_precision: share of frauds' cards among the `CARDS_A_DAY` of highest score, by day.
        rows, frauds: what they were taken from.
    """

    auc: float | None
    average_precision: float | None
    card_precision: float | None
    rows: int
    frauds: int


def quality(payments: pd.DataFrame, scores: npt.NDArray[Any]) -> Quality:
    """Measure scores.

    Args:
        payments: with `customer_id`, `event_timestamp` and `is_fraud`.
        scores: (rows,), the higher the more likely a fraud.
    """
    labels = payments["is_fraud"].to_numpy()
    frauds = int(labels.sum())
    if frauds in (0, len(labels)):
        return Quality(None, None, None, len(labels), frauds)
    from sklearn.metrics import average_precision_score, roc_auc_score

    return Quality(
        float(roc_auc_score(labels, scores)),
        float(average_precision_score(labels, scores)),
        card_precision(payments, scores),
        len(labels),
        frauds,
    )


def card_precision(
    payments: pd.DataFrame, scores: npt.NDArray[Any], cards_a_day: int = CARDS_A_DAY
) -> float:
    """Card precision: how many of the cards that are looked at each day were defrauded that day.

    A card that was found is known as defrauded, and is not looked at on the days after.

    Args:
        payments, scores: as `quality`.
        cards_a_day: how many can be looked at.

    Returns:
        The mean over the days, in [0, 1].
    """
    frame = pd.DataFrame(
        {
            "day": payments["event_timestamp"].dt.floor("D").to_numpy(),
            "card": payments["customer_id"].to_numpy(),
            "score": np.asarray(scores),
            "is_fraud": payments["is_fraud"].to_numpy(),
        }
    )
    found: set[Any] = set()
    shares = []
    for _, of_day in frame.groupby("day", sort=True):
        unknown = of_day[~of_day["card"].isin(found)]
        cards = unknown.groupby("card")[["score", "is_fraud"]].max()
        looked_at = cards.sort_values("score", ascending=False).head(cards_a_day)
        hits = looked_at.index[looked_at["is_fraud"] == 1]
        found.update(hits)
        shares.append(len(hits) / cards_a_day)
    return float(np.mean(shares))
