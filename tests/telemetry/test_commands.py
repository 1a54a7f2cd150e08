"""`hotplate stats`, `top`, `metrics` and `inspect`: what they show, and what they say when they
cannot."""

from __future__ import annotations

import http.server
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from rich.console import Console

import hotplate
from hotplate.cli import main
from hotplate.cli_metrics import shown
from hotplate.stats import GroupCounters
from hotplate.telemetry.catalogue import CATALOGUE, Sample
from hotplate.telemetry.files import ProcessFiles
from hotplate.telemetry.reading import read_folder
from hotplate.telemetry.summary import summarize

from ..operations.deployments import PLUGINS, command
from ..served import free_port
from ..stores import Repo
from .conftest import ask, write


def run(*arguments: str) -> Result:
    """A command, here."""
    return CliRunner().invoke(main, list(arguments))


@contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[str]:
    """The address of something that answers so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


def test_stats_shows_what_is_counted(measured: Callable[..., Repo], folder: Path) -> None:
    """From the folder, from an endpoint, and as JSON: the same."""
    repo = measured()
    for user in (1, 1, 2, 3, 3):
        ask(repo, user)
    write(repo)
    group = hotplate.of(repo.hot).stats().groups["profile"]
    shown = run("stats", "--folder", str(folder), "--json")
    found = json.loads(shown.output)
    assert found["groups"]["profile"]["reads"] == group.reads == 5
    assert found["groups"]["profile"]["hit_rate"] == pytest.approx(group.hit_rate)
    text = run("metrics", "--folder", str(folder)).output
    with answering(text.encode()) as url:
        assert json.loads(run("stats", "--url", url, "--json").output) == found
    table = run("stats", "--folder", str(folder)).output
    assert re.search(r"profile .* 30s .* 5 .* 40\.0%", table)
    assert command(repo, "stats", "--json").output == shown.output  # by feature_store.yaml


def test_top_shows_what_happens_between_two_looks(
    measured: Callable[..., Repo], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rates are of the time between, not since the start; a counter that fell began anew."""
    repo = measured()
    ask(repo, *range(100))
    write(repo)

    def busy(seconds: float) -> None:
        ask(repo, 1, 2, 3)
        write(repo)

    clock = SimpleNamespace(sleep=busy, monotonic=time.monotonic)
    monkeypatch.setattr("hotplate.cli_metrics.time", clock)
    shown = run("top", "--folder", str(folder), "--count", "2", "--json")
    lines = [json.loads(line) for line in shown.output.splitlines()]
    assert [line["groups"]["profile"]["reads"] for line in lines] == [3, 3]
    assert lines[0]["groups"]["profile"]["hit_rate"] == 1.0
    assert all(line["seconds"] > 0 for line in lines)


def test_metrics_serves_prometheus(measured: Callable[..., Repo], folder: Path) -> None:
    """In a process of its own, until Ctrl-C, whose exit code it has."""
    repo = measured()
    ask(repo, 1)
    write(repo)
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "hotplate.cli", "metrics", "--folder", str(folder)]
        + ["--serve", str(port)],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": PLUGINS},
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stderr is not None
        assert f"http://127.0.0.1:{port}/metrics" in process.stderr.readline()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert b"hotplate_misses_total" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/secrets", timeout=30)
        caught.value.close()
    finally:
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
    assert (process.returncode, said) == (130, "")


def test_the_dashboard_and_the_alerts_use_metrics_that_exist() -> None:
    """Every name in them is in the catalogue, with labels that it has."""
    dashboard = json.loads(run("metrics", "--dashboard").output)
    asked = [one["expr"] for panel in dashboard["panels"] for one in panel.get("targets", [])]
    asked += [
        one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"
    ]
    alerts = yaml.safe_load(run("metrics", "--alerts").output)
    asked += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    assert len(asked) > 50
    known = {
        name: (*metric.labels, *(["le"] if metric.kind == "histogram" else []))
        for name, metric in CATALOGUE.items()
    }
    used = set()
    for expression in asked:
        for name, selected in re.findall(r"\b(hotplate_\w+)(?:\{([^}]*)\})?", expression):
            base = re.sub(r"_(bucket|sum|count)$", "", name) if name not in known else name
            assert base in known, f"{name} in {expression}"
            labels = set(re.findall(r"(\w+)\s*[=!]", selected))
            assert labels <= set(known[base]), f"{labels} of {name} in {expression}"
            used.add(base)
        for by in re.findall(r"by \(([^)]*)\)", expression):
            assert set(re.split(r",\s*", by)) <= {
                label for labels in known.values() for label in labels
            }
    assert len(used) > 40
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("stats", "--folder", "/nonexistent"), 1, "is no folder"),
        (("top", "--folder", "/nonexistent"), 1, "is no folder"),
        (("metrics", "--folder", "/nonexistent"), 1, "is no folder"),
        (("stats", "--url", "ftp://x"), 1, "write http://HOST:PORT/metrics"),
        (("stats", "--url", "http://127.0.0.1:9"), 1, "does not answer"),
        (("stats", "--url", "http://127.0.0.1:abc/metrics"), 1, "is no address"),
        (("stats", "--url", "http://local host/metrics"), 1, "is no address"),
        (("metrics", "--folder", "/tmp", "--serve", "²"), 2, "is no address"),
        (("stats", "--url", "http://x", "--folder", "/tmp"), 2, "name one of them"),
        (("top", "--every", "nonsense"), 2, "'nonsense'"),
        (("top", "--every", "1ms"), 2, "between 100ms and 1h"),
        (("metrics", "--folder", "/tmp", "--serve", "port"), 2, "is no address"),
        (
            ("metrics", "--folder", "/tmp", "--serve", "203.0.113.1:9464"),
            1,
            "cannot be listened at",
        ),
        (("metrics", "--dashboard", "--alerts"), 2, "choose one"),
        (("stats", "-c", "/"), 1, "holds no feature_store.yaml"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: tuple[str, ...], code: int, said: str) -> None:
    """It names what is wrong and what to write, and is no stack trace."""
    shown = run(*arguments)
    assert (shown.exit_code, said in shown.output) == (code, True), shown.output
    assert "Traceback" not in shown.output
    assert shown.exception is None or isinstance(shown.exception, SystemExit)


