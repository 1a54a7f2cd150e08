"""The blob tier: what comes back is what was put, without a copy, in time, or not at all."""

from __future__ import annotations

import array
import gc
import json
import logging
import mmap
import os
import shutil
import stat
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hotplate import BlobTier
from hotplate.clock import FakeClock
from hotplate.errors import ConfigError, HotplateError, PayloadError
from hotplate.tiers import blob_format, blob_maps

ROOT = Path(__file__).resolve().parents[1]
LINUX_ONLY = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
HEAD = len(
    blob_format.Head(
        blob_format.Kind.ARRAY, "<f8", (1000,), b"k", blob_format.Times(0, 0, 0, 0, bytes(16)), 8000
    ).pack(0)
)


class SetClock(FakeClock):
    """A fake clock whose wall clock somebody sets."""

    def set_wall(self, seconds: float) -> None:
        """Move the wall clock alone, forth or back."""
        self._wall_ns += round(seconds * 1e9)


@pytest.fixture
def clock() -> SetClock:
    """A clock that moves when told to."""
    return SetClock()


@pytest.fixture
def tier(tmp_path: Path, clock: SetClock) -> Iterator[BlobTier]:
    """A tier of its own on a fake clock."""
    made = BlobTier(tmp_path / "blobs", max_bytes="100MB", clock=clock)
    yield made
    made.close()


def numbers(value: float = 1.0, count: int = 1000) -> Any:
    return np.full(count, value)


def files(tier: BlobTier, pattern: str = "*.blob") -> list[Path]:
    return sorted(Path(tier._folder.path).glob(pattern))


def file_of(tier: BlobTier, key: str) -> Path:
    return Path(tier._folder.path_of(key.encode()))


