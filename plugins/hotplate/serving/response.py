"""The lazy response: rows now, Python values or protobuf only when asked for.

`to_dict`, `to_df`, `to_arrow` and `to_tensor` read the rows. `.proto` is put together from the
rows' own bytes as one protobuf text and parsed once, instead of building a message object for
every value. A response whose `.proto` has been handed out answers from it from then on, as
Feast's does, because the caller may have changed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from feast.online_response import TIMESTAMP_POSTFIX, OnlineResponse
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus, GetOnlineFeaturesResponse
from feast.protos.feast.types.Value_pb2 import Value

from hotplate.codec import (
    DEFAULTED,
    EVENT_AT,
    FLAGS_AT,
    NO_EVENT_TIME,
    NOT_FOUND,
    heads_of,
    is_absent,
    stamp_of,
    varint,
)
from hotplate.contracts import Freshness, Tier
from hotplate.durations import NO_LIMIT_NS

if TYPE_CHECKING:
    from hotplate.core.engine import Answer
    from hotplate.serving.plan import Plan, PlanGroup

__all__ = ["CachedResponse"]

PRESENT: Final = FieldStatus.PRESENT
MISSING: Final = FieldStatus.NOT_FOUND
OUTSIDE_MAX_AGE: Final = FieldStatus.OUTSIDE_MAX_AGE


class CachedResponse(OnlineResponse):  # type: ignore[misc]
    """What `get_online_features` returns: Feast's own interface, and the freshness of each row."""

    def __init__(
        self,
        plan: Plan,
        columns: Sequence[Sequence[Any]],
        protos: dict[int, Sequence[Value]] | None,
        rows: Sequence[Sequence[bytes]],
        now_ns: int,
        answer: Answer | None = None,
        wall_us: int = 0,
        keys: Sequence[Sequence[Any]] = (),
    ) -> None:
        # Feast's constructor takes a protobuf message, which is what is not built here
        self._plan = plan
        self._columns = columns
        self._protos = protos
        self._rows = rows
        self._now_ns = now_ns
        self._answer = answer
        self._wall_us = wall_us
        self._keys = keys
        self._proto: GetOnlineFeaturesResponse | None = None

    @property
    def _feature_types(self) -> dict[str, Any]:
        return self._plan.feature_types

    @property
    def proto(self) -> GetOnlineFeaturesResponse:
        """Feast's protobuf response, built on first use."""
        if self._proto is None:
            self._proto = _ProtoWriter(self).message()
        return self._proto

    @proto.setter
    def proto(self, value: GetOnlineFeaturesResponse) -> None:
        self._proto = value

    def to_dict(self, include_event_timestamps: bool = False) -> dict[str, Any]:
        """Name -> list of Python values, one a request row; null and unknown are None."""
        if self._proto is not None:
            answer: dict[str, Any] = super().to_dict(include_event_timestamps)
            return answer
        names = self._plan.names
        if len(self._rows[0]) == 1:
            values = [[value] for value in self._only_row()]
        else:
            values = [list(column) for column in self._columns]
            for group, rows in zip(self._plan.groups, self._rows, strict=True):
                values += _feature_columns(group, rows)
        if not include_event_timestamps:
            return dict(zip(names, values, strict=True))
        return self._with_times(values)

    def _only_row(self) -> list[Any]:
        flat = [column[0] for column in self._columns]
        for group, rows in zip(self._plan.groups, self._rows, strict=True):
            flat += _picked(group, rows[0])
        return flat

    def _with_times(self, values: list[list[Any]]) -> dict[str, Any]:
        count = len(self._columns[0]) if self._columns else len(self._rows[0])
        times = [[0] * count for _ in self._columns]
        for group, rows in zip(self._plan.groups, self._rows, strict=True):
            moments = [group.view.layout.event_us(row) for row in rows]
            seconds = [0 if moment is None else moment // 1_000_000 for moment in moments]
            times += [list(seconds) for _ in group.names]
        answer: dict[str, Any] = {}
        for name, value, time in zip(self._plan.names, values, times, strict=True):
            answer[name] = value
            answer[name + TIMESTAMP_POSTFIX] = time
        return answer

    def freshness(self) -> dict[str, list[Freshness]]:
        """How fresh each row is: feature view, as the request names it -> one item a row."""
        found: dict[str, list[Freshness]] = {}
        for index, (group, rows) in enumerate(zip(self._plan.groups, self._rows, strict=True)):
            tiers = self._answer.tiers(index) if self._answer is not None else None
            found[group.table.projection.name_to_use()] = [
                _freshness(group, row, self._now_ns, tiers[at] if tiers else Tier.MEMORY)
                for at, row in enumerate(rows)
            ]
        return found

    def ages_s(self) -> dict[str, npt.NDArray[np.float64]]:
        """How old each row is, seconds: feature view, as the request names it -> float64 (rows,).

        The ages of `freshness()`, for batches: several times faster.
        """
        found = {}
        for group, rows in zip(self._plan.groups, self._rows, strict=True):
            ages_ns = np.maximum(self._now_ns - heads_of(rows)["stamp"], 0)
            found[group.table.projection.name_to_use()] = ages_ns / 1e9
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # a copy for another process is Feast's own response: plans and rows stay here
        return _rebuild, (self.proto.SerializeToString(), dict(self._feature_types))

    def __repr__(self) -> str:
        count = len(self._rows[0]) if self._rows else 0
        return f"CachedResponse({count} rows, {len(self._plan.names)} columns)"


def _rebuild(message: bytes, feature_types: dict[str, Any]) -> OnlineResponse:
    return OnlineResponse(GetOnlineFeaturesResponse.FromString(message), feature_types)


def _freshness(group: PlanGroup, row: bytes, now_ns: int, tier: Tier) -> Freshness:
    policy = group.bound.policy
    stamp_ns = stamp_of(row)
    # a row that another request brought since the clock was read is new, not from the future
    now_ns = max(now_ns, stamp_ns)
    if not policy.is_cached:
        bound_ns = 0
    elif tier is Tier.LAST_GOOD and policy.last_good_ns is not None:
        bound_ns = policy.last_good_ns
    else:
        bound_ns = group.bound.expiry_ns(row)
    is_bounded = bound_ns < NO_LIMIT_NS
    return Freshness(
        group=policy.group,
        tier=tier,
        age_s=(now_ns - stamp_ns) / 1e9,
        expires_in_s=(stamp_ns + bound_ns - now_ns) / 1e9 if is_bounded else float("inf"),
        deadline_ns=stamp_ns + bound_ns,
        is_default=bool(row[FLAGS_AT] & DEFAULTED),
    )


def _feature_columns(group: PlanGroup, rows: Sequence[bytes]) -> list[list[Any]]:
    layout = group.view.layout
    fast = layout.columns_of(rows, group.positions)
    if fast is not None:
        return fast
    if not group.positions:
        return []
    return [list(column) for column in zip(*[_picked(group, row) for row in rows], strict=True)]


def _picked(group: PlanGroup, row: bytes) -> Sequence[Any]:
    """The requested values of a row; a column that nobody asked for may hold what it likes."""
    try:
        return group.pick((group.decode if row[FLAGS_AT] else group.decode_plain)(row))
    except Exception:  # noqa: BLE001 - which column it was, the slow way tells
        return group.view.layout.decode_at(row, group.positions)


class _ProtoWriter:
    """Writes a response as protobuf bytes.

    Field numbers are those of Feast's ServingService.proto: response {metadata=1, results=2},
    metadata {feature_names=1}, feature list {val=1}, vector {values=1, statuses=2,
    event_timestamps=3}, timestamp {seconds=1, nanos=2}.
    """

    def __init__(self, response: CachedResponse) -> None:
        self._plan = response._plan
        self._columns = response._columns
        self._protos = response._protos
        self._rows = response._rows
        self._wall_us = response._wall_us

    def message(self) -> GetOnlineFeaturesResponse:
        parts = [self._plan.names_field]
        for index, column in enumerate(self._plan.entities):
            parts.append(self._entity_vector(index, column.kind))
        for group, rows in zip(self._plan.groups, self._rows, strict=True):
            parts += self._feature_vectors(group, rows)
        message: GetOnlineFeaturesResponse = GetOnlineFeaturesResponse.FromString(b"".join(parts))
        return message

    def _entity_vector(self, index: int, kind: str) -> bytes:
        if self._protos is not None and index in self._protos:
            values = [value.SerializeToString() for value in self._protos[index]]
        else:
            values = [Value(**{kind: v}).SerializeToString() for v in self._columns[index]]
        times = b"\x1a\x00" * len(values)
        return _vector(values, bytes([PRESENT]) * len(values), times)

    def _feature_vectors(self, group: PlanGroup, rows: Sequence[bytes]) -> list[bytes]:
        layout = group.view.layout
        times = _times(rows)
        if group.max_age_us or group.default is not None:
            present = bytes([self._present_status(group, row) for row in rows])
        else:
            present = bytes((PRESENT,)) * len(rows)
        if any(row[FLAGS_AT] for row in rows):
            return _vectors_with_states(group, rows, present, times)
        tail = _field(0x12, present) + times
        if layout.wire is not None:
            return [_wire_vectors(layout.wire, rows, group.spans, tail)] if group.spans else []
        items = [layout.serialized(row) for row in rows]
        return [
            _field(0x12, b"".join([_field(0x0A, item[at] or b"") for item in items]) + tail)
            for at in group.positions
        ]

    def _present_status(self, group: PlanGroup, row: bytes) -> int:
        if row[FLAGS_AT] & DEFAULTED:
            return int(MISSING)
        if not group.max_age_us or is_absent(row):
            return int(PRESENT)
        moment = group.view.layout.event_us(row)
        is_old = moment is not None and self._wall_us - moment > group.max_age_us
        return int(OUTSIDE_MAX_AGE if is_old else PRESENT)


def _times(rows: Sequence[bytes]) -> bytes:
    """The rows' event timestamps as fields; rows written together share theirs."""
    known: dict[bytes, bytes] = {}
    fields = []
    for row in rows:
        raw = row[EVENT_AT]
        field = known.get(raw)
        if field is None:
            moment_us = int.from_bytes(raw, "little", signed=True)
            is_none = moment_us == NO_EVENT_TIME
            field = known[raw] = _field(0x1A, _timestamp(None if is_none else moment_us))
        fields.append(field)
    return b"".join(fields)


def _vectors_with_states(
    group: PlanGroup, rows: Sequence[bytes], present: bytes, times: bytes
) -> list[bytes]:
    layout = group.view.layout
    items = [layout.serialized(row) for row in rows]
    states = [layout.states(row) for row in rows]
    return [
        _vector(
            [item[at] or b"" for item in items],
            bytes(
                MISSING if state[at] == NOT_FOUND else here
                for state, here in zip(states, present, strict=True)
            ),
            times,
        )
        for at in group.positions
    ]


def _wire_vectors(
    wire: tuple[bytes, int], rows: Sequence[bytes], spans: Sequence[tuple[int, int]], tail: bytes
) -> bytes:
    """The vectors of columns of floats: each cell of a row is the end of its serialized value."""
    tag, width = wire
    before = bytes((0x0A, width + len(tag))) + tag
    size = (len(before) + width) * len(rows) + len(tail)
    head = b"\x12" + varint(size) + before
    if len(rows) == 1:
        row = rows[0]
        cells = [row[start:end] for start, end in spans]
    else:
        cells = [before.join([row[start:end] for row in rows]) for start, end in spans]
    return head + (tail + head).join(cells) + tail


def _vector(values: Sequence[bytes], statuses: bytes, times: bytes) -> bytes:
    body = b"".join([_field(0x0A, value) for value in values])
    return _field(0x12, body + _field(0x12, statuses) + times)


def _field(tag: int, body: bytes) -> bytes:
    size = len(body)
    if size < 128:
        return bytes((tag, size)) + body
    return bytes((tag,)) + varint(size) + body


def _timestamp(moment_us: int | None) -> bytes:
    if not moment_us:
        return b""
    seconds, micros = divmod(moment_us, 1_000_000)
    body = b"\x08" + varint(seconds) if seconds else b""
    return body + (b"\x10" + varint(micros * 1_000) if micros else b"")
