"""Where a purge is, kept on disk so that it can go on after it was stopped."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from hotplate.errors import ConfigError

__all__ = ["CursorFile", "NodeCursor", "Position", "Selection", "state_folder"]

_VERSION: Final = 1


@dataclass(frozen=True)
class Selection:
    """Which entries are to be removed.

    Attributes:
        groups: groups or feature views; None for the whole project.
        is_outdated: only those that nobody with the present registry would serve.
    """

    groups: tuple[str, ...] | None
    is_outdated: bool = False

    def __str__(self) -> str:
        what = "the whole project" if self.groups is None else ", ".join(self.groups)
        return f"outdated entries of {what}" if self.is_outdated else f"entries of {what}"


@dataclass
class NodeCursor:
    """How far one node has been walked.

    Attributes:
        run_id: what the node was called; a cursor of an earlier life means nothing.
        cursor: where the next page begins.
        pages: how many have been seen.
        is_done: whether the last one has.
    """

    run_id: str
    cursor: int = 0
    pages: int = 0
    is_done: bool = False


@dataclass
class Position:
    """Where a purge is.

    Attributes:
        selection: what it removes.
        topology: what the deployment looked like when it began.
        nodes: `host:port` -> how far that node has been walked.
        removed: entries removed so far.
    """

    selection: Selection
    topology: str = ""
    nodes: dict[str, NodeCursor] = field(default_factory=dict)
    removed: int = 0


class CursorFile:
    """The file in which the purge of a project keeps where it is.

    Args:
        folder: in which it lies; made when it is first written.
        project: the Feast project.
    """

    def __init__(self, folder: Path, project: str) -> None:
        self.path = folder / f"purge-{quote(project, safe='')}.json"

    def load(self) -> Position | None:
        """What an earlier purge left behind; None if it ended, or left nothing readable."""
        try:
            body = json.loads(self.path.read_text())
            if body["v"] != _VERSION:
                return None
            groups = body["selection"]["groups"]
            selection = Selection(
                None if groups is None else tuple(groups), bool(body["selection"]["is_outdated"])
            )
            nodes = {name: NodeCursor(**node) for name, node in body["nodes"].items()}
            return Position(selection, body["topology"], nodes, int(body["removed"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, position: Position) -> None:
        """Keep where a purge is, whole or not at all.

        Raises:
            ConfigError: the folder cannot be written.
        """
        body: dict[str, Any] = {"v": _VERSION, **asdict(position)}
        new = self.path.with_suffix(".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(body))
            new.replace(self.path)
        except OSError as error:
            raise ConfigError(
                f"{self.path.parent} cannot be written ({error.strerror}): name a folder with "
                "--state FOLDER or the variable HOTPLATE_STATE"
            ) from None

    def remove(self) -> None:
        """Nothing is left to go on with."""
        self.path.unlink(missing_ok=True)


def state_folder() -> Path:
    """Where tools keep what must outlive them, by the usual variables."""
    own = os.environ.get("HOTPLATE_STATE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "hotplate"
