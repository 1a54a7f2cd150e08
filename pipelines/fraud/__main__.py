"""The pipeline's command: `python -m pipelines.fraud STEP`."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console

if TYPE_CHECKING:
    from pipelines.fraud.report import Report
    from pipelines.fraud.score import Source
    from pipelines.fraud.work import Work

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[2]
_PATH = click.Path(path_type=Path)
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_DEVICE = click.Choice(["auto", "cpu", "cuda"])


@click.group(context_settings={"show_default": True})
@click.option("--repo", type=_PATH, default=_ROOT / "feature_repo", help="The feature repo.")
@click.option(
    "--work",
    type=_PATH,
    default=_ROOT / "out" / "fraud",
    help="Where data, registry, models and decisions are kept.",
)
@click.option(
    "--redis",
    metavar="HOST:PORT",
    help="The online store, in the place of that of the repo's feature_store.yaml.",
)
@click.pass_context
def main(context: click.Context, repo: Path, work: Path, redis: str | None) -> None:
    """Fraud scoring on Feast, Hotplate and XGBoost, step by step.

    First time, with a Redis or Valkey that `server` can be:

    \b
      python -m pipelines.fraud simulate     payments with known frauds; or: load FILE
      python -m pipelines.fraud features     tables, apply, materialize, windows
      python -m pipelines.fraud train        a model, point-in-time
      python -m pipelines.fraud score --stream payments
      python -m pipelines.fraud skew         what was served against what was trained on
      python -m pipelines.fraud serve        decisions over HTTP
      python -m pipelines.fraud deploy VERSION     another model, while those two run
    """
    context.obj = {"repo": repo, "work": work, "redis": redis}


def _work() -> Work:
    """The run's folder; Feast is imported only now, so that help and mistakes do not wait."""
    from pipelines.fraud.stores import OnlineSource
    from pipelines.fraud.work import Work

    given: dict[str, Any] = click.get_current_context().obj
    source = None
    if given["redis"]:
        settings = {"type": "redis", "connection_string": given["redis"]}
        source = OnlineSource(given["redis"], settings)
    return Work(given["work"], given["repo"], source)


@contextmanager
def _told() -> Iterator[None]:
    """What fails because of what was given or found is one line, and exit status 1."""
    from hotplate import HotplateError
    from pipelines.fraud.bundle import ModelRefused
    from pipelines.fraud.ledger import LedgerError
    from pipelines.fraud.sources import SourceError

    try:
        yield
    except (ValueError, OSError, HotplateError, ModelRefused, LedgerError, SourceError) as error:
        _fail(str(error))
    except ImportError as error:
        _fail(f"{error}; install what the pipeline needs: pip install 'feast-hotplate[all]'")
    except Exception as error:
        if type(error).__module__.startswith("redis"):
            _fail(
                f"the online store does not answer: {error}. Name one with --redis HOST:PORT, or "
                "leave `python -m pipelines.fraud server` running in another terminal"
            )
        raise


def _fail(message: str) -> NoReturn:
    click.echo(f"fraud: {' '.join(message.split())}", err=True)
    raise SystemExit(1)


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    with Console(stderr=True).status(what):
        yield


@main.command()
@click.option("--customers", type=click.IntRange(min=20), default=1_000, help="Cards.")
@click.option("--terminals", type=click.IntRange(min=20), default=2_000, help="Where they pay.")
@click.option("--days", type=click.IntRange(min=60), default=91, help="Of payments, until now.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of everything drawn.")
def simulate(customers: int, terminals: int, days: int, seed: int) -> None:
    """Simulate payments with known frauds, after the Fraud Detection Handbook."""
    with _told(), _waiting("simulating"):
        from pipelines.fraud.simulate import SimulationSpec, radius_for
        from pipelines.fraud.simulate import simulate as draw
        from pipelines.fraud.tables import moved_to_now

        radius = radius_for(terminals)
        spec = SimulationSpec(customers, terminals, days, radius=radius, seed=seed)
        work, found = _work(), moved_to_now(draw(spec))
        work.save(found)
    click.echo(f"{len(found):,} payments, {int(found['TX_FRAUD'].sum()):,} frauds")


