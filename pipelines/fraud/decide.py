"""From payments to decisions: read, ask the cache of outputs, score what is left.

The same path for a stream, a file and a single request. Features are read as a matrix before the
payments are recorded, so no payment counts itself, as in training.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from feast import FeatureStore

import hotplate
from hotplate.outputs import InputSchema
from pipelines.fraud.bundle import Bundle
from pipelines.fraud.device import find_device
from pipelines.fraud.inputs import REQUEST_INPUTS, request_inputs
from pipelines.fraud.payments import Payments
from pipelines.fraud.scorer import Scorer

__all__ = [
    "APPROVE",
    "DECLINE",
    "REVIEW",
    "Decided",
    "Decider",
    "Layers",
    "Scores",
    "judged",
    "scorer_of",
]

APPROVE, REVIEW, DECLINE = DECISIONS = ("approve", "review", "decline")
MODEL: Final = "fraud"
"""What `online_store.outputs` calls it."""
_AHEAD_AT_ONCE: Final = 500  # reads
_AHEAD_S: Final = 10.0
_ID_INPUTS: Final = {"customer_id": "customer_ids", "terminal_id": "terminal_ids"}


class Scores(Protocol):
    """What scores rows."""

    @property
    def way(self) -> str:
        """How: one line."""

    def score(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Scores, float32 (rows,), of inputs, float32 (rows, inputs)."""


