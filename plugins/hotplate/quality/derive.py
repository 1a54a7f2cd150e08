"""What is expected of a view: from its definition, from a reference, from what the repo says.

Everything here is a plain description; Great Expectations is asked elsewhere.

**Margins.** A reference is one day's data, and the next day's is honest and different:

- *Numbers* may lie outside what was before by half of its width at either end. What was never
  negative stays so; what lay within 0 to 1 is taken for a share and may go up to 1. One row in a
  thousand may lie outside of that, because the largest of many payments is never the last record.
- *Nulls* may be half as many again as before and one in a hundred more; in few rows also what
  chance adds, three standard deviations of it.
- *Texts* of which there were few may be others in one row of a hundred.
- *The median* must lie between what were the 5th and the 95th percentile.
- *Age*: twice the longest time without a row or the age at that time, and two days more; never
  more than the view's own `ttl`.
- *Rows*: at least half as many. *Oldest*: earlier than before by half of the time that the
  reference spans, and by a month. *Order*: what came late before, and one in a hundred more.

**Versions.** Feast takes the row of the latest event time and, among rows of one event time, the
one created last. So two rows of one entity and moment are two versions if they differ in when they
were created, and a tie that nobody can break if they do not. Nothing can have been created before
it happened. An older moment that is created later than a newer one is a late correction: allowed,
and counted, because stores that keep the last row written (SQLite) and pushes would serve it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from hotplate.durations import NO_LIMIT_NS, format_duration
from hotplate.quality.declared import ColumnQuality, Covered, ViewQuality
from hotplate.quality.kinds import NUMBER, NUMERIC, TEXT, TIMESTAMP
from hotplate.quality.kinds import WHOLE as INTEGER
from hotplate.quality.outcome import percent
from hotplate.quality.reference import ColumnProfile, ViewProfile, expected_of
from hotplate.quality.subject import FEATURE, MOMENT, Column, Subject

__all__ = ["BATCH", "PART", "WHOLE", "Expected", "Moment", "covered", "expectations"]

WHOLE: Final = "table"
PART: Final = "part"
BATCH: Final = "batch"

_WIDEN: Final = 0.5
_OUTSIDE: Final = 0.001
_NULLS_MORE: Final = 0.01
_NULLS_TIMES: Final = 1.5
_OTHER_TEXTS: Final = 0.01
_LEAST_ROWS: Final = 0.5
_ENOUGH: Final = 1_000
_DISORDER_MORE: Final = 0.01
_SKEW_NS: Final = 300 * 10**9
_MONTH: Final = timedelta(days=30)
_TWO_DAYS_S: Final = 2 * 86_400.0


@dataclass(frozen=True)
class Expected:
    """One expectation.

    Attributes:
        check: which of `CHECKS`.
        kind: the class of Great Expectations, or of `hotplate.quality.gx`.
        arguments: of it.
        says: what it expects, in words.
        columns: that it reads.
        needs: column -> the kinds that its values must be of to be judged; any where it is missing.
        only_nulls: whether it looks at nothing but which values are null.
        is_moot: whether there is nothing to say of it where a column is not what it needs.
    """

    check: str
    kind: str
    arguments: Mapping[str, Any]
    says: str
    columns: tuple[str, ...]
    needs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    only_nulls: bool = False
    is_moot: bool = False


@dataclass(frozen=True)
class Moment:
    """What is looked at, and when.

    Attributes:
        scope: `table` (all rows), `part` (of some time, as `materialize` reads them) or `batch`
            (pushed rows).
        now: with a time zone.
        as_of: the moment that age counts from; `now`, or an earlier end of a part.
        rows: how many.
    """

    scope: str
    now: datetime
    as_of: datetime
    rows: int


def expectations(
    subject: Subject,
    profile: ViewProfile | None,
    said: ViewQuality | None,
    moment: Moment,
) -> list[Expected]:
    """Everything that is expected, without what is switched off.

    Args:
        subject: the view or table.
        profile: how it was; None where there is no reference.
        said: what the repo's `quality.py` says of it.
        moment: what is looked at, and when.

    Raises:
        QualityError: what a reference says by hand cannot be.
    """
    written = expected_of(subject.name, profile)
    said = said or ViewQuality(subject.name)
    off = {*written.off, *said.off}
    found: list[Expected] = []
    for column in subject.columns:
        if moment.scope == BATCH and column.name == subject.created:
            continue  # a push may leave it out
        own = said.column(column.name).over(written.column(column.name))
        before = None if profile is None else profile.columns.get(column.name)
        made = _of_column(column, own, before, moment)
        found += [one for one in made if one.check not in off | set(own.off)]
    whole = [
        *_times(subject, profile, _merged(said, written), moment),
        *_rows(subject, profile, moment),
    ]
    return found + [one for one in whole if one.check not in off]


def _merged(said: ViewQuality, written: ViewQuality) -> tuple[int | None, int]:
    """(greatest age or None where nothing is said, skew), in nanoseconds."""
    age = said.max_age_ns if said.max_age_ns is not None else written.max_age_ns
    skew = said.skew_ns if said.skew_ns is not None else written.skew_ns
    return age, _SKEW_NS if skew is None else skew


# -- a column -------------------------------------------------------------------------------------


def _of_column(
    column: Column, own: ColumnQuality, before: ColumnProfile | None, moment: Moment
) -> list[Expected]:
    name = column.name
    found = [Expected("exists", "ExpectColumnToExist", {"column": name}, "is there", (name,))]
    found += _types(column)
    if column.role == MOMENT or (column.role not in (FEATURE,) and TIMESTAMP in column.kinds):
        found.append(_stored_as("zone", name, (TIMESTAMP,), "says its time zone"))
    allowed = _nulls(column, own, before, moment)
    if allowed is not None and allowed < 1:
        says = "is never null" if not allowed else f"is null in at most {percent(allowed)}"
        arguments = {"column": name, "mostly": 1 - allowed}
        found.append(
            Expected(
                "nulls",
                "ExpectColumnValuesToNotBeNull",
                arguments,
                says,
                (name,),
                only_nulls=True,
            )
        )
    if column.role != FEATURE:
        return found
    return found + _values(column, own, before, moment)


def _types(column: Column) -> list[Expected]:
    """A column of whole numbers with nulls is one of floats once pandas has written it."""
    if not column.kinds:
        return []
    name, kinds = column.name, column.kinds
    if column.role != FEATURE or kinds != (INTEGER,):
        return [_stored_as("type", name, kinds, f"holds {' or '.join(kinds)}")]
    needs = {name: frozenset({NUMBER})}
    whole = Expected(
        "type",
        "ExpectColumnValuesToBeWhole",
        {"column": name},
        "holds whole numbers, if as floats",
        (name,),
        needs,
        is_moot=True,
    )
    return [_stored_as("type", name, (INTEGER, NUMBER), "holds whole numbers"), whole]


def _stored_as(check: str, name: str, kinds: Sequence[str], says: str) -> Expected:
    arguments = {"column": name, "kinds": list(kinds)}
    return Expected(check, "ExpectColumnToBeStoredAs", arguments, says, (name,))


def _nulls(
    column: Column, own: ColumnQuality, before: ColumnProfile | None, moment: Moment
) -> float | None:
    if own.nulls_share is not None:
        return own.nulls_share
    if column.role != FEATURE:
        return 0.0
    if before is None:
        return None
    share = before.nulls
    chance = 3 * math.sqrt(share * (1 - share) / max(1, moment.rows))
    return min(1.0, _NULLS_TIMES * share + _NULLS_MORE + chance)


def _values(
    column: Column, own: ColumnQuality, before: ColumnProfile | None, moment: Moment
) -> list[Expected]:
    name, found = column.name, []
    least, most = own.range or _range(before)
    if least is not None or most is not None:
        outside = _OUTSIDE if own.outside_share is None else own.outside_share
        if own.range is not None and own.outside_share is None:
            outside = 0.0  # whoever states bounds means them
        says = _between(least, most) + _but_for(outside)
        arguments = {"column": name, "min_value": least, "max_value": most, "mostly": 1 - outside}
        found.append(_numbers("range", "ExpectColumnValuesToBeBetween", arguments, says))
    values = own.values or (None if before is None else before.values)
    if values:
        others = 0.0 if own.values else _OTHER_TEXTS
        if own.outside_share is not None:
            others = own.outside_share
        shown = ", ".join(map(repr, list(values)[:5])) + (", ..." if len(values) > 5 else "")
        asked: dict[str, Any] = {"column": name, "value_set": list(values), "mostly": 1 - others}
        says = f"is one of {shown}{_but_for(others)}"
        needs = {name: frozenset({TEXT})}
        found.append(Expected("values", "ExpectColumnValuesToBeInSet", asked, says, (name,), needs))
    if moment.scope == WHOLE and moment.rows >= _ENOUGH and before is not None:
        found += _median(name, before)
    return found


def _median(name: str, before: ColumnProfile) -> list[Expected]:
    if before.quantiles is None:
        return []
    low, high = before.quantiles[1], before.quantiles[5]
    if low == high:
        return []
    arguments = {"column": name, "min_value": low, "max_value": high}
    says = f"has its median {_between(low, high)}"
    return [_numbers("median", "ExpectColumnMedianToBeBetween", arguments, says)]


def _numbers(check: str, kind: str, arguments: Mapping[str, Any], says: str) -> Expected:
    name = arguments["column"]
    return Expected(check, kind, arguments, says, (name,), {name: NUMERIC})


def _range(before: ColumnProfile | None) -> tuple[float | None, float | None]:
    """What numbers may be after what they were; nothing where they were all one."""
    if before is None or before.range is None:
        return None, None
    least, most = before.range
    if least == most:
        return None, None
    is_whole = "int" in before.stored
    if least >= 0 and most <= 1 and not is_whole:
        return 0.0, 1.0
    room = _WIDEN * (most - least)
    low, high = least - room, most + room
    if is_whole:
        low, high = float(math.floor(low)), float(math.ceil(high))
    if least >= 0:
        low = max(0.0, low)
    if most <= 0:
        high = min(0.0, high)
    return low, high


def _between(least: float | None, most: float | None) -> str:
    if least is None:
        return f"at most {_short(most)}"
    if most is None:
        return f"at least {_short(least)}"
    return f"between {_short(least)} and {_short(most)}"


def _short(number: float | None) -> str:
    assert number is not None
    if float(number).is_integer() and abs(number) < 1e15:
        return f"{int(number):,}"
    return f"{number:,.6g}"


def _but_for(outside: float) -> str:
    return f", but for {percent(outside)}" if outside else ""


# -- the table ------------------------------------------------------------------------------------


def _times(
    subject: Subject,
    profile: ViewProfile | None,
    said: tuple[int | None, int],
    moment: Moment,
) -> list[Expected]:
    name, created, found = subject.moment, subject.created, []
    if name:
        age_ns = _max_age_ns(subject, profile, said[0])
        if age_ns is not None and age_ns < NO_LIMIT_NS and moment.rows:
            bound = _before(moment.as_of, age_ns)
            says = f"has a row of the last {format_duration(_rounded(age_ns))}"
            arguments = {"column": name, "min_value": bound}
            found.append(_moments("fresh", "ExpectColumnMaxToBeBetween", arguments, says))
        latest = moment.now + timedelta(microseconds=said[1] / 1_000)
        arguments = {"column": name, "max_value": latest}
        says = f"lies no more than {format_duration(said[1])} in the future"
        found.append(_moments("future", "ExpectColumnValuesToBeBetween", arguments, says))
        if profile is not None and profile.since is not None and profile.until is not None:
            room = max((profile.until - profile.since) * _WIDEN, _MONTH)
            earliest = profile.since - room
            arguments = {"column": name, "min_value": earliest}
            says = f"is not before {earliest:%Y-%m-%d}"
            found.append(_moments("oldest", "ExpectColumnValuesToBeBetween", arguments, says))
    if name and created and moment.scope != BATCH:
        both = {name: frozenset({TIMESTAMP}), created: frozenset({TIMESTAMP})}
        arguments = {"column_A": created, "column_B": name, "or_equal": True}
        arguments["ignore_row_if"] = "either_value_is_missing"
        kind = "ExpectColumnPairValuesAToBeGreaterThanB"
        says = f"{created} is not before {name}"
        found.append(Expected("created", kind, arguments, says, (created, name), both))
        if subject.keys:
            found.append(_order(subject, profile, both))
    return found


def _order(
    subject: Subject, profile: ViewProfile | None, needs: Mapping[str, frozenset[str]]
) -> Expected:
    names = (*subject.keys, subject.moment, subject.created)
    late = min(1.0, _NULLS_TIMES * (0.0 if profile is None else profile.disorder) + _DISORDER_MORE)
    arguments = {
        "column_list": list(names),
        "mostly": 1 - late,
        "ignore_row_if": "any_value_is_missing",
    }
    says = f"moments of an entity come in the order they became known{_but_for(late)}"
    return Expected("order", "ExpectVersionsToIncrease", arguments, says, names, needs)


def _rows(subject: Subject, profile: ViewProfile | None, moment: Moment) -> list[Expected]:
    found = []
    names = subject.unique
    if moment.scope == BATCH:
        names = tuple(name for name in names if name != subject.created)
    if names:
        says = "occurs once" if len(names) == 1 else "occur once together"
        arguments: dict[str, Any] = {"column": names[0]}
        kind = "ExpectColumnValuesToBeUnique"
        if len(names) > 1:
            kind = "ExpectCompoundColumnsToBeUnique"
            arguments = {"column_list": list(names), "ignore_row_if": "any_value_is_missing"}
        found.append(Expected("unique", kind, arguments, says, names))
    if moment.scope == WHOLE and profile is not None and subject.columns:
        least = math.ceil(profile.rows * _LEAST_ROWS)
        says = f"has at least {least:,} rows"
        one = (subject.columns[0].name,)
        arguments = {"min_value": least}
        found.append(Expected("rows", "ExpectTableRowCountToBeBetween", arguments, says, one))
    return found


def covered(column: str, one: Covered) -> Expected:
    """That the entities of a view are known to another one.

    Args:
        column: that holds the entities.
        one: what is declared.
    """
    arguments = {"column": column, "known_to": one.by, "mostly": one.share}
    says = f"{percent(one.share)} of the entities are known to {one.by}"
    return Expected("covered", "ExpectEntitiesToBeKnown", arguments, says, (column,))


def _moments(check: str, kind: str, arguments: Mapping[str, Any], says: str) -> Expected:
    name = arguments["column"]
    return Expected(check, kind, arguments, says, (name,), {name: frozenset({TIMESTAMP})})


def _max_age_ns(subject: Subject, profile: ViewProfile | None, said: int | None) -> int | None:
    if said is not None:
        return said
    found = [] if subject.max_age_ns is None else [subject.max_age_ns]
    if profile is not None and profile.until is not None:
        found.append(round((2 * max(profile.gap_s, profile.late_s) + _TWO_DAYS_S) * 1e9))
    return min(found, default=None)


def _before(moment: datetime, age_ns: int) -> datetime:
    try:
        return moment - timedelta(microseconds=age_ns / 1_000)
    except OverflowError:
        return datetime.min.replace(tzinfo=moment.tzinfo)


def _rounded(age_ns: int) -> int:
    """To whole minutes, for a sentence."""
    minute = 60 * 10**9
    return max(minute, round(age_ns / minute) * minute) if age_ns >= minute else age_ns
