"""Loaders under load: timeouts, turns, single flight, async requests, write-back, forks."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from feast.types import Float64, Int64
from sqlalchemy import Engine, event

from hotplate import LoaderTimeoutError, Tier
from hotplate.embedded import EmbeddedServer

from ..stores import MERCHANT, USER, Repo
from . import loader_functions
from .operational import MERCHANT_RISK, Database, postgres_database, sqlite_database

FUNCTIONS = loader_functions.__name__
SLOW = {
    "sqlite": """WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r LIMIT 400000000)
                 SELECT x AS user_id, count(*) AS n FROM r WHERE x IN :user_id""",
    "postgres": """SELECT id AS user_id, 1 AS n FROM pg_sleep(30), {s}categories
                   WHERE id IN :user_id""",
}


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An operational database with some payments."""
    if request.param == "sqlite":
        made = sqlite_database(tmp_path)
    else:
        made = postgres_database(request.getfixturevalue("postgres"))
    made.fill()
    yield made
    made.engine.dispose()


@pytest.fixture(autouse=True)
def _fresh_functions() -> None:
    loader_functions.reset()


def users(folder: Path, online: dict[str, Any] | None = None, **loader: Any) -> Repo:
    """A view of users with a loader."""
    ttl_map = loader.pop("ttl_map", {"default": "1h"})
    project = f"p{abs(hash(folder)) % 10**9}"
    settings = {"function": f"{FUNCTIONS}:slow", **loader}
    if "sql" in settings:
        del settings["function"]
    repo = Repo(
        folder / "repo",
        online or {"type": "sqlite"},
        project=project,
        ttl_map=ttl_map,
        settings={"loaders": {"v": settings}},
    )
    repo.apply(USER, repo.view("v", {"n": Int64}))
    return repo


def ask(repo: Repo, *user_ids: int) -> Any:
    rows = [{"user_id": user} for user in user_ids]
    return repo.hot.get_online_features(["v:n"], rows).to_dict()["n"]


# -- timeouts ------------------------------------------------------------------------------------


def test_a_slow_query_ends_in_time_for_the_caller_and_in_the_database(
    tmp_path: Path, database: Database
) -> None:
    """The caller waits for the timeout and no longer; the database has stopped as well."""
    sql = SLOW["postgres" if database.is_postgres else "sqlite"]
    repo = users(
        tmp_path, sql=database.sql(sql), url=database.url, timeout="400ms", max_concurrent=1
    )
    for _ in range(2):  # the second finds the turn free again
        began = time.monotonic()
        with pytest.raises(LoaderTimeoutError, match=r"feature view 'v': .*0.4 s"):
            ask(repo, 1)
        assert time.monotonic() - began < 2.0
    stats = repo.cache.stats()
    assert stats.loaders["v"].queries == stats.loaders["v"].timeouts == 2
    assert stats.groups["v"].load_errors == 2
    assert stats.groups["v"].loads == 0
    if database.is_postgres:
        time.sleep(0.1)
        with database.engine.connect() as connection:
            running = connection.exec_driver_sql(
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%pg_sleep(30)%%' "
                "AND state <> 'idle' AND pid <> pg_backend_pid()"
            ).scalar()
        assert running == 0


def test_a_hung_function_costs_the_caller_its_timeout_only(tmp_path: Path) -> None:
    """A function cannot be stopped: the caller goes on, and later ones wait for the turn."""
    repo = users(tmp_path, timeout="500ms", max_concurrent=1)
    loader_functions.answer = 2.5
    began = time.monotonic()
    with pytest.raises(LoaderTimeoutError, match=r"did not answer within its timeout of 0.5 s"):
        ask(repo, 1)
    with pytest.raises(LoaderTimeoutError, match="none of its 1 turns"):
        ask(repo, 2)
    assert time.monotonic() - began < 2.0
    loader_functions.answer = None
    time.sleep(2.0)
    assert ask(repo, 1, 2) == [2, 4]
    assert loader_functions.most_running == 1
    assert [call["user_id"] for call in loader_functions.calls] == [[1], [1, 2]]  # 2 never began


def test_last_good_stands_in_for_a_slow_loader(tmp_path: Path) -> None:
    """A timeout is a source error like any other: never kept, and `last_good` may answer."""
    policy = {"ttl": "5s", "jitter": 0, "on_source_error": "last_good 60s"}
    repo = users(tmp_path, timeout="500ms", ttl_map={"default": policy})
    assert ask(repo, 1) == [2]
    loader_functions.answer = 1.5
    repo.clock.advance(6)
    response = repo.hot.get_online_features(["v:n"], [{"user_id": 1}])
    assert response.to_dict()["n"] == [2]
    assert response.freshness()["v"][0].tier is Tier.LAST_GOOD
    with pytest.raises(LoaderTimeoutError):
        ask(repo, 2)
    loader_functions.answer = None
    time.sleep(1.5)
    assert ask(repo, 1, 2) == [2, 4]


