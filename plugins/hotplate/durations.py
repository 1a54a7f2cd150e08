"""Durations as people write them: `250ms`, `30s`, `5m`, `1h30m`, `7d`, `none`."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

__all__ = ["NO_LIMIT_NS", "format_duration", "parse_duration"]

# About 146 years: large enough to mean "never", small enough that sums stay in int64.
NO_LIMIT_NS: Final = 1 << 62

_UNIT_NS: Final = {
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3_600 * 1_000_000_000,
    "d": 86_400 * 1_000_000_000,
}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")


def parse_duration(value: object) -> int:
    """Return a duration in nanoseconds, rounded down to whole milliseconds.

    Accepts text (`"30s"`, `"1h30m"`, `"0"`), the text `"none"` (no limit: `NO_LIMIT_NS`), a
    `timedelta`, and the number 0. A bare number other than 0 has no unit and is refused, so
    that 30 is never taken for milliseconds by one reader and for minutes by the next.

    Raises:
        ValueError: the text is empty, negative, shorter than a millisecond, without a unit, or has
            its units out of order; the message says what to write.
    """
    if isinstance(value, timedelta):
        return _checked(
            value // timedelta(microseconds=1) * 1_000, str(value), value != timedelta()
        )
    if value is None:
        raise ValueError("is empty; write '0s' to keep nothing, 'none' for no limit")
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float, str))
        or (isinstance(value, float) and not math.isfinite(value))
    ):
        raise ValueError(f"{value!r} is not a duration; write for example '30s' or '5m'")
    if isinstance(value, (int, float)):
        if value == 0:
            return 0
        if value < 0:
            raise ValueError(f"{value} is negative; write '0s' to keep nothing")
        raise ValueError(
            f"{value} has no unit; write '{value}s' for seconds or '{value}m' for minutes"
        )
    return _parse_text(value.strip().lower())


def _parse_text(text: str) -> int:
    if text == "none":
        return NO_LIMIT_NS
    if text.startswith("-"):
        raise ValueError(f"'{text}' is negative; write '0s' to keep nothing")
    if not text or not _WHOLE.fullmatch(text):
        if re.fullmatch(r"0(\.0*)?", text):
            return 0
        if re.fullmatch(r"\d+(\.\d+)?", text):
            raise ValueError(
                f"'{text}' has no unit; write '{text}s' for seconds or '{text}m' for minutes"
            )
        raise ValueError(
            f"'{text}' is not a duration; write for example '250ms', '30s', '5m', '1h30m', 'none'"
        )
    parts = _PART.findall(text)
    sizes = [_UNIT_NS[unit] for _, unit in parts]
    if sizes != sorted(set(sizes), reverse=True):
        raise ValueError(
            f"'{text}' repeats a unit or has them out of order; write it as in '1h30m'"
        )
    total = sum(round(float(number) * _UNIT_NS[unit]) for number, unit in parts)
    return _checked(total, text, any(float(number) for number, _ in parts))


def _checked(nanoseconds: int, shown: str, is_positive: bool) -> int:
    if nanoseconds < 0:
        raise ValueError(f"'{shown}' is negative; write '0s' to keep nothing")
    if nanoseconds >= NO_LIMIT_NS:
        raise ValueError(f"'{shown}' is longer than 146 years; write 'none' for no limit")
    whole = nanoseconds // _UNIT_NS["ms"] * _UNIT_NS["ms"]
    if is_positive and not whole:
        raise ValueError(f"'{shown}' is shorter than 1ms; write '1ms', or '0s' to keep nothing")
    return whole


def format_duration(nanoseconds: int) -> str:
    """Write nanoseconds the way `parse_duration` reads them, rounded to whole milliseconds.

    >>> format_duration(90_000_000_000)
    '1m30s'
    """
    if nanoseconds >= NO_LIMIT_NS:
        return "none"
    rest = round(nanoseconds / 1_000_000) * 1_000_000
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _UNIT_NS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