@main.command()
@click.argument("file", type=_FILE)
@click.option("--move/--as-it-is", default=True, help="Move times by whole weeks, up to now.")
def load(file: Path, move: bool) -> None:
    """Take payments from a Parquet or CSV FILE in the columns of the Handbook's data."""
    with _told(), _waiting(f"reading {file}"):
        from pipelines.fraud.load import load_transactions
        from pipelines.fraud.tables import moved_to_now

        found = load_transactions(file)
        work = _work()
        work.save(moved_to_now(found) if move else found)
    click.echo(f"{len(found):,} payments")


@main.command()
def features() -> None:
    """Write the tables, apply the feature repo, materialize, and fill the windows."""
    with _told():
        from pipelines.fraud.stores import quiet_feast
        from pipelines.reads.console import Bars

        work = _work()
        with Bars.on(Console()) as bars:
            with bars.wait("write the tables"):
                counts = work.write_tables(work.transactions())
            with bars.wait("apply the feature repo"), quiet_feast():
                store = work.apply()
            views = work.views(store, windowed=False)
            with bars.wait("materialize", total=len(views)) as advance:
                for view in views:
                    with quiet_feast():
                        work.materialize(store, view)
                    advance(1)
            for events in work.events(store):
                with bars.wait(f"fill {events}", total=counts[_table_of(events)]) as advance:
                    done = 0
                    for seeded in work.seed(store, events):
                        advance(seeded.done - done)
                        done = seeded.done


def _table_of(events: str) -> str:
    return "payments" if events.startswith("card") else "labels"


@main.command()
@click.option("--device", type=_DEVICE, default="auto")
@click.option("--weeks", type=click.IntRange(min=1), default=2, help="Of payments trained on.")
@click.option("--folds", type=click.IntRange(min=0), default=2, help="Earlier tests.")
@click.option("--rounds", type=click.IntRange(min=1), default=500, help="Trees at the most.")
@click.option("--review", type=click.FloatRange(0, 1), default=0.01, help="Share looked at.")
@click.option("--decline", type=click.FloatRange(0, 1), default=0.002, help="Share declined.")
@click.option("--version", help="Its name; the day and its hash if left out.")
@click.option("--current/--not-current", default=True, help="Whether it is served from now on.")
def train(
    device: str,
    weeks: int,
    folds: int,
    rounds: int,
    review: float,
    decline: float,
    version: str | None,
    current: bool,
) -> None:
    """Train a model on what was known when each payment was made."""
    with _told():
        from pipelines.fraud.device import find_device
        from pipelines.fraud.train import TrainSpec
        from pipelines.fraud.train import train as fit
        from pipelines.fraud.work import SERVICE

        if decline > review:
            raise click.UsageError("--decline is a share of payments within --review")
        found = find_device(device)
        click.echo(found.why)
        work, console = _work(), Console()
        spec = TrainSpec(weeks, folds, rounds, review, decline)
        with console.status("reading features as of each payment, and training"):
            store, payments = work.open(), work.labelled()
            say: Callable[[str], None] = console.print
            bundle = fit(store, SERVICE, payments, found, spec, version=version, say=say)
            path = work.models.save(bundle)
            if current:
                work.models.make_current(bundle.version)
    click.echo(f"model {bundle.version}{', current' if current else ''}: {path}")


