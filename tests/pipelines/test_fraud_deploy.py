"""Another version of the model goes live under load; every answer names the one that gave it."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from feast import FeatureStore

import hotplate
from pipelines.fraud.__main__ import main
from pipelines.fraud.bundle import ModelRefused, Models
from pipelines.fraud.decide import Layers
from pipelines.fraud.deploy import deploy, roll_back
from pipelines.fraud.ledger import open_ledger
from pipelines.fraud.line import Line
from pipelines.fraud.live import LiveModel, decider_of, warm
from pipelines.fraud.work import Work

from ..stores import await_
from .fraud_world import (
    REPO,
    Client,
    World,
    a_model,
    check_scores,
    payment,
    rows_of,
    serving,
)

pytest.importorskip("xgboost", reason="XGBoost is not installed")


@pytest.fixture
def work(world: World, tmp_path: Path) -> Work:
    """A folder with the versions one, two and three; one is current."""
    made = world.work(tmp_path / "run")
    store = made.open()
    for version in ("one", "two", "three"):
        made.models.save(a_model(store, version))
    made.models.make_current("one")
    return made


@pytest.fixture
def store(work: Work) -> FeatureStore:
    """The store over the folder."""
    return work.open()


def a_live_model(work: Work, store: FeatureStore, said: list[str], **more: Any) -> LiveModel:
    """One that looks when it is told to."""
    return LiveModel(
        work.models,
        lambda bundle: decider_of(store, bundle, "cpu", Layers()),
        say=said.append,
        **more,
    )


# -- under load -----------------------------------------------------------------------------------


def test_under_load_each_answer_names_the_version_that_computed_it(work: Work) -> None:
    """A switch and a rollback while four clients ask: payments, and questions that come again."""
    store, answers, stopped = work.open(), [], threading.Event()
    faults: list[Any] = []
    seen: Counter[str] = Counter()

    def ask(name: str, url: str) -> None:
        client, number = Client(url), 0
        while not stopped.is_set():
            number += 1
            kind = "check" if number % 2 else "payment"
            # questions stay on cards that pay nothing here, so that they are the same again
            card = number % 6 if kind == "check" else 10 + number % 20
            status, found = client.score(payment(f"load-{name}-{number}", card, kind=kind))
            if status != 200:
                faults.append((status, found))
                continue
            answers.append(found)
            seen[found["model_version"]] += 1
        client.close()

    def answered_by(version: str, more: int) -> None:
        want = seen[version] + more
        await_(lambda: seen[version] >= want or faults)

    with serving(work) as (url, said):
        threads = [threading.Thread(target=ask, args=(name, url)) for name in "abcd"]
        for thread in threads:
            thread.start()
        answered_by("one", 60)
        deploy(work, store, "two")
        answered_by("two", 60)
        assert roll_back(work, store) == "one"
        answered_by("one", 60)
        stopped.set()
        for thread in threads:
            thread.join()
    assert not faults
    assert [line for line in said if " is live" in line] == [
        "model two is live, in the place of one",
        "model one is live, in the place of two",
    ]
    rows = rows_of(work.database)
    assert len(rows) == len(answers)
    for answer in answers:
        row = rows[answer["transaction_id"]]
        assert answer == {name: row[name] for name in answer}
    check_scores(work, rows)
    layers = {(row["model_version"], row["layer"]) for row in rows.values()}
    assert {(version, layer) for version in ("one", "two") for layer in ("hit", "miss")} <= layers
    scores: dict[str, set[float]] = {}
    for row in rows.values():
        scores.setdefault(row["model_version"], set()).add(row["score"])
    assert not scores["one"] & scores["two"], "the versions can be told apart by their scores"


def test_a_job_goes_over_between_two_batches(work: Work, store: FeatureStore) -> None:
    """All of a batch is decided by one version, also where another goes live meanwhile."""
    said: list[str] = []
    live = a_live_model(work, store, said)

    class Watched:
        """Makes another version live in the middle of a batch, once it has its decider."""

        def __call__(self) -> Any:
            decider = live()
            if not said:
                work.models.make_current("two")
                assert live.look()
            return decider

    with open_ledger(work.database) as ledger:
        line = Line(store, Watched(), ledger, "test")
        for batch, version in (("first", "one"), ("second", "two")):
            records = [(f"{batch}{n}", payment(f"job-{batch}-{n}", n)) for n in range(20)]
            found = line.process(records)
            assert {row["model_version"] for row in found.answers.values()} == {version}
    check_scores(work, rows_of(work.database))


# -- what goes live, and what does not ------------------------------------------------------------


def test_a_refused_version_stays_out_and_a_good_one_comes_in(
    work: Work, store: FeatureStore
) -> None:
    """Whatever the pointer says: not there, changed on disk, of other features, no probability."""
    models, said = work.models, list[str]()
    live = a_live_model(work, store, said)
    assert not live.look(), "nothing has moved"

    def point(version: str) -> None:
        pointer = models.folder / "current.new"
        pointer.write_text(version)
        pointer.replace(models.folder / "current")

    other = a_model(store, "other")
    features = {"a_feature_of_another_time": "Float64", **other.features}
    models.save(replace(other, features=features))
    models.save(a_model(store, "hinge", objective="reg:squarederror", base_score=-50.0))
    (models.folder / "two" / "model.ubj").write_bytes(b"cut short")
    for version, why in (
        ("nowhere", "holds no model 'nowhere'"),
        ("two", "is not the file that model.json describes"),
        ("other", "the two are of different models"),
        ("hinge", "does not give one probability a payment"),
        ("../one", "holds no model '../one'"),
    ):
        point(version)
        assert not live.look()
        assert live.version == "one"
        assert why in live.refused
        assert said[-1].startswith("model one stays live, another was refused: ")
        with pytest.raises(ModelRefused, match=why):
            deploy(work, store, version, "cpu")
    assert live.counts == {"refused": 5}
    (models.folder / "current").unlink()
    assert not live.look()
    assert live.version == "one"
    models.make_current("three")
    assert live.look()
    assert (live.version, live.refused) == ("three", "")


def test_a_model_of_features_that_the_store_does_not_serve_is_refused(
    work: Work, store: FeatureStore
) -> None:
    """The registry has lost one since; a deployment is refused before the pointer moves."""
    live = a_live_model(work, store, [])
    service = store.get_feature_service("fraud_v2")
    service.feature_view_projections = service.feature_view_projections[:-1]
    store.apply([service])
    work.models.make_current("two")
    assert not live.look()
    assert "it lacks terminal_risk_score" in live.refused
    with pytest.raises(ModelRefused, match="it lacks terminal_risk_score"):
        deploy(work, store, "three", "cpu")
    assert work.models.current() == "two"


def test_a_fault_that_may_pass_is_tried_again(work: Work, store: FeatureStore) -> None:
    """And told once."""
    said, faults = list[str](), [OSError("the disk is away")] * 2

    def make(bundle: Any) -> Any:
        if bundle.version == "two" and faults:
            raise faults.pop()
        return decider_of(store, bundle, "cpu", Layers())

    live = LiveModel(work.models, make, say=said.append)
    work.models.make_current("two")
    assert [live.look() for _ in range(4)] == [False, False, True, False]
    assert said == [
        "model one stays live, another was refused: OSError: the disk is away",
        "model two is live, in the place of one",
    ]


def test_a_version_that_was_taken_back_while_it_was_loaded_never_goes_live(
    work: Work, store: FeatureStore
) -> None:
    """The pointer is looked at again before the switch."""
    made: list[str] = []

    def make(bundle: Any) -> Any:
        made.append(bundle.version)
        if bundle.version == "two":
            work.models.make_current("three")
        return decider_of(store, bundle, "cpu", Layers())

    said: list[str] = []
    live = LiveModel(work.models, make, say=said.append)
    work.models.make_current("two")
    assert not live.look()
    assert live.look()
    assert made == ["one", "two", "three"]
    assert said == ["model three is live, in the place of one"]


# -- warm before, let go after --------------------------------------------------------------------


def test_the_latest_payments_are_answered_from_the_cache_of_the_new_version(
    work: Work, store: FeatureStore
) -> None:
    """It has decided them once before it goes live; nothing of that is written down."""
    with open_ledger(work.database) as ledger:
        live = a_live_model(
            work, store, [], warm=lambda decider: warm(decider, ledger, lambda seconds: None)
        )
        line = Line(store, live, ledger, "test")

        def questions(batch: str) -> list[Any]:
            return [(f"{n}", payment(f"warm-{batch}-{n}", n, kind="check")) for n in range(30)]

        line.process(questions("first"))
        work.models.make_current("two")
        assert live.look()
        rows = line.process(questions("second")).answers
    assert {row["model_version"] for row in rows.values()} == {"two"}
    unkept = [row["score"] for row in rows.values() if row["layer"] != "hit"]
    assert len(unkept) < 25
    assert all(0.2 <= score <= 0.5 for score in unkept), "these a rule keeps out of the cache"
    found = rows_of(work.database)
    assert len(found) == 60
    check_scores(work, found)


def test_outputs_of_the_version_before_are_let_go_in_steps(
    work: Work, store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And stay where a rollback asks for them again."""
    monkeypatch.setattr("pipelines.fraud.live._RELEASED_AT_ONCE", 5)
    live = a_live_model(work, store, [])
    with open_ledger(work.database) as ledger:
        line = Line(store, live, ledger, "test")
        line.process([("before", payment("gone-before", 0, kind="check"))])
        # outputs of rows that are not known to be current are not kept
        await_(lambda: hotplate.of(store).stats().channel.is_whole)
        line.process([(f"{n}", payment(f"gone-{n}", n, kind="check")) for n in range(30)])
    outputs = live().outputs
    assert outputs is not None
    kept = outputs.stats().entries
    assert kept > 10
    work.models.make_current("two")
    assert live.look()
    live.release()
    assert outputs.stats().entries == kept - 5
    work.models.roll_back("one")
    assert live.look()
    assert live().outputs is outputs
    live.release()
    assert outputs.stats().entries == kept - 5
    work.models.make_current("three")
    assert live.look()
    for _ in range(kept):
        live.release()
    assert outputs.stats().entries == 0


