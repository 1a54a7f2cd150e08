"""Which field, or which rounding, splits inputs into many keys without changing the score.

From rows that were scored. Two ways are tried, and that with fewer keys is told. One coarsens the
declared key step by step, by the change that joins the most keys (a field rounded to fewer places,
or left out) and under which no key holds scores that differ by more than a tolerance. Where every
input has a key of its own, nothing can be learned so: hence the other way begins with one key for
all, refines it by what explains most of the scores' variance for the fewest keys, until no key
holds scores that differ, and then coarsens that.

What is said is a property of these rows, and keys that only one row has prove nothing: take enough
of them, and watch the change with shadow checks afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from hotplate.outputs.batch import Batch, batch_of
from hotplate.outputs.errors import OutputError
from hotplate.outputs.inputs import InputField, InputSchema

__all__ = ["Advice", "Change", "advise", "schema_of"]

_LEVELS: Final = 7
_LEAST_DECIMALS: Final = -6
_SEARCHED: Final = 20_000
_KINDS: Final = {"f": "float", "i": "int", "u": "int", "b": "bool", "M": "time"}


@dataclass(frozen=True)
class Change:
    """One change of the key, on top of those before it.

    Attributes:
        field: which field.
        decimals: to how many places it is rounded then; None: it is left out.
        keys: distinct keys then.
        reuse: share of rows whose key an earlier row had.
        spread: by how much scores of one key differ at the most.
    """

    field: str
    decimals: int | None
    keys: int
    reuse: float
    spread: float

    @property
    def what(self) -> str:
        """In words."""
        if self.decimals is None:
            return f"leave out {self.field}"
        return f"round {self.field} to {self.decimals} places"


@dataclass(frozen=True)
class Advice:
    """What `advise` found.

    Attributes:
        rows: that were looked at.
        keys: distinct ones, as declared.
        reuse: share of rows whose key an earlier row had: what a cache without a ttl would answer.
        spread: by how much scores of one key differ, as declared: more than the tolerance says
            that the declared rounding is too coarse already.
        changes: worth making, in this order.
        refused: the next change, which would join the most keys, but changes scores; None where
            there is none.
        left_out: rows that were not looked at, because a score is no number: none is kept.
    """

    rows: int
    keys: int
    reuse: float
    spread: float
    changes: tuple[Change, ...]
    refused: Change | None
    left_out: int = 0


def schema_of(frame: pd.DataFrame, without: Sequence[str] = (), decimals: int = 4) -> InputSchema:
    """The columns of a frame as inputs, in their order; text where they are nothing else.

    Raises:
        OutputError: no column is left.
    """
    fields = []
    for name in frame.columns:
        if name in without:
            continue
        kind: Any = _KINDS.get(getattr(frame[name].dtype, "kind", "O"), "text")
        fields.append(InputField(str(name), kind, decimals))
    return InputSchema(tuple(fields))


def advise(
    inputs: Any, scores: Any, schema: InputSchema, *, tolerance: float = 5e-5, least: float = 0.01
) -> Advice:
    """Look for changes of the key that join inputs of one score.

    Args:
        inputs: rows in any form that `OutputCache.score` takes.
        scores: (rows,) or (rows, columns), what the model answered.
        schema: how they are keyed now.
        tolerance: by how much scores of one key may differ; half a unit of the fourth place, as
            shadow checks have it, if left out.
        least: share of all rows by which a change must raise the reuse.

    Raises:
        OutputError: there are no rows, scores are no numbers or of another count, or the inputs
            are not of the schema.
    """
    batch = batch_of(inputs, schema.names, schema.lists)
    given = np.asarray(scores)
    if given.dtype.kind not in "fiub":
        raise OutputError(
            where="scores", problem=f"are {given.dtype}", fix="Give what the model answered."
        )
    given = given.astype(np.float64)
    if not batch.count or given.ndim == 0 or len(given) != batch.count:
        raise OutputError(
            where="scores",
            problem=f"are {given.size:,} for {batch.count:,} rows",
            fix="Give at least one row, and a score for each.",
        )
    found = given.reshape(batch.count, -1)
    is_number = np.isfinite(found).all(1)
    left_out = int((~is_number).sum())
    if left_out:  # the cache keeps none of them
        if left_out == batch.count:
            raise OutputError(
                where="scores", problem="are all no numbers", fix="Give what the model answered."
            )
        found, batch = (
            found[is_number],
            batch_of(batch.rows(np.flatnonzero(is_number)), schema.names, schema.lists),
        )
    some = _Search(batch, found, schema)
    if batch.count > _SEARCHED:  # what is found on some of the rows is checked on all of them
        places = np.sort(np.random.default_rng(0).choice(batch.count, _SEARCHED, replace=False))
        few = batch_of(batch.rows(places), schema.names, schema.lists)
        some = _Search(few, found[places], schema)
    every = _Search(batch, found, schema)
    declared = every.declared
    keys, spread = every.look(declared)
    limit = max(tolerance, spread)
    best = some.coarsened(declared, limit)
    grown = some.grown(limit)
    if grown is not None:
        grown = some.coarsened(grown, limit)
        if some.look(grown)[0] < some.look(best)[0]:
            best = grown
    changes = every.steps(declared, best)
    if changes and (
        changes[-1].spread > limit or changes[-1].reuse < 1 - keys / batch.count + least
    ):
        best, changes = declared, []
    worse = [one for key in some.coarser(best) if (one := every.change(best, key)).spread > limit]
    return Advice(
        batch.count,
        keys,
        1 - keys / batch.count,
        spread,
        tuple(changes),
        min(worse, key=lambda one: one.keys, default=None),
        left_out,
    )


_Key: TypeAlias = dict[str, int | None]
"""Field -> places, None where it is no float."""


class _Search:
    """Looks at rows under keys."""

    def __init__(self, batch: Batch, scores: npt.NDArray[np.float64], schema: InputSchema) -> None:
        self._batch, self._scores = batch, scores
        self._fields = {field.name: field for field in schema.fields}
        self._codes: dict[tuple[str, int | None], npt.NDArray[np.intp]] = {}
        self.declared: _Key = {
            field.name: _places(field) if field.kind == "float" else None for field in schema.fields
        }

    def _code(self, name: str, decimals: int | None) -> npt.NDArray[np.intp]:
        """A field as one number a row, equal where its code is."""
        found = self._codes.get((name, decimals))
        if found is None:
            field = self._fields[name]
            if decimals is not None and (decimals != _places(field) or field.decimals is not None):
                field = replace(field, decimals=decimals)
            codes = field.codes(self._batch.required(name), self._batch.count)
            unique: Any = np.unique(codes, axis=0, return_inverse=True)[1]
            found = self._codes[name, decimals] = np.asarray(unique, np.intp).ravel()
        return found

    def _group(self, key: _Key) -> npt.NDArray[np.intp]:
        return _joined([self._code(*one) for one in key.items()], self._batch.count)

    def look(self, key: _Key) -> tuple[int, float]:
        """Distinct keys, and by how much scores of one of them differ."""
        group = self._group(key)
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        scores = self._scores[order]
        width = np.maximum.reduceat(scores, starts) - np.minimum.reduceat(scores, starts)
        return len(starts), float(width.max())

    def _left(self, key: _Key) -> tuple[int, float]:
        """Distinct keys, and the variance of the scores that is left in them, as a sum."""
        group = self._group(key)
        sizes = np.bincount(group)
        left = 0.0
        for column in (self._scores - np.mean(self._scores, 0)).T:
            means = np.bincount(group, column) / sizes
            left += float(((column - means[group]) ** 2).sum())
        return len(sizes), left

    def coarser(self, key: _Key) -> list[_Key]:
        """Every key that is coarser in one field."""
        found = []
        for name, decimals in key.items():
            found.append({other: places for other, places in key.items() if other != name})
            found += [{**key, name: places} for places in _below(decimals)]
        return found

    def coarsened(self, key: _Key, limit: float) -> _Key:
        """A key, as coarse as it can be."""
        keys = self.look(key)[0]
        while True:
            # of equal ones the finer: it says less about inputs that were not seen
            looked = [
                (*self.look(one), number, one) for number, one in enumerate(self.coarser(key))
            ]
            fitting = [one for one in looked if one[1] <= limit and one[0] < keys]
            if not fitting:
                return key
            keys, _, _, key = min(fitting, key=lambda one: (one[0], -len(one[3]), one[2]))

    def grown(self, limit: float) -> _Key | None:
        """A key of as little as is needed to tell scores apart; None where nothing does."""
        key: _Key = {}
        keys, left = self._left(key)
        while self.look(key)[1] > limit:
            best = None
            for name, most in self.declared.items():
                for decimals in (most, *_below(most)):
                    before = key.get(name)
                    if name in key and (decimals is None or before is None or decimals <= before):
                        continue
                    finer = {**key, name: decimals}
                    now, rest = self._left(finer)
                    if now > keys and (best is None or (left - rest) / (now - keys) > best[0]):
                        best = ((left - rest) / (now - keys), finer, now, rest)
            if best is None:
                return None
            _, key, keys, left = best
        return key

    def steps(self, declared: _Key, best: _Key) -> list[Change]:
        """The changes that lead from one key to another."""
        changes, key = [], dict(declared)
        for name, places in declared.items():
            if name not in best:
                now = {other: one for other, one in key.items() if other != name}
            elif best[name] != places:
                now = {**key, name: best[name]}
            else:
                continue
            changes.append(self.change(key, now))
            key = now
        return changes

    def change(self, before: _Key, after: _Key) -> Change:
        """The one field in which two keys differ, with the numbers of the second."""
        name = next(one for one in before if before[one] != after.get(one, "none"))
        keys, spread = self.look(after)
        return Change(name, after.get(name), keys, 1 - keys / self._batch.count, spread)


def _places(field: InputField) -> int:
    return 15 if field.decimals is None else field.decimals


def _below(decimals: int | None) -> list[int]:
    """Coarser roundings, the finest first."""
    if decimals is None:
        return []
    return list(range(decimals - 1, max(decimals - _LEVELS, _LEAST_DECIMALS - 1), -1))


def _joined(parts: Sequence[npt.NDArray[np.intp]], count: int) -> npt.NDArray[np.intp]:
    """One number a row, equal where all parts are, from 0 on without gaps."""
    group = np.zeros(count, np.intp)
    for part in parts:
        both = group * (int(part.max()) + 1) + part
        group = np.unique(both, return_inverse=True)[1].astype(np.intp).ravel()
    return group
