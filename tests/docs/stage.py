"""Runs a page's blocks in their order: what it declares, configures, types and computes.

A page is read as by somebody who follows it: settings are merged into feature_store.yaml, files
are written, commands run in the repo's folder, Python goes on in one session. The addresses and
folders that a page names for the reader stand for ones of the test's own.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from unittest import mock

import redis as redis_client
import yaml
from click.testing import CliRunner
from feast import FeatureStore

import hotplate
from hotplate import NotACachedStoreError
from hotplate.embedded import EmbeddedServer
from hotplate.invalidation import local

from . import manifests, shop
from .commands import check_command, feast_command, logging_kept, program_of, split
from .page import Block, PageError

__all__ = ["Stage", "merged"]

# what ends by itself only where it is told to
_TOLD_TO_END: Final = {("hotplate", "windows", "consume"): ["--once"]}
# what goes on until it is stopped, or is no business of this machine's: looked up, not run
_CHECKED: Final = {("feast", "serve"), ("git",), ("pip",), ("make",), ("python",), ("kubectl",)}
# times, sizes and rates are another run's; every other number is compared
_MEASURED: Final = re.compile(r"\d[\d,.]*(?=\s?(?:ns|us|ms|s|/s|B|KB|MB|GB|%)(?!\w))")
_DATE: Final = re.compile(r"\$\(date -u \+(\S+)\)")


class Stage:
    """A repo, a server and a session in which a page's blocks run.

    Args:
        folder: of everything; empty.
        server: that `localhost:6379` stands for; emptied.
        is_prepared: whether the shop's features are there, applied and filled.

    Attributes:
        ran: how many blocks and commands have been run, looked up, or left alone.
    """

    def __init__(self, folder: Path, server: EmbeddedServer, *, is_prepared: bool = True) -> None:
        self.cwd = folder / "repo"
        self.cwd.mkdir()
        self._folder = folder
        self._address = server.connection_string
        self._names: dict[str, Any] = {"__name__": "page"}
        self._environ = {"HOTPLATE_STATE": str(folder / "state")}
        self._undo = ExitStack()
        self.ran = {"run": 0, "checked": 0, "not run": 0}
        with redis_client.Redis(port=server.port) as client:
            client.flushall()
        local._domains.clear()
        if is_prepared:
            shop.prepare(self.cwd)
            self._write(shop.SETTINGS)
            with self._inside():
                self._feast(["apply"])
                self._close_after(shop.fill)

    def run(self, block: Block) -> None:
        """Run a block, or what it has.

        Raises:
            PageError: it does not do what it says; names the line.
        """
        runs = {
            "python": self._python,
            "yaml": self._yaml,
            "console": self._console,
            "conf": self._conf,
        }
        try:
            with self._inside():
                if "file" in block.notes:
                    (self.cwd / block.notes["file"]).write_text(self._here(block.text))
                runs[block.kind](block)
        except PageError as error:
            raise PageError(f"{block}: {error}") from None

    def close(self) -> None:
        """End what the page opened, and leave the server as it was."""
        self._undo.close()
        for store in self._names.values():
            if isinstance(store, FeatureStore):
                with suppress(NotACachedStoreError):
                    hotplate.of(store).runtime.close()
        self._names.clear()

    # -- Python -----------------------------------------------------------------------------------

    def _python(self, block: Block) -> None:
        # lines are counted as on the page
        try:
            code = compile("\n" * block.line + block.text, block.page, "exec")
        except SyntaxError as error:
            raise PageError(f"line {error.lineno}: {error.msg}") from None
        if "not run" in block.notes:
            self.ran["not run"] += 1
            return
        code = compile("\n" * block.line + self._here(block.text), block.page, "exec")
        try:
            exec(code, self._names)
        except Exception as error:
            lines = [
                one.lineno
                for one in traceback.extract_tb(error.__traceback__)
                if one.filename == block.page
            ]
            raise PageError(
                f"line {lines[-1] if lines else '?'}: {type(error).__name__}: {error}"
            ) from error
        self.ran["run"] += 1

    # -- settings ---------------------------------------------------------------------------------

    def _yaml(self, block: Block) -> None:
        try:
            parts = [part for part in yaml.safe_load_all(self._here(block.text)) if part]
        except yaml.YAMLError as error:
            raise PageError(f"no YAML: {error}") from None
        if not parts:
            raise PageError("says nothing")
        if all("kind" in part for part in parts):
            for settings in manifests.check(parts):
                self._check_apart(settings)
            self.ran["checked"] += 1
            return
        (said,) = parts
        path = self.cwd / "feature_store.yaml"
        before = yaml.safe_load(path.read_text()) if path.exists() else {}
        settings = merged(before, said)
        if "not run" in block.notes:
            self.ran["not run"] += 1
        elif "apart" in block.notes:
            self._check_apart(settings)
            self.ran["checked"] += 1
        else:
            self._write(settings)
            _check_settings(self.cwd)
            self.ran["run"] += 1

    def _check_apart(self, settings: Mapping[str, Any]) -> None:
        """Settings of another deployment, over the registry of this one."""
        folder = self._folder / "apart"
        folder.mkdir(exist_ok=True)
        here = yaml.safe_load((self.cwd / "feature_store.yaml").read_text())
        registry = here["registry"]
        path = registry["path"] if isinstance(registry, dict) else registry
        ours = {"project": here["project"], "registry": {"path": str(self.cwd / path)}}
        text = self._here(yaml.safe_dump({**settings, **ours}, sort_keys=False))
        (folder / "feature_store.yaml").write_text(text)
        _check_settings(folder)

    def _write(self, settings: Mapping[str, Any]) -> None:
        text = self._here(yaml.safe_dump(dict(settings), sort_keys=False))
        (self.cwd / "feature_store.yaml").write_text(text)

    def _here(self, text: str) -> str:
        """What a page says to the reader, as it is here."""
        for said, meant in (
            ("localhost:6379", self._address),
            ("/var/lib/hotplate", str(self._folder / "lib")),
            ("/var/cache/hotplate", str(self._folder / "cache")),
            (
                "postgresql+psycopg://reader:${DB_PASSWORD}@db/shop",
                f"sqlite:///{self.cwd / 'shop.db'}",
            ),
        ):
            text = text.replace(said, meant)
        return text

    # -- commands ---------------------------------------------------------------------------------

    def _console(self, block: Block) -> None:
        steps = list(_steps(block.text))
        if not steps:
            raise PageError("no line begins with '$ '")
        for line, wanted in steps:
            commands = split(self._here(_DATE.sub(_moment, line)))
            for words in commands:
                try:
                    check_command(_without_target(words))
                except PageError as error:
                    raise PageError(f"`{line}`: {error}") from None
            if "not run" in block.notes:
                self.ran["not run"] += 1
                continue
            is_last = line == steps[-1][0]
            code = int(block.notes.get("exits", "0")) if is_last else 0
            said = "".join(self._written(words, line, code) for words in commands)
            _compare(wanted, said, line)

    def _written(self, words: Sequence[str], line: str, code: int) -> str:
        """What a command prints, unless it goes into a file."""
        said = self._command(_without_target(words), line, code)
        if len(_without_target(words)) == len(words):
            return said
        (self.cwd / words[-1]).write_text(said)
        return ""

    def _command(self, words: Sequence[str], line: str, code: int) -> str:
        variables = dict(one.split("=", 1) for one in words[: words.index(program_of(words))])
        words = words[len(variables) :]
        for known in _CHECKED:
            if tuple(words[: len(known)]) == known:
                self.ran["checked"] += 1
                return ""
        self.ran["run"] += 1
        program, *rest = words
        if program == "cd":
            self.cwd = self.cwd / rest[0]
            os.chdir(self.cwd)
            return ""
        if program == "export":
            said = dict(one.split("=", 1) for one in rest)
            self._environ |= said
            os.environ.update(said)  # until the block ends; later ones begin with it
            return ""
        if program == "redis-cli":
            return self._redis_cli(rest)
        for known, added in _TOLD_TO_END.items():
            if tuple(words[: len(known)]) == known:
                rest += added
        with mock.patch.dict(os.environ, variables):
            ended = self._feast(rest) if program == "feast" else self._hotplate(rest)
        if ended.exit_code != code:
            cause = f"{ended.exception!r}\n" if ended.exception else ""
            raise PageError(f"`{line}` ended with {ended.exit_code}: {cause}{ended.output}")
        return str(ended.output)

    def _feast(self, words: Sequence[str]) -> Any:
        path, known = list(sys.path), set(sys.modules)
        try:
            with logging_kept():
                return CliRunner().invoke(feast_command(), list(words))
        finally:
            sys.path[:] = path
            for name in set(sys.modules) - known:  # the repo's own, which another page may have too
                file = getattr(sys.modules[name], "__file__", None) or ""
                if file.startswith(str(self._folder)):
                    del sys.modules[name]

    def _hotplate(self, words: Sequence[str]) -> Any:
        from hotplate.cli import main

        local._domains.clear()  # as if in a process of its own
        return CliRunner().invoke(main, list(words))

    def _redis_cli(self, words: Sequence[str]) -> str:
        return str(self._ask_server(words))

    def _ask_server(self, words: Sequence[str]) -> Any:
        host, _, port = self._address.partition(":")
        try:
            with redis_client.Redis(host, int(port), decode_responses=True) as client:
                return client.execute_command(*words)
        except redis_client.RedisError as error:
            raise PageError(f"redis-cli {shlex.join(words)}: {error}") from None

    # -- settings of a server ---------------------------------------------------------------------

    def _conf(self, block: Block) -> None:
        for line in block.text.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["user"]:
                self._redis_cli(["ACL", "SETUSER", words[1], "reset", *words[2:]])
                self._undo.callback(self._redis_cli, ["ACL", "DELUSER", words[1]])
            elif words:
                found = self._ask_server(["CONFIG", "GET", words[0]])
                if not found:
                    raise PageError(f"a server has no {words[0]}")
                _, before = found
                self._undo.callback(self._redis_cli, ["CONFIG", "SET", words[0], before])
                self._redis_cli(["CONFIG", "SET", words[0], " ".join(words[1:])])
        self.ran["run"] += 1

    # -- surroundings -----------------------------------------------------------------------------

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """In the repo's folder, with what the page exported; Feast's warnings are not ours."""
        with ExitStack() as stack:
            before = Path.cwd()
            stack.callback(os.chdir, before)
            os.chdir(self.cwd)
            stack.enter_context(mock.patch.dict(os.environ, self._environ))
            stack.enter_context(mock.patch.object(sys, "path", [str(self.cwd), *sys.path]))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            yield

    def _close_after(self, use: Any) -> None:
        store = FeatureStore(repo_path=".")
        use(store)
        hotplate.of(store).runtime.close()


def _without_target(words: Sequence[str]) -> Sequence[str]:
    """A command without the file that what it prints goes into."""
    return words[:-2] if len(words) > 2 and words[-2] == ">" else words


def merged(before: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with what a block says over them.

    A block that names the wrapped store says all of `online_store`, as somebody who moves the store
    in there.
    """
    found = dict(before)
    for name, value in said.items():
        old = found.get(name)
        is_whole = name == "online_store" and isinstance(value, dict) and "store" in value
        if isinstance(value, dict) and isinstance(old, dict) and not is_whole:
            found[name] = merged(old, value)
        else:
            found[name] = value
    return found


