"""A fleet whose caches meet on a server behind a proxy, and what can befall that server.

Two feature views, one whose bound is its age and one that is event-coherent for an hour; random
operations by all workers while a fault comes and goes; then every value that was served is judged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotplate.invalidation.channel import LEASE_NS

from .checker import Bound, Report, check
from .fleet import Fleet, Nursery, Tally
from .history import Records
from .plan import Plan, write_repo
from .proxy import Proxy
from .sentinel import sentinel_group
from .servers import SERVERS, client_of, frozen, out_of_memory, put_garbage
from .waiting import wait_until

__all__ = [
    "AGED",
    "EVENT",
    "FAILING_OVER",
    "FAULTS",
    "TRACKED_FAULTS",
    "Fault",
    "Stage",
    "bounds",
    "open_stage",
    "over_sqlite",
    "past_proxy",
    "staged",
    "staged_under_sentinels",
]

AGED, EVENT = range(2)
"""The places of the two views."""

_VIEWS = ("aged", "event")
_TTL_NS, _ABSENT_NS = 400_000_000, 100_000_000
TTL_MAP = {
    "aged": {"ttl": "400ms", "negative_ttl": "100ms"},
    "event": {"ttl": "1h", "negative_ttl": "1h", "coherence": "event"},
}
# few invalidations: one that comes by chance would hide that another one was not heard
_WEIGHTS = {"read": 100.0, "write": 2.0, "invalidate": 0.2, "invalidate_view": 0.02}
_THINK_S = 0.001
_numbers = itertools.count()


def bounds(event_margin_s: float = 1.0) -> Mapping[int, Bound]:
    """How old what the views serve may be; the margin is for the scheduling of a busy machine."""
    event_ns = LEASE_NS + round(event_margin_s * 1e9)
    return {AGED: Bound(_TTL_NS, _ABSENT_NS), EVENT: Bound(event_ns, event_ns)}


@dataclass
class Stage:
    """A fleet and the server on which it meets.

    Attributes:
        fleet: the workers.
        server: the server; None where it is a whole deployment.
        proxy: in front of it.
        tally: what the workers have done and the errors they met.
    """

    fleet: Fleet
    server: Any = None
    proxy: Any = None
    tally: Tally = field(default_factory=Tally)

    def run(self, seconds: float) -> None:
        """Let all workers work for so long."""
        self.tally = self.fleet.run(seconds)

    def is_well(self) -> bool:
        """Whether every worker uses the channel, and the shared tier where it has one."""
        return all(
            state["is_whole"] is True and state["is_usable"] is not False and not state["pending"]
            for state in self.fleet.states()
        )

    def await_well(self, within_s: float = 20.0) -> None:
        """Let the workers work until every one of them is well."""
        self.fleet.resume()
        try:
            wait_until(self.is_well, "all is well", within_s)
        except TimeoutError:
            raise TimeoutError(f"not well: {self.fleet.states()}") from None
        finally:
            self.tally = self.fleet.pause()

    def go_through(self, fault: AbstractContextManager[object], seconds: float = 0.6) -> Report:
        """Work before, during and after a fault; what the checker says of all of it."""
        self.await_well()
        self.run(0.2)
        self.fleet.resume()
        with fault:
            self.run(seconds)
            self.fleet.resume()
        self.run(0.2)
        self.await_well()
        self.run(0.2)
        return self.judged()

    def judged(self, event_margin_s: float = 1.0) -> Report:
        return check(self.fleet.history(), bounds(event_margin_s))

    def history(self) -> Records:
        return self.fleet.history()


def over_sqlite(folder: Path, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a cache over SQLite, with a server to meet on."""
    online = {"type": "sqlite", "path": str(folder / "online.db")}
    return {"online": online, "shared": dict(shared)}


@contextmanager
def open_stage(
    folder: Path,
    settings: Mapping[str, Any],
    nursery: Nursery | None,
    *,
    workers: int = 2,
    **plan: Any,
) -> Iterator[Fleet]:
    """A fleet over a feature repo of its own.

    Args:
        folder: for everything.
        settings: `online`, the wrapped store's; everything else is Hotplate's.
        nursery: where the workers are forked from.
        workers: how many.
        plan: changes of what they do.
    """
    made = dict(settings)
    name = f"stage{next(_numbers)}"
    repo = write_repo(folder / name, made.pop("online"), TTL_MAP, _VIEWS, **made)
    of_fleet = Plan(
        str(repo),
        str(folder / f"{name}-histories"),
        _VIEWS,
        **{"weights": _WEIGHTS, "think_s": _THINK_S, **plan},
    )
    with Fleet(of_fleet, workers, nursery=nursery) as fleet:
        yield fleet


