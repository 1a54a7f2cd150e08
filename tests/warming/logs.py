"""Traffic logs made up for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hotplate.warming.traffic import SCHEMA

Row = tuple[datetime, str, str, str, int]
"""When, join keys, key, views, weight."""


def write_log(path: Path, rows: Sequence[Row]) -> None:
    """A file as a process writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table_of(rows), path)


def table_of(rows: Sequence[Row]) -> pa.Table:
    """What stands in such a file."""
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
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _undecodable(count: int) -> pa.Array:
    """Texts that are no Unicode, as on a disk that lies."""
    ends = pa.array(range(count + 1), pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), count, [None, ends, pa.py_buffer(b"\xff" * count)])


def odd_tables(good: pa.Table) -> Iterator[tuple[pa.Table, str]]:
    """Tables that look like a log, and what is to be said of each."""
    count = len(good)
    text, weight = pa.string(), pa.uint32()
    for name, column, said in (
        ("views", pa.nulls(count, text), "column 'views' lacks"),
        ("views", pa.nulls(count), "column 'views' holds null, not text"),
        ("views", pa.array(range(count)), "column 'views' holds int64, not text"),
        ("views", _undecodable(count), "Invalid UTF8"),
        ("entity", pa.nulls(count, text), "column 'entity' lacks"),
        ("entity", pa.array(range(count)), "column 'entity' holds int64, not text"),
        ("key", pa.nulls(count, text), "column 'key' lacks"),
        ("key", pa.array([None, *["[1]"] * (count - 1)]), f"lacks 1 of its {count} values"),
        ("key", pa.array([["a"]] * count), "column 'key' holds list<element: string>, not text"),
        ("key", pa.array([b"\xff"] * count), "column 'key' holds binary, not text"),
        ("key", _undecodable(count), "Invalid UTF8"),
        ("weight", pa.nulls(count, weight), "column 'weight' lacks"),
        ("weight", pa.array([0] * count, weight), "column 'weight' holds 0"),
        ("weight", pa.array([-1] * count), "column 'weight' holds int64, not uint32"),
        ("weight", pa.array(["1"] * count), "column 'weight' holds string, not uint32"),
        ("at", pa.nulls(count, good["at"].type), "column 'at' lacks"),
        ("at", good["at"].cast(pa.timestamp("us")), "column 'at' holds timestamp[us], not"),
    ):
        yield good.set_column(good.column_names.index(name), name, column), said
    yield good.append_column("key", good["key"]), "has 2 columns 'key'"


def damaged(path: Path, group: int) -> None:
    """Overwrite the keys of a row group; the head and all else stay whole."""
    keys = pq.ParquetFile(path).metadata.row_group(group).column(3)
    assert keys.path_in_schema == "key"
    raw, at = path.read_bytes(), keys.dictionary_page_offset
    path.write_bytes(
        raw[:at] + bytes(keys.total_compressed_size) + raw[at:][keys.total_compressed_size :]
    )
