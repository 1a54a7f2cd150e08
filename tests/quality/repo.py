"""A feature repo on disk with tables of its own, good ones, for tests that make them bad."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from click.testing import CliRunner, Result
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, PushSource
from feast.types import Float64, Int64, String
from feast.value_type import ValueType

from hotplate.cli import main
from hotplate.quality.outcome import Checked, Outcome
from hotplate.quality.reference import Reference
from hotplate.quality.run import Given, Quality

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
AT, CREATED = "event_timestamp", "created"
CARD = Entity(name="card", join_keys=["card_id"], value_type=ValueType.INT64)


def table(rows: int = 3_000, seed: int = 0, end: datetime = NOW) -> pd.DataFrame:
    """Honest rows: every card several times over a month up to an hour before `end`."""
    rng = np.random.default_rng(seed)
    began = end - timedelta(days=30)
    steps = np.sort(rng.choice(30 * 86_400 - 3_600, rows, replace=False))
    at = pd.to_datetime([began + timedelta(seconds=int(step)) for step in steps], utc=True)
    at = at.as_unit("us")
    balance = rng.normal(50, 20, rows)
    balance[rng.random(rows) < 0.05] = np.nan
    return pd.DataFrame(
        {
            "card_id": rng.integers(0, 300, rows) + 10**6,
            "amount": rng.lognormal(3, 1, rows),
            "balance": balance,
            "count": rng.poisson(4, rows),
            "share": rng.beta(2, 9, rows),
            "kind": rng.choice(["payment", "refund", "payout"], rows, p=[0.8, 0.15, 0.05]),
            AT: at,
            CREATED: at + timedelta(seconds=5),
        }
    )


def views(folder: Path) -> list[Any]:
    """`cards`, with versions and pushed to, and `limits`, plain, over files of the folder."""
    cards = FeatureView(
        name="cards",
        entities=[CARD],
        ttl=timedelta(days=365),
        schema=[
            Field(name="card_id", dtype=Int64),
            Field(name="amount", dtype=Float64),
            Field(name="balance", dtype=Float64),
            Field(name="count", dtype=Int64),
            Field(name="share", dtype=Float64),
            Field(name="kind", dtype=String),
        ],
        source=PushSource(
            name="cards_push",
            batch_source=FileSource(
                name="cards_file",
                path=str(folder / "cards.parquet"),
                timestamp_field=AT,
                created_timestamp_column=CREATED,
            ),
        ),
    )
    limits = FeatureView(
        name="limits",
        entities=[CARD],
        ttl=timedelta(days=365),
        schema=[Field(name="card_id", dtype=Int64), Field(name="most", dtype=Float64)],
        source=FileSource(
            name="limits_file", path=str(folder / "limits.parquet"), timestamp_field=AT
        ),
    )
    return [CARD, cards, limits]


class QualityRepo:
    """A repo in a folder, applied, with good tables.

    Args:
        folder: made.
        quality: `online_store.quality`.
        provider: Feast's.
        is_applied: whether the views are applied.
    """

    def __init__(
        self,
        folder: Path,
        quality: Mapping[str, Any] | None = None,
        provider: str = "hotplate.provider.HotplateProvider",
        *,
        is_applied: bool = True,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        online = {
            "type": "hotplate.online_store.CachedOnlineStore",
            "store": {"type": "sqlite", "path": str(folder / "online.db")},
            "ttl_map": {"default": "30s"},
        }
        if quality is not None:
            online["quality"] = dict(quality)
        settings = {
            "project": "shop",
            "provider": provider,
            "registry": str(folder / "registry.db"),
            "offline_store": {"type": "file"},
            "online_store": online,
            "entity_key_serialization_version": 3,
        }
        (folder / "feature_store.yaml").write_text(yaml.safe_dump(settings))
        self.good = table()
        self.write(self.good)
        cards = self.good["card_id"].unique()
        at = pd.Timestamp(NOW - timedelta(days=1)).as_unit("us")
        limits = pd.DataFrame({"card_id": cards, "most": 500.0 + cards % 7, AT: at})
        self.write(limits, "limits")
        if is_applied:
            self.apply()

    def apply(self) -> None:
        """Apply the views."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.store().apply(views(self.folder))

    def store(self) -> FeatureStore:
        """The store, opened anew."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return FeatureStore(repo_path=str(self.folder))

    def write(self, rows: pd.DataFrame | pa.Table, view: str = "cards") -> Path:
        """Write a view's table."""
        path = self.folder / f"{view}.parquet"
        made = rows if isinstance(rows, pa.Table) else pa.Table.from_pandas(rows)
        pq.write_table(made, path)
        return path

    def declare(self, text: str) -> None:
        """Write quality.py."""
        (self.folder / "quality.py").write_text(text)

    def measure(self) -> Reference:
        """Make the reference of what is there, as `hotplate quality profile` does."""
        quality = Quality(self.store(), self.folder)
        reference = quality.profile(["cards", "limits"], NOW)
        reference.write(self.folder / "quality.json")
        return reference

    def check(self, view: str = "cards", given: Given | None = None) -> Checked:
        """Judge a view by the reference."""
        path = self.folder / "quality.json"
        reference = Reference.read(path) if path.exists() else Reference()
        quality = Quality(self.store(), self.folder, given, reference)
        (checked,) = quality.check([view], NOW).checked
        return checked

    def command(self, *arguments: str) -> Result:
        """Run `hotplate quality`, in this process."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return CliRunner().invoke(
                main, ["quality", *arguments, "-c", str(self.folder)], catch_exceptions=False
            )


def bad(checked: Checked) -> dict[tuple[str, str], Outcome]:
    """What counts against a view, by (check, column)."""
    assert not checked.problem, checked.problem
    return {(one.check, one.column): one for one in checked.bad}
