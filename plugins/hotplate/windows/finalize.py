"""From exact partial results to output values: the one place where floats are made.

Everything before this is integers, so the order in which events were added up, tiles, and whether
a value was computed online or offline cannot show. Each output is a fixed sequence of IEEE 754
operations, each correctly rounded, hence the same bits everywhere. With n non-null values of a
column of `scale` decimals in the window, their sum S and sum of squares Q in scaled integers, and
`f` the rounding to the nearest float64 (ties to even):

    count           n, or the number of events
    sum             f(S) / 10**scale
    mean            f(S) / (n * 10**scale)
    min max last first    value / 10**scale
    std             sqrt(f(n*Q - S*S) / (n * (n - 1))) / 10**scale   of the sample; null below n = 2
    approx_count_distinct    a whole number, see `hyperloglog`
    ratio           the value over the first window / the value over the second

An empty window gives count 0, sum 0 and null for all else. Null is NaN. All outputs travel in one
float64 matrix: magnitudes of values are limited to 2**53, so it holds even the whole numbers
exactly; `WindowSpec.output_types` says which columns to turn into int64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from hotplate.windows.exact import (
    Floats,
    Integers,
    as_limbs,
    spread_numerator,
    spread_numerators,
    to_float,
)
from hotplate.windows.hyperloglog import estimate
from hotplate.windows.spec import Aggregate, Column, Window, WindowSpec

__all__ = ["Finalizer", "Partials", "as_slice"]

_SMALL: Final = 2.0**62
_FEW: Final = 64


class Partials(NamedTuple):
    """What is known of the events in each window, in exact integers.

    Shapes end in (W, C): the windows of `Finalizer.windows` and the columns of
    `Finalizer.columns`; N and D count the numeric and the distinct ones among them. What comes
    before is up to the caller: entities, rows, or nothing. A field that `Finalizer.needs` does not
    name may be None.

    Attributes:
        events: events in the window, int64 (..., W).
        n: non-null values, int64 (..., W, C).
        s: sums of scaled values, int64 (..., W, N), or limbs (..., W, N, 3) as in `exact`.
        q: sums of their squares, likewise; limbs if and only if `s` is.
        minimum, maximum, last, first: scaled values, int64 (..., W, N); anything where n is 0.
        powers: sum of 2**-register over the registers of HyperLogLog, float64 (..., W, D).
        zeros: how many of them are 0, int64 (..., W, D).
        is_small: True where the caller knows that `n * q` is below 2**62 everywhere, which saves
            finding out; only looked at where `s` and `q` are int64.
    """

    events: Integers
    n: Integers | None = None
    s: Integers | None = None
    q: Integers | None = None
    minimum: Integers | None = None
    maximum: Integers | None = None
    last: Integers | None = None
    first: Integers | None = None
    powers: Floats | None = None
    zeros: Integers | None = None
    is_small: bool = False


_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "count": ("n",),
    "sum": ("s",),
    "mean": ("n", "s"),
    "min": ("n", "minimum"),
    "max": ("n", "maximum"),
    "std": ("n", "s", "q"),
    "last": ("n", "last"),
    "first": ("n", "first"),
    "approx_count_distinct": ("n", "powers", "zeros"),
}


_OF_NUMBERS: Final[tuple[str, ...]] = ("sum", "mean", "std", "min", "max", "last", "first")
_FIELDS: Final = {"min": "minimum", "max": "maximum", "last": "last", "first": "first"}


class Finalizer:
    """Turns partial results into the outputs of one spec; made once, then called for every read.

    Args:
        spec: the outputs.
        windows: `spec.windows` in another order, that of the W axis of what will be given.

    Attributes:
        windows: the distinct windows, in the order of the W axis of `Partials`.
        columns: the columns that some output uses, in the order of `EventSpec.columns`.
        numeric, distinct: those of them that can be added, and that cannot.
        needs: the fields of `Partials` that must be given.
    """

    def __init__(self, spec: WindowSpec, windows: Sequence[Window] | None = None) -> None:
        self.spec = spec
        self.windows: tuple[Window, ...] = spec.windows if windows is None else tuple(windows)
        functions = {one.function for one in spec.aggregates if one.column}
        self.needs = frozenset({"events"}.union(*(_NEEDS[name] for name in functions)))
        used = {one.column for one in spec.aggregates}
        self.columns = tuple(column for column in spec.event.columns if column.name in used)
        self.numeric = tuple(column for column in self.columns if column.is_numeric)
        self.distinct = tuple(column for column in self.columns if not column.is_numeric)
        self._column_at = _places(self.columns)
        self._numeric_at = _places(self.numeric)
        self._distinct_at = _places(self.distinct)
        self._numeric_in_all = as_slice([self._column_at[one.name] for one in self.numeric])
        self._distinct_in_all = as_slice([self._column_at[one.name] for one in self.distinct])
        self._units = np.array([[10.0**c.scale for c in self.numeric]] * len(self.windows))
        self._is_all_numeric = len(self.numeric) == len(self.columns)
        self._of_numbers = [name for name in _OF_NUMBERS if name in functions]
        self._lay_out()

    def _lay_out(self) -> None:
        """Where the results for all windows and columns lie in one flat row, by function."""
        widths: dict[str, int] = dict.fromkeys(self._of_numbers, len(self.numeric))
        widths |= {"count": len(self.columns), "approx_count_distinct": len(self.distinct)}
        widths["events"] = 1
        asked = {one.function if one.column else "events" for one in self.spec.aggregates}
        at = 0
        self._begins: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        for name in [name for name in widths if name in asked]:
            self._begins[name] = at
            at += widths[name] * len(self.windows)
            self._ends[name] = at
        self._width = at
        self._block = (len(self._of_numbers), len(self.windows), len(self.numeric))
        aggregates = self.spec.aggregates
        self._gather = np.array([self._place(one, one.window) for one in aggregates])
        ratios = [(i, one, one.over) for i, one in enumerate(aggregates) if one.over is not None]
        self._ratios = np.array([i for i, _, _ in ratios], dtype=np.intp)
        self._divisors = np.array(
            [self._place(one, over) for _, one, over in ratios], dtype=np.intp
        )

    def _place(self, one: Aggregate, window: Window) -> int:
        index = self.windows.index(window)
        if not one.column:
            return self._begins["events"] + index
        if one.function == "count":
            columns = self._column_at
        elif one.function == "approx_count_distinct":
            columns = self._distinct_at
        else:
            columns = self._numeric_at
        return self._begins[one.function] + index * len(columns) + columns[one.column]

    def __call__(self, partials: Partials) -> Floats:
        """Outputs float64 (..., K), in the order of the spec's aggregates; null is NaN."""
        lead = partials.events.shape[:-1]
        flat = np.empty((*lead, self._width))
        if self._of_numbers:
            block = flat[..., : math.prod(self._block)].reshape(*lead, *self._block)
            self._numbers(partials, block)
        if "count" in self._begins:
            self._put(flat, "count", _given(partials.n))
        if "approx_count_distinct" in self._begins:
            assert partials.powers is not None
            found = estimate(partials.powers, _given(partials.zeros))
            n = _given(partials.n)[..., self._distinct_in_all]
            self._put(flat, "approx_count_distinct", np.where(n, found, np.nan))
        if "events" in self._begins:
            flat[..., self._begins["events"] : self._ends["events"]] = partials.events
        taken = flat.take(self._gather, axis=-1)
        if self._ratios.size:
            divisors = flat.take(self._divisors, axis=-1)
            divisors[divisors == 0] = np.nan
            taken[..., self._ratios] /= divisors
        return taken

    def _put(self, flat: Floats, name: str, values: Integers | Floats) -> None:
        out = flat[..., self._begins[name] : self._ends[name]]
        out[...] = values.reshape(out.shape)

    def _numbers(self, partials: Partials, block: Floats) -> None:
        """Functions of numeric columns: into `block`, (..., F, W, N)."""
        shape = block.shape[: -len(self._block)] + self._block[1:]
        # numpy is twice as fast on operands of one shape and type as where it has to match them
        whole = self._units if shape == self._units.shape else np.broadcast_to(self._units, shape)
        counts = units = None
        if partials.n is not None:
            counts = partials.n if self._is_all_numeric else partials.n[..., self._numeric_in_all]
            units = np.where(counts, whole, np.nan)  # null where there is no value
        sums = _sums(partials) if partials.s is not None else whole
        for index, name in enumerate(self._of_numbers):
            out = block[..., index, :, :]
            if name == "sum":
                np.divide(sums, whole, out=out)
                continue
            assert counts is not None
            assert units is not None
            if name == "mean":
                np.divide(sums, counts * units, out=out)
            elif name == "std":
                pairs = counts * counts - counts
                spread = _numerators(partials, counts) / np.where(pairs, pairs, np.nan)
                np.divide(np.sqrt(spread, out=spread), whole, out=out)
            else:
                np.divide(_given(getattr(partials, _FIELDS[name])), units, out=out)


