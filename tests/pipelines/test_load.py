"""Files of transactions come out in one format, or not at all."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.fraud.load import load_transactions
from pipelines.fraud.simulate import TRANSACTION_DTYPES, SimulationSpec, simulate

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
PUBLISHED = DATA / "transactions" / "fdh_transactions.parquet"
needs_published = pytest.mark.skipif(
    not PUBLISHED.is_file(), reason=f"the published transactions are not at {PUBLISHED}"
)

SIMULATED = simulate(SimulationSpec(n_customers=30, n_terminals=30, n_days=20, radius=40.0))
HEADER = "TRANSACTION_ID,TX_DATETIME,CUSTOMER_ID,TERMINAL_ID,TX_AMOUNT"

Writer = Callable[[pd.DataFrame, Path], Path]


def write_parquet(table: pd.DataFrame, folder: Path) -> Path:
    """Write a table as Parquet and return its path."""
    path = folder / "transactions.parquet"
    table.to_parquet(path, index=False)
    return path


def write_csv(table: pd.DataFrame, folder: Path) -> Path:
    """Write a table as CSV and return its path."""
    path = folder / "transactions.csv"
    table.to_csv(path, index=False)
    return path


def write_text(text: str, folder: Path) -> Path:
    """Write the text of a CSV file and return its path."""
    path = folder / "transactions.csv"
    path.write_text(text)
    return path


both_kinds = pytest.mark.parametrize("write", [write_parquet, write_csv])


def two_transactions(**columns: Any) -> pd.DataFrame:
    """Return two plain transactions with some columns replaced or added."""
    plain = {
        "TRANSACTION_ID": [0, 1],
        "TX_DATETIME": pd.to_datetime(["2018-04-01 10:00:00", "2018-04-01 11:00:00"]),
        "CUSTOMER_ID": [1, 2],
        "TERMINAL_ID": [3, 4],
        "TX_AMOUNT": [1.25, 2.5],
        "TX_FRAUD": [0, 1],
        "TX_FRAUD_SCENARIO": [0, 2],
    }
    return pd.DataFrame(plain | columns)


@both_kinds
def test_a_written_simulation_reads_back_equal(write: Writer, tmp_path: Path) -> None:
    """Both kinds of file give back the simulated table, bit for bit."""
    loaded = load_transactions(write(SIMULATED, tmp_path))
    pd.testing.assert_frame_equal(loaded, SIMULATED, check_exact=True)
    assert loaded.attrs["has_labels"] is True


def test_path_may_be_text(tmp_path: Path) -> None:
    """A path given as a string is read like a Path."""
    path = write_parquet(two_transactions(), tmp_path)
    pd.testing.assert_frame_equal(load_transactions(str(path)), load_transactions(path))


@needs_published
def test_the_published_file_loads_unchanged() -> None:
    """The published transactions pass every check and come out as they are."""
    loaded = load_transactions(PUBLISHED)
    pd.testing.assert_frame_equal(loaded, pd.read_parquet(PUBLISHED), check_exact=True)
    assert (len(loaded), loaded["TX_FRAUD"].sum()) == (1_754_155, 14_681)


def test_csv_amounts_keep_every_digit(tmp_path: Path) -> None:
    """Amounts of 17 digits, far below whole ones in a CSV file, are read back exactly."""
    table = pd.concat([two_transactions()] * 30_000, ignore_index=True)
    digits = np.random.default_rng(0).random(1_000)
    table["TRANSACTION_ID"] = table.index
    table["TX_AMOUNT"] = [*["7"] * (len(table) - 1_000), *(repr(float(x)) for x in digits)]
    table["TX_DATETIME"] = pd.Timestamp("2018-04-01")
    loaded = load_transactions(write_csv(table, tmp_path))
    assert (loaded["TX_AMOUNT"].tail(1_000) == digits).all()


@both_kinds
def test_foreign_columns_are_left_out(write: Writer, tmp_path: Path) -> None:
    """Columns beyond the format are dropped and the order of the file's columns is no matter."""
    table = two_transactions(TX_TIME_DAYS=[0, 0], NOTE=["a", None])
    loaded = load_transactions(write(table[sorted(table.columns)], tmp_path))
    assert list(loaded.columns) == list(TRANSACTION_DTYPES)


def test_a_stored_index_comes_back_as_a_column(tmp_path: Path) -> None:
    """TRANSACTION_ID stored as the index of a pandas Parquet file is still found."""
    path = tmp_path / "indexed.parquet"
    two_transactions().set_index("TRANSACTION_ID").to_parquet(path)
    assert load_transactions(path)["TRANSACTION_ID"].tolist() == [0, 1]


