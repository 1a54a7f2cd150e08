"""Features computed by three joins on PostgreSQL: queries a request with and without the cache.

Entities and their order are those of a recorded access trace, in its own time (2,000 requests a
second, so that a ttl of five minutes means what it says). Queries are counted where they leave the
process, by SQLAlchemy's events, not by the cache's own counters.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig
from feast.types import Float64, Int64
from feast.value_type import ValueType
from sqlalchemy import Engine, create_engine, event, text

from hotplate.clock import FakeClock
from hotplate.testing import use_clock
from pipelines.bench.line import Line
from pipelines.bench.measure import percentile
from pipelines.bench.postgres import open_postgres

__all__ = ["computed_on_miss"]

_THREADS = 16
_TTL = "5m"
_WARM_UP_S = 240
_REQUESTS = 20_000
_WITHOUT = 2_000
_SCHEMA = {"n": Int64, "mean": Float64, "most": Float64, "risk": Float64, "prepaid": Int64}
_FEATURES = [f"risk:{name}" for name in _SCHEMA]

_TABLES = """
CREATE TABLE categories (id integer PRIMARY KEY, risk double precision NOT NULL);
CREATE TABLE merchants (merchant_id bigint PRIMARY KEY, category integer NOT NULL);
CREATE TABLE cards (card_id bigint PRIMARY KEY, is_prepaid boolean NOT NULL);
CREATE TABLE payments (merchant bigint NOT NULL, card bigint NOT NULL, amount float8 NOT NULL);
INSERT INTO categories SELECT i, i / 50.0 FROM generate_series(0, 49) i;
INSERT INTO merchants SELECT i, i % 50 FROM generate_series(0, {merchants}) i;
INSERT INTO cards SELECT i, i % 3 = 0 FROM generate_series(0, 19999) i;
INSERT INTO payments SELECT i % {merchants}, (i * 7) % 20000, (i % 1000) / 10.0
FROM generate_series(0, {merchants} * 5) i;
CREATE INDEX ON payments (merchant);
ANALYZE;
"""
_SQL = """
SELECT m.merchant_id, count(*) AS n, avg(p.amount) AS mean, max(p.amount) AS most,
       max(c.risk) AS risk, count(*) FILTER (WHERE k.is_prepaid) AS prepaid
FROM merchants m
JOIN categories c ON c.id = m.category
JOIN payments p ON p.merchant = m.merchant_id
JOIN cards k ON k.card_id = p.card
WHERE m.merchant_id IN :merchant_id
GROUP BY m.merchant_id
"""


@dataclass
class _Queries:
    """What leaves the process: how many queries, and for how many of one entity at once.

    Attributes:
        count: queries of the loader.
        most: the greatest number of queries for one entity that ran at the same time.
    """

    count: int = 0
    most: int = 0
    _running: Counter[Any] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count until the block ends."""
        event.listen(Engine, "before_cursor_execute", self._begin)
        event.listen(Engine, "after_cursor_execute", self._end)
        try:
            yield
        finally:
            event.remove(Engine, "before_cursor_execute", self._begin)
            event.remove(Engine, "after_cursor_execute", self._end)

    def _begin(self, conn: Any, cursor: Any, statement: str, values: Any, *more: Any) -> None:
        if "JOIN" in statement:
            with self._lock:
                self.count += 1
                self._running.update(values.values())
                self.most = max(self.most, *(self._running[key] for key in values.values()))

    def _end(self, conn: Any, cursor: Any, statement: str, values: Any, *more: Any) -> None:
        if "JOIN" in statement:
            with self._lock:
                self._running.subtract(values.values())


def computed_on_miss(folder: Path, limit: int | None) -> list[Line]:
    """Replay a part of the trace: once with every request computed, once with the cache."""
    what = "database queries a request, 3 joins on Postgres"
    path = folder / "twitter_cluster52_2m.parquet"
    if not path.is_file():
        return [Line(what, "skipped", "", "", None, f"no {path}")]
    with open_postgres() as url, TemporaryDirectory(prefix="hotplate-bench-") as home:
        if url is None:
            return [Line(what, "skipped", "", "", None, "no PostgreSQL on this machine")]
        warm, requests = _read(path, limit)
        _fill(url, max(*map(max, warm), *(key for _, key in requests)) + 1)
        clock = FakeClock()
        never = _store(Path(home), url, {"default": {"cache": "never"}})
        policy = {"ttl": _TTL, "negative_ttl": "5s"}
        cached = _store(Path(home), url, {"default": policy}, clock)
        without = _replay(never, requests[:_WITHOUT])
        for second in warm:
            _ask(cached, sorted(second))
            clock.advance(1)
        with_cache = _replay(cached, requests, clock)
    return _lines(what, without, with_cache)


