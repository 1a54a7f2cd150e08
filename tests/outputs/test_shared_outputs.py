"""Outputs in the shared tier: one process computes, others answer; what ends them ends all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feast import Entity, FeatureStore
from feast.types import Float64, Int64
from feast.value_type import ValueType

import hotplate
from hotplate.clock import FakeClock
from hotplate.embedded import EmbeddedServer
from hotplate.errors import ConfigError
from hotplate.invalidation import local
from hotplate.outputs import OutputCache, OutputPolicy
from hotplate.outputs.scored import form_in
from pipelines.lab.cluster import Cluster
from pipelines.lab.servers import frozen, out_of_memory

from ..stores import USER, Repo

DEALER = Entity(name="dealer", join_keys=["dealer_id"], value_type=ValueType.INT64)
FEATURES = ["profile:age", "risk:level"]
POLICY = {"shadow": 0, "ttl": "30s", "shared": True}
T0 = datetime(2026, 1, 1, tzinfo=UTC)


class Fleet:
    """Several caches over one SQLite store, each as if in a process of its own."""

    def __init__(
        self, folder: Path, shared: dict[str, Any], outputs: Any = POLICY, **settings: Any
    ) -> None:
        self.clock = FakeClock()
        self.repo = Repo(
            folder,
            {"type": "sqlite"},
            ttl_map={"default": {"ttl": "60s", "jitter": 0}},
            settings={"shared": shared, "outputs": {"default": outputs}, **settings},
            clock=self.clock,
        )
        profile = self.repo.view("profile", {"user_id": Int64, "age": Int64})
        risk = self.repo.view("risk", {"dealer_id": Int64, "level": Float64}, [DEALER])
        self.repo.apply(USER, DEALER, profile, risk)
        self.moment = 0
        for number in range(4):
            self.write("profile", user_id=[number], age=[number])
            self.write("risk", dealer_id=[number], level=[number / 10])

    def write(self, view: str, through: FeatureStore | None = None, **columns: Any) -> None:
        self.moment += 1
        moment = [T0 + timedelta(seconds=self.moment)]
        self.repo.write(view, through or self.repo.bare, **columns, event_time=moment)

    def join(self, *, is_new: bool = False) -> Member:
        """Another process that shares nothing with the others but the server.

        Args:
            is_new: whether its model has not answered anything yet.
        """
        local._domains.clear()
        member = Member(self.repo.open_hot())
        if not is_new:
            member.outputs.score(np.zeros((1, 2)), member.model)
            member.calls = 0
        return member


class Member:
    """One process, that scores pairs of ids, so that nothing but ties can end an output."""

    def __init__(self, store: FeatureStore) -> None:
        self.store = store
        self.hot = hotplate.of(store)
        self.calls = 0
        self.outputs: OutputCache = self.hot.outputs("fraud", "1", ["user", "dealer"])

    def ask(self, *pairs: tuple[int, int], outputs: OutputCache | None = None) -> list[str]:
        answer = self.read(*pairs)
        ids = np.array(pairs, np.float64)
        scored = (outputs or self.outputs).score(ids, self.model, features=answer)
        np.testing.assert_array_equal(scored.values, ids.sum(1))
        return scored.why

    def hear_nothing(self) -> None:
        """Be as long behind with the event channel as a test takes."""
        self.hot.runtime.coherence.hear_change = lambda change: None  # type: ignore[method-assign]

    def read(self, *pairs: tuple[int, int]) -> Any:
        rows = [{"user_id": user, "dealer_id": dealer} for user, dealer in pairs]
        return self.store.get_online_features(FEATURES, rows)

    def model(self, ids: Any) -> Any:
        self.calls += 1
        return ids.sum(1)


@pytest.fixture
def fleet(tmp_path: Path, server: EmbeddedServer, client: Any) -> Fleet:
    return Fleet(tmp_path, {"connection_string": server.connection_string, "timeout": "2s"})


def test_one_computes_and_the_others_take_it(fleet: Fleet) -> None:
    one, other, third = fleet.join(), fleet.join(), fleet.join()
    assert one.ask((1, 1), (2, 2)) == ["miss", "miss"]
    assert other.ask((1, 1), (2, 2), (3, 3)) == ["hit", "hit", "miss"]
    assert other.outputs.stats()["from shared"] == 2
    assert third.ask((3, 3)) == ["hit"]
    assert [member.calls for member in (one, other, third)] == [1, 1, 0]
    assert third.ask((3, 3)) == ["hit"]
    assert third.outputs.stats()["from shared"] == 1, "it is in memory by now"
    new = fleet.join(is_new=True)
    assert new.ask((1, 1)) == new.ask((1, 1)) == ["hit"]
    assert new.outputs.stats()["from shared"] == 2, "nobody knows how its own model answers"
    assert new.ask((0, 0), (1, 1)) == ["miss", "hit"]
    assert new.ask((1, 1)) == new.ask((1, 1)) == ["hit"]
    assert new.outputs.stats()["from shared"] == 4


CHANGES: dict[str, Callable[[Fleet, Member], Any]] = {
    "a write": lambda fleet, by: fleet.write("profile", by.store, user_id=[1], age=[1]),
    "an invalidation": lambda fleet, by: by.hot.invalidate("profile", {"user_id": 1}),
    "of the other view": lambda fleet, by: by.hot.invalidate("risk", {"dealer_id": 1}),
}
LARGE_CHANGES: dict[str, Callable[[Fleet, Member], Any]] = {
    "a group": lambda fleet, by: by.hot.invalidate("risk"),
    "everything": lambda fleet, by: by.hot.clear(),
    "the outputs": lambda fleet, by: by.outputs.clear(),
    "a purge": lambda fleet, by: list(by.hot.purge(["profile"])),
    "switched off and on": lambda fleet, by: (
        by.outputs.switch_off("a test"),
        by.outputs.switch_on(),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_an_entity_ends_its_outputs_for_all(fleet: Fleet, change: str) -> None:
    fleet.join().ask((1, 1), (2, 2))
    CHANGES[change](fleet, fleet.join())
    assert fleet.join().ask((1, 1), (2, 2)) == ["miss", "hit"]
    assert fleet.join().ask((1, 1), (2, 2)) == ["hit", "hit"]


@pytest.mark.parametrize("change", LARGE_CHANGES)
def test_a_change_of_all_ends_all(fleet: Fleet, change: str) -> None:
    fleet.join().ask((1, 1), (2, 2))
    LARGE_CHANGES[change](fleet, fleet.join())
    assert fleet.join().ask((1, 1), (2, 2)) == ["miss", "miss"]


@pytest.mark.parametrize("change", [*CHANGES, "a group", "everything", "the outputs"])
def test_a_change_while_another_process_computes_is_not_outlived(fleet: Fleet, change: str) -> None:
    """Promise 3: what the model was given before is not kept for those who come after."""
    one, by = fleet.join(), fleet.join()
    answer = one.read((1, 1))

    def slow(ids: Any) -> Any:
        {**CHANGES, **LARGE_CHANGES}[change](fleet, by)
        return ids.sum(1)

    one.outputs.score(np.array([[1.0, 1.0]]), slow, features=answer)
    assert fleet.join().ask((1, 1)) == ["miss"]


@pytest.mark.parametrize("has_ties", [False, True], ids=["no ties yet", "ties"])
@pytest.mark.parametrize("change", ["a write", "an invalidation", "of the other view", "a group"])
def test_a_process_that_has_not_heard_of_a_change_shares_nothing(
    fleet: Fleet, change: str, has_ties: bool
) -> None:
    """Promise 3: it still has the rows of before, and the others have heard already."""
    deaf, by = fleet.join(), fleet.join()
    deaf.hear_nothing()
    stale = deaf.read((1, 1))
    if has_ties:
        fleet.join().outputs.score(np.array([[9.0, 9.0]]), by.model, features=by.read((1, 1)))
    {**CHANGES, **LARGE_CHANGES}[change](fleet, by)
    ids = np.array([[1.0, 1.0]])
    assert deaf.outputs.score(ids, deaf.model, features=stale).why == ["miss"]
    assert deaf.outputs.stats()["kept"] == 1, "it believes its rows"
    assert by.ask((1, 1)) == ["miss"]
    assert fleet.join().ask((1, 1)) == ["hit"], "that of the one who knows"


def test_rows_that_changed_and_were_read_again_are_not_those_of_before(fleet: Fleet) -> None:
    deaf, by = fleet.join(), fleet.join()
    deaf.hear_nothing()
    stale = deaf.read((1, 1))
    fleet.write("profile", by.store, user_id=[1], age=[7])
    by.read((1, 1))  # the row lies there again, and says something else
    ids = np.array([[1.0, 1.0]])
    assert deaf.outputs.score(ids, deaf.model, features=stale).why == ["miss"]
    assert fleet.join().ask((1, 1)) == ["miss"]


def test_an_output_lives_no_longer_elsewhere(fleet: Fleet) -> None:
    """The ttl counts from when it was computed, and the features' own deadline holds for each."""
    fleet.join().ask((1, 1))
    fleet.clock.advance(20)
    late = fleet.join()
    assert late.ask((1, 1)) == ["hit"]
    fleet.clock.advance(11)
    assert late.ask((1, 1)) == ["expired"], "30 s after it was computed"
    fleet.clock.advance(25)  # features of 56 s: their deadline comes before the output's
    early = fleet.join()
    early.read((1, 1))
    assert early.ask((2, 2)) == ["miss"]
    fleet.clock.advance(29)
    assert fleet.join().ask((2, 2)) == ["hit"]
    fleet.clock.advance(2)
    assert fleet.join().ask((2, 2)) == ["miss"]


