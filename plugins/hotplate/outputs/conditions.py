"""Conditions: what a rule says of a row, of its score and of the time of day.

A condition is a mapping, as it stands in feature_store.yaml.

    {field: amount, above: 1000}            below, at_least, at_most, is, in, between: [low, high]
    {score: {between: [0.4, 0.6]}}          the model's output; {score: ..., column: 1} of several
    {field: kind, in: [payout, refund]}
    {field: device_age_days, missing: true}
    {hours: [22, 6], zone: Europe/Berlin}   the time of day at which it is asked
    {any: [...]}, {all: [...]}, {not: ...}

Fields are columns of the batch: what the model reads, and whatever else is given with it (what is
known of the entity, what the decision is for).

Conditions know three answers: yes, no, and unknown. A value that is missing makes a comparison
unknown, and so does one that cannot be compared; `not` of unknown is unknown.

Each is answered in two ways, which a property test holds against each other: for a whole batch in
arrays, and for one row in plain Python, which is a part of every hit.
"""

from __future__ import annotations

import operator as operators
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from hotplate.outputs.batch import BESIDE, Batch
from hotplate.outputs.comparable import Answer, Values, plain_cell, plain_number
from hotplate.outputs.errors import OutputError

__all__ = ["Asked", "Condition", "Judge", "Row", "parsed"]

Row: TypeAlias = Sequence[float] | npt.NDArray[Any]
"""The numbers of one row, or of what it was answered."""
Judge: TypeAlias = Callable[[Row, Row, int], bool | None]
"""A condition, of a row, its score and the time of day; None is unknown."""

_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "above": operators.gt,
    "at_least": operators.ge,
    "below": operators.lt,
    "at_most": operators.le,
}
# what is said of a number in one place of a row; every call in a call is felt in a hit
_OF_PLACE: Final[dict[str, Callable[[int, Any], Judge]]] = {
    "above": lambda place, value: (
        lambda row, scores, wall_ns: cell > value if (cell := row[place]) == cell else None
    ),
    "at_least": lambda place, value: (
        lambda row, scores, wall_ns: cell >= value if (cell := row[place]) == cell else None
    ),
    "below": lambda place, value: (
        lambda row, scores, wall_ns: cell < value if (cell := row[place]) == cell else None
    ),
    "at_most": lambda place, value: (
        lambda row, scores, wall_ns: cell <= value if (cell := row[place]) == cell else None
    ),
    "is": lambda place, value: (
        lambda row, scores, wall_ns: cell == value if (cell := row[place]) == cell else None
    ),
}
_COMPARED: Final = (*_OPERATORS, "is", "in", "between", "missing")
_SCORE: Final = "score"
_YES: Final = np.ones(1, np.bool_)
_NO: Final = np.zeros(1, np.bool_)


@dataclass(frozen=True)
class Asked:
    """What rules are judged on.

    Attributes:
        batch: the inputs.
        scores: numbers (rows, columns), or None where there are none yet.
        wall_ns: the time of day.
    """

    batch: Batch
    scores: npt.NDArray[Any] | None
    wall_ns: int


class Condition:
    needs_score = False

    def answer(self, asked: Asked) -> Answer:
        """Yes and unknown, for each row."""
        raise NotImplementedError

    def for_row(self, places: Mapping[str, int], beside: Mapping[str, int]) -> Judge:
        """What gives the same answer for one row.

        Raises:
            KeyError: it needs a field that has no place.
        """
        raise NotImplementedError


class _Every(Condition):
    """All of several, or any of them."""

    def __init__(self, parts: Sequence[Condition], *, is_any: bool) -> None:
        self._parts, self._is_any = parts, is_any
        self.needs_score = any(part.needs_score for part in parts)

    def answer(self, asked: Asked) -> Answer:
        answers = [part.answer(asked) for part in self._parts]
        yes, unknown = answers[0]
        no = ~yes & ~unknown
        for more, unsure in answers[1:]:
            is_no = ~more & ~unsure
            if self._is_any:
                yes, no = yes | more, no & is_no
            else:
                yes, no = yes & more, no | is_no
        return yes, ~yes & ~no

    def for_row(self, places: Mapping[str, int], beside: Mapping[str, int]) -> Judge:
        judges, is_any = tuple(part.for_row(places, beside) for part in self._parts), self._is_any

        def judge(row: Row, scores: Row, wall_ns: int) -> bool | None:
            found: bool | None = not is_any
            # all of them, as in a batch: one that cannot be judged is an error
            for one in judges:
                said = one(row, scores, wall_ns)
                if said is None:
                    if found is not is_any:
                        found = None
                elif said == is_any:
                    found = is_any
            return found

        return judge


