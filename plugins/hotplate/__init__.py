"""Hotplate keeps a Feast warm.

Point `online_store` in feature_store.yaml at `hotplate.online_store.CachedOnlineStore`, name the
store you had inside it, and say how fresh is fresh enough. This package is what your own code may
use besides: policies for the feature repo, and `of(store)` for what Feast has no call for.
"""

from __future__ import annotations

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
from hotplate.policy import CachePolicy, ResolvedPolicy, TTLMap
from hotplate.serving.reader import MatrixAnswer, MatrixReader
from hotplate.serving.response import CachedResponse
from hotplate.stats import CacheStats, GroupStats, LoaderStats

__version__ = "0.1.0"

__all__ = [
    "ABSENT",
    "MISS",
    "CachePolicy",
    "CacheStats",
    "CachedResponse",
    "ConfigError",
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
    "of",
]
