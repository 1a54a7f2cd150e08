"""The same metrics through OpenTelemetry, for deployments that have it.

Names are those of `catalogue` with dots and without the unit, which OpenTelemetry keeps beside the
name: `hotplate_age_seconds` is `hotplate.age`, in `s`. OpenTelemetry has no histogram that is read
rather than recorded, so one is three counters here: `.count`, `.sum`, and `.bucket` with the upper
bound as the attribute `le`, as in Prometheus.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

from hotplate.histogram import HistogramStats
from hotplate.telemetry.catalogue import CATALOGUE, Metric, Sample

__all__ = ["instrument", "name_of"]

_UNITS: Final = {"_seconds": "s", "_bytes": "By"}
_SAME_S: Final = 0.2  # instruments are asked one after the other: they are asked of one moment


def instrument(
    samples: Callable[[], Iterable[Sample]], provider: MeterProvider | None = None
) -> None:
    """Let a meter provider ask for all metrics, for as long as their owner lives.

    Several owners, as stores of several projects are, share its instruments.

    Args:
        samples: a method that says what is counted by now.
        provider: the global one if left out, which an application sets, or
            `opentelemetry-instrument` for it.
    """
    provider = provider or get_meter_provider()
    moment = _moments.get(provider)
    if moment is None:
        moment = _moments[provider] = _Moment()
        _register(moment, provider)
    moment.owners.append(weakref.WeakMethod(samples))


def _register(moment: _Moment, provider: MeterProvider) -> None:
    meter = provider.get_meter("hotplate")
    for metric in CATALOGUE.values():
        name, unit = name_of(metric)
        if metric.kind == "histogram":
            for part in ("count", "sum", "bucket"):
                meter.create_observable_counter(
                    f"{name}.{part}",
                    [_asked(moment, metric, part)],
                    unit=unit if part == "sum" else "1",
                    description=metric.said,
                )
            continue
        create = {
            "counter": meter.create_observable_counter,
            "gauge": meter.create_observable_gauge,
        }[metric.kind]
        create(name, [_asked(moment, metric, "")], unit=unit, description=metric.said)


def name_of(metric: Metric) -> tuple[str, str]:
    """The name of a metric in OpenTelemetry, and its unit."""
    name = metric.family
    unit = "1"
    for suffix, known in _UNITS.items():
        if name.endswith(suffix):
            name, unit = name.removesuffix(suffix), known
    return name.replace("_", "."), unit


class _Moment:
    """What was counted at one moment, by metric."""

    def __init__(self) -> None:
        self.owners: list[weakref.WeakMethod[Any]] = []
        self._read_s = float("-inf")
        self._found: dict[str, list[Sample]] = {}

    def of(self, metric: Metric) -> list[Sample]:
        if time.monotonic() - self._read_s > _SAME_S:
            found: dict[str, list[Sample]] = {}
            for owner in self.owners:
                samples = owner()
                for sample in () if samples is None else samples():
                    found.setdefault(sample.metric.name, []).append(sample)
            self._found, self._read_s = found, time.monotonic()
        return self._found.get(metric.name, [])


_moments: Final[weakref.WeakKeyDictionary[MeterProvider, _Moment]] = weakref.WeakKeyDictionary()
if hasattr(os, "register_at_fork"):  # a child has a provider of its own, or none
    os.register_at_fork(after_in_child=_moments.clear)


def _asked(
    moment: _Moment, metric: Metric, part: str
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    names = [f"hotplate.{label}" for label in metric.labels]

    def ask(options: CallbackOptions) -> Iterator[Observation]:
        for sample in moment.of(metric):
            attributes = dict(zip(names, sample.labels, strict=True))
            if not isinstance(sample.value, HistogramStats):
                yield Observation(sample.value, attributes)
            elif part == "bucket":
                for bound, count in sample.value.cumulative():
                    yield Observation(count, {**attributes, "le": str(bound)})
            else:
                held = sample.value.count if part == "count" else sample.value.total
                yield Observation(held, attributes)

    return ask
