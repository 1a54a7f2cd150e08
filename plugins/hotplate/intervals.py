"""Between which bounds a share lies, when only some were looked at.

Reference: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
Journal of the American Statistical Association 22 (1927).
"""

from __future__ import annotations

import math
from statistics import NormalDist

__all__ = ["wilson_interval"]


def wilson_interval(found: int, among: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's bounds of a share; 0 and 1 where nothing was looked at.

    Args:
        found: so many had it.
        among: so many were looked at.
        confidence: that the share lies within, between 0 and 1.
    """
    if not among:
        return 0.0, 1.0
    share, z = found / among, NormalDist().inv_cdf(0.5 + confidence / 2)
    middle = share + z * z / (2 * among)
    half = z * math.sqrt(share * (1 - share) / among + z * z / (4 * among * among))
    whole = 1 + z * z / among
    low = 0.0 if not found else max(0.0, (middle - half) / whole)
    return low, 1.0 if found == among else min(1.0, (middle + half) / whole)
