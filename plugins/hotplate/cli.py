"""The `hotplate` command."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console
from rich.table import Table

from hotplate.errors import HotplateError

__all__ = ["main"]

_F = TypeVar("_F", bound=Callable[..., Any])


def _chdir(function: _F) -> _F:
    return click.option(
        "--chdir",
        "-c",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=Path(),
        help="The feature repo's folder; the current one if left out.",
    )(function)


@click.group()
@click.version_option(package_name="feast-hotplate")
def main() -> None:
    """Look at the cache that keeps a Feast warm.

    Exit codes: 0 fine, 1 something is wrong with the repo or the settings, 2 wrong usage.
    """


@main.command()
@_chdir
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def policy(chdir: Path, as_json: bool) -> None:
    """Print every group's policy and where each of its settings comes from.

    Reads the applied registry, the TTL map of feature_store.yaml and the profile that the
    environment chose. Asks no online store.
    """
    from hotplate import of

    store = _open(chdir)
    try:
        hot = of(store)
        policies, loaders = hot.policies(), hot.loaders()
    except HotplateError as error:
        _fail(str(error))
    except Exception as error:  # noqa: BLE001 - a registry fails in as many ways as it has kinds
        _fail(f"Feast cannot read the registry of {chdir.resolve()}: {error}")
    if as_json:
        shown = {
            name: {
                "settings": resolved.shown(),
                "origins": dict(resolved.origins),
                "loaders": loaders.get(name, {}),
            }
            for name, resolved in policies.items()
        }
        click.echo(json.dumps(shown, indent=2))
        return
    profile = store.config.online_store.profile()
    _print_policies(policies, loaders, profile)


def _print_policies(
    policies: dict[str, Any], loaders: dict[str, dict[str, str]], profile: str | None
) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    if not policies:
        console.print("The registry holds no feature views yet: run [bold]feast apply[/bold].")
        return
    table = Table(
        title=f"Cache policies (profile: {profile or 'none'})", title_justify="left", highlight=True
    )
    table.add_column("group", style="bold")
    table.add_column("setting")
    table.add_column("value")
    table.add_column("where it is said", style="dim")
    for name, resolved in policies.items():
        lines = [
            (setting, value, resolved.origins.get(setting, "built-in default"))
            for setting, value in resolved.shown().items()
        ]
        lines += [
            ("loader", f"{kind} (feature view {view})", "loaders")
            for view, kind in loaders.get(name, {}).items()
        ]
        for index, line in enumerate(lines):
            table.add_row(name if index == 0 else "", *line, end_section=index == len(lines) - 1)
    console.print(table)


def _open(folder: Path) -> Any:
    from feast import FeatureStore

    if not (folder / "feature_store.yaml").is_file():
        _fail(f"{folder.resolve()} holds no feature_store.yaml: name the repo with --chdir FOLDER")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return FeatureStore(repo_path=str(folder))
        except Exception as error:  # noqa: BLE001 - Feast raises many kinds; the text is what helps
            _fail(f"Feast cannot read {folder / 'feature_store.yaml'}: {error}")


def _fail(message: str) -> NoReturn:
    click.echo(f"hotplate: {message}", err=True)
    raise SystemExit(1)


if __name__ == "__main__":
    main()
