"""The measured replay: the same requests through bare Feast and through the cache.

Both stores lie in one process over one online store. Feast keeps what it resolved of a request in a
cache of the process, and empties that whenever another registry object asks; two stores that take
turns at every request would make bare Feast look slower than it is. So they take turns at blocks of
requests, and the first requests of each block are asked but not timed.

Between the blocks:

- the clock runs on until the block's turn, so that on average `rate` requests a second arrive and
  values age as they would in service; within a block requests follow one another at once;
- some of the payments are pushed into `customer_spending` through the cached store, as a stream
  processor would, so that the cache must forget them;
- half-way another writer, of which the cache is not told, writes `terminal_risk` anew. From then on
  the cached store may answer with what it read before, for as long as the ttl says.

A latency covers `get_online_features(...).to_dict()`. Scoring and looking at ages come after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from feast import FeatureStore

import hotplate
from hotplate import Tier
from pipelines.reads.model import FraudModel
from pipelines.reads.requests import Requests
from pipelines.reads.updates import SpendingUpdates

__all__ = ["SERVICE", "Ages", "Block", "Recording", "Replay", "ReplaySpec"]

SERVICE = "fraud_v1"
PUSH_SOURCE = "customer_spending_push"
OUTSIDE_VIEW = "terminal_risk"


@dataclass(frozen=True)
class ReplaySpec:
    """How requests arrive.

    Attributes:
        rate: requests a second, on average; 0 for as fast as they are answered.
        block: requests that one store answers before it is the other's turn.
        warm_up: requests at the beginning of a block that are not timed.
        push_share: share of the payments whose customer's spending is pushed.
        has_outside_write: whether another writer writes, half-way.
        seed: for the choice of those payments.
    """

    rate: float
    block: int = 250
    warm_up: int = 10
    push_share: float = 0.1
    has_outside_write: bool = True
    seed: int = 0


@dataclass
class Ages:
    """Ages of one group's served values, in order: when in the replay, how old, how long left."""

    at_s: list[float] = field(default_factory=list)
    age_s: list[float] = field(default_factory=list)
    left_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Block:
    """What one block of requests cost.

    Attributes:
        start_s: since the replay began.
        requests: how many.
        bare_reads: rows that bare Feast asked the source for.
        before, after: the cache's own counts, by group.
    """

    start_s: float
    requests: int
    bare_reads: int
    before: Mapping[str, hotplate.GroupStats]
    after: Mapping[str, hotplate.GroupStats]


@dataclass
class Recording:
    """What a replay found; arrays have one item a request.

    Attributes:
        bare_ns, cached_ns: latencies.
        is_timed: whether the latencies count.
        is_from_memory: whether the cached store asked nobody.
        bare_scores, cached_scores: of the model.
        ages: by group.
        blocks: in order.
        different: requests that the two answered differently.
        explained: those of them whose every difference is a value that the outside writer
            changed after the cache had read it, served within its bound.
        last_different_s: when the last of them was served, after the outside write.
        pushed_rows, outside_rows: rows written meanwhile.
        outside_at_s: when the outside writer was done, since the replay began.
        outside_group: the group that it wrote.
        views, features: that each request asks for.
        duration_s: of the whole.
    """

    bare_ns: npt.NDArray[np.int64]
    cached_ns: npt.NDArray[np.int64]
    is_timed: npt.NDArray[np.bool_]
    is_from_memory: npt.NDArray[np.bool_]
    bare_scores: npt.NDArray[np.float64]
    cached_scores: npt.NDArray[np.float64]
    ages: dict[str, Ages] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    different: int = 0
    explained: int = 0
    last_different_s: float = 0.0
    pushed_rows: int = 0
    outside_rows: int = 0
    outside_at_s: float | None = None
    outside_group: str = OUTSIDE_VIEW
    views: int = 0
    features: int = 0
    duration_s: float = 0.0

    @classmethod
    def of_size(cls, count: int) -> Recording:
        """An empty one for so many requests."""
        return cls(
            bare_ns=np.zeros(count, np.int64),
            cached_ns=np.zeros(count, np.int64),
            is_timed=np.zeros(count, np.bool_),
            is_from_memory=np.zeros(count, np.bool_),
            bare_scores=np.zeros(count),
            cached_scores=np.zeros(count),
        )


