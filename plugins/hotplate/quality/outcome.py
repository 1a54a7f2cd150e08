"""What came of looking at data, and how values are shown that name somebody."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import pandas as pd

__all__ = [
    "ERROR",
    "FAILED",
    "PASSED",
    "SKIPPED",
    "Checked",
    "Outcome",
    "Report",
    "masked",
    "percent",
]

PASSED: Final = "passed"
FAILED: Final = "failed"
ERROR: Final = "error"
SKIPPED: Final = "skipped"
_SALT: Final = os.urandom(16)  # of this process: a mark cannot be looked up in a table of all ids


@dataclass(frozen=True)
class Outcome:
    """What came of one expectation.

    Attributes:
        view: a feature view or table.
        column: its column, or several behind commas; "" for the table as a whole.
        check: which of `CHECKS`, or `own` for one that is written by hand.
        expectation: Great Expectations' name for it.
        says: what it expects, in words.
        status: `passed`, `failed`, `error` (it could not be judged) or `skipped` (another one that
            failed leaves nothing to judge).
        share: of the rows that fail it; None where it is not about rows.
        failing, of: rows that fail it, and rows looked at.
        examples: values that fail it, ids masked.
        observed: what was seen instead, where it is not about rows; or why it was not judged.
        hint: what may lie behind it.
    """

    view: str
    column: str
    check: str
    expectation: str
    says: str
    status: str
    share: float | None = None
    failing: int | None = None
    of: int | None = None
    examples: tuple[str, ...] = ()
    observed: str = ""
    hint: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether it counts against the data."""
        return self.status in (FAILED, ERROR)

    def line(self) -> str:
        """It in one line, as in an error."""
        where = f"{self.view}.{self.column}" if self.column else self.view
        parts = [f"{where}: {self.expectation} ({self.says})"]
        if self.share is not None:
            parts.append(f"{percent(self.share)} of the rows fail it")
        if self.examples:
            parts.append(f"such as {', '.join(self.examples)}")
        elif self.observed:
            parts.append(self.observed)
        return ", ".join(parts) + (f"; {self.hint}" if self.hint else "")


@dataclass(frozen=True)
class Checked:
    """What came of one view or table.

    Attributes:
        view: its name.
        where: its data's place.
        rows: how many were looked at; None where they could not be read.
        seconds: that it took.
        outcomes: of every expectation.
        problem: why its data could not be looked at; "" where it could.
        has_reference: whether a reference said what was before.
    """

    view: str
    where: str
    rows: int | None = None
    seconds: float = 0.0
    outcomes: tuple[Outcome, ...] = ()
    problem: str = ""
    has_reference: bool = False

    @property
    def bad(self) -> tuple[Outcome, ...]:
        """What counts against it."""
        return tuple(one for one in self.outcomes if one.is_bad)

    @property
    def is_good(self) -> bool:
        """Whether nothing counts against it."""
        return not self.problem and not self.bad

    def count(self, status: str) -> int:
        """How many expectations ended so."""
        return sum(one.status == status for one in self.outcomes)


@dataclass(frozen=True)
class Report:
    """What came of a run.

    Attributes:
        project: Feast's.
        moment: the time it was judged by.
        checked: by view, in the order in which they were looked at.
        versions: of what judged.
    """

    project: str
    moment: datetime
    checked: tuple[Checked, ...]
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether nothing counts against any of it."""
        return all(one.is_good for one in self.checked)

    @property
    def bad(self) -> tuple[Outcome, ...]:
        """Everything that counts against it."""
        return tuple(bad for one in self.checked for bad in one.bad)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "project": self.project,
            "moment": self.moment.isoformat(),
            "versions": dict(self.versions),
            "good": self.is_good,
            "views": [
                {
                    "view": one.view,
                    "source": one.where,
                    "rows": one.rows,
                    "seconds": round(one.seconds, 3),
                    "problem": one.problem,
                    "has_reference": one.has_reference,
                    "good": one.is_good,
                    "expectations": [_outcome(outcome) for outcome in one.outcomes],
                }
                for one in self.checked
            ],
        }


def _outcome(one: Outcome) -> dict[str, Any]:
    return {
        "column": one.column,
        "check": one.check,
        "expectation": one.expectation,
        "says": one.says,
        "status": one.status,
        "failing_share": one.share,
        "failing": one.failing,
        "of": one.of,
        "examples": list(one.examples),
        "observed": one.observed,
        "hint": one.hint,
    }


def percent(share: float) -> str:
    """A share, for people: what is there is never shown as nothing."""
    if 0 < share < 0.0001:
        return "under 0.01%"
    if share in (0.0, 1.0) or share >= 0.1:
        return f"{share:.0%}" if share in (0.0, 1.0) else f"{share:.1%}"
    return f"{share:.2%}"


def masked(value: Any, hidden: Collection[str], column: str = "") -> str:
    """A value as it may be shown: those of hidden columns as a mark that is the same for equals.

    Args:
        value: one value, or column -> value of a row.
        hidden: columns whose values name somebody.
        column: of a single value.
    """
    if isinstance(value, Mapping):
        parts = (f"{name}={masked(one, hidden, str(name))}" for name, one in value.items())
        return "{" + ", ".join(parts) + "}"
    if column in hidden and value is not None:
        return f"#{blake2b(repr(value).encode(), digest_size=3, key=_SALT).hexdigest()}"
    if isinstance(value, np.datetime64):
        value = pd.Timestamp(value, tz="UTC")
    if isinstance(value, datetime):
        return value.isoformat(sep=" ").replace("+00:00", "Z")
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
