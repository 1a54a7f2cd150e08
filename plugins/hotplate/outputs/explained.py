"""Why an input is or is not answered from memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from hotplate.outputs.batch import Batch
from hotplate.outputs.conditions import Asked
from hotplate.outputs.errors import OutputError
from hotplate.outputs.rules import Verdict

if TYPE_CHECKING:
    from hotplate.outputs.cache import OutputCache

__all__ = ["OutputExplanation", "explained"]

_SHOWN_MOST: Final = 16


@dataclass(frozen=True)
class OutputExplanation:
    """What `OutputCache.explain` found.

    Attributes:
        model, version: whose output.
        off: why the cache answers nothing at all, or nothing.
        rules: name, reason and verdict of each: `"yes"`, `"no"`, `"unknown"` (which forbids, too),
            `"needs the score"` or `"error: ..."`.
        kept: the output in memory, or None; None, too, where its file in the blob tier is gone.
        expires_in_s: until it may no longer be served; negative if it may not.
        is_invalidated: whether a feature that it was computed from was invalidated since.
    """

    model: str
    version: str
    off: str
    rules: tuple[tuple[str, str, str], ...]
    kept: tuple[float, ...] | None
    expires_in_s: float | None
    is_invalidated: bool

    @property
    def decided(self) -> str:
        """What decides, in a few words."""
        if self.off:
            return f"computed: the cache is off ({self.off})"
        for name, reason, verdict in self.rules:
            if verdict not in ("no", "needs the score"):
                shown = f" ({reason})" if reason else ""
                return f"computed: rule {name!r} says {verdict}{shown}"
        if self.kept is None and self.expires_in_s is None:
            return "computed: nothing is kept for this input"
        if self.is_invalidated:
            return "computed: a feature that the kept output came from was invalidated"
        if self.expires_in_s is not None and self.expires_in_s < 0:
            return "computed: the kept output has expired"
        if self.kept is None:
            return "computed: the file of the kept output is gone"
        return "answered from memory"

    def __str__(self) -> str:
        lines = [f"model {self.model} version {self.version}: {self.decided}"]
        lines += [
            f"  rule {name}: {verdict}" + (f"  ({reason})" if reason else "")
            for name, reason, verdict in self.rules
        ]
        if self.kept is not None:
            shown = ", ".join(map(str, self.kept[:_SHOWN_MOST]))
            if len(self.kept) > _SHOWN_MOST:
                shown += f", ... {len(self.kept):,} numbers"
            lines.append(f"  kept: [{shown}], expires in {self.expires_in_s:.3f} s")
        return "\n".join(lines)


def explained(cache: OutputCache, rows: Batch) -> OutputExplanation:
    """Why one row would or would not be answered from memory now.

    Raises:
        OutputError: it is not one row, or not as it must be.
    """
    if rows.count != 1:
        raise OutputError(where="explain", problem="takes one row", fix="Give one.")
    (key,) = cache.inputs.keys(rows)
    now_ns = cache.clock.now_ns()
    kept = cache._tier.get(key)
    value, deadline_ns, ties = (None, 0, ()) if kept is None else kept[:3]
    found = None if value is None else cache._found(value)
    scores = None if found is None else cache._as_scores(found)
    verdicts = cache._rules.judge(Asked(rows, scores, cache.clock.wall_ns()))
    return OutputExplanation(
        model=cache.name,
        version=cache.version,
        off=cache._off or ("dry run" if cache.policy.dry_run else "") or _bypass(cache, rows),
        rules=tuple(
            (rule.name, rule.reason, _said(verdict, rule.needs_score and scores is None))
            for rule, verdict in zip(cache._rules.rules, verdicts, strict=True)
        ),
        kept=None if found is None else tuple(np.ravel(found).tolist()),
        expires_in_s=None if value is None else (deadline_ns - now_ns) / 1e9,
        is_invalidated=any(tie.is_cut for tie in ties),
    )


def _bypass(cache: OutputCache, row: Batch) -> str:
    """Why one row is not even looked for, or nothing."""
    if cache._families is None:
        return ""
    members = cache._families.members(row, cache.clock.now_ns())
    name = members.families[0].name
    return f"the hits of family {name!r} do not pay" if members.is_bypassed[0] else ""


def _said(verdict: Verdict, is_open: bool) -> str:
    if verdict.error is not None:
        return f"error: {verdict.error}"
    if is_open:
        return "needs the score"
    return ("unknown" if verdict.unknown[0] else "yes") if verdict.holds[0] else "no"
