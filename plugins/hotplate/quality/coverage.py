"""Referential coverage: which entities of one view another one knows."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import pandas as pd

from hotplate.quality.check import Asking
from hotplate.quality.declared import Covered
from hotplate.quality.derive import covered
from hotplate.quality.errors import QualityError
from hotplate.quality.frames import Frames
from hotplate.quality.outcome import ERROR, FAILED, PASSED, Outcome, masked

if TYPE_CHECKING:
    from hotplate.quality.gx import Judge

__all__ = ["coverage", "entities_of"]


def entities_of(frames: Frames, keys: Collection[str]) -> pd.Series:
    """The distinct entities of a table: values of its key, or tuples of several.

    Raises:
        KeyError: a key is no column of it.
    """
    names = list(keys)
    for name in names:
        if name not in frames.schema.names:
            raise KeyError(name)
    distinct = frames.read(names).group_by(names).aggregate([]).drop_null()
    if len(names) == 1:
        return distinct.column(0).to_pandas()
    rows = zip(*(distinct.column(name).to_pylist() for name in names), strict=True)
    return pd.Series(list(rows), dtype=object)


def coverage(
    asking: Asking, frames: Frames, one: Covered, other: Frames, keys: Collection[str], judge: Judge
) -> Outcome:
    """Judge whether the entities of a view are known to another one.

    Args:
        asking: about the view.
        frames: its rows.
        one: what is declared.
        other: rows of the other view.
        keys: of the other view.
    """
    from hotplate.quality.gx import known, made

    subject = asking.subject
    column = ", ".join(keys)
    expected = covered(column, one)
    try:
        mine, theirs = entities_of(frames, keys), entities_of(other, keys)
    except KeyError as error:
        problem = f"there is no column {error.args[0]}"
        kind = made(expected).configuration.type
        return Outcome(
            subject.name, column, "covered", kind, expected.says, ERROR, observed=problem
        )
    with known({one.by: theirs}):
        (verdict,) = judge(pd.DataFrame({column: mine}), [made(expected)])
    if verdict.problem:
        raise QualityError(
            where=f"coverage of {subject.name!r} by {one.by!r}",
            problem=verdict.problem,
            fix="Keys of the two views must be of one type.",
        )
    hidden = {column} if asking.hidden & set(keys) else set()
    values = () if verdict.is_good else verdict.values
    return Outcome(
        subject.name,
        column,
        "covered",
        verdict.name,
        expected.says,
        PASSED if verdict.is_good else FAILED,
        share=verdict.share,
        failing=verdict.failing,
        of=verdict.of,
        examples=tuple(masked(value, hidden, column) for value in values),
    )
