"""Looks at one view or table: derives what is expected, has it judged, says what came of it."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from hotplate.quality.declared import ViewQuality
from hotplate.quality.derive import BATCH, WHOLE, Expected, Moment, expectations
from hotplate.quality.errors import QualityError
from hotplate.quality.frames import Frames, as_utc
from hotplate.quality.kinds import DATE, DECIMAL, NAIVE, NOTHING, NUMBER, TIMESTAMP, kind_of
from hotplate.quality.kinds import WHOLE as INTEGER
from hotplate.quality.outcome import ERROR, FAILED, PASSED, SKIPPED, Checked, Outcome, masked
from hotplate.quality.reference import ViewProfile
from hotplate.quality.subject import Subject

if TYPE_CHECKING:
    from hotplate.quality.gx import Judge, Verdict

__all__ = ["Asking", "check"]

_CLOSE: Final = 0.6
_FEW_ROWS: Final = 20_000


@dataclass(frozen=True)
class Asking:
    """What a view is judged by.

    Attributes:
        subject: the view.
        now: with a time zone.
        where: its data's place, for people.
        profile: how it was; None where there is no reference.
        said: what the repo's `quality.py` says.
        scope: `table`, `part` or `batch`; see `hotplate.quality.derive.Moment`.
        as_of: the moment that age counts from; `now` if left out.
        shows_ids: whether ids are shown as they are.
    """

    subject: Subject
    now: datetime
    where: str = ""
    profile: ViewProfile | None = None
    said: ViewQuality | None = None
    scope: str = WHOLE
    as_of: datetime | None = None
    shows_ids: bool = False

    @property
    def hidden(self) -> frozenset[str]:
        """The columns of which no value is shown."""
        private = frozenset() if self.said is None else frozenset(self.said.private)
        return frozenset() if self.shows_ids else self.subject.masked | private


@dataclass(frozen=True)
class _Item:
    """An expectation and what is known of it before it is judged."""

    check: str
    expectation: Any
    says: str
    columns: tuple[str, ...] | None
    expected: Expected | None = None

    @property
    def column(self) -> str:
        return "" if self.check == "rows" else ", ".join(self.columns or ())

    @property
    def is_of_schema(self) -> bool:
        """Whether it asks what a column is stored as."""
        return self.expected is not None and self.expected.kind == "ExpectColumnToBeStoredAs"


def check(asking: Asking, frames: Frames, judge: Judge) -> Checked:
    """Judge a view's rows.

    Raises:
        QualityError: what is declared or the reference cannot be, or the rows cannot be read.
    """
    began_s = time.monotonic()
    rows, schema = frames.rows, frames.schema
    moment = Moment(asking.scope, asking.now, asking.as_of or asking.now, rows)
    items = [
        *(one for one in _derived(asking, moment) if not _is_moot(one, schema)),
        *_written(asking, moment),
    ]
    found: dict[int, Outcome] = {}
    shape = [(at, one) for at, one in enumerate(items) if one.check == "exists"]
    _judge_shape(asking, schema, shape, judge, found)
    there = set(schema.names)
    typed = [(at, one) for at, one in enumerate(items) if one.is_of_schema]
    _judge_types(asking, schema, [pair for pair in typed if pair[1].column in there], judge, found)
    groups: dict[tuple[str, ...], list[tuple[int, _Item]]] = {}
    for at, one in enumerate(items):
        if at in found:
            continue
        reason = _unjudgeable(asking, one, schema)
        if reason is None:
            groups.setdefault(_read_together(one, rows), []).append((at, one))
        else:
            found[at] = _skipped(asking, one, reason)
    for group in groups.values():
        frame = _frame(asking.subject, frames, group)
        _note(asking, group, judge(frame, [one.expectation for _, one in group]), found)
    outcomes = tuple(found[at] for at in range(len(items)))
    seconds = time.monotonic() - began_s
    has_reference = asking.profile is not None
    return Checked(
        asking.subject.name, asking.where, rows, seconds, outcomes, has_reference=has_reference
    )


# -- what is asked --------------------------------------------------------------------------------


def _derived(asking: Asking, moment: Moment) -> list[_Item]:
    from hotplate.quality.gx import made

    derived = expectations(asking.subject, asking.profile, asking.said, moment)
    return [_Item(one.check, made(one), one.says, one.columns, one) for one in derived]


def _written(asking: Asking, moment: Moment) -> list[_Item]:
    """What is written by hand; of a few pushed rows only what judges row by row."""
    from hotplate.quality.gx import columns_of, is_about_rows

    items = []
    for one in () if asking.said is None else asking.said.expectations:
        try:
            columns = columns_of(one)
        except TypeError as error:
            raise QualityError(
                where=f"quality of {asking.subject.name!r}",
                problem=str(error),
                fix="Write those of great_expectations.expectations.",
            ) from None
        if moment.scope == BATCH and not is_about_rows(one):
            continue
        items.append(_Item("own", one, _said(one), columns))
    return items


def _said(expectation: Any) -> str:
    """What an expectation says of itself, or its arguments."""
    if getattr(expectation, "description", None):
        return str(expectation.description)
    skipped = {"column", "column_A", "column_B", "column_list", "batch_id"}
    said = expectation.configuration.kwargs
    parts = [f"{key} {value}" for key, value in said.items() if key not in skipped]
    return ", ".join(parts) or "as its name says"


def _read_together(one: _Item, rows: int) -> tuple[str, ...]:
    """What an expectation shares a batch with; few rows are one batch, which is quicker."""
    return () if one.columns is None or rows <= _FEW_ROWS else tuple(sorted(one.columns))


def _unjudgeable(asking: Asking, one: _Item, schema: pa.Schema) -> str | None:
    """Why an expectation has nothing to judge; None where it has."""
    missing = [name for name in one.columns or () if name not in schema.names]
    if missing:
        return f"there is no column {missing[0]}"
    for name, needed in ({} if one.expected is None else one.expected.needs).items():
        kind = kind_of(schema.field(name).type)
        if (TIMESTAMP if kind in (NAIVE, DATE) else kind) not in needed:
            return f"{name} is stored as {schema.field(name).type}"
    if one.expected is None:
        wrong = _of_wrong_kind(asking.subject, schema)
        bad = [name for name in one.columns or () if name in wrong]
        if bad:
            return f"{bad[0]} is stored as {schema.field(bad[0]).type}"
    return None


def _is_moot(one: _Item, schema: pa.Schema) -> bool:
    if one.expected is None or not one.expected.is_moot:
        return False
    return any(
        name not in schema.names or kind_of(schema.field(name).type) not in needed
        for name, needed in one.expected.needs.items()
    )


def _of_wrong_kind(subject: Subject, schema: pa.Schema) -> set[str]:
    return {
        one.name
        for one in subject.columns
        if one.name in schema.names
        and one.kinds
        and kind_of(schema.field(one.name).type) not in {*one.kinds, NOTHING}
        and not (INTEGER in one.kinds and kind_of(schema.field(one.name).type) == NUMBER)
    }


# -- what is judged -------------------------------------------------------------------------------


def _judge_shape(
    asking: Asking,
    schema: pa.Schema,
    items: Sequence[tuple[int, _Item]],
    judge: Judge,
    found: dict[int, Outcome],
) -> None:
    if items:
        names = pd.DataFrame({name: [] for name in schema.names})
        _note(asking, items, judge(names, [one.expectation for _, one in items]), found, schema)


def _judge_types(
    asking: Asking,
    schema: pa.Schema,
    items: Sequence[tuple[int, _Item]],
    judge: Judge,
    found: dict[int, Outcome],
) -> None:
    if items:
        names = list(dict.fromkeys(one.column for _, one in items))
        stored = pa.schema([schema.field(name) for name in names]).empty_table()
        frame = stored.to_pandas(types_mapper=pd.ArrowDtype, ignore_metadata=True)
        _note(asking, items, judge(frame, [one.expectation for _, one in items]), found, schema)


def _frame(
    subject: Subject,
    frames: Frames,
    group: Sequence[tuple[int, _Item]],
) -> pd.DataFrame:
    """The rows that some expectations read, as Great Expectations looks at them."""
    chosen = frames.schema.names
    if all(one.columns is not None for _, one in group):
        read = {name for _, one in group for name in one.columns or ()}
        chosen = [name for name in chosen if name in read]
    table = as_utc(frames.read(chosen))
    only_nulls = all(one.expected is not None and one.expected.only_nulls for _, one in group)
    for place, one in enumerate(table.schema):
        column = _plain(table.column(place), only_nulls=only_nulls)
        if column is not table.column(place):
            table = table.set_column(place, one.name, column)
    exact = [
        one.name
        for one in table.schema
        if one.name in subject.masked
        and one.type == pa.int64()
        and table.column(one.name).null_count
    ]
    nullable = {pa.int64(): pd.Int64Dtype()}.get
    ids = {name: table.column(name).to_pandas(types_mapper=nullable) for name in exact}
    plain = table.to_pandas(ignore_metadata=True)
    for name, values in ids.items():  # as floats two ids may look alike
        plain[name] = values
    return plain


def _plain(column: Any, *, only_nulls: bool) -> Any:
    """A column in the few types that Great Expectations compares quickly."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = kind_of(column.type)
    if kind in (NUMBER, DECIMAL) and column.type != pa.float64():
        return column.cast(pa.float64(), safe=False)
    if kind == INTEGER and column.type != pa.int64():
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:  # above 2^63
            return column.cast(pa.float64(), safe=False)
    if only_nulls and kind not in (NUMBER, DECIMAL, INTEGER, TIMESTAMP):
        is_there = pc.is_valid(column)
        return pc.if_else(is_there, pa.scalar(1, pa.int8()), pa.scalar(None, pa.int8()))
    return column


