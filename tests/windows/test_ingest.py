"""Events written by columns: in every form, stamped once, counted, and the same as pushed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from hotplate import HotplateError
from hotplate.operations.ingest import Ingested

from .bank import MINUTE, Bank, Payment, bank, frame_of, random_payment

OWN: dict[str, Any] = {"settings": {"windows": {"in_process": True}}}
EVENTS = "activity_events"


@pytest.fixture
def shop(tmp_path: Path) -> Bank:
    """A bank whose logs are this process's own."""
    return bank(tmp_path, {"type": "sqlite"}, tmp_path.name, **OWN)


def some(shop: Bank, count: int = 3) -> list[Payment]:
    """Payments of card 1, a second apart."""
    made = [Payment(1, shop.now - 1_000 * n - 1, shop.now, f"p{n}", 100 + n) for n in range(count)]
    shop.pushed += made
    return made


def in_pieces(frame: pd.DataFrame) -> Iterator[Any]:
    """A frame, an Arrow table, a batch and dicts, one after the other."""
    yield frame.iloc[:1]
    yield pa.Table.from_pandas(frame.iloc[1:2])
    yield from frame.iloc[2:4].to_dict("records")
    yield pa.RecordBatch.from_pandas(frame.iloc[4:5])
    yield from frame.iloc[5:].to_dict("records")


@pytest.mark.parametrize(
    "form",
    [
        lambda frame: frame,
        lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
        pa.Table.from_pandas,
        pa.RecordBatch.from_pandas,
        lambda frame: frame.to_dict("records"),
        lambda frame: [frame.iloc[:2], frame.iloc[2:]],
        in_pieces,
    ],
    ids=["frame", "Arrow-backed frame", "table", "batch", "dicts", "frames", "iterator of all"],
)
def test_events_come_in_every_form(shop: Bank, form: Any) -> None:
    """And all of them count."""
    frame = frame_of(some(shop, 7))
    assert shop.repo.cache.ingest(EVENTS, form(frame)) == Ingested(7)
    assert shop.read(1) == [shop.truth(1)]


def test_it_is_the_same_as_a_push(tmp_path: Path) -> None:
    """The same events give the same logs, byte for byte, but for their order."""
    banks = [
        bank(tmp_path / name, {"type": "sqlite"}, name, **OWN) for name in ("pushed", "direct")
    ]
    chance = random.Random(5)
    events = [random_payment(chance, banks[0], 5) for _ in range(200)]
    banks[0].push(*events)
    banks[1].pushed = list(events)
    banks[1].repo.cache.ingest(EVENTS, frame_of(events))
    for one in banks:
        one.repo.clock.advance(1)
        assert one.read(*range(5)) == [one.truth(card) for card in range(5)]
    counted = [one.repo.cache.stats().events[EVENTS] for one in banks]
    assert counted[0] == counted[1]


def test_arrival_is_stamped_once_for_both_sides(shop: Bank) -> None:
    """Without the column events arrive now, and the offline table says the same."""
    frame = frame_of(some(shop)).drop(columns="arrived")
    before = len(pd.read_parquet(shop.repo.folder / "payments.parquet"))
    shop.repo.cache.ingest(EVENTS, frame, to_offline=True)
    shop.repo.clock.advance(5)
    table = pd.read_parquet(shop.repo.folder / "payments.parquet")
    assert len(table) == before + 3
    stamps = table.loc[table["payment_id"] != "none", "arrived"]
    assert {round(stamp.timestamp() * 1_000) for stamp in stamps} == {shop.pushed[0].arrived}
    assert shop.read(1) == [shop.truth(1)]


def test_what_is_dropped_is_said(shop: Bank) -> None:
    """By reason, a missing key among them."""
    late = Payment(1, shop.now - 90 * MINUTE, shop.now, "late", 1)
    rows = [*frame_of([*some(shop, 1), late]).to_dict("records")]
    rows.append({**rows[0], "card_id": None, "payment_id": "nobody's"})
    assert shop.repo.cache.ingest(EVENTS, rows) == Ingested(1, {"late": 1, "missing_key": 1})
    assert shop.repo.cache.stats().events[EVENTS].dropped == {"late": 1, "missing_key": 1}


def test_a_column_that_nobody_declared_is_said(shop: Bank) -> None:
    """It is left out, in whatever form it comes, and counted."""
    frame = frame_of(some(shop, 3)).assign(curency="EUR", note=None)
    found = shop.repo.cache.ingest(
        EVENTS, iter([frame.iloc[:2], *frame.iloc[2:].to_dict("records")])
    )
    assert found == Ingested(3, {}, {"curency": 3, "note": 3})
    assert shop.read(1) == [shop.truth(1)]


def test_progress_is_told(shop: Bank) -> None:
    """After every batch, of all events so far."""
    heard: list[int] = []
    events = frame_of([Payment(n, shop.now - 1, shop.now, f"p{n}", 1) for n in range(25_000)])
    cache = shop.repo.cache
    done = cache.ingest(EVENTS, [events, events], progress=lambda so: heard.append(so.accepted))
    assert heard == [10_000, 20_000, 25_000, 35_000, 45_000, 50_000]
    assert done.accepted == 50_000
    assert shop.read(7)[0][f"count_{MINUTE}"] == 1, "the second time changed nothing"


def test_wrong_input_is_refused(shop: Bank) -> None:
    """With what is wrong."""
    frame = frame_of(some(shop))
    with pytest.raises(KeyError, match="no event view"):
        shop.repo.cache.ingest("activity", frame)
    with pytest.raises(KeyError, match="no group or feature view"):
        shop.repo.cache.ingest("nothing", frame)
    with pytest.raises(HotplateError, match="no column 'amount'"):
        shop.repo.cache.ingest(EVENTS, frame.drop(columns="amount"))
    with pytest.raises(HotplateError, match="are no DOUBLE"):
        shop.repo.cache.ingest(EVENTS, frame.assign(amount="much"))
    with pytest.raises(TypeError, match="are a str"):
        shop.repo.cache.ingest(EVENTS, "payments.csv")
    assert shop.repo.cache.ingest(EVENTS, []) == Ingested()
