"""Outputs of more than 1 MB a row: their bytes in the blob tier, what ends them where it was."""

from __future__ import annotations

import asyncio
import json
import logging
import mmap
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from feast.types import Int64

import hotplate
from hotplate import BlobTier
from hotplate.clock import SYSTEM_CLOCK, FakeClock
from hotplate.embedded import EmbeddedServer
from hotplate.errors import ConfigError
from hotplate.invalidation import local
from hotplate.outputs import InputSchema, OutputCache, OutputPolicy, Scored
from hotplate.outputs.scored import form_in
from hotplate.tiers.output_blobs import OutputBlobs, is_large

from ..stores import USER, Repo
from .test_shared_outputs import CHANGES, LARGE_CHANGES, POLICY, Fleet, Member

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 150_000  # float64: 1.2 MB a row
BYTES = 8 * WIDTH


def rows(ids: Any) -> Any:
    """What the model answers: first the sum of the ids, then numbers that go on from there."""
    return np.asarray(ids, np.float64).sum(1)[:, None] + np.arange(float(WIDTH))


def is_mapped(values: Any) -> bool:
    """Whether an array lies in the map of a file."""
    while isinstance(values, np.ndarray):
        if values.flags.owndata or values.flags.writeable:
            return False
        values = values.base
    return isinstance(values, mmap.mmap)


class LargeMember(Member):
    """One process, whose model answers 1.2 MB a row."""

    def model(self, ids: Any) -> Any:
        self.calls += len(ids)
        return rows(ids)

    def scored(self, *pairs: tuple[int, int], outputs: OutputCache | None = None) -> Scored:
        ids = np.array(pairs, np.float64)
        used = outputs or self.outputs
        scored = used.score(ids, self.model, features=self.read(*pairs))
        np.testing.assert_array_equal(scored.values, rows(ids))
        return scored

    def ask(self, *pairs: tuple[int, int], outputs: OutputCache | None = None) -> list[str]:
        return self.scored(*pairs, outputs=outputs).why


class LargeFleet(Fleet):
    """Several caches over one store, one server and one folder."""

    def join(self, *, is_new: bool = False, **changes: Any) -> LargeMember:
        local._domains.clear()
        member = LargeMember(self.repo.open_hot(**changes))
        if not is_new:
            member.outputs.score(np.zeros((1, 2)), member.model)
            member.calls = 0
        return member

    @property
    def files(self) -> list[Path]:
        return sorted(Path(self.repo.settings["blobs"]["folder"]).glob("*.blob"))


@pytest.fixture
def fleet(tmp_path: Path, server: EmbeddedServer, client: Any) -> LargeFleet:
    return fleet_of(tmp_path, server)


def fleet_of(folder: Path, server: EmbeddedServer, **policy: Any) -> LargeFleet:
    return LargeFleet(
        folder,
        {"connection_string": server.connection_string, "timeout": "5s"},
        {**POLICY, **policy},
        blobs={"folder": str(folder / "blobs")},
    )


# -- where they lie -------------------------------------------------------------------------------


def test_one_computes_and_the_others_map_it(fleet: LargeFleet, client: Any) -> None:
    """What the server holds is a few bytes; whoever asks is given the map of one file."""
    one, other = fleet.join(), fleet.join()
    assert one.ask((1, 1), (2, 3)) == ["miss", "miss"]
    assert len(fleet.files) == 2
    assert all(client.strlen(key) < 200 for key in client.keys("hotplate:output:*"))
    assert one.outputs.stats().size_bytes < 2_000
    assert one.outputs._shared is not None
    assert one.outputs._shared.too_large == 0
    for member, count in ((one, 1), (other, 1), (other, 2), (fleet.join(is_new=True), 1)):
        found = member.scored((1, 1))
        assert found.why == ["hit"]
        assert is_mapped(found.values)
        assert member.outputs.stats()["from blobs"] == count
    assert other.ask((2, 3), (3, 3), (1, 1)) == ["hit", "miss", "hit"]
    assert other.outputs.stats()["from shared"] == 2
    assert (one.calls, other.calls) == (2, 1)