@main.command()
@click.option("--stream", metavar="KEY", help="A Redis stream to follow.")
@click.option("--file", "file", type=_FILE, help="A Parquet or CSV file of payments.")
@click.option("--database", metavar="URL", help="Of decisions; SQLite in --work if left out.")
@click.option("--size", type=click.IntRange(min=1), default=1_000, help="Payments in a batch.")
@click.option(
    "--wait", "wait_ms", type=click.FloatRange(0), default=5.0, help="For more of them, ms."
)
@click.option(
    "--without",
    multiple=True,
    metavar="LAYER",
    help="features, windows, outputs, scorer, warming.",
)
@click.option("--restamp", is_flag=True, help="Take payments as made just now, as in a replay.")
@click.option(
    "--together",
    is_flag=True,
    help="Decide a card's payments of one batch at once: faster, and they do not see each other.",
)
@click.option("--until-empty", is_flag=True, help="End when the stream has no more.")
@click.option("--from", "position", metavar="ID", help="Begin there, and not where the last ended.")
@click.option("--model", "version", help="A version; the current one if left out.")
@click.option("--device", type=_DEVICE, default="auto")
@click.option("--part", metavar="K/N", help="Of a file the cards of one of N processes, from 1 on.")
@click.option("--json", "is_json", is_flag=True, help="Figures at the end, for machines.")
def score(
    stream: str | None,
    file: Path | None,
    database: str | None,
    size: int,
    wait_ms: float,
    without: tuple[str, ...],
    restamp: bool,
    together: bool,
    until_empty: bool,
    position: str | None,
    version: str | None,
    device: str,
    part: str | None,
    is_json: bool,
) -> None:
    """Decide payments as they arrive, each once; write decisions to a database."""
    if (stream is None) == (file is None):
        raise click.UsageError("give --stream KEY or --file FILE")
    with _told():
        from pipelines.fraud.decide import Layers
        from pipelines.fraud.ledger import open_ledger
        from pipelines.fraud.line import Line
        from pipelines.fraud.live import followed
        from pipelines.fraud.score import Job, ended_by_signals, shown

        work, console = _work(), Console(stderr=is_json)
        # what is read in batches is not read again one by one
        layers = replace(Layers.without(without), warming=False)
        with console.status("opening the store"):
            source, total = _source(work, stream, file, _part(part), ends=until_empty)
            store = work.open(layers)
        with (
            open_ledger(database or work.database, say=console.print) as ledger,
            followed(
                store,
                work.models,
                ledger,
                device=device,
                layers=layers,
                version=version,
                say=console.print,
            ) as live,
        ):
            console.print(f"model {live.version}; {live().way}", highlight=False)
            line = Line(
                store,
                live,
                ledger,
                source.name,
                restamp=restamp,
                together=together,
                say=console.print,
            )
            job = Job(line, source, size, wait_ms)
            with ended_by_signals(job), shown(console, total) as show:
                figures = job.run(position, show)
        if not figures.batches:
            console.print("nothing new")
    if is_json:
        click.echo(json.dumps(figures.numbers()))


def _part(said: str | None) -> tuple[int, int]:
    if said is None:
        return 0, 1
    which, _, of = said.partition("/")
    if not (which.isdigit() and of.isdigit() and 1 <= int(which) <= int(of)):
        raise click.UsageError(f"--part {said}: write 1/2, and 2/2 for the other process")
    return int(which) - 1, int(of)


def _source(
    work: Work, stream: str | None, file: Path | None, part: tuple[int, int], *, ends: bool
) -> tuple[Source, int | None]:
    from pipelines.fraud.sources import FileSource, StreamSource

    if file is not None:
        found = FileSource(file, part)
        return found, len(found)
    assert stream is not None
    client = work.repo.client()
    client.ping()  # one that is not there is said; one that goes away later is waited for
    return StreamSource(client, stream, ends=ends), None


@main.command()
@click.argument("file", type=_FILE)
def benchmark(file: Path) -> None:
    """Reproduce the Handbook's published benchmark from its transactions, FILE."""
    with _told():
        from pipelines.fraud.benchmark import PUBLISHED
        from pipelines.fraud.benchmark import benchmark as run
        from pipelines.fraud.load import load_transactions

        repo: Path = click.get_current_context().obj["repo"]
        with Console(stderr=True).status("computing the features of five weeks"):
            bundle = run(repo, load_transactions(file))
    click.echo(f"{bundle.metrics['rows']:,} payments tested, {bundle.metrics['frauds']:,} frauds")
    for name, published in PUBLISHED.items():
        found = bundle.metrics[name]
        mark = "equal" if round(found, 3) == published else "NOT EQUAL"
        click.echo(f"{name:18} {found:.4f}  published {published:.3f}  {mark}")


@main.command()
def models() -> None:
    """List the versions of the model."""
    with _told():
        from pipelines.fraud.bundle import ModelRefused

        work = _work()
        try:
            current = work.models.current()
        except ModelRefused:
            current = ""
        for version in work.models.versions():
            bundle = work.models.load(version)
            metrics = bundle.metrics
            click.echo(
                f"{'*' if version == current else ' '} {version}  AUC {metrics['auc']:.3f}  "
                f"average precision {metrics['average_precision']:.3f}  {bundle.rounds} trees  "
                f"{bundle.made['at']}"
            )


