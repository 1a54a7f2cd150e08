"""What an entity that the source does not know is answered with, where its group declares that.

A default stands in the answer alone: what is kept is that there is no such entity, for its
`negative_ttl`. So a default has the age and the deadline of that knowledge, and whatever is
computed from it ends with it. It is marked: its status is NOT_FOUND, and `freshness()` says so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from feast.type_map import feast_value_type_to_python_type, python_values_to_proto_values
from feast.value_type import ValueType

from hotplate.codec import ABSENT_ROW, DEFAULTED, FLAGS_AT, PREFIX_BYTES, Layout, SourceRow
from hotplate.errors import PolicyError
from hotplate.policy import ResolvedPolicy, read_tags
from hotplate.resolved import Defaults

__all__ = ["check_defaults", "default_of", "with_default"]

_FLAG_OF_BODY: Final = FLAGS_AT - PREFIX_BYTES
_log = logging.getLogger("hotplate.policy")


@lru_cache(maxsize=4_096)
def default_of(layout: Layout, defaults: Defaults) -> bytes | None:
    """What stands behind the stamp of a row in place of an absent one; None if nothing does.

    A value that is not of its feature's type counts as none: `feast apply` refuses it.

    Args:
        layout: of the view's rows.
        defaults: of the group.
    """
    if not defaults:
        return None
    said = dict(defaults)
    values = []
    for column in layout.columns:
        value = None
        if column.name in said:
            try:
                value = _value_of(said[column.name], column.value_type)
            except (TypeError, ValueError):
                _log.error("the default of feature %r is no %s", column.name, column.value_type)
        values.append(value)
    if all(value is None for value in values):
        return None
    body = bytearray(layout.encode(SourceRow(None, values)))
    body[_FLAG_OF_BODY] |= ABSENT_ROW | DEFAULTED
    return bytes(body)


def with_default(rows: list[bytes], default: bytes | None) -> list[bytes]:
    """Rows with the default in place of those of entities that the source does not know."""
    if default is None:
        return rows
    return [row[:PREFIX_BYTES] + default if row[FLAGS_AT] & ABSENT_ROW else row for row in rows]


def _value_of(value: Any, value_type: ValueType) -> Any:
    """A value as Feast's own.

    Raises:
        TypeError, ValueError: it is not of that type, or would come back as another one.
    """
    if isinstance(value, bool) != (value_type is ValueType.BOOL):
        raise TypeError(f"{value!r} is no {value_type.name}")
    if isinstance(value, str) != (value_type is ValueType.STRING):
        raise TypeError(f"{value!r} is no {value_type.name}")
    (made,) = python_values_to_proto_values([value], value_type)
    back = feast_value_type_to_python_type(made, value_type)
    if value_type is not ValueType.FLOAT and back != value:
        raise ValueError(f"{value!r} does not fit into {value_type.name}")
    return made


def check_defaults(views: Iterable[Any], policies: Mapping[str, ResolvedPolicy]) -> None:
    """Refuse a default of what is no feature of the group, or not of its type.

    Args:
        views: the feature views of the groups.
        policies: by group.

    Raises:
        PolicyError: it says which, and what there is.
    """
    types: dict[str, dict[str, ValueType]] = {}
    for view in views:
        own = types.setdefault(read_tags(view.name, view.tags).group, {})
        own |= {field.name: field.dtype.to_value_type() for field in view.features}
    for group, policy in policies.items():
        known = types.get(group)
        if known is None:
            continue
        for name, value in policy.absent:
            if name not in known:
                raise PolicyError(
                    group=group,
                    key="absent",
                    problem=f"{name!r} is no feature of this group",
                    fix=f"Its features: {', '.join(sorted(known))}.",
                )
            try:
                _value_of(value, known[name])
            except Exception:  # noqa: BLE001 - whatever Feast says of it
                raise PolicyError(
                    group=group,
                    key="absent",
                    problem=f"{value!r} is no value of feature {name!r}, which is "
                    f"{known[name].name}",
                    fix="Write one of that type, or leave the feature out.",
                ) from None
