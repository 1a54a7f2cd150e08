"""A repo whose processes write down what they count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from feast.types import Float64, Int64

import hotplate

from ..online_store.shop import put
from ..stores import USER, Repo

FEATURES = ["profile:age", "counts:n1"]


@pytest.fixture(params=["sqlite"])
def online(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What is read makes no difference to what is counted."""
    return {"type": request.param}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where metrics go."""
    return tmp_path / "metrics"


@pytest.fixture
def measured(make_repo: Callable[..., Repo], folder: Path) -> Callable[..., Repo]:
    """Two views of a user with data of two users, and metrics on."""

    def make(**settings: Any) -> Repo:
        repo = make_repo(
            settings={"metrics": {"folder": str(folder), "every": "1h"}, **settings},
            ttl_map={"default": "30s"},
        )
        repo.apply(
            USER,
            repo.view("profile", {"age": Int64, "score": Float64}),
            repo.view("counts", {"n1": Int64, "age": Int64}),
        )
        put(repo, "profile", user_id=[1, 2], age=[10, 20], score=[0.5, 1.5])
        put(repo, "counts", user_id=[1, 2], n1=[1, 2], age=[7, 8])
        return repo

    return make


def ask(repo: Repo, *users: int) -> Any:
    """What Feast answers for some users."""
    return repo.hot.get_online_features(FEATURES, {"user_id": list(users)}).to_dict()


def write(repo: Repo) -> None:
    """Write down what is counted by now, without waiting for the thread."""
    publisher = hotplate.of(repo.hot).runtime.publisher
    assert publisher is not None
    publisher.start()
    publisher.write()
