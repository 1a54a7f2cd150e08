"""The plots of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from hotplate.pages import figure_of
from hotplate.skew.compare import EXPLAINED, UNEXPLAINED, Verdicts
from hotplate.skew.drift import (
    DRIFTED,
    MISSING,
    SHIFTED,
    DriftReport,
    FeatureDrift,
    Measure,
)
from hotplate.skew.report import SkewReport
from hotplate.skew.values import is_null

__all__ = ["Chart", "drift_charts", "skew_charts"]

_GRID: Final = "#e5e7eb"
_BAD: Final = "#d9480f"
_COLORS: Final = dict(
    zip((*EXPLAINED, UNEXPLAINED), ("#56b4e9", "#0072b2", "#94a3b8", "#cc79a7", _BAD), strict=True)
)
_VERDICTS: Final = {
    "steady": "#009e73",
    "too few rows": "#94a3b8",
    "shifted": "#e69f00",
    "drifted": _BAD,
    "missing": _BAD,
}
_SCATTERED: Final = 6
_POINTS: Final = 1_500
_SHOWN_BINS: Final = 6
_LONGEST: Final = 4.0  # bars beyond it are cut, and say how long they are


class Chart(NamedTuple):
    """A plot with its words.

    Attributes:
        name: of its element.
        figure: of plotly.
        title, words: above it.
    """

    name: str
    figure: Any
    title: str
    words: str


def _figure(height: int) -> Any:
    """An empty plot, with room for long names of features."""
    figure = figure_of(height)
    figure.update_layout(margin={"l": 24}, legend={"y": 1.0})
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)
    return figure


# -- skew -----------------------------------------------------------------------------------------


def skew_charts(report: SkewReport) -> Iterator[Chart]:
    """The plots of a comparison."""
    yield Chart(
        "differing",
        _differing(report),
        "How much differs, and why",
        "The share of each feature's values that training has otherwise, by what explains it. A "
        "feature without a bar is the same everywhere. Only what is orange is wrong.",
    )
    worst = sorted(report.features, key=lambda one: -one.unexplained)[:_SCATTERED]
    names = [(one.view, one.name) for one in worst if one.unexplained]
    numeric = [
        (name, found)
        for view, name in names
        if (found := report.verdicts.get(f"{view}:{name}")) is not None
        and found.served.dtype != object
    ]
    if numeric:
        yield Chart(
            "scatter",
            _scatter(numeric),
            "Served against training, value by value",
            "The features with most unexplained values. On the line both are the same; a line of "
            "another slope is another unit, a cloud is another order or another feature.",
        )


def _differing(report: SkewReport) -> Any:
    import plotly.graph_objects as go

    # the first of the service on top
    features = list(reversed(report.features))
    figure = _figure(110 + 24 * len(features))
    used = [name for name in _COLORS if any(one.counts[name] for one in features)]
    for name in used or [UNEXPLAINED]:
        figure.add_trace(
            go.Bar(
                y=[one.name for one in features],
                x=[one.counts[name] / max(1, one.rows) for one in features],
                customdata=[one.counts[name] for one in features],
                name=name,
                orientation="h",
                marker={"color": _COLORS[name]},
                showlegend=True,
                hovertemplate="%{y}: %{customdata:,} (%{x:.2%})<extra>" + name + "</extra>",
            )
        )
    most = max((1 - one.same / max(1, one.rows) for one in features), default=0.0)
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_xaxes(
        tickformat=".1%" if most < 0.1 else ".0%",
        range=[0, max(0.01, most * 1.05)],
        title="of the values",
    )
    figure.update_yaxes(showgrid=False)
    return figure


def _scatter(features: Sequence[tuple[str, Verdicts]]) -> Any:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    columns = min(3, len(features))
    rows = -(-len(features) // columns)
    base = _figure(80 + 330 * rows)
    made = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=[name for name, _ in features],
        horizontal_spacing=0.09,
        vertical_spacing=0.3 / rows,
    )
    figure = go.Figure(made)
    figure.update_layout(base.layout)
    for place, (_, found) in enumerate(features):
        at = {"row": place // columns + 1, "col": place % columns + 1}
        shown = ~(is_null(found.served) | is_null(found.training))
        is_bad = np.zeros(len(shown), np.bool_)
        is_bad[found.where(UNEXPLAINED)] = True
        values = np.concatenate([found.served[shown], found.training[shown]])
        edge = [float(values.min()), float(values.max())] if len(values) else [0.0, 1.0]
        figure.add_trace(
            go.Scatter(
                x=edge,
                y=edge,
                mode="lines",
                line={"color": "#9ca3af", "width": 1},
                showlegend=False,
                hoverinfo="skip",
            ),
            **at,
        )
        for chosen, name, color in (
            (shown & ~is_bad, "equal or explained", "#0072b2"),
            (shown & is_bad, "unexplained", _BAD),
        ):
            some = np.flatnonzero(chosen)
            some = some[np.linspace(0, len(some) - 1, min(len(some), _POINTS)).astype(np.int64)]
            figure.add_trace(
                go.Scatter(
                    x=found.training[some],
                    y=found.served[some],
                    mode="markers",
                    name=name,
                    legendgroup=name,
                    showlegend=place == 0,
                    marker={"color": color, "size": 5, "opacity": 0.6},
                    hovertemplate="training %{x:.6g}<br>served %{y:.6g}<extra></extra>",
                ),
                **at,
            )
    figure.update_xaxes(gridcolor=_GRID, zeroline=False, title="training")
    figure.update_yaxes(gridcolor=_GRID, zeroline=False, title="served")
    figure.update_layout(legend={"y": 1.02 + 0.08 / rows}, margin={"l": 64, "t": 72})
    return figure


# -- drift ----------------------------------------------------------------------------------------


def drift_charts(report: DriftReport) -> Iterator[Chart]:
    """The plots of a drift."""
    yield Chart(
        "drift",
        _distances(report),
        "How far each feature has moved",
        "The largest of its measures, as a share of where a drift begins: at 1 it has drifted. The "
        "tick is what that measure reaches by chance; where that is beyond 1, there are too few "
        "rows to say.",
    )
    binned = [one for one in report.features if one.bins is not None]
    order = {DRIFTED: 0, MISSING: 0, SHIFTED: 1}
    binned.sort(key=lambda one: (order.get(one.verdict, 2), -_most(one)))
    if binned:
        yield Chart(
            "bins",
            _bins(binned[:_SHOWN_BINS]),
            "Then and now",
            "The features that moved most: the share of rows in each bin. Bins of numbers hold a "
            "tenth of the reference each, or one value where there are few.",
        )


def _most(one: FeatureDrift) -> float:
    return max((found.value / found.drifted for found in one.measures), default=0.0)


def _furthest(one: FeatureDrift) -> Measure | None:
    return max(one.measures, key=lambda of: of.value / of.drifted, default=None)


def _distances(report: DriftReport) -> Any:
    import plotly.graph_objects as go

    features = sorted(report.features, key=_most)
    figure = _figure(120 + 24 * len(features))
    for verdict, color in _VERDICTS.items():
        some = [one for one in features if one.verdict == verdict and one.measures]
        if not some:
            continue
        measures = [found for one in some if (found := _furthest(one)) is not None]
        figure.add_trace(
            go.Bar(
                y=[one.name for one in some],
                x=[min(_LONGEST, of.value / of.drifted) for of in measures],
                customdata=[[of.name.upper(), of.value, of.chance] for of in measures],
                text=[
                    f"{of.value / of.drifted:.0f} times" if of.value > _LONGEST * of.drifted else ""
                    for of in measures
                ],
                textposition="inside",
                insidetextanchor="end",
                textangle=0,
                constraintext="none",
                textfont={"size": 11, "color": "#fff"},
                name=verdict,
                orientation="h",
                marker={"color": color},
                hovertemplate="%{y}: %{customdata[0]} %{customdata[1]:.3f}, by chance "
                "%{customdata[2]:.3f}<extra>" + verdict + "</extra>",
            )
        )
        figure.add_trace(
            go.Scatter(
                y=[one.name for one in some],
                x=[min(_LONGEST, of.chance / of.drifted) for of in measures],
                mode="markers",
                marker={"symbol": "line-ns", "size": 13, "line": {"width": 3, "color": "#4b5563"}},
                name="by chance",
                legendgroup="chance",
                showlegend=verdict == next(iter(one.verdict for one in features if one.measures)),
                hoverinfo="skip",
            )
        )
    figure.add_vline(x=1, line={"color": _BAD, "width": 1, "dash": "dash"})
    figure.update_layout(barmode="overlay", bargap=0.35)
    longest = [max(of.value, of.chance) / of.drifted for of in map(_furthest, features) if of]
    reached = max(longest, default=0.0)
    figure.update_xaxes(title="1 = drifted", range=[0, min(_LONGEST, max(1.1, 1.05 * reached))])
    figure.update_yaxes(
        showgrid=False, categoryorder="array", categoryarray=[one.name for one in features]
    )
    return figure


def _bins(features: Sequence[FeatureDrift]) -> Any:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    columns = min(2, len(features))
    rows = -(-len(features) // columns)
    figure = go.Figure(
        make_subplots(
            rows=rows,
            cols=columns,
            subplot_titles=[f"{one.name} ({one.verdict})" for one in features],
            horizontal_spacing=0.09,
            vertical_spacing=0.32 / rows,
        )
    )
    figure.update_layout(_figure(70 + 290 * rows).layout)
    for place, one in enumerate(features):
        assert one.bins is not None
        pairs = zip(one.bins.reference, one.bins.current, strict=True)
        kept = [at for at, pair in enumerate(pairs) if any(pair)]
        for name, shares, color in (
            ("reference", one.bins.reference, "#94a3b8"),
            ("current", one.bins.current, "#0072b2"),
        ):
            figure.add_trace(
                go.Bar(
                    x=[one.bins.labels[at] for at in kept],
                    y=[shares[at] for at in kept],
                    name=name,
                    legendgroup=name,
                    showlegend=place == 0,
                    marker={"color": color},
                    hovertemplate="%{x}: %{y:.1%}<extra>" + name + "</extra>",
                ),
                row=place // columns + 1,
                col=place % columns + 1,
            )
    figure.update_xaxes(gridcolor=_GRID, tickangle=-40, automargin=True, type="category")
    figure.update_yaxes(gridcolor=_GRID, tickformat=".0%", rangemode="tozero", automargin=True)
    figure.update_layout(
        barmode="group", bargap=0.25, legend={"y": 1.02 + 0.06 / rows}, margin={"t": 76}
    )
    return figure
