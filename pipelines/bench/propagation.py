"""How long another process goes on serving what was overwritten.

One process writes through Feast, another one reads the same row through its cache and does nothing
else, so that the thread that listens there gets the interpreter only where it is let. What counts
is when the last read began that served the earlier value, from the moment at which the wrapped
store has the later one; how long the wrapped store takes for its write is its own affair.

The bare mechanism is measured in alternating rounds: a client that writes one key or publishes one
message, and another one that does nothing but wait for what the server says of it.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis
from feast import FeatureStore

import hotplate
from hotplate.embedded import EmbeddedServer
from pipelines.bench.children import said, started
from pipelines.bench.line import Line
from pipelines.bench.measure import Spread, percentile
from pipelines.bench.place import T0, Place, rows_of, write

__all__ = ["propagation"]

_PAUSE_S = 0.002
_READER = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
from feast import FeatureStore
import hotplate
store = FeatureStore(repo_path=sys.argv[1])
features, entity = ["v0:v0_f0"], [{"user_id": 0}]
def read():
    return store.get_online_features(features, entity)
while read().freshness()["v0"][0].tier is not hotplate.Tier.MEMORY:
    time.sleep(0.01)
print("ready", flush=True)
served, served_ns, changes, last = read().to_dict()["v0_f0"][0], 0, [], float(sys.argv[2])
while served != last:
    began_ns = time.perf_counter_ns()
    value = read().to_dict()["v0_f0"][0]
    if value != served:
        changes.append((int(value), served_ns))
        served = value
    served_ns = began_ns
print(json.dumps(changes), flush=True)
"""
_LISTENER = """
import json, redis, sys, time
client = redis.Redis(port=int(sys.argv[1]))
ear, talker = (client.connection_pool.get_connection() for _ in range(2))
ear.send_command("CLIENT", "ID")
me = ear.read_response()
ear.send_command("SUBSCRIBE", "__redis__:invalidate", "bench:told")
ear.read_response(), ear.read_response()
talker.send_command("CLIENT", "TRACKING", "ON", "REDIRECT", me, "BCAST", "PREFIX", "bench:")
talker.read_response()
print("ready", flush=True)
heard = []
for _ in range(int(sys.argv[2])):
    ear.read_response()
    heard.append(time.perf_counter_ns())
print(json.dumps(heard), flush=True)
ear.disconnect(), talker.disconnect()
"""


def propagation(rounds: int, writes: int) -> list[Line]:
    """How long another process goes on serving what was overwritten.

    Args:
        rounds: of our own and the bare mechanism, alternating.
        writes: in each.
    """
    with (
        EmbeddedServer.start() as server,
        TemporaryDirectory(prefix="hotplate-propagation-") as folder,
    ):
        place = Place(server, Path(folder))
        with redis.Redis(port=server.port) as client:
            return [
                _measure(
                    place,
                    ("Redis tells", "heard", {"type": "redis", **place.address}, {}),
                    lambda number: client.set("bench:key", number),
                    (rounds, writes),
                ),
                _measure(
                    place,
                    (
                        "the writer tells",
                        "told",
                        {"type": "sqlite", "path": str(place.folder / "told.sqlite")},
                        {"shared": {**place.address, "tier": False}},
                    ),
                    lambda number: client.publish("bench:told", number),
                    (rounds, writes),
                ),
            ]


def _measure(
    place: Place,
    over: tuple[str, str, dict[str, Any], dict[str, Any]],
    bare_write: Callable[[int], object],
    size: tuple[int, int],
) -> Line:
    what, name, online, more = over
    rounds, writes = size
    cached = {"ttl_map": {"default": {"ttl": "1h", "coherence": "event"}}, **more}
    store = place.open(name, online, cached, views=1)
    write(store, 0, rows_of(0, range(1), 0.0))
    stored, returned, bare = [], [], []
    p99s = []
    for turn in range(rounds):
        numbers = range(1 + turn * writes, 1 + (turn + 1) * writes)
        after_stored, after_return = _round(place.folder / name, store, numbers)
        stored += after_stored
        returned += after_return
        p99s.append(percentile(after_stored, 0.99))
        bare += _bare_round(place.server.port, bare_write, writes)
    hotplate.of(store).runtime.close()
    p99, spread = percentile(stored, 0.99), Spread.of(p99s)
    return Line(
        f"write to 'no longer served elsewhere', {what}, p99",
        f"{p99:.2f} ms",
        f"{spread.low:.2f} to {spread.high:.2f}, p50 {percentile(stored, 0.5):.2f}",
        "<= 1 ms",
        p99 <= 1.0,
        f"{len(stored)} writes, a reader without a pause; from the write's return "
        f"{percentile(returned, 0.5):.2f} / {percentile(returned, 0.99):.2f} ms; "
        f"the bare mechanism {percentile(bare, 0.5):.2f} / {percentile(bare, 0.99):.2f} ms",
    )


def _round(repo: Path, store: FeatureStore, numbers: range) -> tuple[list[float], list[float]]:
    """Milliseconds of each write, from when it was stored and from when it returned."""
    inner: Any = hotplate.of(store).runtime.wrapped.store()
    stored: list[int] = []
    online_write_batch = inner.online_write_batch

    def noted(*arguments: Any) -> None:
        online_write_batch(*arguments)
        stored.append(time.perf_counter_ns())

    inner.online_write_batch = noted
    returned = []
    reader = started(_READER, str(repo), str(numbers[-1]))
    try:
        for number in numbers:
            write(store, 0, rows_of(0, range(1), float(number), T0 + timedelta(seconds=number)))
            returned.append(time.perf_counter_ns())
            time.sleep(_PAUSE_S)
        changes = said(reader)
    finally:
        del inner.online_write_batch
        reader.kill()
        reader.communicate()
    values = [value for value, _ in changes]
    # a value that was never served is one before which an earlier one was served for longer
    last_served = [changes[bisect_left(values, number)][1] for number in numbers]
    return _waits(stored, last_served), _waits(returned, last_served)


def _bare_round(port: int, bare_write: Callable[[int], object], writes: int) -> list[float]:
    """Milliseconds from the beginning of each write until another client heard of it."""
    listener = started(_LISTENER, str(port), str(writes))
    try:
        began = []
        for number in range(writes):
            began.append(time.perf_counter_ns())
            bare_write(number)
            time.sleep(_PAUSE_S)
        return _waits(began, said(listener))
    finally:
        listener.kill()
        listener.communicate()


def _waits(began: list[int], ended: list[int]) -> list[float]:
    return [max(0, end - begin) / 1e6 for begin, end in zip(began, ended, strict=True)]
