"""Decisions over HTTP: each payment once, whatever is asked and whatever dies."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from pipelines.fraud.batches import Asked, Batches, QueueFull
from pipelines.fraud.decide import Layers
from pipelines.fraud.endpoint import Limits, Service
from pipelines.fraud.ledger import Ledger, open_ledger
from pipelines.fraud.line import Line, Processed
from pipelines.fraud.live import decider_of
from pipelines.fraud.payments import DeadLetter, read_records
from pipelines.fraud.readiness import Readiness
from pipelines.fraud.serve import ServeSettings, _store_check, served
from pipelines.fraud.telemetry import Telemetry
from pipelines.fraud.work import Work
from pipelines.lab.proxy import Proxy

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

COLD = Layers.without(["warming"])
ANSWER = {"transaction_id", "score", "decision", "reason", "model_version", "layer"}


@pytest.fixture(scope="module")
def models(world: World, tmp_path_factory: pytest.TempPathFactory) -> Work:
    """A folder with a current version, for all tests here."""
    return a_folder(world, tmp_path_factory.mktemp("models"))


@pytest.fixture
def work(models: Work, tmp_path: Path) -> Work:
    """The same, with a database of its own."""
    made = cast(Any, SimpleNamespace(**vars(models)))
    made.open, made.recent = models.open, models.recent
    made.database = f"sqlite:///{tmp_path / 'decisions.db'}"
    return cast(Work, made)


def a_folder(world: World, folder: Path, redis: str = "") -> Work:
    """A folder with a current version."""
    made = world.work(folder, redis)
    made.models.save(a_model(made.open(), "one"))
    made.models.make_current("one")
    return made


def test_a_restart_comes_up_with_what_was_hot(world: World, tmp_path: Path) -> None:
    """Within its budget of time, before it is ready: what the process before it held."""
    work = a_folder(world, tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(world.folder / "data" / "payments.parquet", data)
    said: list[str] = []
    for turn in range(2):
        database = f"sqlite:///{tmp_path / f'{turn}.db'}"
        with served(work, database, say=said.append):
            pass
    told = len(said)
    (first,) = [line for line in said if line.startswith("read ")]
    (second,) = [line for line in said if line.startswith("preloaded ")]
    # rows that are read before the channel is whole are not kept, and so not preloaded
    read, kept, of = (
        int(line.split()[at].replace(",", ""))
        for line, at in ((first, 1), (second, 1), (second, 3))
    )
    assert 0 < kept == of <= read
    with served(work, f"sqlite:///{tmp_path / '3.db'}", ServeSettings(layers=COLD), said.append):
        assert len(said) == told + 1, "of the model"


def dead_letters(database: str) -> list[Mapping[str, Any]]:
    """The records that were no payments."""
    with open_ledger(database) as ledger:
        return ledger.dead_letters()


_FORKS: str = """
import json, os, sys
from pipelines.fraud.__main__ import main
import pipelines.fraud.serve
for line in sys.stdin:
    if not (pid := os.fork()):
        os.dup2(2, 1)
        main(json.loads(line))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Programs:
    """Processes of `python -m pipelines.fraud`, one after the other, forked from one that has
    imported Feast.

    Args:
        log: where all that they say goes.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        with log.open("w") as file:
            self._parent = subprocess.Popen(
                [sys.executable, "-u", "-c", _FORKS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                cwd=REPO.parent,
            )
        self._pid = 0

    def _told(self) -> int:
        assert self._parent.stdout is not None
        return int(self._parent.stdout.readline())

    def start(self, *arguments: str) -> None:
        """Begin one."""
        assert self._parent.stdin is not None
        self._parent.stdin.write(json.dumps(arguments) + "\n")
        self._parent.stdin.flush()
        self._pid = self._told()

    def end(self, number: int) -> int:
        """Send it a signal; returns its exit status."""
        os.kill(self._pid, number)
        return self._told()

    def said(self) -> str:
        """What all of them have said."""
        return self._log.read_text()

    def urls(self) -> list[str]:
        """Where those that serve have listened, the latest last."""
        return re.findall(r"(http://\S+)/score", self.said())

    def close(self) -> None:
        """End the one they are forked from."""
        self._parent.communicate(timeout=60)


@pytest.fixture(scope="module", autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Made before the first test, so that Feast is imported while others run."""
    made = Programs(tmp_path_factory.mktemp("programs") / "said")
    yield made
    made.close()


