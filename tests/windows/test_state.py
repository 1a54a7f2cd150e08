"""Logs in memory and on servers: nothing is lost, and what is damaged is seen."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import redis as redis_client

from hotplate.clock import FakeClock
from hotplate.servers.redis import RedisServer
from hotplate.windows.compaction import Compactor, Fold
from hotplate.windows.errors import ClockBehindError, WindowStateError
from hotplate.windows.kernel import Reader
from hotplate.windows.log import MAGIC, LogFormat
from hotplate.windows.plan import LogPlan
from hotplate.windows.redis_state import LogServer, RedisState
from hotplate.windows.spec import Aggregate, Column, EventSpec, Window, WindowSpec
from hotplate.windows.state import LocalState, State

from .oracle import Event
from .streams import make_spec, records

SPEC = make_spec([Window(100, 10), Window(10_000, 1_000)])
PLAN = LogPlan.of([SPEC])
KEY = b"card"


def events(count: int, first: int = 10_000, event_id: int = 1) -> list[Event]:
    return [Event(first + i, event_id + i, first + i, (i, i, i)) for i in range(count)]


def compacted() -> bytes:
    """A log with tiles and records."""
    fold = Compactor(PLAN).fold(b"".join(records(PLAN, events(60))), 11_500)
    assert fold is not None
    return fold.blob + b"".join(records(PLAN, events(5, 11_400)))


@pytest.fixture(params=["in process", "redis", "valkey", "redis_cluster"])
def make_state(request: pytest.FixtureRequest) -> Iterator[Callable[[int], State]]:
    """Makes states, by how many ms a log lives after its last event."""
    if request.param == "in process":
        yield lambda ttl_ms: LocalState(ttl_ms, FakeClock())
        return
    server = request.getfixturevalue(request.param)
    if request.param == "redis_cluster":
        place = RedisServer(server.settings["connection_string"], "redis_cluster")
    else:
        place = RedisServer(server.connection_string)
    logs = LogServer(place, 5.0)
    yield lambda ttl_ms: RedisState(logs, ttl_ms)
    logs.close()


@pytest.fixture
def keys() -> list[bytes]:
    """Keys that no other test uses."""
    return [uuid.uuid4().hex.encode() for _ in range(3)]


@pytest.fixture
def state(make_state: Callable[[int], State]) -> State:
    """A state whose logs outlive the test."""
    return make_state(60_000)


def test_writers_and_compactors_lose_nothing(state: State, keys: list[bytes]) -> None:
    """Four writers and two compactors with other clocks on three keys: every event is counted."""
    compactor = Compactor(PLAN)
    per_writer = 400
    start, done, swaps = threading.Barrier(6), threading.Event(), []
    failures: list[BaseException] = []

    def write(number: int) -> None:
        start.wait()
        made = records(PLAN, events(per_writer, 10_000, 1 + number * per_writer))
        for index, record in enumerate(made):
            state.append(keys[index % 3], record)

    def compact(now: int) -> None:
        start.wait()
        try:
            while not done.is_set():
                for key in keys:
                    blob = state.get(key)
                    fold = compactor.fold(blob, now) if blob else None
                    if fold is not None:
                        swaps.append(state.swap(key, fold))
        except BaseException as error:  # noqa: BLE001 - the test reports it
            failures.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    compactors = [threading.Thread(target=compact, args=(now,)) for now in (11_500, 10_600)]
    for thread in (*writers, *compactors):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in compactors:
        thread.join()
    assert not failures
    assert True in swaps
    found = Reader(SPEC, PLAN).read(state.get_many(keys), 12_000).values
    total = found[:, [one.name for one in SPEC.aggregates].index("events_1")].sum()
    assert total == 4 * per_writer


def test_logs_are_appended_to_and_read(state: State, keys: list[bytes]) -> None:
    """One by one or many at once; a log that is not there is None."""
    assert state.get_many(keys) == [None, None, None]
    state.append(keys[0], b"one")
    assert state.append_many([(keys[0], b"two"), (keys[1], b"three"), (keys[0], b"!")]) == [6, 5, 7]
    assert state.get_many([keys[1], keys[2], keys[0]]) == [b"three", None, b"onetwo!"]
    assert state.get(keys[0]) == b"onetwo!"
    assert state.get_many([]) == []


def test_a_swap_keeps_what_was_appended_meanwhile(state: State, keys: list[bytes]) -> None:
    """And is refused where another one came first, or the log is gone."""
    key = keys[0]
    assert not state.swap(key, Fold(b"", 0, b"new"))
    state.append(key, b"old-old-")
    assert not state.swap(key, Fold(b"", 0, b"new")), "nothing was expected, and something is there"
    first = Fold(b"old-old-", 8, b"FOLDED")
    state.append(key, b"late")
    assert state.swap(key, first)
    assert state.get(key) == b"FOLDEDlate"
    assert not state.swap(key, first), "what it was made from is not there any more"
    assert not state.swap(key, Fold(b"FOLDED", 11, b"x")), "it is shorter than what was read"
    assert state.get(key) == b"FOLDEDlate"


@pytest.mark.parametrize("place", ["redis", "valkey"])
def test_a_log_lives_as_long_after_every_event(
    request: pytest.FixtureRequest, keys: list[bytes], place: str
) -> None:
    """However few it has; a swap leaves its life as it is."""
    server = request.getfixturevalue(place)
    logs = LogServer(RedisServer(server.connection_string), 5.0)
    ttl_ms, key = 32_000, keys[0]  # may be extended once a second
    with redis_client.Redis(port=server.port) as client:
        for pause_ms in (0, 200, 900, 1_100):
            time.sleep(pause_ms / 1_000)
            # another process's writer does not know whether this one extended it
            for writer in (RedisState(logs, ttl_ms), state := RedisState(logs, ttl_ms)):
                writer.append(key, b"event")
                assert client.pttl(key) >= ttl_ms
        for _ in range(30):
            time.sleep(0.05)
            state.append(key, b"event")
            assert client.pttl(key) >= ttl_ms
        before = client.pttl(key)
        held = state.get(key)
        assert held is not None
        assert state.swap(key, Fold(held, len(held), b"folded"))
        assert 0 < client.pttl(key) <= before
    logs.close()


def test_expiry_changes_nothing() -> None:
    """The moment a log expires, every window over it is empty already."""
    clock = FakeClock()
    state, reader = LocalState(PLAN.ttl_ms, clock), Reader(SPEC, PLAN)
    last = Event(20_000, 1, 20_000 - SPEC.event.skew_ms, (1, 1, 1))  # as far ahead as allowed
    state.append(KEY, records(PLAN, [last])[0])
    blob = state.get(KEY)
    clock.advance(PLAN.ttl_ms / 1000)
    assert state.get(KEY) is None
    t = last.arrival + PLAN.ttl_ms
    before, after = reader.read([blob], t), reader.read([None], t)
    assert np.array_equal(before.values, after.values, equal_nan=True)


def test_expiry_counts_from_the_last_append_and_a_swap_leaves_it() -> None:
    """As PEXPIRE and KEEPTTL do."""
    clock = FakeClock()
    state = LocalState(100_000, clock)
    state.append(KEY, b"".join(records(PLAN, events(60))))
    clock.advance(60)
    fold = Compactor(PLAN).fold(state.get(KEY) or b"", 11_500)
    assert fold is not None
    assert state.swap(KEY, fold)
    clock.advance(39)
    assert state.get(KEY) == fold.blob
    state.append(KEY, records(PLAN, events(1))[0])
    clock.advance(99)
    assert len(state) == 1
    clock.advance(1)
    assert state.get(KEY) is None


@pytest.mark.parametrize(
    ("make", "tail"), [(lambda: b"".join(records(PLAN, events(9))), 9), (compacted, 5)]
)
def test_every_damaged_byte_is_seen(make: Callable[[], bytes], tail: int) -> None:
    """A flipped bit anywhere, and an end that was lost within a record or before them."""
    blob = make()
    reader, compactor = Reader(SPEC, PLAN), Compactor(PLAN)
    reader.read([blob], 12_000)
    for place in range(len(blob)):
        damaged = bytearray(blob)
        damaged[place] ^= 1 << (place % 8)
        with pytest.raises(WindowStateError):
            reader.read([None, bytes(damaged), blob], 1_000_000_000)
        with pytest.raises(WindowStateError):
            compactor.fold(bytes(damaged), 12_000)
    size = LogFormat(PLAN).records.size
    whole = range(len(blob) - tail * size, len(blob), size)  # as if the last were never appended
    for cut in {*range(1, len(blob))} - {*whole}:
        with pytest.raises(WindowStateError):
            reader.read([blob[:cut]], 1_000_000_000)


def test_the_damaged_log_of_a_batch_is_named() -> None:
    """`position` says which of the logs, whatever is wrong with it."""
    good, reader = b"".join(records(PLAN, events(9))), Reader(SPEC, PLAN)
    for bad in (good[:-1], b"x" * 480, compacted()[:70], MAGIC):
        with pytest.raises(WindowStateError, match="entity 2") as caught:
            reader.read([good, None, bad, good], 12_000)
        assert caught.value.position == 2


def test_the_log_of_another_plan_is_refused() -> None:
    """The digest is in the header, and in every record's check."""
    other = EventSpec("id", PLAN.event.columns, lateness_ms=51, skew_ms=10, slack_ms=20)
    spec = WindowSpec(other, SPEC.aggregates)
    for blob in (b"".join(records(PLAN, events(9))), compacted()):
        with pytest.raises(WindowStateError):
            Reader(spec).read([blob], 12_000)
        with pytest.raises(WindowStateError):
            Compactor(LogPlan.of([spec])).fold(blob, 12_000)


