"""Outputs end with the features that they came from: by age, by invalidation, across processes."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feast import Entity
from feast.types import Float64, Int64
from feast.value_type import ValueType

import hotplate
from hotplate.clock import SYSTEM_CLOCK
from hotplate.embedded import EmbeddedServer
from hotplate.errors import ConfigError
from hotplate.outputs import InputSchema, OutputCache, OutputError, OutputPolicy

from ..online_store.shop import transforms
from ..stores import USER, Repo, await_

DEALER = Entity(name="dealer", join_keys=["dealer_id"], value_type=ValueType.INT64)
FEATURES = ["profile:age", "risk:level"]
POLICY = {"shadow": "0%", "ttl": "1h"}
ROOT = Path(__file__).resolve().parents[2]


def shop(folder: Path, ttl_map: Any = None, **settings: Any) -> Repo:
    """Two views, of users and of dealers."""
    repo = Repo(
        folder,
        {"type": "sqlite"},
        project=folder.name,
        ttl_map=ttl_map or {"default": {"ttl": "10m", "jitter": 0}},
        settings={"outputs": {"default": POLICY}, **settings},
    )
    profile = repo.view("profile", {"user_id": Int64, "age": Int64})
    risk = repo.view("risk", {"dealer_id": Int64, "level": Float64}, [DEALER])
    repo.apply(USER, DEALER, profile, risk)
    for user in range(6):
        write(repo, user=user, value=user)
        write(repo, dealer=user, value=user / 10)
    return repo


def write(repo: Repo, value: Any, user: int | None = None, dealer: int | None = None) -> None:
    """Through the cached store."""
    if user is not None:
        repo.write("profile", repo.hot, user_id=[user], age=[value])
    if dealer is not None:
        repo.write("risk", repo.hot, dealer_id=[dealer], level=[value])


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return shop(tmp_path)


def ask(repo: Repo, outputs: OutputCache, *pairs: tuple[int, int], **how: Any) -> list[str]:
    """Score pairs of user and dealer by their ids alone, so that only ties can end outputs."""
    rows = [{"user_id": user, "dealer_id": dealer} for user, dealer in pairs]
    answer = repo.hot.get_online_features(FEATURES, rows)
    ids = np.array(pairs, np.float64)
    return outputs.score(ids, how.get("predict", sums), features=answer).why


def sums(ids: Any) -> Any:
    return ids.sum(1)


def model(repo: Repo, version: str = "1", **policy: Any) -> OutputCache:
    made = OutputPolicy(**{**POLICY, **policy}) if policy else None
    return repo.cache.outputs("fraud", version, ["user", "dealer"], made)


def test_an_output_lives_no_longer_than_its_youngest_input(tmp_path: Path) -> None:
    """Random times to live and reads at random moments, against the deadlines of the rows."""
    chance = random.Random(4)
    ttl_map = {"profile": {"ttl": "20s", "jitter": "50%"}, "risk": {"ttl": "35s", "jitter": 0}}
    repo = shop(tmp_path, ttl_map)
    outputs = model(repo, ttl="30s")
    ends: dict[tuple[int, int], float] = {}
    hits = 0
    for _ in range(400):
        repo.clock.advance(chance.choice([0, 1, 3, 7]))
        pair = chance.randrange(6), chance.randrange(6)
        now_ns = repo.clock.now_ns()
        rows = [{"user_id": pair[0], "dealer_id": pair[1]}]
        answer = repo.hot.get_online_features(FEATURES, rows)
        found = outputs.score(np.array([pair], np.float64), sums, features=answer)
        assert (found.why == ["hit"]) == (ends.get(pair, -1) >= now_ns)
        if found.why == ["hit"]:
            hits += 1
        else:
            deadlines = [one[0].deadline_ns for one in answer.freshness().values()]
            ends[pair] = min(now_ns + 30 * 10**9, *deadlines)
    assert hits > 20


CHANGES: dict[str, Callable[[Repo], Any]] = {
    "a write through Feast": lambda repo: write(repo, 9, user=1),
    "invalidate an entity": lambda repo: repo.cache.invalidate("profile", {"user_id": 1}),
    "another handle's write": lambda repo: repo.write(
        "profile", repo.open_hot(), user_id=[1], age=[9]
    ),
}
SWEEPS: dict[str, Callable[[Repo], Any]] = {
    "invalidate a group": lambda repo: repo.cache.invalidate("profile"),
    "clear": lambda repo: repo.cache.clear(),
    "apply": lambda repo: repo.hot.apply(
        [repo.view("profile", {"user_id": Int64, "age": Int64, "more": Int64})]
    ),
    "teardown": lambda repo: repo.hot.teardown(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_an_entity_ends_its_outputs_alone(repo: Repo, change: str) -> None:
    outputs = model(repo)
    pairs = [(1, 1), (1, 2), (2, 1), (2, 2)]
    ask(repo, outputs, *pairs)
    assert ask(repo, outputs, *pairs) == ["hit"] * 4
    CHANGES[change](repo)
    assert ask(repo, outputs, *pairs) == ["invalidated", "invalidated", "hit", "hit"]
    assert ask(repo, outputs, *pairs) == ["hit"] * 4
    assert outputs.stats().invalidated == 2
    outputs._tier.check()


@pytest.mark.parametrize("change", SWEEPS)
def test_a_change_of_a_whole_group_ends_all_of_its_outputs(repo: Repo, change: str) -> None:
    outputs = model(repo)
    ask(repo, outputs, (1, 1), (2, 2))
    ids = np.array([(1, 1), (2, 2)], np.float64)
    assert outputs.score(ids, sums).from_cache.all()
    SWEEPS[change](repo)
    assert not outputs.score(ids, sums).from_cache.any()
    outputs._tier.check()


@pytest.mark.parametrize("change", [*CHANGES, *SWEEPS])
def test_a_change_while_the_model_computes_is_not_outlived(repo: Repo, change: str) -> None:
    outputs = model(repo)

    def predict(ids: Any) -> Any:
        (CHANGES | SWEEPS)[change](repo)
        return ids.sum(1)

    ask(repo, outputs, (1, 1), predict=predict)
    assert outputs.stats()["refused"] == 1
    assert not outputs.score(np.array([[1.0, 1.0]]), sums).from_cache.any()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_the_read_and_the_model_is_not_outlived(repo: Repo, change: str) -> None:
    outputs = model(repo)
    answer = repo.hot.get_online_features(FEATURES, [{"user_id": 1, "dealer_id": 1}])
    CHANGES[change](repo)
    ids = np.array([[1.0, 1.0]])
    outputs.score(ids, sums, features=answer)
    assert not outputs.score(ids, sums).from_cache.any()


def test_no_answer_is_older_than_a_write_that_had_returned(repo: Repo) -> None:
    """Promise 2 and 3 under threads: the model answers the age that it was given."""
    outputs = model(repo)
    written = [0] * 4
    stop = threading.Event()
    wrong: list[Any] = []

    def keep_writing() -> None:
        value = 0
        while not stop.is_set():
            value += 1
            for user in range(4):
                write(repo, value, user=user)
                written[user] = value

    def keep_scoring() -> None:
        chance = random.Random(threading.get_ident())
        while not stop.is_set():
            user = chance.randrange(4)
            least = written[user]
            rows = [{"user_id": user, "dealer_id": 1}]
            answer = repo.hot.get_online_features(FEATURES, rows)
            age = answer.to_dict()["age"][0]
            found = outputs.score(
                np.array([[user, 1.0]]),
                lambda ids, age=age: np.array([float(age)]),
                features=answer,
            )
            if found.values[0] < least:
                wrong.append((user, found.values[0], least))

    for user in range(4):
        write(repo, 0, user=user)
    threads = [threading.Thread(target=keep_scoring) for _ in range(3)]
    threads.append(threading.Thread(target=keep_writing))
    for thread in threads:
        thread.start()
    time.sleep(3)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert outputs.stats().rows > 100
    outputs._tier.check()


def test_versions_schemas_and_policies_do_not_see_each_other(repo: Repo) -> None:
    cache = repo.cache
    rule = {"name": "never", "when": {"field": "user", "above": 1e9}}
    all_of_them = [
        cache.outputs("fraud", "1", ["user", "dealer"]),
        cache.outputs("fraud", "2", ["user", "dealer"]),
        cache.outputs("other", "1", ["user", "dealer"]),
        cache.outputs("fraud", "1", ["dealer", "user"]),
        cache.outputs("fraud", "1", InputSchema.of("user", "dealer", decimals=2)),
        cache.outputs("fraud", "1", ["user", "dealer"], OutputPolicy(**POLICY, rules=[rule])),
    ]
    ids = np.array([[1.0, 2.0]])
    for number, outputs in enumerate(all_of_them):
        found = outputs.score(ids, lambda _, number=number: np.array([number]))
        assert found.values.tolist() == [number]
    assert cache.outputs("fraud", "1", ["user", "dealer"]) is all_of_them[0]


def test_what_is_never_cached_is_never_the_source_of_an_output(tmp_path: Path) -> None:
    ttl_map = {"profile": {"cache": "never"}, "risk": {"ttl": "10m"}}
    repo = shop(tmp_path, ttl_map)
    outputs = model(repo)
    for _ in range(3):
        assert ask(repo, outputs, (1, 1)) == ["miss"]


def test_a_matrix_reader_and_several_answers_are_features_too(repo: Repo) -> None:
    outputs = model(repo)
    users = repo.cache.reader(["profile:age"]).read({"user_id": [1, 2]})
    dealers = repo.hot.get_online_features(["risk:level"], {"dealer_id": [1, 2]})
    ids = np.array([[1.0, 1.0], [2.0, 2.0]])
    outputs.score(ids, sums, features=[users, dealers])
    write(repo, 0.9, dealer=2)
    assert outputs.score(ids, sums).why == ["hit", "invalidated"]


def test_without_its_features_nothing_is_kept(repo: Repo) -> None:
    """Who forgets to name them gets no stale answer."""
    outputs = model(repo)
    ids = np.array([[1.0, 1.0]])
    for _ in range(2):
        assert outputs.score(ids, sums).why == ["miss"]
    assert outputs.stats()["without features"] == 2
    ask(repo, outputs, (1, 1))
    assert outputs.score(ids, sums).why == ["hit"]


@pytest.mark.filterwarnings("ignore:On demand feature view")
def test_features_that_say_nothing_are_refused(repo: Repo) -> None:
    outputs = model(repo)
    ids = np.array([[1.0, 1.0]])
    two = repo.hot.get_online_features(FEATURES, [{"user_id": 1, "dealer_id": 1}] * 2)
    with pytest.raises(OutputError, match="have 2 rows, the batch 1"):
        outputs.score(ids, sums, features=two)
    with pytest.raises(OutputError, match="are a dict, which says nothing"):
        outputs.score(ids, sums, features=two.to_dict())
    repo.apply(*transforms(repo.hot.get_feature_view("profile"))[:1])
    passed = repo.hot.get_online_features(["doubled:twice"], [{"user_id": 1}])
    with pytest.raises(OutputError, match="are an empty list"):
        outputs.score(np.array([[1.0, 1.0]]), sums, features=[])
    with pytest.raises(OutputError, match="on-demand"):
        outputs.score(ids, sums, features=passed)
    alone = OutputCache("m", "1", InputSchema.of("a", "b"))
    with pytest.raises(OutputError, match="knows no store"):
        alone.score(ids, sums, features=two)
    empty = repo.cache.reader(["profile:age"]).read({"user_id": []})
    assert len(outputs.score(np.empty((0, 2)), sums, features=empty).values) == 0


def test_the_deployment_says_what_is_kept(tmp_path: Path) -> None:
    rule = {"name": "vip", "when": {"field": "user", "is": 1}}
    said = {"ttl": "7s", "rules": [rule], "shadow": "0%", "needs_features": False}
    settings = {"outputs": {"fraud": said}}
    repo = shop(tmp_path, **settings)
    outputs = repo.cache.outputs("fraud", "1", ["user", "dealer"])
    ids = np.array([[1.0, 1.0], [2.0, 1.0]])
    outputs.score(ids, sums)
    assert outputs.score(ids, sums).why == ["rule: vip", "hit"]
    repo.clock.advance(7.1)
    assert outputs.score(ids, sums).why == ["rule: vip", "expired"]
    with pytest.raises(ConfigError, match="says nothing of model 'other'"):
        repo.cache.outputs("other", "1", ["user"])
    with pytest.raises(ConfigError, match=r"online_store\.outputs, model 'fraud'.*rule 'vip'"):
        shop(tmp_path / "wrong", outputs={"fraud": {"rules": [{"name": "vip", "when": 5}]}})
    with pytest.raises(ConfigError, match="is no mapping"):
        shop(tmp_path / "text", outputs={"fraud": "30s"})


# -- across processes -----------------------------------------------------------------------------

WRITER = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from tests.outputs.test_with_features import event_shop, write
repo = event_shop(Path(sys.argv[1]), sys.argv[2], is_new=False)
write(repo, int(sys.argv[3]), user=1)
import hotplate
hotplate.of(repo.hot).runtime.close()
"""


