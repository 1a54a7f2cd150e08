"""docs/quality.md says what is so: its blocks run, one after the other, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import hotplate

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "quality.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PLUGINS = str(Path(hotplate.__file__).parents[1])


@pytest.mark.heavy
def test_the_blocks_run_one_after_another(tmp_path: Path) -> None:
    """A block that begins with a file's name is that file; others are run, and exit with 0."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "hotplate").write_text(
        f'#!/bin/sh\nexec {sys.executable} -W ignore -m hotplate.cli "$@"\n'
    )
    (tools / "pip").write_text("#!/bin/sh\nexit 0\n")  # it is installed
    for tool in tools.iterdir():
        tool.chmod(0o755)
    folder = tmp_path / "repo"
    folder.mkdir()
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": PLUGINS,
        "PYTHONWARNINGS": "ignore",
    }

    def run(command: list[str]) -> str:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"
        return done.stdout

    said = []
    for language, text in BLOCK.findall(PAGE.read_text()):
        named = re.match(r"# (\S+\.\w+)\n", text)
        if named is not None:
            file = folder / named[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            if language == "yaml":
                assert yaml.safe_load(text)
        elif language == "console":
            said += [
                run(["bash", "-c", line[2:]]) for line in text.splitlines() if line[:2] == "$ "
            ]
        else:
            assert language == "python"
            said.append(run([sys.executable, "-c", text]))
    whole = "\n".join(said)
    assert "exit code 1" in whole
    assert "expect_column_median_to_be_between" in whole
    assert "as expected" in whole
    assert "customer_spending 1" in whole


def test_every_check_is_in_the_table() -> None:
    """The table of checks is that of the package."""
    from hotplate.quality import CHECKS

    named = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert named == set(CHECKS)
