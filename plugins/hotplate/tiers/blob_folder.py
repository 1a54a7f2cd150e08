"""The folder of the blob tier: files that appear whole, and leave by the last time of use.

A file is written under a temporary name and renamed when it is complete; nothing is ever written
into one that has its name. Whoever has it mapped goes on reading what was there, whatever replaces
or removes it.

A file is not forced to the disk (`fsync`): it would cost more than the write, and what a power
cut loses is a cache's. A file that has its length but not its bytes fails its checksum.

The last use is the file's access time, set by hand: by its writer, and by readers when what is
there is seconds old. The kernel's own way of doing it (`relatime`) is a day coarse. The time of
modification is left alone, because it tells one version of a file from another.

A writer holds a lock (`flock`) on its temporary file, which ends with it however it ends: what
nobody has locked was left by a crash, in whatever container the writer ran.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, TypeAlias

from hotplate.tiers.blob_format import Head
from hotplate.tiers.blob_payload import Payload

__all__ = ["BlobFolder", "BlobIdentity", "Listing", "identity_of", "open_blob"]

_SUFFIX: Final = ".blob"
_NAME_LEN: Final = 64 + len(_SUFFIX)
_TEMPORARY: Final = ".tmp"
# A file is created before it is locked: what is this young may belong to a writer in between.
_TEMPORARY_S: Final = 60.0

_READ: Final = (
    os.O_RDONLY
    | os.O_CLOEXEC
    | os.O_NOFOLLOW
    | os.O_NONBLOCK  # what is a pipe under this name must not be waited for
    | getattr(os, "O_NOATIME", 0)  # the access time is ours
)
_WRITE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW

BlobIdentity: TypeAlias = tuple[int, int, int, int]
"""Device, inode, time of modification and length: another version of a file has another one."""


def identity_of(status: os.stat_result) -> BlobIdentity:
    """What tells this version of a file from others."""
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


@contextmanager
def open_blob(path: str) -> Iterator[int]:
    """A descriptor to read from, for as long as it takes.

    Raises:
        OSError: there is no such file, or it may not be read.
    """
    fd = os.open(path, _READ)
    try:
        yield fd
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    size: int
    used_ns: int


@dataclass(frozen=True, slots=True)
class Listing:
    """What the folder held when it was looked through.

    Attributes:
        files: those of blobs.
        size: their bytes.
        abandoned: temporary files old enough for their writers to be gone.
    """

    files: tuple[_File, ...]
    size: int
    abandoned: tuple[str, ...]


class BlobFolder:
    """Files of blobs, bounded in bytes.

    Args:
        path: the folder, made when there is something to put in it.
        max_bytes: of all files together, heads included.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = str(path)
        self.max_bytes = max_bytes
        self._known_bytes: int | None = None
        self._being_written: set[int] = set()

    def create(self) -> None:
        """Make the folder, for this user only, if it is not there.

        Raises:
            OSError: it cannot be made.
        """
        os.makedirs(self.path, mode=0o700, exist_ok=True)

    def path_of(self, key: bytes) -> str:
        """The file of a key. Keys may name people: they stay out of listings and logs."""
        return f"{self.path}/{blake2b(key, digest_size=32).hexdigest()}{_SUFFIX}"

    # -- writing ----------------------------------------------------------------------------------

    def write(self, path: str, head: Head, payload: Payload, used_ns: int) -> int:
        """Let a whole file appear under `path`, after making room for it.

        Returns:
            How many others had to go.

        Raises:
            OSError: it cannot be written; what stood there before still does.
        """
        size = head.data_at + payload.size
        evicted = 0
        if self._known_bytes is None or self._known_bytes + size > self.max_bytes:
            evicted = self._make_room(path, size)
        try:
            self._publish(path, head, payload, used_ns)
        except FileNotFoundError:  # somebody removed the folder
            self.create()
            self._publish(path, head, payload, used_ns)
        # Other processes may have put something meanwhile. Whoever comes last counts all of it, so
        # at no time is more than one payload a process beyond the bound.
        return evicted + self._make_room(path, size)

    def _publish(self, path: str, head: Head, payload: Payload, used_ns: int) -> None:
        temporary = f"{self.path}/.{os.getpid()}-{secrets.token_hex(8)}{_TEMPORARY}"
        fd = os.open(temporary, _WRITE, 0o600)
        self._being_written.add(fd)
        try:
            with suppress(OSError):  # a file system without locks: age alone decides
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(fd, head, payload)
            os.utime(fd, ns=(used_ns, time.time_ns()))  # finer than the kernel's own ticks
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            self._being_written.discard(fd)
            os.close(fd)

    def close_in_child(self) -> None:
        """Close what another thread of the parent was writing: it would hold on to the file."""
        for fd in self._being_written:
            with suppress(OSError):
                os.close(fd)
        self._being_written = set()

    # -- room -------------------------------------------------------------------------------------

    def listing(self) -> Listing:
        """Look through the folder; what vanishes meanwhile is left out.

        Raises:
            OSError: it is there but cannot be read.
        """
        files, abandoned = [], []
        now_s = time.time()
        for path, status in self._entries():
            if path.endswith(_SUFFIX):
                files.append(_File(path, status.st_size, status.st_atime_ns))
            elif abs(now_s - status.st_mtime) > _TEMPORARY_S:
                abandoned.append(path)
        found = Listing(tuple(files), sum(file.size for file in files), tuple(abandoned))
        self._known_bytes = found.size
        return found

    def _entries(self) -> Iterator[tuple[str, os.stat_result]]:
        try:
            entries = os.scandir(self.path)
        except FileNotFoundError:
            return
        with entries:
            for entry in entries:
                if not _is_ours(entry.name):
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield entry.path, status

    def _make_room(self, path: str, size: int) -> int:
        """Remove the least recently used until `path` fits, or is within the bound with the rest.

        What another process removes first makes room as well.
        """
        found = self.listing()
        for left_behind in found.abandoned:
            _sweep(left_behind)
        others = [file for file in found.files if file.path != path]
        total = size + sum(file.size for file in others)
        evicted = 0
        if total > self.max_bytes:
            for file in sorted(others, key=lambda file: file.used_ns):
                evicted += self.remove(file.path)
                total -= file.size
                if total <= self.max_bytes:
                    break
        self._known_bytes = total
        return evicted

    def remove(self, path: str) -> bool:
        """Remove a file; whether it was there.

        Raises:
            OSError: it is there and cannot be removed.
        """
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def touch(self, path: str, identity: BlobIdentity, used_ns: int) -> None:
        """Note that a file was used, unless it has been replaced.

        Raises:
            OSError: the file system does not allow it.
        """
        with suppress(FileNotFoundError), open_blob(path) as fd:
            status = os.fstat(fd)
            if identity_of(status) == identity:
                os.utime(fd, ns=(used_ns, status.st_mtime_ns))


def _is_ours(name: str) -> bool:
    if name.startswith("."):
        return name.endswith(_TEMPORARY)
    return name.endswith(_SUFFIX) and len(name) == _NAME_LEN


def _sweep(path: str) -> None:
    """Remove a temporary file, unless its writer lives."""
    with suppress(OSError), open_blob(path) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)


def _write(fd: int, head: Head, payload: Payload) -> None:
    crc = written = 0

    def sink(piece: memoryview) -> None:
        nonlocal crc, written
        crc = zlib.crc32(piece, crc)
        written += len(piece)
        while piece:
            piece = piece[os.write(fd, piece) :]

    os.lseek(fd, head.data_at, os.SEEK_SET)
    payload.write(sink)
    if written != payload.size:
        raise OSError(f"{written} bytes were written of a payload of {payload.size}")
    raw = memoryview(head.pack(crc))
    os.lseek(fd, 0, os.SEEK_SET)
    while raw:
        raw = raw[os.write(fd, raw) :]
