"""Every command, in every way that it can be used wrongly or left alone: a line that helps."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from feast.types import Int64

from hotplate.cli import main
from hotplate.operations.invalidate import Invalidation

from .operations.deployments import command, write_yaml
from .served import free_port
from .stores import CACHED, USER, Repo

# what each command needs to be tried; those that ask no repo are left out where there is none
USES: dict[str, tuple[str, ...]] = {
    "policy": (),
    "advise": ("--log", "{folder}"),
    "invalidate": ("profile", "--all", "--yes"),
    "purge": ("--all",),
    "doctor": (),
    "inspect": ("profile", "--entity", "user_id=1"),
    "metrics": (),
    "report": (),
    "stats": (),
    "top": ("--count", "1", "--every", "100ms"),
    "quality profile": (),
    "quality run": (),
    "skew": ("--served", "{folder}/served.csv", "--feature", "profile:age"),
    "warm": ("--log", "{folder}", "--peak", "100/s"),
    "windows seed": ("clicks_events",),
    "windows retire": ("clicks_events",),
    "windows backfill": ("clicks",),
    "windows explain": ("clicks", "--entity", "user_id=1"),
    "windows consume": ("clicks_events", "--stream", "s", "--once"),
}
# text for Prometheus, a page, a script, a file
NO_ANSWER = ("metrics", "report", "completion", "quality profile")
WITHOUT_REPO = {
    "drift": ("--reference", "{folder}/scores.csv", "--current", "{folder}/scores.csv"),
    "outputs advise": ("{folder}/scores.csv",),
    "completion": ("bash",),
}


@pytest.fixture(params=["sqlite"])
def online(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What is wrapped makes no difference here."""
    return {"type": request.param}