def test_in_memory_it_lives_no_longer_than_the_features_here(fleet: Fleet) -> None:
    """They may be older than those that it was computed from."""
    late = fleet.join()
    late.read((1, 1))  # to be served until 60 s
    fleet.clock.advance(45)
    other = fleet.join()
    other.hot.invalidate("profile", {"user_id": 1})  # where coherence is `ttl`, others go on
    other.hot.invalidate("risk", {"dealer_id": 1})
    assert other.ask((1, 1)) == ["miss"]
    fleet.clock.advance(5)
    assert late.ask((1, 1)) == late.ask((1, 1)) == ["hit"]
    assert late.outputs.stats()["from shared"] == 1
    fleet.clock.advance(11)
    assert late.ask((1, 1)) == ["hit"]
    assert late.outputs.stats()["from shared"] == 2


def test_a_stepped_wall_clock_makes_nothing_younger(fleet: Fleet) -> None:
    fleet.join().ask((1, 1))
    fleet.clock._wall_ns -= 3_600 * 10**9
    fleet.join().ask((2, 2))
    fleet.clock._wall_ns += 3_600 * 10**9
    assert fleet.join().ask((2, 2)) == ["miss"], "by the wall clocks it is an hour old"


def test_versions_schemas_and_policies_do_not_see_each_other(fleet: Fleet) -> None:
    fleet.join().ask((1, 1))
    other = fleet.join()
    made = [
        other.hot.outputs("fraud", "2", ["user", "dealer"]),
        other.hot.outputs("fraud", "1", ["user", "seller"]),
        other.hot.outputs("risk", "1", ["user", "dealer"]),
        other.hot.outputs(
            "fraud",
            "1",
            ["user", "dealer"],
            OutputPolicy(**POLICY, rules=[{"name": "r", "when": {"field": "user", "is": 7}}]),
        ),
    ]
    for outputs in made:
        assert other.ask((1, 1), outputs=outputs) == ["miss"]
    assert other.ask((1, 1)) == ["hit"]