def event_shop(folder: Path, address: str, *, is_new: bool = True) -> Repo:
    """As it is in production: real clock, event coherence over a server."""
    settings = {
        "shared": {"connection_string": address},
        "outputs": {"default": POLICY},
    }
    ttl_map = {"default": {"ttl": "1h", "coherence": "event"}}
    if is_new:
        repo = shop(folder, ttl_map, **settings)
    else:
        repo = Repo(
            folder, {"type": "sqlite"}, project=folder.name, ttl_map=ttl_map, settings=settings
        )
    repo.clock = SYSTEM_CLOCK  # type: ignore[assignment]
    repo.hot = repo.open_hot()
    return repo


@pytest.fixture
def served(tmp_path: Path, redis: EmbeddedServer) -> Iterator[Repo]:
    repo = event_shop(tmp_path, redis.connection_string)
    yield repo
    repo.cache.runtime.close()


@pytest.mark.heavy
def test_a_write_of_another_process_ends_outputs_here(served: Repo, redis: EmbeddedServer) -> None:
    outputs = model(served)

    def is_hit() -> bool:
        return ask(served, outputs, (1, 1)) == ["hit"]

    await_(is_hit)
    kept = [ask(served, outputs, (2, 2)), ask(served, outputs, (2, 2))]
    assert kept[-1] == ["hit"]
    before = outputs.stats().invalidated
    arguments = [str(served.folder), redis.connection_string, "77"]
    subprocess.run(
        [sys.executable, "-c", WRITER, *arguments],
        check=True,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'plugins'}:{ROOT}", "PATH": "/usr/bin:/bin"},
    )
    ids = np.array([[1.0, 1.0]])
    await_(lambda: not outputs.score(ids, sums).from_cache.any(), 5)
    assert outputs.score(np.array([[2.0, 2.0]]), sums).from_cache.all()
    assert outputs.stats().invalidated == before + 1


