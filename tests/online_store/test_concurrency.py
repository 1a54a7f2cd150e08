"""Promises 9 and 11: one load, threads, tasks, forks."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from feast.types import Int64

from ..stores import USER, Repo

RepoMaker = Callable[..., Repo]
AGE = ["v:age"]


@pytest.fixture
def repo(make_repo: RepoMaker) -> Repo:
    """One view of 200 users."""
    made = make_repo(ttl_map={"default": "1h"})
    made.apply(USER, made.view("v", {"age": Int64}))
    made.write("v", user_id=list(range(200)), age=list(range(200)))
    return made


def rows(*users: int) -> list[dict[str, Any]]:
    return [{"user_id": user} for user in users]


def read(repo: Repo, *users: int) -> list[Any]:
    ages: list[Any] = repo.hot.get_online_features(AGE, rows(*users)).to_dict()["age"]
    return ages


class Gate:
    """Loads that wait until they are let go; counts how often each key is asked for."""

    def __init__(self, repo: Repo) -> None:
        self.source = repo.cache.runtime.engine.source
        self._load = self.source.load
        self._load_async = self.source.load_async
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.asked: list[Any] = []
        self.source.load = self.load  # type: ignore[method-assign]

    def load(self, requests: Any) -> Any:
        self.asked += [key for request in requests for key in request.keys]
        self.entered.release()
        assert self.open.wait(30)
        return self._load(requests)


def test_sixteen_threads_on_one_cold_key_load_once(repo: Repo) -> None:
    """However many threads miss at once, the source is asked once."""
    gate = Gate(repo)
    barrier = threading.Barrier(16)

    def one() -> list[Any]:
        barrier.wait(30)
        return read(repo, 7)

    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(one) for _ in range(16)]
        assert gate.entered.acquire(timeout=30)
        gate.open.set()
        assert [future.result(30) for future in futures] == [[7]] * 16
    assert len(gate.asked) == 1
    stats = repo.cache.stats().groups["v"]
    assert stats.loads == 1
    assert stats.reads == 16


def test_overlapping_batches_load_each_key_once(repo: Repo) -> None:
    """Requests for overlapping entities share what they share."""
    gate = Gate(repo)
    barrier = threading.Barrier(8)

    def one(start: int) -> list[Any]:
        barrier.wait(30)
        return read(repo, *range(start, start + 20))

    gate.open.set()
    with ThreadPoolExecutor(8) as pool:
        starts = [10 * i for i in range(8)]
        for start, got in zip(starts, pool.map(one, starts), strict=True):
            assert got == list(range(start, start + 20))
    assert len(gate.asked) == len(set(gate.asked)) == 90


def test_waiters_share_the_error_of_what_they_asked_for(repo: Repo) -> None:
    """A failing load fails those who asked for just that, once; the next read asks again."""
    gate = Gate(repo)
    load = gate._load

    def failing(requests: Any) -> Any:
        raise ConnectionError("away")

    gate._load = failing
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(read, repo, 3) for _ in range(4)]
        assert gate.entered.acquire(timeout=30)
        while len(repo.cache.runtime.engine.flights) == 0:
            pass
        gate.open.set()
        for future in futures:
            with pytest.raises(ConnectionError):
                future.result(30)
    gate._load = load
    assert read(repo, 3) == [3]


def test_an_error_of_another_request_is_not_ones_own(repo: Repo) -> None:
    """A waiter whose flight failed for keys it did not ask for loads for itself."""
    gate = Gate(repo)
    load = gate._load

    def failing_for_pairs(requests: Any) -> Any:
        if sum(len(request.keys) for request in requests) > 1:
            raise ConnectionError("away")
        return load(requests)

    gate._load = failing_for_pairs
    with ThreadPoolExecutor(2) as pool:
        both = pool.submit(read, repo, 1, 2)
        assert gate.entered.acquire(timeout=30)
        single = pool.submit(read, repo, 2)
        gate.open.set()
        with pytest.raises(ConnectionError):
            both.result(30)
        assert single.result(30) == [2]


def test_tasks_on_one_loop_load_once(repo: Repo) -> None:
    """Tasks that miss at once share one async load, where the store reads async."""
    if not repo.hot._get_provider().async_supported.online.read and repo.online["type"] == "sqlite":
        pytest.skip("SQLite does not read async")
    source = repo.cache.runtime.engine.source
    load_async = source.load_async
    asked: list[Any] = []

    async def counted(requests: Any) -> Any:
        asked.extend(key for request in requests for key in request.keys)
        await asyncio.sleep(0)
        return await load_async(requests)

    source.load_async = counted  # type: ignore[method-assign]

    async def one() -> Any:
        response = await repo.hot.get_online_features_async(AGE, rows(5, 6))
        return response.to_dict()["age"]

    async def main() -> Any:
        got = await asyncio.gather(*(one() for _ in range(20)))
        await repo.hot.close()
        return got

    assert asyncio.run(main()) == [[5, 6]] * 20
    assert len(asked) == 2


def test_two_event_loops_one_after_the_other(repo: Repo) -> None:
    """A second `asyncio.run` works: clients belong to their loop."""
    if repo.online["type"] == "sqlite":
        pytest.skip("SQLite does not read async")

    async def one(user: int) -> Any:
        response = await repo.hot.get_online_features_async(AGE, rows(user))
        await repo.hot.close()
        return response.to_dict()["age"]

    assert asyncio.run(one(1)) == [1]
    assert asyncio.run(one(2)) == [2]


def test_a_cancelled_task_does_not_fail_those_who_wait_for_it(repo: Repo) -> None:
    """Whoever waited for an abandoned load asks for itself."""
    if repo.online["type"] == "sqlite":
        pytest.skip("SQLite does not read async")
    source = repo.cache.runtime.engine.source
    load_async = source.load_async
    calls = 0

    async def first_hangs(requests: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()
        return await load_async(requests)

    source.load_async = first_hangs  # type: ignore[method-assign]

    async def one() -> Any:
        response = await repo.hot.get_online_features_async(AGE, rows(5))
        return response.to_dict()["age"]

    async def main() -> Any:
        owner = asyncio.ensure_future(one())
        await asyncio.sleep(0)
        waiters = [asyncio.ensure_future(one()) for _ in range(3)]
        await asyncio.sleep(0)
        waiters[0].cancel()
        await asyncio.sleep(0)
        owner.cancel()
        got = await asyncio.gather(owner, *waiters, return_exceptions=True)
        await repo.hot.close()
        return got

    got = asyncio.run(main())
    assert isinstance(got[0], asyncio.CancelledError)
    assert isinstance(got[1], asyncio.CancelledError)
    assert got[2:] == [[5], [5]]
    assert calls == 2


def test_a_sync_read_inside_a_coroutine_does_not_wait_for_its_own_loop(repo: Repo) -> None:
    """A load that only this thread's loop can finish is not waited for by this thread."""
    if repo.online["type"] == "sqlite":
        pytest.skip("SQLite does not read async")
    source = repo.cache.runtime.engine.source
    load_async = source.load_async

    async def slow(requests: Any) -> Any:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return await load_async(requests)

    source.load_async = slow  # type: ignore[method-assign]

    async def main() -> Any:
        task = asyncio.ensure_future(repo.hot.get_online_features_async(AGE, rows(9)))
        await asyncio.sleep(0)
        inside = read(repo, 9)
        response = await task
        await repo.hot.close()
        return inside, response.to_dict()["age"]

    assert asyncio.run(main()) == ([9], [9])


