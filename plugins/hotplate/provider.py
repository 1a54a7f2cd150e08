"""A Feast provider whose `push` and `write_to_online_store` lose no rows of Arrow-backed frames.

Optional, one line in feature_store.yaml: `provider: hotplate.provider.HotplateProvider`. Without
it, `hotplate.of(store).push(...)` does the same for callers of their own.
"""

from __future__ import annotations

from typing import Any, Final

import pandas as pd
from feast.infra.passthrough_provider import PassthroughProvider

from hotplate.ingestion import defragment

__all__ = ["HotplateProvider"]


class HotplateProvider(PassthroughProvider):  # type: ignore[misc]
    """Feast's own provider, with the chunks of a frame joined before it is converted."""

    computes_windows: Final = True
    """Windowed views need this provider; see `hotplate.windowed`."""

    def ingest_df(
        self, feature_view: Any, df: pd.DataFrame, field_mapping: dict[str, str] | None = None
    ) -> None:
        """As Feast's, for every row."""
        super().ingest_df(feature_view, defragment(df), field_mapping)

    async def ingest_df_async(
        self, feature_view: Any, df: pd.DataFrame, field_mapping: dict[str, str] | None = None
    ) -> None:
        """As Feast's, for every row."""
        await super().ingest_df_async(feature_view, defragment(df), field_mapping)
