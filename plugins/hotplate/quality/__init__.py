"""Data quality: what is expected of the data of a feature repo, and whether it holds.

A repo's own `quality.py` takes its words from here; see `hotplate.quality.declared`.
"""

from hotplate.quality.declared import CHECKS, ColumnQuality, Covered, TableQuality, ViewQuality
from hotplate.quality.errors import QualityError, QualityFailed

__all__ = [
    "CHECKS",
    "ColumnQuality",
    "Covered",
    "QualityError",
    "QualityFailed",
    "TableQuality",
    "ViewQuality",
]
