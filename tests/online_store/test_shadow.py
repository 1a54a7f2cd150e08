"""Shadow checks tell rows that are merely old from rows that are wrong, and act on the latter."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from feast.types import Float64, Int64
from hypothesis import given
from hypothesis import strategies as st

import hotplate
from hotplate.codec import PREFIX_BYTES
from hotplate.errors import ConfigError
from hotplate.intervals import wilson_interval
from hotplate.online_store import CachedOnlineStoreConfig
from hotplate.serving.shadow import Shadow

from ..conftest import settings_of
from ..stores import USER, Repo
from . import loader_functions
from .shop import day, put

FEATURES = ["profile:age", "counts:n1"]
USERS = list(range(1, 9))


@pytest.fixture(params=["sqlite", "redis"])
def online(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A store that tells nobody, and one whose server does."""
    return settings_of(request, request.param)


@pytest.fixture
def checked(make_repo: Callable[..., Repo]) -> Callable[..., Repo]:
    """Two views of some users, every request of which is checked."""

    def make(ttl_map: Any = None, **shadow: Any) -> Repo:
        said = {"share": 1.0, "rate": "10000/s", "least": 50, **shadow}
        repo = make_repo(
            settings={"shadow": said}, ttl_map=ttl_map or {"default": {"ttl": "1h", "jitter": 0}}
        )
        repo.apply(
            USER,
            repo.view("profile", {"age": Int64, "score": Float64}),
            repo.view("counts", {"n1": Int64}),
        )
        put(repo, "profile", user_id=USERS, age=USERS, score=[0.5] * len(USERS))
        put(repo, "counts", user_id=USERS, n1=USERS)
        return repo

    return make


def shadow_of(repo: Repo) -> Shadow:
    found = hotplate.of(repo.hot).runtime.shadow
    assert found is not None
    return found


def ask(repo: Repo, *users: int) -> dict[str, Any]:
    found: dict[str, Any] = repo.hot.get_online_features(
        FEATURES, {"user_id": list(users)}
    ).to_dict()
    return found


def counts(repo: Repo, group: str = "profile") -> tuple[int, int, int]:
    """Equal, stale and differing rows, after all that waits was compared."""
    shadow_of(repo).check()
    found = hotplate.of(repo.hot).stats().groups[group]
    return found.shadow_equal, found.shadow_stale, found.shadow_differed


def corrupt(repo: Repo, view: str, user: int) -> None:
    """Another user's row in the place of this one's, as a wrong key would put it there."""
    runtime = hotplate.of(repo.hot).runtime
    (known,) = runtime.domain.views_named(repo.hot.project, view)
    key, other = known.key((user,)), known.key((user % len(USERS) + 1,))
    row, wrong = runtime.engine.memory.peek(key), runtime.engine.memory.peek(other)
    assert row is not None
    assert wrong is not None
    mixed = row[:PREFIX_BYTES] + wrong[PREFIX_BYTES:]
    version = runtime.engine.memory.version(key)
    runtime.engine.memory.fill([(key, mixed, version)], runtime.domain.is_current)
    assert runtime.engine.memory.peek(key) == mixed


def test_what_is_right_is_equal(checked: Callable[..., Repo]) -> None:
    """Hits, misses, absent entities, and rows that were written through Feast meanwhile."""
    repo, chance = checked(), random.Random(1)
    for number in range(60):
        ask(repo, *(chance.randrange(1, 12) for _ in range(3)))
        if chance.random() < 0.2:
            user = chance.choice(USERS)
            put(repo, "profile", day(number + 1), user_id=[user], age=[number], score=[1.0])
        if chance.random() < 0.3:
            shadow_of(repo).check()
    equal, stale, differed = counts(repo)
    assert (stale, differed) == (0, 0)
    assert equal > 30
    found = hotplate.of(repo.hot).stats().groups["profile"]
    assert found.mismatch_interval[0] == 0
    assert found.mismatch_interval[1] < 0.12


def test_what_others_wrote_is_stale_not_wrong(checked: Callable[..., Repo]) -> None:
    """A later event time at the source, and an entity that came there, explain the difference."""
    repo = checked()
    ask(repo, 1, 2, 77)
    shadow_of(repo).check()
    repo.write("profile", repo.bare, event_time=[day(1)], user_id=[1], age=[11], score=[0.5])
    repo.write("profile", repo.bare, event_time=[day(1)], user_id=[77], age=[7], score=[0.5])
    before = counts(repo)
    for user in (1, 2, 77):
        ask(repo, user)
    equal, stale, differed = counts(repo)
    assert (equal - before[0], stale - before[1], differed) == (1, 2, 0)


