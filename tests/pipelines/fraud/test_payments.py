"""What is a payment and what is a dead letter, field by field."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.fraud.inputs import request_inputs
from pipelines.fraud.payments import CHECK, read_records

NOW_MS = 1_790_000_000_000
GOOD: dict[str, Any] = {"transaction_id": "t1", "customer_id": 7, "terminal_id": 8, "amount": 9.5}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"transaction_id": ""}, "transaction_id is missing"),
        ({"transaction_id": None}, "transaction_id is missing"),
        ({"transaction_id": "x" * 129}, "longer than 128"),
        ({"transaction_id": b"\xff"}, "not UTF-8"),
        ({"transaction_id": 1.5}, "of another kind"),
        ({"transaction_id": True}, "of another kind"),
        ({"customer_id": None}, "customer_id is missing"),
        ({"customer_id": b""}, "no whole number"),
        ({"customer_id": "seven"}, "customer_id is no whole number"),
        ({"customer_id": 7.5}, "customer_id is no whole number"),
        ({"customer_id": True}, "customer_id is no whole number"),
        ({"customer_id": float("nan")}, "customer_id is no whole number"),
        ({"customer_id": 1 << 63}, "does not fit"),
        ({"terminal_id": []}, "terminal_id is no whole number"),
        ({"amount": None}, "amount is missing"),
        ({"amount": "12,50"}, "amount is no number"),
        ({"amount": "nan"}, "amount is no number"),
        ({"amount": float("inf")}, "amount is no number"),
        ({"amount": True}, "amount is no number"),
        ({"amount": {}}, "amount is no number"),
        ({"amount": -1}, "amount is negative"),
        ({"at": "yesterday"}, "at is no time"),
        ({"at": 1_790_000_000}, "before 2000 or after 2100"),
        ({"at": 1.5}, "of another kind"),
        ({"kind": "gift"}, "kind is none of check, payment, payout, refund"),
    ],
)
def test_what_is_no_payment_is_a_dead_letter(changed: dict[str, Any], reason: str) -> None:
    """It stops nothing, and the reason names no value."""
    records = [("a", GOOD), ("b", {**GOOD, **changed}), ("c", {**GOOD, "transaction_id": "t3"})]
    payments, dead = read_records(records, NOW_MS)
    assert payments.transaction_ids == ("t1", "t3")
    ((place, said, raw),) = dead
    assert place == "b"
    assert reason in said
    assert "customer_id" in raw


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(0, 1e12),
    st.integers(946_684_800_000, 4_102_444_799_999),
    st.sampled_from(["payment", "check", "payout", "refund", None]),
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=40),
)
def test_kinds_of_values_make_no_difference(
    number: int, amount: float, at_ms: int, kind: str | None, name: str
) -> None:
    """A stream has bytes, JSON numbers, a file whatever its columns are."""
    plain = {"transaction_id": name, "customer_id": number, "terminal_id": 3, "amount": amount}
    plain |= {"at": at_ms, "kind": kind}
    moment = datetime.fromtimestamp(at_ms / 1e3, UTC)
    texts = {key: str(value) for key, value in plain.items() if value is not None}
    forms = [
        plain,
        texts,
        {key: value.encode() for key, value in texts.items()},
        {**plain, "at": moment},
        {**plain, "at": moment.isoformat(), "further": object()},
    ]
    payments, dead = read_records([(str(n), form) for n, form in enumerate(forms)], NOW_MS)
    assert not dead
    assert set(payments.transaction_ids) == {name}
    assert set(payments.customer_ids.tolist()) == {number}
    assert set(payments.amounts.tolist()) == {amount}
    assert set(payments.at_ms.tolist()) == {at_ms}
    assert set(payments.kinds) == {kind or "payment"}
    assert payments.is_recorded.all() == (kind != CHECK)


def test_time_is_now_where_it_is_not_said() -> None:
    payments, _ = read_records([("a", GOOD), ("b", {**GOOD, "at": "2026-01-01"})], NOW_MS)
    assert payments.at_ms.tolist() == [NOW_MS, 1_767_225_600_000]
    payments, _ = read_records([("b", {**GOOD, "at": "2026-01-01"})], NOW_MS, restamp=True)
    assert payments.at_ms.tolist() == [NOW_MS]
    many = [(str(n), {**GOOD, "transaction_id": str(n)}) for n in range(3_000)]
    payments, _ = read_records(many, NOW_MS, restamp=True)
    assert payments.at_ms[-1] == NOW_MS
    assert (np.diff(payments.at_ms) >= 0).all()
    assert NOW_MS - 1_000 <= payments.at_ms[0] < NOW_MS - 990
    payments, dead = read_records([], NOW_MS)
    assert (len(payments), dead) == (0, [])


def test_inputs_of_a_payment_are_those_of_the_calendar() -> None:
    times = pd.date_range("2026-02-20", periods=24 * 15, freq="59min")
    found = request_inputs(np.arange(len(times)), times.as_unit("ms").astype("int64").to_numpy())
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[:, 0], np.arange(len(times)))
    np.testing.assert_array_equal(found[:, 1], times.dayofweek >= 5)
    np.testing.assert_array_equal(found[:, 2], times.hour <= 6)
