"""Decisions over HTTP: payments a second, and how long one waits.

A process of `python -m pipelines.fraud serve` over a Valkey and a SQLite database, whose every
commit reaches the disk. Clients share this process and ask one payment after the other on each
connection, all of them new; what they take themselves is part of the figures, and so is whatever
else the machine does. The model is trained on noise and has as many trees as a real one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from hotplate.embedded import EmbeddedServer
from pipelines.bench.line import Line
from pipelines.bench.measure import Spread, percentile

__all__ = ["serving"]

_ROOT: Final = Path(__file__).resolve().parents[2]
_CUSTOMERS, _TERMINALS, _DAYS = 500, 1_000, 60
_TREES, _DEPTH = 100, 6
_REQUESTS: Final = {1: 200, 16: 2_000}


@dataclass(frozen=True)
class _Round:
    rate: float
    p50_ms: float
    p99_ms: float


def serving(rounds: int, *, is_short: bool = False) -> list[Line]:
    """Decisions over HTTP, where XGBoost is installed."""
    with suppress(ImportError):
        import xgboost  # noqa: F401

        return _measured(rounds, is_short=is_short)
    return []


def _measured(rounds: int, *, is_short: bool) -> list[Line]:
    lines, numbers = [], itertools.count()
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer.start() as server:
        _prepare(Path(folder), server.connection_string)
        with _served(Path(folder), server.connection_string) as port:
            for connections, count in _REQUESTS.items():
                wanted = count // 10 if is_short else count
                _asked(port, connections, wanted, numbers)  # to get warm
                found = [_asked(port, connections, wanted, numbers) for _ in range(rounds)]
                lines.append(_line(connections, found))
    return lines


def _line(connections: int, rounds: Sequence[_Round]) -> Line:
    rate, p50, p99 = (
        Spread.of([getattr(one, name) for one in rounds]) for name in ("rate", "p50_ms", "p99_ms")
    )
    return Line(
        f"serve: payments a second over HTTP, {connections} connection{'s' * (connections > 1)}",
        f"{rate.median:,.0f}",
        f"{rate.low:,.0f} to {rate.high:,.0f}",
        "",
        None,
        f"p50 {p50.median:.1f} ms ({p50.low:.1f} to {p50.high:.1f}), "
        f"p99 {p99.median:.1f} ms ({p99.low:.1f} to {p99.high:.1f})",
    )


# -- the server ----------------------------------------------------------------------------------


def _prepare(folder: Path, redis: str) -> None:
    """Features online, and a model."""
    import xgboost

    from pipelines.fraud.bundle import Bundle, digest_of, schema_of
    from pipelines.fraud.inputs import REQUEST_INPUTS
    from pipelines.fraud.simulate import SimulationSpec, radius_for, simulate
    from pipelines.fraud.stores import OnlineSource
    from pipelines.fraud.tables import moved_to_now
    from pipelines.fraud.work import SERVICE, Work

    source = OnlineSource(redis, {"type": "redis", "connection_string": redis})
    work = Work(folder, _ROOT / "feature_repo", source)
    spec = SimulationSpec(_CUSTOMERS, _TERMINALS, _DAYS, radius=radius_for(_TERMINALS))
    work.write_tables(moved_to_now(simulate(spec)))
    store = work.fill()
    features = schema_of(store, SERVICE)
    names = [*REQUEST_INPUTS, *features]
    draw = np.random.default_rng(0)
    rows = np.abs(draw.normal(size=(5_000, len(names)))).astype(np.float32) * 30
    data = xgboost.DMatrix(rows, draw.integers(0, 2, len(rows)), feature_names=names)
    trained = xgboost.train({"objective": "binary:logistic", "max_depth": _DEPTH}, data, _TREES)
    raw = bytes(trained.save_raw("ubj"))
    bundle = Bundle(
        version="bench",
        service=SERVICE,
        features=features,
        review_at=0.5,
        decline_at=0.6,
        rounds=_TREES,
        metrics={},
        data={},
        made={"xgboost": xgboost.__version__},
        digest=digest_of(raw),
        raw=raw,
    )
    work.models.save(bundle)
    work.models.make_current(bundle.version)


@contextmanager
def _served(folder: Path, redis: str) -> Iterator[int]:
    """A process that serves, on a port."""
    command = [sys.executable, "-m", "pipelines.fraud", "--work", str(folder), "--redis", redis]
    command += ["serve", "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r":(\d+)/score", line):
                yield int(found[1])
                return
        raise RuntimeError("the server has ended before it listened")
    finally:
        process.terminate()
        process.wait(30)


# -- the clients ----------------------------------------------------------------------------------


def _asked(port: int, connections: int, count: int, numbers: Iterator[int]) -> _Round:
    bodies = [_body(next(numbers)) for _ in range(count)]
    seconds: list[float] = []

    async def ask_all() -> None:
        left = iter(bodies)
        await asyncio.gather(*(_client(port, left, seconds) for _ in range(connections)))

    began = time.perf_counter()
    asyncio.run(ask_all())
    rate = count / (time.perf_counter() - began)
    p50, p99 = (percentile(seconds, share) * 1e3 for share in (0.5, 0.99))
    return _Round(rate, p50, p99)


def _body(number: int) -> bytes:
    record: dict[str, Any] = {
        "transaction_id": f"bench-{number}",
        "customer_id": number * 7_919 % _CUSTOMERS,
        "terminal_id": number * 104_729 % _TERMINALS,
        "amount": 5 + number % 9_000 / 100,
    }
    raw = json.dumps(record).encode()
    return b"POST /score HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(raw), raw)


async def _client(port: int, left: Iterator[bytes], seconds: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for body in left:
        began = time.perf_counter()
        writer.write(body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if not head.startswith(b"HTTP/1.1 200 ") or length is None:
            raise RuntimeError(f"answered {head[:60]!r}")
        await reader.readexactly(int(length[1]))
        seconds.append(time.perf_counter() - began)
    writer.close()
    await writer.wait_closed()