def test_rules_are_judged_on_what_comes_from_elsewhere(tmp_path: Path, server: Any) -> None:
    rules = [
        {"name": "unsure", "when": {"score": {"between": [3, 5]}}},
        {"name": "seven", "when": {"field": "user", "is": 3}},
    ]
    shared = {"connection_string": server.connection_string, "timeout": "2s"}
    fleet = Fleet(tmp_path, shared, {**POLICY, "rules": rules})
    pairs = ((1, 1), (2, 2), (3, 3))
    for _ in range(2):
        assert fleet.join().ask(*pairs)[1:] == ["miss", "rule: seven"]
    assert fleet.join().ask(*pairs)[0] == "hit"


def test_a_rule_joins_fields_and_scores_of_one_row(tmp_path: Path, server: Any) -> None:
    """Also where one row is found in memory and another one in the shared tier."""
    when = {"all": [{"field": "dealer", "is": 3}, {"score": {"above": 4}}]}
    fleet = Fleet(
        tmp_path,
        {"connection_string": server.connection_string, "timeout": "2s"},
        {**POLICY, "rules": [{"name": "large", "when": when}]},
    )
    first, other = fleet.join(), fleet.join()
    first.outputs.score(
        np.array([[3.0, 3.0]]), lambda ids: np.array([3.0]), features=first.read((3, 3))
    )
    other.ask((3, 2))
    batch, answer = np.array([[3.0, 3.0], [3.0, 2.0]]), other.read((3, 3), (3, 2))
    found = other.outputs.score(batch, other.model, features=answer)
    assert found.why == ["hit", "hit"], "3.0 is not above 4, and 5.0 is of another dealer"


