"""What the names of groups and feature views stand for, in the registry as it is now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotplate.errors import PolicyError
from hotplate.policy import read_tags
from hotplate.serving.entities import Target
from hotplate.serving.policies import feature_views_of, registry_state
from hotplate.serving.runtime import Runtime

__all__ = ["Names"]


class Names:
    """Looks names up, once for each state of the registry.

    Args:
        store: the Feast store.
        runtime: of its cache.
    """

    def __init__(self, store: Any, runtime: Callable[[], Runtime]) -> None:
        self._store = store
        self._runtime = runtime
        self._state: object = None
        self._known: dict[str, list[Target]] = {}
        self._groups: tuple[object, frozenset[str]] | None = None

    def groups(self) -> frozenset[str]:
        """The groups of the registry, looked up once for each state of it."""
        state = registry_state(self._store.registry)
        if self._groups is None or state is None or state != self._groups[0]:
            try:
                views = feature_views_of(self._store.registry, self._store.project)
            except Exception:  # noqa: BLE001 - counts are asked for when things are down, too
                return frozenset()
            self._groups = state, frozenset(map(_group_or_name, views))
        return self._groups[1]

    def targets(self, name: str) -> list[Target]:
        """The views that a name stands for, looked up once for each state of the registry.

        Raises:
            KeyError: there is no such group or view.
        """
        state = registry_state(self._store.registry)
        if state is None or state != self._state:
            self._state, self._known = state, {}
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self.look_up(name)
        return found

    def look_up(self, name: str) -> list[Target]:
        """The same, looked up anew.

        Raises:
            KeyError: there is no such group or view.
        """
        is_heard = self._runtime().is_heard
        views = feature_views_of(self._store.registry, self._store.project)
        groups = {view.name: _group_or_name(view) for view in views}
        found = [
            Target(view, is_heard=is_heard(view))
            for view in views
            if name in (view.name, groups[view.name])
        ]
        if not found:
            known = sorted(set(groups.values()))
            raise KeyError(f"no group or feature view {name!r}; groups: {', '.join(known)}")
        return found


def _group_or_name(view: Any) -> str:
    """The group of a feature view; its own name where its tags cannot be read."""
    try:
        return read_tags(view.name, view.tags).group
    except PolicyError:
        return str(view.name)
