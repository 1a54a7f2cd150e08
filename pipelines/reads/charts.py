"""The four plots of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from hotplate.pages import INK, figure_of
from pipelines.reads.replay import Recording
from pipelines.reads.results import Bucket, Latency, Results
from pipelines.reads.wording import duration, seconds

__all__ = ["ages", "hit_rates", "latency", "source_reads"]

BARE = "#64748b"
CACHED = "#d9480f"
GROUP_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9")
_BINS_PER_DECADE = 20
_POINTS = 1_200
_YOUNGEST_S = 0.01


def latency(found: Recording, results: Results) -> go.Figure:
    """How many requests took how long, bare and cached, on a logarithmic scale."""
    timed = found.is_timed
    runs = (
        ("bare Feast", found.bare_ns[timed] / 1e3, BARE, results.latency["bare"]),
        ("with Hotplate", found.cached_ns[timed] / 1e3, CACHED, results.latency["cached"]),
    )
    low = min(values.min() for _, values, _, _ in runs)
    high = 1.2 * max(np.percentile(values, 99.9) for _, values, _, _ in runs)
    edges = _log_edges(low, high)
    figure = figure_of(height=420)
    for run, values, color, quantiles in runs:
        share = np.histogram(np.minimum(values, edges[-1]), edges)[0] / len(values)
        hover = "%{y:.1%} of the requests from %{x:.0f} µs"
        line = _line(run, color, edges, [*share, 0], hover, is_filled=True)
        line.line.shape = "hv"
        if quantiles is not None:
            p50, p99 = duration(quantiles.p50_us), duration(quantiles.p99_us)
            line.name = f"{run}: p50 {p50}, p99 {p99}"
            _mark_quantiles(figure, color, quantiles)
        figure.add_trace(line)
    ticks = [base * 10.0**power for power in range(0, 6) for base in (1, 3)]
    shown = [tick for tick in ticks if edges[0] <= tick <= edges[-1]]
    figure.update_xaxes(
        type="log",
        range=[np.log10(edges[0]), np.log10(edges[-1])],
        tickvals=shown,
        ticktext=[duration(tick) for tick in shown],
        title="time to answer one request",
    )
    figure.update_yaxes(tickformat=".0%", title="share of requests", rangemode="tozero")
    return figure


def _log_edges(low_us: float, high_us: float) -> npt.NDArray[np.float64]:
    first, last = np.log10(low_us), np.log10(high_us)
    count = max(2, int((last - first) * _BINS_PER_DECADE) + 2)
    return np.logspace(first, last, count)


def _mark_quantiles(figure: go.Figure, color: str, quantiles: Latency) -> None:
    """A solid line at the p50 and a dashed one at the p99; the legend has their values."""
    for dash, value in (("solid", quantiles.p50_us), ("dash", quantiles.p99_us)):
        figure.add_vline(x=value, line={"color": color, "width": 1.5, "dash": dash})


def hit_rates(parts: Sequence[Bucket], results: Results) -> go.Figure:
    """The share of each group's reads that memory answered, over the replay."""
    figure = figure_of(height=380)
    times = [part.at_s for part in parts]
    for name, color in _colors(results).items():
        rates = [part.hit_rates.get(name, 0.0) for part in parts]
        figure.add_trace(_line(name, color, times, rates, "%{y:.1%} at %{x:.0f} s"))
    _mark_outside_write(figure, results, height=0.04)
    _time_axis(figure, parts)
    figure.update_yaxes(title="hit rate", tickformat=".0%", range=[0, 1.02])
    return figure


def source_reads(parts: Sequence[Bucket], results: Results) -> go.Figure:
    """Rows asked of the online store for each request, over the replay."""
    figure = figure_of(height=340)
    times = [part.at_s for part in parts]
    runs = (
        ("bare Feast", [part.bare_reads for part in parts], BARE),
        ("with Hotplate", [part.cached_reads for part in parts], CACHED),
    )
    for name, reads, color in runs:
        hover = "%{y:.2f} rows a request at %{x:.0f} s"
        figure.add_trace(_line(name, color, times, reads, hover, is_filled=True))
    _mark_outside_write(figure, results, height=0.4)
    _time_axis(figure, parts)
    figure.update_yaxes(title="source reads per request", rangemode="tozero")
    return figure


