"""What a feature repo says of its data in `quality.py`, beside its definitions.

    import great_expectations.expectations as gxe

    from hotplate.quality import ColumnQuality, Covered, ViewQuality

    customers = ViewQuality(
        "customer_profile",
        max_age="8d",
        columns={"customer_std_amount": ColumnQuality(nulls="5%")},
        covered=[Covered(by="customer_spending", at_least="95%")],
        expectations=[gxe.ExpectColumnValuesToBeBetween(column="customer_terminals", min_value=0)],
    )

Every `ViewQuality` and `TableQuality` that is a name of the module counts, as feature views do in
`features.py`. Nothing here imports Great Expectations: a repo that only loosens what is derived
from its definitions need not either.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hotplate.durations import NO_LIMIT_NS, parse_duration
from hotplate.quality.errors import QualityError
from hotplate.quality.kinds import named
from hotplate.sizes import parse_share

__all__ = [
    "CHECKS",
    "ColumnQuality",
    "Covered",
    "TableQuality",
    "ViewQuality",
    "read_columns",
]

CHECKS: Final = {
    "exists": "the column is there",
    "type": "the column holds what is declared",
    "zone": "timestamps say their time zone",
    "nulls": "not more nulls than before; none in keys and timestamps",
    "range": "numbers lie where they lay before",
    "values": "texts are those that there were before",
    "median": "the middle of the column is where it was before",
    "unique": "one row for an entity and a moment (and version)",
    "fresh": "the newest row is young enough",
    "future": "no row is of the future",
    "oldest": "no row is far older than all were before",
    "created": "no row was known before it happened",
    "order": "later versions are not of earlier moments",
    "rows": "not far fewer rows than before",
    "covered": "entities are known to another view",
}
"""Every check by the name under which it can be switched off."""


@dataclass(frozen=True)
class ColumnQuality:
    """What is expected of one column, in the place of what a reference would say.

    Attributes:
        nulls: share of the rows that may be null: `0.05` or `"5%"`.
        range: (least, most) of a number; None at either end for no bound.
        outside: share of the rows that may lie outside `range` or `values`.
        values: the texts that may stand there.
        off: names of checks that are left out; see `CHECKS`.
    """

    nulls: float | str | None = None
    range: tuple[float | None, float | None] | None = None
    outside: float | str | None = None
    values: Collection[str] | None = None
    off: Collection[str] = ()

    def __post_init__(self) -> None:
        _set(self, "nulls", _share("nulls", self.nulls))
        _set(self, "outside", _share("outside", self.outside))
        _set(self, "off", _known(self.off))
        if self.range is not None:
            _set(self, "range", _range(self.range))
        if self.values is not None:
            _set(self, "values", tuple(self.values))

    @property
    def nulls_share(self) -> float | None:
        """`nulls` as a number."""
        return None if self.nulls is None else float(self.nulls)

    @property
    def outside_share(self) -> float | None:
        """`outside` as a number."""
        return None if self.outside is None else float(self.outside)

    def over(self, other: ColumnQuality) -> ColumnQuality:
        """This one, and where it says nothing the other."""
        return ColumnQuality(
            self.nulls if self.nulls is not None else other.nulls,
            self.range if self.range is not None else other.range,
            self.outside if self.outside is not None else other.outside,
            self.values if self.values is not None else other.values,
            {*self.off, *other.off},
        )


@dataclass(frozen=True)
class Covered:
    """Referential coverage: the entities of one view that another one knows, too.

    Attributes:
        by: the other view or table; its keys must be columns of the first.
        at_least: share of the distinct entities that must be found there: `0.99` or `"99%"`.
    """

    by: str
    at_least: float | str = 1.0

    def __post_init__(self) -> None:
        _set(self, "at_least", _share("at_least", self.at_least))

    @property
    def share(self) -> float:
        """`at_least` as a number."""
        return float(self.at_least)


@dataclass(frozen=True)
class ViewQuality:
    """What is expected of a feature view beyond what its definition and a reference say.

    Attributes:
        name: of the feature view.
        expectations: Great Expectations' own, on the view's columns.
        max_age: how old its newest row may be: `"8d"`; `"none"` for no bound.
        skew: how far in the future a row may lie, for clocks that differ.
        columns: by name, what differs from the reference.
        covered: by which other views its entities must be known.
        off: names of checks that are left out for the whole view.
        private: columns whose values are shown no more than entity ids are.
    """

    name: str
    expectations: Sequence[Any] = ()
    max_age: str | None = None
    skew: str | None = None
    columns: Mapping[str, ColumnQuality] | None = None
    covered: Sequence[Covered] = ()
    off: Collection[str] = ()
    private: Collection[str] = ()

    def __post_init__(self) -> None:
        for setting in ("max_age", "skew"):
            _duration(self.name, setting, getattr(self, setting))
        _set(self, "off", _known(self.off, self.name))
        if isinstance(self.expectations, (str, bytes)) or not isinstance(
            self.expectations, Sequence
        ):
            raise _wrong(self.name, "expectations is no list", "Write [gxe.Expect...(...)]")

    @property
    def max_age_ns(self) -> int | None:
        """`max_age` in nanoseconds; `NO_LIMIT_NS` for none, None where nothing is said."""
        return _duration(self.name, "max_age", self.max_age)

    @property
    def skew_ns(self) -> int | None:
        """`skew` in nanoseconds; None where nothing is said."""
        return _duration(self.name, "skew", self.skew)

    def column(self, name: str) -> ColumnQuality:
        """What is said of a column."""
        return (self.columns or {}).get(name, ColumnQuality())


@dataclass(frozen=True, kw_only=True)
class TableQuality(ViewQuality):
    """A table that is no feature view: raw files, decisions of a model, whatever is worth a look.

    Attributes:
        schema: column -> type, Feast's own (`Int64`) or one of `"int"`, `"float"`, `"string"`,
            `"bool"`, `"bytes"`, `"timestamp"`, `"list"`, `"map"`.
        keys: columns that name an entity: never null, and masked where values are shown.
        timestamp: the column that says when; "" where there is none.
        created: the column that says since when the row was known; "" where there is none.
        unique: columns that together occur once; keys and timestamp if left out.
        file: a Parquet or CSV file or folder, from the repo's folder on; else name one with
            `--file` or `--sql`.
    """

    schema: Mapping[str, Any]
    keys: Sequence[str] = ()
    timestamp: str = ""
    created: str = ""
    unique: Sequence[str] = ()
    file: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for column, said in self.schema.items():
            try:
                named(said)
            except ValueError as error:
                raise _wrong(self.name, f"schema[{column!r}]: {error}", "") from None
        given = [*self.keys, self.timestamp, self.created, *self.unique]
        for column in filter(None, given):
            if column not in self.schema:
                raise _wrong(
                    self.name,
                    f"names the column {column!r}, which its schema does not hold",
                    f"The schema holds {', '.join(self.schema)}",
                )


def read_columns(view: str, said: Mapping[str, Any]) -> ColumnQuality:
    """What `expect` says of a column in a reference file.

    Raises:
        QualityError: it is none of what can be said.
    """
    known = ("nulls", "range", "outside", "values", "off")
    unknown = sorted(set(said) - set(known))
    if unknown:
        raise _wrong(view, f"expect knows no {unknown[0]!r}", f"It knows {', '.join(known)}")
    return ColumnQuality(**said)


def _set(one: object, name: str, value: object) -> None:
    object.__setattr__(one, name, value)


def _wrong(where: str, problem: str, fix: str) -> QualityError:
    return QualityError(where=f"quality of {where!r}", problem=problem, fix=fix)


def _share(setting: str, value: float | str | None) -> float | None:
    if value is None:
        return None
    try:
        share = parse_share(value)
    except ValueError as error:
        raise QualityError(
            where=f"quality, {setting}", problem=str(error), fix="Write 0.05 or '5%'"
        ) from None
    if not 0 <= share <= 1:
        raise QualityError(
            where=f"quality, {setting}",
            problem=f"{value!r} lies outside 0 to 1",
            fix="Write 0.05 or '5%'",
        )
    return share


def _duration(view: str, setting: str, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        parsed = parse_duration(value)
    except ValueError as error:
        raise _wrong(view, f"{setting}: {error}", "") from None
    return min(parsed, NO_LIMIT_NS)


def _known(off: Collection[str], where: str = "") -> frozenset[str]:
    if isinstance(off, str):
        off = [off]
    unknown = sorted(set(off) - set(CHECKS))
    if unknown:
        raise QualityError(
            where=f"quality of {where!r}, off" if where else "quality, off",
            problem=f"there is no check {unknown[0]!r}",
            fix=f"There are {', '.join(CHECKS)}",
        )
    return frozenset(off)


def _range(said: Any) -> tuple[float | None, float | None]:
    parts = tuple(said) if isinstance(said, (tuple, list)) else ()
    is_number = [
        one is None or (isinstance(one, (int, float)) and not isinstance(one, bool))
        for one in parts
    ]
    if len(parts) != 2 or not all(is_number) or parts == (None, None):
        raise QualityError(
            where="quality, range",
            problem=f"{said!r} is no range",
            fix="Write (0, 500) or (0, None)",
        )
    least, most = parts
    if least is not None and most is not None and least > most:
        raise QualityError(
            where="quality, range",
            problem=f"{said!r} begins above its end",
            fix="Write the least first",
        )
    return least, most
