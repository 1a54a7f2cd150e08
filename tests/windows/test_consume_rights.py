"""The documented rights are enough for a consumer, and each that is missing is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotplate import ConfigError
from hotplate.servers import rights

from ..guarded import Guarded
from .bank import Payment, bank
from .following import ONCE, Following, client_for

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
OPTIONAL = ("xgroup|delconsumer", "xinfo|groups", "xinfo|stream", "set")
FOR_APPLY = {"hset", "hdel"}


def allowed(kind: str, without: str = "") -> list[str]:
    """ACL rules of the documentation; the stream's own name besides."""
    commands = [*rights.LOGS, *rights.CONSUMER, *rights.CHANNEL]
    if kind == "redis_cluster":
        commands += [*rights.CONSUMER_APART, *rights.CLUSTER_CHANNEL]
    return [
        f"~{rights.KEYS}",
        "~payments*",
        "~{payments}*",
        *(f"&{channel}" for channel in rights.CHANNELS),
        *(f"+{command}" for command in dict.fromkeys(commands) if command != without),
    ]


@pytest.fixture
def shop(tmp_path: Path, guarded: Guarded, request: pytest.FixtureRequest) -> Any:
    """A bank with its logs on a guarded server, and the stream there."""
    settings = {"windows": guarded.allow(allowed(guarded.kind))}
    made = bank(tmp_path, {"type": "sqlite"}, f"guard_{guarded.kind}", settings=settings)
    port = int(guarded.addresses.split(",")[0].rpartition(":")[2])

    class Node:
        """What `client_for` asks for."""

    node: Any = Node()
    node.port = port
    if guarded.kind == "redis_cluster":
        node.nodes = [node]
    follow = Following(made, client_for(node))
    yield follow
    follow.client.delete("payments")
    follow.client.close()
    made.repo.cache.runtime.close()


def test_the_documented_rights_are_enough(shop: Following) -> None:
    """From making the group to leaving it."""
    now = shop.shop.now
    shop.add(*(Payment(1, now - n - 1, now, f"r{n}", 100) for n in range(5)))
    shop.add_raw({"json": "no"})
    done = shop.follow(replace(ONCE, consumer=None))
    assert (done.accepted, done.letters) == (5, 1)
    assert done.lag is not None
    assert shop.client.xinfo_consumers("payments", "hotplate") == []
    shop.assert_right([1])


def test_a_missing_right_is_named(shop: Following, guarded: Guarded) -> None:
    """Before anything is consumed."""
    needed = [one for one in (*rights.LOGS, *rights.CONSUMER) if one not in FOR_APPLY]
    if guarded.kind == "redis_cluster":
        needed = [*needed, *rights.CONSUMER_APART]
        needed.remove("publish")  # SPUBLISH there, and not in the way
    now = shop.shop.now
    for number, right in enumerate(dict.fromkeys(needed)):
        guarded.allow(allowed(guarded.kind, without=right))
        for admin in guarded.admins:
            admin.client_kill_filter(_type="normal", skipme=True)
        shop.shop.repo.cache.runtime.event_logs.close()
        shop.add(Payment(1, now - number - 1, now, f"m{number}", 100))
        if right in OPTIONAL:
            assert shop.follow().accepted > 0, right
            continue
        with pytest.raises(ConfigError) as caught:
            shop.follow()
        assert f"+{right}" in str(caught.value), right
    guarded.allow(allowed(guarded.kind))
    shop.follow()


def test_a_key_that_may_not_be_written(shop: Following, guarded: Guarded) -> None:
    """The dead letters' own, for one."""
    shop.stream = "other"
    with pytest.raises(ConfigError, match=r"lacks a right|may not do"):
        shop.follow()


def test_the_page_names_them() -> None:
    """All that the code needs, as an administrator writes it down."""
    words = PAGE.read_text().replace("\\|", "|").replace("`", " ").replace(",", " ").split()
    for command in (*rights.LOGS, *rights.CONSUMER, *rights.CONSUMER_APART):
        assert f"+{command}" in words, command
