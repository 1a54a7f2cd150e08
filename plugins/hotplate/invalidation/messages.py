"""What processes tell each other: these entities of this view changed.

JSON, because it is read by others, logged by nobody, and cannot carry code. Entities travel as
their values, in the order of the sorted join keys; bytes as base64. A message holds at most
`ENTITIES_MAX` of them, so that a large `materialize` neither makes a message that stalls the
server nor thousands of tiny ones.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from hotplate.keys import EntityShape

__all__ = ["ENTITIES_MAX", "Change", "decode", "encode"]

ENTITIES_MAX: Final = 1_000
_VERSION: Final = 1


@dataclass(frozen=True)
class Change:
    """Something that changed.

    Attributes:
        view: the feature view's name; None for every view of the project.
        shape: the entities' shape; None where the view changed as a whole.
        entities: their values, in the shape's order.
        is_owed: whether the shared tier may still hold what was there before.
    """

    view: str | None
    shape: EntityShape | None = None
    entities: tuple[tuple[Any, ...], ...] = ()
    is_owed: bool = False


def encode(
    origin: str,
    view: str | None,
    shaped: Iterable[tuple[EntityShape, tuple[Any, ...]]] | None,
    *,
    is_owed: bool = False,
) -> Iterator[bytes]:
    """Messages that say what changed.

    Args:
        origin: who says it, so that it need not listen to itself.
        view: which feature view; None for all.
        shaped: which entities; None for the view as a whole.
        is_owed: whether the shared tier may still hold what was there before.
    """
    head: dict[str, Any] = {"v": _VERSION, "o": origin, "view": view}
    if is_owed:
        head["owed"] = True
    if shaped is None:
        yield json.dumps(head).encode()
        return
    by_shape: dict[EntityShape, list[tuple[Any, ...]]] = {}
    for shape, values in shaped:
        by_shape.setdefault(shape, []).append(values)
    for shape, entities in by_shape.items():
        binary = [at for at, kind in enumerate(shape.types) if kind == "bytes_val"]
        rest = iter(entities)
        while batch := list(islice(rest, ENTITIES_MAX)):
            if binary:
                batch = [_as_text(values, binary) for values in batch]
            body = {**head, "keys": shape.join_keys, "types": shape.types, "entities": batch}
            yield json.dumps(body, separators=(",", ":")).encode()


def decode(message: bytes) -> tuple[str, Change]:
    """Who says it, and what changed.

    Raises:
        ValueError: it is no message of this version.
    """
    try:
        body = json.loads(message)
        if body["v"] != _VERSION:
            raise ValueError(f"version {body['v']}")
        origin, view, is_owed = str(body["o"]), body["view"], bool(body.get("owed"))
        if "entities" not in body:
            return origin, Change(view, is_owed=is_owed)
        shape = EntityShape(tuple(body["keys"]), tuple(body["types"]))
        binary = [at for at, kind in enumerate(shape.types) if kind == "bytes_val"]
        entities = [tuple(values) for values in body["entities"]]
        if binary:
            entities = [_as_bytes(values, binary) for values in entities]
        return origin, Change(view, shape, tuple(entities), is_owed)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a message of version {_VERSION}: {type(error).__name__}") from None


def _as_text(values: tuple[Any, ...], binary: list[int]) -> tuple[Any, ...]:
    held = list(values)
    for at in binary:
        held[at] = base64.b64encode(held[at]).decode()
    return tuple(held)


def _as_bytes(values: tuple[Any, ...], binary: list[int]) -> tuple[Any, ...]:
    held = list(values)
    for at in binary:
        held[at] = base64.b64decode(held[at], validate=True)
    return tuple(held)