def test_what_does_not_verify_is_a_miss(fleet: Fleet, client: Any) -> None:
    """Garbage, a flipped bit, another input's entry, a list: each is computed anew and replaced."""
    fleet.join().ask((1, 1))
    (at,) = client.keys("hotplate:output:*")
    entry = client.get(at)
    member = fleet.join()  # another input of the same entities: the same ties
    member.outputs.score(np.array([[1.0, 7.0]]), member.model, features=member.read((1, 1)))
    (elsewhere,) = set(client.keys("hotplate:output:*")) - {at}
    flipped = (0, 2, 6, 22, 30, 38, 45, 47, len(entry) - 1)
    bad = [
        b"",
        b"garbage" * 20,
        entry[:-1],
        entry[:20],
        entry + b"x",
        client.get(elsewhere),
        *(entry[:place] + bytes([entry[place] ^ 1]) + entry[place + 1 :] for place in flipped),
    ]
    for value in bad:
        client.set(at, value)
        assert fleet.join().ask((1, 1)) == ["miss"], value
        assert fleet.join().ask((1, 1)) == ["hit"]
    client.delete(at)
    client.rpush(at, "a", "list")
    assert fleet.join().ask((1, 1)) == ["miss"]
    for tie in client.keys("hotplate:tie:*"):
        client.set(tie, b"garbage")
    assert fleet.join().ask((1, 1)) == ["miss"]
    assert fleet.join().ask((1, 1)) == ["hit"]
    for tie in client.keys("hotplate:tie:*"):
        client.delete(tie)
        client.rpush(tie, "list")
    assert fleet.join().ask((1, 1)) == ["miss"]
    assert fleet.join().ask((1, 1)) == ["miss"]  # the lists are gone only by now
    assert fleet.join().ask((1, 1)) == ["hit"]


def test_ids_and_values_are_in_no_key_of_an_output(fleet: Fleet, client: Any) -> None:
    fleet.write("profile", user_id=[777_123], age=[1])
    fleet.join().ask((777_123, 1))
    (at,) = client.keys("hotplate:output:*")
    assert b"777123" not in at
    assert 0 < client.pttl(at) <= 30_000
    ties = client.keys("hotplate:tie:*")
    assert len(ties) == 2
    assert all(0 < client.pttl(tie) <= 300_000 for tie in ties)


def test_a_server_that_freezes_is_left_alone(fleet: Fleet, server: EmbeddedServer) -> None:
    fleet.repo.settings["shared"]["timeout"] = "50ms"
    member = fleet.join()
    member.ask((1, 1))
    with frozen(server):
        assert member.ask((2, 2)) == ["miss"]
        assert member.ask((1, 1), (2, 2)) == ["hit", "hit"]


def test_a_full_server_is_read_but_not_written(fleet: Fleet, server: EmbeddedServer) -> None:
    fleet.join().ask((1, 1))
    member = fleet.join()
    with out_of_memory(server):
        assert member.ask((1, 1), (2, 2)) == ["hit", "miss"]
        shared = member.hot.stats().shared
        assert shared is not None
        assert shared.is_usable
    assert fleet.join().ask((2, 2)) == ["miss"]


