"""Rows of a table of any size, divided by entity into files that fit in memory.

A table is read in chunks of whole row groups, and each chunk is written as one folder of files, one
for each part that has rows in it. A folder appears under its name only when it is complete, so a
run that was killed repeats one chunk at most.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from hotplate.windows.hashing import hashes_of

__all__ = ["Chunk", "chunks_of", "part_rows", "read_part", "spill"]

_BATCH_ROWS: Final = 1 << 17
_MIX: Final = np.uint64(0x9E37_79B9_7F4A_7C15)


class Chunk:
    """Some row groups of a table, or a whole table in memory.

    Attributes:
        number: its place among all, from 0.
        rows: how many there are.
    """

    def __init__(self, number: int, rows: int, pieces: Sequence[Any]) -> None:
        self.number, self.rows, self._pieces = number, rows, pieces

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows, a bounded number at a time."""
        for piece in self._pieces:
            if isinstance(piece, pa.Table):
                yield from piece.select(list(columns)).to_batches(max_chunksize=_BATCH_ROWS)
            else:
                yield from piece.to_batches(
                    columns=list(columns), batch_size=_BATCH_ROWS, batch_readahead=1
                )


def chunks_of(events: ds.Dataset | pa.Table, max_rows: int) -> list[Chunk]:
    """Cut a table into chunks of at most so many rows, or of one row group."""
    if isinstance(events, pa.Table):
        return [Chunk(0, events.num_rows, [events])] if events.num_rows else []
    chunks: list[Chunk] = []
    pieces: list[Any] = []
    rows = 0
    for fragment in events.get_fragments():
        for piece in fragment.split_by_row_group():
            count = sum(int(group.num_rows) for group in piece.row_groups)
            if pieces and rows + count > max_rows:
                chunks.append(Chunk(len(chunks), rows, pieces))
                pieces, rows = [], 0
            pieces.append(piece)
            rows += count
    if rows:
        chunks.append(Chunk(len(chunks), rows, pieces))
    return chunks


def spill(
    chunk: Chunk, folder: Path, columns: Sequence[str], keys: Sequence[str], parts: int
) -> None:
    """Write a chunk's rows into the files of their parts; does nothing where that is done.

    Args:
        chunk: the rows.
        folder: where the chunks are.
        columns: those that are kept.
        keys: those that say whose row it is; an entity is in one part only.
        parts: how many there are.
    """
    done = folder / f"chunk-{chunk.number:05}"
    if done.exists():
        return
    making = folder / f"{done.name}.making"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    with ExitStack() as open_files:
        writers: dict[int, pq.ParquetWriter] = {}
        for batch in chunk.batches(columns):
            part = _part_of([batch.column(name) for name in keys], parts)
            order = np.argsort(part, kind="stable")
            bounds = np.searchsorted(part[order], np.arange(parts + 1))
            ordered = batch.take(pa.array(order))
            for number in np.flatnonzero(np.diff(bounds)).tolist():
                if number not in writers:
                    path = making / f"part-{number:05}.parquet"
                    writers[number] = open_files.enter_context(
                        pq.ParquetWriter(path, batch.schema, compression="lz4")
                    )
                begin, end = int(bounds[number]), int(bounds[number + 1])
                writers[number].write_batch(ordered.slice(begin, end - begin))
    os.replace(making, done)


def read_part(folder: Path, number: int) -> pa.Table | None:
    """All rows of a part; None where it has none."""
    paths = sorted(folder.glob(f"chunk-*/part-{number:05}.parquet"))
    if not paths:
        return None
    return pa.concat_tables([pq.read_table(path) for path in paths], promote_options="permissive")


def part_rows(folder: Path, number: int) -> int:
    """How many rows a part has."""
    paths = folder.glob(f"chunk-*/part-{number:05}.parquet")
    return sum(int(pq.read_metadata(path).num_rows) for path in paths)


def _part_of(keys: Sequence[Any], parts: int) -> npt.NDArray[np.int64]:
    """Which part each row belongs to; rows without a key belong to any."""
    mixed = np.zeros(len(keys[0]), np.uint64)
    for column in keys:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        encoded = pc.dictionary_encode(column)
        hashes = hashes_of(encoded.dictionary.to_numpy(zero_copy_only=False))
        known = np.append(hashes, 0)
        codes = encoded.indices.fill_null(len(hashes)).to_numpy(zero_copy_only=False)
        mixed = (mixed ^ known[codes].view(np.uint64)) * _MIX
    # the lower bits of a product depend on the lower bits of its factors alone
    return ((mixed >> np.uint64(32)) % np.uint64(parts)).astype(np.int64)
