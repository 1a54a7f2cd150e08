"""Commands as they stand in the documentation: whether there is such a command, with such options.

What click declares is asked, not a list that somebody keeps: of `hotplate`, of `feast`, and of
every `python -m pipelines.NAME`. `make` is looked up in the Makefile, extras in pyproject.toml.
"""

from __future__ import annotations

import importlib
import logging
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import click

from .page import ROOT, PageError

__all__ = [
    "check_command",
    "check_words",
    "feast_command",
    "logging_kept",
    "options_known",
    "program_of",
    "split",
]

_PLACEHOLDER: Final = re.compile(r"[A-Z][A-Z_]+(/[A-Z]+)?|<.*>")
_MODULE_PREFIX: Final = "pipelines."

# runs where there is NumPy and XGBoost alone: nothing is said to it on these pages
_WITHOUT_CLICK: Final = {"pipelines.fraud.gpu"}

# what is said on these pages to programs that are not ours, no more
_OTHERS: Final = {
    "git": {"clone"},
    "kubectl": {"apply", "create", "rollout", "logs"},
}


def split(line: str) -> list[list[str]]:
    """The commands of a line, word by word; a comment at its end is none."""
    said = re.sub(r"\s&$", "", re.sub(r"(^|\s)#.*$", "", line).strip())
    return [shlex.split(part) for part in said.split(" && ")]


def program_of(words: Sequence[str]) -> str:
    """What is started, variables before it left out."""
    return next((word for word in words if not re.match(r"[A-Z_]+=", word)), "")


def check_command(words: Sequence[str]) -> None:
    """Refuse a command that is not there, or does not have what is said to it.

    Raises:
        PageError: says what is wrong.
    """
    words = list(words)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    if not words:
        raise PageError("no command")
    program, *rest = words
    checks: dict[str, Callable[[list[str]], None]] = {
        "hotplate": lambda said: _check_click(_hotplate(), said),
        "feast": lambda said: _check_click(feast_command(), said),
        "python": _check_python,
        "make": _check_make,
        "pip": _check_pip,
    }
    if program in checks:
        checks[program](rest)
    elif program in _OTHERS:
        if not rest or rest[0] not in _OTHERS[program]:
            raise PageError(f"nobody checks `{' '.join(words)}`")
    elif program not in ("cd", "export", "redis-cli"):  # those are run
        raise PageError(f"nobody runs or checks {program!r}")


def check_words(text: str) -> None:
    """The same for a command within a sentence, which may leave out what must be given.

    Square brackets are taken for what may be left out, capitals for what the reader puts there.
    """
    said = text if text.startswith("pip") else re.sub(r"[\[\]]|\.\.\.", "", text)
    _check_lenient(shlex.split(said))


@cache
def _hotplate() -> click.Command:
    from hotplate.cli import main

    return main


@cache
def feast_command() -> click.Command:
    """Feast's own command."""
    with logging_kept():
        from feast.cli.cli import cli

    return cli


