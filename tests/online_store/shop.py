"""What the tests of whole repos share: a small shop, and how rows get into it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
from feast import (
    FeatureView,
    Field,
    RequestSource,
)
from feast.on_demand_feature_view import OnDemandFeatureView, on_demand_feature_view
from feast.types import Float64, Int64

from ..stores import Repo

RepoMaker = Callable[..., Repo]
DAY_0 = datetime(2026, 1, 1, tzinfo=UTC)
ONE = [{"user_id": 1}]
USERS = [{"user_id": user} for user in (1, 2, 9, 1)]
AMOUNT = RequestSource(name="request", schema=[Field(name="amount", dtype=Float64)])
VERSIONED = {"enable_online_feature_view_versioning": True}


def day(number: int) -> datetime:
    """An event time; a later one wins in every store."""
    return DAY_0 + timedelta(days=number)


def put(repo: Repo, view: str, moment: datetime = DAY_0, /, **columns: Any) -> None:
    """Write rows of one event time through the cached store."""
    count = len(next(iter(columns.values())))
    repo.write(view, repo.hot, event_time=[moment] * count, **columns)


def add(repo: Repo, *objects: Any) -> None:
    """Apply more objects."""
    repo.apply(*objects)


def transforms(profile: FeatureView) -> list[OnDemandFeatureView]:
    """On-demand views of each mode, with and without request data."""

    @on_demand_feature_view(
        sources=[profile], schema=[Field(name="twice", dtype=Int64)], mode="python"
    )
    def doubled(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"twice": [None if age is None else age * 2 for age in inputs["age"]]}

    @on_demand_feature_view(
        sources=[profile, AMOUNT], schema=[Field(name="share", dtype=Float64)], mode="pandas"
    )
    def shared(inputs: pd.DataFrame) -> pd.DataFrame:
        return (inputs["amount"] / inputs["age"]).to_frame("share")

    @on_demand_feature_view(
        sources=[profile, AMOUNT],
        schema=[Field(name="total", dtype=Float64)],
        mode="python",
        singleton=True,
    )
    def summed(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"total": (inputs["score"] or 0.0) + inputs["amount"]}

    @on_demand_feature_view(
        sources=[AMOUNT], schema=[Field(name="half", dtype=Float64)], mode="python"
    )
    def halved(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"half": [amount / 2 for amount in inputs["amount"]]}

    return [doubled, shared, summed, halved]
