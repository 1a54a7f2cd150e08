"""Where the row of an entity is held, how old it is there, and how the next read is answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotplate.codec import PREFIX_BYTES, is_absent, stamp_of
from hotplate.contracts import LoadRequest, View
from hotplate.core.request import Bound
from hotplate.durations import NO_LIMIT_NS, format_duration
from hotplate.keys import EntityShape, Key
from hotplate.serving.entities import Target
from hotplate.serving.runtime import Runtime

__all__ = ["HeldRow", "Inspected", "inspect"]


@dataclass(frozen=True)
class HeldRow:
    """A row in a tier.

    Attributes:
        age_s: since before it was read from the source.
        expires_in_s: until it may no longer be served; negative since then, None: never.
        is_absent: whether it says that there is no such entity.
        values: feature -> value.
        is_as_source: whether it says what the source says now; None where that does not answer.
    """

    age_s: float
    expires_in_s: float | None
    is_absent: bool
    values: Mapping[str, Any]
    is_as_source: bool | None


@dataclass(frozen=True)
class Inspected:
    """One feature view, for one entity.

    Attributes:
        view, group: names.
        policy: setting -> value, as `hotplate policy` has it.
        memory: the row in this process's memory, or None.
        shared: the row in the shared tier, or None.
        shared_state: `"none"`: the deployment has no shared tier, or the view is not kept there;
            `"left alone"`: its breaker is open; `"loading"`: a process loads the row now;
            `"empty"`: nothing that verifies and is of today's schema and generation; `"held"`.
        source: feature -> value at the source now; None where that has no such entity or fails.
        source_error: why it fails, by the name of the error, or nothing.
        next_read: how this process would answer a read now, and why.
    """

    view: str
    group: str
    policy: Mapping[str, str]
    memory: HeldRow | None
    shared: HeldRow | None
    shared_state: str
    source: Mapping[str, Any] | None
    source_error: str
    next_read: str


def inspect(
    runtime: Runtime, target: Target, entity: tuple[EntityShape, tuple[Any, ...]]
) -> Inspected:
    """Look at one entity of one feature view, without filling anything.

    Args:
        runtime: of the cache.
        target: the feature view.
        entity: shape and values.
    """
    shape, values = entity
    view, bound, counters = runtime.resolve(target.table, (), shape)
    key = view.key(values)
    row, error = _at_source(runtime, target, view, key)
    now_ns = runtime.clock.now_ns()
    engine = runtime.engine

    def held(found: bytes | None) -> HeldRow | None:
        return None if found is None else _held(view, bound, found, now_ns, row)

    memory = held(engine.memory.peek(key))
    shared_row, state = _in_shared(runtime, view, bound, key)
    shared = held(shared_row)
    source = None if row is None or is_absent(_stamped(row)) else _values(view, _stamped(row))
    return Inspected(
        target.view,
        counters.name,
        bound.policy.shown(),
        memory,
        shared,
        state,
        source,
        error,
        _next_read(bound, now_ns, memory, shared, state)
        + (f"; the source fails: {error}" if error else ""),
    )


def _at_source(runtime: Runtime, target: Target, view: View, key: Key) -> tuple[bytes | None, str]:
    """The body of the row as the source has it, and the name of its error."""
    try:
        (found,) = runtime.engine.source.load(
            [LoadRequest(view, target.table, [key], is_check=True)]
        )
    except Exception as error:  # noqa: BLE001 - whatever a source raises: the tiers are shown still
        return None, type(error).__name__
    if isinstance(found, Exception):
        return None, type(found).__name__
    return found[0], ""


def _in_shared(runtime: Runtime, view: View, bound: Bound, key: Key) -> tuple[bytes | None, str]:
    tier = runtime.shared()
    if tier is None or not view.is_shareable or not bound.is_cached:
        return None, "none"
    if not tier.is_usable:
        return None, "left alone"
    (found,) = tier.look([(view, key)])
    if found.row is not None:
        return found.row, "held"
    return None, "loading" if found.is_busy else "empty"


def _held(view: View, bound: Bound, row: bytes, now_ns: int, source: bytes | None) -> HeldRow:
    age_ns = now_ns - stamp_of(row)
    expiry_ns = bound.expiry_ns(row)
    return HeldRow(
        age_ns / 1e9,
        None if expiry_ns >= NO_LIMIT_NS else (expiry_ns - age_ns) / 1e9,
        is_absent(row),
        {} if is_absent(row) else _values(view, row),
        None if source is None else row[PREFIX_BYTES:] == source,
    )


def _stamped(body: bytes) -> bytes:
    return b"\0" * PREFIX_BYTES + body


def _values(view: View, row: bytes) -> dict[str, Any]:
    names = [column.name for column in view.layout.columns]
    return dict(zip(names, view.layout.decode(row), strict=True))


def _next_read(
    bound: Bound, now_ns: int, memory: HeldRow | None, shared: HeldRow | None, state: str
) -> str:
    if not bound.is_cached:
        said = bound.policy.origins.get("cache") or bound.policy.origins.get("ttl", "by default")
        return f"from the source: the policy keeps nothing ({said})"
    if not bound.lease.is_whole(now_ns):
        return "from the source: the event channel is not whole, or just starts"
    if _is_good(memory):
        return "from memory"
    why = "memory does not have it" if memory is None else f"memory's {_expired(memory)}"
    if _is_good(shared):
        return f"from the shared tier: {why}"
    if state == "loading":
        return f"waits for the process that loads it: {why}"
    if shared is not None:
        why += f", the shared tier's {_expired(shared)}"
    elif state == "empty":
        why += ", nor does the shared tier"
    elif state == "left alone":
        why += ", and the shared tier is left alone"
    return f"from the source: {why}"


def _is_good(held: HeldRow | None) -> bool:
    return held is not None and (held.expires_in_s is None or held.expires_in_s >= 0)


def _expired(held: HeldRow) -> str:
    ago_ms = int(-(held.expires_in_s or 0) * 1e3)
    return f"expired {format_duration(ago_ms * 1_000_000)} ago"
