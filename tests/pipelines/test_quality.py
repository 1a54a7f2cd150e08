"""`python -m pipelines.quality`: good data passes, every planted fault is named, or it exits 1."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from hotplate.quality import check as checking
from hotplate.quality.derive import expectations
from pipelines.quality.__main__ import main
from pipelines.quality.faults import FAULTS, caught, plant
from pipelines.quality.stage import Stage, staged

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data" / "transactions" / "fdh_transactions.parquet"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The demo's data, small."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with staged(ROOT / "feature_repo", tmp_path_factory.mktemp("stage"), 60) as made:
            yield made


@pytest.mark.heavy
def test_all_of_it(tmp_path: Path) -> None:
    """The command itself, on fewer cards: exit code 0 and two pages."""
    arguments = ["--customers", "60", "--real", str(tmp_path / "none"), "--out", str(tmp_path)]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert f"{len(FAULTS)} of {len(FAULTS)} faults named" in done.output
    assert "left out" in done.output
    assert (tmp_path / "index.html").exists()
    assert (tmp_path / "faults" / "index.html").exists()


@pytest.mark.heavy
def test_a_gate_that_passes_everything_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the expectations of one check its faults go unnamed, and the command exits 1."""

    def blind(*arguments: object) -> list[object]:
        return [one for one in expectations(*arguments) if one.check != "unique"]  # type: ignore[arg-type]

    monkeypatch.setattr(checking, "expectations", blind)
    arguments = ["--customers", "60", "--real", str(tmp_path / "none"), "--out", str(tmp_path)]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 1
    assert "nobody" in done.output
    assert f"{len(FAULTS) - 2} of {len(FAULTS)} faults named" in done.output


@pytest.mark.heavy
def test_a_fault_is_not_named_by_another_check(stage: Stage, tmp_path: Path) -> None:
    """What is caught is caught by the check that is for it, and good data by none."""
    for fault in FAULTS[:3]:
        found = caught(fault, plant(stage, fault, tmp_path))
        assert found is not None
        assert (found.check, found.column) == (fault.check, fault.column)
    good = stage.quality().check([fault.view for fault in FAULTS[:3]], stage.now)
    assert all(caught(fault, one) is None for fault in FAULTS[:3] for one in good.checked)


@pytest.mark.heavy
def test_real_transactions_are_as_expected(stage: Stage) -> None:
    """1,754,155 published transactions pass what is declared of raw ones."""
    if not REAL.is_file():
        pytest.skip(f"{REAL} is not here")
    (checked,) = stage.quality({"transactions": REAL}).check(["transactions"], stage.now).checked
    assert checked.is_good, checked.bad
    assert checked.rows == 1_754_155


def test_a_wrong_repo_is_one_line(tmp_path: Path) -> None:
    """A folder that is no feature repo is said as such."""
    done = CliRunner().invoke(main, ["--repo", str(tmp_path)])
    assert done.exit_code == 1
    assert "feature_store.yaml" in done.output
    assert "Traceback" not in done.output
