"""Two inputs share a key if and only if they are the same after the declared rounding."""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime, timedelta, timezone
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotplate.outputs import InputField, InputSchema, OutputError
from hotplate.outputs.batch import batch_of

KINDS = ("float", "int", "bool", "text", "bytes", "time", "list")
MISSING = (None, float("nan"), np.float32("nan"), pd.NA, pd.NaT, Decimal("NaN"))


def keys(schema: InputSchema, given: Any) -> list[bytes]:
    return schema.keys(batch_of(given, schema.names, schema.lists))


def key(schema: InputSchema, **values: Any) -> bytes:
    (found,) = keys(schema, values)
    return found


def rounded(value: float, decimals: int) -> Any:
    """What counts of a float, taken from its exact decimal expansion."""
    if math.isnan(value):
        return "missing"
    if math.isinf(value) or abs(value * 10.0**decimals) >= 2**53:
        return value + 0.0
    exact = Decimal(value).scaleb(decimals)
    return int(exact.quantize(Decimal(1), ROUND_HALF_EVEN))


floats = st.one_of(
    st.floats(width=64),
    st.floats(-10, 10).map(lambda x: round(x, 5)),
    st.sampled_from([0.0, -0.0, 1e-320, 5e-5, -5e-5, 2.0**53, 2.0**53 / 1e4, 1e300, math.inf]),
)


@given(st.lists(floats, min_size=2, max_size=30), st.integers(-3, 8))
def test_floats_share_a_key_as_their_rounding_does(values: list[float], decimals: int) -> None:
    """Against exact decimals, but where a double cannot tell which side of a half it is on."""
    schema = InputSchema.of("x", decimals=decimals)
    found = keys(schema, {"x": values})
    for at, left in enumerate(values):
        for other, right in enumerate(values[:at]):
            if _is_near_half(left, decimals) or _is_near_half(right, decimals):
                continue
            is_same = rounded(left, decimals) == rounded(right, decimals)
            assert (found[at] == found[other]) == is_same, (left, right)


def _is_near_half(value: float, decimals: int) -> bool:
    if not math.isfinite(value) or abs(value * 10.0**decimals) >= 2**53:
        return False
    scaled = abs(Decimal(value).scaleb(decimals))
    distance = abs(scaled % 1 - Decimal("0.5"))
    return distance <= (scaled + 1) * Decimal(2) ** -52


@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=30))
def test_without_rounding_every_bit_counts(values: list[float]) -> None:
    schema = InputSchema.of("x", decimals=None)
    found = keys(schema, {"x": values})
    for at, left in enumerate(values):
        for other, right in enumerate(values[:at]):
            assert (found[at] == found[other]) == (left == right)


@given(st.data(), st.sampled_from(KINDS))
def test_every_kind_keeps_different_values_apart(data: st.DataObject, kind: Any) -> None:
    schema = InputSchema((InputField("x", kind, None),))
    left, right = data.draw(st.tuples(VALUES[kind], VALUES[kind]))
    found = keys(schema, [{"x": left}, {"x": right}])
    assert (found[0] == found[1]) == (plain(left) == plain(right))


def plain(value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, datetime):
        value = value if value.tzinfo else value.replace(tzinfo=UTC)
        return value.astimezone(UTC)
    if isinstance(value, tuple):
        return [plain(one) for one in value], {isinstance(one, str) for one in value}
    return value


_moments = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "float": st.none() | st.floats(),
    "int": st.none() | st.integers(1 - (1 << 63), (1 << 63) - 1) | st.integers(-2, 2),
    "bool": st.none() | st.booleans(),
    "text": st.none() | st.text(max_size=3) | st.sampled_from(["", "a", "0", "1"]),
    "bytes": st.none() | st.binary(max_size=3),
    "time": st.none()
    | _moments
    | _moments.map(lambda t: t.replace(tzinfo=timezone(timedelta(hours=3)))),
    "list": st.none()
    | st.tuples()
    | st.tuples(st.floats(-2, 2))
    | st.tuples(st.floats(-2, 2), st.floats(-2, 2))
    | st.tuples(st.text(max_size=2), st.text(max_size=2)),
}


