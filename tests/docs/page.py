"""A page of the documentation, taken apart: its blocks, links, headings and words in backticks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

__all__ = ["KINDS", "ROOT", "Block", "Code", "Link", "Page", "PageError", "anchor_of", "read_page"]

ROOT: Final = Path(__file__).resolve().parents[2]

KINDS: Final = ("python", "yaml", "console", "conf")
"""What a block may be. Anything else is refused: nobody would run it."""

NOTES: Final = ("not run", "file", "apart", "exits")
"""What may stand in a comment right before a block:

- `not run: REASON`: it is read and checked, not run;
- `file: NAME`: it is also a file of the repo;
- `apart: WHY`: settings of another deployment, which later blocks do not have;
- `exits: CODE`: how its last command ends."""

_NOTE = re.compile(r"<!--\s*([a-z ]+?):\s*(.*?)\s*-->", re.DOTALL)
_SHORTEST_REASON: Final = 10


class PageError(AssertionError):
    """Something on a page is wrong; says where."""


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
        page: the page's path from the root.
        line: of its first line, from 1 on.
        kind: one of `KINDS`.
        text: what stands in it.
        notes: what the comment right before it says.
    """

    page: str
    line: int
    kind: str
    text: str
    notes: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Link:
    """A link, and where it stands."""

    line: int
    target: str


@dataclass(frozen=True)
class Code:
    """Words in backticks, and where they stand."""

    line: int
    text: str


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        path: of its file.
        blocks: in their order.
        links: everything linked to, pictures too.
        codes: everything in backticks.
        anchors: what a link may name, from the headings.
    """

    path: Path
    blocks: Sequence[Block]
    links: Sequence[Link]
    codes: Sequence[Code]
    anchors: frozenset[str]

    @property
    def name(self) -> str:
        """Its path from the root."""
        return _shown(self.path)


def read_page(path: Path) -> Page:
    """Take a page apart.

    Raises:
        PageError: a block is of no known kind, or a comment before one says what nobody reads.
    """
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text())
    inlines = [token for token in tokens if token.type == "inline"]
    return Page(
        path,
        list(_blocks(_shown(path), tokens)),
        [Link(_line(one), target) for one in inlines for target in _targets(one)],
        [
            Code(_line(one), child.content)
            for one in inlines
            for child in one.children or ()
            if child.type == "code_inline"
        ],
        frozenset(_anchors(tokens)),
    )


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _line(token: Token) -> int:
    return token.map[0] + 1 if token.map else 0


def _blocks(page: str, tokens: Sequence[Token]) -> Iterator[Block]:
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "code_block":
            raise PageError(
                f"{page}:{_line(token)}: a block by indentation: fence it, and say what"
            )
        if token.type != "fence":
            continue
        place = f"{page}:{_line(token)}"
        notes = _notes(place, before)
        kind = token.info.strip()
        if kind not in KINDS:
            known = ", ".join(KINDS)
            raise PageError(f"{place}: a block of {kind or 'nothing'}: nobody runs it; {known}")
        yield Block(page, _line(token), kind, token.content, notes)


def _notes(place: str, before: Token | None) -> dict[str, str]:
    if before is None or before.type != "html_block":
        return {}
    found = dict(_NOTE.findall(before.content))
    unknown = sorted(set(found) - set(NOTES))
    if unknown:
        raise PageError(f"{place}: a comment says {unknown[0]!r}; known are {', '.join(NOTES)}")
    for word in ("not run", "apart"):
        if len(found.get(word, " " * _SHORTEST_REASON)) < _SHORTEST_REASON:
            raise PageError(f"{place}: {word!r} without a reason")
    return found


def _targets(token: Token) -> Iterator[str]:
    for child in token.children or ():
        if child.type == "link_open":
            yield str(child.attrGet("href"))
        elif child.type == "image":
            yield str(child.attrGet("src"))


def _anchors(tokens: Sequence[Token]) -> Iterator[str]:
    for head, inline in itertools.pairwise(tokens):
        if head.type == "heading_open":
            words = (child.content for child in inline.children or ())
            yield anchor_of("".join(words))


def anchor_of(heading: str) -> str:
    """The name that GitHub gives a heading."""
    kept = "".join(one for one in heading.lower() if one.isalnum() or one in " -_")
    return kept.strip().replace(" ", "-")
