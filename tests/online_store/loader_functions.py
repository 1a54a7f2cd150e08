"""Functions that tests name as loaders, by import path."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pandas as pd

calls: list[dict[str, list[Any]]] = []
answer: Any = None
loops: set[int] = set()
running = 0
most_running = 0
_lock = threading.Lock()


def reset() -> None:
    """Forget what was called and what was to be answered."""
    global answer, running, most_running
    calls.clear()
    loops.clear()
    answer, running, most_running = None, 0, 0


def double(entities: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Twice the user's id; nothing for negative ones."""
    calls.append(entities)
    return [{"user_id": user, "n": 2 * user} for user in entities["user_id"] if user >= 0]


def as_columns(entities: dict[str, list[Any]]) -> dict[str, Any]:
    return {"user_id": entities["user_id"], "n": [2 * user for user in entities["user_id"]]}


def as_frame(entities: dict[str, list[Any]]) -> pd.DataFrame:
    return pd.DataFrame(as_columns(entities))


def given(entities: dict[str, list[Any]]) -> Any:
    """What the test says; an exception is raised."""
    calls.append(entities)
    if isinstance(answer, Exception):
        raise answer
    return answer


def slow(entities: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """As `double`, after a moment; counts how many run at once."""
    global running, most_running
    with _lock:
        running += 1
        most_running = max(most_running, running)
    try:
        time.sleep(float(answer or 0.05))
        return double(entities)
    finally:
        with _lock:
            running -= 1


async def coroutine(entities: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """As `slow`, on an event loop."""
    global running, most_running
    loops.add(id(asyncio.get_running_loop()))
    running += 1
    most_running = max(most_running, running)
    try:
        await asyncio.sleep(float(answer or 0.01))
        return double(entities)
    finally:
        running -= 1


not_callable = 7
