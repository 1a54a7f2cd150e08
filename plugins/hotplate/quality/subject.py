"""What is looked at: a feature view or a table, its columns and what each of them is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from feast.feature_view import DUMMY_ENTITY_ID

from hotplate.quality.declared import TableQuality
from hotplate.quality.kinds import DATE, NAIVE, TIMESTAMP, accepted, named
from hotplate.windowed import event_log_of, windowed_of

__all__ = ["CREATED", "FEATURE", "ID", "KEY", "MOMENT", "Column", "Subject", "of_table", "of_view"]

KEY: Final = "key"
ID: Final = "id"
MOMENT: Final = "timestamp"
CREATED: Final = "created"
FEATURE: Final = "feature"

_NS: Final = 1_000
_TIMES: Final = (TIMESTAMP, NAIVE, DATE)


@dataclass(frozen=True)
class Column:
    """A column that is declared.

    Attributes:
        name: of the feature, join key or timestamp.
        role: `key`, `id` (tells events apart), `timestamp`, `created` or `feature`.
        kinds: what it may hold, see `hotplate.quality.kinds`; empty for anything.
    """

    name: str
    role: str
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """A feature view or a table.

    Attributes:
        name: of it.
        columns: what is declared.
        unique: columns that together occur once; empty for none.
        renamed: column of the source -> name that the view gives it.
        max_age_ns: how old the newest row may be by its definition; None where that says nothing.
        is_view: whether it is a feature view.
        source: Feast's batch source of a view; None for a table.
    """

    name: str
    columns: tuple[Column, ...]
    unique: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    max_age_ns: int | None = None
    is_view: bool = True
    source: Any = None

    def named(self, role: str) -> tuple[str, ...]:
        """The columns of a role."""
        return tuple(one.name for one in self.columns if one.role == role)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that name an entity."""
        return self.named(KEY)

    @property
    def moment(self) -> str:
        """The column that says when; "" where there is none."""
        return next(iter(self.named(MOMENT)), "")

    @property
    def created(self) -> str:
        """The column that says since when a row was known; "" where there is none."""
        return next(iter(self.named(CREATED)), "")

    @property
    def masked(self) -> frozenset[str]:
        """The columns whose values name somebody."""
        return frozenset((*self.keys, *self.named(ID)))


def of_view(view: Any) -> Subject | None:
    """A feature view of Feast's; None where it has no rows of its own to look at.

    Raises:
        WindowSpecError: the tag of a windowed view cannot be read.
    """
    source = getattr(view, "batch_source", None)
    if source is None or not hasattr(view, "entity_columns"):
        return None
    if windowed_of(view) is not None or _is_transformed(view):
        return None  # a windowed view is computed from the events, which have a view of their own
    log = event_log_of(view)
    event_id = log.spec.event_id if log is not None else ""
    keys = [one for one in view.entity_columns if one.name != DUMMY_ENTITY_ID]
    columns = [Column(one.name, KEY, accepted(one.dtype.to_value_type())) for one in keys]
    columns += [
        Column(
            one.name, ID if one.name == event_id else FEATURE, accepted(one.dtype.to_value_type())
        )
        for one in view.features
    ]
    moment, created = source.timestamp_field, source.created_timestamp_column or ""
    known = {one.name for one in columns}
    columns += [
        Column(name, role, _TIMES)
        for name, role in ((moment, MOMENT), (created, CREATED))
        if name and name not in known
    ]
    ttl: timedelta | None = getattr(view, "ttl", None)
    unique = [*(one.name for one in keys), moment, event_id or created]
    return Subject(
        name=view.name,
        columns=tuple(columns),
        unique=tuple(name for name in unique if name),
        renamed=dict(source.field_mapping or {}),
        max_age_ns=ttl // timedelta(microseconds=1) * _NS if ttl else None,
        source=source,
    )


def _is_transformed(view: Any) -> bool:
    """Whether Feast computes its features: the columns of its source are then other ones."""
    return any(
        getattr(view, name, None) for name in ("feature_transformation", "udf", "aggregations")
    )


def of_table(table: TableQuality) -> Subject:
    """A table that the repo's `quality.py` declares."""
    roles = dict.fromkeys(table.keys, KEY)
    roles |= {
        name: role for name, role in ((table.timestamp, MOMENT), (table.created, CREATED)) if name
    }
    columns = tuple(
        Column(name, roles.get(name, FEATURE), named(said)) for name, said in table.schema.items()
    )
    unique = tuple(table.unique) or tuple(
        name for name in (*table.keys, table.timestamp, table.created) if name
    )
    return Subject(table.name, columns, unique, is_view=False)