def test_one_value_has_one_key_however_it_is_typed() -> None:
    number = InputSchema.of("x")
    same = [5, 5.0, "5", "5.00001", True + 4, np.int8(5), np.uint64(5), np.float32(5), Decimal(5)]
    assert len({key(number, x=value) for value in same}) == 1
    whole = InputSchema.of(InputField("x", "int"))
    same = [5, 5.0, "5", np.int8(5), np.uint64(5), np.float32(5), Decimal(5), "5.0"]
    assert len({key(whole, x=value) for value in same}) == 1
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901)
    at = InputSchema.of(InputField("x", "time"))
    same = [
        *(moment, moment.replace(tzinfo=UTC), moment.isoformat(), pd.Timestamp(moment)),
        *(
            np.datetime64(moment),
            moment.replace(tzinfo=UTC).astimezone(timezone(timedelta(hours=5))),
        ),
    ]
    assert len({key(at, x=value) for value in same}) == 1
    yes = InputSchema.of(InputField("x", "bool"))
    assert len({key(yes, x=value) for value in (True, 1, 1.0, np.True_)}) == 1
    text = InputSchema.of(InputField("x", "text"))
    assert key(text, x="a") == key(text, x=np.str_("a")) != key(text, x="b")
    raw = InputSchema.of(InputField("x", "bytes"))
    assert key(raw, x=b"a") == key(raw, x=bytearray(b"a")) == key(raw, x=memoryview(b"a"))
    several = InputSchema.of(InputField("x", "list"), "y")
    same = [[1.0, 2], (1, 2.0), np.array([1, 2]), np.array([1, 2], np.float32), ["1", "2"]]
    assert len({key(several, x=value, y=1) for value in same[:-1]}) == 1
    assert key(several, x=same[-1], y=1) != key(several, x=same[0], y=1)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_missing_is_missing(kind: Any) -> None:
    schema = InputSchema.of(InputField("x", kind), "y")
    found = {key(schema, x=value, y=1) for value in MISSING} | {key(schema, y=1)}
    assert len(found) == 1
    least: dict[str, Any] = {"text": "", "bytes": b"", "list": (), "time": datetime(1970, 1, 1)}
    something = least.get(kind, 0)
    assert key(schema, x=something, y=1) not in found


def test_composed_and_decomposed_text_differ() -> None:
    """A model that encodes code points tells them apart."""
    schema = InputSchema.of(InputField("x", "text"))
    composed = unicodedata.normalize("NFC", "é")
    assert key(schema, x=composed) != key(schema, x=unicodedata.normalize("NFD", "é"))
    assert key(schema, x="\ud800") != key(schema, x="?")


ROW = st.fixed_dictionaries(
    {
        "amount": st.none() | st.floats(-1e6, 1e6),
        "items": st.none() | st.integers(-(2**53), 2**53),
        "shop": st.none() | st.text(max_size=3),
        "night": st.booleans(),
    }
)


@settings(max_examples=60)
@given(st.lists(ROW, min_size=1, max_size=8))
def test_one_batch_has_one_set_of_keys_in_every_container(rows: list[dict[str, Any]]) -> None:
    schema = InputSchema.of(
        "amount",
        InputField("items", "int"),
        InputField("shop", "text"),
        InputField("night", "bool"),
    )
    columns = {name: [row[name] for row in rows] for name in reversed(schema.names)}
    table = pa.table(
        {
            "shop": pa.array(columns["shop"], pa.string()),
            "extra": [1] * len(rows),
            "items": pa.array(columns["items"], pa.int64()),
            "amount": pa.array(columns["amount"], pa.float64()),
            "night": pa.array(columns["night"], pa.bool_()),
        }
    )
    expected = [key(schema, **row) for row in rows]
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    for batch in (
        rows,
        columns,
        table,
        chunked,
        table.to_pandas(),
        table.to_pandas(types_mapper=pd.ArrowDtype),
        table.to_pandas().astype({"items": "Int64", "shop": "category"}),
        {name: pa.array(values) for name, values in columns.items()},
        {name: pd.Series(values, dtype=object) for name, values in columns.items()},
    ):
        assert keys(schema, batch) == expected


