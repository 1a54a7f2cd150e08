"""Parts of `online_store` in feature_store.yaml, and what their checking needs."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated, Any, Final, Literal

from feast.importer import import_class
from feast.repo_config import (
    ONLINE_STORE_CLASS_FOR_TYPE,
    FeastConfigBaseModel,
    get_online_config_from_type,
)
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from hotplate.durations import NO_LIMIT_NS, parse_duration
from hotplate.errors import ConfigError
from hotplate.policy import TTLMap
from hotplate.sizes import parse_bytes, parse_share

__all__ = [
    "BlobsConfig",
    "MemoryConfig",
    "MetricsConfig",
    "PreloadConfig",
    "QualityConfig",
    "Rate",
    "ShadowConfig",
    "SharedConfig",
    "TrafficConfig",
    "WindowsConfig",
    "check_store",
    "checked",
    "store_class",
]

_EXAMPLES: Final = {
    "ttl_map": "ttl_map: {default: 30s}",
    "loaders": "loaders: {card_stats: {function: 'module:name'}}",
    "profiles": "profiles: {edge: {default: 5s}}",
    "memory": "memory: {max_bytes: 512MB}",
    "metrics": "metrics: {folder: /var/lib/hotplate/metrics}",
    "shadow": "shadow: {share: 0.1%}",
    "shared": "shared: {connection_string: 'localhost:6379'}",
    "blobs": "blobs: {folder: /var/cache/hotplate}",
    "preload": "preload: {folder: /var/lib/hotplate/preload, budget: 10s}",
    "traffic": "traffic: {folder: /var/lib/hotplate/traffic}",
    "windows": "windows: {connection_string: 'localhost:6379'}",
    "outputs": "outputs: {fraud: {ttl: 30s}}",
    "quality": "quality: {materialize: block}",
}


def _read_rate(value: object) -> object:
    found = re.fullmatch(r"([1-9][0-9]*)/s", value) if isinstance(value, str) else None
    if found is not None:
        return int(found[1])
    if type(value) is int and value > 0:
        return value
    raise ValueError(f"{value!r} is no rate: write '500/s'")


Rate = Annotated[int, BeforeValidator(_read_rate)]
"""So many a second: `"500/s"`."""


class MemoryConfig(FeastConfigBaseModel):  # type: ignore[misc]
    """Bounds of the memory tier; a larger one hits more often."""

    max_entries: int = Field(default=1_000_000, gt=0)
    """Rows held, one a feature view and entity, entities known to be absent included."""

    max_bytes: int = 512_000_000
    """Bytes held, keys and bookkeeping included; `"512MB"`, `"2GiB"` or a number."""

    absent_share: float = Field(default=0.1, ge=0, le=1)
    """Share of both that entities known to be absent may take: `0.1` or `"10%"`."""

    @field_validator("max_bytes", mode="before")
    @classmethod
    def _read_bytes(cls, value: object) -> int:
        return parse_bytes(value)

    @field_validator("absent_share", mode="before")
    @classmethod
    def _read_share(cls, value: object) -> float:
        return parse_share(value)


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
        return _to_wait(value)

    @field_validator("max_row_bytes", mode="before")
    @classmethod
    def _read_bytes(cls, value: object) -> int:
        return parse_bytes(value)


class BlobsConfig(FeastConfigBaseModel):  # type: ignore[misc]
    """A folder in which the processes of a host share payloads of more than 1 MB."""

    folder: str
    """On a local disk or a tmpfs, the same for all processes; made if it is not there."""

    max_bytes: int = 10_000_000_000
    """Bytes of all files together; `"10GB"`, `"2GiB"` or a number."""

    @field_validator("folder")
    @classmethod
    def _check_folder(cls, value: str) -> str:
        return _absolute(value, "/var/cache/hotplate")

    @field_validator("max_bytes", mode="before")
    @classmethod
    def _read_bytes(cls, value: object) -> int:
        return parse_bytes(value)


class ShadowConfig(FeastConfigBaseModel):  # type: ignore[misc]
    """Some of what is served from memory is compared with the source."""

    share: float = Field(default=0.001, gt=0, le=1)
    """Of the requests, of each of which one row a feature view is compared: `"0.1%"`."""

    rate: Rate = 50
    """Rows compared in a second at the most (`"50/s"`): each is a read of the source."""

    limit: float = Field(default=0.001, ge=0, lt=1)
    """Share of rows that may differ without a reason. Where more surely do, their group is served
    from the source from then on."""

    least: int = Field(default=200, gt=0)
    """Rows that are compared before that is judged."""

    @field_validator("share", "limit", mode="before")
    @classmethod
    def _read_share(cls, value: object) -> float:
        return parse_share(value)


class TrafficConfig(FeastConfigBaseModel):  # type: ignore[misc]
    """A log of what is read: for warming, and for advice on how long to keep what."""

    folder: str
    """Where its Parquet files go; made if it is not there. One for all processes of a host."""

    sample: float = Field(default=0.01, gt=0, le=1)
    """Share of the requests that are logged: `"1%"`; `"100%"` for all of them."""

    ids: Literal["hashed", "plain"] = "hashed"
    """Whether entity ids stand in it as they are: else warming needs a list of them beside it."""

    max_bytes: int = 1_000_000_000
    """Bytes of all files together, after which the oldest go; `"1GB"` or a number."""

    every: int = 60_000_000_000
    """How often a process writes a file (`"1m"`)."""

    lossless: bool = False
    """For a replay: a request whose thread finds too much waiting makes rows of it and writes them,
    before anything is left out. Only with `sample: 100%`."""

    changes: bool = False
    """Whether what this process changes (writes through Feast, events, invalidations) is logged
    beside it, for `hotplate advise`. As many bytes again at the most."""

    @field_validator("folder")
    @classmethod
    def _check_folder(cls, value: str) -> str:
        return _absolute(value, "/var/lib/hotplate/traffic")

    @field_validator("sample", mode="before")
    @classmethod
    def _read_share(cls, value: object) -> float:
        return parse_share(value)

    @field_validator("max_bytes", mode="before")
    @classmethod
    def _read_bytes(cls, value: object) -> int:
        return parse_bytes(value)

    @field_validator("every", mode="before")
    @classmethod
    def _read_duration(cls, value: object) -> int:
        return _to_wait(value)

    @model_validator(mode="after")
    def _check_lossless(self) -> TrafficConfig:
        if self.lossless and self.sample < 1:
            raise ValueError("lossless: a sample loses requests; write sample: 100% beside it")
        return self


class MetricsConfig(FeastConfigBaseModel):  # type: ignore[misc]
    """What processes count, written down for Prometheus and for `hotplate top`."""

    folder: str
    """Where they write it; made if it is not there. One for all processes of a host."""

    every: int = 1_000_000_000
    """How often (`"1s"`)."""

    opentelemetry: bool = False
    """Whether the meter provider of OpenTelemetry is given the same, too."""

    @field_validator("opentelemetry")
    @classmethod
    def _check_opentelemetry(cls, value: bool) -> bool:
        if value and find_spec("opentelemetry") is None:
            raise ValueError(
                "OpenTelemetry is not installed: pip install 'feast-hotplate[opentelemetry]'"
            )
        return value

    @field_validator("folder")
    @classmethod
    def _check_folder(cls, value: str) -> str:
        return _absolute(value, "/var/lib/hotplate/metrics")

    @field_validator("every", mode="before")
    @classmethod
    def _read_duration(cls, value: object) -> int:
        return _to_wait(value)


class PreloadConfig(FeastConfigBaseModel):  # type: ignore[misc]
    """A serving process that comes up warm: it reads what processes before it held in memory."""

    folder: str
    """Where processes write down what they hold; made if it is not there. Ids stand in it."""

    budget: int = 10_000_000_000
    """How long a process may read before it is ready (`"10s"`)."""

    most: int = Field(default=100_000, gt=0)
    """Rows that are read at the most."""

    every: int = 60_000_000_000
    """How often a process writes down what it holds (`"1m"`)."""

    rows: bool = False
    """Whether a process that ends keeps rows, too, of groups that nothing but their age bounds."""

    @field_validator("folder")
    @classmethod
    def _check_folder(cls, value: str) -> str:
        return _absolute(value, "/var/lib/hotplate/preload")

    @field_validator("budget", "every", mode="before")
    @classmethod
    def _read_duration(cls, value: object) -> int:
        return _to_wait(value)


class QualityConfig(FeastConfigBaseModel):  # type: ignore[misc]
    """The quality gate: what is done with data that is not as expected. See docs/quality.md."""

    reference: str = "quality.json"
    """How data was, from the feature repo's folder on; `hotplate quality profile` writes it."""

    materialize: Literal["block", "warn", "off"] = "off"
    """Before `materialize` writes a view: refuse rows that are not as expected, or only say so."""

    pushes: Literal["block", "warn", "off"] = "off"
    """The same for what is pushed or written through Feast; `warn` looks at it on the side."""

    sample: float | None = Field(default=None, gt=0, le=1)
    """Share of the pushes that are looked at (`"1%"`). Left out: all that may be refused, one in a
    hundred of those that are not."""

    @field_validator("materialize", "pushes", mode="before")
    @classmethod
    def _read_off(cls, value: object) -> object:
        return "off" if value is False else value  # YAML's off

    @field_validator("sample", mode="before")
    @classmethod
    def _read_share(cls, value: object) -> float | None:
        return None if value is None else parse_share(value)

    @property
    def share(self) -> float:
        """Of the pushes that are looked at."""
        return self.sample or (1.0 if self.pushes == "block" else 0.01)


