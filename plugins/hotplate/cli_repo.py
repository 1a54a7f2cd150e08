"""What every command does with the feature repo: finds it, opens it, says what is wrong."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click

from hotplate.errors import HotplateError

__all__ = [
    "Commands",
    "chdir_option",
    "fail",
    "json_option",
    "named",
    "open_store",
    "per_second",
    "state_option",
    "told",
]

# passwords as they stand in a URL and in a connection string
_SECRETS: Final = (
    re.compile(r"(://[^\s:/]*:)\S*(?=@)"),
    re.compile(r"(password\s*=\s*)[^\s,;&'\"]+", re.IGNORECASE),
)
_F = TypeVar("_F", bound=Callable[..., Any])


def chdir_option(function: _F) -> _F:
    """The option that names the feature repo's folder."""
    return click.option(
        "--chdir",
        "-c",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=Path(),
        help="The feature repo's folder; the current one if left out.",
    )(function)


def state_option(function: _F) -> _F:
    """The option that names the folder in which a command keeps where it is."""
    return click.option(
        "--state",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="HOTPLATE_STATE",
        help="The folder in which it keeps where it is.  [default: ~/.local/state/hotplate]",
    )(function)


class Commands(click.Group):
    """The whole command: whatever interrupts one of its parts, or a file refuses, is one line."""

    def invoke(self, context: click.Context) -> Any:
        """Run the part that was asked for."""
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            click.echo("hotplate: interrupted", err=True)
            raise SystemExit(130) from None
        except OSError as error:
            fail(f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))


def json_option(function: _F) -> _F:
    """The option to be answered in JSON."""
    return click.option("--json", "as_json", is_flag=True, help="For machines.")(function)


def per_second(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """Reads a rate, as in `500/s`, for an option."""
    found = re.fullmatch(r"([1-9]\d*)(/s)?", value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no rate: write 500/s", context, parameter)
    return int(found[1])


@contextmanager
def told() -> Iterator[None]:
    """Errors that the user can mend are one line, not a traceback."""
    try:
        yield
    except HotplateError as error:
        fail(str(error))
    except Exception as error:
        if type(error).__module__ != "feast.errors":  # known without the seconds Feast takes
            raise
        fail(str(error))


@contextmanager
def named() -> Iterator[None]:
    """A name that is not there is one line, too."""
    try:
        yield
    except KeyError as error:
        fail(str(error.args[0]))


def open_store(folder: Path) -> Any:
    """The Feast store of a feature repo; ends the command where there is none."""
    from feast import FeatureStore

    if not (folder / "feature_store.yaml").is_file():
        fail(f"{folder.resolve()} holds no feature_store.yaml: name the repo with --chdir FOLDER")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return FeatureStore(repo_path=str(folder))
        except Exception as error:  # noqa: BLE001 - Feast raises many kinds; the text is what helps
            fail(f"Feast cannot read {folder / 'feature_store.yaml'}: {error}")


def fail(message: str) -> NoReturn:
    """End the command with exit code 1; passwords in the message are not shown."""
    for secret in _SECRETS:
        message = secret.sub(r"\1***", message)
    click.echo(f"hotplate: {message}", err=True)
    raise SystemExit(1)