def _line(
    name: str,
    color: str,
    x: Sequence[float] | npt.NDArray[np.float64],
    y: Sequence[float],
    hover: str,
    *,
    is_filled: bool = False,
) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=y,
        name=name,
        mode="lines",
        line={"color": color, "width": 2.2},
        fill="tozeroy" if is_filled else None,
        fillcolor=_faint(color),
        hovertemplate=f"{hover}<extra>{name}</extra>",
    )


def ages(found: Recording, results: Results) -> go.Figure:
    """The age of what was served, and each group's bound, on a logarithmic scale."""
    bounded = {name: group for name, group in results.groups.items() if group.ttl_s}
    figure = figure_of(height=130 + 90 * len(bounded))
    figure.update_layout(showlegend=False)
    colors = _colors(results)
    last_s = _YOUNGEST_S
    for place, (name, group) in enumerate(reversed(bounded.items())):
        bound_s = group.ttl_s or 0.0
        last_s = max(last_s, bound_s)
        values = np.maximum(np.asarray(found.ages[name].age_s), _YOUNGEST_S)
        figure.add_trace(
            go.Box(
                x=_sample(values),
                y0=place,
                orientation="h",
                boxpoints="all",
                jitter=0.7,
                pointpos=0,
                width=0.42,
                marker={"color": colors[name], "size": 3, "opacity": 0.25},
                line={"color": colors[name], "width": 2},
                fillcolor="rgba(255,255,255,0.6)",
                hoverinfo="skip",
            )
        )
        figure.add_shape(
            type="line",
            x0=bound_s,
            x1=bound_s,
            y0=place - 0.32,
            y1=place + 0.32,
            line={"color": INK, "width": 3},
        )
        # above its box instead of beside it: on a phone there is no room for both
        figure.add_annotation(
            x=0,
            xref="paper",
            y=place + 0.3,
            xanchor="left",
            yanchor="bottom",
            text=f"<b>{name}</b>: oldest {seconds(group.max_age_s)}, bound {seconds(bound_s)}",
            showarrow=False,
            font={"color": colors[name], "size": 12},
        )
    ticks = [0.01, 0.1, 1, 10, 60, 600, 3_600, 86_400]
    shown = [tick for tick in ticks if tick <= last_s]
    figure.update_xaxes(
        type="log",
        range=[np.log10(_YOUNGEST_S) - 0.05, np.log10(last_s) + 0.1],
        tickvals=shown,
        ticktext=[seconds(tick) for tick in shown],
        title="age when served",
    )
    figure.update_yaxes(showticklabels=False, showgrid=False, range=[-0.5, len(bounded) - 0.3])
    figure.update_layout(margin={"l": 16, "t": 12})
    return figure


def _sample(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Evenly chosen quantiles, the smallest and the greatest included."""
    ordered = np.sort(values)
    chosen = np.linspace(0, len(ordered) - 1, min(_POINTS, len(ordered))).round().astype("int64")
    return np.random.default_rng(0).permutation(ordered[chosen])


def _time_axis(figure: go.Figure, parts: Sequence[Bucket]) -> None:
    # A range of its own: otherwise a label at the right makes room for itself on a narrow screen
    figure.update_xaxes(title="seconds since the start", range=[0, parts[-1].at_s])


def _mark_outside_write(figure: go.Figure, results: Results, height: float) -> None:
    at_s = results.writes["outside_at_s"]
    if at_s is None:
        return
    figure.add_vline(x=at_s, line={"color": INK, "width": 1, "dash": "dot"})
    figure.add_annotation(
        x=at_s,
        y=height,
        yref="paper",
        xanchor="left",
        yanchor="bottom",
        text=" another writer<br> changes<br> terminal_risk",
        align="left",
        font={"size": 11.5},
        showarrow=False,
        bgcolor="rgba(255,255,255,0.75)",
    )


def _colors(results: Results) -> Mapping[str, str]:
    return {
        name: GROUP_COLORS[place % len(GROUP_COLORS)] for place, name in enumerate(results.groups)
    }


def _faint(color: str) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.14)"