class WindowsConfig(FeastConfigBaseModel):  # type: ignore[misc]
    """Where the event logs of windowed views are kept: the truth itself, not a copy of it."""

    connection_string: str | None = Field(default=None, repr=False)
    """As `shared.connection_string`. Left out: the wrapped store's own server, where that is Redis.
    The server must not evict: `maxmemory-policy noeviction`."""

    redis_type: Literal["redis", "redis_cluster", "redis_sentinel"] = "redis"
    """One server, a cluster, or a primary that sentinels watch."""

    sentinel_master: str = "mymaster"
    """The name by which sentinels know the primary."""

    in_process: bool = False
    """Keep the logs in this process alone, without a server: for one process that both writes and
    reads, and that may lose them when it ends."""

    timeout: int = 1_000_000_000
    """How long one exchange with the server may take (`"1s"`)."""

    @field_validator("timeout", mode="before")
    @classmethod
    def _read_timeout(cls, value: object) -> int:
        return _to_wait(value)

    @model_validator(mode="after")
    def _check_place(self) -> WindowsConfig:
        if self.in_process and self.connection_string:
            raise ConfigError(
                "online_store.windows: names a server and says in_process: leave out one of them."
            )
        return self


def _absolute(folder: str, example: str) -> str:
    if not os.path.isabs(folder):
        raise ValueError(
            f"{folder!r} begins with no '/': processes that were started elsewhere would look "
            f"for it elsewhere. Write {example}"
        )
    return folder


