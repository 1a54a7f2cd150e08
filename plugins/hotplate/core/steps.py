"""What the engine's algorithm waits for, and the drivers that do the waiting.

The algorithm is a generator without I/O; a thread or a task drives it, so that both share it.

What a task asks the shared tier runs on threads kept for that. Each such call ends within the
tier's timeout, so nobody queues there for long; on the loop's own executor it would wait behind
whatever else the application runs there, name look-ups included.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from hotplate.contracts import LoadRequest, Source
from hotplate.core.flights import Flight

__all__ = ["CallStep", "LoadStep", "PauseStep", "Steps", "WaitStep", "run", "run_async"]


@dataclass(slots=True)
class LoadStep:
    """Ask the source; the driver sends back its rows."""

    requests: Sequence[LoadRequest]


@dataclass(slots=True)
class WaitStep:
    """Wait until a flight ends."""

    flight: Flight


@dataclass(slots=True)
class CallStep:
    """Ask the shared tier; the driver sends back what it says."""

    call: Callable[[], Any]


@dataclass(slots=True)
class PauseStep:
    """Wait a moment for another process."""

    seconds: float


_CALLERS: Final = 16
_made: Final[dict[str, ThreadPoolExecutor]] = {}
_T = TypeVar("_T")
Steps: TypeAlias = Generator[LoadStep | WaitStep | CallStep | PauseStep, Any, _T]


def run(steps: Steps[_T], source: Source) -> _T:
    """Drive a read on this thread."""
    send: Any = None
    throw: BaseException | None = None
    while True:
        try:
            step = steps.send(send) if throw is None else steps.throw(throw)
        except StopIteration as end:
            result: _T = end.value
            return result
        send, throw = None, None
        try:
            if isinstance(step, LoadStep):
                send = source.load(step.requests)
            elif isinstance(step, WaitStep):
                step.flight.wait()
            elif isinstance(step, CallStep):
                send = step.call()
            else:
                time.sleep(step.seconds)
        except BaseException as error:  # noqa: BLE001 - handed to the generator, which decides
            throw = error


async def run_async(steps: Steps[_T], source: Source) -> _T:
    """Drive a read on the running event loop."""
    send: Any = None
    throw: BaseException | None = None
    while True:
        try:
            step = steps.send(send) if throw is None else steps.throw(throw)
        except StopIteration as end:
            result: _T = end.value
            return result
        send, throw = None, None
        try:
            if isinstance(step, LoadStep):
                send = await source.load_async(step.requests)
            elif isinstance(step, WaitStep):
                await step.flight.wait_async()
            elif isinstance(step, CallStep):
                send = await asyncio.get_running_loop().run_in_executor(_callers(), step.call)
            else:
                await asyncio.sleep(step.seconds)
        except BaseException as error:  # noqa: BLE001 - handed to the generator, which decides
            throw = error


def _callers() -> ThreadPoolExecutor:
    """One for all loops of this process, without a lock that a forked child could find held."""
    made = _made.get("callers")
    if made is None:
        made = _made.setdefault("callers", ThreadPoolExecutor(_CALLERS, "hotplate-shared"))
    return made


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_made.clear)
