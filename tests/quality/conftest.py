"""A repo with good data and its reference."""

from __future__ import annotations

from pathlib import Path

import pytest

import hotplate.quality.gx  # noqa: F401 - first imported in the main thread, for all tests

from .repo import QualityRepo


@pytest.fixture
def repo(tmp_path: Path) -> QualityRepo:
    """Applied, measured."""
    made = QualityRepo(tmp_path / "repo")
    made.measure()
    return made
