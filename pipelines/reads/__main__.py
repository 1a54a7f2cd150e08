"""The command: `python -m pipelines.reads`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from pipelines.reads.options import Options, ReadsError

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[2]


@click.command(context_settings={"show_default": True})
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Transactions, *.parquet or *.csv, in place of simulated ones.",
)
@click.option(
    "--transactions", type=click.IntRange(min=100), default=20_000, help="Requests to replay."
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=400.0,
    help="Requests a second, on average; 0 for as fast as they are answered.",
)
@click.option(
    "--skew",
    type=click.FloatRange(min=0, max=3),
    default=0.8,
    help="Zipf exponent of the cards' popularity; 0 replays the payments as they came.",
)
@click.option("--customers", type=click.IntRange(min=20), default=1_000, help="Simulated cards.")
@click.option("--terminals", type=click.IntRange(min=20), default=2_000, help="Their terminals.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of everything drawn.")
@click.option(
    "--store",
    type=click.Choice(["auto", "valkey", "sqlite"]),
    default="auto",
    help="The online store; auto takes SQLite where the server cannot start.",
)
@click.option(
    "--outside-write/--no-outside-write",
    default=True,
    help="Whether another writer rewrites terminal_risk half-way, past the cache.",
)
@click.option(
    "--repo",
    type=click.Path(path_type=Path),
    default=_ROOT / "feature_repo",
    show_default="feature_repo",
    help="The feature repo to serve from; its data/ folder is written.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=_ROOT / "out" / "reads",
    show_default="out/reads",
    help="Where the page and results.json go.",
)
def main(**given: object) -> None:
    """Score a stream of card payments with features from Feast, with and without the cache.

    Starts an online store of its own, applies and materializes the feature repo, replays the same
    requests through both, and writes a page with plots. Takes about two minutes.
    """
    options = Options(**given)  # type: ignore[arg-type]
    try:
        options.check()
        # imported here: the check of the options need not wait for Feast to load
        from pipelines.reads.run import run

        run(options)
    except ReadsError as error:
        _fail(str(error))
    except ImportError as error:
        _fail(f"{error}; install what this needs: pip install 'feast-hotplate[all]'")


def _fail(message: str) -> NoReturn:
    click.echo(f"reads: {' '.join(message.split())}", err=True)
    raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main())
