"""What others of a server feel of a purge.

One server holds the entries of a project. A client of another project reads all the while, keys of
its own with redis-py and rows through Hotplate from the shared tier, while a third process purges
for a fifth of a second, rests for a fifth, and so on: what else the machine does comes and goes in
seconds, and so falls on both alike. The 99th percentile of ten turns of purging is compared with
that of the ten rests before them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis

import hotplate
from hotplate.embedded import EmbeddedServer
from hotplate.tiers.entries import HEAD, VERSION
from pipelines.bench.children import said, started
from pipelines.bench.line import Line
from pipelines.bench.measure import Spread, percentile
from pipelines.bench.place import Place, rows_of, write

__all__ = ["purge"]

_RATE = 10_000
_KEYS_READ = 1_000
_BATCH = 20_000
_TURNS = 10
_CLIENT = """
import json, redis, sys, time, warnings
warnings.simplefilter("ignore")
from feast import FeatureStore
import hotplate
store = FeatureStore(repo_path=sys.argv[1])
client = redis.Redis(port=int(sys.argv[2]))
runtime, features = hotplate.of(store).runtime, ["v0:v0_f0"]
def read(user):
    return store.get_online_features(features, [{"user_id": user}])
for user in range(1000):
    read(user)
    client.set("other:%d" % user, "x" * 150)
runtime.domain.invalidate_all(store.project)
assert read(1).freshness()["v0"][0].tier is hotplate.Tier.SHARED
print("ready", flush=True)
taken, until_s, number = [], time.monotonic() + float(sys.argv[3]), 0
while time.monotonic() < until_s:
    user = number = (number + 1) % 1000
    if not user:
        runtime.domain.invalidate_all(store.project)
    began = time.perf_counter_ns()
    client.get("other:%d" % user)
    between = time.perf_counter_ns()
    read(user)
    taken.append((began, between - began, time.perf_counter_ns() - between))
    time.sleep(0.0002)
print(json.dumps(taken), flush=True)
"""
_PURGE = """
import json, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from feast import FeatureStore
import hotplate
from hotplate.pace import giving_way
from hotplate.operations.purge import Limits
store = FeatureStore(repo_path=sys.argv[1])
rate, state = int(sys.argv[2]), Path(sys.argv[3])
steps = hotplate.of(store).purge(limits=Limits(rate=rate, max_misses=rate), state=state)
next(steps)
print("ready", flush=True)
sys.stdin.readline()
spans = []
with giving_way():  # as the command does
    for _ in range(5 * int(sys.argv[4])):
        time.sleep(0.2)
        began, until_s, first = time.perf_counter_ns(), time.monotonic() + 0.2, None
        while time.monotonic() < until_s:
            step = next(steps)
            first = step.removed if first is None else first
        spans.append((began, time.perf_counter_ns(), step.removed - first))
print(json.dumps(spans), flush=True)
steps.close()
"""


def purge(keys: int, seconds: int) -> list[Line]:
    """What others of a server feel of a purge.

    Args:
        keys: on the server.
        seconds: of purging, and as many of rest.
    """
    with EmbeddedServer.start() as server, TemporaryDirectory(prefix="hotplate-purge-") as folder:
        place = Place(server, Path(folder))
        for name in ("purged", "other"):
            _open(place, name)
        _fill(place, keys)
        spans, taken = _watch(place, seconds)
    rates = Spread.of([removed / (end - begin) * 1e9 for begin, end, removed in spans])
    return [
        _line(f"{what}, p99 while {keys:,} keys are purged", spans, taken, column, rates)
        for column, what in ((1, "GET of another client"), (2, "read of the shared tier elsewhere"))
    ]


def _open(place: Place, name: str) -> None:
    online = {"type": "sqlite", "path": str(place.folder / f"{name}.sqlite")}
    shared = {"shared": {**place.address, "timeout": "250ms"}}
    store = place.open(name, online, {"ttl_map": {"default": "1h"}, **shared}, views=1)
    write(store, 0, rows_of(0, range(_KEYS_READ), 1.0))
    store.get_online_features(["v0:v0_f0"], [{"user_id": 0}])  # one entry, to be copied
    hotplate.of(store).runtime.close()


def _fill(place: Place, keys: int) -> None:
    """Entries of one project, all with the row of the first, under a checksum of their own."""
    with redis.Redis(port=place.server.port) as client:
        (key,) = client.scan_iter("hotplate:row:purged:*", count=1_000)
        rest = client.get(key)[HEAD.size :]
        prefix = key[: key.rindex(b":") + 1]
        names = [prefix + b"%d" % user for user in range(keys)]
        for start in range(0, keys, _BATCH):
            client.mset(
                {
                    name: HEAD.pack(VERSION, zlib.crc32(rest, zlib.crc32(name))) + rest
                    for name in names[start : start + _BATCH]
                }
            )


def _watch(place: Place, seconds: int) -> tuple[list[Any], list[Any]]:
    """The spans of purging (begin, end, entries removed) and what the client's reads took."""
    port, state = str(place.server.port), str(place.folder / "state")
    purging = started(_PURGE, str(place.folder / "purged"), str(_RATE), state, str(seconds))
    client = started(_CLIENT, str(place.folder / "other"), port, str(2 * seconds + 2))
    try:
        assert purging.stdin is not None
        purging.stdin.write("go\n")
        purging.stdin.flush()
        return said(purging), said(client)
    finally:
        for process in (purging, client):
            process.kill()
            process.communicate()


def _batched(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Whole batches, the rest left out."""
    return [items[at : at + size] for at in range(0, len(items) - size + 1, size)]


def _line(
    what: str, spans: Sequence[Any], taken: Sequence[Any], column: int, rates: Spread
) -> Line:
    turns = [((before[1], after[0]), after[:2]) for before, after in pairwise(spans)]
    ratios, resting, purging = [], [], []
    for some in _batched(turns, min(_TURNS, len(turns))):
        p99s = [
            percentile(
                [
                    row[column] / 1e3
                    for row in taken
                    if any(begin <= row[0] < end for begin, end in times)
                ],
                0.99,
            )
            for times in zip(*some, strict=True)
        ]
        resting.append(p99s[0])
        purging.append(p99s[1])
        ratios.append(p99s[1] / p99s[0])
    spread = Spread.of(ratios)
    return Line(
        what,
        f"{spread.median:.2f} of that at rest",
        f"{spread.low:.2f} to {spread.high:.2f}",
        "< 1.10",
        spread.median < 1.1,
        f"{Spread.of(purging).median:.0f} us against {Spread.of(resting).median:.0f} us; "
        f"{rates.median:,.0f} entries/s ({rates.low:,.0f} to {rates.high:,.0f})",
    )
