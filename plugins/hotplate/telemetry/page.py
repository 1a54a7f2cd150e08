"""The page of a deployment: what its cache did, and how fresh it was, as plots.

One HTML file that needs nothing from the network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from hotplate.pages import document, figure_of, plot, table, tiles_of
from hotplate.sizes import format_bytes
from hotplate.telemetry.reading import Reading
from hotplate.telemetry.summary import Summary

__all__ = ["page"]

_COLORS: Final = ("#0072b2", "#56b4e9", "#e69f00", "#cc79a7", "#999999", "#d55e00", "#009e73")
_CAUSES: Final = {"cold": "not in memory", "expired": "past its bound", "never": "never kept"}
_CAUSES_ALL: Final = {**_CAUSES, "channel": "channel not whole"}
_ROW_PX: Final = 34


def page(found: Summary, reading: Reading) -> str:
    """The whole page.

    Args:
        found: what happened.
        reading: what it was made of, for the distributions.
    """
    made_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    span = "since the start" if found.seconds is None else f"over {found.seconds:,.0f} s"
    parts = [
        f"<h1>What the cache did</h1><p class='soft'>{escape(span)} · {escape(made_at)} · "
        f"{found.processes} processes now</p>",
        tiles_of(_tiles(found)),
        _answers(found),
        _ages(found, reading),
        _source(found, reading),
    ]
    if found.invalidations:
        parts.append(_invalidations(found))
    if any(group.compared for group in found.groups.values()):
        parts.append(_shadow(found))
    if found.outputs:
        parts.append(_outputs(found))
    parts.append(_table(found))
    return document("Hotplate: what the cache did", "\n".join(parts))


def _tiles(found: Summary) -> list[tuple[str, str]]:
    groups = found.groups.values()
    reads = sum(group.reads for group in groups)
    hits = sum(group.reads * (group.hit_rate or 0) for group in groups)
    late = sum(group.late for group in groups)
    tiles = [
        (f"{hits / reads:.1%}" if reads else "-", f"of {reads:,.0f} reads answered from memory"),
        (f"{found.source_trips:,.0f}", "round trips to the source"),
        (f"{late:,.0f}", "rows of sampled requests were served past their ttl"),
        (f"{found.faults:,.0f}", "faults of the cache, each answered from the source"),
    ]
    compared = sum(group.compared for group in groups)
    if compared:
        differed = sum(group.differed for group in groups)
        tiles.append((f"{differed:,}", f"of {compared:,} compared rows differed from the source"))
    return tiles


def _bars(names: Sequence[str], parts: dict[str, list[float]], title: str) -> Any:
    """Stacked bars, one a name, the first one on top."""
    import plotly.graph_objects as go

    figure = figure_of(150 + _ROW_PX * len(names))
    for (part, values), color in zip(parts.items(), _COLORS * 3, strict=False):
        figure.add_trace(
            go.Bar(y=list(names), x=values, name=part, orientation="h", marker_color=color)
        )
    figure.update_layout(barmode="stack", bargap=0.35, legend_traceorder="normal")
    figure.update_layout(margin={"l": 12, "r": 24, "t": 60, "b": 56})
    figure.update_xaxes(title=title)
    figure.update_yaxes(autorange="reversed", automargin=True)
    return figure


def _answers(found: Summary) -> str:
    names = list(found.groups)
    parts = {"from memory": [(g.hit_rate or 0) * g.reads for g in found.groups.values()]}
    for cause, said in _CAUSES_ALL.items():
        counts = [group.misses.get(cause, 0.0) for group in found.groups.values()]
        if any(counts):
            parts[said] = counts
    return plot(
        "answers",
        _bars(names, parts, "reads"),
        "Where reads were answered",
        "A read is one row of one request. What memory could not answer came from the shared tier, "
        "from another request's load, or from the source.",
    )


def _ages(found: Summary, reading: Reading) -> str:
    import plotly.graph_objects as go

    figure = figure_of(170 + _ROW_PX * len(found.groups))
    groups = reading.parts("project", "group")
    for place, ((project, name), held) in enumerate(sorted(groups.items())):
        shown = name if name in found.groups else f"{project}/{name}"
        group = found.groups[shown]
        edges, counts = _distribution(held, "hotplate_age_seconds")
        color = _COLORS[place % len(_COLORS)]
        for (low, high), share in zip(edges, counts, strict=True):
            if share:
                figure.add_trace(
                    go.Scatter(
                        x=[max(low, 1e-4), min(high, 1e6)],
                        y=[shown, shown],
                        mode="lines",
                        line={"color": color, "width": 26},
                        opacity=0.12 + 0.88 * share,
                        hovertemplate=f"{share:.1%} between {low:g} and {high:g} s<extra></extra>",
                        showlegend=False,
                    )
                )
        if group.ttl_s and not math.isinf(group.ttl_s):
            figure.add_trace(
                go.Scatter(
                    x=[group.ttl_s],
                    y=[shown],
                    mode="markers",
                    marker={"symbol": "line-ns-open", "size": 30, "color": "#d9480f"},
                    name="ttl",
                    showlegend=place == 0,
                    hovertemplate=f"ttl {group.ttl_s:g} s<extra></extra>",
                )
            )
    figure.update_xaxes(type="log", title="age when served, seconds")
    figure.update_yaxes(autorange="reversed", automargin=True, type="category")
    figure.update_layout(margin={"l": 12, "r": 24, "t": 48, "b": 56})
    return plot(
        "ages",
        figure,
        "How old values were, against their bound",
        "Counted from before the source was read; the darker, the more of what was served was as "
        "old. The red mark is the group's ttl: nothing may lie right of it. Sampled.",
    )


def _distribution(held: Reading, name: str) -> tuple[list[tuple[float, float]], list[float]]:
    """Bounds of the buckets of a histogram, and the share of each, of the greatest one."""
    buckets = sorted(
        (float(bound), count) for bound, count in held.by(f"{name}_bucket", "le").items()
    )
    edges, counts, low, before = [], [], 0.0, 0.0
    for bound, so_far in buckets:
        edges.append((low, bound))
        counts.append(so_far - before)
        low, before = bound, so_far
    most = max(counts, default=0.0)
    return edges, [count / most if most else 0.0 for count in counts]


def _source(found: Summary, reading: Reading) -> str:
    import plotly.graph_objects as go

    buckets = sorted(
        (float(bound), count)
        for bound, count in reading.by("hotplate_source_seconds_bucket", "le").items()
    )
    total = buckets[-1][1] if buckets else 0.0
    figure = figure_of(300)
    if total:
        figure.add_trace(
            go.Scatter(
                x=[bound * 1e3 for bound, _ in buckets if not math.isinf(bound)],
                y=[count / total for bound, count in buckets if not math.isinf(bound)],
                mode="lines+markers",
                line={"color": _COLORS[0]},
                hovertemplate="%{y:.1%} within %{x:g} ms<extra></extra>",
            )
        )
    figure.update_xaxes(type="log", title="milliseconds")
    figure.update_yaxes(title="share of round trips", tickformat=".0%", range=[0, 1.02])
    said = (
        "There was none."
        if not total
        else (
            f"Half within {(found.source_p50_s or 0) * 1e3:.2g} ms, 99 of 100 within "
            f"{(found.source_p99_s or 0) * 1e3:.3g} ms. A request that misses makes one, "
            "however many groups it reads."
        )
    )
    return plot("source", figure, "What round trips to the source took", said)


def _invalidations(found: Summary) -> str:
    causes = dict(sorted(found.invalidations.items(), key=lambda item: -item[1]))
    return plot(
        "invalidations",
        _bars(list(causes), {"times": list(causes.values())}, "times"),
        "What made processes forget",
        "write and event: through Feast, in this process; broadcast and announced: others did, and "
        "it was heard; gap: something may have been missed, and all was forgotten.",
    )


def _shadow(found: Summary) -> str:
    import plotly.graph_objects as go

    checked = {name: group for name, group in found.groups.items() if group.compared}
    figure = figure_of(150 + _ROW_PX * len(checked))
    figure.add_trace(
        go.Bar(
            y=list(checked),
            x=[group.mismatch_high for group in checked.values()],
            orientation="h",
            marker_color=["#d9480f" if group.differed else "#009e73" for group in checked.values()],
            text=[f"{group.differed:,} of {group.compared:,}" for group in checked.values()],
            textposition="auto",
        )
    )
    figure.update_xaxes(title="share of served rows that differ, at the most", tickformat=".3~%")
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_layout(margin={"l": 12, "r": 24, "t": 24, "b": 56})
    return plot(
        "shadow",
        figure,
        "Whether what is served is what the source has",
        "Some rows that memory would serve are compared with the source. The bar ends where, with "
        "95 % confidence, the true share lies below; it shortens as more are compared. Rows that "
        "are merely older than the source, within their ttl, do not count.",
    )


def _outputs(found: Summary) -> str:
    words = ("hit", "compared", "miss", "expired", "invalidated", "rule", "off", "bypassed")
    parts = {
        word: [output.results.get(word, 0.0) for output in found.outputs.values()] for word in words
    }
    rules = [
        [name, rule, f"{count:,.0f}"]
        for name, output in found.outputs.items()
        for rule, count in output.rules.items()
    ]
    drawn = _bars(list(found.outputs), {k: v for k, v in parts.items() if any(v)}, "rows scored")
    section = plot(
        "outputs",
        drawn,
        "Outputs of models",
        "What became of each row that was scored; `rule`: a rule forbids to cache it.",
    )
    if rules:
        section += f"<section>{table(['model', 'rule', 'rows never cached'], rules)}</section>"
    return section


def _table(found: Summary) -> str:
    rows = [
        [
            name,
            "-" if group.ttl_s is None else f"{group.ttl_s:g} s",
            f"{group.reads:,.0f}",
            "-" if group.hit_rate is None else f"{group.hit_rate:.1%}",
            f"{group.shared:,.0f}",
            f"{group.loads:,.0f}",
            f"{group.load_errors:,.0f}",
            f"{group.age_max_s:.3g} s",
            f"{group.entries:,.0f}",
            format_bytes(int(group.bytes)),
        ]
        for name, group in found.groups.items()
    ]
    header = ["group", "ttl", "reads", "hits", "from shared", "loads", "errors", "oldest", "rows"]
    return f"<section><h2>In numbers</h2>{table([*header, 'memory'], rows)}</section>"
