"""What a deployment says of its loaders: `online_store.loaders` in feature_store.yaml.

A *loader* computes the rows of a feature view on a miss, where its features live in an operational
database, or behind a function, instead of in the online store::

    loaders:
      merchant_risk:                     # a feature view, or a group
        sql: >
          SELECT m.merchant_id, count(*) AS n, avg(t.amount) AS mean
          FROM merchants m JOIN transactions t ON t.merchant = m.id
          WHERE m.merchant_id IN :merchant_id
          GROUP BY m.merchant_id
        url: postgresql+psycopg://reader:${DB_PASSWORD}@db/shop
        timeout: 500ms
      account: {function: "my_package.loaders:load_account"}

It stands in the deployment, not in the feature repo's tags, because code and credentials belong to
the deployment. A message about a loader never holds its `url`, which may hold a password.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hotplate.durations import NO_LIMIT_NS, parse_duration
from hotplate.errors import ConfigError

__all__ = ["LoaderSettings", "read_loaders"]

_WHERE: Final = "online_store.loaders"
_TIMEOUT: Final = "2s"
_MAX_CONCURRENT: Final = 4
_MAX_BATCH: Final = 1_000
_FOR_SQL: Final = ("sql", "url")
_FOR_FUNCTION: Final = ("function",)
_FOR_BOTH: Final = (
    "timeout",
    "max_concurrent",
    "max_batch",
    "event_timestamp_column",
    "write_back",
)
_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class LoaderSettings:
    """The settings of one loader.

    Attributes:
        name: the feature view or group that it loads.
        sql: one statement that returns the rows of a batch of entities, or None.
        url: SQLAlchemy's URL of the database it runs on; `${NAME}` stands for an environment
            variable, read when the database is first connected to.
        function: import path of a function, `module:name`, or None.
        timeout_ns: how long a load may take, the wait for its turn included.
        max_concurrent: how many queries or calls run at once, in each process.
        max_batch: how many entities one query or call asks for at most.
        event_timestamp_column: the column that holds a row's event timestamp; where there is none,
            it is the instant at which the load began.
        write_back: whether loaded rows are also written into the wrapped online store.
    """

    name: str
    sql: str | None
    url: str | None = field(repr=False)
    function: str | None
    timeout_ns: int
    max_concurrent: int
    max_batch: int
    event_timestamp_column: str | None
    write_back: bool

    @property
    def kind(self) -> str:
        """What may be shown of it to everybody: `"sql"` or `"function"`."""
        return "function" if self.sql is None else "sql"

    @property
    def timeout_s(self) -> float:
        """The timeout in seconds."""
        return self.timeout_ns / 1e9


def read_loaders(written: Mapping[str, Any]) -> dict[str, LoaderSettings]:
    """Read `online_store.loaders`.

    Raises:
        ConfigError: a setting is unknown, malformed or contradicts another; the message names the
            loader, the setting and the fix, and never shows a value that may hold a password.
    """
    return {name: _read(name, settings) for name, settings in written.items()}


def _read(name: str, written: Any) -> LoaderSettings:
    where = f"{_WHERE}[{name!r}]"
    if not isinstance(written, Mapping):
        raise ConfigError(
            f"{where}: must hold the loader's settings. Write {{sql: ..., url: ...}} or "
            "{function: 'module:name'}."
        )
    if any(character in name for character in "*?["):
        raise ConfigError(f"{where}: a loader takes no wildcards. Name a feature view or a group.")
    is_sql = "sql" in written
    if is_sql == ("function" in written):
        raise ConfigError(f"{where}: needs either 'sql' or 'function', one of the two.")
    _check_keys(where, written, (*(_FOR_SQL if is_sql else _FOR_FUNCTION), *_FOR_BOTH))
    column = written.get("event_timestamp_column")
    return LoaderSettings(
        name=name,
        sql=_text(where, "sql", written) if is_sql else None,
        url=_text(where, "url", written) if is_sql else None,
        function=None if is_sql else _path(where, written["function"]),
        timeout_ns=_timeout(where, written.get("timeout", _TIMEOUT)),
        max_concurrent=_count(where, written, "max_concurrent", _MAX_CONCURRENT, 1_000),
        max_batch=_count(where, written, "max_batch", _MAX_BATCH, 10_000),
        event_timestamp_column=(
            None if column is None else _text(where, "event_timestamp_column", written)
        ),
        write_back=_flag(where, "write_back", written),
    )


def _check_keys(where: str, written: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in written:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(known)}."
            raise ConfigError(f"{where}: unknown setting {key!r}. {hint}")


def _text(where: str, key: str, written: Mapping[str, Any]) -> str:
    value = written.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}.{key}: must be text that is not empty.")
    return value


def _path(where: str, value: Any) -> str:
    if not isinstance(value, str) or not _PATH.fullmatch(value):
        raise ConfigError(
            f"{where}.function: is no import path. Write 'package.module:function', which Python "
            "can import."
        )
    return value


def _timeout(where: str, value: Any) -> int:
    try:
        timeout_ns = parse_duration(value)
    except ValueError as error:
        raise ConfigError(f"{where}.timeout: {error}.") from None
    if not 0 < timeout_ns < NO_LIMIT_NS:
        raise ConfigError(
            f"{where}.timeout: a caller must not wait without a bound, nor for no time at all. "
            f"Write a duration such as '500ms' or '{_TIMEOUT}'."
        )
    return timeout_ns


def _count(where: str, written: Mapping[str, Any], key: str, default: int, most: int) -> int:
    value = written.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{where}.{key}: must be a whole number from 1 to {most:,}.")
    return value


def _flag(where: str, key: str, written: Mapping[str, Any]) -> bool:
    value = written.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}.{key}: must be true or false.")
    return value
