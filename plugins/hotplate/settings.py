"""Parts of `online_store` in feature_store.yaml, and what their checking needs."""

from __future__ import annotations

from typing import Literal

from feast.importer import import_class
from feast.repo_config import FeastConfigBaseModel, get_online_config_from_type
from pydantic import Field, ValidationError, field_validator

from hotplate.durations import NO_LIMIT_NS, parse_duration
from hotplate.sizes import parse_bytes

__all__ = ["MemoryConfig", "SharedConfig", "store_class", "without_input"]


class MemoryConfig(FeastConfigBaseModel):  # type: ignore[misc]
    """Bounds of the memory tier; a larger one hits more often."""

    max_entries: int = Field(default=1_000_000, gt=0)
    """Rows held, one a feature view and entity, entities known to be absent included."""

    max_bytes: int = 512_000_000
    """Bytes held, keys and bookkeeping included; `"512MB"`, `"2GiB"` or a number."""

    absent_share: float = Field(default=0.1, ge=0, le=1)
    """Share of both that entities known to be absent may take."""

    @field_validator("max_bytes", mode="before")
    @classmethod
    def _read_bytes(cls, value: object) -> int:
        return parse_bytes(value)


class SharedConfig(FeastConfigBaseModel):  # type: ignore[misc]
    """A Redis or Valkey server on which the processes of a deployment meet and share rows."""

    connection_string: str = Field(repr=False)
    """As Feast's Redis store has it: `host:port`, more of them for a cluster or for sentinels, then
    options such as `ssl=true,username=...,password=...`."""

    redis_type: Literal["redis", "redis_cluster", "redis_sentinel"] = "redis"
    """One server, a cluster, or a primary that sentinels watch."""

    sentinel_master: str = "mymaster"
    """The name by which sentinels know the primary."""

    tier: bool | None = None
    """Whether rows that one process loaded are kept there for the others. Left out: yes, unless the
    wrapped store is Redis itself."""

    timeout: int = 5_000_000
    """How long one exchange with the server may take (`"5ms"`); then the source is read."""

    lease: int = 1_000_000_000
    """How long a process may take to load a row until another one does (`"1s"`)."""

    max_row_bytes: int = 1_000_000
    """Larger rows stay out of the shared tier (`"1MB"`)."""

    @field_validator("timeout", "lease", mode="before")
    @classmethod
    def _read_duration(cls, value: object) -> int:
        parsed = value if type(value) is int else parse_duration(value)
        if not 0 < parsed < NO_LIMIT_NS:
            raise ValueError(f"{value!r} is no time to wait: write '5ms' or '1s'")
        return parsed

    @field_validator("max_row_bytes", mode="before")
    @classmethod
    def _read_bytes(cls, value: object) -> int:
        return parse_bytes(value)


def without_input(kind: str, error: ValidationError) -> str:
    """What is wrong with a wrapped store's settings, without the settings, which hold passwords."""
    faults = "; ".join(
        f"{'.'.join(map(str, ('online_store.store', *fault['loc'])))}: {fault['msg']}"
        for fault in error.errors(include_input=False, include_context=False, include_url=False)
    )
    return f"{faults}. Write the {kind} store as it was before under online_store."


def store_class(kind: str) -> type:
    config = get_online_config_from_type(kind)
    found: type = import_class(
        config.__module__, config.__name__.removesuffix("Config"), "OnlineStore"
    )
    return found
