"""A column as a condition sees it: what is missing in it, and what compares with what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

__all__ = ["Answer", "Mask", "Values", "plain_cell", "plain_number"]

Mask: TypeAlias = npt.NDArray[np.bool_]
Answer: TypeAlias = tuple[Mask, Mask]
"""Yes and unknown, for each row."""


def plain_number(value: Any) -> Any:
    """A number of numpy as Python's own, so that what compares with it says True or False."""
    return value.item() if isinstance(value, np.generic) else value


def plain_cell(found: Any) -> float | str | None:
    """The one value of a column, if it is a plain number or text that is not missing."""
    cell = found.iloc[0] if isinstance(found, pd.Series) else found[0]
    if type(cell) is str:
        return cell
    if isinstance(cell, (int, float, np.integer, np.floating)) and not isinstance(cell, bool):
        number = float(cell)
        return number if number == number else None
    return None


def _kind_of(value: Any) -> type:
    """What a value can be equal to; truth values are numbers here, a day is no instant."""
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return float
    return (
        str if isinstance(value, str) else datetime if isinstance(value, datetime) else type(value)
    )


class Values:
    """A column, with what is missing in it, compared as a whole."""

    def __init__(self, values: Any) -> None:
        if isinstance(values, (pa.Array, pa.ChunkedArray)):
            values = values.to_pandas()
        series = values if isinstance(values, pd.Series) else pd.Series(values)
        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(series.cat.categories.dtype)
        self.missing: Mask = series.isna().to_numpy(np.bool_)
        self._series = series
        is_number = pd.api.types.is_numeric_dtype(series.dtype)
        self.numbers = series.to_numpy(np.float64, na_value=np.nan) if is_number else None

    def compared(self, operator: Callable[[Any, Any], Any], value: Any) -> Answer:
        """Order against one value; what has none with it is unknown."""
        nothing = np.zeros(len(self.missing), np.bool_)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.numbers is not None and is_number:
            return operator(self.numbers, value), nothing
        kind = (int, float, np.number) if is_number else type(value)
        cells = self._series.tolist()
        alike = np.array(
            [isinstance(cell, kind) and not isinstance(cell, bool) for cell in cells], np.bool_
        )
        yes = nothing.copy()
        for place in np.flatnonzero(alike & ~self.missing).tolist():
            yes[place] = bool(operator(cells[place], value))
        return yes, ~alike

    def among(self, wanted: Sequence[Any]) -> Answer:
        """Whether each is one of some values; text is never a number."""
        nothing = np.zeros(len(self.missing), np.bool_)
        if self.numbers is not None:
            numbers = [one for one in wanted if isinstance(one, (int, float))]
            if not numbers:  # a column of numbers, against texts: nobody meant that
                return nothing, ~nothing
            return np.isin(self.numbers, np.array(numbers, np.float64)), nothing
        if pd.api.types.infer_dtype(self._series, skipna=True) in ("string", "empty"):
            texts = [one for one in wanted if isinstance(one, str)]
            if not texts:
                return nothing, ~nothing
            return self._series.isin(texts).to_numpy(np.bool_), nothing
        alike: dict[type, list[Any]] = {}
        for one in wanted:
            alike.setdefault(_kind_of(one), []).append(one)
        unknown = ~nothing
        for place, cell in enumerate(self._series.tolist()):
            some = alike.get(_kind_of(cell))
            if some is not None:
                nothing[place], unknown[place] = cell in some, False
        return nothing, unknown
