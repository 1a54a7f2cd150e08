"""Every block of the README and of docs/ runs: Python, settings, commands, servers' settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotplate.embedded import EmbeddedServer

from .page import ROOT, read_page
from .stage import Stage

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# what is first done on an empty disk, as a new user does
UNPREPARED = {"README.md"}
# it writes a repo of its own, file by file: `tests/quality/test_docs.py` follows it
ELSEWHERE = {"quality.md"}
MOST_NOT_RUN = 3


def test_a_page_that_is_run_elsewhere_is_there() -> None:
    """What is left out here is a page."""
    assert {path.name for path in PAGES} >= ELSEWHERE


@pytest.mark.parametrize(
    "path", [path for path in PAGES if path.name not in ELSEWHERE], ids=lambda path: path.stem
)
def test_every_block_of_a_page_runs(
    path: Path, tmp_path: Path, own_valkey: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its order, as somebody who follows the page does it."""
    page = read_page(path)
    stage = Stage(tmp_path, own_valkey, is_prepared=page.name not in UNPREPARED)
    try:
        for block in page.blocks:
            stage.run(block)
    finally:
        stage.close()
    counted = ", ".join(f"{count} {what}" for what, count in stage.ran.items())
    with capsys.disabled():
        print(f"\n{page.name}: {len(page.blocks)} blocks: {counted}")


def test_what_is_not_run_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Each exception is on the page, with its reason, and there are few of them."""
    found = [
        f"{block}: not run: {block.notes['not run']}"
        for path in PAGES
        for block in read_page(path).blocks
        if "not run" in block.notes
    ]
    with capsys.disabled():
        print("", *found, sep="\n")
    assert len(found) <= MOST_NOT_RUN, found
