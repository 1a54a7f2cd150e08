"""What a `materialize` of many rows costs more when it goes through the plugin.

A job that only writes, as it is on a scheduler: it reads nothing, so it has nothing to forget; what
it writes, other processes are told. Both stores materialize the same file in alternating order,
the first pair uncounted. Each time the rows are a day newer: Redis skips what it has already.
"""

from __future__ import annotations

import contextlib
import io
import time
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from feast import FeatureStore

import hotplate
from hotplate.embedded import EmbeddedServer
from pipelines.bench.line import Line
from pipelines.bench.measure import Spread
from pipelines.bench.place import COLUMNS, T0, Place

__all__ = ["large_writes"]


class _Taken(NamedTuple):
    """Seconds that one took, on the wall and of this process's processors."""

    wall_s: float
    processor_s: float


_EVENT = {"ttl_map": {"default": {"ttl": "1h", "coherence": "event"}}}


def large_writes(rows: int, pairs: int) -> list[Line]:
    """`materialize` through the plugin against the bare store, other processes being told.

    Args:
        rows: of each.
        pairs: that count.
    """
    with EmbeddedServer.start() as server, TemporaryDirectory(prefix="hotplate-writes-") as folder:
        place = Place(server, Path(folder))
        lines = []
        for kind, what in (("redis", "Redis"), ("sqlite", "SQLite with a shared tier")):
            bare, hot = (_open(place, kind, is_hot=is_hot) for is_hot in (False, True))
            lines.append(_compare(place, what, (bare, hot), rows, pairs))
            hotplate.of(hot).runtime.close()
        return lines


def _open(place: Place, kind: str, *, is_hot: bool) -> FeatureStore:
    name = f"{'hot' if is_hot else 'bare'}{kind}"  # projects of their own: same keys, other values
    if kind == "redis":
        return place.open(
            name, {"type": "redis", **place.address}, _EVENT if is_hot else None, views=1
        )
    online = {"type": "sqlite", "path": str(place.folder / f"{name}.sqlite")}
    shared = {"shared": {**place.address, "timeout": "250ms"}}
    return place.open(name, online, {**_EVENT, **shared} if is_hot else None, views=1)


def _compare(
    place: Place, what: str, stores: tuple[FeatureStore, FeatureStore], rows: int, pairs: int
) -> Line:
    taken: list[tuple[_Taken, _Taken]] = []
    for pair in range(pairs + 1):
        both = {
            which: _materialize(place, stores[which], rows, pair)
            for which in ((0, 1) if pair % 2 else (1, 0))
        }
        taken.append((both[0], both[1]))
    counted = sorted(taken[1:], key=lambda pair: pair[1].wall_s / pair[0].wall_s)
    spread = Spread.of([hot.wall_s / bare.wall_s for bare, hot in counted])
    processor = Spread.of([hot.processor_s / bare.processor_s for bare, hot in counted])
    bare, hot = counted[len(counted) // 2]
    return Line(
        f"materialize of {rows:,} rows, {what}",
        f"{spread.median:.3f} of the bare store's time",
        f"{spread.low:.3f} to {spread.high:.3f}",
        "<= 1.05",
        spread.median <= 1.05,
        f"{hot.wall_s:.1f} s against {bare.wall_s:.1f} s; of its processor time "
        f"{processor.median:.3f} ({processor.low:.3f} to {processor.high:.3f})",
    )


def _materialize(place: Place, store: FeatureStore, rows: int, day: int) -> _Taken:
    moment = T0 + timedelta(days=day)
    draw = np.random.default_rng(day).normal(size=(COLUMNS, rows))
    columns: dict[str, Any] = {f"v0_f{number}": draw[number] for number in range(COLUMNS)}
    frame = pd.DataFrame({"user_id": np.arange(rows), "t": pd.Timestamp(moment), **columns})
    frame.to_parquet(place.folder / store.project / "x.parquet")
    hour = timedelta(hours=1)
    # Feast prints its progress
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        began_s, processor_s = time.perf_counter(), time.process_time()
        store.materialize(moment - hour, moment + hour)
        return _Taken(time.perf_counter() - began_s, time.process_time() - processor_s)
