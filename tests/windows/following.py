"""A bank whose payments come by a stream."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis as redis_client

from hotplate.operations.consume import Consumed, Consumer, ConsumerSettings
from hotplate.serving.entities import declared_shape
from hotplate.windows.log import LogFormat

from .bank import Bank, Payment, bank

EVENTS = "activity_events"
ONCE = ConsumerSettings(once=True, consumer="worker")
_numbers = itertools.count()


def client_for(server: Any) -> Any:
    """A client of a server or of a cluster, to be closed."""
    if hasattr(server, "nodes"):
        return redis_client.RedisCluster(host="127.0.0.1", port=server.nodes[0].port)
    return redis_client.Redis(port=server.port)


def text_of(one: Payment) -> dict[str, str]:
    """A payment as the fields of an entry."""
    return {
        "card_id": str(one.card),
        "payment_id": one.id,
        "amount": f"{one.cents / 100:.2f}",
        "at": str(one.at),
        "arrived": str(one.arrived),
    }


def json_of(one: Payment) -> dict[str, str]:
    """The same as one object."""
    fields: dict[str, Any] = {**text_of(one), "card_id": one.card, "at": one.at}
    return {"json": json.dumps({**fields, "amount": one.cents / 100})}


@dataclass
class Following:
    """A bank, the stream of its payments, and who writes to it."""

    shop: Bank
    client: Any
    stream: str = "payments"
    _last: tuple[int, int] = field(default=(0, 0))

    def add(self, *events: Payment, fields: Any = text_of) -> list[bytes]:
        """Add payments to the stream, with ids of when they arrived, and remember them."""
        self.shop.pushed += events
        return [self.add_raw(fields(one), one.arrived) for one in events]

    def add_raw(self, fields: dict[Any, Any], at_ms: int | None = None) -> bytes:
        """Add an entry."""
        at_ms = self.shop.now if at_ms is None else at_ms
        self._last = max((at_ms, 0), (self._last[0], self._last[1] + 1))
        added: bytes = self.client.xadd(self.stream, fields, id="{}-{}".format(*self._last))
        return added

    def consumer(self, settings: ConsumerSettings = ONCE) -> Consumer:
        return self.shop.repo.cache.consume(EVENTS, self.stream, settings)

    def follow(self, settings: ConsumerSettings = ONCE) -> Consumed:
        """Consume until it ends; what was done."""
        *_, last = self.consumer(settings)
        return last

    def assert_right(self, cards: Sequence[int]) -> None:
        """Every output is what counting gives, a moment from now."""
        self.shop.repo.clock.advance(0.001)
        assert self.shop.read(*cards) == [self.shop.truth(card) for card in cards]

    # -- the logs ---------------------------------------------------------------------------

    def _log(self, view: Any = None) -> Any:
        return self.shop.repo.cache.runtime.event_logs.log(view or self.shop.events)

    def key(self, card: int, view: Any = None) -> bytes:
        """The key of a card's log, in the layout of an event view."""
        key: bytes = self._log(view).key(declared_shape(self.shop.events), (card,))
        return key

    def events_in(self, card: int, view: Any = None) -> int:
        """How many events lie in a card's log, copies of one counted each."""
        blob = self.client.get(self.key(card, view)) or b""
        log = LogFormat(self._log(view).plan)
        head = log.head(blob)
        in_tiles = 0 if head is None else int(head.tiles["events"].sum())
        rest = len(blob) - (0 if head is None else head.size)
        return in_tiles + rest // log.records.size

    def fold(self, *cards: int, view: Any = None) -> None:
        """Fold logs as of now, as any process may at any time."""
        log, logs = self._log(view), self.shop.repo.cache.runtime.event_logs
        state = logs.state(log)
        for card in cards:
            blob = state.get(self.key(card, view))
            fold = log.compactor.fold(blob, self.shop.now) if blob else None
            if fold is not None:
                assert state.swap(self.key(card, view), fold)


def following(folder: Path, server: Any, **changes: Any) -> Following:
    """A bank with its logs on a server or a cluster, and the stream there, too."""
    name = f"follow{next(_numbers)}"
    if hasattr(server, "nodes"):
        online = {"type": "redis", **server.settings}
    else:
        online = {"type": "redis", "connection_string": server.connection_string}
    return Following(bank(folder / name, online, name, **changes), client_for(server), f"s:{name}")
