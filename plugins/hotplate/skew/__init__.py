"""Whether what was served is what was trained on, point by point and as distributions."""

from __future__ import annotations

from hotplate.skew.check import ServedLog, SkewSpec, check_skew
from hotplate.skew.compare import REASONS, FeatureSkew
from hotplate.skew.drift import DriftReport, DriftSpec, FeatureDrift, check_drift
from hotplate.skew.errors import SkewError
from hotplate.skew.page import write_page
from hotplate.skew.report import SkewReport

__all__ = [
    "REASONS",
    "DriftReport",
    "DriftSpec",
    "FeatureDrift",
    "FeatureSkew",
    "ServedLog",
    "SkewError",
    "SkewReport",
    "SkewSpec",
    "check_drift",
    "check_skew",
    "write_page",
]
