"""A repo with windows over payments, and what they must be, counted one by one."""

from __future__ import annotations

import itertools
import random
import warnings
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, PushSource
from feast.aggregation import Aggregation
from feast.types import Float64, Int64, String
from feast.value_type import ValueType

from hotplate import windowed_view

from ..stores import Repo

CARD = Entity(name="card", join_keys=["card_id"], value_type=ValueType.INT64)
PROVIDER = "hotplate.provider.HotplateProvider"
SCHEMA = [
    Field(name="card_id", dtype=Int64),
    Field(name="payment_id", dtype=String),
    Field(name="amount", dtype=Float64),
]
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
HOP_OF_A_DAY = 20 * MINUTE
SPANS = {MINUTE: 1, 10 * MINUTE: 1, DAY: HOP_OF_A_DAY}
LATENESS, SKEW = HOUR, 5_000
_numbers = itertools.count()


def aggregations() -> list[Aggregation]:
    """Count and sum over a minute, ten minutes and a day."""
    return [
        Aggregation(
            column="amount" if function == "sum" else "",
            function=function,
            time_window=timedelta(milliseconds=span),
            name=f"{function}_{span}",
        )
        for span in SPANS
        for function in ("count", "sum")
    ]


def payments(folder: Path) -> PushSource:
    """The push source, over a table that has one row of nobody's."""
    path = folder / "payments.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    frame_of([Payment(-1, 0, 0, "none", 0)]).to_parquet(path)
    batch = FileSource(
        name="payments_table",
        path=str(path),
        timestamp_field="at",
        created_timestamp_column="arrived",
    )
    return PushSource(name="payments", batch_source=batch)


@dataclass(frozen=True)
class Payment:
    """One event; times in ms, the amount in cents."""

    card: int
    at: int
    arrived: int
    id: str
    cents: int


def frame_of(events: list[Payment]) -> pd.DataFrame:
    """Events as they are pushed."""
    return pd.DataFrame(
        {
            "card_id": [one.card for one in events],
            "payment_id": [one.id for one in events],
            "amount": [one.cents / 100 for one in events],
            "at": pd.to_datetime([one.at for one in events], unit="ms", utc=True),
            "arrived": pd.to_datetime([one.arrived for one in events], unit="ms", utc=True),
        }
    )


@dataclass
class Bank:
    """A repo with windowed views, and the events that were pushed."""

    repo: Repo
    windowed: FeatureView
    events: FeatureView
    pushed: list[Payment] = field(default_factory=list)

    @property
    def now(self) -> int:
        """The wall clock, ms."""
        return self.repo.clock.wall_ns() // 1_000_000

    @property
    def features(self) -> list[str]:
        return [f"{self.windowed.name}:{one.name}" for one in self.windowed.features]

    def push(self, *events: Payment, through: FeatureStore | None = None) -> None:
        """Push events, and remember them."""
        self.pushed += events
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (through or self.repo.hot).push("payments", frame_of(list(events)))

    def pay(self, card: int, cents: int = 100, ago: int = 0, through: Any = None) -> Payment:
        """One payment of a card, some ms ago, that arrives now."""
        made = Payment(card, self.now - ago, self.now, f"p{next(_numbers)}", cents)
        self.push(made, through=through)
        return made

    def read(self, *cards: int, store: FeatureStore | None = None) -> list[dict[str, Any]]:
        """The outputs of cards, a dict each."""
        rows = [{"card_id": card} for card in cards]
        answer = (store or self.repo.hot).get_online_features(self.features, rows).to_dict()
        return [
            {name: values[at] for name, values in answer.items() if name != "card_id"}
            for at in range(len(cards))
        ]

    def truth(self, card: int, now: int | None = None) -> dict[str, Any]:
        """The outputs of a card, by counting."""
        t = self.now if now is None else now
        seen: dict[tuple[int, str], Payment] = {}
        for one in self.pushed:
            if one.arrived - one.at > LATENESS or one.at - one.arrived > SKEW:
                continue
            kept = seen.get((one.at, one.id))
            if one.card == card and (kept is None or one.arrived < kept.arrived):
                seen[one.at, one.id] = one
        visible = [one for one in seen.values() if one.arrived <= t and one.at < t]
        found: dict[str, Any] = {}
        for span, hop in SPANS.items():
            inside = [one.cents for one in visible if one.at >= (t - span) // hop * hop]
            found[f"count_{span}"] = len(inside)
            found[f"sum_{span}"] = sum(inside) / 100
        return found


def bank(folder: Path, online: dict[str, Any], project: str, **changes: Any) -> Bank:
    """A bank over a wrapped store; `changes` are those of `windowed_view`, or of the repo."""
    options = {name: changes.pop(name) for name in ("settings", "clock") if name in changes}
    repo = Repo(folder, dict(online), project=project, provider=PROVIDER, **options)
    source = payments(folder)
    usual: dict[str, Any] = {
        "name": "activity",
        "entities": [CARD],
        "source": source,
        "event_id": "payment_id",
        "schema": SCHEMA,
        "aggregations": aggregations(),
    }
    windowed, events = windowed_view(**{**usual, **changes})
    repo.hot.apply([CARD, source, windowed, events])
    return Bank(repo, windowed, events)


def at(ms: int) -> datetime:
    """A moment."""
    return datetime.fromtimestamp(ms / 1_000, UTC)


def random_payment(chance: random.Random, bank: Bank, cards: int) -> Payment:
    """A payment that is on time, late, a duplicate, stamped in the future, or out of order."""
    if bank.pushed and chance.random() < 0.1:
        old = chance.choice(bank.pushed[-20:])
        return Payment(old.card, old.at, bank.now, old.id, old.cents)
    ago = chance.choice([0, 0, chance.randrange(2_000), chance.randrange(LATENESS + 60_000)])
    if chance.random() < 0.1:
        ago = -chance.randrange(SKEW + 2_000)
    number = f"p{next(_numbers)}"
    cents = chance.randrange(1, 100_000)
    return Payment(chance.randrange(cards), bank.now - ago, bank.now, number, cents)
