"""The Handbook's features, served through Feast and computed again for training, are its own.

Every transaction is pushed or ingested when it arrives, a second after it happened, and its
features are read at that moment. Afterwards the same rows are asked of `get_historical_features`.

The fast form takes a few dozen customers and terminals. `HOTPLATE_HANDBOOK=all` takes all 201,295
published transactions, and 355,000 before them (minutes); it writes an hour of them at once, most
of which have not arrived when the first of that hour are read.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from feast import Entity, Field, FileSource, PushSource
from feast.aggregation import Aggregation
from feast.types import Float64, Int64
from feast.value_type import ValueType

from hotplate import windowed_view
from hotplate.clock import FakeClock
from hotplate.embedded import EmbeddedServer
from hotplate.serving.entities import declared_shape
from hotplate.windowed import WindowedViews
from hotplate.windows.log import LogFormat

from ..stores import Repo, await_
from .bank import PROVIDER
from .handbook import DAYS, SAME_SECOND, arrival_ms, read_published, read_raw

IS_ALL = os.environ.get("HOTPLATE_HANDBOOK") == "all"
BUSY, OTHERS = 2, 12  # customers, and terminals, of the fast form
SOURCE = "transactions"
CUSTOMER = Entity(name="customer", join_keys=["CUSTOMER_ID"], value_type=ValueType.INT64)
TERMINAL = Entity(name="terminal", join_keys=["TERMINAL_ID"], value_type=ValueType.INT64)
FIRST_READ = pd.Timestamp("2018-07-25", tz="UTC")
FOLDED_EVERY_DAYS = 3
PUSHED_EVERY = 5  # the other events are ingested, which is faster
WRITTEN_AT_ONCE = "1h" if IS_ALL else "1ms"
COLUMNS = ["TRANSACTION_ID", "CUSTOMER_ID", "TERMINAL_ID", "TX_AMOUNT", "TX_FRAUD"]


@dataclass(frozen=True)
class Sample:
    """What is pushed and read.

    Attributes:
        events: all transactions of the customers and of the terminals, by arrival: the columns of
            the source, `happened` and `arrived`.
        published: the published rows among them, in the same order.
        customers, terminals: of whom all transactions are there.
    """

    events: pd.DataFrame
    published: pd.DataFrame
    customers: frozenset[int]
    terminals: frozenset[int]

    def is_complete(self, entity: str) -> pd.Series:
        """Which of the published rows can be compared with the book."""
        known = self.customers if entity == "CUSTOMER_ID" else self.terminals
        return self.published[entity].isin(known)


@pytest.fixture(scope="module")
def sample() -> Sample:
    """The busiest customers and the terminals with most fraud, as many others; or everything."""
    raw = read_raw()
    published = read_published(raw)
    by_size = raw.CUSTOMER_ID.value_counts().index
    by_fraud = raw.groupby("TERMINAL_ID").TX_FRAUD.sum().sort_values(kind="stable").index[::-1]
    chosen = [
        frozenset(ids if IS_ALL else [*ids[:BUSY], *ids[-OTHERS:]]) for ids in (by_size, by_fraud)
    ]
    customers, terminals = chosen
    happened = raw.TX_DATETIME.astype("datetime64[ms]")
    events = raw[COLUMNS].assign(
        happened=happened.dt.tz_localize("UTC"),
        arrived=(happened + arrival_ms(raw, "CUSTOMER_ID")).dt.tz_localize("UTC"),
    )
    events = events[events.CUSTOMER_ID.isin(customers) | events.TERMINAL_ID.isin(terminals)]
    events = events.sort_values(["arrived", "TRANSACTION_ID"], ignore_index=True)
    rows = events.merge(published.drop(columns=COLUMNS[1:]), on="TRANSACTION_ID")
    return Sample(events, rows, customers, terminals)


def aggregations(prefix: str, column: str) -> list[Aggregation]:
    """Count and mean over each of the book's windows."""
    return [
        Aggregation(
            column=column,
            function=function,
            time_window=timedelta(days=days),
            name=f"{prefix}_{function}_{days}",
        )
        for days in DAYS
        for function in ("count", "mean")
    ]


