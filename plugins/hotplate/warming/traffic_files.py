"""The files of a traffic log, for those who read it: which there are, and which are none.

What lies in the folder may be anything: files of other programs, half written ones, some that only
look like a log. Nothing of a file counts before its columns are of the types that
`hotplate.warming.traffic` writes, and no row group before none of its values is missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hotplate.errors import HotplateError
from hotplate.warming.files import Dated, dated, look_into
from hotplate.warming.traffic import SCHEMA

__all__ = ["UNREADABLE", "TrafficError", "checked", "opened", "reason", "traffic_files"]

_OTHERS: Final = ("changes-", "families-")  # logs of other kinds that lie beside it
_TEXTS: Final = ("entity", "key", "views")
_LONGEST: Final = 200


class TrafficError(HotplateError):
    """A traffic log cannot be used; the message says why, and what to do."""


UNREADABLE: Final = (pa.ArrowException, OSError, TrafficError)
"""What it may raise to open a file, or to read and check its rows."""


def reason(error: Exception) -> str:
    """Why a file cannot be read, in one line."""
    return " ".join(str(error).split())[:_LONGEST]


def traffic_files(folder: Path) -> list[Dated]:
    """The files of a folder that may be of a traffic log, the latest first.

    Logs of other kinds that a deployment writes there are passed over.

    Raises:
        TrafficError: there is no such folder, it cannot be read, or there is no such file in it.
    """
    try:
        look_into(folder)
    except OSError as error:
        raise TrafficError(f"{folder}: {_why_not(folder, error)}") from None
    found = [one for one in dated(folder, "*.parquet") if not one.path.name.startswith(_OTHERS)]
    if not found:
        raise TrafficError(
            f"{folder}: has no Parquet files of reads. Has anything been read since "
            "online_store.traffic names it? A process writes its first file after `every`, or "
            "when it ends"
        )
    return found


def _why_not(folder: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such folder; name that of online_store.traffic"
    if os.path.isfile(folder):
        return "is a file; name the folder of online_store.traffic, in which the log lies"
    return (
        f"cannot be read ({error.strerror}); run this as the user of the processes that log, or "
        "let yours read it"
    )


@contextmanager
def opened(path: Path, columns: Sequence[str]) -> Iterator[pq.ParquetFile]:
    """A file of a traffic log.

    Args:
        path: of the file.
        columns: that are going to be read.

    Raises:
        TrafficError: it lacks one of these, or holds something else in it.
        OSError, pa.ArrowException: it cannot be read.
    """
    schema = pq.read_schema(path)  # a column that is no text cannot even be opened as below
    for name in columns:
        if (count := schema.names.count(name)) != 1:
            said = f"{count} columns" if count else "no column"
            raise TrafficError(f"has {said} {name!r}: it is no traffic log")
    for name in columns:
        _check(name, schema.field(name).type)
    with pq.ParquetFile(path, read_dictionary=list(_TEXTS)) as file:
        yield file


def _check(name: str, found: pa.DataType) -> None:
    wanted = "text" if name in _TEXTS else SCHEMA.field(name).type
    if not (_is_text(found) if name in _TEXTS else found == wanted):
        raise TrafficError(f"column {name!r} holds {found}, not {wanted}: it is no traffic log")


def _is_text(kind: pa.DataType) -> bool:
    """Whether it is text, however it is kept in a file: other programs may have put some in one."""
    held = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(held) or pa.types.is_large_string(held))


def checked(rows: pa.Table) -> pa.Table:
    """Rows of a file, when it is certain that a process may have logged them.

    Raises:
        TrafficError: a value is missing, or is none that is logged.
        pa.ArrowException: the file is damaged.
    """
    for name in rows.column_names:
        if nulls := rows[name].null_count:
            raise TrafficError(f"column {name!r} lacks {nulls:,} of its {len(rows):,} values")
    if "weight" in rows.column_names and len(rows) and pc.min(rows["weight"]).as_py() < 1:
        raise TrafficError("column 'weight' holds 0: a row stands for one request at the least")
    rows.validate(full=True)
    return rows
