"""Errors that Hotplate raises by itself; a source's own errors pass through unchanged.

Errors about settings are no `ValueError`s on purpose: pydantic wraps those and prints the settings
beside them, and the settings of a store hold its password.
"""

from __future__ import annotations

__all__ = [
    "CommandRefused",
    "ConfigError",
    "EntityError",
    "HotplateError",
    "NotACachedStoreError",
    "PolicyError",
    "ServerError",
]


class HotplateError(Exception):
    """Base of every error that Hotplate raises by itself."""


class PolicyError(HotplateError):
    """A cache policy is contradictory, out of range, ambiguous or unknown.

    The message names the group, the key, what is wrong and what to write instead.
    """

    def __init__(self, *, group: str, key: str, problem: str, fix: str) -> None:
        self.group = group
        self.key = key
        self.problem = problem
        self.fix = fix
        super().__init__(f"cache policy of group {group!r}: {key}: {problem}. {fix}")


class ConfigError(HotplateError):
    """`online_store` in feature_store.yaml cannot work as written."""


class EntityError(HotplateError):
    """An entity cannot be read as its feature view declares it; the message holds no value."""


class NotACachedStoreError(HotplateError, TypeError):
    """A Feast store was given whose online store is not Hotplate's."""


class ServerError(HotplateError):
    """A Redis or Valkey server that processes share cannot be reached, or answers with an error."""


class CommandRefused(ServerError):
    """The server answered with an error: a right is missing, it is read-only, it is full.

    Attributes:
        code: the first word of the answer, such as `NOPERM`, `READONLY`, `OOM`, `MOVED`.
    """

    def __init__(self, message: str, code: str = "") -> None:
        self.code = code
        super().__init__(message)
