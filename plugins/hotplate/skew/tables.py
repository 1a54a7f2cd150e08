"""Tables from files, and columns that hold several features as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hotplate.skew.errors import SkewError

__all__ = ["read_file", "unpacked"]


def read_file(path: Path) -> pd.DataFrame:
    """A table from Parquet (a file, or a folder of them), CSV or JSON lines.

    Raises:
        SkewError: it is of another kind, or cannot be read.
    """
    kind = path.suffix.lower()
    try:
        if kind == ".parquet" or path.is_dir():
            return pd.read_parquet(path)
        if kind == ".csv":
            return pd.read_csv(path)
        if kind in (".jsonl", ".ndjson"):
            # dates stay as they are written: a column is what it is asked for as
            return pd.read_json(path, lines=True, convert_dates=False, precise_float=True)
    except Exception as error:
        raise SkewError(
            where=str(path),
            problem=f"cannot be read: {' '.join(str(error).split())[:200]}",
            fix="Write it anew, or as Parquet.",
        ) from error
    raise SkewError(
        where=str(path),
        problem=f"is of no kind that is read: {kind or 'no suffix'}",
        fix="Write .parquet, .csv or .jsonl.",
    )


def unpacked(frame: pd.DataFrame, column: str, names: Sequence[str] = ()) -> pd.DataFrame:
    """A table with a column of JSON as columns of its own.

    Args:
        frame: the table.
        column: holds an object a row, name -> value; or a list of values.
        names: of the values of a list, in their order.

    Raises:
        SkewError: there is no such column, or a row is something else.
    """
    if column not in frame:
        raise SkewError(
            where="the log",
            problem=f"has no column {column!r}",
            fix=f"Its columns: {', '.join(map(str, frame.columns))}.",
        )
    rows: list[dict[str, Any]] = []
    for number, raw in enumerate(frame[column].tolist(), 1):
        where = f"column {column!r} of the log, row {number:,}"
        try:
            said = json.loads(raw) if isinstance(raw, str | bytes) else raw
        except ValueError as error:
            raise SkewError(
                where=where, problem="is no JSON", fix="Log one object a row."
            ) from error
        if isinstance(said, dict):
            rows.append(said)
        elif isinstance(said, Sequence) and not isinstance(said, str) and len(said) == len(names):
            rows.append(dict(zip(names, said, strict=True)))
        else:
            raise SkewError(
                where=where,
                problem=f"is neither an object nor a list of {len(names)} values",
                fix="Say the names of a list in its order.",
            )
    made = pd.DataFrame(rows, index=frame.index)
    twice = [name for name in made.columns if name in frame.columns]
    if twice:
        raise SkewError(
            where=f"column {column!r} of the log",
            problem=f"holds {twice[0]!r}, which is a column, too",
            fix="Leave one of them out.",
        )
    return pd.concat([frame.drop(columns=column), made], axis=1)
