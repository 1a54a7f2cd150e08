"""Files that several processes write, rename and remove while one looks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa

__all__ = ["Dated", "dated", "look_into", "private", "remove_older", "table_of"]


class Dated(NamedTuple):
    """A file as it was when somebody looked."""

    modified_ns: int
    size: int
    path: Path


def dated(folder: Path, pattern: str) -> list[Dated]:
    """The files of a folder, the latest first; what goes meanwhile is left out."""
    found = []
    for path in folder.glob(pattern):
        try:
            seen = path.stat()
        except OSError:
            continue
        found.append(Dated(seen.st_mtime_ns, seen.st_size, path))
    return sorted(found, reverse=True)


def look_into(folder: Path) -> None:
    """See whether a folder can be looked into, of which `dated` says nothing.

    Raises:
        OSError: it is not there, it is none, or this process may not.
    """
    os.listdir(folder)
    os.stat(os.path.join(folder, os.curdir))  # whoever may list it may not open what lies in it


def remove_older(
    folder: Path, pattern: str, seconds: float, but: Callable[[Path], bool] = lambda path: False
) -> None:
    """Remove files that nobody has written for so long; one that cannot be removed stays.

    Args:
        folder, pattern: as `dated`.
        seconds: since they were written.
        but: files that stay all the same.
    """
    limit_ns = int((time.time() - seconds) * 1e9)
    for one in dated(folder, pattern):
        if one.modified_ns < limit_ns and not but(one.path):
            with suppress(OSError):
                one.path.unlink()


def table_of(columns: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Columns as a table of a schema whose dictionaries are of texts."""
    arrays = [
        pa.array(values, pa.string()).dictionary_encode()
        if pa.types.is_dictionary(field.type)
        else pa.array(values, field.type)
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


@contextmanager
def private(path: Path) -> Iterator[IO[bytes]]:
    """A new file that only its owner may read: entity ids stand in it. It appears when it is whole.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            yield file
        hidden.rename(path)
    except BaseException:
        if path.parent.is_dir():
            hidden.unlink(missing_ok=True)
        raise
