"""The folder in which the processes of a host write down what they count.

The files are those of prometheus_client's mode for several processes, so that whatever reads that
mode reads these, Feast's own metrics server among them: `counter_ID.db`, `histogram_ID.db` and
`gauge_liveMODE_ID.db`, where ID is `hotplate-PID-START-NAMESPACE-NUMBER`. They are maps of memory:
a process that is killed has lost nothing that it wrote.

Counts of processes that have ended stay, since a counter must not fall; their gauges go, and where
there are many such processes their counts are added up in one file. Where nobody is alive and
nothing was written for ten minutes, the next process begins anew.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.utils import floatToGoString

from hotplate.histogram import HistogramStats
from hotplate.telemetry.catalogue import Sample

__all__ = ["DAMAGE", "ProcessFiles", "clean", "counted", "has_ended", "locked", "started"]

DAMAGE: Final = (OSError, ValueError, RuntimeError, struct.error)
"""What reading a damaged file raises."""
_PAGES: Final = 1 << 16  # bytes that prometheus_client begins a file with
_ENTRY_MOST: Final = 64  # bytes of an entry beside its key
_RISING: Final = ("counter", "histogram")
_MANY: Final = 16  # processes that have ended, before their counts are added up
_FORGOTTEN_S: Final = 600.0  # with nobody alive; a worker that is replaced comes back sooner
_ENDED: Final = "hotplate-0-0-0-0"
_known_keys: Final[dict[tuple[str, tuple[str, ...]], tuple[str, ...]]] = {}


class _Map(MmapedDict):  # type: ignore[misc]
    """A map whose every page is on the disk: writing to one that is not, on a full disk, would end
    the process by a signal, where this raises an OSError."""

    def __init__(self, path: Path) -> None:
        with open(path, "a+b") as file:
            _reserve(file.fileno(), max(_PAGES, file.seek(0, os.SEEK_END)))
        super().__init__(str(path))

    def _init_value(self, key: str) -> None:
        if self._used + len(key.encode()) + _ENTRY_MOST > self._capacity:
            _reserve(self._f.fileno(), 2 * self._capacity)
        super()._init_value(key)


def _reserve(file: int, size: int) -> None:
    """Let a file have so many bytes, all of them on the disk."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    while (held := os.fstat(file).st_size) < size:
        os.pwrite(file, bytes(min(_PAGES, size - held)), held)


class ProcessFiles:
    """The files of one process, or of one cache in it. Not for several threads at once.

    Args:
        folder: made if it is not there.
        number: which cache of the process.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, number: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        pid = os.getpid()
        self._id = f"hotplate-{pid}-{started(pid)}-{_namespace()}-{number}"
        self._open: dict[str, _Map] = {}
        self._written: dict[tuple[str, str], float] = {}
        weakref.finalize(self, _close, self._open)  # also where nobody closes it

    def write(self, samples: Iterable[Sample], baseline: Mapping[str, float]) -> None:
        """Write values, those that differ from what stands there. A counter never falls.

        Args:
            samples: all of them.
            baseline: what to take off, by key; see `counted`.

        Raises:
            OSError: the disk is full, or gone.
        """
        for kind, key, value in _values(samples):
            value -= baseline.get(key, 0.0)
            place = kind, key
            before = self._written.get(place)
            if kind in _RISING:
                if before is None:  # of a cache that was closed, perhaps
                    before = self._file(kind).read_value(key)[0]
                value = max(value, before)
            if before == value:
                continue
            self._file(kind).write_value(key, value, 0.0)
            self._written[place] = value
        for file in self._open.values():
            os.utime(file._fname)  # who is alive in another container is known by that

    def _file(self, kind: str) -> _Map:
        found = self._open.get(kind)
        if found is None:
            path = self._folder / f"{kind}_{self._id}.db"
            hidden = path.with_suffix(".part")  # nobody is to see a file that is empty still
            found = self._open[kind] = _Map(path if path.exists() else hidden)
            if not path.exists():
                hidden.rename(path)
                found._fname = str(path)
        return found

    def forsake(self) -> list[MmapedDict]:
        """Leave the files to the process that opened them; what keeps them open is returned."""
        kept = list(self._open.values())
        self._open.clear()
        return kept

    def close(self) -> None:
        """Close them; gauges of what is no more go."""
        _close(self._open)
        self._written.clear()


def _close(opened: dict[str, _Map]) -> None:
    for kind, file in opened.items():
        file.close()
        if kind.startswith("gauge"):
            with suppress(OSError):
                os.unlink(file._fname)
    opened.clear()


def counted(samples: Iterable[Sample]) -> dict[str, float]:
    """Counters and histograms by key, as a `baseline`."""
    return {key: value for kind, key, value in _values(samples) if kind in _RISING}


def _values(samples: Iterable[Sample]) -> Iterator[tuple[str, str, float]]:
    """Kind of file, key in it, value."""
    for sample in samples:
        metric, value = sample.metric, sample.value
        keys = _known_keys.get((metric.name, sample.labels))
        if keys is None:
            keys = _known_keys[metric.name, sample.labels] = _keys_of(sample)
        if isinstance(value, HistogramStats):
            for key, part in zip(keys, (*value.counts, value.total), strict=True):
                yield "histogram", key, float(part)
        elif metric.kind == "gauge":
            yield f"gauge_live{metric.across}", keys[0], float(value)
        else:
            yield "counter", keys[0], float(value)


def _keys_of(sample: Sample) -> tuple[str, ...]:
    metric, labels = sample.metric, list(sample.labels)
    names = list(metric.labels)
    if not isinstance(sample.value, HistogramStats):
        return (mmap_key(metric.family, metric.name, names, labels, metric.said),)
    bounds = [floatToGoString(bound) for bound in (*sample.value.bounds, float("inf"))]
    buckets = [
        mmap_key(
            metric.name, f"{metric.name}_bucket", [*names, "le"], [*labels, bound], metric.said
        )
        for bound in bounds
    ]
    return (*buckets, mmap_key(metric.name, f"{metric.name}_sum", names, labels, metric.said))


# -- processes that have ended ---------------------------------------------------------------------


def started(pid: int) -> str:
    """When a process started, in ticks since the machine did: with its pid it names the process.

    "0" where the system does not say, "" where there is no such process.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return ""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except OSError:
            return "0"
        return "0"
    except OSError:
        return "0"
    return text.rpartition(")")[2].split()[19]


