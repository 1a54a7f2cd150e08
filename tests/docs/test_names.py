"""Pages name only what is there: files, headings, commands, options, calls, settings, rights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest

from hotplate import cache_policy
from hotplate.cli import main
from hotplate.online_store import CachedOnlineStoreConfig
from hotplate.outputs import OutputPolicy

from .names import SECTIONS, wrong_links, wrong_names
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


def test_every_command_is_documented() -> None:
    """By its whole name, on some page."""
    text = all_text()
    names = [f"hotplate {name}" for name in commands_of(main)]
    assert [name for name in names if name not in text] == []


def commands_of(group: click.Group, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands_of(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


@pytest.mark.parametrize(
    ("where", "settings"),
    [
        ("online_store", CachedOnlineStoreConfig.model_fields),
        ("outputs", OutputPolicy.settings()),
        ("policies", cache_policy.SETTINGS),
        *((name, section.model_fields) for name, section in SECTIONS.items()),
    ],
)
def test_every_setting_is_documented(where: str, settings: Iterable[str]) -> None:
    """In words or in a block."""
    text = all_text()
    assert [name for name in settings if not re.search(rf"\b{name}\b", text)] == [], where


def all_text() -> str:
    return "\n".join(path.read_text() for path in PAGES)


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