@main.command()
@click.option("--host", default="127.0.0.1", help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8_000, help="0 is any free one.")
@click.option("--database", metavar="URL", help="Of decisions; SQLite in --work if left out.")
@click.option("--size", type=click.IntRange(min=1), default=256, help="Payments in a batch.")
@click.option(
    "--waiting", type=click.IntRange(min=1), default=1_024, help="Requests that may wait for one."
)
@click.option("--deadline", type=click.FloatRange(0.01), default=2.0, help="Of a request, s.")
@click.option(
    "--without",
    multiple=True,
    metavar="LAYER",
    help="features, windows, outputs, scorer, warming.",
)
@click.option("--model", "version", help="Stay with a version; the current one if left out.")
@click.option("--device", type=_DEVICE, default="auto")
def serve(
    host: str,
    port: int,
    database: str | None,
    size: int,
    waiting: int,
    deadline: float,
    without: tuple[str, ...],
    version: str | None,
    device: str,
) -> None:
    """Decide payments over HTTP, one a request, each once."""
    with _told():
        from pipelines.fraud.decide import Layers
        from pipelines.fraud.endpoint import Limits
        from pipelines.fraud.serve import Server, ServeSettings, served

        work, layers = _work(), Layers.without(without)
        settings = ServeSettings(Limits(deadline), size, waiting, device, layers, version)
        with served(work, database or work.database, settings, say=click.echo) as service:
            Server(service, host, port, say=click.echo).run_to_the_end()


@main.command()
@click.argument("version", required=False)
@click.option("--rollback", is_flag=True, help="The version that was current before.")
@click.option("--device", type=_DEVICE, default="auto")
def deploy(version: str | None, rollback: bool, device: str) -> None:
    """Make VERSION of the model current; whoever scores goes over to it within seconds."""
    if (version is None) == (not rollback):
        raise click.UsageError("give a VERSION or --rollback")
    with _told(), _waiting("trying the model"):
        from pipelines.fraud import deploy as steps

        work = _work()
        store = work.open()
        if version is None:
            version = steps.roll_back(work, store, device)
        else:
            steps.deploy(work, store, version, device)
    click.echo(f"model {version} is current")


@main.command()
@click.option("--since", type=click.DateTime(), help="The first payments, UTC; all if left out.")
@click.option("--until", type=click.DateTime(), help="Before which they end, UTC.")
@click.option("--model", "version", help="A version; the current one if left out.")
@click.option("--master", default="local[*]", help="Where Spark runs.")
@click.option("--out", type=_PATH, help="A folder; backscores/VERSION in --work if left out.")
def backscore(
    since: datetime | None,
    until: datetime | None,
    version: str | None,
    master: str,
    out: Path | None,
) -> None:
    """Score history on Spark: what a version would have said of every payment so far."""
    with _told():
        from pipelines.fraud import backscore as back

        work = _work()
        bundle = work.models.load(version)
        folder = out or work.folder / "backscores" / bundle.version
        with _waiting(f"model {bundle.version} scores history"):
            found = back.backscore(
                work,
                bundle,
                folder,
                since=None if since is None else since.replace(tzinfo=UTC),
                until=None if until is None else until.replace(tzinfo=UTC),
                master=master,
                say=lambda line: click.echo(line, err=True),
            )
    counts = " / ".join(f"{count:,} {name}" for name, count in sorted(found.decisions.items()))
    click.echo(f"{sum(found.decisions.values()):,} payments: {counts}")
    click.echo(f"Scores: {found.folder.resolve()}")


