"""What a process held in memory, written down for the one that comes after it.

A file a process: `hot-HOST-PID.parquet`, a row an entity of a view, the most recently used first.
It names entities as they are, so only its owner may read it. A process that ends may put what it
read of them beside (`hotplate.serving.kept_rows` says when that may be believed): then the file
says in which boot of the machine, because ages are measured on a clock that begins with it, how far
that clock was from the wall clock, because a machine may be copied while it runs, and from where
rows were read.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hotplate.clock import SYSTEM_CLOCK, Clock
from hotplate.warming.files import dated, look_into, private, remove_older, table_of
from hotplate.warming.marks import boot_id

__all__ = ["HotKey", "HotKeyFiles", "keys_of"]

_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
_SCHEMA: Final = pa.schema(
    {
        "entity": _TEXT,
        "view": _TEXT,
        "key": pa.string(),
        "fingerprint": _TEXT,
        "row": pa.binary(),
    },
    metadata={"hotplate.hot": "2"},
)
_PLAIN: Final = _SCHEMA.remove_metadata()
_NAMED: Final = ["entity", "view", "key"]  # files of earlier versions have no other columns
_BOOT: Final = b"hotplate.boot"
_AHEAD_NS: Final = b"hotplate.ahead_ns"
_SOURCE: Final = b"hotplate.source"
_STEPPED_NS: Final = 1_000_000_000
_FORGOTTEN_S: Final = 86_400.0
_log = logging.getLogger("hotplate.warming")


class HotKey(NamedTuple):
    """An entity of a view.

    Attributes:
        entity: its join keys, with commas.
        view: the feature view.
        key: its values, as in the traffic log.
        fingerprint: of the view's schema, version and key types, where there is a row.
        row: what was read of it, packed; None where that was not kept.
    """

    entity: str
    view: str
    key: str
    fingerprint: str | None = None
    row: bytes | None = None


class HotKeyFiles:
    """The files of one project.

    Args:
        folder: in which they lie; made when the first is written.
        clock: the cache's, on which rows are dated.
        source: what tells where rows are read from; those that were read elsewhere do not count.
    """

    def __init__(self, folder: Path, clock: Clock = SYSTEM_CLOCK, source: str = "") -> None:
        self.folder = folder
        self._clock = clock
        self._source = source.encode()

    def write(self, keys: Iterable[HotKey]) -> bool:
        """Write what this process holds; False where that cannot be, which is logged."""
        path = self.folder / f"hot-{socket.gethostname()}-{os.getpid()}.parquet"
        columns = list(zip(*keys, strict=True)) or [()] * len(_SCHEMA)
        origin = {
            _BOOT: boot_id().encode(),
            _AHEAD_NS: b"%d" % self._ahead_ns(),
            _SOURCE: self._source,
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            table = table_of(columns, _SCHEMA)
            table = table.replace_schema_metadata({**_SCHEMA.metadata, **origin})
            with private(path) as file:
                pq.write_table(table, file, compression="zstd", write_page_checksum=True)
            remove_older(self.folder, "hot-*.parquet", _FORGOTTEN_S)  # nobody has followed them
        except OSError as error:
            _log.warning("hot keys are not kept in %s: %s", self.folder, error.strerror or error)
            return False
        return True

    def _ahead_ns(self) -> int:
        """By how much the wall clock is ahead of the one on which ages are measured."""
        return self._clock.wall_ns() - self._clock.now_ns()

    def read(self, most: int) -> pa.Table:
        """What processes held, each once, the latest file first; what cannot be read is left out.

        Rows come along where they are of this source and their ages can be told.

        Args:
            most: how many at the most.

        Returns:
            A table of the fields of `HotKey`, the most valuable first.

        Raises:
            OSError: there is a folder, and this process may not look into it.
        """
        with suppress(FileNotFoundError):  # nobody has written yet
            look_into(self.folder)
        found = _PLAIN.empty_table()
        for _, _, path in dated(self.folder, "hot-*.parquet"):
            if len(found) >= most:  # a day of restarts may have left many files
                break
            try:
                table = self._read(path)
            except (pa.ArrowException, OSError, KeyError, ValueError) as error:
                said = " ".join(str(error).split())[:200]
                _log.warning("%s is left out: %s", path, said)
                continue
            found = _distinct(pa.concat_tables([found, table])) if len(found) else table
        return found.slice(0, most).unify_dictionaries().combine_chunks()

    def _read(self, path: Path) -> pa.Table:
        """A file, with its rows if they are believed, else with nothing in their place.

        Raises:
            KeyError: it lacks a column.
            OSError, pa.ArrowException, ValueError: it cannot be read.
        """
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            if not set(_NAMED) <= set(names):
                raise KeyError(f"no hot keys, but {', '.join(names)[:100]}")
            has_rows = set(_SCHEMA.names) <= set(names) and self._is_believed(file.schema_arrow)
            table = file.read(_SCHEMA.names if has_rows else _NAMED)
        kept = [
            table[field.name].cast(field.type)
            if field.name in table.column_names
            else pa.nulls(len(table), field.type)
            for field in _PLAIN
        ]
        return pa.Table.from_arrays(kept, schema=_PLAIN)

    def _is_believed(self, schema: pa.Schema) -> bool:
        """Whether a file's rows are of this source, and their ages can be told here and now."""
        said = schema.metadata or {}
        boot = said.get(_BOOT, b"").decode()
        if not boot or boot != boot_id() or said.get(_SOURCE) != self._source:
            return False
        return abs(self._ahead_ns() - int(said.get(_AHEAD_NS, b"0"))) < _STEPPED_NS


def keys_of(table: pa.Table) -> list[HotKey]:
    """The entities of a table that `HotKeyFiles.read` gave, without their rows."""
    columns = [table[name].to_pylist() for name in _NAMED]
    return [HotKey(*one) for one in zip(*columns, strict=True)]


def _distinct(table: pa.Table) -> pa.Table:
    """The first row of each entity of a view, in order."""
    plain = pa.table(
        {name: table[name].cast(pa.string()) for name in _NAMED} | {"at": np.arange(len(table))}
    )
    first = plain.group_by(_NAMED).aggregate([("at", "min")])["at_min"]
    return table.take(np.sort(first.to_numpy()))
