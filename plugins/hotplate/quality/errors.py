"""What data quality refuses, and data that fails."""

from __future__ import annotations

from hotplate.errors import HotplateError

__all__ = ["QualityError", "QualityFailed"]


class QualityError(HotplateError):
    """Data cannot be checked as asked: a file, a declaration or a reference is wrong.

    The message names what, what is wrong with it and what to do.
    """

    def __init__(self, *, where: str, problem: str, fix: str) -> None:
        self.where = where
        self.problem = problem
        self.fix = fix
        super().__init__(f"{where}: {problem.rstrip('.')}. {fix}".rstrip())


class QualityFailed(HotplateError):
    """Data was checked and is not what is expected; nothing of it was written.

    The message names the view and, for each expectation that failed, its column, what it expects,
    the share of rows that fail it, and examples, with entity ids masked.

    Attributes:
        view: the feature view.
    """

    def __init__(self, view: str, message: str) -> None:
        self.view = view
        super().__init__(message)
