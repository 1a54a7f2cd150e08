"""One line of the table."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Line"]


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        what: what is measured.
        value: the number, as shown.
        spread: smallest and largest over the rounds, as shown.
        target: what was aimed at.
        is_met: whether it was reached.
        detail: absolute figures, for orientation only.
    """

    what: str
    value: str
    spread: str
    target: str
    is_met: bool | None
    detail: str