def ran(program: str, *arguments: object, timeout_s: float = 60.0) -> Any:
    """What a program of its own process says, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "PYTHONPATH": str(ROOT / "plugins")},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# -- what comes back ------------------------------------------------------------------------------

DTYPES = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(),
    hnp.unicode_string_dtypes(),
    hnp.datetime64_dtypes(),
    st.sampled_from([np.dtype(text) for text in ("M8[25s]", "m8[3D]", "M8", ">f8", "longdouble")]),
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@settings(max_examples=100, deadline=None)
@given(hnp.arrays(DTYPES, SHAPES), st.sampled_from(["as is", "fortran", "reversed", "transposed"]))
def test_an_array_comes_back_as_it_was(value: Any, order: str) -> None:
    """Every dtype, shape and order: same dtype, shape and elements, NaNs and times included."""
    if order == "fortran":
        value = np.asfortranarray(value) if value.ndim else value
    elif order == "reversed" and value.ndim:
        value = value[::-1]
    elif order == "transposed":
        value = value.T
    with TemporaryDirectory() as folder:
        tier = BlobTier(folder)
        assert tier.put("k", value), tier.stats()
        for _ in range(2):
            got = tier.get("k")
            assert got.dtype == value.dtype
            assert got.shape == value.shape
            assert got.tobytes() == value.tobytes()
            assert not got.flags.writeable
        del got
        tier.close()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"x" * 5_000,
        bytearray(b"abc"),
        memoryview(b"abcdef")[::2],
        array.array("d", [1.0, 2.0]),
        pa.py_buffer(b"arrow"),
    ],
    ids=["empty", "bytes", "bytearray", "strided", "array", "arrow buffer"],
)
def test_bytes_come_back_as_they_were(tier: BlobTier, value: Any) -> None:
    """Anything bytes-like comes back as a read-only view of bytes."""
    assert tier.put("k", value)
    got = tier.get("k")
    assert isinstance(got, memoryview)
    assert got.readonly
    assert bytes(got) == memoryview(value).tobytes()
    got.release()  # the caller's own
    assert bytes(tier.get("k")) == memoryview(value).tobytes()


COLUMN = st.one_of(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)).map(lambda v: pa.array(v, pa.int64())),
    st.lists(st.none() | st.text(max_size=5)).map(lambda v: pa.array(v, pa.string())),
    st.lists(st.none() | st.text(max_size=2)).map(
        lambda v: pa.array(v, pa.string()).dictionary_encode()
    ),
    st.lists(st.none() | st.lists(st.floats(width=32, allow_nan=False), max_size=3)).map(
        lambda v: pa.array(v, pa.list_(pa.float32()))
    ),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(COLUMN, min_size=1, max_size=4), st.integers(0, 3))
def test_a_table_comes_back_as_it_was(chunks: list[Any], start: int) -> None:
    """Nulls, nested columns, several chunks, dictionaries that differ between them, slices."""
    kind = chunks[0].type
    column = pa.chunked_array([chunk for chunk in chunks if chunk.type == kind], kind)
    table = pa.table({"a": column}, metadata={"of": "test"}).slice(start)
    with TemporaryDirectory() as folder:
        tier = BlobTier(folder)
        assert tier.put("k", table), tier.stats()
        got = tier.get("k")
        got.validate(full=True)
        # not `equals`: chunks whose dictionaries differ come back with one for all of them
        assert got.schema.equals(table.schema, check_metadata=True)
        assert got.to_pydict() == table.to_pydict()


def test_a_record_batch_comes_back_as_a_table(tier: BlobTier) -> None:
    """One batch is a table of one chunk."""
    batch = pa.record_batch({"a": [1, 2, 3]})
    assert tier.put("k", batch)
    assert tier.get("k").equals(pa.Table.from_batches([batch]))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.array([{}], dtype=object), "dtype object"),
        (np.zeros(2, dtype=[("a", "i4")]), "pyarrow Table"),
        (np.zeros(2, dtype="V3"), "view it as numbers"),
        (np.ma.masked_array([1, 2], [True, False]), "lose its mask"),
        (memoryview(np.array([{}], dtype=object)), "no bytes"),
        ({"a": 1}, "dict cannot be kept. Pass a numpy array"),
        ("text", "str cannot be kept"),
    ],
    ids=["objects", "structured", "void", "masked", "view of objects", "dict", "text"],
)
def test_what_has_no_bytes_of_its_own_is_refused(tier: BlobTier, value: Any, said: str) -> None:
    """Pointers are no payload: the error says what was given and what to do."""
    with pytest.raises(PayloadError, match=said):
        tier.put("k", value)
    with pytest.raises(TypeError):
        tier.put("k", value)
    assert tier.get("k") is None


def test_settings_that_cannot_be_are_refused(tmp_path: Path, tier: BlobTier) -> None:
    """The errors name the setting and what to write."""
    with pytest.raises(ConfigError, match=r"max_bytes.*512MB"):
        BlobTier(tmp_path, max_bytes="lots")
    with pytest.raises(ConfigError, match="verify='maybe'; write 'once'"):
        BlobTier(tmp_path, verify="maybe")  # type: ignore[arg-type]
    with pytest.raises(HotplateError, match=r"ttl.*unit"):
        tier.put("k", b"x", ttl="30")


def test_keys_are_bytes_and_texts_stand_for_theirs(tier: BlobTier) -> None:
    """Keys of any length and content, each for itself."""
    for key in ("", "a", "ä\ud800", b"\0\xff", "a/../b", "k" * 100_000):
        assert tier.get(key) is None
        assert tier.put(key, str(key).encode("utf-8", "replace"))
    assert bytes(tier.get(b"a")) == b"a"
    assert bytes(tier.get("k" * 100_000)) == b"k" * 100_000
    assert len(tier) == 6


# -- without a copy -------------------------------------------------------------------------------


def test_an_array_lies_in_the_map(tier: BlobTier) -> None:
    """It owns nothing, its base is the map, and no one can write through it."""
    tier.put("k", numbers())
    got = tier.get("k")
    assert isinstance(got.base, mmap.mmap)
    assert not got.flags.owndata
    assert not got.flags.writeable
    assert got.ctypes.data % 64 == 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        got.setflags(write=True)
    got.shape = (10, 100)  # the caller's own
    assert tier.get("k").shape == (1000,)
    assert tier.get("k").base is got.base


def mapped(path: Path) -> list[range]:
    """Where a file is mapped in this process."""
    spans = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(path) in line:
            start, _, end = line.split()[0].partition("-")
            spans.append(range(int(start, 16), int(end, 16)))
    return spans


@LINUX_ONLY
def test_a_table_lies_in_the_map(tier: BlobTier) -> None:
    """The addresses of all buffers are those of the mapped file, and Arrow allocates nothing."""
    table = pa.table({"a": np.arange(200_000), "b": [str(n) for n in range(200_000)]})
    tier.put("k", table)
    before = pa.total_allocated_bytes()
    got = tier.get("k")
    assert pa.total_allocated_bytes() == before
    spans = mapped(file_of(tier, "k"))
    for column in got.columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                if buffer is not None:
                    assert any(buffer.address in span for span in spans)


@LINUX_ONLY
def test_a_map_lives_as_long_as_its_values(tier: BlobTier) -> None:
    """Not shorter, whatever becomes of tier and folder; not longer either."""
    tier.put("k", numbers(7.0))
    path = file_of(tier, "k")
    held = tier.get("k")
    tier.close()
    shutil.rmtree(path.parent)
    assert (held == 7.0).all()
    assert mapped(path)
    del held
    gc.collect()
    assert not mapped(path)


# -- in time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", ["60s", timedelta(minutes=1)], ids=["text", "timedelta"])
def test_a_payload_is_served_until_its_ttl_ends(
    tier: BlobTier, clock: SetClock, ttl: str | timedelta
) -> None:
    """Not a moment longer, mapped or not; its file goes with it."""
    tier.put("k", numbers(), ttl=ttl)
    clock.advance(59.9)
    assert tier.get("k") is not None
    clock.advance(0.1)
    assert tier.get("k") is None
    assert not files(tier)
    stats = tier.stats()
    assert (stats.hits, stats.misses, stats.expired) == (1, 1, 1)


def test_a_deadline_ends_it_sooner_than_the_ttl(tier: BlobTier, clock: SetClock) -> None:
    """What it was computed from may end first; one that has passed keeps nothing."""
    tier.put("k", numbers(), ttl="60s", deadline_ns=clock.now_ns() + 10_000_000_000)
    clock.advance(9.9)
    assert tier.get("k") is not None
    clock.advance(0.1)
    assert tier.get("k") is None
    assert not tier.put("k", numbers(), deadline_ns=clock.now_ns())
    assert not tier.put("k", numbers(), deadline_ns=-(1 << 70))
    assert not tier.put("k", numbers(), ttl="0s")


def test_without_a_ttl_it_is_served_for_ever(tier: BlobTier, clock: SetClock) -> None:
    """A hundred years."""
    tier.put("k", numbers())
    tier.put("l", numbers(), ttl="none", deadline_ns=1 << 80)
    clock.advance(100 * 365 * 86_400)
    assert tier.get("k") is not None
    assert tier.get("l") is not None


def test_a_wall_clock_set_back_does_not_make_it_young(tier: BlobTier, clock: SetClock) -> None:
    """The clock that no one can set counts as well."""
    tier.put("k", numbers(), ttl="60s")
    clock.advance(50)
    clock.set_wall(-20)
    assert tier.get("k") is not None  # 50 s old
    clock.advance(15)  # 65 s old; 45 s by the wall clock
    assert tier.get("k") is None
    assert tier.stats().expired == 1


def test_a_wall_clock_set_forth_only_shortens(tier: BlobTier, clock: SetClock) -> None:
    """What either clock calls too old is not served."""
    tier.put("k", numbers(), ttl="60s")
    clock.set_wall(60)
    assert tier.get("k") is None


def test_what_was_created_in_the_future_is_a_miss(tier: BlobTier, clock: SetClock) -> None:
    """Until the clock is right again: nobody knows how old it is."""
    tier.put("k", numbers())
    clock.set_wall(-1)
    assert tier.get("k") is None
    assert tier.stats().expired == 1
    clock.set_wall(1)
    assert tier.get("k") is not None


def test_after_a_restart_of_the_machine_the_wall_clock_counts(
    tmp_path: Path, tier: BlobTier, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other clock begins anew and says nothing about files of before."""
    tier.put("k", numbers(), ttl="60s")
    later = SetClock(now_s=1.0, wall_s=clock.wall_ns() / 1e9 + 30)
    monkeypatch.setattr(blob_format, "_boot", lambda: b"b" * 16)
    again = BlobTier(tmp_path / "blobs", clock=later)
    assert again.get("k") is not None
    later.advance(30)
    assert again.get("k") is None