def _check_settings(folder: Path) -> None:
    """Let Feast and Hotplate read a feature_store.yaml, under each of its profiles."""
    try:
        store = FeatureStore(repo_path=str(folder))
        settings = store.config.online_store
        for profile in ("", *settings.profiles):
            with mock.patch.dict(os.environ, {settings.profile_variable: profile}):
                fresh = FeatureStore(repo_path=str(folder))
                hot = hotplate.of(fresh)
                hot.policies()
                hot.runtime.close()
    except Exception as error:
        raise PageError(f"refused: {type(error).__name__}: {error}") from error


def _steps(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command with the lines of output that follow it."""
    line, wanted = "", list[str]()
    for one in text.splitlines():
        if one.startswith("$ "):
            if line:
                yield line, wanted
            line, wanted = one[2:], []
        elif not line:
            raise PageError(f"{one!r} comes before any command")
        elif one.strip():
            wanted.append(one)
    if line:
        yield line, wanted


def _moment(found: re.Match[str]) -> str:
    return datetime.now(UTC).strftime(found[1])


def _compare(wanted: Sequence[str], said: str, line: str) -> None:
    """Each line that a page shows was said, in this order; what is measured may differ."""
    lines = iter([_masked(one) for one in said.splitlines()])
    for one in wanted:
        if one.strip() != "..." and not any(_masked(one) == other for other in lines):
            raise PageError(f"`{line}` did not say {one!r}, but:\n{said}")


def _masked(text: str) -> str:
    return " ".join(_MEASURED.sub("#", text).split())