def _places(columns: Sequence[Column]) -> dict[str, int]:
    return {column.name: index for index, column in enumerate(columns)}


def as_slice(indices: list[int]) -> slice | list[int]:
    """A slice where one says the same: numpy takes it without copying."""
    if indices and indices == list(range(indices[0], indices[0] + len(indices))):
        return slice(indices[0], indices[-1] + 1)
    return indices


def _given(array: Integers | None) -> Integers:
    if array is None:
        raise TypeError("a field of Partials that Finalizer.needs names is None")
    return array


def _sums(partials: Partials) -> Floats:
    """Sums, each as the float64 nearest to it."""
    s = _given(partials.s)
    return s.astype(np.float64) if s.ndim == partials.events.ndim + 1 else to_float(s)


def _numerators(partials: Partials, counts: Integers) -> Integers | Floats:
    s, q = _given(partials.s), _given(partials.q)
    if s.ndim > partials.events.ndim + 1:
        return spread_numerator(counts, s, q)
    if partials.is_small or _is_small(counts, q):
        numerators: Integers = counts * q - s * s
        return numerators
    if counts.size <= _FEW:  # without numpy
        few = spread_numerators(*(one.ravel().tolist() for one in (counts, s, q)))
        return np.array(few).reshape(counts.shape)
    return spread_numerator(counts, as_limbs(s), as_limbs(q))


def _is_small(counts: Integers, q: Integers) -> bool:
    return not q.size or float(counts.max()) * float(q.max()) < _SMALL
