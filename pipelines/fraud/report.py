"""What each layer saves, on the same requests: a page with plots, and a JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from hotplate.pages import INK, document, figure_of, plot, table, tiles_of
from pipelines.fraud.bundle import Bundle
from pipelines.fraud.replay import ReplaySpec, StageFound
from pipelines.made_with import made_with
from pipelines.reads.results import machine
from pipelines.reads.wording import count, duration, share, times

__all__ = ["Prices", "Report", "write"]

_COLORS: Final = ("#64748b", "#56b4e9", "#0072b2", "#009e73", "#d9480f", "#cc79a7")
_SECONDS_PER_HOUR: Final = 3_600
_MILLION: Final = 1e6
_LATEST: Final = 100


@dataclass(frozen=True)
class Prices:
    """What things cost, in the currency that the reader thinks in.

    Attributes:
        core_hour: an hour of one core.
        million_reads: a million rows read from the online store.
    """

    core_hour: float = 0.04
    million_reads: float = 0.20


@dataclass(frozen=True)
class Report:
    """What is shown.

    Attributes:
        found: by stage, the one without caches first.
        bundle: the model.
        spec: of the replay.
        top_share: share of the requests that the busiest hundredth of the cards makes.
        prices: for the costs.
        store: the online store, in words.
        way: how the model is scored, in words.
        throughput: payments a second in micro-batches, by stage; empty where it was not measured.
        in_turns: the same with all layers where each payment sees those of its card before it in
            its batch; 0 where it was not measured.
    """

    found: Mapping[str, StageFound]
    bundle: Bundle
    spec: ReplaySpec
    top_share: float
    prices: Prices
    store: str
    way: str
    throughput: Mapping[str, float]
    in_turns: float = 0.0

    def numbers(self) -> dict[str, dict[str, Any]]:
        """By stage."""
        return {
            name: {
                "p50_us": float(np.median(one.latency_ns)) / 1e3,
                "p99_us": float(np.quantile(one.latency_ns, 0.99)) / 1e3,
                "model_us": one.model_s / one.requests * _MILLION,
                "cpu_us": one.cpu_s / one.requests * _MILLION,
                "source_reads": one.source_reads / one.requests,
                "read_ahead": one.read_ahead,
                "from_outputs": one.from_outputs / one.requests,
                "different": one.different,
                "moved": one.moved,
                "stale": one.stale,
                "rounded": one.rounded,
                "wrong": one.wrong,
                "decisions_changed": one.decisions_changed,
                "cost_of_million": self._cost(one),
                "requests": one.requests,
                "hit_rates": {group: hits / reads for group, (hits, reads) in one.hits.items()},
                "families": one.families,
            }
            for name, one in self.found.items()
        }

    def _cost(self, one: StageFound) -> float:
        core = one.cpu_s / one.requests / _SECONDS_PER_HOUR * _MILLION * self.prices.core_hour
        return core + one.source_reads / one.requests * self.prices.million_reads


def write(folder: Path, report: Report) -> tuple[Path, Path]:
    """Write index.html and results.json; returns where they are.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made_at = datetime.now().astimezone()
    said = {
        "made_at": made_at.isoformat(timespec="seconds"),
        "stages": report.numbers(),
        "throughput": {**report.throughput, "in turns": report.in_turns},
        "model": {"version": report.bundle.version, "metrics": report.bundle.metrics},
        "scorer": report.way,
        "replay": {**vars(report.spec), "top_share": report.top_share},
        "prices": vars(report.prices),
        "machine": machine(report.store),
    }
    html, numbers = folder / "index.html", folder / "results.json"
    numbers.write_text(json.dumps(said, indent=2) + "\n", "utf-8")
    html.write_text(_page(report, said, f"{made_at.day} {made_at:%B %Y, %H:%M %Z}"), "utf-8")
    return html, numbers


_PAGE: Final = Template("""\
<h1>Fraud scoring: the same $requests requests, one layer after the other</h1>
<p class="soft">$subtitle</p>
<div class="tiles">$tiles</div>
<section><h2>In numbers</h2>$numbers
<p class="soft">Each line adds a layer to the one above. <i>Source reads</i> are rows asked past the
caches since the first request, the windows' logs and what is read again on the side included.
<i>CPU</i> is that of answering. $ahead</p></section>
$plots
<section><h2>Are the scores the same?</h2>$same</section>
<section><h2>Hit rates</h2>$hits</section>
<section><h2>The model</h2>$model</section>
<section><h2>How it was measured</h2>$method</section>
""")


