"""The same metrics, as OpenTelemetry's SDK collects them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from feast.types import Int64
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import hotplate
from hotplate.errors import ConfigError
from hotplate.online_store import CachedOnlineStoreConfig
from hotplate.telemetry.catalogue import CATALOGUE
from hotplate.telemetry.opentelemetry import instrument, name_of

from ..stores import USER, Repo
from .conftest import ask


def collected(reader: InMemoryMetricReader) -> dict[str, dict[frozenset[Any], float]]:
    """Name -> values of the attributes -> value."""
    data = reader.get_metrics_data()
    return {
        metric.name: {
            frozenset(point.attributes.values()): point.value for point in metric.data.data_points
        }
        for resource in ([] if data is None else data.resource_metrics)
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_it_collects_what_is_counted(measured: Callable[..., Repo]) -> None:
    """Counters, gauges and the three counters of a histogram have the values of `stats`."""
    repo = measured()
    hot = hotplate.of(repo.hot)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    instrument(hot.runtime.samples, provider)
    for users in ([1], [1, 2], [1], [3]):
        ask(repo, *users)
    found, stats = collected(reader), hot.stats()

    def value(name: str, *attributes: str) -> float:
        return found[name][frozenset((repo.hot.project, *attributes))]

    for name, group in stats.groups.items():
        assert value("hotplate.hits", name, "memory") == group.hits_memory
        assert value("hotplate.misses", name, "cold") == group.misses_cold
        assert value("hotplate.entries", name) == group.entries
        assert value("hotplate.age.count", name) == group.ages.count
        assert value("hotplate.age.bucket", name, "inf") == group.ages.count
    assert value("hotplate.source.count") == stats.source_batches == 3
    provider.shutdown()


def test_two_stores_share_a_provider(make_repo: Callable[..., Repo]) -> None:
    """Each with its project, and one that is let go is no more."""
    from .conftest import FEATURES

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    repos = []
    for _ in range(2):
        repo = make_repo()
        repo.apply(USER, repo.view("profile", {"age": Int64}), repo.view("counts", {"n1": Int64}))
        instrument(hotplate.of(repo.hot).runtime.samples, provider)
        repo.hot.get_online_features(FEATURES, {"user_id": [1]})
        repos.append(repo)
    found = collected(reader)["hotplate.misses"]
    for repo in repos:
        assert found[frozenset((repo.hot.project, "profile", "cold"))] == 1
    provider.shutdown()


def test_names_are_apart() -> None:
    """No two metrics have one name there, and units stand beside the name."""
    names = [name_of(metric)[0] for metric in CATALOGUE.values()]
    assert len(set(names)) == len(names)
    assert name_of(CATALOGUE["hotplate_age_seconds"]) == ("hotplate.age", "s")
    assert name_of(CATALOGUE["hotplate_entry_bytes"]) == ("hotplate.entry", "By")


def test_without_the_library_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings say what to install, before anything is served."""
    monkeypatch.setattr("hotplate.settings.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"feast-hotplate\[opentelemetry\]"):
        CachedOnlineStoreConfig(
            store={"type": "sqlite"}, metrics={"folder": "/tmp/m", "opentelemetry": True}
        )
