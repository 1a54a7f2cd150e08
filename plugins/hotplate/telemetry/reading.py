"""Metrics, added up over the processes that wrote them, or as an endpoint shows them."""

from __future__ import annotations

import fcntl
import http.client
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from hotplate.histogram import HistogramStats
from hotplate.telemetry.catalogue import Sample
from hotplate.telemetry.errors import TelemetryError
from hotplate.telemetry.files import DAMAGE, has_ended, locked

__all__ = [
    "CONTENT_TYPE",
    "Collector",
    "FolderReader",
    "Reading",
    "exposition",
    "families",
    "read_families",
    "read_folder",
    "read_url",
    "text_of",
]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_OURS: Final = "hotplate_"
_TIMEOUT_S: Final = 5.0
_BYTES_MOST: Final = 64_000_000
_LOCK_S: Final = 1.0  # adding up takes milliseconds
_DAMAGED_MOST: Final = 20
_TRIES: Final = 3  # files that are added up meanwhile fail one attempt

Labels = tuple[tuple[str, str], ...]
_T = TypeVar("_T")
_left_out: Final[set[Path]] = set()  # files that cannot be read
_log = logging.getLogger("hotplate.telemetry")


@dataclass(frozen=True)
class Reading:
    """What all metrics were at a moment.

    Attributes:
        at_s: when, on a clock that does not go back.
        values: name of a sample -> its labels, sorted by name -> value.
    """

    at_s: float
    values: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    def by(self, name: str, label: str, **chosen: str) -> dict[str, float]:
        """A sample's values, added up by one label.

        Args:
            name: of the sample, such as `hotplate_hits_total`.
            label: by which.
            chosen: values that other labels must have.
        """
        sums: dict[str, float] = {}
        for labels, value in self.values.get(name, {}).items():
            held = _as_dict(labels)
            if label in held and all(held.get(one) == wanted for one, wanted in chosen.items()):
                sums[held[label]] = sums.get(held[label], 0.0) + value
        return sums

    def sum(self, name: str, **chosen: str) -> float:
        """A sample's values, added up."""
        wanted = set(chosen.items())
        return sum(
            value for labels, value in self.values.get(name, {}).items() if wanted <= set(labels)
        )

    def parts(self, *names: str) -> dict[tuple[str, ...], Reading]:
        """The readings of each combination of values of some labels, of samples that have them."""
        found: dict[tuple[str, ...], dict[str, dict[Labels, float]]] = {}
        for sample, held in self.values.items():
            for labels, value in held.items():
                chosen = _chosen(labels, names)
                if chosen is not None:
                    found.setdefault(chosen, {}).setdefault(sample, {})[labels] = value
        return {chosen: Reading(self.at_s, values) for chosen, values in found.items()}

    def since(self, before: Reading) -> Reading:
        """What was counted since another reading; a counter that fell began anew."""
        values = {}
        for name, held in self.values.items():
            earlier = before.values.get(name, {})
            values[name] = {
                labels: value - then if value >= (then := earlier.get(labels, 0.0)) else value
                for labels, value in held.items()
            }
        return Reading(self.at_s, values)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing of Hotplate's."""
        return not self.values


@lru_cache(maxsize=100_000)  # the same ones come with every reading
def _as_dict(labels: Labels) -> Mapping[str, str]:
    return dict(labels)


@lru_cache(maxsize=100_000)
def _chosen(labels: Labels, names: tuple[str, ...]) -> tuple[str, ...] | None:
    held = _as_dict(labels)
    return tuple(held[name] for name in names) if all(name in held for name in names) else None


def read_folder(folder: Path) -> Reading:
    """The counts of every process that writes into a folder, added up.

    Raises:
        TelemetryError: there is no such folder, or it cannot be read.
    """
    return FolderReader(folder).read()


def read_url(url: str) -> Reading:
    """The counts that an endpoint shows.

    Raises:
        TelemetryError: it does not answer, or not with metrics.
    """
    if not url.startswith(("http://", "https://")):
        raise TelemetryError(f"{url}: is no address of metrics; write http://HOST:PORT/metrics")
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            text = response.read(_BYTES_MOST).decode("utf-8", "replace")
        return _reading(list(text_string_to_metric_families(text)))
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise TelemetryError(
            f"{url}: does not answer ({reason}). Is it the address at which the service shows its "
            "metrics? `feast serve --metrics` does at port 8000, `hotplate metrics --serve` at 9464"
        ) from error
    except http.client.InvalidURL as error:
        raise TelemetryError(f"{url}: is no address: {error}") from error
    except (ValueError, http.client.HTTPException) as error:
        raise TelemetryError(f"{url}: answers something else than metrics: {error}") from error


def exposition(folder: Path) -> bytes:
    """The same as a folder's, in Prometheus' text format.

    Raises:
        TelemetryError: there is no such folder, or it cannot be read.
    """
    return text_of(read_families(folder))