_PARTS: Final[dict[str, type[BaseModel]]] = {
    "memory": MemoryConfig,
    "shared": SharedConfig,
    "blobs": BlobsConfig,
    "shadow": ShadowConfig,
    "traffic": TrafficConfig,
    "metrics": MetricsConfig,
    "preload": PreloadConfig,
    "quality": QualityConfig,
    "windows": WindowsConfig,
}


def _to_wait(value: object) -> int:
    parsed = value if type(value) is int else parse_duration(value)
    if not 0 < parsed < NO_LIMIT_NS:
        raise ValueError(f"{value!r} is no time to wait: write '5ms' or '1s'")
    return parsed


def checked(values: Any, known: Sequence[str]) -> Any:
    """`online_store` as YAML gives it, tidied; what is no mapping is left to pydantic.

    Raises:
        ConfigError: a setting is unknown, or of the wrong kind. Pydantic would print the value
            beside the key, and it may be a password.
        PolicyError: a policy is malformed.
    """
    if not isinstance(values, dict):
        return values
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ConfigError(
            f"online_store: unknown settings {', '.join(unknown)}. Settings of the wrapped "
            f"store belong under online_store.store; Hotplate's own are {', '.join(known)}."
        )
    if not isinstance(values.get("store"), dict):
        raise ConfigError(
            "online_store.store: must hold the store to keep warm, with its type and settings."
        )
    return _tidied(values)


