"""What is foretold from one day's log, against the cache that lives through that day."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import hotplate
from hotplate.advice.lru import Room
from hotplate.advice.predictions import GroupForecast, Prediction, Replayed, ReplaySpec, replay
from hotplate.advice.reads import TrafficFiles
from hotplate.durations import parse_duration
from hotplate.operations.advise import Advising, AdvisingSpec
from hotplate.operations.changed import LogFolder, NamedFile
from hotplate.stats import GroupStats

from .conftest import Day, RepoMaker, Step, live, steps_of

pytestmark = pytest.mark.heavy  # whole repos and long replays: minutes in all

BIG = 10**12
MEMORY = {"max_bytes": BIG}
POLICY = {"jitter": 0}


def changes_file(day: Day, folder: Path) -> Path:
    """What other programs wrote, as they might list it."""
    path = folder / "changes.csv"
    at = pd.to_datetime([round(when * 1e6) for _, when in day.changes], unit="us", utc=True)
    pd.DataFrame({"user_id": [user for user, _ in day.changes], "at": at}).to_csv(path, index=False)
    return path


def foretell(day: Day, tmp_path: Path, ttls: Sequence[str], entries: Sequence[int]) -> Replayed:
    """From a day's log, for other ttls and other bounds of memory."""
    hot = hotplate.of(day.repo.hot)
    advising = Advising(day.repo.hot, hot.runtime)
    spec = AdvisingSpec(log=day.folder)
    views = advising._views(spec)
    collect = advising._collecting(
        [LogFolder(day.folder), NamedFile(changes_file(day, tmp_path), "counts")]
    )
    return replay(
        TrafficFiles(day.folder, day.repo.project),
        ReplaySpec(
            views,
            frozenset(hot.policies()),
            hot.policies(),
            [parse_duration(ttl) for ttl in ttls],
            [Room(BIG, most) for most in entries],
        ),
        collect,
    )


def prediction(
    forecast: GroupForecast, ttl: str, entries: int, coherence: str = "ttl"
) -> Prediction:
    (found,) = [
        one
        for one in forecast.of(Room(BIG, entries), coherence)
        if one.ttl_ns == parse_duration(ttl)
    ]
    return found


def check(found: Prediction, real: GroupStats, seconds: float, within: float = 0.0) -> None:
    assert found.hit_rate == pytest.approx(real.hit_rate, abs=within + 1e-12)
    loads = found.source_reads_s * seconds
    assert loads == pytest.approx(real.loads, abs=within * real.reads + 1e-6)


