"""`hotplate outputs`: what is found out about model outputs from the command line."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from hotplate.cli_repo import fail, told

if TYPE_CHECKING:
    from hotplate.outputs.advice import Advice

__all__ = ["outputs"]


@click.group()
def outputs() -> None:
    """Outputs of models: how their keys fit their scores."""


@outputs.command()
@click.argument("scored", type=click.Path(exists=True, path_type=Path))
@click.option("--score", default="score", show_default=True, help="The column of the score.")
@click.option(
    "--without", multiple=True, metavar="COLUMN", help="A column that the model does not read."
)
@click.option("--family", metavar="COLUMN", help="Say it for each value of this column, too.")
@click.option(
    "--decimals", type=click.IntRange(-6, 15), default=4, show_default=True, help="Of all floats."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=5e-5,
    show_default=True,
    help="By how much scores of one key may differ.",
)
@click.option("--json", "is_json", is_flag=True, help="For machines.")
def advise(
    scored: Path,
    score: str,
    without: tuple[str, ...],
    family: str | None,
    decimals: int,
    tolerance: float,
    is_json: bool,
) -> None:
    """Which field or rounding splits inputs without changing the score.

    SCORED is a Parquet or CSV file, or a folder of Parquet files: a row an input, a column a field
    that the model reads, and its score.
    """
    with told():
        frame = _read(scored)
        lacking = [one for one in (score, family, *without) if one and one not in frame.columns]
        if lacking:
            known = ", ".join(map(str, frame.columns))
            fail(f"{scored} has no column {lacking[0]!r}; there are {known}")
        found = _advised(frame, score, [score, *without], decimals, tolerance, is_json=is_json)
        by_family = {}
        if family:
            for label, part in frame.groupby(family, sort=True, dropna=False):
                by_family[str(label)] = _advised(
                    part, score, [score, *without], decimals, tolerance, is_json=is_json
                )
    if is_json:
        said: dict[str, Any] = asdict(found)
        if family:
            said["families"] = {label: asdict(one) for label, one in by_family.items()}
        click.echo(json.dumps(said, indent=2))
        return
    _show(found, "all inputs")
    for label, one in by_family.items():
        _show(one, f"{family} {label}")


def _read(path: Path) -> Any:
    import pandas as pd

    try:
        is_text = path.suffix.lower() in (".csv", ".txt")
        return pd.read_csv(path) if is_text else pd.read_parquet(path)
    except Exception as error:  # noqa: BLE001 - whatever a file can be
        fail(f"{path} cannot be read as {'CSV' if is_text else 'Parquet'}: {error}")


def _advised(
    frame: Any, score: str, without: list[str], decimals: int, tolerance: float, *, is_json: bool
) -> Advice:
    from hotplate.outputs.advice import advise as look
    from hotplate.outputs.advice import schema_of

    schema = schema_of(frame, without, decimals)
    with Console(stderr=True, quiet=is_json).status(
        f"trying keys of {len(schema.fields)} fields on {len(frame):,} rows"
    ):
        return look(frame, frame[score], schema, tolerance=tolerance)


def _show(found: Advice, what: str) -> None:
    table = Table(title=f"{what}: {found.rows:,} rows", title_justify="left")
    table.add_column("key", no_wrap=True)
    for name in ("keys", "rows that share one", "scores in one differ by"):
        table.add_column(name, justify="right")
    table.add_row("as it is", *_numbers(found.keys, found.reuse, found.spread))
    for one in found.changes:
        table.add_row(f"+ {one.what}", *_numbers(one.keys, one.reuse, one.spread))
    if found.refused is not None:
        one = found.refused
        numbers = _numbers(one.keys, one.reuse, one.spread)
        table.add_row(f"not: {one.what}", *numbers, style="dim")
    Console().print(table)
    if found.left_out:
        click.echo(f"left out {found.left_out:,} rows whose score is no number")
    if not found.changes:
        click.echo("no field and no rounding splits inputs of one score")


def _numbers(keys: int, reuse: float, spread: float) -> tuple[str, str, str]:
    return f"{keys:,}", f"{reuse:.1%}", f"{spread:.3g}"
