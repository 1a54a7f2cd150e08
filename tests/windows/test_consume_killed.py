"""Consumers in processes of their own: killed again and again, and ended as users end them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hotplate.clock import SYSTEM_CLOCK
from pipelines.lab.waiting import wait_until

from ..operations.deployments import PLUGINS, write_yaml
from .bank import HOUR, Payment
from .following import EVENTS, Following
from .test_consume import make

__all__ = ["make"]

PROGRAM = Path(__file__).with_name("consumers.py")
KILLS = int(os.environ.get("HOTPLATE_KILLS", "12"))
CARDS = 6


class Nursery:
    """Starts consumers and kills them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._started = 0
        self.alive: list[int] = []
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def start(self, shop: Following, *options: str) -> int:
        """Start `hotplate windows consume`; its process id, in whose file it prints."""
        folder = shop.shop.repo.folder
        self._started += 1
        out = folder / f"out{self._started}"
        arguments = ["windows", "consume", EVENTS, "--stream", shop.stream, "--block", "50ms"]
        job = {"arguments": [*arguments, *options], "folder": str(folder), "out": str(out)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        self.alive.append(int(self._line()))
        return self.alive[-1]

    def kill(self, *pids: int) -> None:
        for pid in pids:
            self.alive.remove(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """A program that starts consumers."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": PLUGINS, "PATH": "/usr/bin:/bin", "HOME": "/tmp"},
    ) as process:
        made = Nursery(process)
        yield made
        made.kill(*made.alive)
        process.kill()


def some_payments(chance: random.Random, shop: Following, count: int) -> list[Payment]:
    """In time, late, and stamped in the future; each once, so that copies would show."""
    made = []
    for _ in range(count):
        now = time.time_ns() // 1_000_000
        ago = chance.choice([1, 50, chance.randrange(HOUR), HOUR + 10_000, -60_000])
        number = len(shop.shop.pushed) + len(made)
        made.append(Payment(chance.randrange(CARDS), now - ago, now, f"k{number}", 100 + number))
    return made


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["redis", "valkey", "redis_cluster"])
def test_killed_consumers_lose_and_repeat_nothing(
    request: pytest.FixtureRequest,
    make: Callable[..., Following],
    nursery: Nursery,
    kind: str,
) -> None:
    """SIGKILL at random moments while payments come in: each is in its log, once."""
    shop = make(request.getfixturevalue(kind), clock=SYSTEM_CLOCK)
    write_yaml(shop.shop.repo)
    chance = random.Random(KILLS)
    options = ("--batch", "40", "--claim-after", "500ms")
    nursery.start(shop, *options)
    for _ in range(KILLS):
        nursery.start(shop, *options)
        until_s = time.monotonic() + chance.uniform(0.02, 0.4)
        while time.monotonic() < until_s:
            shop.add(*some_payments(chance, shop, 20))
        nursery.kill(chance.choice(nursery.alive))
    wait_until(lambda: is_done(shop), "all is read", 60)
    expected = [accepted(shop, card) for card in range(CARDS)]
    assert [shop.events_in(card) for card in range(CARDS)] == expected
    assert sum(expected) > 100
    wait_until(lambda: is_right(shop))
    nursery.kill(*nursery.alive)


def is_done(shop: Following) -> bool:
    """Whether everything was handed out and is finished."""
    groups = shop.client.xinfo_groups(shop.stream)
    if not groups:  # no consumer has come so far as to make it
        return False
    group = groups[0]
    newest = shop.client.xinfo_stream(shop.stream)["last-generated-id"]
    return bool(group["pending"] == 0 and group["last-delivered-id"] == newest)


def accepted(shop: Following, card: int) -> int:
    """How many payments of a card count."""
    return sum(
        one.card == card and one.arrived - one.at <= HOUR and one.at <= one.arrived
        for one in shop.shop.pushed
    )


def is_right(shop: Following) -> bool:
    """Whether this process serves what counting gives, as of the moment of the answer."""
    rows = [{"card_id": card} for card in range(CARDS)]
    response = shop.shop.repo.hot.get_online_features(shop.shop.features, rows)
    answer = response.to_dict()
    stamps = response.proto.results[1].event_timestamps
    return all(
        {name: values[card] for name, values in answer.items() if name != "card_id"}
        == shop.shop.truth(card, stamps[card].ToMilliseconds())
        for card in range(CARDS)
    )


def test_ctrl_c_and_sigterm_end_the_command(
    make: Callable[..., Following], redis: Any, nursery: Nursery
) -> None:
    """With 0, after the batch in hand, and with its figures; its name is gone from the group."""
    shop = make(redis, clock=SYSTEM_CLOCK)
    write_yaml(shop.shop.repo)
    shop.add(*some_payments(random.Random(1), shop, 50))
    signals = (signal.SIGINT, signal.SIGTERM)
    pids = [nursery.start(shop, "--batch", "10", "--json") for _ in signals]
    wait_until(lambda: len(members(shop)) == 2 and is_done(shop), "both follow", 60)
    for pid, number in zip(pids, signals, strict=True):
        nursery.alive.remove(pid)
        os.kill(pid, number)
    wait_until(lambda: not members(shop))
    files = sorted(shop.shop.repo.folder.glob("out*"))
    wait_until(lambda: all(file.read_text().endswith("}\n0\n") for file in files))
    said = [json.loads(file.read_text().splitlines()[-2]) for file in files]
    assert sum(one["read"] for one in said) == 50
    assert sum(one["accepted"] for one in said) == sum(accepted(shop, n) for n in range(CARDS))
    assert all(one["lag"] is not None for one in said)


def members(shop: Following) -> list[Any]:
    """The consumers of the group."""
    if not shop.client.exists(shop.stream) or not shop.client.xinfo_groups(shop.stream):
        return []
    return list(shop.client.xinfo_consumers(shop.stream, "hotplate"))
