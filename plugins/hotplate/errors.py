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
    "LoaderError",
    "LoaderTimeoutError",
    "NotACachedStoreError",
    "PayloadError",
    "PolicyError",
    "ServerError",
]


class HotplateError(Exception):
    """Base of every error that Hotplate raises by itself."""


class PolicyError(HotplateError):
    """A cache policy is contradictory, out of range, ambiguous or unknown.

    The message names the group, where its policy is written, the key, what is wrong and what to
    write instead.

    Attributes:
        group: a group, a wildcard, `default`, or "" for a policy that has no name yet.
        place: where it is written, such as `profiles['edge']`; "" where that is not known.
    """

    def __init__(self, *, group: str, key: str, problem: str, fix: str, place: str = "") -> None:
        self.group = group
        self.key = key
        self.problem = problem
        self.fix = fix
        self.place = place
        where = f" ({place})" if place else ""
        super().__init__(f"cache policy{_subject(group)}{where}: {key}: {problem}. {fix}".rstrip())

    def placed(self, place: str) -> PolicyError:
        """The same error, with where it was found if it does not say so already."""
        return PolicyError(
            group=self.group,
            key=self.key,
            problem=self.problem,
            fix=self.fix,
            place=self.place or place,
        )


def _subject(group: str) -> str:
    if not group:
        return ""
    if group == "default":
        return " of the default"
    return f" of the groups {group!r}" if set(group) & set("*?[") else f" of group {group!r}"


class ConfigError(HotplateError):
    """`online_store` in feature_store.yaml cannot work as written."""


class LoaderError(HotplateError):
    """A loader cannot be called, or what it returned cannot be the rows of its feature view.

    The message names the feature view, what is wrong and what to do about it. Errors that the
    database or the function raised by themselves pass through unchanged.
    """

    def __init__(self, *, view: str, problem: str, fix: str) -> None:
        self.view = view
        self.problem = problem
        self.fix = fix
        super().__init__(f"loader of feature view {view!r}: {problem}. {fix}")


class LoaderTimeoutError(LoaderError, TimeoutError):
    """A loader did not answer within its `timeout`."""


class EntityError(HotplateError):
    """An entity cannot be read as its feature view declares it; the message holds no value."""


class NotACachedStoreError(HotplateError, TypeError):
    """A Feast store was given whose online store is not Hotplate's."""


class PayloadError(HotplateError, TypeError):
    """The blob tier was given what it cannot keep as bytes; the message says what it can keep."""


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
