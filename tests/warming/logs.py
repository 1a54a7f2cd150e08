"""Traffic logs made up for tests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hotplate.warming.traffic import SCHEMA

Row = tuple[datetime, str, str, str, int]
"""When, join keys, key, views, weight."""


def write_log(path: Path, rows: Sequence[Row]) -> None:
    """A file as a process writes it."""
    columns = list(zip(*rows, strict=True)) if rows else [[], [], [], [], []]
    at, entity, key, views, weight = columns
    arrays = [
        pa.array(at, SCHEMA.field("at").type),
        pa.array(range(len(rows)), pa.uint64()),
        pa.array(entity, pa.string()).dictionary_encode(),
        pa.array(key, pa.string()),
        pa.array(views, pa.string()).dictionary_encode(),
        pa.array(weight, pa.uint32()),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), path)