class Replay:
    """One replay over two open stores.

    Args:
        bare: Feast over the source.
        cached: Feast over Hotplate over the same source, materialized.
        requests: what is asked.
        model: scores every answer.
        spec: how requests arrive.
    """

    def __init__(
        self,
        bare: FeatureStore,
        cached: FeatureStore,
        requests: Requests,
        model: FraudModel,
        spec: ReplaySpec,
    ) -> None:
        self._bare = bare
        self._cached = cached
        self._cache = hotplate.of(cached)
        self._requests = requests
        self._model = model
        self._spec = spec
        self._entities = [
            [{"customer_id": customer, "terminal_id": terminal}]
            for customer, terminal in zip(requests.customer_ids, requests.terminal_ids, strict=True)
        ]
        self._bare_service = bare.get_feature_service(SERVICE)
        self._cached_service = cached.get_feature_service(SERVICE)
        projections = self._bare_service.feature_view_projections
        self._view_of = {
            feature.name: projection.name
            for projection in projections
            for feature in projection.features
        }
        self._found = Recording.of_size(len(requests))
        self._found.views, self._found.features = len(projections), len(self._view_of)
        self._began_s = 0.0
        self._outside_s = float("inf")

    def run(
        self,
        spending: SpendingUpdates,
        next_risk: pd.DataFrame,
        on_requests: Callable[[int], None],
    ) -> Recording:
        """Replay every request, with the writes in between."""
        spec, total = self._spec, len(self._requests)
        starts = range(0, total, spec.block)
        rng = np.random.default_rng(np.random.SeedSequence(spec.seed, spawn_key=(102,)))
        self._began_s = due_s = time.monotonic()
        for number, start in enumerate(starts):
            time.sleep(max(0.0, due_s - time.monotonic()))
            due_s = max(due_s, time.monotonic()) + (spec.block / spec.rate if spec.rate else 0.0)
            if spec.has_outside_write and number == (len(starts) + 1) // 2:
                self._write_outside(next_risk)
            block = range(start, min(start + spec.block, total))
            self._run_block(block)
            chosen = [index for index in block if rng.random() < spec.push_share]
            self._push(spending, chosen)
            on_requests(len(block))
        self._found.duration_s = time.monotonic() - self._began_s
        return self._found

    # -- reading --------------------------------------------------------------------------------

    def _run_block(self, block: range) -> None:
        start_s = time.monotonic() - self._began_s
        before = self._cache.stats().groups
        expected = self._ask_bare(block)
        self._ask_cached(block, expected)
        reads = len(block) * self._found.views
        after = self._cache.stats().groups
        self._found.blocks.append(Block(start_s, len(block), reads, before, after))
        self._found.is_timed[block.start + self._spec.warm_up : block.stop] = True

    def _ask_bare(self, block: range) -> list[dict[str, Any]]:
        store, service, found = self._bare, self._bare_service, self._found
        answers = []
        for index in block:
            entities = self._entities[index]
            start_ns = time.perf_counter_ns()
            answer = store.get_online_features(service, entities).to_dict()
            found.bare_ns[index] = time.perf_counter_ns() - start_ns
            found.bare_scores[index] = self._model.score(self._requests.inputs[index], answer)
            answers.append(answer)
        return answers

    def _ask_cached(self, block: range, expected: Sequence[dict[str, Any]]) -> None:
        store, service, found = self._cached, self._cached_service, self._found
        asked = []
        for index in block:
            entities = self._entities[index]
            asked_s = time.monotonic()
            start_ns = time.perf_counter_ns()
            response = store.get_online_features(service, entities)
            answer = response.to_dict()
            found.cached_ns[index] = time.perf_counter_ns() - start_ns
            found.cached_scores[index] = self._model.score(self._requests.inputs[index], answer)
            asked.append((index, asked_s, response, answer))
        for (index, asked_s, response, answer), other in zip(asked, expected, strict=True):
            freshness = response.freshness()
            self._note_ages(index, asked_s, freshness)
            if answer != other:
                self._note_difference(asked_s, freshness, answer, other)

    def _note_ages(
        self, index: int, asked_s: float, freshness: Mapping[str, Sequence[hotplate.Freshness]]
    ) -> None:
        is_from_memory = True
        for (item,) in freshness.values():
            ages = self._found.ages.setdefault(item.group, Ages())
            ages.at_s.append(asked_s - self._began_s)
            ages.age_s.append(item.age_s)
            ages.left_s.append(item.expires_in_s)
            is_from_memory &= item.tier is Tier.MEMORY
        self._found.is_from_memory[index] = is_from_memory

    def _note_difference(
        self,
        asked_s: float,
        freshness: Mapping[str, Sequence[hotplate.Freshness]],
        answer: Mapping[str, Any],
        other: Mapping[str, Any],
    ) -> None:
        differing = {
            self._view_of.get(name, name) for name in other if answer.get(name) != other[name]
        }
        item = freshness[OUTSIDE_VIEW][0]
        was_read_before = asked_s - item.age_s <= self._outside_s <= asked_s
        is_explained = differing == {OUTSIDE_VIEW} and was_read_before and item.expires_in_s >= 0
        self._found.outside_group = item.group
        self._found.different += 1
        self._found.explained += is_explained
        if is_explained:
            self._found.last_different_s = asked_s - self._outside_s

    # -- writing --------------------------------------------------------------------------------

    def _push(self, spending: SpendingUpdates, chosen: Sequence[int]) -> None:
        if not chosen:
            return
        requests = self._requests
        frame = spending.after(
            [(requests.customer_ids[index], float(requests.inputs[index, 0])) for index in chosen]
        )
        self._cached.push(PUSH_SOURCE, frame.assign(event_timestamp=datetime.now(UTC)))
        self._found.pushed_rows += len(frame)

    def _write_outside(self, rows: pd.DataFrame) -> None:
        self._bare.write_to_online_store(OUTSIDE_VIEW, rows)
        self._outside_s = time.monotonic()
        self._found.outside_rows = len(rows)
        self._found.outside_at_s = self._outside_s - self._began_s