def test_outputs_of_every_form(fleet: Fleet) -> None:
    """A row of several columns; a process that has not computed anything yet takes its form."""
    schema = ["user", "dealer"]
    for dtype in (np.float32, np.int64, np.bool_):

        def model(ids: Any, dtype: Any = dtype) -> Any:
            return np.stack([ids[:, 0], ids[:, 1]], 1).astype(dtype)

        name = f"form {np.dtype(dtype).name}"
        found = []
        for _ in range(2):
            member = fleet.join()
            outputs = member.hot.outputs(name, "1", schema)
            answer = member.read((0, 1))
            found.append(outputs.score(np.array([[0.0, 1.0]]), model, features=answer))
        assert found[1].why == ["hit"]
        assert found[1].values.dtype == dtype
        np.testing.assert_array_equal(found[0].values, found[1].values)


async def test_on_an_event_loop(fleet: Fleet) -> None:
    fleet.join().ask((1, 1))
    member = fleet.join()
    answer, batch = member.read((1, 1)), np.array([[1.0, 1.0]])
    scored = await asyncio.wait_for(
        member.outputs.score_async(batch, member.model, features=answer), 10
    )
    assert scored.why == ["hit"]


def test_in_a_cluster(tmp_path: Path, redis_cluster: Cluster) -> None:
    settings = {**redis_cluster.settings, "timeout": "2s"}
    settings.pop("type", None)
    fleet = Fleet(tmp_path, settings)
    pairs = tuple((user, dealer) for user in range(4) for dealer in range(4))
    assert set(fleet.join().ask(*pairs)) == {"miss"}
    assert set(fleet.join().ask(*pairs)) == {"hit"}
    fleet.join().hot.invalidate("profile", {"user_id": 1})
    assert fleet.join().ask(*pairs).count("miss") == 4


def test_what_cannot_be_shared_is_said(tmp_path: Path, server: EmbeddedServer) -> None:
    repo = Repo(tmp_path, {"type": "sqlite"}, settings={"outputs": {"default": POLICY}})
    repo.apply(USER, repo.view("v", {"age": Int64}))
    with pytest.raises(ConfigError, match="no shared tier"):
        repo.cache.outputs("fraud", "1", ["x"])
    shared = {"connection_string": server.connection_string}
    other = tmp_path / "other"
    other.mkdir()
    repo = Repo(other, {"type": "sqlite"}, settings={"shared": shared})
    repo.apply(USER, repo.view("v", {"age": Int64}))
    with pytest.raises(ConfigError, match="shared in code alone"):
        repo.cache.outputs("fraud", "1", ["x"], OutputPolicy(**POLICY))


@pytest.mark.parametrize("form", [b"<f9:", b"<f8:2", b"<f8:,,", b"<i8:1,1,1,1"])
def test_a_form_that_does_not_fit_is_a_miss(form: bytes) -> None:
    """What verifies may still come from something that is not this program."""
    own = form_in(b"<f8:", bytes(8))
    assert own == (np.dtype(np.float64), ())
    assert (form_in(form, bytes(8)) == own) == (form == b"<f8:,,")


def test_the_form_of_the_model_here_counts(fleet: Fleet) -> None:
    """Another process answers float32 for the same version: that is no error here, ever."""
    other = fleet.join(is_new=True)
    pairs = ((1, 1), (2, 2), (3, 3))
    ids = np.array(pairs, np.float64)
    other.outputs.score(
        ids[:2], lambda ids: ids.sum(1).astype(np.float32), features=other.read(*pairs[:2])
    )
    member = fleet.join(is_new=True)
    asked = []

    def model(ids: Any) -> Any:
        asked.append(len(ids))
        return ids.sum(1)

    answer = member.read(*pairs)
    first = member.outputs.score(ids[:1], model, features=member.read(pairs[0]))
    assert (first.why, first.values.dtype) == (["hit"], np.dtype(np.float32))
    for number, why in enumerate((["miss"] * 3, ["hit"] * 3)):
        scored = member.outputs.score(ids, model, features=answer)
        assert (scored.why, scored.values.dtype) == (why, np.dtype(np.float64)), number
        np.testing.assert_array_equal(scored.values, ids.sum(1))
    assert asked == [1, 3], "asked for one row first, then for all"