@contextmanager
def staged(
    folder: Path,
    nursery: Nursery | None,
    *,
    kind: str = "redis",
    is_tracked: bool = False,
    shared: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Iterator[Stage]:
    """A stage over one server behind a proxy.

    Args:
        folder: for everything.
        nursery: where the workers are forked from.
        kind: of the server: `redis` or `valkey`.
        is_tracked: wrap that server's own store, instead of SQLite with the server beside it.
        shared: more settings of the shared tier.
        changes: of the fleet and its plan.
    """
    with ExitStack() as stack:
        server = stack.enter_context(SERVERS[kind]())
        proxy = stack.enter_context(Proxy((server.host, server.port)))
        at = {"connection_string": proxy.connection_string}
        if is_tracked:
            # without it Feast's store waits for ever for what a black hole has swallowed
            impatient = f"{proxy.connection_string},socket_timeout=0.2"
            online = {"type": "redis", "connection_string": impatient}
            settings: dict[str, Any] = {"online": online}
        else:
            settings = over_sqlite(folder, {**at, **(shared or {})})
        fleet = stack.enter_context(open_stage(folder, settings, nursery, **changes))
        yield Stage(fleet, server, proxy)


@contextmanager
def staged_under_sentinels(folder: Path, nursery: Nursery | None) -> Iterator[Stage]:
    """A stage over SQLite that meets on a primary and its replica, under three sentinels."""
    with sentinel_group() as group:
        shared = {name: value for name, value in group.settings.items() if name != "type"}
        with open_stage(folder, over_sqlite(folder, shared), nursery) as fleet:
            yield Stage(fleet, group)


def past_proxy(stage: Stage) -> Path:
    """The feature repo as somebody has it who reaches the server directly."""
    here = Path(stage.fleet.plan.repo)
    if stage.proxy is None:
        return here
    settings = (here / "feature_store.yaml").read_text()
    folder = here.parent / f"{here.name}-direct"
    folder.mkdir()
    direct = settings.replace(stage.proxy.connection_string, stage.server.connection_string)
    (folder / "feature_store.yaml").write_text(direct)
    return folder


# -- what befalls it -----------------------------------------------------------------------------

Fault = Callable[[Stage], AbstractContextManager[object]]


def _spoiled(switch: Callable[[Proxy], object]) -> Fault:
    @contextmanager
    def spoiled(stage: Stage) -> Iterator[None]:
        switch(stage.proxy)
        try:
            yield
        finally:
            stage.proxy.heal()

    return spoiled


def _refuse(proxy: Proxy) -> None:
    proxy.refuse()
    proxy.reset()


@contextmanager
def _full(stage: Stage) -> Iterator[None]:
    with out_of_memory(stage.server):
        yield


@contextmanager
def _read_only(stage: Stage) -> Iterator[None]:
    with client_of(stage.server) as admin:
        admin.config_set("repl-diskless-sync-delay", 0)
        admin.execute_command("REPLICAOF", "127.0.0.1", "1")  # where nobody is
        try:
            yield
        finally:
            admin.execute_command("REPLICAOF", "NO", "ONE")


@contextmanager
def _locked(stage: Stage) -> Iterator[None]:
    """Nobody knows the password any more: connections are ended, new ones refused."""
    with client_of(stage.server) as admin:
        admin.config_set("requirepass", "another")
        for kind in ("normal", "pubsub"):
            admin.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    try:
        yield
    finally:
        with client_of(stage.server, password="another") as admin:
            admin.config_set("requirepass", "")


@contextmanager
def _stepped(stage: Stage, seconds: float) -> Iterator[None]:
    """The wall clock of one host is set, and set right again."""
    number = min(stage.fleet.members)
    stage.fleet.step_clock(number, seconds)
    try:
        yield
    finally:
        if number in stage.fleet.members:
            stage.fleet.step_clock(number, 0)


@contextmanager
def _failing_over(stage: Stage) -> Iterator[None]:
    """The primary ends; it is back, as a replica, when another one has taken over."""
    group = stage.server
    wait_until(group.is_settled, "the replica follows")
    old = group.primary()
    group.servers[old].stop()
    try:
        yield
    finally:
        group.await_primary(1 - old)
        group.servers[old].restart()


@contextmanager
def _garbage(stage: Stage) -> Iterator[None]:
    with client_of(stage.server) as admin:
        put_garbage(admin, sorted(admin.scan_iter("hotplate:*")))
    yield


@contextmanager
def _gone(stage: Stage) -> Iterator[None]:
    stage.server.stop()
    try:
        yield
    finally:
        stage.server.restart()


@contextmanager
def _restarted(stage: Stage) -> Iterator[None]:
    stage.server.restart()
    yield


FAULTS: Mapping[str, Fault] = {
    "frozen": lambda stage: frozen(stage.server),
    "paused": _spoiled(Proxy.pause),
    "black hole": _spoiled(Proxy.blackhole),
    "replies dropped": _spoiled(Proxy.drop_replies),
    "delayed 20 ms": _spoiled(lambda proxy: proxy.delay(to_client=0.02)),
    "slow 2 kB/s": _spoiled(lambda proxy: proxy.limit(to_client=2_000)),
    "corrupted": _spoiled(lambda proxy: proxy.corrupt(to_client=197)),
    "reset": _spoiled(Proxy.reset),
    "refused": _spoiled(_refuse),
    "gone, back empty": _gone,
    "restarted empty": _restarted,
    "full": _full,
    "read-only": _read_only,
    "garbage": _garbage,
    "wrong password": _locked,
    "clock set back 1 h": lambda stage: _stepped(stage, -3_600),
    "clock set forward 1 h": lambda stage: _stepped(stage, 3_600),
}
"""What can befall one server; each comes with the block and goes at its end."""

FAILING_OVER: Fault = _failing_over
"""What can befall a primary that sentinels watch."""

TRACKED_FAULTS = ("frozen", "black hole", "replies dropped", "delayed 20 ms", "reset", "refused")
"""Those of them that leave the data of a store as they are."""
