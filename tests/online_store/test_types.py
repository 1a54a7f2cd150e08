"""Promise 5 for values: every Feast type comes back byte for byte, on a miss and on a hit."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from feast import types as ft
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.value_type import ValueType
from hypothesis import given, settings
from hypothesis import strategies as st

from hotplate.codec import (
    GENERIC,
    NOT_FOUND,
    NULL,
    STATES,
    VALUE,
    Column,
    Layout,
    SourceRow,
    flags_of,
    is_absent,
)

from ..stores import USER, Repo, assert_same

RepoMaker = Callable[..., Repo]
MOMENT = datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC)

_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
SAMPLES: dict[str, tuple[Any, list[Any]]] = {
    "int32": (ft.Int32, [0, -1, 2**31 - 1, -(2**31)]),
    "int64": (ft.Int64, [0, 2**63 - 1, -(2**63)]),
    "float32": (ft.Float32, [0.0, -0.0, 0.1, math.inf, -math.inf, 1e-45]),
    "float64": (ft.Float64, [0.0, -0.0, 0.1, math.inf, 5e-324, 1e308]),
    "bool": (ft.Bool, [True, False]),
    "string": (ft.String, ["", "a", "ü€😀", "x" * 5000]),
    "bytes": (ft.Bytes, [b"", b"\x00\xff", b"y" * 5000]),
    "timestamp": (ft.UnixTimestamp, [MOMENT, datetime(1970, 1, 1, tzinfo=UTC)]),
    "ints": (ft.Array(ft.Int64), [[], [1], [1, 2, 3]]),
    "strings": (ft.Array(ft.String), [[], [""], ["a", "b"]]),
    "floats": (ft.Array(ft.Float32), [[], [0.5, -0.5]]),
    "bools": (ft.Array(ft.Bool), [[], [True, False]]),
    "bytess": (ft.Array(ft.Bytes), [[], [b"", b"a"]]),
    "times": (ft.Array(ft.UnixTimestamp), [[], [MOMENT]]),
    "set": (ft.Set(ft.Int64), [set(), {1, 2}]),
    "string_set": (ft.Set(ft.String), [set(), {"a"}]),
    "map": (ft.Map, [{}, {"a": 1, "b": "x"}, {"nested": {"c": [1.5]}}]),
    "maps": (ft.Array(ft.Map), [[], [{"a": 1}, {}]]),
    "json": (ft.Json, ['{"a": [1, null]}', "3"]),
    "uuid": (ft.Uuid, [_ID]),
    "uuids": (ft.Array(ft.Uuid), [[], [_ID]]),
    "decimal": (ft.Decimal, [Decimal("0.1"), Decimal("-12345678901234567890.5")]),
    "decimals": (ft.Array(ft.Decimal), [[], [Decimal("1.50")]]),
    "nested": (ft.Array(ft.Array(ft.Int64)), [[], [[1], []]]),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_type_comes_back_byte_equal(make_repo: RepoMaker, name: str) -> None:
    """Each sample of each type, and null, beside a plain number."""
    from feast.type_map import python_values_to_proto_values

    dtype, samples = SAMPLES[name]
    repo = make_repo()
    repo.apply(USER, repo.view("v", {"x": dtype, "n": ft.Int64}))
    table = repo.bare.get_feature_view("v")
    values = [
        *python_values_to_proto_values(samples, dtype.to_value_type()),
        Value(),
    ]
    write(repo, table, {i: {"x": value, "n": Value(int64_val=i)} for i, value in enumerate(values)})
    rows = [{"user_id": i} for i in range(len(values))]
    as_dict, *_ = assert_same(repo, ["v:x", "v:n"], rows)
    assert as_dict["x"][-1] is None
    for row in rows:
        assert_same(repo, ["v:n", "v:x"], [row])
    online = repo.hot._get_provider().online_store
    keys = [key_of(i) for i in range(len(values))]
    for _ in range(2):
        read = online.online_read(repo.hot.config, table, keys, ["x"])
        assert [row[1]["x"] for row in read] == values


def key_of(user_id: int) -> EntityKey:
    return EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=user_id)])


def write(repo: Repo, table: Any, rows: dict[int, dict[str, Value]]) -> None:
    """Write values as they are, past Feast's own conversion."""
    data = [(key_of(user), values, MOMENT, None) for user, values in rows.items()]
    provider = repo.bare._get_provider()
    provider.online_write_batch(repo.bare.config, table, data, None)


