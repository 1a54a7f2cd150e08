"""What became of the batches of one model."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["OutputCounts", "OutputStats", "by_version"]


class OutputCounts:
    """What happens, counted as it does; of all threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._hits = 0  # of rows by themselves: half a microsecond less than in counts
        self._lock = threading.Lock()

    def restart_after_fork(self) -> None:
        """Make a new lock: the parent's may have been held by a thread that is not here."""
        self._lock = threading.Lock()

    def add(self, counted: Mapping[str, int]) -> list[int]:
        """Count several things at once; returns their counts by now."""
        with self._lock:
            for name, number in counted.items():
                self._counts[name] += number
            return [self._counts[name] for name in counted]

    def count_hit(self) -> None:
        """Count one row by itself that was answered from memory."""
        with self._lock:
            self._hits += 1

    def count_computed(self, word: str, lacks_features: bool) -> None:
        """Count one row by itself that the model answered.

        Args:
            word: why.
            lacks_features: whether nobody said what it was made of.
        """
        with self._lock:
            counts = self._counts
            counts["rows"] += 1
            counts["computed"] += 1
            counts[word] += 1
            if lacks_features:
                counts["without features"] += 1

    def count_kept(self, wanted: int, refused: int) -> None:
        """Count outputs that were to be kept, and those of them that were not."""
        self.add({"kept": wanted - refused, "refused": refused})

    def count_rule(self, name: str, held: int, unsure: int) -> None:
        """Count rows that a rule forbade, and of how many it could not tell."""
        self.add({f"rule: {name}": held} | ({f"rule unknown: {name}": unsure} if unsure else {}))

    def begin_anew(self, names: Iterable[str]) -> None:
        """Let some begin at nothing; what was counted counts as before."""
        with self._lock:
            for name in names:
                self._counts[f"{name}_before"] += self._counts.pop(name, 0)

    def snapshot(self) -> dict[str, int]:
        """All that was counted."""
        with self._lock:
            return dict(self._counts + Counter(rows=self._hits, hit=self._hits))


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
        rules: names of its rules.
    """

    model: str
    version: str
    counts: Mapping[str, int]
    entries: int
    size_bytes: int
    evicted: int
    invalidated: int
    off: str
    rules: tuple[str, ...] = ()

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


def by_version(stats: Iterable[OutputStats]) -> list[OutputStats]:
    """Those of one version of a model, added up."""
    found: dict[tuple[str, str], OutputStats] = {}
    for one in stats:
        place = one.model, one.version
        found[place] = _together(found[place], one) if place in found else one
    return list(found.values())


def _together(left: OutputStats, right: OutputStats) -> OutputStats:
    return OutputStats(
        left.model,
        left.version,
        Counter(left.counts) + Counter(right.counts),
        left.entries + right.entries,
        left.size_bytes + right.size_bytes,
        left.evicted + right.evicted,
        left.invalidated + right.invalidated,
        right.off or left.off,
        tuple(dict.fromkeys([*left.rules, *right.rules])),
    )


def _under(prefix: str, counts: Mapping[str, int]) -> dict[str, int]:
    return {
        name.removeprefix(prefix): count
        for name, count in counts.items()
        if name.startswith(prefix)
    }