def _note(
    asking: Asking,
    items: Sequence[tuple[int, _Item]],
    verdicts: Sequence[Verdict],
    found: dict[int, Outcome],
    schema: pa.Schema | None = None,
) -> None:
    for (at, one), verdict in zip(items, verdicts, strict=True):
        found[at] = _outcome(asking, one, verdict, schema)


def _outcome(asking: Asking, one: _Item, verdict: Verdict, schema: pa.Schema | None) -> Outcome:
    name = asking.subject.name
    if verdict.problem:
        seen = verdict.problem
        if one.columns is None or asking.hidden & set(one.columns):
            seen = "raised an error, which is not shown: it may hold an id (--show-ids shows it)"
        if asking.shows_ids:
            seen = verdict.problem
        return Outcome(name, one.column, one.check, verdict.name, one.says, ERROR, observed=seen)
    status = PASSED if verdict.is_good else FAILED
    examples: tuple[str, ...] = ()
    if status == FAILED and one.check != "nulls":
        values = (_by_column(one, value) for value in verdict.values)
        shown = (masked(value, asking.hidden, one.column) for value in values)
        examples = tuple(dict.fromkeys(shown))
    return Outcome(
        name,
        one.column,
        one.check,
        verdict.name,
        one.says,
        status,
        share=verdict.share,
        failing=verdict.failing,
        of=verdict.of,
        examples=examples,
        observed=_observed(asking, one, verdict),
        hint=_hint(asking.subject, one, schema) if status == FAILED and schema is not None else "",
    )


