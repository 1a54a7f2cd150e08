"""What must never be cached, said once, and judged for whole batches.

A rule has a name, a reason, and a condition (see `hotplate.outputs.conditions`). An input for which
a rule holds is computed afresh and not kept. Unknown counts as yes: in doubt nothing is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hotplate.outputs.comparable import Mask
from hotplate.outputs.conditions import Asked, Condition, Judge, Row, parsed
from hotplate.outputs.errors import OutputError

__all__ = ["Rule", "RuleSet", "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """What a rule said of a batch.

    Attributes:
        holds: where it forbids to cache, unknown included.
        unknown: where it could not tell.
        error: what went wrong, where nothing could be judged.
    """

    holds: Mask
    unknown: Mask
    error: str | None = None


@dataclass(frozen=True)
class Rule:
    """One reason not to cache.

    Attributes:
        name: how counters and explanations call it.
        when: the condition; see the module.
        reason: for whoever reads the explanation.
    """

    name: str
    when: Mapping[str, Any]
    reason: str = ""
    _condition: Condition = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise OutputError(
                where="a rule", problem="has no name", fix="Give each rule a name of its own."
            )
        condition = parsed(self.when, f"rule {self.name!r}")
        object.__setattr__(self, "_condition", condition)

    @property
    def needs_score(self) -> bool:
        """Whether it can be judged only when the model has answered."""
        return self._condition.needs_score

    def for_row(self, places: Mapping[str, int], beside: Mapping[str, int]) -> Judge | None:
        """What judges one row of a matrix, without numpy; None where it lacks a field.

        Args:
            places: where in the row each field is.
            beside: where each further column is.
        """
        try:
            return self._condition.for_row(places, beside)
        except KeyError:
            return None

    def judge(self, asked: Asked) -> Verdict:
        """Judge every row of a batch; an error forbids all of them."""
        count = asked.batch.count
        try:
            yes, unknown = self._condition.answer(asked)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is cached
            everything = np.ones(count, np.bool_)
            shown = str(error) if isinstance(error, OutputError) else type(error).__name__
            return Verdict(everything, everything, shown)
        return Verdict(yes | unknown, unknown)


class RuleSet:
    """All rules of a model.

    Args:
        rules: in the order in which they are named; the first that holds is the one that decided.

    Raises:
        OutputError: two have one name.
    """

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        names = [rule.name for rule in rules]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise OutputError(
                where=f"rule {twice!r}", problem="is there twice", fix="Rename one of the two."
            )
        self.rules = tuple(rules)
        self.has_score = any(rule.needs_score for rule in rules)

    @classmethod
    def parse(cls, said: Sequence[Any]) -> RuleSet:
        """Rules as they stand in feature_store.yaml.

        Raises:
            OutputError: one of them cannot be read; the message says which, and why.
        """
        return cls([one if isinstance(one, Rule) else _rule_of(one) for one in said])

    def for_row(
        self, places: Mapping[str, int], beside: Mapping[str, int] | None = None
    ) -> Callable[[Row, Row, int], bool]:
        """What says whether any rule forbids one row of a matrix: made once, called at every hit.

        Args:
            places: where in the row each field is.
            beside: where each further column is, whose cells may be texts.

        Returns:
            A function of the row, of what it was answered, and of the time of day.
        """
        judges = tuple(rule.for_row(places, beside or {}) for rule in self.rules)

        def forbid(row: Row, scores: Row, wall_ns: int) -> bool:
            try:
                for judge in judges:
                    # unknown counts as yes, and so does a field that is not there, as in a batch
                    if judge is None or judge(row, scores, wall_ns) is not False:
                        return True
            except Exception:  # noqa: BLE001 - the long way says what it is
                return True
            return False

        return forbid

    def judge(self, asked: Asked, *, is_again: bool = False) -> list[Verdict]:
        """What each rule says that can be judged by now: all of them once there are scores.

        Args:
            asked: the rows.
            is_again: whether those that need no score have been judged already.
        """
        nothing = Verdict(*(np.zeros(asked.batch.count, np.bool_),) * 2)
        return [
            rule.judge(asked)
            if (asked.scores is not None if rule.needs_score else not is_again)
            else nothing
            for rule in self.rules
        ]


def _rule_of(said: Any) -> Rule:
    if (
        not isinstance(said, Mapping)
        or set(said) - {"name", "when", "reason"}
        or "when" not in said
    ):
        raise OutputError(
            where=f"rule {said.get('name', '')!r}" if isinstance(said, Mapping) else "a rule",
            problem="is not made of a name, a condition and a reason",
            fix="Write {name: large, when: {field: amount, above: 1000}, reason: ...}.",
        )
    return Rule(str(said.get("name") or ""), said["when"], str(said.get("reason") or ""))
