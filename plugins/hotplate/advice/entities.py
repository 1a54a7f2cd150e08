"""Entities as numbers: which of a log are replayed, and where the state of each of them lies.

An entity is the first 64 bits of its hash in the traffic log, so a log with plain ids and one with
hashed ids have the same entities. The state of an entity in a view is a *slot*, a number from 0 on;
those of one view follow each other, and so do the views of one group.

Where there are more entities than may be replayed, the hottest are, and of the others those whose
number is below a threshold, all reads of each: a random part of the entities, the same in every
view and process, instead of a random part of the reads, which says nothing about how often an
entity comes back (SHARDS; Waldspurger et al., FAST 2015). The threshold falls by half whenever
there are too many. Each of these stands for as many as it was chosen from: that is its weight. The
hottest, each of which makes a part of the result by itself, are not left to chance; they are found
as in `hotplate.warming.selection` (Misra and Gries, 1982).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hotplate.warming.traffic import hash_of

__all__ = [
    "ALL",
    "Chosen",
    "Entities",
    "Floats",
    "Ints",
    "Sieve",
    "Slots",
    "ViewSpec",
    "numbers_of",
]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
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


@dataclass(frozen=True)
class Chosen:
    """The entities of one kind that are replayed.

    Attributes:
        entities: sorted.
        weights: float64 (entities,), for how many each stands.
    """

    entities: Entities
    weights: Floats

    @classmethod
    def of(cls, entities: Entities) -> Chosen:
        """All there are."""
        return cls(entities, np.ones(len(entities)))


class Sieve:
    """Which entities are replayed: all of them, or as many as fit.

    Args:
        most: entities at the most, of all kinds together.

    Attributes:
        share: of the entities that are not among the hottest, those that are replayed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._threshold = ALL
        self._below: dict[str, list[Entities]] = {}
        self._waiting = 0
        self._hot: dict[str, list[tuple[Entities, Ints]]] = {}
        self._hot_waiting = 0

    def add(self, kind: str, entities: Entities) -> None:
        """Note entities of a kind that were read, as often as they were."""
        distinct, counts = np.unique(entities, return_counts=True)
        below = self._under(distinct)
        self._below.setdefault(kind, []).append(below)
        self._hot.setdefault(kind, []).append((distinct, counts.astype(np.int64)))
        self._waiting += len(below)
        self._hot_waiting += len(distinct)
        if self._waiting > 2 * self._most:
            self._settle()
        if self._hot_waiting > 2 * self._most:
            self._settle_hot()

    def _under(self, entities: Entities) -> Entities:
        if self._threshold == ALL:
            return entities
        return entities[entities < np.uint64(self._threshold)]

    def _settle(self) -> None:
        """Lower the threshold until few enough are below it."""
        for kind, parts in self._below.items():
            self._below[kind] = [np.unique(np.concatenate(parts))]
        # until it has fallen, the hottest are among them
        while sum(len(parts[0]) for parts in self._below.values()) > self._most // (
            1 if self._threshold == ALL else 2
        ):
            self._threshold //= 2
            for kind, parts in self._below.items():
                self._below[kind] = [self._under(parts[0])]
        self._waiting = sum(len(parts[0]) for parts in self._below.values())

    def _settle_hot(self) -> None:
        """Leave the hottest; what is taken from their counts is the same of all."""
        merged = {kind: _counted(parts) for kind, parts in self._hot.items()}
        most = self._most // 2
        if sum(len(counts) for _, counts in merged.values()) > most:
            every = np.concatenate([counts for _, counts in merged.values()])
            least = np.partition(every, len(every) - most - 1)[-most - 1]
            merged = {
                kind: (entities[counts > least], counts[counts > least] - least)
                for kind, (entities, counts) in merged.items()
            }
        self._hot = {kind: [pair] for kind, pair in merged.items()}
        self._hot_waiting = sum(len(counts) for _, counts in merged.values())

    @property
    def share(self) -> float:
        return self._threshold / ALL

    def chosen(self) -> dict[str, Chosen]:
        """Kind -> its entities."""
        self._settle()
        if self._threshold == ALL:
            return {kind: Chosen.of(parts[0]) for kind, parts in self._below.items()}
        self._settle_hot()
        found = {}
        for kind, parts in self._below.items():
            hot = self._hot[kind][0][0]
            entities = np.union1d(hot, parts[0])
            weights = np.where(np.isin(entities, hot), 1.0, 1 / self.share)
            found[kind] = Chosen(entities, weights)
        return found


def _counted(parts: Sequence[tuple[Entities, Ints]]) -> tuple[Entities, Ints]:
    entities = np.concatenate([entities for entities, _ in parts])
    distinct, place = np.unique(entities, return_inverse=True)
    counts = np.bincount(place, np.concatenate([counts for _, counts in parts]), len(distinct))
    return distinct, counts.astype(np.int64)


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
        kinds: join keys, with commas -> its entities.
        share: of the entities that are not among the hottest, those that are here.

    Attributes:
        count: how many slots there are.
        share: as given.
        views: by group, in the order of their slots.
        spans: group -> its slots.
        weights: float64 (count,), for how many rows each stands.
        sizes: float64 (count,), bytes of these.
    """

    def __init__(
        self, views: Iterable[ViewSpec], kinds: Mapping[str, Chosen], share: float = 1.0
    ) -> None:
        self.share = share
        self.views = sorted(views, key=lambda view: (view.group, view.name))
        self._kinds = kinds
        self._base: dict[str, int] = {}
        self.spans: dict[str, slice] = {}
        self.count = 0
        weights, sizes = [np.zeros(0)], [np.zeros(0)]
        for view in self.views:
            self._base[view.name] = self.count
            begin = self.spans[view.group].start if view.group in self.spans else self.count
            self.count += len(self.entities(view))
            self.spans[view.group] = slice(begin, self.count)
            weights.append(self._chosen(view).weights)
            sizes.append(view.row_bytes * weights[-1])
        self.weights: Floats = np.concatenate(weights)
        self.sizes: Floats = np.concatenate(sizes)

    def _chosen(self, view: ViewSpec) -> Chosen:
        return self._kinds.get(view.entity) or Chosen.of(np.zeros(0, np.uint64))

    def entities(self, view: ViewSpec) -> Entities:
        """The entities of a view, sorted."""
        return self._chosen(view).entities

    def base(self, view: str) -> int:
        """The first slot of a view."""
        return self._base[view]

    def span(self, view: ViewSpec) -> slice:
        """The slots of a view."""
        base = self._base[view.name]
        return slice(base, base + len(self.entities(view)))

    def places(self, entity: str, entities: Entities) -> Ints:
        """Places of entities among those of their kind; -1 where one is not replayed."""
        chosen = self._kinds.get(entity)
        if chosen is None or not len(chosen.entities):
            return np.full(len(entities), -1, np.int64)
        known = chosen.entities
        place = np.minimum(np.searchsorted(known, entities), len(known) - 1)
        return np.where(known[place] == entities, place, -1).astype(np.int64)

    def buckets(self) -> npt.NDArray[np.intp]:
        """A number from 0 to 31 for each slot, by its entity: what an error is estimated from."""
        parts = [(self.entities(view) % np.uint64(_BUCKETS)).astype(np.intp) for view in self.views]
        return np.concatenate([np.zeros(0, np.intp), *parts])