class Book:
    """A store with the book's features, over a Redis.

    `customer_steps` has the windows of customers as they are by default: they move in steps, so
    their logs are folded into tiles, which exact windows do not allow.
    """

    def __init__(self, folder: Path, server: EmbeddedServer, events: pd.DataFrame) -> None:
        began = events.arrived.iloc[0].timestamp()
        self.repo = Repo(
            folder,
            {"type": "redis", "connection_string": server.connection_string},
            project=f"book{os.getpid()}",
            provider=PROVIDER,
            registry={"cache_ttl_seconds": 0},  # or each jump of the clock has it read anew
            clock=FakeClock(wall_s=began),
        )
        self.cache = self.repo.cache
        path = folder / "transactions.parquet"
        events.to_parquet(path)
        table = FileSource(
            name="transactions_table",
            path=str(path),
            timestamp_field="happened",
            created_timestamp_column="arrived",
        )
        source = PushSource(name=SOURCE, batch_source=table)
        amount, fraud = Field(name="TX_AMOUNT", dtype=Float64), Field(name="TX_FRAUD", dtype=Int64)
        self.views = {
            "customer": _declare(source, CUSTOMER, "customer", amount, profile="exact"),
            "terminal": _declare(
                source, TERMINAL, "terminal", fraud, profile="exact", delay=timedelta(days=7)
            ),
            "customer_steps": _declare(source, CUSTOMER, "customer_steps", amount),
        }
        objects = [one for views in self.views.values() for one in views]
        self.repo.hot.apply([CUSTOMER, TERMINAL, source, *objects])
        self.features = [
            f"{name}:{one.name}"
            for name, views in self.views.items()
            for one in views.windowed.features
        ]

    def wait_until(self, moment: pd.Timestamp) -> None:
        """Move the clock on."""
        self.repo.clock.advance((moment.value - self.repo.clock.wall_ns()) / 1e9)

    def ingest(self, events: pd.DataFrame) -> None:
        """Write events past Feast, into each of the views."""
        for views in self.views.values():
            counted = self.cache.ingest(views.events.name, events)
            assert counted.accepted == len(events)

    def push(self, events: pd.DataFrame) -> None:
        """Write events through Feast."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.repo.hot.push(SOURCE, events)

    def read(self, rows: pd.DataFrame) -> dict[str, list[float]]:
        """The features of each row's customer and terminal, now."""
        entities = {name: rows[name].tolist() for name in ("CUSTOMER_ID", "TERMINAL_ID")}
        answer: dict[str, list[float]] = self.repo.hot.get_online_features(
            self.features, entities
        ).to_dict()
        return answer

    def keys(self, name: str, ids: Sequence[int]) -> list[bytes]:
        """The keys of the logs of entities of a view."""
        view = self.views[name].events
        log = self.cache.runtime.event_logs.log(view)
        shape = declared_shape(view)
        return [log.key(shape, (int(one),)) for one in ids]

    def fold(self, sample: Sample) -> None:
        """Fold all logs, and those that asked for it themselves."""
        logs = self.cache.runtime.event_logs
        compaction = logs.compaction
        for name in self.views:
            ids = sample.terminals if name == "terminal" else sample.customers
            compaction.drain()
            log = logs.log(self.views[name].events)
            assert logs.fold(log, self.keys(name, sorted(ids)))
        compaction.drain()

    def tiles(self, name: str, ids: Sequence[int]) -> int:
        """How many tiles the logs of a view hold."""
        logs = self.cache.runtime.event_logs
        log = logs.log(self.views[name].events)
        blobs = logs.state(log).get_many(self.keys(name, ids))
        heads = [LogFormat(log.plan).head(blob) for blob in blobs if blob]
        return sum(len(head.tiles) for head in heads if head)

    def history(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The features of each row as training gets them."""
        asked = rows[["TRANSACTION_ID", "CUSTOMER_ID", "TERMINAL_ID"]]
        asked = asked.assign(event_timestamp=rows.arrived)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self.repo.hot.get_historical_features(asked, self.features).to_df()
        pd.testing.assert_series_equal(found.TRANSACTION_ID, asked.TRANSACTION_ID)
        return found[[one.split(":")[1] for one in self.features]].astype(float)


def _declare(
    source: PushSource, entity: Entity, name: str, column: Field, **settings: object
) -> WindowedViews:
    return windowed_view(
        name=name,
        entities=[entity],
        source=source,
        event_id="TRANSACTION_ID",
        schema=[Field(name="TRANSACTION_ID", dtype=Int64), column],
        aggregations=aggregations(name, column.name),
        **settings,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def book(sample: Sample, redis: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Book:
    """The store, before anything is pushed."""
    made = Book(tmp_path_factory.mktemp("book"), redis, sample.events)
    nobody = pd.DataFrame({"CUSTOMER_ID": [-1], "TERMINAL_ID": [-1]})

    def is_cached() -> bool:
        made.read(nobody)
        return made.cache.stats().groups["customer"].hits_memory > 0

    await_(is_cached)  # once the event channel is up
    return made


@pytest.fixture(scope="module")
def served(sample: Sample, book: Book) -> pd.DataFrame:
    """The features of the published rows, each read when its transaction has just arrived."""
    is_before = sample.events.arrived < FIRST_READ
    for day, events in sample.events[is_before].groupby(sample.events.arrived.dt.floor("1D")):
        book.ingest(events)
        book.wait_until(day + pd.Timedelta("1D"))
    rest, folded_at = sample.events[~is_before], FIRST_READ
    parts: dict[str, list[float]] = {}
    blocks = rest.groupby(rest.arrived.dt.floor(WRITTEN_AT_ONCE))
    for number, (began, written) in enumerate(blocks):
        book.wait_until(began)
        (book.ingest if number % PUSHED_EVERY else book.push)(written)
        for moment, events in written.groupby("arrived"):
            book.wait_until(moment)
            for name, values in book.read(events).items():
                parts.setdefault(name, []).extend(values)
        if began >= folded_at:
            book.fold(sample)
            folded_at = began + pd.Timedelta(days=FOLDED_EVERY_DAYS)
    return pd.DataFrame(parts)


@pytest.fixture(scope="module")
def trained(sample: Sample, book: Book, served: pd.DataFrame) -> pd.DataFrame:
    """The same rows from the table of events."""
    return book.history(sample.published)


@pytest.mark.heavy
def test_training_gets_what_was_served(
    sample: Sample, served: pd.DataFrame, trained: pd.DataFrame
) -> None:
    """Every value of every row, bit for bit."""
    assert served.TERMINAL_ID.tolist() == sample.published.TERMINAL_ID.tolist()
    assert len(served) == 201_295 if IS_ALL else len(served) > 400
    for name in trained:
        online = served[name].astype(float).to_numpy().view(np.int64)
        assert (online == trained[name].to_numpy().view(np.int64)).all(), name


def test_what_was_served_is_what_was_published(sample: Sample, served: pd.DataFrame) -> None:
    """Counts and shares of fraud exactly, means within 1e-9; but for two transactions."""
    rows = sample.published
    of_customer = sample.is_complete("CUSTOMER_ID") & ~rows.TRANSACTION_ID.isin(SAME_SECOND)
    of_terminal = sample.is_complete("TERMINAL_ID")
    assert of_customer.sum() > 150
    assert of_terminal.sum() > 150
    for days in DAYS:
        for entity, values in (("CUSTOMER_ID", of_customer), ("TERMINAL_ID", of_terminal)):
            count = served[f"{entity.split('_')[0].lower()}_count_{days}"][values]
            expected = rows[f"{entity}_NB_TX_{days}DAY_WINDOW"][values]
            np.testing.assert_array_equal(count, expected)
        mean = served[f"customer_mean_{days}"][of_customer].astype(float)
        expected = rows[f"CUSTOMER_ID_AVG_AMOUNT_{days}DAY_WINDOW"][of_customer]
        np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-9)
        share = served[f"terminal_mean_{days}"][of_terminal].astype(float).fillna(0)
        published = rows[f"TERMINAL_ID_RISK_{days}DAY_WINDOW"][of_terminal]
        np.testing.assert_array_equal(share, published)
        assert published.max() > 0


def test_logs_were_folded_meanwhile(sample: Sample, book: Book, served: pd.DataFrame) -> None:
    """In all views; into tiles where windows move in steps."""
    counted = book.cache.stats()
    assert all(counted.events[f"{name}_events"].folds > 0 for name in book.views)
    assert book.tiles("customer_steps", sorted(sample.customers)) > 0
    dropped = [one.dropped for one in counted.events.values()]
    assert not any(dropped)