@both_kinds
def test_a_file_without_labels_has_no_label_column(write: Writer, tmp_path: Path) -> None:
    """Without TX_FRAUD no label is made up, the scenario is 0, and the mark says so."""
    table = two_transactions().drop(columns=["TX_FRAUD", "TX_FRAUD_SCENARIO"])
    loaded = load_transactions(write(table, tmp_path))
    assert "TX_FRAUD" not in loaded
    assert loaded["TX_FRAUD_SCENARIO"].tolist() == [0, 0]
    assert loaded["TX_FRAUD_SCENARIO"].dtype == np.int8
    assert loaded.attrs["has_labels"] is False


@both_kinds
def test_labels_without_scenarios_are_labels(write: Writer, tmp_path: Path) -> None:
    """A file with TX_FRAUD alone keeps its labels, as numbers or as booleans."""
    table = two_transactions(TX_FRAUD=[False, True]).drop(columns="TX_FRAUD_SCENARIO")
    loaded = load_transactions(write(table, tmp_path))
    assert loaded["TX_FRAUD"].tolist() == [0, 1]
    assert loaded["TX_FRAUD_SCENARIO"].tolist() == [0, 0]
    assert loaded.attrs["has_labels"] is True


def test_ids_written_as_text_or_categories_are_numbers(tmp_path: Path) -> None:
    """Ids that are digits in another guise become int32."""
    table = two_transactions(
        CUSTOMER_ID=["1", "2"], TERMINAL_ID=pd.Series([3, 4]).astype("category")
    )
    loaded = load_transactions(write_parquet(table, tmp_path))
    pd.testing.assert_frame_equal(
        loaded, load_transactions(write_parquet(two_transactions(), tmp_path))
    )


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_rows_out_of_time_order_are_sorted(shuffler: Any) -> None:
    """Any order of the rows of a file gives the same table, up to the order of equal times."""
    order = list(range(len(SIMULATED)))
    shuffler.shuffle(order)
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_transactions(write_parquet(SIMULATED.iloc[order], Path(folder)))
    assert loaded["TX_DATETIME"].is_monotonic_increasing
    assert loaded.index.tolist() == list(range(len(SIMULATED)))
    by_id = loaded.sort_values("TRANSACTION_ID", ignore_index=True)
    pd.testing.assert_frame_equal(by_id, SIMULATED, check_exact=True)


@both_kinds
def test_rows_of_equal_time_keep_the_file_order(write: Writer, tmp_path: Path) -> None:
    """Sorting moves no row past another of the same time."""
    n_rows = 1_000
    table = pd.DataFrame(
        {
            "TRANSACTION_ID": np.arange(n_rows)[::-1],
            "TX_DATETIME": pd.Timestamp("2018-04-01") + pd.to_timedelta([2, 1] * 500, unit="s"),
            "CUSTOMER_ID": 0,
            "TERMINAL_ID": 0,
            "TX_AMOUNT": 1.0,
        }
    )
    loaded = load_transactions(write(table, tmp_path))
    expected = [*range(n_rows - 2, -1, -2), *range(n_rows - 1, 0, -2)]
    assert loaded["TRANSACTION_ID"].tolist() == expected


@both_kinds
def test_times_with_an_offset_become_utc(write: Writer, tmp_path: Path) -> None:
    """A time in Brussels summer time comes out two hours earlier, without a zone."""
    table = two_transactions()
    table["TX_DATETIME"] = table["TX_DATETIME"].dt.tz_localize("Europe/Brussels")
    loaded = load_transactions(write(table, tmp_path))
    assert loaded["TX_DATETIME"].tolist() == [
        pd.Timestamp("2018-04-01 08:00:00"),
        pd.Timestamp("2018-04-01 09:00:00"),
    ]
    assert loaded["TX_DATETIME"].dtype == "datetime64[ms]"


