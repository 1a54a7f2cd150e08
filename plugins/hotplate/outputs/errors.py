"""What can be wrong with inputs, rules and outputs of a model."""

from __future__ import annotations

from hotplate.errors import HotplateError

__all__ = ["OutputError"]


class OutputError(HotplateError):
    """An input, a rule or a model's answer is not as it must be.

    The message names the field or the rule, what is wrong and what to do about it. It shows no
    value of an input.
    """

    def __init__(self, *, where: str, problem: str, fix: str) -> None:
        self.where = where
        self.problem = problem
        self.fix = fix
        super().__init__(f"{where}: {problem}. {fix}")
