"""A shop whose reads are logged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from feast.types import Float64, Int64

from ..stores import MERCHANT, USER, Repo

RepoMaker = Callable[..., Repo]
FEATURES = ["profile:age", "counts:n1", "shops:size"]


@pytest.fixture(params=["sqlite"])
def online(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What is read makes no difference to the log."""
    return {"type": request.param}


@pytest.fixture
def logged(make_repo: RepoMaker, tmp_path: Path) -> Callable[..., Repo]:
    """Makes shops with two views of a user and one of a merchant."""

    def make(**traffic: Any) -> Repo:
        said = {"folder": str(tmp_path / "traffic"), "sample": 1.0, "ids": "plain", **traffic}
        repo = make_repo(settings={"traffic": said})
        repo.apply(
            USER,
            MERCHANT,
            repo.view("profile", {"age": Int64, "score": Float64}),
            repo.view("counts", {"n1": Int64}),
            repo.view("shops", {"size": Int64}, [MERCHANT]),
        )
        users = list(range(200))
        repo.write("profile", user_id=users, age=users, score=[float(user) for user in users])
        repo.write("counts", user_id=users, n1=users)
        repo.write("shops", merchant_id=[f"m{user}" for user in users], size=users)
        return repo

    return make