@contextmanager
def logging_kept() -> Iterator[None]:
    """Feast's command sets up the root logger when it is imported and when it is run."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def pipelines() -> list[str]:
    """Names of the pipelines that have a command."""
    return [f"pipelines.{path.parent.name}" for path in (ROOT / "pipelines").glob("*/__main__.py")]


def _pipeline(module: str) -> click.Command:
    if module in _WITHOUT_CLICK:
        return click.Command(module)
    if module not in pipelines():
        raise PageError(f"there is no {module}; there are {', '.join(sorted(pipelines()))}")
    found: click.Command = importlib.import_module(f"{module}.__main__").main
    return found


# -- what click declares --------------------------------------------------------------------------


def _resolved(command: click.Command, said: list[str]) -> tuple[click.Command, list[str], str]:
    """The command that a line ends up with, and what is said to it; options before it are read."""
    path, context = str(command.name), click.Context(command, info_name=str(command.name))
    while isinstance(command, click.Group):
        _, said, _ = command.make_parser(context).parse_args(list(said))
        if not said:
            return command, said, path
        name, *rest = said
        found = command.get_command(context, name)
        if found is None:
            known = ", ".join(command.list_commands(context))
            raise PageError(f"{path!r} has no command {name!r}; there are {known}")
        command, said, path = found, rest, f"{path} {name}"
        context = click.Context(command, info_name=name, parent=context)
    return command, said, path


def _check_click(command: click.Command, said: list[str]) -> None:
    try:
        found, rest, path = _resolved(command, said)
        if isinstance(found, click.Group):
            if "--help" not in said and "--version" not in said:
                raise PageError(f"{path!r} wants one of its commands")
            return
        context = click.Context(found, info_name=path)
        values, left, _ = found.make_parser(context).parse_args(list(rest))
        if left:
            raise PageError(f"{path!r} takes no {left[0]!r}")
        for param in found.params:
            _check_value(context, param, values.get(str(param.name)))
    except click.UsageError as error:
        raise PageError(error.format_message()) from None


def _check_value(context: click.Context, param: click.Parameter, value: Any) -> None:
    if value in (None, (), []) or _is_path(param):
        if param.required and value in (None, (), []):
            raise PageError(f"{context.info_name!r} wants {param.human_readable_name}")
        return
    if any(_PLACEHOLDER.fullmatch(one) for one in _texts(value)):
        return
    param.process_value(context, value)


def _is_path(param: click.Parameter) -> bool:
    """What is on the reader's disk is not on ours."""
    return isinstance(param.type, click.Path | click.File)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _check_lenient(words: list[str]) -> None:
    program, *rest = words
    if program in ("make", "pip"):
        (_check_make if program == "make" else _check_pip)(rest)
        return
    if program == "python":
        if rest[:1] != ["-m"] or len(rest) < 2:
            return
        command, said = _pipeline(rest[1]), rest[2:]
    else:
        command, said = (_hotplate() if program == "hotplate" else feast_command()), rest
    found, left, path = _resolved(command, said)
    known = _options_of(found)
    for word in left:
        if word.startswith("--") and word.partition("=")[0] not in known:
            raise PageError(f"{path!r} has no option {word!r}")


def _options_of(command: click.Command) -> set[str]:
    return {
        name
        for param in command.params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    } | {"--help"}


def _all_commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for one in command.commands.values():
            yield from _all_commands(one)


@cache
def options_known() -> frozenset[str]:
    """Every option of every command of ours and of Feast."""
    roots = [_hotplate(), feast_command(), *map(_pipeline, pipelines())]
    return frozenset(
        name for root in roots for one in _all_commands(root) for name in _options_of(one)
    )


# -- what others declare --------------------------------------------------------------------------


def _check_python(said: list[str]) -> None:
    if said[:1] != ["-m"] or len(said) < 2 or not said[1].startswith(_MODULE_PREFIX):
        raise PageError(f"nobody runs or checks python {shlex.join(said)}")
    _check_click(_pipeline(said[1]), said[2:])


# which command the ARGS of a target go to
_ARGS_GO_TO: Final = {
    "demo": ("pipelines.fraud", ["run"]),
    "reads": ("pipelines.reads", []),
    "bench": ("pipelines.bench", []),
    "bench-short": ("pipelines.bench", []),
    "faults": ("pipelines.faults", []),
}


def _check_make(said: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    names = [word for word in said if "=" not in word]
    for name in names:
        if name not in targets:
            raise PageError(f"the Makefile has no target {name!r}")
    for word in said:
        variable, equals, value = word.partition("=")
        if equals and variable != "ARGS":
            raise PageError(f"nobody checks {word!r}")
        if equals:
            if not names or names[0] not in _ARGS_GO_TO:
                raise PageError(f"nobody checks the ARGS of {names}")
            module, before = _ARGS_GO_TO[names[0]]
            _check_click(_pipeline(module), [*before, *shlex.split(value)])


def _check_pip(said: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if said[:1] != ["install"] or len(said) < 2:
        raise PageError(f"nobody checks pip {shlex.join(said)}")
    for wanted in said[1:]:
        found = re.fullmatch(r"(\./hotplate|feast-hotplate|\.)(\[([a-z,]+)\])?", wanted)
        if found is None:
            raise PageError(f"{wanted!r} is none of ours")
        for extra in (found[3] or "").split(","):
            if extra and extra not in project["optional-dependencies"]:
                raise PageError(f"pyproject.toml has no extra {extra!r}")
