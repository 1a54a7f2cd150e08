"""Settings of docs/operations.md for servers that are more than one process: they connect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client
import yaml
from feast.types import Int64

import hotplate
from hotplate.servers import rights
from pipelines.lab.cluster import Cluster
from pipelines.lab.sentinel import SentinelGroup
from pipelines.lab.servers import TlsServer

from ..stores import USER, Repo
from .page import ROOT, read_page

REPLACED = {
    "cache.example.com:6380": "tls",
    "cache-0:6379,cache-1:6379,cache-2:6379": "cluster",
    "sentinel-0:26379,sentinel-1:26379,sentinel-2:26379": "sentinels",
}


def shown(kind: str, addresses: str) -> dict[str, Any]:
    """What the page says under `shared` for such servers, with other addresses."""
    (said,) = (one for one, known in REPLACED.items() if known == kind)
    (found,) = (
        yaml.safe_load(block.text.replace(said, addresses))["online_store"]["shared"]
        for block in read_page(ROOT / "docs" / "operations.md").blocks
        if block.kind == "yaml" and said in block.text
    )
    return dict(found)


def assert_well(folder: Path, shared: Mapping[str, Any]) -> None:
    """`hotplate doctor` has nothing to say that does not work."""
    repo = Repo(
        folder,
        {"type": "sqlite"},
        ttl_map={"default": {"ttl": "1m", "coherence": "event"}},
        settings={"shared": dict(shared)},
    )
    repo.apply(USER, repo.view("v", {"age": Int64}))
    found = hotplate.of(repo.hot).examine()
    assert [one for one in found if one.status == "error"] == []
    assert any(one.check == "online_store.shared: channel" for one in found)
    repo.cache.runtime.close()


@pytest.mark.heavy
def test_tls(tmp_path: Path, redis_tls: TlsServer) -> None:
    """With the authority's file, and the user that the page makes."""
    with redis_client.Redis(port=redis_tls.plain.port) as admin:
        commands = (f"+{name}" for name in (*rights.TIER, *rights.CHANNEL))
        names = (f"~{rights.KEYS}", *(f"&{name}" for name in rights.CHANNELS))
        admin.execute_command(
            "ACL", "SETUSER", "hotplate", "reset", "on", ">change-me", *names, *commands
        )
        said = shown("tls", f"{redis_tls.host}:{redis_tls.port}")
        said["connection_string"] = (
            said["connection_string"]
            .replace("/etc/ssl/redis-ca.pem", str(redis_tls.certificates.authority))
            .replace("${REDIS_PASSWORD}", "change-me")
        )
        assert "ssl=true" in said["connection_string"]
        assert_well(tmp_path, said)
        admin.execute_command("ACL", "DELUSER", "hotplate")


@pytest.mark.heavy
def test_a_cluster(tmp_path: Path, redis_cluster: Cluster) -> None:
    """Three servers, each named."""
    assert_well(tmp_path, shown("cluster", redis_cluster.connection_string))


@pytest.mark.heavy
def test_sentinels(tmp_path: Path, own_sentinels: SentinelGroup) -> None:
    """The sentinels are named, not the server that they watch."""
    assert_well(tmp_path, shown("sentinels", own_sentinels.settings["connection_string"]))
