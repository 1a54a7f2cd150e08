"""Payments from a stream: every entry counts once, whatever happens to who reads it."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from feast import Field
from feast.aggregation import Aggregation
from feast.types import Float64, Int64, String

import hotplate
from hotplate import ConfigError, HotplateError
from hotplate.embedded import EmbeddedServer
from hotplate.invalidation.messages import decode
from hotplate.operations import consume as consume_module
from hotplate.operations.consume import Consumed, ConsumerSettings
from hotplate.operations.delivery import OneStep
from hotplate.operations.delivery_apart import FourSteps
from hotplate.operations.stream_entries import Entry, EntryReader
from hotplate.servers.pool import Pool
from pipelines.lab.sentinel import SentinelGroup
from pipelines.lab.servers import out_of_memory
from pipelines.lab.waiting import wait_until

from .bank import CARD, HOUR, MINUTE, SKEW, Payment, bank, random_payment
from .following import EVENTS, ONCE, Following, client_for, following, json_of, text_of

KINDS = ["redis", "valkey", "redis_cluster"]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Any:
    """Where stream and logs are."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Following]]:
    """Makes banks that follow a stream."""
    made: list[Following] = []

    def one(server: Any, **changes: Any) -> Following:
        made.append(following(tmp_path, server, **changes))
        return made[-1]

    yield one
    for each in made:
        each.shop.repo.cache.runtime.close()
        each.client.close()


@pytest.fixture
def shop(make: Callable[..., Following], place: Any) -> Following:
    """A bank that follows a stream."""
    return make(place)


@pytest.fixture
def small(make: Callable[..., Following], redis: EmbeddedServer) -> Following:
    """The same on Redis alone."""
    return make(redis)


# -- what entries do ------------------------------------------------------------------------------


def test_outputs_follow_the_stream(shop: Following) -> None:
    """Late, duplicate, out of order, future, text or JSON: outputs are what counting gives."""
    chance = random.Random(11)
    cards = range(4)
    counted = Consumed()
    for _ in range(6):
        for _ in range(60):
            one = random_payment(chance, shop.shop, len(cards))
            shop.add(one, fields=chance.choice([text_of, json_of]))
        counted = shop.follow()
        shop.shop.repo.clock.advance(chance.choice([0.5, 45, 3_000]))
        shop.assert_right(cards)
    assert counted.dropped.keys() <= {"late", "future"}
    assert counted.read == counted.accepted + sum(counted.dropped.values())
    is_cluster = shop.shop.repo.online.get("redis_type") == "redis_cluster"
    assert isinstance(shop.consumer()._delivery, FourSteps if is_cluster else OneStep)


def test_every_entry_is_accounted_for(shop: Following) -> None:
    """By reason; what is no event becomes a dead letter, which holds all of it."""
    now = shop.shop.now
    good = text_of(Payment(1, now - 5, now, "good", 100))
    changes: dict[str, dict[str, Any]] = {
        "good": {},
        "late": {"at": now - HOUR - 1},
        "future": {"at": now + SKEW + 1},
        "null": {"amount": "nan"},
        "overflow": {"amount": "inf"},
        "overflow too": {"amount": "1e300"},
        "missing_id": {"payment_id": ""},
        "invalid_timestamp": {"at": "-5"},
        "unreadable number": {"amount": "12,50"},
        "unreadable key": {"card_id": "x1"},
        "unreadable time": {"at": "yesterday"},
        "unknown": {"colour": "blue"},
    }
    for name, change in changes.items():
        shop.add_raw({**good, "payment_id": name, **change})
    shop.add_raw({name: value for name, value in good.items() if name != "card_id"})
    shop.add_raw({name: value for name, value in good.items() if name != "at"})
    shop.add_raw({"json": "[1"})
    shop.add_raw({"json": json.dumps({**good, "payment_id": "json", "amount": None})})
    done = shop.follow()
    assert (done.read, done.accepted, done.unreadable, done.letters) == (16, 4, 4, 4)
    assert done.dropped == {
        "late": 1,
        "future": 1,
        "overflow": 2,
        "missing_id": 1,
        "invalid_timestamp": 2,
        "missing_key": 1,
    }
    assert done.unknown == {"colour": 1}
    shop.shop.repo.clock.advance(1)
    row = shop.shop.read(1)[0]
    assert (row[f"count_{MINUTE}"], row[f"sum_{MINUTE}"]) == (4, 2.0)
    letters = dead_of(shop)
    assert [letter[b"hotplate:reason"] for letter in letters] == [
        b"unreadable: column 'amount' is no DOUBLE",
        b"unreadable: column 'card_id' is no INT64",
        b"unreadable: column 'at' is no timestamp",
        b"unreadable: its json cannot be read",
    ]
    assert letters[0][b"amount"] == b"12,50"
    assert letters[0][b"payment_id"] == b"unreadable number"
    first = int(shop.client.xrange(shop.stream, count=1)[0][0].partition(b"-")[0])
    assert letters[0][b"hotplate:entry"].startswith(b"%d-" % first)


