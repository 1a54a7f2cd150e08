"""Which payments is asked about, in which order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["REQUEST_INPUTS", "Requests", "draw_requests"]

REQUEST_INPUTS = ("amount", "is_night", "is_weekend")
"""What a request itself brings to the model."""


@dataclass(frozen=True)
class Requests:
    """The requests of a replay, in order of arrival; every array has one item a request.

    Attributes:
        customer_ids, terminal_ids: the entities asked for.
        inputs: `REQUEST_INPUTS`, (n, 3).
        labels: 1 for a fraud.
        top_share: share of the requests that the busiest hundredth of the cards makes.
    """

    customer_ids: list[int]
    terminal_ids: list[int]
    inputs: npt.NDArray[np.float64]
    labels: npt.NDArray[np.int8]
    top_share: float

    def __len__(self) -> int:
        return len(self.customer_ids)


def draw_requests(stream: pd.DataFrame, count: int, skew: float, seed: int) -> Requests:
    """Take `count` requests from a stream of payments.

    With a `skew` of 0 they are the stream's own, in its order, begun anew at its end. Otherwise
    cards are drawn, the one of rank r with a probability proportional to r ** -skew, and each
    brings one of its payments, drawn evenly.
    """
    if skew == 0:
        chosen = np.arange(count) % len(stream)
    else:
        chosen = _skewed(stream["CUSTOMER_ID"].to_numpy(), count, skew, seed)
    rows = stream.iloc[chosen]
    per_card = np.sort(rows.groupby("CUSTOMER_ID").size().to_numpy())[::-1]
    top = max(1, round(stream["CUSTOMER_ID"].nunique() / 100))
    return Requests(
        customer_ids=[int(value) for value in rows["CUSTOMER_ID"]],
        terminal_ids=[int(value) for value in rows["TERMINAL_ID"]],
        inputs=rows[list(REQUEST_INPUTS)].to_numpy("float64"),
        labels=rows["TX_FRAUD"].to_numpy("int8"),
        top_share=float(per_card[:top].sum() / count),
    )


def _skewed(
    cards: npt.NDArray[np.int32], count: int, skew: float, seed: int
) -> npt.NDArray[np.int64]:
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(101,)))
    order = np.argsort(cards, kind="stable")
    _, starts, counts = np.unique(cards[order], return_index=True, return_counts=True)
    weight = rng.permutation(np.arange(1, len(starts) + 1, dtype="float64")) ** -skew
    card = rng.choice(len(starts), size=count, p=weight / weight.sum())
    place = starts[card] + (rng.random(count) * counts[card]).astype("int64")
    chosen: npt.NDArray[np.int64] = order[place]
    return chosen