def text_of(found: Iterable[Family]) -> bytes:
    """Metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(Collector(lambda: found))
    text: bytes = generate_latest(registry)
    return text


class FolderReader:
    """Reads a folder again and again, for a fifth of what prometheus_client's own collector takes.

    It adds up as that does, which a test compares.

    Args:
        folder: of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[str, Labels]] = {}

    def read(self) -> Reading:
        """The counts of every process, added up.

        Raises:
            TelemetryError: there is no such folder, or it cannot be read.
        """
        return _tried(self._folder, self._read)

    def _read(self) -> Reading:
        values: dict[str, dict[Labels, float]] = {}
        histograms: set[str] = set()
        for path in _files_of(self._folder, f"*_{_OURS.removesuffix('_')}-*.db"):
            kind, _, mode = path.name.rpartition("_")[0].partition("_live")
            add = {"min": min, "max": max}.get(mode)
            for key, value, _, _ in MmapedDict.read_all_values_from_file(str(path)):
                place = self._known.get(key)
                if place is None:
                    _, name, labels, _ = json.loads(key)
                    place = self._known[key] = name, tuple(sorted(labels.items()))
                name, known = place
                held = values.setdefault(name, {})
                before = held.get(known)
                if before is None:
                    held[known] = value
                else:
                    held[known] = before + value if add is None else add(before, value)
                if kind == "histogram" and name.endswith("_bucket"):
                    histograms.add(name)
        for name in histograms:
            _accumulate(values, name)
        return Reading(time.monotonic(), values)


def _accumulate(values: dict[str, dict[Labels, float]], name: str) -> None:
    """Buckets count what lies below their bound, not what lies between bounds; the last counts all.

    Args:
        values: of all samples.
        name: of the buckets.
    """
    by_labels: dict[Labels, list[tuple[float, Labels]]] = {}
    for labels in values[name]:
        rest, bound = _without_bound(labels)
        by_labels.setdefault(rest, []).append((bound, labels))
    counts = values.setdefault(name.removesuffix("_bucket") + "_count", {})
    for rest, buckets in by_labels.items():
        so_far = 0.0
        for _, labels in sorted(buckets):
            so_far += values[name][labels]
            values[name][labels] = so_far
        counts[rest] = so_far


@lru_cache(maxsize=100_000)
def _without_bound(labels: Labels) -> tuple[Labels, float]:
    rest = tuple(label for label in labels if label[0] != "le")
    return rest, float(_as_dict(labels)["le"])


class Collector:
    """What a registry of prometheus_client asks: `REGISTRY.register(Collector(hot.metrics))`.

    Args:
        metrics: says what there is now.
    """

    def __init__(self, metrics: Callable[[], Iterable[Family]]) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Family]:
        """Nothing: who registers is not to wait for a folder to be read."""
        return ()

    def collect(self) -> Iterable[Family]:
        """What there is now."""
        return self._metrics()


def families(samples: Iterable[Sample]) -> list[Family]:
    """The values of one process as prometheus_client has them."""
    made: dict[str, Any] = {}
    for sample in samples:
        metric, labels = sample.metric, list(sample.labels)
        family = made.get(metric.name)
        if isinstance(sample.value, HistogramStats):
            if family is None:
                family = HistogramMetricFamily(metric.name, metric.said, labels=metric.labels)
            buckets = [(floatToGoString(bound), n) for bound, n in sample.value.cumulative()]
            family.add_metric(labels, buckets, sample.value.total)
        else:
            if family is None:
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = kind(metric.family, metric.said, labels=metric.labels)
            family.add_metric(labels, float(sample.value))
        made[metric.name] = family
    return list(made.values())


def read_families(folder: Path) -> list[Family]:
    """The metrics of every process that writes into a folder, added up.

    Raises:
        TelemetryError: there is no such folder, or it cannot be read.
    """
    merge = MultiProcessCollector.merge
    return _tried(
        folder,
        lambda: [
            one
            for one in merge([str(path) for path in _files_of(folder, "*.db")])
            if one.name.startswith(_OURS)
        ],
    )


def _files_of(folder: Path, pattern: str) -> list[Path]:
    """The files to add up: what a process that has ended held is held no more, and what is damaged,
    as after a power cut, is left out."""
    found = []
    for path in folder.glob(pattern):
        is_gauge = path.name.startswith("gauge_live") and _OURS.removesuffix("_") in path.name
        if path in _left_out or (is_gauge and has_ended(path)):
            continue
        found.append(path)
    return found


def _tried(folder: Path, read: Callable[[], _T]) -> _T:
    if not folder.is_dir():
        raise TelemetryError(
            f"{folder}: is no folder. A process writes there once its feature_store.yaml says "
            f"online_store.metrics: {{folder: {folder}}} and it has been asked something"
        )
    for attempt in range(_TRIES + _DAMAGED_MOST):
        try:
            with locked(folder, fcntl.LOCK_SH, _LOCK_S):
                return read()
        except FileNotFoundError as error:
            if attempt >= _TRIES - 1:
                raise TelemetryError(f"{folder}: changes while it is read: {error}") from error
        except DAMAGE as error:
            if (damaged := _find_damaged(folder)) is None:
                raise TelemetryError(f"{folder}: cannot be read: {error}") from error
            _left_out.add(damaged)
            _log.warning("%s: is damaged, and left out until it is removed", damaged)
    raise TelemetryError(f"{folder}: cannot be read: too many of its files are damaged; remove it")


def _find_damaged(folder: Path) -> Path | None:
    """A file of a folder that cannot be read."""
    for path in sorted(set(folder.glob("*.db")) - _left_out):
        try:
            MultiProcessCollector.merge([str(path)])
        except DAMAGE:
            return path
    return None


def _reading(found: Iterable[Family]) -> Reading:
    values: dict[str, dict[Labels, float]] = {}
    for family in found:
        if family.name.startswith(_OURS):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                values.setdefault(sample.name, {})[labels] = sample.value
    return Reading(time.monotonic(), values)
