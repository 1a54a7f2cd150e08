"""What can be wrong with a request for windowed features of the past."""

from __future__ import annotations

from hotplate.errors import HotplateError

__all__ = ["TrainingError"]


class TrainingError(HotplateError):
    """Windowed features cannot be computed as asked.

    The message names the view or the file, what is wrong and what to do about it.
    """

    def __init__(self, *, where: str, problem: str, fix: str) -> None:
        self.where = where
        self.problem = problem
        self.fix = fix
        super().__init__(f"{where}: {problem}. {fix}")
