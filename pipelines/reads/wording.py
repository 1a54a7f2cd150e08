"""Numbers as people read them."""

from __future__ import annotations

import math

__all__ = ["GROUP_HEADINGS", "count", "duration", "equality", "seconds", "share", "times"]

GROUP_HEADINGS = (
    "group",
    "hit rate",
    "source reads",
    "forgotten",
    "oldest served",
    "bound",
    "past bound",
)
"""Of the table of groups, in the terminal and on the page."""


def duration(value_us: float) -> str:
    """Microseconds as "48 µs", "1.6 ms" or "2 s"."""
    if value_us < 1_000:
        return f"{_short(value_us)} µs"
    if value_us < 1_000_000:
        return f"{_short(value_us / 1_000)} ms"
    return f"{_short(value_us / 1_000_000)} s"


def seconds(value_s: float | None) -> str:
    """Seconds as "29.8 s" or "5 min"; None is no limit."""
    if value_s is None:
        return "no limit"
    if value_s >= 7_200:
        return f"{_short(value_s / 3_600)} h"
    if value_s >= 120:
        return f"{_short(value_s / 60)} min"
    return f"{_short(value_s)} s" if value_s >= 1 else duration(value_s * 1_000_000)


def times(ratio: float) -> str:
    """A ratio as "12 x" or "1.4 x"."""
    if math.isnan(ratio):
        return "-"
    return "all" if math.isinf(ratio) else f"{_short(ratio)} x"


def share(value: float) -> str:
    """A share as "93.4 %"."""
    return f"{100 * value:.1f} %"


def count(value: int) -> str:
    """A whole number with its thousands apart."""
    return f"{value:,}"


def _short(value: float) -> str:
    """Three digits at most, whole numbers without a point."""
    if value >= 100:
        return f"{value:.0f}"
    text = f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def equality(compared: int, explained: int, unexplained: int, bound: str) -> tuple[str, ...]:
    """Sentences that say whether the cache answered as bare Feast did, and what the ttl allowed.

    Args:
        compared: answers compared.
        explained: those with a value that another program had changed since it was read.
        unexplained: those that differ for any other reason.
        bound: of the group that the other program changed.
    """
    unchanged = compared - explained
    of_which = f", but {count(unexplained)}" if unexplained else ""
    said = [
        f"Equal to bare Feast's: all of the {count(unchanged)} answers whose features no other "
        f"program had changed behind the cache's back{of_which}."
    ]
    if explained:
        said.append(
            f"The other {count(explained)} hold a terminal_risk from before such a change, and "
            f"never older than its bound of {bound}: that is what a ttl allows. A shorter one, or "
            "coherence: event, allows less."
        )
    if unexplained:
        said.append("Answers that differ for no known reason are a fault: please report it.")
    return tuple(said)
