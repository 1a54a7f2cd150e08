"""Scores history with a model on Spark: what a version would have said of every payment so far.

Features are those of the instant of each payment, as in training, read by Feast's Spark store from
the same tables; each partition of payments is scored by the same scorer as live ones, in the
executors. Nothing is collected here: the answer is a folder of Parquet files. What outgrows one
machine differs in `--master` alone.
"""

from __future__ import annotations

import copy
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from feast import FeatureStore, FeatureView, FileSource, PushSource

from pipelines.fraud.bundle import Bundle
from pipelines.fraud.decide import judged, scorer_of
from pipelines.fraud.inputs import request_inputs
from pipelines.fraud.work import Work

__all__ = ["BackScored", "backscore"]

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_OWN: Final = ("transaction_id", "customer_id", "terminal_id", "amount", "event_timestamp")
_FIELDS: Final = {
    "transaction_id": pa.string(),
    "customer_id": pa.int64(),
    "terminal_id": pa.int64(),
    "amount": pa.float64(),
    "event_timestamp": pa.timestamp("us", "UTC"),
    "score": pa.float32(),
    "decision": pa.string(),
    "reason": pa.string(),
    "model_version": pa.string(),
    "inputs": pa.list_(pa.float32()),
}
_SPARK: Final = (
    "transaction_id string, customer_id bigint, terminal_id bigint, amount double, event_timestamp "
    "timestamp, score float, decision string, reason string, model_version string, inputs "
    "array<float>"
)


@dataclass(frozen=True)
class BackScored:
    """What became of a history.

    Attributes:
        folder: of Parquet files, a row a payment: its ids, amount and instant, the score, the
            decision and why, the version of the model, and the inputs in its order.
        decisions: decision -> payments.
    """

    folder: Path
    decisions: Mapping[str, int]


def backscore(
    work: Work,
    bundle: Bundle,
    folder: Path,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    master: str = "local[*]",
    say: Callable[[str], None] = lambda line: None,
) -> BackScored:
    """Score the payments of a time with a model.

    Args:
        work: with the tables of the features.
        bundle: the model.
        folder: where the answer goes; what lies there is replaced when all is computed.
        since, until: payments from the first, and before the second; all of them if left out.
        master: where Spark runs, where there is no session yet.
        say: told what is done.

    Raises:
        ValueError: there are no payments, or no Spark.
        ModelRefused: the model does not fit the features.
    """
    _check_target(folder)
    session = _session(master)
    source = work.folder / "data" / "payments.parquet"
    if not source.is_file():
        raise ValueError(f"{source} is not there: run `python -m pipelines.fraud features`")
    bundle.check(work.open())
    bundle.booster()  # one that cannot be used is refused here, and not by every executor
    with tempfile.TemporaryDirectory(prefix="hotplate-backscore-") as scratch:
        store = _on_spark(work, Path(scratch))
        payments = session.read.parquet(str(source.resolve())).select(*_OWN)
        if since is not None:
            payments = payments.where(payments.event_timestamp >= since)
        if until is not None:
            payments = payments.where(payments.event_timestamp < until)
        if payments.isEmpty():
            raise ValueError("no payment lies between --since and --until")
        say(f"Spark {session.version} on {session.sparkContext.master}")
        _send_package(session, Path(scratch))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Feast calls its Spark store experimental each time
            found = store.get_historical_features(
                payments, store.get_feature_service(bundle.service)
            ).to_spark_df()
        scored = found.mapInArrow(_Scores(bundle), _SPARK)
        decisions = _write(scored, folder)
    return BackScored(folder, decisions)


def _check_target(folder: Path) -> None:
    """Replace nothing but what this wrote before."""
    if not folder.exists():
        return
    held = [one.name.lstrip(".") for one in folder.iterdir()] if folder.is_dir() else ["a file"]
    others = [name for name in held if not name.startswith(("part-", "_SUCCESS"))]
    if others:
        raise ValueError(
            f"{folder} holds {others[0]!r}, which is no score of a version: name another folder, "
            "what lies there is replaced"
        )


