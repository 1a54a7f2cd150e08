"""The blob tier: payloads over 1 MB in memory-mapped files that all processes of a host share.

Embedding tables, candidate sets and output tensors are too large to be sent through a socket at
every read, and to be held once a process. Here they lie in a file each; whoever asks is given an
array (or a view, or an Arrow table) over the map of it. Nothing is copied, and a hundred processes
have the same pages of memory.

The value of a key comes from a file that was complete when it got its name, whose head and payload
verify, that holds this very key, and that is neither too old nor from the future. Everything else
is a miss, and so is whatever the file system has to complain about: it is counted, remembered in
`stats().last_error` and logged once a minute, never raised.

A file that another program cuts short while it is mapped ends the process that touches the lost
part (SIGBUS). Hotplate only ever replaces files, and compares a file's length with its head before
it maps it: let nothing else write into the folder. Use a local disk, or a tmpfs.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, get_args

from hotplate.clock import SYSTEM_CLOCK, Clock
from hotplate.durations import NO_LIMIT_NS, parse_duration
from hotplate.errors import ConfigError, PayloadError
from hotplate.forks import restart_in_children
from hotplate.seldom import Seldom
from hotplate.sizes import format_bytes, parse_bytes
from hotplate.tiers.blob_folder import BlobFolder, BlobIdentity, identity_of
from hotplate.tiers.blob_format import BlobRejected, Head, Times
from hotplate.tiers.blob_maps import BlobMaps, MappedBlob, Verify
from hotplate.tiers.blob_payload import Payload, payload_of

__all__ = ["BlobStats", "BlobTier"]

_log: Final = logging.getLogger("hotplate.blobs")

# Files that could not be removed and are not served; beyond that, none from before is.
_REFUSED_MAX: Final = 4_096
# How coarse the order of eviction is. 100 processes that read a blob note it once in this time.
_TOUCH_NS: Final = 5_000_000_000
# How long the map of a file that was removed is kept where nobody asks for its key any more.
_TEND_NS: Final = 5_000_000_000


@dataclass(frozen=True)
class BlobStats:
    """Counts of one `BlobTier` in this process, and what the folder holds now.

    Attributes:
        entries, bytes: of the folder, whichever process put them there.
        hits: values given.
        misses: all that were asked for and not given, those below included.
        expired: too old, or created in what is the future now.
        rejected: files that are damaged, foreign, of another key or another user.
        errors: times the file system, or Arrow, refused something.
        evicted: files removed for room.
        writes: payloads kept.
        too_large: payloads larger than the bound, not kept.
        last_error: what was rejected or refused last; no key is in it.
    """

    entries: int
    bytes: int
    hits: int
    misses: int
    expired: int
    rejected: int
    errors: int
    evicted: int
    writes: int
    too_large: int
    last_error: str


class BlobTier:
    """Large payloads by key, in a folder that processes share.

    Keys are bytes; a text stands for its UTF-8. Threads may share a tier. A forked child keeps the
    maps and counts afresh.

    Args:
        folder: on a local disk or a tmpfs; made with mode 0700 if it is not there. Processes of one
            user share it; files of others are not believed.
        max_bytes: of all files together, such as "10GB". The least recently used go first. While
            processes put payloads at the same time, each may be one payload beyond it.
        clock: for tests.
        verify: "once": the checksum of a payload is compared when this process first maps this
            version of the file (14 MB: 8 ms). "always": at every `get`. "never": only that of the
            head is, unless the machine was started anew since: a power cut may have lost some.

    Raises:
        ConfigError: `max_bytes` or `verify` is none.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_bytes: int | str = "10GB",
        clock: Clock | None = None,
        verify: Verify = "once",
    ) -> None:
        if verify not in get_args(Verify):
            raise ConfigError(f"blob tier: verify={verify!r}; write 'once', 'always' or 'never'")
        try:
            size = parse_bytes(max_bytes)
        except ValueError as error:
            raise ConfigError(f"blob tier: max_bytes: {error}") from error
        self._folder = BlobFolder(Path(folder).absolute(), size)
        self._clock = SYSTEM_CLOCK if clock is None else clock
        self._maps = BlobMaps(verify)
        self._refused: set[BlobIdentity] = set()
        self._refused_until_ns = -1
        self._tended_ns = self._touched_from_ns = self._clock.now_ns()
        self._is_closed = False
        self.restart_after_fork()
        restart_in_children(self)
        try:
            self._folder.create()
        except OSError as error:
            self._note("errors", error)

    def restart_after_fork(self) -> None:
        """New locks, and counts of this process."""
        self._lock = threading.Lock()
        self._put_lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._last_error = ""
        self._seldom = Seldom()
        self._folder.close_in_child()
        self._maps.restart_after_fork()

    # -- keeping ----------------------------------------------------------------------------------

    def put(
        self,
        key: bytes | str,
        payload: object,
        *,
        ttl: str | timedelta | None = None,
        deadline_ns: int | None = None,
    ) -> bool:
        """Keep a payload for all processes.

        What is not kept takes with it what was there: a `put` says that that is outdated.

        Args:
            key: of the payload; put the version of model and data in it.
            payload: an array of numbers, booleans, times or fixed-width texts, in C order or copied
                into it; anything bytes-like; a pyarrow Table or RecordBatch.
            ttl: how long it may be served from now on: "30s", "2h"; no limit if left out.
            deadline_ns: an instant of the tier's clock (`hotplate.clock.SYSTEM_CLOCK.now_ns()`)
                beyond which it is not served: of a value's age, or of the features it came from.

        Returns:
            Whether it was kept.

        Raises:
            PayloadError: the payload is nothing that can be kept, such as objects.
            ConfigError: `ttl` is no duration.
        """
        raw = _bytes_of(key)
        path = self._folder.path_of(raw)
        times = Times.starting_now(self._clock, _ttl_ns(ttl), deadline_ns)
        is_kept = False
        try:
            # a table is written to be measured: `times` are from before that
            is_kept = self._put(raw, path, times, payload_of(payload))
        except PayloadError:
            raise
        except Exception as error:  # noqa: BLE001 - the border: the caller has its payload
            self._note("errors", error)
        if not is_kept:
            self._drop(raw, path)
        return is_kept

    def _put(self, raw: bytes, path: str, times: Times, payload: Payload) -> bool:
        head = Head(payload.kind, payload.dtype, payload.shape, raw, times, payload.size)
        if self._is_closed or times.expires_ns <= times.created_ns:
            return False
        if head.data_at + payload.size > self._folder.max_bytes:
            self._count("too_large")
            return False
        with self._put_lock:  # one payload a process beyond the bound, not one a thread
            evicted = self._folder.write(path, head, payload, times.created_wall_ns)
        with self._lock:
            self._counts["writes"] += 1
            self._counts["evicted"] += evicted
        self._tend(self._clock.now_ns())
        return True

    # -- reading ----------------------------------------------------------------------------------

    def get(self, key: bytes | str, *, crc: int | None = None) -> Any:
        """The payload of a key, over the map of its file; None if there is none to be served.

        It stays valid for as long as it is held, whatever becomes of the file.

        Args:
            key: of the payload.
            crc: CRC-32 of the payload that is meant (of an array's bytes, in C order): another one
                is rejected. Any if left out.

        Returns:
            A read-only numpy array, a read-only memoryview of bytes, or a pyarrow Table, as it was
            put (a RecordBatch comes back as a Table).
        """
        value = self._found(_bytes_of(key), crc)
        self._count("misses" if value is None else "hits")
        return value

    def peek(self, key: bytes | str, *, crc: int | None = None) -> Any:
        """What `get` would give, counted as neither hit nor miss."""
        return self._found(_bytes_of(key), crc)

    def _found(self, raw: bytes, crc: int | None) -> Any:
        try:
            return None if self._is_closed else self._find(raw, crc)
        except FileNotFoundError:
            self._maps.let_go(raw)
        except BlobRejected as error:
            self._reject(raw, error)
        except Exception as error:  # noqa: BLE001 - the border: a fault of a cache is a miss
            self._note("errors", error)
        return None

    def _find(self, key: bytes, crc: int | None) -> Any:
        known = self._maps.known(key)
        path = self._folder.path_of(key) if known is None else known.path
        # so every change of the file is followed at once: most of what a `get` costs
        status = os.lstat(path)
        if known is None or not self._maps.is_current(known, status):
            known = self._maps.open(key, path)
        now_ns, wall_ns = self._clock.now_ns(), self._clock.wall_ns()
        times = known.times
        if times.has_expired(now_ns, wall_ns):
            self._count("expired")
            self._maps.let_go(key)
            with suppress(OSError):
                self._folder.remove(path)
            return None
        if times.is_ahead(now_ns, wall_ns):  # not removed: the clock may be put right again
            self._count("expired")
            return None
        if self._is_refused(known):
            return None
        if crc is not None and known.crc != crc:
            raise BlobRejected("a blob holds another payload than is meant", is_damaged=False)
        if abs(wall_ns - status.st_atime_ns) >= _TOUCH_NS and now_ns >= self._touched_from_ns:
            self._touch(known, now_ns, wall_ns)
        if now_ns - self._tended_ns >= _TEND_NS:
            self._tend(now_ns)
        return known.value()

    def _touch(self, used: MappedBlob, now_ns: int, wall_ns: int) -> None:
        try:
            self._folder.touch(used.path, used.identity, wall_ns)
        except OSError as error:  # the value is good all the same; a mount may be read-only
            self._touched_from_ns = now_ns + _TOUCH_NS
            self._note("errors", error)

    def _tend(self, now_ns: int) -> None:
        self._tended_ns = now_ns
        self._maps.let_go_of_removed()

    # -- removing ---------------------------------------------------------------------------------

    def forget(self, key: bytes | str) -> bool:
        """Remove the payload of a key, for all processes; whether there was one.

        Where the file system does not let it be removed, this process does not serve it any more.
        """
        raw = _bytes_of(key)
        return self._drop(raw, self._folder.path_of(raw))

    def clear(self) -> int:
        """Remove all payloads, those of other processes too; how many there were."""
        removed = 0
        self._maps.clear()
        try:
            for file in self._folder.listing().files:
                removed += self._folder.remove(file.path)
        except OSError as error:
            self._note("errors", error)
            self._refused_until_ns = self._clock.now_ns()
        return removed

    def _drop(self, raw: bytes, path: str) -> bool:
        self._maps.let_go(raw)
        try:
            return self._folder.remove(path)
        except OSError as error:
            self._refuse(path, error)
            return False

    def _refuse(self, path: str, error: OSError) -> None:
        """Serve no more what could not be removed, if it is there."""
        try:
            identity = identity_of(os.lstat(path))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError:  # nobody knows what will be seen once it can be looked at again
            self._refused_until_ns = self._clock.now_ns()
        else:
            with self._lock:
                if len(self._refused) < _REFUSED_MAX:
                    self._refused.add(identity)
                else:
                    self._refused_until_ns = self._clock.now_ns()
        self._note("errors", error)

    def _is_refused(self, known: MappedBlob) -> bool:
        if known.identity in self._refused:
            return True
        return known.times.created_ns <= self._refused_until_ns

    def _reject(self, raw: bytes, error: BlobRejected) -> None:
        self._note("rejected", error)
        self._maps.let_go(raw)
        if error.is_damaged:  # of use to nobody, and not to be verified again at the next `get`
            with suppress(OSError):
                self._folder.remove(self._folder.path_of(raw))

    def close(self) -> None:
        """Let go of the maps and keep nothing any more; what callers hold stays valid."""
        self._is_closed = True
        self._maps.clear()

    # -- counts -----------------------------------------------------------------------------------

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def _note(self, name: str, error: Exception) -> None:
        # Arrow's texts may quote values, and so is said of those only what kind they are.
        text = type(error).__name__
        if isinstance(error, BlobRejected):
            text = str(error)
        elif isinstance(error, OSError) and error.strerror:
            text = f"{text}: {error.strerror}"
        with self._lock:
            self._counts[name] += 1
            self._last_error = text
            is_time = self._seldom.is_time()
        if is_time:
            _log.warning(
                "the blob tier in %s goes without what it could not read or keep: %s. "
                "stats() counts such cases; this is said once a minute at most",
                self._folder.path,
                text,
            )

    def stats(self) -> BlobStats:
        """Counts since this process made the tier, or was forked; the folder is looked through."""
        entries, size = self._held()
        with self._lock:
            counts = self._counts
            return BlobStats(
                entries=entries,
                bytes=size,
                hits=counts["hits"],
                misses=counts["misses"],
                expired=counts["expired"],
                rejected=counts["rejected"],
                errors=counts["errors"],
                evicted=counts["evicted"],
                writes=counts["writes"],
                too_large=counts["too_large"],
                last_error=self._last_error,
            )

    def _held(self) -> tuple[int, int]:
        try:
            found = self._folder.listing()
        except OSError as error:
            self._note("errors", error)
            return 0, 0
        return len(found.files), found.size

    def __len__(self) -> int:
        return self._held()[0]

    def __repr__(self) -> str:
        entries, size = self._held()
        most = format_bytes(self._folder.max_bytes)
        held = f"entries={entries}, bytes={format_bytes(size)} of {most}"
        return f"BlobTier({self._folder.path!r}, {held}{', closed' if self._is_closed else ''})"


def _bytes_of(key: bytes | str) -> bytes:
    return key.encode("utf-8", "surrogatepass") if isinstance(key, str) else bytes(key)


def _ttl_ns(ttl: str | timedelta | None) -> int:
    if ttl is None:
        return NO_LIMIT_NS
    try:
        return parse_duration(ttl)
    except ValueError as error:
        raise ConfigError(f"blob tier: ttl: {error}") from error
