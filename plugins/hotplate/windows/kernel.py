"""Reading: from the logs of some entities to the values of all windows, in one pass.

A `Reader` is compiled once for a spec and the plan of its log. A read joins the records of all
entities into one array and the tiles into another, sorts by (entity, ts) where they are not in that
order already, leaves out duplicates and what is not visible yet, finds the edges of all windows by
binary search, and takes differences of prefix sums. Nothing loops over events, and only splitting
the logs loops over entities, so 50 small logs cost little more than one.

Beside each entity's values stands `valid_until`: the first moment at which they can change without
another append. That is when the oldest event of some window leaves it, when the next event enters
one with a delay, or when an event that is present becomes visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hotplate.windows.chains import NEVER, Chain, chains_of
from hotplate.windows.errors import ClockBehindError, WindowStateError
from hotplate.windows.events import END_OF_TIME_MS
from hotplate.windows.exact import Floats, Integers
from hotplate.windows.finalize import Finalizer, Partials
from hotplate.windows.log import MAGIC, Head, LogFormat
from hotplate.windows.plan import LogPlan
from hotplate.windows.records import ARRIVAL, TS, arrivals_of, first_arrivals, stamp_limit
from hotplate.windows.single import SingleReader
from hotplate.windows.sources import Selection, Source, of_records, of_tiles, partials_of
from hotplate.windows.spec import WindowSpec
from hotplate.windows.sums import Stretch

__all__ = ["Answer", "Reader"]

_OWNER_BITS: Final = 46
_OWNERS: Final = 1 << 16
_REGISTER_OWNERS: Final = 256  # 1,024 registers a window and entity: bounds the memory of a read


@dataclass(frozen=True, slots=True)
class Answer:
    """What a read found.

    Attributes:
        values: float64 (m, K), in the order of the spec's aggregates; null is NaN.
        valid_until: int64 (m), ms UTC: the values hold for every t' with t <= t' < valid_until, as
            long as nothing is appended; `NEVER` where nothing will change.
    """

    values: Floats
    valid_until: Integers


class Reader:
    """Reads the outputs of one spec from logs stored by one plan. Thread-safe.

    Args:
        spec: the outputs.
        plan: of the log; of the spec alone if left out.

    Raises:
        WindowSpecError: logs of that plan cannot answer the spec.
    """

    def __init__(self, spec: WindowSpec, plan: LogPlan | None = None) -> None:
        self.spec = spec
        self.plan = LogPlan.of([spec]) if plan is None else plan
        self.plan.check(spec)
        self._format = LogFormat(self.plan)
        self._chains = chains_of(spec.windows)
        self._finalize = Finalizer(spec, [one for chain in self._chains for one in chain.windows])
        self._selection = Selection(spec.event, self._finalize.columns, self._finalize.needs)
        self._single = SingleReader(self._format, self._chains, self._finalize)
        has_registers = self._selection.needs_registers
        self._most_owners = _REGISTER_OWNERS if has_registers else _OWNERS

    def read(self, blobs: Sequence[bytes | None], t: int | Integers) -> Answer:
        """Compute all outputs of some entities.

        Args:
            blobs: the logs; None or b"" where there is none, which is the same as no events.
            t: the moment, ms UTC: one for all, or int64 (m).

        Raises:
            ValueError: t is no moment between 1970 and 3084 in ms, or not one for each log.
            ClockBehindError: t lies before what a log's compaction has folded together.
            WindowStateError: a log is truncated, damaged or foreign; `position` says which.
        """
        count = len(blobs)
        if isinstance(t, (int, np.integer)):
            _check_moment(int(t), int(t))
            if count == 1 and (blob := blobs[0]) and self._single.is_fit:
                found = self._single.partials(blob, int(t))
                if found is not None:
                    values = self._finalize(found[0])[None]
                    return Answer(values, np.array([found[1]]))
            moments = np.full(count, t)
        else:
            moments = np.asarray(t, np.int64)
            if moments.shape != (count,):
                raise ValueError(f"{count} logs are read at moments of shape {moments.shape}")
            if count:
                _check_moment(int(moments.min()), int(moments.max()))
        if count <= self._most_owners:
            return self._read(blobs, moments, 0)
        step = self._most_owners
        parts = [
            self._read(blobs[at : at + step], moments[at : at + step], at)
            for at in range(0, count, step)
        ]
        return Answer(
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.valid_until for part in parts]),
        )

    def _read(self, blobs: Sequence[bytes | None], t: Integers, first: int) -> Answer:
        split = _Split(self._format, blobs, t, first)
        owner = None
        if len(blobs) > 1:
            owner = np.repeat(np.arange(len(blobs)), split.counts)
        seen = _Seen(split.fields, owner, t)
        sources: list[Source] = []
        owner_keys = np.arange(len(blobs)) << _OWNER_BITS
        if seen.key.size or not split.heads:
            sources.append(of_records(seen.fields, seen.key, self._selection))
        if split.heads:
            sources.append(self._tiles(split, owner_keys))
        valid_until = np.full(len(blobs), NEVER)
        parts = []
        for chain in self._chains:
            edges = chain.edges(t)
            edges += owner_keys[:, None]
            stretches = [_stretch(source.key, edges) for source in sources]
            parts.append(partials_of(sources, stretches, self._selection))
            for source, stretch in zip(sources, stretches, strict=True):
                _changes(valid_until, chain, source.key, stretch)
            if seen.hidden is not None:
                _appearances(valid_until, chain, seen.hidden, seen.hidden_owner)
        return Answer(self._finalize(_side_by_side(parts)), valid_until)

    def _tiles(self, split: _Split, owner_keys: Integers) -> Source:
        heads = split.heads
        if len(heads) == 1:  # joining structured arrays is slow
            ((owner, head),) = heads.items()
            key = head.tiles["start"] + owner_keys[owner]
            return of_tiles(head.tiles, head.registers, key, self._selection)
        tiles = np.concatenate([head.tiles for head in heads.values()])
        registers = np.concatenate([head.registers for head in heads.values()])
        counts = [len(head.tiles) for head in heads.values()]
        key = tiles["start"] + np.repeat(owner_keys[list(heads)], counts)
        return of_tiles(tiles, registers, key, self._selection)


def _check_moment(low: int, high: int) -> None:
    if low < 0 or high >= END_OF_TIME_MS:
        raise ValueError(f"t={low if low < 0 else high} is not in milliseconds since 1970")


class _Split:
    """The logs of a read, taken apart and checked."""

    __slots__ = ("_first", "counts", "fields", "heads")

    def __init__(
        self, form: LogFormat, blobs: Sequence[bytes | None], t: Integers, first: int
    ) -> None:
        self._first = first
        self.heads: dict[int, Head] = {}
        pieces: list[bytes | memoryview] = []
        for position, blob in enumerate(blobs):
            if blob is None:
                pieces.append(b"")
            elif blob.startswith(MAGIC):
                pieces.append(self._behind_head(form, position, blob, int(t[position])))
            else:
                pieces.append(blob)
        size = form.records.size
        self.counts = [len(piece) // size for piece in pieces]
        raw = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        count = sum(self.counts)
        if count * size != len(raw) or not form.records.is_intact(raw, count):
            _blame(form, pieces, first)
        self.fields = form.records.fields(raw)

    def _behind_head(
        self, form: LogFormat, position: int, blob: bytes, t: int
    ) -> bytes | memoryview:
        try:
            head = form.head(blob)
        except WindowStateError as error:
            raise WindowStateError(error.problem, position=self._first + position) from None
        assert head is not None
        if t < head.horizon_ms:
            raise ClockBehindError(t, head.horizon_ms, position=self._first + position)
        if len(head.tiles):
            self.heads[position] = head
        return memoryview(blob)[head.size :]


def _blame(form: LogFormat, pieces: Sequence[bytes | memoryview], first: int) -> None:
    for position, piece in enumerate(pieces, first):
        try:
            form.records.check(piece)
        except WindowStateError as error:
            raise WindowStateError(error.problem, position=position) from None
    raise WindowStateError("its records changed while they were read")


class _Seen:
    """The records of a read that are visible, in order and without duplicates; and the others.

    Attributes:
        key: int64 (n), `owner << 46 | ts`.
        fields: int64 (3 + C, n).
        hidden: those that arrive later than t; None if there are none.
        hidden_owner: whose they are.
    """

    __slots__ = ("fields", "hidden", "hidden_owner", "key")

    def __init__(self, records: Integers, owner: Integers | None, t: Integers) -> None:
        self.hidden: Integers | None = None
        self.hidden_owner: Integers | None = None
        key = records[TS] if owner is None else records[TS] + (owner << _OWNER_BITS)
        if not _ascends(key):
            order = key.argsort(kind="stable")
            ordered = key.take(order)
            if not _ascends(ordered):
                order = order.take(_settle_ties(records.take(order, axis=1), ordered))
                ordered = key.take(order)
            records, key = records.take(order, axis=1), ordered
            if owner is not None:
                owner = owner.take(order)
        stamps = records[ARRIVAL]
        if owner is None:
            is_all = not stamps.size or int(np.maximum.reduce(stamps)) < stamp_limit(int(t[0]))
            is_seen = None if is_all else stamps < stamp_limit(int(t[0]))
        else:
            is_seen = stamps < stamp_limit(t).take(owner)
            is_all = bool(is_seen.all())
        if not is_all:
            assert is_seen is not None
            self.hidden = records[:, ~is_seen]
            self.hidden_owner = None if owner is None else owner[~is_seen]
            records, key = records[:, is_seen], key[is_seen]
        self.key: Integers = key
        self.fields: Integers = records


def _settle_ties(records: Integers, key: Integers) -> Integers:
    """Which of some sorted records to keep, in order, where several have the same key.

    Only those are compared: even in a busy log few events share a millisecond.
    """
    is_tied = np.zeros(len(key), np.bool_)
    equal = key[1:] == key[:-1]
    is_tied[1:] = equal
    is_tied[:-1] |= equal
    tied = np.flatnonzero(is_tied)
    _, kept = first_arrivals(records.take(tied, axis=1), key.take(tied))
    places = np.concatenate((np.flatnonzero(~is_tied), tied.take(kept)))
    return places.take(key.take(places).argsort(kind="stable"))


def _ascends(key: Integers) -> bool:
    """Whether each is larger than the one before."""
    return b"\0" not in (key[1:] > key[:-1]).tobytes()


def _stretch(key: Integers, edges: Integers) -> Stretch:
    places = key.searchsorted(edges)
    return Stretch(places[:, :-1], places[:, -1:])


def _changes(valid_until: Integers, chain: Chain, key: Integers, stretch: Stretch) -> None:
    """Lower `valid_until` to when an item leaves a window of the chain, or the next one enters."""
    if not key.size:
        return
    if len(valid_until) == 1:
        moment = chain.changes_at(key, stretch.begin[0], int(stretch.end[0, 0]))
        valid_until[0] = min(moment, int(valid_until[0]))
        return
    mask = (1 << _OWNER_BITS) - 1
    oldest = key.take(stretch.begin, mode="clip") & mask
    leaves = np.where(stretch.count, chain.leaves_at(oldest), NEVER).min(axis=1)
    np.minimum(valid_until, leaves, out=valid_until)
    end = stretch.end[:, 0]
    following = key.take(end, mode="clip")
    is_own = (end < len(key)) & (following >> _OWNER_BITS == np.arange(len(end)))
    enters = np.where(is_own, chain.enters_at(following & mask), NEVER)
    np.minimum(valid_until, enters, out=valid_until)


def _appearances(
    valid_until: Integers, chain: Chain, hidden: Integers, owner: Integers | None
) -> None:
    """Lower `valid_until` to when an event that has not arrived yet enters a window."""
    ts, arrivals = hidden[TS], arrivals_of(hidden)
    appears = np.maximum(chain.enters_at(ts), arrivals)
    leaves = chain.leaves_at(ts[:, None]).max(axis=1)
    moments = np.where(appears < leaves, appears, NEVER)
    if owner is None:
        valid_until[0] = min(int(valid_until[0]), int(moments.min()))
    else:
        np.minimum.at(valid_until, owner, moments)


def _side_by_side(parts: list[Partials]) -> Partials:
    """Partial results of several chains as one: their windows side by side."""
    if len(parts) == 1:
        return parts[0]
    joined: dict[str, npt.NDArray[np.generic] | None] = {}
    for name in Partials._fields[:-1]:
        arrays = [getattr(part, name) for part in parts]
        is_given = arrays[0] is not None
        joined[name] = np.concatenate(arrays, axis=1) if is_given else None
    return Partials(**joined, is_small=parts[0].is_small)  # type: ignore[arg-type]
