"""A fraud model small enough to be read: a logistic regression that scores one row in microseconds.

scikit-learn fits it; scoring is a product and a sum, because for a single row scikit-learn's own
checks take longer than reading the features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipelines.reads.requests import REQUEST_INPUTS

__all__ = ["FEATURES", "FraudModel", "area_under_curve", "fit"]

FEATURES = (
    "customer_mean_amount",
    "customer_std_amount",
    "customer_tx_per_day",
    "customer_terminals",
    "customer_tx_1d",
    "customer_tx_7d",
    "customer_tx_30d",
    "customer_mean_amount_1d",
    "customer_mean_amount_7d",
    "customer_mean_amount_30d",
    "terminal_mean_amount",
    "terminal_tx_per_day",
    "terminal_customers",
    "terminal_tx_1d",
    "terminal_tx_7d",
    "terminal_tx_30d",
    "terminal_fraud_share_1d",
    "terminal_fraud_share_7d",
    "terminal_fraud_share_30d",
)
"""Features of the store, in the model's order; an unknown entity's are 0."""

_MEAN_AT = FEATURES.index("customer_mean_amount_30d")


@dataclass(frozen=True)
class FraudModel:
    """Weights over what a request brings, the amount over the card's usual one, and `FEATURES`."""

    weights: npt.NDArray[np.float64]
    intercept: float
    rows: int

    def score(
        self, request: npt.NDArray[np.float64], features: Mapping[str, Sequence[Any]]
    ) -> float:
        """The probability of fraud for one request and the features answered for it.

        Args:
            request: amount, is_night, is_weekend.
            features: name -> list of one value, as `to_dict()` of a response gives it.
        """
        values = [features[name][0] or 0.0 for name in FEATURES]
        inputs = [*request, _excess(float(request[0]), values[_MEAN_AT]), *values]
        return 1 / (1 + math.exp(-(float(np.dot(self.weights, inputs)) + self.intercept)))


def _excess(amount: float, usual: float) -> float:
    return amount / (usual + 1)


def fit(training: pd.DataFrame) -> FraudModel:
    """Fit the model to payments with their features and labels.

    Raises:
        ValueError: the training rows hold no fraud, or nothing else.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    labels = training["TX_FRAUD"].to_numpy()
    if len(np.unique(labels)) < 2:
        raise ValueError(
            f"the {len(labels)} payments of the training week hold one kind only: give data with "
            "frauds and genuine payments, or more of it"
        )
    request = training[list(REQUEST_INPUTS)].to_numpy("float64")
    features = training[list(FEATURES)].fillna(0).to_numpy("float64")
    excess = request[:, 0] / (features[:, _MEAN_AT] + 1)
    inputs = np.column_stack([request, excess, features])
    scaler = StandardScaler().fit(inputs)
    model = LogisticRegression(max_iter=1_000).fit(scaler.transform(inputs), labels)
    weights = model.coef_[0] / scaler.scale_
    return FraudModel(
        weights=weights,
        intercept=float(model.intercept_[0] - np.dot(weights, scaler.mean_)),
        rows=len(labels),
    )


def area_under_curve(labels: npt.NDArray[np.int8], scores: Sequence[float]) -> float | None:
    """The area under the ROC curve, or None where all labels are equal."""
    from sklearn.metrics import roc_auc_score

    return None if len(np.unique(labels)) < 2 else float(roc_auc_score(labels, scores))
