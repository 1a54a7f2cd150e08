"""Feast's own server over the cache, in processes of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from feast import FeatureService, FeatureView, Field, RequestSource
from feast.on_demand_feature_view import on_demand_feature_view
from feast.types import Float64, Int64, String

import hotplate

from .stores import CACHED, MERCHANT, USER, Repo

PLUGINS = str(Path(hotplate.__file__).parents[1])


def fill(repo: Repo) -> None:
    """Three views, an on-demand one and a service, with data of two users."""
    profile = repo.view("profile", {"age": Int64, "score": Float64, "city": String})
    pairs = repo.view("pairs", {"seen": Int64}, (USER, MERCHANT))
    asked = RequestSource(name="request", schema=[Field(name="amount", dtype=Float64)])
    doubled, shared = transforms(profile, asked)
    service = FeatureService(name="fs", features=[profile[["age", "city"]], doubled])
    repo.apply(USER, MERCHANT, profile, pairs, doubled, shared, service)
    repo.write("profile", user_id=[1, 2], age=[10, 20], score=[0.1, None], city=["x", ""])
    repo.write("pairs", user_id=[1, 1], merchant_id=["a", "b"], seen=[3, 4])


def transforms(profile: FeatureView, asked: RequestSource) -> list[Any]:
    """One without and one with request data."""

    @on_demand_feature_view(
        sources=[profile], schema=[Field(name="twice", dtype=Int64)], mode="python"
    )
    def doubled(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"twice": [None if age is None else age * 2 for age in inputs["age"]]}

    @on_demand_feature_view(
        sources=[profile, asked], schema=[Field(name="share", dtype=Float64)], mode="python"
    )
    def shared(inputs: dict[str, Any]) -> dict[str, Any]:
        ages = (age or 1 for age in inputs["age"])
        return {"share": [amount / age for amount, age in zip(inputs["amount"], ages, strict=True)]}

    return [doubled, shared]


@dataclass
class Server:
    """A running feature server over Hotplate and, in this process, a bare store of its data."""

    repo: Repo
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """The status and the decoded answer of a request."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, text = error.code, error.read()
        return status, json.loads(text) if text else None

    def read(self, **body: Any) -> dict[str, Any]:
        """The answer to a request for features, by column."""
        status, answer = self.post("/get-online-features", body)
        assert status == 200, answer
        return by_column(answer)

    def await_health(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + 120
        while not self.is_healthy():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def is_healthy(self) -> bool:
        """Whether it answers yet."""
        assert self.process.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def by_column(answer: dict[str, Any]) -> dict[str, Any]:
    """Name -> values, statuses and times; Feast orders the features of a view by chance."""
    names = answer["metadata"]["feature_names"]
    assert len(names) == len(answer["results"])
    rest = {key: value for key, value in answer.items() if key not in ("metadata", "results")}
    meta = {key: value for key, value in answer["metadata"].items() if key != "feature_names"}
    return {**dict(zip(names, answer["results"], strict=True)), "": [rest, meta]}


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(
    folder: Path, online: dict[str, Any], workers: int = 1, **more: Any
) -> Iterator[Server]:
    """`feast serve` in processes of its own, over a feature_store.yaml on disk.

    Args:
        folder: of the repo.
        online: the store to wrap.
        workers: processes that answer.
        more: further settings of the cache.
    """
    repo = Repo(folder, online, project=f"served_{online['type']}")
    fill(repo)
    settings: dict[str, Any] = {
        "project": repo.project,
        "provider": "local",
        "registry": str(folder / "registry.db"),
        "offline_store": {"type": "file"},
        "entity_key_serialization_version": 3,
        "online_store": {
            "type": CACHED,
            "store": repo.online,
            "ttl_map": {"default": "1h"},
            **more,
        },
    }
    (folder / "feature_store.yaml").write_text(yaml.safe_dump(settings))
    port, log = free_port(), folder / "server.log"
    command = [str(Path(sys.executable).with_name("feast")), "-c", str(folder), "serve"]
    command += ["-h", "127.0.0.1", "-p", str(port), "--no-access-log", "--workers", str(workers)]
    command += ["--max-requests", "0"]  # or each worker is replaced after a thousand
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": PLUGINS, "FEAST_USAGE": "False"},
        )
    try:
        yield Server(repo, f"http://127.0.0.1:{port}", process, log)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
    ending = log.read_text().split("Shutting down: Master")
    assert (process.returncode, len(ending)) == (0, 2), log.read_text()
    assert "Traceback" not in ending[1], log.read_text()
