"""`hotplate inspect`: where the row of one entity is, how old, and what the next read does."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hotplate.cli_repo import chdir_option, fail, named, open_store, told

if TYPE_CHECKING:
    from hotplate.operations.inspect import HeldRow, Inspected

__all__ = ["inspect"]

_STATES = {
    "none": "is not used for this view",
    "left alone": "is left alone: its server does not answer",
    "loading": "a process loads it now",
    "empty": "nothing that could be served",
}


@click.command()
@click.argument("group")
@click.option(
    "--entity", required=True, metavar="KEY=VALUE[,KEY=VALUE]", help="Whose row to look at."
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@chdir_option
def inspect(group: str, entity: str, as_json: bool, chdir: Path) -> None:
    """Show an entity of a GROUP (or feature view) as each tier and the source have it now.

    Fills nothing, and exits with 1 where the source does not answer. Serving processes have
    memories of their own, which a command does not see: ask one of them with
    hotplate.of(store).inspect(...). Of windowed views, `hotplate windows explain` shows the
    events, too.
    """
    from hotplate import of

    store = open_store(chdir)
    with told():
        hot = of(store)
        try:
            with named():
                found = hot.inspect(group, entity)
        except ValueError as error:
            fail(str(error))
        finally:
            hot.runtime.close()
    if as_json:
        shown = [{**asdict(one), "memory": None} for one in found]
        click.echo(json.dumps(shown, indent=2, default=str))
    else:
        console = Console(width=None if sys.stdout.isatty() else 160)
        for one in found:
            console.print(_shown(one))
    raise SystemExit(1 if any(one.source_error for one in found) else 0)


def _shown(found: Inspected) -> Table:
    said = ", ".join(f"{name} {value}" for name, value in found.policy.items() if value)
    table = Table(
        title=Text(f"{found.view} (group {found.group}): {said}"),
        title_justify="left",
        min_width=80,
    )
    table.add_column("", style="bold")
    table.add_column("age", justify="right")
    table.add_column("may be served for", justify="right")
    table.add_column("as the source", justify="center")
    table.add_column("values", overflow="fold")
    if found.shared is None:
        table.add_row("shared tier", "", "", "", _STATES[found.shared_state])
    else:
        table.add_row("shared tier", *_held(found.shared))
    if found.source_error:
        values: Any = Text(f"fails: {found.source_error}", style="red")
    else:
        values = Text("no such entity") if found.source is None else _values(found.source)
    table.add_row("source", "", "", "", values)
    table.caption = Text(f"A read by a process that starts now is answered {found.next_read}")
    table.caption_justify = "left"
    return table


def _held(held: HeldRow) -> list[Any]:
    left = held.expires_in_s
    is_same = {None: "?", True: "yes", False: "no"}[held.is_as_source]
    return [
        f"{held.age_s:.3f} s",
        "ever" if left is None else Text(f"{left:.3f} s", style="red" if left < 0 else ""),
        Text(is_same, style="" if is_same != "no" else "yellow"),
        Text("no such entity") if held.is_absent else _values(held.values),
    ]


def _values(values: Any) -> Text:
    """What a feature holds is shown as it is, whatever its brackets mean to a terminal."""
    return Text(", ".join(f"{name}={value}" for name, value in values.items()))
