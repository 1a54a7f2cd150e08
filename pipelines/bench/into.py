"""Puts a table of measurements into a page, where it stood before."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

__all__ = ["into_option", "put_table", "shown_foot", "shown_table"]

_END: Final = "<!-- end -->"


def into_option(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option that names pages with `<!-- NAME table -->` or `<!-- NAME excerpt -->`."""

    def check(
        context: click.Context, parameter: click.Parameter, pages: tuple[Path, ...]
    ) -> tuple[Path, ...]:
        for page in pages:  # before minutes are measured for nothing
            if not _places(page.read_text(), name):
                wanted = f"<!-- {name} table --> ... {_END}"
                raise click.BadParameter(f"{page} has no {wanted}", context, parameter)
        return pages

    return click.option(
        "--into",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        callback=check,
        help=f"A page; its table between <!-- {name} table --> and {_END} is replaced.",
    )


def shown_table(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, the first two rows its head; each line ended."""
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def shown_foot(found: Mapping[str, str]) -> str:
    """Where and with what it was measured, in one line."""
    return ", ".join(f"{name} {value}" for name, value in found.items()) + "\n"


def put_table(
    page: Path, name: str, rows: Sequence[Sequence[str]], found: Mapping[str, str]
) -> None:
    """Replace what stands between a page's markers.

    `<!-- NAME table -->` gets all of it. `<!-- NAME excerpt -->` keeps its columns and its rows,
    known by the table's first column, and gets their new values; one that was not measured stays.

    Args:
        page: a Markdown file.
        name: of the table.
        rows: the first two its head.
        found: where and with what it was measured.
    """
    text = page.read_text()
    for kind, old in reversed(_places(text, name)):
        if kind == "table":
            new = f"\n{shown_table(rows)}\n{shown_foot(found)}"
        else:
            new = "\n" + _renewed(text[old], rows)
        text = text[: old.start] + new + text[old.stop :]
    page.write_text(text)


def _places(text: str, name: str) -> list[tuple[str, slice]]:
    """What kind of table stands where, from behind its marker to before the end's."""
    pattern = rf"<!-- {re.escape(name)} (table|excerpt) -->(.*?){re.escape(_END)}"
    found = re.finditer(pattern, text, re.DOTALL)
    return [(one[1], slice(one.start(2), one.end(2))) for one in found]


def _renewed(text: str, rows: Sequence[Sequence[str]]) -> str:
    head, _, *measured = rows
    known = {row[0]: dict(zip(head, row, strict=True)) for row in measured}
    lines = text.strip().splitlines()
    columns = _cells(lines[0])
    what = columns.index(head[0])
    for number, line in enumerate(lines[2:], 2):
        new = known.get(_cells(line)[what])
        if new is not None:
            lines[number] = shown_table([[new[column] for column in columns]]).strip()
    return "\n".join(lines) + "\n"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
