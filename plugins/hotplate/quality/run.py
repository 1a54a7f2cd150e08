"""A run over a feature repo: which views and tables, where their rows are, what came of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hotplate.quality.check import Asking, check
from hotplate.quality.coverage import coverage
from hotplate.quality.declared import Covered, TableQuality, ViewQuality
from hotplate.quality.errors import QualityError
from hotplate.quality.frames import Frames, of_file
from hotplate.quality.module import FILE as MODULE
from hotplate.quality.module import declarations
from hotplate.quality.outcome import Checked, Report
from hotplate.quality.profiling import profile
from hotplate.quality.reference import Reference
from hotplate.quality.sources import place_of, rows_of
from hotplate.quality.subject import Subject, of_table, of_view

__all__ = ["Given", "Quality", "declared_in"]


@dataclass(frozen=True)
class Given:
    """Data that is named by hand, in the place of a view's own.

    Attributes:
        files: view -> a Parquet or CSV file or folder.
        sql: view -> `URL#TABLE`; see `hotplate.quality.sql`.
    """

    files: Mapping[str, Path] = field(default_factory=dict)
    sql: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """The views that it names."""
        return {*self.files, *self.sql}


def declared_in(folder: Path, views: Sequence[Any]) -> dict[str, ViewQuality]:
    """What a repo's `quality.py` says.

    Raises:
        QualityError: it cannot be run, or names what is neither a view nor a table with a schema.
    """
    found = declarations(folder)
    names = {view.name for view in views}
    for name, one in found.items():
        if not isinstance(one, TableQuality) and name not in names:
            raise QualityError(
                where=str(folder / MODULE),
                problem=f"speaks of {name!r}, which is no feature view that is applied",
                fix=f"Applied are {', '.join(sorted(names)) or 'none: run feast apply'}; "
                "for another table write TableQuality(...).",
            )
        for covered in one.covered:
            if covered.by not in names | found.keys():
                raise QualityError(
                    where=str(folder / MODULE),
                    problem=f"{name!r} is to be covered by {covered.by!r}, which nobody declares",
                    fix="Name a feature view or a table.",
                )
    return found


class Quality:
    """The data of one feature repo.

    Args:
        store: Feast's.
        folder: the repo's.
        given: data that is named by hand.
        reference: how data was.

    Raises:
        QualityError: what the repo declares cannot be.
    """

    def __init__(
        self,
        store: Any,
        folder: Path,
        given: Given | None = None,
        reference: Reference | None = None,
    ) -> None:
        self._store = store
        self._folder = folder
        self._given = given or Given()
        self._reference = reference or Reference()
        views = [*store.list_feature_views(), *store.list_stream_feature_views()]
        self._declared = declared_in(folder, views)
        self._subjects: dict[str, Subject] = {}
        for view in views:
            subject = of_view(view)
            if subject is not None:
                self._subjects[view.name] = subject
        for one in self._declared.values():
            if isinstance(one, TableQuality):
                self._subjects[one.name] = of_table(one)
        self._frames: dict[str, Frames] = {}

    @property
    def names(self) -> list[str]:
        """Every view and table that there is."""
        return list(self._subjects)

    def chosen(self, names: Sequence[str]) -> list[str]:
        """The views and tables to look at: those that are named, or all that have data.

        Raises:
            KeyError: there is no such view or table, or nobody says where its data is.
        """
        for name in (*names, *sorted(self._given.names)):
            if name not in self._subjects:
                known = ", ".join(self._subjects) or "none; run feast apply"
                raise KeyError(
                    f"no view or table {name!r} to look at (windowed views are computed from their "
                    f"event views, and have no rows); there are: {known}"
                )
        for name in names:
            if not self._has_data(name):
                raise KeyError(f"nobody says where {name!r} is: name it with --file or --sql")
        if names:
            return list(dict.fromkeys(names))
        return [name for name in self._subjects if self._has_data(name)]

    def check(
        self,
        names: Sequence[str],
        now: datetime,
        *,
        shows_ids: bool = False,
        progress: Callable[[str], None] = lambda name: None,
    ) -> Report:
        """Look at the data of some views and tables.

        Args:
            names: as `chosen` gave them.
            now: the time to judge by, with a time zone.
            shows_ids: whether ids are shown as they are.
            progress: told the name of each before it is looked at.

        Raises:
            QualityError: Great Expectations is not there, or what is declared cannot be.
        """
        from hotplate.quality.gx import Judge, version

        judge, found = Judge(), []
        for name in names:
            progress(name)
            asking = Asking(
                self._subjects[name],
                now,
                self._place(name),
                self._reference.views.get(name),
                self._declared.get(name),
                shows_ids=shows_ids,
            )
            found.append(self._checked(asking, judge))
            self._frames.pop(name, None)
        versions = {"great_expectations": version()}
        return Report(self._store.project, now, tuple(found), versions)

    def profile(
        self,
        names: Sequence[str],
        now: datetime,
        progress: Callable[[str], None] = lambda name: None,
    ) -> Reference:
        """The reference with some views measured anew.

        Raises:
            QualityError: their data cannot be read, or is no good.
        """
        made = {}
        for name in names:
            progress(name)
            said = self._declared.get(name)
            private = () if said is None else said.private
            made[name] = profile(self._subjects[name], self._rows(name), now, private)
            self._frames.pop(name, None)
        return self._reference.with_views(f"{now:%Y-%m-%dT%H:%M:%SZ}", made)

    def _checked(self, asking: Asking, judge: Any) -> Checked:
        """A view whose data cannot be read is named, and the others are looked at all the same."""
        name = asking.subject.name
        try:
            frames = self._rows(name)
            checked = check(asking, frames, judge)
            outcomes = [
                coverage(
                    asking, frames, one, self._rows(one.by), self._subjects[one.by].keys, judge
                )
                for one in _covered(asking.said)
            ]
        except QualityError as error:
            return Checked(name, asking.where, problem=str(error))
        return replace(checked, outcomes=(*checked.outcomes, *outcomes))

    def _has_data(self, name: str) -> bool:
        if name in self._given.names or self._subjects[name].is_view:
            return True
        said = self._declared[name]
        return isinstance(said, TableQuality) and bool(said.file)

    def _place(self, name: str) -> str:
        if name in self._given.files:
            return str(self._given.files[name])
        if name in self._given.sql:
            return _shown(self._given.sql[name])
        if self._subjects[name].is_view:
            return place_of(self._subjects[name], self._store.config)
        return self._file(name)

    def _file(self, name: str) -> str:
        said = self._declared[name]
        assert isinstance(said, TableQuality)
        return str(self._folder / said.file)

    def _rows(self, name: str) -> Frames:
        if name not in self._frames:
            self._frames[name] = self._read(name)
        return self._frames[name]

    def _read(self, name: str) -> Frames:
        subject = self._subjects[name]
        if name in self._given.files:
            return of_file(self._given.files[name], subject.renamed)
        if name in self._given.sql:
            from hotplate.quality.sql import of_sql

            return of_sql(self._given.sql[name], subject.renamed)
        if subject.is_view:
            provider = self._store._get_provider()
            return rows_of(subject, self._store.config, provider.offline_store)
        return of_file(Path(self._file(name)), subject.renamed)


def _covered(said: ViewQuality | None) -> Sequence[Covered]:
    return () if said is None or "covered" in said.off else said.covered


def _shown(said: str) -> str:
    """Where rows come from, without a password."""
    from hotplate.quality.sql import shown

    return shown(said)
