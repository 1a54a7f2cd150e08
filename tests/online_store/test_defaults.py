"""What an entity that the source does not know is answered with, where its group declares that."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from feast import Field
from feast.on_demand_feature_view import on_demand_feature_view
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus
from feast.types import Bool, Float32, Float64, Int32, Int64, String

import hotplate
from hotplate import CachePolicy, PolicyError, Tier, TTLMap
from hotplate.cli import main
from hotplate.outputs import OutputPolicy
from hotplate.policy import read_tags

from ..operations.deployments import write_yaml
from ..stores import USER, Repo

SCHEMA = {
    "i8": Int64,
    "i4": Int32,
    "f8": Float64,
    "f4": Float32,
    "text": String,
    "flag": Bool,
    "bare": Int64,
}
ABSENT = {"i8": 1 << 60, "i4": -7, "f8": 0.1, "f4": 0.1, "text": "new ü", "flag": True}
FEATURES = [f"profile:{name}" for name in SCHEMA]
KNOWN = {"i8": 1, "i4": 2, "f8": 3.5, "f4": 4.5, "text": "old", "flag": False}
FOUND, MISSING = FieldStatus.PRESENT, FieldStatus.NOT_FOUND


@pytest.fixture
def shop(make_repo: Callable[..., Repo]) -> Repo:
    """One user that is known, with a null."""
    policy = {"ttl": "60s", "negative_ttl": "5s", "jitter": 0, "absent": ABSENT}
    repo = make_repo(ttl_map={"default": "60s", "profile": policy})
    repo.apply(USER, repo.view("profile", SCHEMA), repo.view("plain", {"n": Int64}))
    write(repo, 1)
    return repo


def write(repo: Repo, user: int, through: Any = None) -> None:
    values = {name: [value] for name, value in KNOWN.items()}
    bare = pd.array([None], "Int64")
    repo.write("profile", through or repo.bare, user_id=[user], bare=bare, **values)


def near(values: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Without what a 32-bit float cannot hold."""
    return {
        name: [round(one, 6) if name == "f4" and one is not None else one for one in column]
        for name, column in values.items()
    }


def statuses(response: Any) -> dict[str, list[int]]:
    names = list(response.proto.metadata.feature_names.val)
    return {
        name: list(vector.statuses)
        for name, vector in zip(names, response.proto.results, strict=True)
        if name != "user_id"
    }


def test_a_default_stands_in_the_answer_and_says_so(shop: Repo) -> None:
    """From the source and from memory, alone and beside entities that are known."""
    for users in ([2], [1, 2], [2, 1, 2], [2]):
        response = shop.hot.get_online_features(FEATURES, {"user_id": users})
        got = near(response.to_dict())
        for name in SCHEMA:
            known, default = KNOWN.get(name), ABSENT.get(name)
            assert got[name] == [known if user == 1 else default for user in users], name
            wanted = type(known)
            assert all(type(one) in (wanted, type(None)) for one in got[name])
        assert [one.is_default for one in response.freshness()["profile"]] == [
            user != 1 for user in users
        ]
        said = statuses(response)
        for name in SCHEMA:
            for user, status in zip(users, said[name], strict=True):
                assert status == (MISSING if user != 1 else FOUND), name
        assert (
            near(type(response).__mro__[1](response.proto, response._feature_types).to_dict())
            == got
        ), "as Feast reads the same message"
    group = hotplate.of(shop.hot).stats().groups["profile"]
    assert (group.hits_absent, group.loads) == (4, 2)


def test_who_says_nothing_gets_what_the_store_says(shop: Repo) -> None:
    for features in (["plain:n"], ["plain:n", "profile:bare"]):
        hot, bare = (
            store.get_online_features(["plain:n"], {"user_id": [1, 9]})
            for store in (shop.hot, shop.bare)
        )
        assert hot.proto == bare.proto, features