def test_an_endpoint_of_something_else(folder: Path) -> None:
    """A page that is no metrics, an error, and an endpoint without Hotplate's are told apart."""
    with answering(b"<html>hello {</html>") as url:
        assert "something else than metrics" in run("stats", "--url", url).output
    with answering(b"", 500) as url:
        assert "does not answer (Internal Server Error)" in run("stats", "--url", url).output
    with answering(b"# TYPE a counter\na_total 1\n") as url:
        assert "nothing is counted there yet" in run("stats", "--url", url).output


def test_a_folder_with_garbage(
    measured: Callable[..., Repo], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files that are cut short or something else are left out and named; the others are shown."""
    repo = measured()
    ask(repo, 1)
    write(repo)
    good = next(folder.glob("counter_*.db")).read_bytes()
    (folder / "counter_hotplate-1-1-1-1.db").write_bytes(b"\xff\xff")
    (folder / "counter_hotplate-1-1-1-2.db").write_bytes(good[:100])
    (folder / "histogram_hotplate-1-1-1-2.db").write_bytes(b"12345")
    for verb, *more in (("stats", "--json"), ("metrics",)):
        shown = run(verb, "--folder", str(folder), *more)
        assert shown.exit_code == 0, shown.output
        assert "profile" in shown.output
    for name in ("counter_hotplate-1-1-1-1.db", "counter_hotplate-1-1-1-2.db"):
        assert f"{name}: is damaged" in caplog.text


def test_a_narrow_terminal_loses_nothing(measured: Callable[..., Repo], folder: Path) -> None:
    """What does not fit beside each other stands below, with the names again, in plain letters."""
    repo = measured()
    for _ in range(70):
        ask(repo, 1, 2)
    write(repo)
    summary = summarize(read_folder(folder))
    for width in (160, 80, 60, 40):
        console = Console(width=width, file=io.StringIO())
        console.print(shown(summary, width))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        text.encode("ascii")
        for header in ("ttl", "reads", "hits", "errors", "age p50", "p99", "max", "memory"):
            assert header in text, (width, header)
        assert all(len(line.rstrip()) <= width for line in text.splitlines()[3:]), width
        assert text.count("profile") == len(re.findall(r"^group ", text, re.MULTILINE))


def test_rows_that_prove_nothing_are_not_compared(folder: Path) -> None:
    """The bound that is shown is that of `mismatch_interval`: stale rows do not narrow it."""
    files = ProcessFiles(folder, 0)
    counts = {"equal": 10, "stale": 1_000, "overtaken": 7, "differed": 2}
    shadow = CATALOGUE["hotplate_shadow_rows_total"]
    files.write([Sample(shadow, ("p", "g", word), n) for word, n in counts.items()], {})
    group = summarize(read_folder(folder)).groups["g"]
    counters = GroupCounters("g")
    for word, count in counts.items():
        setattr(counters, f"shadow_{word}", count)
    held = counters.snapshot()
    assert (group.compared, group.differed) == (held.shadow_compared, 2) == (12, 2)
    assert group.mismatch_high == held.mismatch_interval[1]
    files.close()


def test_damage_of_a_process_that_has_ended_is_left_out(
    measured: Callable[..., Repo], folder: Path
) -> None:
    """As after a power cut: the others are shown all the same."""
    repo = measured()
    ask(repo, 1)
    write(repo)
    here = os.stat("/proc/self/ns/pid").st_ino
    (folder / f"counter_hotplate-99999999-1-{here}-1.db").write_bytes(b"")
    shown = run("stats", "--folder", str(folder), "--json")
    assert shown.exit_code == 0, shown.output


def test_without_the_setting_it_is_said(make_repo: Callable[..., Repo]) -> None:
    """A deployment that writes nothing is told what to add."""
    shown = command(make_repo(), "stats")
    assert shown.exit_code == 1
    assert "metrics: {folder: /var/lib/hotplate/metrics}" in shown.output


def test_inspect_prints_the_tiers_and_the_source(measured: Callable[..., Repo]) -> None:
    """A table for people, JSON for machines; one line for what is wrong."""
    repo = measured()
    shown = command(repo, "inspect", "profile", "--entity", "user_id=1")
    assert shown.exit_code == 0, shown.output
    assert "age=10" in shown.output
    assert "ttl 30s" in shown.output
    found = json.loads(
        command(repo, "inspect", "profile", "--entity", "user_id=1", "--json").output
    )
    assert found[0]["source"] == {"age": 10, "score": 0.5}
    for entity, said in (("user_id=x", "no whole number"), ("card=1", "an entity is written")):
        wrong = command(repo, "inspect", "profile", "--entity", entity)
        assert (wrong.exit_code, said in wrong.output) == (1, True), wrong.output
    assert "no group or feature view" in command(repo, "inspect", "x", "--entity", "a=1").output


def test_reading_twice_gives_the_same(measured: Callable[..., Repo], folder: Path) -> None:
    """Looking changes nothing."""
    repo = measured()
    ask(repo, 1)
    write(repo)
    assert read_folder(folder).values == read_folder(folder).values
