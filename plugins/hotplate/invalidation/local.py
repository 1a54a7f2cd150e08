"""Coherence inside one process: every cache of one project forgets together.

Two `FeatureStore` objects over the same data have a cache each. What is written through one must
not be served by the other, so the caches of one project form a *domain*: they share the tokens
that keys begin with, and an invalidation reaches every member before it returns. Whether two
configurations reach the same data cannot be seen from their texts (`localhost`, `127.0.0.1`), so
it is not asked: forgetting too much costs a load, forgetting too little a wrong answer.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from hotplate.codec import Layout
from hotplate.contracts import View
from hotplate.keys import EntityShape, Key, ViewIdentity

__all__ = ["Domain", "Member", "domain_of"]

_SPREAD: Final = 0x9E37_79B9_7F4A_7C15  # odd, so that no two tokens are equal


class Member(Protocol):
    """A cache that belongs to a domain."""

    def forget_keys(self, keys: Sequence[Key]) -> int:
        """Never again serve what was read before for these keys; returns the rows dropped."""

    def forget_tokens(self, tokens: frozenset[int]) -> int:
        """Drop every entry under these tokens, which nothing looks up any more; returns the rows
        dropped."""

    def restart_after_fork(self) -> None:
        """Start clean in a forked child: no locks held, no load in flight."""


class Domain:
    """The views of one project and the caches over them."""

    def __init__(self) -> None:
        self._views: dict[ViewIdentity, View] = {}
        self._by_name: dict[tuple[str, str], list[View]] = {}
        self._by_token: dict[int, View] = {}
        self._retired: set[int] = set()
        self._next_token = 1
        self._lock = threading.Lock()
        self._members: weakref.WeakSet[Any] = weakref.WeakSet()
        self._dependent: weakref.WeakSet[Any] = weakref.WeakSet()

    def join(self, member: Member, *, is_dependent: bool = False) -> None:
        """Make a cache a member for as long as it lives.

        Args:
            member: the cache.
            is_dependent: it holds what was made of rows of the others, and forgets after them.
        """
        with self._lock:
            (self._dependent if is_dependent else self._members).add(member)

    def view(self, identity: ViewIdentity, layout: Layout) -> View:
        """The view of an identity, made on first use."""
        found = self._views.get(identity)
        if found is not None:
            return found
        with self._lock:
            found = self._views.get(identity)
            if found is None:
                found = View(identity, layout, self._take_token())
                self._by_token[found.token] = found
                self._views[identity] = found
                self._by_name.setdefault((identity.project, identity.view), []).append(found)
        return found

    def _take_token(self) -> int:
        # spread over 60 bits: keys of neighbouring tokens must not have neighbouring hashes
        token = self._next_token * _SPREAD & ((1 << 60) - 1)
        self._next_token += 1
        return token

    def view_of(self, token: int) -> View | None:
        """The view that a key's token stands for or stood for."""
        return self._by_token.get(token)

    def is_current(self, token: int) -> bool:
        """Whether keys under this token can still be looked up."""
        view = self._by_token.get(token)
        return view is not None and view.token == token

    def views_named(self, project: str, name: str) -> list[View]:
        """Every identity of a feature view: its versions, schemas and key types."""
        return list(self._by_name.get((project, name), ()))

    def invalidate_entities(
        self, project: str, name: str, entities: Iterable[tuple[EntityShape, tuple[Any, ...]]]
    ) -> int:
        """Forget entities of a feature view, in every version and schema of it, everywhere.

        Returns:
            How many rows were dropped.
        """
        views = self.views_named(project, name)
        if not views:
            return 0
        by_shape: dict[EntityShape, list[View]] = {}
        for view in views:
            by_shape.setdefault(view.identity.shape, []).append(view)
        keys = [view.key(values) for shape, values in entities for view in by_shape.get(shape, ())]
        return self.invalidate_keys(keys)

    def invalidate_keys(self, keys: Sequence[Key]) -> int:
        """Forget keys everywhere; returns how many rows were dropped."""
        return sum(member.forget_keys(keys) for member in self._all_members()) if keys else 0

    def invalidate_views(self, views: Iterable[View]) -> int:
        """Forget everything of these views: their keys get a new token.

        Returns:
            How many rows were dropped.
        """
        with self._lock:
            for view in views:
                self._retired.add(view.token)
                view.renew(self._take_token())
                self._by_token[view.token] = view
            retired = frozenset(self._retired)
        dropped = sum(member.forget_tokens(retired) for member in self._all_members())
        with self._lock:
            self._retired -= retired
            for token in retired:
                self._by_token.pop(token, None)
        return dropped

    def invalidate_all(self, project: str) -> int:
        """Forget everything of a project; returns how many rows were dropped."""
        views = list(self._views.values())
        return self.invalidate_views([view for view in views if view.identity.project == project])

    def _all_members(self) -> list[Member]:
        with self._lock:  # a weak set must not be iterated while another thread joins
            return [*self._members, *self._dependent]

    def restart_after_fork(self) -> None:
        """Start clean in a forked child."""
        self._lock = threading.Lock()
        for member in [*self._members, *self._dependent]:
            member.restart_after_fork()


_domains: weakref.WeakValueDictionary[str, Domain] = weakref.WeakValueDictionary()
_domains_lock = threading.Lock()


def domain_of(project: str) -> Domain:
    """The domain of a project in this process."""
    with _domains_lock:
        domain = _domains.get(project)
        if domain is None:
            domain = _domains[project] = Domain()
        return domain


def _restart_after_fork() -> None:
    global _domains_lock
    _domains_lock = threading.Lock()
    for domain in list(_domains.values()):
        domain.restart_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_after_fork)