def test_a_read_before_the_horizon_is_refused() -> None:
    """Tiles may hold what was not visible then; the message says what to do."""
    blob, reader = compacted(), Reader(SPEC, PLAN)
    horizon = 11_500 - SPEC.event.slack_ms
    reader.read([blob], horizon)
    with pytest.raises(ClockBehindError, match="Synchronise the clocks") as caught:
        reader.read([None, blob], horizon - 1)
    assert (caught.value.position, caught.value.horizon_ms) == (1, horizon)


def test_a_log_without_columns_counts_events() -> None:
    """No column at all is a log like any other."""
    event = EventSpec("id", (), lateness_ms=50, skew_ms=10, slack_ms=20)
    spec = WindowSpec(event, (Aggregate("n", "count", "", Window(1_000, 10)),))
    plan = LogPlan.of([spec])
    made = records(plan, [Event(10_000 + i, i + 1, 10_000 + i, ()) for i in range(30)])
    fold = Compactor(plan).fold(b"".join(made), 10_500)
    assert fold is not None
    for blob in (b"".join(made), fold.blob):
        assert Reader(spec, plan).read([blob], 10_600).values.tolist() == [[30.0]]
    assert len(fold.blob) < 30 * 24


def test_a_distinct_only_log_is_compacted() -> None:
    """Registers survive being folded twice."""
    event = EventSpec("id", (Column.distinct("shop"),), lateness_ms=50, skew_ms=10, slack_ms=20)
    window = Window(10_000, 1_000)
    short = Aggregate("n", "count", "", Window(100, 10))
    spec = WindowSpec(event, (short, Aggregate("d", "approx_count_distinct", "shop", window)))
    plan = LogPlan.of([spec])
    made = records(plan, [Event(10_000 + i, i + 1, 10_000 + i, (i % 70,)) for i in range(300)])
    blob, reader = b"".join(made), Reader(spec, plan)
    expected = reader.read([blob], 12_000).values
    for now in (10_500, 11_600):
        fold = Compactor(plan).fold(blob, now)
        assert fold is not None
        blob = fold.blob
    assert np.array_equal(reader.read([blob], 12_000).values, expected, equal_nan=True)
    assert abs(expected[0, 1] - 70) < 7


def test_what_is_no_moment_is_refused() -> None:
    """Seconds or nanoseconds would give windows of another year."""
    reader = Reader(SPEC, PLAN)
    for t in (-1, 1_767_225_600_000_000_000, np.array([5, 1 << 45])):
        with pytest.raises(ValueError, match="milliseconds since 1970"):
            reader.read([None, None], t)
    with pytest.raises(ValueError, match="2 logs are read at moments of shape"):
        reader.read([None, None], np.array([1]))


def test_more_logs_than_one_pass_takes() -> None:
    """Counting registers bounds a pass to 256 entities; the answer does not show it."""
    reader = Reader(SPEC, PLAN)
    logs = [b"".join(records(PLAN, events(3, 10_000 + i))) for i in range(300)]
    t = np.arange(10_050, 10_350)
    found = reader.read(logs, t)
    for position in (0, 255, 256, 299):
        one = reader.read([logs[position]], int(t[position]))
        assert np.array_equal(found.values[position], one.values[0], equal_nan=True)
        assert found.valid_until[position] == one.valid_until[0]
    logs[280] += b"?"
    with pytest.raises(WindowStateError) as caught:
        reader.read(logs, t)
    assert caught.value.position == 280
