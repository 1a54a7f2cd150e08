"""A shop that is read and written by a made-up day, with a clock that moves only when told to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feast.types import Int64

import hotplate

from ..stores import MERCHANT, USER, Repo

RepoMaker = Callable[..., Repo]
FEATURES = ["profile:age", "counts:n1", "shops:size"]
USERS, SHOPS = 60, 30


@pytest.fixture(params=["sqlite"])
def online(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What is read makes no difference to what is foretold."""
    return {"type": request.param}


@dataclass(frozen=True)
class Step:
    """Something that happens.

    Attributes:
        after_s: how long after the step before it.
        users, shops: that are read together.
        written: a user that is written instead.
        is_own: whether the cached store writes it, or another program.
    """

    after_s: float
    users: Sequence[int] = ()
    shops: Sequence[str] = ()
    written: int | None = None
    is_own: bool = False


@dataclass
class Day:
    """What a shop was answered.

    Attributes:
        repo: the shop.
        groups: the cache's own counts.
        stale_s: of `counts`: for each stale answer how long ago the change was.
        answers: of `counts`.
        changes: (user, seconds since 1970) of each write by another program.
    """

    repo: Repo
    groups: Mapping[str, Any]
    stale_s: list[float] = field(default_factory=list)
    answers: int = 0
    changes: list[tuple[int, float]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Of the traffic log."""
        return self.repo.folder / "traffic"


def steps_of(seed: int, count: int = 600, *, writes: float = 0.1, most: int = 1) -> list[Step]:
    """A random day: some users and shops are asked for much more often than others."""
    random = np.random.default_rng(seed)
    users = random.zipf(1.3, count * most) % USERS
    shops = random.zipf(1.2, count * most) % SHOPS
    found = []
    for number in range(count):
        after_s = round(float(random.exponential(0.2)), 3) + 0.001
        if random.random() < writes:
            is_own = bool(random.random() < 0.3)
            found.append(Step(after_s, written=int(users[number]), is_own=is_own))
            continue
        many = int(random.integers(1, most + 1))
        own = slice(number * most, number * most + many)
        # the log has an entity of a request once, the cache counts it as often as it is named
        some = list(dict.fromkeys(users[own].tolist()))
        pairs = [f"m{shop}" for shop in dict.fromkeys(shops[own].tolist())]
        least = min(len(some), len(pairs))
        found.append(Step(after_s, some[:least], pairs[:least]))
    return found


def live(make_repo: RepoMaker, steps: Sequence[Step], **settings: Any) -> Day:
    """Let a shop live through a day, and log it."""
    repo = make_repo(settings=settings)
    traffic = {"folder": str(repo.folder / "traffic"), "sample": 1.0, "changes": True}
    repo.settings = {**settings, "traffic": traffic}
    repo.hot = repo.open_hot()
    repo.apply(
        USER,
        MERCHANT,
        repo.view("profile", {"age": Int64}),
        repo.view("counts", {"n1": Int64}),
        repo.view("shops", {"size": Int64}, [MERCHANT]),
    )
    repo.write("profile", user_id=list(range(USERS)), age=list(range(USERS)))
    repo.write("counts", user_id=list(range(USERS)), n1=[0] * USERS)
    repo.write("shops", merchant_id=[f"m{one}" for one in range(SHOPS)], size=list(range(SHOPS)))
    day = Day(repo, {})
    written: dict[int, list[float]] = {user: [] for user in range(USERS)}
    for step in steps:
        repo.clock.advance(step.after_s)
        now_s = repo.clock.wall_ns() / 1e9
        if step.written is not None:
            written[step.written].append(now_s)
            through = repo.hot if step.is_own else repo.bare
            repo.write("counts", through, user_id=[step.written], n1=[len(written[step.written])])
            if not step.is_own:
                day.changes.append((step.written, now_s))
            continue
        entities = {"user_id": list(step.users), "merchant_id": list(step.shops)}
        answer = repo.hot.get_online_features(FEATURES, entities).to_dict()
        for user, version in zip(step.users, answer["n1"], strict=True):
            day.answers += 1
            if version < len(written[user]):
                day.stale_s.append(now_s - written[user][version])
        runtime = hotplate.of(repo.hot).runtime
        runtime.engine.refresher.drain()
    day.groups = hotplate.of(repo.hot).stats().groups
    hotplate.of(repo.hot).runtime.close()
    return day
