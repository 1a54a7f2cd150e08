"""Deployments to look after: a repo on disk, and the command in a process of its own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result

import hotplate
from hotplate import Tier
from hotplate.cli import main
from hotplate.invalidation import local

from ..stores import CACHED, Repo

PLUGINS = str(Path(hotplate.__file__).parents[1])


def write_yaml(repo: Repo) -> None:
    """Let a repo be opened by its folder, as commands do."""
    settings = {
        "project": repo.project,
        "provider": repo.provider,
        "registry": {"path": str(repo.folder / "registry.db"), **repo.registry},
        "offline_store": {"type": "file"},
        "entity_key_serialization_version": 3,
        "online_store": {
            "type": CACHED,
            "store": dict(repo.online),
            "ttl_map": dict(repo.ttl_map),
            **repo.settings,
        },
    }
    (repo.folder / "feature_store.yaml").write_text(yaml.safe_dump(settings))


def command(repo: Repo, *arguments: str) -> Result:
    """Run the command here, as if in a process of its own: no cache is shared with the test's."""
    write_yaml(repo)
    local._domains.clear()
    verb, *rest = arguments
    return CliRunner().invoke(main, [verb, "-c", str(repo.folder), *rest])


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str


def elsewhere(repo: Repo, *arguments: str, typed: str | None = None) -> Ended:
    """Run the command in a process of its own; on a terminal if something is typed there."""
    write_yaml(repo)
    line = [sys.executable, "-m", "hotplate.cli", *arguments]
    stdin, keyboard = pty.openpty() if typed is not None else (subprocess.DEVNULL, None)
    if keyboard is not None:
        os.write(keyboard, str(typed).encode())
    done = subprocess.run(
        line,
        cwd=repo.folder,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PYTHONPATH": PLUGINS, "PATH": "/usr/bin:/bin", "HOME": str(repo.folder)},
        check=False,
    )
    if keyboard is not None:
        os.close(stdin)
        os.close(keyboard)
    return Ended(done.returncode, done.stdout)


def another_cache(repo: Repo) -> Any:
    """A cache of another process: it shares nothing but the server."""
    local._domains.clear()
    store = repo.open_hot()
    hotplate.of(store).runtime  # noqa: B018 - binds its domain now
    return store


def tiers(store: Any, entities: Sequence[dict[str, Any]], feature: str = "v:age") -> list[Tier]:
    """Where each of some rows comes from."""
    response = store.get_online_features([feature], list(entities))
    return [row.tier for row in next(iter(response.freshness().values()))]
