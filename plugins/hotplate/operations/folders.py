"""The folders that a deployment names: whether they can be written, and hold what they may."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from hotplate.operations.findings import ERROR, OK, WARNING, Finding
from hotplate.sizes import format_bytes

__all__ = ["examine_folders"]

_LITTLE: Final = 100_000_000


def examine_folders(settings: Any) -> list[Finding]:
    """A finding for each folder of `online_store`: `blobs`, `traffic`, `metrics`, `preload`."""
    return [_examine(name, folder, most) for name, folder, most in _folders(settings)]


def _folders(settings: Any) -> Iterator[tuple[str, Path, int]]:
    if settings.blobs is not None:
        yield "blobs", Path(settings.blobs.folder), settings.blobs.max_bytes
    if settings.traffic is not None:
        logs = 1 + settings.traffic.changes + bool(settings.outputs)
        yield "traffic", Path(settings.traffic.folder), logs * settings.traffic.max_bytes
    if settings.metrics is not None:
        yield "metrics", Path(settings.metrics.folder), _LITTLE
    if settings.preload is not None:
        rows = settings.memory.max_bytes if settings.preload.rows else 0
        yield "preload", Path(settings.preload.folder), _LITTLE + rows


def _examine(name: str, folder: Path, most: int) -> Finding:
    where = f"online_store.{name}.folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"hotplate:doctor")
            file.flush()
        # root may write anywhere, whoever serves may not
        is_ours = os.access(folder, os.W_OK | os.X_OK)
        free, held = shutil.disk_usage(folder).free, _size(folder)
    except OSError as error:
        fix = f"name a folder in {where} that the serving processes may write"
        return Finding(name, ERROR, f"{folder}: {error.strerror or error}", fix)
    seen = (
        f"{folder} can be written, {format_bytes(free)} are free, it may hold {format_bytes(most)}"
    )
    if not is_ours:
        return Finding(name, ERROR, f"{folder}: cannot be written", f"change its owner, or {where}")
    if free + held < most:
        fix = f"lower online_store.{name}.max_bytes, or name a folder on a larger disk"
        return Finding(name, WARNING, seen, fix)
    return Finding(name, OK, seen)


def _size(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())
