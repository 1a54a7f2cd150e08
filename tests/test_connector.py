"""Promise 8 at its root: nobody waits for a connection longer than he said."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hotplate.errors import ServerError
from hotplate.servers.connector import Connector, NotConnectedYet


class Bench:
    """A connector whose attempts end when they are told to."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.connector = Connector(self.failures.append)
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.ended: list[int] = []
        self.brought: list[int] = []
        self.error: Exception | None = None

    def connect(self) -> None:
        self.begun.release()
        assert self.may_end.acquire(timeout=30)
        if self.error is not None:
            raise self.error
        with self.connector.lock:
            self.brought.append(len(self.ended))
            self.ended.append(1)
            self.connector.tell()

    def wait(self, wait_s: float, at_once: int = 8) -> int:
        def find() -> int | None:
            return self.brought.pop() if self.brought else None

        return self.connector.wait_for("wire", find, self.connect, wait_s, at_once)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.may_end.release(100)
    for thread in threading.enumerate():
        if thread.name == "hotplate-connect":
            thread.join(30)


def test_who_cannot_wait_goes_without_and_the_attempt_goes_on(bench: Bench) -> None:
    """What it brings is there for the next one; nothing failed."""
    with pytest.raises(NotConnectedYet, match="within 1 ms"):
        bench.wait(0.001)
    assert bench.begun.acquire(timeout=30)
    bench.may_end.release()
    assert bench.wait(30) == 0
    assert not bench.failures


def test_nobody_waits_for_what_others_waited_for_in_vain(bench: Bench) -> None:
    """With an attempt under way for longer than one would wait, one does not wait at all."""
    with pytest.raises(NotConnectedYet):
        bench.wait(0.05)
    waited: list[float] = []
    bench.connector._wait = waited.append  # type: ignore[method-assign]
    for _ in range(20):
        with pytest.raises(NotConnectedYet):
            bench.wait(0.05)
    assert not waited
    assert bench.begun.acquire(timeout=30)
    assert not bench.begun.acquire(blocking=False), "each of them began another attempt"


def test_an_attempt_that_fails_fails_for_who_waits_and_is_reported(bench: Bench) -> None:
    """In the server's words; the next one tries anew."""
    bench.error = ServerError("refused")
    bench.may_end.release()
    with pytest.raises(ServerError, match="refused"):
        bench.wait(30)
    deadline = time.monotonic() + 30
    while not bench.failures:
        assert time.monotonic() < deadline
    bench.error = None
    bench.may_end.release()
    assert bench.wait(30) == 0


def test_as_many_attempts_as_there_are_waiters_up_to_a_bound(bench: Bench) -> None:
    """Each gets one; where the bound is reached one waits for another's."""
    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(bench.wait, 30, 3) for _ in range(5)]
        for _ in range(3):
            assert bench.begun.acquire(timeout=30)
        assert not bench.begun.acquire(timeout=0.05)
        bench.may_end.release(100)
        given = [one.result(30) for one in waiting]
        assert len(set(given)) == 5
        assert max(given) < 5 + 3  # an attempt may end when nobody waits for it any more


def test_no_thread_to_be_had(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as if the server could not be reached."""

    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ServerError, match="no thread"):
        bench.wait(30)
