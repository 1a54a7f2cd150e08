"""The engine against the oracle: random streams, compactions by clocks that disagree, every edge.

`HOTPLATE_ORACLE_EXAMPLES` makes it longer; the default takes some seconds.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from hotplate.windows.chains import NEVER
from hotplate.windows.compaction import Compactor
from hotplate.windows.kernel import Reader
from hotplate.windows.plan import LogPlan
from hotplate.windows.spec import DAY_MS, HOUR_MS, Window, WindowSpec, default_hop_ms

from . import oracle
from .streams import hashed, make_spec, records, stream

EXAMPLES = int(os.environ.get("HOTPLATE_ORACLE_EXAMPLES", "3"))
START = 1_767_225_600_000

EXACT = [Window(20), Window(100), Window(300)]
HOPS = [Window(30), Window(100, 10), Window(400, 40), Window(1600, 160)]
NO_NEST = [Window(100, 90), Window(120), Window(130, 100), Window(900, 60)]
DELAYED = [Window(50), Window(100, 10, 30), Window(200, 20, 30), Window(60, 1, 7), Window(400, 20)]
USUAL = [Window(span, default_hop_ms(span)) for span in (HOUR_MS, DAY_MS, 7 * DAY_MS, 30 * DAY_MS)]
CASES = {
    "exact": EXACT,
    "hops": HOPS,
    "no nest": NO_NEST,
    "delayed": DELAYED,
    "usual": USUAL,
}


@pytest.fixture(params=list(CASES))
def windows(request: pytest.FixtureRequest) -> list[Window]:
    """Windows of each kind."""
    return CASES[request.param]


def kept(spec: WindowSpec, events: list[oracle.Event]) -> list[oracle.Event]:
    """What the oracle keeps of the events, with their hashes."""
    return oracle.kept(spec.event, hashed(events, spec.event))


def same(found: np.ndarray, expected: list[float]) -> bool:
    """Equal bit for bit, all NaN being one null."""
    return bool(np.array_equal(found, np.array(expected), equal_nan=True))


def moments(rng: np.random.Generator, low: int, windows: list[Window], ts: list[int]) -> list[int]:
    """Random moments from `low` on, and some exactly on an edge."""
    found = [int(low + rng.integers(0, 100)), low]
    for _ in range(3):
        window = windows[int(rng.integers(len(windows)))]
        event = ts[int(rng.integers(len(ts)))]
        for edge in (window.leaves_at(event), window.enters_at(event), event + 1):
            found += [edge - 1, edge, edge + 1]
    return [one for one in found if one >= low]


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_reads_equal_the_oracle(windows: list[Window], seed: int) -> None:
    """Logs of several entities, read together and one by one, in order of arrival or not."""
    rng = np.random.default_rng([seed, len(windows)])
    spec = make_spec(windows, over=max(windows))
    plan = LogPlan.of([spec])
    reader = Reader(spec, plan)
    now = START
    streams = []
    for entity in range(4):
        count = int(rng.choice([0, 1, 2, 30])) if entity else 40
        huge = bool(rng.random() < 0.3)
        streams.append(
            stream(rng, count, until=now, span=plan.retention_ms, spec=spec.event, huge=huge)
        )
    blobs = []
    for events in streams:
        found = records(plan, events)
        if rng.random() < 0.5:
            rng.shuffle(found)
        blobs.append(b"".join(found) or None)
    ts = [one.ts for one in streams[0]]
    known = [kept(spec, events) for events in streams]
    for t in moments(rng, now - 50, windows, ts):
        expected = [oracle.answer(spec, events, t) for events in known]
        together = reader.read(blobs, t)
        for position, blob in enumerate(blobs):
            assert same(together.values[position], expected[position])
            alone = reader.read([blob], t)
            assert same(alone.values[0], expected[position])
            assert alone.valid_until[0] == together.valid_until[position]


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_valid_until_is_the_first_change(windows: list[Window], seed: int) -> None:
    """No window's events change before it; some window's do at it."""
    rng = np.random.default_rng([seed, len(windows), 1])
    spec = make_spec(windows)
    plan = LogPlan.of([spec])
    reader = Reader(spec, plan)
    events = stream(rng, 6, until=START, span=plan.retention_ms, spec=spec.event, huge=False)
    known = kept(spec, events)
    blob = b"".join(records(plan, events))
    t = int(START - rng.integers(-20, 60))
    for _ in range(8):
        until = int(reader.read([blob], t).valid_until[0])
        change = oracle.next_change(spec, known, t)
        assert until == (NEVER if change is None else change)
        if change is None:
            break
        values = oracle.answer(spec, known, t)
        for moment in range(t, min(until, t + 40)):
            assert same(np.array(oracle.answer(spec, known, moment)), values)
        t = until


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_compaction_changes_no_result(windows: list[Window], seed: int) -> None:
    """Appends, reads, and compactors whose clocks differ by up to the slack, interleaved."""
    rng = np.random.default_rng([seed, len(windows), 2])
    spec = make_spec(windows)
    plan = LogPlan.of([spec])
    reader, compactor = Reader(spec, plan), Compactor(plan)
    huge = bool(rng.random() < 0.3)
    span = int(plan.retention_ms * 1.5)
    count = int(rng.choice([15, 60, 200]))
    events = stream(rng, count, until=START, span=span, spec=spec.event, huge=huge)
    events = [one for one in events if oracle.is_accepted(spec.event, one)]
    skews = [0, spec.event.slack_ms, -spec.event.slack_ms, -10 * spec.event.slack_ms]
    blob, appended, folds = b"", [], 0
    for event in events:
        blob += b"".join(records(plan, [event]))
        appended.append(event)
        now = event.arrival
        for _ in range(int(rng.choice([0, 0, 1, 2]))):
            fold = compactor.fold(blob, now + int(rng.choice(skews)))
            if fold is not None:
                assert blob.startswith(fold.expected)
                blob = fold.blob + blob[fold.consumed :]
                folds += 1
        if rng.random() < 0.3:
            t = int(now + rng.integers(0, 50))
            known = kept(spec, appended)
            found = reader.read([blob, None, blob], t)
            assert same(found.values[0], oracle.answer(spec, known, t))
            assert same(found.values[2], found.values[0].tolist())
            change = oracle.next_change(spec, known, t)
            assert found.valid_until[0] == (NEVER if change is None else change)
    end = START + int(rng.integers(0, plan.retention_ms))
    for t in sorted((START + spec.event.lateness_ms, end, end + plan.retention_ms)):
        fold = compactor.fold(blob, t)
        blob = fold.blob if fold else blob
        known = kept(spec, appended)
        assert same(reader.read([blob], t).values[0], oracle.answer(spec, known, t))
