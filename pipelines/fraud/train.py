"""Train the fraud model on what was known when each payment was made.

Features come from `get_historical_features`, each row as of its own payment. Weeks are split
prequentially, as the Fraud Detection Handbook does: a model is trained on some weeks, then a week
passes in which its labels become known, then it is tested on the week after. Earlier folds find out
how many trees are enough (early stopping on the week after); the model that is kept is trained on
the last weeks whose test week is labelled, with that many.

Cards that are known to be defrauded when a test week begins, or become so within it, are left out
of it from then on: they would have been blocked.
"""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from feast import FeatureStore

from pipelines.fraud.bundle import Bundle, ModelRefused, digest_of, schema_of
from pipelines.fraud.device import Device
from pipelines.fraud.inputs import REQUEST_INPUTS, request_inputs
from pipelines.fraud.metrics import Quality, quality
from pipelines.fraud.tables import DAY, LABEL_DELAY, WEEK

__all__ = ["Fold", "TrainSpec", "features_of", "folds_of", "train"]

PARAMETERS: Final[Mapping[str, Any]] = {
    "objective": "binary:logistic",
    "eval_metric": "aucpr",
    "tree_method": "hist",
    "max_depth": 6,
    "learning_rate": 0.1,
}
_STOP_AFTER: Final = 30


@dataclass(frozen=True)
class TrainSpec:
    """How a model is trained.

    Attributes:
        weeks: of payments in one training.
        folds: earlier test weeks on which the number of trees is found, and the spread of metrics.
        most_rounds: trees at the most.
        review_share, decline_share: of payments, whose scores give the two thresholds.
        parameters: of XGBoost, over `PARAMETERS`.
        null: what stands for a feature that is missing; NaN, which XGBoost knows, if left out.
        seed: of XGBoost.
        reference_rows: of the training inputs that are kept beside the model at the most.
    """

    weeks: int = 2
    folds: int = 2
    most_rounds: int = 500
    review_share: float = 0.01
    decline_share: float = 0.002
    parameters: Mapping[str, Any] = field(default_factory=dict)
    null: float | None = None
    seed: int = 0
    reference_rows: int = 10_000


@dataclass(frozen=True)
class Fold:
    """One training and its test; times are midnights, ends are not included."""

    train_from: pd.Timestamp
    train_to: pd.Timestamp
    test_from: pd.Timestamp
    test_to: pd.Timestamp


def folds_of(payments: pd.DataFrame, spec: TrainSpec, known_at: pd.Timestamp) -> list[Fold]:
    """The folds, the latest last: that of the model which is kept.

    Args:
        payments: in time order.
        spec: how many, and how long.
        known_at: now; labels of payments up to `LABEL_DELAY` before are known.

    Raises:
        ValueError: there are too few weeks of payments.
    """
    end = known_at.floor("D") - LABEL_DELAY
    length = spec.weeks * WEEK
    folds = []
    for number in reversed(range(spec.folds + 1)):
        test_to = end - number * WEEK
        test_from = test_to - WEEK
        train_to = test_from - LABEL_DELAY
        folds.append(Fold(train_to - length, train_to, test_from, test_to))
    first = payments["event_timestamp"].iloc[0].floor("D")
    if folds[0].train_from < first:
        needed = (folds[-1].test_to - folds[0].train_from + LABEL_DELAY) // DAY
        given = (known_at - first) // DAY
        raise ValueError(
            f"{spec.folds} folds of {spec.weeks} weeks need {needed} days of payments before now, "
            f"and there are {given}: give more of them, or fewer folds or weeks"
        )
    return folds


