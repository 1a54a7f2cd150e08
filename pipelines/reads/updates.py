"""Customers' spending, kept up to date as payments arrive: what a stream processor would push."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from pipelines.reads.prepare import WINDOWS_DAYS

__all__ = ["SpendingUpdates"]


class SpendingUpdates:
    """The spending of every customer, which payments add to.

    Nothing leaves a window meanwhile: a replay is short beside the shortest of them.

    Args:
        table: `customer_spending` as it was materialized.
    """

    def __init__(self, table: pd.DataFrame) -> None:
        self._columns = [name for name in table.columns if name != "event_timestamp"]
        rows = table[self._columns].to_dict("records")
        self._rows: dict[int, dict[str, Any]] = {int(row["customer_id"]): row for row in rows}

    def after(self, payments: Iterable[tuple[int, float]]) -> pd.DataFrame:
        """Add payments (customer, amount); returns the rows of their customers, one each."""
        changed: dict[int, Mapping[str, Any]] = {}
        for customer_id, amount in payments:
            changed[customer_id] = self._add(customer_id, amount)
        return pd.DataFrame(list(changed.values()), columns=self._columns)

    def _add(self, customer_id: int, amount: float) -> Mapping[str, Any]:
        row = dict(self._rows.get(customer_id, {"customer_id": customer_id}))
        for days in WINDOWS_DAYS:
            count, mean = f"customer_tx_{days}d", f"customer_mean_amount_{days}d"
            earlier = row.get(count, 0)
            row[count] = earlier + 1
            row[mean] = (row.get(mean, 0.0) * earlier + amount) / (earlier + 1)
        self._rows[customer_id] = row
        return row
