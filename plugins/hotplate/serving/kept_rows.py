"""Rows that outlive their process: written down when it ends, in memory again when the next begins.

A row may be believed after a restart where it could have been served without one. That is so where
nothing but age bounds it: other processes' writes reach a group with `coherence: ttl` and without
a `shared` server no sooner than its ttl ends, whether or not this process was restarted meanwhile.
Rows of all other groups are read again, since what was said of them while nobody listened is lost.

Two things are more than a process that went on would know, and are looked at all the same. What any
process of this host wrote through Hotplate, as `feast materialize` does between stop and start,
leaves a mark (`hotplate.warming.marks`), and no row read before it comes back. And a row comes back
only into the schema, version and key types that it was read in, from the same wrapped store and
loaders, on the same boot of the machine.

A write in this process that happens at the same time wins: it leaves its mark before its keys get
other tokens, and its keys another version than the one that rows of earlier times are filled with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hotplate.codec import stamp_of
from hotplate.contracts import NO_LEASE_NEEDED, View
from hotplate.keys import Key, token_of, values_of
from hotplate.serving.rehearsal import Rehearsal, Warmable
from hotplate.serving.runtime import Runtime
from hotplate.tiers.entries import fingerprint_of
from hotplate.warming.hot_keys import HotKey
from hotplate.warming.traffic import key_of

if TYPE_CHECKING:
    from hotplate.online_store import CachedOnlineStoreConfig

__all__ = ["held", "restore", "source_of"]

_ROWS_A_FILL: Final = 5_000
_NEVER_FORGOTTEN: Final = 0
"""The version of a key in a memory tier that has never been told to forget it."""


def held(runtime: Runtime, most: int, *, with_rows: bool) -> Iterator[HotKey]:
    """What is in memory, the most recently used first.

    Args:
        runtime: of the cache.
        most: how many at the most.
        with_rows: whether rows that may be believed after a restart come along.
    """
    memory = runtime.engine.memory
    fingerprints: dict[View, str | None] = {}
    for key in memory.recent(most):
        view = runtime.domain.view_of(token_of(key))
        if view is None or view.identity.project != runtime.project:
            continue
        if view not in fingerprints:
            is_kept = with_rows and view.is_shareable and not runtime.coherence.hears(view)
            fingerprints[view] = fingerprint_of(view.identity).hex() if is_kept else None
        identity, fingerprint = view.identity, fingerprints[view]
        row = None if fingerprint is None else memory.peek(key)
        text = key_of(values_of(key), "", has_ids=True)
        entity = ",".join(identity.shape.join_keys)
        yield HotKey(entity, identity.view, text, fingerprint, row)


def source_of(settings: CachedOnlineStoreConfig) -> str:
    """A hash of where a deployment reads rows from: the wrapped store, and its loaders."""
    said = json.dumps([settings.store, settings.loaders], sort_keys=True, default=str)
    return blake2b(said.encode(), digest_size=16).hexdigest()


def restore(runtime: Runtime, rehearsal: Rehearsal, kept: pa.Table) -> pa.Table:
    """Put into memory what was kept and may be believed.

    Args:
        runtime: of the cache.
        rehearsal: of its deployment.
        kept: as `HotKeyFiles.read` gives it, the most valuable first.

    Returns:
        What is left of it to be read.
    """
    marks = runtime.marks
    if not marks.is_kept or runtime.coherence.is_shared:
        return kept
    believed: list[tuple[int, Key, bytes]] = []
    for (entity, name, fingerprint), places in _by_schema(kept):
        table = rehearsal.table(entity, name)
        if table is None:
            continue
        view, bound, _ = runtime.resolve(table)
        if not bound.is_cached or bound.lease is not NO_LEASE_NEEDED or not view.is_shareable:
            continue
        if fingerprint != fingerprint_of(view.identity).hex():
            continue
        some = kept.take(places)
        keys = _keys(view, rehearsal.kinds[entity], some["key"])
        # after the keys: who gives the view other tokens has left a mark by then
        written_ns, now_ns = marks.last_ns(name), runtime.clock.now_ns()
        rows = some["row"].to_pylist()
        deadlines_ns = bound.deadlines_ns(rows)
        for place, key, row, deadline_ns in zip(
            places.tolist(), keys, rows, deadlines_ns, strict=True
        ):
            if key is not None and written_ns < stamp_of(row) <= now_ns < deadline_ns:
                believed.append((place, key, row))
    believed.sort(key=itemgetter(0), reverse=True)  # the most valuable last: it goes last, too
    for start in range(0, len(believed), _ROWS_A_FILL):  # others fill in between
        runtime.engine.memory.fill(
            ((key, row, _NEVER_FORGOTTEN) for _, key, row in believed[start:][:_ROWS_A_FILL]),
            runtime.domain.is_current,
        )
    is_left = np.ones(len(kept), bool)
    is_left[[place for place, _, _ in believed]] = False
    return kept.filter(is_left)


def _by_schema(kept: pa.Table) -> Iterator[tuple[list[str], npt.NDArray[np.int64]]]:
    """Where the rows of each entity, view and fingerprint are."""
    at = np.flatnonzero(kept["row"].is_valid().to_numpy())
    if not len(at):
        return
    some = kept.select(["entity", "view", "fingerprint"]).take(at).combine_chunks()
    columns = [column.chunk(0) for column in some.columns]
    code = np.zeros(len(at), np.int64)
    for column in columns:
        code = code * len(column.dictionary) + column.indices.to_numpy(zero_copy_only=False)
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    for number, place in enumerate(first):
        yield [column[int(place)].as_py() for column in columns], at[which == number]


def _keys(view: View, kind: Warmable, texts: pa.ChunkedArray) -> list[Key | None]:
    """The keys of entities as they stand in the files; None for one that is none of the view's."""
    if view.has_integer_keys:
        is_short = view.identity.shape.types == ("int32_val",)
        try:  # a hundred times faster than one by one, and nearly all entities are such
            plain = pc.utf8_trim(texts, "[]").cast(pa.int32() if is_short else pa.int64())
        except pa.ArrowInvalid:
            pass
        else:
            return [None if value is None else view.base + value for value in plain.to_pylist()]
    read = map(kind.values_of, texts.to_pylist())
    return [None if values is None else view.key(values) for values in read]