# -- or not at all --------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x10
    path.write_bytes(raw)


@pytest.mark.parametrize("is_mapped", [False, True], ids=["new", "mapped"])
@pytest.mark.parametrize(
    "damage",
    [
        *(lambda path, left=left: os.truncate(path, left) for left in (0, 1, 8, 60, HEAD - 1)),
        *(lambda path, left=left: os.truncate(path, left) for left in (HEAD, HEAD + 7999)),
        lambda path: path.write_bytes(path.read_bytes() + b"\0"),
        lambda path: path.write_bytes(os.urandom(9000)),
        lambda path: path.write_bytes(b"HPblob\r\n" + os.urandom(9000)),
        *(lambda path, at=at: flip(path, at) for at in (0, 8, 14, 15, 16, 20, 30, 60, 100)),
        *(lambda path, at=at: flip(path, at) for at in (HEAD - 1, HEAD, HEAD + 4000, HEAD + 7999)),
    ],
)
def test_a_damaged_file_is_a_miss(
    tier: BlobTier, damage: Callable[[Path], Any], is_mapped: bool
) -> None:
    """Cut short, too long, garbage, one bit: never a value, never an exception, counted."""
    tier.put("k", numbers())
    if is_mapped:
        assert tier.get("k") is not None
    damage(file_of(tier, "k"))
    assert tier.get("k") is None
    stats = tier.stats()
    assert (stats.rejected, stats.misses, stats.errors) == (1, 1, 0)
    assert stats.last_error
    assert tier.put("k", numbers(2.0))
    assert tier.get("k")[0] == 2.0