def test_refresh_ahead_asks_the_loader(tmp_path: Path) -> None:
    """A row in the last part of its ttl is served at once and loaded again in the background."""
    policy = {"ttl": "10s", "jitter": 0, "stale_while_revalidate": "4s"}
    for name in ("slow", "coroutine"):
        repo = users(tmp_path / name, function=f"{FUNCTIONS}:{name}", ttl_map={"default": policy})
        loader_functions.calls.clear()
        assert ask(repo, 1) == [2]
        repo.clock.advance(7)
        assert ask(repo, 1) == [2]
        repo.cache.runtime.engine.refresher.drain()
        assert len(loader_functions.calls) == 2


# -- turns and single flight ---------------------------------------------------------------------


def test_no_more_queries_at_once_than_max_concurrent(tmp_path: Path) -> None:
    """Twelve threads with keys of their own, three turns."""
    repo = users(tmp_path, max_concurrent=3, timeout="30s")
    with ThreadPoolExecutor(12) as pool:
        got = list(pool.map(lambda user: ask(repo, user), range(24)))
    assert got == [[2 * user] for user in range(24)]
    assert loader_functions.most_running == 3


class InFlight:
    """Which entities are being asked for at this moment, over every engine of the process."""

    def __init__(self) -> None:
        self.now: Counter[Any] = Counter()
        self.most: Counter[Any] = Counter()
        self.queries = 0
        self._lock = threading.Lock()

    def __enter__(self) -> InFlight:
        event.listen(Engine, "before_cursor_execute", self._begin)
        event.listen(Engine, "after_cursor_execute", self._end)
        return self

    def __exit__(self, *error: object) -> None:
        event.remove(Engine, "before_cursor_execute", self._begin)
        event.remove(Engine, "after_cursor_execute", self._end)

    def _begin(
        self, connection: Any, cursor: Any, statement: str, parameters: Any, *more: Any
    ) -> None:
        if "merchants" in statement and "SELECT" in statement:
            with self._lock:
                self.queries += 1
                for key in _values(parameters):
                    self.now[key] += 1
                    self.most[key] = max(self.most[key], self.now[key])

    def _end(
        self, connection: Any, cursor: Any, statement: str, parameters: Any, *more: Any
    ) -> None:
        if "merchants" in statement and "SELECT" in statement:
            with self._lock:
                for key in _values(parameters):
                    self.now[key] -= 1


def _values(parameters: Any) -> list[Any]:
    return list(parameters.values() if isinstance(parameters, dict) else parameters)


def test_sixteen_threads_never_have_two_queries_for_one_key(
    tmp_path: Path, database: Database
) -> None:
    """Skewed reads over a short ttl, invalidations none: one query in flight a key."""
    schema = {"n": Int64, "mean": Float64, "risk": Float64, "prepaid": Int64}
    loader = {"sql": database.sql(MERCHANT_RISK), "url": database.url, "timeout": "30s"}
    repo = Repo(
        tmp_path / "repo",
        {"type": "sqlite"},
        ttl_map={"default": {"ttl": "1s", "negative_ttl": "1s"}},
        settings={"loaders": {"risk": loader}},
    )
    repo.apply(MERCHANT, repo.view("risk", schema, [MERCHANT]))
    names = ["a", "b", "idle", *(f"no{i}" for i in range(5))]
    barrier = threading.Barrier(16)

    def reader(number: int) -> int:
        barrier.wait(30)
        for step in range(40):
            wanted = [names[(number + step) % 3], names[(number * step) % 8]]
            rows = [{"merchant_id": name} for name in wanted]
            got = repo.hot.get_online_features(["risk:n"], rows).to_dict()["n"]
            truth = {"a": 2, "b": 1}
            assert got == [truth.get(name) for name in wanted]
            if number == 0:
                repo.clock.advance(0.2)
        return 40

    with InFlight() as flights, ThreadPoolExecutor(16) as pool:
        requests = sum(pool.map(reader, range(16)))
    assert max(flights.most.values()) == 1
    assert flights.queries == repo.cache.stats().loaders["risk"].queries
    assert flights.queries < 0.3 * requests


# -- async ---------------------------------------------------------------------------------------


