"""Several processes at once, as a feature server runs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import hotplate
from hotplate.telemetry import exposition, read_folder

from ..conftest import settings_of
from ..served import serving
from ..stores import Repo
from .conftest import ask


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:On demand feature view.*experimental:RuntimeWarning")
def test_four_workers_add_up_to_the_true_counts(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Every row that four gunicorn workers of `feast serve` answer is counted, once."""
    folder, rows = tmp_path / "metrics", 0
    metrics = {"folder": str(folder), "every": "100ms"}
    online = settings_of(request, "redis")
    with serving(tmp_path, online, workers=4, metrics=metrics) as server:
        server.await_health()

        def read(number: int) -> int:
            users = [number % 7, number % 3, 1][: 1 + number % 3]
            server.read(features=["profile:age"], entities={"user_id": users})
            return len(users)

        with ThreadPoolExecutor(8) as pool:
            rows = sum(pool.map(read, range(600)))
        found = _settled(folder, rows)
        reads = found.sum("hotplate_hits_total") + found.sum("hotplate_misses_total")
        assert reads == rows
        assert found.sum("hotplate_processes") == 4
        values = [
            sample.value
            for family in text_string_to_metric_families(exposition(folder).decode())
            for sample in family.samples
            if sample.name in ("hotplate_hits_total", "hotplate_misses_total")
        ]
        assert sum(values) == rows
    after = read_folder(folder)
    reads = after.sum("hotplate_hits_total") + after.sum("hotplate_misses_total")
    assert (reads, after.sum("hotplate_processes")) == (rows, 0)


def _settled(folder: Path, rows: int) -> Any:
    """What stands there, once every process has written after the last request."""
    deadline = time.monotonic() + 20
    while True:
        found = read_folder(folder)
        reads = found.sum("hotplate_hits_total") + found.sum("hotplate_misses_total")
        if reads >= rows or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def test_where_feasts_server_runs_its_folder_holds_them_too(
    measured: Callable[..., Repo], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`feast serve --metrics` reads a folder of its own: the same is written there."""
    import feast.metrics

    theirs = tmp_path / "feast"
    theirs.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(theirs))
    repo = measured()
    publisher = hotplate.of(repo.hot).runtime.publisher
    assert publisher is not None
    ask(repo, 1)
    publisher.write()
    assert not list(theirs.iterdir())
    monkeypatch.setattr(feast.metrics._config, "enabled", True)
    ask(repo, 1)
    publisher.write()
    publisher.close()

    def of_project(where: Path) -> dict[Any, float]:
        # caches of earlier tests may live on in this process, and write theirs as well
        hits = read_folder(where).values["hotplate_hits_total"]
        return {labels: n for labels, n in hits.items() if ("project", repo.project) in labels}

    assert of_project(theirs) == of_project(folder)
    assert sum(of_project(theirs).values()) > 0