def test_a_file_of_another_release_is_a_miss_and_stays(tier: BlobTier) -> None:
    """Two releases may run side by side during a rollout."""
    tier.put("k", numbers())
    path = file_of(tier, "k")
    raw = bytearray(path.read_bytes())
    raw[12:14] = struct.pack("<H", 2)
    raw[8:12] = struct.pack("<I", zlib.crc32(raw[12:HEAD]))
    path.write_bytes(raw)
    assert tier.get("k") is None
    assert tier.stats().rejected == 1
    assert "format 2" in tier.stats().last_error
    assert path.exists()


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("|O8", (1000,)), ("<f8", (999,)), ("<f8,<f8", (500,)), ("(2,)f4", (1000,))],
)
def test_a_head_is_believed_only_within_its_grammar(
    tier: BlobTier, dtype: str, shape: tuple[int, ...]
) -> None:
    """Checksums do not make pointers, other lengths or expressions of a head true."""
    tier.put("k", numbers())
    path = file_of(tier, "k")
    with path.open("rb") as file:
        head = blob_format.Head.read(file.fileno(), path.stat().st_size)
    raw = replace(head, dtype=dtype, shape=shape).pack(head.payload_crc)
    path.write_bytes(raw + path.read_bytes()[head.data_at :])
    assert tier.get("k") is None
    assert tier.stats().rejected == 1


def test_the_file_of_another_key_is_a_miss(tier: BlobTier) -> None:
    """A file says whose it is."""
    tier.put("a", numbers(1.0))
    tier.put("b", numbers(2.0))
    shutil.copy(file_of(tier, "a"), file_of(tier, "b"))
    assert tier.get("b") is None
    assert tier.stats().rejected == 1
    assert tier.get("a")[0] == 1.0


def test_what_is_no_file_is_a_miss(tier: BlobTier, tmp_path: Path) -> None:
    """A folder, a pipe that would be waited for, a link out of the folder."""
    file_of(tier, "folder").mkdir()
    os.mkfifo(file_of(tier, "pipe"))
    tier.put("link", numbers())
    file_of(tier, "link").rename(tmp_path / "elsewhere")
    file_of(tier, "link").symlink_to(tmp_path / "elsewhere")
    for key in ("folder", "pipe", "link"):
        assert tier.get(key) is None
    assert tier.stats().misses == 3
    assert tier.stats().entries == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_the_file_of_another_user_is_a_miss(tier: BlobTier) -> None:
    """Whoever can write somewhere in a shared folder cannot say what is served."""
    tier.put("k", numbers())
    os.chown(file_of(tier, "k"), 12_345, -1)
    assert tier.get("k") is None
    assert "12345" in tier.stats().last_error


def test_a_removed_folder_is_made_again(tier: BlobTier) -> None:
    """A miss, then a put as ever."""
    tier.put("k", numbers())
    shutil.rmtree(tier._folder.path)
    assert tier.get("k") is None
    assert len(tier) == 0
    assert tier.put("k", numbers())
    assert tier.get("k") is not None
    assert tier.stats().errors == 0
    assert stat.S_IMODE(os.stat(tier._folder.path).st_mode) == 0o700


