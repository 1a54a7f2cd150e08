"""From records to decisions: what is trained is what is served, and payments are decided once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hotplate
from pipelines.fraud.bundle import ModelRefused
from pipelines.fraud.decide import Decider, Layers
from pipelines.fraud.ledger import Ledger, open_ledger
from pipelines.fraud.line import EVENTS, Line
from pipelines.fraud.payments import read_records
from pipelines.fraud.score import Job
from pipelines.fraud.sources import FileSource, SourceError, StreamSource
from pipelines.fraud.train import features_of
from pipelines.fraud.work import SERVICE

from ...stores import await_
from .conftest import REPO, World

ALL_OFF = Layers.without(["features", "windows", "outputs", "scorer", "warming"])


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with open_ledger(f"sqlite:///{tmp_path / 'd.db'}", wait_s=30) as found:
        yield found


def line_of(world: World, ledger: Ledger, layers: Layers | None = None, **more: Any) -> Line:
    store, decider = world.decider(layers)
    return Line(store, lambda: decider, ledger, "test", **more)


def recorded(world: World) -> int:
    """Payments that the card windows hold beyond those of the table."""
    store = world.work.open()
    cards = world.transactions["CUSTOMER_ID"].unique().tolist()
    names = ["card_windows:card_count_30d"]
    times = pd.read_parquet(world.work.folder / "data" / "payments.parquet")["event_timestamp"]

    def of_table() -> int:
        now = pd.Timestamp.now("UTC")
        return int(((times >= now - pd.Timedelta(days=30)) & (times < now)).sum())

    while True:
        before = of_table()
        found = store.get_online_features(names, {"customer_id": cards}).to_dict()
        if before == of_table():  # none left the window meanwhile
            return int(sum(found["card_count_30d"])) - before


@pytest.mark.parametrize("layers", [Layers(), ALL_OFF], ids=["all layers", "none"])
def test_training_and_serving_read_the_same(world: World, ledger: Ledger, layers: Layers) -> None:
    """Wherever the features did not change within a second of the answer, to the last bit."""
    line = line_of(world, ledger, layers, restamp=True)
    records = world.records(200, kind="check")
    (decided,) = line.process(records).decided
    asked = pd.DataFrame(
        {
            "transaction_id": decided.payments.transaction_ids,
            "customer_id": decided.payments.customer_ids,
            "terminal_id": decided.payments.terminal_ids,
            "amount": decided.payments.amounts,
        }
    )
    now = pd.Timestamp(decided.decided_ms, unit="ms", tz="UTC").as_unit("us")
    store = world.work.open()
    before, after = (
        features_of(
            store,
            SERVICE,
            asked.assign(event_timestamp=now + pd.Timedelta(seconds=seconds)),
            list(world.bundle.features),
        )[:, 3:]
        for seconds in (-2, 2)
    )
    served = decided.inputs[:, 3:]
    is_still = ((before == after) | (np.isnan(before) & np.isnan(after))).all(1)
    assert is_still.sum() > 150
    np.testing.assert_array_equal(served[is_still], before[is_still])
    booster = world.bundle.booster()
    np.testing.assert_array_equal(decided.scores, booster.inplace_predict(decided.inputs))


def test_layers_change_no_decision(world: World, tmp_path: Path) -> None:
    """The same questions with everything on and with everything off, again and again."""
    records = world.records(150, kind="check")
    scores = []
    for number, layers in enumerate((Layers(), ALL_OFF, Layers.without(["outputs"]))):
        store, decider = world.decider(layers)
        decider.decide(read_records(records, time.time_ns() // 10**6)[0])
        channel = hotplate.of(store).stats().channel
        if channel is not None:  # until it is whole, nothing that hangs on windows is a hit
            await_(lambda: hotplate.of(store).stats().channel.is_whole)  # noqa: B023
        if decider.outputs is not None:
            decider.outputs.clear()
        has_hits = False
        for again in range(10):  # a stalled machine breaks the channel, which ends all outputs
            with open_ledger(f"sqlite:///{tmp_path / f'{number}{again}.db'}") as ledger:
                decided = Line(store, lambda: decider, ledger, "t", restamp=True).process(records)  # noqa: B023
                (turn,) = decided.decided
                scores.append(turn.scores)
                answered = [row["layer"] for row in decided.answers.values()]
                has_hits = "hit" in answered
                assert not has_hits or (again > 0 and layers.outputs)
            if again and (has_hits or not layers.outputs):
                break
        assert has_hits == layers.outputs
    for one in scores[1:]:
        np.testing.assert_allclose(one, scores[0], atol=1e-6)


def test_a_payment_is_decided_once_and_recorded_once(
    fresh: Callable[[], World], ledger: Ledger
) -> None:
    world = fresh()
    line = line_of(world, ledger)
    records = world.records(20)
    first = line.process([*records, *records[:5]], "1")
    assert (len(first.answers), first.repeated, line.counts["decided"]) == (20, 5, 20)
    again = line.process(records, "2")
    assert (again.decided, again.repeated) == ([], 20)
    for transaction_id, row in again.answers.items():
        assert row["score"] == first.answers[transaction_id]["score"]
    asked = line.process(world.records(10, first=100, kind="check"), "3")
    assert len(asked.answers) == 10
    assert line.begin() == "3"  # which records the last ones once more
    assert recorded(world) == 20, "checks are no payments"
    assert sum(1 for _ in ledger.rows()) == 30


def test_a_burst_of_a_card_is_seen_in_one_batch(fresh: Callable[[], World], ledger: Ledger) -> None:
    """Each payment sees those of its card before it, as training does; and what is only asked, too,
    which nothing sees."""
    world = fresh()
    line = line_of(world, ledger)
    card = int(world.transactions["CUSTOMER_ID"].iloc[-1])
    kinds = ["check", "payment", "payment", "check", "payment", "check"]
    of_card = [
        (f"{place}", {**fields, "transaction_id": f"b{place}", "customer_id": card, "kind": kind})
        for place, ((_, fields), kind) in enumerate(zip(world.records(6), kinds, strict=True))
    ]
    others = [
        (f"o{place}", {**fields, "customer_id": card + 1_000 + place})
        for place, (_, fields) in enumerate(world.records(3, first=50))
    ]
    found = line.process([*of_card[:3], *others, *of_card[3:]], "7")
    assert [len(turn.scores) for turn in found.decided] == [5, 1, 2, 1]
    place_of = world.bundle.inputs.index("card_count_10m")
    counts = {
        transaction_id: turn.inputs[place, place_of]
        for turn in found.decided
        for place, transaction_id in enumerate(turn.payments.transaction_ids)
    }
    before = counts["b0"]
    seen = [counts[f"b{place}"] - before for place in range(6)]
    assert seen == [0, 0, 1, 2, 2, 3]
    rows = {row["transaction_id"]: row for row in ledger.rows()}
    assert set(rows) == set(found.answers) == set(counts)
    times = [rows[f"b{place}"]["at_ms"] for place in (1, 2, 4)]
    assert times == sorted(set(times)), "one after the other, so that training sees the same"
    assert line.begin() == "7"
    assert recorded(world) == 3, "and three of cards that the table does not know"


def test_a_batch_that_ends_between_two_turns_is_taken_up_again(
    fresh: Callable[[], World], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided keeps its decision, and is recorded; the position is as it was."""
    world = fresh()
    line = line_of(world, ledger)
    card = int(world.transactions["CUSTOMER_ID"].iloc[-1])
    records = [(place, {**fields, "customer_id": card}) for place, fields in world.records(3)]

    class Killed(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr(line, "_record", killed)
    with pytest.raises(Killed):
        line.process(records, "1")
    assert ledger.position("test") is None
    (first,) = list(ledger.rows())
    again = line_of(world, ledger)
    again.begin()
    found = again.process(records, "1")
    assert (found.repeated, [len(turn.scores) for turn in found.decided]) == (1, [1, 1])
    assert found.answers[first["transaction_id"]]["score"] == first["score"]
    place = world.bundle.inputs.index("card_count_10m")
    assert found.decided[1].inputs[0, place] - found.decided[0].inputs[0, place] == 1
    assert recorded(world) == 3


def test_an_id_is_of_one_request(world: World, ledger: Ledger) -> None:
    """Another card under an id that was approved is no repetition of it."""
    line = line_of(world, ledger)
    (place, fields), (_, other) = world.records(2, kind="check")
    first = line.process([(place, fields)], "1").answers[fields["transaction_id"]]
    for name, value in (
        ("customer_id", 5_000_000),
        ("terminal_id", 5_000_000),
        ("amount", 99_999.0),
        ("kind", "payout"),
    ):
        found = line.process([("x", {**fields, name: value}), ("y", fields)])
        assert [letter.place for letter in found.dead] == ["x"]
        assert "of another payment" in found.dead[0].reason
        assert list(found.payments.places) == ["y"]
        assert found.answers[fields["transaction_id"]]["score"] == first["score"]
    taken = {**other, "transaction_id": "twice"}
    found = line.process([("a", taken), ("b", {**taken, "amount": 7.0}), ("c", taken)])
    assert [letter.place for letter in found.dead] == ["b"]
    assert (len(found.answers), found.repeated) == (1, 1)


@pytest.mark.parametrize("kept", [20, 14])
def test_two_processes_that_decide_the_same_payments_at_once(
    fresh: Callable[[], World], ledger: Ledger, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """The decision of the faster one counts, at its time: in answers, in windows and in counts."""
    world = fresh()
    records = world.records(20)
    faster, slower = line_of(world, ledger), line_of(world, ledger)
    decide = slower._decide
    won: list[Any] = []

    def overtaken(decider: Decider, payments: Any) -> Any:
        if not won:
            time.sleep(0.005)  # at another time, then
            won.append(faster.process(records[:kept]))
        return decide(decider, payments)

    monkeypatch.setattr(slower, "_decide", overtaken)
    found = slower.process(records, "1")
    first = won[0]
    rows = {row["transaction_id"]: row for row in ledger.rows()}
    assert set(rows) == set(found.answers) == {fields["transaction_id"] for _, fields in records}
    for transaction_id, answer in first.answers.items():
        assert rows[transaction_id]["at_ms"] == answer["at_ms"]
        assert found.answers[transaction_id]["at_ms"] == answer["at_ms"]
    assert (slower.counts["decided"], found.repeated, found.dead) == (20 - kept, kept, [])
    assert faster.counts["decided"] == kept
    assert recorded(world) == 20
    assert slower.begin() == "1"
    assert recorded(world) == 20


def test_an_id_that_another_process_gives_away_at_once(
    fresh: Callable[[], World], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another payment's decision is no answer, and the one without a decision counts nowhere."""
    world = fresh()
    (place, fields), other = world.records(2)
    faster, slower = line_of(world, ledger), line_of(world, ledger)
    decide = slower._decide

    def overtaken(decider: Decider, payments: Any) -> Any:
        faster.process([("x", {**fields, "amount": fields["amount"] + 1})])
        return decide(decider, payments)

    monkeypatch.setattr(slower, "_decide", overtaken)
    found = slower.process([(place, fields), other], "1")
    assert [(one.place, "of another payment" in one.reason) for one in found.dead] == [
        (place, True)
    ]
    assert [one["place"] for one in ledger.dead_letters()] == [place]
    assert list(found.payments.places) == [other[0]]
    assert (slower.counts["decided"], found.repeated) == (1, 0)
    assert recorded(world) == 2


def test_payments_that_count_in_no_window_are_said(
    fresh: Callable[[], World], ledger: Ledger
) -> None:
    said: list[str] = []
    world = fresh()
    line = line_of(world, ledger, say=said.append)
    ((place, fields),) = world.records(1)
    late = pd.Timestamp.now("UTC") - pd.Timedelta(days=2)
    line.process([(place, {**fields, "at": late.isoformat()})], "1")
    assert line.counts["not in windows: late"] == 1
    assert "count in no window: late" in said[0]


def test_what_is_written_says_why(world: World, ledger: Ledger) -> None:
    line = line_of(world, ledger, restamp=True)
    large = [("a", {**world.records(1)[0][1], "transaction_id": "L", "amount": 5_000.0})]
    payout = [("b", {**world.records(1)[0][1], "transaction_id": "P", "kind": "payout"})]
    plain = world.records(1, kind="check")
    line.process([*large, *payout, *plain], "1")
    rows = {row["transaction_id"]: row for row in ledger.rows()}
    assert rows["L"]["layer"] == "rule: large"
    assert rows["P"]["layer"] == "rule: payout"
    row = rows["new-0"]
    inputs = json.loads(row["inputs"])
    assert len(inputs) == len(world.bundle.inputs)
    assert inputs[0] == pytest.approx(row["amount"])
    assert set(json.loads(row["ages_s"])) == {
        *("card_windows", "card_session", "terminal_windows", "customer_profile"),
        *("terminal_profile", "customer_risk_score", "terminal_risk_score"),
    }
    levels = [row["score"] >= at for at in (world.bundle.review_at, world.bundle.decline_at)]
    assert row["decision"] == ("approve", "review", "decline")[sum(levels)]
    assert row["model_version"] == world.bundle.version


def test_malformed_payments_stop_nothing(world: World, ledger: Ledger, tmp_path: Path) -> None:
    good = [fields for _, fields in world.records(6)]
    rows = [*good[:3], {**good[3], "amount": None}, *good[4:]]
    path = tmp_path / "payments.parquet"
    pq.write_table(pa.Table.from_pylist([{**row, "kind": "check"} for row in rows]), path)
    source = FileSource(path)
    store, decider = world.decider()
    job = Job(Line(store, lambda: decider, ledger, source.name), source, size=2, wait_ms=0)
    figures = job.run()
    assert (figures.decided, figures.dead) == (5, 1)
    ((said,)) = ledger.dead_letters()
    assert (said["place"], said["reason"]) == ("3", "amount is missing")
    assert str(ledger.position(source.name)).startswith("6:")
    assert job.run().decided == 5, "nothing is left to do"


def test_a_stream_that_lost_payments_is_refused(world: World) -> None:
    client = world.work.repo.client()
    client.delete("s1")
    ids = [client.xadd("s1", {"transaction_id": str(n)}) for n in range(5)]
    source = StreamSource(client, "s1", ends=True)
    read = list(source.batches(None, 2, 0))
    assert [len(one.records) for one in read] == [2, 2, 1]
    client.xtrim("s1", maxlen=3, approximate=False)
    assert sum(len(one.records) for one in source.batches(read[0].position, 9, 0)) == 3
    client.xtrim("s1", maxlen=2, approximate=False)  # the third is gone, and was not read
    with pytest.raises(SourceError, match=r"removed before they were read.*use --from"):
        list(source.batches(read[0].position, 9, 0))
    assert sum(len(one.records) for one in source.batches(read[1].position, 9, 0)) == 1
    behind = source.batches(ids[3].decode(), 1, 0)  # an id alone, as --from gives it
    assert len(next(behind).records) == 1
    client.xadd("s1", {"transaction_id": "6"})
    client.xadd("s1", {"transaction_id": "7"})
    client.xtrim("s1", maxlen=1, approximate=False)
    with pytest.raises(SourceError, match="removed before"):
        list(behind)
    assert len(list(source.batches(None, 9, 0))) == 1, "who begins takes what is there"
    last = client.xadd("s1", {"transaction_id": "8"})
    client.xdel("s1", last)
    with pytest.raises(SourceError, match="removed before"):
        list(source.batches(ids[-1].decode(), 9, 0))
    client.set("s2", "x")
    with pytest.raises(SourceError, match="is no stream"):
        list(StreamSource(client, "s2", ends=True).batches(None, 2, 0))
    assert list(StreamSource(client, "s3", ends=True).batches(None, 2, 0)) == []


def test_another_file_under_the_same_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("TRANSACTION_ID,TX_AMOUNT\n1,2\n")
    source = FileSource(path)
    (batch,) = source.batches(None, 5, 0)
    assert batch.records == [("0", {"transaction_id": "1", "amount": 2})]
    with pytest.raises(SourceError, match="is another file"):
        list(source.batches("7", 5, 0))
    path.write_text("TRANSACTION_ID,TX_AMOUNT\n1,2\n007,3\n7,4\n")
    (rest,) = FileSource(path).batches(batch.position, 5, 0)
    assert [fields["transaction_id"] for _, fields in rest.records] == ["007", "7"]
    path.write_text("TRANSACTION_ID,TX_AMOUNT\n9,2\n8,3\n")
    with pytest.raises(SourceError, match="is another file"):
        list(FileSource(path).batches(batch.position, 5, 0))
    path.write_text("a,b\n1,2\n")
    with pytest.raises(SourceError, match="no column transaction_id"):
        FileSource(path)


KILLED = """
import sys
from pathlib import Path
from pipelines.fraud.decide import Decider, scorer_of
from pipelines.fraud.ledger import Ledger
from pipelines.fraud.line import Line
from pipelines.fraud.payments import read_records
from pipelines.fraud.score import Job
from pipelines.fraud.sources import StreamSource
from pipelines.fraud.stores import OnlineSource
from pipelines.fraud.work import Work

folder, repo, address, database = sys.argv[1:]
settings = {"type": "redis", "connection_string": address}
work = Work(Path(folder), Path(repo), OnlineSource("Valkey", settings))
store = work.open()
bundle = work.model(store)
decider = Decider(store, bundle, scorer_of(bundle, "cpu"))
source = StreamSource(work.repo.client(), "payments", ends=True)
job = Job(Line(store, lambda: decider, Ledger(database), source.name), source, 7, 0)
job.run(progress=lambda figures: print(figures.decided, flush=True))
print("end", flush=True)
"""


@pytest.mark.heavy
def test_a_job_that_is_killed_neither_loses_nor_repeats(
    fresh: Callable[[], World], tmp_path: Path
) -> None:
    """SIGKILL after some batches, again and again, until one run comes to the end."""
    world = fresh()
    client = world.work.repo.client()
    count = 120
    for _, fields in world.records(count):
        client.xadd("payments", fields)
    client.xadd("payments", {"nothing": "of use"})
    database = f"sqlite:///{tmp_path / 'd.db'}"
    command = [sys.executable, "-c", KILLED, str(world.work.folder), str(REPO)]
    command += [world.server.connection_string, database]
    kills = 0
    for batches in (3, 1, 5, 10**9):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for number, said in enumerate(process.stdout, 1):
                if said.startswith("end"):
                    break
                if number == batches:
                    os.kill(process.pid, signal.SIGKILL)
                    kills += 1
                    break
    assert kills == 3
    with open_ledger(database) as ledger:
        rows = list(ledger.rows())
        assert len(ledger.dead_letters()) == 1
    assert sorted(row["transaction_id"] for row in rows) == sorted(f"new-{n}" for n in range(count))
    assert recorded(world) == count
    booster = world.bundle.booster()
    inputs = np.array([json.loads(row["inputs"]) for row in rows], np.float64).astype(np.float32)
    scores = np.array([row["score"] for row in rows], np.float32)
    np.testing.assert_array_equal(booster.inplace_predict(inputs), scores)


def test_events_of_a_batch_that_was_committed_are_not_lost(
    fresh: Callable[[], World], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job dies between the commit and the windows; the next one begins with what is left."""
    world = fresh()
    line = line_of(world, ledger)

    def die(self: Any, view: str, events: Any) -> None:
        assert view == EVENTS
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(hotplate.Hotplate, "ingest", die)
        with pytest.raises(KeyboardInterrupt):
            line.process(world.records(12), "1")
    assert recorded(world) == 0
    assert line_of(world, ledger).begin() == "1"
    assert recorded(world) == 12


@pytest.mark.heavy
def test_a_server_that_is_away_delays(fresh: Callable[[], World], ledger: Ledger) -> None:
    world = fresh()
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        world.server.resume()

    line = line_of(world, ledger, say=say)
    line.process(world.records(3, first=10, kind="check"))
    world.server.pause()
    try:
        found = line.process(world.records(5, kind="check"))
    finally:
        world.server.resume()
    assert len(found.answers) == 5
    assert any("payments wait" in line for line in said)


def test_a_model_of_another_service_is_refused(world: World) -> None:
    store = world.work.open()
    features = dict(world.bundle.features)
    for changed, match in (
        ({**features, "new": "Int64"}, "it lacks new"),
        ({name: kind for name, kind in features.items() if name != "card_count_1d"}, "adds card_"),
        ({**features, "card_count_1d": "String"}, "card_count_1d is Int64 and was String"),
    ):
        with pytest.raises(ModelRefused, match=match):
            Decider(store, replace(world.bundle, features=changed), None)  # type: ignore[arg-type]
    for made, match in (
        ({"xgboost": "99.1.0"}, "which may read it wrongly"),
        ({"xgboost": "3.2.0"}, ""),
    ):
        other = replace(world.bundle, made=made)
        if match:
            with pytest.raises(ModelRefused, match=match):
                other.booster()
        else:
            other.booster()
    with pytest.raises(ModelRefused, match="is no model of XGBoost"):
        replace(world.bundle, raw=b"{}").booster()
    turned = dict(reversed(features.items()))
    replace(world.bundle, features=turned).check(store)
    with pytest.raises(ModelRefused, match="the two are of different models"):
        replace(world.bundle, features=turned).booster()
