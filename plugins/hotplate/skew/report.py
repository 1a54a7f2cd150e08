"""What a comparison of served with training features found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotplate.skew.compare import FeatureSkew, Verdicts

__all__ = ["SkewReport"]


@dataclass(frozen=True)
class SkewReport:
    """What was found.

    Attributes:
        features: one each, in the order of the service.
        rows: of the log that were compared.
        logged: of the log.
        limit: greatest share of unexplained values that is accepted of a feature.
        since_ms, until_ms: the first and the last instant.
        left_out: view -> why it was not compared.
        not_logged: features of the service that the log does not hold.
        by_layer: layer -> (rows, rows with an unexplained value); empty where the log names none.
        thinned: rows of which not every instant between reading and deciding could be looked at.
        read_after_s: how long after its instant a decision was made: of half of them within the
            first, of 99 % within the second.
        verdicts: by `view:feature`, for plots.
    """

    features: Sequence[FeatureSkew]
    rows: int
    logged: int
    limit: float
    since_ms: int
    until_ms: int
    left_out: Mapping[str, str] = field(default_factory=dict)
    not_logged: Sequence[str] = ()
    by_layer: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    thinned: int = 0
    read_after_s: tuple[float, float] = (0.0, 0.0)
    verdicts: Mapping[str, Verdicts] = field(default_factory=dict, repr=False)

    @property
    def failed(self) -> list[FeatureSkew]:
        """Features with more unexplained values than is accepted."""
        return [one for one in self.features if one.unexplained_share > self.limit]

    @property
    def is_fine(self) -> bool:
        """Whether all features are equal or explained, up to the limit, and were logged."""
        return not self.failed and not self.not_logged

    def numbers(self) -> dict[str, Any]:
        """For machines."""
        return {
            "is_fine": self.is_fine,
            "rows": self.rows,
            "logged": self.logged,
            "limit": self.limit,
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "features": [
                {
                    "view": one.view,
                    "feature": one.name,
                    "rows": one.rows,
                    **{name.replace(" ", "_"): count for name, count in one.counts.items()},
                    "unexplained_share": one.unexplained_share,
                    "unexplained_low": one.interval.low,
                    "unexplained_high": one.interval.high,
                    "greatest_difference": one.greatest,
                    "hints": list(one.hints),
                    "examples": [dict(example) for example in one.examples],
                }
                for one in self.features
            ],
            "not_logged": list(self.not_logged),
            "left_out": dict(self.left_out),
            "by_layer": {
                layer: {"rows": rows, "unexplained": count}
                for layer, (rows, count) in self.by_layer.items()
            },
            "thinned": self.thinned,
            "read_after_s": list(self.read_after_s),
        }