def test_offsets_may_differ_from_row_to_row(tmp_path: Path) -> None:
    """Each row's own offset counts, a row without one is UTC, and the result is in UTC order."""
    rows = ["0,2018-04-01 10:00:00,1,1,1", "1,2018-04-01T10:30:00+02:00,1,1,1"]
    loaded = load_transactions(write_text("\n".join([HEADER, *rows]), tmp_path))
    assert loaded["TRANSACTION_ID"].tolist() == [1, 0]
    assert loaded["TX_DATETIME"].iloc[0] == pd.Timestamp("2018-04-01 08:30:00")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_any_resolution_of_time_is_read(unit: str, tmp_path: Path) -> None:
    """Timestamps of any unit come out in milliseconds."""
    table = two_transactions()
    table["TX_DATETIME"] = table["TX_DATETIME"].astype(f"datetime64[{unit}]")
    loaded = load_transactions(write_parquet(table, tmp_path))
    assert loaded["TX_DATETIME"].dtype == "datetime64[ms]"
    assert loaded["TX_DATETIME"].iloc[1] == pd.Timestamp("2018-04-01 11:00:00")


def test_finer_times_are_cut_to_milliseconds(tmp_path: Path) -> None:
    """Microseconds are cut, not rounded, on either side of 1970."""
    times = pd.to_datetime(["1969-12-31 23:59:59.999999", "2018-04-01 10:00:00.001999"])
    loaded = load_transactions(write_parquet(two_transactions(TX_DATETIME=times), tmp_path))
    assert loaded["TX_DATETIME"].tolist() == [
        pd.Timestamp("1969-12-31 23:59:59.999"),
        pd.Timestamp("2018-04-01 10:00:00.001"),
    ]


def test_a_date_is_its_midnight(tmp_path: Path) -> None:
    """A column of dates is read as midnight UTC."""
    table = two_transactions(TX_DATETIME=[date(2018, 4, 1), date(2018, 4, 2)])
    loaded = load_transactions(write_parquet(table, tmp_path))
    assert loaded["TX_DATETIME"].iloc[1] == pd.Timestamp("2018-04-02")