def test_hits_loads_and_staleness_are_those_of_the_cache(
    make_repo: RepoMaker, tmp_path: Path
) -> None:
    """Requests for one user and one shop: to the last hit, load and stale answer, for ttls that the
    day of the log did not have; writes of this process and of others. Where memory is small, within
    a point: the cache marks what a request finds as used before it fills what that lacks."""
    steps = steps_of(1, writes=0.15)
    first = live(make_repo, steps, ttl_map={"default": {"ttl": "7s", **POLICY}}, memory=MEMORY)
    ttls, entries = ("0s", "1s", "7s", "40s", "none"), (1_000, 20)
    found = foretell(first, tmp_path, ttls, entries)
    for ttl, most in (("1s", 1_000), ("40s", 20), ("none", 1_000)):
        day = live(
            make_repo,
            steps,
            ttl_map={"default": {"ttl": ttl, **POLICY}},
            memory={**MEMORY, "max_entries": most, "absent_share": 0},
        )
        for name, forecast in found.groups.items():
            one = prediction(forecast, ttl, most)
            check(one, day.groups[name], found.seconds, within=0.01 if most == 20 else 0.0)
            assert forecast.reads == day.groups[name].reads
            assert forecast.entries[Room(BIG, most)] >= day.groups[name].entries
        assert day.stale_s, "there must be something to foretell"
        one = prediction(found.groups["counts"], ttl, most)
        assert one.stale_share is not None
        if most == 20:
            assert one.stale_share == pytest.approx(len(day.stale_s) / day.answers, abs=0.01)
            continue
        assert round(one.stale_share * day.answers) == len(day.stale_s)
        assert one.stale_longest_s == pytest.approx(max(day.stale_s), abs=1e-5)
        ordered = sorted(day.stale_s)
        exact = ordered[-(-len(ordered) // 2) - 1]
        assert exact - 1e-5 <= one.stale_p50_s <= exact * 1.03 + 1e-5


def test_with_jitter_renewal_and_many_entities_it_is_within_two_points(
    make_repo: RepoMaker, tmp_path: Path
) -> None:
    """Jitter is drawn anew, and requests for several entities fill memory in another order."""
    steps = steps_of(2, most=6)
    policy = {"jitter": "30%", "stale_while_revalidate": "2s"}
    first = live(make_repo, steps, ttl_map={"default": {"ttl": "8s", **policy}}, memory=MEMORY)
    found = foretell(first, tmp_path, ("3s", "8s", "30s"), (1_000, 40))
    for ttl, most in (("3s", 1_000), ("30s", 40)):
        day = live(
            make_repo,
            steps,
            ttl_map={"default": {"ttl": ttl, **policy}},
            memory={**MEMORY, "max_entries": most, "absent_share": 0},
        )
        for name, forecast in found.groups.items():
            check(prediction(forecast, ttl, most), day.groups[name], found.seconds, within=0.02)
        one = prediction(found.groups["counts"], ttl, most)
        assert one.stale_share == pytest.approx(len(day.stale_s) / day.answers, abs=0.02)


def test_what_is_dropped_at_once_is_never_stale(make_repo: RepoMaker, tmp_path: Path) -> None:
    """All writes by the process itself: as with coherence event, and as the cache has it."""
    steps = [
        Step(step.after_s, step.users, step.shops, step.written, is_own=True)
        for step in steps_of(3, writes=0.2)
    ]
    day = live(make_repo, steps, ttl_map={"default": {"ttl": "1m", **POLICY}}, memory=MEMORY)
    assert not day.stale_s
    found = foretell(day, tmp_path, ("1m",), (1_000_000,))
    forecast = found.groups["counts"]
    read = {user for step in steps for user in step.users}
    places = [place for place, step in enumerate(steps) if step.users]
    between = steps[places[0] : places[-1]]
    assert forecast.changes == sum(step.written in read for step in between), "of what is read"
    for coherence in ("ttl", "event"):
        one = prediction(forecast, "1m", 1_000_000, coherence)
        check(one, day.groups["counts"], found.seconds)
        assert one.stale_share == 0
    assert found.groups["shops"].changes is None, "nothing is known of it"
    assert prediction(found.groups["shops"], "1m", 1_000_000).stale_share is None


def test_memory_is_that_of_the_cache(make_repo: RepoMaker, tmp_path: Path) -> None:
    """Bytes of rows without texts, within a tenth; and a bound in bytes pushes out as many."""
    steps = steps_of(4, writes=0)
    settings: dict[str, Any] = {"ttl_map": {"default": {"ttl": "10s", **POLICY}}}
    day = live(make_repo, steps, **settings, memory=MEMORY)
    hot = hotplate.of(day.repo.hot)
    advice = Advising(day.repo.hot, hot.runtime).run(AdvisingSpec(day.folder, sizes=[12_000]))
    own = advice.room
    for name, forecast in advice.replayed.groups.items():
        assert forecast.entries[own] == day.groups[name].entries
        assert forecast.size_bytes[own] == pytest.approx(day.groups[name].bytes, rel=0.1)
    (small,) = [room for room in advice.replayed.rooms if room.max_bytes == 12_000]
    bound = {"max_bytes": 12_000, "absent_share": 0}
    tight = live(make_repo, steps, **settings, memory=bound)
    for name, forecast in advice.replayed.groups.items():
        (one,) = [p for p in forecast.of(small, "ttl") if p.ttl_ns == parse_duration("10s")]
        check(one, tight.groups[name], advice.replayed.seconds, within=0.02)
