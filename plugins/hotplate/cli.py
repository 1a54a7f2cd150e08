"""The `hotplate` command."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click
from rich.console import Console
from rich.table import Table

from hotplate.errors import HotplateError
from hotplate.policy import ResolvedPolicy

__all__ = ["main"]

# passwords as they stand in a URL and in a connection string
_SECRETS: Final = (
    re.compile(r"(://[^\s:/]*:)\S*(?=@)"),
    re.compile(r"(password\s*=\s*)[^\s,;&'\"]+", re.IGNORECASE),
)
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
@click.option("--long", "is_long", is_flag=True, help="Every setting, and where it is said.")
@click.option("--json", "as_json", is_flag=True, help="The same for machines.")
def policy(chdir: Path, is_long: bool, as_json: bool) -> None:
    """Print every group's policy.

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
    console = Console(width=None if sys.stdout.isatty() else 160)
    if not policies:
        console.print("Nothing is applied yet: run [bold]feast apply[/bold].")
        return
    title = f"Cache policies (profile: {store.config.online_store.profile() or 'none'})"
    table = Table(title=title, title_justify="left", highlight=True)
    (_fill_long if is_long else _fill_short)(table, policies, loaders)
    console.print(table)
    for ttl_map in store.config.online_store.layers().maps:
        for wildcard in ttl_map.idle_wildcards(policies):
            click.echo(f"{ttl_map.origin}[{wildcard!r}] matches no group.")
    if not is_long:
        click.echo("Where each setting is said: hotplate policy --long")


def _fill_short(
    table: Table,
    policies: Mapping[str, ResolvedPolicy],
    loaders: Mapping[str, Mapping[str, str]],
) -> None:
    """One line a group; where nothing is kept, no other setting has an effect."""
    table.add_column("group", style="bold", overflow="fold")
    for header in ("ttl", "negative", "jitter", "revalidate", "on source error", "coherence"):
        table.add_column(header)
    table.add_column("cache")
    has_loaders = any(loaders.values())
    if has_loaders:
        table.add_column("loader")
    for name, resolved in policies.items():
        *settings, cache = resolved.shown().values()
        if not resolved.is_cached:
            settings = ["-"] * len(settings)
            cache = "never" if resolved.is_never else "never (no ttl)"
        kinds = sorted(set(loaders.get(name, {}).values()))
        table.add_row(name, *settings, cache, *([", ".join(kinds)] if has_loaders else []))


def _fill_long(
    table: Table,
    policies: Mapping[str, ResolvedPolicy],
    loaders: Mapping[str, Mapping[str, str]],
) -> None:
    """One line a setting, with where it is said."""
    table.add_column("group", style="bold")
    table.add_column("setting")
    table.add_column("value")
    table.add_column("where it is said", style="dim")
    for name, resolved in policies.items():
        lines = [
            (
                setting,
                value if resolved.is_cached or setting in ("coherence", "cache") else "-",
                resolved.origins.get(setting, "built-in default"),
            )
            for setting, value in resolved.shown().items()
        ]
        lines += [
            ("loader", f"{kind} (feature view {view})", "loaders")
            for view, kind in loaders.get(name, {}).items()
        ]
        for index, line in enumerate(lines):
            table.add_row(name if index == 0 else "", *line, end_section=index == len(lines) - 1)


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
    for secret in _SECRETS:
        message = secret.sub(r"\1***", message)
    click.echo(f"hotplate: {message}", err=True)
    raise SystemExit(1)


if __name__ == "__main__":
    main()