def features_of(
    store: FeatureStore, service: str, payments: pd.DataFrame, names: Sequence[str]
) -> npt.NDArray[np.float32]:
    """What the model reads for each payment, as of its own moment: float32 (rows, inputs).

    Args:
        store: the feature store.
        service: the feature service.
        payments: with `transaction_id`, the entities, `amount` and `event_timestamp`; where there
            is a column `read_at`, features are as of that moment.
        names: the features, in the model's order.
    """
    asked = payments[["transaction_id", "customer_id", "terminal_id", "event_timestamp"]]
    if "read_at" in payments:
        asked = asked.assign(event_timestamp=payments["read_at"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [
            store.get_historical_features(part, store.get_feature_service(service)).to_df()
            for _, part in asked.groupby(_turns(asked))
        ]
    found = pd.concat(parts).set_index("transaction_id").loc[asked["transaction_id"]]
    at_ms = payments["event_timestamp"].dt.as_unit("ms").astype("int64").to_numpy()
    columns = [found[name].to_numpy(np.float64, na_value=np.nan) for name in names]
    features = np.column_stack(columns).astype(np.float32)
    return np.hstack([request_inputs(payments["amount"].to_numpy(), at_ms), features])


def _turns(asked: pd.DataFrame) -> npt.NDArray[np.intp]:
    """In which of several requests each row is asked for.

    Feast's file store answers one row for several of one entity and one instant, so no two of
    these are in one request.
    """
    keys = [
        asked.groupby([name, "event_timestamp"], sort=False).ngroup().to_numpy()
        for name in ("customer_id", "terminal_id")
    ]
    turns = np.zeros(len(asked), np.intp)
    repeated = np.logical_or(*(np.bincount(key)[key] > 1 for key in keys))
    taken: set[tuple[int, int, int]] = set()
    for row in np.flatnonzero(repeated).tolist():
        places = [(which, int(key[row])) for which, key in enumerate(keys)]
        turn = 0
        while any((*place, turn) in taken for place in places):
            turn += 1
        taken.update((*place, turn) for place in places)
        turns[row] = turn
    return turns


def train(
    store: FeatureStore,
    service: str,
    payments: pd.DataFrame,
    device: Device,
    spec: TrainSpec | None = None,
    *,
    known_at: pd.Timestamp | None = None,
    version: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Bundle:
    """Train a model; see the module.

    Args:
        store: where the features are.
        service: which of them.
        payments: in time order, with `is_fraud`.
        device: where XGBoost works.
        spec: how.
        known_at: now.
        version: the model's name; the day and its hash if left out.
        say: told what is done.

    Raises:
        ValueError: too few payments, or no frauds among them.
        ModelRefused: the service is not there.
    """
    import xgboost

    spec = spec or TrainSpec()
    schema = schema_of(store, service)
    folds = folds_of(payments, spec, known_at or pd.Timestamp.now("UTC"))
    parts = _Parts(store, service, payments, list(schema), spec.null)
    parameters = {**PARAMETERS, "device": device.name, "seed": spec.seed, **spec.parameters}
    rounds, before = [], []
    began_s = time.perf_counter()
    for fold in folds[:-1]:
        tested = _tested(parts, fold)
        fitted = _fit(parts, fold, parameters, spec.most_rounds, tested)
        trees = fitted.booster.best_iteration + 1
        rounds.append(trees)
        found = _test(tested, fitted.booster, trees)
        before.append(found.quality)
        say(f"week of {fold.test_from:%Y-%m-%d}: {trees} trees, {_shown(found.quality)}")
    trees = int(np.median(rounds)) if rounds else spec.most_rounds
    fold = folds[-1]
    fitted = _fit(parts, fold, parameters, trees, None)
    found = _test(_tested(parts, fold), fitted.booster, trees)
    say(f"week of {fold.test_from:%Y-%m-%d}: {trees} trees, {_shown(found.quality)}")
    raw = bytes(fitted.booster.save_raw("ubj"))
    digest = digest_of(raw)
    review_at, decline_at = _thresholds(found.scores, spec)
    return Bundle(
        version=version or _name_of(raw, review_at, decline_at),
        service=service,
        features=schema,
        review_at=review_at,
        decline_at=decline_at,
        rounds=trees,
        metrics={**asdict(found.quality), "before": [asdict(one) for one in before]},
        data={
            "fingerprint": fitted.fingerprint,
            "rows": fitted.rows,
            "frauds": fitted.frauds,
            **{name: str(moment) for name, moment in asdict(fold).items()},
        },
        made={
            "xgboost": xgboost.__version__,
            "device": device.name,
            "parameters": parameters,
            "seconds": round(time.perf_counter() - began_s, 1),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        },
        digest=digest,
        raw=raw,
        reference=_reference(parts, fold, spec),
    )


def _reference(parts: _Parts, fold: Fold, spec: TrainSpec) -> bytes:
    """Some of the inputs of a training as Parquet, evenly drawn.

    Whose each row is stays known as a number that only tells owners apart: rows of one card are
    alike, which whoever compares distributions must know.
    """
    payments, inputs = parts.of(fold.train_from, fold.train_to)
    rng = np.random.default_rng(spec.seed)
    rows = rng.permutation(len(inputs))[: spec.reference_rows]
    table = pd.DataFrame(inputs[rows], columns=parts.inputs)
    for name in ("customer_id", "terminal_id"):
        table[name] = pd.factorize(payments[name].to_numpy()[rows])[0]
    file = io.BytesIO()
    table.to_parquet(file, index=False, compression="zstd")
    return file.getvalue()


@dataclass(frozen=True)
class _Fitted:
    booster: Any
    rows: int
    frauds: int
    fingerprint: str


@dataclass(frozen=True)
class _Tested:
    quality: Quality
    scores: npt.NDArray[np.float32]


class _Parts:
    """Payments of a stretch of time with their inputs; weeks that folds share are asked for once.

    Args:
        store, service, payments, names: as `features_of`.
        null: as `TrainSpec`.
    """

    def __init__(
        self,
        store: FeatureStore,
        service: str,
        payments: pd.DataFrame,
        names: list[str],
        null: float | None,
    ) -> None:
        self._store, self._service, self._names, self._null = store, service, names, null
        self._payments = payments
        self._made: dict[tuple[pd.Timestamp, pd.Timestamp], npt.NDArray[np.float32]] = {}
        self.inputs = [*REQUEST_INPUTS, *names]

    def of(
        self, start: pd.Timestamp, end: pd.Timestamp
    ) -> tuple[pd.DataFrame, npt.NDArray[np.float32]]:
        """Payments in [start, end), and what the model reads for them."""
        payments = self._between(start, end).reset_index(drop=True)
        matrices = []
        while start < end:
            week = start, min(start + WEEK, end)
            if week not in self._made:
                self._made[week] = self._inputs_of(self._between(*week))
            matrices.append(self._made[week])
            start = week[1]
        return payments, np.vstack(matrices)

    def _between(self, start: pd.Timestamp, end: pd.Timestamp) -> pd.DataFrame:
        times = self._payments["event_timestamp"]
        return self._payments.iloc[slice(*times.searchsorted([start, end]))]

    def _inputs_of(self, payments: pd.DataFrame) -> npt.NDArray[np.float32]:
        made = features_of(self._store, self._service, payments, self._names)
        return made if self._null is None else np.nan_to_num(made, nan=self._null)

    def defrauded_before(self, moment: pd.Timestamp, since: pd.Timestamp) -> set[Any]:
        """Cards with a payment since some time that was known as a fraud at a moment."""
        known = self._between(since, max(since, moment - LABEL_DELAY))
        return set(known.loc[known["is_fraud"] == 1, "customer_id"])


def _fit(
    parts: _Parts,
    fold: Fold,
    parameters: Mapping[str, Any],
    rounds: int,
    stops_on: tuple[pd.DataFrame, npt.NDArray[np.float32]] | None,
) -> _Fitted:
    """Train on a fold; until the measure on some payments gets no better, where they are given."""
    import xgboost

    payments, inputs = parts.of(fold.train_from, fold.train_to)
    labels = payments["is_fraud"].to_numpy()
    frauds = int(labels.sum())
    if frauds in (0, len(labels)):
        raise ValueError(
            f"the {len(labels):,} payments from {fold.train_from:%Y-%m-%d} to "
            f"{fold.train_to:%Y-%m-%d} hold {frauds} frauds: give data with frauds and genuine "
            "payments, or train on more weeks"
        )
    rows = xgboost.DMatrix(inputs, labels, feature_names=parts.inputs)
    settings: dict[str, Any] = {"num_boost_round": rounds, "verbose_eval": False}
    if stops_on is not None:
        tested, test_inputs = stops_on
        after = xgboost.DMatrix(test_inputs, tested["is_fraud"], feature_names=parts.inputs)
        settings |= {"evals": [(after, "after")], "early_stopping_rounds": _STOP_AFTER}
    booster = xgboost.train(dict(parameters), rows, **settings)
    fingerprint = blake2b(inputs.tobytes() + labels.astype(np.int8).tobytes(), digest_size=16)
    return _Fitted(booster, len(labels), frauds, fingerprint.hexdigest())


def _tested(parts: _Parts, fold: Fold) -> tuple[pd.DataFrame, npt.NDArray[np.float32]]:
    """The test week, day by day without the cards that are known as defrauded by then."""
    payments, inputs = parts.of(fold.test_from, fold.test_to)
    is_tested = np.zeros(len(payments), np.bool_)
    day = payments["event_timestamp"].dt.floor("D")
    for midnight in pd.unique(day):
        known = parts.defrauded_before(midnight, fold.train_from)
        is_tested |= ((day == midnight) & ~payments["customer_id"].isin(known)).to_numpy()
    return payments[is_tested], inputs[is_tested]


def _test(
    tested: tuple[pd.DataFrame, npt.NDArray[np.float32]], booster: Any, trees: int
) -> _Tested:
    payments, inputs = tested
    scores = booster.inplace_predict(inputs, iteration_range=(0, trees))
    return _Tested(quality(payments, scores), scores)


def _thresholds(scores: npt.NDArray[np.float32], spec: TrainSpec) -> tuple[float, float]:
    if not len(scores):
        raise ModelRefused("the test week has no payments: there is nothing to set thresholds by")
    review, decline = np.quantile(scores, [1 - spec.review_share, 1 - spec.decline_share])
    return float(review), float(decline)


def _name_of(raw: bytes, *thresholds: float) -> str:
    """The day, and a hash of the model with its thresholds: others are another version."""
    return f"{datetime.now(UTC):%Y%m%d}-{digest_of(raw + repr(thresholds).encode())[:8]}"


def _shown(found: Quality) -> str:
    if found.auc is None or found.average_precision is None or found.card_precision is None:
        return f"{found.rows:,} payments, {found.frauds} frauds: nothing to measure"
    return (
        f"AUC {found.auc:.3f}, average precision {found.average_precision:.3f}, card precision "
        f"{found.card_precision:.3f} ({found.rows:,} payments, {found.frauds} frauds)"
    )
