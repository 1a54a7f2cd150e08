"""Decisions over HTTP, one payment a request, on the same line as the job.

uvicorn on the main thread reads requests and writes answers (`pipelines.fraud.endpoint`); one
thread takes them through the line in batches (`batches`), another follows the current version of
the model (`live`). Several processes may serve over one ledger: a payment that two of them decide
at once has the decision that was written first, and both answer that.

SIGTERM or SIGINT: no more requests are taken, those under way are answered, the ledger is closed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import uvicorn

import hotplate
from hotplate.errors import HotplateError
from pipelines.fraud.batches import SOURCE, Batches
from pipelines.fraud.decide import Layers
from pipelines.fraud.endpoint import Limits, Service
from pipelines.fraud.ledger import open_ledger
from pipelines.fraud.line import PASSING, Line
from pipelines.fraud.live import followed
from pipelines.fraud.readiness import Readiness
from pipelines.fraud.telemetry import Telemetry
from pipelines.fraud.work import Work

__all__ = ["ServeSettings", "Server", "served"]

_ENDED_WITHIN_S: Final = 2.0


@dataclass(frozen=True)
class ServeSettings:
    """How a process serves.

    Attributes:
        limits: of a request.
        size: payments in a batch at the most.
        most_waiting: requests that may wait for one.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        layers: which are on.
        version: of the model, to stay with; None follows the current one.
    """

    limits: Limits = field(default_factory=Limits)
    size: int = 256
    most_waiting: int = 1_024
    device: str = "auto"
    layers: Layers = field(default_factory=Layers)
    version: str | None = None


class Server(uvicorn.Server):
    """uvicorn, which tells the service first that it is to end.

    Args:
        service: what it serves.
        host, port: where; port 0 is any that is free.
        say: told where it listens.
    """

    def __init__(
        self,
        service: Service,
        host: str = "127.0.0.1",
        port: int = 0,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._service, self._say = service, say
        super().__init__(
            uvicorn.Config(
                service,
                host=host,
                port=port,
                lifespan="off",
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=int(service.limits.deadline_s) + 1,
            )
        )

    async def startup(self, sockets: Any = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets)
        if self.started:
            self._say(f"{self.url}/score")

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Take no more requests, and end behind those under way."""
        self._service.leave()
        super().handle_exit(sig, frame)

    @property
    def url(self) -> str:
        """Where it listens, once it has started."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    def run_to_the_end(self) -> None:
        """Serve until SIGTERM or SIGINT, and return.

        uvicorn raises the signal that ended it once more; a second one while it ends is its own.
        """
        known = (signal.SIGINT, signal.SIGTERM)
        before = {one: signal.signal(one, lambda number, frame: None) for one in known}
        try:
            self.run()
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


@contextmanager
def served(
    work: Work,
    database: str,
    settings: ServeSettings | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Service]:
    """The application over all that it needs, which is closed after the block.

    Args:
        work: the run's folder.
        database: of decisions.
        settings: how to serve.
        say: told of faults, and of versions of the model that go live.

    Raises:
        ModelRefused: the model cannot be used.
        LedgerError: the database cannot.
    """
    how = settings or ServeSettings()
    store = work.open(how.layers)
    with (
        open_ledger(database, say=say) as ledger,
        followed(
            store,
            work.models,
            ledger,
            device=how.device,
            layers=how.layers,
            version=how.version,
            say=say,
        ) as live,
    ):
        say(f"model {live.version}; {live().way}")
        if how.layers.warming:
            try:
                say(live().warm_up(*work.recent()))
            except (*PASSING, HotplateError) as error:  # /readyz says whether it is there
                say(f"nothing was read ahead: {type(error).__name__}")
        telemetry = Telemetry(
            lambda: len(batches),
            lambda: live.version,
            lambda: bool(live.refused),
            lambda: hotplate.of(store).metrics(of_host=False),
        )
        batches = Batches(
            Line(store, live, ledger, SOURCE, say=say),
            size=how.size,
            most_waiting=how.most_waiting,
            told=telemetry.batch,
        )
        checks = {"line": batches.check, "ledger": ledger.ping, "store": _store_check(work)}
        batches.start()
        try:
            yield Service(batches, Readiness(checks), telemetry, how.limits)
        finally:
            if not batches.close(_ENDED_WITHIN_S):
                say("ended while payments wait for a server that is down; nobody has their answer")
            hotplate.of(store).close()


def _store_check(work: Work) -> Callable[[], object]:
    """Asks the server of the online store; its client is made with the first question."""
    client = cache(work.repo.client)
    return lambda: client().ping()