class _Not(Condition):
    def __init__(self, part: Condition) -> None:
        self._part = part
        self.needs_score = part.needs_score

    def answer(self, asked: Asked) -> Answer:
        yes, unknown = self._part.answer(asked)
        return ~yes & ~unknown, unknown

    def for_row(self, places: Mapping[str, int], beside: Mapping[str, int]) -> Judge:
        inner = self._part.for_row(places, beside)

        def judge(row: Row, scores: Row, wall_ns: int) -> bool | None:
            said = inner(row, scores, wall_ns)
            return None if said is None else not said

        return judge


class _Hours(Condition):
    """A part of the day, which may go past midnight."""

    def __init__(self, start: float, end: float, zone: str, where: str) -> None:
        self._start_s, self._end_s = round(start * 3_600), round(end * 3_600)
        self._offset: tuple[int | None, int] = (
            None,
            0,
        )  # a quarter of an hour since 1970, and what the zone adds in it, s
        try:
            self._zone = None if zone == "UTC" else ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise OutputError(
                where=where, problem=f"names no time zone: {zone!r}", fix="Write Europe/Berlin."
            ) from error

    def answer(self, asked: Asked) -> Answer:
        count = asked.batch.count
        return np.full(count, self._is_inside(asked.wall_ns)), np.zeros(count, np.bool_)

    def for_row(self, places: Mapping[str, int], beside: Mapping[str, int]) -> Judge:
        start_s, end_s, is_inside = self._start_s, self._end_s, self._is_inside
        if self._zone is not None or start_s > end_s:
            return lambda row, scores, wall_ns: is_inside(wall_ns)
        return lambda row, scores, wall_ns: start_s <= wall_ns // 1_000_000_000 % 86_400 < end_s

    def _is_inside(self, wall_ns: int) -> bool:
        wall_s = wall_ns // 1_000_000_000
        if self._zone is not None:
            wall_s += self._offset_s(wall_s)
        second = wall_s % 86_400
        if self._start_s <= self._end_s:
            return self._start_s <= second < self._end_s
        return second >= self._start_s or second < self._end_s

    def _offset_s(self, wall_s: int) -> int:
        # zones change their clocks on the quarter of an hour; to ask them takes a microsecond
        quarter, offset_s = self._offset
        if quarter != wall_s // 900:
            quarter = wall_s // 900
            offset = datetime.fromtimestamp(wall_s, self._zone).utcoffset()
            offset_s = 0 if offset is None else round(offset.total_seconds())
            self._offset = quarter, offset_s
        return offset_s