@main.command()
@click.option("--requests", type=click.IntRange(min=50), default=3_000, help="A stage.")
@click.option("--skew", type=click.FloatRange(0, 3), default=0.98, help="Zipf, of the cards.")
@click.option(
    "--recorded", type=click.FloatRange(0.01, 1), default=0.25, help="Share that pays, not asks."
)
@click.option("--seed", type=click.IntRange(min=0), default=0)
@click.option("--core-hour", type=click.FloatRange(0), default=0.04, help="Its price.")
@click.option("--million-reads", type=click.FloatRange(0), default=0.2, help="Their price.")
@click.option(
    "--payments", type=click.IntRange(min=0), default=40_000, help="In micro-batches; 0 for none."
)
@click.option("--device", type=_DEVICE, default="auto")
@click.option("--out", type=_PATH, help="For the page; report/ in --work if left out.")
def report(
    requests: int,
    skew: float,
    recorded: float,
    seed: int,
    core_hour: float,
    million_reads: float,
    payments: int,
    device: str,
    out: Path | None,
) -> None:
    """Measure what each layer saves, on the same requests; writes a page with plots."""
    with _told():
        from pipelines.fraud.replay import STAGES, Replay, ReplaySpec, draw
        from pipelines.fraud.report import Prices, Report, write
        from pipelines.fraud.throughput import measure
        from pipelines.reads.console import Bars

        work, console = _work(), Console()
        spec = ReplaySpec(requests, skew, recorded, seed=seed)
        throughput = {}
        with Bars.on(console) as bars, ExitStack() as stack:
            with bars.wait("open the stages"):
                drawn, top_share = draw(work.labelled().tail(_DRAWN_FROM), spec)
                replay = stack.enter_context(Replay(work, device))
            with bars.wait("replay", total=requests) as advance:
                found = replay.run(drawn, spec, advance)
            replay.close()
            measured = (STAGES[0], STAGES[-1]) if payments else ()
            in_turns = 0.0
            with bars.wait("micro-batches", total=max(1, len(measured) + 1)) as advance:
                for stage in measured:
                    off = [name for name, is_on in vars(stage.layers).items() if not is_on]
                    throughput[stage.name] = measure(_options(), work.transactions(), off, payments)
                    advance(1)
                if payments:
                    in_turns = measure(
                        _options(), work.transactions(), [], payments, together=False
                    )
                    advance(1)
            made = Report(
                found,
                replay.bundle,
                spec,
                top_share,
                Prices(core_hour, million_reads),
                work.repo.shown_store,
                replay.way,
                throughput,
                in_turns,
            )
            with bars.wait("write the page"):
                paths = write(out or work.folder / "report", made)
        _print_report(console, made)
    for label, path in zip(("Page", "Numbers"), paths, strict=True):
        click.echo(f"{label}: {path.resolve().as_uri()}")


@main.command()
@click.option("--database", metavar="URL", help="Of decisions; SQLite in --work if left out.")
@click.option("--model", "version", help="A version; the current one if left out.")
@click.option("--rows", type=click.IntRange(min=0), default=20_000, help="Latest of them; 0: all.")
@click.option(
    "--limit", type=click.FloatRange(0, 1), default=0.0, help="Share of unexplained values."
)
@click.option(
    "--lag",
    "lag_s",
    type=click.FloatRange(0),
    default=3_600.0,
    help="What habits and risks may take to come online, s.",
)
@click.option("--out", type=_PATH, help="For the page; skew/ in --work if left out.")
def skew(
    database: str | None,
    version: str | None,
    rows: int,
    limit: float,
    lag_s: float,
    out: Path | None,
) -> None:
    """Compare what decisions were made on with what training has, and with its distribution.

    Ends with 1 where a value of a feature is neither equal nor explained. A drift is said, and is
    no failure: the world may have changed.
    """
    with _told():
        is_fine = _compared(database, version, rows, limit, lag_s, out)
    if not is_fine:
        raise SystemExit(1)


def _compared(
    database: str | None,
    version: str | None,
    rows: int,
    limit: float,
    lag_s: float,
    out: Path | None,
) -> bool:
    """Whether all is equal or explained; what was found is printed, and a page is written."""
    from hotplate.cli_skew import say_drift, say_skew
    from hotplate.skew import SkewSpec
    from pipelines.fraud import skew as skews
    from pipelines.fraud.ledger import open_ledger

    work = _work()
    bundle = work.models.load(version)
    with (
        open_ledger(database or work.database, wait_s=10) as ledger,
        Console(stderr=True).status("asking training") as status,
    ):
        found = skews.check(
            work,
            ledger,
            bundle,
            SkewSpec(limit=limit, rows=rows),
            lag_s=lag_s,
            say=lambda name: status.update(f"comparing {name}"),
        )
        html, numbers = skews.write(out or work.folder / "skew", found)
    say_skew(found.skew)
    if found.drift is None:
        click.echo("the model was trained without a sample to compare distributions with")
    else:
        say_drift(found.drift)
    for label, path in (("Page", html), ("Numbers", numbers)):
        click.echo(f"{label}: {path.resolve().as_uri()}")
    return found.skew.is_fine


_DRAWN_FROM = 50_000


def _options() -> list[str]:
    """The options of this run that name the repo, the folder and the store."""
    given: dict[str, Any] = click.get_current_context().obj
    said = ["--repo", str(given["repo"]), "--work", str(given["work"])]
    return [*said, "--redis", given["redis"]] if given["redis"] else said