def test_while_the_channel_is_down_nothing_is_answered(
    tmp_path: Path, own_server: EmbeddedServer
) -> None:
    """Outputs of event-coherent features are served as these are: under the lease alone."""
    repo = event_shop(tmp_path, own_server.connection_string)
    outputs = model(repo)
    ids = np.array([[1.0, 1.0]])
    await_(lambda: ask(repo, outputs, (1, 1)) == ["hit"])
    own_server.stop()
    await_(lambda: not outputs.score(ids, sums).from_cache.any(), 5)
    assert outputs.score(ids, sums).why == ["invalidated"]
    repo.cache.runtime.close()


def test_a_forked_child_starts_clean(repo: Repo) -> None:
    """Its locks are its own, also where the parent's was held."""
    outputs = model(repo)
    ask(repo, outputs, (1, 1))
    with outputs._tier._lock, outputs._lock, outputs._counts._lock:
        code = _in_child(lambda: ask(repo, outputs, (1, 1), (2, 2))[0] == "hit")
    assert code == 0


def _in_child(is_so: Callable[[], bool]) -> int:
    import os

    child = os.fork()
    if not child:
        threading.Timer(20, os._exit, [9]).start()
        os._exit(0 if is_so() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_hotplate_shows_no_ids() -> None:
    """Entity ids stay out of what is printed."""
    outputs = OutputCache("m", "1", InputSchema.of("card"), OutputPolicy(**POLICY))
    outputs.score({"card": [123456789.0]}, lambda batch: np.array([0.5]))
    assert "123456789" not in f"{outputs.stats()} {outputs!r} {hotplate!r}"