def test_counts_are_true_under_threads(repo: Repo) -> None:
    """Sixteen threads reading and writing: every read is counted exactly once."""
    users = list(range(50))
    read(repo, *users)
    before = repo.cache.stats().groups["v"].reads

    def work(seed: int) -> None:
        for i in range(200):
            user = (seed * 31 + i * 7) % 50
            assert read(repo, user) == [user]
            if i % 50 == 0:
                repo.cache.invalidate("v", {"user_id": user})

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    stats = repo.cache.stats().groups["v"]
    assert stats.reads - before == 16 * 200
    assert stats.entries == len(repo.cache.runtime.engine.memory)
    repo.cache.runtime.engine.memory.check()


def _in_child(repo: Repo, queue: Any) -> None:
    try:
        queue.put((read(repo, 1), read(repo, 2), read(repo, 150)))
    except BaseException as error:  # noqa: BLE001 - the parent judges
        queue.put(repr(error))
    os._exit(0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_starts_clean(repo: Repo) -> None:
    """A child forked while locks are held and a load is under way reads, and harms no parent."""
    read(repo, 1)
    engine = repo.cache.runtime.engine
    gate = Gate(repo)
    blocked = threading.Thread(target=read, args=(repo, 150))
    blocked.start()
    assert gate.entered.acquire(timeout=30)
    gate.source.load = gate._load  # type: ignore[method-assign]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    with engine.memory._lock, engine.flights._lock:
        child = context.Process(target=_in_child, args=(repo, queue))
        child.start()
    child.join(60)
    assert queue.get() == ([1], [2], [150])
    child.join(30)
    gate.open.set()
    blocked.join(30)
    assert read(repo, 3) == [3]  # the parent's connection still works


def test_import_and_construction_start_nothing(make_repo: RepoMaker) -> None:
    """No thread, no socket before the first call."""
    import threading as threads

    before = set(threads.enumerate())
    repo = make_repo()
    assert set(threads.enumerate()) == before
    assert repo.hot._get_provider().online_store._runtime is None
