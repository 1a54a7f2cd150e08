"""What is foretold of recorded access traces, against what the cache does with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.bench.advice import foretold

pytestmark = pytest.mark.heavy  # whole repos and long replays: minutes in all

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"


@pytest.mark.parametrize(
    ("name", "column"), [("twitter_cluster52_2m", "key_id"), ("cache2k_orm_busy", "key")]
)
def test_hit_rates_of_a_trace_are_foretold(name: str, column: str) -> None:
    """Four ttls, two of them with memory for a part of the rows: a tenth of the two points."""
    path = TRACES / f"{name}.parquet"
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    found = foretold(path, column, 60_000)
    assert len(found) == 4
    for said, off in found.items():
        assert 0.3 < off.real < 0.99, said
        assert abs(off.hits) < 0.002, said
        assert abs(off.loads) < 0.002, said