def _read(path: Path, limit: int | None) -> tuple[list[set[int]], list[tuple[int, int]]]:
    """The entities of each second of the warm-up, and (second, entity) of the requests after it."""
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["time", "key_id"])
    seconds, keys = table["time"].to_numpy(), table["key_id"].to_numpy()
    begin = int(seconds.searchsorted(_WARM_UP_S))
    if limit is not None:
        begin = min(begin, limit)
    warm: dict[int, set[int]] = {}
    for second, key in zip(seconds[:begin].tolist(), keys[:begin].tolist(), strict=True):
        warm.setdefault(second, set()).add(key)
    count = _REQUESTS if limit is None else min(_REQUESTS, limit)
    after = slice(begin, begin + count)
    requests = zip(seconds[after].tolist(), keys[after].tolist(), strict=True)
    return list(warm.values()), list(requests)


def _fill(url: str, merchants: int) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in _TABLES.format(merchants=merchants).split(";"):
            if statement.strip():
                connection.execute(text(statement))
    engine.dispose()


def _store(
    folder: Path, url: str, ttl_map: Mapping[str, Any], clock: FakeClock | None = None
) -> FeatureStore:
    name = next(iter(ttl_map["default"]))
    loader = {"sql": _SQL, "url": url, "timeout": "30s", "max_concurrent": 4}
    online = {
        "type": "hotplate.online_store.CachedOnlineStore",
        "store": {"type": "sqlite", "path": str(folder / f"{name}.db")},
        "ttl_map": dict(ttl_map),
        "loaders": {"risk": loader},
    }
    store = FeatureStore(
        config=RepoConfig(
            project=f"loaders_{name}",
            provider="local",
            registry={"path": str(folder / f"{name}_registry.db"), "cache_ttl_seconds": 0},
            online_store=online,
            offline_store={"type": "file"},
            entity_key_serialization_version=3,
        )
    )
    if clock is not None:
        use_clock(store, clock)
    merchant = Entity(name="merchant", join_keys=["merchant_id"], value_type=ValueType.INT64)
    fields = [Field(name=name, dtype=dtype) for name, dtype in _SCHEMA.items()]
    source = FileSource(
        name="risk_source", path=str(folder / "risk.parquet"), timestamp_field="event_time"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.apply(
            [merchant, FeatureView(name="risk", entities=[merchant], schema=fields, source=source)]
        )
    return store


def _ask(store: FeatureStore, keys: Sequence[int]) -> None:
    store.get_online_features(_FEATURES, {"merchant_id": list(keys)}).to_dict()


@dataclass(frozen=True)
class _Replay:
    """One replay.

    Attributes:
        per_request: queries a request.
        most: queries for one entity at once.
        p50_us, p99_us, mean_us: of a request, asked by 16 threads at once.
    """

    per_request: float
    most: int
    p50_us: float
    p99_us: float
    mean_us: float


def _replay(
    store: FeatureStore, requests: Sequence[tuple[int, int]], clock: FakeClock | None = None
) -> _Replay:
    """Ask for one entity a request, from 16 threads that share the trace and its time."""
    queries, line = _Queries(), iter(requests)
    lock, now = threading.Lock(), [requests[0][0]]

    def work(number: int) -> list[float]:
        seconds: list[float] = []
        while True:
            with lock:
                moment, key = next(line, (0, None))
                if clock is not None and moment > now[0]:
                    clock.advance(moment - now[0])
                    now[0] = moment
            if key is None:
                return seconds
            began = time.perf_counter()
            _ask(store, [key])
            seconds.append(time.perf_counter() - began)

    with queries.counting(), ThreadPoolExecutor(_THREADS) as pool:
        seconds = [each for part in pool.map(work, range(_THREADS)) for each in part]
    return _Replay(
        queries.count / len(requests),
        queries.most,
        percentile(seconds, 0.5) * 1e6,
        percentile(seconds, 0.99) * 1e6,
        sum(seconds) / len(seconds) * 1e6,
    )


def _lines(what: str, without: _Replay, cached: _Replay) -> list[Line]:
    fewer = 1 - cached.per_request / without.per_request
    return [
        Line(
            what,
            f"{fewer:.0%} fewer",
            "",
            ">= 70 %",
            fewer >= 0.7,
            f"{without.per_request:.2f} against {cached.per_request:.3f}, ttl {_TTL}",
        ),
        Line(
            f"queries at once for one entity, {_THREADS} threads",
            str(cached.most),
            "",
            "<= 1",
            cached.most <= 1,
            f"{without.most} without the cache",
        ),
        Line(
            f"the same requests, {_THREADS} threads, mean",
            f"{without.mean_us / cached.mean_us:.1f} x faster",
            "",
            "",
            None,
            f"{without.mean_us:,.0f} us against {cached.mean_us:,.0f} us; "
            f"p50 {without.p50_us:,.0f} against {cached.p50_us:,.0f}, "
            f"p99 {without.p99_us:,.0f} against {cached.p99_us:,.0f}",
        ),
    ]
