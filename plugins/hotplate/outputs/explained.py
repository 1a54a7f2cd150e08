"""Why an input is or is not answered from memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["OutputExplanation"]

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
