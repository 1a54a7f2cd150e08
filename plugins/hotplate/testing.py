"""For tests of code that uses Hotplate: a clock that moves only when told to."""

from __future__ import annotations

from feast import FeatureStore

from hotplate.clock import Clock, FakeClock
from hotplate.errors import HotplateError
from hotplate.online_store import CachedOnlineStore

__all__ = ["FakeClock", "use_clock"]


def use_clock(store: FeatureStore, clock: Clock) -> None:
    """Let a Feast store's cache take its time from `clock`.

    Raises:
        HotplateError: the store has been used already, or its online store is not Hotplate's.
    """
    online = store._get_provider().online_store
    if not isinstance(online, CachedOnlineStore):
        raise HotplateError(f"the online store is {type(online).__name__}, not CachedOnlineStore")
    online.use_clock(clock)