def test_it_is_over_when_the_entity_appears(shop: Repo) -> None:
    """At once where that is written through the cache, else after `negative_ttl`."""
    ask = lambda: shop.hot.get_online_features(["profile:i4"], {"user_id": [2]})  # noqa: E731
    assert ask().to_dict()["i4"] == [-7]
    row = ask().freshness()["profile"][0]
    assert (row.tier, row.is_default) == (Tier.MEMORY, True)
    assert row.expires_in_s == pytest.approx(5), "what is computed from it ends with that"
    write(shop, 2)
    assert ask().to_dict()["i4"] == [-7]
    shop.clock.advance(5.1)
    assert ask().to_dict()["i4"] == [2]
    assert not ask().freshness()["profile"][0].is_default
    assert shop.hot.get_online_features(["profile:i4"], {"user_id": [3]}).to_dict()["i4"] == [-7]
    write(shop, 3, shop.hot)
    assert shop.hot.get_online_features(["profile:i4"], {"user_id": [3]}).to_dict()["i4"] == [2]


def test_a_matrix_has_them_too(shop: Repo) -> None:
    numbers = ["i8", "i4", "f8", "f4", "flag", "bare"]
    reader = hotplate.of(shop.hot).reader([f"profile:{name}" for name in numbers])
    for users in ([2, 2], [1, 2, 1], [2]):
        answer = reader.read({"user_id": users})
        wanted = [
            [(KNOWN if user == 1 else ABSENT).get(name, math.nan) for name in numbers]
            for user in users
        ]
        np.testing.assert_array_equal(answer.values, np.array(wanted, np.float32))
        assert [one.is_default for one in answer.freshness()["profile"]] == [
            user != 1 for user in users
        ]
        assert (answer.statuses == MISSING).all(1).tolist() == [user != 1 for user in users]


def test_what_a_model_makes_of_a_default_ends_with_it(shop: Repo) -> None:
    """It is kept like any output, for `negative_ttl`, or until the entity is there."""
    hot = hotplate.of(shop.hot)
    reader = hot.reader(["profile:i4", "profile:f8"])
    policy = OutputPolicy(ttl="30s", negative=None)
    outputs = hot.outputs("m", "1", ["i4", "f8"], policy=policy)

    def score(user: int) -> tuple[float, bool]:
        answer = reader.read({"user_id": [user]})
        found = outputs.score(answer.values, lambda rows: rows.sum(1), features=answer)
        return round(float(found.values[0]), 4), bool(found.from_cache[0])

    assert [score(2), score(2)] == [(-6.9, False), (-6.9, True)]
    shop.clock.advance(5.1)
    assert [score(2), score(2)] == [(-6.9, False), (-6.9, True)]
    write(shop, 2, shop.hot)
    assert [score(2), score(2)] == [(5.5, False), (5.5, True)]


@pytest.mark.filterwarnings("ignore:On demand feature view")
def test_feasts_own_path_has_them_too(shop: Repo) -> None:
    """Version metadata, and an on-demand view that computes with them."""

    @on_demand_feature_view(
        sources=[shop.bare.get_feature_view("profile")],
        schema=[Field(name="twice", dtype=Float64)],
    )
    def doubled(inputs: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"twice": inputs["f8"] * 2})

    shop.hot.apply([doubled])
    plain = shop.hot.get_online_features(FEATURES, {"user_id": [2, 1]})
    own = shop.hot.get_online_features(
        FEATURES, {"user_id": [2, 1]}, include_feature_view_version_metadata=True
    )
    assert near(own.to_dict()) == near(plain.to_dict())
    assert statuses(own) == statuses(plain)
    computed = shop.hot.get_online_features(["doubled:twice"], {"user_id": [2, 1]}).to_dict()
    assert computed["twice"] == [0.2, 7.0]


