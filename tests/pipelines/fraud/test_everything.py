"""What `make demo` ends with: all parts at once, and all that the dashboard asks for is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hotplate.telemetry import read_folder
from pipelines.fraud.everything import look
from pipelines.fraud.work import Work

from .conftest import World


@pytest.mark.heavy
def test_every_metric_of_the_dashboard_exists(fresh: Callable[[], World]) -> None:
    """Each has a value, live ones included; the page of all of it is written."""
    world = fresh()
    world.work.save(world.transactions)
    seen = look(world.work, 60)
    assert seen.absent == ()
    assert seen.metrics >= seen.asked >= 40
    counted = read_folder(world.work.folder / "metrics")
    assert counted.sum("hotplate_quality_checked_total") == 1
    assert counted.sum("hotplate_quality_errors_total") == 0
    assert counted.sum("hotplate_loader_found_total") > 0
    assert counted.sum("hotplate_traffic_requests_total", outcome="lost") == 0
    assert "customer_profile" in seen.html.read_text()


def test_it_takes_a_redis(world: World) -> None:
    """Which is said before anything is done."""
    folder, repo, source = world.work.given
    assert source is not None
    sqlite = type(source)("SQLite", {"type": "sqlite", "path": str(folder / "o.db")})
    with pytest.raises(ValueError, match="the online store is sqlite"):
        look(Work(folder, repo, sqlite))
    assert not (folder / "operational.db").exists()