def dead_of(shop: Following) -> list[dict[bytes, bytes]]:
    """The dead letters."""
    key = shop.consumer()._delivery.letters.key  # type: ignore[attr-defined]
    return [fields for _, fields in shop.client.xrange(key)]


def test_settings_say_what_else_is_a_dead_letter(shop: Following) -> None:
    """What is dropped, and what has unknown columns; they are capped."""
    now = shop.shop.now
    late = text_of(Payment(1, now - HOUR - 1, now, "late", 1))
    shop.add_raw(late)
    shop.add_raw({**text_of(Payment(1, now - 1, now, "a", 1)), "colour": "blue"})
    done = shop.follow(replace(ONCE, keep_dropped=True, refuse_unknown=True))
    assert (done.accepted, done.unreadable, done.letters, done.dropped) == (0, 1, 2, {"late": 1})
    reasons = [letter[b"hotplate:reason"] for letter in dead_of(shop)]
    assert sorted(reasons) == [b"late", b"unreadable: unknown column 'colour'"]
    for _ in range(300):
        shop.add_raw({"json": "no"})
    shop.follow(replace(ONCE, dead_max=10))
    assert len(dead_of(shop)) < 250


def test_arrival_is_the_id_where_the_entry_does_not_say(small: Following) -> None:
    """Late by the moment at which the server took it, not by when it is read."""
    now = small.shop.now
    fields = text_of(Payment(1, now - HOUR, now, "in time", 100))
    del fields["arrived"]
    small.add_raw(fields, now)
    small.add_raw({**fields, "payment_id": "late", "at": str(now - HOUR - 1)}, now)
    small.shop.repo.clock.advance(3 * 3_600)
    done = small.follow()
    assert (done.accepted, done.dropped) == (1, {"late": 1})
    assert small.shop.read(1)[0]["count_86400000"] == 1


def test_values_are_those_of_a_push(make: Callable[..., Following], redis: EmbeddedServer) -> None:
    """The same payments pushed and streamed give the same records."""
    both = [make(redis), make(redis)]
    chance = random.Random(3)
    events = [random_payment(chance, both[0].shop, 5) for _ in range(100)]
    both[0].shop.push(*events)
    both[1].add(*events)
    both[1].follow()
    for card in range(5):
        raw = [one.client.get(one.key(card)) or b"" for one in both]
        size = both[0]._log().records.size
        records = [sorted(one[at : at + size] for at in range(0, len(one), size)) for one in raw]
        assert records[0] == records[1]


