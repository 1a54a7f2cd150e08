"""The same requests through the pipeline with its layers off and on, one added after the other.

All stages read one online store, each from a process of its own. They take turns at blocks of
requests: the stage without caches first and last, the others in between, in an order drawn anew for
each block, so that whatever else the machine does falls on all of them. Between blocks some of the
payments are recorded, so that windows change and the caches must notice.

Every score is compared with those of the stage without caches for the same request, before and
after. Where it equals neither, the inputs say why:

- each is what it was before or after: a window moved with time in between, and all are right;
- it is a plain feature, no older than its group's bound: staleness that the TTL map allows;
- all are the same, and a model gave the score for inputs that are, too, once they are rounded as
  declared: the cache of outputs answered with that;
- anything else is a wrong score.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

import hotplate
from hotplate.cache_policy import GROUP_TAG, WINDOWS_TAG
from pipelines.fraud.decide import Decider, Layers, scorer_of
from pipelines.fraud.line import EVENTS
from pipelines.fraud.payments import CHECK, PAYMENT, Payments
from pipelines.fraud.work import Work

__all__ = ["SKEW", "STAGES", "Replay", "ReplaySpec", "Stage", "StageFound", "draw"]

SKEW: Final = 0.98
"""Zipf exponent of the cards' popularity: that of the keys of a production cache, Twitter's cluster
52 (its 2,000,000 requests over 248,646 keys: 0.98 over all ranks; Yang et al., OSDI 2020)."""
_Row: TypeAlias = npt.NDArray[np.float32]
_PLACES: Final = 4  # of the outputs' key
_WARM_UP: Final = 5
_HEARD_S: Final = 0.02  # the event channel tells the others within a few ms
_UNDER_WAY: Final = 20.0
"""Purchases that begin between two requests about one, on average."""


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
    Stage("no caches", Layers(*[False] * 5)),
    Stage("+ features", Layers(windows=False, outputs=False, scorer=False, warming=False)),
    Stage("+ windows", Layers(outputs=False, scorer=False, warming=False)),
    Stage("+ fast scorer", Layers(outputs=False, warming=False)),
    Stage("+ outputs", Layers(warming=False)),
    Stage("+ warming", Layers()),
)


@dataclass(frozen=True)
class ReplaySpec:
    """How requests are drawn and come.

    Attributes:
        requests: how many each stage answers.
        skew: Zipf exponent of the cards' popularity.
        recorded_share: share of the requests that are payments; the others ask about one that is
            to come.
        block: requests that one stage answers before it is the next one's turn.
        seed: of everything drawn.
    """

    requests: int = 5_000
    skew: float = SKEW
    recorded_share: float = 0.25
    block: int = 100
    seed: int = 0


@dataclass
class StageFound:
    """What one stage took; latencies have one item a timed request.

    Attributes:
        latency_ns: of deciding one payment.
        waited: of each request, whether it read a row past the caches.
        model_s: in the model, of all requests.
        cpu_s: of this process.
        source_reads: rows that were read past the caches since the first request.
        read_ahead: rows that were read before it.
        from_outputs: requests that the cache of outputs answered.
        different: scores that differ from those without caches.
        moved, stale, rounded: those of them that are explained, see the module.
        decisions_changed: of all that differ, those whose decision does, too.
        hits: by group, (hits, reads).
        families: of the cache of outputs.
    """

    latency_ns: list[int] = field(default_factory=list)
    waited: list[bool] = field(default_factory=list)
    requests: int = 0
    model_s: float = 0.0
    cpu_s: float = 0.0
    source_reads: int = 0
    read_ahead: int = 0
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
    """Requests, and the share that the busiest hundredth of the cards makes of the purchases.

    For each purchase a card is drawn, that of rank r with a probability proportional to r ** -skew,
    and one of its payments, evenly. A purchase is asked about several times before it is paid (when
    the card is entered, at the checkout, again after a time-out), `1 / recorded_share` times on
    average with the payment itself, while others are under way.

    Args:
        payments: with `customer_id`, `terminal_id` and `amount`.
        spec: how many, and how skewed.
    """
    rng = np.random.default_rng(spec.seed)
    cards = payments["customer_id"].to_numpy()
    order = np.argsort(cards, kind="stable")
    _, starts, counts = np.unique(cards[order], return_index=True, return_counts=True)
    weight = rng.permutation(np.arange(1, len(starts) + 1, dtype=np.float64)) ** -spec.skew
    # as many as are asked about once; most are asked about more often, and some of these not at all
    card = rng.choice(len(starts), size=spec.requests, p=weight / weight.sum())
    chosen = order[starts[card] + (rng.random(spec.requests) * counts[card]).astype(np.int64)]
    asked = rng.geometric(spec.recorded_share, spec.requests)
    purchase = np.repeat(np.arange(spec.requests), asked)
    ends = np.cumsum(asked)
    gaps = rng.exponential(_UNDER_WAY, len(purchase))
    so_far = np.cumsum(gaps)
    before = np.repeat(np.concatenate([[0.0], so_far[ends[:-1] - 1]]), asked)
    arrives = purchase + (so_far - before)
    is_paid = np.zeros(len(purchase), np.bool_)
    is_paid[ends - 1] = True
    places = np.argsort(arrives, kind="stable")[: spec.requests]
    rows = payments.iloc[chosen[purchase[places]]]
    run = f"replay-{time.time_ns()}"
    drawn = np.sort(np.bincount(card[np.unique(purchase[places])]))[::-1]
    return Payments(
        [str(place) for place in range(spec.requests)],
        [f"{run}-{place}" for place in range(spec.requests)],
        rows["customer_id"].to_numpy(np.int64),
        rows["terminal_id"].to_numpy(np.int64),
        rows["amount"].to_numpy(np.float64),
        np.full(spec.requests, time.time_ns() // 1_000_000),
        np.where(is_paid[places], PAYMENT, CHECK).astype(object),
    ), float(drawn[: max(1, len(starts) // 100)].sum() / drawn.sum())


class Answer(NamedTuple):
    """What a stage said of one request.

    Attributes:
        score, decision, layer: as in `Decided`.
        inputs: float32 (inputs,), as served.
        ages_s: feature view -> how old its row was.
    """

    score: float
    decision: str
    layer: str
    inputs: npt.NDArray[np.float32]
    ages_s: Mapping[str, float]


class Block(NamedTuple):
    """What a stage said of a block of requests, and what that took."""

    answers: list[Answer]
    latency_ns: list[int]
    model_s: float
    cpu_s: float


def _context() -> Any:
    """Makes processes that have imported everything: Feast alone takes seconds to."""
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload([__name__])
    return context


class _Asked:
    """A stage, in a process of its own: as in service, no other cache's threads run beside it.

    Args:
        work: the pipeline's folder.
        device: where models are scored.
        stage: which.
    """

    def __init__(self, work: Work, device: str, stage: Stage) -> None:
        self.stage = stage
        self.read_ahead = 0
        context = _context()
        self._pipe, other = context.Pipe()
        self._process = context.Process(
            target=_answer, args=(other, work.given, device, stage), daemon=True
        )
        self._process.start()
        other.close()

    def ready(self) -> tuple[str, dict[str, float]]:
        """Wait until it can answer; returns how it scores, and view -> bound of its age, s.

        Raises:
            RuntimeError: the process failed; the message is its own.
        """
        way, bounds_s, self.read_ahead = self.ask("ready")
        return way, bounds_s

    def ask(self, what: Any) -> Any:
        """Send something and wait for the answer.

        Raises:
            RuntimeError: the process failed; the message is its own.
        """
        try:
            self._pipe.send(what)
            found = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError(f"the process of stage {self.stage.name!r} ended") from error
        if isinstance(found, str):
            raise RuntimeError(f"stage {self.stage.name!r}: {found}")
        return found

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()


def _answer(pipe: Any, given: tuple[Any, ...], device: str, stage: Stage) -> None:
    """The process of a stage: answers blocks of requests, and at the end its counts."""
    logging.disable(logging.WARNING)
    try:
        work = Work(*given)
        if stage.layers.warming:
            _begin_before(work, stage, device)
        store = work.open(stage.layers)
        bundle = work.model(store)
        scorer = scorer_of(bundle, device, is_fast=stage.layers.scorer)
        decider = Decider(store, bundle, scorer, stage.layers)
        if stage.layers.warming:
            decider.warm_up()
        while True:
            asked = pipe.recv()
            if asked == "ready":
                pipe.send((scorer.way, _bounds_s(store), _loads(store)))
            elif asked == "counts":
                pipe.send((_loads(store), _hits(store), _families(decider)))
            else:
                pipe.send(_ask(decider, asked))
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - for whoever asked
        pipe.send(f"{type(error).__name__}: {error}")


def _begin_before(work: Work, stage: Stage, device: str) -> None:
    """Be the process before this one, which wrote down what it held when it ended."""
    store = work.open(stage.layers)
    bundle = work.model(store)
    Decider(store, bundle, scorer_of(bundle, device), stage.layers).warm_up(*work.recent())
    hotplate.of(store).close()


def _ask(decider: Decider, singles: Sequence[Payments]) -> Block:
    answers, latency_ns, model_s = [], [], 0.0
    clock = time.perf_counter_ns
    cpu_s = time.process_time()
    for single in singles:
        began_ns = clock()
        decided = decider.decide(single)
        latency_ns.append(clock() - began_ns)
        model_s += decided.model_s
        answers.append(
            Answer(
                float(decided.scores[0]),
                decided.decisions[0],
                decided.layers[0],
                decided.inputs[0],
                {view: float(ages[0]) for view, ages in decided.ages_s.items()},
            )
        )
    return Block(answers, latency_ns, model_s, time.process_time() - cpu_s)


class Replay:
    """Runs the stages; to be closed.

    Args:
        work: the pipeline's folder, with features and a model.
        device: where models are scored.
        stages: what is compared; the first is what the others are compared with.

    Raises:
        RuntimeError: a stage cannot be opened.
    """

    def __init__(self, work: Work, device: str = "auto", stages: Sequence[Stage] = STAGES) -> None:
        self.stages = stages
        self._store = work.open()
        self.bundle = work.model(self._store)
        self._inputs = self.bundle.inputs
        self._given: dict[bytes, set[float]] = {}  # by rounded inputs, what the model gave
        self._asked: list[_Asked] = []
        try:
            self._asked += [_Asked(work, device, stage) for stage in stages]
            said = [one.ready() for one in self._asked]
        except BaseException:
            self.close()
            raise
        self.way, self._bounds_s = said[-1]
        self._view_of = {
            feature.name: projection.name
            for projection in self._store.get_feature_service(
                self.bundle.service
            ).feature_view_projections
            for feature in projection.features
        }

    def close(self) -> None:
        """End the processes."""
        for one in self._asked:
            one.close()

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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

        Raises:
            RuntimeError: a stage failed.
        """
        rng = np.random.default_rng(spec.seed + 1)
        found = {stage.name: StageFound() for stage in self.stages}
        for start in range(0, len(requests), spec.block):
            block = range(start, min(start + spec.block, len(requests)))
            now_ms = time.time_ns() // 1_000_000
            singles = [
                # a millisecond after one another: few payments of a card are made in one
                _made(requests.chosen(np.array([place])), now_ms - (block.stop - 1 - place))
                for place in block
            ]
            answers: dict[int, Sequence[Answer]] = {}
            first = self._ask(0, singles, found)
            for place in (1 + rng.permutation(len(self.stages) - 1)).tolist():
                answers[place] = self._ask(place, singles, found)
            last = self._ask(0, singles, found)
            self._compare(first, last, answers, found)
            self._record([one for one in singles if one.is_recorded.all()])
            progress(len(block))
        for asked in self._asked:
            one = found[asked.stage.name]
            loads, one.hits, one.families = asked.ask("counts")
            one.read_ahead = asked.read_ahead
            one.source_reads = loads - one.read_ahead
        return found

    def _ask(
        self, place: int, singles: Sequence[Payments], found: Mapping[str, StageFound]
    ) -> Sequence[Answer]:
        asked = self._asked[place]
        block: Block = asked.ask(singles)
        one = found[asked.stage.name]
        one.latency_ns += block.latency_ns[_WARM_UP:]
        one.waited += [
            # what is no older than the request took was read for it
            min(answer.ages_s.values()) * 1e9 <= taken_ns
            for answer, taken_ns in zip(block.answers, block.latency_ns, strict=True)
        ]
        one.model_s += block.model_s
        one.cpu_s += block.cpu_s
        one.requests += len(singles)
        one.from_outputs += sum(answer.layer == "hit" for answer in block.answers)
        return block.answers

    def _compare(
        self,
        first: Sequence[Answer],
        last: Sequence[Answer],
        answers: Mapping[int, Sequence[Answer]],
        found: Mapping[str, StageFound],
    ) -> None:
        for answer in (*first, *last, *(one for some in answers.values() for one in some)):
            if answer.layer != "hit":
                self._given.setdefault(_rounded(answer.inputs), set()).add(answer.score)
        for place, of_stage in answers.items():
            one = found[self.stages[place].name]
            for before, after, cached in zip(first, last, of_stage, strict=True):
                if cached.score in (before.score, after.score):
                    continue
                one.different += 1
                one.decisions_changed += cached.decision not in (before.decision, after.decision)
                why = self._why(before.inputs, after.inputs, cached)
                if why:
                    setattr(one, why, getattr(one, why) + 1)

    def _why(self, before: _Row, after: _Row, cached: Answer) -> str:
        """What explains that a score is another one; nothing where nothing does."""
        served = cached.inputs
        neither = (_differing(before, served) & _differing(after, served)).nonzero()[0].tolist()
        for at in neither:
            view = self._view_of.get(self._inputs[at], "")
            bound_s = self._bounds_s.get(view)
            if bound_s is None or cached.ages_s[view] > bound_s:
                return ""
        if neither:
            return "stale"
        if _differing(before, served).any() or _differing(after, served).any():
            return "moved"
        is_of_key = cached.score in self._given.get(_rounded(served), ())
        return "rounded" if cached.layer == "hit" and is_of_key else ""

    def _record(self, payments: Sequence[Payments]) -> None:
        """Record payments, as a consumer of the stream in another process would."""
        if payments:
            for one in payments:
                hotplate.of(self._store).ingest(EVENTS, one.events())
            time.sleep(_HEARD_S)


def _made(payments: Payments, at_ms: int) -> Payments:
    payments.at_ms[:] = at_ms
    return payments


def _rounded(inputs: _Row) -> bytes:
    return (np.round(inputs.astype(np.float64), _PLACES) + 0.0).tobytes()


def _differing(left: _Row, right: _Row) -> npt.NDArray[np.bool_]:
    return np.asarray((left != right) & ~(np.isnan(left) & np.isnan(right)))


def _loads(store: Any) -> int:
    return sum(group.loads for group in hotplate.of(store).stats().groups.values())


def _hits(store: Any) -> dict[str, tuple[int, int]]:
    groups = hotplate.of(store).stats().groups
    return {name: (group.hits, group.reads) for name, group in groups.items() if group.reads}


def _families(decider: Decider) -> list[dict[str, Any]]:
    if decider.outputs is None:
        return []
    found = decider.outputs.families()
    return [{**asdict(family), "hit_rate": family.hit_rate} for family in found]


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
