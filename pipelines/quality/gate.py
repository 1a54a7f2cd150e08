"""The gate at work: `materialize` of bad rows writes nothing, of good ones all."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from hotplate.quality import QualityFailed
from pipelines.fraud.stores import quiet_feast
from pipelines.quality.stage import Stage

__all__ = ["refused_then_written"]

_VIEW: Final = "customer_spending"


def refused_then_written(stage: Stage) -> list[str]:
    """What came of it, a line each; what is wrong stands in red."""
    path = stage.work / "data" / f"{_VIEW}.parquet"
    good = stage.tables[_VIEW]
    bad = good.assign(customer_mean_amount_7d=-1e6)
    lines = []
    pq.write_table(pa.Table.from_pandas(bad), path, coerce_timestamps="us")
    try:
        _materialize(stage)
        lines.append("[red]materialize of bad rows was not refused[/]")
    except QualityFailed as error:
        lines.append(f"[green]refused[/]: {str(error).replace('[', chr(92) + '[')}")
    if _read(stage) is not None:
        lines.append("[red]and some of it was written[/]")
    pq.write_table(pa.Table.from_pandas(good), path, coerce_timestamps="us")
    _materialize(stage)
    if _read(stage) is None:
        lines.append("[red]materialize of good rows wrote nothing[/]")
    else:
        lines.append("[green]written[/]: materialize of good rows went through")
    return lines


def _materialize(stage: Stage) -> None:
    start = stage.tables[_VIEW]["event_timestamp"].min().to_pydatetime()
    with quiet_feast():
        stage.store.materialize(start - timedelta(days=1), stage.now, feature_views=[_VIEW])


def _read(stage: Stage) -> float | None:
    entity = int(stage.tables[_VIEW]["customer_id"].iloc[0])
    found = stage.store.get_online_features(
        [f"{_VIEW}:customer_mean_amount_7d"], [{"customer_id": entity}]
    ).to_dict()
    value: float | None = found["customer_mean_amount_7d"][0]
    return value
