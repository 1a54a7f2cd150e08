"""What the user of the event logs must be allowed, and what is said where something is not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client

from hotplate import HotplateError
from hotplate.embedded import EmbeddedServer
from hotplate.servers import rights

from .bank import Bank, bank, frame_of, random_payment

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
EVENTS = "activity_events"


@pytest.fixture
def allow(own_server: EmbeddedServer, tmp_path: Path) -> Iterator[Callable[..., Bank]]:
    """Opens a bank whose logs are kept by a user who may use some commands."""
    admin = redis_client.Redis(port=own_server.port)

    def opened(*commands: str) -> Bank:
        rules = (f"~{rights.KEYS}", *(f"+{name}" for name in commands))
        channel = (*(f"&{name}" for name in rights.CHANNELS), *(f"+{n}" for n in rights.CHANNEL))
        admin.execute_command("ACL", "SETUSER", "logs", "reset", "on", ">secret", *rules, *channel)
        address = f"{own_server.connection_string},username=logs,password=secret"
        windows: dict[str, Any] = {"windows": {"connection_string": address}}
        return bank(tmp_path, {"type": "sqlite"}, "guarded", settings=windows)

    yield opened
    admin.close()


def use(shop: Bank) -> None:
    """Push, read, fold and seed."""
    chance = random.Random(1)
    for _ in range(12):
        shop.push(*(random_payment(chance, shop, 1) for _ in range(20)))
        shop.repo.clock.advance(1_200)
        shop.repo.cache.runtime.event_logs.compaction.drain()
    frame_of(shop.pushed).to_parquet(shop.repo.folder / "payments.parquet")
    list(shop.repo.cache.seed(EVENTS))
    assert shop.read(0) == [shop.truth(0)]
    shop.repo.cache.runtime.event_logs.layouts.retire(EVENTS, "older")


def test_what_is_documented_is_enough(allow: Callable[..., Bank]) -> None:
    """For everything, and the page names it."""
    shop = allow(*rights.LOGS)
    use(shop)
    assert shop.repo.cache.stats().events[EVENTS].folds > 0
    assert f"`{rights.shown(rights.LOGS)}`" in PAGE.read_text()


@pytest.mark.parametrize("lacking", rights.LOGS)
def test_a_right_that_lacks_is_named(allow: Callable[..., Bank], lacking: str) -> None:
    """In the error that the caller gets."""
    with pytest.raises(HotplateError) as refused:
        use(allow(*(name for name in rights.LOGS if name != lacking)))
    assert f"+{lacking}" in str(refused.value)
    assert "secret" not in str(refused.value)
