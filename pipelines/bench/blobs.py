"""Large payloads: the blob tier against a bare memory map, in a hundred processes, against Redis.

The payload is an array of 14 MB of float32. To read it is to sum it, so that every byte is looked
at; what touches one number a page is given beside it.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import redis

from hotplate.embedded import EmbeddedServer
from hotplate.tiers.blobs import BlobTier
from pipelines.bench.children import said, started
from pipelines.bench.line import Line
from pipelines.bench.measure import Spread, compare, percentile, time_calls

__all__ = ["blobs"]

_COUNT = 14_000_000 // 4
_A_PAGE = 4_096 // 4
_PROCESSES, _FEW = 100, 5
_READS, _PAGE_READS, _SOCKET_READS = 15, 300, 5


def blobs(rounds: int, *, is_short: bool = False) -> list[Line]:
    """Payloads of 14 MB: reads, first reads, the memory of many processes, Redis.

    Args:
        rounds: of each comparison.
        is_short: few processes.
    """
    with TemporaryDirectory(prefix="hotplate-blobs-") as folder:
        tier = BlobTier(Path(folder, "blobs"))
        plain = Path(folder, "plain")
        array = np.random.default_rng(0).random(_COUNT, dtype=np.float32)
        array.tofile(plain)
        assert tier.put("array", array, ttl="1h"), tier.stats()
        mapped = np.memmap(plain, np.float32, "r")
        assert np.array_equal(tier.get("array"), mapped)
        lines = [_warm(tier, mapped, rounds)]
        lines += [_redis(tier, array, rounds)]
        del mapped
        tier.close()
        lines += _in_processes(Path(folder), plain, _FEW if is_short else _PROCESSES, rounds)
        return lines


def _warm(tier: BlobTier, mapped: Any, rounds: int) -> Line:
    """Asking and reading, against reading a map that is open already."""
    whole = compare(lambda: tier.get("array").sum(), lambda: mapped.sum(), (_READS, _READS), rounds)
    pages = compare(
        lambda: tier.get("array")[::_A_PAGE].sum(),
        lambda: mapped[::_A_PAGE].sum(),
        (_PAGE_READS, _PAGE_READS),
        rounds,
    )
    asked = percentile(time_calls(lambda: tier.get("array"), 2_000), 0.5)
    return Line(
        "blobs: get and sum 14 MB, warm, p50",
        f"{whole.p50.median:.2f} of a bare memory map",
        f"{whole.p50.low:.2f} to {whole.p50.high:.2f}",
        "<= 1.2",
        whole.p50.median <= 1.2,
        f"{whole.first_us / 1e3:,.2f} ms against {whole.second_us / 1e3:,.2f} ms; get alone "
        f"{asked * 1e6:,.1f} us; one number a page {pages.first_us:,.0f} us against "
        f"{pages.second_us:,.0f} us",
    )


def _redis(tier: BlobTier, array: Any, rounds: int) -> Line:
    """The same bytes through a socket."""
    with EmbeddedServer.start() as server:
        client = redis.Redis(port=server.port)
        client.set("array", array.tobytes())

        def through_a_socket() -> object:
            raw: Any = client.get("array")
            return np.frombuffer(raw, np.float32).sum()

        pair = compare(
            through_a_socket,
            lambda: tier.get("array").sum(),
            (_SOCKET_READS, _SOCKET_READS),
            rounds,
        )
        client.close()
    return Line(
        "blobs: GET of the same from Redis, and sum, p50",
        f"{pair.p50.median:.1f} x slower",
        f"{pair.p50.low:.1f} to {pair.p50.high:.1f}",
        "",
        None,
        f"{pair.first_us / 1e3:,.1f} ms against {pair.second_us / 1e3:,.2f} ms",
    )


# Forks processes that have imported no more than they need. First reads: each in a new process,
# in turn. Memory: all at once; of the mapped file each is charged its share (Pss) by the kernel.
_PROGRAM = """
import json, os, sys, time
from pathlib import Path
import numpy as np
from hotplate.tiers.blobs import BlobTier
folder, plain, processes, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def ours():
    return BlobTier(folder + "/blobs").get("array")

def bare():
    return np.memmap(plain, np.float32, "r")

def first_read(get):
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        began = time.perf_counter()
        get().sum()
        os.write(into, b"%f" % (time.perf_counter() - began))
        os._exit(0)
    os.close(into)
    taken = float(os.read(out, 100))
    os.close(out)
    os.waitpid(pid, 0)
    return taken

def memory(pid):
    found = {"Rss": 0, "Pss": 0}
    is_ours = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        word = line.split()
        if "-" in word[0]:
            is_ours = line.endswith(".blob")
        elif is_ours and word[0][:-1] in found:
            found[word[0][:-1]] += int(word[1]) * 1024
    return found

def at_once():
    out, into = os.pipe()
    wait, end = os.pipe()
    pids = []
    for _ in range(processes):
        pid = os.fork()
        if not pid:
            os.close(end)
            got = ours()
            got.sum()
            os.write(into, b".")
            os.read(wait, 1)
            os._exit(0)
        pids.append(pid)
    ready = 0
    while ready < processes:
        ready += len(os.read(out, processes))
    found = [memory(pid) for pid in pids]
    os.close(end)
    for pid in pids:
        os.waitpid(pid, 0)
    return found

print("ready", flush=True)
firsts = [(first_read(bare), first_read(ours)) for _ in range(rounds)]
size = os.path.getsize(plain)
copies = []
for _ in range(min(rounds, 3)):
    found = at_once() if os.path.exists("/proc/self/smaps") else []
    copies.append([sum(one[kind] for one in found) / size for kind in ("Pss", "Rss")])
print(json.dumps({"firsts": firsts, "copies": copies}), flush=True)
sys.stdin.readline()
"""


def _in_processes(folder: Path, plain: Path, processes: int, rounds: int) -> list[Line]:
    """The first read of a process, and what so many of them hold in memory."""
    arguments = (str(folder), str(plain), str(processes), str(rounds))
    with started(_PROGRAM, *arguments) as process:
        found = said(process)
        process.communicate("done\n")
    bare, ours = (median(column) for column in zip(*found["firsts"], strict=True))
    first = Spread.of([b / a for a, b in found["firsts"]])
    copies = Spread.of([shares for shares, _ in found["copies"]])
    mapped = median(whole for _, whole in found["copies"])
    return [
        Line(
            "blobs: first get of a process, verified, and sum, p50",
            f"{first.median:.2f} of a bare memory map",
            f"{first.low:.2f} to {first.high:.2f}",
            "",
            None,
            f"{ours * 1e3:,.1f} ms against {bare * 1e3:,.1f} ms, in the page cache",
        ),
        Line(
            f"blobs: copies in memory, {processes} processes that read 14 MB",
            f"{copies.median:.2f}",
            f"{copies.low:.2f} to {copies.high:.2f}",
            "<= 1.1",
            copies.median <= 1.1,
            f"sum of their shares (Pss) of the file; {mapped:.0f} copies are mapped",
        ),
    ]
