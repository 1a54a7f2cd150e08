"""What a serving process counts, as Prometheus reads it.

Labels have few values, whatever comes in: decisions and status codes are a handful, a rule counts
as "rule" whatever its name, and of versions of the model the latest four are kept. No label and no
value says anything of one payment.

The counts are kept here, and only written by prometheus_client. Feast puts that library's own
counters into a mode for several processes, in which each count is a page of a file and a label
never goes away.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector

from pipelines.fraud.line import Processed

__all__ = ["CONTENT_TYPE", "Telemetry"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_VERSIONS_KEPT: Final = 4
_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class _Histogram:
    def __init__(self, name: str, said: str, bounds: Sequence[float]) -> None:
        self._name, self._said, self._bounds = name, said, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def metric(self) -> Metric:
        names = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        buckets = list(zip(names, itertools.accumulate(self._counts), strict=True))
        return HistogramMetricFamily(self._name, self._said, buckets=buckets, sum_value=self._sum)


class Telemetry:
    """Counts, and their text.

    Args:
        waiting: how many requests are in the queue.
        version: which version of the model is live.
        is_refused: whether another one is current, and was refused.
        of_cache: what the cache of the feature store counts.
    """

    def __init__(
        self,
        waiting: Callable[[], int],
        version: Callable[[], str],
        is_refused: Callable[[], bool],
        of_cache: Callable[[], Iterable[Metric]] = tuple,
    ) -> None:
        self._waiting, self._version, self._is_refused = waiting, version, is_refused
        self._lock = threading.Lock()
        self._decisions: OrderedDict[str, Counter[tuple[str, str]]] = OrderedDict()
        self._requests: Counter[str] = Counter()
        self._repeated = self._dead = 0
        self._request_s = _Histogram(
            "fraud_request_seconds", "From the head of a request to its answer", _SECONDS
        )
        self._batch_s = _Histogram("fraud_batch_seconds", "What a batch took", _SECONDS)
        self._batch_size = _Histogram("fraud_batch_payments", "Payments in a batch", _SIZES)
        self._registry = CollectorRegistry()
        self._registry.register(_Collected(self._metrics))
        self._registry.register(_Collected(of_cache))
        ProcessCollector(registry=self._registry)

    def batch(self, found: Processed, seconds: float) -> None:
        """Count a batch."""
        with self._lock:
            self._batch_s.observe(seconds)
            self._batch_size.observe(len(found.payments))
            self._repeated += found.repeated
            self._dead += len(found.dead)
            for decided in found.decided:
                kinds = (layer.partition(":")[0] for layer in decided.layers)
                counts = self._decisions.setdefault(decided.model_version, Counter())
                counts.update(zip(decided.decisions, kinds, strict=True))
                self._decisions.move_to_end(decided.model_version)
                if len(self._decisions) > _VERSIONS_KEPT:
                    self._decisions.popitem(last=False)

    def request(self, status: int, seconds: float) -> None:
        """Count a request for a decision."""
        with self._lock:
            self._requests[str(status)] += 1
            self._request_s.observe(seconds)

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        with self._lock:
            text: bytes = generate_latest(self._registry)
            return text

    def _metrics(self) -> Iterator[Metric]:
        decided = CounterMetricFamily(
            "fraud_decisions", "Payments decided", labels=("decision", "layer", "model_version")
        )
        for version, counts in self._decisions.items():
            for labels, count in counts.items():
                decided.add_metric((*labels, version), count)
        asked = CounterMetricFamily("fraud_requests", "Requests for a decision", labels=("status",))
        for status, count in self._requests.items():
            asked.add_metric((status,), count)
        live = GaugeMetricFamily("fraud_model_live", "1: is live", labels=("model_version",))
        live.add_metric((self._version(),), 1)
        yield from (decided, asked, live)
        yield from (one.metric() for one in (self._request_s, self._batch_s, self._batch_size))
        for name, said, count in (
            ("fraud_repeated", "Payments that had a decision already", self._repeated),
            ("fraud_dead_letters", "Records that are no payments", self._dead),
        ):
            yield CounterMetricFamily(name, said, value=count)
        for name, said, value in (
            ("fraud_queue_length", "Requests that wait for a batch", self._waiting()),
            ("fraud_model_refused", "1: the current version was refused", self._is_refused()),
        ):
            yield GaugeMetricFamily(name, said, value=int(value))


class _Collected:
    """What a registry of prometheus_client asks."""

    def __init__(self, metrics: Callable[[], Iterable[Metric]]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Any]:
        return self._metrics()
