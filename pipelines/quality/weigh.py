"""One measurement in a process of its own: `python -m pipelines.quality.weigh WAY FOLDER`.

Prints a line of JSON: seconds since the process began to import, peak resident bytes, expectations
judged and how many of them failed.
"""

from __future__ import annotations

import time

_BEGAN_S = time.perf_counter()

import json  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from datetime import UTC, datetime, timedelta  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, Final  # noqa: E402

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

__all__ = ["COLUMNS", "WAYS", "prepare", "weigh"]

WAYS: Final = ("hotplate", "great expectations alone")
COLUMNS: Final = 40
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
_FLOATS, _WHOLES, _TEXTS = 26, 8, 3
_ENTITIES: Final = 200_000
_KINDS: Final = ("payment", "refund", "payout", "check")


def prepare(folder: Path, rows: int) -> None:
    """Write a table of 40 columns (key, two timestamps, 37 features) and its reference."""
    from hotplate.quality.frames import of_file
    from hotplate.quality.profiling import profile
    from hotplate.quality.reference import Reference

    rng = np.random.default_rng(7)
    began_us = int((NOW - timedelta(days=30)).timestamp() * 1e6)
    at = np.sort(rng.integers(0, 29 * 86_400 * 10**6, rows)) + began_us
    columns: dict[str, Any] = {
        "card_id": rng.integers(0, _ENTITIES, rows) * 7_919 + 2**53,
        "event_timestamp": pa.array(at, pa.timestamp("us", "UTC")),
        "created": pa.array(at + rng.integers(1, 10**6, rows), pa.timestamp("us", "UTC")),
    }
    for number in range(_FLOATS):
        values = rng.lognormal(3, 1, rows)
        columns[f"amount_{number}"] = pa.array(values, mask=rng.random(rows) < 0.01 * number / 26)
    for number in range(_WHOLES):
        columns[f"count_{number}"] = rng.poisson(5, rows)
    for number in range(_TEXTS):
        kinds = pa.array(rng.integers(0, len(_KINDS), rows), pa.int32())
        columns[f"kind_{number}"] = pa.DictionaryArray.from_arrays(kinds, _KINDS).cast(pa.string())
    table = pa.table(columns)
    assert table.num_columns == COLUMNS, table.num_columns
    pq.write_table(table, folder / "rows.parquet")
    measured = profile(_subject(), of_file(folder / "rows.parquet"), NOW)
    Reference().with_views("2026-01-01", {"cards": measured}).write(folder / "quality.json")


def _subject() -> Any:
    from feast import Entity, FeatureView, Field, FileSource, ValueType
    from feast.types import Float64, Int64, String

    from hotplate.quality.subject import of_view

    card = Entity(name="card", join_keys=["card_id"], value_type=ValueType.INT64)
    fields = [Field(name=f"amount_{number}", dtype=Float64) for number in range(_FLOATS)]
    fields += [Field(name=f"count_{number}", dtype=Int64) for number in range(_WHOLES)]
    fields += [Field(name=f"kind_{number}", dtype=String) for number in range(_TEXTS)]
    source = FileSource(
        name="cards_file",
        path="rows.parquet",
        timestamp_field="event_timestamp",
        created_timestamp_column="created",
    )
    schema = [Field(name="card_id", dtype=Int64), *fields]
    subject = of_view(FeatureView(name="cards", entities=[card], schema=schema, source=source))
    assert subject is not None
    return subject


def weigh(way: str, folder: Path) -> dict[str, float]:
    """Judge the table one way."""
    from hotplate.quality.reference import Reference

    reference = Reference.read(folder / "quality.json")
    judge = _hotplate if way == WAYS[0] else _alone
    expectations, failed = judge(folder / "rows.parquet", reference.views["cards"])
    return {
        "seconds": time.perf_counter() - _BEGAN_S,
        "processor_s": time.process_time(),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "expectations": expectations,
        "failed": failed,
    }


def _hotplate(path: Path, profile: Any) -> tuple[int, int]:
    from hotplate.quality.check import Asking, check
    from hotplate.quality.frames import of_file
    from hotplate.quality.gx import Judge

    asking = Asking(_subject(), NOW, str(path), profile)
    checked = check(asking, of_file(path), Judge())
    return len(checked.outcomes), len(checked.bad)


def _alone(path: Path, profile: Any) -> tuple[int, int]:
    """The same expectations on one pandas batch, as Great Expectations' own guide has it.

    Without those about what a column is stored as, which a batch of pandas' types cannot answer.
    """
    import pandas as pd

    from hotplate.quality.derive import WHOLE, Moment, expectations
    from hotplate.quality.gx import Judge, made

    frame = pd.read_parquet(path)
    moment = Moment(WHOLE, NOW, NOW, len(frame))
    derived = expectations(_subject(), profile, None, moment)
    chosen = [one for one in derived if one.check not in ("type", "zone")]
    verdicts = Judge()(frame, [made(one) for one in chosen])
    return len(verdicts), sum(not one.is_good for one in verdicts)


def main(arguments: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    way, folder = arguments
    print(json.dumps(weigh(way, Path(folder))))


if __name__ == "__main__":
    main(sys.argv[1:])