def test_a_matrix_of_one_row_is_answered_without_a_copy(fleet: LargeFleet) -> None:
    """The short way too; what was answered stays as it was, whatever becomes of the file."""
    member = fleet.join()
    member.ask((1, 1))
    ids = np.array([[1.0, 1.0]])
    first, second = (member.outputs.score(ids, member.model).values for _ in range(2))
    assert is_mapped(first)
    assert np.shares_memory(first, second)
    shutil.rmtree(fleet.files[0].parent)
    np.testing.assert_array_equal(first, rows(ids))


def test_a_batch_and_what_the_model_answered_are_the_callers_own(fleet: LargeFleet) -> None:
    member = fleet.join()
    answer = member.scored((1, 1))
    assert answer.values.flags.writeable
    answer.values[:] = 0
    batch = member.scored((1, 1), (1, 1), (2, 2))
    assert batch.why == ["hit", "hit", "miss"]
    batch.values[:] = 0
    assert member.ask((1, 1), (2, 2)) == ["hit", "hit"]


def test_only_what_is_larger_than_1_mb_lies_there(tmp_path: Path) -> None:
    """1,000,000 bytes do not, one number more does; whatever the form."""
    tier = BlobTier(tmp_path)
    forms = ((np.float64, (125_000,)), (np.float32, (250, 1_000)), (np.bool_, (1_000_000,)))
    for dtype, shape in forms:
        for more in (0, 1):
            outputs = cache(tier, name=f"{dtype} {more}")
            wide = (*shape[:-1], shape[-1] + more)
            answered = np.arange(np.prod(wide)).reshape(1, *wide).astype(dtype)
            one = np.array([[1.0, 1.0]])
            outputs.score(one, lambda ids, answered=answered: answered)
            found = outputs.score(one, lambda ids: 1 / 0)
            np.testing.assert_array_equal(found.values, answered)
            assert found.values.dtype == dtype
            assert is_mapped(found.values) == bool(more)
    assert len(tier) == len(forms)


def cache(tier: BlobTier | None, name: str = "m", **policy: Any) -> OutputCache:
    made = OutputPolicy(**{"shadow": 0, "ttl": "30s", **policy})
    return OutputCache(name, "1", InputSchema.of("a", "b"), made, clock=FakeClock(), blobs=tier)


def test_without_a_shared_tier_they_are_of_this_process(tmp_path: Path) -> None:
    """What is known of them is in its memory; the bytes are not."""
    outputs = cache(BlobTier(tmp_path))
    ids = np.array([[1.0, 1.0], [2.0, 2.0]])
    outputs.score(ids, rows)
    assert outputs.score(ids, rows).why == ["hit", "hit"]
    assert outputs.stats().size_bytes < 2_000
    assert cache(BlobTier(tmp_path)).score(ids, rows).why == ["miss", "miss"]
    assert len(BlobTier(tmp_path)) == 2


def test_without_a_folder_they_are_kept_as_others_are(tmp_path: Path) -> None:
    outputs = cache(None)
    ids = np.array([[1.0, 1.0]])
    outputs.score(ids, rows)
    found = outputs.score(ids, rows)
    assert found.why == ["hit"]
    assert found.values.flags.writeable
    assert outputs.stats().size_bytes > BYTES


def test_alike_outputs_are_one_file(fleet: LargeFleet) -> None:
    """A candidate set that many inputs have in common; nothing is written a second time."""
    member, other = fleet.join(), fleet.join()
    member.ask((1, 2))
    (file,) = fleet.files
    written = file.stat().st_mtime_ns
    assert other.ask((2, 1)) == ["miss"], "another input, the same sum"
    fleet.clock.advance(31)
    assert member.ask((1, 2)) == ["expired"]
    assert [one.stat().st_mtime_ns for one in fleet.files] == [written]
    assert member.hot.blobs.stats().writes == 1


# -- what ends them -------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_an_entity_ends_its_outputs_for_all(fleet: LargeFleet, change: str) -> None:
    one = fleet.join()
    one.ask((1, 1), (2, 2))
    by = fleet.join()
    CHANGES[change](fleet, by)
    assert fleet.join().ask((1, 1), (2, 2)) == ["miss", "hit"]
    assert by.ask((1, 1), (2, 2)) == ["hit", "hit"]
    CHANGES[change](fleet, by)
    assert by.ask((1, 1), (2, 2)) == ["invalidated", "hit"], "in memory too"