# -- what is asked, and answered ------------------------------------------------------------------


def test_a_payment_is_decided_once_whoever_asks_and_however_often(work: Work) -> None:
    """Sixteen clients ask for the same payments at once; each has one decision, and one row."""
    answers: list[Any] = []

    def ask(url: str) -> None:
        client = Client(url)
        answers.extend(client.score(payment(f"once-{n}", n)) for n in range(20))
        client.close()

    with serving(work) as (url, _):
        threads = [threading.Thread(target=ask, args=(url,)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {status for status, _ in answers} == {200}
    rows = rows_of(work.database)
    assert len(rows) == 20
    assert len(answers) == 16 * 20
    for _, answer in answers:
        assert set(answer) == ANSWER
        assert answer == {name: rows[answer["transaction_id"]][name] for name in ANSWER}
    check_scores(work, rows)


WRONG = [
    (b"", "not a JSON record: Input data was truncated"),
    (b'{"transaction_id": "x"', "not a JSON record: Input data was truncated"),
    (b"[1, 2]", "not a JSON record: Expected `object`, got `array`"),
    (b'{"amount": [1]}', "not a JSON record: Expected `bool | int | float | str | null`"),
    (b'{"amount": {"a": 1}}', "got `object` - at `$.amount`"),
    (b'{"amount": 1e999}', "Number out of range - at `$.amount`"),
    (b'{"more": ' + b"[" * 7_000 + b"]" * 7_000 + b"}", "not a JSON record: nested too deep"),
    (b'{"transaction_id": "\xff"}', "not a JSON record: Invalid UTF-8"),
    (b"\0\0\0", "not a JSON record"),
    ({}, "transaction_id is missing"),
    (payment("y\0z"), "transaction_id holds a NUL"),
    (payment("y" * 129), "transaction_id is longer than 128 characters"),
    (payment("y", customer_id=None), "customer_id is missing"),
    (payment("y", customer_id=2**64), "customer_id does not fit 64 bits"),
    (payment("y", terminal_id=1.5), "terminal_id is no whole number"),
    (payment("y", amount=10**400), "amount is no number"),
    (payment("y", amount=1e300), "amount is above 1e+15"),
    (payment("y", amount=-1), "amount is negative"),
    (payment("y", kind="gift"), "kind is none of"),
    (payment("y", at="yesterday"), "at is no time"),
    (payment("y", at=1_700_000_000), "at lies before 2000"),
]


def test_what_is_no_payment_is_told_why_and_stops_nothing(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is a dead letter; payments that are asked for meanwhile are decided."""
    stopped, good = threading.Event(), list[Any]()

    def ask(url: str) -> None:
        client, number = Client(url), 0
        while not (stopped.is_set() and number > 20):
            number += 1
            good.append(client.score(payment(f"good-{number}", number)))
        client.close()

    with serving(work) as (url, _):
        thread = threading.Thread(target=ask, args=(url,))
        thread.start()
        client = Client(url)
        for record, why in WRONG:
            status, found = client.score(record)
            assert status == 400, (record, found)
            assert why in found["error"]
        stopped.set()
        thread.join()
        client.close()
    assert {status for status, _ in good} == {200}
    assert len(rows_of(work.database)) == len(good)
    letters = dead_letters(work.database)
    assert len(letters) == len(WRONG)
    assert {letter["source"] for letter in letters} == {"http"}
    assert not caplog.records


def test_paths_methods_and_sizes(work: Work) -> None:
    """Nothing but four paths; no body over the limit, whether it says its size or not."""
    with serving(work, settings=ServeSettings(Limits(body_bytes=500))) as (url, _):
        client = Client(url)
        assert client.ask("GET", "/")[0] == 404
        assert client.ask("POST", "/score/", {})[0] == 404
        status, found, headers = client.ask("GET", "/score")
        assert (status, found, headers["allow"]) == (405, {"error": "use POST"}, "POST")
        assert client.ask("POST", "/healthz")[0] == 405
        assert client.ask("GET", "/healthz")[0] == 200
        assert client.ask("GET", "/readyz")[:2] == (200, {"ready": True, "faults": {}})
        status, found, _ = client.ask("POST", "/score", b"x" * 501)
        assert (status, found) == (413, {"error": "more than 500 bytes"})
        assert client.score(payment("sized"))[0] == 200
        client._line.request("POST", "/score", iter([b"x" * 300] * 2), encode_chunked=True)
        assert client._line.getresponse().status == 413
        client.close()
    assert not dead_letters(work.database)


def test_what_is_counted_names_no_payment(work: Work) -> None:
    """Prometheus' text: decisions by version and layer, latencies, the queue; no ids."""
    with serving(work) as (url, _):
        client = Client(url)
        for n in (1, 1, 2):
            client.score(payment(f"counted-{n}", n, kind="payout"))
        client.score({"transaction_id": "counted-wrong"})
        status, text, headers = client.ask("GET", "/metrics")
        client.close()
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    decided = {name: value for name, value in found.items() if "decisions_total" in name}
    assert sum(map(float, decided.values())) == 2
    assert all('layer="rule",model_version="one"' in name for name in decided)
    assert found['fraud_requests_total{status="200"}'] == "3.0"
    assert found['fraud_requests_total{status="400"}'] == "1.0"
    assert found["fraud_request_seconds_count"] == "4.0"
    assert found['fraud_request_seconds_bucket{le="+Inf"}'] == "4.0"
    assert found["fraud_repeated_total"] == found["fraud_dead_letters_total"] == "1.0"
    assert found["fraud_queue_length"] == found["fraud_model_refused"] == "0.0"
    assert found['fraud_model_live{model_version="one"}'] == "1.0"
    assert "counted-" not in text


def test_labels_stay_few_however_many_versions_go_by() -> None:
    """The latest four are kept, and a rule is a rule whatever its name."""
    told = Telemetry(lambda: 3, lambda: "v29", lambda: True)
    for number in range(30):
        decided = SimpleNamespace(
            decisions=["review", "review"],
            layers=[f"rule: r{number}", "hit"],
            model_version=f"v{number}",
        )
        found = SimpleNamespace(payments=[1, 2], repeated=0, dead=[], decided=[decided])
        told.batch(cast(Processed, found), 0.01)
    lines = [line for line in told.text().decode().splitlines() if "decisions_total{" in line]
    assert len(lines) == 8
    assert {line.partition("model_version=")[2][:6] for line in lines} == {
        f'"v{number}"}}'[:6] for number in (26, 27, 28, 29)
    }
    assert "fraud_queue_length 3.0" in told.text().decode()
    assert "fraud_model_refused 1.0" in told.text().decode()


# -- the queue ------------------------------------------------------------------------------------


class FakeLine:
    """Decides at once, or when it is let; some payments are beyond it."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.poisoned: set[str] = set()

    def begin(self) -> None:
        """Nothing is undone."""

    def process(
        self, records: Sequence[Any], position: Any = None, unread: Sequence[DeadLetter] = ()
    ) -> Processed:
        """Decide; raises where one of them is poisoned."""
        payments, dead = read_records(records, 10**12)
        ids = list(payments.transaction_ids)
        self.batches.append(ids)
        self.goes_on.wait(30)
        if self.poisoned & set(ids):
            raise ValueError(f"cannot decide {ids}")
        answers = {one: dict.fromkeys(ANSWER, 0) | {"transaction_id": one} for one in ids}
        return Processed(payments, answers, [*dead, *unread], None, 0)


class Asker:
    """A service over a line, asked without a socket."""

    def __init__(self, line: Any, limits: Limits | None = None, **more: Any) -> None:
        self.line = line
        self.batches = Batches(cast(Line, line), **more)
        self.batches.start()
        telemetry = Telemetry(lambda: len(self.batches), lambda: "one", lambda: False)
        readiness = Readiness({"line": self.batches.check})
        self.service = Service(self.batches, readiness, telemetry, limits)

    async def ask(
        self, body: Any, method: str = "POST", path: str = "/score"
    ) -> tuple[int, Any, dict[bytes, bytes]]:
        """Status, body and headers."""
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": json.dumps(body).encode()}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.service({"path": path, "method": method, "headers": []}, receive, send)
        text = sent[1]["body"]
        return sent[0]["status"], json.loads(text) if text else None, dict(sent[0]["headers"])


@pytest.fixture
def asker() -> Iterator[Callable[..., Asker]]:
    """Makes services, and ends their lines."""
    made: list[Asker] = []

    def make(*given: Any, **more: Any) -> Asker:
        made.append(Asker(FakeLine(), *given, **more))
        return made[-1]

    yield make
    for one in made:
        one.line.goes_on.set()
        assert one.batches.close(30)


async def until(is_so: Callable[[], Any]) -> None:
    """Let others run until something is so."""
    while not is_so():  # noqa: ASYNC110 - of what other threads do there is no event
        await asyncio.sleep(0.001)


async def test_requests_that_arrive_during_a_batch_form_the_next(
    asker: Callable[..., Asker],
) -> None:
    """Up to its size; each is answered with its own decision."""
    made = asker(size=8)
    made.line.goes_on.clear()
    first = asyncio.ensure_future(made.ask(payment("0")))
    await until(lambda: made.line.batches)
    rest = [asyncio.ensure_future(made.ask(payment(f"{n}"))) for n in range(1, 13)]
    await until(lambda: len(made.batches) == 12)
    made.line.goes_on.set()
    found = await asyncio.gather(first, *rest)
    assert [(status, said["transaction_id"]) for status, said, _ in found] == [
        (200, f"{n}") for n in range(13)
    ]
    sizes = [len(batch) for batch in made.line.batches]
    assert sizes == [1, 8, 4]


async def test_a_full_queue_says_so_at_once(asker: Callable[..., Asker]) -> None:
    """503, and when to ask again; those in the queue are answered."""
    made = asker(most_waiting=3)
    made.line.goes_on.clear()
    first = asyncio.ensure_future(made.ask(payment("0")))
    await until(lambda: made.line.batches)
    rest = [asyncio.ensure_future(made.ask(payment(f"{n}"))) for n in range(1, 4)]
    await until(lambda: len(made.batches) == 3)
    status, _, headers = await made.ask(payment("4"))
    assert (status, headers[b"retry-after"]) == (503, b"1")
    made.line.goes_on.set()
    assert [status for status, *_ in await asyncio.gather(first, *rest)] == [200] * 4


async def test_what_nobody_waits_for_any_more_is_not_begun(asker: Callable[..., Asker]) -> None:
    """A deadline in the queue is 504; the one under way is decided, and can be asked for again."""
    made = asker(Limits(deadline_s=0.02))
    made.line.goes_on.clear()
    under_way = asyncio.ensure_future(made.ask(payment("0")))
    await until(lambda: made.line.batches)
    found = await asyncio.gather(under_way, *(made.ask(payment(f"{n}")) for n in range(1, 5)))
    assert [status for status, *_ in found] == [504] * 5
    assert "ask again" in found[0][1]["error"]
    made.line.goes_on.set()
    await until(lambda: not len(made.batches))
    assert made.batches.close(30)
    assert made.line.batches == [["0"]]


async def test_a_payment_that_cannot_be_decided_stops_no_other(
    asker: Callable[..., Asker], caplog: pytest.LogCaptureFixture
) -> None:
    """The others of its batch are decided without it; the log says where, and no id."""
    made = asker()
    made.line.poisoned = {"secret-2"}
    made.line.goes_on.clear()
    first = asyncio.ensure_future(made.ask(payment("secret-0")))
    await until(lambda: made.line.batches)
    rest = [asyncio.ensure_future(made.ask(payment(f"secret-{n}"))) for n in range(1, 5)]
    await until(lambda: len(made.batches) == 4)
    made.line.goes_on.set()
    found = await asyncio.gather(first, *rest)
    assert [status for status, *_ in found] == [200, 200, 500, 200, 200]
    assert len(caplog.records) == 2
    assert "ValueError in process" in caplog.text
    assert "secret" not in caplog.text
    assert (await made.ask(payment("secret-5")))[0] == 200


async def test_a_process_that_is_leaving_is_not_ready_and_takes_nothing(
    asker: Callable[..., Asker],
) -> None:
    """What is under way is answered all the same."""
    made = asker()
    assert (await made.ask(None, "GET", "/readyz"))[0] == 200
    made.line.goes_on.clear()
    first = asyncio.ensure_future(made.ask(payment("0")))
    await until(lambda: made.line.batches)
    made.service.leave()
    status, said, _ = await made.ask(None, "GET", "/readyz")
    assert (status, said["faults"]) == (503, {"process": "shutting down"})
    status, _, headers = await made.ask(payment("1"))
    assert (status, headers[b"connection"]) == (503, b"close")
    assert (await made.ask(None, "GET", "/healthz"))[0] == 200
    made.line.goes_on.set()
    assert (await first)[0] == 200
    assert made.batches.close(30)
    with pytest.raises(QueueFull):
        await made.batches.ask(Asked("2"))
    assert (await made.ask(None, "GET", "/healthz"))[0] == 503


async def test_a_line_that_cannot_begin_is_not_alive(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing helps but a restart, so the probe of life says so."""
    line = FakeLine()

    def begin() -> None:
        raise ValueError("with a secret")

    line.begin = begin  # type: ignore[method-assign]
    made = Asker(line)
    await until(lambda: not made.batches.is_alive)
    assert (await made.ask(None, "GET", "/healthz"))[0] == 503
    status, said, _ = await made.ask(None, "GET", "/readyz")
    assert (status, said["faults"]) == (503, {"line": "RuntimeError"})
    assert "the line cannot begin: ValueError in begin" in caplog.text
    assert "secret" not in caplog.text


# -- ready or not ---------------------------------------------------------------------------------


async def test_a_check_that_hangs_holds_up_nobody() -> None:
    """It is named, and those behind it; a second probe does not ask a second time."""
    hangs, asked = threading.Event(), list[str]()

    def hang() -> None:
        asked.append("hang")
        hangs.wait(30)

    now_s = [0.0]
    checks = {"good": lambda: None, "hangs": hang, "behind": lambda: None}
    readiness = Readiness(checks, 0.02, lambda: now_s[0])
    silent = "no answer within 0.02 s"
    for _ in range(2):
        assert await readiness.faults() == {"hangs": silent, "behind": silent}
    hangs.set()
    await until(lambda: readiness._round.done())
    assert await readiness.faults() == {}
    assert asked == ["hang"]
    now_s[0] = 1.0
    assert await readiness.faults() == {}
    assert asked == ["hang"] * 2, "a round is not as good as new any more"


async def test_a_store_that_is_gone_is_named(world: World, tmp_path: Path) -> None:
    """And is ready again when it is back."""
    with Proxy(("127.0.0.1", world.server.port)) as proxy:
        check = _store_check(world.work(tmp_path / "run", proxy.connection_string))
        check()
        proxy.refuse()
        proxy.reset()
        assert set(await Readiness({"store": check}, 0.05).faults()) == {"store"}
        proxy.heal()
        assert await Readiness({"store": check}).faults() == {}


# -- what dies ------------------------------------------------------------------------------------


def test_the_decision_that_was_written_first_is_everybodys(work: Work) -> None:
    """Two processes decide the same payments at once: both answer what the ledger has."""

    class Late(Ledger):
        """Hears of no decision the first time it asks, as if another came a moment later."""

        has_asked = False

        def known(self, transaction_ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
            found = super().known(transaction_ids) if self.has_asked else {}
            self.has_asked = True
            return found

    store = work.open()
    work.models.save(a_model(store, "two"))
    answers = []
    for version, ledger in (("one", Ledger(work.database)), ("two", Late(work.database))):
        decider = decider_of(store, work.models.load(version), "cpu", Layers())
        line = Line(store, lambda decider=decider: decider, ledger, version)  # type: ignore[misc]
        records = [(f"{n}", payment(f"race-{n}", n)) for n in range(10)]
        answers.append(line.process(records[: 5 if version == "one" else 10]).answers)
        ledger.close()
    rows = rows_of(work.database)
    assert Counter(row["model_version"] for row in rows.values()) == {"one": 5, "two": 5}
    for some in answers:
        for transaction_id, answer in some.items():
            assert {name: answer[name] for name in ANSWER} == {
                name: rows[transaction_id][name] for name in ANSWER
            }
    check_scores(work, rows)


@pytest.fixture
def own_database(postgres: dict[str, Any]) -> Iterator[tuple[str, Proxy]]:
    """A database of Postgres behind a proxy: the URL of it."""
    where = {name: postgres[name] for name in ("host", "port", "user", "password")}
    with psycopg.connect(**where, dbname="postgres", autocommit=True) as line:
        line.execute("DROP DATABASE IF EXISTS served")
        line.execute("CREATE DATABASE served")
    with Proxy((postgres["host"], postgres["port"])) as proxy:
        login = f"{postgres['user']}:{postgres['password']}"
        yield f"postgresql+psycopg://{login}@{proxy.connection_string}/served", proxy


def test_a_database_that_is_down_delays_decisions_and_loses_none(
    work: Work, own_database: tuple[str, Proxy]
) -> None:
    """It goes while clients ask, and comes back; each is answered what the database has."""
    database, proxy = own_database
    answers: list[Any] = []
    stopped = threading.Event()

    def ask(name: str, url: str) -> None:
        client, number = Client(url), 0
        while not stopped.is_set():
            number += 1
            answers.append(client.score(payment(f"down-{name}-{number}", number)))
        client.close()

    with serving(work, database, ServeSettings(Limits(deadline_s=60))) as (url, said):
        threads = [threading.Thread(target=ask, args=(name, url)) for name in "abcd"]
        for thread in threads:
            thread.start()
        await_(lambda: len(answers) > 40)
        proxy.refuse()
        proxy.reset()
        probe = Client(url)
        await_(lambda: any("the database does not answer" in line for line in said))
        await_(lambda: probe.ask("GET", "/readyz")[0] == 503)
        assert probe.ask("GET", "/readyz")[1]["faults"] == {"ledger": "LedgerError"}
        assert probe.ask("GET", "/healthz")[0] == 200
        while_down = len(answers)
        proxy.heal()
        await_(lambda: len(answers) > while_down + 40)
        await_(lambda: probe.ask("GET", "/readyz")[0] == 200)
        probe.close()
        stopped.set()
        for thread in threads:
            thread.join()
    assert {status for status, _ in answers} == {200}
    assert any("the database is back" in line for line in said)
    rows = rows_of(database)
    assert len(rows) == len(answers)
    for _, answer in answers:
        assert answer == {name: rows[answer["transaction_id"]][name] for name in ANSWER}
    check_scores(work, rows)


def asked_until_it_dies(url: str, name: str, answers: dict[str, Any], begun: list[str]) -> None:
    """Ask until nobody answers."""
    client, number = Client(url), 0
    while True:
        number += 1
        transaction_id = f"killed-{name}-{number}"
        begun.append(transaction_id)
        try:
            status, found = client.score(payment(transaction_id, number))
        except (OSError, http.client.HTTPException):
            return
        if status == 503:
            return
        assert status == 200, found
        answers[transaction_id] = found


@pytest.mark.heavy
def test_a_killed_process_loses_and_repeats_nothing_and_a_terminated_one_answers_first(
    world: World, tmp_path: Path, programs: Programs
) -> None:
    """Killed while clients ask, started again: the same answers, also for what it did not get to
    say. Then SIGTERM while clients ask: none is left without a word, and the process ends well."""
    work = a_folder(world, tmp_path / "run")
    answers, begun = dict[str, Any](), list[str]()
    given = ["--repo", str(REPO), "--work", str(work.folder)]
    given += ["--redis", world.server.connection_string, "serve", "--port", "0"]

    def serve() -> str:
        before = len(programs.urls())
        programs.start(*given)
        await_(lambda: len(programs.urls()) > before, 120)
        return programs.urls()[-1]

    def clients(url: str, some: str) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=asked_until_it_dies, args=(url, name, answers, begun))
            for name in some
        ]
        for thread in threads:
            thread.start()
        return threads

    threads = clients(serve(), "abcd")
    await_(lambda: len(answers) > 100)
    assert programs.end(signal.SIGKILL) == -signal.SIGKILL
    for thread in threads:
        thread.join()
    told, asked, written = dict(answers), list(begun), rows_of(work.database)
    assert set(told) <= set(written), "what was answered is written"
    url = serve()
    client = Client(url)
    for transaction_id in asked:
        status, found = client.score(payment(transaction_id, int(transaction_id.split("-")[2])))
        assert status == 200
        assert found == told.get(transaction_id, found)
        before = written.get(transaction_id)
        assert before is None or found == {name: before[name] for name in ANSWER}
    client.close()
    threads = clients(url, "efgh")
    await_(lambda: len(answers) > len(told) + 100)
    assert programs.end(signal.SIGTERM) == 0, programs.said()
    for thread in threads:
        thread.join()
    rows = rows_of(work.database)
    assert set(rows) == {*asked, *answers}, "what was decided was answered"
    for transaction_id, answer in answers.items():
        assert answer == {name: rows[transaction_id][name] for name in ANSWER}
    check_scores(work, rows)
    assert "killed-" not in programs.said()
    assert "Traceback" not in programs.said()