def test_columns_of_every_type(tmp_path: Path, redis: EmbeddedServer) -> None:
    """Text, numbers, timestamps in the forms that producers write."""
    made = bank(
        tmp_path,
        {"type": "redis", "connection_string": redis.connection_string},
        "types",
        schema=[
            Field(name="card_id", dtype=Int64),
            Field(name="payment_id", dtype=String),
            Field(name="amount", dtype=Float64),
            Field(name="items", dtype=Int64),
        ],
    )
    reader = EntryReader(made.events)

    def read(**changes: str) -> Any:
        fields = {"card_id": "7", "payment_id": "p", "amount": "1.5", "items": "2", "at": "5"}
        fields |= changes
        flat = [part.encode() for pair in fields.items() for part in pair]
        return reader.read([Entry(b"5-0", flat)])

    def values(**changes: str) -> list[int]:
        found: list[int] = read(**changes).batch.events.values[0].tolist()
        return found

    null = -(1 << 63)
    assert values() == [150, 2]
    assert values(amount="", items=" 3 ") == [null, 3]
    assert values(amount="1e2", items="4.0") == [10_000, 4]
    assert values(items="nan") == [150, null]
    assert read(items="9" * 30).dropped == {0: "overflow"}
    for wrong in ({"items": "1_000"}, {"items": "1.5"}, {"card_id": "9" * 30}, {"amount": "1 2"}):
        assert read(**wrong).unreadable.keys() == {0}, wrong
    for text, ms in {
        "1970-01-01T00:00:00.005Z": 5,
        "1970-01-01 00:00:00.005999": 5,
        "1970-01-01T01:00:00+01:00": 0,
        "1970-01-01": 0,
        "4": 4,
    }.items():
        assert read(at=text).batch.events.ts.tolist() == [ms], text
    for wrong_time in ("noon", "1.5", "9" * 20, "nan"):
        assert read(at=wrong_time).unreadable.keys() == {0}


# -- once -----------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


class Wires:
    """Kills at the n-th exchange with a server, before it is sent or after it was carried out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        self.is_after = False
        ask = Pool.ask

        def counted(pool: Any, commands: Any, wait_s: float | None = None) -> Any:
            self.left -= 1
            if self.left == 0 and not self.is_after:
                raise Killed
            replies = ask(pool, commands, wait_s)
            if self.left == 0:
                raise Killed
            return replies

        monkeypatch.setattr(Pool, "ask", counted)

    def kill_at(self, exchange: int, *, is_after: bool) -> None:
        self.left, self.is_after = exchange, is_after


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_killed_at_any_exchange_and_away_for_hours(
    shop: Following, monkeypatch: pytest.MonkeyPatch, *, is_after: bool
) -> None:
    """Meanwhile the logs are folded, which forgets ids: still each payment counts once."""
    kill_at_every_exchange(shop, Wires(monkeypatch), [shop.shop.events], is_after=is_after)


@pytest.mark.parametrize("place", ["redis", "redis_cluster"], indirect=True)
def test_killed_at_any_exchange_while_there_are_two_layouts(
    shop: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each payment counts once in either."""
    before = copy(shop.shop.events)
    before.tags = dict(before.tags)
    views = hotplate.windowed_view(
        name="habits", entities=[CARD], events=shop.shop.events, aggregations=[_most()]
    )
    shop.shop.repo.hot.apply([*views])
    list(shop.shop.repo.cache.seed(EVENTS))
    assert shop.key(1) != shop.key(1, before)
    kill_at_every_exchange(shop, Wires(monkeypatch), [before, shop.shop.events], is_after=True)


