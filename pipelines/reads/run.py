"""One run, from transactions to the page."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from feast import FeatureStore
from rich.console import Console

import hotplate
from pipelines.fraud.load import load_transactions
from pipelines.fraud.simulate import SimulationSpec, radius_for, simulate
from pipelines.fraud.stores import FeatureRepo, online_source, quiet_feast
from pipelines.reads.console import Bars, print_results
from pipelines.reads.model import FraudModel, area_under_curve, fit
from pipelines.reads.options import Options, ReadsError
from pipelines.reads.prepare import FULL_DAYS, World, prepare
from pipelines.reads.replay import SERVICE, Recording, Replay, ReplaySpec
from pipelines.reads.report import page
from pipelines.reads.requests import Requests, draw_requests
from pipelines.reads.results import Results, machine, summarize
from pipelines.reads.updates import SpendingUpdates

__all__ = ["run"]


@dataclass(frozen=True)
class _Prepared:
    """All that a replay needs besides the stores."""

    world: World
    requests: Requests
    model: FraudModel
    spec: ReplaySpec


def run(options: Options) -> Results:
    """Run it; writes index.html and results.json and prints the table.

    Raises:
        ReadsError: something given cannot be used; the message says what.
    """
    console = Console(file=sys.stdout)
    with Bars.on(console) as bars, ExitStack() as ends_here:
        prepared = _prepare(options, bars)
        work = Path(ends_here.enter_context(tempfile.TemporaryDirectory(prefix="hotplate-reads-")))
        with bars.wait("start the online store"), _explained():
            source = ends_here.enter_context(online_source(options.store, work))
            repo = FeatureRepo(options.repo, work, source)
        if source.note:
            bars.say(f"SQLite takes the server's place: {source.note}")
        cached = _serve(repo, prepared.world, bars)
        results, found = _measure(prepared, repo, cached, bars)
        results = replace(
            results,
            settings=_settings(options, prepared.spec),
            data=_data(options, prepared),
            machine=machine(source.name),
        )
        with bars.wait("write the page"):
            paths = _write(options.out, results, found)
    print_results(console, results, *paths)
    return results


@contextmanager
def _explained() -> Iterator[None]:
    """What fails here fails because of what was given: its message is for the user."""
    try:
        yield
    except (ValueError, OSError, hotplate.HotplateError) as error:
        raise ReadsError(str(error)) from error


def _prepare(options: Options, bars: Bars) -> _Prepared:
    spec = None if options.data is not None else _simulation(options)
    with bars.wait("simulate payments" if spec else "read payments"), _explained():
        transactions = simulate(spec) if spec else load_transactions(str(options.data))
    with bars.wait("compute features"), _explained():
        world = prepare(transactions, spec)
    with bars.wait("train the model"), _explained():
        model = fit(world.training)
    return _Prepared(
        world=world,
        requests=draw_requests(world.stream, options.transactions, options.skew, options.seed),
        model=model,
        spec=ReplaySpec(
            rate=options.rate, has_outside_write=options.outside_write, seed=options.seed
        ),
    )


def _simulation(options: Options) -> SimulationSpec:
    return SimulationSpec(
        n_customers=options.customers,
        n_terminals=options.terminals,
        n_days=FULL_DAYS,
        radius=radius_for(options.terminals),
        seed=options.seed,
    )


def _serve(repo: FeatureRepo, world: World, bars: Bars) -> FeatureStore:
    """Write the tables, apply the repo, fill the online store; returns the cached store."""
    with bars.wait("apply the feature repo"), quiet_feast(), _explained():
        repo.write_tables(world.tables)
        cached = repo.open_cached()
        views = repo.apply(cached, SERVICE)
    with bars.wait("materialize", total=len(views)) as advance, quiet_feast():
        for view in views:
            repo.materialize(cached, view)
            advance(1)
    return cached


def _measure(
    prepared: _Prepared, repo: FeatureRepo, cached: FeatureStore, bars: Bars
) -> tuple[Results, Recording]:
    world, requests, model = prepared.world, prepared.requests, prepared.model
    with bars.wait("replay", total=len(requests)) as advance, quiet_feast():
        replay = Replay(repo.open_bare(), cached, requests, model, prepared.spec)
        spending = SpendingUpdates(world.tables["customer_spending"])
        found = replay.run(spending, world.next_risk, advance)
        policies = hotplate.of(cached).policies()
    said_of_model = {
        "training_rows": model.rows,
        "auc_bare": area_under_curve(requests.labels, found.bare_scores.tolist()),
        "auc_cached": area_under_curve(requests.labels, found.cached_scores.tolist()),
    }
    return summarize(found, policies, said_of_model), found


def _settings(options: Options, spec: ReplaySpec) -> dict[str, Any]:
    return {"skew": options.skew, **asdict(spec), "command": options.command()}


def _data(options: Options, prepared: _Prepared) -> dict[str, Any]:
    world = prepared.world
    return {
        "origin": options.data.name if options.data else "simulated",
        "customers": len(world.tables["customer_spending"]),
        "terminals": len(world.tables["terminal_risk"]),
        "moment": f"{world.moment.isoformat()}Z",
        "moved_by_weeks": world.shift_weeks,
        "top_share": prepared.requests.top_share,
    }


def _write(out: Path, results: Results, found: Recording) -> tuple[Path, Path]:
    made_at = datetime.now().astimezone()
    html, numbers = out / "index.html", out / "results.json"
    said = {"made_at": made_at.isoformat(timespec="seconds"), **asdict(results)}
    drawn = page(found, results, f"{made_at.day} {made_at:%B %Y, %H:%M %Z}")
    with _explained():
        out.mkdir(parents=True, exist_ok=True)
        html.write_text(drawn, "utf-8")
        numbers.write_text(json.dumps(said, indent=2) + "\n", "utf-8")
    return html, numbers
