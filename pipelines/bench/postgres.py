"""A PostgreSQL of the benchmark's own, where this machine has its binaries."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

__all__ = ["open_postgres"]

_START_S = 60.0


@contextmanager
def open_postgres() -> Iterator[str | None]:
    """Start a server on a free port of this machine; yields SQLAlchemy's url, None without one."""
    initdb, server = _tool("initdb"), _tool("postgres")
    if initdb is None or server is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="hotplate-pg-") as folder:
        run_as: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            run_as = ["runuser", "-u", "postgres", "--"]
            shutil.chown(folder, "postgres")
        data = f"{folder}/data"
        subprocess.run(
            [*run_as, initdb, "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"],
            check=True,
            capture_output=True,
        )
        port = _free_port()
        arguments = ("-D", data, "-p", str(port), "-k", folder, "-c", "listen_addresses=127.0.0.1")
        process = subprocess.Popen(
            [*run_as, server, *arguments, "-c", "fsync=off"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        try:
            _await_start(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(timeout=30)


def _tool(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_start(url: str, process: subprocess.Popen[bytes]) -> None:
    engine = create_engine(url)
    deadline_s = time.monotonic() + _START_S
    while True:
        try:
            engine.connect().close()
            break
        except OperationalError:
            if time.monotonic() > deadline_s or process.poll() is not None:
                raise
            time.sleep(0.05)
    engine.dispose()