@pytest.mark.parametrize("change", LARGE_CHANGES)
def test_a_change_of_all_ends_all(fleet: LargeFleet, change: str) -> None:
    fleet.join().ask((1, 1), (2, 2))
    by = fleet.join()
    by.ask((1, 1), (2, 2))
    LARGE_CHANGES[change](fleet, by)
    assert fleet.join().ask((1, 1), (2, 2)) == ["miss", "miss"]
    if change != "a purge":  # which is of the shared tier
        LARGE_CHANGES[change](fleet, by)
        ids = np.array([[1.0, 1.0], [2.0, 2.0]])
        assert not by.outputs.score(ids, by.model).from_cache.any()


@pytest.mark.parametrize("change", [*CHANGES, "a group", "everything", "the outputs"])
def test_a_change_while_the_model_computes_is_not_outlived(fleet: LargeFleet, change: str) -> None:
    """Promise 3, in this process and in others: the file is there, and nothing refers to it."""
    one = fleet.join()
    answer, ids = one.read((1, 1)), np.array([[1.0, 1.0]])
    change_it = {**CHANGES, **LARGE_CHANGES}[change]

    def slow(ids: Any) -> Any:
        change_it(fleet, one)
        return rows(ids)

    one.outputs.score(ids, slow, features=answer)
    assert len(fleet.files) == 1
    assert not one.outputs.score(ids, one.model).from_cache.any()
    assert fleet.join().ask((1, 1)) == ["miss"]


