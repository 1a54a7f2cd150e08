"""Windowed views through Feast: pushed events in, exact outputs out, and a cache that is right."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client
from feast import FeatureService, FeatureStore

import hotplate
from hotplate import ConfigError, HotplateError, PolicyError
from hotplate.embedded import EmbeddedServer
from pipelines.lab.cluster import Cluster

from ..stores import await_
from .bank import CARD, DAY, HOUR, MINUTE, Bank, Payment, bank, random_payment

BankMaker = Callable[..., Bank]
OWN: dict[str, Any] = {
    "online": {"type": "sqlite"},
    "settings": {"windows": {"in_process": True}},
}
_numbers = itertools.count()


@pytest.fixture(params=["redis", "valkey", "redis_cluster", "own logs", "logs beside SQLite"])
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Where logs can be kept: `online`, the wrapped store, and `settings` of Hotplate."""
    if request.param == "own logs":
        return OWN
    if request.param == "logs beside SQLite":
        server: EmbeddedServer = request.getfixturevalue("redis")
        windows = {"connection_string": server.connection_string}
        return {"online": {"type": "sqlite"}, "settings": {"windows": windows}}
    if request.param == "redis_cluster":
        made: Cluster = request.getfixturevalue("redis_cluster")
        return {"online": {"type": "redis", **made.settings}, "settings": {}}
    server = request.getfixturevalue(request.param)
    online = {"type": "redis", "connection_string": server.connection_string}
    return {"online": online, "settings": {}}


@pytest.fixture
def make(tmp_path: Path) -> BankMaker:
    """Makes banks, each with a project of its own."""

    def one(online: dict[str, Any], **changes: Any) -> Bank:
        number = next(_numbers)
        made = bank(tmp_path / f"bank{number}", online, f"bank{number}", **changes)
        await_(lambda: _is_cached(made))  # once the event channel is up, where there is one
        return made

    return one


def _is_cached(made: Bank) -> bool:
    if made.windowed.tags.get("hotplate.coherence") != "event":
        return True
    made.read(NOBODY)
    return made.repo.cache.stats().groups["activity"].hits_memory > 0


def _is_heard(made: Bank) -> bool:
    """Whether rows may come from memory: where an event channel is used, it is whole."""
    channel = made.repo.cache.stats().channel
    return channel is None or channel.is_whole


NOBODY = -7


def test_nothing_happened_yet(make: BankMaker, place: dict[str, Any]) -> None:
    """A card without events has counts and sums of 0, and the row is there."""
    shop = make(**place)
    assert shop.read(1) == [shop.truth(1)]
    assert set(shop.read(1)[0].values()) == {0}


def test_outputs_follow_the_events(make: BankMaker, place: dict[str, Any]) -> None:
    """Random payments, random waits, random reads: every output is what counting gives."""
    shop = make(**place)
    chance = random.Random(7)
    cards = 4
    for _ in range(120):
        step = chance.random()
        if step < 0.35:
            shop.push(*(random_payment(chance, shop, cards) for _ in range(chance.randrange(1, 6))))
        elif step < 0.6:
            shop.repo.clock.advance(chance.choice([0.001, 0.5, 3, 45, 400, 3_000]))
        if chance.random() < 0.5:  # the clock's jump ended the channel's lease, where there is one
            await_(lambda: _is_heard(shop))
        wanted = [chance.randrange(cards) for _ in range(chance.randrange(1, 4))]
        assert shop.read(*wanted) == [shop.truth(card) for card in wanted]
    stats = shop.repo.cache.stats()
    group = stats.groups["activity"]
    assert group.hits_memory > 10, "the cache was hardly used"
    assert stats.events["activity_events"].dropped.keys() == {"late", "future"}


