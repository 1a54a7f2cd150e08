"""The replay against a dict and a clock: the same counts, read by read, whatever is replayed."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hotplate.advice.changes import ChangeTimes
from hotplate.advice.entities import Chosen, Slots, ViewSpec
from hotplate.advice.lifetimes import Lifetime
from hotplate.advice.lru import Room
from hotplate.advice.replay import EVENT, TTL, Memory, Tallies, Trial
from hotplate.durations import NO_LIMIT_NS

from .oracle import Naive, Read, chances_of

ENTITIES = 6
VIEWS = [
    ViewSpec("a1", "a", "user_id", 100),
    ViewSpec("a2", "a", "user_id", 170),
    ViewSpec("b1", "b", "shop_id", 250),
]
SLOTS = 3 * ENTITIES
GROUP_OF = ["a"] * 2 * ENTITIES + ["b"] * ENTITIES
BEGIN = 1_767_225_600_000_000
END = BEGIN + 60_000_000


def slots() -> Slots:
    numbers = np.arange(ENTITIES, dtype=np.uint64) * np.uint64(1 << 60)
    return Slots(VIEWS, {"user_id": Chosen.of(numbers), "shop_id": Chosen.of(numbers)})


def requests(size: int) -> st.SearchStrategy[list[list[Read]]]:
    """Each for some slots at one moment."""
    at = st.one_of(st.integers(BEGIN, END), st.sampled_from(range(BEGIN, END, 500_000)))
    wanted = st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=4, unique=True)
    one = st.tuples(at, wanted).map(lambda pair: [(pair[0], slot) for slot in pair[1]])
    return st.lists(one, max_size=size)


def moments(size: int) -> st.SearchStrategy[list[Read]]:
    # few distinct moments, so that many things happen at once
    at = st.one_of(st.integers(BEGIN, END), st.sampled_from(range(BEGIN, END, 500_000)))
    return st.lists(st.tuples(at, st.integers(0, SLOTS - 1)), max_size=size)


LIFETIMES = st.builds(
    lambda ttl_ms, jitter, share: Lifetime(
        ttl_ms * 1_000_000, jitter, int(ttl_ms * share) * 1_000_000
    ),
    st.integers(0, 70_000),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.sampled_from([0.0, 0.3, 0.9]),
) | st.just(Lifetime(NO_LIMIT_NS, 0.2))
ROOMS = st.builds(
    Room, st.sampled_from([90, 300, 700, 1_500, 10**9]), st.sampled_from([1, 2, 5, 10**6])
)


# few slots, and moments and lifetimes of half a second: so that an age is just the ttl
HALVES = st.integers(0, 12).map(lambda half: BEGIN + half * 500_000)
CLOSE_REQUESTS = st.lists(
    st.tuples(HALVES, st.sampled_from([0, ENTITIES, 2 * ENTITIES])).map(lambda one: [one]),
    max_size=25,
)
CLOSE_LIFETIMES = st.builds(
    lambda ttl, renewed: Lifetime(ttl * 500_000_000, 0.0, min(ttl, renewed) * 500_000_000),
    st.integers(1, 5),
    st.integers(0, 2),
)


@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(CLOSE_REQUESTS, min_size=1, max_size=2),
    changes=st.lists(st.tuples(HALVES, st.sampled_from([0, ENTITIES, 2 * ENTITIES])), max_size=8),
    own=st.lists(st.booleans(), min_size=8, max_size=8),
    lifetimes=st.lists(CLOSE_LIFETIMES, min_size=1, max_size=2, unique=True),
    rooms=st.lists(ROOMS, min_size=1, max_size=2, unique=True),
)
def test_it_counts_alike_where_all_happens_at_once(
    parts: list[list[list[Read]]],
    changes: list[Read],
    own: list[bool],
    lifetimes: list[Lifetime],
    rooms: list[Room],
) -> None:
    """Reads, changes and ends of lives of the same moment."""
    compare(parts, changes, own, lifetimes, rooms, 0)


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(requests(40), min_size=1, max_size=4),
    changes=moments(30),
    own=st.lists(st.booleans(), min_size=30, max_size=30),
    lifetimes=st.lists(LIFETIMES, min_size=1, max_size=3, unique=True),
    rooms=st.lists(ROOMS, min_size=1, max_size=2, unique=True),
    skip_us=st.sampled_from([0, 20_000_000]),
)
def test_a_replay_counts_what_a_dict_and_a_clock_count(
    parts: list[list[list[Read]]],
    changes: list[Read],
    own: list[bool],
    lifetimes: list[Lifetime],
    rooms: list[Room],
    skip_us: int,
) -> None:
    """Hits, loads and every stale answer's age, for each ttl, bound and coherence."""
    compare(parts, changes, own, lifetimes, rooms, skip_us)