@pytest.mark.parametrize("change", [*CHANGES, "a group", "the outputs"])
def test_a_change_while_the_file_is_written_is_not_outlived(
    fleet: LargeFleet, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another process: between the model's answer and the entry that refers to the file."""
    one, by = fleet.join(), fleet.join()
    change_it, keep = {**CHANGES, **LARGE_CHANGES}[change], OutputBlobs.keep

    def slow(self: OutputBlobs, row: Any) -> bytes | None:
        made = keep(self, row)
        change_it(fleet, by)
        return made

    answer = one.read((1, 1))
    monkeypatch.setattr(OutputBlobs, "keep", slow)
    one.outputs.score(np.array([[1.0, 1.0]]), one.model, features=answer)
    monkeypatch.undo()
    assert len(fleet.files) == 1
    assert fleet.join().ask((1, 1)) == ["miss"]


@pytest.mark.parametrize("change", ["a write", "a group"])
def test_a_process_that_has_not_heard_of_a_change_shares_nothing(
    fleet: LargeFleet, change: str
) -> None:
    deaf, by = fleet.join(), fleet.join()
    deaf.hear_nothing()
    stale = deaf.read((1, 1))
    {**CHANGES, **LARGE_CHANGES}[change](fleet, by)
    deaf.outputs.score(np.array([[1.0, 1.0]]), deaf.model, features=stale)
    assert by.ask((1, 1)) == ["miss"]
    assert fleet.join().ask((1, 1)) == ["hit"], "that of the one who knows"


def test_it_lives_no_longer_than_its_ttl_and_its_features(fleet: LargeFleet) -> None:
    """In every process, however young its file is."""
    fleet.join().ask((1, 1))
    fleet.clock.advance(20)
    late = fleet.join()
    assert late.ask((1, 1)) == ["hit"]
    fleet.clock.advance(11)
    assert late.ask((1, 1)) == ["expired"], "30 s after it was computed"
    fleet.clock.advance(25)  # features of 56 s: their deadline comes before the output's
    early = fleet.join()
    early.read((2, 2))
    assert early.ask((2, 2)) == ["miss"]
    fleet.clock.advance(3)
    assert fleet.join().ask((2, 2)) == ["hit"]
    fleet.clock.advance(29)
    ids = np.array([[2.0, 2.0]])
    assert early.outputs.score(ids, early.model).why == ["expired"]
    assert fleet.join().ask((2, 2)) == ["miss"]
    assert len(fleet.files) == 2, "they are there, and nothing refers to them"


def test_versions_schemas_and_policies_do_not_see_each_other(fleet: LargeFleet) -> None:
    """Though their files are the same."""
    fleet.join().ask((1, 1))
    other = fleet.join()
    rule = {"name": "r", "when": {"field": "user", "is": 7}}
    for made in (
        other.hot.outputs("fraud", "2", ["user", "dealer"]),
        other.hot.outputs("fraud", "1", ["user", "seller"]),
        other.hot.outputs("risk", "1", ["user", "dealer"]),
        other.hot.outputs("fraud", "1", ["user", "dealer"], OutputPolicy(**POLICY, rules=[rule])),
    ):
        assert other.ask((1, 1), outputs=made) == ["miss"]
    assert other.ask((1, 1)) == ["hit"]
    assert len(fleet.files) == 1


# -- rules, shadow checks, families ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rules_are_judged_on_every_way_to_them(tmp_path: Path, dtype: Any) -> None:
    """By the fields and by any number of the output, alone and in a batch."""
    rules = [
        {"name": "first", "when": {"score": {"is": 4}}},
        {"name": "tenth", "when": {"score": {"above": 110.05}, "column": 100}},
        {"name": "seven", "when": {"field": "a", "is": 7}},
    ]
    outputs = cache(BlobTier(tmp_path), rules=rules)
    ids = np.array([[1.0, 1.0], [2.0, 2.0], [7.0, 1.0], [5.0, 5.06], [5.0, 5.0]])

    def model(some: Any) -> Any:
        return np.tile(rows(some), 2).astype(dtype)

    expected = ["hit", "rule: first", "rule: seven", "rule: tenth", "hit"]
    outputs.score(ids, model)
    assert len(BlobTier(tmp_path)) == 2, "what a rule forbids is not written"
    for _ in range(2):
        assert [word.split(":")[0] for word in outputs.score(ids, model).why] == [
            "hit",
            "miss",
            "rule",
            "miss",
            "hit",
        ]
        for row, said in zip(ids, expected, strict=True):
            assert (outputs.score(row[None], model).why == ["hit"]) == (said == "hit")
            frame = {"a": row[:1], "b": row[1:]}
            assert (outputs.score(frame, model_of(model)).why == ["hit"]) == (said == "hit")


def test_a_score_is_compared_as_a_float_of_64_bits(tmp_path: Path) -> None:
    """As of small outputs: 0.7 of 32 bits is below 0.7."""
    outputs = cache(BlobTier(tmp_path), rules=[{"name": "r", "when": {"score": {"at_least": 0.7}}}])
    ids = np.array([[1.0, 1.0]])

    def model(some: Any) -> Any:
        return np.full((len(some), 2 * WIDTH), 0.7, np.float32)

    outputs.score(ids, model)
    for batch in (ids, np.repeat(ids, 2, 0)):
        assert set(outputs.score(batch, model).why) == {"hit"}


def model_of(model: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same, of columns."""
    return lambda batch: model(np.stack([batch["a"], batch["b"]], 1))


def test_a_rule_on_the_score_is_judged_as_of_now(tmp_path: Path) -> None:
    """Where it forbids what is kept already, on both ways."""
    clock = FakeClock()
    late = {"name": "late", "when": {"all": [{"score": {"above": 3}}, {"hours": [0, 1]}]}}
    policy = OutputPolicy(shadow=0, ttl="10h", rules=[late])
    outputs = OutputCache(
        "m", "1", InputSchema.of("a", "b"), policy, clock=clock, blobs=BlobTier(tmp_path)
    )
    ids = np.array([[1.0, 1.0], [2.0, 2.0]])
    clock.advance(2 * 3_600)
    outputs.score(ids, rows)
    assert outputs.score(ids, rows).why == ["hit", "hit"]
    clock._wall_ns -= 2 * 3_600 * 10**9
    tier = BlobTier(tmp_path)
    for _ in range(2):
        assert outputs.score(ids, rows).why == ["hit", "rule: late"]
        assert outputs.score(ids[1:], rows).why == ["rule: late"]
    assert len(tier) == 2


def test_a_shadow_check_finds_a_planted_entry_and_switches_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A reference to the output of another input: what differs is said in few numbers."""
    outputs = cache(BlobTier(tmp_path), shadow=1, shadow_least=4, shadow_limit="10%")
    ids = np.array([[1.0, 1.0], [2.0, 2.0]])
    outputs.score(ids, rows)
    assert outputs.score(ids, rows).why == ["compared", "compared"]
    keys = outputs.inputs.keys(outputs._batch_of(ids))
    value = outputs._tier.get(keys[1])[0]
    outputs._tier.put_untied([keys[0]], [value], [1 << 62], outputs._tier.versions(())[0])
    with caplog.at_level(logging.ERROR):
        found = outputs.score(ids, rows)
    np.testing.assert_array_equal(found.values, rows(ids))
    assert outputs.is_off
    assert len(caplog.text) < 5_000
    assert outputs.score(ids, rows).why == ["off", "off"]


def test_a_dry_run_says_what_it_would_have(tmp_path: Path) -> None:
    outputs = cache(BlobTier(tmp_path), dry_run=True)
    ids = np.array([[1.0, 1.0], [2.0, 2.0]])
    for _ in range(2):
        assert not outputs.score(ids, rows).from_cache.any()
    stats = outputs.stats()
    assert stats.hits == stats["dry_run_compared"] == 2
    assert stats["dry_run_differed"] == 0


def test_families_remember_no_outputs(tmp_path: Path) -> None:
    """They count distinct ones by thousands: of large ones by what tells them apart."""
    outputs = cache(BlobTier(tmp_path), family="a")
    for number in range(3):
        outputs.score(np.array([[1.0, float(number)], [1.0, number + 1e-4]]), lambda ids: rows(ids))
    (family,) = outputs.families()
    assert (family.outputs, family.near_duplicates) == (6, 0)
    alike = cache(BlobTier(tmp_path), family="a")
    alike.score(np.array([[1.0, 1.0], [1.0, 1.0001]]), lambda ids: rows(ids * 0))
    (family,) = alike.families()
    assert (family.outputs, family.near_duplicates) == (1, 1)
    assert alike._families is not None
    held = alike._families._families["1"]
    assert sum(map(len, held.outputs)) < 100
    assert outputs.score(np.array([[1.0, 2.0]]), rows).why == ["hit"]


def test_explain_says_what_is_kept_and_when_its_file_is_gone(tmp_path: Path) -> None:
    tier = BlobTier(tmp_path)
    outputs = cache(tier)
    ids = np.array([[1.0, 1.0]])
    assert outputs.explain(ids).decided == "computed: nothing is kept for this input"
    outputs.score(ids, rows)
    found = outputs.explain(ids)
    assert found.decided == "answered from memory"
    assert found.kept == tuple(rows(ids)[0])
    assert f"{WIDTH:,} numbers" in str(found)
    assert len(str(found)) < 1_000
    tier.clear()
    found = outputs.explain(ids)
    assert found.decided == "computed: the file of the kept output is gone"
    assert found.kept is None
    assert "kept" in str(found)


async def test_on_an_event_loop_no_file_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are written and mapped on a thread."""
    outputs = cache(BlobTier(tmp_path))
    seen: list[int] = []
    for name in ("put", "get", "peek"):
        whole = getattr(BlobTier, name)

        def noted(*given: Any, whole: Any = whole, **named: Any) -> Any:
            seen.append(threading.get_ident())
            return whole(*given, **named)

        monkeypatch.setattr(BlobTier, name, noted)
    ids = np.array([[1.0, 1.0]])
    for expected in ("miss", "hit"):
        scored = await asyncio.wait_for(outputs.score_async(ids, rows), 30)
        assert scored.why == [expected]
        np.testing.assert_array_equal(scored.values, rows(ids))
    assert len(seen) >= 3
    assert threading.get_ident() not in seen


# -- what can go wrong with a file ----------------------------------------------------------------


def flipped(file: Path, others: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[-5] ^= 1
    file.unlink()
    file.write_bytes(raw)


def cut_short(file: Path, others: Path) -> None:
    raw = file.read_bytes()
    file.unlink()
    file.write_bytes(raw[:-8])


def foreign(file: Path, others: Path) -> None:
    """The file of another output under this one's name."""
    raw = others.read_bytes()
    file.unlink()
    file.write_bytes(raw)


def poisoned(file: Path, others: Path) -> None:
    """A whole file with the right key and another output, as only somebody else can have put it."""
    tier = BlobTier(file.parent, clock=FakeClock())
    raw = file.read_bytes()
    key = raw[raw.index(b"hotplate:output:") :][: 16 + 32]
    assert tier.peek(key) is not None
    assert tier.put(key, rows([[9.0, 9.0]]))


def of_another_form(file: Path, others: Path) -> None:
    """The same bytes under the same key, as a table of other numbers."""
    tier = BlobTier(file.parent, clock=FakeClock())
    raw = file.read_bytes()
    key = raw[raw.index(b"hotplate:output:") :][: 16 + 32]
    assert tier.put(key, np.array(tier.get(key)).view(np.int64))


def removed(file: Path, others: Path) -> None:
    file.unlink()


def folder_removed(file: Path, others: Path) -> None:
    shutil.rmtree(file.parent)


DAMAGES = [flipped, cut_short, foreign, poisoned, of_another_form, removed, folder_removed]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_what_does_not_verify_is_a_miss_and_counted(
    fleet: LargeFleet, damage: Callable[[Path, Path], None]
) -> None:
    """In the process that wrote it and has it mapped, and in one that comes; then it is healed."""
    one = fleet.join()
    one.ask((1, 1))
    (file,) = fleet.files
    one.ask((2, 2))
    (others,) = set(fleet.files) - {file}
    ids = np.array([[1.0, 1.0]])
    assert one.outputs.score(ids, one.model).why == ["hit"]
    damage(file, others)
    new = fleet.join()
    assert new.ask((1, 1)) == ["miss"]
    assert new.outputs.stats()["blob gone"] == 1
    assert new.ask((1, 1)) == ["hit"]
    damage(file, others if others.exists() else file)
    assert one.outputs.score(ids, one.model).why == ["miss"]
    assert one.outputs.stats()["blob gone"] == 1
    assert one.ask((1, 1)) == ["miss"]
    assert one.ask((1, 1)) == fleet.join().ask((1, 1)) == ["hit"]


def test_a_folder_that_is_a_file_is_never_in_the_way(fleet: LargeFleet, client: Any) -> None:
    """Nothing is kept, and every answer is right; as soon as it is put right, all goes on."""
    one = fleet.join()
    folder = Path(fleet.repo.settings["blobs"]["folder"])
    shutil.rmtree(folder)
    folder.write_text("")
    for _ in range(2):
        assert one.ask((1, 1), (2, 2)) == ["miss", "miss"]
    stats = one.outputs.stats()
    assert (stats["blob not kept"], stats["kept"]) == (4, 0)
    assert one.hot.blobs.stats().errors > 0
    assert not client.keys("hotplate:output:*")
    folder.unlink()
    assert one.ask((1, 1)) == ["miss"]
    assert fleet.join().ask((1, 1)) == ["hit"]


FULL = """
import json, resource, sys
import numpy as np
from hotplate import BlobTier
from tests.outputs.test_large_outputs import cache, rows
outputs = cache(BlobTier(sys.argv[1]))
ids = np.array([[1.0, 1.0]])
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
why = [outputs.score(ids, rows).why for _ in range(2)]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
why += [outputs.score(ids, rows).why for _ in range(2)]
print(json.dumps([why, outputs.stats()["blob not kept"]]))
"""


@pytest.mark.heavy
def test_a_full_disk_keeps_nothing(tmp_path: Path) -> None:
    """The first half of a file is written, then the system refuses: nothing is kept or left."""
    why, refused = ran(FULL, tmp_path)
    assert why == [["miss"], ["miss"], ["miss"], ["hit"]]
    assert refused == 2
    assert len(list(tmp_path.iterdir())) == 1


def ran(program: str, *arguments: object) -> Any:
    """What a program of its own process says, as JSON."""
    done = started(program, *arguments)
    said, errors = done.communicate(timeout=120)
    assert done.returncode == 0, errors
    return json.loads(said)


def started(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'plugins'}:{ROOT}"},
    )


def test_a_file_that_was_pushed_out_is_a_miss(tmp_path: Path) -> None:
    """The folder keeps its bound; the output that nobody read goes first, and comes again."""
    tier = BlobTier(tmp_path, max_bytes=int(2.5 * BYTES), clock=(clock := FakeClock()))
    outputs = cache(tier)
    ids = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    for one in range(3):
        clock.advance(10)
        outputs.score(ids[one : one + 1], rows)
        assert tier.stats().bytes <= 2.5 * BYTES
    found = outputs.score(ids, rows)
    assert found.why == ["miss", "hit", "hit"]
    np.testing.assert_array_equal(found.values, rows(ids))
    assert outputs.stats()["blob gone"] == 1
    assert outputs.score(ids[:1], rows).why == ["hit"]
    tiny = cache(BlobTier(tmp_path / "tiny", max_bytes="1MB"))
    for _ in range(2):
        assert tiny.score(ids, rows).why == ["miss"] * 3
    assert tiny.stats()["blob not kept"] == 6


def test_who_has_no_folder_is_never_given_a_reference(fleet: LargeFleet) -> None:
    """And who has one takes what lies on the server itself."""
    fleet.repo.settings["shared"]["max_row_bytes"] = "5MB"
    one, bare = fleet.join(), fleet.join(blobs=None)
    one.ask((1, 1))
    assert fleet.join(blobs=None).ask((1, 1)) == ["miss"], "and it is put there whole"
    assert fleet.join(blobs=None).ask((1, 1)) == ["hit"]
    with_one = fleet.join()
    for _ in range(2):
        assert with_one.ask((1, 1)) == ["hit"]
    assert with_one.ask((2, 2), (1, 1)) == ["miss", "hit"]
    assert with_one.ask((2, 2), (1, 1)) == ["hit", "hit"]
    assert with_one.scored((1, 1)).values.flags.writeable
    assert bare.ask((2, 2)) == ["miss"]


def test_a_reference_is_none_of_a_small_form() -> None:
    """37 bytes more or less: what says so of an output that is not large is an output."""
    reference = b"blob\x01" + bytes(36)
    assert form_in(b"<f8:150000", reference) == (np.dtype(np.float64), (150_000,))
    assert form_in(b"<f8:", reference) is None
    assert form_in(b"|u1:41", reference) == (np.dtype(np.uint8), (41,))
    assert not is_large(np.dtype(np.uint8), (41,))


# -- processes ------------------------------------------------------------------------------------

SCORER = """
import json, sys
from pathlib import Path
import warnings; warnings.simplefilter("ignore")
from tests.outputs.test_large_outputs import real_fleet
member = real_fleet(Path(sys.argv[1]), sys.argv[2]).join(is_new=True)
why = member.ask((1, 1), (2, 2)), member.ask((2, 2))
print(json.dumps([*why, member.outputs.stats()["from shared"]]))
member.hot.runtime.close()
"""


def real_fleet(folder: Path, address: str, *, is_made: bool = True) -> LargeFleet:
    """As it is in production: on the machine's own clock."""
    made = LargeFleet.__new__(LargeFleet) if is_made else None
    settings = {
        "shared": {"connection_string": address, "timeout": "5s"},
        "outputs": {"default": {**POLICY, "ttl": "10m"}},
        "blobs": {"folder": str(folder / "blobs")},
    }
    if made is None:
        made = LargeFleet(folder, settings["shared"])
    made.repo = Repo(
        folder, {"type": "sqlite"}, ttl_map={"default": {"ttl": "1h"}}, settings=settings
    )
    made.repo.clock = SYSTEM_CLOCK  # type: ignore[assignment]
    made.repo.hot = made.repo.open_hot()
    return made


@pytest.mark.heavy
def test_a_restarted_process_begins_warm(
    tmp_path: Path, server: EmbeddedServer, client: Any
) -> None:
    """One that knows nothing yet, not even the form of its model."""
    real_fleet(tmp_path, server.connection_string, is_made=False)
    first, second, shared = ran(SCORER, tmp_path, server.connection_string)
    assert (first, second, shared) == (["miss", "miss"], ["hit"], 0)
    first, second, shared = ran(SCORER, tmp_path, server.connection_string)
    assert (first, second) == (["hit", "hit"], ["hit"])


WRITERS = """
import json, sys
import numpy as np
from hotplate import BlobTier
from hotplate.tiers.output_blobs import OutputBlobs
from tests.outputs.test_large_outputs import rows
tier = BlobTier(sys.argv[1])
blobs, row = OutputBlobs(tier), rows([[1.0, 1.0]])
right = wrong = 0
print("ready", flush=True)
sys.stdin.readline()
for turn in range(60):
    reference = blobs.keep(row)
    if turn % 7 == int(sys.argv[2]):
        tier.clear()
    found = blobs.find(reference, row.dtype, row.shape[1:])
    right += found is not None and np.array_equal(found, row)
    wrong += found is not None and not np.array_equal(found, row)
print(json.dumps([right, wrong, tier.stats().rejected]))
"""


@pytest.mark.heavy
def test_processes_that_write_the_same_output_do_not_disturb_each_other(tmp_path: Path) -> None:
    """While it is removed again and again: what is found is whole."""
    made = [started(WRITERS, tmp_path, number) for number in range(3)]
    for one in made:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in made:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    for one in made:
        said, errors = one.communicate(timeout=120)
        assert one.returncode == 0, errors
        right, wrong, rejected = json.loads(said)
        assert right > 0
        assert (wrong, rejected) == (0, 0)
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_forked_child_maps_what_its_parent_kept(tmp_path: Path) -> None:
    """And keeps what it computes itself, also where the parent's locks were held."""
    tier = BlobTier(tmp_path)
    outputs = cache(tier)
    outputs.score(np.array([[1.0, 1.0]]), rows)

    def in_child() -> bool:
        ids = np.array([[1.0, 1.0], [2.0, 2.0]])
        why = [outputs.score(ids, rows).why for _ in range(2)]
        found = outputs.score(ids[1:], rows)
        is_right = np.array_equal(found.values, rows(ids[1:])) and is_mapped(found.values)
        return why == [["hit", "miss"], ["hit", "hit"]] and is_right

    with (
        tier._lock,
        tier._put_lock,
        tier._maps._lock,
        outputs._lock,
        outputs._counts._lock,
        outputs._tier._lock,
    ):
        child = os.fork()
        if not child:
            threading.Timer(30, os._exit, [9]).start()
            os._exit(0 if in_child() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert outputs.score(np.array([[2.0, 2.0]]), rows).why == ["miss"], "the child's is its own"
    assert len(tier) == 2


def test_threads_that_score_while_files_go(tmp_path: Path) -> None:
    """Every answer is the model's, however often the folder is emptied."""
    tier = BlobTier(tmp_path)
    outputs = cache(tier)
    stop, wrong, hits = threading.Event(), [], []

    def keep_scoring(number: int) -> None:
        chance = np.random.default_rng(number)
        while not stop.is_set():
            ids = chance.integers(0, 3, (int(chance.integers(1, 3)), 2)).astype(float)
            found = outputs.score(ids, rows)
            hits.append(int(found.from_cache.sum()))
            if not np.array_equal(found.values, rows(ids)):
                wrong.append(ids)

    threads = [threading.Thread(target=keep_scoring, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        stop.wait(0.05)
        tier.clear()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sum(hits) > 0
    outputs._tier.check()


# -- the deployment -------------------------------------------------------------------------------


def test_the_deployments_folder_is_for_tables_and_candidates_too(tmp_path: Path) -> None:
    """`hot.blobs`: what one process puts there, another one maps."""
    repo = Repo(tmp_path, {"type": "sqlite"}, settings={"blobs": {"folder": f"{tmp_path}/b"}})
    repo.apply(USER, repo.view("v", {"age": Int64}))
    table = pa.table({"id": np.arange(200_000), "score": np.arange(200_000) / 7})
    assert repo.cache.blobs.put("candidates:v1", table)
    assert repo.cache.blobs.put("embeddings:v1", rows([[0.0, 0.0]]), ttl="2h")
    other = hotplate.of(repo.open_hot()).blobs
    assert other is not repo.cache.blobs
    assert repo.cache.blobs is repo.cache.blobs
    assert other.get("candidates:v1").equals(table)
    assert is_mapped(other.get("embeddings:v1"))
    repo.clock.advance(2 * 3_600)
    assert other.get("embeddings:v1") is None, "on the clock of the store"


def test_a_folder_that_cannot_be_is_said(tmp_path: Path) -> None:
    def made(blobs: Any) -> Any:
        return Repo(tmp_path, {"type": "sqlite"}, settings={"blobs": blobs}).cache

    with pytest.raises(ConfigError, match=r"write online_store\.blobs"):
        _ = made(None).blobs
    for blobs, said in (
        ("/var/cache", r"online_store\.blobs: is text, not a mapping.*folder: /var/cache/hotplate"),
        ({"folder": "cache"}, "'cache' begins with no '/'"),
        ({"folder": "/b", "max_bytes": "lots"}, "not a size; write for example '512MB'"),
        ({}, "folder"),
        ({"folder": "/b", "most": 1}, "most"),
    ):
        with pytest.raises(Exception, match=said):
            made(blobs)