def _session(master: str) -> Any:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ValueError(
            f"{error}: pip install 'feast-hotplate[spark]', which wants Java 17"
        ) from error
    if SparkSession.getActiveSession() is None and shutil.which("java") is None:
        raise ValueError("Spark wants Java 17, and there is no `java` on the PATH")
    return (
        SparkSession.builder.master(master)
        .appName("fraud-backscore")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def _send_package(session: Any, scratch: Path) -> None:
    """Let the executors have this package; Hotplate and XGBoost are installed where they run."""
    base = scratch / "package" / _PACKAGE.name
    shutil.copytree(_PACKAGE, base, ignore=shutil.ignore_patterns("__pycache__"))
    packed = shutil.make_archive(str(scratch / "pipelines"), "zip", base.parent)
    session.sparkContext.addPyFile(packed)


def _on_spark(work: Work, scratch: Path) -> FeatureStore:
    """The same features over Feast's Spark store, in a registry of their own.

    Sources that are files are read by Spark; others stay as they are.
    """
    given = work.open()
    config = given.config.model_copy(deep=True)
    settings = {
        **config.model_dump(by_alias=True, exclude_unset=True),
        "registry": {"path": str(scratch / "registry.db")},
        "offline_store": {"type": "spark"},
        "online_store": {"type": "sqlite", "path": str(scratch / "online.db")},
    }
    config = type(config)(**settings)
    config.repo_path = scratch
    store = FeatureStore(config=config)
    views = [_read_by_spark(view, work.folder) for view in given.list_feature_views()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.apply([*given.list_entities(), *views, *given.list_feature_services()])
    return store


def _read_by_spark(view: FeatureView, root: Path) -> FeatureView:
    from feast.infra.offline_stores.contrib.spark_offline_store.spark_source import SparkSource

    def moved(source: Any) -> Any:
        if isinstance(source, PushSource):
            batch = moved(source.batch_source)
            return PushSource(name=source.name, batch_source=batch)
        if not isinstance(source, FileSource):
            return source
        path = Path(source.path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return SparkSource(
                name=source.name,
                path=str(path if path.is_absolute() else (root / path).resolve()),
                file_format="parquet",
                timestamp_field=source.timestamp_field,
                created_timestamp_column=source.created_timestamp_column,
                field_mapping=dict(source.field_mapping or {}),
            )

    made = copy.copy(view)
    made.batch_source = moved(view.batch_source)
    made.stream_source = moved(view.stream_source)
    return made


class _Scores:
    """Scores partitions of payments with their features; sent to the executors."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        scorer = None
        for batch in batches:
            if scorer is None:
                scorer = scorer_of(self._bundle, "cpu")
            yield self._scored(batch, scorer)

    def _scored(self, batch: pa.RecordBatch, scorer: Any) -> pa.RecordBatch:
        bundle = self._bundle
        moments = batch.column("event_timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
        own = request_inputs(batch.column("amount").to_numpy(zero_copy_only=False), moments // 1000)
        columns = [
            batch.column(name).cast(pa.float64()).to_numpy(zero_copy_only=False)
            for name in bundle.features
        ]
        inputs = np.hstack([own, np.column_stack(columns).astype(np.float32)])
        scores = scorer.score(inputs)
        decisions, reasons = judged(scores, bundle.review_at, bundle.decline_at)
        offsets = np.arange(0, inputs.size + 1, inputs.shape[1], dtype=np.int32)
        made = {
            **{name: batch.column(name).cast(_FIELDS[name]) for name in _OWN},
            "score": scores,
            "decision": decisions,
            "reason": reasons,
            "model_version": [bundle.version] * len(scores),
            "inputs": pa.ListArray.from_arrays(pa.array(offsets), pa.array(inputs.ravel())),
        }
        return pa.RecordBatch.from_arrays(
            [pa.array(made[name], kind) for name, kind in _FIELDS.items()],
            schema=pa.schema(_FIELDS),
        )


def _write(scored: Any, folder: Path) -> dict[str, int]:
    """Write all of it beside its place, and put it there when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        scored.write.mode("overwrite").parquet(str(made / "scores"))
        session = scored.sparkSession
        counts = session.read.parquet(str(made / "scores")).groupBy("decision").count().collect()
        if folder.exists():
            folder.rename(made / "before")
        (made / "scores").rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return {row["decision"]: row["count"] for row in counts}
