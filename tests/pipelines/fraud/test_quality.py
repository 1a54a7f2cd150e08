"""What the pipeline itself writes is as the repo's quality.py expects: tables and decisions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from hotplate.quality.run import Given, Quality
from pipelines.fraud.ledger import open_ledger
from pipelines.fraud.line import Line

from .conftest import REPO, World


@pytest.mark.heavy
def test_decisions_and_tables_are_as_expected(world: World, tmp_path: Path) -> None:
    """Decisions of a trained model, and every table behind its features, pass."""
    url = f"sqlite:///{tmp_path / 'decisions.db'}"
    store, decider = world.decider()
    with open_ledger(url) as ledger:
        Line(store, lambda: decider, ledger, "test").process(world.records(300), "1")
    given = Given({"transactions": world.work.transactions_file}, {"decisions": f"{url}#decisions"})
    quality = Quality(store, REPO, given)
    # what pipelines.reads writes is not here
    absent = ("customer_spending", "terminal_risk")
    names = [name for name in quality.chosen(()) if name not in absent]
    report = quality.check(names, datetime.now(UTC))
    assert report.is_good, [bad.line() for bad in report.bad] + [
        one.problem for one in report.checked if one.problem
    ]
    rows = {one.view: one.rows for one in report.checked}
    assert rows["decisions"] == 300
    assert rows["transactions"] == len(world.transactions)
