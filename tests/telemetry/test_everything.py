"""A deployment with all there is shows all metrics, and so every panel of the dashboard."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feast.types import Float64, Int64

import hotplate
from hotplate.telemetry.assets import asset
from hotplate.telemetry.catalogue import CATALOGUE
from hotplate.telemetry.reading import read_folder

from ..conftest import settings_of
from ..online_store import loader_functions
from ..online_store.shop import day, put
from ..stores import USER, Repo
from ..windows.bank import CARD, SCHEMA, Payment, aggregations, frame_of, payments
from .conftest import write


@pytest.fixture
def whole(make_repo: Callable[..., Repo], folder: Path, request: pytest.FixtureRequest) -> Repo:
    """SQLite with a shared tier, windows, a loader, outputs with rules, and every log and check."""
    server = settings_of(request, "redis")["connection_string"]
    here = str(folder.parent)
    repo = make_repo(
        settings={
            "metrics": {"folder": str(folder), "every": "1h"},
            "shared": {"connection_string": server, "timeout": "2s"},
            "windows": {"connection_string": server},
            "loaders": {"computed": {"function": f"{loader_functions.__name__}:double"}},
            "outputs": {
                "m": {
                    "needs_features": False,
                    "shadow": 1.0,
                    "rules": [{"name": "big", "when": {"field": "x", "above": 100}, "reason": "r"}],
                }
            },
            "traffic": {"folder": f"{here}/traffic", "sample": 1.0, "changes": True},
            "rewarm": "1000/s",
            "quality": {"materialize": "warn", "pushes": "off"},
            "shadow": {"share": 1.0},
        },
        ttl_map={"default": {"ttl": "1h", "coherence": "event"}, "computed": {"ttl": "1h"}},
        provider="hotplate.provider.HotplateProvider",
    )
    from hotplate import windowed_view

    windowed, events = windowed_view(
        name="spent",
        entities=[CARD],
        source=payments(repo.folder),
        event_id="payment_id",
        schema=SCHEMA,
        aggregations=aggregations(),
    )
    repo.apply(
        USER,
        CARD,
        repo.view("profile", {"age": Int64, "score": Float64}),
        repo.view("computed", {"n": Int64}),
        windowed,
        events,
    )
    return repo


def test_every_metric_exists(whole: Repo, folder: Path) -> None:
    """Each of the catalogue has a value in the folder, and so has each that the dashboard asks."""
    repo, hot = whole, hotplate.of(whole.hot)
    put(repo, "profile", user_id=[1, 2], age=[10, 20], score=[0.5, 1.5])
    now_ms = repo.clock.wall_ns() // 1_000_000
    late = now_ms - 40 * 86_400_000
    repo.hot.push("payments", frame_of([Payment(1, now_ms, now_ms, "a", 100)]))
    repo.hot.push("payments", frame_of([Payment(1, late, now_ms, "b", 100)]))
    for _ in range(3):
        repo.hot.get_online_features(["profile:age", "computed:n"], {"user_id": [1, 2]})
        repo.hot.get_online_features(["spent:count_60000"], {"card_id": [1]})
    put(repo, "profile", day(1), user_id=[1], age=[11], score=[0.5])
    outputs = hot.outputs("m", "1", ["x"])
    for value in (1.0, 1.0, 500.0):
        outputs.score(np.array([[value]], np.float32), lambda rows: rows[:, 0])
    with pytest.raises(ZeroDivisionError):
        outputs.score(np.array([[7.0]], np.float32), _fails)
    assert hot.runtime.shadow is not None
    hot.runtime.shadow.check()
    write(repo)
    found = read_folder(folder)
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in found.values}
    assert set(CATALOGUE) <= bases | set(found.values)
    asked = set(re.findall(r"\bhotplate_\w+", asset("grafana.json") + asset("alerts.yml")))
    exists = bases | set(found.values)
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} <= exists
    assert json.loads(asset("grafana.json"))["title"] == "Hotplate"
    hot.runtime.close()


def _fails(rows: Any) -> Any:
    raise ZeroDivisionError
