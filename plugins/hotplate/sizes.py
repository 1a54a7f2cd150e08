"""Sizes and shares as people write them: `512MB`, `2GiB`, `10%`, or a number."""

from __future__ import annotations

import math
import re
from typing import Final

__all__ = ["format_bytes", "parse_bytes", "parse_share"]

_UNITS: Final = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


def parse_bytes(value: object) -> int:
    """Return a size in bytes.

    Raises:
        ValueError: the text is not a positive number with a known unit.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (
        found := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", value)
    ):
        unit = _UNITS.get(found[2].upper())
        if unit is None:
            raise ValueError(f"{value!r} has an unknown unit; write for example '512MB' or '2GiB'")
        size = round(float(found[1]) * unit)
    else:
        raise ValueError(f"{value!r} is not a size; write for example '512MB' or '2GiB'")
    if size <= 0:
        raise ValueError(f"{value!r} leaves no room; write for example '512MB'")
    return size


def format_bytes(size: int) -> str:
    """Write a size with a decimal unit and one digit: 1,234,567 is `1.2MB`."""
    amount = float(size)
    for unit in ("B", "KB", "MB"):
        if amount < 1000:
            return f"{amount:.0f}{unit}" if unit == "B" else f"{amount:.1f}{unit}"
        amount /= 1000
    return f"{amount:.1f}GB"


def parse_share(value: object) -> float:
    """Return a share, written as `"10%"` or `0.1`; its range is for the caller to judge.

    Raises:
        ValueError: it is neither a number nor a percentage.
    """
    share = value
    if isinstance(value, str):
        text = value.strip()
        try:
            share = float(text.removesuffix("%")) * (0.01 if text.endswith("%") else 1.0)
        except ValueError:
            share = None
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not math.isfinite(share):
        raise ValueError(f"{value!r} is not a share")
    return float(share)