class _Compared(Condition):
    """A field, or the score, against values that the rule names."""

    def __init__(self, name: str, column: int | None, said: Mapping[str, Any], where: str) -> None:
        self._name, self._column = name, column
        self.needs_score = column is not None
        ((self._operator, self._value),) = said.items()
        self._check(where)
        self._said_of_number = self._test(is_text=False)
        self._said_of_text = self._test(is_text=True)

    def _check(self, where: str) -> None:
        operator, value = self._operator, self._value
        is_list = isinstance(value, (list, tuple, set, frozenset))
        if operator in ("in", "between") and not is_list:
            problem = f"{operator!r} is not followed by a list"
        elif operator == "between" and len(value) != 2:
            problem = "'between' takes two values: the least and the most"
        elif operator == "missing" and value is not True:
            problem = "'missing' can only be true; write not: {...} for the other"
        elif operator not in ("in", "between") and (is_list or isinstance(value, Mapping)):
            problem = f"{operator!r} takes one value"
        else:
            if is_list:
                self._value = tuple(map(plain_number, value))
            else:
                self._value = plain_number(value)
            return
        raise OutputError(where=where, problem=problem, fix="See hotplate.outputs.conditions.")

    def answer(self, asked: Asked) -> Answer:
        if self._column is not None:
            assert asked.scores is not None
            if self._column >= asked.scores.shape[1]:
                raise OutputError(
                    where=f"column {self._column} of the score",
                    problem=f"is not there: the model answers {asked.scores.shape[1]}",
                    fix="Name one that is.",
                )
            found: Any = asked.scores[:, self._column]
        else:
            found = asked.batch.required(self._name, "field", BESIDE)
        if asked.batch.count == 1 and (cell := plain_cell(found)) is not None:
            said = (self._said_of_text if type(cell) is str else self._said_of_number)(cell)
            return (_YES if said else _NO), (_YES if said is None else _NO)
        values = Values(found)
        if self._operator == "missing":
            return values.missing, np.zeros(asked.batch.count, np.bool_)
        yes, incomparable = self._compare(values)
        unknown = values.missing | incomparable
        return yes & ~unknown, unknown

    def for_row(self, places: Mapping[str, int], beside: Mapping[str, int]) -> Judge:
        said, of_missing = self._said_of_number, True if self._operator == "missing" else None
        if self._column is not None:
            column = self._column

            def of_score(row: Row, scores: Row, wall_ns: int) -> bool | None:
                number = float(scores[column])
                return said(number) if number == number else of_missing

            return of_score
        if self._name not in places:
            further, of_text = beside[self._name], self._said_of_text

            def of_beside(row: Row, scores: Row, wall_ns: int) -> bool | None:
                cell = row[further]
                return of_text(cell) if type(cell) is str else said(cell)

            return of_beside
        place, value = places[self._name], self._value
        if self._operator in _OF_PLACE and type(value) in (int, float):
            return _OF_PLACE[self._operator](place, value)

        def of_field(row: Row, scores: Row, wall_ns: int) -> bool | None:
            number = row[place]
            return said(number) if number == number else of_missing

        return of_field

    def _test(self, *, is_text: bool) -> Callable[[Any], bool | None]:
        """What is said of a number that is not missing, or of a text; None is unknown."""
        word, value = self._operator, self._value
        if word == "missing":
            return lambda cell: False
        if word == "in":
            alike = [one for one in value if isinstance(one, str) == is_text]
            return (lambda cell: cell in alike) if alike else (lambda cell: None)
        bounds = value if word == "between" else (value,)
        if any(isinstance(one, str) != is_text for one in bounds):
            return lambda cell: None
        if word == "is":
            return lambda cell: bool(cell == value)
        if any(isinstance(one, bool) for one in bounds):
            return lambda cell: None
        if word == "between":
            low, high = value
            return lambda cell: low <= cell <= high
        order = _OPERATORS[word]
        return lambda cell: order(cell, value)

    def _compare(self, values: Values) -> Answer:
        if self._operator in ("is", "in"):
            wanted = self._value if self._operator == "in" else (self._value,)
            return values.among(wanted)
        if self._operator == "between":
            (low, lower), (high, higher) = (
                values.compared(operators.ge, self._value[0]),
                values.compared(operators.le, self._value[1]),
            )
            return low & high, lower | higher
        return values.compared(_OPERATORS[self._operator], self._value)


def parsed(said: Any, where: str) -> Condition:
    if not isinstance(said, Mapping):
        raise _unreadable(where, said)
    given = dict(said)
    for word in ("any", "all"):
        if word in given:
            parts = given.pop(word)
            if given or not isinstance(parts, (list, tuple)) or not parts:
                raise _unreadable(where, said)
            return _Every([parsed(part, where) for part in parts], is_any=word == "any")
    if "not" in given:
        part = given.pop("not")
        if given:
            raise _unreadable(where, said)
        return _Not(parsed(part, where))
    if "hours" in given:
        hours, zone = given.pop("hours"), given.pop("zone", "UTC")
        is_right = isinstance(hours, (list, tuple)) and len(hours) == 2 and not given
        if not is_right or not all(
            isinstance(one, (int, float)) and 0 <= one <= 24 for one in hours
        ):
            raise _unreadable(where, said)
        return _Hours(float(hours[0]), float(hours[1]), str(zone), where)
    column: int | None = None
    if _SCORE in given:
        inner = given.pop(_SCORE)
        column = given.pop("column", 0)
        if given or not isinstance(inner, Mapping) or not isinstance(column, int) or column < 0:
            raise _unreadable(where, said)
        name, given = _SCORE, dict(inner)
    else:
        name = given.pop("field", None)
        if not isinstance(name, str):
            raise _unreadable(where, said)
    if len(given) != 1 or next(iter(given)) not in _COMPARED:
        raise _unreadable(where, said)
    return _Compared(name, column, given, where)


def _unreadable(where: str, said: Any) -> OutputError:
    shown = sorted(said) if isinstance(said, Mapping) else type(said).__name__
    return OutputError(
        where=where,
        problem=f"has a condition that cannot be read: {shown}",
        fix="Write {field: NAME, above: VALUE} (or at_least, below, at_most, is, in, between, "
        "missing), {score: {above: VALUE}}, {hours: [22, 6]}, {any: [...]}, {all: [...]} or "
        "{not: ...}.",
    )
