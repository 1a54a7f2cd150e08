"""Fixtures of the tests of whole repos."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from feast.types import Float64, Int64

from ..stores import USER, Repo
from .shop import put

RepoMaker = Callable[..., Repo]


@pytest.fixture
def shop(make_repo: RepoMaker) -> Repo:
    """Two views of a user with data of two users."""
    repo = make_repo()
    repo.apply(
        USER,
        repo.view("profile", {"age": Int64, "score": Float64}),
        repo.view("counts", {"n1": Int64, "age": Int64}),
    )
    put(repo, "profile", user_id=[1, 2], age=[10, 20], score=[0.5, 1.5])
    put(repo, "counts", user_id=[1, 2], n1=[1, 2], age=[7, 8])
    return repo