def kill_at_every_exchange(
    shop: Following, wires: Wires, views: list[Any], *, is_after: bool
) -> None:
    """Of one delivery after the other, until one comes to its end.

    Args:
        views: the event view in each layout that there is.
    """
    whole, exchange, is_over = shop.stream, 0, False
    while not is_over:
        exchange += 1
        cards = (2 * exchange, 2 * exchange + 1)
        shop.stream = f"{whole}:{exchange}"
        now = shop.shop.now
        events = [Payment(cards[n % 2], now - n - 1, now, f"{exchange}-{n}", 100) for n in range(8)]
        shop.add(*events)
        shop.add_raw({"json": "no"})
        wires.kill_at(exchange, is_after=is_after)
        try:
            shop.follow(replace(ONCE, batch=5))
            is_over = True
        except Killed:
            pass
        wires.kill_at(-1, is_after=False)
        shop.shop.repo.clock.advance(2 * 3_600)
        for view in views:
            shop.fold(*cards, view=view)
        shop.follow(replace(ONCE, batch=5))
        shop.assert_right(cards)
        for view in views:
            assert [shop.events_in(card, view) for card in cards] == [4, 4]
        assert len(dead_of(shop)) == 1
        assert shop.client.xpending(shop.stream, "hotplate")["pending"] == 0
    assert exchange > 10


def test_a_frozen_consumer_whose_entries_were_taken_over(shop: Following) -> None:
    """It finds out, and appends nothing."""
    now = shop.shop.now
    shop.add(*(Payment(1, now - n - 1, now, f"z{n}", 100) for n in range(6)))
    frozen = shop.consumer()
    frozen._prepare()
    entries = frozen._next()
    assert len(entries) == 6
    other = shop.follow(replace(ONCE, consumer="other", claim_after_s=0.001))
    assert (other.accepted, other.claimed) == (6, 6)
    shop.shop.repo.clock.advance(2 * 3_600)
    shop.fold(1)
    frozen._bring_in(entries)
    assert frozen.so_far().accepted == 0
    assert frozen.so_far().elsewhere == 6
    shop.assert_right([1])
    assert shop.events_in(1) == 6


def test_duplicates_after_a_long_absence(shop: Following) -> None:
    """A producer's own duplicates find their first copy, although hours lie in between."""
    start = shop.shop.now
    chance = random.Random(5)
    for minute in range(0, 240, 2):
        at = start + minute * MINUTE
        events = [Payment(1, at, at + 5, f"d{minute}-{n}", 100) for n in range(3)]
        shop.add(*events)
        again = chance.choice(events)
        shop.add(replace(again, arrived=at + 40 * MINUTE) if minute % 4 else again)
    shop.shop.repo.clock.advance(6 * 3_600)
    settings = replace(ONCE, batch=20)
    consumer = shop.consumer(settings)
    for _ in consumer:
        shop.shop.repo.cache.runtime.event_logs.compaction.drain()
    shop.assert_right([1])
    counted = shop.shop.repo.cache.stats().events[EVENTS]
    assert counted.folds > 0
    assert counted.delayed == 0


def test_two_consumers_share_the_work(shop: Following) -> None:
    """Each entry goes to one of them."""
    now = shop.shop.now
    shop.add(*(Payment(n % 3, now - n - 1, now, f"s{n}", 100) for n in range(400)))
    done: dict[str, Consumed] = {}
    gate = threading.Barrier(2)

    def work(name: str) -> None:
        consumer = shop.consumer(ConsumerSettings(once=True, consumer=name, batch=10))
        gate.wait()
        for so_far in consumer:
            done[name] = so_far

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one.accepted for one in done.values()) == 400
    assert min(one.read for one in done.values()) > 0
    shop.assert_right(range(3))
    assert sum(shop.events_in(card) for card in range(3)) == 400


def test_other_processes_are_told_in_the_same_step(small: Following) -> None:
    """Before the entry is done, of the entities that it changed."""
    shop = small.shop
    topic = f"hotplate:changes:{{{shop.repo.project}}}"
    with small.client.pubsub(ignore_subscribe_messages=True) as ears:
        ears.subscribe(topic)
        wait_until(lambda: small.client.pubsub_numsub(topic)[0][1] == 1)
        small.add(Payment(1, shop.now - 1, shop.now, "p", 100))
        assert shop.read(1)[0][f"count_{MINUTE}"] == 0
        assert small.follow().accepted == 1
        heard: list[Any] = []
        wait_until(lambda: heard.append(ears.get_message()) or heard[-1])
        trial, said = decode(heard[-1]["data"])[1], None
        wait_until(lambda: heard.append(ears.get_message()) or heard[-1])
        said = decode(heard[-1]["data"])[1]
    assert trial.entities == ((),), "whether it may say anything is tried beforehand"
    assert (said.view, said.entities) == ("activity", ((1,),))
    assert shop.read(1) == [shop.truth(1)], "this process forgets it, too"


