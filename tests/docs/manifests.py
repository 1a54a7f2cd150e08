"""Manifests for Kubernetes as the documentation shows them: whether their parts fit each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from .commands import check_command
from .page import PageError

__all__ = ["check"]

_VERSIONS: Final = {
    "ConfigMap": "v1",
    "Service": "v1",
    "Secret": "v1",
    "Deployment": "apps/v1",
    "CronJob": "batch/v1",
}


def check(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Check manifests of one block: kinds, names, mounts, ports, probes, commands.

    Returns:
        The feature_store.yaml that they carry.

    Raises:
        PageError: something names what is not there.
    """
    named: dict[str, dict[str, Any]] = {kind: {} for kind in _VERSIONS}
    for part in parts:
        kind, version = str(part.get("kind")), part.get("apiVersion")
        if _VERSIONS.get(kind) != version:
            raise PageError(f"a {kind} of {version}; known are {_VERSIONS}")
        name = part.get("metadata", {}).get("name")
        if not name:
            raise PageError(f"a {kind} without a name")
        named[kind][name] = part
    for kind in ("Deployment", "CronJob"):
        for part in named[kind].values():
            _check_pod(_pod(part), named)
    for part in named["Deployment"].values():
        spec = part["spec"]
        labels = spec["template"]["metadata"]["labels"]
        _check_subset(spec["selector"]["matchLabels"], labels, "the Deployment's selector")
        for service in named["Service"].values():
            _check_subset(service["spec"]["selector"], labels, "the Service's selector")
    return [
        yaml.safe_load(text)
        for part in named["ConfigMap"].values()
        for name, text in part["data"].items()
        if name == "feature_store.yaml"
    ]


def _pod(part: Mapping[str, Any]) -> dict[str, Any]:
    spec = part["spec"]
    job = spec["jobTemplate"]["spec"] if part["kind"] == "CronJob" else spec
    if part["kind"] == "CronJob" and len(str(spec.get("schedule", "")).split()) != 5:
        raise PageError(f"{spec.get('schedule')!r} is no schedule")
    found: dict[str, Any] = job["template"]["spec"]
    return found


def _check_pod(pod: Mapping[str, Any], named: Mapping[str, Mapping[str, Any]]) -> None:
    volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
    for volume in volumes.values():
        wanted = volume.get("configMap", {}).get("name")
        if wanted is not None and wanted not in named["ConfigMap"]:
            raise PageError(f"no ConfigMap {wanted!r}")
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        for mount in container.get("volumeMounts", ()):
            if mount["name"] not in volumes:
                raise PageError(f"no volume {mount['name']!r}")
        ports = {port.get("name") for port in container.get("ports", ())}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            if port is not None and port not in ports:
                raise PageError(f"{probe} asks port {port!r}, the container names {ports}")
        for words in _commands(container):
            check_command(words)


def _commands(container: Mapping[str, Any]) -> Iterator[list[str]]:
    words = [*container.get("command", ()), *container.get("args", ())]
    if words[:2] == ["sh", "-c"]:
        for line in words[2].split(" && "):
            # the shell puts in the moment; the rest is ours to check
            yield line.replace("$(date -u +%Y-%m-%dT%H:%M:%S)", "2026-01-01T00:00:00").split()
    elif words:
        yield words


def _check_subset(some: Mapping[str, str], labels: Mapping[str, str], what: str) -> None:
    if not some or not some.items() <= labels.items():
        raise PageError(f"{what} {some} does not fit the pods' labels {labels}")
