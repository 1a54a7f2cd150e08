"""The memory tier: bounds, books, eviction by cause, no resurrection."""

from __future__ import annotations

import random
import threading
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from feast.protos.feast.types.Value_pb2 import Value
from feast.value_type import ValueType

from hotplate.codec import Column, Layout, SourceRow
from hotplate.tiers.memory import EvictionCause, MemoryBounds, MemoryTier

LAYOUT = Layout([Column("a", ValueType.DOUBLE)])
TRACES = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"


def row(value: float = 1.0) -> bytes:
    return b"\x00" * 9 + LAYOUT.encode(SourceRow(1, [Value(double_val=value)]))


ABSENT = b"\x00" * 9 + LAYOUT.encode(SourceRow(None, [None]))


class Books:
    """Counts what the tier reports."""

    def __init__(self) -> None:
        self.bytes = self.rows = 0
        self.causes: Counter[EvictionCause | None] = Counter()

    def added(self, token: int, entries: int, size: int) -> None:
        self.rows += entries
        self.bytes += size

    def removed(self, token: int, freed: int, cause: EvictionCause | None) -> None:
        self.rows -= 1
        self.bytes -= freed
        self.causes[cause] += 1


def tier(entries: int = 1000, size: int = 10**9, share: float = 0.1) -> tuple[MemoryTier, Books]:
    books = Books()
    return MemoryTier(MemoryBounds(entries, size, share), books.added, books.removed), books


def fill(memory: MemoryTier, *keys: Any, value: bytes | None = None) -> int:
    items = [(key, value or row(), memory.version(key)) for key in keys]
    return memory.fill(items, lambda token: True)


def test_a_hundred_thousand_keys_stay_within_a_cap_of_a_thousand() -> None:
    """The bound holds at every moment, and what goes is counted by cause."""
    memory, books = tier(entries=1000)
    for start in range(0, 100_000, 100):
        fill(memory, *((1, i) for i in range(start, start + 100)))
        assert len(memory) <= 1000
    assert len(memory) == 1000
    assert books.causes == {EvictionCause.ENTRIES: 99_000}
    assert (books.rows, books.bytes) == (len(memory), memory.size_bytes)
    memory.check()


def test_bytes_are_bounded() -> None:
    """Large rows push out more than one small one."""
    memory, books = tier(entries=10**6, size=100_000)
    fill(memory, *((1, i) for i in range(10_000)))
    assert memory.size_bytes <= 100_000
    assert books.causes[EvictionCause.BYTES] > 9_000
    fill(memory, (1, "big"), value=row() + b"x" * 200_000)
    assert memory.size_bytes <= 100_000
    memory.check()


def test_absent_entities_have_a_bounded_share() -> None:
    """A scan over unknown ids cannot push out what is known."""
    memory, books = tier(entries=1000, share=0.1)
    fill(memory, *((1, i) for i in range(900)))
    fill(memory, *((2, i) for i in range(50_000)), value=ABSENT)
    assert memory.absent_entries == 100
    assert all(memory.peek((1, i)) is not None for i in range(900))
    assert books.causes == {EvictionCause.ABSENT_SHARE: 49_900}


def test_an_absent_row_replaces_a_known_one_and_back() -> None:
    """A key is in one of the two maps, never in both."""
    memory, _ = tier()
    for value in (row(), ABSENT, row(2.0), ABSENT):
        fill(memory, (1, 1), value=value)
        assert len(memory) == 1
        assert memory.peek((1, 1)) == value
    memory.check()


def test_a_row_loaded_before_an_invalidation_is_not_kept() -> None:
    """The version taken before the load no longer fits."""
    memory, _ = tier()
    version = memory.version((1, 1))
    memory.forget([(1, 1)])
    assert memory.fill([((1, 1), row(), version)], lambda token: True) == 1
    assert memory.peek((1, 1)) is None
    assert fill(memory, (1, 1)) == 0
    assert memory.fill([((2, 1), row(), memory.version((2, 1)))], lambda token: token != 2) == 1


def test_least_recently_used_goes_first() -> None:
    """Against a dict and an order kept by hand, over random reads and fills."""
    memory, _ = tier(entries=50, share=0.0)
    oracle: OrderedDict[Any, bytes] = OrderedDict()
    rng = random.Random(1)
    for _ in range(20_000):
        key = (1, int(rng.expovariate(0.02)))
        got = memory.get(key)
        assert got == oracle.get(key)
        if got is None:
            value = row(rng.random())
            fill(memory, key, value=value)
            oracle[key] = value
            if len(oracle) > 50:
                oracle.popitem(last=False)
        else:
            oracle.move_to_end(key)
    memory.check()


def test_hits_on_the_access_trace_equal_exact_lru() -> None:
    """On a real trace the tier hits exactly as often as an exact LRU of the same capacity."""
    if not TRACES.is_dir():
        pytest.skip(f"no access traces at {TRACES}")
    import pyarrow.parquet as pq

    keys = pq.read_table(TRACES / "twitter_cluster52_2m.parquet")["key_id"].to_pylist()[:300_000]
    memory, _ = tier(entries=5_000, share=0.0)
    lru: OrderedDict[int, None] = OrderedDict()
    value = row()
    hits = exact = 0
    for key in keys:
        if memory.get((1, key)) is None:
            fill(memory, (1, key), value=value)
        else:
            hits += 1
        if key in lru:
            exact += 1
            lru.move_to_end(key)
        else:
            lru[key] = None
            if len(lru) > 5_000:
                lru.popitem(last=False)
    assert hits == exact


def test_threads_filling_forgetting_and_reading_keep_the_books_right() -> None:
    """Sixteen threads at once: no row past the bound, no byte unaccounted for."""
    memory, books = tier(entries=500)
    stop = threading.Event()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(3_000):
            key = (rng.randrange(3), rng.randrange(1_000))
            match rng.randrange(10):
                case 0:
                    memory.forget([key])
                case 1:
                    fill(memory, key, value=ABSENT)
                case 2 | 3 | 4:
                    fill(memory, key, value=row(rng.random()))
                case _:
                    memory.get(key)
        stop.set()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    memory.forget_tokens(frozenset({2}))
    assert len(memory) <= 500
    assert (books.rows, books.bytes) == (len(memory), memory.size_bytes)
    memory.check()
