"""Promise 8: whatever befalls the server on which processes meet, nothing wrong is served.

Workers read, write and invalidate at random while a fault comes and goes. Every value that they
were served is compared with what the source held, and no caller meets an error.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.lab.checker import Report
from pipelines.lab.fleet import Nursery
from pipelines.lab.stage import FAULTS, Stage, staged


def assert_right(stage: Stage, report: Report) -> None:
    """Nothing wrong was served, and no caller met an error."""
    assert not report.wrongs, report.violations
    assert not stage.tally.errors
    assert not report.failed
    assert report.reads > 100


@pytest.mark.heavy
@pytest.mark.parametrize("fault", FAULTS)
def test_beside_sqlite(tmp_path: Path, nursery: Nursery, fault: str) -> None:
    """The shared tier and the channel fail together; reads come from the source meanwhile."""
    with staged(tmp_path, nursery) as stage:
        assert_right(stage, stage.go_through(FAULTS[fault](stage)))


@pytest.mark.heavy
@pytest.mark.parametrize("fault", ["frozen", "delayed 20 ms", "reset"])
def test_around_redis(tmp_path: Path, nursery: Nursery, fault: str) -> None:
    """The source itself is hit: reads may fail, but none is answered wrongly."""
    with staged(tmp_path, nursery, kind="valkey", is_tracked=True) as stage:
        report = stage.go_through(FAULTS[fault](stage), 0.3)
        assert not report.wrongs, report.violations
        assert report.reads > 100