def test_a_row_expires_when_time_alone_changes_it(make: BankMaker) -> None:
    """Cached until the millisecond at which the oldest event leaves the shortest window."""
    shop = make(**OWN)
    shop.pay(1)
    shop.repo.clock.advance(MINUTE / 1_000 - 1)
    assert shop.read(1)[0][f"count_{MINUTE}"] == 1
    shop.repo.clock.advance(0.999)
    before = shop.repo.cache.stats().groups["activity"]
    assert shop.read(1)[0][f"count_{MINUTE}"] == 1
    assert shop.repo.cache.stats().groups["activity"].loads == before.loads
    shop.repo.clock.advance(0.001)
    assert shop.read(1)[0][f"count_{MINUTE}"] == 1, "the start of a window is inside"
    shop.repo.clock.advance(0.001)
    assert shop.read(1)[0][f"count_{MINUTE}"] == 0


def test_a_row_is_never_older_than_its_ttl(make: BankMaker) -> None:
    """Even where nothing changes it."""
    shop = make(**OWN)
    assert loads(shop, 1) == 1
    shop.repo.clock.advance(29.9)
    assert loads(shop, 1) == 0
    shop.repo.clock.advance(0.2)
    assert loads(shop, 1) == 1


def loads(shop: Bank, card: int) -> int:
    """Read a card; how many loads that took."""
    before = shop.repo.cache.stats().groups["activity"].loads
    shop.read(card)
    return shop.repo.cache.stats().groups["activity"].loads - before


def test_the_payment_being_scored_does_not_count_itself(make: BankMaker) -> None:
    """An event at the very millisecond of the read is outside."""
    shop = make(**OWN)
    shop.pay(1)
    assert shop.read(1)[0][f"count_{MINUTE}"] == 0
    shop.repo.clock.advance(0.001)
    assert shop.read(1)[0][f"count_{MINUTE}"] == 1


def test_every_way_to_read_gives_the_same(make: BankMaker, place: dict[str, Any]) -> None:
    """A request, an async one, a feature service, the matrix, the row's own call."""
    shop = make(**place)
    shop.pay(1, 250)
    shop.pay(1, 300, ago=90_000)
    shop.repo.clock.advance(1)
    store = shop.repo.hot
    service = FeatureService(name="model", features=[shop.windowed])
    store.apply([service])
    expected = shop.truth(1)
    names = list(expected)
    rows = [{"card_id": 1}]
    assert shop.read(1) == [expected]
    by_service = store.get_online_features(store.get_feature_service("model"), rows).to_dict()
    assert {name: by_service[name][0] for name in names} == expected
    matrix = shop.repo.cache.reader([f"activity:{name}" for name in names]).matrix(rows)
    assert matrix.tolist() == [[expected[name] for name in names]]
    if shop.repo.online["type"] == "redis":
        answer = asyncio.run(store.get_online_features_async(shop.features, rows)).to_dict()
        assert {name: answer[name][0] for name in names} == expected


def test_the_event_timestamp_is_the_moment_of_the_read(make: BankMaker) -> None:
    """So that a logged row and a training row mean the same moment."""
    shop = make(**OWN)
    response = shop.repo.hot.get_online_features(shop.features, [{"card_id": 1}])
    stamps = {one.event_timestamps[0].ToMilliseconds() for one in response.proto.results[1:]}
    assert stamps == {shop.now}


def test_other_processes_forget_what_an_event_changed(
    make: BankMaker, redis: EmbeddedServer
) -> None:
    """A push in one process ends the rows that another one has cached."""
    shop = make({"type": "redis", "connection_string": redis.connection_string})
    other = shop.repo.open_hot()
    shop.repo.clock.advance(1)

    def is_cached() -> bool:
        shop.read(1, store=other)
        return hotplate.of(other).stats().groups["activity"].hits_memory > 0

    await_(is_cached)  # once its event channel is up
    shop.pay(1)
    shop.repo.clock.advance(0.001)
    await_(lambda: shop.read(1, store=other) == [shop.truth(1)])


def test_logs_in_process_are_those_of_every_store_of_the_process(make: BankMaker) -> None:
    """One that pushes and one that reads are two objects and one process."""
    shop = make(**OWN)
    other = shop.repo.open_hot()
    shop.pay(1, through=other)
    shop.repo.clock.advance(0.001)
    assert shop.read(1) == shop.read(1, store=other) == [shop.truth(1)]


