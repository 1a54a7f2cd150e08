"""Logs filled from history: right from the first minute, beside writers, again and again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import redis as redis_client
from feast.aggregation import Aggregation

import hotplate
from hotplate import HotplateError
from hotplate.embedded import EmbeddedServer
from hotplate.keys import EntityShape
from hotplate.operations.findings import Finding
from hotplate.operations.seed import Seed, Seeded

from .bank import CARD, DAY, HOUR, MINUTE, Bank, Payment, bank, frame_of

EVENTS = "activity_events"
CARDS = 5


@pytest.fixture(params=["in process", "redis", "redis_cluster"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Bank]:
    """Makes a bank; its logs are in this process, on a server, or on a cluster."""
    settings: dict[str, Any] = {}
    online: dict[str, Any] = {"type": "sqlite"}
    if request.param == "in process":
        settings = {"windows": {"in_process": True}}
    elif request.param == "redis":
        server = request.getfixturevalue("redis")
        online = {"type": "redis", "connection_string": server.connection_string}
    else:
        online = {"type": "redis", **request.getfixturevalue("redis_cluster").settings}
    return lambda **more: bank(tmp_path, online, tmp_path.name, settings=settings, **more)


def history(shop: Bank, count: int = 400) -> list[Payment]:
    """Payments of the last two days, as they stand in the offline table; not pushed."""
    chance = random.Random(11)
    made = []
    for number in range(count):
        at = shop.now - chance.randrange(1, 2 * DAY)
        arrived = at + chance.choice([0, 1, 500, HOUR, HOUR + 1])
        cents = chance.randrange(1, 10_000)
        made.append(Payment(chance.randrange(CARDS), at, arrived, f"h{number}", cents))
    made += [replace(one, arrived=one.arrived + 1) for one in made[::9]]  # a second delivery
    frame_of(made).to_parquet(shop.repo.folder / "payments.parquet")
    shop.pushed += made
    return made


def seed(shop: Bank, **how: Any) -> Seeded:
    """Seed, and return the last word."""
    view = shop.repo.hot.get_feature_view(EVENTS)
    return list(Seed(shop.repo.hot, shop.repo.cache.runtime, view, **how).run())[-1]


def doctor(shop: Bank) -> Finding:
    """What `hotplate doctor` says of the event view."""
    found = shop.repo.cache.examine()
    return next(one for one in found if one.check == f"event view {EVENTS}")


def assert_right(shop: Bank) -> None:
    """Every card reads what counting gives, now and as its windows move."""
    for pause_s in (0.001, 30, 400, 4_000):
        shop.repo.clock.advance(pause_s)
        assert shop.read(*range(CARDS)) == [shop.truth(card) for card in range(CARDS)]


def test_windows_are_right_from_the_first_minute(make: Callable[..., Bank]) -> None:
    """A day of history that was never pushed counts."""
    shop = make()
    history(shop)
    done = seed(shop)
    assert (done.logs, done.kept, done.done) == (CARDS, 0, done.total)
    assert_right(shop)


def test_seeding_again_changes_nothing(make: Callable[..., Bank]) -> None:
    """Nor in small parts, nor with pushes of the same events before and after it."""
    shop = make()
    made = history(shop)
    recent = [one for one in made if one.at > shop.now - HOUR // 2][:40]
    shop.push(*recent)
    seed(shop, max_rows=60)
    seed(shop)
    shop.push(*recent)
    shop.pay(1, 700)
    seed(shop)
    assert_right(shop)


def test_what_is_appended_meanwhile_is_kept(make: Callable[..., Bank]) -> None:
    """Events that are not in the table yet."""
    shop = make()
    history(shop)
    view = shop.repo.hot.get_feature_view(EVENTS)
    for _ in Seed(shop.repo.hot, shop.repo.cache.runtime, view, max_rows=50).run():
        shop.pay(random.Random(1).randrange(CARDS), 300, ago=5)
        shop.repo.clock.advance(0.01)
    assert_right(shop)


def test_a_log_that_knows_more_than_the_table_is_kept(make: Callable[..., Bank]) -> None:
    """What it had folded together is not replaced by less."""
    shop = make()
    for _ in range(40):
        shop.push(*(Payment(3, shop.now - n, shop.now, f"{shop.now}-{n}", 5) for n in range(8)))
        shop.repo.clock.advance(300)
        shop.repo.cache.runtime.event_logs.compaction.drain()
    assert shop.repo.cache.stats().events[EVENTS].folds > 0
    frame_of(shop.pushed[:3]).to_parquet(shop.repo.folder / "payments.parquet")
    done = seed(shop)
    assert (done.logs, done.kept) == (0, 1)
    assert_right(shop)


def test_windows_that_need_another_layout_are_refused_until_they_are_seeded(
    make: Callable[..., Bank],
) -> None:
    """Nothing reads as nothing happened; the layout before goes on being written to."""
    shop = make()
    shop.repo.hot.registry.refresh(shop.repo.project)
    old_windowed, old_events = (
        shop.repo.hot.get_feature_view(name) for name in ("activity", EVENTS)
    )
    history(shop)
    seed(shop)
    month = Aggregation(
        column="amount", function="sum", time_window=timedelta(days=30), name="month"
    )
    longer, events = hotplate.windowed_view(
        name="habits", entities=[CARD], events=shop.events, aggregations=[month]
    )
    shop.repo.hot.apply([longer, events])
    with pytest.raises(HotplateError, match=f"hotplate windows seed {EVENTS}"):
        shop.read(1)
    with pytest.raises(HotplateError, match=f"hotplate windows seed {EVENTS}"):
        shop.repo.cache.retire(EVENTS)
    assert doctor(shop).status == "error"
    assert f"hotplate windows seed {EVENTS}" in doctor(shop).seen
    shop.pay(1, 400)
    shop.pay(2, 500)
    layouts = shop.repo.cache.runtime.event_logs.layouts
    assert sorted(layouts.known(EVENTS).values()) == [False, True]
    seed(shop)
    assert list(layouts.known(EVENTS).values()) == [True, True]
    assert doctor(shop).status == "warning"
    assert f"hotplate windows retire {EVENTS}" in doctor(shop).fix
    assert_right(shop)
    answer = shop.repo.hot.get_online_features(["habits:month"], [{"card_id": 1}]).to_dict()
    on_time = [one for one in shop.pushed if one.card == 1 and one.arrived - one.at <= HOUR]
    assert answer["month"] == [sum({(one.at, one.id): one.cents for one in on_time}.values()) / 100]
    # a process that has not seen the change yet reads the layout before, with all that came since
    logs = shop.repo.cache.runtime.event_logs
    logs.note_views([old_events])
    assert logs.compiled(old_windowed).log.plan != logs.log(events).plan
    logs_read = logs.compiled(old_windowed)
    shape = (("card_id",), ("int64_val",))
    key = logs_read.log.key(EntityShape(*shape), (1,))
    blob = logs.state(logs_read.log).get(key)
    found = logs_read.reader.read([blob], shop.now).values[0].tolist()
    assert found == list(shop.truth(1).values())
    # once all have seen it, nothing is written twice any more
    logs.note_views([shop.repo.hot.get_feature_view(EVENTS)])
    assert shop.repo.cache.retire(EVENTS) == 1
    assert doctor(shop).status == "ok"
    shop.pay(1, 600, ago=5)
    assert logs.state(logs_read.log).get(key) == blob
    assert_right(shop)


def test_a_server_that_lost_its_data_is_not_believed(
    own_server: EmbeddedServer, tmp_path: Path
) -> None:
    """An empty server answers nothing instead of no events."""
    online = {"type": "redis", "connection_string": own_server.connection_string}
    shop = bank(tmp_path, online, "lost")
    history(shop)
    seed(shop)
    assert_right(shop)
    with redis_client.Redis(port=own_server.port) as client:
        client.flushall()
        client.client_kill_filter(_type="normal", skipme=True)
    shop.repo.clock.advance(60)
    with pytest.raises(HotplateError, match="the server knows no logs"):
        shop.read(1)
    steps = shop.repo.cache.seed(EVENTS)
    next(steps)
    with pytest.raises(HotplateError, match=f"hotplate windows seed {EVENTS}"):
        shop.read(1)  # it is being filled
    list(steps)
    assert_right(shop)


def test_a_table_without_a_column_is_refused(make: Callable[..., Bank], tmp_path: Path) -> None:
    """Before anything is written."""
    shop = make()
    path = tmp_path / "short.parquet"
    pd.read_parquet(shop.repo.folder / "payments.parquet").drop(columns="amount").to_parquet(path)
    with pytest.raises(HotplateError, match="no column 'amount'"):
        list(shop.repo.cache.seed(EVENTS, path))
    with pytest.raises(HotplateError, match="are not to be read"):
        list(shop.repo.cache.seed(EVENTS, tmp_path / "missing.parquet"))
    with pytest.raises(KeyError, match="no event view"):
        shop.repo.cache.seed("activity")
    assert shop.read(1)[0][f"count_{MINUTE}"] == 0
