"""A Feast provider that knows windowed views, and loses no rows of Arrow-backed frames.

One line in feature_store.yaml: `provider: hotplate.provider.HotplateProvider`. With it
`get_historical_features` computes windowed features as of each row's own timestamp, from the events
and in the same bits as serving; `materialize` leaves windowed views and their event views alone;
and `push` and `write_to_online_store` keep every row. The last is to be had without it by
`hotplate.of(store).push(...)`. It is also where `online_store.quality` looks at data before it is
written.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from feast import OnDemandFeatureView
from feast.infra.compute_engines.local.compute import LocalComputeEngine
from feast.infra.passthrough_provider import PassthroughProvider

from hotplate.ingestion import defragment
from hotplate.training.errors import TrainingError
from hotplate.training.job import Asked, EntityRows, WindowedJob
from hotplate.training.retrieval import WindowedColumns, split
from hotplate.training.tables import is_spark
from hotplate.windowed import event_log_of, windowed_of

if TYPE_CHECKING:
    from hotplate.quality.gate import Gate

__all__ = ["HotplateProvider"]

_log = logging.getLogger("hotplate")
_MATERIALIZED: Final = (
    "start_date",
    "end_date",
    "registry",
    "project",
    "tqdm_builder",
    "disable_event_timestamp",
)
"""What Feast hands to `materialize_single_feature_view` after the view, in its order."""


class HotplateProvider(PassthroughProvider):  # type: ignore[misc]
    """Feast's own provider, for repos with windowed views and for frames of any kind."""

    computes_windows: Final = True
    """Windowed views need this provider; see `hotplate.windowed`."""

    judges_quality: Final = True
    """So does `online_store.quality`; see `hotplate.quality.gate`."""

    def ingest_df(
        self, feature_view: Any, df: pd.DataFrame, field_mapping: dict[str, str] | None = None
    ) -> None:
        """As Feast's, for every row.

        Raises:
            QualityFailed: `online_store.quality.pushes` is `block`, and they are not as expected.
        """
        if (gate := self._gate()) is not None:
            gate.before_push(feature_view, df)
        super().ingest_df(feature_view, defragment(df), field_mapping)

    async def ingest_df_async(
        self, feature_view: Any, df: pd.DataFrame, field_mapping: dict[str, str] | None = None
    ) -> None:
        """As Feast's, for every row.

        Raises:
            QualityFailed: `online_store.quality.pushes` is `block`, and they are not as expected.
        """
        if (gate := self._gate()) is not None:
            if gate.refuses_pushes():
                await asyncio.to_thread(gate.before_push, feature_view, df)
            else:
                gate.before_push(feature_view, df)
        await super().ingest_df_async(feature_view, defragment(df), field_mapping)

    def get_historical_features(
        self,
        config: Any,
        feature_views: Any,
        feature_refs: list[str],
        entity_df: Any,
        registry: Any,
        project: str,
        full_feature_names: bool,
        **kwargs: Any,
    ) -> Any:
        """As Feast's, and windowed features as serving would have answered at each row's timestamp.

        An event counts for a row if it had arrived by then (`created_timestamp_column`), whether or
        not `filter_by_created_timestamp` is set for the other views.

        Raises:
            TrainingError: windowed features cannot be computed as asked.
        """
        parts = split(feature_views, feature_refs)
        if not parts.windowed:
            return super().get_historical_features(
                config,
                feature_views,
                feature_refs,
                entity_df,
                registry,
                project,
                full_feature_names,
                **kwargs,
            )
        if entity_df is None:
            raise TrainingError(
                where=f"windowed view {parts.windowed[0].name!r}",
                problem="is asked for without entity_df",
                fix="Give entity rows, each with its timestamp: windows end there.",
            )
        windowed = WindowedColumns(
            parts,
            registry,
            project,
            full_feature_names=full_feature_names,
            offline_store=self.offline_store,
            config=config,
        )
        on_spark = is_spark(self.offline_store)
        rows = None
        if not on_spark and not (isinstance(entity_df, str) and parts.ordinary):
            rows = EntityRows(entity_df)
            windowed.check(rows.table.column_names)
        inner = None
        if parts.ordinary:
            inner = super().get_historical_features(
                config,
                parts.ordinary,
                parts.refs,
                entity_df,
                registry,
                project,
                full_feature_names,
                **kwargs,
            )
        on_demand = OnDemandFeatureView.get_requested_odfvs(feature_refs, project, registry)
        asked = Asked(list(feature_refs), full_feature_names, on_demand, config.repo_path)
        if on_spark:
            from hotplate.training.spark_job import SparkWindowedJob

            return SparkWindowedJob(entity_df, inner, windowed, asked, config)
        return WindowedJob(rows, inner, windowed, asked)

    def _gate(self) -> Gate | None:
        """The quality gate; None where the deployment asks for none."""
        settings = getattr(self.repo_config.online_store, "quality", None)
        if settings is None:
            return None
        made: dict[str, Gate] = self.__dict__.setdefault("_gates", {})
        if "gate" not in made:
            from hotplate.quality.gate import Gate

            runtime = self.online_store.runtime(self.repo_config)
            gate = Gate(self.repo_config, settings, runtime.quality, runtime.clock)
            made.setdefault("gate", gate)  # one step for all threads
        return made["gate"]

    def materialize_single_feature_view(
        self, config: Any, feature_view: Any, *args: Any, **kwargs: Any
    ) -> None:
        """As Feast's; windowed views and event views are left out, which the log says.

        Raises:
            QualityFailed: `online_store.quality.materialize` is `block`, and the rows are not as
                expected; none of this view was written.
        """
        if windowed_of(feature_view) is not None:
            how = "it is computed when it is read, from events that are pushed"
        elif event_log_of(feature_view) is not None:
            how = "its events are pushed; `hotplate windows seed` fills it from its batch source"
        else:
            self._materialize(config, feature_view, *args, **kwargs)
            return
        _log.info("materialize leaves out %r: %s", feature_view.name, how)

    def _materialize(self, config: Any, feature_view: Any, *args: Any, **kwargs: Any) -> None:
        """As Feast's; then this process forgets what the engine wrote from other processes."""
        if (gate := self._gate()) is not None:
            given = {**dict(zip(_MATERIALIZED, args, strict=False)), **kwargs}
            start, end = given["start_date"], given["end_date"]
            if given.get("disable_event_timestamp"):  # everything up to now, whatever was asked
                start = datetime.fromtimestamp(0, UTC)
            gate.before_materialize(feature_view, self.offline_store, start, end)
        try:
            super().materialize_single_feature_view(config, feature_view, *args, **kwargs)
        finally:
            forget = getattr(self.online_store, "note_written_elsewhere", None)
            if forget is not None and not isinstance(self.batch_engine, LocalComputeEngine):
                forget(config, feature_view)