@given(
    st.lists(floats, min_size=1, max_size=6),
    st.none() | st.integers(-6, 15),
    st.sampled_from([np.float64, np.float32]),
)
def test_one_row_of_a_matrix_has_the_same_key_the_short_way(
    values: list[float], decimals: int | None, dtype: Any
) -> None:
    schema = InputSchema.of(*(f"f{place}" for place in range(len(values))), decimals=decimals)
    with np.errstate(over="ignore"):
        row = np.array([values], dtype)
    assert [schema.key_of_row(row, row[0].tolist())] == schema.keys(batch_of(row, schema.names))


def test_a_large_matrix_has_the_keys_of_its_rows() -> None:
    """It is rounded in pieces, some with numbers that are missing or too large to be rounded."""
    matrix = np.random.default_rng(0).normal(size=(2_001, 37))
    matrix[500, 3], matrix[900, 5] = np.nan, 1e300
    schema = InputSchema.of(*(f"f{place}" for place in range(37)))
    expected = [schema.key_of_row(row[None], row.tolist()) for row in matrix]
    assert schema.keys(batch_of(matrix, schema.names)) == expected
    assert len(set(expected)) == len(matrix)


@given(st.integers(1, 6), st.integers(0, 20), st.data())
def test_a_matrix_has_the_keys_of_its_columns(width: int, height: int, data: Any) -> None:
    names = [f"f{number}" for number in range(width)]
    cells = data.draw(st.lists(floats, min_size=width * height, max_size=width * height))
    matrix = np.array(cells, np.float64).reshape(height, width)
    for schema in (InputSchema.of(*names), InputSchema.of(*names, decimals=None)):
        by_column = {name: matrix[:, at].tolist() for at, name in enumerate(names)}
        if height:
            assert keys(schema, matrix) == keys(schema, by_column)
            assert keys(schema, np.asfortranarray(matrix)) == keys(schema, matrix)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("float", "much"), ("float", b"1"), ("float", [1.0]), ("int", 5.5), ("int", 1 << 63)),
        *(("int", -(1 << 63)), ("int", "5.5"), ("int", np.uint64(1 << 63)), ("bool", 2)),
        *(("text", 5), ("text", b"a"), ("bytes", "a"), ("time", 5), ("time", "soon")),
        *(("list", "text"), ("list", 5), ("list", ["a", 1])),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(kind: Any, value: Any) -> None:
    schema = InputSchema.of(InputField("odd", kind))
    with pytest.raises(OutputError, match="input 'odd'") as caught:
        keys(schema, [{"odd": value}])
    if str(value) not in ("a", "b'a'", "5"):
        assert str(value) not in str(caught.value)  # what it holds is nobody's business


@pytest.mark.parametrize(
    ("given_", "match"),
    [
        (np.zeros((2, 3)), r"shape \(2, 3\).*reads 2"),
        (np.zeros(2), r"shape \(2,\)"),
        ({"a": [1, 2], "b": [1]}, "different length: 'a' 2, 'b' 1"),
        ({"a": [1, 2], "b": 1}, "'b' one value"),
        ({"a": [1, 2]}, "input 'b': is not among the columns"),
        (pd.DataFrame({"a": [1]}), "input 'b': is not among the columns"),
        (7, "are a int"),
        ("ab", "are a str"),
    ],
)
def test_a_batch_that_is_none_is_refused(given_: Any, match: str) -> None:
    with pytest.raises(OutputError, match=match):
        keys(InputSchema.of("a", "b"), given_)


def test_schemas_that_are_none_are_refused() -> None:
    with pytest.raises(OutputError, match="none are declared"):
        InputSchema.of()
    with pytest.raises(OutputError, match="declared twice"):
        InputSchema.of("a", "a")
    with pytest.raises(OutputError, match="no such kind: 'number'"):
        InputField("a", "number")  # type: ignore[arg-type]
    with pytest.raises(OutputError, match="rounded to 16 places"):
        InputField("a", "float", 16)


def test_a_schema_is_known_by_all_that_it_declares() -> None:
    schemas = [
        InputSchema.of("a", "b"),
        InputSchema.of("b", "a"),
        InputSchema.of("a", "b", decimals=3),
        InputSchema.of("a", InputField("b", "int")),
        InputSchema.of("a"),
    ]
    assert len({schema.fingerprint for schema in schemas}) == len(schemas)
    assert InputSchema.of("a", "b").fingerprint == schemas[0].fingerprint