def test_a_group_that_is_never_cached_may_have_them(make_repo: Callable[..., Repo]) -> None:
    tags = CachePolicy(cache="never", absent={"n": 5}).tags()
    repo = make_repo(ttl_map={"default": "60s"})
    repo.apply(USER, repo.view("plain", {"n": Int64}, tags=tags))
    for _ in range(2):
        response = repo.hot.get_online_features(["plain:n"], {"user_id": [1]})
        assert response.to_dict()["n"] == [5]
    assert hotplate.of(repo.hot).stats().groups["plain"].misses_never == 2


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        ({"i9": 1}, ["'i9' is no feature", "Its features: bare, f4"]),
        ({"i8": "1"}, ["'1' is no value of feature 'i8', which is INT64"]),
        ({"i8": 1.5}, ["1.5 is no value"]),
        ({"i8": True}, ["True is no value"]),
        ({"i8": 1 << 63}, ["no value of feature 'i8'"]),
        ({"i4": 1 << 31}, ["no value of feature 'i4', which is INT32"]),
        ({"text": 1}, ["which is STRING"]),
        ({"flag": 1}, ["which is BOOL"]),
        ({"f8": "nan"}, ["which is DOUBLE"]),
    ],
)
def test_a_default_that_is_none_is_refused_at_apply(
    make_repo: Callable[..., Repo], absent: dict[str, Any], words: list[str]
) -> None:
    """With the group, the feature and what it is; the same in a tag and in the map."""
    ways: list[dict[str, Any]] = [
        {"ttl_map": {"default": "60s", "profile": {"ttl": "60s", "absent": absent}}},
        {"ttl_map": {"default": "60s"}},
    ]
    for tags, settings in (({}, ways[0]), (CachePolicy(absent=absent).tags(), ways[1])):
        repo = make_repo(**settings)
        with pytest.raises(PolicyError) as refused:
            repo.apply(USER, repo.view("profile", SCHEMA, tags=tags))
        for word in ("group 'profile'", "absent", *words):
            assert word in str(refused.value)


@pytest.mark.parametrize(
    "absent", [5, "text", ["i8"], {"i8": [1]}, {"i8": None}, {"i8": math.nan}, {1: 2}, "[1]"]
)
def test_what_is_no_mapping_is_refused_at_once(absent: Any) -> None:
    with pytest.raises(PolicyError, match=r"absent.*Write features beside their defaults"):
        CachePolicy(absent=absent)


def test_a_default_of_another_layer_replaces_it(make_repo: Callable[..., Repo]) -> None:
    """Tags carry them; the deployment has the last word, and may say none."""
    tags = CachePolicy(ttl="60s", absent={"n": 5, "m": 6}).tags("g")
    assert read_tags("v", tags).policy == CachePolicy(ttl="60s", absent={"m": 6, "n": 5})
    assert TTLMap({"g": {"ttl": "60s", "absent": {"m": 6, "n": 5}}}).tags("g") == tags
    for said, wanted in (({}, 5), ({"absent": {"n": 9}}, 9), ({"absent": {}}, None)):
        repo = make_repo(ttl_map={"g": said} if said else {})
        repo.apply(
            USER, repo.view("v", {"n": Int64}, tags=tags), repo.view("w", {"m": Int64}, tags=tags)
        )
        response = repo.hot.get_online_features(["v:n", "w:m"], {"user_id": [1]}).to_dict()
        assert response["n"] == [wanted]
        assert response["m"] == [None if said else 6]


def test_the_command_line_shows_them(shop: Repo) -> None:
    write_yaml(shop)
    runner = CliRunner()
    said = runner.invoke(main, ["policy", "-c", str(shop.folder), "--long"])
    assert said.exit_code == 0, said.output
    assert "absent" in said.output
    asked = runner.invoke(main, ["policy", "-c", str(shop.folder), "--json"])
    settings = json.loads(asked.output)
    assert json.loads(settings["profile"]["settings"]["absent"]) == ABSENT
    assert "absent" not in settings["plain"]["settings"]
    assert runner.invoke(main, ["policy", "-c", str(shop.folder)]).exit_code == 0