def compare(
    parts: list[list[list[Read]]],
    changes: list[Read],
    own: list[bool],
    lifetimes: list[Lifetime],
    rooms: list[Room],
    skip_us: int,
) -> None:
    asked = sorted((one for part in parts for one in part), key=lambda one: one[0][0])
    ordered, at = [], 0
    for part in parts:
        ordered.append(asked[at : at + len(part)])
        at += len(part)
    made = [change for change, is_own in zip(changes, own, strict=False) if is_own]
    tallies: Tallies = {}
    trial = Trial(
        slots(),
        rooms,
        {"a": lifetimes, "b": lifetimes},
        (TTL, EVENT),
        times(changes),
        frozenset(("a", "b")),
        BEGIN + skip_us,
        seed=7,
    )
    memory = Memory(trial, tallies, times(made))
    flat = [[read for one in part for read in one] for part in ordered]
    for part, reads in zip(ordered, flat, strict=True):
        number = [place for place, one in enumerate(part) for _ in one]
        memory.feed(*columns(reads), np.array(number, np.int64))
    chances = [chance for some in chances_of(7, flat) for chance in some]
    seen = set()
    for candidate, tally in tallies.items():
        seen.add((candidate.coherence, candidate.room, candidate.lifetime))
        lifetime, room = candidate.lifetime, rooms[candidate.room]
        naive = Naive(
            GROUP_OF,
            lifetime.ttl_ns,
            lifetime.jitter if lifetime.ttl_ns < NO_LIMIT_NS else 0.0,
            lifetime.revalidate_ns,
            room.max_bytes,
            room.max_entries,
            trial.slots.sizes.tolist(),
            changes if candidate.coherence == TTL else (),
            made if candidate.coherence == TTL else changes,
            BEGIN + skip_us,
        )
        expected = naive.run(asked, chances)[candidate.group]
        assert (tally.reads, tally.misses, tally.loads) == (
            expected.reads,
            expected.misses,
            expected.loads,
        ), candidate
        assert tally.ages.count == len(expected.stale_us), candidate
        assert tally.ages.longest_us == max(expected.stale_us, default=0)
        for share in (0.5, 0.99):
            exact = quantile(expected.stale_us, share)
            assert exact <= tally.ages.quantile_us(share) <= exact * 1.03 + 2
    wanted = {(c, r, one) for c in (TTL, EVENT) for r in range(len(rooms)) for one in lifetimes}
    groups = {GROUP_OF[slot] for part in flat for _, slot in part}
    assert seen == (wanted if groups else set())


def columns(reads: list[Read]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(reads, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def times(changes: list[Read]) -> ChangeTimes:
    at, slot = columns(changes)
    return ChangeTimes(slot, at, BEGIN, END)


def quantile(ages: list[int], share: float) -> int:
    """The smallest age that this share of all does not exceed."""
    if not ages:
        return 0
    ordered = sorted(ages)
    return next(age for place, age in enumerate(ordered, 1) if place >= share * len(ages))