def test_a_shared_tier_holds_no_windows(make: BankMaker, redis: EmbeddedServer) -> None:
    """What one process computed is not another one's: an event ends it, and so does time alone."""
    at = {"connection_string": redis.connection_string}
    shop = make({"type": "sqlite"}, settings={"shared": at, "windows": at})
    other = shop.repo.open_hot()
    for _ in range(5):
        shop.pay(1)
        shop.repo.clock.advance(0.001)
        assert shop.read(1) == [shop.truth(1)]
        await_(lambda: shop.read(1, store=other) == [shop.truth(1)])
    assert shop.repo.cache.stats().groups["activity"].hits_shared == 0


def test_two_views_over_the_same_events(make: BankMaker, place: dict[str, Any]) -> None:
    """They share one log, and each forgets what an event changed."""
    shop = make(**place)
    second, events = hotplate.windowed_view(
        name="habits",
        entities=[CARD],
        events=shop.events,
        aggregations=_month(),
        cache="never",
    )
    shop.repo.hot.apply([second, events])
    with pytest.raises(HotplateError, match="hotplate windows seed activity_events"):
        shop.read(1)  # a month needs logs of another layout, and those lack what happened before
    list(shop.repo.cache.seed("activity_events"))
    shop.pay(1, 500, ago=10_000)
    features = ["activity:count_60000", "habits:most"]
    answer = shop.repo.hot.get_online_features(features, [{"card_id": 1}]).to_dict()
    assert answer == {"card_id": [1], "count_60000": [1], "most": [5.0]}
    shop.pay(1, 700, ago=1_000)
    answer = shop.repo.hot.get_online_features(features, [{"card_id": 1}]).to_dict()
    assert answer == {"card_id": [1], "count_60000": [2], "most": [7.0]}
    group = shop.repo.cache.stats().groups["habits"]
    assert group.misses_never == 2
    chance = random.Random(7)
    for _ in range(40):  # read together, they are computed in one go; each alone gives the same
        for _ in range(chance.randrange(3)):
            shop.pay(chance.randrange(1, 4), chance.randrange(1, 900), ago=chance.randrange(50_000))
        shop.repo.clock.advance(chance.choice([0.001, 1, 70]))
        cards = [{"card_id": card} for card in chance.sample(range(1, 5), chance.randrange(1, 5))]
        together = shop.repo.hot.get_online_features(features, cards).to_dict()
        for feature in features:
            name = feature.split(":")[1]
            alone = shop.repo.open_hot().get_online_features([feature], cards).to_dict()
            assert together[name] == alone[name]


def _month() -> list[Any]:
    from feast.aggregation import Aggregation

    return [
        Aggregation(column="amount", function="max", time_window=timedelta(days=30), name="most")
    ]


def test_a_ttl_cache_serves_as_old_as_it_says(make: BankMaker) -> None:
    """Time may pass windows by within the ttl; this process's own writes are seen at once."""
    shop = make(
        {"type": "sqlite"},
        settings={"windows": {"in_process": True}},
        cache="ttl",
        ttl=timedelta(seconds=20),
        force=True,
    )
    shop.pay(1)
    shop.repo.clock.advance(50)
    assert shop.read(1)[0][f"count_{MINUTE}"] == 1
    shop.repo.clock.advance(15)
    assert shop.read(1)[0][f"count_{MINUTE}"] == 1, "15 s old, and allowed to be"
    shop.pay(1)
    shop.repo.clock.advance(0.001)
    assert shop.read(1) == [shop.truth(1)]


def test_logs_are_folded_and_answer_the_same(make: BankMaker, place: dict[str, Any]) -> None:
    """A day of payments: the log shrinks in the background, the outputs stay exact."""
    shop = make(**place)
    chance = random.Random(3)
    for _ in range(60):
        shop.repo.clock.advance(chance.randrange(600, 1_800))
        shop.push(*(random_payment(chance, shop, 1) for _ in range(12)))
        shop.repo.cache.runtime.event_logs.compaction.drain()
        shop.repo.clock.advance(0.001)
        assert shop.read(0) == [shop.truth(0)]
    assert shop.repo.cache.stats().events["activity_events"].folds > 0


