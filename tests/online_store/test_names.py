"""Names in a deployment's maps and in tags that are not what was meant."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from feast.types import Int64

from hotplate import CachePolicy, Freshness, PolicyError

from ..stores import USER, Repo

RepoMaker = Callable[..., Repo]
ONE = [{"user_id": 1}]


@pytest.fixture
def repo(make_repo: RepoMaker) -> Repo:
    """Two groups, one of two views."""
    made = make_repo()
    tags = CachePolicy().tags("users")
    made.apply(
        USER,
        made.view("profile", {"age": Int64}, tags=tags),
        made.view("habits", {"tea": Int64}, tags=tags),
        made.view("counts", {"n": Int64}, tags=CachePolicy(ttl="1h").tags()),
    )
    for view, feature in (("profile", "age"), ("habits", "tea"), ("counts", "n")):
        made.write(view, user_id=[1], **{feature: [1]})
    return made


def served(repo: Repo, **settings: Any) -> dict[str, Freshness]:
    """Deadlines as a deployment serves that did not run apply."""
    store = repo.open_hot(**settings)
    features = ["profile:age", "counts:n"]
    store.get_online_features(features, ONE)
    found = store.get_online_features(features, ONE).freshness()
    return {view: rows[0] for view, rows in found.items()}


@pytest.mark.parametrize("where", ["ttl_map", "profiles"])
def test_a_misspelt_group_is_served_no_staler_than_was_meant(
    repo: Repo,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Which group was meant is not known: all that the map does not name are held to the entry."""
    settings: dict[str, Any] = {"ttl_map": {"default": "1m", "user": {"ttl": "5s", "jitter": 0}}}
    if where == "profiles":
        monkeypatch.setenv("HOTPLATE_PROFILE", "edge")
        settings = {
            "ttl_map": {"default": "1m"},
            "profiles": {"edge": {"user": {"ttl": "5s", "jitter": 0}}},
        }
    with caplog.at_level(logging.ERROR, logger="hotplate"):
        for _ in range(2):
            for row in served(repo, **settings).values():
                assert row.expires_in_s == 5
        settings[where] = {**settings["ttl_map"], "counts": "1h", "usr": "5s"}
        if where == "ttl_map":
            found = served(repo, **settings)
            assert found["counts"].expires_in_s > 60  # named, so the other name is not its own
            assert found["profile"].expires_in_s <= 5
    text = caplog.records[0].getMessage()
    assert "group 'user'" in text
    assert "Did you mean 'users'?" in text
    assert "served no staler than it allows" in text


def test_a_misspelt_group_that_must_not_be_cached(repo: Repo) -> None:
    """Then nothing that the map does not name is."""
    ttl_map = {"default": "1m", "blocked": {"cache": "never"}}
    assert all(row.expires_in_s <= 0 for row in served(repo, ttl_map=ttl_map).values())


def test_a_view_of_another_group_is_told_its_group(
    repo: Repo, caplog: pytest.LogCaptureFixture
) -> None:
    """A map speaks of groups, and a view in one is not one."""
    with caplog.at_level(logging.ERROR, logger="hotplate"):
        served(repo, ttl_map={"default": "1m", "habits": "5s"})
    assert "'habits'" in caplog.text
    assert "is a feature view of group 'users': name the group" in caplog.text


def test_a_name_is_right_once_its_group_is_applied(repo: Repo) -> None:
    """The deployment may know a group before the registry does."""
    store = repo.open_hot(ttl_map={"default": "1m", "later": {"ttl": "5s", "jitter": 0}})

    def expires_in_s() -> float:
        store.get_online_features(["profile:age"], ONE)
        found = store.get_online_features(["profile:age"], ONE).freshness()["profile"][0]
        return float(found.expires_in_s)

    assert expires_in_s() <= 5
    repo.apply(repo.view("later", {"x": Int64}))
    store.refresh_registry()
    assert expires_in_s() > 50


def test_views_of_one_group_are_checked_against_the_registered_ones(repo: Repo) -> None:
    """Applying one view alone does not contradict another of its group."""
    wrong = repo.view("habits", {"tea": Int64}, tags=CachePolicy(ttl="2s").tags("counts"))
    with pytest.raises(PolicyError, match="of the same group says 1h"):
        repo.hot.apply([wrong])
    repo.hot.apply([repo.view("habits", {"tea": Int64}, tags=CachePolicy(ttl="1h").tags("counts"))])


@pytest.mark.parametrize("tag", ["Hotplate.ttl", "hotplate_ttl", "hotplate", "HOTPLATE.TTL"])
def test_tags_that_look_like_ours_are_pointed_out(
    repo: Repo, tag: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are nobody's settings, and whoever wrote them thinks otherwise."""
    with caplog.at_level(logging.WARNING, logger="hotplate"):
        repo.apply(repo.view("profile", {"age": Int64}, tags={tag: "5s", "owner": "risk"}))
    assert f"the tag {tag!r}, which says nothing" in caplog.text
    assert "owner" not in caplog.text
