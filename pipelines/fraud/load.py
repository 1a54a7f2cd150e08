"""Card transactions from a Parquet or CSV file, checked and put into the simulator's format.

What would silently corrupt features or labels later is an error here: missing values, unreadable
or ambiguous times, ids that repeat or do not fit. What has one right repair is repaired: rows out
of time order are sorted, times with an offset become UTC, further columns are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from pipelines.fraud.simulate import TRANSACTION_DTYPES

_LABELS = {"TX_FRAUD": 1, "TX_FRAUD_SCENARIO": 3}  # column: its highest value
_IDS = ("TRANSACTION_ID", "CUSTOMER_ID", "TERMINAL_ID")
_REQUIRED = tuple(name for name in TRANSACTION_DTYPES if name not in _LABELS)
_INT32_MAX = 2**31 - 1
_READABLE = "*.parquet, *.pq or *.csv"


def load_transactions(path: str | Path) -> pd.DataFrame:
    """Return the transactions of a Parquet or CSV file, in time order.

    path: a file named *.parquet, *.pq or *.csv with the columns of TRANSACTION_DTYPES,
        in any order; others are left out. Whole, non-negative ids below 2**31, TRANSACTION_ID
        unique; TX_DATETIME a date and time (ISO 8601 in text), UTC where it has no offset;
        TX_AMOUNT in currency units, 0 or more.

    The table has those columns in that order and dtype, and a fresh index. Rows of equal time keep
    the file's order; ids are kept as they are. Times are naive UTC, cut to milliseconds.

    The labels are optional. A file without TX_FRAUD gives a table without it, since a column of
    zeros would read as "all genuine"; a file without TX_FRAUD_SCENARIO gives zeros there.
    `attrs["has_labels"]` tells whether TX_FRAUD is present.

    Raises ValueError, naming the file, the column and the fix, for a file that cannot be read as
    its kind, has no rows or breaks a rule above; FileNotFoundError where there is no such file.
    """
    path = Path(path)
    raw = _read(path)
    if raw.empty:
        raise ValueError(f"{path}: holds no transactions; give a file with at least one row")
    transactions = _checked(path, raw)
    if not transactions["TX_DATETIME"].is_monotonic_increasing:
        transactions = transactions.sort_values("TX_DATETIME", kind="stable", ignore_index=True)
    transactions.attrs["has_labels"] = "TX_FRAUD" in raw
    return transactions


def _checked(path: Path, raw: pd.DataFrame) -> pd.DataFrame:
    """Return the columns in their order and dtypes, rows as in the file, or say what is wrong."""
    _reject_nulls(path, raw)
    columns = {name: _integers(path, raw[name], _INT32_MAX) for name in _IDS}
    _reject_duplicates(path, columns["TRANSACTION_ID"])
    columns["TX_DATETIME"] = _utc_times(path, raw["TX_DATETIME"])
    columns["TX_AMOUNT"] = _amounts(path, raw["TX_AMOUNT"])
    for name, highest in _LABELS.items():
        if name in raw:
            columns[name] = _integers(path, raw[name], highest)
    columns.setdefault("TX_FRAUD_SCENARIO", pd.Series(0, index=raw.index))
    dtypes = {name: dtype for name, dtype in TRANSACTION_DTYPES.items() if name in columns}
    return pd.DataFrame({name: columns[name] for name in dtypes}).astype(dtypes)


def _read(path: Path) -> pd.DataFrame:
    """Read the known columns, whatever they hold, under a fresh index."""
    name = path.name.lower()
    if name.endswith((".parquet", ".pq")):
        read = _read_parquet
    elif name.endswith(".csv"):
        read = _read_csv
    else:
        raise ValueError(f"{path}: unknown kind of file; give {_READABLE}")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; give the path of {_READABLE}")
    return read(path)


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        with pq.ParquetFile(path) as file:
            present = _known_columns(path, file.schema_arrow.names)
            # A column that pandas had stored as its index must come back as a column.
            return file.read(columns=present).to_pandas(ignore_metadata=True)
    except PermissionError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, "Parquet", error, "write it again") from error


def _read_csv(path: Path) -> pd.DataFrame:
    # Arrow refuses rows with a field too many, where pandas drops it: "3,50" would become 3. It
    # infers a column's kind from all its rows and leaves text what fits none, to be named later.
    try:
        with pa_csv.open_csv(path) as reader:
            present = _known_columns(path, reader.schema.names)
        options = pa_csv.ConvertOptions(include_columns=present, strings_can_be_null=True)
        return pa_csv.read_csv(path, convert_options=options).to_pandas()
    except (pa.ArrowException, UnicodeError) as error:
        fix = "write it again as UTF-8 with a header line, commas, and points in numbers"
        raise _unreadable(path, "CSV", error, fix) from error


def _unreadable(path: Path, kind: str, error: Exception, fix: str) -> ValueError:
    reason = " ".join(str(error).split())  # Arrow's messages may run over several lines
    return ValueError(f"{path}: not readable as {kind} ({reason}); {fix}")


def _known_columns(path: Path, names: Sequence[str]) -> list[str]:
    missing = [name for name in _REQUIRED if name not in names]
    if missing:
        raise ValueError(
            f"{path}: column {', '.join(missing)} missing (the file has: {', '.join(names)}); "
            "rename or add it"
        )
    return [name for name in TRANSACTION_DTYPES if name in names]


def _reject_nulls(path: Path, raw: pd.DataFrame) -> None:
    for name in raw.columns:
        is_null = raw[name].isna()
        if is_null.any():
            raise _bad(path, raw[name], is_null, "missing value", "fill or drop these rows")


def _reject_duplicates(path: Path, ids: pd.Series) -> None:
    is_repeated = ids.duplicated()
    if is_repeated.any():
        raise _bad(path, ids, is_repeated, "repeated id", "drop the copies or number the rows anew")


def _integers(path: Path, column: pd.Series, highest: int) -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce")
    is_wrong = ~(numbers.between(0, highest) & (numbers % 1 == 0))
    if is_wrong.any():
        problem = f"not a whole number from 0 to {highest}"
        raise _bad(path, column, is_wrong, problem, "map the values to such numbers")
    return numbers


def _amounts(path: Path, column: pd.Series) -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce")
    is_unreadable = ~np.isfinite(numbers)
    if is_unreadable.any():
        fix = "write plain decimals without signs of currency or grouping"
        raise _bad(path, column, is_unreadable, "not a finite number", fix)
    is_negative = numbers < 0
    if is_negative.any():
        raise _bad(path, column, is_negative, "negative amount", "keep refunds out of the file")
    return numbers


def _utc_times(path: Path, column: pd.Series) -> pd.Series:
    if pd.api.types.is_numeric_dtype(column):
        # Seconds, milliseconds or days since which epoch: a number does not tell.
        every_row = pd.Series(True, index=column.index)
        raise _bad(path, column, every_row, "a number, not a time", "write it as a timestamp")
    times = column
    if not pd.api.types.is_datetime64_any_dtype(column):
        times = pd.to_datetime(column, utc=True, format="ISO8601", errors="coerce")
        is_unreadable = times.isna()
        if is_unreadable.any():
            fix = "write ISO 8601, for example 2018-04-01 09:30:00"
            raise _bad(path, column, is_unreadable, "not a date and time from 1678 to 2261", fix)
    if times.dt.tz is not None:
        times = times.dt.tz_convert("UTC").dt.tz_localize(None)
    return times.dt.floor("ms")


def _bad(path: Path, column: pd.Series, is_bad: pd.Series, problem: str, fix: str) -> ValueError:
    n_bad = int(is_bad.sum())
    row = int(np.flatnonzero(is_bad)[0])
    value = column.iloc[row]
    shown = repr(value) if isinstance(value, str) else str(value)
    first = f"first {shown} in data row {row}"
    return ValueError(f"{path}: column {column.name}: {problem} in {n_bad} row(s), {first}; {fix}")
