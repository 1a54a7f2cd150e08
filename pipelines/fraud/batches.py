"""Single requests put together: those that arrive while a batch is under way form the next one.

An idle line begins with the first request at once; under load batches grow by themselves, up to a
size. One thread takes them through the line. A request waits in a bounded queue, and no longer than
its asker does: what nobody waits for any more is not begun.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pipelines.fraud.ledger import ANSWER
from pipelines.fraud.line import Line, Processed
from pipelines.fraud.payments import DeadLetter

__all__ = ["SOURCE", "Answer", "Asked", "Batches", "QueueFull"]

SOURCE: Final = "http"
"""By which name the ledger knows requests."""
_log: Final = logging.getLogger("pipelines.fraud")


class QueueFull(Exception):
    """No more requests are taken now."""


class Answer(NamedTuple):
    """What a request is answered.

    Attributes:
        decision: of `ANSWER`; empty where there is none.
        refused: why the record is no payment; "" where it is one.
    """

    decision: Mapping[str, Any]
    refused: str = ""


FAILED: Final = Answer({})
"""The decision could not be made or recorded."""


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        place: among all requests there ever were.
        fields: of the record.
        unread: in their place, where the request was no record.
    """

    place: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    unread: DeadLetter | None = None


class _Waiting(NamedTuple):
    asked: Asked
    answer: asyncio.Future[Answer]


class Batches:
    """A queue, and the thread that takes what is in it through the line.

    Args:
        line: the steps.
        size: requests in a batch at the most.
        most_waiting: requests in the queue at the most.
        told: of each batch, and how many seconds it took.
    """

    def __init__(
        self,
        line: Line,
        *,
        size: int = 256,
        most_waiting: int = 1_024,
        told: Callable[[Processed, float], None] = lambda found, seconds: None,
    ) -> None:
        self._line, self._size, self._most, self._told = line, size, most_waiting, told
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._has_begun = False
        self._thread = threading.Thread(target=self._run, name="line", daemon=True)

    def __len__(self) -> int:
        return len(self._queue)

    def __repr__(self) -> str:
        return f"Batches({len(self)} waiting{', closing' if self._is_closing else ''})"

    def start(self) -> None:
        """Begin, with what the process before may have left undone."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is; without it no request is ever answered again."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Make sure that requests are taken through the line now.

        Raises:
            RuntimeError: not yet, or not any more.
        """
        if not (self._has_begun and self.is_alive):
            raise RuntimeError("the line has not begun, or has ended")

    def close(self, wait_s: float) -> bool:
        """Take no more requests, and end behind those that wait.

        Args:
            wait_s: for how long; the ledger or the store may be down.

        Returns:
            Whether it has ended. What is still under way then was answered to nobody.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    async def ask(self, asked: Asked) -> Answer:
        """The answer to a request. If its task is canceled before it is begun, it never is.

        Raises:
            QueueFull: too many requests wait, or none is taken any more.
        """
        waiting = _Waiting(asked, asyncio.get_running_loop().create_future())
        with self._changed:
            if len(self._queue) >= self._most or self._is_closing:
                raise QueueFull
            self._queue.append(waiting)
            self._changed.notify()
        return await waiting.answer

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._line.begin()
        except Exception as error:  # noqa: BLE001 - the process says so, and is not ready
            _log.error("the line cannot begin: %s", _shown(error))
            return
        self._has_begun = True
        while batch := self._next():
            if wanted := [one for one in batch if not one.answer.done()]:
                self._process(wanted)

    def _next(self) -> list[_Waiting]:
        with self._changed:
            while not self._queue and not self._is_closing:
                self._changed.wait()
            return [self._queue.popleft() for _ in range(min(self._size, len(self._queue)))]

    def _process(self, batch: Sequence[_Waiting]) -> None:
        began_s = time.perf_counter()
        try:
            found = self._line.process(
                [(one.asked.place, one.asked.fields) for one in batch if not one.asked.unread],
                unread=[one.asked.unread for one in batch if one.asked.unread],
            )
        except Exception as error:  # noqa: BLE001 - one request must not stop the others
            _log.error("a batch of %d failed: %s", len(batch), _shown(error))
            if len(batch) == 1:
                _settle([(batch[0].answer, FAILED)])
                return
            for one in batch:
                self._process([one])
            return
        seconds = time.perf_counter() - began_s
        answers = _answers(found)
        _settle([(one.answer, answers[one.asked.place]) for one in batch])
        self._told(found, seconds)


def _answers(found: Processed) -> dict[str, Answer]:
    """By place."""
    answers = {letter.place: Answer({}, letter.reason) for letter in found.dead}
    payments = found.payments
    for place, transaction_id in zip(payments.places, payments.transaction_ids, strict=True):
        row = found.answers[transaction_id]
        answers[place] = Answer({name: row[name] for name in ANSWER})
    return answers


def _settle(answered: Sequence[tuple[asyncio.Future[Answer], Answer]]) -> None:
    """Hand answers to those who wait; called from the thread, done on their loop."""

    def settle() -> None:
        for future, answer in answered:
            if not future.done():
                future.set_result(answer)

    loop = answered[0][0].get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)


def _shown(error: Exception) -> str:
    """An error's kind and place; its text may hold what a payment says."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {last.name}, {last.filename}:{last.lineno}"