def test_stream_and_logs_on_different_servers(
    make: Callable[..., Following], redis: EmbeddedServer, valkey: EmbeddedServer
) -> None:
    """Followed there, kept here, each once."""
    shop = make(redis)
    shop.client.close()
    shop.client = client_for(valkey)
    now = shop.shop.now
    shop.add(*(Payment(1, now - n - 1, now, f"o{n}", 100) for n in range(30)))
    settings = replace(ONCE, connection_string=valkey.connection_string)
    assert isinstance(shop.consumer(settings)._delivery, FourSteps)
    assert shop.follow(settings).accepted == 30
    assert shop.follow(settings).read == 0
    shop.assert_right([1])


# -- trouble --------------------------------------------------------------------------------------


def test_a_stream_that_was_flushed(small: Following, caplog: pytest.LogCaptureFixture) -> None:
    """The group is made again, and what is new is read from its beginning."""
    now = small.shop.now
    small.add(Payment(1, now - 1, now, "a", 100))
    steps = iter(small.consumer(replace(ONCE, once=False, block_s=0.01)))
    wait_until(lambda: next(steps).accepted == 1)
    small.client.delete(small.stream)
    small.add(Payment(1, now - 1, now + 1, "b", 100), Payment(1, now - 2, now + 1, "c", 100))
    with caplog.at_level(logging.WARNING, "hotplate.consumer"):
        wait_until(lambda: next(steps).accepted == 3)
    steps.close()  # type: ignore[attr-defined]
    assert "was gone; made again" in caplog.text
    small.shop.repo.clock.advance(1)
    small.assert_right([1])


def test_a_group_that_was_destroyed(small: Following) -> None:
    """It goes on after what it has done, also where ids have gone back."""
    now = small.shop.now
    small.add(*(Payment(1, now - n - 1, now, f"g{n}", 100) for n in range(5)))
    steps = iter(small.consumer(replace(ONCE, once=False, block_s=0.01)))
    wait_until(lambda: next(steps).accepted == 5)
    small.client.xgroup_destroy(small.stream, "hotplate")
    small.add(Payment(1, now - 9, now + 1, "after", 100))
    wait_until(lambda: next(steps).accepted == 6)
    assert next(steps).read == 6
    small.client.delete(small.stream)
    small.client.xadd(small.stream, text_of(Payment(1, now - 8, now, "back", 100)), id="5-1")
    wait_until(lambda: next(steps).accepted == 7)
    steps.close()  # type: ignore[attr-defined]


