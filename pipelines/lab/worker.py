"""A worker of a fleet: `python -m pipelines.lab.worker SOCKET NUMBER`.

It connects to the fleet's socket and obeys, one command a line, each answered by one line. Threads
of its own do the operations between `resume` and `pause`. A worker that never opened a plan is
a nursery: forking one is quicker than importing Feast once more. It ends when the fleet is gone.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from feast import FeatureStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value

import hotplate
from hotplate.clock import SYSTEM_CLOCK, FakeClock
from hotplate.invalidation.local import Domain
from hotplate.testing import use_clock

from .history import ABSENT, EVERY_ENTITY, GARBLED, HistoryWriter
from .plan import Plan

__all__ = ["FAULTS", "Worker"]

_DAY_0 = datetime(2000, 1, 1, tzinfo=UTC)
_IMPORTED_LATE = (  # by a store's first uses; workers that are forked have them already
    "feast.infra.passthrough_provider",
    "feast.infra.offline_stores.dask",
    "feast.infra.online_stores.redis",
    "feast.infra.online_stores.postgres_online_store.postgres",
)


def _ignore_ttl(store: FeatureStore) -> None:
    """Nothing grows old for this worker."""
    use_clock(store, FakeClock())


def _forget_nothing(_: FeatureStore) -> None:
    """Neither writes nor invalidations reach the cache of this worker."""
    Domain.invalidate_entities = lambda *_: 0  # type: ignore[method-assign]
    Domain.invalidate_views = lambda *_: 0  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[FeatureStore], None]] = {
    "ignore_ttl": _ignore_ttl,
    "forget_nothing": _forget_nothing,
}
"""How a worker's cache can be broken, to see that it is found."""


class SteppedClock:
    """The machine's clocks, the one on the wall set to another time by so much.

    Attributes:
        step_ns: how much; the other clock is never set.
    """

    def __init__(self) -> None:
        self.step_ns = 0

    def now_ns(self) -> int:
        return SYSTEM_CLOCK.now_ns()

    def wall_ns(self) -> int:
        return SYSTEM_CLOCK.wall_ns() + self.step_ns


class Operations:
    """Random reads, writes and invalidations over one feature repo.

    Args:
        plan: what to do.
        number: of the worker.
        fault: one of `FAULTS`, or nothing.
    """

    def __init__(self, plan: Plan, number: int, fault: str | None = None) -> None:
        self.plan, self.number = plan, number
        self.log = HistoryWriter(Path(plan.histories), number)
        self.store = FeatureStore(repo_path=plan.repo)
        self.clock = SteppedClock()
        use_clock(self.store, self.clock)
        if fault is not None:
            FAULTS[fault](self.store)
        self.tables = [self.store.get_feature_view(name) for name in plan.views]
        self.cache = hotplate.of(self.store)
        self.done: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._seeds = random.Random(f"{plan.seed} {number}")
        self._is_going = False
        self._threads: list[threading.Thread] = []

    def adopt(self, number: int) -> None:
        """Go on in a process that was just forked, under a number of its own."""
        parent, self.number = self.number, number
        self.log = HistoryWriter(Path(self.plan.histories), number)
        self.log.forked(parent)
        self._seeds = random.Random(f"{self.plan.seed} {number}")
        self.done.clear()
        self.errors.clear()

    def resume(self) -> None:
        if self._is_going:
            return
        self._is_going = True
        for _ in range(self.plan.threads):
            chance = random.Random(self._seeds.random())
            self._threads.append(threading.Thread(target=self._work, args=(chance,)))
            self._threads[-1].start()

    def pause(self) -> bool:
        """Stop after the operations under way; whether it was going."""
        was_going, self._is_going = self._is_going, False
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self.log.flush()
        return was_going

    def _work(self, chance: random.Random) -> None:
        plan = self.plan
        kinds, weights = list(plan.weights), list(plan.weights.values())
        while self._is_going:
            kind = chance.choices(kinds, weights)[0]
            view = chance.randrange(len(plan.views))
            entities = chance.sample(range(plan.entities), chance.randint(1, plan.rows))
            try:
                getattr(self, kind)(view, entities)
            except Exception as error:  # noqa: BLE001 - counted, and told to the fleet
                self.errors[f"{kind}: {type(error).__name__}: {error}"[:300]] += 1
            self.done[kind] += 1
            if plan.think_s:
                time.sleep(plan.think_s * chance.random() * 2)

    def read(self, view: int, entities: list[int]) -> None:
        """Read rows of one view, and with every other entity of all."""
        views = range(len(self.plan.views)) if entities[0] % 2 else [view]
        names = [self.plan.views[each] for each in views]
        features = [f"{name}:{column}" for name in names for column in ("value", "copy")]
        begin = SYSTEM_CLOCK.now_ns()
        try:
            answer = self.store.get_online_features(
                features, {"user_id": entities}, full_feature_names=True
            ).to_dict()
        except Exception:
            for each in views:
                self.log.read_failed(each, entities, begin, SYSTEM_CLOCK.now_ns())
            raise
        end = SYSTEM_CLOCK.now_ns()
        for each, name in zip(views, names, strict=True):
            rows = zip(entities, answer[f"{name}__value"], answer[f"{name}__copy"], strict=True)
            served = {entity: _checked(value, copy) for entity, value, copy in rows}
            self.log.read(each, served, begin, end)

    def write(self, view: int, entities: list[int]) -> None:
        """Write new values; a later write has a later event time, which counts in some stores."""
        values = dict(zip(entities, self.log.new_values(len(entities)), strict=True))
        returned = self.log.begin_write(view, values)
        moment = _DAY_0 + timedelta(microseconds=SYSTEM_CLOCK.now_ns() // 1_000)
        rows = [(_key(entity), _row(value), moment, None) for entity, value in values.items()]
        provider = self.store._get_provider()
        provider.online_write_batch(self.store.config, self.tables[view], rows, None)
        returned()

    def invalidate(self, view: int, entities: list[int]) -> None:
        begin = SYSTEM_CLOCK.now_ns()
        wanted = [{"user_id": entity} for entity in entities]
        self.cache.invalidate(self.plan.views[view], wanted)
        for entity in entities:
            self.log.invalidated(view, entity, begin)

    def invalidate_view(self, view: int, _: list[int]) -> None:
        begin = SYSTEM_CLOCK.now_ns()
        self.cache.invalidate(self.plan.views[view])
        self.log.invalidated(view, EVERY_ENTITY, begin)


def _key(entity: int) -> EntityKey:
    return EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=entity)])


