"""A program that forks commands, for tests that kill them.

It has imported Feast once, so that a command is there within milliseconds. A line on its input is
JSON: the arguments of `hotplate`, the folder to be in, and the file for what it prints. It answers
with the process id. Where a command ends by itself, its exit code is the last line of the file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from typing import Any, NoReturn


def run(job: dict[str, Any]) -> NoReturn:
    """Be the command."""
    from hotplate.cli import main

    os.chdir(job["folder"])
    out = os.open(job["out"], os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    code: Any = "crashed"
    try:
        main(job["arguments"])
    except SystemExit as error:
        code = error.code or 0
    finally:
        print(json.dumps(code), flush=True)
        os._exit(0)


def serve() -> None:
    """Fork a command for every line."""
    warnings.simplefilter("ignore")
    # all that a command imports while it works
    import feast.infra.online_stores.redis
    import redis.crc

    import hotplate.handle
    import hotplate.provider  # noqa: F401

    assert feast.infra.online_stores.redis
    assert redis.crc
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(json.loads(line))
        print(child, flush=True)


if __name__ == "__main__":
    serve()