def test_a_folder_that_is_a_file_is_never_in_the_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is kept, nothing raised; it is counted each time and said once."""
    (tmp_path / "blobs").write_text("not a folder")
    with caplog.at_level(logging.WARNING, "hotplate.blobs"):
        tier = BlobTier(tmp_path / "blobs")
        for _ in range(3):
            assert not tier.put("k", numbers())
            assert tier.get("k") is None
            assert not tier.forget("k")
        assert tier.clear() == len(tier) == 0
    stats = tier.stats()
    assert stats.errors >= 7
    assert "NotADirectoryError" in stats.last_error
    assert len(caplog.records) == 1
    assert "said once a minute" in caplog.text


_LIMITED = """
import json, os, resource, sys
import numpy as np
from hotplate.tiers.blobs import BlobTier
tier = BlobTier(sys.argv[1])
said = [tier.put("k", np.ones(10_000)), tier.get("k") is not None]
resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))
said += [tier.put("k", np.ones(500_000)), tier.get("k") is None, os.listdir(sys.argv[1])]
said += [tier.stats().errors, tier.put("k", np.ones(10_000)), tier.get("k") is not None]
print(json.dumps(said))
"""


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """As on a full disk: the second piece is refused; half a file is not left, nor the old one."""
    assert ran(_LIMITED, tmp_path) == [True, True, False, True, [], 1, True, True]


_UNWRITABLE = """
import json, os, sys
import numpy as np
from hotplate.tiers.blobs import BlobTier
os.setgroups([]); os.setgid(65534); os.setuid(65534)
tier = BlobTier(sys.argv[1])
said = [tier.put(key, np.ones(1000)) for key in "abcd"]
tier.get("a")
os.chmod(sys.argv[1], 0o500)
said += [tier.get("a") is not None, tier.put("a", np.ones(1000)), tier.get("a") is None]
said += [tier.forget("b"), tier.get("b") is None, tier.get("c") is not None, tier.stats().errors]
said += [tier.clear(), tier.get("c") is None]
os.chmod(sys.argv[1], 0o700)
said += [tier.get("d") is None, tier.put("c", np.ones(1000)), tier.get("c") is not None]
print(json.dumps(said))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes a user who may not write")
def test_what_cannot_be_removed_is_not_served_by_who_forgot_it() -> None:
    """In a folder that may only be read, reads go on, puts are not kept, what is forgotten is."""
    with TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        blobs = Path(folder, "blobs")
        blobs.mkdir()
        os.chown(blobs, 65534, 65534)
        expected = [*[True] * 4, True, False, True, False, True, True, 3]
        expected += [0, True, True, True, True]
        assert ran(_UNWRITABLE, blobs) == expected


def test_files_are_for_one_user_and_do_not_name_keys(
    tier: BlobTier, caplog: pytest.LogCaptureFixture
) -> None:
    """Entity ids stay out of listings, logs and statistics."""
    tier.put("card-4111", numbers())
    assert stat.S_IMODE(file_of(tier, "card-4111").stat().st_mode) == 0o600
    assert stat.S_IMODE(file_of(tier, "card-4111").parent.stat().st_mode) == 0o700
    with caplog.at_level(logging.DEBUG):
        flip(file_of(tier, "card-4111"), HEAD + 100)
        assert tier.get("card-4111") is None
    said = f"{caplog.text} {tier.stats()} {tier!r} {files(tier, '*')}"
    assert "damaged" in said
    assert "4111" not in said


# -- verifying ------------------------------------------------------------------------------------


def count_sums(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every sum over a payload."""
    sums: list[int] = []

    def counted(fd: int, head: blob_format.Head) -> int:
        sums.append(head.size)
        return blob_format.crc_of(fd, head)

    monkeypatch.setattr(blob_maps, "crc_of", counted)
    return sums


def test_a_payload_is_summed_once_a_version(
    tier: BlobTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its map was let go meanwhile; a new version is summed again."""
    monkeypatch.setattr(blob_maps, "_OPEN_MAX", 1)
    sums = count_sums(monkeypatch)
    tier.put("k", numbers())
    tier.put("l", numbers())
    for _ in range(5):
        assert tier.get("k") is not None
        assert tier.get("l") is not None
    assert len(sums) == 2
    tier.put("k", numbers(2.0))
    assert tier.get("k") is not None
    assert len(sums) == 3


def test_verify_always_and_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: BlobTier
) -> None:
    """At every get; or not at all, but for files from before the machine was started anew."""
    sums = count_sums(monkeypatch)
    tier.put("k", numbers())
    always = BlobTier(tmp_path / "blobs", clock=tier._clock, verify="always")
    for _ in range(3):
        assert always.get("k") is not None
    assert len(sums) == 3
    never = BlobTier(tmp_path / "blobs", clock=tier._clock, verify="never")
    assert never.get("k") is not None
    assert len(sums) == 3
    monkeypatch.setattr(blob_format, "_boot", lambda: b"b" * 16)
    never = BlobTier(tmp_path / "blobs", clock=tier._clock, verify="never")
    assert never.get("k") is not None
    assert len(sums) == 4


