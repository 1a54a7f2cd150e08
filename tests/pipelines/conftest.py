"""What tests of the fraud pipeline share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .fraud_world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Features online, for all tests of a module."""
    from .fraud_world import a_world  # others here do without Feast

    with a_world(tmp_path_factory.mktemp("world")) as made:
        yield made
