"""Model outputs in this process, and what ends them.

An output hangs on the rows of features that it was computed from: one `Tie` an entity of a feature
view, shared by all outputs that hang on it. To invalidate the entity is to look its tie up and cut
it, whatever else is kept; an output with a cut tie is not served any more. Ties that nothing hangs
on are let go.

Promise 3 needs an order: the rows of features are forgotten first, the ties are cut after that
(`Domain.join`), and whoever keeps an output has taken the ties' version before it made sure that
its rows were still there. Then either the rows were gone, or the version has changed, or the tie is
there to be cut.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import cachebox

from hotplate.keys import Key, token_of

__all__ = ["Kept", "OutputTier", "Tie"]

_STRIPES: Final = 4096
_SLOT_BYTES: Final = 90  # of cachebox's LRU, as in `memory`
_KEPT_BYTES: Final = 176  # the entry, its numbers, the ties' tuple


class Tie:
    """What outputs hang on: one entity of one feature view.

    Attributes:
        is_cut: whether its rows were invalidated since.
        hanging: how many outputs hang on it.
    """

    __slots__ = ("hanging", "is_cut")

    def __init__(self) -> None:
        self.is_cut = False
        self.hanging = 0


Kept: TypeAlias = tuple[bytes, int, tuple[Tie, ...], tuple[Key, ...], bool]
"""One output: its bytes, or a reference to them in the blob tier; until when it may be served, on
the cache's clock; what it hangs on; the keys of that; whether it may be served only while the event
channel is whole. (A tuple of its own class takes half a microsecond to make.)"""


class OutputTier:
    """Outputs by the key of their input, the least recently used pushed out first.

    Args:
        max_entries: outputs.
        max_bytes: bytes, keys and bookkeeping included.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._most, self._most_bytes = max_entries, max_bytes
        self._lru: cachebox.LRUCache[bytes, Kept] = cachebox.LRUCache(0)
        self._ties: dict[Key, Tie] = {}
        self._by_token: dict[int, set[Key]] = {}
        self._versions = [0] * _STRIPES
        self._era = 0
        self._lock = threading.Lock()
        self.size_bytes = 0
        self.evicted = 0
        self.invalidated = 0
        self.get = self._lru.get

    def __len__(self) -> int:
        return len(self._lru)

    def versions(self, keys: Iterable[Key]) -> tuple[int, ...]:
        """What every cut of these ties changes, and every `clear`: take it before the rows are
        looked at."""
        versions = self._versions
        return (self._era, *(versions[hash(key) % _STRIPES] for key in keys))

    def put(
        self, items: Iterable[tuple[bytes, bytes, int, tuple[Key, ...], bool, tuple[int, ...]]]
    ) -> int:
        """Keep outputs.

        Args:
            items: (key, value, deadline, keys of ties, is_heard, their versions).

        Returns:
            How many were not kept because a tie was cut meanwhile.
        """
        refused, insert = 0, self._lru.insert
        with self._lock:
            for key, value, deadline_ns, on, is_heard, versions in items:
                if versions != (self.versions(on) if on else (self._era,)):
                    refused += 1
                    continue
                ties = self._tied(on) if on else ()
                old = insert(key, (value, deadline_ns, ties, on, is_heard))
                if old is not None:
                    self._let_go(key, old)
                self.size_bytes += _cost(key, value)
            self._make_room()
        return refused

    def put_untied(
        self, keys: Sequence[bytes], values: Sequence[bytes], deadlines_ns: Sequence[int], era: int
    ) -> int:
        """Keep outputs that hang on nothing, unless all were taken out since the era was taken.

        Args:
            keys, values, deadlines_ns: of each.
            era: the first of `versions(())`.

        Returns:
            How many were not kept.
        """
        insert = self._lru.insert
        with self._lock:
            if era != self._era:
                return len(keys)
            for key, value, deadline_ns in zip(keys, values, deadlines_ns, strict=True):
                old = insert(key, (value, deadline_ns, (), (), False))
                if old is not None:
                    self._let_go(key, old)
            self.size_bytes += sum(map(len, keys)) + sum(map(len, values)) + _BYTES * len(keys)
            self._make_room()
        return 0

    def _make_room(self) -> None:
        while len(self._lru) > self._most or (self.size_bytes > self._most_bytes and self._lru):
            self._let_go(*self._lru.popitem())
            self.evicted += 1

    def _tied(self, on: tuple[Key, ...]) -> tuple[Tie, ...]:
        ties = []
        for key in on:
            tie = self._ties.get(key)
            if tie is None:
                tie = self._ties[key] = Tie()
                self._by_token.setdefault(token_of(key), set()).add(key)
            tie.hanging += 1
            ties.append(tie)
        return tuple(ties)

    def _let_go(self, key: bytes, kept: Kept) -> None:
        value, _, ties, on, _ = kept
        self.size_bytes -= _cost(key, value)
        for of, tie in zip(on, ties, strict=True):
            tie.hanging -= 1
            if not tie.hanging and not tie.is_cut:
                self._drop_tie(of)

    def _drop_tie(self, key: Key) -> None:
        del self._ties[key]
        token = token_of(key)
        siblings = self._by_token[token]
        siblings.discard(key)
        if not siblings:
            del self._by_token[token]

    def release(self, most: int) -> int:
        """Let go of some, the least recently used first.

        Args:
            most: how many at the most; a thousand take 3 ms, in which no other thread runs.

        Returns:
            How many are left.
        """
        with self._lock:
            for _ in range(min(most, len(self._lru))):
                self._let_go(*self._lru.popitem())
            return len(self._lru)

    def clear(self) -> None:
        """Take out all of them, and refuse those that are being computed."""
        with self._lock:
            self._era += 1
            self._lru.clear()
            self._ties.clear()
            self._by_token.clear()
            self.size_bytes = 0

    # -- a member of a domain, after the caches of features ---------------------------------------

    def forget_keys(self, keys: Sequence[Key]) -> int:
        """Cut the ties to these entities; no other output is touched, none is looked through."""
        with self._lock:
            for key in keys:
                self._versions[hash(key) % _STRIPES] += 1
                if key in self._ties:
                    self._cut(key)
        return 0

    def forget_tokens(self, tokens: frozenset[int]) -> int:
        """Cut all ties to feature views that were invalidated as a whole."""
        with self._lock:
            for token in tokens:
                self._era += 1
                for key in list(self._by_token.get(token, ())):
                    self._cut(key)
        return 0

    def _cut(self, key: Key) -> None:
        tie = self._ties[key]
        tie.is_cut = True
        self.invalidated += tie.hanging
        self._drop_tie(key)

    def restart_after_fork(self) -> None:
        """Make a new lock: the parent's may have been held by a thread that is not here."""
        self._lock = threading.Lock()

    def check(self) -> None:
        """Compare the books with a count from scratch; for tests.

        Raises:
            AssertionError: they differ.
        """
        with self._lock:
            hanging: dict[Key, int] = {}
            size = 0
            for key in list(self._lru.keys()):
                kept: Any = self._lru.peek(key)
                value, _, ties, on, _ = kept
                size += _cost(key, value)
                for of, tie in zip(on, ties, strict=True):
                    if not tie.is_cut:
                        hanging[of] = hanging.get(of, 0) + 1
            assert size == self.size_bytes, f"{size} bytes counted, {self.size_bytes} on the books"
            assert hanging == {key: tie.hanging for key, tie in self._ties.items()}
            by_token = {key for keys in self._by_token.values() for key in keys}
            assert by_token == set(self._ties)


_BYTES: Final = 2 * sys.getsizeof(b"") + _SLOT_BYTES + _KEPT_BYTES


def _cost(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + _BYTES