# -- shared ---------------------------------------------------------------------------------------


def test_a_replaced_file_is_noticed_at_once(tmp_path: Path, tier: BlobTier) -> None:
    """Who holds the old version keeps it; who asks gets the new one, or none if it was removed."""
    other = BlobTier(tmp_path / "blobs", clock=tier._clock)
    tier.put("k", numbers(1.0))
    old = tier.get("k")
    other.put("k", numbers(2.0))
    assert tier.get("k")[0] == 2.0
    assert (old == 1.0).all()
    assert other.forget("k")
    assert not other.forget("k")
    assert tier.get("k") is None
    assert (old == 1.0).all()
    tier.put("k", numbers(3.0))
    tier.put("l", numbers(4.0))
    assert (tier.get("k")[0], other.clear()) == (3.0, 2)
    assert tier.get("k") is None
    assert tier.stats().entries == 0


def test_a_payload_other_than_the_one_that_is_meant_is_a_miss(tier: BlobTier) -> None:
    """Whoever knows its checksum is given that payload or none; the file stays for the others."""
    tier.put("k", numbers(1.0))
    crc = zlib.crc32(numbers(1.0))
    assert tier.peek("k", crc=crc) is not None
    assert (tier.get("k", crc=crc) == 1.0).all()
    tier.put("k", numbers(2.0))
    assert tier.peek("k", crc=crc) is None
    assert tier.get("k", crc=crc) is None
    assert (tier.get("k") == 2.0).all()
    stats = tier.stats()
    assert (stats.hits, stats.misses, stats.rejected) == (2, 1, 2)
    assert tier.peek("other") is None


def test_a_put_that_is_not_kept_ends_what_was_there(tmp_path: Path, clock: SetClock) -> None:
    """The old value is outdated by then."""
    tier = BlobTier(tmp_path, max_bytes=20_000, clock=clock)
    assert tier.put("k", numbers())
    assert not tier.put("k", numbers(2.0, 10_000))
    assert tier.get("k") is None
    assert tier.stats().too_large == 1
    assert tier.put("k", numbers())
    assert not tier.put("k", numbers(2.0), ttl="0s")
    assert tier.get("k") is None