@pytest.fixture
def redis_online(redis: EmbeddedServer) -> dict[str, Any]:
    """A wrapped store that has async reads."""
    return {"type": "redis", "connection_string": redis.connection_string}


async def ask_async(repo: Repo, *user_ids: int) -> Any:
    rows = [{"user_id": user} for user in user_ids]
    response = await repo.hot.get_online_features_async(["v:n"], rows)
    return response.to_dict()["n"]


def on_a_loop(repo: Repo, call: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a loop of its own, and close what the store opened on it."""

    async def closing() -> Any:
        try:
            return await call
        finally:
            await repo.hot._get_provider().online_store.close()

    return asyncio.run(closing())


@pytest.mark.parametrize("name", ["slow", "coroutine"])
def test_async_requests_wait_without_blocking_their_loop(
    tmp_path: Path, redis_online: dict[str, Any], name: str
) -> None:
    """Plain and async functions alike: one call for one key, other tasks run meanwhile."""
    repo = users(tmp_path, redis_online, function=f"{FUNCTIONS}:{name}", max_concurrent=2)
    loader_functions.answer = 0.2

    async def main() -> tuple[Any, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        got = await asyncio.gather(*(ask_async(repo, 1, -1) for _ in range(8)))
        ticking.cancel()
        return got, ticks

    got, ticks = on_a_loop(repo, main())
    assert got == [[2, None]] * 8
    assert ticks >= 5
    assert len(loader_functions.calls) == 1
    assert on_a_loop(repo, ask_async(repo, 1, 2)) == [2, 4]  # another loop
    assert ask(repo, 2, 3) == [4, 6]  # and none
    assert len(loader_functions.loops) == (1 if name == "coroutine" else 0)


@pytest.mark.parametrize("name", ["slow", "coroutine"])
def test_async_timeouts_and_limits(tmp_path: Path, redis_online: dict[str, Any], name: str) -> None:
    """The same error in the same time, and no more at once than there are turns."""
    repo = users(
        tmp_path, redis_online, function=f"{FUNCTIONS}:{name}", timeout="100ms", max_concurrent=2
    )
    loader_functions.answer = 0.4

    async def main() -> list[Any]:
        return await asyncio.gather(
            *(ask_async(repo, user) for user in range(4)), return_exceptions=True
        )

    began = time.monotonic()
    got = on_a_loop(repo, main())
    assert [type(error) for error in got] == [LoaderTimeoutError] * 4
    assert time.monotonic() - began < 1.0
    assert loader_functions.most_running == 2
    assert repo.cache.stats().loaders["v"].timeouts == 4


def test_a_cancelled_request_leaves_nobody_waiting(
    tmp_path: Path, redis_online: dict[str, Any]
) -> None:
    """A task that is cancelled while its loader runs: others load for themselves."""
    repo = users(tmp_path, redis_online, function=f"{FUNCTIONS}:slow")
    loader_functions.answer = 0.2

    async def main() -> Any:
        first = asyncio.create_task(ask_async(repo, 1))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(ask_async(repo, 1))
        await asyncio.sleep(0.05)
        first.cancel()
        return await second

    assert on_a_loop(repo, main()) == [2]


def test_async_requests_over_sql(
    tmp_path: Path, redis_online: dict[str, Any], database: Database
) -> None:
    """A synchronous driver serves async requests, and both kinds of views of one request."""
    sql = database.sql("SELECT id AS user_id, 7 AS n FROM {s}categories WHERE id IN :user_id")
    repo = users(tmp_path, redis_online, sql=sql, url=database.url)
    repo.apply(USER, repo.view("stored", {"size": Int64}))
    repo.write("stored", user_id=[1], size=[3])

    async def main() -> Any:
        rows = [{"user_id": 1}, {"user_id": 9}]
        return (await repo.hot.get_online_features_async(["v:n", "stored:size"], rows)).to_dict()

    for _ in range(2):
        got = on_a_loop(repo, main())
        assert (got["n"], got["size"]) == ([7, None], [3, None])
    assert repo.cache.stats().loaders["v"].queries == 1


# -- write-back ----------------------------------------------------------------------------------


def test_loaded_rows_are_written_back_and_stay_in_memory(
    tmp_path: Path, online: dict[str, Any]
) -> None:
    """The bare store has them afterwards; nothing was invalidated by it."""
    repo = users(tmp_path, online, write_back=True)
    assert ask(repo, 1, -1, 2) == [2, None, 4]
    repo.cache.runtime.loaders.drain()
    rows = [{"user_id": user} for user in (1, -1, 2)]
    assert repo.bare.get_online_features(["v:n"], rows).to_dict()["n"] == [2, None, 4]
    assert ask(repo, 1, -1, 2) == [2, None, 4]
    assert len(loader_functions.calls) == 1
    stats = repo.cache.stats()
    assert stats.loaders["v"].written_back == 2
    assert stats.groups["v"].invalidated == stats.groups["v"].fills_refused == 0


def test_a_write_back_that_fails_fails_no_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted, and logged once a minute, without the error's text."""
    repo = users(tmp_path, write_back=True)

    def failing(*arguments: Any) -> None:
        raise ConnectionError("password=hunter2")

    repo.cache.runtime.wrapped.store().online_write_batch = failing  # type: ignore[method-assign]
    for user in range(3):
        assert ask(repo, user) == [2 * user]
    repo.cache.runtime.loaders.drain()
    stats = repo.cache.stats().loaders["v"]
    assert (stats.written_back, stats.write_back_errors) == (0, 3)
    assert caplog.text.count("were not written into the online store: ConnectionError") == 1
    assert "hunter2" not in caplog.text


# -- processes -----------------------------------------------------------------------------------


def test_a_forked_child_opens_its_own(tmp_path: Path, database: Database) -> None:
    """Connections and threads of the parent are not used by the child, and outlive it."""
    sql = database.sql("SELECT id AS user_id, 7 AS n FROM {s}categories WHERE id IN :user_id")
    repo = users(tmp_path, sql=sql, url=database.url, write_back=True)
    other = users(tmp_path / "other", function=f"{FUNCTIONS}:coroutine")
    assert ask(repo, 1) == [7]
    assert ask(other, 1) == [2]
    context = multiprocessing.get_context("fork")

    def child(answers: Any) -> None:
        answers.put([ask(repo, 1, 2), ask(other, 1, 2)])
        repo.cache.runtime.loaders.drain()

    for _ in range(2):
        answers = context.SimpleQueue()
        process = context.Process(target=child, args=(answers,))
        process.start()
        process.join(30)
        assert process.exitcode == 0
        assert answers.get() == [[7, 7], [2, 4]]
    repo.cache.clear()
    other.cache.clear()
    assert ask(repo, 1, 2) == [7, 7]
    assert ask(other, 3) == [6]


def test_nothing_is_opened_or_started_before_the_first_load(tmp_path: Path) -> None:
    """A database that is not there matters to nobody who does not ask it."""
    before = set(threading.enumerate())  # an idle one of an earlier test may end meanwhile
    url = "postgresql+psycopg://nobody:hunter2@127.0.0.1:1/none"
    repo = users(tmp_path, sql="SELECT user_id, n FROM t WHERE user_id IN :user_id", url=url)
    assert repo.cache.policies()
    assert set(threading.enumerate()) - before == set()
    with pytest.raises(Exception, match="refused") as caught:
        ask(repo, 1)
    assert "hunter2" not in str(caught.value)


def test_connections_that_died_in_the_pool_cost_no_error(
    tmp_path: Path, postgres: dict[str, Any]
) -> None:
    """The database was restarted: the first query afterwards is repeated, not failed."""
    database = postgres_database(postgres)
    database.fill()
    sql = database.sql("SELECT id AS user_id, 7 AS n FROM {s}categories WHERE id IN :user_id")
    repo = users(tmp_path, sql=sql, url=database.url)
    assert ask(repo, 1) == [7]
    with database.engine.connect() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
    assert ask(repo, 2) == [7]
    database.engine.dispose()


def test_closing_closes_connections_and_a_later_read_opens_new_ones(
    tmp_path: Path, database: Database
) -> None:
    """The feature server's stop."""
    sql = database.sql("SELECT id AS user_id, 7 AS n FROM {s}categories WHERE id IN :user_id")
    repo = users(tmp_path, sql=sql, url=database.url)
    assert ask(repo, 1) == [7]
    online = repo.hot._get_provider().online_store
    for _ in range(2):
        asyncio.run(online.close())
    assert ask(repo, 2) == [7]


def test_a_loader_only_reads(tmp_path: Path, postgres: dict[str, Any]) -> None:
    """On Postgres its transactions are read-only."""
    database = postgres_database(postgres)
    sql = database.sql(
        "WITH gone AS (DELETE FROM {s}categories WHERE id IN :user_id RETURNING id) "
        "SELECT id AS user_id, 7 AS n FROM gone"
    )
    repo = users(tmp_path, sql=sql, url=database.url)
    with pytest.raises(Exception, match="read-only transaction"):
        ask(repo, 1)
    database.engine.dispose()
