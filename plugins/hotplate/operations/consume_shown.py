"""How a consumer's figures are shown: a line that changes, a line now and then, or JSON."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Final

from hotplate.operations.consume import Consumed
from hotplate.operations.shown import of

__all__ = ["ConsumeReport", "say_consumed"]

_WATCHED_S: Final = 0.2
_LOGGED_S: Final = 10.0
_JSON_S: Final = 1.0


class ConsumeReport:
    """Says what a consumer has done: on a terminal in one line, elsewhere now and then.

    Args:
        as_json: say it on stdout, a line of JSON a second.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._is_watched = sys.stderr.isatty() and not as_json
        self._every_s = _JSON_S if as_json else _WATCHED_S if self._is_watched else _LOGGED_S
        self._said_s = time.monotonic()
        self._last: Consumed | None = None

    def note(self, so_far: Consumed) -> None:
        """Look at how far it is, and say so if it is time to."""
        self._last = so_far
        now_s = time.monotonic()
        if now_s - self._said_s >= self._every_s:
            self._said_s = now_s
            self._say(so_far)

    def end(self) -> None:
        """Say the last figures."""
        if self._last is None:
            return
        if self._is_watched:
            print("\r\x1b[2K", end="", file=sys.stderr)
        self._is_watched = False
        self._say(self._last)

    def _say(self, so_far: Consumed) -> None:
        if self._as_json:
            print(json.dumps({"at_ms": time.time_ns() // 1_000_000, **asdict(so_far)}), flush=True)
            return
        lead, end = ("\r\x1b[2K", "") if self._is_watched else ("", "\n")
        print(lead + say_consumed(so_far), end=end, file=sys.stderr, flush=True)


def say_consumed(so_far: Consumed) -> str:
    """What a consumer has done, in a line."""
    parts = [of(so_far.accepted, "event", "events"), f"{so_far.rate_s:,.0f}/s"]
    lag = so_far.lag
    if lag is not None:
        if lag.waiting is not None:
            parts.append(f"{lag.waiting:,} waiting")
        parts.append(f"{lag.pending:,} pending")
    counted = {
        **so_far.dropped,
        "unreadable": so_far.unreadable,
        "done before": so_far.elsewhere,
        "taken over": so_far.claimed,
        "gone from the stream": so_far.gone,
        "removed unread": 0 if lag is None else lag.removed,
    }
    parts += [f"{count:,} {name}" for name, count in counted.items() if count]
    if so_far.unknown:
        parts.append(of(len(so_far.unknown), "unknown column", "unknown columns"))
    if so_far.trouble is not None:
        parts.append(f"waiting: {so_far.trouble}")
    return ", ".join(parts)
