"""One instant is one instant: in any time zone, none, on an edge, in a leap second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from hotplate.clock import FakeClock
from hotplate.embedded import EmbeddedServer

from .bank import DAY, LATENESS, MINUTE, Bank, Payment, bank, frame_of
from .following import EVENTS, Following, following, text_of

OWN: dict[str, Any] = {"settings": {"windows": {"in_process": True}}}
BERLIN = "Europe/Berlin"
# 00:30 UTC on the day on which 02:30 is twice in Berlin, and an hour later
TWICE = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


@pytest.fixture
def shop(tmp_path: Path) -> Bank:
    """A bank in the hour that Berlin has twice."""
    clock = FakeClock(wall_s=(TWICE + timedelta(hours=1)).timestamp())
    return bank(tmp_path, {"type": "sqlite"}, tmp_path.name, clock=clock, **OWN)


def on_edges(shop: Bank) -> list[Payment]:
    """Payments on both edges of every window, a millisecond to each side, and now."""
    ago = [span + by for span in (MINUTE, 10 * MINUTE) for by in (-1, 0, 1)]
    ago += [0, 1, LATENESS - 1, LATENESS, LATENESS + 1]
    return [Payment(1, shop.now - by, shop.now, f"p{by}", 100 + n) for n, by in enumerate(ago)]


def in_zone(zone: str | None) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """The same moments as another clock shows them; None takes the zone away."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        for name in ("at", "arrived"):
            column = frame[name].dt
            frame[name] = column.tz_convert(zone) if zone else column.tz_localize(None)
        return frame

    return change


def as_dicts(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """With datetimes of a fixed offset, as `datetime.fromisoformat` makes them."""
    away = timezone(timedelta(hours=5, minutes=45))
    rows = frame.to_dict("records")
    return [
        {**row, **{name: row[name].to_pydatetime().astimezone(away) for name in ("at", "arrived")}}
        for row in rows
    ]


WAYS: dict[str, tuple[str, Callable[[pd.DataFrame], Any]]] = {
    "pushed, UTC": ("push", lambda frame: frame),
    "pushed, none": ("push", in_zone(None)),
    "pushed, Berlin": ("push", in_zone(BERLIN)),
    "pushed, Kathmandu": ("push", in_zone("Asia/Kathmandu")),
    "ingested, none": ("ingest", in_zone(None)),
    "ingested, Berlin": ("ingest", in_zone(BERLIN)),
    "ingested, New York, Arrow": (
        "ingest",
        lambda frame: pa.Table.from_pandas(in_zone("America/New_York")(frame)),
    ),
    "ingested, dicts": ("ingest", as_dicts),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_zone_is_the_same_instant(shop: Bank, way: str) -> None:
    """Events on every edge, written as another clock shows them."""
    how, change = WAYS[way]
    events = on_edges(shop)
    shop.pushed += events
    frame = change(frame_of(events))
    if how == "push":
        shop.repo.hot.push("payments", frame)
    else:
        shop.repo.cache.ingest(EVENTS, frame)
    for _ in range(3):
        assert shop.read(1) == [shop.truth(1)]
        shop.repo.clock.advance(0.001)


@pytest.fixture
def follow(tmp_path: Path, redis: EmbeddedServer) -> Iterator[Callable[..., Following]]:
    """Makes banks that follow a stream, at a time."""
    made: list[Following] = []

    def one(wall: datetime) -> Following:
        clock = FakeClock(wall_s=wall.timestamp())
        made.append(following(tmp_path, redis, clock=clock))
        return made[-1]

    yield one
    for each in made:
        each.shop.repo.cache.runtime.close()
        each.client.close()


FORMS: dict[str, Callable[[datetime], str]] = {
    "Z": lambda at: at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    "no zone": lambda at: at.replace(tzinfo=None).isoformat(),
    "west": lambda at: at.astimezone(timezone(timedelta(hours=-7))).isoformat(),
    "quarters": lambda at: at.astimezone(timezone(timedelta(hours=5, minutes=45))).isoformat(),
    "milliseconds": lambda at: str(round(at.timestamp() * 1_000)),
    "basic": lambda at: at.strftime("%Y%m%dT%H%M%S.%fZ"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_says_the_same_instant_in_many_ways(
    follow: Callable[..., Following], form: str
) -> None:
    stream = follow(TWICE + timedelta(hours=1))
    for one in on_edges(stream.shop):
        at = datetime.fromtimestamp(one.at / 1_000, UTC)
        stream.shop.pushed.append(one)
        stream.add_raw({**text_of(one), "at": FORMS[form](at)}, one.arrived)
    stream.follow()
    stream.assert_right([1])


LEAP = datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_a_leap_second_is_the_one_after_it(follow: Callable[..., Following]) -> None:
    """As POSIX and SQL have it: 23:59:60 is 00:00:00, and a window over it is no longer."""
    after = LEAP + timedelta(seconds=1)
    stream = follow(after + timedelta(seconds=59))
    texts = {
        "2016-12-31T23:59:59Z": LEAP,
        "2016-12-31T23:59:60Z": after,
        "2016-12-31T23:59:60.250Z": after + timedelta(milliseconds=250),
        "2017-01-01T00:59:60+01:00": after,
        "20161231T235960Z": after,
        "2017-01-01T00:00:00Z": after,
    }
    for number, (text, at) in enumerate(texts.items()):
        ms = round(at.timestamp() * 1_000)
        one = Payment(1, ms, ms + 300, f"p{number}", 100 + number)
        stream.shop.pushed.append(one)
        stream.add_raw({**text_of(one), "at": text}, one.arrived)
    done = stream.follow()
    assert (done.accepted, done.dropped) == (len(texts), {})
    for _ in range(4):
        stream.assert_right([1])
        stream.shop.repo.clock.advance(0.5)
    no_times = ["2016-12-31T23:59:61Z", "2016-12-31T23:60:00Z", "2016-12-31T23:59:600Z"]
    for text in no_times:
        stream.add_raw({**text_of(replace(one, id=text)), "at": text}, one.arrived)
    assert stream.follow().unreadable == len(no_times)


def test_a_window_without_events_is_empty(shop: Bank) -> None:
    """Before the first event, between two, and after the last has left."""
    assert shop.read(1) == [shop.truth(1)]
    shop.pay(1)
    shop.repo.clock.advance(0.001)
    for seconds in (0, MINUTE // 1_000, 9 * 60, DAY // 1_000 + 20 * 60):
        shop.repo.clock.advance(seconds)
        assert shop.read(1) == [shop.truth(1)]
    assert set(shop.read(1)[0].values()) == {0}