def _by_column(one: _Item, value: Any) -> Any:
    """A value, or those of a row by the names of their columns."""
    is_pair = isinstance(value, tuple) and one.columns is not None
    return dict(zip(one.columns or (), value, strict=False)) if is_pair else value


def _observed(asking: Asking, one: _Item, verdict: Verdict) -> str:
    if verdict.observed is None:
        return ""
    if one.is_of_schema:
        return str(verdict.observed)
    return f"saw {masked(verdict.observed, asking.hidden, one.column)}"


def _hint(subject: Subject, one: _Item, schema: pa.Schema) -> str:
    if one.check == "zone":
        return 'Feast takes it for UTC; write it with one, or accept it by "off": ["zone"]'
    if one.check != "exists":
        return ""
    declared = {column.name for column in subject.columns}
    spare = [name for name in schema.names if name not in declared]
    near = difflib.get_close_matches(one.column, spare, n=1, cutoff=_CLOSE)
    if near:
        return f"there is {near[0]}: was it renamed?"
    return f"undeclared columns: {', '.join(spare[:5])}" if spare else ""


def _skipped(asking: Asking, one: _Item, reason: str) -> Outcome:
    """What is not judged; by hand, of a column that nobody declares, it is an error."""
    declared = {column.name for column in asking.subject.columns}
    is_unknown = one.expected is None and bool(set(one.columns or ()) - declared)
    status = ERROR if is_unknown else SKIPPED
    name = one.expectation.configuration.type
    return Outcome(
        asking.subject.name, one.column, one.check, name, one.says, status, observed=reason
    )
