"""The same requests through the pipeline with its layers off and on, one added after the other.

All stages read one online store. They take turns at blocks of requests: the stage without caches
first and last, the others in between, in an order drawn anew for each block, so that whatever else
the machine does falls on all of them. Between blocks some of the payments are recorded, so that
windows change and the caches must notice.

Every score is compared with those of the stage without caches for the same request, before and
after. Where it equals neither, the inputs say why:

- each is what it was before or after: a window moved with time in between, and all are right;
- it is a plain feature, no older than its group's bound: staleness that the TTL map allows;
- all are the same, and an output was kept under a key that rounds them as declared;
- anything else is a wrong score.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

import hotplate
from hotplate.cache_policy import GROUP_TAG, WINDOWS_TAG
from pipelines.fraud.decide import Decided, Decider, Layers, scorer_of
from pipelines.fraud.line import EVENTS
from pipelines.fraud.payments import CHECK, PAYMENT, Payments
from pipelines.fraud.work import Work

__all__ = ["SKEW", "STAGES", "Replay", "ReplaySpec", "Stage", "StageFound", "draw"]

SKEW: Final = 0.98
"""Zipf exponent of the cards' popularity: that of the keys of a production cache, Twitter's cluster
52 (its 2,000,000 requests over 248,646 keys: 0.98 over all ranks; Yang et al., OSDI 2020)."""
_Row: TypeAlias = npt.NDArray[np.float32]
_WARM_UP: Final = 5


@dataclass(frozen=True)
class Stage:
    """One way through the pipeline.

    Attributes:
        name: for people.
        layers: which are on.
    """

    name: str
    layers: Layers


STAGES: Final = (
    Stage("no caches", Layers(features=False, windows=False, outputs=False, scorer=False)),
    Stage("+ features", Layers(windows=False, outputs=False, scorer=False)),
    Stage("+ windows", Layers(outputs=False, scorer=False)),
    Stage("+ fast scorer", Layers(outputs=False)),
    Stage("+ outputs", Layers()),
)


@dataclass(frozen=True)
class ReplaySpec:
    """How requests are drawn and come.

    Attributes:
        requests: how many each stage answers.
        skew: Zipf exponent of the cards' popularity.
        recorded_share: share of the requests that are payments; the others only ask.
        block: requests that one stage answers before it is the next one's turn.
        seed: of everything drawn.
    """

    requests: int = 5_000
    skew: float = SKEW
    recorded_share: float = 0.1
    block: int = 100
    seed: int = 0


@dataclass
class StageFound:
    """What one stage took; latencies have one item a timed request.

    Attributes:
        latency_ns: of deciding one payment.
        model_s: in the model, of all requests.
        cpu_s: of this process.
        source_reads: rows that were read past the caches.
        from_outputs: requests that the cache of outputs answered.
        different: scores that differ from those without caches.
        moved, stale, rounded: those of them that are explained, see the module.
        decisions_changed: of all that differ, those whose decision does, too.
        hits: by group, (hits, reads).
        families: of the cache of outputs.
    """

    latency_ns: list[int] = field(default_factory=list)
    requests: int = 0
    model_s: float = 0.0
    cpu_s: float = 0.0
    source_reads: int = 0
    from_outputs: int = 0
    different: int = 0
    moved: int = 0
    stale: int = 0
    rounded: int = 0
    decisions_changed: int = 0
    hits: dict[str, tuple[int, int]] = field(default_factory=dict)
    families: list[dict[str, Any]] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        """Scores that nothing explains."""
        return self.different - self.moved - self.stale - self.rounded


def draw(payments: pd.DataFrame, spec: ReplaySpec) -> tuple[Payments, float]:
    """Requests, and the share that the busiest hundredth of the cards makes of them.

    A card of rank r is drawn with a probability proportional to r ** -skew, and brings one of its
    payments, drawn evenly.

    Args:
        payments: with `customer_id`, `terminal_id` and `amount`.
        spec: how many, and how skewed.
    """
    rng = np.random.default_rng(spec.seed)
    cards = payments["customer_id"].to_numpy()
    order = np.argsort(cards, kind="stable")
    _, starts, counts = np.unique(cards[order], return_index=True, return_counts=True)
    weight = rng.permutation(np.arange(1, len(starts) + 1, dtype=np.float64)) ** -spec.skew
    card = rng.choice(len(starts), size=spec.requests, p=weight / weight.sum())
    chosen = order[starts[card] + (rng.random(spec.requests) * counts[card]).astype(np.int64)]
    rows = payments.iloc[chosen]
    kinds = np.where(rng.random(spec.requests) < spec.recorded_share, PAYMENT, CHECK)
    drawn = np.sort(np.bincount(card))[::-1]
    return Payments(
        [str(place) for place in range(spec.requests)],
        [f"replay-{spec.seed}-{time.time_ns()}-{place}" for place in range(spec.requests)],
        rows["customer_id"].to_numpy(np.int64),
        rows["terminal_id"].to_numpy(np.int64),
        rows["amount"].to_numpy(np.float64),
        np.full(spec.requests, time.time_ns() // 1_000_000),
        kinds.astype(object),
    ), float(drawn[: max(1, len(starts) // 100)].sum() / spec.requests)


class Replay:
    """Runs the stages.

    Args:
        work: the pipeline's folder, with features and a model.
        device: where models are scored.
        stages: what is compared; the first is what the others are compared with.
    """

    def __init__(self, work: Work, device: str = "auto", stages: Sequence[Stage] = STAGES) -> None:
        self.stages = stages
        bundle = work.model(work.open())
        self._stores = [work.open(stage.layers) for stage in stages]
        self._deciders = [
            Decider(
                store, bundle, scorer_of(bundle, device, is_fast=stage.layers.scorer), stage.layers
            )
            for store, stage in zip(self._stores, stages, strict=True)
        ]
        self.bundle = bundle
        self._inputs = bundle.inputs
        self._bounds_s = _bounds_s(self._stores[-1])
        self._view_of = {
            feature.name: projection.name
            for projection in self._stores[0]
            .get_feature_service(bundle.service)
            .feature_view_projections
            for feature in projection.features
        }

    def run(
        self,
        requests: Payments,
        spec: ReplaySpec,
        progress: Callable[[int], None] = lambda more: None,
    ) -> dict[str, StageFound]:
        """Answer all requests with all stages.

        Args:
            requests: what is asked, one after the other.
            spec: how they come.
            progress: told how many more requests all stages have answered.
        """
        rng = np.random.default_rng(spec.seed + 1)
        found = {stage.name: StageFound() for stage in self.stages}
        before = [_loads(store) for store in self._stores]
        for start in range(0, len(requests), spec.block):
            block = range(start, min(start + spec.block, len(requests)))
            singles = [_now(requests.chosen(np.array([place]))) for place in block]
            answers: dict[int, list[Decided]] = {}
            bare = found[self.stages[0].name]
            first = self._ask(self._deciders[0], singles, bare)
            for place in (1 + rng.permutation(len(self.stages) - 1)).tolist():
                one = found[self.stages[place].name]
                answers[place] = self._ask(self._deciders[place], singles, one)
            last = self._ask(self._deciders[0], singles, bare)
            self._compare(first, last, answers, found)
            self._record([one for one in singles if one.is_recorded.all()])
            progress(len(block))
        for place, stage in enumerate(self.stages):
            one = found[stage.name]
            one.hits = _hits(self._stores[place])
            one.source_reads = _loads(self._stores[place]) - before[place]
            outputs = self._deciders[place].outputs
            if outputs is not None:
                one.families = [
                    {**asdict(family), "hit_rate": family.hit_rate} for family in outputs.families()
                ]
        return found

    def _ask(
        self, decider: Decider, singles: Sequence[Payments], found: StageFound
    ) -> list[Decided]:
        answers = []
        clock = time.perf_counter_ns
        cpu_s = time.process_time()
        for place, single in enumerate(singles):
            began_ns = clock()
            decided = decider.decide(single)
            spent_ns = clock() - began_ns
            if place >= _WARM_UP:
                found.latency_ns.append(spent_ns)
            found.model_s += decided.model_s
            found.from_outputs += decided.layers[0] == "hit"
            answers.append(decided)
        found.cpu_s += time.process_time() - cpu_s
        found.requests += len(singles)
        return answers

    def _compare(
        self,
        first: Sequence[Decided],
        last: Sequence[Decided],
        answers: Mapping[int, Sequence[Decided]],
        found: Mapping[str, StageFound],
    ) -> None:
        for place, of_stage in answers.items():
            one = found[self.stages[place].name]
            for before, after, cached in zip(first, last, of_stage, strict=True):
                if cached.scores[0] in (before.scores[0], after.scores[0]):
                    continue
                one.different += 1
                one.decisions_changed += cached.decisions not in (before.decisions, after.decisions)
                why = self._why(before.inputs[0], after.inputs[0], cached)
                if why:
                    setattr(one, why, getattr(one, why) + 1)

    def _why(self, before: _Row, after: _Row, cached: Decided) -> str:
        """What explains that a score is another one; nothing where nothing does."""
        served = cached.inputs[0]
        for at in (_differing(before, served) & _differing(after, served)).nonzero()[0].tolist():
            view = self._view_of.get(self._inputs[at], "")
            bound_s = self._bounds_s.get(view)
            if bound_s is None or float(cached.ages_s[view][0]) > bound_s:
                return ""
            return "stale"
        if _differing(before, served).any() or _differing(after, served).any():
            return "moved"
        # the same inputs: the score was computed for others of the same key
        return "rounded" if cached.layers[0] == "hit" else ""

    def _record(self, payments: Sequence[Payments]) -> None:
        """Record payments as a consumer of the stream in another process would."""
        if payments:
            events = pd.concat([one.events() for one in payments], ignore_index=True)
            hotplate.of(self._stores[0]).ingest(EVENTS, events)
            time.sleep(0.02)  # the event channel tells the others within a few ms


def _now(payments: Payments) -> Payments:
    payments.at_ms[:] = time.time_ns() // 1_000_000
    return payments


def _differing(left: _Row, right: _Row) -> npt.NDArray[np.bool_]:
    return np.asarray((left != right) & ~(np.isnan(left) & np.isnan(right)))


def _loads(store: Any) -> int:
    return sum(group.loads for group in hotplate.of(store).stats().groups.values())


def _hits(store: Any) -> dict[str, tuple[int, int]]:
    groups = hotplate.of(store).stats().groups
    return {name: (group.hits, group.reads) for name, group in groups.items() if group.reads}


def _bounds_s(store: Any) -> dict[str, float]:
    """View -> how old its values may be served; windows may not be old at all."""
    hot = hotplate.of(store)
    policies = hot.policies()
    found = {}
    for view in store.list_feature_views():
        group = view.tags.get(GROUP_TAG, view.name)
        if WINDOWS_TAG not in view.tags and group in policies:
            found[view.name] = policies[group].ttl_ns / 1e9
    return found