def test_nan_and_values_of_another_type_than_declared(make_repo: RepoMaker) -> None:
    """What an older schema or another writer left behind is answered as the bare store does."""
    repo = make_repo()
    repo.apply(USER, repo.view("v", {"a": ft.Float64, "b": ft.String, "c": ft.Int32}))
    table = repo.bare.get_feature_view("v")
    write(
        repo,
        table,
        {
            1: {
                "a": Value(double_val=math.nan),
                "b": Value(string_val=""),
                "c": Value(int32_val=0),
            },
            2: {"a": Value(int64_val=7), "b": Value(bytes_val=b"z"), "c": Value(null_val=0)},
            3: {"a": Value(float_val=0.1), "b": Value(), "c": Value(int64_val=2**40)},
        },
    )
    from feast.online_response import OnlineResponse

    for _ in range(2):
        rows = [{"user_id": i} for i in (1, 2, 3, 4)]
        bare: OnlineResponse = repo.bare.get_online_features(["v:a", "v:b", "v:c"], rows)
        hot = repo.hot.get_online_features(["v:a", "v:b", "v:c"], rows)
        assert repr(hot.to_dict()) == repr(bare.to_dict())
        assert str(hot.proto) == str(bare.proto)


# -- the codec by itself -------------------------------------------------------------------------

_VALUES = {
    ValueType.DOUBLE: st.floats(width=64).map(lambda x: Value(double_val=x)),
    ValueType.FLOAT: st.floats(width=32).map(lambda x: Value(float_val=x)),
    ValueType.INT64: st.integers(-(2**63), 2**63 - 1).map(lambda x: Value(int64_val=x)),
    ValueType.INT32: st.integers(-(2**31), 2**31 - 1).map(lambda x: Value(int32_val=x)),
    ValueType.BOOL: st.booleans().map(lambda x: Value(bool_val=x)),
    ValueType.STRING: st.text().map(lambda x: Value(string_val=x)),
    ValueType.BYTES: st.binary().map(lambda x: Value(bytes_val=x)),
    ValueType.UNIX_TIMESTAMP: st.integers(0, 2**32).map(lambda x: Value(unix_timestamp_val=x)),
    ValueType.JSON: st.text().map(lambda x: Value(json_val=x)),
}
_ANY = st.one_of(*_VALUES.values(), st.just(Value()), st.just(Value(null_val=0)))


@st.composite
def _rows(draw: st.DrawFn) -> tuple[list[ValueType], list[Value | None], int | None]:
    types = draw(st.lists(st.sampled_from(list(_VALUES)), min_size=1, max_size=12))
    values = [
        draw(
            st.one_of(_VALUES[kind], st.just(Value()), st.none())
            if draw(st.integers(0, 9))
            else _ANY
        )
        for kind in types
    ]
    moment = draw(st.one_of(st.none(), st.integers(-(2**50), 2**50)))
    return types, values, moment


@given(_rows(), st.booleans())
@settings(max_examples=400, deadline=None)
def test_codec_round_trip(
    row: tuple[list[ValueType], list[Value | None], int | None], as_bytes: bool
) -> None:
    """Any row comes back as it went in, from messages and from their serialized form."""
    types, values, moment = row
    layout = Layout([Column(f"c{i}", kind) for i, kind in enumerate(types)])
    given_values: list[Any] = [
        value.SerializeToString() if as_bytes and value is not None else value for value in values
    ]
    packed = b"\x00" * 9 + layout.encode(SourceRow(moment, given_values))
    assert layout.event_us(packed) == moment
    back = layout.values(packed)
    serial = [None if v is None else v.SerializeToString() for v in values]
    assert [None if v is None else v.SerializeToString() for v in back] == serial
    assert layout.serialized(packed) == serial
    for state, value in zip(layout.states(packed), values, strict=True):
        if value is None:
            assert state == NOT_FOUND
        else:
            assert state == (NULL if value.WhichOneof("val") is None else VALUE)


def test_what_counts_as_absent() -> None:
    """No row at all, or Redis' all null at 1970; an all-null row with a time is not absent."""
    layout = Layout([Column("a", ValueType.DOUBLE), Column("b", ValueType.STRING)])

    def packed(moment: int | None, *values: Value | None) -> bytes:
        return b"\x00" * 9 + layout.encode(SourceRow(moment, values))

    assert is_absent(packed(None, None, None))
    assert is_absent(packed(0, Value(), Value()))
    assert not is_absent(packed(5, Value(), Value()))
    assert not is_absent(packed(5, None, None))
    assert not is_absent(packed(0, Value(double_val=1), Value()))
    assert flags_of(packed(1, Value(double_val=1), Value(string_val=""))) == 0
    assert flags_of(packed(1, Value(double_val=1), Value())) == STATES
    assert flags_of(packed(1, Value(int64_val=1), Value())) == GENERIC


def test_a_row_of_the_wrong_width_is_refused() -> None:
    """A source that returns too few columns is not packed into something that looks right."""
    layout = Layout([Column("a", ValueType.DOUBLE), Column("b", ValueType.DOUBLE)])
    with pytest.raises(ValueError, match="1 values for the 2 columns"):
        layout.encode(SourceRow(1, [Value(double_val=1)]))
