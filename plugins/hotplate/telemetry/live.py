"""Whether the processes that serve are slower than they were, by what they count.

A warmer beside them is told, and slows down. Live traffic is judged by the round trips to the
source that its requests wait for: that is what a warmer can spoil.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from prometheus_client.utils import floatToGoString

from hotplate.histogram import HistogramStats
from hotplate.seldom import Seldom
from hotplate.telemetry.errors import TelemetryError
from hotplate.telemetry.reading import FolderReader, Labels, Reading
from hotplate.telemetry.summary import quantile

__all__ = ["LiveTraffic"]

_NAME: Final = "hotplate_source_seconds"
_BUCKET: Final = f"{_NAME}_bucket"
_EVERY_S: Final = 1.0
_LEAST: Final = 20  # round trips, of which a 99th percentile says something
_SHARE: Final = 0.99
_SLOWER: Final = 2.0
_log = logging.getLogger("hotplate.warming")


class LiveTraffic:
    """The 99th percentile of what live requests wait for the source, against that before.

    Args:
        folder: into which the processes of this host write what they count.
        project: whose.
        own: what this process has waited for the source, which is not live.
        clock: seconds that only go forward.
    """

    def __init__(
        self,
        folder: Path,
        project: str,
        own: Callable[[], HistogramStats],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader, self._project, self._own = FolderReader(folder), project, own
        self._clock, self._seldom = clock, Seldom()
        self._before: dict[str, float] = self._counts() or {}
        self._waiting: dict[str, float] = {}
        # since they began: what they were like before anybody warmed beside them
        self.usual_s = _p99(self._before)
        self._looked_s = clock()

    def suffers(self) -> bool:
        """Whether it takes twice as long as usual; True at most once a second."""
        now_s = self._clock()
        if now_s - self._looked_s < _EVERY_S:
            return False
        self._looked_s = now_s
        counts = self._counts()
        if counts is None:
            return False
        for bound, count in counts.items():
            more = max(0.0, count - self._before.get(bound, 0.0))
            self._waiting[bound] = self._waiting.get(bound, 0.0) + more
        self._before = counts
        p99_s = _p99(self._waiting)
        if p99_s is None:
            return False  # too few so far: they are judged together with the next ones
        self._waiting = {}
        if self.usual_s is None:
            self.usual_s = p99_s
            return False
        return p99_s > _SLOWER * self.usual_s

    def _counts(self) -> dict[str, float] | None:
        """Round trips of live requests within each bound so far."""
        try:
            found = self._reader.read()
        except TelemetryError as error:
            if self._seldom.is_time():
                _log.warning("live traffic cannot be watched: %s", error)
            return None
        own = {floatToGoString(bound): count for bound, count in self._own().cumulative()}
        counted = found.by(_BUCKET, "le", project=self._project)
        return {bound: max(0.0, count - own.get(bound, 0)) for bound, count in counted.items()}


def _p99(counts: Mapping[str, float]) -> float | None:
    if max(counts.values(), default=0.0) < _LEAST:
        return None
    values: dict[Labels, float] = {(("le", bound),): count for bound, count in counts.items()}
    return quantile(Reading(0.0, {_BUCKET: values}), _NAME, _SHARE)