def test_a_row_of_another_user_is_found(
    checked: Callable[..., Repo], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing says that it was written since: it differs, and the log names the features alone."""
    repo = checked()
    ask(repo, *USERS)
    shadow_of(repo).check()
    corrupt(repo, "profile", 3)
    ask(repo, 3)
    assert counts(repo)[2] == 1
    assert "profile" in caplog.text
    assert "age" in caplog.text
    assert "user" not in caplog.text.replace("user_id", "user")


def test_a_group_that_surely_differs_is_taken_out(
    checked: Callable[..., Repo], caplog: pytest.LogCaptureFixture
) -> None:
    """From then on it is read from the source, the other group is not, and `admit` lets it back."""
    repo = checked(limit=0.01)
    hot = hotplate.of(repo.hot)
    ask(repo, *USERS)
    shadow_of(repo).check()
    for number in range(70):
        user = number % len(USERS) + 1
        if number % 10 == 0:
            corrupt(repo, "profile", user)
        ask(repo, user)
        shadow_of(repo).check()
        if hot.stats().excluded:
            break
    assert number >= 40  # not before enough was compared
    assert list(hot.stats().excluded) == ["profile"]
    assert "group profile is served from the source from now on" in caplog.text
    before = hot.stats().groups
    assert ask(repo, 1, 2)["age"] == [1, 2]
    after = hot.stats().groups
    assert after["profile"].misses_never - before["profile"].misses_never == 2
    assert after["counts"].hits - before["counts"].hits == 2
    (found,) = hot.inspect("profile", {"user_id": 1})
    assert "shadow checks" in found.next_read
    with pytest.raises(KeyError, match="was not taken out"):
        hot.admit("counts")
    hot.admit("profile")
    ask(repo, 1)
    shadow_of(repo).check()
    ask(repo, 2)
    shadow_of(repo).check()
    assert not hot.stats().excluded, "what was before is not judged again"
    before = hot.stats().groups
    ask(repo, 1)
    assert hot.stats().groups["profile"].hits - before["profile"].hits == 1
    assert hot.reader(["profile:age"]).matrix({"user_id": [5]}).tolist() == [[5.0]]


def test_a_reader_follows_a_group_that_is_taken_out(checked: Callable[..., Repo]) -> None:
    """A matrix reader that was made before reads the source, too."""
    repo = checked()
    hot = hotplate.of(repo.hot)
    reader = hot.reader(["profile:age"])
    for _ in range(3):
        reader.matrix({"user_id": [1]})
    hot.runtime.exclude("profile", "as a test says")
    before = hot.stats().groups["profile"].misses_never
    assert reader.matrix({"user_id": [1]}).tolist() == [[1.0]]
    assert hot.stats().groups["profile"].misses_never == before + 1


def test_under_event_coherence_old_is_wrong(
    checked: Callable[..., Repo], request: pytest.FixtureRequest
) -> None:
    """A write that nobody heard of differs, once the time in which it must be heard is over."""
    if request.node.callspec.params["online"] != "redis":
        pytest.skip("the server must tell of changes")
    repo = checked({"default": {"ttl": "1h", "jitter": 0, "coherence": "event"}})
    shadow, now_s = shadow_of(repo), [0.0]
    shadow._clock = lambda: now_s[0]
    runtime = hotplate.of(repo.hot).runtime
    ask(repo, 1, 2)
    for _ in range(1_000):  # until the channel is whole, and the rows are in memory
        before = hotplate.of(repo.hot).stats().groups["profile"].hits
        ask(repo, 1, 2)
        if hotplate.of(repo.hot).stats().groups["profile"].hits - before == 2:
            break
    shadow._waiting.clear()
    corrupt(repo, "profile", 1)
    ask(repo, 1)
    shadow.check()
    group = hotplate.of(repo.hot).stats().groups["profile"]
    assert (group.shadow_differed, len(shadow._doubted)) == (0, 1)
    now_s[0] += 1
    shadow.check()
    assert hotplate.of(repo.hot).stats().groups["profile"].shadow_differed == 1
    corrupt(repo, "profile", 1)
    ask(repo, 1)
    shadow.check()
    hotplate.of(repo.hot).invalidate("profile", {"user_id": 1})  # it was heard of meanwhile
    now_s[0] += 1
    shadow.check()
    group = hotplate.of(repo.hot).stats().groups["profile"]
    assert (group.shadow_differed, group.shadow_overtaken) == (1, 1)
    runtime.close()


def test_a_source_that_fails_is_counted(checked: Callable[..., Repo]) -> None:
    """Nothing is said of rows that could not be compared."""
    repo = checked()
    ask(repo, 1)
    shadow_of(repo).check()
    engine = hotplate.of(repo.hot).runtime.engine
    source, engine.source = engine.source, _Failing()
    ask(repo, 1)
    shadow_of(repo).check()
    engine.source = source
    group = hotplate.of(repo.hot).stats().groups["profile"]
    assert (group.shadow_errors, group.shadow_differed) == (1, 0)


class _Failing:
    def load(self, requests: Any) -> Any:
        raise OSError("down")

    async def load_async(self, requests: Any) -> Any:
        raise OSError("down")


def test_no_more_is_read_than_was_said(checked: Callable[..., Repo]) -> None:
    """The rate bounds extra reads of the source, however many requests come."""
    repo = checked(rate="20/s")
    shadow, now_s = shadow_of(repo), [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now_s[0] += seconds

    shadow._clock, shadow._sleep = lambda: now_s[0], sleep
    shadow.restart_after_fork()
    for _ in range(50):
        ask(repo, 1)
    shadow.check()
    compared = counts(repo)[0]
    assert compared == 50
    assert now_s[0] >= 50 / 20 - 1


def test_more_rows_than_the_rate_hide_nothing(
    checked: Callable[..., Repo], request: pytest.FixtureRequest
) -> None:
    """Doubted rows are looked at in between, however many others wait."""
    if request.node.callspec.params["online"] != "redis":
        pytest.skip("the server must tell of changes")
    repo = checked({"default": {"ttl": "1h", "jitter": 0, "coherence": "event"}}, rate="50/s")
    shadow, now_s = shadow_of(repo), [0.0]
    shadow._clock = lambda: now_s[0]
    shadow._sleep = lambda seconds: now_s.__setitem__(0, now_s[0] + seconds)
    for _ in range(1_000):
        before = hotplate.of(repo.hot).stats().groups["profile"].hits
        ask(repo, 1, 2)
        if hotplate.of(repo.hot).stats().groups["profile"].hits - before == 2:
            break
    shadow._ends.set()  # no thread beside: what is compared is what is compared here
    shadow.restart_after_fork()
    corrupt(repo, "profile", 1)
    for number in range(40):
        for _ in range(20):
            ask(repo, 1 if number % 2 else 2)
        shadow.check_some()
    group = hotplate.of(repo.hot).stats().groups["profile"]
    assert group.shadow_differed > 0
    assert len(shadow._doubted) <= 1_000
    hotplate.of(repo.hot).runtime.close()


def test_a_loader_without_times_is_compared_by_values(make_repo: Callable[..., Repo]) -> None:
    """The event time of what it loads is that of the load: it says nothing of a change; and a check
    writes nothing back."""
    loader_functions.reset()
    loader = {"function": f"{loader_functions.__name__}:double", "write_back": True}
    repo = make_repo(
        settings={"shadow": {"share": 1.0, "rate": "10000/s"}, "loaders": {"v": loader}},
        ttl_map={"default": {"ttl": "1h", "jitter": 0}},
    )
    repo.apply(USER, repo.view("v", {"n": Int64}))
    runtime = hotplate.of(repo.hot).runtime
    for _ in range(5):
        repo.hot.get_online_features(["v:n"], {"user_id": [1, 2]})
        repo.clock.advance(5)
        shadow_of(repo).check()
    runtime.loaders.drain()
    group = hotplate.of(repo.hot).stats().groups["v"]
    assert (group.shadow_stale, group.shadow_differed) == (0, 0)
    assert group.shadow_equal >= 4
    (counts_of,) = hotplate.of(repo.hot).stats().loaders.values()
    assert counts_of.written_back == 2


def test_a_group_is_taken_out_while_the_registry_is_down(
    checked: Callable[..., Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of it goes, by what this process has read."""
    repo = checked()
    hot = hotplate.of(repo.hot)
    ask(repo, 1)

    def fail() -> Any:
        raise OSError("down")

    monkeypatch.setattr(hot.runtime, "_registered", fail)
    hot.runtime.exclude("profile", "as a test says")
    assert hot.stats().groups["profile"].entries == 0
    assert hot.stats().groups["counts"].entries == 1


def test_nothing_is_served_differently(checked: Callable[..., Repo]) -> None:
    """Answers with checks are those of the bare store."""
    repo = checked()
    for users in ([1, 2], [1], [9, 1, 9]):
        bare = repo.bare.get_online_features(FEATURES, {"user_id": users}).to_dict()
        assert ask(repo, *users) == bare
        assert ask(repo, *users) == bare
        shadow_of(repo).check()


@given(st.integers(0, 400), st.integers(1, 400))
def test_the_interval_is_wilsons(found: int, among: int) -> None:
    """It holds the share itself, lies within nothing and all, and narrows with more rows."""
    found = min(found, among)
    low, high = wilson_interval(found, among)
    assert 0 <= low <= found / among + 1e-12
    assert found / among - 1e-12 <= high <= 1
    wide, narrow = wilson_interval(found, among), wilson_interval(100 * found, 100 * among)
    assert narrow[1] - narrow[0] < wide[1] - wide[0]


def test_the_interval_of_the_literature() -> None:
    """81 of 263: 0.2553 to 0.3662 (Newcombe, Statistics in Medicine 17, 1998, table I)."""
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_settings_that_cannot_be() -> None:
    """Each names the setting."""
    for said in ({"share": 0}, {"share": "200%"}, {"rate": "fast"}, {"limit": 1}, {"least": 0}):
        with pytest.raises(ConfigError, match=f"shadow.{next(iter(said))}"):
            CachedOnlineStoreConfig(store={"type": "sqlite"}, shadow=said)