# -- the pointer, and the command -----------------------------------------------------------------


def test_versions_before_the_current_one_are_remembered(work: Work) -> None:
    """Each rollback goes one further back; what is deployed then is remembered after that."""
    models = work.models
    models.make_current("two")
    models.make_current("three")
    models.make_current("three")
    assert models.before() == ["one", "two"]
    models.roll_back("two")
    models.roll_back("one")
    assert (models.current(), models.before()) == ("one", [])
    with pytest.raises(ModelRefused, match="not the version before the current one any more"):
        models.roll_back("two")
    models.make_current("three")
    assert models.before() == ["one"]
    for number in range(30):
        models.make_current(("one", "two")[number % 2])
    assert len(models.before()) == 20


def test_a_deployment_that_died_between_its_two_files_is_made_good(work: Work) -> None:
    """The history names the current version: it is not one before it."""
    (work.models.folder / "history").write_text("three\none\n")
    assert work.models.before() == ["three"]
    work.models.make_current("two")
    assert work.models.before() == ["three", "one"]


def test_the_pointer_is_whole_whoever_moves_it(work: Work) -> None:
    """Several at once: each is loaded, and each but the last is remembered."""
    models = [Models(work.models.folder) for _ in range(4)]
    start = threading.Barrier(len(models))

    def move(one: Models, version: str) -> None:
        start.wait()
        for _ in range(10):
            one.make_current(version)

    names = ("one", "two", "three", "one")
    threads = [threading.Thread(target=move, args=pair) for pair in zip(models, names, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    chain = [*work.models.before(), work.models.current()]
    assert set(chain) <= {"one", "two", "three"}
    assert all(a != b for a, b in itertools.pairwise(chain)), "none follows itself"


def test_the_command_deploys_and_rolls_back(work: Work, world: World) -> None:
    """What is refused is one line, and leaves the pointer."""

    def run(*arguments: str) -> tuple[int, str]:
        given = ["--repo", str(REPO), "--work", str(work.folder)]
        given += ["--redis", world.server.connection_string, "deploy", *arguments]
        found = CliRunner().invoke(main, given)
        return found.exit_code, found.output

    assert run("two", "--device", "cpu") == (0, "model two is current\n")
    status, said = run("four")
    assert status == 1
    assert "holds no model 'four'; there are: one, two, three" in said
    assert work.models.current() == "two"
    assert run("--rollback") == (0, "model one is current\n")
    status, said = run("--rollback")
    assert status == 1
    assert "remembers no version before the current one" in said
    assert run()[0] == 2