def _print_report(console: Console, report: Report) -> None:
    from rich.table import Table

    from pipelines.reads.wording import duration

    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    names = ("p50", "p99", "model", "source reads", "from outputs", "wrong", "payments/s")
    for name in names:
        table.add_column(name, justify="right")
    for name, one in report.numbers().items():
        times_us = [duration(one[key]) for key in ("p50_us", "p99_us", "model_us")]
        found = report.throughput.get(name)
        table.add_row(
            name,
            *times_us,
            f"{one['source_reads']:.2f}",
            f"{one['from_outputs']:.1%}",
            f"{one['wrong']:,}",
            f"{found:,.0f}" if found else "",
        )
    console.print(table)
    console.print(_summary(report))


def _summary(report: Report) -> str:
    from pipelines.reads.wording import duration, times

    first, *_, last = report.numbers().values()
    wrong = sum(one["wrong"] for one in report.numbers().values())
    return (
        f"Half of the requests within {duration(last['p50_us'])} instead of "
        f"{duration(first['p50_us'])}, {times(first['model_us'] / last['model_us'])} less time in "
        f"the model, {1 - last['source_reads'] / first['source_reads']:.0%} fewer source reads, "
        f"{wrong or 'no'} wrong score{'' if wrong == 1 else 's'}."
    )


@main.command()
@click.option("--data", type=_FILE, help="Payments in place of simulated ones, as `load`.")
@click.option("--requests", type=click.IntRange(min=50), default=2_000, help="Of the report.")
@click.option("--payments", type=click.IntRange(min=1), default=20_000, help="To decide.")
@click.pass_context
def run(context: click.Context, data: Path | None, requests: int, payments: int) -> None:
    """Everything, on a server of its own: data, features, model, decisions, report.

    What it makes lies in run/ of --work, anew each time. Takes some minutes.
    """

    def step(number: int, what: str) -> None:
        click.secho(f"\n{number} of 7  {what}", bold=True)

    with _told():
        import shutil

        from hotplate.embedded import EmbeddedServer

        folder: Path = context.obj["work"] / "run"
        shutil.rmtree(folder, ignore_errors=True)
        context.obj["work"] = folder
        with EmbeddedServer.start() as found:
            context.obj["redis"] = found.connection_string
            if data is None:
                step(1, "payments, simulated, with known frauds")
                context.invoke(simulate)
            else:
                step(1, f"payments of {data}")
                context.invoke(load, file=data)
            step(2, "features: feast apply, feast materialize, windows filled from history")
            context.invoke(features)
            step(3, "a model of what was known when each payment was made")
            context.invoke(train)
            rows, latest = _work().transactions().tail(payments), folder / "latest.parquet"
            names = [f"run-{place}" for place in range(len(rows))]
            rows.assign(TRANSACTION_ID=names).to_parquet(latest, index=False)
            step(4, f"the latest {len(rows):,} payments, decided as if they were made now")
            context.invoke(score, file=latest, restamp=True)
            step(5, "what they were decided on, against what training has")
            _compared(None, None, 5_000, 0.0, 3_600.0, None)
            click.echo(
                "What has drifted is the replay's: weeks of payments at one time of day, and many "
                "of a card within seconds."
            )
            step(6, f"{requests:,} requests, with one cache after the other")
            context.invoke(report, requests=requests, payments=payments)
            step(7, "all parts of a deployment at once: what production shows")
            _everything()
            logging.getLogger("hotplate").setLevel(logging.ERROR)  # the server's end is no news


def _everything() -> None:
    """What all processes of the run counted, as `hotplate report` shows it for any deployment."""
    from pipelines.fraud.everything import look

    work = _work()
    with Console(stderr=True).status("deciding payments with every part on"):
        seen = look(work)
    absent = f"; not there: {', '.join(seen.absent)}" if seen.absent else ""
    click.echo(
        f"{seen.metrics} metrics, {seen.asked - len(seen.absent)} of the {seen.asked} that the "
        f"dashboard and the alert rules ask for{absent}"
    )
    click.echo(f"Counted: {seen.html.resolve().as_uri()}")
    click.echo(f"      or hotplate stats --folder {work.folder / 'metrics'}")


@main.command()
@click.option("--port", type=click.IntRange(1, 65_535), default=6_379)
def server(port: int) -> None:
    """Run a Valkey server of our own until Ctrl-C, for trying this out; it keeps nothing."""
    with _told():
        import signal

        from hotplate.embedded import EmbeddedServer

        with EmbeddedServer.start(port=port) as found:
            click.echo(f"{found.connection_string}; Ctrl-C ends it")
            signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    sys.exit(main())
