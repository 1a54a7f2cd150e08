"""The files of blobs that this process has mapped, and the versions whose checksums it compared."""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from hotplate.tiers.blob_folder import BlobIdentity, identity_of, open_blob
from hotplate.tiers.blob_format import BlobRejected, Head, Times, crc_of
from hotplate.tiers.blob_payload import reader_of

__all__ = ["BlobMaps", "MappedBlob", "Verify"]

Verify = Literal["once", "always", "never"]
"""When a payload's checksum is compared."""

# Maps a process keeps so that the next `get` costs microseconds. A map takes address space and a
# descriptor, and holds on to the disk space of a file that was removed since.
_OPEN_MAX: Final = 64
# An entry is two hundred bytes; more versions than this are not looked at in turn.
_VERIFIED_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class MappedBlob:
    """A file that is mapped.

    Attributes:
        path, identity: which version of which file.
        times: as this boot of the machine sees them.
        crc: CRC-32 of the payload.
        value: makes what callers are given.
    """

    path: str
    identity: BlobIdentity
    times: Times
    crc: int
    value: Callable[[], Any]


class BlobMaps:
    """Maps by key, the least recently used let go first.

    Args:
        verify: when a payload's checksum is compared.
    """

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._open: OrderedDict[bytes, MappedBlob] = OrderedDict()
        self._verified: OrderedDict[BlobIdentity, int] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def restart_after_fork(self) -> None:
        """Make a new lock: the parent's may have been held by a thread that is not here."""
        self._lock = threading.Lock()

    def known(self, key: bytes) -> MappedBlob | None:
        """What is mapped for a key, current or not; it counts as used."""
        with self._lock:
            found = self._open.get(key)
            if found is not None:
                self._open.move_to_end(key)
            return found

    def is_current(self, known: MappedBlob, status: os.stat_result) -> bool:
        """Whether a map is of the file as it is now, and need not be verified again."""
        return known.identity == identity_of(status) and self._verify != "always"

    def open(self, key: bytes, path: str) -> MappedBlob:
        """Map the file of a key after verifying it.

        Raises:
            BlobRejected: it is not what its name says.
            OSError: it cannot be read.
        """
        with open_blob(path) as fd:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise BlobRejected("what has the name of a blob is no file", is_damaged=False)
            if status.st_uid != os.geteuid():
                raise BlobRejected(
                    f"a blob belongs to user {status.st_uid}, this process to {os.geteuid()}: give "
                    "each user a folder",
                    is_damaged=False,
                )
            head = Head.read(fd, status.st_size)
            if head.key != key:
                raise BlobRejected("a blob holds another key than its name says", is_damaged=False)
            identity = identity_of(status)
            self._verify_payload(fd, head, identity)
            data = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        opened = MappedBlob(
            path, identity, head.times.here(), head.payload_crc, reader_of(head, data)
        )
        with self._lock:
            self._open[key] = opened
            self._open.move_to_end(key)
            if len(self._open) > _OPEN_MAX:
                self._open.popitem(last=False)
        return opened

    def _verify_payload(self, fd: int, head: Head, identity: BlobIdentity) -> None:
        if self._verify == "never" and head.times.is_of_this_boot:
            return
        if self._verify != "always" and self._verified.get(identity) == head.crc:
            return
        if crc_of(fd, head) != head.payload_crc:
            raise BlobRejected("the payload of a blob is damaged")
        with self._lock:
            self._verified[identity] = head.crc
            if len(self._verified) > _VERIFIED_MAX:
                self._verified.popitem(last=False)

    def let_go(self, key: bytes) -> None:
        """Drop the map of a key; values that callers hold keep it."""
        with self._lock:
            self._open.pop(key, None)

    def let_go_of_removed(self) -> None:
        """Drop maps whose files were removed or replaced: they hold on to disk space."""
        with self._lock:
            held = list(self._open.items())
        for key, opened in held:
            try:
                is_current = identity_of(os.lstat(opened.path)) == opened.identity
            except OSError:
                is_current = False
            if not is_current:
                with self._lock:
                    if self._open.get(key) is opened:
                        del self._open[key]

    def clear(self) -> None:
        """Drop all maps."""
        with self._lock:
            self._open.clear()
