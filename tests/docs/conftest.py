"""A server for the pages that are run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hotplate.embedded import EmbeddedServer
from pipelines.lab.programs import valkey_server


@pytest.fixture(scope="module")
def own_valkey() -> Iterator[EmbeddedServer]:
    """One that pages may configure."""
    with valkey_server() as server:
        yield server
