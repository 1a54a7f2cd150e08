"""Entities as numbers: which of a log are replayed, and where the state of each of them lies.

An entity is the first 64 bits of its hash in the traffic log, so a log with plain ids and one with
hashed ids have the same entities. The state of an entity in a view is a *slot*, a number from 0 on;
those of one view follow each other, and so do the views of one group.

Where there are more entities than may be counted, those whose number is below a threshold are
replayed, all reads of each: a random part of the entities, the same in every view and process,
instead of a random part of the reads, which says nothing about how often an entity comes back
(SHARDS; Waldspurger et al., FAST 2015). The threshold falls by half whenever there are too many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hotplate.warming.traffic import hash_of

__all__ = ["ALL", "Entities", "Ints", "Sieve", "Slots", "ViewSpec", "numbers_of"]

Ints = npt.NDArray[np.int64]
Entities = npt.NDArray[np.uint64]

ALL: Final = 1 << 64
"""The threshold under which every entity is."""

_HEX_LENGTH: Final = 24
_DIGITS: Final = 16
_BUCKETS: Final = 32


def _nibbles() -> npt.NDArray[np.uint8]:
    table = np.full(256, 255, np.uint8)
    for value, digit in enumerate("0123456789abcdef"):
        table[ord(digit)] = value
    return table


_NIBBLES: Final = _nibbles()


def numbers_of(keys: Sequence[str], project: str) -> Entities:
    """Keys of a traffic log as numbers.

    Args:
        keys: as they stand there, hashed or plain.
        project: the Feast project, whose hashes differ from others'.
    """
    found = np.zeros(len(keys), np.uint64)
    is_plain = np.fromiter((key[:1] == "[" for key in keys), np.bool_, len(keys))
    plain = np.flatnonzero(is_plain)
    found[plain] = [int(hash_of(keys[at], project)[:_DIGITS], 16) for at in plain.tolist()]
    hashed = np.flatnonzero(~is_plain)
    if not len(hashed):
        return found
    texts = [keys[at] for at in hashed.tolist()]
    raw = "".join(texts).encode("ascii", "replace")
    if len(raw) != _HEX_LENGTH * len(texts) or any(len(text) != _HEX_LENGTH for text in texts):
        raise ValueError("a key is neither a JSON list nor a hash of one")
    digits = _NIBBLES[np.frombuffer(raw, np.uint8).reshape(-1, _HEX_LENGTH)]
    if digits.max() > 15:
        raise ValueError("a key is neither a JSON list nor a hash of one")
    number = np.zeros(len(texts), np.uint64)
    for place in range(_DIGITS):
        number = (number << np.uint64(4)) | digits[:, place]
    found[hashed] = number
    return found


class Sieve:
    """Which entities are replayed: all of them, or as many as fit.

    Args:
        most: entities at the most, of all kinds together.

    Attributes:
        threshold: entities below it are replayed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kinds: dict[str, list[Entities]] = {}
        self._waiting = 0
        self.threshold = ALL

    def add(self, kind: str, entities: Entities) -> None:
        """Note entities of a kind, which may have been noted before."""
        kept = self._below(entities)
        self._kinds.setdefault(kind, []).append(kept)
        self._waiting += len(kept)
        if self._waiting > 2 * self._most:
            self._settle()

    def _below(self, entities: Entities) -> Entities:
        if self.threshold == ALL:
            return entities
        return entities[entities < np.uint64(self.threshold)]

    def _settle(self) -> None:
        for kind, parts in self._kinds.items():
            self._kinds[kind] = [np.unique(np.concatenate(parts))]
        while sum(len(parts[0]) for parts in self._kinds.values()) > self._most:
            self.threshold //= 2
            for kind, parts in self._kinds.items():
                self._kinds[kind] = [self._below(parts[0])]
        self._waiting = sum(len(parts[0]) for parts in self._kinds.values())

    def chosen(self) -> dict[str, Entities]:
        """Kind -> its entities, sorted."""
        self._settle()
        return {kind: parts[0] for kind, parts in self._kinds.items()}

    @property
    def share(self) -> float:
        """Of all entities, those that are replayed."""
        return self.threshold / ALL


@dataclass(frozen=True)
class ViewSpec:
    """A feature view as far as advice is concerned.

    Attributes:
        name: of the view.
        group: whose it is.
        entity: its join keys, sorted, with commas.
        row_bytes: what one row takes in memory, key and bookkeeping included.
    """

    name: str
    group: str
    entity: str
    row_bytes: int


class Slots:
    """Where the state of every entity of every view lies.

    Args:
        views: those that are replayed.
        kinds: join keys, with commas -> its entities, sorted.
        share: of all entities, those that are here.

    Attributes:
        count: how many slots there are.
        share: as given.
        views: by group, in the order of their slots.
        spans: group -> its slots.
    """

    def __init__(
        self, views: Iterable[ViewSpec], kinds: Mapping[str, Entities], share: float = 1.0
    ) -> None:
        self.share = share
        self.views = sorted(views, key=lambda view: (view.group, view.name))
        self._kinds = kinds
        self._base: dict[str, int] = {}
        self.spans: dict[str, slice] = {}
        self.count = 0
        for view in self.views:
            self._base[view.name] = self.count
            begin = self.spans[view.group].start if view.group in self.spans else self.count
            self.count += len(self.entities(view))
            self.spans[view.group] = slice(begin, self.count)
        sizes = [np.full(len(self.entities(view)), view.row_bytes) for view in self.views]
        self.sizes: Ints = np.concatenate([np.zeros(0, np.int64), *sizes]).astype(np.int64)

    def entities(self, view: ViewSpec) -> Entities:
        """The entities of a view, sorted."""
        return self._kinds.get(view.entity, np.zeros(0, np.uint64))

    def base(self, view: str) -> int:
        """The first slot of a view."""
        return self._base[view]

    def span(self, view: ViewSpec) -> slice:
        """The slots of a view."""
        base = self._base[view.name]
        return slice(base, base + len(self.entities(view)))

    def places(self, entity: str, entities: Entities) -> Ints:
        """Places of entities among those of their kind; -1 where one is not replayed."""
        known = self._kinds.get(entity)
        if known is None or not len(known):
            return np.full(len(entities), -1, np.int64)
        place = np.minimum(np.searchsorted(known, entities), len(known) - 1)
        return np.where(known[place] == entities, place, -1).astype(np.int64)

    def buckets(self) -> npt.NDArray[np.intp]:
        """A number from 0 to 31 for each slot, by its entity: what an error is estimated from."""
        parts = [(self.entities(view) % np.uint64(_BUCKETS)).astype(np.intp) for view in self.views]
        return np.concatenate([np.zeros(0, np.intp), *parts])
