"""What can be wrong with what is to be compared."""

from __future__ import annotations

from hotplate.errors import HotplateError

__all__ = ["SkewError"]


class SkewError(HotplateError):
    """Tables cannot be compared as they are.

    The message names the file or the column, what is wrong and what to do about it.
    """

    def __init__(self, *, where: str, problem: str, fix: str) -> None:
        self.where = where
        self.problem = problem
        self.fix = fix
        super().__init__(f"{where}: {problem}. {fix}")
