"""What a page names: other pages, headings, files, commands, options, calls, settings, rights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from hotplate import Hotplate
from hotplate.operations.trials import OPERATING
from hotplate.servers import rights
from hotplate.settings import (
    BlobsConfig,
    MemoryConfig,
    PreloadConfig,
    SharedConfig,
    TrafficConfig,
    WindowsConfig,
)

from .commands import check_words, options_known
from .page import ROOT, Page, PageError, read_page

__all__ = ["SECTIONS", "wrong_links", "wrong_names"]

_TOP: Final = ("docs", "feature_repo", "pipelines", "plugins", "tests")
_PATH: Final = re.compile(rf"({'|'.join(_TOP)})(/[\w.-]+)*/?")
_BARE: Final = re.compile(r"[\w-]+\.(py|md|toml)")
_TEST: Final = re.compile(r"test_\w+")
_COMMAND: Final = re.compile(r"(hotplate|feast|make|pip|python) [\w-]")
_OPTION: Final = re.compile(r"--[a-z][\w-]*")
_CALL: Final = re.compile(r"hot\.(\w+)")
_SETTING: Final = re.compile(r"(blobs|memory|preload|shared|traffic|windows)\.([a-z_]+)")
SECTIONS: Final = {
    "blobs": BlobsConfig,
    "memory": MemoryConfig,
    "preload": PreloadConfig,
    "shared": SharedConfig,
    "traffic": TrafficConfig,
    "windows": WindowsConfig,
}
_RIGHTS: Final = frozenset(
    (
        *rights.TIER,
        *rights.LOGS,
        *rights.CHANNEL,
        *rights.CLUSTER_CHANNEL,
        *rights.CONSUMER,
        *rights.CONSUMER_APART,
        *OPERATING,
    )
)


def wrong_links(page: Page) -> list[str]:
    """Links to pages, files or headings that are not there."""
    found = []
    for link in page.links:
        if re.match(r"[a-z]+:", link.target):
            continue
        path, _, anchor = link.target.partition("#")
        target = (page.path.parent / path).resolve() if path else page.path
        if not target.exists():
            found.append(f"{page.name}:{link.line}: a link to {path}, which is not there")
        elif anchor and anchor not in _anchors(target):
            found.append(f"{page.name}:{link.line}: {target.name} has no heading #{anchor}")
    return found


@cache
def _anchors(path: Path) -> frozenset[str]:
    return read_page(path).anchors


def wrong_names(page: Page) -> list[str]:
    """Words in backticks that name what is not there."""
    own = {block.notes["file"] for block in page.blocks if "file" in block.notes}
    found = []
    for code in page.codes:
        try:
            for check in _CHECKS:
                check(code.text, own)
        except PageError as error:
            found.append(f"{page.name}:{code.line}: `{code.text}`: {error}")
    return found


def _check_path(text: str, own: set[str]) -> None:
    if _PATH.fullmatch(text) and "/" in text and not (ROOT / text).exists():
        raise PageError("there is no such file")
    if _TEST.fullmatch(text) and f"def {text}(" not in _tests():
        raise PageError("there is no such test")
    if _BARE.fullmatch(text) and text not in own and text not in _file_names():
        raise PageError("there is no file of this name")


@cache
def _tests() -> str:
    return "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


@cache
def _file_names() -> frozenset[str]:
    tops = (ROOT / top for top in _TOP)
    return frozenset({path.name for top in tops for path in top.rglob("*.*")}) | {
        path.name for path in ROOT.glob("*.*")
    }


def _check_command(text: str, _: set[str]) -> None:
    if _COMMAND.match(text):
        check_words(text)


def _check_option(text: str, _: set[str]) -> None:
    found = _OPTION.match(text)
    if found is not None and found[0] not in options_known():
        raise PageError("no command has this option")


def _check_call(text: str, _: set[str]) -> None:
    for name in _CALL.findall(text):
        if not hasattr(Hotplate, name):
            raise PageError(f"a Hotplate has no {name!r}")


def _check_setting(text: str, _: set[str]) -> None:
    found = _SETTING.fullmatch(text.partition(":")[0])
    if found is not None and found[2] not in SECTIONS[found[1]].model_fields:
        raise PageError(f"online_store.{found[1]} has no such setting")


def _check_rights(text: str, _: set[str]) -> None:
    for name in _rights_in(text):
        if name not in _RIGHTS:
            raise PageError(f"+{name} is nothing that Hotplate asks for")


def _rights_in(text: str) -> Iterator[str]:
    words = text.replace("\\|", "|").split()
    if words and all(word.startswith("+") for word in words):
        yield from (word[1:] for word in words)


_CHECKS: Final[tuple[Callable[[str, set[str]], None], ...]] = (
    _check_path,
    _check_command,
    _check_option,
    _check_call,
    _check_setting,
    _check_rights,
)
