"""What must never be cached, said once, and judged for whole batches.

A rule has a name, a reason, and a condition: a mapping, as it stands in feature_store.yaml.

    {field: amount, above: 1000}            below, at_least, at_most, is, in, between: [low, high]
    {score: {between: [0.4, 0.6]}}          the model's output; {score: ..., column: 1} of several
    {field: kind, in: [payout, refund]}
    {field: device_age_days, missing: true}
    {hours: [22, 6], zone: Europe/Berlin}   the time of day at which it is asked
    {any: [...]}, {all: [...]}, {not: ...}

Fields are columns of the batch: what the model reads, and whatever else is given with it (what is
known of the entity, what the decision is for). An input for which a rule holds is computed afresh
and not kept.

Conditions know three answers: yes, no, and unknown. A value that is missing makes a comparison
unknown, and so does one that cannot be compared; `not` of unknown is unknown. Unknown counts as
yes: in doubt nothing is cached.
"""

from __future__ import annotations

import operator as operators
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from hotplate.outputs.batch import BESIDE, Batch
from hotplate.outputs.errors import OutputError

__all__ = ["Asked", "Judge", "Row", "Rule", "RuleSet", "Verdict"]

_Mask: TypeAlias = npt.NDArray[np.bool_]
_Answer: TypeAlias = tuple[_Mask, _Mask]  # yes, unknown
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
_TESTS: Final[dict[str, Callable[[Any], Callable[[Any], bool]]]] = {  # without a call in a call
    "above": lambda value: lambda cell: cell > value,
    "at_least": lambda value: lambda cell: cell >= value,
    "below": lambda value: lambda cell: cell < value,
    "at_most": lambda value: lambda cell: cell <= value,
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


@dataclass(frozen=True)
class Verdict:
    """What a rule said of a batch.

    Attributes:
        holds: where it forbids to cache, unknown included.
        unknown: where it could not tell.
        error: what went wrong, where nothing could be judged.
    """

    holds: _Mask
    unknown: _Mask
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
    _condition: _Condition = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise OutputError(
                where="a rule", problem="has no name", fix="Give each rule a name of its own."
            )
        condition = _parsed(self.when, f"rule {self.name!r}")
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


# -- conditions -----------------------------------------------------------------------------------


class _Condition:
    needs_score = False

    def answer(self, asked: Asked) -> _Answer:
        """Yes and unknown, for each row."""
        raise NotImplementedError

    def for_row(self, places: Mapping[str, int], beside: Mapping[str, int]) -> Judge:
        """What gives the same answer for one row.

        Raises:
            KeyError: it needs a field that has no place.
        """
        raise NotImplementedError


class _Every(_Condition):
    """All of several, or any of them."""

    def __init__(self, parts: Sequence[_Condition], *, is_any: bool) -> None:
        self._parts, self._is_any = parts, is_any
        self.needs_score = any(part.needs_score for part in parts)

    def answer(self, asked: Asked) -> _Answer:
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
            # all of them, as in a batch: one that cannot be judged is an error
            answers = [one(row, scores, wall_ns) for one in judges]
            if is_any in answers:
                return is_any
            return None if None in answers else not is_any

        return judge


class _Not(_Condition):
    def __init__(self, part: _Condition) -> None:
        self._part = part
        self.needs_score = part.needs_score

    def answer(self, asked: Asked) -> _Answer:
        yes, unknown = self._part.answer(asked)
        return ~yes & ~unknown, unknown

    def for_row(self, places: Mapping[str, int], beside: Mapping[str, int]) -> Judge:
        inner = self._part.for_row(places, beside)

        def judge(row: Row, scores: Row, wall_ns: int) -> bool | None:
            said = inner(row, scores, wall_ns)
            return None if said is None else not said

        return judge


class _Hours(_Condition):
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

    def answer(self, asked: Asked) -> _Answer:
        count = asked.batch.count
        return np.full(count, self._is_inside(asked.wall_ns)), np.zeros(count, np.bool_)

    def for_row(self, places: Mapping[str, int], beside: Mapping[str, int]) -> Judge:
        return lambda row, scores, wall_ns: self._is_inside(wall_ns)

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


class _Compared(_Condition):
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
                self._value = tuple(map(_plain_number, value))
            else:
                self._value = _plain_number(value)
            return
        raise OutputError(where=where, problem=problem, fix="See hotplate.outputs.rules.")

    def answer(self, asked: Asked) -> _Answer:
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
        values = _Values(found)
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
        place = places[self._name]

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
        return _TESTS[word](value)

    def _compare(self, values: _Values) -> _Answer:
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


def _plain_number(value: Any) -> Any:
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


class _Values:
    """A column, with what is missing in it, compared as a whole."""

    def __init__(self, values: Any) -> None:
        if isinstance(values, (pa.Array, pa.ChunkedArray)):
            values = values.to_pandas()
        series = values if isinstance(values, pd.Series) else pd.Series(values)
        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(series.cat.categories.dtype)
        self.missing: _Mask = series.isna().to_numpy(np.bool_)
        self._series = series
        is_number = pd.api.types.is_numeric_dtype(series.dtype)
        self.numbers = series.to_numpy(np.float64, na_value=np.nan) if is_number else None

    def compared(self, operator: Callable[[Any, Any], Any], value: Any) -> _Answer:
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

    def among(self, wanted: Sequence[Any]) -> _Answer:
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


def _parsed(said: Any, where: str) -> _Condition:
    if not isinstance(said, Mapping):
        raise _unreadable(where, said)
    given = dict(said)
    for word in ("any", "all"):
        if word in given:
            parts = given.pop(word)
            if given or not isinstance(parts, (list, tuple)) or not parts:
                raise _unreadable(where, said)
            return _Every([_parsed(part, where) for part in parts], is_any=word == "any")
    if "not" in given:
        part = given.pop("not")
        if given:
            raise _unreadable(where, said)
        return _Not(_parsed(part, where))
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
