"""Hotplate keeps a Feast warm.

Point `online_store` in feature_store.yaml at `hotplate.online_store.CachedOnlineStore`, name the
store you had inside it, and say how fresh is fresh enough. This package is what your own code may
use besides: policies for the feature repo, and `of(store)` for what Feast has no call for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hotplate.contracts import ABSENT, MISS, Freshness, Tier
    from hotplate.errors import (
        ConfigError,
        HotplateError,
        LoaderError,
        LoaderTimeoutError,
        NotACachedStoreError,
        PolicyError,
    )
    from hotplate.handle import Hotplate, of
    from hotplate.operations.consume import Consumer
    from hotplate.operations.consume_settings import Consumed, ConsumerSettings
    from hotplate.policy import CachePolicy, ResolvedPolicy, TTLMap
    from hotplate.serving.reader import MatrixAnswer, MatrixReader
    from hotplate.serving.response import CachedResponse
    from hotplate.stats import CacheStats, GroupStats, LoaderStats
    from hotplate.tiers.blobs import BlobTier
    from hotplate.windowed import WindowedViews, windowed_view
    from hotplate.windows.errors import WindowSpecError

__version__ = "0.1.0"

__all__ = [
    "ABSENT",
    "MISS",
    "BlobTier",
    "CachePolicy",
    "CacheStats",
    "CachedResponse",
    "ConfigError",
    "Consumed",
    "Consumer",
    "ConsumerSettings",
    "Freshness",
    "GroupStats",
    "Hotplate",
    "HotplateError",
    "LoaderError",
    "LoaderStats",
    "LoaderTimeoutError",
    "MatrixAnswer",
    "MatrixReader",
    "NotACachedStoreError",
    "PolicyError",
    "ResolvedPolicy",
    "TTLMap",
    "Tier",
    "WindowSpecError",
    "WindowedViews",
    "of",
    "windowed_view",
]

# Feast takes seconds to import: whoever wants the embedded server or the command's help does not
# wait for it.
_HOMES: Final = {
    "ABSENT": "hotplate.contracts",
    "MISS": "hotplate.contracts",
    "BlobTier": "hotplate.tiers.blobs",
    "CachePolicy": "hotplate.policy",
    "CacheStats": "hotplate.stats",
    "CachedResponse": "hotplate.serving.response",
    "ConfigError": "hotplate.errors",
    "Consumed": "hotplate.operations.consume_settings",
    "Consumer": "hotplate.operations.consume",
    "ConsumerSettings": "hotplate.operations.consume_settings",
    "Freshness": "hotplate.contracts",
    "GroupStats": "hotplate.stats",
    "Hotplate": "hotplate.handle",
    "HotplateError": "hotplate.errors",
    "LoaderError": "hotplate.errors",
    "LoaderStats": "hotplate.stats",
    "LoaderTimeoutError": "hotplate.errors",
    "MatrixAnswer": "hotplate.serving.reader",
    "MatrixReader": "hotplate.serving.reader",
    "NotACachedStoreError": "hotplate.errors",
    "PolicyError": "hotplate.errors",
    "ResolvedPolicy": "hotplate.policy",
    "TTLMap": "hotplate.policy",
    "Tier": "hotplate.contracts",
    "WindowSpecError": "hotplate.windows.errors",
    "WindowedViews": "hotplate.windowed",
    "of": "hotplate.handle",
    "windowed_view": "hotplate.windowed",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
