"""The commands `hotplate windows ...`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from hotplate.cli_repo import chdir_option, fail, open_store, told
from hotplate.durations import parse_duration
from hotplate.errors import HotplateError

__all__ = ["windows"]


@click.group()
def windows() -> None:
    """Fill and look after the event logs of windowed views."""


def _seconds(context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        return parse_duration(value) / 1e9
    except (ValueError, HotplateError):
        wrong = f"{value!r} is no duration: write 500ms, 1s or 2m"
        raise click.BadParameter(wrong, context, parameter) from None


@windows.command()
@click.argument("event_view")
@click.option("--stream", required=True, metavar="KEY", help="The stream to follow.")
@click.option("--group", default="hotplate", show_default=True, help="The consumer group.")
@click.option("--consumer", help="This consumer's name in the group.  [default: one of its own]")
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    default=500,
    show_default=True,
    help="Entries read at once.",
)
@click.option(
    "--block",
    callback=_seconds,
    metavar="DURATION",
    default="1s",
    show_default=True,
    help="How long to wait for entries, and so how long stopping may take.",
)
@click.option(
    "--claim-after",
    callback=_seconds,
    metavar="DURATION",
    default="1m",
    show_default=True,
    help="Take over what a consumer was handed this long ago and has not finished.",
)
@click.option("--start", default="0", show_default=True, help="Where a new group begins: 0, $, ID.")
@click.option("--once", is_flag=True, help="End when nothing is left.")
@click.option("--dead", metavar="KEY", help="The stream for dead letters.  [default: KEY:dead]")
@click.option(
    "--dead-max",
    type=click.IntRange(1),
    default=100_000,
    show_default=True,
    help="About how many dead letters are kept.",
)
@click.option(
    "--keep-dropped", is_flag=True, help="Late and other dropped events become dead letters."
)
@click.option("--refuse-unknown", is_flag=True, help="Entries with unknown columns are no events.")
@click.option(
    "--url",
    "connection_string",
    metavar="HOST:PORT[,...]",
    help="The stream's server as Feast writes it; that of the event logs if left out.",
)
@click.option(
    "--redis-type",
    type=click.Choice(["redis", "redis_cluster", "redis_sentinel"]),
    default="redis",
    show_default=True,
    help="What --url names.",
)
@click.option("--sentinel-master", default="mymaster", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="A line of JSON now and then, on stdout.")
@chdir_option
def consume(
    event_view: str,
    stream: str,
    block: float,
    claim_after: float,
    as_json: bool,
    chdir: Path,
    **rest: Any,
) -> None:
    """Follow a Redis stream, and bring its entries into the logs of EVENT_VIEW, each once.

    Entries hold the columns of the batch source as text, or one field `json` with an object. Ctrl-C
    and SIGTERM end it after the batch in hand, with exit code 0; what is killed in any other way
    loses and repeats nothing.
    """
    from hotplate import of
    from hotplate.operations.consume import ConsumerSettings
    from hotplate.operations.consume_shown import ConsumeReport

    store = open_store(chdir)
    report = ConsumeReport(as_json=as_json)
    with told():
        settings = ConsumerSettings(block_s=block, claim_after_s=claim_after, **rest)
        hot = of(store)
        try:
            consumer = hot.consume(event_view, stream, settings)
        except KeyError as error:
            fail(str(error.args[0]))
        try:
            with _stopped_by_signals(consumer.stop):
                for so_far in consumer:
                    report.note(so_far)
        finally:
            report.end()
            hot.runtime.close()


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop it; a second one ends the process as it always does."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def hear(number: int, _: Any) -> None:
        for each, handler in before.items():
            signal.signal(each, handler)
        stop()

    for number in numbers:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
