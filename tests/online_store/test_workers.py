"""Promise 11 where workers are forked: each starts clean, and sees what the others write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import hotplate
from hotplate.embedded import EmbeddedServer
from pipelines.lab.waiting import wait_until

from ..stores import Repo
from ..stores import _free_port as free_port
from .test_deployments import AGE, T0, opened, write

APP = """
import json, os
from urllib.parse import parse_qs
from feast import FeatureStore
store = FeatureStore(repo_path=os.environ["REPO"])
def see():
    response = store.get_online_features(["v:age"], [{"user_id": 1}])
    row = response.freshness()["v"][0]
    return [os.getpid(), response.to_dict()["age"][0], row.tier.value]
see()
def app(environ, start):
    start("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(see()).encode()]
"""


@pytest.mark.heavy
def test_forked_workers_of_gunicorn_start_clean(tmp_path: Path, redis: EmbeddedServer) -> None:
    """Preloaded and used before the fork: each worker has a channel and connections of its own."""
    with opened(tmp_path / "repo", redis.connection_string) as repo:
        write_settings(repo)
        (tmp_path / "app.py").write_text(APP)
        port = free_port()
        command = [sys.executable, "-m", "gunicorn", "app:app", "--preload", "--workers", "2"]
        with serving([*command, "-b", f"127.0.0.1:{port}"], tmp_path, repo) as process:
            url = f"http://127.0.0.1:{port}/"
            wait_until(lambda: answer_of(url, process) is not None, "gunicorn answers", 60)
            for age in range(1, 4):
                await_everywhere(lambda: answer_of(url, process), 2, "memory")
                write(repo.hot, age)
                deadline = time.monotonic() + 2
                while any(answer_of(url, process)[1] != age for _ in range(10)):
                    assert time.monotonic() < deadline


def await_everywhere(ask: Any, workers: int, tier: str) -> None:
    """Until each worker answers from there."""
    warm: set[int] = set()

    def is_everywhere() -> bool:
        pid, _, found = ask()
        if found == tier:
            warm.add(pid)
        return len(warm) == workers

    wait_until(is_everywhere, f"{workers} workers answer from {tier}", 60)


def write_settings(repo: Repo) -> None:
    """The repo's feature_store.yaml, for other processes."""
    online = repo.hot.config.online_config
    settings = {
        "project": repo.project,
        "provider": "local",
        "registry": str(repo.folder / "registry.db"),
        "offline_store": {"type": "file"},
        "entity_key_serialization_version": 3,
        "online_store": online,
    }
    (repo.folder / "feature_store.yaml").write_text(json.dumps(settings))


@contextmanager
def serving(command: list[str], folder: Path, repo: Repo) -> Iterator[subprocess.Popen[bytes]]:
    """A server in processes of its own."""
    paths = os.pathsep.join([str(Path(hotplate.__file__).parents[1]), str(folder)])
    environment = {**os.environ, "PYTHONPATH": paths, "REPO": str(repo.folder)}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
    text = (folder / "server.log").read_text()
    assert "Traceback" not in text, text


def answer_of(url: str, process: subprocess.Popen[bytes], body: Any = None) -> Any:
    """What a server says; None while nobody answers."""
    assert process.poll() is None
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or b"null")
    except OSError:
        return None


@pytest.mark.heavy
def test_a_push_through_one_worker_is_seen_by_the_other(
    tmp_path: Path, redis: EmbeddedServer
) -> None:
    """`feast serve --workers 2`; a request reaches either of them, as it happens."""
    with opened(tmp_path / "repo", redis.connection_string) as repo:
        write_settings(repo)
        port = free_port()
        command = [str(Path(sys.executable).with_name("feast")), "-c", str(repo.folder), "serve"]
        command += ["-h", "127.0.0.1", "-p", str(port), "--no-access-log", "--workers", "2"]
        with serving(command, tmp_path, repo) as process:
            url = f"http://127.0.0.1:{port}"
            asked = {"features": AGE, "entities": {"user_id": [1]}}

            def ages() -> list[Any]:
                answers = [
                    answer_of(f"{url}/get-online-features", process, asked) for _ in range(8)
                ]
                return [answer and answer["results"][-1]["values"][0] for answer in answers]

            wait_until(lambda: None not in ages(), "feast serve answers", 90)
            for age in range(1, 5):
                moment = str(T0 + timedelta(seconds=age))
                frame = {"user_id": [1], "age": [age], "event_time": [moment]}
                pushed = {"push_source_name": "v_push", "df": frame, "to": "online"}
                answer_of(f"{url}/push", process, pushed)
                wait_until(lambda age=age: set(ages()) == {age}, "both see it", 3)