def assert_refused(path: Path, column: str, problem: str, fix: str) -> None:
    """Check that loading fails with a message of file, column, problem and fix."""
    with pytest.raises(ValueError) as caught:
        load_transactions(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: column {column}")
    assert problem in message
    assert message.endswith(f"; {fix}")


@both_kinds
@pytest.mark.parametrize("column", list(TRANSACTION_DTYPES)[:5])
def test_a_missing_column_is_named(write: Writer, column: str, tmp_path: Path) -> None:
    """Each required column is missed by name, beside those that are there."""
    path = write(two_transactions().drop(columns=column), tmp_path)
    assert_refused(path, column, "missing (the file has: ", "rename or add it")


@both_kinds
@pytest.mark.parametrize("column", list(TRANSACTION_DTYPES))
def test_a_missing_value_is_named(write: Writer, column: str, tmp_path: Path) -> None:
    """A null in any column, labels included, is refused with its row."""
    table = two_transactions().astype({column: "object"})
    table.loc[1, column] = None
    path = write(table, tmp_path)
    assert_refused(path, column, "missing value in 1 row(s)", "fill or drop these rows")


@both_kinds
def test_repeated_ids_are_refused(write: Writer, tmp_path: Path) -> None:
    """A TRANSACTION_ID that occurs twice is refused with its second row."""
    path = write(two_transactions(TRANSACTION_ID=[7, 7]), tmp_path)
    fix = "drop the copies or number the rows anew"
    assert_refused(path, "TRANSACTION_ID", "repeated id in 1 row(s), first 7 in data row 1", fix)


@both_kinds
@pytest.mark.parametrize(
    ("column", "values", "first"),
    [
        ("CUSTOMER_ID", ["C1", "2"], "'C1' in data row 0"),
        ("TERMINAL_ID", [1, -1], "-1 in data row 1"),
        ("TERMINAL_ID", [1, 2.5], "2.5 in data row 1"),
        ("TRANSACTION_ID", [2**31, 0], "2147483648 in data row 0"),
        ("TX_FRAUD", [0, 2], "2 in data row 1"),
        ("TX_FRAUD_SCENARIO", [0, 4], "4 in data row 1"),
    ],
)
def test_ids_and_labels_out_of_range_are_refused(
    write: Writer, column: str, values: list[Any], first: str, tmp_path: Path
) -> None:
    """Ids that are no 32-bit whole numbers, and labels that are none, are refused with a value."""
    path = write(two_transactions(**{column: values}), tmp_path)
    fix = "map the values to such numbers"
    assert_refused(path, column, f"in 1 row(s), first {first}", fix)


@both_kinds
def test_negative_amounts_are_refused(write: Writer, tmp_path: Path) -> None:
    """An amount below zero is refused with its value."""
    path = write(two_transactions(TX_AMOUNT=[1.0, -0.01]), tmp_path)
    fix = "keep refunds out of the file"
    assert_refused(path, "TX_AMOUNT", "negative amount in 1 row(s), first -0.01", fix)


@both_kinds
@pytest.mark.parametrize("amount", [float("inf"), "1,200.00", "EUR 3"])
def test_amounts_that_are_no_numbers_are_refused(
    write: Writer, amount: Any, tmp_path: Path
) -> None:
    """Infinite amounts and amounts with signs of currency or grouping are refused."""
    values = [amount, "1" if isinstance(amount, str) else 1.0]
    path = write(two_transactions(TX_AMOUNT=values), tmp_path)
    fix = "write plain decimals without signs of currency or grouping"
    assert_refused(path, "TX_AMOUNT", "not a finite number in 1 row(s)", fix)


@both_kinds
def test_times_that_are_no_times_are_refused(write: Writer, tmp_path: Path) -> None:
    """Text that is no ISO 8601 time is refused with its value."""
    path = write(two_transactions(TX_DATETIME=["2018-04-01 10:00:00", "soon"]), tmp_path)
    fix = "write ISO 8601, for example 2018-04-01 09:30:00"
    assert_refused(path, "TX_DATETIME", "first 'soon' in data row 1", fix)


@both_kinds
def test_times_that_are_numbers_are_refused(write: Writer, tmp_path: Path) -> None:
    """A number does not tell its unit or epoch and is not guessed at."""
    path = write(two_transactions(TX_DATETIME=[1_522_540_831, 1_522_540_832]), tmp_path)
    assert_refused(path, "TX_DATETIME", "a number, not a time", "write it as a timestamp")


def test_a_late_value_of_another_kind_is_named(tmp_path: Path) -> None:
    """A word far down a column of numbers, past where its kind is inferred, is still named."""
    n_rows = 60_000
    row = "2018-04-01 10:00:00,1,1,1.0"
    lines = [HEADER, *(f"{number},{row}" for number in range(n_rows)), f"last,{row}"]
    path = write_text("\n".join(lines), tmp_path)
    fix = "map the values to such numbers"
    assert_refused(path, "TRANSACTION_ID", f"first 'last' in data row {n_rows}", fix)


@pytest.mark.parametrize(
    "row", ["0,2018-04-01,1,1,3,50", "0,2018-04-01,1,1", '0,"2018-04-01,1,1,3']
)
def test_rows_that_do_not_fit_the_header_are_refused(row: str, tmp_path: Path) -> None:
    """A decimal comma, a field too few and an open quote never become another amount."""
    path = write_text(f"{HEADER}\n1,2018-04-01,1,1,3\n{row}\n", tmp_path)
    with pytest.raises(ValueError, match=r"not readable as CSV .*; write it again as UTF-8"):
        load_transactions(path)


@both_kinds
def test_a_file_without_rows_is_refused(write: Writer, tmp_path: Path) -> None:
    """Columns without a single row are an error, not an empty table."""
    path = write(SIMULATED.head(0), tmp_path)
    with pytest.raises(ValueError, match="holds no transactions; give a file with at least one"):
        load_transactions(path)


@pytest.mark.parametrize("name", ["empty.parquet", "empty.pq", "empty.csv"])
def test_a_file_without_bytes_is_refused(name: str, tmp_path: Path) -> None:
    """A file of no bytes is named as unreadable, with what to do."""
    path = tmp_path / name
    path.touch()
    with pytest.raises(ValueError, match=rf"{name}: not readable as .*; write it again"):
        load_transactions(path)


@pytest.mark.parametrize("name", ["other.parquet", "other.csv"])
def test_a_file_of_another_kind_is_refused(name: str, tmp_path: Path) -> None:
    """Compressed bytes under a known ending are refused."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(HEADER.encode() * 100))
    with pytest.raises(ValueError, match=name):
        load_transactions(path)


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    """A Parquet file with broken pages behind a whole footer is named as unreadable."""
    path = write_parquet(SIMULATED, tmp_path)
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"not readable as Parquet .*; write it again"):
        load_transactions(path)


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    """A name that tells no kind of file is refused with the known endings."""
    with pytest.raises(ValueError, match=r"unknown kind of file; give \*\.parquet, \*\.pq or"):
        load_transactions(tmp_path / "transactions.xlsx")


def test_an_absent_file_is_not_found(tmp_path: Path) -> None:
    """A path that leads nowhere is a FileNotFoundError that names it."""
    with pytest.raises(FileNotFoundError, match=r"absent\.csv: no such file"):
        load_transactions(tmp_path / "absent.csv")
