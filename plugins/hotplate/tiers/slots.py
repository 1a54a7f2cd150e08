"""Where rows of the shared tier lie, and when it was asked."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Moment", "Place", "Slot"]


class Moment(NamedTuple):
    """When the server was read.

    Attributes:
        server_us: by its clock.
        wall_us, now_ns: by this process's wall clock, and on the cache's clock.
        generations: of each field that was asked for, with that of the project.
    """

    server_us: int
    wall_us: int
    now_ns: int
    generations: list[bytes]


class Place(NamedTuple):
    """What the keys of a view begin with, its field among the generations, its fingerprint."""

    prefix: bytes
    field: bytes
    fingerprint: bytes


class Slot(NamedTuple):
    """Where a loaded row may be put: in place of exactly what was seen; None was nothing.

    What is found has its fields as a plain tuple: a request makes one for each of its keys.
    """

    key: bytes
    seen: bytes | None
    origin: bytes