def test_a_server_that_is_restarted(
    make: Callable[..., Following], own_server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes back empty; the consumer waits, says so, and goes on."""
    shop = make(own_server)
    now = shop.shop.now
    shop.add(Payment(1, now - 1, now, "lost with its log", 100))
    steps = iter(shop.consumer(replace(ONCE, once=False, block_s=0.01)))
    wait_until(lambda: next(steps).accepted == 1)
    own_server.stop()
    with caplog.at_level(logging.WARNING, "hotplate.consumer"):
        wait_until(lambda: next(steps).trouble)
    own_server.restart()
    shop.shop.pushed.clear()
    shop.add(Payment(1, now - 2, now + 1, "kept", 100))
    wait_until(lambda: next(steps).accepted == 2)
    steps.close()  # type: ignore[attr-defined]
    assert "trying again in" in caplog.text
    with pytest.raises(HotplateError, match="the server knows no logs"):
        shop.shop.read(1)
    shop.shop.repo.hot.apply([shop.shop.windowed, shop.shop.events])
    wait_until(lambda: shop.shop.read(1) == [shop.shop.truth(1)])


def test_a_server_without_memory(make: Callable[..., Following], own_server: Any) -> None:
    """Nothing is appended, nothing acknowledged, until it has some again."""
    shop = make(own_server)
    now = shop.shop.now
    shop.add(Payment(1, now - 1, now, "a", 100))
    steps = iter(shop.consumer(replace(ONCE, once=False, block_s=0.01)))
    wait_until(lambda: next(steps).accepted == 1)
    shop.add(Payment(1, now - 2, now, "b", 100))
    with out_of_memory(own_server):
        assert next(steps).trouble is not None
        assert "OOM" in str(next(steps).trouble) or "memory" in str(next(steps).trouble)
        assert shop.events_in(1) == 1
    wait_until(lambda: next(steps).accepted == 2)
    steps.close()  # type: ignore[attr-defined]
    assert shop.events_in(1) == 2


def test_a_primary_that_fails(tmp_path: Path, own_sentinels: SentinelGroup) -> None:
    """The consumer follows to the one that takes over, which has entries and logs alike."""
    online = {"type": "redis", **own_sentinels.settings}
    made = bank(tmp_path, online, "sentinels")
    shop = Following(made, client_for(own_sentinels.servers[own_sentinels.primary()]))
    now = made.now
    shop.add(*(Payment(1, now - n - 1, now, f"f{n}", 100) for n in range(20)))
    steps = iter(shop.consumer(replace(ONCE, once=False, block_s=0.01, batch=5)))
    wait_until(lambda: next(steps).accepted >= 10)
    shop.client.set("last", "what was written before it")
    assert shop.client.wait(1, 30_000) == 1
    shop.client.close()
    second = own_sentinels.fail_primary()
    shop.client = client_for(own_sentinels.servers[second])
    shop.add(*(Payment(1, now - n - 100, now + 1, f"g{n}", 100) for n in range(20)))
    wait_until(lambda: next(steps).accepted >= 40, within_s=60)
    wait_until(lambda: next(steps).lag is not None)
    steps.close()  # type: ignore[attr-defined]
    assert shop.events_in(1) == 40
    made.repo.clock.advance(1)
    wait_until(lambda: made.read(1) == [made.truth(1)])
    made.repo.cache.runtime.close()
    shop.client.close()


def test_entries_that_were_trimmed(shop: Following, caplog: pytest.LogCaptureFixture) -> None:
    """Those in hand and those nobody had read: counted and said."""
    now = shop.shop.now
    shop.add(*(Payment(1, now - n - 1, now, f"t{n}", 100) for n in range(10)))
    dead = shop.consumer(replace(ONCE, consumer="dead", batch=3))
    dead._prepare()
    assert len(dead._next()) == 3
    shop.client.xtrim(shop.stream, maxlen=4, approximate=False)
    with caplog.at_level(logging.WARNING, "hotplate.consumer"):
        done = shop.follow(replace(ONCE, claim_after_s=0.001))
    assert (done.accepted, done.gone) == (4, 3)
    assert "3 entries were taken out of it before they were finished" in caplog.text
    shop.add(Payment(1, now - 50, now + 1, "own", 100))
    assert len(dead._group.fresh(3, None)) == 1
    shop.client.xtrim(shop.stream, maxlen=0, approximate=False)
    assert shop.follow(replace(ONCE, consumer="dead")).gone == 1


def test_entries_trimmed_before_they_were_read(
    small: Following, caplog: pytest.LogCaptureFixture
) -> None:
    """As many as the server's own counts give away."""
    now = small.shop.now
    small.add(*(Payment(1, now - n - 1, now, f"u{n}", 100) for n in range(10)))
    assert small.follow().accepted == 10
    small.add(*(Payment(1, now - n - 1, now, f"v{n}", 100) for n in range(10)))
    small.client.xtrim(small.stream, maxlen=4, approximate=False)
    lag = small.consumer()._group.lag()
    assert lag is not None
    assert (lag.waiting, lag.removed) == (4, 6)
    with caplog.at_level(logging.WARNING, "hotplate.consumer"):
        assert small.follow().accepted == 4
    assert "at least 6 entries were taken out of it before the group read them" in caplog.text


def test_a_trimmed_entry_in_hand_is_not_lost(small: Following) -> None:
    """It had been read: that it is gone from the stream changes nothing."""
    now = small.shop.now
    small.add(*(Payment(1, now - n - 1, now, f"h{n}", 100) for n in range(3)))
    consumer = small.consumer()
    consumer._prepare()
    entries = consumer._next()
    small.client.xtrim(small.stream, maxlen=0, approximate=False)
    consumer._bring_in(entries)
    assert consumer.so_far().accepted == 3
    small.assert_right([1])


def test_it_ends_when_it_is_told_to(small: Following) -> None:
    """From another thread, after the batch in hand; and can begin again."""
    now = small.shop.now
    small.add(Payment(1, now - 1, now, "a", 100))
    consumer = small.consumer(ConsumerSettings(block_s=0.01))
    seen: list[Consumed] = []

    def work() -> None:
        seen.extend(consumer)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: seen and seen[-1].accepted == 1)
    consumer.stop()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert small.client.xinfo_consumers(small.stream, "hotplate") == []
    small.add(Payment(1, now - 2, now, "b", 100))
    again: list[Consumed] = []
    for so_far in consumer:
        again.append(so_far)
        if so_far.accepted == 1 or len(again) == 1_000:
            consumer.stop()
    assert again[-1].accepted == 1


