"""What the cache itself served, at random moments of a fake clock, against training."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from feast.types import Float64

from hotplate.skew import ServedLog, SkewReport, check_skew

from ..windows.bank import CARD, Bank, bank, frame_of, random_payment

pytestmark = pytest.mark.heavy  # whole repos and long replays: minutes in all

CARDS = 4
COLUMNS = {"at": "at", "ages": {"limits": "limits_age_s", "activity": "activity_age_s"}}


def _live(made: Bank, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Payments that are pushed, limits that another program rewrites, and reads between them.

    Returns:
        The log of the reads, and all rows that the limits ever had.
    """
    chance = random.Random(seed)
    reader = made.repo.cache.reader([*made.features, "limits:limit"])
    served, limits = [], []
    for _ in range(500):
        made.repo.clock.advance(chance.choice([0.001, 0.5, 7, 20, 600]))
        which = chance.random()
        if which < 0.3:
            made.push(*(random_payment(chance, made, CARDS) for _ in range(chance.randrange(1, 4))))
        elif which < 0.5:
            card, limit = chance.randrange(CARDS), float(chance.randrange(1, 1_000))
            moment = pd.Timestamp(made.now, unit="ms", tz="UTC")
            row = {"card_id": card, "limit": limit, "event_time": moment}
            made.repo.write("limits", **{name: [value] for name, value in row.items()})
            limits.append(row)
        else:
            cards = np.array(chance.sample(range(CARDS + 1), 3))
            answer = reader.read({"card_id": cards})
            ages = {f"{view}_age_s": of for view, of in answer.ages_s().items()}
            names = dict(zip(answer.feature_names, answer.values.T, strict=True))
            served.append(pd.DataFrame({"card_id": cards, "at": made.now, **names, **ages}))
    return pd.concat(served, ignore_index=True), pd.DataFrame(limits)


def of(report: SkewReport, name: str) -> dict[str, int]:
    return dict(next(one for one in report.features if one.name == name).counts)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_the_cache_served_is_equal_or_explained(seed: int, tmp_path: Path) -> None:
    """Windows are equal to the bit, whatever came late or twice. A limit that somebody else has
    rewritten is served from the cache, and explained by its age; without its age it is a skew."""
    settings = {"windows": {"in_process": True}}  # by project, for as long as the process lives
    made = bank(tmp_path, {"type": "sqlite"}, f"served{seed}", settings=settings)
    made.repo.hot.apply([made.repo.view("limits", {"limit": Float64}, [CARD])])
    made.repo.bare.refresh_registry()
    frame, limits = _live(made, seed)
    frame_of(made.pushed).to_parquet(tmp_path / "payments.parquet")
    limits.to_parquet(tmp_path / "limits.parquet")
    features = [*made.features, "limits:limit"]
    report = check_skew(made.repo.hot, features, ServedLog(frame, **COLUMNS))
    assert report.rows > 400
    assert report.is_fine
    assert of(report, "limit")["cached"] > 3
    for reference in made.features:
        counts = of(report, reference.partition(":")[2])
        assert counts["equal"] + counts["rounded"] == report.rows
    ageless = ServedLog(frame, "at")
    assert [one.name for one in check_skew(made.repo.hot, features, ageless).failed] == ["limit"]
    # an event that never came to where training looks
    frame_of(made.pushed[: len(made.pushed) // 2]).to_parquet(tmp_path / "payments.parquet")
    lost = check_skew(made.repo.hot, features, replace(ageless, **COLUMNS))
    assert "count_86400000" in [one.name for one in lost.failed]
    assert of(lost, "limit")["unexplained"] == 0