class Plain:
    """`inplace_predict` itself, where the faster scorer is off.

    Args:
        booster: the model.
        device: `"cpu"` or `"cuda"`.
    """

    def __init__(self, booster: Any, device: str) -> None:
        booster.set_param({"device": device})
        self._booster = booster
        self._way = f"inplace_predict on {device}, whatever the rows: the layer is off"

    @property
    def way(self) -> str:
        """How: one line."""
        return self._way

    def score(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Scores, float32 (rows,), of inputs, float32 (rows, inputs)."""
        return np.asarray(self._booster.inplace_predict(rows))


def scorer_of(bundle: Bundle, device: str, *, is_fast: bool = True) -> Scorer | Plain:
    """What scores with a model.

    Args:
        bundle: the model.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        is_fast: whether few rows go the faster way.

    Raises:
        ModelRefused: it is no model that can be used here.
        ValueError: there is no such device.
    """
    found = find_device(device)
    booster = bundle.booster()
    return Scorer(booster, device=found.name) if is_fast else Plain(booster, found.name)


@dataclass(frozen=True)
class Layers:
    """Which layers are on.

    Attributes:
        features: rows of feature views are cached.
        windows: rows of windowed views are.
        outputs: scores are.
        scorer: few rows are scored the faster way.
        warming: features are read before they are asked for, when a process begins and when what
            it held has changed.
    """

    features: bool = True
    windows: bool = True
    outputs: bool = True
    scorer: bool = True
    warming: bool = True

    @classmethod
    def without(cls, names: Sequence[str]) -> Layers:
        """All but these.

        Raises:
            ValueError: one is none.
        """
        known = cls.__dataclass_fields__
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"there is no layer {unknown[0]!r}; there are: {', '.join(known)}")
        return cls(**{name: name not in names for name in known})

    def settings(self, online: Mapping[str, Any], windowed: Sequence[str]) -> dict[str, Any]:
        """What a store is opened with, so that the layers which are off are.

        Args:
            online: `online_store` of the repo.
            windowed: groups of windowed views.
        """
        never = {"cache": "never"}
        said = dict(online.get("ttl_map", {}))
        if not self.features:
            kept = {name: said.get(name, {}) for name in windowed} if self.windows else {}
            said = {"*": never, **kept}
        if not self.windows:
            said |= dict.fromkeys(windowed, never)
        changed: dict[str, Any] = {}
        if said != online.get("ttl_map", {}):
            changed["ttl_map"] = said
        if not self.warming:
            changed["rewarm"] = None
        if not (self.features and self.windows):
            changed["metrics"] = None  # what a comparison counts is no figure of the deployment's
        return changed


@dataclass(frozen=True)
class Decided:
    """What was decided of payments; every column has one item a payment.

    Attributes:
        payments: of which.
        scores: float32 (rows,).
        decisions, reasons: texts.
        layers: what answered: `"hit"` is the cache of outputs, all else the model, and why.
        inputs: float32 (rows, inputs), as served.
        ages_s: feature view -> float64 (rows,), how old they were.
        model_version: which model answered.
        decided_ms: when, ms since 1970.
        model_s: how long the model took.
    """

    payments: Payments
    scores: npt.NDArray[np.float32]
    decisions: Sequence[str]
    reasons: Sequence[str]
    layers: Sequence[str]
    inputs: npt.NDArray[np.float32] = field(repr=False)
    ages_s: Mapping[str, npt.NDArray[np.float64]] = field(repr=False)
    model_version: str
    decided_ms: int
    model_s: float

    def rows(self) -> list[dict[str, Any]]:
        """As the ledger writes them; inputs and ages are JSON, a missing input null."""
        payments = self.payments
        ages = np.column_stack(list(self.ages_s.values())).round(3)
        names = ",".join(f'"{view}":%s' for view in self.ages_s)
        columns = zip(
            payments.transaction_ids,
            payments.customer_ids.tolist(),
            payments.terminal_ids.tolist(),
            payments.kinds.tolist(),
            payments.amounts.tolist(),
            payments.at_ms.tolist(),
            self.scores.tolist(),
            self.decisions,
            self.reasons,
            self.layers,
            _json_rows(self.inputs),
            map(tuple, ages.tolist()),
            strict=True,
        )
        return [
            {
                "transaction_id": transaction_id,
                "customer_id": customer_id,
                "terminal_id": terminal_id,
                "kind": kind,
                "amount": amount,
                "at_ms": at_ms,
                "decided_ms": self.decided_ms,
                "score": score,
                "decision": decision,
                "reason": reason,
                "model_version": self.model_version,
                "layer": layer,
                "inputs": f"[{inputs}]",
                "ages_s": f"{{{names % of_row}}}",
            }
            for (
                transaction_id,
                customer_id,
                terminal_id,
                kind,
                amount,
                at_ms,
                score,
                decision,
                reason,
                layer,
                inputs,
                of_row,
            ) in columns
        ]


def _json_rows(matrix: npt.NDArray[Any]) -> list[str]:
    """Each row of a matrix as JSON without its brackets; NaN is null. One call for all of them."""
    return msgspec.json.encode(matrix.tolist()).decode()[2:-2].split("],[")


class Decider:
    """Decides payments with one version of the model.

    Args:
        store: where features are served.
        bundle: the model, checked against the store.
        scorer: of the model.
        layers: which are on.

    Raises:
        ModelRefused: the store does not serve what the model reads.
    """

    def __init__(
        self, store: FeatureStore, bundle: Bundle, scorer: Scores, layers: Layers | None = None
    ) -> None:
        bundle.check(store)
        self.bundle = bundle
        self.way = scorer.way
        self._hot = hotplate.of(store)
        self._scorer = scorer
        service = store.get_feature_service(bundle.service)
        self._reader = self._hot.reader(service, order=list(bundle.features))
        self._views = [projection.name for projection in service.feature_view_projections]
        self._ids = {name: _ID_INPUTS[name] for name in self._reader.join_keys}
        self.outputs = None
        if (layers or Layers()).outputs:
            schema = InputSchema.of(*bundle.inputs)
            # another threshold is another decision, but the same score: it is no part of the key
            self.outputs = self._hot.outputs(MODEL, f"{bundle.version}:{bundle.digest}", schema)

    def warm_up(
        self,
        customer_ids: Sequence[int] = (),
        terminal_ids: Sequence[int] = (),
        budget_s: float = _AHEAD_S,
    ) -> str:
        """Read features before they are asked for: those that the process before this one held.

        From then on this process writes down which it holds, for the one after it.

        Args:
            customer_ids, terminal_ids: where there was no such process, the features of these are
                read; of each kind each once, the most valuable first.
            budget_s: how long it may take, s.

        Returns:
            What was read, in words.

        Raises:
            HotplateError: features cannot be read.
        """
        found = self._hot.preload(budget_s)
        if found.wanted:
            return str(found)
        rows, began_s = 0, time.monotonic()
        rehearsal = self._hot.rehearsal(self._views)
        for name, ids in (("customer_id", customer_ids), ("terminal_id", terminal_ids)):
            if name not in rehearsal.kinds:
                continue
            for batch in rehearsal.batches(name, [(one,) for one in ids], _AHEAD_AT_ONCE):
                if time.monotonic() - began_s > budget_s:
                    return f"read {rows:,} rows ahead, and no more in {budget_s:g} s"
                rehearsal.read(batch)
                rows += batch.reads
        return f"read {rows:,} rows ahead"

    def decide(self, payments: Payments) -> Decided:
        """Decide payments, in one read of features and at most one call of the model.

        Raises:
            HotplateError: features cannot be read.
        """
        entities = {name: getattr(payments, column) for name, column in self._ids.items()}
        answer = self._reader.read(entities)
        own = request_inputs(payments.amounts, payments.at_ms)
        inputs = np.hstack([own, answer.values])
        model_s = 0.0

        def predict(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
            nonlocal model_s
            began_s = time.perf_counter()
            scores = self._scorer.score(rows)
            model_s = time.perf_counter() - began_s
            return scores

        if self.outputs is None:
            scores, layers = predict(inputs), ["off"] * len(payments)
        else:
            beside = {"kind": payments.kinds}
            scored = self.outputs.score(inputs, predict, features=answer, beside=beside)
            scores, layers = scored.values, scored.why
        decisions, reasons = judged(scores, self.bundle.review_at, self.bundle.decline_at)
        return Decided(
            payments,
            scores,
            decisions,
            reasons,
            layers,
            inputs,
            answer.ages_s(),
            self.bundle.version,
            time.time_ns() // 1_000_000,
            model_s,
        )


def judged(
    scores: npt.NDArray[np.float32], review_at: float, decline_at: float
) -> tuple[list[str], list[str]]:
    """The decision of each score, and why.

    Args:
        scores: float32 (rows,).
        review_at, decline_at: the scores from which payments are looked at, and declined.
    """
    levels = ((scores >= review_at).astype(np.int8) + (scores >= decline_at)).tolist()
    said = (
        f"score below {review_at:.4g}",
        f"score at least {review_at:.4g}",
        f"score at least {decline_at:.4g}",
    )
    return [DECISIONS[level] for level in levels], [said[level] for level in levels]


assert REQUEST_INPUTS[0] == "amount"  # which rules of online_store.outputs name
