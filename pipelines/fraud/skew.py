"""Whether decisions were made on what the model was trained on: the ledger against training.

The ledger holds every input as it was served, with its age. Training is asked for the same cards
and terminals as of the same instants, from the tables of `features` with the payments that were
decided since: in a deployment these come into the warehouse by themselves. The ledger knows when a
payment was decided, and it was recorded in the windows after that: it arrived a millisecond later
at the earliest, and no decision ever saw its own payment.

Habits and risks become true at midnight and come online when a job has materialized them, which
may take it an hour.

Inputs are also compared, as distributions, with the sample of the training that lies beside the
model.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from feast import FeatureStore

from hotplate.skew import (
    DriftReport,
    DriftSpec,
    ServedLog,
    SkewReport,
    SkewSpec,
    check_drift,
    check_skew,
    write_page,
)
from hotplate.skew.compare import compared, summed
from pipelines.fraud.bundle import Bundle, ModelRefused
from pipelines.fraud.inputs import REQUEST_INPUTS, request_inputs
from pipelines.fraud.ledger import Ledger
from pipelines.fraud.stores import FeatureRepo
from pipelines.fraud.work import Work

__all__ = ["LAG_S", "Found", "check", "write"]

LAG_S: Final = 3_600.0
"""What the materialized views may take to come online, unless somebody says otherwise."""
_REQUEST = "the payment itself"


@dataclass(frozen=True)
class Found:
    """What was found.

    Attributes:
        skew: served against training.
        drift: served against the model's training sample; None where the model has none.
        bundle: the model.
    """

    skew: SkewReport
    drift: DriftReport | None
    bundle: Bundle


def check(
    work: Work,
    ledger: Ledger,
    bundle: Bundle,
    spec: SkewSpec | None = None,
    *,
    lag_s: float = LAG_S,
    say: Callable[[str], None] = lambda line: None,
) -> Found:
    """Compare the decisions of a model with what training has.

    Args:
        work: with the tables of the features.
        ledger: of the decisions.
        bundle: the model; its latest decisions are compared.
        spec: how strictly, and how many rows.
        lag_s: what the materialized views may take to come online.
        say: told what is done.

    Raises:
        ValueError: there are no decisions of the model.
        SkewError: training cannot be asked.
    """
    spec = spec or SkewSpec()
    decisions = ledger.decided_by(bundle.version, spec.rows or 2**31 - 1)
    if not decisions:
        raise ValueError(
            f"model {bundle.version!r} has decided nothing in {ledger.shown}: run "
            "`python -m pipelines.fraud score`, or name another with --model"
        )
    log = _log(decisions, bundle)
    with _landed(work, ledger.recorded()) as store:
        plain = dict.fromkeys(work.views(store, windowed=False), lag_s)
        spec = replace(spec, lags_s={**plain, **spec.lags_s})
        skew = check_skew(store, bundle.service, log, spec, say)
        owners = _owners(store, bundle.service)
    skew = _with_request(skew, log)
    drift, reference = None, work.models.reference(bundle.version)
    if reference is not None:
        say("drift")
        # the served float32 as JSON has it; in training they are float32, too
        drift = check_drift(
            pd.read_parquet(reference), log.frame, bundle.inputs, DriftSpec(owners=owners)
        )
    return Found(skew, drift, bundle)


def write(folder: Path, found: Found) -> tuple[Path, Path]:
    """Write index.html and results.json; returns where they are.

    Raises:
        SkewError: the page cannot be written.
    """
    html, numbers = folder / "index.html", folder / "results.json"
    write_page(
        html,
        skew=found.skew,
        drift=found.drift,
        title="Fraud scoring: served against training features",
        words=f"model {found.bundle.version}, service {found.bundle.service}",
    )
    said = {
        "model": found.bundle.version,
        "skew": found.skew.numbers(),
        "drift": None if found.drift is None else found.drift.numbers(),
    }
    numbers.write_text(json.dumps(said, indent=2, default=str) + "\n", "utf-8")
    return html, numbers


def _log(decisions: Sequence[Mapping[str, Any]], bundle: Bundle) -> ServedLog:
    """Rows of the ledger with a column an input."""
    held = ("customer_id", "terminal_id", "at_ms", "decided_ms", "layer")
    frame = pd.DataFrame({name: [row[name] for row in decisions] for name in held})
    # the amount as the ledger has it: an input of that name is the model's float32 of it
    frame["paid"] = [row["amount"] for row in decisions]
    inputs = [json.loads(row["inputs"]) for row in decisions]
    if any(len(row) != len(bundle.inputs) for row in inputs):
        raise ModelRefused(
            f"the ledger has decisions of model {bundle.version!r} with other inputs than it reads"
        )
    matrix = np.array(inputs, np.float64)  # null is NaN
    ages = pd.DataFrame([json.loads(row["ages_s"]) for row in decisions])
    named = {view: f"age of {view}" for view in ages.columns}
    frame = pd.concat(
        [
            frame,
            pd.DataFrame(matrix, columns=list(bundle.inputs)),
            ages.rename(columns=named),
        ],
        axis=1,
    )
    return ServedLog(frame, "at_ms", "decided_ms", named, "layer")


@contextmanager
def _landed(work: Work, recorded: Sequence[Mapping[str, Any]]) -> Iterator[FeatureStore]:
    """The store over the tables with the payments of the ledger among them."""
    data = work.folder / "data"
    if not (data / "payments.parquet").is_file():
        raise ValueError(f"{data} has no payments: run `python -m pipelines.fraud features`")
    with tempfile.TemporaryDirectory(prefix="hotplate-skew-") as scratch:
        root = Path(scratch)
        (root / "data").mkdir()
        for table in data.glob("*.parquet"):
            if table.name != "payments.parquet":
                (root / "data" / table.name).symlink_to(table.resolve())
        payments = pd.read_parquet(data / "payments.parquet")
        live = pd.DataFrame(list(recorded))
        for name, moment in (
            ("event_timestamp", live.pop("at_ms")),
            ("arrived", live.pop("decided_ms") + 1),
        ):
            live[name] = pd.to_datetime(moment, unit="ms", utc=True).dt.as_unit("us")
        landed = pd.concat([payments, live[payments.columns]], ignore_index=True)
        landed.to_parquet(root / "data" / "payments.parquet", index=False, coerce_timestamps="us")
        folder, repo, source = work.given
        yield FeatureRepo(repo, folder, source, root=root).open_cached()


def _owners(store: FeatureStore, service: str) -> dict[str, str]:
    """Feature -> the column of the entity that it is of."""
    found: dict[str, str] = {}
    for projection in store.get_feature_service(service).feature_view_projections:
        view = store.get_feature_view(projection.name)
        (key,) = (column.name for column in view.entity_columns)
        found |= {feature.name: key for feature in projection.features}
    return found


def _with_request(report: SkewReport, log: ServedLog) -> SkewReport:
    """The report with what a payment itself brings, computed anew as training does."""
    frame = log.frame
    expected = request_inputs(frame["paid"].to_numpy(), frame["at_ms"].to_numpy())
    names = dict(enumerate(REQUEST_INPUTS))
    verdicts = compared(
        {name: frame[name].to_numpy(np.float64) for name in names.values()},
        {name: expected[:, place].astype(np.float64) for place, name in names.items()},
    )
    more = [summed(_REQUEST, name, one) for name, one in verdicts.items()]
    own = {f"{_REQUEST}:{name}": one for name, one in verdicts.items()}
    return replace(
        report,
        features=[*more, *report.features],
        verdicts={**own, **report.verdicts},
    )
