"""Numbers as people read them."""

from __future__ import annotations

import math

__all__ = ["count", "duration", "seconds", "share", "times"]


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
