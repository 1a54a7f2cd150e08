"""The memory tier: rows in this process, bounded in entries and in bytes.

The map is cachebox's LRU: written in Rust, safe under threads and fork, 1.1 to 1.8 times a plain
dict a hit. Two maps share the bound: one for rows, one for entities known to be absent, so that a
scan over unknown ids cannot push out what is worth keeping.

Reads take no lock of ours. Fills, invalidations and evictions do, because "is this load still
allowed to be kept" and "keep it" must be one step (promise 3).

Accounting counts what a row really costs (measured on CPython 3.11 with 1,000,000 rows; see
`make bench`): the bytes object, the key's tuple and its values, and the slot in the map.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import cachebox

from hotplate.codec import is_absent
from hotplate.keys import Key, token_of

__all__ = ["EvictionCause", "MemoryBounds", "MemoryTier", "cost_of"]

# Slot of cachebox's LRU: table entry, list node, two references. RSS of 1,000,000 rows less the
# sizes of the objects themselves; `make bench` prints it again.
_SLOT_BYTES: Final = 90
_STRIPES: Final = 4096
_NEARLY: Final = 0.95
_SWEEP_KEYS: Final = 1_000
_TEXT_BYTES: Final = 76


class EvictionCause(Enum):
    """Why a row was pushed out."""

    ENTRIES = "entries"
    BYTES = "bytes"
    ABSENT_SHARE = "absent_share"


@dataclass(frozen=True)
class MemoryBounds:
    """How large the memory tier may grow.

    Attributes:
        max_entries: rows, absent entities included.
        max_bytes: bytes, keys and bookkeeping included.
        absent_share: share of both that absent entities may take.
    """

    max_entries: int
    max_bytes: int
    absent_share: float


class _Shelf:
    """One LRU map and its size; its owner holds the lock."""

    __slots__ = ("lru", "size")

    def __init__(self) -> None:
        self.lru: cachebox.LRUCache[Key, bytes] = cachebox.LRUCache(0)
        self.size = 0


class MemoryTier:
    """Rows by key, the least recently used pushed out first.

    Args:
        bounds: how large it may grow.
        on_added: called with (token, rows, bytes) for what was kept, and with what it replaced,
            both negative.
        on_removed: called with (token, bytes, cause) for each row that leaves.
    """

    def __init__(
        self,
        bounds: MemoryBounds,
        on_added: Callable[[int, int, int], None] = lambda token, entries, size: None,
        on_removed: Callable[[int, int, EvictionCause | None], None] = lambda token, size, cause: (
            None
        ),
    ) -> None:
        self.bounds = bounds
        self._absent_entries_max = int(bounds.max_entries * bounds.absent_share)
        self._absent_bytes_max = int(bounds.max_bytes * bounds.absent_share)
        self._on_added = on_added
        self._on_removed = on_removed
        self._rows = _Shelf()
        self._absent = _Shelf()
        self._versions = [0] * _STRIPES
        self._lock = threading.Lock()
        self.get: Callable[[Key], bytes | None] = self._rows.lru.get
        """The row of a key, marked as used; None where there is none. Absent ones are apart."""
        self.get_absent: Callable[[Key], bytes | None] = self._absent.lru.get

    def __len__(self) -> int:
        return len(self._rows.lru) + len(self._absent.lru)

    def __repr__(self) -> str:
        rows, absent = len(self._rows.lru), len(self._absent.lru)
        return f"MemoryTier(rows={rows}, absent={absent}, bytes={self.size_bytes})"

    @property
    def size_bytes(self) -> int:
        """Bytes held, keys and bookkeeping included."""
        return self._rows.size + self._absent.size

    @property
    def absent_entries(self) -> int:
        """How many entities known to be absent it holds."""
        return len(self._absent.lru)

    def peek(self, key: Key) -> bytes | None:
        """The row of a key, absent or not, without marking it as used."""
        row = self._rows.lru.peek(key)
        return row if row is not None else self._absent.lru.peek(key)

    @property
    def is_nearly_full(self) -> bool:
        """Whether what is put in soon pushes out what is there."""
        bounds = self.bounds
        return (
            len(self) >= _NEARLY * bounds.max_entries
            or self.size_bytes >= _NEARLY * bounds.max_bytes
        )

    def recent(self, most: int) -> list[Key]:
        """Keys of rows, the most recently used first."""
        return _snapshot(self._rows)[::-1][:most]

    def version(self, key: Key) -> int:
        """A number that every invalidation of the key changes: take it before the load."""
        return self._versions[hash(key) % _STRIPES]

    def versions(self, keys: Iterable[Key]) -> list[int]:
        """The same of several keys, in order."""
        versions = self._versions
        return [versions[hash(key) % _STRIPES] for key in keys]

    def fill(
        self, items: Iterable[tuple[Key, bytes, int]], is_current: Callable[[int], bool]
    ) -> int:
        """Keep rows whose version has not changed since it was taken.

        Args:
            items: (key, row, version taken before the load).
            is_current: whether a token can still be looked up.

        Returns:
            How many were not kept because an invalidation came in between.
        """
        refused = 0
        versions, rows, absent = self._versions, self._rows, self._absent
        most_entries, most_bytes = self.bounds.max_entries, self.bounds.max_bytes
        getsizeof = sys.getsizeof
        added: dict[int, list[int]] = {}  # token -> entries, bytes; none for a retired token
        with self._lock:
            room = most_entries - len(rows.lru) - len(absent.lru)
            for key, row, version in items:
                token = token_of(key)
                counts = added.get(token)
                if counts is None:
                    counts = added[token] = [0, 0] if is_current(token) else []
                if versions[hash(key) % _STRIPES] != version or not counts:
                    refused += 1
                    continue
                is_none = is_absent(row)
                into, other = (absent, rows) if is_none else (rows, absent)
                size = getsizeof(key) + getsizeof(row) + _SLOT_BYTES  # `cost_of`
                if not isinstance(key, int):
                    size = cost_of(key, row)
                counts[0] += 1
                counts[1] += size
                into.size += size
                room -= 1  # or it replaces one, and then there is more room than is said here
                replaced = into.lru.insert(key, row)
                if replaced is not None:
                    self._account(into, key, replaced, None, is_replaced=True)
                if other.size and (moved := other.lru.pop(key, None)) is not None:
                    self._account(other, key, moved, None, is_replaced=True)
                if is_none or room < 0 or rows.size + absent.size > most_bytes:
                    self._evict()
                    room = most_entries - len(self)
            for token, counts in added.items():
                if counts:
                    self._on_added(token, *counts)
        return refused

    def _account(
        self,
        shelf: _Shelf,
        key: Key,
        row: bytes,
        cause: EvictionCause | None,
        *,
        is_replaced: bool = False,
    ) -> None:
        freed = cost_of(key, row)
        shelf.size -= freed
        if is_replaced:
            self._on_added(token_of(key), -1, -freed)
        else:
            self._on_removed(token_of(key), freed, cause)

    def _evict(self) -> None:
        bounds, absent = self.bounds, self._absent
        while len(absent.lru) > self._absent_entries_max or absent.size > self._absent_bytes_max:
            self._account(absent, *absent.lru.popitem(), EvictionCause.ABSENT_SHARE)
        while len(self) > bounds.max_entries:
            self._pop_one(EvictionCause.ENTRIES)
        while self.size_bytes > bounds.max_bytes and len(self):
            self._pop_one(EvictionCause.BYTES)

    def _pop_one(self, cause: EvictionCause) -> None:
        shelf = self._rows if len(self._rows.lru) else self._absent
        self._account(shelf, *shelf.lru.popitem(), cause)

    def forget(self, keys: Sequence[Key], gone: list[Key] | None = None) -> int:
        """Drop keys and refuse the loads of them that are under way.

        Args:
            keys: which.
            gone: those of them that had a row are put there, absent ones left out.

        Returns:
            How many rows were dropped.
        """
        dropped = 0
        with self._lock:
            for key in keys:
                self._versions[hash(key) % _STRIPES] += 1
                for shelf in (self._rows, self._absent):
                    row = shelf.lru.pop(key, None)
                    if row is not None:
                        self._account(shelf, key, row, None)
                        dropped += 1
                        if gone is not None and shelf is self._rows:
                            gone.append(key)
        return dropped

    def forget_tokens(self, tokens: frozenset[int], gone: list[Key] | None = None) -> int:
        """Drop every row whose key begins with one of these tokens.

        Args:
            tokens: which.
            gone: their keys are put there, the least recently used first, absent ones left out.

        Returns:
            How many rows were dropped.
        """
        dropped = 0
        with self._lock:
            pass  # a fill that saw the tokens in use has ended; later ones see them retired
        for shelf in (self._rows, self._absent):
            doomed = [key for key in _snapshot(shelf) if token_of(key) in tokens]
            if gone is not None and shelf is self._rows:
                gone += doomed
            # nothing is added under a retired token, so the lock may be given up in between
            for start in range(0, len(doomed), _SWEEP_KEYS):
                with self._lock:
                    for key in doomed[start : start + _SWEEP_KEYS]:
                        row = shelf.lru.pop(key, None)
                        if row is not None:
                            self._account(shelf, key, row, None)
                            dropped += 1
        return dropped

    def restart_after_fork(self) -> None:
        """Make a new lock: the parent's may have been held by a thread that is not here."""
        self._lock = threading.Lock()

    def check(self) -> None:
        """Compare the running totals with a count from scratch; for tests.

        Raises:
            AssertionError: they differ.
        """
        with self._lock:
            for shelf in (self._rows, self._absent):
                counted = sum(cost_of(key, shelf.lru.peek(key)) for key in _snapshot(shelf))
                assert counted == shelf.size, f"{counted} bytes counted, {shelf.size} on the books"


def _snapshot(shelf: _Shelf) -> list[Key]:
    while True:
        try:
            return list(shelf.lru.keys())
        except RuntimeError:  # a reader moved a key to the front meanwhile: look again
            continue


def cost_of(key: Key, row: bytes | Any) -> int:
    """Bytes that a row takes, its key and bookkeeping included."""
    size = sys.getsizeof(key) + sys.getsizeof(row) + _SLOT_BYTES
    return size if isinstance(key, int) else size + sum(map(_value_cost, key[1:]))


def _value_cost(value: Any) -> int:
    # `getsizeof` of a text grows when its UTF-8 form is first asked for: count that in always
    if isinstance(value, str) and not value.isascii():
        return _TEXT_BYTES + 4 * len(value) + len(value.encode("utf-8", "surrogatepass"))
    return sys.getsizeof(value)