def _row(value: int) -> dict[str, Value]:
    return {"value": Value(int64_val=value), "copy": Value(string_val=str(value))}


def _checked(value: int | None, copy: str | None) -> int:
    if value is None and copy is None:
        return ABSENT
    return value if value is not None and copy == str(value) else GARBLED


class Worker:
    """The end of a fleet's line.

    Args:
        address: the fleet's socket.
        number: of this worker.
        operations: what a worker that was forked took over from its parent.
    """

    def __init__(self, address: str, number: int, operations: Operations | None = None) -> None:
        self.number, self.operations = number, operations
        self.line = socket.socket(socket.AF_UNIX)
        self.line.connect(address)
        self._tell(number=number, pid=os.getpid())

    def _tell(self, **answer: Any) -> None:
        self.line.sendall(json.dumps(answer).encode() + b"\n")

    def serve(self) -> None:
        """Obey until told to stop, or until nobody is there to tell."""
        with self.line.makefile("rb") as commands:
            for text in commands:
                command = json.loads(text)
                what = command.pop("do")
                try:
                    self._tell(**(getattr(self, f"do_{what}")(**command) or {}))
                except Exception:  # noqa: BLE001 - for the fleet to raise
                    self._tell(error=traceback.format_exc())
                if what == "stop":
                    break
        if self.operations is not None:
            self.operations.pause()

    def do_open(self, plan: str, fault: str | None) -> None:
        self.operations = Operations(Plan.from_json(plan), self.number, fault)

    def do_resume(self) -> None:
        self._opened().resume()

    def do_pause(self) -> dict[str, Any]:
        operations = self._opened()
        operations.pause()
        return {"done": dict(operations.done), "errors": dict(operations.errors)}

    def do_state(self) -> dict[str, Any]:
        """Of the shared tier and of the channel; None where there is none."""
        stats = self._opened().cache.stats()
        shared, channel = stats.shared, stats.channel
        return {
            "is_usable": None if shared is None else shared.is_usable,
            "is_whole": None if channel is None else channel.is_whole,
            "pending": 0 if channel is None else channel.pending,
            "last_errors": [part.last_error for part in (shared, channel) if part is not None],
        }

    def do_step_clock(self, seconds: float) -> None:
        """Set this worker's wall clock by so much from the machine's."""
        self._opened().clock.step_ns = round(seconds * 1e9)

    def do_fork(self, address: str, number: int) -> None:
        """Fork between two operations; the child has the parent's store, and waits."""
        was_going = self.operations is not None and self.operations.pause()
        if os.fork() == 0:
            code = 1
            try:
                os.close(self.line.detach())  # a mere close() leaves it to the file made of it
                if self.operations is not None:
                    self.operations.adopt(number)
                Worker(address, number, self.operations).serve()
                code = 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                sys.stderr.flush()
                os._exit(code)
        if was_going:
            self._opened().resume()

    def do_stop(self) -> None:
        """Answered, so that the fleet knows; `serve` ends then."""

    def _opened(self) -> Operations:
        if self.operations is None:
            raise RuntimeError(f"worker {self.number} has no plan")
        return self.operations


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forked children leave no zombies
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    Worker(sys.argv[1], int(sys.argv[2])).serve()
    os._exit(0)  # what was imported takes a second to be torn down
