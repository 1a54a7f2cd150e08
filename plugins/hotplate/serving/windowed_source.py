"""Where rows are read: windowed views from their event logs, all others from another source."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from hotplate.contracts import LoadRequest, Source
from hotplate.serving.windows import EventLogs, is_windowed

__all__ = ["WindowedSource"]


class WindowedSource:
    """Asks event logs for windowed views, and another source for the rest.

    Args:
        logs: the event logs.
        source: reads all other views.
    """

    def __init__(self, logs: EventLogs, source: Source) -> None:
        self._logs = logs
        self._source = source

    def load(self, requests: Sequence[LoadRequest]) -> Sequence[list[bytes] | Exception]:
        windowed = [request for request in requests if is_windowed(request.table)]
        if not windowed:
            return self._source.load(requests)
        found = iter(_or_error(self._logs.load, windowed))
        others = [request for request in requests if not is_windowed(request.table)]
        rest = iter(_or_error(self._source.load, others) if others else ())
        return [next(found if is_windowed(one.table) else rest) for one in requests]

    async def load_async(
        self, requests: Sequence[LoadRequest]
    ) -> Sequence[list[bytes] | Exception]:
        windowed = [request for request in requests if is_windowed(request.table)]
        if not windowed:
            return await self._source.load_async(requests)
        others = [request for request in requests if not is_windowed(request.table)]
        reading = asyncio.to_thread(_or_error, self._logs.load, windowed)
        if not others:
            return await reading
        answers = await asyncio.gather(reading, self._ask_async(others))
        found, rest = map(iter, answers)
        return [next(found if is_windowed(one.table) else rest) for one in requests]

    async def _ask_async(
        self, requests: Sequence[LoadRequest]
    ) -> Sequence[list[bytes] | Exception]:
        try:
            return await self._source.load_async(requests)
        except Exception as error:  # noqa: BLE001 - handed on as the answer of its part
            return [error] * len(requests)


def _or_error(
    load: Callable[[Sequence[LoadRequest]], Sequence[list[bytes] | Exception]],
    requests: Sequence[LoadRequest],
) -> Sequence[list[bytes] | Exception]:
    try:
        return load(requests)
    except Exception as error:  # noqa: BLE001 - handed on as the answer of its part
        return [error] * len(requests)