def test_what_is_dropped_is_counted(make: BankMaker, place: dict[str, Any]) -> None:
    """By reason; the rest of its batch counts."""
    shop = make(**place)
    now = shop.now
    shop.push(
        Payment(1, now - LATE, now, "late", 1),
        Payment(1, now + 6_000, now, "future", 1),
        Payment(1, now - 5, now, "", 1),
        Payment(1, now - 5, now, "huge", 1 << 70),
        Payment(1, now - 5, now, "good", 1),
    )
    counted = shop.repo.cache.stats().events["activity_events"]
    assert counted.accepted == 1
    assert counted.dropped == {"late": 1, "future": 1, "missing_id": 1, "overflow": 1}
    assert shop.read(1)[0][f"count_{MINUTE}"] == 1


LATE = HOUR + 1


def test_events_past_the_memory_of_ids_are_counted(make: BankMaker, place: dict[str, Any]) -> None:
    """They are kept: only duplicates of them could not be told."""
    shop = make(**place)
    old = shop.now - 2 * DAY
    shop.push(Payment(1, old, old, "old", 1))
    counted = shop.repo.cache.stats().events["activity_events"]
    assert (counted.accepted, counted.delayed) == (1, 1)


# -- refusals -------------------------------------------------------------------------------------


def test_a_place_for_the_logs_must_be_named(make: BankMaker) -> None:
    """Logs of each worker's own would be wrong without anybody noticing."""
    with pytest.raises(ConfigError, match="in_process: true"):
        make({"type": "sqlite"})


def test_a_server_that_evicts_is_refused(make: BankMaker, own_server: EmbeddedServer) -> None:
    """With the setting to change."""
    client = redis_client.Redis(port=own_server.port)
    client.config_set("maxmemory-policy", "allkeys-lru")
    online = {"type": "redis", "connection_string": own_server.connection_string}
    with pytest.raises(ConfigError, match="maxmemory-policy noeviction"):
        make(online)
    client.config_set("maxmemory-policy", "noeviction")
    shop = make(online)
    shop.pay(1, ago=5)
    assert shop.read(1) == [shop.truth(1)]
    client.close()


def test_the_provider_must_be_hotplates(make: BankMaker, tmp_path: Path) -> None:
    """Without it `materialize` and training would not know what a windowed view is."""
    shop = make(**OWN)
    config = shop.repo.hot.config.model_copy(update={"provider": "local"})
    with pytest.raises(ConfigError, match="HotplateProvider in feature_store"):
        FeatureStore(config=config).apply([CARD, shop.windowed, shop.events])


def test_an_exact_cache_stays_exact(make: BankMaker) -> None:
    """A deployment may not quietly take away what makes it exact."""
    settings = {"windows": {"in_process": True}, "ttl_map": {"activity": {"coherence": "ttl"}}}
    with pytest.raises(PolicyError, match="coherence"):
        make({"type": "sqlite"}, settings=settings)
    endless = {"windows": {"in_process": True}, "ttl_map": {"activity": "none"}}
    with pytest.raises(PolicyError, match="ttl"):
        make({"type": "sqlite"}, settings=endless)


def test_a_shorter_ttl_of_the_deployment_holds(make: BankMaker) -> None:
    """The TTL map has its say on windowed views as on all others."""
    settings = {"windows": {"in_process": True}, "ttl_map": {"activity": "2s"}}
    shop = make({"type": "sqlite"}, settings=settings)
    shop.pay(1)
    shop.repo.clock.advance(1)
    assert loads(shop, 1) == 1
    shop.repo.clock.advance(1.9)
    assert loads(shop, 1) == 0
    shop.repo.clock.advance(0.2)
    assert loads(shop, 1) == 1


def test_outputs_cannot_be_written(make: BankMaker) -> None:
    """They are computed."""
    shop = make(**OWN)
    frame = shop.repo.hot.get_online_features(shop.features, [{"card_id": 1}]).to_df()
    frame["at"] = frame["arrived"] = "2026-01-01T00:00:00Z"
    with pytest.raises(HotplateError, match="cannot be written"):
        shop.repo.hot.write_to_online_store("activity", frame)
