"""The comparison of a GPU with the CPU, where there is none: both sides on the CPU."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("xgboost", reason="XGBoost is not installed")

from pipelines.fraud import gpu
from pipelines.fraud.device import Device, find_device


def test_without_a_gpu_it_says_why_and_compares_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "find_device", lambda: Device("cpu", "CPU: there is no driver"))
    assert gpu.main([]) == 3
    assert capsys.readouterr().out.splitlines() == [
        "CPU: there is no driver",
        "nothing is compared",
    ]


@pytest.mark.skipif(find_device().name == "cuda", reason="there is a GPU")
def test_this_machine_has_none_and_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 3
    assert capsys.readouterr().out.startswith("CPU: ")


def test_both_sides_train_and_score_the_same_rows() -> None:
    """The CPU against itself: scores are equal, and all of the table is there."""
    found = gpu.compare("cpu", 3_000, 4, (1, 64, 500), 1)
    assert found["differ"] == 0.0
    assert set(found["score_s"]) == {"1", "64", "500"}
    assert all(taken["cpu"] > 0 for taken in found["score_s"].values())
    assert gpu._table(found, "cpu")[-1] == "scores differ by 0 at the most"
    assert json.loads(json.dumps(found)) == found
