"""When a feature view was last written by a process of this host, for rows kept past a restart.

A file a view and boot of the machine, `changed-BOOT-VIEW`, and `changed-BOOT` for the project as a
whole; in it the moment on the cache's clock, which begins with the boot. A row whose read of the
source began before it may be older than that write. What cannot be read counts as written just now.
Hosts that share a folder do not get in each other's way: rows are believed on their own boot alone.
"""

from __future__ import annotations

import logging
import os
import struct
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import quote

from hotplate.clock import Clock
from hotplate.seldom import Seldom
from hotplate.warming.files import remove_older

__all__ = ["WriteMarks", "boot_id"]

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_MARK: Final = struct.Struct("<q")
_FORGOTTEN_S: Final = 30 * 86_400.0
_log = logging.getLogger("hotplate.warming")


@cache
def boot_id() -> str:
    """Which start of this machine it is; nothing where the system does not say."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


class WriteMarks:
    """The marks of one project.

    Args:
        folder: in which they lie, made when the first is written; None if no rows are kept.
        clock: the cache's.
    """

    def __init__(self, folder: Path | None, clock: Clock) -> None:
        self.is_kept = folder is not None
        """Whether rows are kept past a restart, which is what marks are for."""
        self._folder = folder or Path()
        self._clock = clock
        self._failed: dict[str | None, int] = {}
        self._seldom = Seldom()
        self._is_swept = False

    def _path(self, view: str | None) -> Path:
        of_what = "" if view is None else f"-{quote(view, safe='')}"
        return self._folder / f"changed-{boot_id()}{of_what}"

    def mark(self, *views: str) -> None:
        """Feature views were written; call it when the write has returned.

        A mark that cannot be written counts for this process alone, and that is logged.
        """
        if self.is_kept:
            for view in views:
                self._mark(view)

    def mark_all(self) -> None:
        """The same for all feature views of the project."""
        if self.is_kept:
            self._mark(None)

    def _mark(self, view: str | None) -> None:
        try:
            self._write(view)
        except OSError as error:
            self._failed[view] = self._clock.now_ns()
            if self._seldom.is_time():
                _log.warning(
                    "that rows changed cannot be written down in %s, so a process that restarts "
                    "may keep earlier ones within their ttl: %s",
                    self._folder,
                    error.strerror or error,
                )

    def _write(self, view: str | None) -> None:
        import fcntl  # which some systems lack; none of those says which boot it is

        path = self._path(view)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # the latest of several writers must remain
            os.pwrite(file, _MARK.pack(self._clock.now_ns()), 0)
        finally:
            os.close(file)
        if not self._is_swept:
            self._is_swept = True
            self._sweep()

    def _sweep(self) -> None:
        """Remove the marks of boots that were long ago."""
        own = f"changed-{boot_id()}"
        remove_older(
            self._folder, "changed-*", _FORGOTTEN_S, lambda path: path.name.startswith(own)
        )

    def last_ns(self, view: str) -> int:
        """When it was written last, on the cache's clock; 0 where it never was in this boot."""
        failed = [self._failed.get(one, 0) for one in (view, None)]
        return max(*failed, *(self._read(self._path(one)) for one in (view, None)))

    def _read(self, path: Path) -> int:
        try:
            said = path.read_bytes()
        except FileNotFoundError:
            return 0
        except OSError:
            return self._clock.now_ns()
        if len(said) != _MARK.size:
            return self._clock.now_ns()  # it is being written
        (moment_ns,) = _MARK.unpack(said)
        return int(moment_ns)
