"""Pages name only what is there: files, headings, commands, options, calls, settings, rights."""

from __future__ import annotations

from pathlib import Path

import pytest

from .names import wrong_links, wrong_names
from .page import ROOT, read_page

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    """To a file that is there, and a heading of it."""
    assert wrong_links(read_page(path)) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_what_stands_in_backticks_is_there(path: Path) -> None:
    """Wherever it looks like a file of the project, a command, an option or a call."""
    assert wrong_names(read_page(path)) == []


def test_every_page_is_found_from_the_readme() -> None:
    """Nobody has to guess a file's name."""
    linked = {link.target.partition("#")[0] for link in read_page(README).links}
    assert [one.name for one in PAGES[1:] if f"docs/{one.name}" not in linked] == []


def test_the_readme_is_read_in_five_minutes() -> None:
    """What it says at length goes to a page of its own."""
    assert len(README.read_text().splitlines()) <= 260


def test_the_readme_shows_lines_of_the_performance_page() -> None:
    """Its excerpt is of the run whose table stands there."""
    whole = (ROOT / "docs" / "performance.md").read_text()
    shown = README.read_text().partition("<!-- bench excerpt -->")[2].partition("<!-- end -->")[0]
    _, _, *rows = [_cells(line) for line in shown.strip().splitlines()]
    measured = {cells[0]: cells for cells in map(_cells, whole.splitlines()) if len(cells) == 6}
    assert len(rows) >= 5
    for what, value, aim, mark, detail in rows:
        assert measured[what][1] == value
        assert measured[what][3:] == [aim, mark, detail]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
