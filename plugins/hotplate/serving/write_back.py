"""Rows that a loader read, written into the wrapped store for others to read there.

Best effort and in the background: a read never waits for it and never fails because of it. The
rows go straight to the wrapped store, past Hotplate's own write, so nothing is invalidated: what
was loaded stays in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from hotplate.codec import PREFIX_BYTES, is_absent
from hotplate.contracts import LoadRequest
from hotplate.keys import entity_key, values_of
from hotplate.seldom import Seldom
from hotplate.serving.wrapped import WrappedStore
from hotplate.sources.workers import Workers
from hotplate.stats import LoaderCounters

__all__ = ["WriteBack"]

_WAITING_MAX: Final = 256
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_log = logging.getLogger("hotplate.write_back")


class WriteBack:
    """Writes one batch after the other, in the order they were loaded, on a thread of its own.

    Args:
        wrapped: the store to write into.
    """

    def __init__(self, wrapped: WrappedStore) -> None:
        self._wrapped = wrapped
        self._worker = Workers(1, "hotplate-write-back")
        self._seldom = Seldom()

    def submit(self, request: LoadRequest, rows: Sequence[bytes], counters: LoaderCounters) -> None:
        """Write loaded rows in the background; dropped where too many are waiting."""
        if self._worker.unfinished >= _WAITING_MAX:
            counters.write_back_dropped += len(rows)
            return
        try:
            self._worker.submit(lambda: self._write(request, rows, counters))
        except RuntimeError:  # no thread to be had
            counters.write_back_dropped += len(rows)

    def drain(self) -> None:
        """Wait until everything submitted so far has been written."""
        self._worker.submit(lambda: None).result()

    def _write(self, request: LoadRequest, rows: Sequence[bytes], counters: LoaderCounters) -> None:
        packed = [bytes(PREFIX_BYTES) + row for row in rows]
        data = [
            _feast_row(request, key, row)
            for key, row in zip(request.keys, packed, strict=True)
            if not is_absent(row)
        ]
        if not data:
            return
        try:
            with self._wrapped.reading():
                self._wrapped.store().online_write_batch(
                    self._wrapped.current_config(), request.table, data, None
                )
        except Exception as error:  # noqa: BLE001 - the border: the read was answered already
            counters.write_back_errors += len(data)
            self._log_once_an_interval(request, error)
        else:
            counters.written_back += len(data)

    def _log_once_an_interval(self, request: LoadRequest, error: Exception) -> None:
        if self._seldom.is_time():
            _log.error(
                "loaded rows of feature view %s were not written into the online store: %s",
                request.view.identity.view,
                type(error).__name__,  # its text may hold an entity's id or a driver's settings
            )


def _feast_row(request: LoadRequest, key: Any, row: bytes) -> tuple[Any, ...]:
    layout = request.view.layout
    moment = _EPOCH + timedelta(microseconds=layout.event_us(row) or 0)
    values = zip(layout.columns, layout.values(row), strict=True)
    found = {column.name: value for column, value in values if value is not None}
    return entity_key(request.view.identity.shape, values_of(key)), found, moment, None
