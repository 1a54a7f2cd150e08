"""Tables of measurements find their place in a page, and change nothing else there."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pipelines.bench.__main__ import main as bench
from pipelines.bench.into import put_table
from pipelines.faults.__main__ import main as faults

PAGE = """# Numbers

<!-- bench table -->
| measured | value |
| --- | --- |
| old | 1 |

date once
<!-- end -->

Between.

<!-- bench excerpt -->
| value | measured |
| --- | --- |
| 1 | b, c |
| 7 | gone |
<!-- end -->

<!-- faults table -->
stays
<!-- end -->
After.
"""
ROWS = [("measured", "", "value"), ("---",) * 3, ("a", "met", "2"), ("b, c", "", "3")]


def test_a_table_replaces_the_one_before(tmp_path: Path) -> None:
    """All of it, with its foot; text around it and other tables stay; twice is once."""
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    for _ in range(2):
        put_table(page, "bench", ROWS, {"date": "now", "cores": "2"})
        text = page.read_text()
        new = "| measured |  | value |\n| --- | --- | --- |\n| a | met | 2 |\n| b, c |  | 3 |\n"
        assert text.startswith("# Numbers\n\n<!-- bench table -->\n" + new)
        assert new + "\ndate now, cores 2\n<!-- end -->\n\nBetween." in text
        assert "| old |" not in text
        assert text.endswith("<!-- faults table -->\nstays\n<!-- end -->\nAfter.\n")


def test_an_excerpt_keeps_its_columns_and_rows(tmp_path: Path) -> None:
    """A row that was measured has its new value, one that was not stays as it was."""
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    put_table(page, "bench", [("measured", "", "value"), ("---",) * 3, ("a", "", "2")], {})
    assert "| 1 | b, c |\n| 7 | gone |\n<!-- end -->" in page.read_text()
    put_table(page, "bench", ROWS, {})
    excerpt = "| value | measured |\n| --- | --- |\n| 3 | b, c |\n| 7 | gone |\n<!-- end -->"
    assert excerpt in page.read_text()


@pytest.mark.parametrize("command", [bench, faults])
def test_a_page_without_a_place_is_refused_at_once(tmp_path: Path, command: object) -> None:
    """Before anything is measured."""
    page = tmp_path / "page.md"
    page.write_text("# Nothing\n")
    found = CliRunner().invoke(command, ["--into", str(page)])  # type: ignore[arg-type]
    assert found.exit_code == 2
    assert "has no <!--" in found.stderr


@pytest.mark.parametrize("command", [bench, faults])
def test_a_part_replaces_no_table(tmp_path: Path, command: object) -> None:
    """What was not measured again would be gone from the page."""
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    found = CliRunner().invoke(command, ["--into", str(page), "--only", "x"])  # type: ignore[arg-type]
    assert found.exit_code == 2
    assert page.read_text() == PAGE
