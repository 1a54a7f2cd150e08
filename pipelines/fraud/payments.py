"""Payments as they arrive: checked, as columns; what is wrong with others, by name.

A record has

    transaction_id   a text that no other payment has
    customer_id      the card, a whole number
    terminal_id      where, a whole number
    amount           currency units, 0 or more
    at               when it was made: ms since 1970, or ISO 8601; now if left out
    kind             "payment" if left out; "check" asks and records nothing; "payout", "refund"

and whatever else is left alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = [
    "CHECK",
    "OF_REQUEST",
    "DeadLetter",
    "Payments",
    "as_made_now",
    "events_of",
    "read_records",
]

PAYMENT: Final = "payment"
CHECK: Final = "check"
OF_REQUEST: Final = ("customer_id", "terminal_id", "amount", "kind")
"""What two requests of one id must have in common."""
_KINDS: Final = frozenset({PAYMENT, CHECK, "payout", "refund"})
_LONGEST_ID: Final = 128
_INT64: Final = 2**63
_LARGEST_AMOUNT: Final = 1e15  # a float32 holds 1e38, and sums of windows must hold, too
_LATEST_MS: Final = 4_102_444_800_000  # 2100; a time in seconds, or microseconds, is refused
_EARLIEST_MS: Final = 946_684_800_000  # 2000


class DeadLetter(NamedTuple):
    """A record that is no payment.

    Attributes:
        place: where in the stream or file it stands.
        reason: what is wrong with it; without the value, which may be anybody's.
        raw: the record itself, as text, cut short.
    """

    place: str
    reason: str
    raw: str


@dataclass(frozen=True)
class Payments:
    """A micro-batch; every column has one item a payment.

    Attributes:
        places: where in the stream or file each stands.
        transaction_ids, kinds: texts.
        customer_ids, terminal_ids, at_ms: int64.
        amounts: float64.
    """

    places: Sequence[str]
    transaction_ids: Sequence[str]
    customer_ids: npt.NDArray[np.int64]
    terminal_ids: npt.NDArray[np.int64]
    amounts: npt.NDArray[np.float64]
    at_ms: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.transaction_ids)

    def chosen(self, rows: npt.NDArray[Any]) -> Payments:
        """Some of them, by a mask or by places."""
        places = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        if len(places) == len(self):
            return self
        picked = places.tolist()
        return Payments(
            [self.places[at] for at in picked],
            [self.transaction_ids[at] for at in picked],
            self.customer_ids[places],
            self.terminal_ids[places],
            self.amounts[places],
            self.at_ms[places],
            self.kinds[places],
        )

    def events(self) -> pa.Table:
        """What is recorded of them, for `hotplate.of(store).ingest`."""
        return events_of(self.transaction_ids, self.customer_ids, self.amounts, self.at_ms)

    @property
    def is_recorded(self) -> npt.NDArray[np.bool_]:
        """Which of them are payments that count, and no mere questions."""
        return np.asarray(self.kinds != CHECK, np.bool_)


def read_records(
    records: Sequence[tuple[str, Mapping[str, Any]]], now_ms: int, *, restamp: bool = False
) -> tuple[Payments, list[DeadLetter]]:
    """Check records.

    Args:
        records: (place, fields); fields are text, bytes, or of their kind.
        now_ms: ms since 1970.
        restamp: take all payments as made within the last second, in their order, as a replay does.

    Returns:
        The payments in their order, and the records that are none.
    """
    good: list[tuple[str, str, int, int, float, int, str]] = []
    dead = []
    for place, fields in records:
        try:
            good.append((place, *_payment(fields, now_ms)))
        except ValueError as problem:
            dead.append(DeadLetter(place, str(problem), _shown(fields)))
    columns: Sequence[Sequence[Any]] = list(zip(*good, strict=True)) or [[]] * 7
    places, ids, customers, terminals, amounts, times, kinds = columns
    at_ms = np.array(times, np.int64)
    if restamp:
        # at most one a millisecond, as far as they fit: a stream has few that are made at once
        back = np.arange(len(at_ms) - 1, -1, -1)
        at_ms[:] = now_ms - back * min(1_000, len(at_ms)) // max(1, len(at_ms))
    kind = np.empty(len(kinds), np.object_)
    kind[:] = kinds
    return (
        Payments(
            places,
            ids,
            np.array(customers, np.int64),
            np.array(terminals, np.int64),
            np.array(amounts, np.float64),
            at_ms,
            kind,
        ),
        dead,
    )


def events_of(transaction_ids: Any, customer_ids: Any, amounts: Any, at_ms: Any) -> pa.Table:
    """Payments as `card_windows_events` takes them; Arrow, of which a few take half as long."""
    return pa.table(
        {
            "transaction_id": pa.array(transaction_ids, pa.string()),
            "customer_id": customer_ids,
            "amount": amounts,
            "event_timestamp": pa.array(at_ms, pa.timestamp("ms", tz="UTC")),
        }
    )


def as_made_now(rows: Sequence[Mapping[str, Any]]) -> Payments:
    """Payments that were decided before, as if they were made now, each that differs once.

    Args:
        rows: of the ledger, the latest first.
    """
    distinct = {tuple(row[name] for name in OF_REQUEST): row["transaction_id"] for row in rows}
    customers, terminals, amounts, kinds = zip(*distinct, strict=True) if distinct else [()] * 4
    kind = np.empty(len(distinct), np.object_)
    kind[:] = kinds
    return Payments(
        [""] * len(distinct),
        list(distinct.values()),
        np.array(customers, np.int64),
        np.array(terminals, np.int64),
        np.array(amounts, np.float64),
        np.full(len(distinct), time.time_ns() // 1_000_000, np.int64),
        kind,
    )


def _payment(fields: Mapping[str, Any], now_ms: int) -> tuple[str, int, int, float, int, str]:
    get = fields.get
    transaction_id = _text(get("transaction_id"))
    if not transaction_id:
        raise ValueError("transaction_id is missing")
    if len(transaction_id) > _LONGEST_ID:
        raise ValueError(f"transaction_id is longer than {_LONGEST_ID} characters")
    if "\0" in transaction_id:
        raise ValueError("transaction_id holds a NUL, which Postgres cannot keep")
    kind = _text(get("kind")) or PAYMENT
    if kind not in _KINDS:
        raise ValueError(f"kind is none of {', '.join(sorted(_KINDS))}")
    return (
        transaction_id,
        _whole("customer_id", get("customer_id")),
        _whole("terminal_id", get("terminal_id")),
        _amount(get("amount")),
        _moment_ms(get("at"), now_ms),
        kind,
    )


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    if value is None:
        return ""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError("a text is not UTF-8") from None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError("a text is of another kind")


def _whole(name: str, value: Any) -> int:
    if value is None or value == "":
        raise ValueError(f"{name} is missing")
    if isinstance(value, (bool, float)) and not (type(value) is float and value.is_integer()):
        raise ValueError(f"{name} is no whole number")
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is no whole number") from None
    if not -_INT64 <= number < _INT64:
        raise ValueError(f"{name} does not fit 64 bits")
    return number


def _amount(value: Any) -> float:
    if value is None or value == "":
        raise ValueError("amount is missing")
    try:
        amount = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("amount is no number") from None
    if isinstance(value, bool) or not math.isfinite(amount):
        raise ValueError("amount is no number")
    if amount < 0:
        raise ValueError("amount is negative: say it is a refund by its kind")
    if amount > _LARGEST_AMOUNT:
        raise ValueError(f"amount is above {_LARGEST_AMOUNT:g}")
    return amount


def _moment_ms(value: Any, now_ms: int) -> int:
    if value is None:
        return now_ms
    if type(value) is int:
        moment_ms = value
    elif isinstance(value, datetime):
        moment_ms = _ms(value)
    else:
        text = _text(value)
        if not text:
            return now_ms
        try:
            moment_ms = (
                int(text) if text.lstrip("-").isdigit() else _ms(datetime.fromisoformat(text))
            )
        except (ValueError, OverflowError):
            raise ValueError("at is no time: give ms since 1970, or ISO 8601") from None
    if not _EARLIEST_MS <= moment_ms < _LATEST_MS:
        raise ValueError("at lies before 2000 or after 2100: give ms since 1970, or ISO 8601")
    return moment_ms


def _ms(moment: datetime) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1_000)


def _shown(fields: Mapping[str, Any]) -> str:
    return repr({_key(name): value for name, value in fields.items()})[:1_000]


def _key(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
