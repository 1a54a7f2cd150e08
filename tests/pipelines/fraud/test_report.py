"""The replay finds what is wrong, and the page says what was found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.fraud.replay import STAGES, Answer, Replay, ReplaySpec, StageFound, draw
from pipelines.fraud.report import Prices, Report, write

from .conftest import World

STAGES_OF_TEST = (STAGES[0], STAGES[-1])


@pytest.fixture(scope="module")
def replayed(world: World) -> tuple[Replay, dict[str, StageFound], float, ReplaySpec]:
    spec = ReplaySpec(requests=160, block=40, recorded_share=0.3)
    requests, top_share = draw(world.work.labelled().tail(3_000), spec)
    assert len(requests) == 160
    with Replay(world.work, "cpu", STAGES_OF_TEST) as replay:
        return replay, replay.run(requests, spec), top_share, spec


Replayed = tuple[Replay, dict[str, StageFound], float, ReplaySpec]


@pytest.mark.heavy
def test_no_score_is_wrong_and_layers_save_work(replayed: Replayed) -> None:
    _, found, top_share, _ = replayed
    bare, cached = found["no caches"], found["+ warming"]
    assert (bare.requests, cached.requests) == (320, 160), "the first stage is asked twice"
    assert cached.wrong == 0
    assert bare.source_reads / bare.requests == 7
    assert cached.source_reads / cached.requests < 5
    assert cached.from_outputs > 20
    assert bare.from_outputs == 0
    assert all(bare.waited)
    assert len(cached.waited) == 160
    assert not all(cached.waited)
    assert {hits for hits, _ in bare.hits.values()} == {0}
    assert 0 < top_share < 1


@pytest.mark.heavy
def test_a_wrong_score_is_found(replayed: Replayed) -> None:
    replay, _, _, _ = replayed
    names = list(replay.bundle.inputs)
    before = np.zeros(len(names), np.float32)

    def judged(
        changed: Mapping[str, float],
        layer: str = "miss",
        age_s: float = 1.0,
        given: tuple[float, ...] = (),
    ) -> str:
        served, after = before.copy(), before.copy()
        for name, value in changed.items():
            served[names.index(name)] = value
        ages = dict.fromkeys(
            ("card_windows", "card_session", "terminal_windows", "customer_profile"), age_s
        )
        near = before + np.float32(1e-6)  # of the same key
        replay._given.clear()
        replay._compare([Answer(one, "approve", "off", near, ages) for one in given], [], {}, {})
        found = StageFound()
        answer = Answer(0.5, "approve", layer, served, ages)
        bare = [Answer(0.25, "approve", "off", one, ages) for one in (before, after)]
        replay._compare([bare[0]], [bare[1]], {1: [answer]}, {"+ warming": found})
        assert found.different == 1
        words = ("moved", "stale", "rounded", "wrong")
        return next(word for word in words if getattr(found, word))

    assert judged({}) == "wrong", "the same inputs, another score"
    assert judged({}, layer="hit", given=(0.5,)) == "rounded"
    assert judged({}, layer="hit", given=(0.5000001, 0.7)) == "wrong", "no model ever gave it"
    assert judged({}, given=(0.5,)) == "wrong", "computed for these very inputs"
    assert judged({"card_count_1d": 3}) == "wrong", "windows are never old"
    assert judged({"customer_mean_amount": 3}) == "stale"
    assert judged({"customer_mean_amount": 3}, age_s=301) == "wrong", "past its bound"
    assert judged({"customer_mean_amount": 3, "card_count_1d": 3}) == "wrong"


@pytest.mark.heavy
def test_the_page_needs_no_network(replayed: Replayed, tmp_path: Path) -> None:
    replay, found, top_share, spec = replayed
    report = Report(
        found, replay.bundle, spec, top_share, Prices(), "redis", "a <way>", {"+ warming": 5_000.0}
    )
    html, numbers = write(tmp_path / "out", report)
    text = html.read_text("utf-8")
    before, after = text.split("<script>", 1)[0], text.split("</script>", 1)[1]
    assert not re.findall(r"""(?:src|href)="(?!data:)""", before + after)
    assert 'id="latency"' in text
    assert 'id="start"' in text
    assert 'id="work"' in text
    assert "a &lt;way&gt;" in text
    said = json.loads(numbers.read_text("utf-8"))
    assert set(said["stages"]) == {stage.name for stage in STAGES_OF_TEST}
    assert said["stages"]["+ warming"]["wrong"] == 0
    assert said["model"]["version"] == replay.bundle.version


@pytest.mark.heavy
def test_a_stage_that_fails_is_named(fresh: Callable[[], World]) -> None:
    world = fresh()
    model = world.work.models.folder / world.bundle.version / "model.ubj"
    replay_of: Any = lambda: Replay(world.work, "cpu", STAGES_OF_TEST)  # noqa: E731
    world.work.open()
    model.write_bytes(b"cut")
    with pytest.raises(Exception, match="not the file"):
        replay_of()
