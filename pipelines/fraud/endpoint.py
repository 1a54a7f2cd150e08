"""What is asked over HTTP, and answered: an ASGI application.

    POST /score     a JSON record (see `pipelines.fraud.payments`); answers its decision
    GET  /healthz   the process lives, and its line does; if not, nothing helps but a restart
    GET  /readyz    it can decide: line, store and ledger answer, and it is not shutting down
    GET  /metrics   Prometheus

A payment that has a decision is answered with it, so whoever got no answer may ask again. What is
no payment is answered 400 with the reason, and is a dead letter, too. 503 says that too many wait,
504 that the deadline has passed; the payment may have been decided all the same.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from pipelines.fraud.batches import Answer, Asked, Batches, QueueFull
from pipelines.fraud.payments import DeadLetter
from pipelines.fraud.readiness import Readiness
from pipelines.fraud.telemetry import CONTENT_TYPE, Telemetry

__all__ = ["Limits", "Service"]

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
_Value: TypeAlias = str | int | float | bool | None
_RETRY_AFTER: Final = (b"retry-after", b"1")
_CLOSE: Final = (b"connection", b"close")
_SHOWN_OF_UNREAD: Final = 1_000


@dataclass(frozen=True)
class Limits:
    """What is asked of one request at the most.

    Attributes:
        deadline_s: from its head to its answer.
        body_bytes: of its body; a record has about 150.
    """

    deadline_s: float = 2.0
    body_bytes: int = 16_384


class _Record(msgspec.Struct):
    """The fields of `read_records`; others are skipped, and none is a list or an object."""

    transaction_id: _Value = None
    customer_id: _Value = None
    terminal_id: _Value = None
    amount: _Value = None
    at: _Value = None
    kind: _Value = None


class _Reply(NamedTuple):
    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"application/json"


class _BodyTooLarge(Exception):
    pass


class _Gone(Exception):
    """Whoever asked has hung up."""


class Service:
    """The ASGI application.

    Args:
        batches: answer requests.
        readiness: of what it needs.
        telemetry: what is counted.
        limits: of a request.

    Attributes:
        limits: of a request.
    """

    def __init__(
        self,
        batches: Batches,
        readiness: Readiness,
        telemetry: Telemetry,
        limits: Limits | None = None,
    ) -> None:
        self._batches, self._readiness, self._telemetry = batches, readiness, telemetry
        self.limits = limits or Limits()
        self._is_leaving = False
        self._decode = msgspec.json.Decoder(_Record).decode
        self._encode = msgspec.json.Encoder().encode
        began, numbers = time.time_ns(), itertools.count()
        self._places = (f"{began:x}-{number}" for number in numbers)
        self._routes: Mapping[str, tuple[str, Callable[[Message, Receive], Awaitable[_Reply]]]] = {
            "/score": ("POST", self._score),
            "/healthz": ("GET", self._alive),
            "/readyz": ("GET", self._ready),
            "/metrics": ("GET", self._metrics),
        }

    def leave(self) -> None:
        """Take no more requests for decisions; say that the process is not ready."""
        self._is_leaving = True

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        method, answer = self._routes.get(scope["path"], ("", None))
        try:
            if answer is None:
                reply = self._said(404, "there are: POST /score, GET /healthz, /readyz, /metrics")
            elif scope["method"] != method:
                reply = self._said(405, f"use {method}", (b"allow", method.encode()))
            else:
                reply = await answer(scope, receive)
        except _Gone:
            return
        headers = (
            (b"content-type", reply.content_type),
            (b"content-length", b"%d" % len(reply.body)),
            *reply.headers,
        )
        start = {"type": "http.response.start", "status": reply.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": reply.body})

    # -- decisions --------------------------------------------------------------------------------

    async def _score(self, scope: Message, receive: Receive) -> _Reply:
        began_s = time.perf_counter()
        reply = await self._scored(scope, receive)
        self._telemetry.request(reply.status, time.perf_counter() - began_s)
        return reply

    async def _scored(self, scope: Message, receive: Receive) -> _Reply:
        if self._is_leaving:
            return self._said(503, "shutting down: ask another process", _RETRY_AFTER, _CLOSE)
        try:
            async with asyncio.timeout(self.limits.deadline_s):
                body = await _body(scope, receive, self.limits.body_bytes)
                answer = await self._batches.ask(self._asked(body))
        except _BodyTooLarge:
            return self._said(413, f"more than {self.limits.body_bytes:,} bytes", _CLOSE)
        except QueueFull:
            return self._said(503, "too many requests wait: ask again", _RETRY_AFTER)
        except TimeoutError:
            said = f"no decision within {self.limits.deadline_s:g} s: ask again, by the same id"
            return self._said(504, said)
        return self._answered(answer)

    def _asked(self, body: bytes) -> Asked:
        place = next(self._places)
        try:
            record = self._decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            reason = str(error) if isinstance(error, msgspec.DecodeError) else "nested too deep"
            raw = body[:_SHOWN_OF_UNREAD].decode(errors="replace").replace("\0", "\ufffd")
            return Asked(place, unread=DeadLetter(place, f"not a JSON record: {reason}", raw))
        return Asked(place, msgspec.structs.asdict(record))

    def _answered(self, answer: Answer) -> _Reply:
        if answer.refused:
            return self._said(400, answer.refused)
        if not answer.decision:
            return self._said(500, "the decision could not be made or recorded: ask again")
        return _Reply(200, self._encode(answer.decision))

    # -- the rest ---------------------------------------------------------------------------------

    async def _alive(self, scope: Message, receive: Receive) -> _Reply:
        return _Reply(200 if self._batches.is_alive else 503, b"")

    async def _ready(self, scope: Message, receive: Receive) -> _Reply:
        faults = {"process": "shutting down"} if self._is_leaving else {}
        faults = faults or await self._readiness.faults()
        body = self._encode({"ready": not faults, "faults": faults})
        return _Reply(503 if faults else 200, body)

    async def _metrics(self, scope: Message, receive: Receive) -> _Reply:
        return _Reply(200, self._telemetry.text(), content_type=CONTENT_TYPE.encode())

    def _said(self, status: int, error: str, *headers: tuple[bytes, bytes]) -> _Reply:
        return _Reply(status, self._encode({"error": error}), headers)


async def _body(scope: Message, receive: Receive, most: int) -> bytes:
    """The body of a request.

    Raises:
        _BodyTooLarge: it has more bytes than `most`, or says so.
        _Gone: whoever sends it has hung up.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > most:
            raise _BodyTooLarge
    parts, size, has_more = [], 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        part, has_more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > most:
            raise _BodyTooLarge
        parts.append(part)
    return b"".join(parts)