def _tidied(values: Mapping[str, Any]) -> dict[str, Any]:
    """`online_store` as YAML gives it, without keys that say nothing.

    Raises:
        ConfigError: a value is of the wrong kind. It is not shown: it may hold a password.
        PolicyError: a policy is malformed.
    """
    said = {name: value for name, value in values.items() if value is not None}
    for name, example in _EXAMPLES.items():
        _check_mapping(f"online_store.{name}", said.get(name, {}), example)
    TTLMap(said.get("ttl_map"))
    if "profiles" in said:
        said["profiles"] = {
            str(name): {} if policies is None else policies
            for name, policies in said["profiles"].items()
        }
        for name, policies in said["profiles"].items():
            _check_mapping(f"online_store.profiles.{name}", policies, _EXAMPLES["profiles"])
            TTLMap(policies, origin=f"profiles[{name!r}]")
    if not isinstance(said.get("enforce_max_age", False), bool):
        raise ConfigError("online_store.enforce_max_age: must be true or false, without quotes.")
    if not isinstance(said.get("profile_variable", ""), str):
        raise ConfigError(
            "online_store.profile_variable: must be the name of an environment variable."
        )
    for name, kind in _PARTS.items():
        if isinstance(said.get(name), Mapping):
            _check_part(f"online_store.{name}", kind, said[name], _EXAMPLES[name])
    if "rewarm" in said:
        try:
            _read_rate(said["rewarm"])
        except ValueError as error:
            raise ConfigError(f"online_store.rewarm: {error}.") from None
    return said


def _check_part(place: str, kind: type[BaseModel], value: Mapping[Any, Any], example: str) -> None:
    """Refuse settings in words of ours, and without what was given: it may be a password."""
    try:
        kind.model_validate(dict(value))
    except ValidationError as error:
        faults = error.errors(include_input=False, include_context=False, include_url=False)
        said = [_fault(place, kind, fault["loc"], fault["type"], fault["msg"]) for fault in faults]
        raise ConfigError(f"{' '.join(said)} Write it as in {example}.") from None


def _fault(
    place: str, kind: type[BaseModel], at: tuple[int | str, ...], fault: str, message: str
) -> str:
    where = ".".join(map(str, (place, *at)))
    if fault == "missing":
        return f"{where}: is missing."
    if fault != "extra_forbidden":
        text = message.removeprefix("Value error, ").rstrip(".")
        return f"{where}: {'i' + text[1:] if text.startswith('Input') else text}."
    known = list(kind.model_fields)
    near = difflib.get_close_matches(str(at[-1]), known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}."
    return f"{where}: no such setting. {hint}"


def _check_mapping(place: str, value: object, example: str) -> None:
    if not isinstance(value, (Mapping, BaseModel)):
        kind = "text" if isinstance(value, str) else f"a {type(value).__name__}"
        raise ConfigError(f"{place}: is {kind}, not a mapping. Write it as in {example}.")


def check_store(settings: Mapping[str, Any], own_type: str) -> None:
    """Refuse settings of a wrapped store that its own configuration class refuses.

    Args:
        settings: of the wrapped store.
        own_type: of the store that wraps it.

    Raises:
        ConfigError: they are refused, or there is no such store.
    """
    kind = settings.get("type")
    if not isinstance(kind, str):
        raise ConfigError(
            "online_store.store: names no 'type'. Write the online store as it was before."
        )
    if kind == own_type:
        raise ConfigError(
            "online_store.store: a cached store cannot wrap itself. Name the store inside."
        )
    try:
        config = get_online_config_from_type(kind)
    except Exception as error:  # noqa: BLE001 - Feast raises what importing a module raises
        raise ConfigError(_unknown_store(kind, error)) from None
    try:
        config(**settings)
    except ValidationError as error:
        raise ConfigError(_without_input(kind, error)) from None


def _unknown_store(kind: str, error: Exception) -> str:
    known = [name for name in ONLINE_STORE_CLASS_FOR_TYPE if not name.startswith("feast.")]
    if kind in known or kind.endswith("OnlineStore"):
        return f"online_store.store.type: {kind!r} cannot be imported: {error}"
    near = difflib.get_close_matches(kind.lower(), known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Feast's are {', '.join(sorted(known))}."
    return (
        f"online_store.store.type: {kind!r} is no online store of Feast's. {hint} "
        "A store of another package is named by its class: package.module.NameOnlineStore."
    )


def _without_input(kind: str, error: ValidationError) -> str:
    """What is wrong with a wrapped store's settings, without the settings, which hold passwords."""
    faults = "; ".join(
        f"{'.'.join(map(str, ('online_store.store', *fault['loc'])))}: {fault['msg']}"
        for fault in error.errors(include_input=False, include_context=False, include_url=False)
    )
    return f"{faults}. Write the {kind} store as it was before under online_store."


def store_class(kind: str) -> type:
    """The class of an online store by its type, as Feast finds it."""
    config = get_online_config_from_type(kind)
    found: type = import_class(
        config.__module__, config.__name__.removesuffix("Config"), "OnlineStore"
    )
    return found
