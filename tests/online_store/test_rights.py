"""The documented rights are enough: for the shared tier, its scripts and the event channel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from feast.types import Int64

import hotplate
from hotplate import Tier
from hotplate.clock import SYSTEM_CLOCK
from hotplate.invalidation import local
from hotplate.servers import rights

from ..guarded import Guarded
from ..stores import USER, Repo, await_

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


def test_the_documented_rights_are_enough(tmp_path: Path, guarded: Guarded) -> None:
    """Rows are shared, a failed load gives its lease back, others hear of changes."""
    repo = Repo(
        tmp_path,
        {"type": "sqlite"},
        project=f"rights_{guarded.kind}",
        ttl_map={"default": {"ttl": "1h", "coherence": "event"}},
        settings={"shared": guarded.allow(guarded.documented)},
        clock=SYSTEM_CLOCK,
    )
    repo.apply(USER, repo.view("v", {"age": Int64}))
    repo.write("v", user_id=[1, 2], age=[10, 20])
    local._domains.clear()  # another process would have a domain of its own
    other = repo.open_hot()

    def tier(store: Any, user: int = 1) -> Tier:
        response = store.get_online_features(["v:age"], [{"user_id": user}])
        return response.freshness()["v"][0].tier

    await_(lambda: tier(repo.hot) is Tier.MEMORY)
    await_(lambda: tier(other) is Tier.MEMORY)
    source = repo.cache.runtime.engine.source
    load = source.load

    def fail(requests: Any) -> Any:
        raise ConnectionError("away")

    source.load = fail  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        tier(repo.hot, 2)
    source.load = load  # type: ignore[method-assign]
    hotplate.of(other).invalidate("v", {"user_id": 1})
    hotplate.of(other).invalidate("v")
    assert hotplate.of(other).stats().channel.announced == 2
    for store in (repo.hot, other):
        stats = hotplate.of(store).stats()
        assert (stats.shared.errors, stats.shared.opened, stats.shared.owed) == (0, 0, 0)
        assert stats.channel.announce_errors == stats.channel.pending == 0
        assert stats.channel.last_error is None
        hotplate.of(store).runtime.close()


def test_the_page_names_them() -> None:
    """All that the code needs, as an administrator writes it down."""
    text = PAGE.read_text().replace("\\|", "|")
    for command in (*rights.TIER, *rights.CHANNEL, *rights.CLUSTER_CHANNEL):
        assert f"+{command}" in text.replace("`", " ").split() or f"+{command}," in text
    for name in (rights.KEYS, *rights.CHANNELS):
        assert f"`{name}`" in text