def _namespace() -> str:
    """In which pids mean what they mean here."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def clean(folder: Path) -> None:
    """Remove what processes left that have ended, but not what they counted.

    Where another process is at it, nothing is done.

    Raises:
        OSError: the folder cannot be written.
    """
    with locked(folder, fcntl.LOCK_EX, 0.0) as is_held:
        if not is_held:
            return
        found = [path for path in folder.glob("*_hotplate-*.db") if _id_of(path) != _ENDED]
        ended = [path for path in found if has_ended(path)]
        if len(ended) == len(found) and _latest(folder) < time.time() - _FORGOTTEN_S:
            for path in folder.glob("*_hotplate-*.db"):
                path.unlink(missing_ok=True)
            return
        for path in ended:
            if path.name.startswith("gauge_"):
                path.unlink(missing_ok=True)
        for kind in ("counter", "histogram"):
            of_kind = [path for path in ended if path.name.startswith(f"{kind}_")]
            if len(of_kind) >= _MANY:
                _add_up(folder, kind, of_kind)


def _latest(folder: Path) -> float:
    """When a file of the folder was last written."""
    return max((path.stat().st_mtime for path in folder.glob("*_hotplate-*.db")), default=0.0)


def _add_up(folder: Path, kind: str, paths: list[Path]) -> None:
    whole = folder / f"{kind}_{_ENDED}.db"
    sums: dict[str, float] = {}
    for path in [*paths, *([whole] if whole.exists() else [])]:
        with suppress(*DAMAGE):  # of a machine that lost power, for instance
            for key, value, _, _ in list(MmapedDict.read_all_values_from_file(str(path))):
                sums[key] = sums.get(key, 0.0) + value
    hidden = folder / f".{whole.name}.part"
    hidden.unlink(missing_ok=True)
    file = _Map(hidden)
    for key, value in sums.items():
        file.write_value(key, value, 0.0)
    file.close()
    # Who reads in between without the lock, as Feast's server does, finds files gone that it has
    # listed and fails once, or finds less for a moment.
    for path in paths:
        path.unlink()
    hidden.rename(whole)


def _id_of(path: Path) -> str:
    return path.stem.rpartition("_")[2]


def has_ended(path: Path) -> bool:
    """Whether the process that a file is of has ended, as far as can be seen from here.

    One of another container cannot be seen, and has if it has not written for ten minutes.
    """
    try:
        _, pid, start, namespace, _ = _id_of(path).split("-")
        if namespace == _namespace():
            return started(int(pid)) != start
        return path.stat().st_mtime < time.time() - _FORGOTTEN_S
    except (ValueError, FileNotFoundError):
        return True


@contextmanager
def locked(folder: Path, how: int, wait_s: float) -> Iterator[bool]:
    """Hold the folder's lock, or not: yields whether.

    It is let go aloud: a child that is forked meanwhile has the same lock, and would hold it for
    as long as it lives.

    Args:
        folder: whose.
        how: `fcntl.LOCK_EX` or `fcntl.LOCK_SH`.
        wait_s: for how long.
    """
    path = folder / ".hotplate.lock"
    try:
        file = open(path, "ab" if how == fcntl.LOCK_EX else "rb")  # noqa: SIM115 - closed below
    except OSError:
        if how == fcntl.LOCK_EX:
            raise
        yield False  # nobody has cleaned there yet, or it may only be read
        return
    with file:
        until, is_held = time.monotonic() + wait_s, False
        while not is_held:
            try:
                fcntl.flock(file, how | fcntl.LOCK_NB)
                is_held = True
            except OSError:
                if time.monotonic() >= until:
                    break
                time.sleep(0.005)
        try:
            yield is_held
        finally:
            if is_held:
                fcntl.flock(file, fcntl.LOCK_UN)