def _page(report: Report, said: Mapping[str, Any], made_at: str) -> str:
    numbers = report.numbers()
    first, last = next(iter(numbers.values())), list(numbers.values())[-1]
    tiles = [
        (times(first["p99_us"] / last["p99_us"]), "lower p99 of a single request"),
        (times(first["model_us"] / last["model_us"]), "fewer model seconds"),
        (share(1 - last["source_reads"] / first["source_reads"]), "fewer source reads"),
        (count(sum(one["wrong"] for one in numbers.values())), "wrong scores"),
    ]
    if report.throughput:
        best = max(report.throughput.values())
        tiles.append((f"{best:,.0f}/s", "payments decided in micro-batches, written and recorded"))
    body = _PAGE.substitute(
        requests=count(last["requests"]),
        subtitle=made_with(made_at, said["machine"]),
        tiles=tiles_of(tiles),
        numbers=_numbers(report, numbers),
        ahead=_ahead(numbers),
        plots=_plots(report, numbers),
        same=_same(numbers),
        hits=_hits(last),
        model=_model(report),
        method=_method(report),
    )
    return document("Fraud scoring, layer by layer", body)


def _numbers(report: Report, numbers: Mapping[str, Mapping[str, Any]]) -> str:
    header = ["", "p50", "p99", "model", "CPU", "source reads", "cost of 1 M"]
    if report.throughput:
        header.append("in micro-batches")
    rows = []
    for name, one in numbers.items():
        row = [name, *(duration(one[key]) for key in ("p50_us", "p99_us", "model_us", "cpu_us"))]
        row += [f"{one['source_reads']:.2f}", f"{one['cost_of_million']:.2f}"]
        if report.throughput:
            found = report.throughput.get(name)
            row.append(f"{found:,.0f}/s" if found else "")
        rows.append(row)
    return table(header, rows)


def _ahead(numbers: Mapping[str, Mapping[str, Any]]) -> str:
    name, last = list(numbers.items())[-1]
    if not last["read_ahead"]:
        return ""
    return escape(
        f"Before its first request the stage {name!r} had read {count(last['read_ahead'])} rows: "
        "those that the process before it held when it ended, of the cards and terminals of the "
        "latest payments."
    )


def _same(numbers: Mapping[str, Mapping[str, Any]]) -> str:
    header = ("", "compared", "different", "window moved", "stale within bound", "rounded", "wrong")
    rows = [
        (name, *(count(one[key]) for key in _COMPARED)) for name, one in list(numbers.items())[1:]
    ]
    words = (
        "Every score is compared with those of the first stage for the same request, asked before "
        "and after it. A window moves when time or a payment changes it in between; a plain "
        "feature may be as old as its group's bound; an answer of the cache of outputs is that of "
        "inputs which are the same to four places. What none of these explains is wrong."
    )
    return table(header, rows) + f'<p class="soft">{escape(words)}</p>'


_COMPARED: Final = ("requests", "different", "moved", "stale", "rounded", "wrong")


def _hits(last: Mapping[str, Any]) -> str:
    rows = [(group, share(rate)) for group, rate in sorted(last["hit_rates"].items())]
    rows.append(("outputs, all requests", share(last["from_outputs"])))
    rows += [
        (f"outputs, family {family['name']}", share(family["hit_rate"]))
        for family in last["families"]
    ]
    return table(("group or family", "answered from memory"), rows)


def _model(report: Report) -> str:
    bundle, metrics = report.bundle, report.bundle.metrics
    rows = [
        ("version", bundle.version),
        ("trees, inputs", f"{bundle.rounds}, {len(bundle.inputs)}"),
        ("trained on", f"{bundle.data['rows']:,} payments, {bundle.data['frauds']:,} frauds"),
        ("scored by", report.way),
    ]
    rows += [
        (name.replace("_", " "), f"{metrics[name]:.3f}")
        for name in ("auc", "average_precision", "card_precision")
        if metrics[name] is not None
    ]
    shown = "".join(f"<dt>{escape(key)}</dt><dd>{escape(said)}</dd>" for key, said in rows)
    return f"<dl>{shown}</dl>"


