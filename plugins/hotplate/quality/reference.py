"""The reference: what data looked like when somebody found it good.

A JSON file beside the repo, made by `hotplate quality profile` and meant to be read and reviewed: a
line a column, in the order of the view. Keys, ids and private columns have no values in it. What
stands under `expect`, of a view or of a column, is written by hand and kept when the file is made
anew.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from hotplate.quality.declared import ColumnQuality, ViewQuality, read_columns
from hotplate.quality.errors import QualityError

__all__ = ["FILE", "ColumnProfile", "Reference", "ViewProfile", "expected_of"]

FILE: Final = "quality.json"
_VERSION: Final = 1
_VIEW_SETTINGS: Final = ("max_age", "skew", "off")


@dataclass(frozen=True)
class ColumnProfile:
    """A column as it was.

    Attributes:
        stored: its Arrow type.
        nulls: share of its rows.
        distinct: how many values.
        range: (least, most), of numbers.
        quantiles: the 1st, 5th, 25th, 50th, 75th, 95th and 99th percentile, of numbers.
        values: all of them, of texts of which there are few.
        expect: what is said by hand.
    """

    stored: str
    nulls: float = 0.0
    distinct: int | None = None
    range: tuple[float, float] | None = None
    quantiles: tuple[float, ...] | None = None
    values: tuple[str, ...] | None = None
    expect: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ViewProfile:
    """A view as it was.

    Attributes:
        rows: how many.
        since, until: its oldest and newest timestamp; None without one.
        gap_s: the longest time between two moments that follow each other.
        late_s: how old its newest row was when it was looked at.
        disorder: share of the rows that became known after a row of a later moment had.
        columns: by name.
        expect: what is said by hand.
    """

    rows: int
    since: datetime | None = None
    until: datetime | None = None
    gap_s: float = 0.0
    late_s: float = 0.0
    disorder: float = 0.0
    columns: Mapping[str, ColumnProfile] = field(default_factory=dict)
    expect: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """What is known of each view; empty where nothing is.

    Attributes:
        made: when, in UTC; "" where there is none.
        views: by name.
    """

    made: str = ""
    views: Mapping[str, ViewProfile] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Reference:
        """Read a file.

        Raises:
            QualityError: it cannot be read, or is no reference.
        """
        try:
            said = json.loads(path.read_text("utf-8"))
            if said["hotplate_quality"] != _VERSION:
                raise _unreadable(path, f"is of version {said['hotplate_quality']!r}")
            views = {name: _view(path, name, one) for name, one in said["views"].items()}
            return cls(str(said["made"]), views)
        except OSError as error:
            raise _unreadable(path, f"cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise _unreadable(path, "is no text") from None
        except json.JSONDecodeError as error:
            raise _unreadable(path, f"line {error.lineno}: {error.msg}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable(path, f"is no reference ({error})") from None

    def with_views(self, made: str, views: Mapping[str, ViewProfile]) -> Reference:
        """This one with some views made anew; what is said by hand of them stays."""
        kept = {name: _with_expect(one, self.views.get(name)) for name, one in views.items()}
        return Reference(made, dict(sorted({**self.views, **kept}.items())))

    def text(self) -> str:
        """The file's text: a line a column."""
        lines = [f'{{"hotplate_quality": {_VERSION}, "made": {json.dumps(self.made)}, "views": {{']
        for number, (name, view) in enumerate(self.views.items()):
            head = {key: value for key, value in _view_head(view).items() if value is not None}
            lines.append(f" {json.dumps(name)}: {{")
            lines += [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
            columns = [
                f"   {json.dumps(column)}: {json.dumps(_column_said(one))}"
                for column, one in view.columns.items()
            ]
            lines.append('  "columns": {')
            lines.append(",\n".join(columns))
            lines.append("  }}" + ("," if number < len(self.views) - 1 else ""))
        return "\n".join([*lines, "}}", ""])

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all.

        Raises:
            QualityError: it cannot be written.
        """
        try:
            with tempfile.NamedTemporaryFile(
                "w", dir=path.parent, prefix=f".{path.name}", delete=False, encoding="utf-8"
            ) as file:
                file.write(self.text())
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except OSError as error:
            raise QualityError(
                where=str(path),
                problem=f"cannot be written: {error.strerror}",
                fix="Name another file with --reference.",
            ) from None


def expected_of(path_or_view: str, profile: ViewProfile | None) -> ViewQuality:
    """What a reference says by hand of a view.

    Raises:
        QualityError: it is none of what can be said.
    """
    if profile is None:
        return ViewQuality(path_or_view)
    unknown = sorted(set(profile.expect) - set(_VIEW_SETTINGS))
    if unknown:
        raise QualityError(
            where=f"reference of {path_or_view!r}",
            problem=f"expect knows no {unknown[0]!r}",
            fix=f"It knows {', '.join(_VIEW_SETTINGS)}.",
        )
    columns: dict[str, ColumnQuality] = {
        name: read_columns(f"{path_or_view}.{name}", one.expect)
        for name, one in profile.columns.items()
        if one.expect
    }
    return ViewQuality(path_or_view, columns=columns, **profile.expect)


def _unreadable(path: Path, problem: str) -> QualityError:
    return QualityError(
        where=f"reference {path}",
        problem=problem,
        fix="Make it with `hotplate quality profile`, or name another one with --reference.",
    )


def _view(path: Path, name: str, said: Mapping[str, Any]) -> ViewProfile:
    moments = [
        None if said.get(key) is None else datetime.fromisoformat(said[key])
        for key in ("since", "until")
    ]
    if any(moment is not None and moment.tzinfo is None for moment in moments):
        raise _unreadable(path, f"{name}: since and until must say a time zone")
    return ViewProfile(
        rows=int(said["rows"]),
        since=moments[0],
        until=moments[1],
        gap_s=float(said.get("gap_s", 0.0)),
        late_s=float(said.get("late_s", 0.0)),
        disorder=float(said.get("disorder", 0.0)),
        columns={column: _column(one) for column, one in said["columns"].items()},
        expect=dict(said.get("expect", {})),
    )


def _column(said: Mapping[str, Any]) -> ColumnProfile:
    span, quantiles, values = (said.get(key) for key in ("range", "quantiles", "values"))
    return ColumnProfile(
        stored=str(said["stored"]),
        nulls=float(said.get("nulls", 0.0)),
        distinct=None if said.get("distinct") is None else int(said["distinct"]),
        range=None if span is None else (float(span[0]), float(span[1])),
        quantiles=None if quantiles is None else tuple(map(float, quantiles)),
        values=None if values is None else tuple(map(str, values)),
        expect=dict(said.get("expect", {})),
    )


def _view_head(view: ViewProfile) -> dict[str, Any]:
    return {
        "rows": view.rows,
        "since": None if view.since is None else view.since.isoformat(),
        "until": None if view.until is None else view.until.isoformat(),
        "gap_s": round(view.gap_s, 3),
        "late_s": round(view.late_s, 3),
        "disorder": round(view.disorder, 6),
        "expect": dict(view.expect) or None,
    }


def _column_said(column: ColumnProfile) -> dict[str, Any]:
    said: dict[str, Any] = {"stored": column.stored, "nulls": round(column.nulls, 6)}
    for key in ("distinct", "range", "quantiles", "values"):
        value = getattr(column, key)
        if value is not None:
            said[key] = list(value) if isinstance(value, tuple) else value
    if column.expect:
        said["expect"] = dict(column.expect)
    return said


def _with_expect(made: ViewProfile, before: ViewProfile | None) -> ViewProfile:
    if before is None:
        return made
    columns = {
        name: replace(one, expect=before.columns[name].expect) if name in before.columns else one
        for name, one in made.columns.items()
    }
    return replace(made, columns=columns, expect=before.expect)