def leaves(group: click.Group = main, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its whole name."""
    for part, found in group.commands.items():
        whole = f"{name} {part}".strip()
        if isinstance(found, click.Group):
            yield from leaves(found, whole)
        else:
            yield whole, found


def run(name: str, folder: Path, *arguments: str) -> Result:
    """A command over the repo of a folder."""
    given = [one.format(folder=folder) for one in arguments]
    return CliRunner().invoke(main, [*name.split(), *given, "-c", str(folder)])


def says_why(shown: Result, *codes: int) -> None:
    """It ends with one of these codes and a line of its own, and shows no stack trace."""
    assert shown.exit_code in codes, shown.output
    assert shown.exception is None or isinstance(shown.exception, SystemExit), shown.output
    assert "Traceback" not in shown.output
    if shown.exit_code:
        lines = shown.output.splitlines()
        assert any(
            line.startswith(("hotplate:", "Error:", "error ", "not as expected")) for line in lines
        ), lines


def test_all_are_tried_here() -> None:
    """A command that is added is tried, too, answers in JSON where it has something to say, and
    explains each option."""
    found = dict(leaves())
    assert set(found) == {*USES, *WITHOUT_REPO}
    for name, one in found.items():
        options = {text for each in one.params for text in each.opts}
        if name not in NO_ANSWER:
            assert "--json" in options, name
        assert one.help, name
        for option in one.params:
            assert not isinstance(option, click.Option) or option.help, (name, option.name)


@pytest.mark.parametrize("name", USES)
def test_no_repo(name: str, tmp_path: Path) -> None:
    """The folder holds no feature_store.yaml."""
    shown = run(name, tmp_path, *USES[name])
    says_why(shown, 1)
    assert "holds no feature_store.yaml" in shown.output


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("text", ["{", "project: 7\n", "online_store: {type: redis}\n", ""])
def test_a_repo_that_cannot_be_read(name: str, text: str, tmp_path: Path) -> None:
    """feature_store.yaml is damaged, empty, or another store's."""
    (tmp_path / "feature_store.yaml").write_text(text)
    says_why(run(name, tmp_path, *USES[name]), 1)


@pytest.mark.parametrize("name", USES)
def test_an_empty_repo(name: str, make_repo: Callable[..., Repo]) -> None:
    """Nothing is applied yet."""
    repo = make_repo()
    write_yaml(repo)
    says_why(run(name, repo.folder, *USES[name]), 0, 1)


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("form", ["127.0.0.1:{port}", "no.such.host.invalid:6379", "nonsense"])
def test_no_server(
    name: str, form: str, make_repo: Callable[..., Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrapped store and the server of the shared tier do not answer, or are no addresses."""
    monkeypatch.setattr(Invalidation, "wait_s", 0.5)  # it would wait for ten seconds for them
    repo = make_repo()
    repo.apply(USER, repo.view("profile", {"age": Int64}))
    address = form.format(port=free_port())
    settings = {
        "project": repo.project,
        "provider": "local",
        "registry": str(repo.folder / "registry.db"),
        "offline_store": {"type": "file"},
        "entity_key_serialization_version": 3,
        "online_store": {
            "type": CACHED,
            "store": {"type": "redis", "connection_string": address},
            "ttl_map": {"default": {"ttl": "30s", "coherence": "event"}},
            "shared": {"connection_string": address, "tier": True, "timeout": "50ms"},
            "metrics": {"folder": str(repo.folder / "metrics")},
        },
    }
    (repo.folder / "feature_store.yaml").write_text(yaml.safe_dump(settings))
    shown = run(name, repo.folder, *USES[name])
    if name == "inspect" and "the source fails" in shown.output:
        assert shown.exit_code == 1
        return
    says_why(shown, 0, 1)


@pytest.mark.parametrize("name", [*USES, *WITHOUT_REPO])
def test_interrupted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is exit code 130 and a line, wherever it comes."""

    def interrupt(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    found = dict(leaves())[name]
    monkeypatch.setattr(found, "callback", interrupt)
    (tmp_path / "scores.csv").write_text("a,score\n1,0.5\n")
    given = [one.format(folder=tmp_path) for one in {**USES, **WITHOUT_REPO}[name]]
    shown = CliRunner().invoke(main, [*name.split(), *given])
    assert (shown.exit_code, shown.output) == (130, "hotplate: interrupted\n")


def test_a_file_that_refuses(make_repo: Callable[..., Repo], monkeypatch: Any) -> None:
    """An error of the system names the file, and what it said."""

    def refuse(*args: Any) -> Any:
        raise PermissionError(13, "Permission denied", "/etc/secret.parquet")

    monkeypatch.setattr("hotplate.cli.open_store", refuse)
    shown = command(make_repo(), "policy")
    says_why(shown, 1)
    assert shown.output == "hotplate: /etc/secret.parquet: Permission denied\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    """The script of each shell names the command; bash accepts it, and completes a part."""
    shown = CliRunner().invoke(main, ["completion", shell])
    assert shown.exit_code == 0
    assert "_HOTPLATE_COMPLETE" in shown.output
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=shown.output, text=True, check=True)
        asked = {
            "_HOTPLATE_COMPLETE": "bash_complete",
            "COMP_WORDS": "hotplate pol",
            "COMP_CWORD": "1",
        }
        completed = CliRunner().invoke(main, [], env=asked, prog_name="hotplate")
        assert completed.output == "plain,policy\n"


def test_json_of_what_changes_things(make_repo: Callable[..., Repo], request: Any) -> None:
    """`invalidate` and `purge` say in JSON what they would do, and did."""
    from .conftest import settings_of

    server = settings_of(request, "redis")["connection_string"]
    repo = make_repo(settings={"shared": {"connection_string": server, "timeout": "1s"}})
    repo.apply(USER, repo.view("profile", {"age": Int64}))
    repo.write("profile", user_id=[1, 2], age=[1, 2])
    repo.hot.get_online_features(["profile:age"], {"user_id": [1, 2]})
    planned = command(repo, "invalidate", "profile", "--entity", "user_id=1", "--dry-run", "--json")
    assert json.loads(planned.output)["scope"]["entities"] == 1
    done = command(repo, "invalidate", "profile", "--entity", "user_id=1", "--yes", "--json")
    assert json.loads(done.output)["outcome"]["entities"] == 1
    state = str(repo.folder / "state")
    purged = command(repo, "purge", "--all", "--json", "--state", state)
    assert json.loads(purged.stdout)["is_over"] is True
    nothing = command(repo, "purge", "--resume", "--json", "--state", state)
    assert json.loads(nothing.stdout) == {"nothing": "there is nothing to resume"}
