"""Batches of inputs in any of their usual containers, by columns and by rows.

A batch stays in the container in which it came: the model is given rows of it, chosen, in the same
container.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from hotplate.outputs.errors import OutputError

__all__ = ["BESIDE", "Batch", "batch_of"]

_Array: TypeAlias = npt.NDArray[Any]
_Rows: TypeAlias = npt.NDArray[np.intp]
BESIDE: Final = "Give it beside what the model reads."
_GIVE: Final = "Give it, or a column of nulls where it is not known."


class Batch:
    """Rows of inputs.

    Attributes:
        given: as they came.
        count: how many there are.
        is_single: whether one row came by itself, as a mapping.
    """

    def __init__(
        self,
        given: Any,
        count: int,
        names: Sequence[str],
        *,
        is_single: bool,
        beside: Mapping[str, Any] | None = None,
    ) -> None:
        self.given = given
        self.count = count
        self.is_single = is_single
        self._names = tuple(names)
        self._beside = beside or {}

    @property
    def matrix(self) -> _Array | None:
        """The batch itself, where it is a matrix in the model's order."""
        return self.given if isinstance(self.given, np.ndarray) else None

    @property
    def _may_lack(self) -> bool:
        """Whether a name that is not there is a value that is missing: so it is in rows."""
        return self.is_single or isinstance(self.given, Sequence)

    def column(self, name: str) -> Any:
        """A column as an array or a list; None where there is none of that name."""
        if name in self._beside:
            return self._beside[name]
        given = self.given
        if isinstance(given, np.ndarray):
            return given[:, self._names.index(name)] if name in self._names else None
        if isinstance(given, pd.DataFrame):
            return given[name] if name in given.columns else None
        if isinstance(given, (pa.Table, pa.RecordBatch)):
            return given.column(name) if name in given.schema.names else None
        if isinstance(given, Mapping):
            if name not in given:
                return None
            return [given[name]] if self.is_single else given[name]
        if not any(name in row for row in given):
            return None
        return [row.get(name) for row in given]

    def required(self, name: str, where: str = "input", fix: str = _GIVE) -> Any:
        """A column; all missing where rows may lack the name.

        Args:
            name: of the column.
            where, fix: for the error: what it is, and what to do.

        Raises:
            OutputError: there is none of that name.
        """
        found = self.column(name)
        if found is not None:
            return found
        if self._may_lack:
            return [None] * self.count
        raise OutputError(where=f"{where} {name!r}", problem="is not among the columns", fix=fix)

    def with_beside(self, beside: Mapping[str, Any]) -> Batch:
        """The batch with further columns, for rules alone.

        Raises:
            OutputError: one is of another length, or named as what the model reads.
        """
        for name, values in beside.items():
            if name in self._names:
                raise OutputError(
                    where=f"beside {name!r}", problem="is what the model reads", fix="Rename it."
                )
            if not _is_column(values) or len(values) != self.count:
                found = f"{len(values):,} values" if _is_column(values) else "one value"
                raise OutputError(
                    where=f"beside {name!r}",
                    problem=f"has {found} for {self.count:,} rows",
                    fix="Give each row one.",
                )
        return Batch(self.given, self.count, self._names, is_single=self.is_single, beside=beside)

    def part(self, places: _Rows) -> Batch:
        """Some rows, with what is beside them."""
        if len(places) == self.count:
            return self
        beside = {name: _picked(values, places) for name, values in self._beside.items()}
        return Batch(
            self.rows(places), len(places), self._names, is_single=self.is_single, beside=beside
        )

    def rows(self, places: _Rows) -> Any:
        """Some rows, in the same container."""
        given = self.given
        if len(places) == self.count and not self.is_single:
            return given
        if isinstance(given, np.ndarray):
            return given[places]
        if isinstance(given, pd.DataFrame):
            return given.iloc[places]
        if isinstance(given, (pa.Table, pa.RecordBatch)):
            return given.take(pa.array(places))
        if self.is_single:
            return given
        if isinstance(given, Mapping):
            return {name: _picked(values, places) for name, values in given.items()}
        return [given[place] for place in places.tolist()]


def batch_of(given: Any, names: Sequence[str], lists: Sequence[str] = ()) -> Batch:
    """Inputs in any of their usual forms.

    Args:
        given: a matrix (rows, inputs) in the model's order; a DataFrame; an Arrow table or record
            batch; columns by name; a list of rows, each a mapping; or one row, a mapping of values.
        names: the model's inputs, in its order.
        lists: those whose values are lists themselves. Where a mapping holds one value of each of
            the others, it is one row.

    Raises:
        OutputError: it is none of these, or columns differ in length.
    """
    if isinstance(given, np.ndarray):
        if given.ndim != 2 or given.shape[1] != len(names):
            raise OutputError(
                where="inputs",
                problem=f"are an array of shape {given.shape}, and the model reads {len(names)}",
                fix="Give a matrix of a row an input and a column a field, in the model's order.",
            )
        return Batch(given, len(given), names, is_single=False)
    if isinstance(given, pd.DataFrame):
        return Batch(given, len(given), names, is_single=False)
    if isinstance(given, (pa.Table, pa.RecordBatch)):
        return Batch(given, given.num_rows, names, is_single=False)
    if isinstance(given, Mapping):
        return _of_mapping(given, names, lists)
    is_rows = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    if is_rows and all(isinstance(row, Mapping) for row in given):
        return Batch(given, len(given), names, is_single=False)
    raise OutputError(
        where="inputs",
        problem=f"are a {type(given).__name__}",
        fix="Give a matrix, a DataFrame, an Arrow table, columns by name, or rows as mappings.",
    )


def _of_mapping(given: Mapping[str, Any], names: Sequence[str], lists: Sequence[str]) -> Batch:
    sizes = {name: len(value) for name, value in given.items() if _is_column(value)}
    others = [name for name in given if name not in lists]
    if not any(name in sizes for name in others) and (others or not sizes):
        return Batch(given, 1, names, is_single=True)
    alone = [name for name in given if name not in sizes]
    if alone or len(set(sizes.values())) > 1:
        shown = ", ".join(f"{name!r} {sizes.get(name, 'one value')}" for name in given)
        raise OutputError(
            where="inputs",
            problem=f"have columns of different length: {shown}",
            fix="Give each as many values.",
        )
    return Batch(given, next(iter(sizes.values())), names, is_single=False)


def _is_column(value: Any) -> bool:
    if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)):
        return False
    return hasattr(value, "__len__") and not (isinstance(value, np.ndarray) and value.ndim == 0)


def _picked(values: Any, places: _Rows) -> Any:
    if isinstance(values, np.ndarray):
        return values[places]
    if isinstance(values, pd.Series):
        return values.iloc[places]
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values.take(pa.array(places))
    return [values[place] for place in places.tolist()]