def test_windows_that_are_added_while_it_runs(
    small: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes then goes where they look."""
    monkeypatch.setattr(consume_module, "_VIEW_S", 0.0)
    shop = small.shop
    now = shop.now
    small.add(Payment(1, now - 2, now, "a", 100))
    steps = iter(small.consumer(replace(ONCE, once=False, block_s=0.01)))
    wait_until(lambda: next(steps).accepted == 1)
    more, events = hotplate.windowed_view(
        name="habits",
        entities=[CARD],
        events=shop.events,
        aggregations=[_most()],
        cache="never",
    )
    shop.repo.hot.apply([more, events])
    shop.events = events
    small.add(Payment(1, now - 1, now, "b", 700))
    wait_until(lambda: next(steps).accepted == 2)
    steps.close()  # type: ignore[attr-defined]
    list(shop.repo.cache.seed(events.name))
    rows = [{"card_id": 1}]
    assert shop.repo.hot.get_online_features(["habits:most"], rows).to_dict()["most"] == [7.0]


def _most() -> Any:
    return Aggregation(column="amount", function="max", time_window=timedelta(days=30), name="most")


# -- refusals -------------------------------------------------------------------------------------


def test_what_cannot_work_is_refused(small: Following, tmp_path: Path) -> None:
    """With what to do about it."""
    cache = small.shop.repo.cache
    with pytest.raises(KeyError, match="no event view"):
        cache.consume("activity", "s")
    for wrong in ({"batch": 0}, {"block_s": 0}, {"start": "now"}, {"group": ""}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ConsumerSettings(**wrong)  # type: ignore[arg-type]
    own = bank(
        tmp_path / "own", {"type": "sqlite"}, "own", settings={"windows": {"in_process": True}}
    )
    with pytest.raises(ConfigError, match="in this process alone"):
        own.repo.cache.consume(EVENTS, "s")
    small.client.set("nostream", "x")
    small.stream = "nostream"
    with pytest.raises(ConfigError, match="holds something else"):
        small.follow()
    wrong_user = f"{small.shop.repo.online['connection_string']},username=who,password=what"
    with pytest.raises(ConfigError, match="username and password"):
        small.follow(replace(ONCE, connection_string=wrong_user))