def _method(report: Report) -> str:
    spec, prices = report.spec, report.prices
    points = (
        f"Requests: {count(spec.requests)} a stage, about purchases: for each, a card is drawn by "
        f"a Zipf law of exponent {spec.skew:g}, and brings one of its payments, drawn evenly; the "
        f"busiest 1 % of the cards make {share(report.top_share)} of them. A purchase is asked "
        f"about {1 / spec.recorded_share:.1f} times on average, the payment itself included, while "
        "others are under way; payments are recorded in the windows between blocks.",
        f"Stages take turns at blocks of {spec.block} requests over one online store, each in a "
        "process of its own; the first of each block are not timed. A latency covers reading all "
        "features and scoring one payment.",
        "In micro-batches: two processes decide the payments of a file, write decisions to SQLite "
        f"and record them in the windows; start-up is not counted. {_in_turns(report)}",
        f"Costs: {prices.core_hour:g} a core-hour, {prices.million_reads:g} a million source "
        "reads.",
    )
    return "<ul>" + "".join(f"<li>{escape(point)}</li>" for point in points) + "</ul>"


def _in_turns(report: Report) -> str:
    if not report.in_turns:
        return ""
    return (
        "Months of payments are decided in seconds there, many of one card in one batch, at once "
        "(--together). Where each sees those of its card before it, as it does unless that is "
        f"said, all layers decide {report.in_turns:,.0f}/s; in a stream few batches hold two."
    )


# -- plots ----------------------------------------------------------------------------------------


def _plots(report: Report, numbers: Mapping[str, Mapping[str, Any]]) -> str:
    return "".join(
        (
            plot(
                "latency",
                _latency(report),
                "How long does a single request take?",
                "The share of requests that were decided within a time; the axis is logarithmic. "
                "The further left a line rises, the better; where it ends at the top right is the "
                "worst request.",
            ),
            plot(
                "start",
                _start(report),
                "A restart, with and without preloading",
                "The share of requests that had to read the online store, of the latest 100, from "
                "the first request of a process on: with all caches empty, and with what was "
                "preloaded before it. Payments go on changing windows, so some always do.",
            ),
            plot(
                "work",
                _work(numbers),
                "What work is left?",
                "Model seconds and source reads of each stage, as a share of those without caches.",
            ),
        )
    )


def _latency(report: Report) -> go.Figure:
    figure = figure_of(height=420)
    for color, (name, one) in zip(_COLORS, report.found.items(), strict=False):
        ordered = np.sort(np.asarray(one.latency_ns)) / 1e3
        places = np.unique(np.linspace(0, len(ordered) - 1, 400).astype(int))
        figure.add_trace(
            go.Scatter(
                x=ordered[places],
                y=(places + 1) / len(ordered),
                name=name,
                mode="lines",
                line={"color": color, "width": 2.2},
                hovertemplate="%{y:.1%} within %{x:.0f} µs<extra>" + name + "</extra>",
            )
        )
    ticks = [base * 10.0**power for power in range(1, 7) for base in (1, 3)]
    figure.update_xaxes(
        type="log",
        tickvals=ticks,
        ticktext=[duration(tick) for tick in ticks],
        title="time to decide one payment",
    )
    figure.update_yaxes(tickformat=".0%", title="requests decided", range=[0, 1.01])
    return figure


def _start(report: Report) -> go.Figure:
    figure = figure_of(height=340)
    stages = list(zip(report.found.items(), _COLORS, strict=False))
    for (name, one), color in stages[-2:]:
        waited = np.asarray(one.waited, np.float64)
        so_far = np.concatenate([[0.0], np.cumsum(waited)])
        ends = np.unique(np.linspace(1, len(waited), 300).astype(int))
        begins = np.maximum(0, ends - _LATEST)
        figure.add_trace(
            go.Scatter(
                x=ends,
                y=(so_far[ends] - so_far[begins]) / (ends - begins),
                name=name,
                mode="lines",
                line={"color": color, "width": 2.2},
                hovertemplate="request %{x:,}: %{y:.0%}<extra>" + name + "</extra>",
            )
        )
    figure.update_xaxes(title="requests since the start")
    figure.update_yaxes(tickformat=".0%", title="read the store", range=[0, 1.02])
    return figure


def _work(numbers: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    figure = figure_of(height=360)
    first = next(iter(numbers.values()))
    for key, name, color in (
        ("model_us", "model seconds", _COLORS[4]),
        ("source_reads", "source reads", _COLORS[2]),
    ):
        values = [one[key] / first[key] if first[key] else 0.0 for one in numbers.values()]
        figure.add_trace(
            go.Bar(
                x=list(numbers),
                y=values,
                name=name,
                marker={"color": color},
                text=[f"{value:.0%}" for value in values],
                textposition="outside",
                textfont={"color": INK},
                hovertemplate="%{y:.1%}<extra>" + name + "</extra>",
            )
        )
    figure.update_yaxes(tickformat=".0%", range=[0, 1.15], title="of that without caches")
    figure.update_layout(barmode="group")
    return figure
