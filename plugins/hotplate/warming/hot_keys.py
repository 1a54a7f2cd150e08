"""What a process held in memory, written down for the one that comes after it.

A file a process: `hot-HOST-PID.parquet`, a row an entity of a view, the most recently used first.
It names entities as they are, so only its owner may read it. Rows themselves are not kept: what
was read before a process ended may have been changed since by whoever knew that it was gone.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from hotplate.warming.files import dated, private, table_of

__all__ = ["HotKey", "HotKeyFiles"]

_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
_SCHEMA: Final = pa.schema(
    {"entity": _TEXT, "view": _TEXT, "key": pa.string()}, metadata={"hotplate.hot": "1"}
)
_FORGOTTEN_S: Final = 86_400.0
_log = logging.getLogger("hotplate.warming")


@dataclass(frozen=True, slots=True)
class HotKey:
    """An entity of a view.

    Attributes:
        entity: its join keys, with commas.
        view: the feature view.
        key: its values, as in the traffic log.
    """

    entity: str
    view: str
    key: str


class HotKeyFiles:
    """The files of one project.

    Args:
        folder: in which they lie; made when the first is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, keys: Iterable[HotKey]) -> bool:
        """Write what this process holds; False where that cannot be, which is logged."""
        path = self._folder / f"hot-{socket.gethostname()}-{os.getpid()}.parquet"
        held = list(keys)
        columns = (
            [one.entity for one in held],
            [one.view for one in held],
            [one.key for one in held],
        )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            table = table_of(columns, _SCHEMA)
            with private(path) as file:
                pq.write_table(table, file, compression="zstd")
            self._forget()
        except OSError as error:
            _log.warning("hot keys are not kept in %s: %s", self._folder, error.strerror or error)
            return False
        return True

    def _forget(self) -> None:
        """Remove what processes left behind that nobody has followed for a day."""
        limit_ns = int((time.time() - _FORGOTTEN_S) * 1e9)
        for one in dated(self._folder, "hot-*.parquet"):
            if one.modified_ns < limit_ns:
                with suppress(OSError):
                    one.path.unlink()

    def read(self, most: int) -> Sequence[HotKey]:
        """What processes held, each once, the latest file first; what cannot be read is left out.

        Args:
            most: how many at the most.
        """
        found: dict[HotKey, None] = {}
        for _, _, path in dated(self._folder, "hot-*.parquet"):
            try:
                table = pq.read_table(path, columns=_SCHEMA.names)
                columns = [table[name].to_pylist() for name in _SCHEMA.names]
            except (pa.ArrowException, OSError, KeyError) as error:
                said = " ".join(str(error).split())[:200]
                _log.warning("%s is left out: %s", path, said)
                continue
            for entity, view, key in zip(*columns, strict=True):
                if len(found) >= most:
                    return list(found)
                found.setdefault(HotKey(entity, view, key))
        return list(found)