@LINUX_ONLY
def test_maps_are_few_and_hold_on_to_no_removed_file(
    tmp_path: Path, tier: BlobTier, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not more than the bound; what others removed is let go of within seconds."""
    monkeypatch.setattr(blob_maps, "_OPEN_MAX", 3)
    for number in range(10):
        tier.put(f"{number}", numbers(number))
        assert tier.get(f"{number}")[0] == number
    assert len(mapped(tmp_path / "blobs")) == 3
    other = BlobTier(tmp_path / "blobs", clock=clock)
    for number in range(9):
        other.forget(f"{number}")
    clock.advance(5)
    assert tier.get("9")[0] == 9
    assert mapped(tmp_path / "blobs") == mapped(file_of(tier, "9"))


def test_a_closed_tier_keeps_and_gives_nothing(tier: BlobTier) -> None:
    """A miss, as ever."""
    tier.put("k", numbers())
    tier.close()
    assert tier.get("k") is None
    assert not tier.put("k", numbers())
    assert "closed" in repr(tier)


def test_counts(tmp_path: Path, clock: SetClock) -> None:
    """What the table of statistics says, and `repr`."""
    tier = BlobTier(tmp_path, clock=clock)
    tier.put("a", numbers())
    tier.put("b", numbers(), ttl="1s")
    tier.get("a"), tier.get("a"), tier.get("c")
    clock.advance(1)
    tier.get("b")
    stats = tier.stats()
    assert (stats.entries, stats.writes, stats.hits, stats.misses) == (1, 2, 2, 2)
    assert stats.expired == 1
    assert stats.bytes == HEAD + 8000 == sum(path.stat().st_size for path in files(tier))
    assert (stats.rejected, stats.errors, stats.evicted, stats.too_large) == (0, 0, 0, 0)
    assert "entries=1, bytes=8.1KB of 10.0GB" in repr(tier)


# -- room -----------------------------------------------------------------------------------------


def test_the_least_recently_used_goes_first(tmp_path: Path, clock: SetClock) -> None:
    """Used is: put, or read by any process. The bound holds after every put."""
    tier = BlobTier(tmp_path, max_bytes=4 * (HEAD + 8000), clock=clock)
    other = BlobTier(tmp_path, clock=clock)
    for key in "abcd":
        tier.put(key, numbers())
        clock.advance(10)
    assert other.get("a") is not None
    assert tier.stats().evicted == 0
    clock.advance(10)
    tier.put("e", numbers())
    assert [tier.get(key) is not None for key in "abcde"] == [True, False, True, True, True]
    clock.advance(10)
    tier.put("a", numbers(count=2500))  # larger than what it replaces
    assert sum(path.stat().st_size for path in files(tier)) <= 4 * (HEAD + 8000)
    assert tier.get("a") is not None
    assert tier.stats().evicted == 3


def test_the_bound_holds_beside_another_process_that_puts(tmp_path: Path, clock: SetClock) -> None:
    """What was counted before is only a hint: after each put all is counted again."""
    bound = 4 * (HEAD + 8000)
    tiers = [BlobTier(tmp_path, max_bytes=bound, clock=clock) for _ in range(3)]
    for number in range(30):
        clock.advance(1)
        assert tiers[number % 3].put(f"{number}", numbers())
        assert tiers[0].stats().bytes <= bound
    assert tiers[0].stats().entries == 4


def test_the_last_use_is_noted_seldom(tier: BlobTier, clock: SetClock) -> None:
    """Every five seconds, whoever reads; and the version stays the same one."""
    tier.put("k", numbers())
    path = file_of(tier, "k")
    before = path.stat()
    clock.advance(4.9)
    tier.get("k")
    assert path.stat().st_atime_ns == before.st_atime_ns
    clock.advance(0.1)
    tier.get("k")
    assert path.stat().st_atime_ns == clock.wall_ns()
    assert path.stat().st_mtime_ns == before.st_mtime_ns


_CROWD = """
import json, os, random, sys, time
import numpy as np
from hotplate.tiers.blobs import BlobTier
folder, bound, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tier = BlobTier(folder, max_bytes=bound)
children = []
for number in range(processes):
    pid = os.fork()
    if not pid:
        for turn in range(40):
            if not tier.put(f"{random.random()}", np.ones(12_500)):
                os._exit(1)
        os._exit(0 if tier.stats().errors == 0 else 2)
    children.append(pid)
most, codes = 0, []
while len(codes) < len(children):
    most = max(most, tier.stats().bytes)
    pid, status = os.waitpid(-1, os.WNOHANG)
    if pid:
        codes.append(status)
print(json.dumps([most, tier.stats().bytes, codes]))
"""


def test_processes_that_put_at_once_stay_within_the_bound(tmp_path: Path) -> None:
    """One payload a process beyond it at most, while they do; nothing beyond it afterwards."""
    payload, bound = 100_256, 1_000_000
    most, after, codes = ran(_CROWD, tmp_path, bound, 4)
    assert codes == [0] * 4
    assert after <= bound
    assert most <= bound + 4 * payload


# -- crashes --------------------------------------------------------------------------------------

_CHAOS = """
import json, os, random, signal, sys, time
import numpy as np
from hotplate.tiers.blobs import BlobTier
tier = BlobTier(sys.argv[1])
tier.put("k", np.zeros(500_000))

def write():
    while True:
        tier.put("k", np.full(500_000, random.random()))

def read():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(min(wrong, 99) or (seen < 2) * 100))
    wrong = seen = 0
    last = None
    while True:
        got = tier.get("k")
        if got is None or (got != got[0]).any() or tier._counts["rejected"]:
            wrong += 1
        elif got[0] != last:
            seen, last = seen + 1, got[0]

def forked(work):
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(77)
    return pid

readers = [forked(read) for _ in range(2)]
versions, killed = set(), 0
# on a busy machine it takes longer until writers came to an end, and others did not
while killed < 40 or len(versions) < 10 or not any(name.endswith(".tmp") for name in os.listdir(
    sys.argv[1]
)):
    writers = [forked(write) for _ in range(2)]
    time.sleep(random.uniform(0.005, 0.05))
    for pid in writers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        killed += 1
    versions.add(float(tier.get("k")[0]))
