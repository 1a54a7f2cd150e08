"""What a check of a deployment says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["ERROR", "OK", "WARNING", "Finding", "merged"]

OK: Final = "ok"
WARNING: Final = "warning"
ERROR: Final = "error"


@dataclass(frozen=True)
class Finding:
    """One line.

    Attributes:
        check: what was looked at.
        status: `ok`, `warning` (it works, not as well as it could) or `error` (it does not).
        seen: what was seen.
        fix: what to change; empty where nothing need be.
    """

    check: str
    status: str
    seen: str
    fix: str = ""


def merged(check: str, found: Sequence[tuple[str, Finding]]) -> Finding:
    """One check on several nodes in one line: of all where all is well, else of those that are not.

    Args:
        check: what was looked at.
        found: (node, what was seen there).
    """
    bad = [(node, one) for node, one in found if one.status != OK]
    shown = bad or found
    seen = list(dict.fromkeys(one.seen for _, one in shown))
    if len(found) == 1:
        text = seen[0]
    elif len(seen) == 1:
        text = f"{seen[0]} ({len(shown)} of {len(found)} nodes)"
    else:
        text = "; ".join(f"{node}: {one.seen}" for node, one in shown)
    status = ERROR if any(one.status == ERROR for _, one in bad) else shown[0][1].status
    fixes = dict.fromkeys(one.fix for _, one in bad if one.fix)
    return Finding(check, status, text, "; ".join(fixes))
