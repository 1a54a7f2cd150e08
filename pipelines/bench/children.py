"""Programs that a measurement runs beside itself, and what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

__all__ = ["said", "started"]


def started(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of a Python program, once it has said that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def said(process: subprocess.Popen[str]) -> Any:
    """The line of JSON that it says next."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())