for pid in readers:
    os.kill(pid, signal.SIGTERM)
print(json.dumps([os.waitpid(pid, 0)[1] for pid in readers]))
"""


def age(path: Path, seconds: float) -> None:
    moment = time.time() - seconds
    os.utime(path, (moment, moment))


def test_no_reader_sees_a_torn_payload_when_writers_are_killed(
    tmp_path: Path, tier: BlobTier
) -> None:
    """One version or another, whole, at every read; what the killed leave behind is swept."""
    assert ran(_CHAOS, tier._folder.path) == [0, 0]
    left_behind = files(tier, ".*.tmp")
    assert left_behind  # of writers killed in the midst of their work
    tier.put("young", numbers())
    assert files(tier, ".*.tmp") == left_behind
    for path in left_behind:
        age(path, 61)
    tier.put("old", numbers())
    assert not files(tier, ".*.tmp")


_SLOW = """
import os, sys
import numpy as np
from hotplate.tiers.blobs import BlobTier
tier, write = BlobTier(sys.argv[1]), os.write
def slow(fd, data):
    os.write = write
    print("ready", flush=True)
    sys.stdin.readline()
    return write(fd, data)
os.write = slow
sys.exit(0 if tier.put("slow", np.ones(10_000)) else 1)
"""


def test_the_temporary_file_of_a_living_writer_is_left_alone(tier: BlobTier) -> None:
    """However long it takes: old is not abandoned."""
    writer = subprocess.Popen(
        [sys.executable, "-c", _SLOW, tier._folder.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "plugins")},
    )
    try:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == b"ready\n"
        (temporary,) = files(tier, ".*.tmp")
        age(temporary, 3600)
        tier.put("k", numbers())
        assert temporary.exists()
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
        assert writer.wait(30) == 0
        assert not files(tier, ".*.tmp")
        real = BlobTier(tier._folder.path)
        assert (real.get("slow") == 1).all()
    finally:
        writer.kill()
        writer.wait()
        for pipe in (writer.stdin, writer.stdout):
            if pipe is not None:
                pipe.close()


# -- threads and forks ----------------------------------------------------------------------------


def test_threads_share_a_tier(tier: BlobTier) -> None:
    """Putting, getting and forgetting at once: whole payloads of the right key, exact counts."""
    wrong: list[Any] = []

    def work(number: int) -> None:
        for turn in range(60):
            key = f"{(number + turn) % 5}"
            tier.put(key, numbers(float(key), 2_000))
            got = tier.get(key)
            if got is not None and not (got == float(key)).all():
                wrong.append(key)
            if turn % 10 == number:
                tier.forget(key)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = tier.stats()
    assert not wrong
    assert (stats.errors, stats.rejected, stats.writes) == (0, 0, 240)
    assert stats.hits + stats.misses == 240


_FORK = """
import json, os, signal, sys, threading
import numpy as np
from hotplate.tiers.blobs import BlobTier
tier = BlobTier(sys.argv[1])
tier.put("k", np.ones(1_000))
held, write, entered, go = tier.get("k"), os.write, threading.Event(), threading.Event()

def blocked(fd, data):
    entered.set()
    go.wait()
    return write(fd, data)

os.write = blocked
thread = threading.Thread(target=tier.put, args=("slow", np.ones(1_000)))
thread.start()
entered.wait()
with tier._lock, tier._maps._lock:
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        os.write = write
        links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                 if os.path.islink(f"/proc/self/fd/{fd}")]
        is_right = tier.stats().writes == 0 and not any(link.endswith(".tmp") for link in links)
        is_right &= tier.put("c", np.full(1_000, 2.0)) and tier.get("c")[0] == 2.0
        is_right &= tier.get("k")[0] == 1.0 and held[0] == 1.0 and tier.stats().hits == 2
        os._exit(0 if is_right else 1)
status = os.waitpid(pid, 0)[1]
go.set()
thread.join()
print(json.dumps([status, float(tier.get("slow")[0]), float(tier.get("c")[0])]))
"""


@LINUX_ONLY
def test_a_forked_child_starts_clean(tmp_path: Path) -> None:
    """Forked while a thread holds every lock and writes: it waits for none, and holds no file."""
    assert ran(_FORK, tmp_path) == [0, 1.0, 2.0]
