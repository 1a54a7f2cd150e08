"""What docs/operations.md says of `feast serve`'s workers: how long one of them lives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from feast.types import Int64

from pipelines.lab.waiting import wait_until

from ..operations.deployments import write_yaml
from ..stores import USER, Repo, _free_port
from .commands import feast_command

REQUESTS = 60
LOOKS_OF_THE_SERVER = 1.0  # seconds: enough for ten of them


@contextmanager
def serving(repo: Repo, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`feast serve` in a process of its own, once it answers."""
    port = _free_port()
    command = [str(Path(sys.executable).with_name("feast")), "-c", str(repo.folder), "serve"]
    command += ["-p", str(port), "--no-access-log", *options]
    with (repo.folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ)
    try:
        url = f"http://127.0.0.1:{port}/get-online-features"
        wait_until(lambda: ask(url), "feast serve answers", 90)
        yield process, url
    finally:
        process.terminate()
        process.wait(30)


def ask(url: str) -> bool:
    """Whether a request was answered."""
    body = json.dumps({"features": ["v:age"], "entities": {"user_id": [1]}}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def workers(process: subprocess.Popen[bytes]) -> set[int]:
    """The processes that answer."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return {int(pid) for pid in children.read_text().split()}


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc to see workers in")
@pytest.mark.parametrize("most", [20, 0])
def test_a_worker_lives_as_long_as_it_is_told(tmp_path: Path, most: int) -> None:
    """Twenty requests, and with it what it held in memory; with 0 for ever."""
    repo = Repo(tmp_path, {"type": "sqlite"})
    repo.apply(USER, repo.view("v", {"age": Int64}))
    repo.write("v", user_id=[1], age=[10])
    write_yaml(repo)
    options = ("--max-requests", str(most), "--max-requests-jitter", "0")
    with serving(repo, *options) as (process, url):
        seen = workers(process)

        def others() -> bool:
            for _ in range(REQUESTS):
                ask(url)  # one that comes while a worker is replaced is not answered
                seen.update(workers(process))
            return len(seen) > 1

        if most:
            # uvicorn looks ten times a second whether a worker has answered enough
            wait_until(others, "a worker is replaced", 60)
        else:
            deadline = time.monotonic() + LOOKS_OF_THE_SERVER
            while time.monotonic() < deadline:
                assert not others()


def test_a_worker_ends_after_a_thousand_requests_by_itself() -> None:
    """As the page says; a later Feast may think otherwise."""
    serve = feast_command().commands["serve"]  # type: ignore[attr-defined]
    (option,) = [one for one in serve.params if one.name == "max_requests"]
    assert option.default == 1_000
