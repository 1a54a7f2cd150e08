"""What became of the batches of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["OutputStats"]


@dataclass(frozen=True)
class OutputStats:
    """Counts of one `OutputCache` since it was made.

    Attributes:
        model, version: whose outputs.
        counts: what happened -> how often; see the properties for the usual ones.
        entries, size_bytes: what is kept now.
        evicted: outputs pushed out for room.
        invalidated: outputs that ended with one of their features.
        off: why the cache answers nothing, or nothing.
    """

    model: str
    version: str
    counts: Mapping[str, int]
    entries: int
    size_bytes: int
    evicted: int
    invalidated: int
    off: str

    def __getitem__(self, name: str) -> int:
        return self.counts.get(name, 0)

    @property
    def rows(self) -> int:
        """Rows that were scored."""
        return self["rows"]

    @property
    def hits(self) -> int:
        """Rows that were, or in a dry run could have been, answered from memory."""
        return self["hit"] + self["compared"]

    @property
    def hit_rate(self) -> float:
        """Their share."""
        return self.hits / self.rows if self.rows else 0.0

    @property
    def by_rule(self) -> dict[str, int]:
        """Rule -> rows that it forbade to cache."""
        return _under("rule: ", self.counts)

    @property
    def rule_errors(self) -> dict[str, int]:
        """Rule -> batches that it could not judge."""
        return _under("rule error: ", self.counts)


def _under(prefix: str, counts: Mapping[str, int]) -> dict[str, int]:
    return {
        name.removeprefix(prefix): count
        for name, count in counts.items()
        if name.startswith(prefix)
    }
